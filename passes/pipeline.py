"""The passes in the order in which a compilation runs them."""

from __future__ import annotations

from sscc.ir.levels import LEVELS
from sscc.passes.base import Pass
from sscc.passes.build_entries import BuildEntries
from sscc.passes.lower_torch import LowerTorch
from sscc.passes.merge_equal_kernels import MergeEqualKernels
from sscc.passes.outline_kernels import OutlineKernels
from sscc.passes.split_layers import SplitLayers
from sscc.passes.thread_cache import ThreadCache

PIPELINE: tuple[Pass, ...] = (
    LowerTorch(),
    SplitLayers(),
    ThreadCache(),
    BuildEntries(),
    OutlineKernels(),
    MergeEqualKernels(),
)


def passes_between(done: tuple[str, ...], level: str) -> tuple[Pass, ...]:
    """The passes still to run for a module that has been through `done`, up to and including `level`."""
    wanted = LEVELS.index(level)
    return tuple(item for item in PIPELINE if item.name not in done and LEVELS.index(item.level) <= wanted)
