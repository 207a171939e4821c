"""Mutated schedules: each is refused before it runs, or both interpreters make the same of it."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from sscc.ir import schedule as sch
from sscc.ir.choices import RANK
from sscc.ir.errors import InputError
from sscc.ir.file_form import decode
from sscc.ir.schedule import Program, ScheduleErrors
from tests.fuzz.corpus import SIGNATURE, CorpusProgram, load_corpus
from tests.fuzz.execution import EntryCall, RunResult, Situation, admit, judge, run_native, run_reference
from tests.fuzz.harness import Finding, Target, outcome_apart
from tests.fuzz.mutation import Change, Json, Mutator, replaced
from tests.fuzz.native_cache import NativeCache
from tests.fuzz.reduce import reduce, reduce_tree
from tests.runtime.broken import bases

TEXT_EVERY = 16
"""Cases that go through the file form as a whole; the others decode what has changed only."""

TEAM_EVERY = 8
"""Cases with two threads."""


@dataclass(frozen=True)
class Base:
    name: str
    program: Program
    situation: Situation


def hand_written() -> list[Base]:
    makers: tuple[Callable[[], Program], ...] = (
        bases.streamed_product,
        bases.looped_layers,
        bases.encoded_layers,
        bases.chunked_prefill,
        bases.chained_launches,
    )
    cases = []
    for make in makers:
        program = make()
        calls = tuple(EntryCall(entry.name, {}) for entry in program.entries)
        situation = Situation(calls * 2)
        if program.entries[0].scalar_inputs:
            calls = tuple(EntryCall("prefill", scalars) for scalars in bases.SAMPLES["prefill"][1:3])
            situation = Situation(calls, None, bases.RANGES, bases.SAMPLES, frozenset({"hidden"}))
        cases.append(Base(make.__name__, program, situation))
    return cases


def compiled() -> list[Base]:
    return [Base(item.name, item.program, situation_of(item)) for item in load_corpus()]


def situation_of(item: CorpusProgram) -> Situation:
    """Slices are proved for exactly the scalars that they are called with, on every rank."""
    calls = tuple(EntryCall(entry.name, item.scalars[entry.name]) for entry in item.program.entries)
    if item.whole:
        return Situation(calls, SIGNATURE)
    ranges = {name: (value, value) for scalars in item.scalars.values() for name, value in scalars.items()}
    ranges |= {RANK: (0, item.program.ranks - 1)} if RANK in ranges else {}
    return Situation(calls, None, ranges, {name: [scalars] for name, scalars in item.scalars.items()})


class Schedules(Target):
    """Bases are hand-written, single launches of compiled programs, and (rarely) whole ones."""

    name = "schedules"

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        os.environ["SSCC_NATIVE_OPTIMISE"] = "0"
        everything = [*hand_written(), *compiled()]
        small = [base for base in everything if len(base.program.bodies) <= 2]
        whole = [base for base in everything if len(base.program.entries) > 1]
        self._choices = [
            (5, everything[:5]),
            (6, small),
            (5, [b for b in everything[5:] if b not in small and b not in whole]),
            (0.2, whole),
        ]
        self._native = NativeCache()
        self._prepared: dict[str, _Prepared] = {}
        self._checked: set[str] = set()

    def case(self, seed: int) -> tuple[Base, Program | None, list[Change], InputError | None]:
        """Return the base of a seed, its mutant (None if it is no schedule), the changes, and why it is no schedule."""
        rng = random.Random(seed)
        weights, choices = zip(*self._choices, strict=True)
        base = rng.choice(rng.choices(choices, weights)[0])
        prepared = self._prepare(base)
        data, changes = prepared.mutator.mutated(rng)
        try:
            if seed % TEXT_EVERY == 0:
                return base, Program.from_json(json.dumps(data)), changes, None
            return base, prepared.decode(data), changes, None
        except InputError as error:
            return base, None, changes, error

    def run(self, seed: int) -> str:
        base, program, changes, _ = self.case(seed)
        if program is None:
            return "refused as a file"
        try:
            admit(program, base.situation)
        except InputError:
            return "refused"
        self._check(base)
        try:
            return self._compared(program, base.situation, 2 if seed % TEAM_EVERY == 0 else 1)
        except Finding as finding:
            lines = "\n".join(f"  {change}" for change in changes)
            raise Finding(f"{base.name}: {finding}\n{lines}") from None

    def reduced(self, seed: int, tries: int) -> str:
        """Reduce the changes first, then the schedule: launches, stages, steps, instructions, numbers."""
        base, _, changes, _ = self.case(seed)
        whole = json.loads(base.program.to_json())
        left = iter(range(tries))

        def ending(data: Json) -> str:
            return _kind(outcome_apart(lambda: self.judged(Program.from_json(json.dumps(data)), base.situation)))

        def changed(some: list[Change]) -> Json:
            data = whole
            for change in some:
                data = replaced(data, change.path, change.new)
            return data

        same = ending(changed(changes))
        if not same.startswith(("finding", "crash", "hang")):
            return f"seed {seed} finds nothing: {same}"
        needed = reduce(changes, lambda some: ending(changed(some)) == same)
        data = reduce_tree(changed(needed), lambda data: next(left, None) is not None and ending(data) == same)
        lines = "\n".join(f"  {change}" for change in needed)
        return f"{base.name}: {same}\n{lines}\n{json.dumps(data, sort_keys=True, separators=(',', ':'))}"

    def judged(self, program: Program, situation: Situation) -> str:
        """The outcome of a program. Raises Finding."""
        try:
            admit(program, situation)
        except InputError:
            return "refused"
        return self._compared(program, situation, 1)

    def _compared(self, program: Program, situation: Situation, threads: int) -> str:
        reference = run_reference(program, situation)
        return judge(reference, self._run_native(program, situation, threads), program, situation)

    def _run_native(self, program: Program, situation: Situation, threads: int, keep: bool = False) -> RunResult:
        try:
            code = self._native.code(program, keep=keep)
        except InputError as error:
            return RunResult(str(error))
        return run_native(program, situation, code, threads)

    def _prepare(self, base: Base) -> _Prepared:
        if base.name not in self._prepared:
            self._prepared[base.name] = _Prepared(base.program)
        return self._prepared[base.name]

    def _check(self, base: Base) -> None:
        """Check a base before its first mutant runs; the code of its bodies is kept for the mutants.

        A base whose keys lie halfway between two codes may give either result, which is not an error."""
        if base.name in self._checked:
            return
        admit(base.program, base.situation)
        reference = run_reference(base.program, base.situation)
        native = self._run_native(base.program, base.situation, 1, keep=True)
        outcome = "refused" if reference.refusal else judge(reference, native, base.program, base.situation)
        if outcome not in ("agrees", "ill-conditioned"):
            raise Finding(f"the base {base.name} itself: {reference.refusal or native.refusal}")
        self._checked.add(base.name)


def _kind(outcome: str) -> str:
    """Return an outcome without names and numbers, which may differ in a smaller case."""
    return re.sub(r"'[^']*'|\[[^]]*\]|-?\d[\d.e+-]*", "_", outcome.splitlines()[0])


class _Prepared:
    """A base as data, with the decoded record of each item of its lists, so that a mutant decodes only new items."""

    def __init__(self, program: Program) -> None:
        self._data: dict[str, Json] = json.loads(program.to_json())
        self.mutator = Mutator(self._data)
        self._hints = get_type_hints(Program)
        self._decoded = {
            id(item): record
            for field in fields(Program)
            if isinstance(self._data[field.name], list)
            for item, record in zip(self._data[field.name], getattr(program, field.name), strict=True)
        }

    def decode(self, data: dict[str, Json]) -> Program:
        """As `Program.from_json`, of which the suite's other tests say that it decodes lists item by item."""
        if data["version"] != sch.FORMAT_VERSION:
            raise ScheduleErrors.FORMAT_VERSION(version=data["version"], known=sch.FORMAT_VERSION)
        values: dict[str, Any] = {}
        for name, value in data.items():
            hint = self._hints[name]
            values[name] = self._list(value, name, get_args(hint)) if get_args(hint) else decode(value, hint, name)
        return Program(**values)

    def _list(self, items: Json, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(items, list):
            raise InputError(f"{name} is no list")
        return tuple(self._decoded.get(id(item)) or decode(item, args[0], name) for item in items)


__all__ = ["Base", "Schedules"]
