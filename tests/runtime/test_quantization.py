"""Weights of 8 and 4 bits: the formula, its bounds, and the stored tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import Program, Tensor
from sscc.ir.weight_formats import ggml
from sscc.ir.weight_formats.groups import GroupFormat, GroupFormatErrors
from sscc.ir.weight_formats.registry import CHECKPOINT_FORMATS, Encoding, EncodingErrors, format_named
from sscc.runtime.artifact.tensor_files import TensorErrors, TensorSpec, layout_of, reading, stack_tensors
from sscc.runtime.support import quantization
from sscc.runtime.support.block_quantizer import BlockQuantizerErrors
from sscc.runtime.support.quantization import (
    Array,
    Error,
    QuantizationErrors,
    dequantize,
    encode,
    measure_error,
    quantize,
    round_trip,
)
from sscc.runtime.validator.placement import PlacementProofErrors, check_tensors
from tests.errors import raises

FORMATS = [
    GroupFormat(bits, group, zero_point) for bits in (8, 4) for group in (2, 32, 128) for zero_point in (False, True)
]


def normal(rows: int = 24, columns: int = 256, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> Array:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((rows, columns)) * scale + shift).astype(np.float32)


SCALE_DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


@dataclass(frozen=True)
class Quantized:
    """The parts of a weight in groups, in the dtypes of their numbers."""

    values: Array
    scales: Array
    zeros: Array | None
    minimums: Array | None


def quantized_of(weight: Array, f: GroupFormat) -> Quantized:
    parts, dtype = quantize(weight, f.descriptor), SCALE_DTYPES[f.scales]
    minimums = parts["minimums"].view(dtype) if "minimums" in parts else None
    return Quantized(parts["values"], parts["scales"].view(dtype), parts.get("zeros"), minimums)


def restored_of(weight: Array, f: GroupFormat) -> Array:
    return dequantize(quantize(weight, f.descriptor), f.descriptor)


def codes_of(weight: Array, f: GroupFormat) -> Array:
    """-h .. h - 1, one per element, from the stored bytes."""
    values = quantized_of(weight, f).values
    if f.bits == 8:
        return values.astype(np.int64)
    bytes_ = values.view(np.uint8).astype(np.int64)
    codes = np.empty((len(values), 2 * values.shape[1]), np.int64)
    codes[:, 0::2], codes[:, 1::2] = bytes_ % 16 - 8, bytes_ // 16 - 8
    return codes


@pytest.mark.parametrize("f", FORMATS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_no_element_moves_by_more_than_a_step(f: GroupFormat, scale: float, shift: float) -> None:
    weight = normal(scale=scale, shift=shift * scale)
    quantized = quantized_of(weight, f)
    steps = np.abs(quantized.scales.astype(np.float64))[..., None]
    moved = np.abs(restored_of(weight, f).astype(np.float64) - weight).reshape(*quantized.scales.shape, f.group)
    assert (moved <= steps * (1 + 1e-6)).all()
    inside = np.abs(codes_of(weight, f).reshape(moved.shape)) < f.half - 1
    assert (moved[inside] <= 0.5 * (np.broadcast_to(steps, moved.shape)[inside]) * (1 + 1e-5)).all()


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_what_is_stored(f: GroupFormat) -> None:
    quantized = quantized_of(normal(), f)
    groups = 256 // f.group
    assert (quantized.values.dtype.name, quantized.values.shape) == ("int8", (24, 256 * f.bits // 8))
    assert (quantized.scales.dtype.name, quantized.scales.shape) == ("bfloat16", (24, groups))
    if not f.zero_point:
        assert quantized.zeros is None
        return
    assert quantized.zeros is not None
    assert (quantized.zeros.dtype.name, quantized.zeros.shape) == ("int8", (24, groups))
    if f.bits == 4:
        assert quantized.zeros.min() >= 0
        assert quantized.zeros.max() <= 15


@pytest.mark.parametrize("scales", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("base", ["", ":zero-point", ":minimum"])
def test_dtypes_of_scales(scales: str, base: str) -> None:
    """The wider the scales, the nearer is the lowest code to the element that it was made for; none lies beyond it."""
    f = GroupFormat.parse(f"int4:32{base}:{scales}")
    weight = normal(shift=0.5)
    quantized = quantized_of(weight, f)
    moved = np.abs(restored_of(weight, f) - weight).reshape(*quantized.scales.shape, 32)
    steps = np.abs(quantized.scales.astype(np.float32))[..., None]
    # Without a base the largest element opposite to the one that the scale was made for may be clamped.
    assert (moved <= steps * (1.001 if not base else 0.501 if base == ":minimum" else 1.001)).all()
    expected = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[scales]
    assert quantized.scales.dtype.name == expected
    if base == ":minimum":
        assert quantized.minimums is not None
        assert quantized.minimums.dtype.name == expected
        assert (quantized.minimums.astype(np.float32) <= weight.reshape(moved.shape).min(axis=-1)).all()


def test_floats_of_8_bits() -> None:
    """With three bits of mantissa, no element above the smallest normal number changes by more than a sixteenth."""
    f = GroupFormat.parse("e4m3:32:f32")
    weight = normal()
    weight[3] = 0
    quantized = quantized_of(weight, f)
    assert (quantized.values.dtype.name, quantized.values.shape) == ("int8", weight.shape)
    restored = restored_of(weight, f)
    smallest = np.repeat(quantized.scales, 32, axis=1) * 2.0**-6
    normals = np.abs(weight) > smallest
    assert (np.abs(restored - weight)[normals] <= np.abs(weight)[normals] / 16 * (1 + 1e-5)).all()
    assert (restored[weight == 0] == 0).all()
    assert measure_error(weight, f.descriptor).normwise < 0.03
    with raises(GroupFormatErrors.FLOATING):
        GroupFormat.parse("e4m3:32:zero-point")


def test_scales_of_f16_have_a_range() -> None:
    f = GroupFormat.parse("int8:32:f16")
    assert np.isfinite(restored_of(normal(scale=1e6), f)).all()
    with raises(QuantizationErrors.TOO_LARGE):
        quantize(normal(scale=1e9), f.descriptor)
    smallest = quantized_of(np.full((1, 32), 1e-9, np.float32), f)
    assert smallest.scales.astype(np.float64)[0, 0] == -(2.0**-24)  # away from zero


def test_by_hand() -> None:
    # The element of largest magnitude is 4, so the scale is -4 / 8, and 4 has the code -8. -3.9 would be 8: clamped.
    weight = np.array([[4.0, -0.5, 0.25, -3.9]], np.float32)
    f = GroupFormat(4, 4)
    quantized = quantized_of(weight, f)
    assert quantized.scales.astype(float).tolist() == [[-0.5]]
    assert codes_of(weight, f).tolist() == [[-8, 1, 0, 7]]  # -0.25 / 0.5 is a half, which rounds to even
    assert quantized.values.view(np.uint8).tolist() == [[0 + 16 * 9, 8 + 16 * 15]]
    assert restored_of(weight, f).tolist() == [[4.0, -0.5, 0.0, -3.5]]


def test_minimums_by_hand() -> None:
    # From -1 on there are 15 steps of 1.
    weight = np.array([[-1.0, 14.0, 0.0, 6.4]], np.float32)
    f = GroupFormat(4, 4, minimum=True)
    quantized = quantized_of(weight, f)
    assert quantized.minimums is not None
    assert quantized.minimums.astype(float).tolist() == [[-1.0]]
    assert codes_of(weight, f).tolist() == [[-8, 7, -7, -1]]
    assert restored_of(weight, f).tolist() == [[-1.0, 14.0, 0.0, 6.0]]


def test_zero_points_by_hand() -> None:
    # -1 .. 14 is 15 steps of 1; zero is the code -7.
    weight = np.array([[-1.0, 14.0, 0.0, 6.4]], np.float32)
    f = GroupFormat(4, 4, zero_point=True)
    quantized = quantized_of(weight, f)
    assert quantized.scales.astype(float).tolist() == [[1.0]]
    assert quantized.zeros is not None
    assert quantized.zeros.tolist() == [[1]]
    assert codes_of(weight, f).tolist() == [[-8, 7, -7, -1]]
    assert restored_of(weight, f).tolist() == [[-1.0, 14.0, 0.0, 6.0]]


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_zeros_stay_zeros(f: GroupFormat) -> None:
    weight = normal()
    weight[:, ::3] = 0
    weight[5] = 0
    restored = restored_of(weight, f)
    assert (restored[weight == 0] == 0).all()
    assert measure_error(np.zeros((2, 256), np.float32), f.descriptor) == Error(0.0, 0.0)
    assert Error(0.0, 0.0).normwise == 0.0


def test_scales_round_away_from_zero() -> None:
    largest = np.array([[1.001, 0.0], [-1.001, 0.0], [1.0, 0.0]], np.float32)
    scales = quantized_of(largest, GroupFormat(8, 2)).scales.astype(np.float64)[:, 0] * 128
    assert scales.tolist() == [-1.0078125, 1.0078125, -1.0]


def test_errors_of_normal_weights() -> None:
    """Known figures: a step is the largest of 32 normal numbers over 2^(bits - 1), an error is a step / sqrt(12)."""
    weight = normal(256, 512)
    errors = {str(f): measure_error(weight, f.descriptor).normwise for f in FORMATS if f.group == 32}
    assert errors["int8:32"] == pytest.approx(5.4e-3, rel=0.03)
    assert errors["int4:32"] == pytest.approx(8.6e-2, rel=0.03)
    assert errors["int8:32:zero-point"] == pytest.approx(4.8e-3, rel=0.03)
    assert errors["int4:32:zero-point"] == pytest.approx(8.1e-2, rel=0.03)
    shifted = normal(256, 512, shift=3.0)
    assert (
        measure_error(shifted, GroupFormat(4, 32, True).descriptor).normwise
        < 0.6 * measure_error(shifted, GroupFormat(4, 32).descriptor).normwise
    )


def test_errors_add_up() -> None:
    first, second, f = normal(seed=1), normal(seed=2), GroupFormat(4)
    both = measure_error(np.concatenate([first, second]), f.descriptor)
    total = measure_error(first, f.descriptor) + measure_error(second, f.descriptor)
    assert total.normwise == pytest.approx(both.normwise)
    restored = restored_of(first, f)
    expected = np.linalg.norm(restored - first) / np.linalg.norm(first)
    assert measure_error(first, f.descriptor).normwise == pytest.approx(expected)


@pytest.mark.parametrize("f", [GroupFormat(8), GroupFormat(4), GroupFormat(4, 32, True)], ids=str)
def test_blocks_change_nothing(f: GroupFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(50)
    whole = quantized_of(weight, f)
    monkeypatch.setattr(quantization, "_BLOCK_ELEMENTS", 256 * 7)
    assert quantized_of(weight, f).values.tobytes() == whole.values.tobytes()
    assert quantized_of(weight, f).scales.tobytes() == whole.scales.tobytes()


@pytest.mark.parametrize("f", FORMATS, ids=str)
def test_encodings_are_the_parts(f: GroupFormat) -> None:
    weight = normal()
    parts = quantize(weight, f.descriptor)
    for name, part in parts.items():
        stored = encode(weight, Encoding(f.descriptor, name))
        assert stored.tobytes() == part.tobytes()
        assert encode(weight.T, Encoding(f.descriptor, name, transposed=True)).tobytes() == stored.tobytes()
    restored = round_trip(weight.T, Encoding(f.descriptor, "values", transposed=True))
    np.testing.assert_array_equal(restored.T, restored_of(weight, f))


def test_sources_of_other_dtypes() -> None:
    weight = normal().astype(ml_dtypes.bfloat16)
    f = GroupFormat(8)
    assert quantized_of(weight, f).values.tobytes() == quantized_of(weight.astype(np.float32), f).values.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weight = normal()
    weight[3, 5] = bad
    with raises(QuantizationErrors.NOT_FINITE):
        quantize(weight, GroupFormat(4).descriptor)


def test_groups_have_to_fit() -> None:
    with raises(QuantizationErrors.GROUPS, columns=256, group=48):
        quantize(normal(), GroupFormat(8, 48).descriptor)


# ------------------------------------------------------------------------------------------------------- as stored


def program(*tensors: Tensor) -> Program:
    return Program(tensors, (), (), (), 0)


def test_a_stack_of_encoded_layers() -> None:
    layers = {f"layers.{i}.w": normal(seed=i) for i in range(3)}
    stack_program = program(
        Tensor("v", (3, 24, 128), "i8", "weight", "hbm", 0, tuple(layers), "int4:32/values"),
        Tensor("s", (3, 24, 16), "i8", "weight", "hbm", 0, tuple(layers), "int4:32/scales"),
        Tensor("one", (24, 16), "i8", "weight", "hbm", 0, ("layers.1.w",), "int4:32/scales"),
    )
    layout = layout_of(stack_program, "weight")
    assert layout["v"].source == TensorSpec((24, 256), "f32")
    stored = stack_tensors(layout, reading(layers, "the test"))
    for index, weight in enumerate(layers.values()):
        quantized = quantized_of(weight, GroupFormat(4))
        assert stored["v"][index].tobytes() == quantized.values.tobytes()
        assert stored["s"][index].tobytes() == quantized.scales.tobytes()
    assert stored["one"].tobytes() == stored["s"][1].tobytes()


@pytest.mark.parametrize(
    ("tensor", "kind", "fields"),
    [
        (
            Tensor("v", (24, 256), "i8", "weight", "hbm", 0, ("w",), "int9:32/values"),
            EncodingErrors.FORMAT,
            {"text": "int9:32/values"},
        ),
        (
            Tensor("v", (24, 16), "f32", "weight", "hbm", 0, ("w",), "int8:32/scales"), PlacementProofErrors.ENCODING,
            {"role": "weight", "dtype": "f32", "shape": [24, 16], "encoding": "int8:32/scales"},
        ),
        (
            Tensor("v", (24, 256), "i8", "constant", "hbm", 0, ("w",), "int8:32/values"), PlacementProofErrors.ENCODING,
            {"role": "constant", "dtype": "i8", "shape": [24, 256], "encoding": "int8:32/values"},
        ),
        (
            Tensor("v", (2, 2, 9, 64), "i8", "weight", "hbm", 0, ("w",), "int8:32/values"),
            PlacementProofErrors.ENCODING,
            {"role": "weight", "dtype": "i8", "shape": [2, 2, 9, 64], "encoding": "int8:32/values"},
        ),
        (
            Tensor("v", (2, 256), "i8", "weight", "hbm", 0, ("w", "x"), "int8:32/values"),
            PlacementProofErrors.ENCODING,
            {"role": "weight", "dtype": "i8", "shape": [2, 256], "encoding": "int8:32/values"},
        ),
    ],
)
def test_the_validator_refuses_encodings_that_do_not_fit(
    tensor: Tensor, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        check_tensors(program(tensor))
    for sources in (("w",), ("w", "x")):  # a matrix per expert, and one per layer
        check_tensors(program(Tensor("v", (2, 24, 256), "i8", "weight", "hbm", 0, sources, "int8:32/values")))


def test_a_matrix_per_expert_is_quantized_as_each_matrix_alone() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 24, 64)).astype(np.float32)
    for name, source in (("int4:32/values", weight), ("int4:32/values/transposed", weight.swapaxes(1, 2))):
        encoding = Encoding.parse(name)
        whole = encode(source, encoding)
        assert whole.shape == (3, 24, 32)
        assert encoding.source_shape(whole.shape) == source.shape
        for expert, matrix in enumerate(source):
            assert np.array_equal(whole[expert], encode(matrix, encoding))
            assert np.array_equal(round_trip(source, encoding)[expert], round_trip(matrix, encoding))


def test_a_source_that_cannot_be_encoded_is_named() -> None:
    bad = normal()
    bad[0, 0] = np.nan
    layout = layout_of(program(Tensor("v", (24, 256), "i8", "weight", "hbm", 0, ("w",), "int8:32/values")), "weight")
    with raises(TensorErrors.NOT_ENCODED, tensor="w", cause=QuantizationErrors.NOT_FINITE()):
        stack_tensors(layout, reading({"w": bad}, "the test"))
    shape = {"shape": [24, 128], "expected": "f32 [24, 256]"}
    with raises(TensorErrors.OTHER_TENSOR, where="the test", tensor="w", dtype="float32", **shape):
        stack_tensors(layout, reading({"w": normal(24, 128)}, "the test"))


# ------------------------------------------------------------------------------------------- formats of checkpoints


@pytest.mark.parametrize("name", list(ggml.FORMATS))
def test_blocks_of_gguf_give_the_numbers_of_its_own_package(name: str) -> None:
    """Random bits, and halves that are numbers; to the bit."""
    f, generator = ggml.FORMATS[name], np.random.default_rng(0)
    blocks = generator.integers(0, 256, (16, 4, f.block_bytes), dtype=np.uint8)
    for field in (*f.scales, *f.minimums):
        if field.is_float:
            at = field.runs[0][0].at
            blocks[..., at : at + 2] = generator.standard_normal((16, 4, 1)).astype(np.float16).view(np.uint8)
        elif field.kind == "exponent":
            blocks[..., field.runs[0][0].at] %= 250  # the largest numbers would be beyond f32
    raw = blocks.reshape(16, -1)
    numbers = dequantize({ggml.BLOCKS: raw.view(np.int8)}, f)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert numbers.shape == (16, 4 * f.block)
    assert (numbers.view(np.uint32) == expected.view(np.uint32)).all()


def test_mxfp4_by_hand() -> None:
    """OCP MX v1.0: e2m1 numbers 0 0.5 1 1.5 2 3 4 6 and their negatives, times 2^(exponent - 127)."""
    codes = np.arange(32) % 16
    blocks = (codes[0::2] | (codes[1::2] << 4)).astype(np.uint8).reshape(1, 16)
    scales = np.array([[129]], np.uint8)
    numbers = dequantize({"blocks": blocks.view(np.int8), "scales": scales.view(np.int8)}, format_named("mxfp4"))
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert numbers[0, :16].tolist() == [4 * sign * x for sign in (1, -1) for x in magnitudes]


@pytest.mark.parametrize("name", list(CHECKPOINT_FORMATS))
def test_numbers_of_a_format_stay_when_they_are_quantized_into_it(name: str) -> None:
    """If codes use their whole range and scales are powers of 2, quantizing the values gives the same codes."""
    f, generator = CHECKPOINT_FORMATS[name], np.random.default_rng(4)
    weight = dequantize(quantize(generator.standard_normal((8, 512)).astype(np.float32), f), f)
    again = dequantize(quantize(weight, f), f)
    error = np.linalg.norm(again - weight) / np.linalg.norm(weight)
    assert error < 0.03 if f.minimums or len(f.scales) > 1 else error < 2e-3


def test_blocks_are_as_near_as_those_of_the_package() -> None:
    weight = normal(64, 1024)
    for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4"):
        kind = gguf.GGMLQuantizationType[name]
        theirs = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
        error = np.linalg.norm(theirs - weight) / np.linalg.norm(weight)
        assert measure_error(weight, ggml.FORMATS[name]).normwise <= 1.02 * error, name
    nearer = [measure_error(weight, ggml.FORMATS[name]).normwise for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")]
    assert nearer == sorted(nearer, reverse=True)


def test_a_weight_that_is_too_large_for_halves_is_refused() -> None:
    with raises(BlockQuantizerErrors.TOO_LARGE, format="Q4_K"):
        encode(normal(scale=1e9), Encoding.parse("Q4_K/blocks"))
