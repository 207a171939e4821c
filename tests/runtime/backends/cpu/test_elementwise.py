"""Vector steps and reductions: every scalar operation, every length of a tail, every way that memory is walked."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sscc.ir.schedule import Access, Instr, Reduction, Vector
from sscc.runtime.backends.cpu.codegen.bodies import NativeBodyErrors
from sscc.runtime.backends.cpu.codegen.elementwise import NativeElementErrors
from sscc.runtime.backends.cpu.codegen.programs import NativeProgramErrors
from sscc.runtime.backends.reference import scalar_ops
from sscc.runtime.backends.reference.access import ReferenceIndexErrors
from tests.errors import raises
from tests.runtime.backends.cpu.harness_bodies import NativeBody, access, body_of, check, reference
from tests.runtime.schedules import identity

BF16_STEP = 2.0**-7
"""One step of bf16, relative: where f32 differs by its last bits, a rounding may fall the other way."""

COUNT = 53
"""Points: three whole vectors and a tail."""

ARITY = {
    **dict.fromkeys("addf subf mulf divf remf maximumf minimumf maxnumf minnumf atan2 powf copysign".split(), 2),
    "fma": 3,
    "negf": 1,
    "absi": 1,
}


def floats(seed: int) -> torch.Tensor:
    """Random numbers of all sizes, after those at which operations are special."""
    torch.manual_seed(seed)
    inf, nan = float("inf"), float("nan")
    edges = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, -1.0, inf, -inf, nan, 3e38, -3e38, 1e-39, 0.49999997, 88.0]
    values = torch.tensor(edges)[torch.randperm(len(edges))]
    return torch.cat([values, torch.randn(18), torch.randn(COUNT - 18 - len(edges)) * 50])


def integers(seed: int, low: int, high: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randint(low, high, (COUNT,))


def pointwise(programs: dict[str, tuple[Instr, ...]], inputs: dict[str, torch.Tensor]) -> tuple[Vector, ...]:
    """A step per program, whose last instruction is stored to a parameter of the program's name."""
    reads = tuple(Access(name, identity(1)) for name in inputs)
    return tuple(Vector((COUNT,), reads, Access(n, identity(1)), body, body[-1].name) for n, body in programs.items())


def check_programs(
    programs: dict[str, tuple[Instr, ...]],
    inputs: dict[str, torch.Tensor],
    dtype: Callable[[str], torch.dtype],
    tolerance: float = 2e-6,
) -> None:
    writes = {name: torch.zeros(COUNT, dtype=dtype(name)) for name in programs}
    check(body_of(pointwise(programs, inputs), inputs, writes), inputs, writes, tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_float_operations(dtype: str) -> None:
    """But for fma of bf16, which the reference rounds twice, and remainders of subnormals, which torch gets wrong."""
    kind = torch.float32 if dtype == "f32" else torch.bfloat16
    tolerance = 3e-6 if dtype == "f32" else BF16_STEP
    names = ("in0", "in1", "in2")
    programs = {op: (Instr("r", op, names[: ARITY.get(op, 1)], dtype),) for op in scalar_ops.FLOAT}
    inputs = {name: floats(seed).to(kind) for seed, name in enumerate("abc")}
    remainder = {"remf": programs.pop("remf")}
    if dtype == "bf16":
        del programs["fma"]
    check_programs(programs, inputs, lambda _: kind, tolerance)
    divisors = torch.where(inputs["b"].abs() < 0.1, 0.75, inputs["b"])
    check_programs(remainder, {"a": inputs["a"], "b": divisors}, lambda _: kind, tolerance)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_float_comparisons(dtype: str) -> None:
    kind = torch.float32 if dtype == "f32" else torch.bfloat16
    programs = {op: (Instr("r", op, ("in0", "in1"), "i1"),) for op in scalar_ops.COMPARE_FLOAT}
    a = floats(1).to(kind)
    b = torch.where(torch.arange(COUNT) % 3 == 0, a, floats(2).to(kind))
    check_programs(programs, {"a": a, "b": b}, lambda _: torch.bool)


def test_integer_operations() -> None:
    a, b, amount = integers(1, -1000, 1000), integers(2, 1, 50), integers(3, 0, 40)
    b[::3] *= -1
    b[1], b[3] = -1, 1000
    tables = {**scalar_ops.INTEGER, **scalar_ops.BITWISE}
    programs = {
        op: (Instr("r", op, ("in0", "in2" if op.startswith("sh") else "in1")[: ARITY.get(op, 2)], "i64"),)
        for op in tables
    }
    check_programs(programs, {"a": a, "b": b, "amount": amount}, lambda _: torch.int64)


def test_narrow_integers_wrap_around() -> None:
    a, b = integers(1, -128, 128), integers(2, -128, 128)
    a[0], b[0] = -128, -1
    b[1:20] = 0
    narrow = (Instr("x", "trunci", ("in0",), "i8"), Instr("y", "trunci", ("in1",), "i8"))
    operations = ("addi", "subi", "muli", "divsi", "floordivsi", "maxsi", "absi", "xori")
    programs = {
        op: (*narrow, Instr("z", op, ("x", "y")[: ARITY.get(op, 2)], "i8"), Instr("r", "extsi", ("z",), "i64"))
        for op in operations
    }
    programs["unsigned"] = (*narrow, Instr("r", "extui", ("x",), "i64"))
    programs["signed_cast"] = (*narrow, Instr("r", "index_cast", ("x",), "index"))
    programs["unsigned_cast"] = (*narrow, Instr("r", "index_castui", ("x",), "index"))
    check_programs(programs, {"a": a, "b": b}, lambda _: torch.int64)


def test_narrow_integers_compare_and_convert() -> None:
    a, b = integers(1, -128, 128), integers(2, -4, 4)
    narrow = (Instr("x", "trunci", ("in0",), "i8"), Instr("y", "trunci", ("in1",), "i8"))
    compare = {op: (*narrow, Instr("r", op, ("x", "y"), "i1")) for op in scalar_ops.COMPARE_INTEGER}
    convert = {op: (*narrow, Instr("r", op, ("x",), "f32")) for op in ("sitofp", "uitofp")}
    check_programs({**compare, **convert}, {"a": a, "b": b}, lambda op: torch.float32 if op in convert else torch.bool)


def test_conditions() -> None:
    a, b = integers(1, 0, 2).bool(), integers(2, 0, 2).bool()
    bits = {op: (Instr("r", op, ("in0", "in1"), "i1"),) for op in (*scalar_ops.BITWISE, *scalar_ops.COMPARE_INTEGER)}
    bits["select"] = (Instr("r", "select", ("in0", "in1", 0), "i1"),)
    check_programs(bits, {"a": a, "b": b}, lambda _: torch.bool)
    wider = {op: (Instr("r", op, ("in0",), "i64"),) for op in ("extsi", "extui", "index_cast", "index_castui")}
    check_programs(wider, {"a": a}, lambda _: torch.int64)
    floating = {op: (Instr("r", op, ("in0",), "f32"),) for op in ("sitofp", "uitofp")}
    check_programs(floating, {"a": a}, lambda _: torch.float32)


def test_conversions() -> None:
    numbers = integers(1, -70000, 70000)
    big = torch.where(torch.arange(COUNT) % 5 == 0, -numbers.abs() - 1, numbers)
    to_float = {op: (Instr("r", op, ("in0",), "f32"),) for op in ("sitofp", "uitofp")}
    check_programs(to_float, {"a": big}, lambda _: torch.float32)
    bits = {"trunci": (Instr("r", "trunci", ("in0",), "i1"),)}
    check_programs(bits, {"a": numbers}, lambda _: torch.bool)
    values = torch.randn(COUNT) * 1000
    check_programs({"fptosi": (Instr("r", "fptosi", ("in0",), "i64"),)}, {"a": values}, lambda _: torch.int64)
    check_programs({"fptoui": (Instr("r", "fptoui", ("in0",), "i64"),)}, {"a": values.abs()}, lambda _: torch.int64)


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
@pytest.mark.parametrize("op", ["fptosi", "fptoui"])
def test_floats_beyond_the_integers(op: str, dtype: str) -> None:
    """Conversions that LLVM leaves undefined give the nearest integer, and 0 for NaN, in vectors and scalars."""
    bits = {"i8": 8, "i32": 32, "i64": 64}[dtype]
    edges = [2.0**n * sign * near for n in (bits - 1, bits) for sign in (1, -1) for near in (1 - 2.0**-24, 1, 1.5)]
    numbers = [*edges, math.inf, -math.inf, math.nan, 0.0, -0.9, 0.9, -1.0, 1e30, -1e30]
    values = torch.tensor(numbers).repeat(COUNT)[:COUNT]
    program = (Instr("whole", op, ("in0",), dtype), Instr("r", "index_cast", ("whole",), "i64"))
    check_programs({"y": program}, {"a": values}, lambda _: torch.int64)


def test_every_operation_of_bf16_is_rounded() -> None:
    """Literals and constants as well; exactly as the reference, for operations that are exact in f32."""
    program = (
        Instr("tenth", "const", (0.1,), "bf16"),
        Instr("a", "mulf", ("in0", 0.3), "bf16"),
        Instr("b", "addf", ("a", "tenth"), "bf16"),
        Instr("c", "fpowi", ("b", 2), "bf16"),
        Instr("d", "subf", ("c", "in0"), "bf16"),
        Instr("low", "cmpf_olt", ("in0", 0.1), "i1"),
        Instr("e", "select", ("low", "d", 0.7), "bf16"),
        Instr("f", "extf", ("e",), "f32"),
        Instr("g", "mulf", ("f", 0.1), "f32"),
        Instr("h", "truncf", ("g",), "bf16"),
        Instr("r", "extf", ("h",), "f32"),
    )
    inputs = {"x": floats(4).bfloat16()}
    inputs["x"][0] = 0.1
    check_programs({"y": program}, inputs, lambda _: torch.float32, tolerance=0.0)


def test_unknown_operations_are_refused() -> None:
    x = {"x": floats(1)}
    for op, cause in (
        ("fpowi", NativeElementErrors.INTEGER_POWER(exponent=9)),
        ("no_such", NativeProgramErrors.OPERATION(op="no_such")),
    ):
        program = (Instr("r", op, ("in0", 9), "f32"),)
        writes = {"y": torch.zeros(COUNT)}
        with raises(NativeBodyErrors.STEP, cause=cause):
            NativeBody(body_of(pointwise({"y": program}, x), x, writes))


# -------------------------------------------------------------------------------------------- memory


LENGTHS = (*range(1, 18), 31, 32, 33, 48)


def test_every_tail() -> None:
    """Nothing beside the last element is touched."""
    inputs = {f"x{n}": torch.randn(3, n) for n in LENGTHS}
    writes = {f"y{n}": torch.full((3, n + 3), 7.0) for n in LENGTHS}
    steps = tuple(
        Vector((3, n), (Access(f"x{n}", identity(2)),), access(f"y{n}", (1, 0, 0), (0, 1, 1)), DOUBLED, "r")
        for n in LENGTHS
    )
    check(body_of(steps, inputs, writes), inputs, writes)


DOUBLED = (Instr("r", "addf", ("in0", "in0"), "f32"),)


@pytest.mark.parametrize("combine", ["addf", "mulf", "maximumf", "minimumf"])
def test_every_tail_of_a_reduction(combine: str) -> None:
    """Along the lanes, and across them. One has NaN, one infinities."""
    torch.manual_seed(1)
    inputs = {f"x{n}": torch.randn(4, n) for n in LENGTHS}
    inputs["x7"][1, 6] = inputs["x33"][2, 32] = float("nan")
    inputs["x17"][3] = float("-inf")
    writes = {f"{kind}{n}": torch.zeros(4 if kind == "r" else n) for n in LENGTHS for kind in "rc"}
    steps: list[Reduction] = []
    for n in LENGTHS:
        read, square = (Access(f"x{n}", identity(2)),), (Instr("v", "mulf", ("in0", 0.5), "f32"),)
        steps.append(Reduction((4, n), (1,), read, access(f"r{n}", (1, 0, 0)), square, "v", combine, 0.25))
        steps.append(Reduction((4, n), (0,), read, access(f"c{n}", (0, 1, 0)), square, "v", combine, 0.25))
    check(body_of(tuple(steps), inputs, writes), inputs, writes, tolerance=5e-6)


def test_a_reduction_to_one_number_and_over_two_dimensions() -> None:
    inputs = {"x": torch.randn(5, 6, 19)}
    writes = {"all": torch.zeros(1), "outer": torch.zeros(6), "bf16": torch.zeros(5, dtype=torch.bfloat16)}
    whole = (Access("x", identity(3)),)
    steps = (
        Reduction((5, 6, 19), (0, 1, 2), whole, access("all", (0, 0, 0, 0)), (), "in0", "addf", 1.0),
        Reduction((5, 6, 19), (0, 2), whole, access("outer", (0, 1, 0, 0)), (), "in0", "maximumf", -9.0),
        Reduction((5, 6, 19), (1, 2), whole, access("bf16", (1, 0, 0, 0)), (), "in0", "addf", 0.0),
    )
    check(body_of(steps, inputs, writes), inputs, writes, tolerance=BF16_STEP)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_memory_is_walked_in_every_way(dtype: torch.dtype) -> None:
    """Transposed, every third element, one element for all, one row for all, a diagonal."""
    torch.manual_seed(2)
    x = (torch.randn(40, 40) * 100).to(dtype)
    ways = {
        "transposed": ((37, 21), access("x", (0, 1, 0), (1, 0, 2))),
        "strided": ((5, 13), access("x", (1, 0, 3), (0, 3, 1))),
        "one": ((3, 18), access("x", (0, 0, 5), (0, 0, 6))),
        "row": ((6, 22), access("x", (0, 0, 7), (0, 1, 4))),
        "diagonal": ((2, 19), access("x", (1, 1, 0), (0, 1, 0))),
        "narrow": ((9, 3), access("x", (1, 0, 0), (0, 2, 0))),
    }
    inputs = {"x": x}
    writes = {name: torch.zeros(dims, dtype=dtype) for name, (dims, _) in ways.items()}
    steps = [Vector(dims, (read,), Access(name, identity(2)), (), "in0") for name, (dims, read) in ways.items()]
    writes["scattered"] = torch.zeros(21, 80, dtype=dtype)
    scattered = access("scattered", (0, 1, 0), (2, 0, 1))
    steps.append(Vector((37, 21), (Access("x", identity(2)),), scattered, (), "in0"))
    check(body_of(tuple(steps), inputs, writes), inputs, writes, tolerance=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathers(dtype: torch.dtype) -> None:
    """Rows by number, columns by number, elements by two numbers, an element for all, a computed row."""
    torch.manual_seed(3)
    inputs = {
        "table": torch.randn(30, 21).to(dtype),
        "rows": torch.randint(0, 30, (10,)),
        "columns": torch.randint(0, 21, (19,)),
    }
    kind = "f32" if dtype is torch.float32 else "bf16"
    row, column = access("rows", (1, 0, 0)), access("columns", (0, 1, 0))
    at = Instr("j", "index", (1,), "index")
    shifted = (Instr("k", "addi", ("j", 2), "index"),)

    def load(*indices: str | int) -> Instr:
        return Instr("r", "load", ("table", *indices), kind)

    programs: dict[str, tuple[tuple[Access, ...], tuple[Instr, ...]]] = {
        "by_row": ((row,), (at, load("in0", "j"))),
        "shifted": ((row,), (at, *shifted, load("in0", "k"))),
        "by_column": ((column,), (Instr("i", "index", (0,), "index"), load("i", "in0"))),
        "by_both": ((row, column), (load("in0", "in1"),)),
        "transposed": ((row,), (at, load("j", "in0"))),
        "one": ((row,), (load("in0", 3),)),
        "chosen": ((), (load("which", 4),)),
    }
    writes = {name: torch.zeros((10, 19), dtype=dtype) for name in programs}
    inputs["rows"][:] = inputs["rows"] % 21
    steps = tuple(
        Vector((10, 19), reads, Access(name, identity(2)), program, "r") for name, (reads, program) in programs.items()
    )
    check(body_of(steps, inputs, writes, ["which"]), inputs, writes, {"which": 11}, tolerance=0.0)


def test_parameters_that_are_not_dense() -> None:
    """Parameters with other strides are read, gathered from, and written."""
    inputs, writes = {"x": torch.zeros(20, 18)}, {"y": torch.zeros(20, 18), "z": torch.zeros(20, 18)}
    index = (Instr("i", "index", (0,), "index"), Instr("j", "index", (1,), "index"))
    gather = (*index, Instr("r", "load", ("x", "i", "j"), "f32"))
    steps = (
        Vector((20, 18), (), Access("y", identity(2)), gather, "r"),
        Vector((20, 18), (Access("x", identity(2)),), Access("z", identity(2)), DOUBLED, "r"),
    )
    native = NativeBody(body_of(steps, inputs, writes), {"x": (1, 20), "y": (40, 1), "z": (1, 25)})
    memory = {name: np.full(900, -1, np.float32) for name in "yz"}
    memory["x"] = np.arange(360, dtype=np.float32)
    native.run(memory)
    transposed = memory["x"].reshape(18, 20).T
    rows, columns = np.indices((20, 18))
    assert (memory["y"][rows * 40 + columns] == transposed).all()
    assert (memory["z"][rows + columns * 25] == 2 * transposed).all()
    assert (memory["y"] == -1).sum() == (memory["z"] == -1).sum() == 900 - 360


def test_indices_that_run_out_of_a_table_read_nothing_beyond_it() -> None:
    """Such indices are reported, and accesses until then stay inside of the table. NaN lies behind it."""
    inputs = {"table": torch.zeros(4, 20)}
    writes = {"along": torch.zeros(4, 48), "rows": torch.zeros(9, 20)}
    index = (Instr("i", "index", (0,), "index"), Instr("j", "index", (1,), "index"))
    program = (*index, Instr("r", "load", ("table", "i", "j"), "f32"))
    steps = tuple(Vector(tuple(t.shape), (), Access(n, identity(2)), program, "r") for n, t in writes.items())
    native = NativeBody(body_of(steps, inputs, writes))
    memory = {name: np.zeros(value.numel(), np.float32) for name, value in writes.items()}
    memory["table"] = np.full(400, np.nan, np.float32)
    memory["table"][:80] = 1.0
    native.run(memory)
    assert native.reported
    assert (memory["along"] == 1).all()
    assert (memory["rows"] == 1).all()


@pytest.mark.parametrize("shape", [(3,), (37,), (2, 20)])
@pytest.mark.parametrize(("index", "reported"), [(0, False), (6, False), (7, True), (-1, True), (-(2**63), True)])
def test_an_index_outside_of_a_table_is_reported(shape: tuple[int, ...], index: int, reported: bool) -> None:
    """In the last element, which alone or among others is the rest of a vector."""
    inputs = {"table": torch.randn(7), "rows": torch.zeros(shape, dtype=torch.int64)}
    inputs["rows"].view(-1)[-1] = index
    program = (Instr("r", "load", ("table", "in0"), "f32"),)
    rank = len(shape)
    step = Vector(shape, (Access("rows", identity(rank)),), Access("y", identity(rank)), program, "r")
    body = body_of((step,), inputs, {"y": torch.zeros(shape)})
    native = NativeBody(body)
    memory = {name: value.numpy() for name, value in inputs.items()} | {"y": np.zeros(shape, np.float32)}
    native.run(memory)
    assert native.reported == reported
    if reported:
        with raises(ReferenceIndexErrors.OUT_OF_BOUNDS, param="table", axis=0, size=7):
            reference(body, inputs, {"y": torch.zeros(shape)})


def test_indices_of_merged_dimensions() -> None:
    """`index` counts in the dimensions as the schedule wrote them."""
    inputs = {"x": torch.randn(3, 4, 20)}
    number = (
        Instr("i", "index", (0,), "index"),
        Instr("j", "index", (1,), "index"),
        Instr("k", "index", (2,), "index"),
        Instr("a", "muli", ("i", 10000), "index"),
        Instr("b", "muli", ("j", 100), "index"),
        Instr("c", "addi", ("a", "b"), "index"),
        Instr("d", "addi", ("c", "k"), "index"),
        Instr("e", "sitofp", ("d",), "f32"),
        Instr("r", "addf", ("e", "in0"), "f32"),
    )
    writes = {"y": torch.zeros(3, 4, 20), "z": torch.zeros(4, 1, 20)}
    middle = access("x", (0, 0, 0, 1), (1, 0, 0, 0), (0, 0, 1, 0))
    steps = (
        Vector((3, 4, 20), (Access("x", identity(3)),), Access("y", identity(3)), number, "r"),
        Vector((4, 1, 20), (middle,), Access("z", identity(3)), number, "r"),
    )
    check(body_of(steps, inputs, writes), inputs, writes)
