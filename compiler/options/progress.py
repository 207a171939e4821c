"""How far work is that takes its time, on a terminal: drawn on stderr by rich, and gone when the work is done.

Nothing is drawn where stderr is no terminal, as in continuous integration, or where quiet is wanted (`silenced`).
One thing is drawn at a time: a bar takes the place of the line that it begins in, and nothing that of a bar. rich
leaves out colour where NO_COLOR is set. It is imported only where something is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Update = Callable[[str], None]
Advance = Callable[[int, int], None]
"""Called with (done, in all)."""


@dataclass(frozen=True)
class _Drawn:
    """What is on the terminal now."""

    progress: Progress
    is_bar: bool


_DRAWN: ContextVar[_Drawn | None] = ContextVar("drawn", default=None)
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """Nothing is drawn meanwhile, if `quiet`."""
    token = _SILENT.set(quiet or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


def _is_shown(quiet: bool, is_bar: bool) -> bool:
    around = _DRAWN.get()
    free = around is None or (is_bar and not around.is_bar)
    return free and not quiet and not _SILENT.get() and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _drawn(*columns: ProgressColumn, is_bar: bool, alive: bool = True) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress

    # What is logged meanwhile stands above what is drawn, in lines as long as they are; what a pipe gets stays its own.
    console = Console(file=sys.stderr, soft_wrap=True)
    redirect = sys.stdout is not None and sys.stdout.isatty()
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=redirect, auto_refresh=alive)
    around = _DRAWN.get()
    token = _DRAWN.set(_Drawn(progress, is_bar))
    if around is not None:
        around.progress.stop()
    try:
        with progress:
            yield progress
    finally:
        _DRAWN.reset(token)
        if around is not None:
            around.progress.start()


@contextmanager
def status(text: str, *, quiet: bool = False) -> Iterator[Update]:
    """A line with what is being done, and for how long. Gives what changes the text."""
    if not _is_shown(quiet, is_bar=False):
        yield lambda text: None
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with _drawn(*columns, is_bar=False) as progress:
        task = progress.add_task(text, total=None)
        yield lambda text: progress.update(task, description=text)


@contextmanager
def bar(text: str, *, quiet: bool = False, alive: bool = True) -> Iterator[tuple[Advance, Update]]:
    """A bar with the share that is done, the time that has passed, and an estimate of what is left. Gives what moves
    it, and what changes the text.

    Args:
        alive: drawn anew all the time, by a thread; otherwise only when it moves, so that it takes no time of what is
            measured between.
    """
    if not _is_shown(quiet, is_bar=True):
        yield (lambda done, total: None), (lambda text: None)
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with _drawn(*columns, is_bar=True, alive=alive) as progress:
        task = progress.add_task(text, total=None)
        yield (
            lambda done, total: progress.update(task, completed=done, total=total, refresh=not alive),
            lambda text: progress.update(task, description=text, refresh=not alive),
        )


@contextmanager
def prompt_bar(tokens: int) -> Iterator[Advance | None]:
    """A bar over the reading of a prompt, for `Session.generate`; None where none is drawn, and a prompt is read in
    one call."""
    shown = _is_shown(quiet=False, is_bar=True)
    with bar(f"reading a prompt of {tokens} tokens") as (advance, _):
        yield advance if shown else None
