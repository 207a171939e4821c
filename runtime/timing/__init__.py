"""The timing model: it replays a schedule on a target. It computes no values and needs no torch.

`time_entry` returns a `Timing`; `write_trace` writes one as a Chrome trace.
"""

from sscc.runtime.timing.entry import time_entry
from sscc.runtime.timing.expert_reads import ExpertReads, expert_reads
from sscc.runtime.timing.result import KernelSummary, StageSummary, Timing
from sscc.runtime.timing.trace import write_trace

__all__ = ["ExpertReads", "KernelSummary", "StageSummary", "Timing", "expert_reads", "time_entry", "write_trace"]
