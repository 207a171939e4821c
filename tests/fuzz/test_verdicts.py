"""The validator's verdicts on mutated schedules are those on record."""

from __future__ import annotations

from tests.fuzz.verdicts import ACCEPTED, recorded, verdicts


def test_no_verdict_changes() -> None:
    known = recorded()
    current = verdicts(range(len(known)))
    changed = [
        f"seed {seed}: it was {then}, it is {now}"
        for seed, (then, now) in enumerate(zip(known, current, strict=True))
        if then != now
    ]
    assert not changed, "\n".join(changed)


def test_what_is_on_record_is_worth_comparing() -> None:
    known = recorded()
    accepted = known.count(ACCEPTED)
    assert len(known) / 20 < accepted < len(known) / 3
    assert len(set(known)) > 100
