"""Sets of elements too large to list, and cases that no formula decides."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from math import prod

import pytest

from sscc.runtime.validator import regions
from sscc.runtime.validator.regions import Region, covered, injective, overlap

HUGE = 1 << 30


def listed(region: Region) -> set[int]:
    points = {region.offset}
    for stride, size in region.dims:
        points = {point + k * stride for point in points for k in range(size)}
    return points


def test_formulas_decide_most_overlaps_and_never_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "_POINTS", 0)
    choose, verdicts = random.Random(7), Counter[bool | None]()
    for _ in range(3000):
        a, b = (
            Region.of(
                choose.randint(0, 30), [(choose.choice((1, 2, 4, 8, 12)), choose.randint(1, 4)) for _ in range(2)]
            )
            for _ in range(2)
        )
        verdict = overlap(a.dims, b.dims, b.offset - a.offset)
        assert verdict in (None, bool(listed(a) & listed(b))), (a, b)
        verdicts[verdict] += 1
    assert verdicts[None] <= UNDECIDED


UNDECIDED = 729
"""Number of undecided cases among these 3,000; fewer is better."""


def _random_pairs(choose: random.Random) -> list[tuple[int, int]]:
    return [
        (choose.choice((-4, 0, 1, 1, 2, 3, 4, 6, 8, 12)), choose.randint(1, 4)) for _ in range(choose.randint(0, 3))
    ]


def test_overlap_of_regions_agrees_with_listing_their_elements() -> None:
    choose = random.Random(1)
    for _ in range(4000):
        a, b = (Region.of(choose.randint(0, 20), _random_pairs(choose)) for _ in range(2))
        assert overlap(a.dims, b.dims, b.offset - a.offset) == bool(listed(a) & listed(b)), (a, b)


def test_covers_and_injectivity_agree_with_listing_the_elements() -> None:
    choose = random.Random(2)
    for _ in range(2000):
        pairs = [(abs(stride), size) for stride, size in _random_pairs(choose)]
        region, others = Region.of(4, pairs), [Region.of(choose.randint(0, 6), _random_pairs(choose)) for _ in range(3)]
        others = [other for other in others if min(listed(other)) >= 0]
        held = set().union(*map(listed, others)) if others else set()
        assert covered(others, region, 1 << 16) == (listed(region) <= held)
        count = prod(size for _, size in pairs)
        assert injective(pairs) == (len(listed(region)) == count)
        if injective(pairs):
            total = choose.choice((region.span + 1, region.span + 2))
            tiles = Region.of(0, pairs)
            assert tiles.fills(total) == (listed(tiles) == set(range(total)))


@pytest.mark.parametrize(
    ("shift", "meets"),
    [
        (0, True), (HUGE - 1, True), (1 - HUGE, True), (HUGE, False), (-HUGE, False), (2 * HUGE, True),
        (2 * HUGE - 1, True), (3 * HUGE, False), (5 * HUGE, False), (-5 * HUGE, False), (4 * HUGE - 1, True),
        (5 * HUGE - 1, True), (1 - 5 * HUGE, True), (-3 * HUGE, False), (1 - 3 * HUGE, True),
    ],
)  # fmt: skip
def test_rows_of_a_large_matrix(shift: int, meets: bool) -> None:
    """Three rows of 2**30 elements, every other one."""
    rows = Region.of(0, [(1, HUGE), (2 * HUGE, 3)]).dims
    assert overlap(rows, rows, shift) is meets


def test_overlap_that_no_formula_tells_is_not_told() -> None:
    a, b = Region.of(0, [(3, HUGE), (7, HUGE)]), Region.of(0, [(5, HUGE), (11, HUGE)])
    assert overlap(a.dims, b.dims, 1) is None
    assert overlap(Region.of(0, [(2, HUGE)]).dims, Region.of(0, [(6, HUGE)]).dims, 1) is False
    assert overlap((), (), 0) is True
    assert overlap((), (), 1) is False


def test_as_many_elements_as_may_be_listed_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "_POINTS", 4)
    two, three = Region.of(0, [(2, 2), (3, 2)]).dims, Region.of(0, [(2, 3), (3, 3)]).dims  # 0 2 3 5, 0 .. 10
    assert overlap(two, two, 1) is True
    assert overlap(two, two, 4) is False
    assert overlap(two, three, 1) is None
    assert overlap(three, two, 1) is None
    assert injective([(2, 2), (2, 2)]) is False
    assert injective([(3, 2), (2, 2)]) is True
    assert injective([(2, 2), (2, 2), (5, 2)]) is False
    assert injective([(4, 2), (2, 2), (5, 2)]) is False  # eight elements, apart, are too many
    monkeypatch.setattr(regions, "_POINTS", 6)
    assert injective([(2, 3), (3, 2)]) is True  # 0 2 4 3 5 7
    assert overlap(two, Region.of(0, [(2, 3), (3, 2)]).dims, 1) is True
    monkeypatch.setattr(regions, "_POINTS", 5)
    assert injective([(2, 3), (3, 2)]) is False


def test_two_parts_of_which_one_is_undecided_are_apart_where_the_other_one_is() -> None:
    """Multiples of 2**60, and below them what no formula tells."""
    far = 1 << 60
    tangled, knotted = ((3, HUGE), (7, HUGE)), ((5, HUGE), (11, HUGE))
    assert overlap(tangled, knotted, 1) is None
    assert overlap((*tangled, (far, 2)), knotted, 1) is None
    assert overlap((*tangled, (4 * far, 2)), (*knotted, (4 * far, 2)), 2 * far + 1) is False
    assert overlap((*tangled, (far, 2)), (*knotted, (far, 2)), 3 * far + 1) is False
    a, b = (*tangled, (far, 2)), (*knotted, (5 * far, 3), (7 * far, 3))
    assert overlap(a, b, -3 * far + 1) is False
    assert overlap(a, b, -4 * far + 1) is None
    wide = ((1, 2), *((stride * far, size) for stride, size in ((1, 2), *tangled)))
    other = ((1, 2), *((stride * far, size) for stride, size in knotted))
    assert overlap(wide, other, far) is None
    assert overlap(wide, other, far + 5) is False


@pytest.mark.parametrize(
    ("pairs", "apart"),
    [
        ([(1, HUGE), (HUGE, HUGE)], True), ([(1, HUGE), (HUGE - 1, HUGE)], False), ([(HUGE, HUGE), (-1, HUGE)], True),
        ([(0, 2)], False), ([(0, 1)], True), ([], True), ([(5, HUGE)], True), ([(5, HUGE), (5, 2)], False),
    ],
)  # fmt: skip
def test_different_indices_reach_different_elements(pairs: list[tuple[int, int]], apart: bool) -> None:
    assert injective(pairs) is apart


@pytest.mark.parametrize(
    ("offset", "size", "holds"),
    [
        (0, HUGE, True), (0, 5, True), (5, HUGE - 5, True), (5, HUGE - 4, None), (HUGE - 1, 1, True), (HUGE, 1, None),
        (-1, 2, False),
    ],
)  # fmt: skip
def test_an_unbroken_region_covers_what_lies_in_it(offset: int, size: int, holds: bool | None) -> None:
    assert covered([Region.of(0, [(1, HUGE)])], Region.of(offset, [(1, size)]), 16) is holds
    if offset >= 0:
        assert covered([Region.of(7, [(1, HUGE)])], Region.of(offset + 7, [(1, size)]), 16) is holds
        assert covered([Region.of(7, [(1, HUGE)])], Region.of(6, [(1, size)]), 16) is None


def test_a_broken_region_covers_itself_only() -> None:
    broken = Region.of(0, [(2, HUGE)])
    assert covered([broken], broken, 16) is True
    assert covered([broken], Region.of(0, [(1, 3)]), 16) is None
    assert covered([broken], Region.of(2, []), 16) is None
    assert covered([], Region.of(0, [(1, 3)]), 16) is False
    assert covered([Region.of(0, []), Region.of(4, [])], Region.of(4, []), 16) is True
    assert covered([], Region.of(0, [(1, HUGE), (2 * HUGE, 3)]), 0) is False
    assert covered([Region.of(-1, [(1, HUGE)])], Region.of(0, [(1, HUGE - 1)]), 0) is False


def test_a_cover_is_painted_in_blocks_as_large_as_all_have_in_common() -> None:
    def matrix(columns: int, begin: int) -> Region:
        return Region.of(begin, [(1, columns), (HUGE, 4)])

    half = HUGE // 2
    whole = Region.of(0, [(1, 4 * HUGE)])
    assert covered([matrix(half, 0), matrix(half, half)], whole, 16) is True
    assert covered([matrix(half, 0), matrix(half, 0)], whole, 16) is False
    assert covered([matrix(half, 0), matrix(half - 1, half)], whole, 16) is None
    assert covered([matrix(half, 0), matrix(half, half)], whole, 8) is True
    assert covered([matrix(half, 0), matrix(half, half)], whole, 7) is None
    # A region that starts before the beginning covers nothing.
    assert covered([matrix(half, 0), matrix(half, -half)], whole, 16) is False


def test_regions_are_kept_in_one_form() -> None:
    assert Region.of(3, [(4, 2), (1, 4), (0, 9), (7, 1)]) == Region(3, ((1, 8),))
    assert Region.of(10, [(-2, 3), (1, 2)]) == Region(6, ((1, 6),))
    assert Region.of(0, [(3, 2), (1, 2)]) == Region(0, ((1, 2), (3, 2)))
    region = Region.of(5, [(1, 3), (10, 4)])
    assert (region.span, region.points) == (32, 12)
    assert Region(0, ((1, 4),)).fills(4)
    assert not Region(0, ((1, 4),)).fills(5)
    assert not Region(1, ((1, 4),)).fills(4)
    assert not Region(0, ((2, 4),)).fills(4)
    assert Region(0, ()).fills(1)
    assert not Region(0, ()).fills(2)
    assert not Region(1, ()).fills(1)


def test_covers_of_aligned_blocks_agree_with_listing_them() -> None:
    """Offsets, runs and strides usually have a common factor, and some runs are shorter than this factor."""
    choose = random.Random(11)
    for _ in range(3000):
        unit = choose.choice((1, 2, 3, 4))

        def block(unit: int = unit) -> Region:
            run = unit * choose.randint(1, 4)
            rest = [(unit * choose.randint(1, 8), choose.randint(1, 3)) for _ in range(choose.randint(0, 2))]
            offset = unit * choose.randint(0, 6) + choose.choice((0, 0, 0, 1))
            return Region.of(offset, [(choose.choice((1, 1, 1, unit)), run), *rest])

        written, target = [block() for _ in range(choose.randint(1, 6))], block()
        held: set[int] = set().union(*map(listed, written))
        assert covered(written, target, 1 << 10) is (listed(target) <= held), (written, target)


def test_runs_that_overlap_are_painted_at_their_strides() -> None:
    """Four elements at 0, 2 and 4: the stride is finer than all runs and offsets."""
    sliding, blocks = Region.of(0, [(1, 4), (2, 3)]), [Region.of(begin, [(1, 4)]) for begin in (0, 4, 8)]
    assert covered(blocks[:2], sliding, 16) is True
    assert covered([blocks[0], blocks[2]], sliding, 16) is False
    assert covered([sliding], Region.of(4, [(1, 4)]), 16) is True
    assert covered([sliding], blocks[2], 16) is False


def test_a_cover_is_given_up_where_it_takes_too_many_strokes() -> None:
    """A stroke paints the longest dimension of a region, at one place of the others."""
    rows, target = Region.of(0, [(1, 2), (4, 6)]), Region.of(0, [(4, 6)])  # two strokes, and one
    assert covered([rows, rows], target, 22) is True
    assert covered([rows, rows], target, 21) is None  # 22 elements are painted on
    assert covered([rows] * 11, target, 22) is None
    assert covered([rows] * 11, target, 23) is True
    single = Region.of(1, [])
    assert covered([single] * 4, Region.of(0, []), 5) is False
    assert covered([single] * 4, Region.of(0, []), 4) is None


def test_points_that_are_apart_are_told_by_their_number() -> None:
    for strides in product(range(4), repeat=3):
        for sizes in product((1, 2, 3), repeat=3):
            pairs = list(zip(strides, sizes, strict=True))
            reached = {sum(s * k for s, k in zip(strides, ks, strict=True)) for ks in product(*map(range, sizes))}
            assert injective(pairs) is (len(reached) == prod(sizes)), pairs
