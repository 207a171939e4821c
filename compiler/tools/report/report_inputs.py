"""The inputs of a report: the artifact, its modelled times, and optional files of the user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sscc.compiler.tools.inspection.inspection import (
    PREFILL,
    Inspection,
    inspection_of,
    time_decode,
    time_prefill,
    time_steps,
)
from sscc.compiler.tools.inspection.measurements import Measurements, read_measurements
from sscc.compiler.tools.report.pass_dumps import Dumps, read_dumps
from sscc.compiler.tools.report.texts import Text, run_text
from sscc.ir.target import Target
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.timing import Timing


@dataclass(frozen=True)
class Sources:
    """Inputs of all sections.

    Attributes:
        target: modelled machine, shared by all ranks; `machine` is the share of one rank.
        context: tokens in each slot of the modelled decode step; max_context if None.
        prompt: prompt tokens of the modelled prefill; one chunk if None.
        staying: see `sscc.runtime.timing.time_entry`.
        bench: measurements of the same program, or None.
        dumps: IR dumps of its compilation, or None.
        text: a prompt and its answer, or None.
    """

    artifact: Artifact
    target: Target
    context: int | None = None
    prompt: int | None = None
    staying: float = 0.0
    bench: Measurements | None = None
    dumps: Dumps | None = None
    text: Text | None = None

    @classmethod
    def read(
        cls,
        artifact: Artifact,
        target: Target,
        *,
        context: int | None = None,
        prompt: int | None = None,
        staying: float = 0.0,
        bench: str | os.PathLike[str] | None = None,
        dumps: str | os.PathLike[str] | None = None,
        text: str | os.PathLike[str] | None = None,
    ) -> Sources:
        """Read the inputs.

        Args:
            bench: file written by `sscc bench --json`.
            dumps: folder written by `sscc compile --dump-ir-dir`.
            text: file with a prompt to run (`run_text`).

        Raises:
            InputError: one of them is damaged, or belongs to another program.
            UsageError: the prompt does not fit the program.
        """
        schedule = artifact.schedule_digest
        measured = None if bench is None else read_measurements(Path(bench), schedule)
        ir = None if dumps is None else read_dumps(Path(dumps), schedule)
        run = None if text is None else run_text(artifact, Path(text))
        return cls(artifact, target, context, prompt, staying, measured, ir, run)

    @property
    def name(self) -> str:
        """Name of the artifact."""
        return self.artifact.path.resolve().name

    @property
    def machine(self) -> Target:
        """Machine of one rank."""
        return self.target.of_rank(self.artifact.program.ranks)

    @cached_property
    def inspection(self) -> Inspection:
        return inspection_of(self.artifact, self.timings, self.context, self.prompt_tokens)

    @property
    def prompt_tokens(self) -> int:
        signature = self.artifact.signature
        return min(signature.prefill_chunk, signature.geometry.max_context) if self.prompt is None else self.prompt

    @cached_property
    def timings(self) -> Mapping[str, Timing]:
        """Timings by entry: steps with all firings recorded, and a prefill."""
        steps = time_steps(self.artifact, self.target, self.context, staying=self.staying, record=True)
        return {**steps, PREFILL: time_prefill(self.artifact, self.target, self.prompt_tokens)}

    @cached_property
    def without_prefetch(self) -> Timing:
        """Timing of a decode step in which the loads of an iteration wait for the end of the previous one."""
        return time_decode(self.artifact, self.target, self.context, staying=self.staying, prefetch=False)
