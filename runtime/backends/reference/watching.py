"""The watcher of stages of the reference interpreter while it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from sscc.runtime.backends.interpreter import StageName, StageRun, Watcher
from sscc.runtime.backends.reference.arrays import to_array


@dataclass
class Watch:
    """The current watch, shared by all compiled parts of a program.

    Attributes:
        launch: number of the running launch of its kernel, in this call of an entry.
    """

    launch: int = 0
    _stages: frozenset[StageName] = frozenset()
    _watcher: Watcher | None = field(default=None, repr=False)

    def set(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        self._stages, self._watcher = frozenset(stages) if watcher else frozenset(), watcher

    def watches(self, name: StageName) -> bool:
        return name in self._stages

    def see(self, name: StageName, loops: Sequence[int], buffers: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Report that a stage has fired in an iteration and filled these slots."""
        if self._watcher is not None:
            copies = {
                buffer: to_array(slots[0].clone() if len(slots) == 1 else torch.stack(list(slots)))
                for buffer, slots in buffers.items()
            }
            self._watcher(StageRun(name, self.launch, tuple(loops), copies))
