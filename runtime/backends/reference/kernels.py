"""Kernels: control flow around pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sscc.ir.schedule import For, If, Item, Kernel, Launch, Pipeline
from sscc.runtime.backends.reference.bodies import BodyCode
from sscc.runtime.backends.reference.control import Action, Environment, ReferenceControlErrors, compile_block
from sscc.runtime.backends.reference.interface import Views
from sscc.runtime.backends.reference.memory import Memory
from sscc.runtime.backends.reference.pipelines import PipelineCode
from sscc.runtime.backends.reference.watching import Watch


class KernelCode:
    """A kernel, compiled once per program.

    Args:
        checked: fill a slot of a buffer with NaN when its producer begins it.
        watch: watcher of stages.
    """

    def __init__(
        self, kernel: Kernel, bodies: Mapping[str, BodyCode], memory: Memory, *, checked: bool, watch: Watch
    ) -> None:
        self.kernel = kernel
        self._where = f"kernel {kernel.name!r}"
        self._pipelines: dict[str, PipelineCode] = {}
        for pipeline, loops in _with_loops(kernel.body, ()):
            self._pipelines[pipeline.name] = PipelineCode(
                pipeline, kernel, bodies, memory, checked=checked, loops=loops, watch=watch
            )

    def bind(self, views: Views) -> Action:
        """Fix a tensor for each parameter; one call of the returned function, with the kernel's scalars, is one launch.

        Raises InputError if a port shows a window of a tensor that is not dense.
        """

        def bound(item: Launch | Pipeline) -> Action:
            assert isinstance(item, Pipeline)  # only entries contain launches
            return self._pipelines[item.name].bind(views)

        actions = compile_block(self.kernel.body, bound)
        if len(actions) == 1 and isinstance(self.kernel.body[0], Pipeline):
            return actions[0]

        def launch(environment: Environment) -> None:
            try:
                for action in actions:
                    action(environment)
            except KeyError as error:
                raise ReferenceControlErrors.UNSET_SCALAR(where=self._where, scalar=error.args[0]) from None

        return launch


def _with_loops(items: Sequence[Item], loops: tuple[str, ...]) -> Iterator[tuple[Pipeline, tuple[str, ...]]]:
    """Yield every pipeline, with the indices of the loops around it."""
    for item in items:
        match item:
            case Pipeline():
                yield item, loops
            case For():
                yield from _with_loops(item.body, (*loops, item.index))
            case If():
                yield from _with_loops(item.body, loops)
