"""Steps as loop nests: windows and strides multiplied out, dimensions left out and merged, tangled steps as two."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from sscc.ir.operations import Select
from sscc.ir.schedule import Access, Body, Instr, Local, Param, Product, Reduction, Vector, View, Window
from sscc.ir.sizes import dense_strides
from sscc.runtime.backends.cpu.codegen.nests import (
    Gathered,
    LinearAccess,
    NativeStrideErrors,
    NativeWindowErrors,
    Nest,
    Regions,
    is_dense,
    is_tangled,
    merged,
    merged_around,
    nest_of,
    untangle,
)
from tests.errors import raises
from tests.runtime.backends.cpu.harness_bodies import access
from tests.runtime.backends.cpu.random_bodies import RandomBody
from tests.runtime.schedules import identity


def regions(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, *windows: Window) -> Regions:
    """Regions of a body with a parameter `x` that may be strided, a local `h` and a dense `y` of the same shape."""
    params = (Param("x", shape, "f32", "read"), Param("y", shape, "bf16", "write"))
    body = Body("b", params, (), (Local("h", shape, "i64"),), windows, ())
    return Regions(body, {"x": strides or dense_strides(shape), "y": dense_strides(shape)})


def copy(dims: tuple[int, ...], source: Access, target: Access) -> Vector:
    return Vector(dims, (source,), target, (), "in0")


def elements(nest: Nest) -> set[tuple[int, ...]]:
    """Return the elements that all accesses of a nest touch, for each point."""
    return {
        tuple(a.constant + sum(c * i for c, i in zip(a.coefficients, index, strict=True)) for a in nest.accesses)
        for index in itertools.product(*map(range, nest.dims))
    }


def original_index(nest: Nest, index: tuple[int, ...]) -> tuple[int, ...]:
    """The indices of the step as written at a point of its nest."""
    return tuple(index[d] // divisor % extent for d, divisor, extent in nest.original)


# ------------------------------------------------------------------------------------------------------ regions


def test_names_have_shapes_strides_and_dtypes() -> None:
    whole = View("y", (6, 2), (2, 1), 0)
    known = regions((3, 4), (100, 1), Window("w", whole))
    assert known.resolve("x") == Gathered("x", 0, (3, 4), (100, 1))
    assert known.resolve("h") == Gathered("h", 0, (3, 4), (4, 1))
    assert known.resolve("w") == Gathered("y", 0, (6, 2), (2, 1))
    assert [known.dtype(name) for name in ("x", "h", "w")] == ["f32", "i64", "bf16"]
    known.add("temporary", (5, 2), "f32")
    assert known.resolve("temporary") == Gathered("temporary", 0, (5, 2), (2, 1))


def test_names_of_a_step_that_is_not_affine() -> None:
    assert regions((3, 4)).names_in(Select("x", "y", "n", "top", 1, 2)) == ["x", "y"]


def test_windows_need_dense_memory_and_no_terms() -> None:
    with raises(NativeStrideErrors.WINDOW_NOT_DENSE, window="w", tensor="x"):
        regions((3, 4), (100, 1), Window("w", View("x", (12,), (1,)))).resolve("w")
    with raises(NativeWindowErrors.DYNAMIC, window="w"):
        regions((3, 4), None, Window("w", View("x", (4,), (1,), 0, (("t", 4),)))).resolve("w")


@pytest.mark.parametrize(
    ("shape", "strides", "answer"),
    [
        ((3, 4), (4, 1), True),
        ((3, 1, 4), (4, 77, 1), True),
        ((3, 4), (5, 1), False),
        ((), (), True),
        ((1,), (9,), True),
        ((2,), (2,), False),
    ],
)
def test_is_dense(shape: tuple[int, ...], strides: tuple[int, ...], answer: bool) -> None:
    assert is_dense(shape, strides) is answer


# -------------------------------------------------------------------------------------------------------- nests


def test_maps_windows_and_strides_are_multiplied_out() -> None:
    """y[i, j] = x[2 j + 1, i], where x has rows of 100 elements and y is seen through a window."""
    window = Window("w", View("y", (5, 3), (4, 1), 2))
    nest = nest_of(
        copy((3, 2), access("x", (0, 2, 1), (1, 0, 0)), access("w", (0, 1, 0), (1, 0, 0))),
        regions((6, 4), (100, 1), window),
    )
    assert nest.dims == (3, 2)
    assert nest.inputs == (LinearAccess("x", 100, (1, 200)),)
    assert nest.output == LinearAccess("y", 2, (1, 4))


def test_dimensions_of_extent_1_are_left_out() -> None:
    step = copy((1, 3, 1, 4), Access("x", identity(4)), Access("y", identity(4)))
    nest = nest_of(step, regions((1, 3, 1, 4)))
    assert nest.dims == (3, 4)
    assert nest.output.coefficients == (4, 1)
    assert original_index(nest, (2, 3)) == (0, 2, 0, 3)
    alone = nest_of(copy((1, 1), Access("x", identity(2)), Access("y", identity(2))), regions((1, 1)))
    assert alone.dims == (1,)


def test_what_looks_different_is_the_same() -> None:
    """[1, 6, 4] here and [6, 4] as 24 elements there."""
    a = nest_of(copy((1, 6, 4), Access("x", identity(3)), Access("y", identity(3))), regions((1, 6, 4)))
    b = nest_of(copy((24,), Access("x", identity(1)), Access("y", identity(1))), regions((24,)))
    assert replace(merged(a), original=()) == replace(b, original=())


def test_products_and_reductions() -> None:
    rows = identity(3)
    step = Product((3, 1, 4), (2,), Access("x", (rows[0], rows[2])), Access("h", rows[1:]), Access("y", rows[:2]))
    nest = nest_of(step, regions((3, 4)))
    assert (nest.product, nest.combine, nest.reduce) == (True, "addf", frozenset({1}))
    reduction = Reduction(
        (3, 4), (0,), (Access("x", identity(2)),), access("y", (0, 0, 2), (0, 1, 0)), (), "in0", "maximumf", -1.0
    )
    nest = nest_of(reduction, regions((3, 4)))
    assert (nest.product, nest.combine, nest.init, nest.reduce) == (False, "maximumf", -1.0, frozenset({0}))
    assert nest.output == LinearAccess("y", 8, (0, 1))


def test_loads_keep_their_shape() -> None:
    program = (Instr("i", "index", (0,), "index"), Instr("v", "load", ("x", "i", 2), "f32"))
    nest = nest_of(Vector((3,), (), access("y", (1, 0), (0, 0)), program, "v"), regions((3, 4), (100, 1)))
    assert nest.loads == {"x": Gathered("x", 0, (3, 4), (100, 1))}


# ------------------------------------------------------------------------------------------------------ merging


def nest_with(dims: tuple[int, ...], *coefficients: tuple[int, ...], reduce: tuple[int, ...] = ()) -> Nest:
    """The last access is the output."""
    accesses = [LinearAccess(f"r{n}", n, c) for n, c in enumerate(coefficients)]
    original = tuple((d, 1, e) for d, e in enumerate(dims))
    return Nest(dims, original, frozenset(reduce), tuple(accesses[:-1]), accesses[-1], (), "in0", {})


def test_neighbours_merge_where_all_accesses_walk_them_as_one() -> None:
    assert merged(nest_with((2, 3, 4), (12, 4, 1), (12, 4, 1))).dims == (24,)
    assert merged(nest_with((2, 3, 4), (12, 4, 1), (100, 4, 1))).dims == (2, 12)
    assert merged(nest_with((2, 3, 4), (12, 4, 1), (12, 40, 1))).dims == (2, 3, 4)
    assert merged(nest_with((2, 3, 4), (0, 0, 1), (12, 4, 1))).dims == (6, 4)


def test_what_is_summed_does_not_merge_with_what_is_not() -> None:
    assert merged(nest_with((2, 3, 4), (12, 4, 1), (0, 0, 0), reduce=(1, 2))).dims == (2, 12)
    assert merged(nest_with((2, 3, 4), (12, 4, 1), (0, 0, 0), reduce=(0, 1, 2))).reduce == {0}


def test_merging_around_a_dimension_keeps_its_steps() -> None:
    nest = nest_with((2, 3, 4, 5), (60, 20, 5, 1), (60, 20, 5, 1))
    assert merged_around(nest, 0) == (merged(nest), 0, 60)
    inner, dim, factor = merged_around(nest, 2)
    assert (inner.dims, dim, factor) == ((6, 20), 1, 5)
    last, dim, factor = merged_around(nest, 3)
    assert (last.dims, dim, factor) == ((24, 5), 1, 1)
    assert merged_around(nest, -1)[1:] == (-1, 1)


@pytest.mark.parametrize("seed", range(60))
def test_merging_changes_no_element(seed: int) -> None:
    """All accesses together, the indices as written, and the dimension that is kept."""
    draw = random.Random(seed)
    rank = draw.randint(1, 4)
    dims = tuple(draw.randint(1, 4) for _ in range(rank))
    choices = [dense_strides(dims), dense_strides(dims), (0,) * rank, tuple(draw.randint(0, 9) for _ in range(rank))]
    step = nest_with(dims, *(draw.choice(choices) for _ in range(3)), reduce=(rank - 1,) if draw.random() < 0.4 else ())
    for dim in range(-1, rank):
        nest, place, factor = merged_around(step, dim)
        assert elements(nest) == elements(step)
        indices = [original_index(nest, at) for at in itertools.product(*map(range, nest.dims))]
        assert indices == list(itertools.product(*map(range, dims)))
        if dim >= 0:
            assert nest.dims[place] == dims[dim] * factor
            for at in itertools.product(*map(range, nest.dims)):
                assert at[place] // factor == original_index(nest, at)[dim]


# ------------------------------------------------------------------------------------------------------ tangles


ROW_SUMS = Reduction(
    (3, 3), (1,), (Access("y", identity(2)),), access("y", (1, 0, 0), (0, 0, 0)), (), "in0", "addf", 0.0
)
FIRST = access("y", (1, 0, 0), (0, 0, 0))
ROW_TIMES = Reduction((3, 3), (1,), (FIRST,), FIRST, (), "in0", "addf", 0.0)
"""It reads the element that it writes, but after it may have written a part of the sum there."""


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (copy((3, 3), Access("x", identity(2)), Access("y", identity(2))), False),
        (copy((3, 3), Access("y", identity(2)), Access("y", identity(2))), False),
        (copy((3, 3), access("y", (0, 1, 0), (1, 0, 0)), Access("y", identity(2))), True),
        (copy((3, 2), access("y", (1, 0, 0), (0, 1, 1)), access("y", (1, 0, 0), (0, 1, 0))), True),
        (ROW_SUMS, True),
        (ROW_TIMES, True),
        (Vector((3, 3), (), Access("y", identity(2)), (Instr("v", "load", ("y", 0, 0), "bf16"),), "v"), True),
        (Vector((3, 3), (), Access("y", identity(2)), (Instr("v", "load", ("x", 0, 0), "f32"),), "v"), False),
    ],
)  # fmt: skip
def test_a_step_is_tangled_where_it_reads_other_elements_of_what_it_writes(
    step: Vector | Reduction, answer: bool
) -> None:
    assert is_tangled(nest_of(step, regions((3, 3)))) is answer


def test_a_tangled_step_goes_through_a_temporary() -> None:
    nest = nest_of(copy((3, 3), access("y", (0, 1, 0), (1, 0, 0)), Access("y", identity(2))), regions((3, 3)))
    through, back = untangle(nest, "t")
    assert through.output == LinearAccess("t", 0, (3, 1))
    assert through.inputs == nest.inputs
    assert back.inputs == (LinearAccess("t", 0, (3, 1)),)
    assert back.output == nest.output
    assert not is_tangled(through)
    assert not is_tangled(back)


def test_a_tangled_reduction_to_one_number() -> None:
    step = Reduction(
        (3, 3), (0, 1), (Access("y", identity(2)),), access("y", (0, 0, 1), (0, 0, 2)), (), "in0", "addf", 0.0
    )
    through, back = untangle(nest_of(step, regions((3, 3))), "t")
    assert through.output == LinearAccess("t", 0, (0, 0))
    assert back.dims == (1,)
    assert back.output == LinearAccess("y", 5, (0,))


@pytest.mark.parametrize("seed", range(40))
def test_untangled_steps_touch_what_the_step_did(seed: int) -> None:
    body = RandomBody(seed, elements=500).body
    known = Regions(body, {p.name: dense_strides(p.shape) for p in body.params})
    for step in body.steps:
        assert isinstance(step, Vector | Reduction | Product)
        nest = nest_of(step, known)
        through, back = untangle(nest, "t")
        outputs = {e[-1] for e in elements(nest)}
        assert {e[-1] for e in elements(back)} == outputs
        assert {e[0] for e in elements(back)} == {e[-1] for e in elements(through)} == set(range(len(outputs)))
