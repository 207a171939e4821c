"""Printing the IR between passes, as a person asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from sscc.ir.errors import UsageError
from sscc.passes.base import Observer
from sscc.passes.pipeline import pass_by_name

ALL, CHANGE = "all", "change"


class IrPrinter(Observer):
    """Prints modules before and after passes.

    Args:
        before: pass names, or "all".
        after: pass names, "all", or "change" (after every pass that changed something).
        out: the stream that is written to.

    Raises:
        UsageError: a name that no pass has.
    """

    def __init__(self, before: Sequence[str], after: Sequence[str], out: TextIO) -> None:
        for name in (*before, *after):
            if name not in (ALL, CHANGE):
                pass_by_name(name)
        if CHANGE in before:
            raise UsageError("what will change is not known before a pass: give a name or all")
        self._before, self._after, self._out = set(before), set(after), out

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to print at all."""
        return bool(self._before or self._after)

    def before(self, name: str, text: str) -> None:
        if self._before & {name, ALL}:
            self._out.write(f"// ----- before {name} -----\n{text}")

    def after(self, name: str, text: str, changed: bool) -> None:
        if self._after & {name, ALL} or (changed and CHANGE in self._after):
            self._out.write(f"// ----- after {name}{'' if changed else ' (no change)'} -----\n{text}")
