"""Passes section: the functions that each pass added or removed, and unified diffs of the functions that it changed.

Values are numbered in order, so that an added operation renumbers all later ones. Lines that differ only in numbers of
values count as equal, unless nothing else in the function differs. Functions with
the same changes apart from numbers, such as equal layers, are shown once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sscc.compiler.tools.report.pass_dumps import HEAD, Dump, Dumps
from sscc.compiler.tools.report.report_inputs import Sources

CONTEXT = 2
LINES_OF_A_FUNCTION, FUNCTIONS_OF_A_PASS, LINES_OF_ALL = 160, 16, 6000
COLUMNS = 180
ORDER = {"changed": 0, "added": 1, "removed": 2}
_VALUE = re.compile(r"(%[A-Za-z_][\w.$-]*_|%)\d+\b")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Line:
    """A line of a diff.

    Attributes:
        kind: "add", "del", "at" (position in the function) or "same".
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Change:
    """A function that was added, removed, or changed.

    Attributes:
        others: names of functions with the same change.
        cut: number of omitted lines.
    """

    name: str
    what: str
    added: int
    removed: int
    lines: tuple[Line, ...]
    cut: int
    others: tuple[str, ...]


@dataclass(frozen=True)
class PassRow:
    """A pass.

    Attributes:
        description: its summary, in one line.
        left_out: number of changes that are not shown.
    """

    number: int
    name: str
    description: str
    lines: int
    nbytes: int
    functions: int
    added: int
    removed: int
    changes: tuple[Change, ...]
    left_out: int


@dataclass(frozen=True)
class Passes:
    folder: str
    start: str
    rows: tuple[PassRow, ...]


def passes(sources: Sources) -> Passes | None:
    """Return the section; None if no dumps were given."""
    return None if sources.dumps is None else compared(sources.dumps)


def compared(dumps: Dumps) -> Passes:
    """Compare every dump with the previous one. The total size of diffs is limited, so that later diffs are cut
    after large ones."""
    first, *rest = dumps.dumps
    left, rows, before = LINES_OF_ALL, [], first
    for number, dump in enumerate(rest, 1):
        row = _row(number, before, dump, left)
        left -= sum(len(change.lines) for change in row.changes)
        rows.append(row)
        before = dump
    return Passes(dumps.folder, first.name, tuple(rows))


def _row(number: int, before: Dump, after: Dump, left: int) -> PassRow:
    changes = _alike(list(_changes(before, after)))
    shown: list[Change] = []
    for change in changes[:FUNCTIONS_OF_A_PASS]:
        taken = change.lines[: max(0, left)]
        left -= len(taken)
        cut = change.cut + len(change.lines) - len(taken)
        shown.append(Change(change.name, change.what, change.added, change.removed, taken, cut, change.others))
    everything = [(change, 1 + len(change.others)) for change in changes]
    return PassRow(
        number=number,
        name=after.name,
        description=_description(after.name),
        lines=after.lines,
        nbytes=after.nbytes,
        functions=len(after.functions) - 1,
        added=sum(change.added * times for change, times in everything),
        removed=sum(change.removed * times for change, times in everything),
        changes=tuple(shown),
        left_out=len(changes) - len(shown),
    )


def _description(name: str) -> str:
    """Return the summary of the pass with this name; "" if sscc has no such pass."""
    from sscc.passes.base import summary_of
    from sscc.passes.pass_pipeline import REGISTRY

    return summary_of(REGISTRY[name]).replace("`", "") if name in REGISTRY else ""


def _changes(before: Dump, after: Dump) -> Iterator[tuple[Change, str]]:
    """Yield every function that differs, with a key that distinguishes different changes."""
    for name in {**after.functions, **before.functions}:
        old, new = before.functions.get(name, ()), after.functions.get(name, ())
        if old == new:
            continue
        lines = list(_difference(old, new))
        what = "changed" if old and new else "added" if new else "removed"
        added, removed = (sum(line.kind == kind for line in lines) for kind in ("add", "del"))
        key = what + "\n".join(line.kind + _NUMBER.sub("#", line.text) for line in lines)
        shown = tuple(Line(line.kind, _shortened(line.text)) for line in lines[:LINES_OF_A_FUNCTION])
        yield Change(name, what, added, removed, shown, len(lines) - len(shown), ()), key


def _alike(changes: list[tuple[Change, str]]) -> list[Change]:
    groups: dict[str, list[Change]] = {}
    for change, key in changes:
        groups.setdefault(key, []).append(change)
    merged = [
        Change(c.name, c.what, c.added, c.removed, c.lines, c.cut, tuple(other.name for other in others))
        for c, *others in groups.values()
    ]
    return sorted(merged, key=lambda c: (c.name == HEAD, ORDER[c.what], -c.added - c.removed))


def _difference(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[Line]:
    """Yield the lines of a unified diff."""
    if not old or not new:
        yield from (Line("add" if new else "del", text) for text in old or new)
        return
    a, b = ([_VALUE.sub(r"\1", line) for line in side] for side in (old, new))
    if a == b:
        a, b = list(old), list(new)
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield Line("at", f"line {group[0][3] + 1} of {len(b)}")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (Line("same", text) for text in new[j1:j2])
                continue
            yield from (Line("del", text) for text in old[i1:i2])
            yield from (Line("add", text) for text in new[j1:j2])


def _shortened(text: str) -> str:
    return text if len(text) <= COLUMNS else f"{text[:COLUMNS]} … ({len(text) - COLUMNS} more characters)"
