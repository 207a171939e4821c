"""What a pass is, and how a list of passes runs: verified after each one, dumped where something changed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from sscc.ir.context import first_diagnostic, print_module
from sscc.ir.errors import InternalError
from sscc.ir.levels import check_legal, record_pass, set_level

Observer = Callable[[str, str], None]
"""Called with (pass name, IR text) after every pass that changed something."""


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


def run_passes(module: ir.Module, passes: Sequence[Pass], observer: Observer | None = None) -> list[PassTime]:
    """Runs `passes` in order, verifying the module and its level's legality after each.

    Raises:
        InternalError: when a pass leaves invalid or illegal IR behind, naming the pass.
    """
    times = []
    before = print_module(module) if observer else ""
    for item in passes:
        start = time.perf_counter()
        item.run(module)
        seconds = time.perf_counter() - start
        set_level(module, item.level)
        record_pass(module, item.name)
        try:
            check_legal(module, item.level)
        except InternalError as error:
            raise InternalError(f"after pass {item.name}: {error}") from None
        after = print_module(module) if observer else ""
        changed = observer is None or after != before
        times.append(PassTime(item.name, seconds, changed))
        if observer and changed:
            observer(item.name, after)
        before = after
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
