"""An artifact and weights become a session: its own weights, those it refers to, or another checkpoint's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sscc.ir.errors import InputError
from sscc.runtime.artifact import Artifact
from sscc.runtime.session import Session

if TYPE_CHECKING:
    from sscc.compiler.frontend.checkpoint import Checkpoint


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """A checkpoint's weights by name, each read when it is asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._checkpoint.names():
            raise KeyError(name)
        return self._checkpoint.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.names())

    def __len__(self) -> int:
        return len(self._checkpoint.names())


def open_session(artifact: Artifact, checkpoint: Path | None = None) -> Session:
    """A session of the reference interpreter on `artifact`.

    Args:
        checkpoint: run these weights, of the same names and shapes, instead of the artifact's. Where the artifact
            refers to a checkpoint, that one is opened and its digest compared.

    Raises:
        InputError: the weights are missing, damaged, of other shapes, or not the ones referred to.
    """
    weights = _referred(artifact) if checkpoint is None else artifact.weights(lambda _: _tensors(checkpoint))
    return Session(artifact.program, weights, artifact.signature)


def _referred(artifact: Artifact) -> dict[str, torch.Tensor]:
    record = artifact.manifest.weights
    if record.mode != "reference" or record.source is None:
        return artifact.weights()
    source = Path(record.source)
    if not source.exists():
        raise InputError(f"{artifact.path} refers to the checkpoint {source}, which is not there: give --checkpoint")
    return artifact.weights(lambda _: _tensors(source), check_digest=True)


def _tensors(path: Path) -> CheckpointTensors:
    from sscc.compiler.frontend.checkpoint import open_checkpoint  # imports transformers, which takes seconds

    return CheckpointTensors(open_checkpoint(path))
