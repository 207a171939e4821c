"""A method that has no compiled program yet, run by its definition on the untouched model, as a session of one slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.eager import EagerQuerySelection
from sscc.compiler.frontend.probe import load_model
from sscc.compiler.quality.cache_bytes import cache_bytes
from sscc.compiler.quality.cells import Cell
from sscc.ir.errors import UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session import Kept


class EagerSession:
    """What an example is run on (see `Session`, whose members these are), in eager PyTorch.

    Args:
        signature: of a program of the same model.
        held: bytes that a sequence holds.
    """

    def __init__(self, run: EagerQuerySelection, signature: Signature, held: int) -> None:
        self.signature = signature
        self._run = run
        self._held = held
        self._last: tuple[int, int] | None = None

    def prefill(self, slot: int, tokens: Sequence[int]) -> Array:
        """Writes a whole prompt. Returns the logits [V] of its last token."""
        logits: Array = self._run.prefill([int(token) for token in tokens]).float().numpy()
        self._last = int(tokens[-1]), len(tokens) - 1
        return logits

    def replay(self, slot: int) -> Array:
        """Feeds the prompt's last token once more, at its own position, as a step. Returns its logits [V]."""
        if self._last is None:
            raise UsageError("there is no prompt to replay, or a token was fed after it")
        logits: Array = self._run.decode(*self._last).float().numpy()
        return logits

    def decode(self, tokens: Mapping[int, int]) -> Array:
        """Feeds one token to slot 0. Returns the logits [1, V]."""
        self._last = None
        return np.asarray(self._run.decode(tokens[0]).float().numpy()[None])

    def kept(self, slot: int) -> Kept:
        """What is held now: every row that was written."""
        run, full = self._run, self.signature.full_kv_bytes
        return Kept(
            prompt_len=run.prompt_len,
            length=run.position,
            kept=run.position,
            evicted=0,
            budget=run.geometry.max_context,
            kv_bytes=self._held,
            full_bytes=full(run.geometry.max_context),
            full_bytes_now=full(run.position),
        )


def open_eager(model: Path, cell: Cell, signature: Signature, threads: int | None) -> EagerSession:
    """The untouched model under a cell that chooses by query.

    Args:
        model: the checkpoint.
        signature: of a program of this model, whose dtype is computed in.
        threads: how many PyTorch may use in this process; None leaves it as it is.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    checkpoint = open_checkpoint(model)
    dtype = torch.bfloat16 if signature.dtype == "bf16" else torch.float32
    module = checkpoint.program or load_model(checkpoint, dtype)
    run = EagerQuerySelection(module, cell.geometry, cell.landmark_bits, cell.fetch)
    return EagerSession(run, signature, cache_bytes(cell, signature).held)
