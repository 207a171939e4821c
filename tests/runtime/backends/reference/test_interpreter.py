"""The reference interpreter, step by step, against loops over every element written here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sscc.ir.errors import ErrorKind
from sscc.ir.operations import (
    CachedAttention,
    CausalAttention,
    GatherRows,
    ObservationScores,
    Observe,
    Pool,
    Segment,
    Select,
    UpdateRows,
)
from sscc.ir.schedule import Access, Entry, For, If, Instr, Launch, Product, Program, Reduction, Scalar, Vector, View
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.access import ReferenceAccessErrors, ReferenceIndexErrors
from sscc.runtime.backends.reference.control import ReferenceControlErrors
from sscc.runtime.backends.reference.interpreter import ReferenceErrors
from sscc.runtime.backends.reference.kv_cache import ReferenceCacheErrors
from sscc.runtime.backends.reference.memory import ReferenceMemoryErrors
from sscc.runtime.backends.reference.numerics import ReferenceNumericsErrors
from sscc.runtime.backends.reference.prefill_chunk import ReferencePromptErrors
from sscc.runtime.backends.reference.selection import ReferenceSelectionErrors
from sscc.runtime.backends.reference.softmax import KEY_TILE
from sscc.runtime.backends.reference.vector import ReferenceVectorErrors
from sscc.runtime.backends.reference.views import ReferenceViewErrors
from sscc.runtime.support.scalars import ScalarArithmeticErrors
from tests.errors import raises
from tests.runtime.programs import run_steps
from tests.runtime.schedules import add_body, copy_body, identity, lay_out, one_stage, whole


def vector(dims: tuple[int, ...], body: tuple[Instr, ...], *maps: Any, dtype: torch.dtype, **inputs: Any) -> Any:
    """Evaluates one vector program whose inputs are `inputs`, read through `maps` (identity by default)."""
    maps = maps or tuple(identity(len(dims)) for _ in inputs)
    accesses = tuple(Access(name, rows) for name, rows in zip(inputs, maps, strict=True))
    step = Vector(dims, accesses, Access("out", identity(len(dims))), body, body[-1].name)
    return run_steps((step,), inputs, {"out": torch.zeros(dims, dtype=dtype)}, access="write")["out"]


# ------------------------------------------------------------------------------------------------- operations

UNARY = {
    "negf": lambda x: -x,
    "absf": abs,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log1p": math.log1p,
    "expm1": math.expm1,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "sin": math.sin,
    "cos": math.cos,
    "erf": math.erf,
    "floor": math.floor,
    "ceil": math.ceil,
}


@pytest.mark.parametrize("op", UNARY)
def test_unary_float_operations(op: str) -> None:
    x = torch.rand(17) * 3 + 0.1
    got = vector((17,), (Instr("r", op, ("in0",), "f32"),), x=x, dtype=torch.float32)
    torch.testing.assert_close(got, torch.tensor([float(UNARY[op](v)) for v in x.tolist()]))


BINARY = {
    "addf": lambda a, b: a + b,
    "subf": lambda a, b: a - b,
    "mulf": lambda a, b: a * b,
    "divf": lambda a, b: a / b,
    "maximumf": max,
    "minimumf": min,
    "maxnumf": max,
    "minnumf": min,
    "powf": lambda a, b: a**b,
}


@pytest.mark.parametrize("op", BINARY)
def test_binary_float_operations(op: str) -> None:
    a, b = torch.rand(9) + 0.5, torch.randn(9)
    got = vector((9,), (Instr("r", op, ("in0", "in1"), "f32"),), a=a, b=b, dtype=torch.float32)
    want = [BINARY[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    torch.testing.assert_close(got, torch.tensor(want))


def test_nan_is_kept_by_maximum_and_ignored_by_maxnum() -> None:
    a, b = torch.tensor([math.nan, 1.0]), torch.tensor([1.0, math.nan])
    assert vector((2,), (Instr("r", "maximumf", ("in0", "in1"), "f32"),), a=a, b=b, dtype=torch.float32).isnan().all()
    got = vector((2,), (Instr("r", "maxnumf", ("in0", "in1"), "f32"),), a=a, b=b, dtype=torch.float32)
    assert got.tolist() == [1.0, 1.0]


INTEGER = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "floordivsi": lambda a, b: a // b,
    "ceildivsi": lambda a, b: -(-a // b),
    "divsi": lambda a, b: int(a / b),
    "remsi": lambda a, b: int(math.fmod(a, b)),
    "minsi": min,
    "maxsi": max,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("op", INTEGER)
def test_integer_operations_on_both_signs(op: str) -> None:
    a, b = torch.tensor([7, -7, 7, -7, 6, 0]), torch.tensor([2, 2, -2, -2, 3, 5])
    got = vector((6,), (Instr("r", op, ("in0", "in1"), "i64"),), a=a, b=b, dtype=torch.int64)
    assert got.tolist() == [INTEGER[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_integer_division_always_gives_a_number() -> None:
    lowest = -(2**63)
    a, b = torch.tensor([lowest, 7, -7, lowest]), torch.tensor([-1, 0, 0, 0])
    for op in ("divsi", "floordivsi", "ceildivsi", "remsi"):
        got = vector((4,), (Instr("r", op, ("in0", "in1"), "i64"),), a=a, b=b, dtype=torch.int64)
        assert got.tolist() == ([0] * 4 if op == "remsi" else [lowest, 7, -7, lowest]), op


def test_float_predicates_on_nan() -> None:
    a = torch.tensor([1.0, 2.0, 2.0, math.nan])
    b = torch.tensor([2.0, 1.0, 2.0, 1.0])
    ordered = {"eq": "==", "gt": ">", "ge": ">=", "lt": "<", "le": "<=", "ne": "!="}
    for name, sign in ordered.items():
        for kind in "ou":
            got = vector((4,), (Instr("r", f"cmpf_{kind}{name}", ("in0", "in1"), "i1"),), a=a, b=b, dtype=torch.bool)
            want = [
                kind == "u" if math.isnan(x) or math.isnan(y) else eval(f"x {sign} y", {"x": x, "y": y})
                for x, y in zip(a.tolist(), b.tolist(), strict=True)
            ]
            assert got.tolist() == want, f"cmpf_{kind}{name}"
    for name, want in (("ord", [1, 1, 1, 0]), ("uno", [0, 0, 0, 1]), ("false", [0] * 4), ("true", [1] * 4)):
        got = vector((4,), (Instr("r", f"cmpf_{name}", ("in0", "in1"), "i1"),), a=a, b=b, dtype=torch.bool)
        assert got.tolist() == [bool(w) for w in want], name


def test_integer_predicates_signed_and_unsigned() -> None:
    a, b = torch.tensor([-1, 3, 5, 0]), torch.tensor([1, 3, -5, 2])
    for name, sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
        for kind in [""] if name in ("eq", "ne") else ["s", "u"]:
            got = vector((4,), (Instr("r", f"cmpi_{kind}{name}", ("in0", "in1"), "i1"),), a=a, b=b, dtype=torch.bool)
            wrap = (lambda v: v % 2**64) if kind == "u" else (lambda v: v)
            pairs = [(wrap(x), wrap(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
            assert got.tolist() == [eval(f"x {sign} y", {"x": x, "y": y}) for x, y in pairs], kind + name


def test_conversions() -> None:
    flags, numbers, reals = torch.tensor([True, False]), torch.tensor([-3, 258]), torch.tensor([-2.7, 2.7])

    def convert(op: str, kind: str, x: torch.Tensor, dtype: torch.dtype) -> list[Any]:
        got: list[Any] = vector((len(x),), (Instr("r", op, ("in0",), kind),), x=x, dtype=dtype).tolist()
        return got

    assert convert("extsi", "i64", flags, torch.int64) == [-1, 0]
    assert convert("extui", "i64", flags, torch.int64) == [1, 0]
    assert convert("uitofp", "f32", flags, torch.float32) == [1.0, 0.0]
    assert convert("sitofp", "f32", flags, torch.float32) == [-1.0, 0.0]
    assert convert("sitofp", "f32", numbers, torch.float32) == [-3.0, 258.0]
    assert convert("uitofp", "f32", numbers, torch.float32) == [2.0**64, 258.0]
    assert convert("fptosi", "i64", reals, torch.int64) == [-2, 2]
    far = torch.tensor([3e38, -3e38, math.inf, -math.inf, math.nan, 255.9, 256.0, -129.0])
    assert convert("fptosi", "i8", far, torch.int8) == [127, -128, 127, -128, 0, 127, 127, -128]
    assert convert("fptoui", "i8", far, torch.int8) == [-1, 0, -1, 0, 0, -1, -1, 0]
    edges = torch.tensor([2.0**63, -(2.0**63), 2.0**64, 2.0**62, math.nan])
    assert convert("fptosi", "i64", edges, torch.int64) == [2**63 - 1, -(2**63), 2**63 - 1, 2**62, 0]
    assert convert("fptoui", "i64", edges, torch.int64) == [-(2**63), 0, -1, 2**62, 0]
    assert convert("trunci", "i1", numbers, torch.bool) == [True, False]
    assert convert("index_cast", "index", numbers, torch.int64) == [-3, 258]
    assert convert("truncf", "bf16", reals, torch.bfloat16) == reals.bfloat16().tolist()


def test_each_bf16_result_is_rounded() -> None:
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    body = (Instr("p", "mulf", ("in0", "in1"), "bf16"), Instr("r", "addf", ("p", 0.1), "bf16"))
    got = vector((64,), body, x=x, y=y, dtype=torch.bfloat16)
    product = (x.float() * y.float()).bfloat16().float()
    assert torch.equal(got, (product + torch.tensor(0.1).bfloat16().float()).bfloat16())


def test_index_select_load_and_scalars() -> None:
    """out[i, j] = table[clamp(ids[i] + shift), j] where j != i, else -1."""
    table, ids = torch.randn(5, 4), torch.tensor([3, 0, 9])
    body = (
        Instr("moved", "addi", ("in0", "shift"), "i64"),
        Instr("row", "minsi", ("moved", 4), "i64"),
        Instr("i", "index", (0,), "index"),
        Instr("j", "index", (1,), "index"),
        Instr("picked", "load", ("table", "row", "j"), "f32"),
        Instr("same", "cmpi_eq", ("i", "j"), "i1"),
        Instr("r", "select", ("same", -1.0, "picked"), "f32"),
    )
    step = Vector((3, 4), (Access("ids", ((1, 0, 0),)),), Access("out", identity(2)), body, "r")
    got = run_steps((step,), {"ids": ids, "table": table}, {"out": torch.zeros(3, 4)}, {"shift": 1})["out"]
    want = torch.tensor([[-1.0 if i == j else table[min(int(ids[i]) + 1, 4), j] for j in range(4)] for i in range(3)])
    assert torch.equal(got, want)


@pytest.mark.parametrize("row", [-1, 5])
def test_load_out_of_bounds_is_refused(row: int) -> None:
    body = (Instr("r", "load", ("table", "in0"), "f32"),)
    step = Vector((1,), (Access("ids", identity(1)),), Access("out", identity(1)), body, "r")
    with raises(ReferenceIndexErrors.OUT_OF_BOUNDS, param="table", axis=0):
        run_steps((step,), {"ids": torch.tensor([row]), "table": torch.zeros(5)}, {"out": torch.zeros(1)})


# ------------------------------------------------------------------------------------------------ access maps


def test_access_maps_broadcast_transpose_stride_and_offset() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4), torch.randn(9, 2)
    maps = (((0, 1, 0), (1, 0, 0)), ((1, 0, 0),), ((0, 3, 1), (0, 0, 1)))  # a[j, i], b[i], c[3 j + 1, 1]
    body = (Instr("s", "addf", ("in0", "in1"), "f32"), Instr("r", "mulf", ("s", "in2"), "f32"))
    got = vector((4, 3), body, *maps, a=a, b=b, c=c, dtype=torch.float32)
    want = [[(a[j, i] + b[i]) * c[3 * j + 1, 1] for j in range(3)] for i in range(4)]
    torch.testing.assert_close(got, torch.tensor(want))


def test_sliding_windows_overlap_on_reading() -> None:
    x = torch.randn(6)
    got = vector((4, 3), (Instr("r", "negf", ("in0",), "f32"),), (((1, 1, 0),)), x=x, dtype=torch.float32)
    assert torch.equal(got, -x.unfold(0, 3, 1))


@pytest.mark.parametrize(
    ("rows", "kind", "fields"),
    [
        (((1, 1),), ReferenceAccessErrors.OUT_OF_BOUNDS, {"first": 1, "last": 4, "size": 4}),
        (((2, 0),), ReferenceAccessErrors.OUT_OF_BOUNDS, {"axis": 0, "first": 0, "last": 6}),
        (((-1, 3),), ReferenceAccessErrors.BACKWARDS, {}),
    ],
)
def test_bad_access_maps_are_refused(rows: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        vector((4,), (Instr("r", "negf", ("in0",), "f32"),), rows, x=torch.zeros(4), dtype=torch.float32)


def test_an_output_written_twice_is_refused() -> None:
    step = Vector((4, 2), (Access("x", ((1, 0, 0),)),), Access("out", ((1, 0, 0),)), (), "in0")
    with raises(ReferenceVectorErrors.WRITES_TWICE):
        run_steps((step,), {"x": torch.zeros(4)}, {"out": torch.zeros(4)})


# ---------------------------------------------------------------------------------- reductions and products


@pytest.mark.parametrize(
    ("combine", "init", "fold"),
    [("addf", 2.0, sum), ("mulf", 1.0, math.prod), ("maximumf", -math.inf, max), ("minimumf", math.inf, min)],
)
def test_reductions(combine: str, init: float, fold: Any) -> None:
    x = torch.randn(3, 4, 5)
    body = (Instr("r", "mulf", ("in0", 2.0), "f32"),)
    step = Reduction(
        (3, 4, 5), (0, 2), (Access("x", identity(3)),), Access("o", ((0, 1, 0, 0),)), body, "r", combine, init
    )
    got = run_steps((step,), {"x": x}, {"o": torch.zeros(4)})["o"]
    want = [fold((2 * x[:, j]).flatten().tolist()) + (init if combine == "addf" else 0.0) for j in range(4)]
    torch.testing.assert_close(got, torch.tensor(want))


def test_bf16_sums_accumulate_in_f32() -> None:
    x = torch.ones(1, 1000).bfloat16()
    step = Reduction((1, 1000), (1,), (Access("x", identity(2)),), Access("o", ((1, 0, 0),)), (), "in0", "addf", 0.0)
    assert run_steps((step,), {"x": x}, {"o": torch.zeros(1).bfloat16()})["o"].item() == 1000.0


def test_a_value_that_ignores_the_reduced_dimension_is_still_repeated() -> None:
    step = Reduction((2, 7), (1,), (Access("x", ((1, 0, 0),)),), Access("o", ((1, 0, 0),)), (), "in0", "addf", 0.0)
    assert run_steps((step,), {"x": torch.tensor([1.0, 2.0])}, {"o": torch.zeros(2)})["o"].tolist() == [7.0, 14.0]


PRODUCTS = {
    "mk,kn->mn": (((2, 5), (5, 3)), (2, 3)),
    "mk,nk->mn": (((2, 5), (3, 5)), (2, 3)),
    "bhqd,bhkd->bhqk": (((2, 3, 4, 5), (2, 3, 6, 5)), (2, 3, 4, 6)),
    "bqhd,hbkd->kqbh": (((2, 4, 3, 5), (3, 2, 6, 5)), (6, 4, 2, 3)),
    "m,n->mn": (((4,), (3,)), (4, 3)),
    "k,k->": (((4,), (4,)), ()),
    "mkj,n->mn": (((2, 3, 4), (5,)), (2, 5)),
    "abk,kcd->dacb": (((2, 3, 4), (4, 5, 6)), (6, 2, 5, 3)),
    "m,kn->n": (((2,), (4, 3)), (3,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("equation", PRODUCTS)
def test_products(equation: str, dtype: torch.dtype) -> None:
    (shape_a, shape_b), shape = PRODUCTS[equation]
    left, right, out = equation.replace("->", ",").split(",")
    letters = sorted({*left, *right})
    sizes = dict(zip(left + right, shape_a + shape_b, strict=True))

    def access(name: str, axes: str) -> Access:
        return Access(name, tuple((*tuple(int(letter == axis) for letter in letters), 0) for axis in axes))

    dims = tuple(sizes[letter] for letter in letters)
    reduce = tuple(i for i, letter in enumerate(letters) if letter not in out)
    step = Product(dims, reduce, access("a", left), access("b", right), access("o", out))
    a, b = torch.randn(shape_a).to(dtype), torch.randn(shape_b).to(dtype)
    got = run_steps((step,), {"a": a, "b": b}, {"o": torch.zeros(shape, dtype=dtype)})["o"]
    torch.testing.assert_close(got, torch.einsum(equation, a.double(), b.double()).to(dtype))


def test_a_product_that_overwrites_its_operand_reads_all_of_it_first() -> None:
    y, w = torch.randn(4, 4), torch.randn(4, 4)
    rows = ((1, 0, 0, 0), (0, 0, 1, 0)), ((0, 0, 1, 0), (0, 1, 0, 0)), ((1, 0, 0, 0), (0, 1, 0, 0))
    step = Product((4, 4, 4), (2,), Access("y", rows[0]), Access("w", rows[1]), Access("y", rows[2]))
    assert torch.equal(run_steps((step,), {"w": w}, {"y": y})["y"], y @ w)


def test_products_broadcast_a_constant_row_and_a_lone_dimension() -> None:
    """o[i, m, n] = sum_k a[1, m, k] * b[k, n]: `a` is read at a constant, and i is in no operand."""
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    step = Product(
        (2, 3, 5, 4),
        (3,),
        Access("a", ((0, 0, 0, 0, 1), (0, 1, 0, 0, 0), (0, 0, 0, 1, 0))),
        Access("b", ((0, 0, 0, 1, 0), (0, 0, 1, 0, 0))),
        Access("o", ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0))),
    )
    got = run_steps((step,), {"a": a, "b": b}, {"o": torch.zeros(2, 3, 5)})["o"]
    torch.testing.assert_close(got, (a[1] @ b).expand(2, 3, 5))


# -------------------------------------------------------------------------------------------------- attention


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query [D] over keys [n, D] and values [n, Dv], in f64."""
    return torch.softmax(keys.double() @ query.double() * scale, 0) @ values.double()


@pytest.mark.parametrize("rows", [5, KEY_TILE - 1, KEY_TILE, 2 * KEY_TILE + 3])
def test_cached_attention(rows: int) -> None:
    slots, heads, kv_heads, depth, width = 3, 4, 2, 8, 6
    query, key = torch.randn(slots, heads, 1, depth), torch.randn(slots, kv_heads, rows, depth)
    value, valid = torch.randn(slots, kv_heads, rows, width), torch.rand(slots, rows) < 0.7
    valid[1] = False
    step = CachedAttention("query", (Segment("key", "value", "valid"),), "out", 0.3)
    inputs = {"query": query, "key": key, "value": value, "valid": valid}
    got = run_steps((step,), inputs, {"out": torch.full((slots, heads, 1, width), 9.0)})["out"]
    assert torch.equal(got[1], torch.zeros_like(got[1]))
    for b in (0, 2):
        for h in range(heads):
            seen, g = valid[b], h // (heads // kv_heads)
            want = attend(query[b, h, 0], key[b, g][seen], value[b, g][seen], 0.3)
            torch.testing.assert_close(got[b, h, 0].double(), want, rtol=1e-5, atol=1e-6)


def test_cached_attention_does_not_depend_on_how_many_invalid_rows_follow() -> None:
    query, key, value = torch.randn(1, 2, 1, 8), torch.randn(1, 1, 600, 8), torch.randn(1, 1, 600, 8)
    step = CachedAttention("query", (Segment("key", "value", "valid"),), "out", 0.3)
    results = []
    for rows in (20, 100, 256, 600):
        valid = (torch.arange(rows) < 20)[None]
        inputs = {"query": query, "key": key[:, :, :rows].clone(), "value": value[:, :, :rows].clone(), "valid": valid}
        results.append(run_steps((step,), inputs, {"out": torch.zeros(1, 2, 1, 8)})["out"])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(("start", "chunk"), [(0, 4), (4, 4), (8, 3), (KEY_TILE - 2, 5), (0, 2 * KEY_TILE + 1)])
def test_causal_attention_reads_nothing_beyond_its_chunk(start: int, chunk: int) -> None:
    heads, kv_heads, depth, rows = 4, 2, 8, 3 * KEY_TILE
    query = torch.randn(1, heads, chunk, depth)
    key, value = torch.randn(1, kv_heads, rows, depth), torch.randn(1, kv_heads, rows, depth)
    key[:, :, start + chunk :] = math.nan
    value[:, :, start + chunk :] = math.nan
    step = CausalAttention("query", "key", "value", "out", "start", "n", 0.4)
    inputs, scalars = {"query": query, "key": key, "value": value}, {"start": start, "n": rows}
    got = run_steps((step,), inputs, {"out": torch.zeros(1, heads, chunk, depth)}, scalars)["out"]
    for h in range(heads):
        for i in range(0, chunk, max(1, chunk // 7)):
            n, g = start + i + 1, h // 2
            want = attend(query[0, h, i], key[0, g, :n], value[0, g, :n], 0.4)
            torch.testing.assert_close(got[0, h, i].double(), want, rtol=1e-5, atol=1e-6)


def test_causal_attention_beyond_the_scratch_is_refused() -> None:
    step = CausalAttention("query", "key", "value", "out", "start", "n", 1.0)
    rows = torch.zeros(1, 1, 8, 4)
    with raises(ReferencePromptErrors.TOO_FEW_ROWS, needed=9, rows=8):
        run_steps(
            (step,),
            {"query": rows[:, :, :4].clone(), "key": rows, "value": rows.clone()},
            {"out": rows[:, :, :4].clone()},
            {"start": 5, "n": 8},
        )


@pytest.mark.parametrize(
    ("length", "obs", "recent"), [(1, 4, 3), (3, 4, 8), (20, 4, 3), (20, 4, 9), (KEY_TILE + 9, 5, 2), (5, 5, 5)]
)
@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_observation_scores(length: int, obs: int, recent: int, precision: str) -> None:
    heads, kv_heads, depth, rows = 4, 2, 8, KEY_TILE + 16
    observed, key = torch.randn(1, heads, obs, depth), torch.randn(1, kv_heads, rows, depth)
    key[:, :, length:] = math.nan
    observed[:, :, min(obs, length) :] = math.nan
    step = ObservationScores("observed", "key", "scores", "n", 0.5, recent)
    inputs, writes = {"observed": observed, "key": key}, {"scores": torch.full((kv_heads, rows), -1.0)}
    got = run_steps((step,), inputs, writes, {"n": length}, "write", precision)["scores"]
    window = min(obs, length)
    want = torch.zeros(kv_heads, length, dtype=torch.float64)
    for h in range(heads):
        for i in range(window):
            seen = length - window + i + 1
            products = key[0, h // 2, :seen].double() @ observed[0, h, i].double() * 0.5
            want[h // 2, :seen] += torch.softmax(products, 0) / (heads // kv_heads)
    want[:, max(0, length - min(obs, recent)) :] = 0
    tolerance = 1e-12 if precision == "f64" else 1e-5
    torch.testing.assert_close(got[:, :length].double(), want, rtol=tolerance, atol=tolerance)
    assert torch.equal(got[:, length:], torch.full_like(got[:, length:], -1.0))


# ------------------------------------------------------------------------------------------------ moving rows


def test_update_rows_writes_active_slots_only() -> None:
    cache, new = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 1, 4)
    row, active = torch.tensor([4, 77, 0]), torch.tensor([True, False, True])
    step = UpdateRows("cache", "new", "row", "active")
    got = run_steps((step,), {"new": new, "row": row, "active": active}, {"cache": cache})["cache"]
    want = cache.clone()
    for b in (0, 2):
        for h in range(2):
            want[b, h, int(row[b])] = new[b, h, 0]
    assert torch.equal(got, want)


def test_update_of_a_row_that_does_not_exist_is_refused() -> None:
    inputs = {"new": torch.zeros(1, 1, 1, 2), "row": torch.tensor([3]), "active": torch.tensor([True])}
    with raises(ReferenceCacheErrors.UPDATED_OUTSIDE, rows=[3], size=3):
        run_steps((UpdateRows("cache", "new", "row", "active"),), inputs, {"cache": torch.zeros(1, 1, 3, 2)})


@pytest.mark.parametrize("obs", [1, 3, 6, 50])
@pytest.mark.parametrize("length", [1, 4, 5, 11, 12])
def test_observe_over_all_chunks(obs: int, length: int) -> None:
    chunk, queries = 4, torch.randn(1, 2, 12, 3)
    observed, want = torch.zeros(1, 2, obs, 3), torch.zeros(1, 2, obs, 3)
    for start in range(0, 12, chunk):
        query = queries[:, :, start : start + chunk].clone()
        step = Observe("observed", "query", "start", "n")
        scalars = {"start": start, "n": length}
        observed = run_steps((step,), {"query": query}, {"observed": observed}, scalars)["observed"]
    for position in range(12):
        row = position - max(length - obs, 0)
        if 0 <= row < min(obs, length):
            want[0, :, row] = queries[0, :, position]
    assert torch.equal(observed, want)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(("length", "width"), [(1, 1), (2, 7), (10, 3), (12, 5)])
def test_pool(mode: str, length: int, width: int) -> None:
    scores = torch.rand(2, 12)
    got = run_steps(
        (Pool("scores", "pooled", "n", width, mode),), {"scores": scores}, {"pooled": torch.zeros(2, 12)}, {"n": length}
    )["pooled"]
    for g in range(2):
        for t in range(length):
            near = [float(scores[g, u]) for u in range(t - width // 2, t + width // 2 + 1) if 0 <= u < length]
            want = sum(near) / width if mode == "avg" else max(near)
            assert math.isclose(float(got[g, t]), want, rel_tol=1e-5)


@pytest.mark.parametrize("length", [1, 5, 6, 7, 8, 9, 10, 11, 20])
@pytest.mark.parametrize(("room", "topk"), [(1, 1), (4, 4), (1, 0), (4, 0), (4, 3)])
def test_select_with_ties(length: int, room: int, topk: int) -> None:
    sink, recent, rows = 2, 4, 20
    scores = torch.randint(0, 3, (3, rows)).float()
    step = Select("scores", "selected", "n", "top", sink, recent)
    writes = {"selected": torch.full((3, room), 99)}
    got = run_steps((step,), {"scores": scores}, writes, {"n": length, "top": topk})["selected"]
    for g in range(3):
        order = sorted(range(sink, max(sink, length - recent)), key=lambda t: (-float(scores[g, t]), t))
        picked = sorted(order[:topk]) if length > sink + topk + recent else []
        assert got[g].tolist() == picked + [-1] * (room - len(picked))


@pytest.mark.parametrize("topk", [-1, 5])
def test_more_positions_than_there_is_room_for_are_refused(topk: int) -> None:
    given, writes = {"scores": torch.zeros(3, 20)}, {"selected": torch.full((3, 4), 99)}
    with raises(ReferenceSelectionErrors.TOO_MANY, most=4, topk=topk):
        run_steps((Select("scores", "selected", "n", "top", 2, 4),), given, writes, {"n": 20, "top": topk})


def test_gather_rows() -> None:
    source, index = torch.randn(1, 2, 6, 3), torch.tensor([[5, -1, 0, 0], [1, 2, -7, 3]])
    step = GatherRows("source", "index", "out")
    got = run_steps((step,), {"source": source, "index": index}, {"out": torch.full((1, 2, 4, 3), 9.0)})["out"]
    for h in range(2):
        for j in range(4):
            row = int(index[h, j])
            want = source[0, h, row] if row >= 0 else torch.zeros(3)
            assert torch.equal(got[0, h, j], want)


def test_gather_beyond_the_source_is_refused() -> None:
    with raises(ReferenceCacheErrors.GATHERED_OUTSIDE, row=6, size=6):
        run_steps(
            (GatherRows("source", "index", "out"),),
            {"source": torch.zeros(1, 1, 6, 2), "index": torch.tensor([[6]])},
            {"out": torch.zeros(1, 1, 1, 2)},
        )


# ------------------------------------------------------------------------------------------ control and memory

ROW = (4,)


def rows_program(body: Any, scalars: tuple[str, ...] = (), results: Any = (), *, overlap: bool = False) -> Program:
    """Tensors x (input), t, u (temporaries), s (state), y (output) of [3, 4] f32; kernels `copy` and `inc` of a row."""
    kinds = ("input", "temporary", "temporary", "state", "output")
    tensors, arena = lay_out(*((n, (3, 4), "f32", r) for n, r in zip("xtusy", kinds, strict=True)))
    if overlap:
        x, t, u, s, y = tensors
        tensors = (x, t, type(u)(u.name, u.shape, u.dtype, u.role, u.tier, t.address), s, y)
    bodies = (copy_body("copy", ROW), add_body("inc", ROW, 1.0))
    entry = Entry("main", ("x",), ("y",), scalars, results, tuple(body))
    return Program(tensors, bodies, tuple(map(one_stage, bodies)), (entry,), arena)


def row(tensor: str, offset: int = 0, *terms: tuple[str, int]) -> View:
    return View(tensor, ROW, (1,), offset, terms)


def test_control_flow_and_dynamic_views() -> None:
    body = [
        For("i", 0, "n", (
            Scalar("odd", "mod", ("i", 2)),
            If("odd", (Launch("inc", (row("x", 0, ("i", 4)), row("y", 0, ("i", 4)))),)),
            Scalar("even", "eq", ("odd", 0)),
            If("even", (Launch("copy", (row("x", 0, ("i", 4)), row("y", 0, ("i", 4)))),)),
        )),
        Scalar("twice", "mul", ("n", 2)),
        Scalar("picked", "select", ("odd", -1, "twice")),
    ]  # fmt: skip
    interpreter = ReferenceInterpreter(rows_program(body, ("n",), ("twice", "picked", 5)), {}, checked=True)
    x = torch.randn(3, 4)
    outputs, results = interpreter.run("main", {"x": x}, {"n": 3})
    assert torch.equal(outputs["y"], x + torch.tensor([[0.0], [1.0], [0.0]]))
    assert results == (6, 6, 5)


@pytest.mark.parametrize(
    ("op", "args", "want"),
    [
        ("add", (7, -2), 5), ("sub", (7, -2), 9), ("mul", (7, -2), -14), ("floordiv", (7, -2), -4),
        ("ceildiv", (7, 2), 4), ("mod", (-7, 4), 1), ("min", (1, 2), 1), ("max", (1, 2), 2), ("eq", (1, 1), 1),
        ("ne", (1, 1), 0), ("lt", (1, 2), 1), ("le", (2, 2), 1), ("gt", (1, 2), 0), ("ge", (2, 2), 1),
        ("and", (1, 0), 0), ("or", (1, 0), 1), ("select", (0, 5, 6), 6),
    ],
)  # fmt: skip
def test_scalar_operations(op: str, args: tuple[int, ...], want: int) -> None:
    program = rows_program([Scalar("r", op, args)], (), ("r",))
    assert ReferenceInterpreter(program, {}).run("main", {"x": torch.zeros(3, 4)})[1] == (want,)


def test_division_by_zero_is_an_error_of_the_schedule() -> None:
    program = rows_program([Scalar("r", "mod", (1, 0))])
    with raises(ScalarArithmeticErrors.DIVISION_BY_ZERO):
        ReferenceInterpreter(program, {}).run("main", {"x": torch.zeros(3, 4)})


@pytest.mark.parametrize("index", [-1, 3])
def test_a_dynamic_view_out_of_bounds_is_refused(index: int) -> None:
    program = rows_program([Launch("copy", (row("x", 0, ("i", 4)), row("y")))], ("i",))
    with raises(ReferenceViewErrors.OUT_OF_BOUNDS, elements=12, first=4 * index, last=4 * index + 3):
        ReferenceInterpreter(program, {}).run("main", {"x": torch.zeros(3, 4)}, {"i": index})


@pytest.mark.parametrize(
    ("body", "kind", "fields"),
    [
        (
            [Launch("copy", (row("x", 9), row("y")))], ReferenceViewErrors.OUT_OF_BOUNDS,
            {"tensor": "x", "first": 9, "last": 12, "elements": 12},
        ),
        ([Launch("copy", (row("x"), View("y", ROW, (0,))))], ReferenceViewErrors.WRITES_TWICE, {"tensor": "y"}),
        ([Scalar("r", "launder", (1, 2))], ScalarArithmeticErrors.OPERATION, {"op": "launder", "arguments": 2}),
    ],
)
def test_malformed_entries_are_refused_at_construction(body: Any, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        ReferenceInterpreter(rows_program(body), {})


def test_a_scalar_that_a_path_never_sets_is_refused() -> None:
    body = [If("go", (Scalar("r", "add", (1, 1)),)), Scalar("s", "add", ("r", 1))]
    interpreter = ReferenceInterpreter(rows_program(body, ("go",), ("s",)), {})
    assert interpreter.run("main", {"x": torch.zeros(3, 4)}, {"go": 1})[1] == (3,)
    with raises(ReferenceControlErrors.UNSET_SCALAR, scalar="r"):
        ReferenceInterpreter(rows_program(body, ("go",), ("s",)), {}).run("main", {"x": torch.zeros(3, 4)}, {"go": 0})


def test_reading_an_unwritten_temporary_is_refused_in_every_call() -> None:
    body = [
        If("go", (Launch("copy", (row("x"), row("t"))),)),
        Launch("copy", (row("t"), row("y"))),
    ]
    interpreter = ReferenceInterpreter(rows_program(body, ("go",)), {}, checked=True)
    interpreter.run("main", {"x": torch.ones(3, 4)}, {"go": 1})
    with raises(ReferenceMemoryErrors.NOT_WRITTEN, role="temporary", tensor="t"):
        interpreter.run("main", {"x": torch.ones(3, 4)}, {"go": 0})


def test_overlapping_addresses_really_overlap() -> None:
    body = [
        Launch("copy", (row("x"), row("t"))),
        Launch("copy", (row("x", 4), row("u"))),
        Launch("copy", (row("t"), row("y"))),
    ]
    x = torch.randn(3, 4)
    outputs, _ = ReferenceInterpreter(rows_program(body, overlap=True), {}).run("main", {"x": x})
    assert torch.equal(outputs["y"][0], x[1])
    with raises(ReferenceMemoryErrors.NOT_WRITTEN, role="temporary", tensor="t"):
        ReferenceInterpreter(rows_program(body, overlap=True), {}, checked=True).run("main", {"x": x})


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_states_persist_and_reset(precision: str) -> None:
    body = [
        Launch("inc", (row("s"), row("t"))),
        Launch("copy", (row("t"), row("s"))),
        Launch("copy", (row("s"), row("y"))),
    ]
    interpreter = ReferenceInterpreter(rows_program(body), {}, precision=precision, checked=True)
    for _ in range(3):
        outputs, _ = interpreter.run("main", {"x": torch.zeros(3, 4)})
    assert outputs["y"][0].tolist() == [3.0] * 4
    interpreter.tensor("s")[0, 1] = 10.0
    assert interpreter.run("main", {"x": torch.zeros(3, 4)})[0]["y"][0].tolist() == [4.0, 11.0, 4.0, 4.0]
    interpreter.reset()
    assert interpreter.run("main", {"x": torch.zeros(3, 4)})[0]["y"][0].tolist() == [1.0] * 4


def test_f64_keeps_what_f32_rounds_away() -> None:
    program = rows_program([Launch("inc", (row("x"), row("t"))), Launch("copy", (row("t"), row("y")))])
    x = torch.full((3, 4), 1e-12, dtype=torch.float64)
    outputs, _ = ReferenceInterpreter(program, {}, precision="f64").run("main", {"x": x})
    assert outputs["y"].dtype is torch.float64
    assert float(outputs["y"][0, 0] - 1) == pytest.approx(1e-12, rel=1e-3)


def test_weights_are_checked() -> None:
    tensors, arena = lay_out(("w", ROW, "f32", "weight"), ("y", ROW, "f32", "output"))
    launch = Launch("copy", (whole(tensors[0]), whole(tensors[1])))
    body = copy_body("copy", ROW)
    program = Program(tensors, (body,), (one_stage(body),), (Entry("main", (), ("y",), (), (), (launch,)),), arena)
    weight = torch.nn.Parameter(torch.randn(4))
    assert torch.equal(ReferenceInterpreter(program, {"w": weight}).run("main", {})[0]["y"], weight)
    for weights, kind, fields in (
        ({}, ReferenceMemoryErrors.NOT_GIVEN, {"role": "weight", "tensor": "w"}),
        (
            {"w": torch.zeros(5)}, ReferenceMemoryErrors.OTHER_SHAPE,
            {
                "role": "weight", "tensor": "w", "given_dtype": "torch.float32", "given_shape": [5],
                "dtype": "torch.float32",
            },
        ),
        (
            {"w": torch.zeros(4, dtype=torch.bfloat16)}, ReferenceMemoryErrors.OTHER_SHAPE,
            {"role": "weight", "tensor": "w", "given_dtype": "torch.bfloat16", "given_shape": [4], "shape": [4]},
        ),
    ):
        with raises(kind, **fields):
            ReferenceInterpreter(program, weights)


@pytest.mark.parametrize(
    ("entry", "inputs", "scalars", "kind", "fields"),
    [
        ("other", {}, {}, ReferenceErrors.NO_ENTRY, {"entry": "other"}),
        ("main", {}, {}, ReferenceErrors.OTHER_INPUTS, {"expected": ["x"]}),
        (
            "main", {"x": torch.zeros(3, 5)}, {}, ReferenceErrors.OTHER_SHAPE,
            {"input": "x", "dtype": "f32", "shape": [3, 4], "given_dtype": "torch.float32", "given_shape": [3, 5]},
        ),
        (
            "main", {"x": torch.zeros(3, 4, dtype=torch.int64)}, {}, ReferenceErrors.OTHER_SHAPE,
            {"given_dtype": "torch.int64"},
        ),
        ("main", {"x": torch.zeros(3, 4)}, {"n": 1}, ReferenceErrors.OTHER_SCALARS, {"given": ["n"]}),
    ],
)
def test_wrong_calls_are_refused(
    entry: str, inputs: Any, scalars: Any, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        ReferenceInterpreter(rows_program([]), {}).run(entry, inputs, scalars)
    with raises(ReferenceNumericsErrors.UNKNOWN_PRECISION, precision="f16"):
        ReferenceInterpreter(rows_program([]), {}, precision="f16")
