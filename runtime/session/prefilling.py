"""The prefill of one prompt, in calls of a few chunk steps, with rows of earlier prompts reused and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sscc.ir.choices import POSITION_IDS
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.kept_rows import Copy, KeptRows, ReadChunks, WriteChunks, carries, rows_in_scratch
from sscc.runtime.session.session_errors import SessionErrors

RunPrefill = Callable[[Mapping[str, Array], Mapping[str, int]], tuple[dict[str, Array], tuple[int, ...]]]
"""Runs the entry `prefill` once: inputs and scalars, to outputs and the cursor (phase, chunk)."""


class Prefill:
    """A prefill in progress: a prompt, and the slot that it fills.

    Args:
        prefix: the rows of the prompt's first chunks, which are copied instead of being computed.
        fill: copies that take the rows of later whole chunks, by chunk number.

    Attributes:
        slot: the slot that is written.
        prompt: its tokens.

    Raises UsageError for more chunks than `Signature.reusable_chunks`, for a prefix whose last chunk is no checkpoint,
    and for chunks to fill that are not whole or not computed.
    """

    def __init__(
        self,
        signature: Signature,
        rows: KeptRows,
        slot: int,
        prompt: Excerpt,
        prefix: Sequence[Copy] = (),
        fill: Mapping[int, Copy] | None = None,
    ) -> None:
        self.slot = slot
        self.prompt = prompt
        self._signature = signature
        self._rows = rows
        self._prefix = prefix
        self._fill = fill or {}
        self._phase = self._chunk = 0
        self._check_chunks()
        shape = (1, signature.scratch_tokens)
        padded, positions = np.zeros(shape, np.int64), np.full(shape, prompt.positions[-1])
        padded[0, : len(prompt)], positions[0, : len(prompt)] = prompt.tokens, prompt.positions
        self._inputs = {"tokens": padded, POSITION_IDS: positions}

    def _check_chunks(self) -> None:
        tokens, reused = len(self.prompt), len(self._prefix)
        most = self._signature.reusable_chunks(tokens)
        if reused > most:
            raise SessionErrors.REUSED_CHUNKS(chunks=reused, tokens=tokens, most=most)
        if reused and not self._prefix[-1].checkpoint:
            raise SessionErrors.NO_CHECKPOINT(chunk=reused - 1)
        whole = tokens // self._signature.prefill_chunk
        wrong = [chunk for chunk in self._fill if not reused <= chunk < whole]
        if wrong:
            raise SessionErrors.KEPT_CHUNK(chunk=wrong[0], tokens=tokens, first=reused, last=whole - 1)

    def step(self, steps: int, run: RunPrefill) -> Array | None:
        """Do at most `steps` chunk steps. Return the logits [V] of the last token once the prompt is prefilled, a live
        view; None before. Raises UsageError for fewer than one step."""
        if steps < 1:
            raise SessionErrors.PREFILL_STEPS(steps=steps)
        left = min(steps, self._signature.prefill_steps(len(self.prompt), len(self._prefix)))
        if (self._prefix or self._fill) and rows_in_scratch(self._signature):
            return self._step_by_layer(left, run)
        layers = range(self._signature.layers)
        if self._phase == self._chunk == 0:
            self._write_prefix(layers)
        logits = self._run(left, run)
        if logits is not None:
            self._read_chunks(range(self._signature.chunks(len(self.prompt))), layers)
        return logits

    def _step_by_layer(self, left: int, run: RunPrefill) -> Array | None:
        """Do chunk steps like `step`, in calls that end where a layer ends, or where a chunk leaves a checkpoint,
        because the scratch holds the rows of one layer at a time."""
        reused = len(self._prefix)
        chunks = self._signature.chunks(len(self.prompt)) - reused
        while left:
            layers = range(self._phase - 1, self._phase) if 1 <= self._phase <= self._signature.layers else range(0)
            first = reused + self._chunk
            taken = min(left, chunks - self._chunk)
            if layers and carries(self._signature, layers[0]):
                ends = [chunk + 1 for chunk, copy in self._fill.items() if copy.checkpoint and chunk >= first]
                taken = min([taken, *(end - first for end in ends)])
            if self._chunk == 0:
                self._write_prefix(layers)
            logits = self._run(taken, run)
            if logits is not None:
                return logits
            self._read_chunks(range(first, first + taken), layers)
            left -= taken
        return None

    def _write_prefix(self, layers: range) -> None:
        if self._prefix and layers:
            copies = tuple(chunk.number for chunk in self._prefix)
            self._rows.do(WriteChunks(copies, self.slot, layers))

    def _read_chunks(self, chunks: range, layers: range) -> None:
        copies = {chunk: copy.number for chunk, copy in self._fill.items() if chunk in chunks}
        if copies and layers:
            self._rows.do(ReadChunks(copies, self.slot, layers))

    def _run(self, steps: int, run: RunPrefill) -> Array | None:
        before = (self._phase, self._chunk)
        scalars = self._signature.prefill_scalars(len(self.prompt), self.slot, before, steps, len(self._prefix))
        outputs, (self._phase, self._chunk) = run(self._inputs, scalars)
        if (self._phase, self._chunk) <= before:
            raise SessionErrors.PREFILL_STUCK(phase=before[0], chunk=before[1])
        return outputs["prefill_logits"][0] if self._phase >= self._signature.layers + 2 else None
