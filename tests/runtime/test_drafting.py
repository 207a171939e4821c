"""Prompt lookup against a search by its definition, and the pace at which drafts are verified."""

from __future__ import annotations

import numpy as np
import pytest

from sscc.ir.errors import UsageError
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.drafting import KINDS, PromptLookup
from sscc.runtime.session.speculation import Pace
from sscc.runtime.support import _native

DRAFTED = 4


def looked_up(tokens: list[int], most: int, longest: int) -> tuple[list[int], int]:
    """The draft of a sequence and the length of its suffix, by definition."""
    best = 0, 0
    for end in range(1, len(tokens)):
        for length in range(1, min(longest, end) + 1):
            suffix, place = tokens[len(tokens) - length :], tokens[end - length : end]
            if suffix == place and min(suffix) >= 0 and length >= best[0]:
                best = length, end
    if not best[0]:
        return [], 0
    draft: list[int] = []
    for at in range(most):
        token = [*tokens, *draft][best[1] + at]
        if token < 0:
            break
        draft.append(token)
    return draft, best[0]


def found(lookup: PromptLookup, most: list[int]) -> tuple[list[list[int]], list[int]]:
    kinds = lookup.find(np.array(most))
    tokens = np.zeros((len(most), DRAFTED), np.int64)
    lengths = lookup.draft(np.array(most), tokens)
    return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)], kinds.tolist()


@pytest.mark.parametrize("seed", range(30))
def test_it_finds_the_longest_suffix_and_of_several_the_latest(seed: int) -> None:
    random = np.random.default_rng(seed)
    vocabulary, count = int(random.integers(2, 6)), 3
    sequences = [random.integers(0, vocabulary, random.integers(1, 60)).tolist() for _ in range(count)]
    for sequence in sequences:
        if seed % 3 == 0 and len(sequence) > 4:
            sequence[int(random.integers(0, len(sequence) - 1))] = -1
    tokens = np.zeros((count, 64), np.int32)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = sequence
    most = random.integers(0, DRAFTED + 1, count)
    draft, drafted, matched = np.zeros((count, DRAFTED), np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    _native.look_up(tokens, np.array(list(map(len, sequences))), most, 5, draft, drafted, matched)
    for slot, sequence in enumerate(sequences):
        expected, length = looked_up(sequence, int(most[slot]), 5) if most[slot] else ([], 0)
        assert draft[slot, : drafted[slot]].tolist() == expected
        assert matched[slot] == length


def test_arrays_of_other_sizes_are_refused() -> None:
    two, three = np.zeros(2, np.int64), np.zeros(3, np.int64)
    with pytest.raises(UsageError):
        _native.look_up(np.zeros((2, 8), np.int32), three, two, 5, np.zeros((2, 4), np.int64), two, two)
    with pytest.raises(UsageError):
        _native.look_up(np.zeros((2, 8), np.int32), two + 9, two, 5, np.zeros((2, 4), np.int64), two, two)


def test_an_answer_is_looked_up_in_prompt_answer_and_predicted_text() -> None:
    lookup = PromptLookup(2, DRAFTED, 32)
    lookup.start(0, np.array([1, 2, 3, 4, 5, 6, 9]))
    lookup.start(1, np.array([1, 2, 3]), np.array([2, 7, 8]))
    assert found(lookup, [4, 4]) == ([[], []], [0, 0])
    lookup.extend(np.array([3, 2]), np.array([True, True]))
    assert found(lookup, [4, 4]) == ([[4, 5, 6, 9], [7, 8]], [1, 1])  # the predicted text before the prompt
    assert found(lookup, [2, 0]) == ([[4, 5], []], [1, 0])
    lookup.extend(np.array([4, 3]), np.array([True, False]))
    assert found(lookup, [4, 4]) == ([[5, 6, 9, 3], [7, 8]], [2, 1])
    lookup.stop(0)
    assert found(lookup, [4, 4])[0] == [[], [7, 8]]


def run(pace: Pace, kind: int, right: int, cost: float, steps: int, drafting: float = 0.0) -> tuple[float, int]:
    """Return tokens per time of one slot, relative to plain decoding, and the number of steps of several tokens."""
    kinds, active = np.array([kind]), np.ones(1, np.bool_)
    tokens, time, several = 0, 0.0, 0
    for _ in range(steps):
        most = pace.most(kinds, active)
        if not most:
            pace.decoded(1_000_000)
            tokens, time = tokens + 1, time + 1
            continue
        taken = 1 + min(right, most)
        spent = drafting * most
        pace.verified(kinds, np.array([most]), np.array([taken]), int(1e6 * spent), int(1e6 * cost))
        tokens, time, several = tokens + taken, time + cost + spent, several + 1
    return tokens / time, several


@pytest.mark.parametrize("cost", [1.1, 1.5, 2.0, 3.5])
@pytest.mark.parametrize("kind", range(1, KINDS))
def test_useless_drafts_cost_little(cost: float, kind: int) -> None:
    pace = Pace(1, DRAFTED)
    pace.decoded(1_000_000)
    speed, _ = run(pace, kind, 0, cost, 500)
    assert speed > 0.97


def test_good_drafts_are_verified_and_bad_ones_again_after_a_while() -> None:
    pace = Pace(1, DRAFTED)
    pace.decoded(1_000_000)
    speed, several = run(pace, 3, DRAFTED, 1.4, 200)
    assert several > 190
    assert speed > 3
    run(pace, 3, 0, 1.4, 300)
    speed, _ = run(pace, 3, DRAFTED, 1.4, 300)
    assert speed > 2


def test_drafts_that_cost_time_are_as_long_as_pays() -> None:
    lengths = []
    for cost in (0.0, 0.3):
        pace = Pace(1, DRAFTED)
        pace.decoded(1_000_000)
        run(pace, 3, 1, 1.2, 60, cost)
        lengths.append(pace.most(np.array([3]), np.ones(1, np.bool_)))
    assert lengths[0] == DRAFTED
    assert 1 <= lengths[1] < DRAFTED


def test_a_sequence_forgets_the_drafts_of_the_one_before() -> None:
    pace = Pace(1, DRAFTED)
    pace.decoded(1_000_000)
    run(pace, 1, 0, 1.2, 40)
    kinds, active = np.array([1]), np.ones(1, np.bool_)
    pace.credit = 4.0
    assert pace.most(kinds, active) == 0
    pace.start(0)
    assert pace.most(kinds, active) > 0


def test_no_slot_without_a_draft_is_verified() -> None:
    nothing: Array = np.zeros(2, np.int64)
    assert Pace(2, DRAFTED).most(nothing, np.ones(2, np.bool_)) == 0
