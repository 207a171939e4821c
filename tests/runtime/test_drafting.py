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


def looked_up(tokens: list[int], most: int, longest: int, expected: int) -> tuple[list[int], int, int]:
    """The draft of a sequence, the length of its suffix, and the position that it continues, by definition."""
    found: dict[int, int] = {}
    for at in range(len(tokens) - 1):
        for length in range(1, min(longest, at + 1) + 1):
            suffix, place = tokens[len(tokens) - length :], tokens[at + 1 - length : at + 1]
            if suffix == place and min(suffix) >= 0:
                found[at] = length
    best = max(found.values(), default=0)
    if not best and not 0 <= expected < len(tokens) - 1:
        return [], 0, -1
    places = [at for at, length in found.items() if length == best] if best else [expected]
    # Of equally close ones the later one.
    taken = max(places, key=lambda at: (-abs(at - expected) if expected >= 0 else 0, at))
    draft: list[int] = []
    for step in range(most):
        token = [*tokens, *draft][taken + 1 + step]
        if token < 0:
            break
        draft.append(token)
    return draft, best, taken


def found(lookup: PromptLookup, most: list[int]) -> tuple[list[list[int]], list[int]]:
    kinds = lookup.find(np.array(most))
    tokens, lengths = lookup.draft(np.array(most))
    return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)], kinds.tolist()


@pytest.mark.parametrize("seed", range(30))
def test_it_finds_the_longest_suffix_and_of_several_the_closest(seed: int) -> None:
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
    expected = random.integers(-1, 50, count) if seed % 2 else np.full(count, -1)
    before = expected.copy()
    lengths = np.array([len(sequence) for sequence in sequences])
    _native.look_up(tokens, lengths, most, 5, expected, draft, drafted, matched)
    for slot, sequence in enumerate(sequences):
        if most[slot] and len(sequence) > 1:
            wanted, length, taken = looked_up(sequence, int(most[slot]), 5, int(before[slot]))
            assert draft[slot, : drafted[slot]].tolist() == wanted
            assert (matched[slot], expected[slot]) == (length, taken)
        else:
            assert (drafted[slot], matched[slot], expected[slot]) == (0, 0, before[slot])


def test_arrays_of_other_sizes_are_refused() -> None:
    two, three = np.zeros(2, np.int64), np.zeros(3, np.int64)
    with pytest.raises(UsageError):
        _native.look_up(np.zeros((2, 8), np.int32), three, two, 5, two, np.zeros((2, 4), np.int64), two, two)
    with pytest.raises(UsageError):
        _native.look_up(np.zeros((2, 8), np.int32), two + 9, two, 5, two, np.zeros((2, 4), np.int64), two, two)


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


def test_an_edited_text_is_followed_behind_a_changed_word() -> None:
    lookup = PromptLookup(1, DRAFTED, 64)
    text = [1, 9, 9, 2, 3, 4, 9, 9, 5, 6, 7, 9, 9, 8]
    lookup.start(0, np.array([*text, 20]))
    one, here = np.ones(1, np.bool_), np.zeros(1, np.int64)
    drafts = []
    for token in (2, 3, 30, 9, 9, 31):  # 4 and 5 are changed
        lookup.extend(here + token, one)
        drafts.append(found(lookup, [3]))
    assert drafts == [
        ([[3, 4, 9]], [1]), ([[4, 9, 9]], [2]), ([[9, 9, 5]], [1]), ([[9, 5, 6]], [1]), ([[5, 6, 7]], [2]),
        ([[6, 7, 9]], [1]),
    ]  # fmt: skip
    for token in (32, 33, 34, 35):
        lookup.extend(here + token, one)
        drafts.append(found(lookup, [3]))
    assert drafts[-1] == ([[]], [0])  # the text is lost


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
