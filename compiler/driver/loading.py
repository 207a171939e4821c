"""Interpreters of artifacts, with weights of the artifact, of the checkpoint that it refers to, or of another
checkpoint.

An artifact contains no path. A checkpoint is opened if the user names it, or if the user's cache records that the
artifact was compiled from it (`sscc.compiler.driver.referred_checkpoints`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sscc.compiler.driver.referred_checkpoints import recalled
from sscc.compiler.driver.weight_cache import packed_weights
from sscc.compiler.options.progress import bar
from sscc.ir.extras import COMPILE, require
from sscc.ir.sizes import format_bytes
from sscc.runtime.artifact.manifest import WeightsRecord
from sscc.runtime.artifact.signature import ProgramIdentity
from sscc.runtime.artifact.tensor_files import (
    Array,
    KeepingReader,
    Layout,
    Packings,
    digest_of,
    stack_tensors,
    taken,
)
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.collectives.group import ALONE, Group
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.registry import DEFAULT_BACKEND
from sscc.runtime.session.artifact import Artifact, Resolver
from sscc.runtime.session.session import interpreter_of


def open_interpreter(
    artifact: Artifact,
    checkpoint: Path | None = None,
    *,
    interpreter: str = DEFAULT_BACKEND,
    threads: int | None = None,
    group: Group = ALONE,
) -> Interpreter:
    """Return an interpreter of `artifact`, or of the part of one rank.

    Args:
        checkpoint: weights to use instead of the artifact's, with the same names and shapes. None for the
            artifact's weights; if it contains none, for the checkpoint it was compiled from, if the user's cache
            records it. Its digest is checked.
        interpreter: one of `sscc.runtime.backends.registry.backend_names`.
        threads: number of threads; None for the interpreter's default.
        group: ranks of the program, among them this one.

    Raises:
        UsageError: there is no such interpreter, or the artifact is for another number of ranks.
        InputError: the weights are missing, damaged, of other shapes, or not those that the artifact refers to.
    """
    conditions = Conditions(artifact.schedule_digest, threads, group=group)
    return interpreter_of(artifact, conditions, interpreter, _resolver(artifact, checkpoint))


def identity_of(artifact: Artifact, checkpoint: Path | None = None) -> ProgramIdentity:
    """Return the digests of the program and weights that `open_interpreter` runs. Weights of another checkpoint are
    read to compute their digest."""
    if checkpoint is None:
        return artifact.identity
    return ProgramIdentity(artifact.schedule_digest, digest_of(artifact.layout, _reader(checkpoint, artifact.layout)))


def _resolver(artifact: Artifact, checkpoint: Path | None) -> Resolver | None:
    """Return the function that opens the weights; None for an artifact that contains them, or that has none."""
    if checkpoint is not None:
        return lambda layout: stack_tensors(layout, _reader(checkpoint, layout))
    record = artifact.manifest.weights
    if record.mode != "reference" or not record.digest:
        return None
    source = recalled(record.digest, artifact.path)
    return lambda layout: _packed(record, layout, source, artifact.packings, artifact.verify)


def _packed(
    record: WeightsRecord, layout: Layout, checkpoint: Path, packings: Packings, verify: bool
) -> Mapping[str, Array]:
    """Return a checkpoint's weights from the user's cache; the checkpoint is opened only to pack them."""
    opened: list[KeepingReader] = []

    def reader() -> KeepingReader:
        if not opened:
            opened.append(_reader(checkpoint, layout))
        return opened[0]

    read = KeepingReader(lambda source, spec: reader()(source, spec), lambda *source: reader().kept(*source))
    whole = {name: stack.whole for name, stack in layout.items()}
    with bar("opening weights") as (advance, update):

        def packing(done: int, total: int) -> None:
            update(f"packing weights, {format_bytes(total)}")
            advance(done, total)

        return taken(layout, packed_weights(record, whole, read, packing, packings, verify=verify))


def _reader(path: Path, layout: Layout) -> KeepingReader:
    require(COMPILE, f"reading the checkpoint {path}")
    from sscc.compiler.frontend.checkpoint import open_checkpoint, warn_of_unused  # importing it takes seconds
    from sscc.compiler.frontend.checkpoint_tensors import checkpoint_reader

    checkpoint = open_checkpoint(path, program=False)
    wanted = {source for stack in layout.values() for source in stack.sources}
    checkpoint.check_ties(wanted)
    warn_of_unused(checkpoint, wanted)
    return checkpoint_reader(checkpoint, f"the checkpoint {path}")
