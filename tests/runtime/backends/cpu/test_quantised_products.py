"""Weights of 8 and 4 bits: what lies where, and generated products against numpy in f64."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest

from sscc.ir.errors import InternalError
from sscc.runtime.backends.cpu.compile import Jit
from sscc.runtime.backends.cpu.features import AVX2, GENERIC, MODELS, Features
from sscc.runtime.backends.cpu.float8_products import float8_product
from sscc.runtime.backends.cpu.mlir import I64, PTR, Function, Module
from sscc.runtime.backends.cpu.phases import Operand
from sscc.runtime.backends.cpu.product_blocks import PackedProductErrors
from sscc.runtime.backends.cpu.quantised_packing import QuantisedPanelErrors, QuantisedPanels
from sscc.runtime.backends.cpu.quantised_products import quantised_product
from sscc.runtime.backends.cpu.quantised_rows import RowForm
from tests.errors import raises
from tests.runtime.backends.cpu.product_data import AlignedArray, loaded, normal, stored

FEATURES = {"host": Features.of_host(), "generic": GENERIC}
FEATURES |= {  # what this CPU can run
    name: features
    for name, features in (("avx2", AVX2), ("avx512", Features("x86-64-v4", frozenset(MODELS["x86-64-v4"]))))
    if features.extensions <= FEATURES["host"].extensions
}


@dataclass(frozen=True)
class QuantisedCase:
    """A product with dense operands; `a` and `out` are their dtypes."""

    m: int
    n: int
    k: int
    bits: int
    group: int
    zero_point: bool = False
    a: str = "f32"
    out: str = "f32"
    minimum: bool = False
    scales: str = "bf16"
    floating: bool = False

    @property
    def panels(self) -> QuantisedPanels:
        parts = (self.zero_point, self.minimum, self.scales, self.floating)
        return QuantisedPanels(self.n, self.k, self.bits, self.group, *parts)

    def operands(self, f: Function) -> tuple[Operand, Operand]:
        a = Operand(f["a"], (self.m, self.k), (self.k, 1), self.a)
        return a, Operand(f["out"], (self.m, self.n), (self.n, 1), self.out)


CASES = [
    *(QuantisedCase(m, 37, 64, bits, 32, zero) for bits in (8, 4) for zero in (False, True) for m in (1, 3)),
    *(QuantisedCase(m, 37, 64, bits, 32) for bits in (8, 4) for m in (2, 5, 17)),
    *(QuantisedCase(2, 40, 24, bits, 8, a="bf16", out="bf16") for bits in (8, 4)),
    *(QuantisedCase(m, 16, 2048, bits, 2048) for bits in (8, 4) for m in (1, 3)),
    QuantisedCase(2, 16, 1024, 8, 512),
    QuantisedCase(2, 16, 512, 8, 256, True),
    QuantisedCase(2, 20, 26, 8, 26, True),
    QuantisedCase(2, 20, 26, 4, 26),
    QuantisedCase(1, 1, 3, 8, 3),
    *(QuantisedCase(m, 21, 64, 4, 32, minimum=True, scales=dtype) for m in (1, 5) for dtype in ("bf16", "f16", "f32")),
    *(QuantisedCase(3, 21, 64, bits, 32, bits == 4, scales=scales) for bits in (8, 4) for scales in ("f16", "f32")),
    QuantisedCase(2, 40, 24, 4, 8, a="bf16", out="bf16", minimum=True, scales="f16"),
    *(QuantisedCase(m, 21, 64, 8, 32, scales="f32", floating=True) for m in (1, 3, 5, 17)),
    QuantisedCase(2, 40, 24, 8, 8, a="bf16", out="bf16", scales="bf16", floating=True),
    QuantisedCase(3, 20, 26, 8, 26, scales="f16", floating=True),
]


@dataclass(frozen=True)
class Weight:
    """Parts as they are stored, and what they stand for, f64 [N, K]."""

    values: np.ndarray
    scales: np.ndarray
    base: np.ndarray | None
    stands_for: np.ndarray

    @classmethod
    def of(cls, panels: QuantisedPanels) -> Weight:
        """Random ones, extremes included."""
        rng = np.random.default_rng(5)
        low, high = (-128, 128) if panels.bits == 8 else (0, 16)
        codes = rng.integers(low, high, (panels.n, panels.k))
        codes[0] = low
        codes[-1] = high - 1
        scales = as_scales(normal(6, panels.n, panels.groups) / 16, panels.scale_dtype)
        fixed = np.full(scales.shape, 0 if panels.bits == 8 else 8)
        zeros = rng.integers(low, high, scales.shape) if panels.zero_point else fixed
        numbers = codes
        if panels.floating:
            codes %= 256
            codes[codes % 128 == 127] = 126  # no number
            numbers = codes.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        steps = numbers_of(scales, panels.scale_dtype).repeat(panels.group, axis=1)
        stands_for = (numbers - zeros.repeat(panels.group, axis=1)) * steps
        base = zeros.astype(np.int8) if panels.zero_point else None
        if panels.minimum:
            base = as_scales(normal(7, panels.n, panels.groups) / 2, panels.scale_dtype)
            stands_for = codes * steps + numbers_of(base, panels.scale_dtype).repeat(panels.group, axis=1)
        if panels.bits == 4:
            codes = codes[:, ::2] | (codes[:, 1::2] << 4)
        values = codes.astype(np.uint8).view(np.int8)
        return cls(values, scales, base, stands_for)


def as_scales(numbers: np.ndarray, dtype: str) -> np.ndarray:
    return numbers.astype(np.float16) if dtype == "f16" else stored(numbers, dtype)


def numbers_of(scales: np.ndarray, dtype: str) -> np.ndarray:
    return (scales if dtype == "f16" else loaded(scales, dtype)).astype(np.float64)


@dataclass
class CompiledQuantisedProducts:
    """All cases for one kind of CPU."""

    jit: Jit
    scratch: dict[QuantisedCase, int] = field(default_factory=dict)

    @classmethod
    @functools.cache
    def of(cls, kind: str) -> CompiledQuantisedProducts:
        features, module, scratch = FEATURES[kind], Module(), {}
        for number, case in enumerate(CASES):
            params = [(name, PTR) for name in ("a", "weights", "out", "scratch")] + [("begin", I64), ("end", I64)]
            f = module.function(f"case{number}", params, exported=True)
            a, out = case.operands(f)
            make = float8_product if case.floating else quantised_product
            product = make(a, out, case.panels, features)
            product.emit(f, f["weights"], f["begin"], f["end"], f["scratch"])
            f.returns()
            scratch[case] = product.scratch_bytes
        return cls(Jit(module, features.cpu), scratch)

    def run(self, case: QuantisedCase, a: np.ndarray, weight: Weight, cuts: tuple[int, ...] = ()) -> np.ndarray:
        """The product of a [m, k], called once per range of columns; [m, n] in f32."""
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)(
            self.jit.addresses[f"case{CASES.index(case)}"]
        )
        left = stored(a, case.a)
        result = stored(np.full(case.m * case.n + 1, 7.0, np.float32), case.out)
        packed = case.panels.pack(weight.values, weight.scales, weight.base)
        weights, scratch = AlignedArray(packed.nbytes), AlignedArray(self.scratch[case])
        weights.bytes[:] = packed.reshape(-1)
        for begin, end in itertools.pairwise([0, *cuts, case.n]):
            function(left.ctypes.data, weights.address, result.ctypes.data, scratch.address, begin, end)
        values = loaded(result, case.out)
        assert values[-1] == 7.0
        return values[:-1].reshape(case.m, case.n)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", list(FEATURES))
def test_agrees_with_dequantised_weights(kind: str, case: QuantisedCase) -> None:
    a, weight = normal(1, case.m, case.k), Weight.of(case.panels)
    result = CompiledQuantisedProducts.of(kind).run(case, a, weight)
    expected = a.astype(np.float64) @ weight.stands_for.T
    # Half a step of x per element, the sums' own roundings, and that of the result.
    steps = np.abs(a).reshape(case.m, -1, case.group).max(axis=-1) / 32639
    magnitude = np.abs(weight.stands_for).reshape(case.n, -1, case.group).sum(axis=-1)
    tolerance = 0.51 * steps @ magnitude.T + 2.0**-20 * np.abs(a).astype(np.float64) @ np.abs(weight.stands_for).T
    assert (np.abs(result - expected) <= tolerance + (2.0**-8 * np.abs(expected) if case.out == "bf16" else 0)).all()
    assert np.linalg.norm(result - expected) <= (4e-3 if case.out == "bf16" else 1e-4) * np.linalg.norm(expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_cpus_give_the_same_bits(case: QuantisedCase) -> None:
    a, weight = normal(2, case.m, case.k), Weight.of(case.panels)
    host, *others = (CompiledQuantisedProducts.of(kind).run(case, a, weight).view(np.uint32) for kind in FEATURES)
    for other in others:
        assert (host == other).all()


@pytest.mark.parametrize("case", [c for c in CASES if c.group >= 256 and c.m == 2], ids=str)
def test_the_largest_sums_of_whole_integers_fit(case: QuantisedCase) -> None:
    """Every number of a row is the group's largest, and every code is as far from its zero as it can be."""
    a, weight = np.ones((case.m, case.k), np.float32), Weight.of(case.panels)
    weight.values[:] = -128
    if weight.base is not None:
        weight.base[:] = 127
    scales = numbers_of(weight.scales, case.scales).sum(axis=1)
    expected = np.broadcast_to(-case.panels.largest_difference * case.group * scales, (case.m, case.n))
    for kind in FEATURES:
        result = CompiledQuantisedProducts.of(kind).run(case, a, weight)
        assert np.allclose(result, expected, rtol=1e-5, atol=1e-3), kind


def test_no_group_is_summed_whole_that_might_overflow() -> None:
    parts = {
        (bits, zero, group): RowForm.of(QuantisedPanels(16, group, bits, group, zero), AVX2).parts
        for bits, zero, group in ((8, False, 512), (8, False, 520), (8, True, 256), (8, True, 264), (4, False, 4384))
    }
    assert list(parts.values()) == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("case", [c for c in CASES if c.n == 37], ids=str)
@pytest.mark.parametrize("kind", list(FEATURES))
def test_rows_and_ranges_do_not_change_bits(kind: str, case: QuantisedCase) -> None:
    compiled, a, weight = CompiledQuantisedProducts.of(kind), normal(3, case.m, case.k), Weight.of(case.panels)
    whole = compiled.run(case, a, weight)
    (alone,) = (c for c in CASES if (c.m, c.n, c.bits, c.zero_point) == (1, 37, case.bits, case.zero_point))
    rows = np.concatenate([compiled.run(alone, a[m : m + 1], weight) for m in range(case.m)])
    assert (whole.view(np.uint32) == rows.view(np.uint32)).all()
    assert (whole.view(np.uint32) == compiled.run(case, a, weight, (16, 32)).view(np.uint32)).all()


@pytest.mark.parametrize("kind", list(FEATURES))
def test_rows_of_zeros_and_of_tiny_numbers(kind: str) -> None:
    case = CASES[0]
    weight = Weight.of(case.panels)
    for value in (0.0, 1e-40):
        result = CompiledQuantisedProducts.of(kind).run(case, np.full((1, case.k), value, np.float32), weight)
        assert (result == 0).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_every_code_is_where_the_definition_says(bits: int) -> None:
    panels = QuantisedPanels(20, 24, bits, 8, True)
    weight = Weight.of(panels)
    packed = panels.pack(np.stack([weight.values] * 2), np.stack([weight.scales] * 2), np.stack([weight.base] * 2))
    assert packed.shape == (2, panels.count, panels.groups, panels.group_bytes)
    assert packed.nbytes == 2 * panels.packed_bytes
    assert (packed[0] == packed[1]).all()
    for n, k in np.ndindex(20, 24):
        group = packed[1, n // 16, k // 8]
        at, half = k % 8 % 4, k % 8 // 4
        if bits == 8:
            code = int(group[48 + 64 * half + n % 16 * 4 + at]) - 128
            assert code == weight.values[n, k]
        else:
            code = int(group[48 + n % 16 * 4 + at]) >> (4 * half) & 15
            assert code == int(weight.values[n, k // 2]) >> (4 * (k % 2)) & 15
        assert group[:32].view(np.uint16)[n % 16] == weight.scales[n, k // 8]
        assert group[32:48].view(np.int8)[n % 16] == weight.base[n, k // 8]
    assert (packed[1, 1, :, 48:].reshape(3, -1, 16, 4)[:, :, 4:] == 0).all()


def test_what_does_not_fit_is_refused() -> None:
    panels = QuantisedPanels(20, 64, 8, 32)
    weight = Weight.of(panels)
    with raises(QuantisedPanelErrors.PARTS_DIFFER, values="int8 [20, 63]", base="none"):
        panels.pack(weight.values[:, :-1], weight.scales)
    with raises(QuantisedPanelErrors.PARTS_DIFFER, values="int8 [20, 64]", base="int8 [20, 2]"):
        panels.pack(weight.values, weight.scales, np.zeros((20, 2), np.int8))
    with raises(QuantisedPanelErrors.PARTS_DIFFER, values="int8 [20, 64]", base="none"):
        QuantisedPanels(20, 64, 8, 32, True).pack(weight.values, weight.scales)
    for bad in ((20, 64, 5, 32), (20, 64, 8, 48), (20, 60, 4, 20), (0, 64, 8, 32)):
        with pytest.raises(InternalError):
            QuantisedPanels(*bad)
    f = Module().function("f", [("p", PTR)])
    a, out = Operand(f["p"], (2, 63), (63, 1), "f32"), Operand(f["p"], (2, 20), (20, 1), "f32")
    with raises(PackedProductErrors.SHAPES):
        quantised_product(a, out, panels, GENERIC)


@pytest.mark.parametrize(("extensions", "rows"), [(("avx2",), (1, 2, 4)), (("avx512f", "avx512_vnni"), (4,))])
def test_weights_are_asked_for_ahead_of_time_where_arithmetic_is_slow(
    extensions: tuple[str, ...], rows: tuple[int, ...]
) -> None:
    asking = []
    for m in (1, 2, 4):
        f = (module := Module()).function("f", [(name, PTR) for name in ("a", "weights", "out", "scratch")])
        a, out = Operand(f["a"], (m, 64), (64, 1), "f32"), Operand(f["out"], (m, 16), (16, 1), "f32")
        product = quantised_product(a, out, QuantisedPanels(16, 64, 4, 32), Features("", frozenset(extensions)))
        product.emit(f, f["weights"], 0, 16, f["scratch"])
        f.returns()
        if "prefetch" in module.text():
            asking.append(m)
    assert tuple(asking) == rows
