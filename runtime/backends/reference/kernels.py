"""Kernels: control around pipelines."""

from __future__ import annotations

from collections.abc import Mapping

from sscc.ir.errors import InputError
from sscc.ir.schedule import Kernel, Launch, Pipeline
from sscc.runtime.backends.reference.bodies import BodyCode
from sscc.runtime.backends.reference.control import Action, Environment, compile_block
from sscc.runtime.backends.reference.interface import Views
from sscc.runtime.backends.reference.memory import Memory
from sscc.runtime.backends.reference.pipelines import PipelineCode


class KernelCode:
    """A kernel, compiled once per program. `checked`: a slot of a buffer is NaN when its producer begins it.

    Raises InputError for anything malformed.
    """

    def __init__(self, kernel: Kernel, bodies: Mapping[str, BodyCode], memory: Memory, *, checked: bool) -> None:
        self.kernel = kernel
        self._where = f"kernel {kernel.name!r}"
        self._bodies, self._memory, self._checked = bodies, memory, checked
        self._pipelines: dict[str, PipelineCode] = {}
        names = {*(param.name for param in kernel.params), *kernel.scalars}
        if len(names) != len(kernel.params) + len(kernel.scalars):
            raise InputError(f"the schedule is malformed: {self._where}: two of its parameters share a name")
        compile_block(kernel.body, set(kernel.scalars), self._where, self._compile)

    def bind(self, views: Views) -> Action:
        """Fixes a tensor per parameter; the function that it gives is one launch, of the kernel's scalars.

        Raises InputError where a port looks at a window of a tensor that is not dense.
        """

        def bound(item: Launch | Pipeline, _: set[str]) -> Action:
            assert isinstance(item, Pipeline)  # checked when the kernel was compiled
            return self._pipelines[item.name].bind(views)

        actions = compile_block(self.kernel.body, set(self.kernel.scalars), self._where, bound)
        if len(actions) == 1 and isinstance(self.kernel.body[0], Pipeline):
            return actions[0]

        def launch(environment: Environment) -> None:
            try:
                for action in actions:
                    action(environment)
            except KeyError as error:
                raise InputError(f"{self._where} uses scalar {error} on a path that never sets it") from None

        return launch

    def _compile(self, item: Launch | Pipeline, known: set[str]) -> Action:
        if isinstance(item, Launch):
            raise InputError(f"the schedule is malformed: {self._where} launches kernel {item.kernel!r}")
        if item.name in self._pipelines:
            raise InputError(f"the schedule is malformed: {self._where}: two pipelines are called {item.name!r}")
        self._pipelines[item.name] = PipelineCode(
            item, self.kernel, self._bodies, self._memory, known, checked=self._checked
        )
        return lambda _: None
