"""Quantized keys: rotation, levels, packing and edges by hand, and the same bytes as the definition in torch."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch

from sscc.compiler.frontend import query_selection
from sscc.ir import quantized_keys
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry
from sscc.ir.quantized_keys import QuantizedKeyErrors
from tests.errors import raises

G = Geometry(sink=1, recent=4, topk=3, obs=2, pool=1, pool_mode="avg", max_context=40)
WIDTHS = [16, 64, 80, 96, 576]
FEW = [1, 2, 4]


def rows(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


def hadamard(width: int) -> np.ndarray:
    """Sylvester's matrix: H of 2w is [[H, H], [H, -H]]."""
    two = np.array([[1.0, 1.0], [1.0, -1.0]])
    return reduce(np.kron, [two] * (width.bit_length() - 1), np.ones((1, 1)))


@pytest.mark.parametrize(("width", "block"), [(64, 64), (80, 16), (96, 32), (112, 16), (576, 64), (5, 1)])
def test_a_block_is_the_largest_power_of_two_and_turned_as_a_whole(width: int, block: int) -> None:
    assert quantized_keys.block_width(width) == block
    x = rows(7, width)
    matrix = np.kron(np.eye(width // block), hadamard(block)) / np.sqrt(block)
    assert np.allclose(matrix @ matrix, np.eye(width))
    np.testing.assert_allclose(quantized_keys.rotate(x), x @ matrix, atol=1e-5)


@pytest.mark.parametrize("bits", FEW)
def test_every_number_takes_the_nearest_level(bits: int) -> None:
    keys = rows(300, 64, size=3.0)
    codes, scale = quantized_keys.encode(keys, bits)
    x = quantized_keys.rotate(keys).astype(np.float64)
    values = quantized_keys.levels(bits).astype(np.float64) * quantized_keys.STEPS[bits]
    distance = np.abs(x[..., None] - values * scale[:, None, None])
    taken = np.abs(x - quantized_keys.decode(codes, bits) * quantized_keys.STEPS[bits] * scale[:, None])
    np.testing.assert_allclose(taken, distance.min(-1), atol=1e-5)


@pytest.mark.parametrize(("bits", "most"), [(1, 0.37), (2, 0.12), (4, 0.0125)])
def test_errors_are_those_of_lloyd_and_max(bits: int, most: float) -> None:
    """Their mean squared errors of a Gaussian of variance 1 are 0.3634, 0.1175 and 0.0115 (uniform levels)."""
    keys = rows(500, 128)
    codes, scale = quantized_keys.encode(keys, bits)
    about = quantized_keys.decode(codes, bits) * np.float32(quantized_keys.STEPS[bits]) * scale[:, None]
    assert np.square(quantized_keys.rotate(keys) - about).mean() < most


@pytest.mark.parametrize("bits", FEW)
def test_what_lies_on_an_edge_takes_the_smaller_magnitude(bits: int) -> None:
    for edge, magnitude in zip(quantized_keys.EDGES[bits], quantized_keys.MAGNITUDES[bits], strict=False):
        on = np.float32(edge)
        above = np.nextafter(on, np.float32(9))
        for x, level in ((on, magnitude), (-on, -magnitude), (above, magnitude + (7 if bits == 2 else 2))):
            code = quantized_keys.nearest(np.array([[x]], np.float32), np.ones(1, np.float32), bits)
            assert quantized_keys.levels(bits)[code.item()] == level


@pytest.mark.parametrize("bits", FEW)
def test_codes_are_packed_lowest_bits_first(bits: int) -> None:
    keys = rows(5, 80)
    codes, _ = quantized_keys.encode(keys, bits)
    assert codes.dtype == np.uint8
    assert codes.shape == (5, quantized_keys.code_bytes(80, bits))
    levels = quantized_keys.decode(codes, bits)
    places = np.searchsorted(quantized_keys.levels(bits), levels)
    for j in (0, 1, 7, 79):
        assert np.array_equal((codes[:, j * bits // 8] >> (j * bits % 8)) & (2**bits - 1), places[:, j])
    unpacked = query_selection.unpack(torch.from_numpy(codes), bits)
    assert np.array_equal(unpacked.numpy(), levels)
    assert np.array_equal(query_selection.pack(unpacked, bits).numpy(), codes)


@pytest.mark.parametrize("size", [0.0, -0.0, 1e-45, 1e-39])
@pytest.mark.parametrize("bits", FEW)
def test_rows_too_small_for_a_scale_have_the_codes_of_zeros(size: float, bits: int) -> None:
    codes, scale = quantized_keys.encode(np.full((2, 16), size, np.float32), bits)
    assert not scale.any()
    assert (quantized_keys.decode(codes, bits) == quantized_keys.MAGNITUDES[bits][0]).all()
    query, query_scale = quantized_keys.encode_query(np.full((2, 16), size, np.float32))
    assert not query.any()
    assert not query_scale.any()


def test_scales_are_bf16() -> None:
    _, scale = quantized_keys.encode(rows(50, 64), 2)
    assert not (scale.view(np.uint32) & 0xFFFF).any()
    assert np.abs(scale - np.sqrt(np.square(rows(50, 64)).mean(-1))).max() < 2**-8


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("bits", FEW)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e18])
def test_the_definition_has_the_same_bytes(width: int, bits: int, size: float) -> None:
    keys, queries = rows(3, 40, width, seed=1, size=size), rows(3, 6, width, seed=2)
    keys[0, 0] = 0
    keys[1, 5, :3] = -0.0
    codes, scale = quantized_keys.encode(keys, bits)
    defined = query_selection.quantize_keys(torch.from_numpy(keys), bits)
    assert np.array_equal(query_selection.pack(defined.levels, bits).numpy(), codes)
    assert np.array_equal(defined.scale.numpy(), scale)
    query, query_scale = quantized_keys.encode_query(queries)
    levels = quantized_keys.decode(codes, bits)
    found = quantized_keys.logits(query, query_scale, levels, scale, bits, width**-0.5)
    logits = query_selection.quantized_key_logits(torch.from_numpy(queries), with_kv_heads(defined), width**-0.5)
    assert np.array_equal(logits[:, 0].numpy(), found)
    exact = queries.astype(np.float64) @ keys.astype(np.float64).swapaxes(-1, -2) * width**-0.5
    noise = np.abs(found - exact).mean() / exact.std()
    assert noise < {1: 0.6, 2: 0.3, 4: 0.1}[bits]


def with_kv_heads(made: query_selection.QuantizedKeys) -> query_selection.QuantizedKeys:
    """[B, T, ..] as [B, 1, T, ..]."""
    return query_selection.QuantizedKeys(made.levels[:, None], made.scale[:, None], made.bits)


def test_dot_products_are_exact_integers() -> None:
    """The largest there can be, at the width of a latent row: f32 and integers agree in any order."""
    query = np.full((1, 512), 127, np.int8)
    keys = np.full((1, 512), 15, np.int8)
    one = np.ones(1, np.float32)
    found = quantized_keys.logits(query, one, keys, one, 4, 1.0)
    assert found.item() == np.float32(127 * 15 * 512) * np.float32(quantized_keys.STEPS[4])
    assert 127 * 15 * 8000 < 2**24


@pytest.mark.parametrize(
    ("bits", "dim", "kind", "fields"),
    [
        (3, 64, QuantizedKeyErrors.BITS, {"bits": 3, "choices": [1, 2, 4, 16]}),
        (1, 20, QuantizedKeyErrors.PARTIAL_BYTE, {"dim": 20}),
    ],
)
def test_refusals(bits: int, dim: int, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        quantized_keys.check_bits(bits, dim)
