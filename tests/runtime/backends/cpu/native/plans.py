"""Small plans, kernels that record their calls, and views of a core's memory."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sscc.runtime.backends.cpu.plan.plan import Item, Mode, NativePlan, PlanArgument, PlanEntry, PlanRegion, PlanRun
from sscc.runtime.support._native import Core

KERNEL = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)


@dataclass(frozen=True)
class RecordedCall:
    """One call of a kernel: the thread, addresses, scalars, units [begin, end) and the scratch's address."""

    thread: int
    arguments: tuple[int, ...]
    scalars: tuple[int, ...]
    begin: int
    end: int
    scratch: int


@dataclass
class Recorder:
    """A kernel that records its calls, and runs `does` in each of them."""

    arguments: int = 0
    scalars: int = 0
    does: Callable[[RecordedCall], None] | None = None
    calls: list[RecordedCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._kernel = KERNEL(self._called)

    @property
    def address(self) -> int:
        return ctypes.cast(self._kernel, ctypes.c_void_p).value or 0

    def _called(self, arguments: Any, scalars: Any, begin: int, end: int, scratch: int | None) -> None:
        addresses = tuple(arguments[i] or 0 for i in range(self.arguments))
        numbers = tuple(scalars[i] for i in range(self.scalars))
        call = RecordedCall(threading.get_ident(), addresses, numbers, begin, end, scratch or 0)
        self.calls.append(call)
        if self.does is not None:
            self.does(call)


def run(
    function: int = 0,
    mode: Mode = "split",
    units: int = 1,
    grid: Sequence[tuple[int, int]] = (),
    arguments: Sequence[PlanArgument] = (),
    scalars: Sequence[int] = (),
    label: int = 0,
) -> PlanRun:
    return PlanRun(function, mode, units, tuple(grid), tuple(arguments), tuple(scalars), label)


def plan(
    *body: Item,
    runs: Sequence[PlanRun] = (),
    regions: Sequence[PlanRegion] = (),
    constants: Sequence[tuple[int, int]] = (),
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    registers: int = 8,
    scratch_bytes: int = 0,
    functions: Sequence[str] = ("f",),
) -> NativePlan:
    """A plan with one entry, "main", and a label "stage N" for each run's label N."""
    labels = tuple(f"stage {i}" for i in range(1 + max((r.label for r in runs), default=0)))
    return NativePlan(
        regions=tuple(regions),
        functions=tuple(functions),
        labels=labels,
        runs=tuple(runs),
        constants=tuple(constants),
        registers=registers,
        scratch_bytes=scratch_bytes,
        entries=(PlanEntry("main", tuple(inputs), tuple(outputs), body),),
    )


def core(of: NativePlan, *kernels: Recorder, threads: int = 1, **options: Any) -> Core:
    """A core whose functions are these kernels; where there are none, a kernel that must not be called."""
    return Core(of.encode(), [k.address for k in kernels] or [1] * len(of.functions), [], threads, **options)


def words(core: Core, region: str, thread: int = 0) -> NDArray[np.int64]:
    """A view of a region as 64-bit integers, valid as long as the core lives."""
    address, nbytes = core.region(region, thread)
    if nbytes == 0:
        return np.zeros(0, np.int64)
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.int64)
