"""How far work is that takes its time, on a terminal: drawn on stderr by rich, and gone when the work is done.

Nothing is drawn where stderr is no terminal, as in continuous integration, where the person wants quiet, or inside of
something that is drawn already. rich leaves out colour where NO_COLOR is set. It is imported only where something is
drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Update = Callable[[str], None]
Advance = Callable[[int, int], None]
"""Called with (done, in all)."""


_DRAWN: ContextVar[bool] = ContextVar("drawn", default=False)


def is_shown(*, quiet: bool = False) -> bool:
    return not quiet and not _DRAWN.get() and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _drawn(*columns: ProgressColumn) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress

    token = _DRAWN.set(True)
    try:
        # What is logged meanwhile stands above what is drawn, in lines as long as they are.
        with Progress(*columns, console=Console(file=sys.stderr, soft_wrap=True), transient=True) as progress:
            yield progress
    finally:
        _DRAWN.reset(token)


@contextmanager
def status(text: str, *, quiet: bool = False) -> Iterator[Update]:
    """A line with what is being done, and for how long. Gives what changes the text."""
    if not is_shown(quiet=quiet):
        yield lambda text: None
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with _drawn(*columns) as progress:
        task = progress.add_task(text, total=None)
        yield lambda text: progress.update(task, description=text)


@contextmanager
def bar(text: str, *, quiet: bool = False) -> Iterator[tuple[Advance, Update]]:
    """A bar with the share that is done, the time that has passed, and an estimate of what is left. Gives what moves
    it, and what changes the text."""
    if not is_shown(quiet=quiet):
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
    with _drawn(*columns) as progress:
        task = progress.add_task(text, total=None)
        yield (
            lambda done, total: progress.update(task, completed=done, total=total),
            lambda text: progress.update(task, description=text),
        )
