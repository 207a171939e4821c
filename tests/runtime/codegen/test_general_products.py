"""Products of operands that lie anywhere, against numpy in f64."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

from sscc.ir.errors import InternalError
from sscc.runtime.codegen.compile import Jit
from sscc.runtime.codegen.features import AVX2
from sscc.runtime.codegen.general_products import GeneralProduct, Strided
from sscc.runtime.codegen.mlir import I64, PTR, Module
from sscc.runtime.codegen.phases import Operand
from sscc.runtime.schedule import Access
from tests.runtime.codegen.product_data import dense, loaded, normal, stored


@dataclass(frozen=True)
class Case:
    """Subscripts as einsum has them, sizes by letter, and the dtypes of a, b and out; operands are dense."""

    subscripts: str
    sizes: str
    dtypes: tuple[str, str, str] = ("f32", "f32", "f32")

    @property
    def letters(self) -> str:
        return "".join(sorted(set(self.subscripts) - set(",->")))

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.sizes.split())

    def shape(self, operand: str) -> tuple[int, ...]:
        return tuple(self.dims[self.letters.index(c)] for c in operand)

    def access(self, operand: str) -> Access:
        return Access("p", tuple(tuple(int(c == x) for x in self.letters) + (0,) for c in operand))

    @property
    def operands(self) -> list[str]:
        return self.subscripts.replace("->", ",").split(",")


CASES = [
    Case("ik,kj->ij", "3 37 5"),  # letters in alphabetic order: i, j, k
    Case("ik,kj->ij", "3 32 5", ("bf16", "f32", "bf16")),
    Case("ik,jk->ij", "4 7 45"),
    Case("ik,jk->ij", "4 7 32", ("bf16", "bf16", "f32")),
    Case("ki,kj->ji", "5 6 7"),
    Case("bik,bkj->bij", "2 3 20 9", ("bf16", "bf16", "bf16")),
    Case("i,j->ij", "5 19"),
    Case("k,k->", "50"),
    Case("j,j->j", "50"),
    Case("ikl,lk->i", "3 4 21"),
    Case("ik,j->i", "3 4 6"),
    Case("ki,kj->", "2 3 5", ("f32", "bf16", "f32")),
]


def product(case: Case, pointers: list) -> GeneralProduct:
    reduce = tuple(i for i, c in enumerate(case.letters) if c not in case.operands[2])
    operands = [
        Strided.of(case.access(subscript), Operand(pointer, case.shape(subscript), dense(case.shape(subscript)), dtype))
        for subscript, pointer, dtype in zip(case.operands, pointers, case.dtypes, strict=True)
    ]
    return GeneralProduct(case.dims, reduce, *operands)


@pytest.fixture(scope="module", params=["host", "avx2"])
def compiled(request: pytest.FixtureRequest) -> Jit:
    module = Module()
    for number, case in enumerate(CASES):
        params = [("a", PTR), ("b", PTR), ("out", PTR), ("begin", I64), ("end", I64)]
        f = module.function(f"case{number}", params, exported=True)
        product(case, [f["a"], f["b"], f["out"]]).emit(f, f["begin"], f["end"])
        f.returns()
    return Jit(module, AVX2.cpu if request.param == "avx2" else "")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_einsum(compiled: Jit, case: Case) -> None:
    inputs = [normal(seed, *case.shape(operand)) for seed, operand in enumerate(case.operands[:2])]
    a, b = (stored(value, dtype) for value, dtype in zip(inputs, case.dtypes, strict=False))
    out = stored(np.full(int(np.prod(case.shape(case.operands[2]))) + 1, 7.0, np.float32), case.dtypes[2])
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)(
        compiled.addresses[f"case{CASES.index(case)}"]
    )
    f = Module().function("unused", [("p", PTR)])
    units = product(case, [f["p"]] * 3).units
    for begin, end in ((0, units // 2), (units // 2, units)):
        function(a.ctypes.data, b.ctypes.data, out.ctypes.data, begin, end)
    found = loaded(out, case.dtypes[2])
    assert found[-1] == 7.0
    wide = [value.astype(np.float64) for value in inputs]
    expected = np.einsum(case.subscripts, *wide)
    magnitude = np.einsum(case.subscripts, *map(np.abs, wide))
    tolerance = 2.0**-24 * 60 * magnitude + (2.0**-8 * np.abs(expected) if case.dtypes[2] == "bf16" else 0)
    assert (np.abs(found[:-1].reshape(expected.shape) - expected) <= tolerance).all()


def test_an_offset_is_added() -> None:
    module = Module()
    f = module.function("f", [("a", PTR), ("b", PTR), ("out", PTR)], exported=True)
    a = Strided.of(Access("a", ((2, 0, 1),)), Operand(f["a"], (9,), (1,), "f32"))
    b = Strided.of(Access("b", ((0, 1, 0),)), Operand(f["b"], (3,), (1,), "f32"))
    out = Strided.of(Access("out", ((1, 0, 0),)), Operand(f["out"], (4,), (1,), "f32"))
    step = GeneralProduct((4, 3), (1,), a, b, out)
    step.emit(f, f.constant(0), f.constant(step.units))
    f.returns()
    jit = Jit(module)
    values, ones, found = np.arange(9, dtype=np.float32), np.ones(3, np.float32), np.zeros(4, np.float32)
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(jit.addresses["f"])(
        values.ctypes.data, ones.ctypes.data, found.ctypes.data
    )
    assert found.tolist() == [3.0, 9.0, 15.0, 21.0]


def test_what_it_does_not_take_is_refused() -> None:
    pointer = Module().function("f", [("p", PTR)])["p"]
    plain = Strided(pointer, "f32", (1, 0))
    with pytest.raises(InternalError, match="takes no i64"):
        GeneralProduct((2, 3), (1,), Strided(pointer, "i64", (1, 0)), plain, plain)
    with pytest.raises(InternalError, match="moves along a summed dimension"):
        GeneralProduct((2, 3), (0,), plain, plain, plain)
    with pytest.raises(InternalError, match="not of 2 dimensions"):
        GeneralProduct((2, 3), (1,), Strided(pointer, "f32", (1,)), plain, plain)
