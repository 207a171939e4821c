"""Passes, and running a list of them: the level is checked before, the module verified after each, and shown to
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
"""Our operations are pure, on tensors that are values, so that upstream's own pass may take them away.

`canonicalize` is no part of it. It folds operations on constants, and a kernel of -O0 that was one is then a kernel of
nothing, whose result nobody writes. It moves constants away from what reads them, to the front of a function. And it
makes nothing smaller: of three models at every -O, kernels, bodies and steps of the schedules are as many as without.
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
    """Watches passes run. `text` is the module, printed as dumps are."""

    def before(self, name: str, text: str) -> None:
        """Pass `name` is about to run on `text`."""

    def after(self, name: str, text: str, changed: bool) -> None:
        """Pass `name` has made `text`, which passed verification."""


class Pass(ABC):
    """A transformation of a module, in place. Options are dataclass fields of the subclass.

    Attributes:
        name: the pass's name on the command line and in dumps (`kernel-looping` for kernel_looping.py).
        takes: the levels that the module may have before; empty for any.
        follows: the passes after which a compilation runs it, at one -O level or another; empty for the first.
        level: the level that the module has reached once this pass is done; "" where it stays at its own, and the
            pass is none of those that a compilation runs.
        tidied: whether unused operations and all but one of several equal ones go away after it.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[str, ...]]
    follows: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str]
    tidied: ClassVar[bool] = True

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Transforms `module`. Raises UnsupportedError for a model that cannot be honoured."""


def summary_of(kind: type[Pass]) -> str:
    """What a pass does, in a line: what its module's docstring begins with."""
    text = inspect.getdoc(inspect.getmodule(kind)) or ""
    return text.partition("\n")[0].partition(": ")[2]


HIDDEN = "hidden"
"""Key in the metadata of a field that is no option."""


@functools.cache
def options_of(kind: type[Pass]) -> Mapping[str, tuple[type, object]]:
    """Return type and default of each option of a pass, by its name with dashes: the fields of its dataclass."""
    hints = get_type_hints(kind)
    fields = [each for each in dataclasses.fields(kind) if HIDDEN not in each.metadata]  # type: ignore[arg-type]
    return {field.name.replace("_", "-"): (hints[field.name], field.default) for field in fields}


def step_text(item: Pass) -> str:
    """A pass with the options that are not at their default: ``outline-kernels{granularity=layer}``."""
    changed = []
    for name, (_, default) in options_of(type(item)).items():
        value = getattr(item, name.replace("-", "_"))
        if value != default:
            changed.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return item.name + (f"{{{' '.join(changed)}}}" if changed else "")


_COUNTS: ContextVar[dict[str, int]] = ContextVar("counts")


def count(what: str, number: int = 1) -> None:
    """Adds to a statistic of the pass that is running; nothing where none is run by `run_passes`."""
    counts = _COUNTS.get({})
    counts[what] = counts.get(what, 0) + number


@dataclass(frozen=True)
class PassTime:
    """What a pass did.

    Attributes:
        seconds: how long it took, verification and printing left out.
        statistics: what it counted.
    """

    name: str
    seconds: float
    changed: bool
    statistics: dict[str, int]


def run_passes(
    module: ir.Module, passes: Sequence[Pass], observers: Sequence[Observer] = (), *, verify_each: bool = True
) -> list[PassTime]:
    """Run `passes` in order, verifying the module and its level's legality after each, or after the last only.

    Raises:
        UsageError: a pass does not take the level that the module has when its turn comes; none has run then.
        InternalError: when a pass leaves invalid or illegal IR behind, naming the pass.
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
        UsageError: naming the first that does not.
    """
    for item in passes:
        if item.takes and level not in item.takes:
            if item.follows:
                raise PassErrors.WRONG_LEVEL(name=item.name, takes=item.takes, level=level, follows=item.follows)
            raise PassErrors.NOT_CAPTURED(name=item.name, takes=item.takes, level=level)
        level = item.level or level


def run_upstream(module: Any, pipeline: str, what: str) -> None:
    """Runs a pipeline of upstream passes on a module or a function. What they leave is verified with what our own pass
    leaves, once, and not after each of them: that would take longer than they do.

    Raises:
        InternalError: with `what` and the first diagnostic.
    """
    passes = PassManager.parse(pipeline)
    passes.enable_verifier(False)
    try:
        passes.run(module.operation)
    except ir.MLIRError as error:
        raise PassErrors.UPSTREAM_FAILED(pipeline=what, diagnostic=first_diagnostic(error)) from None
