"""The passes: in the order in which a compilation runs them, and by name."""

from __future__ import annotations

from sscc.ir.errors import UsageError
from sscc.ir.levels import LEVELS
from sscc.passes.base import Pass
from sscc.passes.build_entries import BuildEntries
from sscc.passes.lower_torch import LowerTorch
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import OutlineKernels
from sscc.passes.repeat_layers import RepeatLayers
from sscc.passes.split_layers import SplitLayers
from sscc.passes.thread_cache import ThreadCache

PIPELINE: tuple[Pass, ...] = (
    LowerTorch(),
    SplitLayers(),
    RepeatLayers(),
    ThreadCache(),
    BuildEntries(),
    OutlineKernels(),
    MergeEqualKernels(),
)

REGISTRY: dict[str, type[Pass]] = {type(item).name: type(item) for item in PIPELINE}
"""Every pass by the name that the command line, dumps and tests use."""


def pass_by_name(name: str) -> type[Pass]:
    """The class of the pass `name`. Raises UsageError for a name that no pass has."""
    if name not in REGISTRY:
        raise UsageError(f"there is no pass {name!r}, there are {', '.join(sorted(REGISTRY))}")
    return REGISTRY[name]


def passes_between(done: tuple[str, ...], level: str) -> tuple[Pass, ...]:
    """The passes still to run for a module that has been through `done`, up to and including `level`."""
    wanted = LEVELS.index(level)
    return tuple(item for item in PIPELINE if item.name not in done and LEVELS.index(item.level) <= wanted)
