"""Rows that native code encodes: bit for bit what `sscc.ir.kv_rows` defines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sscc.ir import kv_rows
from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.operations import CachedAttention, QuantizeRows, Segment, UpdateRows
from sscc.ir.schedule import Local
from sscc.runtime.backends.cpu.codegen.encoded_rows import lower_quantize_rows
from sscc.runtime.backends.cpu.codegen.features import GENERIC, Features
from sscc.runtime.backends.cpu.codegen.row_copies import NativeRowErrors
from sscc.runtime.backends.cpu.codegen.steps import lower_step
from tests.errors import raises
from tests.runtime.backends.cpu.cpus import CPUS
from tests.runtime.backends.cpu.harness_bodies import body_of
from tests.runtime.backends.cpu.harness_decode import CompiledStep
from tests.runtime.backends.cpu.harness_prefill import meta_of, run_step, strided
from tests.runtime.programs import run_kernel
from tests.runtime.schedules import one_stage

STEP = QuantizeRows("source", "out")
SIZES = (1, 3, 15, 16, 17, 20, 64, 80, 128, 200, 288)


def native(source: torch.Tensor, features: Features = GENERIC, row_format: RowFormat = INT8) -> torch.Tensor:
    """Return the rows encoded by the native code of `QuantizeRows`."""
    out = torch.full((*source.shape[:3], row_format.width(source.shape[3])), 99, dtype=torch.int8)
    return run_step(STEP, lower_step, {"source": source, "out": out}, {}, features, ["out"])["out"]


def encoded(rows: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(kv_rows.encode(rows.float().numpy()))


def of_values(values: list[list[float]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).float()[None, None]


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "row_format"), [*((n, INT8) for n in SIZES), *((n, INT4) for n in (2, 20, 34, 80))])
def test_rows_are_encoded_to_the_bit(
    size: int, row_format: RowFormat, dtype: torch.dtype, features: Features
) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(2, 3, 70, size, generator=generator) * 10.0 ** torch.randint(
        -30, 30, (2, 3, 70, 1), generator=generator
    )
    source = strided(rows.to(dtype), (0, 2, 1, 3))
    source[0, 0, :2] = torch.tensor([0.0, 1e-39])[:, None].to(dtype)  # nothing, and too small for a scale
    expected = torch.from_numpy(row_format.encode(source.float().numpy()))
    assert torch.equal(native(source, features, row_format), expected)


@pytest.mark.parametrize("features", CPUS)
def test_rounding_is_half_to_even_and_codes_reach_both_ends(features: Features) -> None:
    """127 and its inverse times a power of two leave products that are exact: every half is a tie."""
    spans = (range(-127, 0), range(0, 127))  # with the peak a group of numbers that share a scale
    halves = [[float(sign * 127), *(n + 0.5 for n in span)] for span in spans for sign in (1, -1)]
    source = of_values(halves)
    got = native(source, features)
    assert torch.equal(got, encoded(source))
    inverse = np.float32(1) / (np.float32(127) * np.float32(INT8.step))
    assert inverse == 1
    exact = torch.tensor(halves, dtype=torch.float64).round().clamp(-127, 127)
    assert torch.equal(got[0, 0, :, :128].double(), exact)
    assert got[0, 0, :, 0].tolist() == [127, -127, 127, -127]


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("size", [5, 16, 21])
def test_rows_of_almost_nothing_are_zero_bytes_and_the_largest_numbers_are_not_lost(
    size: int, features: Features
) -> None:
    smallest = 2.0**-126
    around = smallest / INT8.step
    peaks = [0.0, -0.0, 1e-45, smallest, around * (1 - 1e-6), around, around * (1 + 1e-6), 3.4028234663852886e38, -1.0]
    source = of_values([[0.3 * peak] * (size - 1) + [peak] for peak in peaks])
    got = native(source, features)
    assert torch.equal(got, encoded(source))
    assert not got[0, 0, :5].any()
    assert got[0, 0, 6:].any(-1).all()
    assert kv_rows.decode(got.numpy())[0, 0, 7].max() == pytest.approx(3.4028234663852886e38, rel=1e-6)


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 18])
def test_the_scale_of_a_row_that_is_not_finite_is_not_finite(place: int, value: float, features: Features) -> None:
    source = torch.ones(1, 1, 2, 20)
    source[0, 0, 0, place] = value
    got = native(source, features)
    scale = got[..., 20:].contiguous().view(torch.float32)
    assert not scale[0, 0, 0].isfinite()
    assert torch.equal(got[:, :, 1], encoded(source[:, :, 1]))


@pytest.mark.parametrize("features", CPUS)
@pytest.mark.parametrize("size", [3, 20, 64])
def test_nothing_beyond_a_row_is_written(size: int, features: Features) -> None:
    """Rows that lie 3 bytes apart, heads and slots swapped in memory."""
    source = torch.randn(2, 3, 40, size, generator=torch.Generator().manual_seed(0))
    memory = torch.full((3, 2, 40, size + 4 + 3), 77, dtype=torch.int8)
    tensors = {"source": source, "out": memory.permute(1, 0, 2, 3)[..., : size + 4]}
    meta = meta_of(tensors)
    CompiledStep(lower_quantize_rows(STEP, meta, features), meta, features)(tensors, 3)
    assert torch.equal(tensors["out"], encoded(source))
    assert (memory[..., size + 4 :] == 77).all()


def test_rows_that_are_not_contiguous_are_refused() -> None:
    tensors = {"source": torch.zeros(1, 2, 3, 8), "out": torch.zeros(1, 2, 3, 24).to(torch.int8)[..., ::2]}
    with raises(NativeRowErrors.STRIDE, step="quantize_rows", operand="out", stride=2):
        lower_quantize_rows(STEP, meta_of(tensors), GENERIC)


def test_a_body_may_hand_encoded_rows_from_step_to_step() -> None:
    """Through a local, by the plan that programs run with; the reference interpreter agrees."""
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "query": torch.randn(2, 4, 1, 20, generator=generator),
        "new": torch.randn(2, 2, 1, 20, generator=generator),
        "row": torch.tensor([3, 7]),
        "active": torch.tensor([True, True]),
        "valid": torch.ones(2, 40, dtype=torch.bool),
    }
    writes = {"cache": encoded(torch.randn(2, 2, 40, 20, generator=generator)), "out": torch.zeros(2, 4, 1, 20)}
    steps = (
        QuantizeRows("new", "fresh"),
        UpdateRows("cache", "fresh", "row", "active"),
        CachedAttention("query", (Segment("cache", "cache", "valid"),), "out", 0.3),
    )
    body = body_of(steps, inputs, writes, locals_=(Local("fresh", (2, 2, 1, 24), "i8"),))
    got = run_kernel(one_stage(body), (body,), inputs, writes)
    want = writes["cache"].clone()
    for slot, row in enumerate((3, 7)):
        want[slot, :, row] = encoded(inputs["new"])[slot, :, 0]
    rows = torch.from_numpy(kv_rows.decode(want.numpy())).double().repeat_interleave(2, 1)
    out = torch.softmax(inputs["query"].double() @ rows.mT * 0.3, -1) @ rows
    assert torch.equal(got["cache"], want)
    assert (got["out"] - out).norm() <= 1e-6 * out.norm()
