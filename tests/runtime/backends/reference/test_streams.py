"""When stages may fire: the arithmetic against a simulation that looks at every firing and every slot."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sscc.runtime.backends.reference.control import Memo
from sscc.runtime.backends.reference.streams import BufferUse, FilledTwice, conditions


def met(use: BufferUse, total: int) -> list[int]:
    """The slot of each firing."""
    return [firing // use.per + use.lag for firing in range(total)]


def complete(slot: int, uses: Sequence[BufferUse], fired: Sequence[int]) -> bool:
    return any(met(use, fired[use.stage]).count(slot) == use.per for use in uses if use.writes)


def free(slot: int, mine: BufferUse, uses: Sequence[BufferUse], totals: Sequence[int], fired: Sequence[int]) -> bool:
    """Return True if all other uses that meet the place have finished with its earlier slots."""
    earlier = range(slot % mine.depth, slot, mine.depth)
    for use in uses:
        if use != mine:
            to_come = met(use, totals[use.stage])[fired[use.stage] :]
            if any(other in earlier for other in to_come):
                return False
    return True


def may_fire(mine: BufferUse, uses: Sequence[BufferUse], totals: Sequence[int], fired: Sequence[int]) -> bool:
    slot = met(mine, fired[mine.stage] + 1)[-1]
    return free(slot, mine, uses, totals, fired) if mine.writes else complete(slot, uses, fired)


def random_buffer(rng: random.Random) -> tuple[list[BufferUse], list[int]]:
    """One or two producers, a few readers, one of which may be a producer too, of one buffer."""
    depth = rng.randint(1, 4)
    totals: list[int] = []
    uses: list[BufferUse] = []
    for writes in [True] * rng.randint(1, 2) + [False] * rng.randint(1, 3):
        shared = bool(totals) and rng.random() < 0.2
        if not shared:
            totals.append(rng.randint(1, 12))
        uses.append(BufferUse(len(totals) - 1, "b", depth, writes, rng.randint(1, 4), rng.randint(0, 6), True))
    return uses, totals


@pytest.mark.parametrize("seed", range(150))
def test_bounds_agree_with_a_simulation_of_every_slot(seed: int) -> None:
    rng = random.Random(seed)
    while True:
        uses, totals = random_buffer(rng)
        try:
            plan = conditions(uses, totals)
            break
        except FilledTwice:
            continue
    fired = [0] * len(totals)
    for _ in range(40):
        ready = []
        for stage, total in enumerate(totals):
            if fired[stage] == total:
                continue
            for condition in plan[stage]:
                may = may_fire(condition.use, uses, totals, fired)
                bound = min(condition.bound(fired), total)
                assert (bound > fired[stage]) == may, (condition.use, fired)
                if not may:
                    assert condition.obstacle(fired, [str(number) for number in range(len(totals))])
                for count in range(fired[stage], bound):  # nothing has to be asked again before the bound
                    assert may_fire(condition.use, uses, totals, [*fired[:stage], count, *fired[stage + 1 :]])
            if all(condition.bound(fired) > fired[stage] for condition in plan[stage]):
                ready.append(stage)
        if not ready:
            break
        fired[rng.choice(ready)] += 1


def test_the_bound_covers_all_that_may_be_done_at_once() -> None:
    load, use = BufferUse(0, "b", 3, True, 2, 0, True), BufferUse(1, "b", 3, False, 1, 0, True)
    (writing,), (reading,) = conditions([use, load], [20, 10])
    assert writing.bound([0, 0]) == 6
    assert writing.bound([6, 0]) == 6
    assert writing.bound([6, 2]) == 10
    assert [reading.bound([count, 0]) for count in (0, 1, 2, 5, 6)] == [0, 0, 1, 2, 3]


def test_two_producers_of_one_slot_are_found() -> None:
    first, second = BufferUse(0, "b", 2, True, 4, 0, True), BufferUse(1, "b", 2, True, 1, 3, True)
    conditions([first, second], [12, 5])
    with pytest.raises(FilledTwice) as error:
        conditions([first, second], [13, 5])
    assert (error.value.buffer, error.value.slot, error.value.stages) == ("b", 3, (0, 1))


def test_conditions_that_a_stage_waits_for_come_first() -> None:
    flags = {"a": (False, False), "b": (False, True), "c": (True, False)}
    uses = [BufferUse(0, name, 1, first, 1, 0, last) for name, (first, last) in flags.items()]
    (waits,) = conditions(uses, [1])
    assert [condition.use.buffer for condition in waits] == ["b", "a", "c"]


def test_a_full_memo_keeps_what_it_has_until_that_is_of_no_use() -> None:
    memo: Memo[int, int] = Memo(4)
    for _ in range(3):
        hits = 0
        for key in range(6):  # a loop over more keys than fit
            hits += key in memo
            if key not in memo:
                memo.keep(key, -key)
    assert hits == 4
    assert memo == {0: 0, 1: -1, 2: -2, 3: -3}
    for key in range(100, 140):  # the loop is over, others come
        memo.keep(key, key)
    assert len(memo) <= 4
    assert 0 not in memo
