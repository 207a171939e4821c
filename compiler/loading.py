"""An artifact and weights become a session: its own weights, those it refers to, or another checkpoint's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sscc.compiler.weight_cache import packed_weights
from sscc.ir.errors import InputError
from sscc.runtime.artifact import Artifact, Resolver
from sscc.runtime.manifest import WeightsRecord
from sscc.runtime.session import Session
from sscc.runtime.tensor_files import Layout, TensorSpec, reading, stack_tensors

if TYPE_CHECKING:
    from sscc.compiler.frontend.checkpoint import Checkpoint


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """A checkpoint's weights by name, each read when it is asked for. Raises as `Checkpoint.tensor` does."""

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
    return Session.from_artifact(artifact, resolver=_resolver(artifact, checkpoint))


def _resolver(artifact: Artifact, checkpoint: Path | None) -> Resolver | None:
    """What opens the weights: None where they are the artifact's own."""
    if checkpoint is not None:
        return lambda layout: stack_tensors(layout, reading(_tensors(checkpoint), f"the checkpoint {checkpoint}"))
    record = artifact.manifest.weights
    if record.mode != "reference" or record.source is None:
        return None
    source = Path(record.source)
    if not source.exists():
        raise InputError(f"{artifact.path} refers to the checkpoint {source}, which is not there: give --checkpoint")
    return lambda layout: _packed(record, layout, source)


def _packed(record: WeightsRecord, layout: Layout, checkpoint: Path) -> Mapping[str, torch.Tensor]:
    """The weights referred to, from the user's cache; the checkpoint is opened only to pack them."""
    opened: list[CheckpointTensors] = []

    def read(source: str, spec: TensorSpec) -> torch.Tensor:
        if not opened:
            opened.append(_tensors(checkpoint))
        return reading(opened[0], f"the checkpoint {checkpoint}")(source, spec)

    return packed_weights(record, layout, read, _show_progress)


def _show_progress(done: int, total: int) -> None:
    """A line on a terminal that counts up, on stderr; nothing elsewhere."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        sys.stderr.write(f"\rpacking weights {done / total:4.0%} of {total / 2**20:.0f} MiB{end}")
        sys.stderr.flush()


def _tensors(path: Path) -> CheckpointTensors:
    from sscc.compiler.frontend.checkpoint import open_checkpoint  # imports transformers, which takes seconds

    return CheckpointTensors(open_checkpoint(path))
