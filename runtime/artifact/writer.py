"""Writing an artifact: all files are written to a temporary folder, which is swapped with OUT at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType

from sscc.ir.errors import ErrorKind, InputError, InternalError, OutputError, UnsupportedError, UsageError
from sscc.ir.files import (
    HashingFile,
    check_name,
    clear_leftovers,
    creating,
    exchange,
    output_errors,
    reserve,
    sync,
    sync_tree,
)
from sscc.ir.schedule import Program
from sscc.runtime.artifact.artifact_files import CONSTANTS, LISTING, MANIFEST, SCHEDULE, SCHEDULE_BYTES, read_manifest
from sscc.runtime.artifact.manifest import FileRecord, Manifest
from sscc.runtime.artifact.tensor_files import (
    SHARD_BYTES,
    Array,
    Layout,
    Packings,
    Reader,
    Stack,
    TensorSpec,
    plan_shards,
    stored_specs,
    weights_digest,
    write_tensors,
)

OLD = ".old"
"""Suffix of an artifact that is being replaced, if two names cannot be swapped."""


class ArtifactOutputErrors(ErrorKind):
    DOUBLE_FILE = InternalError, "the artifact cannot hold a file {name!r}, or holds it already"
    NOT_AN_ARTIFACT = OutputError, (
        "{path} exists and is not an .rdu artifact, so it is not replaced: remove it, or choose another output"
    )
    NO_MANIFEST = InternalError, "the artifact {path} was written without a manifest"
    SCHEDULE_TOO_LARGE = UnsupportedError, (
        "the schedule has {nbytes} bytes, more than the limit of {most}: compile with a higher -O level"
    )


class ArtifactWriter:
    """Write the folder `out` atomically: ``with ArtifactWriter(out) as writer: ...; writer.finish(manifest)``.

    An `out` that is an artifact is replaced at the end; anything else in its place is refused. If the block raises
    (Ctrl-C included), the written files are removed and an existing `out` is untouched. Files that a killed process
    left beside `out` are removed by the next writer. Equal contents give equal bytes. Every method raises OutputError
    if the file system refuses; the constructor raises UsageError if `out` cannot be the name of a file.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self._out = Path(out)
        check_name(self._out)
        if os.path.islink(self._out):
            self._out = self._out.resolve()
        self._files: dict[str, FileRecord] = {}
        self._finished = False

    def __enter__(self) -> ArtifactWriter:
        self.check_replaceable()
        with output_errors(self._out):
            clear_leftovers(self._out.parent, self._out.name)
            self._clear_old()
            self._folder, self._lock = reserve(self._out, _make_folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._finished:
                raise ArtifactOutputErrors.NO_MANIFEST(path=self._out)
            if kind is None:
                self._install()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)

    # -- contents

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file at a path relative to the artifact, with "/" between folders."""
        with self._create(path) as file:
            file.write(data)

    def write_text(self, path: str, text: str) -> None:
        self.write_bytes(path, text.encode())

    def write_json(self, path: str, value: object) -> None:
        self.write_text(path, json.dumps(value, sort_keys=True, indent=1) + "\n")

    def write_program(self, program: Program, listing: str | None = None) -> None:
        """Write schedule.json and, if given, the readable listing.

        Raises UnsupportedError if the schedule exceeds the limit for reading.
        """
        text = program.to_json().encode()
        if len(text) > SCHEDULE_BYTES:
            raise ArtifactOutputErrors.SCHEDULE_TOO_LARGE(nbytes=len(text), most=SCHEDULE_BYTES)
        self.write_bytes(SCHEDULE, text)
        if listing is not None:
            self.write_text(LISTING, listing)

    def write_constants(self, layout: Layout, read: Reader) -> None:
        """Write the program's constants, reading one source at a time by `read`."""
        with self._create(CONSTANTS) as file:
            write_tensors(file, layout, read)

    def write_weights(
        self, layout: Layout, read: Reader, packings: Packings | None = None, shard_bytes: int = SHARD_BYTES
    ) -> str:
        """Embed weights, packed according to `packings`, reading one source at a time by `read`.

        Returns their digest for the manifest.
        """
        packing_of: Packings = {} if packings is None else packings
        shards = plan_shards(stored_specs(layout, packing_of), shard_bytes)
        digests: dict[str, str] = {}
        for number, names in enumerate(shards):
            path = f"weights/model-{number + 1:05}-of-{len(shards):05}.safetensors"
            with self._create(path) as file:
                digests |= write_tensors(file, layout, read, packing_of, names)
        return weights_digest(digests, layout)

    def write_tensors(self, path: str, tensors: Mapping[str, Array]) -> None:
        """Write a small set of tensors into one safetensors file."""
        layout = {name: Stack(TensorSpec.of(tensor), (name,)) for name, tensor in tensors.items()}
        with self._create(path) as file:
            write_tensors(file, layout, lambda name, _: tensors[name])

    def digest(self, path: str) -> str:
        """Return the sha256 (hex) of a file that was written."""
        return self._files[path].sha256

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, with a record of every file. Must be called last."""
        text = replace(manifest, files=self._files).to_json()
        with creating(self._folder / MANIFEST, self._out) as file:
            file.write(text.encode())
        self._finished = True

    # -- files

    @contextmanager
    def _create(self, path: str) -> Iterator[HashingFile]:
        if path == MANIFEST or path in self._files or ".." in PurePosixPath(path).parts:
            raise ArtifactOutputErrors.DOUBLE_FILE(name=path)
        target = self._folder / path
        with output_errors(self._out):
            target.parent.mkdir(parents=True, exist_ok=True)
        with creating(target, self._out) as raw:
            file = HashingFile(raw)
            yield file
        self._files[path] = FileRecord(file.size, file.sha256())

    def check_replaceable(self) -> None:
        """Check that nothing but an artifact is in the way of `out`. Raises OutputError."""
        with output_errors(self._out):
            taken = self._out.exists() and not is_artifact(self._out)
        if taken:
            raise ArtifactOutputErrors.NOT_AN_ARTIFACT(path=self._out)

    def _install(self) -> None:
        """Move the folder to OUT, after flushing it to disk. OUT is always the old or the new artifact, except for a
        moment without either on systems that cannot swap two names."""
        self.check_replaceable()
        with output_errors(self._out):
            sync_tree(self._folder)
            if not self._out.exists():
                os.rename(self._folder, self._out)
            elif not exchange(self._folder, self._out):
                self._replace()
            sync(self._out.parent)

    def _replace(self) -> None:
        """Move the old artifact away first; it is restored if the new one cannot take its place."""
        old = self._folder.with_suffix(OLD)
        os.rename(self._out, old)
        try:
            os.rename(self._folder, self._out)
        except BaseException:
            os.rename(old, self._out)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def _clear_old(self) -> None:
        """Undo or complete a `_replace` during which a process was killed."""
        pattern = re.compile(rf"\.{re.escape(self._out.name)}\.[0-9a-f]{{8}}{re.escape(OLD)}")
        for name in filter(pattern.fullmatch, os.listdir(self._out.parent)):
            if self._out.exists():
                shutil.rmtree(self._out.with_name(name), ignore_errors=True)
            else:
                os.rename(self._out.with_name(name), self._out)


def _make_folder(path: Path) -> int:
    while True:
        os.mkdir(path)
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another writer removed it as a leftover
            continue


def is_artifact(path: Path) -> bool:
    """Return True if a folder has an artifact's manifest, of any version."""
    try:
        data = json.loads(read_manifest(path))
    except (InputError, UsageError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "format" in data and "sscc" in data
