"""Passes, and running a list of them: the level is checked before, and the module is verified after each and passed to
observers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from sscc.ir.context import first_diagnostic, print_module
from sscc.ir.errors import ErrorKind, InternalError, UsageError
from sscc.ir.levels import check_legal, get_level, record_pass, set_level
from sscc.ir.stopwatch import timed

TIDYING = "builtin.module(cse)"
"""Upstream clean-up after our passes. Our operations are pure and on tensor values, so that MLIR may merge and remove
them.

`canonicalize` is not part of it: it folds operations on constants, so that a kernel of -O0 that was one operation would
be left empty, without anything that writes its result; it moves constants to the front of a function, away from their
users; and it did not reduce the kernels, bodies and steps of the schedules of three models at any -O level.
"""


class PassErrors(ErrorKind):
    WRONG_LEVEL = (
        UsageError,
        "the pass {name} takes a module of level {takes}, but this one is of level {level}: in a compilation {name} "
        "runs after {follows}",
    )
    NOT_CAPTURED = (
        UsageError,
        "the pass {name} takes a module of level {takes}, but this one is of level {level}: in a compilation {name} is "
        "the first pass",
    )
    ILLEGAL_IR = InternalError, "after pass {name}: {cause}"
    UPSTREAM_FAILED = InternalError, "{pipeline} failed: {diagnostic}"


class Observer:
    """An observer of running passes. `text` is the module, printed as in dumps."""

    def before(self, name: str, text: str) -> None:
        """Called before pass `name` runs on `text`."""

    def after(self, name: str, text: str, changed: bool) -> None:
        """Called after pass `name` has produced `text`, which passed verification."""


class Pass(ABC):
    """A transformation of a module, in place. Options are dataclass fields of the subclass.

    Attributes:
        name: name on the command line and in dumps (`kernel-looping` for kernel_looping.py).
        takes: levels that the module may have before; empty for any.
        follows: passes after which a compilation runs it, at some -O level; empty for the first.
        level: level of the module after this pass; "" if it does not change, and the pass is not one of those that a
            compilation runs.
        tidied: True if unused and duplicate operations are removed after it.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[str, ...]]
    follows: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str]
    tidied: ClassVar[bool] = True

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Transform `module`. Raises UnsupportedError for a model that cannot be compiled faithfully."""


def summary_of(kind: type[Pass]) -> str:
    """Return a one-line summary of a pass: the first line of its module's docstring."""
    text = inspect.getdoc(inspect.getmodule(kind)) or ""
    return text.partition("\n")[0].partition(": ")[2]


HIDDEN = "hidden"
"""Key in the metadata of a field that is not an option."""


@functools.cache
def options_of(kind: type[Pass]) -> Mapping[str, tuple[type, object]]:
    """Return type and default of each option of a pass, by its name with dashes: the fields of its dataclass."""
    hints = get_type_hints(kind)
    fields = [each for each in dataclasses.fields(kind) if HIDDEN not in each.metadata]  # type: ignore[arg-type]
    return {field.name.replace("_", "-"): (hints[field.name], field.default) for field in fields}


def step_text(item: Pass) -> str:
    """Return a pass with its options that differ from their defaults: ``outline-kernels{granularity=layer}``."""
    changed = []
    for name, (_, default) in options_of(type(item)).items():
        value = getattr(item, name.replace("-", "_"))
        if value != default:
            changed.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return item.name + (f"{{{' '.join(changed)}}}" if changed else "")


_COUNTS: ContextVar[dict[str, int]] = ContextVar("counts")


def count(what: str, number: int = 1) -> None:
    """Add to a statistic of the running pass; without effect outside of `run_passes`."""
    counts = _COUNTS.get({})
    counts[what] = counts.get(what, 0) + number


@dataclass(frozen=True)
class PassTime:
    """Time and statistics of a pass.

    Attributes:
        seconds: run time, without verification and printing.
        statistics: counters.
    """

    name: str
    seconds: float
    changed: bool
    statistics: dict[str, int]


def run_passes(
    module: ir.Module, passes: Sequence[Pass], observers: Sequence[Observer] = (), *, verify_each: bool = True
) -> list[PassTime]:
    """Run `passes` in order. The module and its level's legality are verified after each pass, or only after the last.

    Raises:
        UsageError: a pass does not take the level that the module would have at its turn; then none is run.
        InternalError: a pass leaves invalid or illegal IR; the message names the pass.
    """
    if passes:
        check_levels(get_level(module), passes)
    times = []
    text = print_module(module) if observers else ""
    for item in passes:
        for observer in observers:
            observer.before(item.name, text)
        counts: dict[str, int] = {}
        token = _COUNTS.set(counts)
        start = time.perf_counter()
        try:
            with timed(item.name):
                item.run(module)
        finally:
            _COUNTS.reset(token)
        seconds = time.perf_counter() - start
        if item.level:
            set_level(module, item.level)
            record_pass(module, step_text(item))
        if verify_each or item is passes[-1]:
            try:
                check_legal(module, item.level or get_level(module))
            except InternalError as error:
                raise PassErrors.ILLEGAL_IR(name=item.name, cause=error) from None
        if item.tidied:
            run_upstream(module, TIDYING, f"tidying after pass {item.name}")
        after = print_module(module) if observers else ""
        changed = not observers or after != text
        times.append(PassTime(item.name, seconds, changed, counts))
        for observer in observers:
            observer.after(item.name, after, changed)
        text = after
    return times


def check_levels(level: str, passes: Sequence[Pass]) -> None:
    """Check that each of `passes`, run in order from `level` on, finds a level that it takes.

    Raises:
        UsageError: naming the first pass that does not.
    """
    for item in passes:
        if item.takes and level not in item.takes:
            if item.follows:
                raise PassErrors.WRONG_LEVEL(name=item.name, takes=item.takes, level=level, follows=item.follows)
            raise PassErrors.NOT_CAPTURED(name=item.name, takes=item.takes, level=level)
        level = item.level or level


def run_upstream(module: Any, pipeline: str, what: str) -> None:
    """Run a pipeline of upstream passes on a module or a function. The result is not verified after each of them, which
    would take longer than they do, but once, together with that of our own pass.

    Raises:
        InternalError: a pass fails; the message has `what` and the first diagnostic.
    """
    passes = PassManager.parse(pipeline)
    passes.enable_verifier(False)
    try:
        passes.run(module.operation)
    except ir.MLIRError as error:
        raise PassErrors.UPSTREAM_FAILED(pipeline=what, diagnostic=first_diagnostic(error)) from None
