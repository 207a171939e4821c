"""Attention of prefill chunks over latent rows as native code, against the reference interpreter, and that against K
and V of every head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.operations import LatentChunkAttention
from sscc.runtime.backends.cpu.attention.latent_prefill import lower_latent_chunk_attention
from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features
from sscc.runtime.backends.reference import prefill_chunk as prompt
from sscc.runtime.backends.reference.encoded_rows import decode, encode
from tests.runtime.backends.cpu.harness_prefill import CompiledStages, check_pieces, like, strided

HOST = Features.of_host()
F32, BF16 = torch.float32, torch.bfloat16
TILES = Features(extensions=HOST.extensions | {"amx_tile", "amx_bf16"})
"""Tile registers, emulated where the CPU lacks them."""
NEEDS_PAIRS = pytest.mark.skipif(not HOST.bf16_dot, reason="this CPU has no products of pairs of bf16")
STEP = LatentChunkAttention("query", "new", "rows", "k_up", "v_up", "out", "start", "n", 0.3, 0, "sums")
# Heads, chunk, latent width, expanded columns of keys, their first column, other columns of keys, columns of values.
SIZES = {
    "tiny": (3, 7, 16, 8, 0, 4, 6),
    "parts": (2, 70, 48, 50, 3, 10, 20),
    "odd": (1, 5, 5, 3, 1, 2, 1),
    "wide": (2, 130, 256, 64, 0, 32, 64),
}


def operands(size: str, dtype: torch.dtype, row_format: RowFormat | None = None) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    heads, chunk, made, own, _, others, columns = SIZES[size]
    width, rows = made + others, 3 * chunk + 60

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape) * scale).to(dtype)

    stored = normal(1, 1, rows, width)
    return {
        "query": strided(normal(1, heads, chunk, own + others), (0, 2, 1, 3)),
        "new": normal(1, 1, chunk, width),
        "rows": stored if row_format is None else encode(stored, row_format),
        # As a model has them: parts of one weight.
        "k_up": normal(heads, own + columns, made, scale=made**-0.5)[:, :own],
        "v_up": normal(heads, own + columns, made, scale=made**-0.5)[:, own:],
        "out": strided(torch.full((1, heads, chunk, columns), 9.0).to(dtype), (0, 2, 1, 3)),
        "sums": torch.full((1, heads, chunk), 9.0),
    }


def reference(tensors: dict[str, torch.Tensor], step: LatentChunkAttention, **scalars: int) -> dict[str, torch.Tensor]:
    """In f64, but for rows that are encoded."""
    t = {name: x.clone() if name == "rows" and x.dtype is torch.int8 else x.double() for name, x in tensors.items()}
    prompt.latent_chunk_attention(
        t["query"], t["new"], t["rows"], t["k_up"], t["v_up"], t["out"], log_sum_exp=t["sums"], scale=step.scale,
        first=step.first, wide=torch.float64, **scalars,
    )  # fmt: skip
    return t


@pytest.mark.parametrize(
    ("size", "dtype", "features", "row_format"),
    [
        ("tiny", F32, GENERIC, None),
        ("parts", F32, AVX2, INT8),
        ("parts", BF16, HOST, None),
        ("parts", BF16, HOST, INT4),
        ("odd", BF16, HOST, None),
        ("wide", F32, HOST, INT4),
        ("wide", BF16, AVX2, INT8),
        ("wide", BF16, HOST, INT8),
        pytest.param("wide", BF16, TILES, None, marks=NEEDS_PAIRS),
        pytest.param("wide", BF16, TILES, INT8, marks=NEEDS_PAIRS),
    ],
)
def test_native_code_is_the_references(
    size: str, dtype: torch.dtype, features: Features, row_format: RowFormat | None
) -> None:
    """The first chunk, and a last one that is partly padding."""
    tensors = operands(size, dtype, row_format)
    step, chunk, tolerance = replace(STEP, first=SIZES[size][4]), SIZES[size][1], 1e-5 if dtype is F32 else 3e-2
    compiled = CompiledStages(step, lower_latent_chunk_attention, tensors, ["start", "n"], features)
    for start, length in ((0, chunk), (2 * chunk + 3, 3 * chunk)):
        live = min(length - start, chunk)
        memory = {name: like(tensor) for name, tensor in tensors.items()}
        if row_format is None:
            memory["rows"][:, :, start + chunk :] = torch.nan  # rows that are not read
        got = check_pieces(compiled, memory, {"start": start, "n": length}, ["rows", "out", "sums"])
        want = reference(memory, step, start=start, length=length)
        assert torch.equal(got["rows"].double().nan_to_num(), want["rows"].double().nan_to_num())
        for name in ("out", "sums"):
            ours, theirs = got[name].double(), want[name]
            assert (ours - theirs)[:, :, :live].abs().max() < tolerance
            assert torch.equal(ours[:, :, live:], torch.full_like(ours[:, :, live:], 9.0)), "padding is left out"


@pytest.mark.parametrize("row_format", [None, INT8])
def test_it_is_attention_to_keys_and_values_of_every_head(row_format: RowFormat | None) -> None:
    """Other columns stand in front of those that are made, and behind them."""
    tensors, start = operands("parts", F32, row_format), 40
    heads, chunk, made, own, first, others, columns = SIZES["parts"]
    step = replace(STEP, first=first)
    want = reference(tensors, step, start=start, length=1000)
    stored = want["rows"] if row_format is None else decode(want["rows"], row_format).double()
    latent, shared = stored[0, 0, : start + chunk].split([made, others], 1)
    k_own, values = (torch.einsum("tp,hnp->htn", latent, tensors[up].double()) for up in ("k_up", "v_up"))
    in_front, behind = (part.expand(heads, -1, -1) for part in shared.split([first, others - first], 1))
    keys = torch.cat([in_front, k_own, behind], 2)
    mask = torch.ones(chunk, start + chunk, dtype=torch.bool).tril(start)
    query = tensors["query"][0].double()
    out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, mask, scale=step.scale)
    assert (want["out"][0] - out).abs().max() < 1e-9
    assert out.shape == (heads, chunk, columns)
    assert keys.shape[2] == own + others


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_nothing_outside_of_operands_and_scratch_is_touched(dtype: torch.dtype) -> None:
    tensors = operands("parts", dtype)
    step = replace(STEP, first=SIZES["parts"][4])
    compiled = CompiledStages(step, lower_latent_chunk_attention, tensors, ["start", "n"], HOST, checked=True)
    compiled.run({name: like(tensor) for name, tensor in tensors.items()}, {"start": 70, "n": 120})
