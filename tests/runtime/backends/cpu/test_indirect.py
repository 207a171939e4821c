"""Products whose second operand has an indirect axis: each group of rows with the slice that an index names."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch

from sscc.ir.errors import ErrorKind
from sscc.ir.schedule import Access, Body, Entry, Indirect, Launch, Local, Param, Product, Program, Vector, Window
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import make_code
from sscc.runtime.backends.cpu.plan.storage import PanelPacking
from sscc.runtime.backends.cpu.plan.weights import packed_weights
from sscc.runtime.backends.cpu.products.packing import Panels
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.access import ReferenceIndexErrors
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.support.native_errors import NativeErrors
from sscc.runtime.validator import Limits
from sscc.runtime.validator.bodies import BodyProofErrors, prove_body
from tests.errors import raises
from tests.runtime.programs import DTYPES, run_steps
from tests.runtime.schedules import lay_out, one_stage, view_of, whole

E, N, K = 5, 40, 24
FAR = 1 << 40


def rows(dims: int, *places: int | None) -> tuple[tuple[int, ...], ...]:
    """The rows of a map by which each axis moves with one dimension, or with none."""
    return tuple(tuple(int(d == place) for d in range(dims)) + (0,) for place in places)


def grouped(groups: int, m: int, n: int = N, k: int = K) -> Product:
    """y[g, m, n] = sum over k of x[g, m, k] * w[expert[g], n, k]."""
    b = Access("w", rows(4, None, 2, 3), Indirect(0, Access("expert", rows(4, 0))))
    return Product((groups, m, n, k), (3,), Access("x", rows(4, 0, 1, 3)), b, Access("y", rows(4, 0, 1, 2)))


def per_token(slots: int, chosen: int) -> Product:
    """y[b, j, n] = sum over k of x[b, k] * w[expert[b, j], n, k], as of a decode step."""
    b = Access("w", rows(4, None, 2, 3), Indirect(0, Access("expert", rows(4, 0, 1))))
    return Product((slots, chosen, N, K), (3,), Access("x", rows(4, 0, 3)), b, Access("y", rows(4, 0, 1, 2)))


def combined(slots: int, chosen: int) -> Product:
    """y[b, n] = sum over j and k of x[b, j, k] * w[expert[b, j], n, k]: what a token's experts give, in one sum."""
    b = Access("w", rows(4, None, 1, 3), Indirect(0, Access("expert", rows(4, 0, 2))))
    return Product((slots, N, chosen, K), (2, 3), Access("x", rows(4, 0, 2, 3)), b, Access("y", rows(4, 0, 1)))


Case = tuple[Product, tuple[int, ...], tuple[int, ...], tuple[int, ...], str]
"""The step, the shapes of x, expert and y, and the product as an equation, of w by expert."""

CASES: dict[str, Case] = {
    "blocks of tokens": (grouped(3, 20), (3, 20, K), (3,), (3, 20, N), "gmk,gnk->gmn"),
    "one token a group": (grouped(7, 1), (7, 1, K), (7,), (7, 1, N), "gmk,gnk->gmn"),
    "one group": (grouped(1, 9), (1, 9, K), (1,), (1, 9, N), "gmk,gnk->gmn"),
    "experts of each token": (per_token(3, 2), (3, K), (3, 2), (3, 2, N), "bk,bjnk->bjn"),
    "summed over experts": (combined(3, 2), (3, 2, K), (3, 2), (3, N), "bjk,bjnk->bn"),
}


def program_of(step: Product, memory: dict[str, torch.Tensor], role: str) -> Program:
    """A program of the one step, `w` a weight or an input, as it comes out of its file form."""
    params = tuple(
        Param(n, tuple(t.shape), DTYPES[t.dtype], "write" if n == "y" else "read") for n, t in memory.items()
    )
    body = Body("k", params, (), (), (), (step,))
    roles = {"w": role, "y": "output"}
    tensors, end = lay_out(*((n, tuple(t.shape), DTYPES[t.dtype], roles.get(n, "input")) for n, t in memory.items()))
    kernel = one_stage(body)
    launch = Launch(kernel.name, tuple(map(whole, tensors)))
    inputs = tuple(t.name for t in tensors if t.role == "input")
    return Program.from_json(
        Program(tensors, (body,), (kernel,), (Entry("main", inputs, ("y",), (), (), (launch,)),), end).to_json()
    )


def memory_of(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    _, x, expert, y, _ = case
    torch.manual_seed(0)
    memory = {"x": torch.randn(x).to(dtype), "w": torch.randn(E, N, K).to(dtype)}
    return memory | {"expert": torch.randint(0, E, expert), "y": torch.zeros(y, dtype=dtype)}


class Both:
    """A program on both interpreters, which must agree."""

    def __init__(self, program: Program, weights: dict[str, torch.Tensor]) -> None:
        self.reference = ReferenceInterpreter(program, weights)
        arrays = {name: to_array(value) for name, value in weights.items()}
        self.native = NativeInterpreter(program, arrays, code=make_code(program, optimise=0, checked=True), threads=2)

    def run(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        expected = self.reference.run("main", inputs)[0]["y"].clone()
        outputs, _ = self.native.run("main", {name: to_array(value) for name, value in inputs.items()})
        actual = to_tensors(outputs)["y"]
        close = 2e-2 if actual.dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(actual, expected, rtol=close, atol=close)
        return actual


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("role", ["weight", "input"])
@pytest.mark.parametrize("name", CASES)
def test_each_group_is_multiplied_by_the_slice_that_it_names(name: str, role: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    memory = memory_of(case, dtype)
    program = program_of(case[0], memory, role)
    both = Both(program, {"w": memory["w"]} if role == "weight" else {})
    for _ in range(3):  # the same code with other experts
        memory["expert"] = torch.randint(0, E, memory["expert"].shape)
        actual = both.run({n: memory[n] for n in program.entries[0].inputs})
        expected = torch.einsum(case[4], memory["x"].double(), memory["w"].double()[memory["expert"]])
        close = 3e-2 if dtype is torch.bfloat16 else 1e-5
        torch.testing.assert_close(actual.double(), expected, rtol=close, atol=10 * close)


@pytest.mark.parametrize("name", CASES)
def test_experts_are_packed_as_slices_of_a_stack(name: str) -> None:
    case = CASES[name]
    packing = packed_weights(program_of(case[0], memory_of(case, torch.float32), "weight")).get("w")
    panels = PanelPacking(Panels(N, K, "f32", K, 1), N * K, K)
    assert packing == (None if name == "summed over experts" else panels), "a sum over slices goes element by element"


def test_an_axis_between_rows_is_not_packed_and_right() -> None:
    """w[n, expert[g], k]."""
    step = grouped(3, 4)
    b = Access("w", rows(4, 2, None, 3), Indirect(1, Access("expert", rows(4, 0))))
    memory = {"x": torch.randn(3, 4, K), "w": torch.randn(N, E, K), "expert": torch.tensor([4, 0, 4])}
    memory["y"] = torch.zeros(3, 4, N)
    program = program_of(dataclasses.replace(step, b=b), memory, "weight")
    assert not packed_weights(program)
    actual = Both(program, {"w": memory["w"]}).run({"x": memory["x"], "expert": memory["expert"]})
    expected = torch.einsum("gmk,ngk->gmn", memory["x"], memory["w"][:, memory["expert"]])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


def test_layers_of_experts() -> None:
    """A launch shows the experts of one layer of a stack [L, E, N, K]."""
    memory = memory_of(CASES["blocks of tokens"], torch.float32)
    program = program_of(grouped(3, 20), memory, "weight")
    stacked = dataclasses.replace(program.tensors[1], shape=(2, E, N, K), sources=("w",))
    (entry,) = program.entries
    (launch,) = entry.body
    assert isinstance(launch, Launch)
    x, _, expert, y = launch.args
    launch = dataclasses.replace(launch, args=(x, view_of("w", (E, N, K), E * N * K), expert, y))
    tensors = tuple(stacked if t.name == "w" else t for t in program.tensors)
    program = dataclasses.replace(program, tensors=tensors, entries=(dataclasses.replace(entry, body=(launch,)),))
    assert packed_weights(program)["w"].stored_shape(stacked.shape)[0] == 2 * E
    weight = torch.randn(2, E, N, K)
    actual = Both(program, {"w": weight}).run({n: memory[n] for n in ("x", "expert")})
    expected = torch.einsum("gmk,gnk->gmn", memory["x"], weight[1][memory["expert"]])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("role", ["weight", "input"])
@pytest.mark.parametrize("index", [-1, E, FAR, -FAR])
def test_an_index_outside_ends_the_run(role: str, index: int) -> None:
    case = CASES["blocks of tokens"]
    memory = memory_of(case, torch.float32)
    program = program_of(case[0], memory, role)
    both = Both(program, {"w": memory["w"]} if role == "weight" else {})
    inputs = {n: memory[n] for n in program.entries[0].inputs}
    bad = {**inputs, "expert": torch.tensor([1, index, 2])}
    with raises(ReferenceIndexErrors.OUT_OF_BOUNDS, param="w", axis=0, size=E):
        both.reference.run("main", bad)
    with raises(NativeErrors.INDEX_OUT_OF_RANGE):
        both.native.run("main", {n: to_array(t) for n, t in bad.items()})
    both.run(inputs)  # the next call is one like any other


def test_slices_that_a_step_before_has_made() -> None:
    """Operand and index may be local tensors or windows of them; each unit of the product waits for all of them."""
    torch.manual_seed(1)
    inputs = {"x": torch.randn(3, 4, K), "v": torch.randn(E * N, K), "number": torch.tensor([2, 0, 4])}
    double = Vector((E * N, K), (Access("v", rows(2, 0, 1)),), Access("made", rows(2, 0, 1)), (), "in0")
    copy = Vector((3,), (Access("number", rows(1, 0)),), Access("expert", rows(1, 0)), (), "in0")
    locals_ = (Local("made", (E * N, K), "f32"), Local("expert", (3,), "i64"))
    windows = (Window("w", view_of("made", (E, N, K))),)
    steps = (double, copy, grouped(3, 4))
    result = run_steps(steps, inputs, {"y": torch.zeros(3, 4, N)}, locals_=locals_, windows=windows)["y"]
    expected = torch.einsum("gmk,gnk->gmn", inputs["x"], inputs["v"].view(E, N, K)[inputs["number"]])
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_random_products(seed: int) -> None:
    """An index that moves with any dimensions, columns and the summed one among them, and any axis."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dims = tuple(draw.choice((1, 2, 3, 17)) for _ in range(4))
    axis = draw.randrange(3)
    moved = draw.sample(range(4), draw.randint(1, 3))
    places: list[int | None] = [2, 3]
    places.insert(axis, None)
    shape = tuple(E if place is None else dims[place] for place in places)
    b = Access("w", rows(4, *places), Indirect(axis, Access("expert", rows(4, *moved))))
    step = Product(dims, (3,), Access("x", rows(4, 0, 1, 3)), b, Access("y", rows(4, 0, 1, 2)))
    index = torch.randint(0, E, tuple(dims[d] for d in moved))
    inputs = {"x": torch.randn(dims[0], dims[1], dims[3]), "w": torch.randn(shape), "expert": index}
    result = run_steps((step,), inputs, {"y": torch.zeros(dims[:3])})["y"]
    grid = torch.meshgrid(*(torch.arange(size) for size in dims), indexing="ij")
    at: list[Any] = [grid[2], grid[3]]
    at.insert(axis, index[tuple(grid[d] for d in moved)])
    expected = (inputs["x"][grid[0], grid[1], grid[3]] * inputs["w"][tuple(at)]).sum(3)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_what_a_proof_leaves_to_the_run() -> None:
    """The proof leaves the expert's number to the run, because it is data."""
    memory = memory_of(CASES["blocks of tokens"], torch.float32)
    facts = prove_body(program_of(grouped(3, 20), memory, "input").bodies[0], Limits())
    assert facts.data == ("body 'k', step 0 (product): axis 0 of 'w'",)


EXPERT = Access("expert", rows(4, 0))
OF_W = rows(4, None, 2, 3)


@pytest.mark.parametrize(
    ("change", "kind", "fields"),
    [
        ({"b": Access("w", OF_W, Indirect(3, EXPERT))}, BodyProofErrors.INDIRECT_MAP, {"axis": 3, "name": "w"}),
        ({"b": Access("w", OF_W, Indirect(-1, EXPERT))}, BodyProofErrors.INDIRECT_MAP, {"axis": -1, "name": "w"}),
        ({"b": Access("w", OF_W, Indirect(1, EXPERT))}, BodyProofErrors.INDIRECT_MAP, {"axis": 1, "name": "w"}),
        (
            {"b": Access("w", ((0, 0, 0, 0, 1), *OF_W[1:]), Indirect(0, EXPERT))}, BodyProofErrors.INDIRECT_MAP,
            {"axis": 0, "name": "w"},
        ),
        (
            {"b": Access("w", OF_W, Indirect(0, Access("x", rows(4, 0, None, None))))}, BodyProofErrors.INDEX_DTYPE,
            {"index": "x", "name": "w", "dtype": "f32"},
        ),
        (
            {"b": Access("w", OF_W, Indirect(0, Access("expert", rows(4, 1))))}, BodyProofErrors.MAP_OUT_OF_RANGE,
            {"low": 0, "high": 19, "axis": 0, "name": "expert", "size": 3},
        ),
        ({"b": Access("w", OF_W, Indirect(0, Access("lost", ())))}, BodyProofErrors.UNKNOWN_NAME, {"name": "lost"}),
        (
            {"b": Access("w", OF_W, Indirect(0, Access("expert", rows(4, None), Indirect(0, EXPERT))))},
            BodyProofErrors.INDIRECT_AXIS,
            {"name": "expert"},
        ),
        ({"a": Access("x", rows(4, None, 1, 3), Indirect(0, EXPERT))}, BodyProofErrors.INDIRECT_AXIS, {"name": "x"}),
        (
            {"output": Access("y", rows(4, None, 1, 2), Indirect(0, EXPERT))}, BodyProofErrors.INDIRECT_AXIS,
            {"name": "y"},
        ),
    ],
)
def test_refusals(change: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    """The validator refuses these schedules."""
    memory = memory_of(CASES["blocks of tokens"], torch.float32)
    program = program_of(dataclasses.replace(grouped(3, 20), **change), memory, "input")
    with raises(kind, **fields):
        prove_body(program.bodies[0], Limits())
