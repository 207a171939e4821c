"""Entries: when a temporary holds something, and what launches may share, against playing and listing."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Any

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Entry, Kernel, Launch, Tensor, View
from sscc.runtime.validator import Limits
from sscc.runtime.validator.entries import EntryFacts, EntryProofErrors, LaunchFacts, callers, lifetimes, prove_entry
from sscc.runtime.validator.linear import Linear
from tests.errors import check, raises
from tests.runtime.schedules import read, update, view_of, write

SIZE = 4
TENSOR = Tensor("t", (SIZE,), "f32", "temporary", "hbm", 0)
TENSORS = {"t": TENSOR, "u": Tensor("u", (SIZE,), "f32", "state", "hbm", 64)}
PARAMS = {"read": read, "write": write, "update": update}


@dataclass(frozen=True)
class LaunchUse:
    """A launch that touches elements `begin` .. ``end - 1``, or other ones each time; or another tensor only.

    `path`: the blocks around it.
    """

    access: str
    begin: int
    end: int
    path: tuple[int, ...]
    moves: bool = False

    def elements(self) -> set[int]:
        return set(range(self.begin, self.end))


def random_uses(choose: random.Random) -> tuple[list[LaunchUse], set[int], set[int]]:
    """Uses in order, the blocks that are loops, and those that are surely entered."""
    uses: list[LaunchUse] = []
    loops: set[int] = set()
    sure: set[int] = set()
    count = [0]

    def block(path: tuple[int, ...]) -> None:
        for _ in range(choose.randint(1, 3)):
            if choose.random() < 0.3 and len(path) < 2:
                number = count[0]
                count[0] += 1
                loops.update({number} if choose.random() < 0.7 else ())
                sure.update({number} if choose.random() < 0.6 else ())
                block((*path, number))
                continue
            begin, end = choose.choice(((0, SIZE), (0, SIZE), (0, 2), (2, SIZE), (1, SIZE)))
            access = choose.choice(("write", "write", "read", "update", "other", "other"))
            uses.append(LaunchUse(access, begin, end, path, choose.random() < 0.1))

    block(())
    return uses, loops, sure


def facts_of(uses: list[LaunchUse], loops: set[int], sure: set[int]) -> EntryFacts:
    facts = EntryFacts(Entry("main", (), (), (), (), ()), sure=sure)
    for position, use in enumerate(uses):
        size = use.end - use.begin
        kernel = Kernel("k", (PARAMS.get(use.access, update)("p", (size,)),), (), ())
        launch = Launch("k", (view_of("u" if use.access == "other" else "t", (size,), use.begin),))
        offset = Linear(use.begin, (("n", 1),) if use.moves else ())
        facts.launches.append(LaunchFacts(launch, kernel, f"launch {position}", position, use.path, (offset,), {}, {}))
    for loop in loops:
        held = [position for position, use in enumerate(uses) if loop in use.path]
        facts.loops[loop] = (held[0], held[-1] + 1)
    return facts


def undefined(uses: list[LaunchUse], sure: set[int]) -> tuple[ErrorKind, int] | None:
    """Return the kind and the launch of the first read of elements that may be undefined, if control flow enters only
    branches and loops that it must enter."""
    for position, use in enumerate(uses):
        if use.access in ("write", "other"):
            continue
        before = [
            other
            for other in uses[:position]
            if other.access in ("write", "update") and all(block in sure or block in use.path for block in other.path)
        ]
        if not before:
            return EntryProofErrors.NEVER_WRITTEN, position
        if use.moves or any(other.moves for other in before):
            continue
        if not use.elements() <= {element for other in before for element in other.elements()}:
            return EntryProofErrors.WRITTEN_IN_PART, position
    return None


def needed(uses: list[LaunchUse], loops: set[int]) -> set[int]:
    """The positions between which something is kept, when every loop runs three times and every branch is taken."""

    def played(begin: int, end: int, depth: int) -> list[int]:
        order: list[int] = []
        while begin < end:
            path = uses[begin].path
            if len(path) <= depth:
                order, begin = [*order, begin], begin + 1
                continue
            stop = begin
            while stop < end and len(uses[stop].path) > depth and uses[stop].path[depth] == path[depth]:
                stop += 1
            order += played(begin, stop, depth + 1) * (3 if path[depth] in loops else 1)
            begin = stop
        return order

    order = played(0, len(uses), 0)
    kept: set[int] = set()
    written: dict[int, int] = {}
    for moment, position in enumerate(order):
        use = uses[position]
        if use.access == "other":
            continue
        kept.add(position)
        for element in range(SIZE) if use.moves else use.elements():
            if use.access != "write" and element in written:
                kept |= set(order[written[element] : moment + 1])
            if use.access != "read":  # what moves may leave an element as it was
                written[element] = written.get(element, moment) if use.moves else moment
    return kept


def test_a_temporary_lives_as_long_as_it_is_needed() -> None:
    """No shorter; and no longer where each loop that touches it writes all of it before anything else."""
    choose, seen = random.Random(1), Counter[str]()
    for _ in range(6000):
        uses, loops, sure = random_uses(choose)
        wrong = undefined(uses, sure)
        if all(use.access == "other" for use in uses):
            continue
        try:
            first, last = lifetimes(facts_of(uses, loops, sure), TENSORS, Limits())["t"]
        except InputError as refusal:
            error: InputError | None = refusal
        else:
            error = None
        if wrong is not None:
            check(error, wrong[0], where=f"launch {wrong[1]}")
            seen[wrong[0].code] += 1
            continue
        assert error is None, (uses, sure, error)
        kept = needed(uses, loops)
        assert first <= min(kept), (uses, loops)
        assert max(kept) <= last, (uses, loops)
        if all(_is_fresh(uses, loop) for loop in loops):
            assert (first, last) == (min(kept), max(kept)), (uses, loops)
            seen["exact"] += 1
        seen["longer" if (first, last) != (min(kept), max(kept)) else "as long"] += 1
    assert min(seen.values()) > 100, seen


def _is_fresh(uses: list[LaunchUse], loop: int) -> bool:
    """Return True if the loop's first use of a tensor writes all of it, and it was not used before; or if it is
    unused."""
    touching = [use for use in uses if use.access != "other"]
    held = [use for use in touching if loop in use.path]
    whole = held and held[0].access == "write" and held[0].elements() == set(range(SIZE)) and not held[0].moves
    return not held or (bool(whole) and held[0] is touching[0] and held[0].path[-1] == loop)


# ----------------------------------------------------------------------------------------------- launches and kernels


def random_views(choose: random.Random) -> list[tuple[str, View]]:
    """Arguments with how they are used: parts of one of two tensors, dense or not."""
    views = []
    for _ in range(3):
        strides, shape = choose.choice((((1,), (4,)), ((2,), (3,)), ((6, 1), (2, 2)), ((1,), (1,)), ((4, 2), (2, 2))))
        view = View(choose.choice("tu"), shape, strides, choose.choice((0, 0, 1, 4, 8)), ())
        views.append((choose.choice(("read", "read", "write", "update")), view))
    return views


def _elements(view: View) -> set[int]:
    points = {view.offset}
    for stride, size in zip(view.strides, view.shape, strict=True):
        points = {point + stride * k for point in points for k in range(size)}
    return points


def test_arguments_share_a_view_or_nothing_that_is_written() -> None:
    """The same view under two names is one region; `callers` records such names, and the views that are not dense."""
    choose, seen = random.Random(3), Counter[bool]()
    tensors = {name: Tensor(name, (24,), "f32", "state", "hbm", 0) for name in "tu"}
    for _ in range(2000):
        accesses = random_views(choose)
        params = tuple(PARAMS[access](f"p{n}", view.shape) for n, (access, view) in enumerate(accesses))
        kernels = {"k": Kernel("k", params, (), ()), "idle": Kernel("idle", params, ("n",), ())}
        launch = Launch("k", tuple(view for _, view in accesses))
        pairs = [(one, other) for one, other in combinations(accesses, 2) if {one[0], other[0]} != {"read"}]
        views = [(one, other) for (_, one), (_, other) in pairs if one.tensor == other.tensor and one != other]
        entry = Entry("main", (), (), (), (), (launch,))
        if any(_elements(one) & _elements(other) for one, other in views):
            with raises(EntryProofErrors.ARGUMENTS_OVERLAP):
                prove_entry(entry, tensors, kernels, {}, inf)
            seen[False] += 1
            continue
        facts = prove_entry(entry, tensors, kernels, {}, inf)
        aliases = {f"p{n}": f"p{[other for _, other in accesses].index(view)}" for n, (_, view) in enumerate(accesses)}
        caller = callers([facts], kernels)["k"]
        assert caller.aliases == [aliases]
        dense = {n for n, (_, view) in enumerate(accesses) if _elements(view) == _row(view)}
        assert caller.strided == {f"p{n}" for n in range(3) if n not in dense}
        idle = callers([facts], kernels)["idle"]
        assert (dict(idle.scalars), idle.aliases) == ({"n": (-inf, inf)}, [])
        seen[True] += 1
    assert min(seen[True], seen[False]) > 200, seen


def _row(view: View) -> set[int]:
    return set(range(view.offset, view.offset + len(_elements(view))))


def test_a_kernel_is_proved_for_the_values_of_all_its_launches() -> None:
    tensors = {name: Tensor(name, (8,), "f32", "state", "hbm", 0) for name in "tu"}
    kernels = {"k": Kernel("k", (read("p", (4,)), read("q", (4,))), ("a", "b"), ())}

    def launch(one: str, other: str, *scalars: Any, offset: int = 0) -> Launch:
        return Launch("k", (view_of(one, (4,)), view_of(other, (4,), offset)), scalars)

    apart = launch("u", "u", 2, -5, offset=4)
    body = (launch("t", "u", "n", 3), launch("u", "u", 7, "n"), apart, launch("t", "t", 0, 0))
    entry = prove_entry(Entry("main", (), (), ("n",), (), body), tensors, kernels, {"n": (1, 4)}, inf)
    caller = callers([entry], kernels)["k"]
    assert caller.scalars == {"a": (0, 7), "b": (-5, 4)}
    assert caller.aliases == [{"p": "p", "q": "q"}, {"p": "p", "q": "p"}]
    assert caller.strided == set()
