"""A backend whose device is another process: its interpreter shares no memory with the session.

The process runs the native interpreter. Every member of `Interpreter` that reaches the device is a message to it, so
whatever works on this backend works on a device behind a network.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sscc.ir.errors import SsccError, UsageError
from sscc.ir.schedule import Program
from sscc.runtime.artifact.tensor_files import Array, Packing
from sscc.runtime.backends import registry
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.interpreter import InProcess, MemoryUse, StageName, Watcher
from sscc.runtime.backends.registry import backend, register_backend

NAME = "elsewhere"
PLACE = f"{__name__}:Elsewhere"


@contextmanager
def registered() -> Iterator[None]:
    """The backend is one of this process's while the block runs."""
    register_backend(NAME, PLACE)
    try:
        yield
    finally:
        del registry._CLASSES[NAME]


class Elsewhere:
    """See `Backend`. Weights lie as the schedule has them, and tiles have a size of its own."""

    name = packer = NAME
    tile_rows = 3

    def __init__(self, program: Program) -> None:
        self._program = program
        self.packings: Mapping[str, Packing] = {}

    def lower(self) -> str:
        return "none"

    def open(self, weights: Mapping[str, Array], conditions: Conditions) -> RemoteInterpreter:
        return RemoteInterpreter(self._program, weights, conditions.threads)


@dataclass(frozen=True, eq=False)
class RemoteTensor:
    """See `DeviceTensor`. `indices` are applied one after another."""

    device: RemoteInterpreter
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    indices: tuple[Any, ...] = ()

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __getitem__(self, index: Any) -> RemoteTensor:
        shape = np.broadcast_to(np.zeros((), self.dtype), self.shape)[index].shape
        return RemoteTensor(self.device, self.name, shape, self.dtype, (*self.indices, index))

    def read(self, out: Array | None = None) -> Array:
        values: Array = self.device.ask("read", self.name, self.indices)
        if out is None:
            return values
        out[...] = values
        return out

    def write(self, values: Array) -> None:
        self.device.ask("write", self.name, self.indices, values)


class RemoteInterpreter(InProcess):
    """See `Interpreter`."""

    stages: frozenset[StageName] = frozenset()

    def __init__(self, program: Program, weights: Mapping[str, Array], threads: int | None) -> None:
        self.program = program
        context = get_context("spawn")
        self._link, other = context.Pipe()
        process = context.Process(target=_serve, args=(other, program.to_json(), dict(weights), threads), daemon=True)
        process.start()
        self._end = weakref.finalize(self, process.kill)
        self.calls: list[str] = []

    def ask(self, what: str, *arguments: Any) -> Any:
        """Return the device's answer. Raises what it raises."""
        self.calls.append(what)
        self._link.send((what, arguments))
        answer = self._link.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        result: tuple[dict[str, Array], tuple[int, ...]] = self.ask("run", entry, dict(inputs), scalars)
        return result

    def device_tensor(self, name: str) -> RemoteTensor:
        return RemoteTensor(self, name, *self.ask("tensor", name))

    def reset(self) -> None:
        self.ask("reset")

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        if stages:
            raise UsageError("the stages of a device elsewhere cannot be watched")

    def memory(self) -> MemoryUse | None:
        use: MemoryUse | None = self.ask("memory")
        return use

    def close(self) -> None:
        self._end()


def _serve(link: Connection, program: str, weights: Mapping[str, Array], threads: int | None) -> None:
    """Run the device's process."""
    inner: Any = backend("native", Program.from_json(program)).open(weights, Conditions(threads=threads))

    def answer(what: str, arguments: tuple[Any, ...]) -> Any:
        if what == "run":
            return inner.run(*arguments)
        if what in ("reset", "memory"):
            return getattr(inner, what)()
        part = inner.device_tensor(arguments[0])
        if what == "tensor":
            return part.shape, part.dtype
        for index in arguments[1]:
            part = part[index]
        return part.read() if what == "read" else part.write(arguments[2])

    while True:
        try:
            what, arguments = link.recv()
        except EOFError:
            return
        try:
            link.send(answer(what, arguments))
        except SsccError as error:
            link.send(UsageError(str(error)))
