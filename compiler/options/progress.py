"""Progress of long operations on a terminal: drawn on stderr by rich, and removed when the operation ends.

Nothing is drawn if stderr is not a terminal, as in continuous integration, or inside `silenced`. One display is shown
at a time: a bar replaces the status line in which it begins, and nothing replaces a bar. rich omits colours if NO_COLOR
is set. It is imported only when something is drawn.
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
"""Callback with the amount of work done and the total."""


@dataclass(frozen=True)
class _Drawn:
    """The display that is on the terminal."""

    progress: Progress
    is_bar: bool


_DRAWN: ContextVar[_Drawn | None] = ContextVar("drawn", default=None)
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silenced(quiet: bool = True) -> Iterator[None]:
    """Draw nothing inside the block if `quiet`. A block inside a silent one is silent, too."""
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

    # Log lines appear above the display and are not wrapped. stdout is redirected only if it is a terminal, so that a
    # pipe gets exactly the bytes that are written to it.
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
    """Show a line with a text and the elapsed time. Yields a function that changes the text."""
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
    """Show a bar with the completed share, the elapsed time and an estimate of the remaining time.

    Yields a function that moves the bar and one that changes the text.

    Args:
        alive: True to redraw continuously, in a thread; False to redraw only when the bar moves, so that drawing takes
            no time from measurements in between.
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
    """Show a bar while a prompt is prefilled. Yields the argument `seen` of `Session.generate`, or None if no bar is
    drawn, so that the prompt is prefilled in one call."""
    shown = _is_shown(quiet=False, is_bar=True)
    with bar(f"reading a prompt of {tokens} tokens") as (advance, _):
        yield advance if shown else None
