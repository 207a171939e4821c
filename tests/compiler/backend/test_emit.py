"""Emission, operation by operation: which steps come out, and that they compute what torch or a formula says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from sscc.compiler.emit.access import LoopAccessErrors
from sscc.compiler.emit.bodies import BodyEmissionErrors
from sscc.compiler.emit.flow import FlowErrors
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry
from sscc.ir.operations import UpdateRows
from sscc.ir.schedule import Product, Reduction, Scalar
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.support.scalars import ScalarArithmeticErrors
from tests.compiler.backend.programs import GEOMETRY, emit, entry, launched, run, steps
from tests.errors import raises

FILLED = """
%zero = arith.constant 0.0 : f32
%empty = tensor.empty() : tensor<{0}>
%init = linalg.fill ins(%zero : f32) outs(%empty : tensor<{0}>) -> tensor<{0}>
"""


def generic(inputs: str, types: str, out: str, maps: str, iterators: str, body: str, init: str = "%empty") -> str:
    """A linalg.generic that makes %out; `maps` are affine results by operand, separated by ``;``."""
    dims = ", ".join(f"d{i}" for i in range(len(iterators)))
    listed = ", ".join(f"affine_map<({dims}) -> ({results.strip()})>" for results in maps.split(";"))
    kinds = ", ".join({"p": '"parallel"', "r": '"reduction"'}[kind] for kind in iterators)
    tensor_types = ", ".join(f"tensor<{type_}>" for type_ in types.split())
    names = ", ".join(f"%{name}" for name in inputs.split())
    ins = f"ins({names} : {tensor_types})" if names else ""
    scalars = [type_.rpartition("x")[2] for type_ in [*types.split(), out]]
    arguments = ", ".join(f"%{'abc'[i] if i < len(scalars) - 1 else 'o'}: {t}" for i, t in enumerate(scalars))
    return (
        f"%out = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{kinds}]}} {ins} "
        f"outs({init} : tensor<{out}>) {{\n^bb0({arguments}):\n{body}\n}} -> tensor<{out}>"
    )


# ------------------------------------------------------------------------------------------------- products


def test_a_matmul_is_a_product() -> None:
    work = FILLED.format("2x5xf32") + (
        "%out = linalg.matmul ins(%x, %y : tensor<2x3xf32>, tensor<3x5xf32>) outs(%init : tensor<2x5xf32>) "
        "-> tensor<2x5xf32>"
    )
    program = emit(entry("x: 2x3xf32, y: 3x5xf32", "2x5xf32", work))
    (step,) = steps(program)
    assert isinstance(step, Product)
    assert (step.dims, step.reduce) == ((2, 5, 3), (2,))
    x, y = torch.randn(2, 3), torch.randn(3, 5)
    torch.testing.assert_close(run(program, x=x, y=y), x @ y)


def test_a_transposed_weight_is_a_window() -> None:
    work = FILLED.format("2x5xf32") + (
        "%e = tensor.empty() : tensor<3x5xf32>\n"
        "%t = linalg.transpose ins(%y : tensor<5x3xf32>) outs(%e : tensor<3x5xf32>) permutation = [1, 0]\n"
        "%out = linalg.matmul ins(%x, %t : tensor<2x3xf32>, tensor<3x5xf32>) outs(%init : tensor<2x5xf32>) "
        "-> tensor<2x5xf32>"
    )
    program = emit(entry("x: 2x3xf32, y: 5x3xf32", "2x5xf32", work))
    assert [type(step) for step in steps(program)] == [Product]
    (launch,) = program.entry("main").body
    assert launch.args[1].strides == (1, 3)
    x, y = torch.randn(2, 3), torch.randn(5, 3)
    torch.testing.assert_close(run(program, x=x, y=y), x @ y.T)


def test_a_product_of_bf16_accumulates_wider() -> None:
    body = "%u = arith.extf %a : bf16 to f32\n%v = arith.extf %b : bf16 to f32\n"
    body += "%p = arith.mulf %u, %v : f32\n%s = arith.addf %o, %p : f32\nlinalg.yield %s : f32"
    work = FILLED.format("2x5xf32") + generic(
        "x y", "2x3xbf16 3x5xbf16", "2x5xf32", "d0, d2; d2, d1; d0, d1", "ppr", body, "%init"
    )
    program = emit(entry("x: 2x3xbf16, y: 3x5xbf16", "2x5xf32", work))
    assert isinstance(steps(program)[0], Product)
    x, y = torch.randn(2, 3).bfloat16(), torch.randn(3, 5).bfloat16()
    torch.testing.assert_close(run(program, x=x, y=y), x.float() @ y.float())


def test_a_square_is_not_a_product_of_two() -> None:
    """A norm's sum of squares reads one tensor: a reduction with a body."""
    body = "%p = arith.mulf %a, %a : f32\n%s = arith.addf %p, %o : f32\nlinalg.yield %s : f32"
    work = FILLED.format("2xf32") + generic("x", "2x3xf32", "2xf32", "d0, d1; d0", "pr", body, "%init")
    program = emit(entry("x: 2x3xf32", "2xf32", work))
    (step,) = steps(program)
    assert isinstance(step, Reduction)
    assert [i.op for i in step.body] == ["mulf"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(run(program, x=x), x.square().sum(1))


def test_a_product_that_starts_from_one_is_a_reduction() -> None:
    body = "%p = arith.mulf %a, %b : f32\n%s = arith.addf %o, %p : f32\nlinalg.yield %s : f32"
    filled = FILLED.format("2xf32").replace("0.0", "1.0")
    work = filled + generic("x y", "2x3xf32 2x3xf32", "2xf32", "d0, d1; d0, d1; d0", "pr", body, "%init")
    program = emit(entry("x: 2x3xf32, y: 2x3xf32", "2xf32", work))
    assert isinstance(steps(program)[0], Reduction)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(run(program, x=x, y=y), 1 + (x * y).sum(1))


# ----------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize(
    ("op", "start", "combine", "expected"),
    [
        ("maximumf", "0xFF800000", "maximumf", lambda x: x.amax(1)),
        ("maxnumf", "0xFF800000", "maximumf", lambda x: x.amax(1)),
        ("minimumf", "0x7F800000", "minimumf", lambda x: x.amin(1)),
        ("addf", "0.0", "addf", lambda x: x.sum(1)),
        ("mulf", "1.0", "mulf", lambda x: x.prod(1)),
    ],
)
def test_reductions(op: str, start: str, combine: str, expected: object) -> None:
    body = f"%s = arith.{op} %a, %o : f32\nlinalg.yield %s : f32"
    work = FILLED.format("2xf32").replace("0.0", start) + generic(
        "x", "2x5xf32", "2xf32", "d0, d1; d0", "pr", body, "%init"
    )
    program = emit(entry("x: 2x5xf32", "2xf32", work))
    (step,) = steps(program)
    assert isinstance(step, Reduction)
    assert (step.combine, step.body, step.result) == (combine, (), "in0")
    x = torch.randn(2, 5)
    torch.testing.assert_close(run(program, x=x), expected(x))  # type: ignore[operator]


# -------------------------------------------------------------------------------------------- vector programs


def test_an_embedding_is_a_load() -> None:
    body = "%i = arith.index_cast %a : i64 to index\n%j = linalg.index 1 : index\n"
    body += "%v = tensor.extract %table[%i, %j] : tensor<7x4xf32>\nlinalg.yield %v : f32"
    work = "%empty = tensor.empty() : tensor<3x4xf32>\n" + generic(
        "ids", "3xi64", "3x4xf32", "d0; d0, d1", "pp", body
    )
    program = emit(entry("ids: 3xi64, table: 7x4xf32", "3x4xf32", work))
    (step,) = steps(program)
    assert [i.op for i in step.body] == ["index_cast", "index", "load"]
    ids, table = torch.tensor([6, 0, 3]), torch.randn(7, 4)
    assert torch.equal(run(program, ids=ids, table=table), table[ids])


def test_broadcasts_and_literals() -> None:
    """A constant map row reads index 0; a filled input becomes a literal of the body."""
    body = "%s = arith.subf %a, %b : f32\n%t = arith.mulf %s, %c : f32\nlinalg.yield %t : f32"
    work = (
        "%two = arith.constant 2.0 : f32\n%e = tensor.empty() : tensor<3x4xf32>\n"
        "%f = linalg.fill ins(%two : f32) outs(%e : tensor<3x4xf32>) -> tensor<3x4xf32>\n"
        "%empty = tensor.empty() : tensor<3x4xf32>\n"
        + generic("x y f", "3x4xf32 3x1xf32 3x4xf32", "3x4xf32", "d0, d1; d0, 0; d0, d1; d0, d1", "pp", body)
    )
    program = emit(entry("x: 3x4xf32, y: 3x1xf32", "3x4xf32", work))
    (step,) = steps(program)
    assert len(step.inputs) == 2
    assert step.body[1].args == ("v0", 2.0)
    x, y = torch.randn(3, 4), torch.randn(3, 1)
    torch.testing.assert_close(run(program, x=x, y=y), (x - y) * 2)


def test_flags_and_their_literals() -> None:
    body = "%t = arith.constant true\n%n = arith.xori %a, %t : i1\nlinalg.yield %n : i1"
    work = "%empty = tensor.empty() : tensor<4xi1>\n" + generic("x", "4xi1", "4xi1", "d0; d0", "p", body)
    program = emit(entry("x: 4xi1", "4xi1", work))
    x = torch.tensor([True, False, False, True])
    assert torch.equal(run(program, x=x), ~x)


def test_a_constant_result_is_written() -> None:
    body = "linalg.yield %a : f32"
    work = (
        "%two = arith.constant dense<2.5> : tensor<3xf32>\n%empty = tensor.empty() : tensor<3xf32>\n"
        + generic("two", "3xf32", "3xf32", "d0; d0", "p", body)
    )
    program = emit(entry("x: 1xf32", "3xf32", work))
    assert run(program, x=torch.zeros(1)).tolist() == [2.5] * 3


def test_a_concat_is_a_copy_per_part() -> None:
    work = "%out = tensor.concat dim(1) %x, %y : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>"
    program = emit(entry("x: 2x3xf32, y: 2x1xf32", "2x4xf32", work))
    assert [step.dims for step in steps(program)] == [(2, 3), (2, 1)]
    x, y = torch.randn(2, 3), torch.randn(2, 1)
    assert torch.equal(run(program, x=x, y=y), torch.cat([x, y], 1))


# ------------------------------------------------------------------------------------------------------ windows


def test_a_reshape_that_no_window_can_say_is_copied() -> None:
    work = (
        "%e = tensor.empty() : tensor<4x3xf32>\n"
        "%t = linalg.transpose ins(%x : tensor<3x4xf32>) outs(%e : tensor<4x3xf32>) permutation = [1, 0]\n"
        "%out = tensor.collapse_shape %t [[0, 1]] : tensor<4x3xf32> into tensor<12xf32>"
    )
    program = emit(entry("x: 3x4xf32", "12xf32", work))
    assert launched(program.entry("main").body) == ["copy.4x3.f32"]
    x = torch.randn(3, 4)
    assert torch.equal(run(program, x=x), x.T.reshape(-1))


def test_slices_move_nothing() -> None:
    work = (
        "%s = tensor.extract_slice %x[%i, 0, 1] [1, 2, 2] [1, 1, 2] : tensor<3x2x4xf32> to tensor<2x2xf32>\n"
        "%empty = tensor.empty() : tensor<2x2xf32>\n"
        "%out = linalg.exp ins(%s : tensor<2x2xf32>) outs(%empty : tensor<2x2xf32>) -> tensor<2x2xf32>"
    )
    program = emit(entry("x: 3x2x4xf32", "2x2xf32", work, scalars="i"))
    view = program.entry("main").body[0].args[0]
    assert (view.strides, view.offset, view.terms) == ((4, 2), 1, (("i", 8),))
    x = torch.randn(3, 2, 4)
    for i in range(3):
        torch.testing.assert_close(run(program, {"i": i}, x=x), x[i, :, 1::2].exp())


# ------------------------------------------------------------------------------------------------- cache formulas

GEOMETRIES = [
    GEOMETRY,
    Geometry(sink=0, recent=1, topk=0, obs=1, pool=1, pool_mode="avg", max_context=9),
    Geometry(sink=0, recent=3, topk=2, obs=1, pool=1, pool_mode="max", max_context=12),
    Geometry(sink=3, recent=5, topk=1, obs=4, pool=3, pool_mode="avg", max_context=30),
    Geometry(sink=2, recent=4, topk=3, obs=4, pool=3, pool_mode="avg", max_context=24, spare=2),
]


def own_topks(geometry: Geometry) -> list[int]:
    """Numbers of positions that a layer may select."""
    return sorted({0, geometry.topk // 2, geometry.topk})


def base_of(n: int, g: Geometry, topk: int) -> int:
    """The first row of the ring after a prompt of `n` tokens in a layer that selects `topk`."""
    return min(max(n, g.sink), g.sink + topk)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_rows(geometry: Geometry) -> None:
    """Also of a base that is none of this layer: it is the nearest one that is."""
    n = geometry.max_context
    cases = [(p, base) for p in range(n) for base in range(geometry.budget + 2)]
    b = len(cases)
    work = f'%out = "kv.row"(%position, %base, %k) : (tensor<{b}xi64>, tensor<{b}xi64>, index) -> tensor<{b}xi64>'
    program = emit(entry(f"position: {b}xi64, base: {b}xi64", f"{b}xi64", work, scalars="k"), geometry)
    position, base = (torch.tensor(column) for column in zip(*cases, strict=True))
    for topk in own_topks(geometry):
        rows = run(program, {"k": topk}, position=position, base=base).tolist()
        budget = geometry.sink_recent + geometry.spare + topk
        for (p, given), row in zip(cases, rows, strict=True):
            first = base_of(given, geometry, topk)
            assert row == (p if p < first else first + (p - first) % (budget - first)), (p, given, topk)
            assert row == p or first <= row < budget


def seen_rows(p: int, base: int, g: Geometry, topk: int) -> list[bool]:
    """Rows that the query at `p` sees of a cache whose positions were written one by one."""
    held = {}
    for position in range(p + 1):
        row = position if position < base else base + (position - base) % (g.sink_recent + g.spare + topk - base)
        held[row] = position
    newest = p - (g.sink_recent + topk - base)
    return [row in held and (row < base or held[row] > newest) for row in range(g.cache_rows)]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_validity(geometry: Geometry) -> None:
    bases = {0, geometry.sink, geometry.sink + geometry.topk // 2, geometry.budget}
    cases = [(p, base, a) for p in range(geometry.max_context) for base in bases for a in (True, False)]
    b, r = len(cases), geometry.cache_rows
    work = (
        f'%out = "kv.validity"(%position, %base, %active, %k) : '
        f"(tensor<{b}xi64>, tensor<{b}xi64>, tensor<{b}xi1>, index) -> tensor<{b}x{r}xi1>"
    )
    arguments = f"position: {b}xi64, base: {b}xi64, active: {b}xi1"
    program = emit(entry(arguments, f"{b}x{r}xi1", work, scalars="k"), geometry)
    position, base, active = (torch.tensor(column) for column in zip(*cases, strict=True))
    for topk in own_topks(geometry):
        valid = run(program, {"k": topk}, position=position, base=base, active=active)
        for (p, given, a), flags in zip(cases, valid.tolist(), strict=True):
            assert flags == [a and seen for seen in seen_rows(p, base_of(given, geometry, topk), geometry, topk)]


@pytest.mark.parametrize("geometry", [geometry for geometry in GEOMETRIES if geometry.topk])
def test_validity_of_rows_that_an_index_replaces(geometry: Geometry) -> None:
    """The slots of a batch have prompts that select nothing, all that there is room for, or less."""
    g, k = replace(geometry, rows="indexed"), geometry.topk
    chosen = [[-1] * k, list(range(k)), [0] * (k // 2) + [-1] * (k - k // 2)]
    cases = [(p, a, index) for p in range(g.max_context) for a in (True, False) for index in chosen]
    b, r = len(cases), g.cache_rows
    work = (
        f'%out = "kv.validity"(%position, %base, %active, %k, %index) : '
        f"(tensor<{b}xi64>, tensor<{b}xi64>, tensor<{b}xi1>, index, tensor<{b}x2x{k}xi64>) -> tensor<{b}x{r + k}xi1>"
    )
    arguments = f"position: {b}xi64, base: {b}xi64, active: {b}xi1, index: {b}x2x{k}xi64"
    program = emit(entry(arguments, f"{b}x{r + k}xi1", work, scalars="k"), g)
    position, active = (torch.tensor([case[column] for case in cases]) for column in range(2))
    index = torch.tensor([[case[2]] * 2 for case in cases])
    for topk in own_topks(geometry):
        base = torch.full_like(position, g.budget)
        valid = run(program, {"k": topk}, position=position, base=base, active=active, index=index)
        for (p, a, of_slot), flags in zip(cases, valid.tolist(), strict=True):
            seen = [a and flag for flag in seen_rows(p, base_of(g.budget, g, topk), g, topk)]
            there = [g.sink <= row < g.sink + k and of_slot[row - g.sink] >= 0 for row in range(r)]
            expected = [flag and not selected for flag, selected in zip(seen, there, strict=True)]
            expected += [seen[g.sink + j] and there[g.sink + j] for j in range(k)]
            assert flags == expected, (p, a, of_slot, topk)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_kept_positions(geometry: Geometry) -> None:
    g, k, rows = geometry, geometry.topk, geometry.cache_rows
    plain = f'%out = "kv.kept_positions"(%n, %k) : (index, index) -> tensor<2x{rows}xi64>'
    programs = [emit(entry("x: 1xf32", f"2x{rows}xi64", plain, scalars="n k"), g)]
    if k:
        work = f'%out = "kv.kept_positions"(%n, %k, %x) : (index, index, tensor<2x{k}xi64>) -> tensor<2x{rows}xi64>'
        programs += [emit(entry(f"x: 2x{k}xi64", f"2x{rows}xi64", work, scalars="n k"), g)]
    selected = torch.tensor([list(range(50, 50 + k)), list(range(70, 70 + k))])
    for n, topk in itertools.product(range(1, g.max_context + 1), own_topks(g)):
        base, budget = base_of(n, g, topk), g.sink_recent + topk
        fits = n <= budget
        held: dict[int, int] = {}
        for p in range(n):
            if fits or p < g.sink or p >= n - g.recent:
                held[p if p < base else base + (p - base) % (budget + g.spare - base)] = p
        for program, inputs in zip(programs, (torch.zeros(1), selected), strict=False):
            chosen = selected.tolist() if program is not programs[0] else [[-1] * k] * 2
            more = [{} if fits else {g.sink + j: chosen[head][j] for j in range(topk)} for head in range(2)]
            expected = [[{**held, **more[head]}.get(row, -1) for row in range(rows)] for head in range(2)]
            assert run(program, {"n": n, "k": topk}, x=inputs).tolist() == expected, (n, topk)


# --------------------------------------------------------------------------------------------- updates in place

CACHE = "tensor<2x1x9x4xf32>"
UPDATE = f"""
func.func public @main(%new: tensor<2x1x1x4xf32> {{sscc.input = "new"}}, %row: tensor<2xi64> {{sscc.input = "row"}},
    %active: tensor<2xi1> {{sscc.input = "active"}}, %cache: {CACHE} {{sscc.state = "cache"}})
    -> (tensor<2x1x9x4xf32> {{sscc.output = "out"}}, {CACHE} {{sscc.state = "cache"}}) {{
  %updated = "kv.update"(%cache, %new, %row, %active)
    : ({CACHE}, tensor<2x1x1x4xf32>, tensor<2xi64>, tensor<2xi1>) -> {CACHE}
  %empty = tensor.empty() : {CACHE}
  %out = linalg.exp ins(%updated : {CACHE}) outs(%empty : {CACHE}) -> {CACHE}
  return %out, %updated : {CACHE}, {CACHE}
}}
"""


def test_a_state_is_updated_where_it_lies() -> None:
    program = emit(UPDATE)
    assert isinstance(steps(program)[0], UpdateRows)
    assert [p.access for p in program.kernels[0].params] == ["update", "read", "read", "read"]
    assert not any(name.startswith("copy.2x1x9x4") for name in launched(program.entry("main").body)[:1])
    interpreter = ReferenceInterpreter(program, {}, checked=True)
    new = torch.randn(2, 1, 1, 4)
    inputs = {"new": new, "row": torch.tensor([8, 0]), "active": torch.tensor([True, False])}
    outputs, _ = interpreter.run("main", inputs, {})
    expected = torch.zeros(2, 1, 9, 4)
    expected[0, 0, 8] = new[0, 0, 0]
    assert torch.equal(interpreter.tensor("cache"), expected)
    assert torch.equal(outputs["out"], expected.exp())


def test_a_value_read_after_its_update_is_refused() -> None:
    """The update takes place where its operand lies, so nobody may want the old value any more."""
    before = f"%e0 = tensor.empty() : {CACHE}\n%old = linalg.exp ins(%cache : {CACHE}) outs(%e0 : {CACHE}) -> {CACHE}\n"
    program = UPDATE.replace("%updated = ", before + "%updated = ").replace("%cache, %new", "%old, %new")
    emit(program)
    with raises(FlowErrors.OVERWRITTEN):
        emit(program.replace("ins(%updated", "ins(%old"))


@pytest.mark.parametrize(("offset", "refused"), [(0, True), (1, False)])
def test_a_part_read_after_its_update_is_refused(offset: int, refused: bool) -> None:
    """Another view of the same memory is read later: the slot that was updated, or the one beside it."""
    slot = "tensor<1x1x9x4xf32>"
    program = f"""func.func public @main(%cache: {CACHE} {{sscc.state = "cache"}}, %new: {slot} {{sscc.input = "new"}})
    -> ({CACHE} {{sscc.state = "cache"}}, {slot} {{sscc.output = "out"}}) {{
  %old = tensor.extract_slice %cache[{offset}, 0, 0, 0] [1, 1, 9, 4] [1, 1, 1, 1] : {CACHE} to {slot}
  %put = tensor.insert_slice %new into %cache[0, 0, 0, 0] [1, 1, 9, 4] [1, 1, 1, 1] : {slot} into {CACHE}
  %e = tensor.empty() : {slot}
  %out = linalg.exp ins(%old : {slot}) outs(%e : {slot}) -> {slot}
  return %put, %out : {CACHE}, {slot}
}}
"""
    if not refused:
        emit(program)
        return
    with raises(FlowErrors.OVERWRITTEN):
        emit(program)


def test_a_state_read_after_its_update_is_refused() -> None:
    """The same for the caller's state itself, and for a reader inside a loop or behind an insertion."""
    with raises(FlowErrors.OVERWRITTEN):
        emit(UPDATE.replace("ins(%updated", "ins(%cache"))
    nested = f"""%zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out = scf.for %i = %zero to %one step %one iter_args(%x = %updated) -> ({CACHE}) {{
    %y = linalg.exp ins(%cache : {CACHE}) outs(%x : {CACHE}) -> {CACHE}
    scf.yield %y : {CACHE}
  }}"""
    exp = f"%out = linalg.exp ins(%updated : {CACHE}) outs(%empty : {CACHE}) -> {CACHE}"
    assert exp in UPDATE
    with raises(FlowErrors.OVERWRITTEN):
        emit(UPDATE.replace(exp, nested))


# ------------------------------------------------------------------------------------------------------- control

LOOP = """
func.func public @main(%x: tensor<3x4xf32> {sscc.input = "x"}, %n: index {sscc.input = "n"},
    %sum: tensor<4xf32> {sscc.state = "sum"})
    -> (tensor<4xf32> {sscc.output = "out"}, tensor<4xf32> {sscc.state = "sum"}) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %empty = tensor.empty() : tensor<4xf32>
  %total = scf.for %i = %zero to %n step %one iter_args(%t = %sum) -> (tensor<4xf32>) {
    %row = tensor.extract_slice %x[%i, 0] [1, 4] [1, 1] : tensor<3x4xf32> to tensor<4xf32>
    %next = linalg.add ins(%t, %row : tensor<4xf32>, tensor<4xf32>) outs(%empty : tensor<4xf32>) -> tensor<4xf32>
    scf.yield %next : tensor<4xf32>
  }
  %some = arith.cmpi sgt, %n, %one : index
  %kept = scf.if %some -> (tensor<4xf32>) {
    %e = linalg.exp ins(%total : tensor<4xf32>) outs(%empty : tensor<4xf32>) -> tensor<4xf32>
    scf.yield %e : tensor<4xf32>
  } else {
    scf.yield %total : tensor<4xf32>
  }
  %out = linalg.add ins(%kept, %kept : tensor<4xf32>, tensor<4xf32>) outs(%empty : tensor<4xf32>) -> tensor<4xf32>
  return %out, %kept : tensor<4xf32>, tensor<4xf32>
}
"""


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_loops_and_branches(n: int) -> None:
    interpreter = ReferenceInterpreter(emit(LOOP), {}, checked=True)
    x = torch.randn(3, 4)
    state = torch.zeros(4)
    for _ in range(2):
        outputs, _ = interpreter.run("main", {"x": x}, {"n": n})
        state = state + x[:n].sum(0)
        state = state.exp() if n > 1 else state
        torch.testing.assert_close(outputs["out"], 2 * state)
        torch.testing.assert_close(interpreter.tensor("sum"), state)


def test_values_that_trade_places_are_refused() -> None:
    """Copying one carried value over the other would lose the latter."""
    swap = """
func.func public @main(%n: index {sscc.input = "n"}, %a: tensor<4xf32> {sscc.state = "a"},
    %b: tensor<4xf32> {sscc.state = "b"})
    -> (tensor<4xf32> {sscc.state = "a"}, tensor<4xf32> {sscc.state = "b"}) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %r:2 = scf.for %i = %zero to %n step %one iter_args(%x = %a, %y = %b) -> (tensor<4xf32>, tensor<4xf32>) {
    scf.yield %y, %x : tensor<4xf32>, tensor<4xf32>
  }
  return %r#0, %r#1 : tensor<4xf32>, tensor<4xf32>
}
"""
    with raises(FlowErrors.SWAPPED):
        emit(swap)


def test_scalars() -> None:
    work = (
        "%two = arith.constant 2 : index\n%c = arith.ceildivsi %n, %two : index\n%m = arith.minsi %c, %two : index\n"
        "%out = tensor.extract_slice %x[%m] [1] [1] : tensor<4xf32> to tensor<1xf32>"
    )
    program = emit(entry("x: 4xf32", "1xf32", work, scalars="n"))
    x = torch.arange(4.0)
    assert [int(run(program, {"n": n}, x=x)) for n in range(6)] == [0, 1, 1, 2, 2, 2]


TABLE = "%t = arith.constant dense<[2, 0, 3, 0]> : tensor<4xindex>\n%m = tensor.extract %t[%n] : tensor<4xindex>\n"
TAKEN = "%out = tensor.extract_slice %x[%m] [1] [1] : tensor<4xf32> to tensor<1xf32>"


def test_a_number_of_a_table_is_looked_up() -> None:
    program = emit(entry("x: 4xf32", "1xf32", TABLE + TAKEN, scalars="n"))
    (lookup,) = [item for item in program.entries[0].body if isinstance(item, Scalar)]
    assert (lookup.op, lookup.args) == ("lookup", ("n", 2, 0, 3, 0))
    x = torch.arange(4.0)
    assert [int(run(program, {"n": n}, x=x)) for n in range(4)] == [2, 0, 3, 0]
    with raises(ScalarArithmeticErrors.LOOKUP_OUT_OF_RANGE, index=4, entries=4):
        run(program, {"n": 4}, x=x)


def test_a_table_of_more_than_one_axis_is_refused() -> None:
    table = "%t = arith.constant dense<[[2, 0], [3, 0]]> : tensor<2x2xindex>\n"
    found = "%m = tensor.extract %t[%n, %n] : tensor<2x2xindex>\n"
    with raises(FlowErrors.TABLE_NOT_CONSTANT, op="tensor.extract"):
        emit(entry("x: 4xf32", "1xf32", table + found + TAKEN, scalars="n"))


# -------------------------------------------------------------------------------------------------------- refusals

LOCATION = 'loc("layers.0"("model.py":7:0))'
REDUCED = "%s = arith.{} %a, %o : {}\nlinalg.yield %s : {}"
REFUSED = {
    "no step": (
        "x: 4xf32",
        "6xf32",
        "%c = arith.constant 0.0 : f32\n"
        "%out = tensor.pad %x low[1] high[1] {\n^bb0(%i: index):\n  tensor.yield %c : f32\n"
        f"}} : tensor<4xf32> to tensor<6xf32> {LOCATION}",
        BodyEmissionErrors.OPERATION,
        {"op": "tensor.pad"},
    ),
    "start tensor": (
        "x: 2x4xf32, y: 2xf32",
        "2xf32",
        generic("x", "2x4xf32", "2xf32", "d0, d1; d0", "pr", REDUCED.format(*["addf", "f32", "f32"]), "%y") + LOCATION,
        BodyEmissionErrors.START,
        {},
    ),
    "combiner": (
        "x: 2x4xi64",
        "2xi64",
        "%c = arith.constant dense<0> : tensor<2xi64>\n"
        + generic("x", "2x4xi64", "2xi64", "d0, d1; d0", "pr", REDUCED.format(*["xori", "i64", "i64"]), "%c")
        + LOCATION,
        BodyEmissionErrors.COMBINER,
        {"op": "arith.xori"},
    ),
    "element type": (
        "x: 4xf64",
        "4xf64",
        "%empty = tensor.empty() : tensor<4xf64>\n"
        f"%out = linalg.exp ins(%x : tensor<4xf64>) outs(%empty : tensor<4xf64>) -> tensor<4xf64> {LOCATION}",
        BodyEmissionErrors.DTYPE,
        {"dtype": "f64", "dtypes": ["f32", "bf16", "i64", "i8", "i1"]},
    ),
    "literal tensor": (
        "x: 2xf32",
        "2xf32",
        "%c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>\n%empty = tensor.empty() : tensor<2xf32>\n"
        "%out = linalg.add ins(%x, %c : tensor<2xf32>, tensor<2xf32>) outs(%empty : tensor<2xf32>) "
        f"-> tensor<2xf32> {LOCATION}",
        BodyEmissionErrors.TENSOR_LITERAL,
        {},
    ),
    "access": (
        "x: 4xf32",
        "8xf32",
        "%empty = tensor.empty() : tensor<8xf32>\n"
        + generic("x", "4xf32", "8xf32", "d0 floordiv 2; d0", "p", "linalg.yield %a : f32")
        + LOCATION,
        LoopAccessErrors.NOT_AFFINE,
        {"expression": "d0 floordiv 2"},
    ),
}


@pytest.mark.parametrize(("arguments", "result", "work", "kind", "fields"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_the_source(
    arguments: str, result: str, work: str, kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, origin="layers.0 (model.py:7): ", **fields):
        emit(entry(arguments, result, work))
