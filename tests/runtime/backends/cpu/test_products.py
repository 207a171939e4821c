"""Generated products against numpy in f64, and their bits against each other."""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from sscc.ir.errors import ErrorKind
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.codegen.features import AVX2, GENERIC, Features
from sscc.runtime.backends.cpu.codegen.machine_code import Jit
from sscc.runtime.backends.cpu.codegen.mlir import I64, PTR, Function, Module
from sscc.runtime.backends.cpu.codegen.phases import Operand
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.cpu.products.product_blocks import PackedProductErrors
from sscc.runtime.backends.cpu.products.products import packed_product
from tests.errors import raises
from tests.runtime.backends.cpu.cpus import HOST, distinct, optimisation
from tests.runtime.backends.cpu.emulated_tiles import EmulatedModule
from tests.runtime.backends.cpu.product_data import AlignedArray, loaded, normal, stored, strided

WITHOUT_TILES = Features(extensions=HOST.extensions - {"amx_tile"})
FEATURES = distinct({"host": HOST, "without-tiles": WITHOUT_TILES, "generic": GENERIC, "avx2": AVX2})
if HOST.bf16_dot and not HOST.bf16_tiles:
    FEATURES["emulated"] = Features(extensions=HOST.extensions | {"amx_tile", "amx_bf16"})
GUARD = 7.0


@dataclass(frozen=True)
class ProductCase:
    """A product; strides in elements, of `a`'s and `out`'s rows, then of `out`'s columns. `rows` has 1 or 2 sizes."""

    rows: tuple[int, ...]
    n: int
    k: int
    a: str = "bf16"
    weights: str = "bf16"
    out: str = "f32"
    a_strides: tuple[int, ...] = ()
    out_strides: tuple[int, ...] = ()

    @property
    def m(self) -> int:
        return int(np.prod(self.rows))

    @property
    def panels(self) -> Panels:
        return Panels(self.n, self.k, self.weights, self.k, 1)

    def operands(self, f: Function) -> tuple[Operand, Operand]:
        a_shape, out_shape = (*self.rows, self.k), (*self.rows, self.n)
        a_strides = (*(self.a_strides or dense_strides(a_shape)[:-1]), 1)
        out_strides = self.out_strides or dense_strides(out_shape)
        return Operand(f["a"], a_shape, a_strides, self.a), Operand(f["out"], out_shape, out_strides, self.out)


DTYPES = [("bf16", "bf16"), ("f32", "f32"), ("f32", "bf16"), ("bf16", "f32")]
SHAPES = [((1,), 37, 13), ((1,), 100, 64), ((2,), 64, 14), ((5,), 130, 13), ((17,), 70, 100), ((40,), 33, 65)]
SHAPES += [((37,), 70, 96), ((9,), 150, 32)]
PLAIN = [ProductCase(rows, n, k, a, w) for a, w in DTYPES for rows, n, k in SHAPES[:: 1 if a == w == "bf16" else 2]]
STRIDED = [
    ProductCase((3,), 40, 20, out="bf16"),
    ProductCase((20,), 90, 20, a="f32", out="bf16", a_strides=(33,), out_strides=(101, 1)),
    ProductCase((3,), 40, 21, a_strides=(50,), out_strides=(1, 3)),
    ProductCase((2, 9), 50, 8, out="bf16", a_strides=(100, 9), out_strides=(1000, 60, 1)),
    ProductCase((4, 5), 20, 8, weights="f32", out_strides=(20, 80, 1)),
    ProductCase((2, 3), 20, 8),
    ProductCase((4,), 20, 1),
    ProductCase((4, 5), 40, 64, out="bf16", a_strides=(500, 70), out_strides=(40, 160, 1)),
    ProductCase((19,), 100, 64, out="bf16", a_strides=(77,), out_strides=(101, 1)),
    ProductCase((1,), 1, 1, a="f32", weights="f32"),
]
LONG = [(700, a, w) for a, w in DTYPES] + [(704, "bf16", "bf16")]
WIDE = [ProductCase((1,), 33, *long) for long in LONG]
TALL = [ProductCase((m,), 33, k, a, w) for k, a, w in LONG for m in ((2, 8, 15, 40) if a == w == "bf16" else (2, 17))]
TALL += [ProductCase((m,), 100, 704) for m in (1, 16, 31, 33, 65)]
CASES = [*PLAIN, *STRIDED, *WIDE, *TALL]


@dataclass
class CompiledProducts:
    """All cases for one kind of CPU."""

    jit: Jit
    scratch: dict[ProductCase, int] = field(default_factory=dict)

    @classmethod
    @functools.cache
    def of(cls, features: Features) -> CompiledProducts:
        module, scratch = EmulatedModule() if features is FEATURES.get("emulated") else Module(), {}
        for number, case in enumerate(CASES):
            params = [(name, PTR) for name in ("a", "weights", "out", "scratch")] + [("begin", I64), ("end", I64)]
            f = module.function(f"case{number}", params, exported=True)
            a, out = case.operands(f)
            product = packed_product(a, out, case.panels, features)
            product.emit(f, f["weights"], f["begin"], f["end"], f["scratch"])
            f.returns()
            scratch[case] = product.scratch_bytes
        return cls(Jit(module, features.cpu, optimisation(features)), scratch)

    def run(self, case: ProductCase, a: np.ndarray, b: np.ndarray, cuts: tuple[int, ...] = ()) -> np.ndarray:
        """The product of a [m, k] and b [n, k], given in f32, called once per range of columns; [m, n] in f32."""
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int64)(
            self.jit.addresses[f"case{CASES.index(case)}"]
        )
        module = Module().function("unused", [("a", PTR), ("out", PTR)])
        left_like, out_like = case.operands(module)
        left, left_view = strided(left_like, 0.0)
        left_view[...] = stored(a, case.a).reshape(left_like.shape)
        result, result_view = strided(out_like, GUARD)
        packed = case.panels.pack(stored(b, case.weights))
        weights, scratch = AlignedArray(packed.nbytes), AlignedArray(self.scratch[case])
        weights.bytes[:] = packed.reshape(-1).view(np.uint8)
        for begin, end in itertools.pairwise([0, *cuts, case.n]):
            function(left.ctypes.data, weights.address, result.ctypes.data, scratch.address, begin, end)
        values = loaded(result_view, case.out).reshape(case.m, case.n)
        result_view[...] = stored(np.full(1, GUARD, np.float32), case.out)
        assert (loaded(result, case.out) == GUARD).all(), "bytes that are not the product's were written"
        return values


@pytest.fixture(scope="module", params=list(FEATURES))
def compiled(request: pytest.FixtureRequest) -> CompiledProducts:
    return CompiledProducts.of(FEATURES[request.param])


@pytest.mark.parametrize("case", [*PLAIN, *STRIDED], ids=str)
def test_agrees_with_f64(compiled: CompiledProducts, case: ProductCase) -> None:
    a, b = normal(1, case.m, case.k), normal(2, case.n, case.k)
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    error = np.abs(compiled.run(case, a, b) - expected)
    # Each of the k roundings is of a partial sum, which is below the sum of the magnitudes.
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    rounding = 2.0**-24 * (case.k + 2) * magnitude
    assert (error <= rounding + (2.0**-8 * np.abs(expected) if case.out == "bf16" else 0)).all()


@pytest.mark.parametrize("case", TALL, ids=str)
def test_rows_do_not_depend_on_how_many_there_are(compiled: CompiledProducts, case: ProductCase) -> None:
    a, b = normal(3, case.m, case.k), normal(4, case.n, case.k)
    alone = next(c for c in (*WIDE, *TALL) if replace(c, rows=case.rows) == case and c.m == 1)
    rows = np.concatenate([compiled.run(alone, a[m : m + 1], b) for m in range(case.m)])
    assert (compiled.run(case, a, b).view(np.uint32) == rows.view(np.uint32)).all()


@pytest.mark.parametrize("case", [c for c in PLAIN if c.n > 32], ids=str)
def test_columns_do_not_depend_on_the_range(compiled: CompiledProducts, case: ProductCase) -> None:
    a, b = normal(5, case.m, case.k), normal(6, case.n, case.k)
    whole = compiled.run(case, a, b)
    for cuts in ((16,), (16, 32), (32, 32)):
        assert (compiled.run(case, a, b, cuts).view(np.uint32) == whole.view(np.uint32)).all()


def test_generic_code_gives_the_same_bits_on_older_cpus() -> None:
    host, old = CompiledProducts.of(GENERIC), CompiledProducts.of(AVX2)
    for case in (*WIDE, *TALL):
        a, b = normal(7, case.m, case.k), normal(8, case.n, case.k)
        assert (host.run(case, a, b).view(np.uint32) == old.run(case, a, b).view(np.uint32)).all()


@pytest.mark.parametrize(
    ("a", "out", "kind", "fields"),
    [
        (((2, 9), (9, 1), "bf16"), ((2, 20), (20, 1), "f32"), PackedProductErrors.SHAPES, {}),
        (((2, 8), (8, 1), "bf16"), ((3, 20), (20, 1), "f32"), PackedProductErrors.SHAPES, {}),
        (((2, 8), (1, 2), "bf16"), ((2, 20), (20, 1), "f32"), PackedProductErrors.STRIDES, {}),
        (
            ((2, 8), (8, 1), "i64"), ((2, 20), (20, 1), "f32"), PackedProductErrors.DTYPES,
            {"left": "i64", "result": "f32"},
        ),
        (
            ((2, 8), (8, 1), "bf16"), ((2, 20), (20, 1), "i64"), PackedProductErrors.DTYPES,
            {"left": "bf16", "result": "i64"},
        ),
        (
            ((2, 2, 2, 8), (99, 30, 9, 1), "bf16"), ((2, 2, 2, 20), (999, 90, 20, 1), "f32"), PackedProductErrors.ROWS,
            {},
        ),
    ],
)
def test_what_it_does_not_take_is_refused(a: tuple, out: tuple, kind: ErrorKind, fields: dict[str, Any]) -> None:
    f = Module().function("f", [("p", PTR)])
    left, right = (Operand(f["p"], *layout) for layout in (a, out))
    with raises(kind, **fields):
        packed_product(left, right, Panels(20, 8, "bf16", 8, 1), GENERIC).emit(f, f["p"], 0, 20, f["p"])
