"""Native attention of a decode step, compared with the reference interpreter's."""

from __future__ import annotations

import ctypes
import functools
import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from sscc.ir import kv_rows
from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.operations import CachedAttention, DecodeAttention, Segment, SelectedRows, UpdateRows
from sscc.runtime.backends.cpu.attention.decode_attention import lower_cached_attention, lower_decode_attention
from sscc.runtime.backends.cpu.attention.row_attention import NativeAttentionErrors
from sscc.runtime.backends.cpu.attention.row_source import lower_update_rows
from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features
from sscc.runtime.backends.cpu.codegen.row_copies import Meta, NativeRowErrors
from sscc.runtime.backends.reference import attention
from sscc.runtime.backends.reference import kv_cache as cache
from sscc.runtime.backends.reference.softmax import Scoring
from tests.errors import raises
from tests.runtime.backends.cpu.cpus import CPUS, HOST
from tests.runtime.backends.cpu.harness_decode import CompiledStep, meta_of

Tensors = dict[str, Tensor]
F32, BF16 = torch.float32, torch.bfloat16
SINK, RECENT, TOPK = 3, 150, 130
SR = SINK + RECENT
DECODE = DecodeAttention(
    "query", "new_key", "new_value", "k_cache", "v_cache", "k_cache", "v_cache", "position", "base", "active", "topk",
    "out", 0.2, SINK, RECENT,
)  # fmt: skip
INDEXED = replace(DECODE, segments=(SelectedRows("k_store", "v_store", "selected"),))
CACHED = CachedAttention("query", (Segment("k_cache", "v_cache", "valid"),), "out", 0.2)
# Relative error, of the whole output: the order of sums, and rounding the output to bf16.
TOLERANCE = {F32: 1e-6, BF16: 4e-3}
TORCH = 4.0
"""Error allowed for the reference itself, in tolerances: torch's order of summation depends on the CPU."""
# (query heads, KV heads, D, Dv): groups of 1, 2, 3, 4, 7, 8; sizes that are and are not whole vectors.
SIZES = [(2, 2, 64, 64), (4, 2, 20, 33), (3, 1, 16, 128), (8, 2, 80, 96), (7, 1, 96, 7), (8, 1, 128, 32), (5, 5, 3, 1)]
DTYPES = [(F32, F32), (BF16, BF16), (BF16, F32), (F32, BF16)]
"""Dtype of the caches, and dtype of everything else."""
SLOTS = {
    "position": [700, 0, 60, 400, 2],
    "base": [SINK + TOPK, 9, 9, 40, 0],
    "active": [1, 0, 1, 1, 1],
}
"""Behind a prompt of many tokens; not active; while all rows fit; behind a short prompt, in the second lap of its ring;
and in a prompt that is shorter than the sinks."""


def strided(tensor: Tensor, padding: int) -> Tensor:
    """The same tensor with slots and heads swapped in memory, and rows that lie `padding` elements apart."""
    b, h, r, d = tensor.shape
    memory = torch.full((h, b, r, d + padding), torch.nan).to(tensor.dtype)
    view = memory.permute(1, 0, 2, 3)[..., :d]
    view.copy_(tensor)
    return view


def decode_inputs(
    heads: int,
    kv_heads: int,
    depth: int,
    width: int,
    dtype: torch.dtype = F32,
    query: torch.dtype = F32,
    rows: int = 300,
    topk: int = TOPK,
) -> Tensors:
    """Operands of `DECODE` with five slots, and with fewer kept rows than `topk` where the cache has fewer."""
    slots, generator = len(SLOTS["position"]), torch.Generator().manual_seed(heads * 1000 + depth)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {
        "query": normal(slots, heads, 1, depth).to(query),
        "new_key": normal(slots, kv_heads, 1, depth).to(query),
        "new_value": normal(slots, kv_heads, 1, width).to(query),
        "k_cache": normal(slots, kv_heads, rows, depth).to(dtype),
        "v_cache": normal(slots, kv_heads, rows, width).to(dtype),
        "position": torch.tensor(SLOTS["position"]),
        "base": torch.tensor(SLOTS["base"]),
        "topk": torch.tensor(min(topk, rows - SR)),
        "active": torch.tensor(SLOTS["active"], dtype=torch.bool),
        "out": torch.full((slots, heads, 1, width), 9.0).to(query),
    }
    return tensors


def copied(tensors: Tensors) -> Tensors:
    """Copies with the same strides."""
    result = {}
    for name, tensor in tensors.items():
        result[name] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
    return result


def decode_reference(tensors: Tensors, step: DecodeAttention = DECODE) -> Tensors:
    """Return copies of the tensors after the reference has run the step in f64."""
    t = copied(tensors)
    run_reference(t, step, torch.float64)
    return t


def run_reference(t: Tensors, step: DecodeAttention, wide: torch.dtype) -> None:
    """Run the reference's step on operands with the names of the step."""
    operands = {name: t.get(region) for name, region in vars(step).items() if isinstance(region, str)}
    segments = [{name: t[region] for name, region in vars(segment).items() if region} for segment in step.segments]
    attention.decode_attention_step(
        **operands | {"topk": int(t[step.topk])}, segments=segments, sink=step.sink, recent=step.recent,
        scale=step.scale, softcap=step.softcap, window_stride=step.window_stride, spare=step.spare,
        wide=wide,
    )  # fmt: skip


def row_of(position: int, base: int, topk: int) -> int:
    """The row of a position of which none is selected: rows before the ring are never written again."""
    first = min(max(base, SINK), SINK + topk)
    return position if position < first else first + (position - first) % (SINK + topk + RECENT - first)


LATENT = replace(DECODE, new_value="", value="", v_cache="")
# (query heads, D, Dv) of rows whose first numbers are the values.
LATENT_SIZES = [(3, 20, 16), (16, 72, 64), (40, 288, 256)]


def latent_inputs(heads: int, depth: int, width: int, dtype: torch.dtype = F32, query: torch.dtype = F32) -> Tensors:
    """Operands of `LATENT`."""
    tensors = decode_inputs(heads, 1, depth, width, dtype, query)
    return {name: tensor for name, tensor in tensors.items() if name not in ("new_value", "v_cache")}


def latent_reference(tensors: Tensors) -> Tensors:
    """Return the reference's results in f64, with values stored in a separate cache."""
    width = tensors["out"].shape[3]
    values = {new: tensors[rows][..., :width] for new, rows in (("new_value", "new_key"), ("v_cache", "k_cache"))}
    want = decode_reference(tensors | values)
    return {name: want[name] for name in tensors}


def decode(tensors: Tensors, features: Features = HOST, step: DecodeAttention = DECODE) -> CompiledStep:
    return _decode(tuple(meta_of(tensors).items()), features, step)


@functools.cache
def _decode(meta: tuple[tuple[str, Meta], ...], features: Features, step: DecodeAttention) -> CompiledStep:
    return CompiledStep(lower_decode_attention(step, dict(meta), features), dict(meta), features, (step.topk,))


def check(got: Tensors, want: Tensors, tolerances: float = 1.0) -> None:
    """Check that tensors are equal, and `out` within `tolerances` tolerances."""
    for name in want:
        if name != "out":
            assert torch.equal(got[name], want[name]), name
    out, expected = got["out"].double(), want["out"].double()
    assert (out - expected).norm() <= tolerances * TOLERANCE[got["out"].dtype] * expected.norm()


# ------------------------------------------------------------------------------------------- decode attention


@pytest.mark.parametrize(
    ("features", "shift"),
    [
        pytest.param(HOST, 0, id="host"),
        pytest.param(HOST, 1, id="host_other_dtypes"),
        pytest.param(GENERIC, 0, id="generic"),
        pytest.param(AVX2, 1, id="avx2"),
    ],
)
@pytest.mark.parametrize("case", range(len(SIZES)))
def test_decode_attention_is_the_references(features: Features, case: int, shift: int) -> None:
    tensors = decode_inputs(*SIZES[case], *DTYPES[(case + shift) % 4])
    want = decode_reference(tensors)
    compiled = decode(tensors, features)
    compiled(tensors)
    check(tensors, want)
    assert not tensors["out"][1].any()
    assert len(compiled.lowered.phases) == 2


@pytest.mark.parametrize(("dtype", "query"), DTYPES)
@pytest.mark.parametrize("sizes", LATENT_SIZES)
def test_values_may_be_the_first_numbers_of_keys(
    sizes: tuple[int, int, int], dtype: torch.dtype, query: torch.dtype
) -> None:
    """Native code and the reference, of groups that fill many tiles."""
    ours = latent_inputs(*sizes, dtype, query)
    theirs, want = copied(ours), latent_reference(ours)
    decode(ours, step=LATENT)(ours)
    check(ours, want)
    run_reference(theirs, LATENT, torch.float32)
    check(theirs, want, TORCH)


@pytest.mark.parametrize(("row_format", "query"), [(INT8, F32), (INT4, BF16)])
@pytest.mark.parametrize("sizes", LATENT_SIZES)
def test_values_may_be_the_first_of_the_numbers_that_codes_stand_for(
    sizes: tuple[int, int, int], row_format: RowFormat, query: torch.dtype
) -> None:
    """A part of a group of numbers among them. Rows that an index names stand in the place of some of the cache's."""
    plain = latent_inputs(*sizes, F32, query) | {"topk": torch.tensor(30)}
    depth, far = sizes[1], torch.randn(5, 1, 50, sizes[1], generator=torch.Generator().manual_seed(1))
    index = torch.arange(30).flip(0).expand(5, 1, 30).contiguous()
    index[:, :, 7] = -1

    def stored(rows: Tensor) -> Tensor:
        return torch.from_numpy(row_format.encode(rows.float().numpy()))

    def numbers(rows: Tensor) -> Tensor:
        return torch.from_numpy(row_format.decode(rows.numpy()))

    codes = plain | {"k_cache": stored(plain["k_cache"]), "far": stored(far), "index": index}
    meant = copied(plain | {"k_cache": numbers(codes["k_cache"]), "new_key": numbers(stored(plain["new_key"]))})
    meant["key"], chosen = meant["k_cache"].clone(), numbers(codes["far"])[:, :, index[0, 0]]
    there = meant["key"][:, :, SINK : SINK + 30]
    there.copy_(torch.where(index[..., None] < 0, there, chosen))
    values = {"new_value": meant["new_key"], "v_cache": meant["k_cache"], "value": meant["key"]}
    meant |= {name: rows[..., : sizes[2]] for name, rows in values.items()}
    t = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in meant.items()}
    run_reference(t, replace(DECODE, key="key", value="value"), torch.float64)
    step = replace(LATENT, segments=(SelectedRows("far", "", "index"),))
    theirs = copied(codes)
    decode(codes, step=step)(codes)
    run_reference(theirs, step, torch.float32)
    for got, tolerances in ((codes, 1.0), (theirs, TORCH)):
        assert torch.equal(numbers(got["k_cache"]).nan_to_num(), t["k_cache"].float().nan_to_num())
        assert (got["out"].double() - t["out"]).norm() <= tolerances * TOLERANCE[query] * t["out"].norm()
    assert depth > sizes[2]


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(("case", "shift"), [(0, 0), (1, 1), (4, 0), (5, 1)])
def test_scores_may_be_capped_and_heads_have_sinks(case: int, shift: int, features: Features) -> None:
    """If a slot's rows are split, only one part adds the learned sinks. An inactive slot gives zeros."""
    tensors = decode_inputs(*SIZES[case], *DTYPES[(case + shift) % 4])
    plain = decode_reference(tensors)["out"]
    tensors["sinks"] = torch.linspace(-2, 9, SIZES[case][0]).to(tensors["query"].dtype)
    step = replace(DECODE, softcap=1.5, sink_logits="sinks")
    want = decode_reference(tensors, step)
    compiled = decode(tensors, features, step)
    compiled(tensors)
    check(tensors, want)
    assert not tensors["out"][1].any()
    assert not torch.allclose(want["out"].double(), plain.double(), rtol=0.1)
    assert len(compiled.lowered.phases) == 2


@pytest.mark.parametrize(("dtype", "padding"), [(F32, 5), (BF16, 1)])
def test_rows_and_heads_may_lie_anywhere_and_nothing_beyond_a_row_is_read_or_written(
    dtype: torch.dtype, padding: int
) -> None:
    tensors = decode_inputs(6, 2, 21, 35, dtype, dtype)
    for name in ("query", "new_key", "new_value", "k_cache", "v_cache", "out"):
        tensors[name] = strided(tensors[name], padding)
    want = decode_reference(tensors)
    decode(tensors)(tensors)
    check(tensors, want)
    for name in ("k_cache", "v_cache", "out"):
        tensor = tensors[name]
        whole = tensor.as_strided((tensor.untyped_storage().size() // tensor.itemsize,), (1,))
        assert int(whole.isnan().sum()) * tensor.shape[-1] == padding * tensor.numel()


@pytest.mark.parametrize("parts", [2, 3, 40])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_bits_do_not_depend_on_how_units_are_shared_out(parts: int, dtype: torch.dtype) -> None:
    tensors = decode_inputs(6, 2, 64, 64, dtype, dtype)
    compiled = decode(tensors)
    whole, shared = copied(tensors), copied(tensors)
    compiled(whole)
    compiled(shared, parts, backwards=True)
    assert all(torch.equal(whole[name], shared[name]) for name in whole)


def test_bits_of_a_slot_do_not_depend_on_other_slots_or_on_rows_that_it_does_not_see() -> None:
    tensors = decode_inputs(6, 2, 64, 64)
    others = copied(tensors)
    compiled = decode(tensors)
    others["position"][[0, 1, 3]] = torch.tensor([9, 1000, 4])
    others["active"][[0, 1]] = torch.tensor([False, True])
    others["base"][3] = SR + 99
    others["k_cache"][2, :, 61:] = torch.nan
    others["v_cache"][2, :, 61:] = torch.nan
    compiled(tensors)
    compiled(others)
    assert torch.equal(tensors["out"][[2, 4]], others["out"][[2, 4]])
    assert not others["out"][0].any()
    assert not torch.equal(tensors["out"][3], others["out"][3])


def test_a_cache_behind_a_copy_gets_the_new_row_only_and_the_copy_stays() -> None:
    tensors = decode_inputs(6, 2, 32, 40, BF16)
    step = replace(DECODE, key="key", value="value")
    tensors["key"], tensors["value"] = tensors["k_cache"].clone(), tensors["v_cache"].clone()
    tensors["k_cache"].fill_(torch.nan)
    tensors["v_cache"].fill_(torch.nan)
    want = decode_reference(tensors, step)
    decode(tensors, step=step)(tensors)
    assert torch.equal(tensors["k_cache"].nan_to_num(7.0), want["k_cache"].nan_to_num(7.0))
    assert torch.equal(tensors["key"], want["key"])
    assert (tensors["out"] - want["out"]).norm() <= 1e-6 * want["out"].norm()
    same = decode_inputs(6, 2, 32, 40, BF16)
    same["key"], same["value"] = same["k_cache"], same["v_cache"]
    decode(same, step=step)(same)
    assert torch.equal(same["out"], tensors["out"])


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("topk", [0, 1, 97, 147])
def test_a_layer_may_keep_fewer_rows_than_the_cache_has(topk: int, features: Features) -> None:
    """The rows behind its ring are neither read nor written."""
    tensors = decode_inputs(6, 2, 20, 33, topk=topk)
    end = SINK + topk + RECENT
    for name in ("k_cache", "v_cache"):
        tensors[name][:, :, end:] = 99.0
    without = {**tensors, **{name: tensors[name][:, :, :end].contiguous() for name in ("k_cache", "v_cache")}}
    want = decode_reference(tensors)
    decode(tensors, features)(tensors)
    check(tensors, want)
    torch.testing.assert_close(decode_reference(without)["out"], want["out"])


@pytest.mark.parametrize("features", [pytest.param(HOST, id="host"), pytest.param(GENERIC, id="generic")])
@pytest.mark.parametrize("topk", [0, 5, 147])
def test_the_row_of_a_position_is_that_of_its_ring(topk: int, features: Features) -> None:
    """Before, in and behind the ring's first lap. A base beyond sinks and kept rows is the nearest one there."""
    end = SINK + topk + RECENT
    positions = [0, SINK, SINK + topk - 1, SINK + topk, end - 1, end, 2 * end + 7]
    for base in (-(2**40), -1, 0, SINK, SINK + topk // 2, SINK + topk, SINK + topk + 1, end, 2**62):
        for begin in range(0, len(positions), 5):
            tensors = decode_inputs(2, 1, 16, 8, topk=topk)
            of_slots = (positions[begin : begin + 5] + [1] * 5)[:5]
            tensors |= {"position": torch.tensor(of_slots), "base": torch.full((5,), base)}
            before = copied(tensors)
            want = decode_reference(tensors)
            decode(tensors, features)(tensors)
            check(tensors, want)
            for slot, position in enumerate(of_slots):
                changed = (tensors["k_cache"][slot] != before["k_cache"][slot]).any(-1).any(0).nonzero()[:, 0]
                written = [row_of(position, base, topk)] if tensors["active"][slot] else []
                assert changed.tolist() == written


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("spare", [1, 17])
def test_rows_that_no_query_sees_may_be_anything(spare: int, features: Features) -> None:
    """Positions before the ring, in its first lap, around the end of the budget, and where hidden rows turn."""
    step, topk = replace(DECODE, spare=spare), 30
    end = SR + topk
    positions = [0, SINK + 5, end - 1, end, end + spare - 1, end + spare, end + spare + 1, 2 * end, 3 * end + 11, 1000]
    for base in (0, SINK, SINK + topk // 2, SINK + topk, 2**40):
        first = min(max(base, SINK), SINK + topk)
        for begin in range(0, len(positions), 5):
            tensors = decode_inputs(4, 2, 20, 33, rows=end + spare, topk=topk)
            of_slots = positions[begin : begin + 5]
            tensors |= {"position": torch.tensor(of_slots), "base": torch.full((5,), base)}
            tensors["active"][:] = torch.tensor([True, True, False, True, True])
            for slot, p in enumerate(of_slots):
                places = [i if i < first else first + (i - first) % (end + spare - first) for i in range(p + 1)]
                seen = [place for i, place in enumerate(places) if place < first or i > p - (end - first)]
                hidden = [row for row in range(end + spare) if row not in seen]
                for name in ("k_cache", "v_cache"):
                    tensors[name][slot, :, hidden] = 3e4
            want = decode_reference(tensors, step)
            decode(tensors, features, step)(tensors)
            check(tensors, want)
            assert tensors["out"].abs().max() < 10


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(("tokens", "kept"), [(2, F32), (4, BF16)])
def test_several_tokens_of_a_slot_have_the_bits_of_one_after_the_other(
    tokens: int, kept: torch.dtype, features: Features
) -> None:
    """In the first lap of a ring and later, over its end, and with tokens that are not active behind those that are."""
    step, end = replace(DECODE, spare=tokens - 1), SR + 30
    one = decode_inputs(4, 2, 20, 33, kept, rows=end + tokens - 1, topk=30)
    first = torch.tensor([end - 2, 7, end + tokens - 1, 700, 0])
    active = torch.tensor([tokens, 1, tokens, tokens - 1, 0])
    generator = torch.Generator().manual_seed(3)
    several = one | {
        name: torch.randn(5 * tokens, *one[name].shape[1:], generator=generator).to(one[name].dtype)
        for name in ("query", "new_key", "new_value")
    }
    several = copied(several) | {
        "position": (first[:, None] + torch.arange(tokens)).flatten(),
        "base": one["base"].repeat_interleave(tokens),
        "active": (torch.arange(tokens) < active[:, None]).flatten(),
        "out": torch.full((5 * tokens, *one["out"].shape[1:]), 9.0).to(one["out"].dtype),
    }
    want, expected = decode_reference(several, step), torch.empty_like(several["out"])
    for token in range(tokens):
        own = slice(token, None, tokens)
        names = ("query", "new_key", "new_value", "position", "base", "active")
        one |= {name: several[name][own].clone() for name in names}
        decode(one, features, step)(one)
        expected[own] = one["out"]
    decode(several, features, step)(several)
    assert torch.equal(several["out"], expected)
    for name in ("k_cache", "v_cache"):
        assert torch.equal(several[name], one[name])
    check(several, want)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("spare", [0, 5])
def test_of_a_ring_that_is_a_chunk_a_query_sees_its_chunk(spare: int, features: Features) -> None:
    """Positions in several chunks, and at their borders; rows behind one's own in the ring would be noticed."""
    step = replace(DECODE, sink=0, recent=RECENT, window_stride=RECENT, spare=spare)
    tensors = decode_inputs(4, 2, 20, 33, rows=RECENT + spare) | {"topk": torch.tensor(0)}
    tensors["position"] = torch.tensor([2 * RECENT + 7, 5, RECENT - 1, RECENT, 3 * RECENT - 1])
    tensors["base"] = torch.tensor([0, 3, RECENT - 2, RECENT, 9])
    for slot, position in enumerate(tensors["position"].tolist()):
        for name in ("k_cache", "v_cache"):
            chunk = [p % (RECENT + spare) for p in range(position - position % RECENT, position)]
            tensors[name][slot, :, [row for row in range(RECENT + spare) if row not in chunk]] = 99.0
    want = decode_reference(tensors, step)
    decode(tensors, features, step)(tensors)
    check(tensors, want)


def test_one_split_needs_no_second_phase() -> None:
    for rows, slots in ((200, 5), (1024, 64)):
        tensors = decode_inputs(2, 1, 16, 16, rows=rows)
        for name in tensors.keys() - {"topk"} if slots == 64 else ():
            tensors[name] = tensors[name].repeat(13, *[1] * (tensors[name].dim() - 1))[:slots]
        want = decode_reference(tensors)
        compiled = decode(tensors)
        assert len(compiled.lowered.phases) == 1
        compiled(tensors, 3)
        check(tensors, want)


def test_a_negative_position_of_an_active_slot_is_reported_and_writes_nothing() -> None:
    tensors = decode_inputs(2, 2, 16, 16)
    compiled = decode(tensors)
    tensors["position"][1] = -1  # a slot that is not active
    compiled(tensors)
    assert not compiled.reported
    tensors["position"].fill_(-1)
    before = tensors["k_cache"].clone()
    compiled(tensors)
    assert compiled.reported
    assert torch.equal(tensors["k_cache"], before)
    assert not tensors["out"].any()


def test_large_scores_neither_overflow_nor_lose_the_sum() -> None:
    tensors = decode_inputs(4, 2, 64, 64)
    tensors["query"] *= 200.0
    want = decode_reference(tensors)
    decode(tensors)(tensors)
    assert (tensors["out"] - want["out"]).norm() <= 2e-4 * want["out"].norm()


def test_nan_in_a_row_that_is_seen_is_not_hidden() -> None:
    tensors = decode_inputs(4, 2, 64, 64)
    tensors["k_cache"][0, 0, 77, 5] = torch.nan
    decode(tensors)(tensors)
    assert tensors["out"][0, :2].isnan().all()
    assert not tensors["out"][0, 2:].isnan().any()


def test_rows_that_are_not_contiguous_are_refused() -> None:
    tensors = decode_inputs(4, 2, 16, 16)
    tensors["v_cache"] = torch.zeros(5, 2, 300, 32)[..., ::2]
    with raises(NativeRowErrors.STRIDE, operand="v_cache", stride=2):
        decode(tensors)


# ----------------------------------------------------------------------------------------------- encoded rows


def encoded(rows: Tensor) -> Tensor:
    return torch.from_numpy(kv_rows.encode(rows.float().numpy()))


def decoded(rows: Tensor) -> Tensor:
    return torch.from_numpy(kv_rows.decode(rows.contiguous().numpy()))


def with_encoded_caches(tensors: Tensors) -> Tensors:
    """The operands with their caches encoded; rows that slot 2 does not see have NaN for a scale."""
    tensors = tensors | {name: encoded(tensors[name]) for name in ("k_cache", "v_cache")}
    for name in ("k_cache", "v_cache"):
        tensors[name][2, :, 61:] = -1
    return tensors


def encoded_reference(tensors: Tensors, step: DecodeAttention = DECODE) -> Tensors:
    """Return the reference's results for the dequantized rows, new rows included, with caches as bytes."""
    t = copied(tensors)
    floats = dict(t)
    for new, sources in (("new_key", {step.key, step.k_cache}), ("new_value", {step.value, step.v_cache})):
        row = encoded(t[new])
        floats |= {name: decoded(t[name]).nan_to_num_() for name in sources} | {new: decoded(row)}
        for slot, (position, base) in enumerate(zip(t["position"].tolist(), t["base"].tolist(), strict=True)):
            place = row_of(position, base, int(t["topk"]))
            if t["active"][slot]:
                t["k_cache" if new == "new_key" else "v_cache"][slot, :, place] = row[slot, :, 0]
    return t | {"out": decode_reference(floats, step)["out"]}


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("case", range(len(SIZES)))
def test_decode_attention_over_encoded_rows(features: Features, case: int) -> None:
    query = (F32, BF16)[case % 2]
    tensors = with_encoded_caches(decode_inputs(*SIZES[case], query=query))
    want = encoded_reference(tensors)
    compiled = decode(tensors, features)
    shared = copied(tensors)
    compiled(tensors)
    check(tensors, want)
    assert not tensors["out"][1].any()
    compiled(shared, 3, backwards=True)
    assert all(torch.equal(tensors[name], shared[name]) for name in tensors)


@pytest.mark.parametrize("features", CPUS)
def test_encoded_rows_may_lie_anywhere_and_nothing_beyond_one_is_written(features: Features) -> None:
    tensors = with_encoded_caches(decode_inputs(6, 2, 21, 35))
    for name in ("k_cache", "v_cache"):
        b, h, r, d = tensors[name].shape
        memory = torch.full((h, b, r, d + 3), 77, dtype=torch.int8)
        tensors[name] = memory.permute(1, 0, 2, 3)[..., :d].copy_(tensors[name])
    want = encoded_reference(tensors)
    decode(tensors, features)(tensors)
    check(tensors, want)
    for name in ("k_cache", "v_cache"):
        b, h, r, d = tensors[name].shape
        assert (tensors[name].as_strided((h, b, r, 3), (b * r * (d + 3), r * (d + 3), d + 3, 1), d) == 77).all()


def before_a_guard(tensor: Tensor) -> Tensor:
    """A copy whose last byte is followed by memory that cannot be touched."""
    size = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = torch.from_numpy(np.frombuffer(memory, np.int8, tensor.numel(), size - tensor.nbytes)).view(tensor.shape)
    return copy.copy_(tensor)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("depth", [3, 20, 64])
def test_nothing_beyond_the_last_byte_of_an_encoded_row_is_read(features: Features, depth: int) -> None:
    tensors = with_encoded_caches(decode_inputs(3, 1, depth, depth, rows=SR + 40))
    for name in ("k_cache", "v_cache"):
        tensors[name] = before_a_guard(tensors[name])
    want = encoded_reference(tensors)
    decode(tensors, features)(tensors)
    check(tensors, want)


def test_an_encoded_cache_behind_a_copy_gets_the_new_row_only() -> None:
    tensors = with_encoded_caches(decode_inputs(6, 2, 32, 40))
    step = replace(DECODE, key="key", value="value")
    tensors["key"], tensors["value"] = tensors["k_cache"].clone(), tensors["v_cache"].clone()
    tensors["k_cache"].fill_(-1)
    tensors["v_cache"].fill_(-1)
    want = encoded_reference(tensors, step)
    decode(tensors, step=step)(tensors)
    check(tensors, want)


def test_an_infinity_in_a_new_row_shows_where_rows_are_encoded() -> None:
    tensors = with_encoded_caches(decode_inputs(4, 2, 64, 64))
    tensors["new_key"][0, 0, 0, 7] = torch.inf
    tensors["new_value"][4, 1, 0, 7] = -torch.inf
    decode(tensors)(tensors)
    assert tensors["out"][0, :2].isnan().all()
    assert not tensors["out"][0, 2:].isnan().any()
    assert not tensors["out"][4, 2:].isfinite().any()


def test_encoded_rows_that_do_not_fit_are_refused() -> None:
    floats = decode_inputs(4, 2, 16, 16)
    tensors = with_encoded_caches(floats)
    behind = floats | {"key": floats["k_cache"], "k_cache": floats["k_cache"].to(BF16)}
    with raises(NativeAttentionErrors.CACHE_DTYPE, rows="key", rows_dtype="f32", cache="k_cache", cache_dtype="bf16"):
        decode(behind, step=replace(DECODE, key="key"))
    with raises(NativeRowErrors.STRIDE, operand="v_cache", stride=2):
        decode(tensors | {"v_cache": torch.zeros(5, 2, 300, 40, dtype=torch.int8)[..., ::2]})
    indexed, _ = indexed_inputs(1, F32)
    indexed |= {name: encoded(indexed[name]) for name in ("k_cache", "v_cache")}
    with raises(
        NativeAttentionErrors.SEGMENT_DTYPES, first="k_cache", first_dtype="i8", other="k_store", other_dtype="f32"
    ):
        lower_decode_attention(INDEXED, meta_of(indexed), HOST)


# ------------------------------------------------------------------------------------------ indexed attention


def indexed_inputs(topk: int, dtype: torch.dtype, width: int = 33) -> tuple[Tensors, Tensors]:
    """Operands of `INDEXED` over prompts of 500 rows, and of `DECODE` over the same rows in one cache.

    An index names all rows of slot 0, and of no slot that has a short prompt. Of the others, and of the second head, it
    names a part. Rows of the cache in whose place others stand are large numbers.
    """
    tensors = decode_inputs(6, 2, 20, width, dtype, dtype, SR + topk, topk)
    generator = torch.Generator().manual_seed(topk)
    selected = torch.full((5, 2, topk), -1)
    for b in (0, 1, 4):
        for h in range(2):
            count = topk - topk // 4 * (h == 1)
            selected[b, h, :count] = torch.randperm(500, generator=generator)[:count].sort().values
    compact = copied(tensors)
    tensors["selected"], kept = selected, slice(SINK, SINK + topk)
    for name, depth in (("k", 20), ("v", width)):
        tensors[f"{name}_store"] = torch.randn(5, 2, 500, depth, generator=generator).to(dtype)
        there, rows = compact[f"{name}_cache"][:, :, kept], cache.gathered(tensors[f"{name}_store"], selected)
        there.copy_(torch.where(selected[..., None] < 0, there, rows))
        tensors[f"{name}_cache"][:, :, kept].masked_fill_((selected >= 0)[..., None], 1e4)
    return tensors, compact


def with_encoded_rows(tensors: Tensors) -> Tensors:
    """The operands with their caches and prompts encoded."""
    return tensors | {name: encoded(rows) for name, rows in tensors.items() if name[2:] in ("cache", "store")}


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("topk", [1, 140])
def test_indexed_attention_is_decode_attention_over_the_assembled_rows(
    features: Features, dtype: torch.dtype, topk: int, *, encode: bool
) -> None:
    """Slots on both sides of the budget in one batch. Rows in whose place others stand keep their bytes."""
    tensors, compact = indexed_inputs(topk, dtype)
    if encode:
        tensors, compact = with_encoded_rows(tensors), with_encoded_rows(compact)
    before, want = copied(tensors), copied(compact)
    run_reference(want, DECODE, torch.float64)
    decode(tensors, features, INDEXED)(tensors, 3)
    decode(compact, features)(compact)
    check(compact, want)
    assert torch.equal(tensors["out"], compact["out"])
    replaced = torch.zeros(5, 2, SR + topk, 1, dtype=torch.bool)
    replaced[:, :, SINK : SINK + topk, 0] = tensors["selected"] >= 0
    for name in ("k_cache", "v_cache"):
        assert torch.equal(tensors[name], torch.where(replaced, before[name], compact[name]))


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("features", CPUS)
def test_a_short_prompt_is_read_from_the_cache_alone(features: Features, *, encode: bool) -> None:
    """An index that names no row changes nothing, and a prompt that it does not name is not read."""
    tensors, _ = indexed_inputs(140, F32)
    tensors["selected"].fill_(-1)
    tensors["base"] = torch.tensor([SINK + 139, 9, 9, 40, 0])
    if encode:
        tensors = with_encoded_rows(tensors)
    for name in ("k_store", "v_store"):
        tensors[name].fill_(-1 if encode else torch.nan)
    plain = copied({name: tensors[name] for name in tensors.keys() - {"selected", "k_store", "v_store"}})
    theirs = copied(tensors)
    run_reference(theirs, INDEXED, torch.float64)
    decode(tensors, features, INDEXED)(tensors, 3)
    decode(plain, features)(plain)
    check({name: tensors[name] for name in plain}, {name: theirs[name] for name in plain})
    assert all(torch.equal(tensors[name], plain[name]) for name in plain)
    assert tensors["out"].isfinite().all()


@pytest.mark.parametrize("index", [500, 2**62])
def test_an_index_beyond_the_prompt_is_reported_where_it_is_read(index: int) -> None:
    tensors, _ = indexed_inputs(140, F32)
    compiled = decode(tensors, HOST, INDEXED)
    read = SLOTS["position"][2] + 1 - SINK
    tensors["selected"][2, :, read:] = tensors["selected"][[1, 4]] = index  # rows that no query sees
    compiled(tensors)
    assert not compiled.reported
    tensors["selected"][2, :, read - 1] = index
    compiled(tensors)
    assert compiled.reported


# -------------------------------------------------------------------------------------- the steps on their own


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(("dtype", "query", "rows"), [(F32, F32, 300), (BF16, BF16, 70), (BF16, F32, 300)])
def test_cached_attention_is_the_references(
    features: Features, dtype: torch.dtype, query: torch.dtype, rows: int
) -> None:
    inputs = decode_inputs(6, 2, 40, 24, dtype, query, rows)
    tensors = {name: inputs[name] for name in ("query", "k_cache", "v_cache", "out")}
    tensors["valid"] = torch.rand(5, rows, generator=torch.Generator().manual_seed(rows)) < 0.6
    tensors["valid"][1], tensors["valid"][2, :-1], tensors["valid"][3] = False, False, True
    tensors["k_cache"][0, :, ~tensors["valid"][0]] = torch.nan
    want = copied(tensors)
    want["k_cache"].nan_to_num_()
    rows = [attention.SegmentRows(want["k_cache"], want["v_cache"], None)]
    masks, numerics = [want["valid"]], {"scoring": Scoring(CACHED.scale), "wide": torch.float64}
    attention.cached_attention(want["query"], rows, masks, want["out"], **numerics)  # type: ignore[arg-type]
    meta = meta_of(tensors)
    compiled = CompiledStep(lower_cached_attention(CACHED, meta, features), meta, features)
    compiled(tensors)
    first = tensors["out"].clone()
    tensors["out"].fill_(9.0)
    compiled(tensors, 4, backwards=True)
    assert torch.equal(tensors["out"], first)
    tensors["k_cache"].nan_to_num_()
    check(tensors, want)
    assert not tensors["out"][1].any()


def test_the_steps_on_their_own_take_several_tokens_of_a_slot() -> None:
    """Rows are written token by token; each token sees the rows of its slot that its mask shows."""
    inputs, generator = decode_inputs(6, 2, 40, 24, rows=80), torch.Generator().manual_seed(5)
    tensors = {name: inputs[name] for name in ("k_cache", "v_cache")}
    tensors |= {
        "query": torch.randn(10, 6, 1, 40, generator=generator), "out": torch.zeros(10, 6, 1, 24),
        "valid": torch.rand(10, 80, generator=generator) < 0.6, "new": torch.randn(10, 2, 1, 40, generator=generator),
        "row": torch.arange(10) * 7, "active": torch.arange(10) != 4,
    }  # fmt: skip
    want, wide = copied(tensors), {"scoring": Scoring(CACHED.scale), "wide": torch.float64}
    cache.update_rows(want["k_cache"], want["new"], want["row"], want["active"])
    rows = [attention.SegmentRows(want["k_cache"], want["v_cache"], None)]
    attention.cached_attention(want["query"], rows, [want["valid"]], want["out"], **wide)  # type: ignore[arg-type]
    meta = meta_of(tensors)
    CompiledStep(lower_update_rows(UpdateRows("k_cache", "new", "row", "active"), meta, HOST), meta, HOST)(tensors, 3)
    CompiledStep(lower_cached_attention(CACHED, meta, HOST), meta, HOST)(tensors, 3)
    check(tensors, want)
    for slot in range(5):  # each slot alone, one token after the other
        for token in (2 * slot, 2 * slot + 1):
            alone = {name: tensors[name][slot : slot + 1].clone() for name in ("k_cache", "v_cache")}
            alone |= {name: tensors[name][token : token + 1].clone() for name in ("query", "out", "valid")}
            own = [attention.SegmentRows(alone["k_cache"], alone["v_cache"], None)]
            attention.cached_attention(alone["query"], own, [alone["valid"]], alone["out"], **wide)  # type: ignore[arg-type]
            assert torch.equal(want["out"][token], alone["out"][0])


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_cached_attention_over_segments_is_that_over_all_their_rows(features: Features, dtype: torch.dtype) -> None:
    tensors, _ = indexed_inputs(140, dtype)
    compact = copied(tensors)
    for name in "kv":
        tensors[f"{name}_cache"] = compact[f"{name}_cache"][:, :, :SR].clone()
        rows = cache.gathered(tensors[f"{name}_store"], tensors["selected"])
        compact[f"{name}_cache"] = torch.cat([tensors[f"{name}_cache"], rows], 2)
    masks = torch.rand(5, SR + 140, generator=torch.Generator().manual_seed(1)) < 0.6
    tensors |= {"near": masks[:, :SR].clone(), "far": masks[:, SR:].clone()}
    compact["valid"] = masks
    tensors["selected"].masked_fill_(~masks[:, None, SR:], 2**62)  # what is not seen may be anything
    segments = Segment("k_cache", "v_cache", "near"), Segment("k_store", "v_store", "far", "selected")
    for step, given in ((replace(CACHED, segments=segments), tensors), (CACHED, compact)):
        meta = meta_of(given)
        compiled = CompiledStep(lower_cached_attention(step, meta, features), meta, features)
        compiled(given, 3)
        assert not compiled.reported
    assert torch.equal(tensors["out"], compact["out"])
    meta = meta_of(tensors)
    compiled = CompiledStep(lower_cached_attention(replace(CACHED, segments=segments), meta, HOST), meta, HOST)
    tensors["far"][2, 5], tensors["selected"][2, :, 5] = True, 500
    compiled(tensors)
    assert compiled.reported


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize(("query", "rows", "depth"), [(F32, 300, 40), (BF16, 70, 64)])
def test_cached_attention_over_encoded_rows(features: Features, query: torch.dtype, rows: int, depth: int) -> None:
    inputs = with_encoded_caches(decode_inputs(6, 2, depth, 24, query=query, rows=rows))
    tensors = {name: inputs[name] for name in ("query", "k_cache", "v_cache", "out")}
    tensors["valid"] = torch.rand(5, rows, generator=torch.Generator().manual_seed(rows)) < 0.6
    tensors["valid"][1], tensors["valid"][2, 61:] = False, False
    want = copied(tensors)
    floats = {name: decoded(tensors[name]).nan_to_num_() for name in ("k_cache", "v_cache")}
    rows = [attention.SegmentRows(floats["k_cache"], floats["v_cache"], None)]
    masks, numerics = [want["valid"]], {"scoring": Scoring(CACHED.scale), "wide": torch.float64}
    attention.cached_attention(want["query"], rows, masks, want["out"], **numerics)  # type: ignore[arg-type]
    meta = meta_of(tensors)
    CompiledStep(lower_cached_attention(CACHED, meta, features), meta, features)(tensors, 3)
    check(tensors, want)
    assert not tensors["out"][1].any()


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("size", [3, 37, 64])
def test_update_rows_copies_encoded_rows(features: Features, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    tensors = {
        "cache": torch.zeros(4, 3, 7, size + 4, dtype=torch.int8),
        "new": encoded(torch.randn(4, 3, 1, size, generator=generator)),
        "row": torch.tensor([3, 0, 6, 7]),
        "active": torch.tensor([True, False, True, True]),
    }
    want = tensors["cache"].clone()
    want[0, :, 3], want[2, :, 6] = tensors["new"][0, :, 0], tensors["new"][2, :, 0]
    meta = meta_of(tensors)
    step = UpdateRows("cache", "new", "row", "active")
    CompiledStep(lower_update_rows(step, meta, features), meta, features)(tensors, 5)
    assert torch.equal(tensors["cache"], want)


@pytest.mark.parametrize(("dtype", "new"), DTYPES)
@pytest.mark.parametrize("features", CPUS)
def test_update_rows_is_the_references(features: Features, dtype: torch.dtype, new: torch.dtype) -> None:
    size = 37
    tensors = {
        "cache": torch.zeros(4, 3, 7, size).to(dtype),
        "new": torch.randn(4, 3, 1, size, generator=torch.Generator().manual_seed(0)).to(new),
        "row": torch.tensor([3, 0, 6, 5]),
        "active": torch.tensor([True, False, True, True]),
    }
    want = copied(tensors)
    cache.update_rows(want["cache"], want["new"], want["row"], want["active"])
    tensors["cache"] = strided(tensors["cache"], 1)
    meta = meta_of(tensors)
    compiled = CompiledStep(
        lower_update_rows(UpdateRows("cache", "new", "row", "active"), meta, features), meta, features
    )
    compiled(tensors, 5)
    assert torch.equal(tensors["cache"], want["cache"])
    tensors["row"][:] = torch.tensor([7, 2, -1, 2**62])
    compiled(tensors)
    assert torch.equal(tensors["cache"], want["cache"]), "rows that the cache does not have are dropped"
