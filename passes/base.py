"""What a pass is, and how a list of passes runs: verified after each one, dumped where something changed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from sscc.ir.context import first_diagnostic, print_module
from sscc.ir.errors import InternalError
from sscc.ir.levels import check_legal, record_pass, set_level


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
        level: the level that the module has reached once this pass is done.
    """

    name: ClassVar[str]
    level: ClassVar[str]

    @abstractmethod
    def run(self, module: ir.Module) -> None:
        """Transforms `module`. Raises UnsupportedError for a model that cannot be honoured."""


@dataclass(frozen=True)
class PassTime:
    """How long a pass took, verification and printing left out, in seconds."""

    name: str
    seconds: float
    changed: bool


def run_passes(module: ir.Module, passes: Sequence[Pass], observers: Sequence[Observer] = ()) -> list[PassTime]:
    """Runs `passes` in order, verifying the module and its level's legality after each.

    Raises:
        InternalError: when a pass leaves invalid or illegal IR behind, naming the pass.
    """
    times = []
    text = print_module(module) if observers else ""
    for item in passes:
        for observer in observers:
            observer.before(item.name, text)
        start = time.perf_counter()
        item.run(module)
        seconds = time.perf_counter() - start
        set_level(module, item.level)
        record_pass(module, item.name)
        try:
            check_legal(module, item.level)
        except InternalError as error:
            raise InternalError(f"after pass {item.name}: {error}") from None
        after = print_module(module) if observers else ""
        changed = not observers or after != text
        times.append(PassTime(item.name, seconds, changed))
        for observer in observers:
            observer.after(item.name, after, changed)
        text = after
    return times


def run_upstream(module: ir.Module, pipeline: str, what: str) -> None:
    """Runs a pipeline of upstream passes.

    Raises:
        InternalError: with `what` and the first diagnostic.
    """
    try:
        PassManager.parse(pipeline).run(module.operation)
    except ir.MLIRError as error:
        raise InternalError(f"{what} failed: {first_diagnostic(error)}") from None
