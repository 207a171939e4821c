"""Faults made in a source: each one runs, and the journal remembers its result."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.mutation.__main__ import EQUIVALENT, read_equivalent, read_journal, sample
from tests.mutation.groups import GROUPS
from tests.mutation.mutants import mutants
from tests.mutation.tree import ROOT

SOURCE = '''
LIMIT: int = 3

def clamp(value: int, low: int = 0) -> int:
    """Docstring with 7."""
    if value < low and not value == 5:
        raise ValueError(f"{value} is below {low + 1}")
    total = value + 2
    total += 1
    return total if total <= LIMIT else LIMIT
'''


def test_every_kind_of_fault_is_found_once() -> None:
    faults = {(" ".join(m.before.split()), m.after) for m in mutants("clamp.py", SOURCE)}
    assert {("value < low", "(value <= low)"), ("value + 2", "(value - 2)"), ("total += 1", "pass")} <= faults
    assert ("value < low and not value == 5", "(value < low or not value == 5)") in faults
    assert ("value < low and not value == 5", "(not (value < low and (not value == 5)))") in faults or any(
        after.startswith("(not (value < low") for _, after in faults
    )
    assert ("3", "(3 + 1)") in faults
    assert not any("7" in before or "below" in after for before, after in faults)


def test_each_is_a_program_that_differs_in_one_place() -> None:
    source = SOURCE.encode()
    for mutant in mutants("clamp.py", SOURCE):
        changed = mutant.apply(source)
        assert changed != source
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_keys_do_not_depend_on_lines() -> None:
    moved = [mutant.key for mutant in mutants("clamp.py", "\n\n# moved\n" + SOURCE)]
    assert moved == [mutant.key for mutant in mutants("clamp.py", SOURCE)]
    assert len(set(moved)) == len(moved)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_has_files_and_tests_that_exist(group: str) -> None:
    files = GROUPS[group].sources(ROOT)
    assert files
    for file in files:
        words = [word for stage in GROUPS[group].tests(ROOT, file) for word in stage if word.startswith("tests/")]
        assert words
        assert all((ROOT / word).exists() for word in words)


def test_a_sample_is_the_same_for_a_seed() -> None:
    assert sample("engine", 5, 1) == sample("engine", 5, 1) != sample("engine", 5, 2)


def test_the_last_outcome_counts(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    assert read_journal(journal) == {}
    rows = [{"key": "a", "outcome": "survived"}, {"key": "b", "outcome": "noticed"}, {"key": "a", "outcome": "noticed"}]
    journal.write_text("\n".join(map(json.dumps, rows)))
    assert read_journal(journal) == {"a": "noticed", "b": "noticed"}


def test_an_equivalent_mutant_has_a_reason(tmp_path: Path) -> None:
    listed = tmp_path / "equivalent.txt"
    listed.write_text("# comment\n\na.py: f: x | y -> z | the same set\n")
    assert read_equivalent(listed) == {"a.py: f: x | y -> z": "the same set"}
    listed.write_text("a.py: f: x -> z\n")
    with pytest.raises(ValueError, match="no reason"):
        read_equivalent(listed)


def test_the_equivalent_mutants_exist() -> None:
    """A renamed file or a changed expression needs its lines renamed or removed."""
    keys = read_equivalent(EQUIVALENT)
    files = {key.partition(":")[0] for key in keys}
    assert set(keys) <= {mutant.key for file in files for mutant in mutants(file, (ROOT / file).read_text())}
