"""Shrinking what fails: lists by delta debugging, trees by taking their parts away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tests.fuzz.mutation import replaced

T = TypeVar("T")
Json = Any
Path = tuple[str | int, ...]


def reduce(items: Sequence[T], still_fails: Callable[[list[T]], bool]) -> list[T]:
    """A sublist that still fails, and of which no single item can be left out: halves are tried first, items last.

    Args:
        items: fail as they are.
        still_fails: whether a sublist fails in the same way; what it raises ends the reduction.
    """
    kept = list(items)
    size = max(1, len(kept) // 2)
    while kept:
        start, shrunk = 0, False
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if still_fails(rest):
                kept, shrunk = rest, True
            else:
                start += size
        if size == 1 and not shrunk:
            break
        size = max(1, size // 2)
    return kept


def reduce_tree(data: Json, still_fails: Callable[[Json], bool]) -> Json:
    """A tree of lists, records and values with as few list items as still fail, and values as simple.

    Lists are reduced from the outermost to the innermost, and again until nothing more goes; then numbers become 0 or
    1 and texts empty where that still fails. Fields of records stay.
    """
    before = None
    while before != data:
        before = data
        for path in list(_paths(data, list)):
            data = _reduced_list(data, path, still_fails)
        for path in list(_paths(data, (int, float, str))):
            data = _simplified(data, path, still_fails)
    return data


def _reduced_list(data: Json, path: Path, still_fails: Callable[[Json], bool]) -> Json:
    items = _at(data, path)
    if not isinstance(items, list) or not items:
        return data
    return replaced(data, path, reduce(items, lambda rest: still_fails(replaced(data, path, rest))))


def _simplified(data: Json, path: Path, still_fails: Callable[[Json], bool]) -> Json:
    value = _at(data, path)
    simpler: tuple[Json, ...] = ()
    if isinstance(value, str):
        simpler = ("",)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        simpler = (type(value)(0), type(value)(1))
    for candidate in simpler:
        if value == candidate:
            break
        if still_fails(replaced(data, path, candidate)):
            return replaced(data, path, candidate)
    return data


def _paths(data: Json, kinds: type | tuple[type, ...], path: Path = ()) -> Iterator[Path]:
    """Places of values of these kinds, outer ones first."""
    if isinstance(data, kinds):
        yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _paths(value, kinds, (*path, key))


def _at(data: Json, path: Path) -> Json:
    """Return the value at a place; None if an earlier reduction has removed it."""
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data

