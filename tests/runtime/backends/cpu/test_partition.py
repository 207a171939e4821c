"""Units: which steps run without a barrier, that units are independent, and that they cover everything once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sscc.ir.schedule import Access, Body, Instr, Local, Product, Reduction, Vector, View, Window
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.codegen import bodies
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest, Regions, is_tangled, nest_of, untangle
from sscc.runtime.backends.cpu.codegen.partition import Member, Split, StepGroup, group_steps
from sscc.runtime.backends.cpu.products.matmul import panels_for
from sscc.runtime.backends.cpu.products.packing import Panels
from tests.runtime.backends.cpu.harness_bodies import NativeBody, access, body_of, check
from tests.runtime.backends.cpu.random_bodies import RandomBody
from tests.runtime.schedules import identity

M, K, N = 3, 24, 48
MULTIPLY = (Instr("r", "mulf", ("in0", "in1"), "f32"),)
ADD = (Instr("r", "addf", ("in0", "in1"), "f32"),)


def nests_of(body: Body) -> list[tuple[int, Nest]]:
    """The steps of a body as its lowering numbers them."""
    regions = Regions(body, {p.name: dense_strides(p.shape) for p in body.params})
    numbered: list[tuple[int, Nest]] = []
    for number, step in enumerate(body.steps):
        assert isinstance(step, Vector | Reduction | Product)
        nest = nest_of(step, regions)
        parts = untangle(nest, f"temporary.{number}") if is_tangled(nest) else (nest,)
        numbered += [(2 * number + n, part) for n, part in enumerate(parts)]
    return numbered


def groups_of(body: Body) -> list[StepGroup]:
    return group_steps(nests_of(body))


def product(a: str, b: str, out: str, m: int, n: int, k: int) -> Product:
    """out[m, n] = sum over k of a[m, k] * b[n, k]."""
    rows = identity(3)
    return Product((m, n, k), (2,), Access(a, (rows[0], rows[2])), Access(b, (rows[1], rows[2])), Access(out, rows[:2]))


def both(a: str, b: str, out: str, *dims: int, program: tuple[Instr, ...] = MULTIPLY) -> Vector:
    whole = identity(len(dims))
    return Vector(dims, (Access(a, whole), Access(b, whole)), Access(out, whole), program, "r")


# ------------------------------------------------------------------------------------------- what belongs together


def test_an_epilogue_runs_with_its_product() -> None:
    """Columns, a bias and a gate: one function of three panels, nothing in shared scratch."""
    inputs = {"x": torch.randn(M, K), "w": torch.randn(N, K), "bias": torch.randn(N), "gate": torch.randn(M, N)}
    writes = {"y": torch.zeros(M, N)}
    rows = identity(2)
    bias = Vector((M, N), (Access("h", rows), access("bias", (0, 1, 0))), Access("g", rows), ADD, "r")
    steps = (product("x", "w", "h", M, N, K), bias, both("g", "gate", "y", M, N))
    locals_ = (Local("h", (M, N), "f32"), Local("g", (M, N), "f32"))
    body = body_of(steps, inputs, writes, locals_=locals_)
    native = check(body, inputs, writes, packed={"w": Panels(N, K, "f32", K, 1)})
    assert native.units == [N // 16]
    assert native.code.shared_bytes == 0


def test_two_products_and_the_gate_between_them() -> None:
    """As in a gated MLP: both products and the gate in one function."""
    inputs = {"x": torch.randn(M, K), "up": torch.randn(N, K), "gate": torch.randn(N, K)}
    writes = {"y": torch.zeros(M, N)}
    steps = (product("x", "up", "u", M, N, K), product("x", "gate", "g", M, N, K), both("u", "g", "y", M, N))
    locals_ = (Local("u", (M, N), "f32"), Local("g", (M, N), "f32"))
    panels = Panels(N, K, "f32", K, 1)
    native = check(
        body_of(steps, inputs, writes, locals_=locals_), inputs, writes, packed={"up": panels, "gate": panels}
    )
    assert native.units == [3]


@pytest.mark.parametrize(("left", "packings"), [(("x", "x"), 1), (("x", "z"), 2)])
def test_products_of_one_input_share_its_packed_rows(left: tuple[str, str], packings: int) -> None:
    """They are packed before the first block of units, so that no block packs them again."""
    shapes = {"x": (M, K), "z": (M, K), "up": (N, K), "gate": (N, K)}
    inputs = {name: torch.randn(*shapes[name]) for name in dict.fromkeys((*left, "up", "gate"))}
    writes = {"y": torch.zeros(M, N)}
    steps = (product(left[0], "up", "u", M, N, K), product(left[1], "gate", "g", M, N, K), both("u", "g", "y", M, N))
    locals_ = (Local("u", (M, N), "f32"), Local("g", (M, N), "f32"))
    body, panels = body_of(steps, inputs, writes, locals_=locals_), Panels(N, K, "f32", K, 1)
    packed = {"up": panels, "gate": panels}
    check(body, inputs, writes, packed=packed)
    strides = tuple(dense_strides(p.shape) for p in body.params)
    variant = bodies.Variant(body, strides, tuple(packed.items()), None)
    bodies.lower_body(module := Module(), "body", variant, Features.of_host())
    assert module.text().count('call @"product_pack') == packings


def test_rows_stay_packed_from_call_to_call() -> None:
    """As long as the left operand has the same address; another run packs it again."""
    x, w = torch.randn(M, K), torch.randn(N, K)
    body = body_of((product("x", "w", "y", M, N, K),), {"x": x, "w": w}, {"y": torch.zeros(M, N)})
    panels = Panels(N, K, "f32", K, 1)
    native = NativeBody(body, packed={"w": panels})
    y = np.zeros((M, N), np.float32)
    memory = {"x": x.numpy().copy(), "w": panels.pack(w.numpy()), "y": y}

    def changed_between(units: int) -> Iterator[tuple[int, int]]:
        yield 0, 1
        memory["x"] *= 2
        yield 1, units

    product_of = (x @ w.T).numpy()
    native.run(memory, shares=changed_between, keep=True)
    assert np.allclose(y, product_of, atol=1e-5)
    native.run(memory, keep=True)
    assert np.allclose(y, 2 * product_of, atol=1e-5)


def test_a_product_of_what_was_just_made_waits_for_it() -> None:
    """A unit of the second product needs all columns of the first one."""
    inputs = {"x": torch.randn(M, K), "a": torch.randn(N, K), "b": torch.randn(64, N)}
    writes = {"y": torch.zeros(M, 64)}
    steps = (product("x", "a", "h", M, N, K), product("h", "b", "y", M, 64, N))
    packed = {"a": Panels(N, K, "f32", K, 1), "b": Panels(64, N, "f32", N, 1)}
    body = body_of(steps, inputs, writes, locals_=(Local("h", (M, N), "f32"),))
    native = check(body, inputs, writes, packed=packed)
    assert native.units == [3, 4]
    assert native.code.shared_bytes == M * N * 4


HEADS, WIDTH = 4, 32


def test_heads_run_with_their_rotary_embedding() -> None:
    """A product gives [rows, heads * width]; halves of heads are rotated and written as [heads, rows, width]."""
    inputs = {"x": torch.randn(M, K), "w": torch.randn(HEADS * WIDTH, K), "cos": torch.randn(M, WIDTH)}
    writes = {"y": torch.zeros(HEADS, M, WIDTH)}
    half = (M, HEADS, WIDTH // 2)
    strides = (HEADS * WIDTH, WIDTH, 1)
    windows = tuple(Window(n, View("h", half, strides, at)) for n, at in (("low", 0), ("high", WIDTH // 2)))
    turned = tuple(
        Vector(
            half,
            (
                Access("low", identity(3)),
                Access("high", identity(3)),
                access("cos", (1, 0, 0, 0), (0, 0, 1, at)),
            ),
            access("y", (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 1, at)),
            (Instr("a", "mulf", (first, "in2"), "f32"), Instr("r", op, ("a", second), "f32")),
            "r",
        )
        for at, op, first, second in ((0, "subf", "in0", "in1"), (WIDTH // 2, "addf", "in1", "in0"))
    )
    steps = (product("x", "w", "h", M, HEADS * WIDTH, K), *turned)
    locals_ = (Local("h", (M, HEADS * WIDTH), "f32"),)
    body = body_of(steps, inputs, writes, locals_=locals_, windows=windows)
    native = check(body, inputs, writes, packed={"w": Panels(HEADS * WIDTH, K, "f32", K, 1)})
    assert native.units == [HEADS]


def test_rows_of_a_norm() -> None:
    """Squares, their sum, and the scaled row: a unit is a row, and the sum needs no shared scratch."""
    inputs, writes = {"x": torch.randn(20, 24)}, {"y": torch.zeros(20, 24)}
    rows = identity(2)
    steps = (
        both("x", "x", "s", 20, 24),
        Reduction((20, 24), (1,), (Access("s", rows),), access("t", (1, 0, 0)), (), "in0", "addf", 0.0),
        Vector((20, 24), (Access("x", rows), access("t", (1, 0, 0))), Access("y", rows), MULTIPLY, "r"),
    )
    locals_ = (Local("s", (20, 24), "f32"), Local("t", (20,), "f32"))
    native = check(body_of(steps, inputs, writes, locals_=locals_), inputs, writes)
    assert len(native.units) == 1
    assert native.units[0] >= 2
    assert native.code.shared_bytes == 0


def test_a_norm_of_many_rows_does_not_hold_back_the_product_after_it() -> None:
    """Rows of the norm and columns of the product are no common units."""
    m = 8
    inputs, writes = {"x": torch.randn(m, K), "w": torch.randn(N, K)}, {"y": torch.zeros(m, N)}
    rows = identity(2)
    steps = (
        Reduction((m, K), (1,), (Access("x", rows),), access("t", (1, 0, 0)), (), "in0", "addf", 0.0),
        Vector((m, K), (Access("x", rows), access("t", (1, 0, 0))), Access("n", rows), MULTIPLY, "r"),
        product("n", "w", "y", m, N, K),
    )
    locals_ = (Local("t", (m,), "f32"), Local("n", (m, K), "f32"))
    body = body_of(steps, inputs, writes, locals_=locals_)
    native = check(body, inputs, writes, packed={"w": Panels(N, K, "f32", K, 1)})
    assert native.units == [m, N // 16]


def test_independent_steps_with_as_many_units_run_together() -> None:
    """Two products of one input that share nothing else; and with unequal units, apart."""
    for other, units in ((N, [3]), (80, [3, 5])):
        inputs = {"x": torch.randn(M, K), "a": torch.randn(N, K), "b": torch.randn(other, K)}
        writes = {"y": torch.zeros(M, N), "z": torch.zeros(M, other)}
        steps = (product("x", "a", "y", M, N, K), product("x", "b", "z", M, other, K))
        packed = {"a": Panels(N, K, "f32", K, 1), "b": Panels(other, K, "f32", K, 1)}
        native = check(body_of(steps, inputs, writes), inputs, writes, packed=packed)
        assert native.units == units


def test_a_value_that_every_unit_reads_is_not_written_in_the_group() -> None:
    """A gather may read any element that the step before has written."""
    inputs, writes = {"x": torch.randn(40, 16), "rows": torch.randint(0, 40, (40,))}, {"y": torch.zeros(40, 16)}
    gather = (Instr("j", "index", (1,), "index"), Instr("r", "load", ("h", "in0", "j"), "f32"))
    steps = (
        both("x", "x", "h", 40, 16),
        Vector((40, 16), (access("rows", (1, 0, 0)),), Access("y", identity(2)), gather, "r"),
    )
    native = check(body_of(steps, inputs, writes, locals_=(Local("h", (40, 16), "f32"),)), inputs, writes)
    assert len(native.units) == 2
    assert min(native.units) >= 2


def test_a_step_that_reads_what_it_overwrites_elsewhere() -> None:
    """Examples are a transposition in place and a running difference."""
    writes = {"x": torch.randn(20, 20), "d": torch.randn(33)}
    steps = (
        Vector((20, 20), (access("x", (0, 1, 0), (1, 0, 0)),), Access("x", identity(2)), (), "in0"),
        Vector(
            (32,),
            (Access("d", ((1, 0),)), Access("d", ((1, 1),))),
            Access("d", ((1, 0),)),
            (Instr("r", "subf", ("in0", "in1"), "f32"),),
            "r",
        ),
        Reduction(
            (20, 20), (1,), (Access("x", identity(2)),), access("x", (1, 0, 0), (0, 0, 7)), (), "in0", "addf", 0.0
        ),
    )
    check(body_of(steps, {}, writes), {}, writes)


def test_splits_of_a_group() -> None:
    """Elements of a region belong to units as the split says; a unit is a whole panel."""
    body = body_of(
        (product("x", "w", "h", M, 40, K), both("h", "h", "y", M, 40)),
        {"x": torch.zeros(M, K), "w": torch.zeros(40, K)},
        {"y": torch.zeros(M, 40)},
        locals_=(Local("h", (M, 40), "f32"),),
    )
    (group,) = groups_of(body)
    assert group.units == 3  # two whole panels and a half
    assert group.splits == {"h": Split(16, 40), "y": Split(16, 40)}
    assert [member.granule for member in group.members.values()] == [16, 16]


# ---------------------------------------------------------------------------------------------------- properties


def points(member: Member, unit: int) -> Iterator[tuple[int, ...]]:
    """Return the indices of a member that a unit computes."""
    ranges = [range(extent) for extent in member.nest.dims]
    if member.dim >= 0:
        first = unit * member.granule
        ranges[member.dim] = range(first, min(first + member.granule, member.nest.dims[member.dim]))
    return itertools.product(*ranges)


def element(a: LinearAccess, index: tuple[int, ...]) -> int:
    return a.constant + sum(c * i for c, i in zip(a.coefficients, index, strict=True))


def touched(a: LinearAccess, member: Member, unit: int) -> set[int]:
    return {element(a, index) for index in points(member, unit)}


@pytest.mark.parametrize("seed", range(150))
def test_units_cover_everything_once_and_need_no_other_unit(seed: int) -> None:
    """By trying every element of small bodies: what the definition of a group promises."""
    nests = nests_of(RandomBody(seed, elements=500).body)
    groups = group_steps(nests)
    assert [n for g in groups for n in g.members] == [n for n, _ in nests]
    whole = dict(nests)
    for group in groups:
        written: dict[str, list[set[int]]] = {}
        for number, member in group.members.items():
            out = [touched(member.nest.output, member, unit) for unit in range(group.units)]
            everything = touched(whole[number].output, Member(whole[number], -1, 0), 0)
            assert set().union(*out) == everything, "something is left out"
            assert sum(map(len, out)) == len(everything), "two units write one element"
            regions = written.setdefault(member.nest.output.region, [set() for _ in range(group.units)])
            for unit, elements in enumerate(out):
                regions[unit] |= elements
        for region, units in written.items():
            if group.units > 1:
                split = group.splits[region]
                assert all(o % split.span // split.stride == u for u, elements in enumerate(units) for o in elements)
        for member in group.members.values():
            for read in (a for a in member.nest.accesses if a.region in written):
                for unit in range(group.units):
                    others = set().union(*(e for u, e in enumerate(written[read.region]) if u != unit))
                    assert not touched(read, member, unit) & others, "a unit touches what another one writes"


@pytest.mark.parametrize("seed", range(40))
def test_random_bodies_compute_what_the_reference_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits for every way to share units out.

    Every second time weights are packed where they can be; for half of the bodies, blocks are one or a few units.
    """
    monkeypatch.setattr(bodies, "L2_BYTES", (1, 300, 1 << 20, 1 << 20)[seed // 2 % 4])
    random_body = RandomBody(1000 + seed)
    products = [nest for _, nest in nests_of(random_body.body) if nest.product and seed % 2]
    panels = {nest.inputs[1].region: panels_for(nest, "f32") for nest in products}
    packed = {name: packing for name, packing in panels.items() if packing is not None}
    check(random_body.body, random_body.inputs, random_body.writes, packed=packed, tolerance=2e-5)
