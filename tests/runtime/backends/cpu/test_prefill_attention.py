"""Attention of prefill chunks as native code, against the reference interpreter in double precision."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.operations import CausalAttention, ChunkAttention, Observe
from sscc.runtime.backends.cpu.attention.panels import Tiling
from sscc.runtime.backends.cpu.attention.prefill_attention import (
    block_of_queries,
    lower_causal_attention,
    lower_chunk_attention,
    lower_observe,
)
from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features
from sscc.runtime.backends.cpu.codegen.row_copies import NativeRowErrors
from sscc.runtime.backends.reference import prefill_chunk as prompt
from sscc.runtime.backends.reference.encoded_rows import decode, encode
from tests.errors import raises
from tests.runtime.backends.cpu.cpus import CPUS, HOST
from tests.runtime.backends.cpu.harness_prefill import (
    CompiledStages,
    bits,
    check_pieces,
    like,
    meta_of,
    run_step,
    strided,
)

Tensors = dict[str, torch.Tensor]

DTYPES = [torch.float32, torch.bfloat16]
CAUSAL = CausalAttention("query", "key", "value", "out", "start", "n", 0.3, "sums")
CHUNK = ChunkAttention("query", "new_key", "new_value", "k_scratch", "v_scratch", "out", "start", "n", 0.4, "sums")
WHOLE = 1 << 20
"""Length of a prompt that continues after the chunk."""
SCRATCHES = {"k_scratch": 8, "v_scratch": 6}
"""Numbers of their rows."""


def tolerance(dtype: torch.dtype) -> float:
    """Tolerance for values of order 1, which the output and, with bf16, the softmax's weights are rounded to."""
    return 1e-5 if dtype == torch.float32 else 2e-2


def random_causal(seed: int, dtype: torch.dtype) -> Tensors:
    """Return the operands of a random geometry, with outer axes in another order in memory than in the shape."""
    choose = random.Random(seed)
    group, kv_heads, chunk = choose.randint(1, 7), choose.randint(1, 3), choose.randint(1, 160)
    depth, width = choose.choice([(8, 8), (64, 64), (7, 5), (40, 72), (128, 128), (30, 17)])
    rows = chunk + choose.randint(0, 200)
    heads = group * kv_heads
    return {
        "query": strided(torch.randn(1, heads, chunk, depth).to(dtype), (0, 2, 1, 3)),
        "key": torch.randn(1, kv_heads, rows, depth).to(dtype),
        "value": strided(torch.randn(1, kv_heads, rows, width).to(dtype), (0, 2, 1, 3)),
        "out": strided(torch.full((1, heads, chunk, width), 9.0).to(dtype), (0, 2, 1, 3)),
        "sums": torch.full((1, heads, chunk), 9.0),
    }


def causal_reference(
    tensors: Tensors, start: int, scale: float, window: int = 0, softcap: float | None = None
) -> Tensors:
    out, sums = tensors["out"].double(), tensors["sums"].double()
    query, key, value = (tensors[name].double() for name in ("query", "key", "value"))
    prompt.causal_attention(
        query, key, value, out, tensors.get("sinks"), log_sum_exp=sums, start=start, length=WHOLE, scale=scale,
        window=window, softcap=softcap, wide=torch.float64,
    )  # fmt: skip
    return {"out": out, "sums": sums}


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("seed", "window"), [(0, 0), (7, 64), (10, 129)])
def test_scores_may_be_capped_and_heads_have_sinks(
    seed: int, window: int, dtype: torch.dtype, features: Features
) -> None:
    tensors = random_causal(seed, dtype)
    (_, heads, chunk, _), rows = tensors["query"].shape, tensors["key"].shape[2]
    tensors["sinks"] = torch.linspace(-2, 3, heads).to(dtype)
    step = replace(CAUSAL, softcap=1.5, sink_logits="sinks", window=window)
    compiled = CompiledStages(step, lower_causal_attention, tensors, ["start", "n"], features)
    for start in (0, rows - chunk):
        got = check_pieces(compiled, tensors, {"start": start, "n": WHOLE}, ["out", "sums"])
        want = causal_reference(tensors, start, CAUSAL.scale, window, 1.5)
        torch.testing.assert_close(got["out"].double(), want["out"], rtol=tolerance(dtype), atol=tolerance(dtype))
        torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [0, 5, 7, 10])
def test_causal_attention_of_random_geometries(seed: int, dtype: torch.dtype, features: Features) -> None:
    tensors = random_causal(seed, dtype)
    chunk, rows = tensors["query"].shape[2], tensors["key"].shape[2]
    compiled = CompiledStages(CAUSAL, lower_causal_attention, tensors, ["start", "n"], features)
    for start in sorted({0, (rows - chunk) // 2, rows - chunk}):
        memory = {name: like(tensor) for name, tensor in tensors.items()}
        memory["key"][:, :, start + chunk :] = torch.nan  # rows that are not read
        memory["value"][:, :, start + chunk :] = torch.nan
        got = check_pieces(compiled, memory, {"start": start, "n": WHOLE}, ["out", "sums"])
        want = causal_reference(memory, start, CAUSAL.scale)
        torch.testing.assert_close(got["out"].double(), want["out"], rtol=tolerance(dtype), atol=tolerance(dtype))
        torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("seed", "window"), [(0, 1), (5, 7), (7, 64), (10, 129), (7, 1000)])
def test_causal_attention_within_a_window(seed: int, window: int, dtype: torch.dtype, features: Features) -> None:
    """Windows of one position, within a block of keys, over several, and of all there is."""
    tensors = random_causal(seed, dtype)
    step = replace(CAUSAL, window=window)
    chunk, rows = tensors["query"].shape[2], tensors["key"].shape[2]
    compiled = CompiledStages(step, lower_causal_attention, tensors, ["start", "n"], features)
    for start in sorted({0, (rows - chunk) // 2, rows - chunk}):
        memory = {name: like(tensor) for name, tensor in tensors.items()}
        memory["key"][:, :, start + chunk :] = torch.nan  # rows that are not read
        memory["value"][:, :, start + chunk :] = torch.nan
        memory["key"][:, :, : max(start - window + 1, 0)] = torch.nan
        memory["value"][:, :, : max(start - window + 1, 0)] = torch.nan
        got = check_pieces(compiled, memory, {"start": start, "n": WHOLE}, ["out", "sums"])
        want = causal_reference(memory, start, step.scale, window)
        torch.testing.assert_close(got["out"].double(), want["out"], rtol=tolerance(dtype), atol=tolerance(dtype))
        torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("seed", "row_format"), [(0, INT8), (5, INT8), (10, INT8), (0, INT4), (10, INT4)])
def test_encoded_keys_and_values_are_what_they_stand_for(
    seed: int, row_format: RowFormat, dtype: torch.dtype, features: Features
) -> None:
    tensors = random_causal(seed, dtype)
    chunk, rows = tensors["query"].shape[2], tensors["key"].shape[2]
    tensors |= {name: strided(encode(tensors[name], row_format), (0, 2, 1, 3)) for name in ("key", "value")}
    compiled = CompiledStages(CAUSAL, lower_causal_attention, tensors, ["start", "n"], features, checked=True)
    for start in sorted({0, (rows - chunk) // 2, rows - chunk}):
        got = check_pieces(compiled, tensors, {"start": start, "n": WHOLE}, ["out", "sums"])
        plain = tensors | {name: decode(tensors[name], row_format) for name in ("key", "value")}
        want = causal_reference(plain, start, CAUSAL.scale)
        torch.testing.assert_close(got["out"].double(), want["out"], rtol=tolerance(dtype), atol=tolerance(dtype))
        limit = 1e-5 if dtype == torch.float32 else 1e-2  # where products are of pairs, keys are rounded to bf16
        torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=limit, atol=limit)


@pytest.mark.skipif(not HOST.bf16_dot, reason="this CPU has no products of pairs of bf16")
@pytest.mark.parametrize(
    ("group", "chunk", "depth", "width", "rows", "window", "row_format"),
    [(3, 37, 64, 40, 150, 0, None), (1, 70, 32, 16, 133, 9, None), (2, 20, 128, 128, 84, 0, INT8)],
)
def test_by_tile_registers(
    group: int, chunk: int, depth: int, width: int, rows: int, window: int, row_format: RowFormat | None
) -> None:
    """AMX_BF16, emulated where the CPU lacks it: blocks of keys that end anywhere, one half of a tile of columns."""
    features, kv_heads = Features(extensions=HOST.extensions | {"amx_tile", "amx_bf16"}), 2
    assert Tiling(features, ["bf16"], depth, matrix=True).matrix
    plain = {
        "query": strided(torch.randn(1, kv_heads * group, chunk, depth).bfloat16(), (0, 2, 1, 3)),
        "key": torch.randn(1, kv_heads, rows, depth).bfloat16(),
        "value": torch.randn(1, kv_heads, rows, width).bfloat16(),
        "out": torch.full((1, kv_heads * group, chunk, width), 9.0).bfloat16(),
        "sums": torch.full((1, kv_heads * group, chunk), 9.0),
    }
    tensors = dict(plain)
    if row_format is not None:
        tensors |= {name: encode(plain[name], row_format) for name in ("key", "value")}
        plain |= {name: decode(tensors[name], row_format).bfloat16() for name in ("key", "value")}
    step = replace(CAUSAL, window=window)
    compiled = CompiledStages(step, lower_causal_attention, tensors, ["start", "n"], features)
    for start in (0, rows - chunk):
        memory = {name: like(tensor) for name, tensor in tensors.items()}
        if row_format is None:
            memory["key"][:, :, start + chunk :] = torch.nan  # rows that are not read
            memory["value"][:, :, start + chunk :] = torch.nan
        got = check_pieces(compiled, memory, {"start": start, "n": WHOLE}, ["out", "sums"])
        want = causal_reference(plain, start, step.scale, window)
        torch.testing.assert_close(got["out"].double(), want["out"], rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("types", ["query", "key", "value", "out"])
def test_causal_attention_of_mixed_dtypes(types: str) -> None:
    """One operand in bf16: products are of f32."""
    tensors = random_causal(2, torch.float32)
    tensors[types] = tensors[types].bfloat16()
    scalars = {"start": 3, "n": WHOLE}
    got = run_step(CAUSAL, lower_causal_attention, tensors, scalars, Features.of_host(), ["out", "sums"])
    want = causal_reference(tensors, 3, CAUSAL.scale)
    limit = tolerance(tensors["out"].dtype)
    torch.testing.assert_close(got["out"].double(), want["out"], rtol=limit, atol=limit)
    torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_apart_neither_overflow_nor_give_nan(dtype: torch.dtype) -> None:
    """Scores up to some thousands, in rising order, so that every block of keys raises the peak."""
    tensors = random_causal(1, dtype)
    ramp = torch.linspace(-30, 30, tensors["key"].shape[2])[None, None, :, None]
    tensors["query"] = like(tensors["query"].abs())
    tensors["key"] = (torch.ones_like(tensors["key"]) * ramp).to(dtype)
    start = tensors["key"].shape[2] - tensors["query"].shape[2]
    scalars = {"start": start, "n": WHOLE}
    got = run_step(CAUSAL, lower_causal_attention, tensors, scalars, Features.of_host(), ["out", "sums"])
    want = causal_reference(tensors, start, CAUSAL.scale)
    torch.testing.assert_close(
        got["out"].double(), want["out"], rtol=2e-2, atol=2e-2 if dtype != torch.float32 else 2e-3
    )
    torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("size", [1e6, 1e9, 3e10, 1e12, 1e20, 1e28])
def test_scores_of_any_size_have_their_weights(size: float, features: Features) -> None:
    """The first half of the queries have the same score with every key, the others one score above all."""
    tensors = random_causal(2, torch.float32)
    chunk, best = tensors["query"].shape[2], 0
    tensors["query"][...], tensors["key"][...] = 0.0, 1.0
    tensors["query"][..., 0] = size * (1 + torch.rand(chunk))
    tensors["query"][:, :, chunk // 2 :, 1] = tensors["query"][:, :, chunk // 2 :, 0] / 2
    tensors["key"][..., 1] = 0.0
    tensors["key"][:, :, best, 1] = 1.0
    tensors["query"][:, :, : chunk // 2, 1] = 0.0
    scalars = {"start": 0, "n": WHOLE}
    got = run_step(CAUSAL, lower_causal_attention, tensors, scalars, features, ["out", "sums"])
    want = causal_reference(tensors, 0, CAUSAL.scale)
    torch.testing.assert_close(got["out"].double(), want["out"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)


def test_a_query_does_not_depend_on_later_queries() -> None:
    """Nor do its bits depend on what the chunk holds behind it."""
    tensors = random_causal(3, torch.bfloat16)
    compiled = CompiledStages(CAUSAL, lower_causal_attention, tensors, ["start", "n"], Features.of_host())
    changed = {name: like(tensor) for name, tensor in tensors.items()}
    half = tensors["query"].shape[2] // 2
    assert half > 0
    changed["query"][:, :, half:] = 3.0
    changed["key"][:, :, half:] = 5.0
    for memory in (tensors, changed):
        compiled.run(memory, {"start": 0, "n": WHOLE})
    assert torch.equal(bits(tensors["out"][:, :, :half]), bits(changed["out"][:, :, :half]))
    assert not torch.equal(tensors["out"], changed["out"])


# ---------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row_format", [INT8, INT4])
def test_a_chunk_is_encoded_on_its_way_into_an_encoded_scratch(row_format: RowFormat, dtype: torch.dtype) -> None:
    """To the bit, so that attention is over what a step would have written; padding is left out."""
    shapes = {"query": (1, 6, 20, 8), "new_key": (1, 2, 20, 8), "new_value": (1, 2, 20, 6)}
    widths = {name: row_format.width(size) for name, size in SCRATCHES.items()}
    states = {name: torch.full((1, 2, 60, width), 9, dtype=torch.int8) for name, width in widths.items()}
    compiled, step = None, replace(CHUNK, log_sum_exp="")
    for start in (0, 20, 40):
        part = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
        memory = {**part, **states, "out": torch.zeros(1, 6, 20, 6).to(dtype)}
        compiled = compiled or CompiledStages(step, lower_chunk_attention, memory, ["start", "n"], Features.of_host())
        got = check_pieces(compiled, memory, {"start": start, "n": 47}, [*SCRATCHES, "out"])
        want = {name: tensor if tensor.dtype == torch.int8 else tensor.double() for name, tensor in memory.items()}
        want = {name: like(tensor) for name, tensor in want.items()}
        settings = {"start": start, "length": 47, "scale": 0.4, "window": 0}
        prompt.chunk_attention(**want, log_sum_exp=None, **settings, wide=torch.float64)
        for name in SCRATCHES:
            assert torch.equal(got[name], want[name]), name
        torch.testing.assert_close(got["out"].double(), want["out"], rtol=tolerance(dtype), atol=tolerance(dtype))
        states = {name: got[name] for name in states}


def chunk_states(rows: int, dtype: torch.dtype) -> Tensors:
    return {
        "k_scratch": torch.full((1, 2, rows, 8), torch.nan).to(dtype),
        "v_scratch": torch.full((1, 2, rows, 6), torch.nan).to(dtype),
    }


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("chunk", "window"), [(8, 0), (20, 0), (128, 0), (20, 9), (128, 150)])
def test_chunks_append_and_attend(chunk: int, window: int, dtype: torch.dtype, features: Features) -> None:
    limit, step = 3 * chunk, replace(CHUNK, window=window)
    shapes = {"query": (1, 6, chunk, 8), "new_key": (1, 2, chunk, 8), "new_value": (1, 2, chunk, 6)}
    example = {name: torch.zeros(shape).to(dtype) for name, shape in shapes.items()}
    made = {"out": torch.zeros(1, 6, chunk, 6).to(dtype), "sums": torch.zeros(1, 6, chunk)}
    example |= {**chunk_states(limit, dtype), **made}
    compiled = CompiledStages(step, lower_chunk_attention, example, ["start", "n"], features)
    for length in (1, chunk - 1, chunk, chunk + 3, limit):
        states = chunk_states(limit, dtype)
        for start in range(0, length, chunk):
            part = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
            memory = {**part, **states, **{name: like(tensor) for name, tensor in made.items()}}
            got = check_pieces(compiled, memory, {"start": start, "n": length}, [*states, *made])
            want = {name: tensor.double() for name, tensor in memory.items()}
            operands = {name: want[name] for name in (*shapes, *states, "out")}
            prompt.chunk_attention(
                **operands, log_sum_exp=want["sums"], start=start, length=length, scale=0.4, window=window,
                wide=torch.float64,
            )  # fmt: skip
            for name in states:
                assert torch.equal(got[name].double().nan_to_num(7.0), want[name].nan_to_num(7.0)), name
            torch.testing.assert_close(got["out"].double(), want["out"], rtol=tolerance(dtype), atol=tolerance(dtype))
            torch.testing.assert_close(got["sums"].double(), want["sums"], rtol=1e-5, atol=1e-5)
            states = {name: got[name] for name in states}


def test_a_chunk_beyond_the_scratch_writes_nothing() -> None:
    tensors = {"query": torch.ones(1, 6, 4, 8), "new_key": torch.ones(1, 2, 4, 8), "new_value": torch.ones(1, 2, 4, 6)}
    states = {**chunk_states(6, torch.float32), "out": torch.zeros(1, 6, 4, 6), "sums": torch.zeros(1, 6, 4)}
    compiled = CompiledStages(CHUNK, lower_chunk_attention, {**tensors, **states}, ["start", "n"], GENERIC)
    for start in (-1, 3, 1 << 40):
        got = check_pieces(compiled, {**tensors, **states}, {"start": start, "n": 6}, list(states))
        assert all(torch.equal(bits(got[name]), bits(states[name])) for name in states), start


@pytest.mark.parametrize("dtype", DTYPES)
def test_observe_keeps_the_last_queries(dtype: torch.dtype) -> None:
    chunk, obs = 40, 6
    tensors = {"observed": torch.zeros(1, 3, obs, 5), "query": torch.randn(1, 3, chunk, 5).to(dtype)}
    step = Observe("observed", "query", "start", "n")
    compiled = CompiledStages(step, lower_observe, tensors, ["start", "n"], AVX2)
    for length in (1, 3, obs, 39, 43, 80):
        for start in (0, 40):
            got = check_pieces(compiled, tensors, {"start": start, "n": length}, ["observed"])
            want = tensors["observed"].clone()
            prompt.observe(want, tensors["query"].float(), start=start, length=length)
            assert torch.equal(got["observed"], want)


# ---------------------------------------------------------------------------------------------------- refusals


def test_operands_that_are_not_dense_along_the_last_axis_are_refused() -> None:
    tensors = random_causal(1, torch.float32)
    tensors["key"] = strided(tensors["key"], (0, 1, 3, 2))
    with raises(NativeRowErrors.STRIDE, operand="key"):
        lower_causal_attention(CAUSAL, meta_of(tensors), GENERIC)


@pytest.mark.parametrize(("group", "chunk"), [(1, 1), (1, 512), (3, 512), (4, 256), (5, 100), (8, 512), (300, 7)])
def test_blocks_of_queries_fill_their_panels(group: int, chunk: int) -> None:
    queries = block_of_queries(group, chunk, 48)
    assert 1 <= queries <= min(chunk, 96)
    assert queries == 1 or queries * group <= 256
    whole, left = divmod(chunk, queries)
    computed = sum(-(-rows * group // 48) * 48 for rows in [queries] * whole + [left])
    assert chunk * group / computed > 0.85 or chunk * group < 96
