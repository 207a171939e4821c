"""IR shown to the user: excerpts of modules, and printing between passes (`--print-ir-after`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TextIO

from torch_mlir import ir

from sscc.ir.context import print_module
from sscc.ir.dump_text import readable
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.rewriting import functions
from sscc.ir.suggestions import did_you_mean
from sscc.passes.base import Observer
from sscc.passes.pass_pipeline import pass_by_name

ALL, CHANGE = "all", "change"
EXCERPT = "// excerpt: "
"""Prefix of a text that is not a whole module."""


class IrPrintingErrors(ErrorKind):
    NO_FUNCTION = (
        UsageError,
        "the module has no function {name}; its functions are {functions}{similar_hint}",
    )
    CHANGE_BEFORE = (
        UsageError,
        "--print-ir-before cannot be `change`, because changes are unknown before a pass: give a name or all",
    )


@dataclass(frozen=True)
class Excerpt:
    """The part of a module to show.

    Attributes:
        functions: name of the functions, or a pattern with `*` and `?`; None for the whole module.
        locations: True if operations show their origin in the model.
    """

    functions: str | None = None
    locations: bool = True

    def of(self, module: ir.Module) -> str:
        """Return the text of the excerpt; "" if no function matches. Only the whole module can be compiled again.
        Attributes of the module are not shown with single functions."""
        if self.functions is None and self.locations:
            return print_module(module)
        shown = module.operation.clone(ip=False)
        if self.functions is not None:
            for function in functions(shown):
                if not fnmatchcase(function.name.value, self.functions):
                    function.operation.erase()
            if not list(functions(shown)):
                return ""
            for name in list(shown.operation.attributes):
                del shown.operation.attributes[name]
        # Called functions may be missing; the verifier would then print the generic form.
        text = shown.operation.get_asm(enable_debug_info=self.locations, assume_verified=True)
        parts = [f"functions {self.functions}"] * (self.functions is not None)
        parts += ["without locations"] * (not self.locations)
        return f"{EXCERPT}{', '.join(parts)}; for reading only\n{readable(text, shown)}"

    def of_result(self, module: ir.Module) -> str:
        """Return the text as the result of a command. Raises UsageError if no function matches."""
        text = self.of(module)
        if not text:
            names = [function.name.value for function in functions(module)]
            likely = did_you_mean(self.functions or "", names)
            raise IrPrintingErrors.NO_FUNCTION(name=self.functions or "", functions=names, similar_hint=likely)
        return text


class Showing(Observer):
    """Observer that shows a part of the module on which passes run.

    Attributes:
        seen: True if any text was shown.
    """

    def __init__(self, module: ir.Module, excerpt: Excerpt) -> None:
        self._module, self._excerpt = module, excerpt
        self._last = ""
        self.seen = False

    def shown(self, text: str) -> str:
        """Return the part of the module to show; "" for nothing. `text` is the text of the whole module."""
        self._last = self._excerpt.of(self._module) if self._excerpt != Excerpt() else text
        self.seen = self.seen or bool(self._last)
        return self._last

    def shown_after(self, text: str, changed: bool) -> tuple[str, bool]:
        """Return the part to show after a pass, and True if it changed. `changed` is True if the module changed."""
        last, shown = self._last, self.shown(text)
        return shown, changed and shown != last


def check_pass_names(before: Sequence[str], after: Sequence[str]) -> None:
    """Check the names of passes to print the IR around. Raises UsageError for an unknown pass."""
    for name in (*before, *after):
        if name not in (ALL, CHANGE):
            pass_by_name(name)
    if CHANGE in before:
        raise IrPrintingErrors.CHANGE_BEFORE()


class IrPrinter(Showing):
    """Printer of the IR before and after passes.

    Args:
        module: module on which the passes run.
        before: pass names, or "all".
        after: pass names, "all", or "change" (after every pass that changed the shown part).
        out: output stream.
        excerpt: part of the module to show.

    Raises:
        UsageError: an unknown pass.
    """

    def __init__(
        self, module: ir.Module, before: Sequence[str], after: Sequence[str], out: TextIO, excerpt: Excerpt
    ) -> None:
        check_pass_names(before, after)
        super().__init__(module, excerpt)
        self._before, self._after, self._out = set(before), set(after), out

    @property
    def is_needed(self) -> bool:
        """True if there is anything to print."""
        return bool(self._before or self._after)

    def before(self, name: str, text: str) -> None:
        self._show(f"before {name}", self.shown(text), bool(self._before & {name, ALL}))

    def after(self, name: str, text: str, changed: bool) -> None:
        shown, changed = self.shown_after(text, changed)
        selected = bool(self._after & {name, ALL}) or (changed and CHANGE in self._after)
        self._show(f"after {name}{'' if changed else ' (no change)'}", shown, selected)

    def _show(self, when: str, text: str, selected: bool) -> None:
        if selected and text:
            self._out.write(f"// ----- {when} -----\n{text}")
