"""Weights of 8 and 4 bits: what lies where, and generated products against numpy in f64."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from sscc.ir.errors import InternalError
from sscc.ir.weight_formats.registry import CHECKPOINT_FORMATS, format_named
from sscc.ir.weight_formats.weight_format import WeightFormat
from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, MODELS, Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Function, Module
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.products.product_blocks import PackedProductErrors
from sscc.runtime.backends.cpu.products.quantized_packing import QuantizedPanelErrors, QuantizedPanels
from sscc.runtime.backends.cpu.products.quantized_products import quantized_product
from sscc.runtime.backends.cpu.products.quantized_rows import RowForm
from sscc.runtime.backends.cpu.products.small_float_products import small_float_product
from sscc.runtime.backends.cpu.products.tiled_quantized_products import TileForm
from sscc.runtime.support.block_quantizer import FLOATS
from sscc.runtime.support.quantization import dequantize
from tests.errors import raises
from tests.runtime.backends.cpu.cpus import distinct, optimisation
from tests.runtime.backends.cpu.emulated_tiles import EmulatedModule
from tests.runtime.backends.cpu.product_data import AlignedArray, loaded, normal, stored

FEATURES = {"host": Features.of_host(), "generic": GENERIC}
FEATURES |= {  # what this CPU can run
    name: features
    for name, features in (("avx2", AVX2), ("avx512", Features("x86-64-v4", frozenset(MODELS["x86-64-v4"]))))
    if features.extensions <= FEATURES["host"].extensions
}
TILES = frozenset({"amx_tile", "amx_int8"})
if FEATURES["host"].int8_dot:
    FEATURES["tiles"] = Features("", FEATURES["host"].extensions | TILES)
    FEATURES["host"] = Features("", FEATURES["host"].extensions - TILES)
FEATURES = distinct(FEATURES)
EMULATED = {"tiles"}
if "avx2" in FEATURES["host"].extensions and not FEATURES["host"].int8_dot:
    FEATURES["vnni"] = Features("", FEATURES["host"].extensions | {"avx512_vnni"})
    EMULATED.add("vnni")
BYTES = {
    f"{kind}, 8 bits": replace(features, activation_bits=8) for kind, features in FEATURES.items() if kind != "tiles"
}
"""The same CPUs, whose products round the left operand to 8 bits."""


@dataclass(frozen=True)
class QuantizedCase:
    """A product with dense operands and a weight of a format; `a` and `out` are the operands' dtypes."""

    m: int
    n: int
    k: int
    name: str
    a: str = "f32"
    out: str = "f32"

    @property
    def format(self) -> WeightFormat:
        return format_named(self.name)

    @property
    def panels(self) -> QuantizedPanels:
        return QuantizedPanels(self.n, self.k, self.format)

    def operands(self, f: Function) -> tuple[Operand, Operand]:
        a = Operand(f["a"], (self.m, self.k), (self.k, 1), self.a)
        return a, Operand(f["out"], (self.m, self.n), (self.n, 1), self.out)


KINDS = [f"{kind}:32{base}" for kind in ("int8", "int4") for base in ("", ":zero-point")]
CASES = [
    *(QuantizedCase(m, 37, 64, kind) for kind in KINDS for m in (1, 3)),
    *(QuantizedCase(m, 37, 64, kind) for kind in ("int8:32", "int4:32") for m in (2, 5, 17)),
    *(QuantizedCase(2, 40, 24, kind, a="bf16", out="bf16") for kind in ("int8:8", "int4:8")),
    *(QuantizedCase(m, 16, 2048, kind) for kind in ("int8:2048", "int4:2048") for m in (1, 3)),
    QuantizedCase(2, 16, 1024, "int8:512"),
    QuantizedCase(2, 16, 512, "int8:256:zero-point"),
    QuantizedCase(2, 20, 26, "int8:26:zero-point"),
    QuantizedCase(2, 20, 26, "int4:26"),
    QuantizedCase(1, 1, 6, "int8:6"),
    *(QuantizedCase(m, 21, 64, f"int4:32:minimum:{dtype}") for m in (1, 5) for dtype in ("bf16", "f16", "f32")),
    *(QuantizedCase(3, 21, 64, f"{kind}:{dtype}") for kind in KINDS[::3] for dtype in ("f16", "f32")),
    QuantizedCase(2, 40, 24, "int4:8:minimum:f16", a="bf16", out="bf16"),
    *(QuantizedCase(m, 21, 64, "e4m3:32:f32") for m in (1, 3, 5, 17)),
    QuantizedCase(2, 40, 24, "e4m3:8:bf16", a="bf16", out="bf16"),
    QuantizedCase(3, 20, 26, "e4m3:26:f16"),
    *(QuantizedCase(m, 37, 512, name) for name in CHECKPOINT_FORMATS for m in (1, 3)),
    *(QuantizedCase(16 + 27 * (number % 2), 37, 512, name) for number, name in enumerate(CHECKPOINT_FORMATS)),
    *(QuantizedCase(33, 37, 512, f"{kind}:512") for kind in ("int8", "int4")),
    *(QuantizedCase(16, 20, 64, f"int8:{group}:zero-point", a="bf16", out="bf16") for group in (16, 64)),
    QuantizedCase(17, 20, 256, "int4:128:minimum:f16"),
]


@dataclass(frozen=True)
class Weight:
    """The stored parts of a weight, and its numbers, f64 [N, K]."""

    parts: list[np.ndarray]
    numbers: np.ndarray

    @classmethod
    def of(cls, panels: QuantizedPanels) -> Weight:
        """Random bits, the smallest and the largest codes included; scales are small floats."""
        f, rng = panels.format, np.random.default_rng(5)
        shapes = [(panels.n, panels.blocks, part.bytes) for part in f.parts]
        raw = {part.name: rng.integers(0, 256, shape, np.uint8) for part, shape in zip(f.parts, shapes, strict=True)}
        raw[f.codes.part][0], raw[f.codes.part][-1] = 0, 255
        for field_ in f.fields[1:]:
            place = raw[field_.part][..., field_.runs[0][0].at :]
            if field_.is_float:
                dtype = FLOATS[field_.kind]
                numbers = normal(len(field_.name), panels.n, panels.blocks, field_.count) / 16
                place[..., : dtype.itemsize * field_.count] = numbers.astype(dtype).view(np.uint8)
            elif field_.kind == "exponent":
                place[..., 0] = rng.integers(118, 130, (panels.n, panels.blocks))
            elif field_.name == "zeros" and f.codes.bits == 4:
                place[..., 0] = rng.integers(0, 16, (panels.n, panels.blocks))
        if f.codes.is_float:  # of which the exponent that stands for no number is left out
            values = raw[f.codes.part][..., f.codes.bits // 8 - 1 :: f.codes.bits // 8]
            values[values % 128 > 119 if f.codes.kind == "e4m3" else values % 128 > 83] &= 63
        parts = {name: part.reshape(panels.n, -1).view(np.int8) for name, part in raw.items()}
        return cls(list(parts.values()), dequantize(parts, f).astype(np.float64))


@dataclass
class CompiledQuantizedProducts:
    """All cases for one kind of CPU."""

    jit: Jit
    scratch: dict[QuantizedCase, int] = field(default_factory=dict)

    @classmethod
    @functools.cache
    def of(cls, kind: str) -> CompiledQuantizedProducts:
        features, scratch = (FEATURES | BYTES)[kind], {}
        module = EmulatedModule() if kind.removesuffix(", 8 bits") in EMULATED else Module()
        for number, case in enumerate(CASES):
            params = [(name, PTR) for name in ("a", "weights", "out", "scratch")] + [("begin", I64), ("end", I64)]
            f = module.function(f"case{number}", params, exported=True)
            a, out = case.operands(f)
            make = small_float_product if case.panels.floating else quantized_product
            product = make(a, out, case.panels, features)
            product.emit(f, f["weights"], f["begin"], f["end"], f["scratch"])
            f.returns()
            scratch[case] = product.scratch_bytes
        return cls(Jit(module, features.cpu, optimisation(features)), scratch)

    def run(self, case: QuantizedCase, a: np.ndarray, weight: Weight, cuts: tuple[int, ...] = ()) -> np.ndarray:
        """The product of a [m, k], called once per range of columns; [m, n] in f32."""
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)(
            self.jit.addresses[f"case{CASES.index(case)}"]
        )
        left = stored(a, case.a)
        result = stored(np.full(case.m * case.n + 1, 7.0, np.float32), case.out)
        packed = case.panels.pack(*weight.parts)
        weights, scratch = AlignedArray(packed.nbytes), AlignedArray(self.scratch[case])
        weights.bytes[:] = packed.reshape(-1)
        for begin, end in itertools.pairwise([0, *cuts, case.n]):
            function(left.ctypes.data, weights.address, result.ctypes.data, scratch.address, begin, end)
        values = loaded(result, case.out)
        assert values[-1] == 7.0
        return values[:-1].reshape(case.m, case.n)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", [*FEATURES, "host, 8 bits"])
def test_agrees_with_dequantized_weights(kind: str, case: QuantizedCase) -> None:
    a, weight = normal(1, case.m, case.k), Weight.of(case.panels)
    result = CompiledQuantizedProducts.of(kind).run(case, a, weight)
    expected = a.astype(np.float64) @ weight.numbers.T
    # Half a step of x per element, the sums' own roundings, and that of the result.
    largest = 127 if kind in BYTES and not case.panels.floating else 32639
    steps = np.abs(a).reshape(case.m, -1, case.format.group).max(axis=-1) / largest
    magnitude = np.abs(weight.numbers).reshape(case.n, -1, case.format.group).sum(axis=-1)
    tolerance = 0.51 * steps @ magnitude.T + 2.0**-20 * np.abs(a).astype(np.float64) @ np.abs(weight.numbers).T
    assert (np.abs(result - expected) <= tolerance + (2.0**-8 * np.abs(expected) if case.out == "bf16" else 0)).all()
    allowed = max(4e-3 if case.out == "bf16" else 1e-4, 1.5 / largest)
    assert np.linalg.norm(result - expected) <= allowed * np.linalg.norm(expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_cpus_give_the_same_bits(case: QuantizedCase) -> None:
    a, weight = normal(2, case.m, case.k), Weight.of(case.panels)
    for kinds in (FEATURES, BYTES):
        host, *others = (CompiledQuantizedProducts.of(kind).run(case, a, weight).view(np.uint32) for kind in kinds)
        for other in others:
            assert (host == other).all()


@pytest.mark.parametrize("case", [c for c in CASES if c.format.group >= 256 and c.m == 2], ids=str)
def test_the_largest_sums_of_whole_integers_fit(case: QuantizedCase) -> None:
    """Every number of a row is the group's largest, and every code is as far from its zero as it can be."""
    a, weight = np.ones((case.m, case.k), np.float32), Weight.of(case.panels)
    weight.parts[0][:] = -128
    if case.format.zeros is not None:
        weight.parts[-1][:] = 127
    parts = dict(zip(case.format.bytes_of, weight.parts, strict=True))
    expected = np.broadcast_to(dequantize(parts, case.format).astype(np.float64).sum(axis=1), (case.m, case.n))
    for kind in (*FEATURES, *BYTES):
        result = CompiledQuantizedProducts.of(kind).run(case, a, weight)
        assert np.allclose(result, expected, rtol=1e-5, atol=1e-3), kind


def test_no_group_is_summed_whole_that_might_overflow() -> None:
    formats = map(format_named, ("int8:512", "int8:520", "int8:256:zero-point", "int8:264:zero-point", "int4:4384"))
    parts = [RowForm.of(QuantizedPanels(16, one.block, one), AVX2).parts for one in formats]
    assert parts == [1, 2, 1, 2, 1]


@pytest.mark.parametrize("case", [c for c in CASES if c.n == 37], ids=str)
@pytest.mark.parametrize("kind", [*FEATURES, *BYTES])
def test_rows_and_ranges_do_not_change_bits(kind: str, case: QuantizedCase) -> None:
    compiled, a, weight = CompiledQuantizedProducts.of(kind), normal(3, case.m, case.k), Weight.of(case.panels)
    whole = compiled.run(case, a, weight)
    alone = next((c for c in CASES if (c.m, c.n, c.k, c.name) == (1, 37, case.k, case.name)), None)
    if alone is None:
        pytest.skip("no case has one row of it")
    rows = np.concatenate([compiled.run(alone, a[m : m + 1], weight) for m in range(case.m)])
    assert (whole.view(np.uint32) == rows.view(np.uint32)).all()
    assert (whole.view(np.uint32) == compiled.run(case, a, weight, (16, 32)).view(np.uint32)).all()


@pytest.mark.parametrize("kind", [*FEATURES, *BYTES])
def test_rows_of_zeros_and_of_tiny_numbers(kind: str) -> None:
    case = CASES[0]
    weight = Weight.of(case.panels)
    for value in (0.0, 1e-40):
        result = CompiledQuantizedProducts.of(kind).run(case, np.full((1, case.k), value, np.float32), weight)
        assert (result == 0).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_every_code_is_where_the_definition_says(bits: int) -> None:
    panels = QuantizedPanels(20, 24, format_named(f"int{bits}:8:zero-point"))
    values, scales, zeros = Weight.of(panels).parts
    packed = panels.pack(*(np.stack([part] * 2) for part in (values, scales, zeros)))
    assert packed.shape == (2, panels.count, panels.blocks, panels.block_bytes)
    assert packed.nbytes == 2 * panels.packed_bytes
    assert (packed[0] == packed[1]).all()
    for n, k in np.ndindex(20, 24):
        group = packed[1, n // 16, k // 8]
        at, half = k % 8 % 4, k % 8 // 4
        if bits == 8:
            code = int(group[48 + 64 * half + n % 16 * 4 + at]) - 128
            assert code == values[n, k]
        else:
            code = int(group[48 + n % 16 * 4 + at]) >> (4 * half) & 15
            assert code == int(values[n, k // 2]) >> (4 * (k % 2)) & 15
        assert group[:32].view(np.uint16)[n % 16] == scales.view(np.uint16)[n, k // 8]
        assert group[32:48].view(np.int8)[n % 16] == zeros[n, k // 8]
    assert (packed[1, 1, :, 48:].reshape(3, -1, 16, 4)[:, :, 4:] == 0).all()


@pytest.mark.parametrize("name", list(CHECKPOINT_FORMATS))
def test_panels_give_back_the_stored_bytes(name: str) -> None:
    """Of every format; of ternary digits those that a file holds, which writes five of them to a byte in one way."""
    panels = QuantizedPanels(37, 512, format_named(name))
    parts = [part.view(np.uint8).copy() for part in Weight.of(panels).parts]
    if panels.format.codes.is_ternary:
        digits = np.random.default_rng(3).integers(0, 81, (37, 2, 52)) * 3
        parts[0].reshape(37, 2, 54)[..., :52] = (digits * 256 + 242) // 243
    unpacked = panels.unpack(panels.pack(*parts))
    assert all((part == other.view(np.uint8)).all() for part, other in zip(parts, unpacked, strict=True))
    assert panels.packed_bytes * 37 <= 1.1 * 48 * sum(part.nbytes for part in parts)  # 37 rows in panels of 48


def test_what_does_not_fit_is_refused() -> None:
    panels = QuantizedPanels(20, 64, format_named("int8:32"))
    values, scales = Weight.of(panels).parts
    with raises(QuantizedPanelErrors.PARTS_DIFFER, parts=["int8 [20, 63]", "int8 [20, 4]"]):
        panels.pack(values[:, :-1], scales)
    with raises(QuantizedPanelErrors.PARTS_DIFFER, parts=["int8 [20, 64]", "int8 [20, 4]", "int8 [20, 2]"]):
        panels.pack(values, scales, np.zeros((20, 2), np.int8))
    for n, k, name in ((20, 64, "int8:48"), (20, 60, "int4:20"), (0, 64, "int8:32"), (16, 128, "Q4_K")):
        with pytest.raises(InternalError):
            QuantizedPanels(n, k, format_named(name))
    f = Module().function("f", [("p", PTR)])
    a, out = Operand(f["p"], (2, 63), (63, 1), "f32"), Operand(f["p"], (2, 20), (20, 1), "f32")
    with raises(PackedProductErrors.SHAPES):
        quantized_product(a, out, panels, GENERIC)


@pytest.mark.parametrize("extensions", [("avx2",), ("avx512f", "avx512_vnni")])
@pytest.mark.parametrize("m", [1, 4])
def test_weights_are_asked_for_ahead_of_time(extensions: tuple[str, ...], m: int) -> None:
    f = (module := Module()).function("f", [(name, PTR) for name in ("a", "weights", "out", "scratch")])
    a, out = Operand(f["a"], (m, 64), (64, 1), "f32"), Operand(f["out"], (m, 16), (16, 1), "f32")
    panels = QuantizedPanels(16, 64, format_named("int4"))
    product = quantized_product(a, out, panels, Features("", frozenset(extensions)))
    product.emit(f, f["weights"], 0, 16, f["scratch"])
    f.returns()
    assert "prefetch" in module.text()


@pytest.mark.skipif(not FEATURES["host"].int8_dot, reason="no x86 CPU with AVX512_VNNI")
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "int8:512", "mxfp4"])
def test_many_rows_take_tile_registers(name: str) -> None:
    """LLVM generates the tile instructions themselves for a CPU that has them."""
    features = Features("sapphirerapids", FEATURES["host"].extensions | TILES)
    panels = QuantizedPanels(16, 512, format_named(name))
    for m, registers in ((8, 0), (16, 4), (31, 4), (32, 6), (40, 6)):
        f = (module := Module()).function("f", [(n, PTR) for n in ("a", "weights", "out", "scratch")], exported=True)
        a, out = Operand(f["a"], (m, 512), (512, 1), "bf16"), Operand(f["out"], (m, 16), (16, 1), "bf16")
        product = quantized_product(a, out, panels, features)
        assert len(product.registers) == registers
        product.emit(f, f["weights"], 0, 16, f["scratch"])
        f.returns()
        assert ("tdpbsud" in module.text()) == bool(registers)
    assert Jit(module, features.cpu).addresses.keys() == {"f"}


def test_groups_that_fit_no_tile_register_take_none() -> None:
    features = Features("", frozenset({"avx512f", "avx512_vnni"}) | TILES)
    for name in ("int8:8", "int4:24", "int8:80"):
        assert TileForm.of(QuantizedPanels(16, 240, format_named(name)), features) is None
    without = Features("", features.extensions - TILES)
    assert TileForm.of(QuantizedPanels(16, 256, format_named("Q6_K")), without) is None
