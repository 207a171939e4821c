"""Encoded cache rows: the format, its rounding and its edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sscc.compiler.frontend import algorithm
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry, GeometryErrors
from sscc.ir.kv_rows import FORMATS, INT4, INT8, SMALLEST_SCALE, decode, encode, format_of
from tests.errors import raises

G = Geometry(sink=1, recent=4, topk=3, obs=2, pool=1, pool_mode="avg", max_context=20, dtype="int8")


def rows(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


def test_a_row_is_codes_and_then_the_bytes_of_its_scale() -> None:
    (row,) = encode(np.array([[1.0, -2.0, 0.5, 127.0]], np.float32))
    assert row.dtype == np.int8
    assert row.tolist()[:4] == [1, -2, 0, 127]  # 0.5 is halfway, and goes to the even code
    assert row[4:].tobytes() == np.float32(1).tobytes()
    assert (INT8.width(4), INT8.numbers(len(row))) == (8, 4)


def test_a_row_of_4_bits_is_two_codes_a_byte_and_then_a_scale_for_every_32_numbers() -> None:
    (row,) = INT4.encode(np.array([[7.0, -7.0, 0.5, 1.6, 3.0, -3.0]], np.float32))
    low, high = [7, -7, 0], [2, 3, -3]  # 0.5 is halfway, and goes to the even code
    packed = [(a & 15) | (b & 15) << 4 for a, b in zip(low, high, strict=True)]
    assert [int(byte) & 255 for byte in row[:3]] == packed
    assert row[3:].tobytes() == b"\x80\x3f"  # the bf16 of 1
    assert INT4.decode(row[None]).tolist() == [[7, -7, 0, 2, 3, -3]]
    x = rows(50, 80, size=3.0)
    stored = INT4.encode(x)
    assert (stored.shape[1], INT4.numbers(46)) == (40 + 3 * 2, 80)
    for first, end in ((0, 32), (32, 64), (64, 80)):
        part = x[:, first:end]
        step = np.abs(part).max(-1, keepdims=True) / 7
        assert (np.abs(INT4.decode(stored)[:, first:end] - part) <= 0.52 * step).all()
        alone = INT4.encode(part)
        assert np.array_equal(alone[:, : (end - first) // 2], stored[:, first // 2 : end // 2]), "each by itself"


def test_wide_rows_of_8_bits_have_a_scale_for_every_128_numbers() -> None:
    x = rows(50, 300, size=3.0)
    x[:, 256:] *= 100  # as the rotated part of a latent row may be larger than the others
    stored = INT8.encode(x)
    assert (stored.shape[1], INT8.numbers(312)) == (300 + 3 * 4, 300)
    for first, end in ((0, 128), (128, 256), (256, 300)):
        alone = INT8.encode(x[:, first:end])
        assert np.array_equal(alone[:, : end - first], stored[:, first:end]), "each by itself"
        assert np.array_equal(INT8.decode(alone), INT8.decode(stored)[:, first:end])


def test_the_bytes_of_a_row_tell_its_format() -> None:
    for dim in range(2, 300, 2):
        assert [format_of(dim, row_format.width(dim)) for row_format in (INT8, INT4)] == [INT8, INT4]
        assert [row_format.numbers(row_format.width(dim)) for row_format in (INT8, INT4)] == [dim, dim]
    assert format_of(7, INT4.width(8)) is None, "codes of 4 bits go in pairs"


def test_the_largest_number_takes_the_largest_code_and_errors_stay_below_half_a_step() -> None:
    x = rows(200, 48, size=3.0)
    stored = encode(x)
    assert (np.abs(stored[:, :48]).max(-1) == 127).all()
    step = np.abs(x).max(-1, keepdims=True) / 127
    assert (np.abs(decode(stored) - x) <= 0.5001 * step).all()
    assert (np.abs(decode(stored) - x) > 0.4 * step).any()


def test_what_is_encoded_again_has_the_same_codes() -> None:
    stored = encode(rows(50, 16))
    assert np.array_equal(encode(decode(stored))[:, :16], stored[:, :16])


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-39, SMALLEST_SCALE * 126])
def test_rows_too_small_for_a_scale_are_zero_bytes(size: float) -> None:
    stored = encode(np.full((2, 5), size, np.float32))
    assert not stored.any()
    assert not decode(stored).any()


def test_the_smallest_scale_is_kept() -> None:
    stored = encode(np.full((1, 5), SMALLEST_SCALE * 128, np.float32))
    assert stored[0, :5].tolist() == [127] * 5
    assert decode(stored)[0, 0] == pytest.approx(SMALLEST_SCALE * 128, rel=1e-6)


def test_an_infinity_stays_visible() -> None:
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(decode(encode(np.array([[1.0, np.inf]], np.float32)))).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_eager_definition_stores_the_same_numbers(dtype: torch.dtype, name: str) -> None:
    row_format, g = FORMATS[name], replace(G, dtype=name)
    x = torch.from_numpy(rows(3, 7, 44, seed=1)).to(dtype)
    x[1, 2] = 0
    x[1, 3] = 1e-44
    numbers = algorithm.stored(x, g)
    assert np.array_equal(numbers.numpy(), row_format.decode(row_format.encode(x.float().numpy())))
    plain = Geometry(**{**G.to_dict(), "dtype": "model"})
    assert algorithm.stored(x, plain) is x


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        ({"dtype": "int2"}, GeometryErrors.DTYPE, {"dtype": "int2", "choices": ["model", "int8", "int4"]}),
        ({"rows": "indexed"}, GeometryErrors.ENCODED_INDEXED, {"dtype": "int8"}),
    ],
)
def test_geometries_that_cannot_be_are_refused(values: dict[str, str], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        Geometry(**{**G.to_dict(), **values})
