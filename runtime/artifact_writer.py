"""Writing an artifact: everything goes into a temporary sibling folder, which takes OUT's name at the end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO

from sscc.ir.errors import InternalError, OutputError
from sscc.ir.files import output_errors
from sscc.runtime.manifest import FileRecord, Manifest
from sscc.runtime.schedule import Program
from sscc.runtime.tensor_files import (
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

MANIFEST = "manifest.json"
SCHEDULE = "schedule.json"
LISTING = "schedule.txt"
MACHINE = "machine.json"
NATIVE = "native"
CONSTANTS = "weights/constants.safetensors"
_COPY_BYTES = 2**20


class _HashingFile:
    """A file opened for writing that knows the size and sha256 of what went through it."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview, /) -> int:
        with output_errors(self._path):
            self._file.write(data)
        self._hash.update(data)
        self._size += len(data)
        return len(data)

    def record(self) -> FileRecord:
        return FileRecord(self._size, self._hash.hexdigest())


class ArtifactWriter:
    """Makes the folder `out`, or nothing: ``with ArtifactWriter(out) as writer: ...; writer.finish(manifest)``.

    An `out` that is an artifact is replaced at the end; anything else in its place is refused. If the block
    raises (Ctrl-C included), what was written is removed and an old `out` is untouched. Equal contents give
    equal bytes. Every method raises OutputError where the file system refuses.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self._out = Path(out)
        if self._out.is_symlink():
            self._out = self._out.resolve()
        self._folder = self._out.with_name(f".{self._out.name}.tmp-{os.getpid()}")
        self._files: dict[str, FileRecord] = {}
        self._finished = False

    def __enter__(self) -> ArtifactWriter:
        self._check_replaceable()
        with output_errors(self._out):
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._finished:
                raise InternalError(f"the artifact {self._out} was written without a manifest")
            if kind is None:
                self._install()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- contents

    def write_bytes(self, path: str, data: bytes) -> None:
        """Writes a file at a path relative to the artifact, "/" between folders."""
        with self._create(path) as file:
            file.write(data)

    def write_text(self, path: str, text: str) -> None:
        self.write_bytes(path, text.encode())

    def write_json(self, path: str, value: object) -> None:
        self.write_text(path, json.dumps(value, sort_keys=True, indent=1) + "\n")

    def copy(self, source: str | os.PathLike[str], path: str) -> None:
        """Copies a file; an OSError of the source passes through."""
        with open(source, "rb") as original, self._create(path) as file:
            while data := original.read(_COPY_BYTES):
                file.write(data)

    def write_program(self, program: Program, listing: str | None = None) -> None:
        """Writes schedule.json and, if given, the listing that people read."""
        self.write_text(SCHEDULE, program.to_json())
        if listing is not None:
            self.write_text(LISTING, listing)

    def write_constants(self, layout: Layout, read: Reader) -> None:
        """Writes the program's constants, asking `read` for one source at a time."""
        with self._create(CONSTANTS) as file:
            write_tensors(file, layout, read)

    def write_weights(
        self, layout: Layout, read: Reader, packings: Packings | None = None, shard_bytes: int = SHARD_BYTES
    ) -> str:
        """Embeds weights, packed where `packings` says so, asking `read` for one source at a time.

        Returns their digest for the manifest.
        """
        given: Packings = {} if packings is None else packings
        shards = plan_shards(stored_specs(layout, given), shard_bytes)
        digests: dict[str, str] = {}
        for number, names in enumerate(shards):
            path = f"weights/model-{number + 1:05}-of-{len(shards):05}.safetensors"
            with self._create(path) as file:
                digests |= write_tensors(file, layout, read, given, names)
        return weights_digest(digests, layout)

    def write_tensors(self, path: str, tensors: Mapping[str, Array]) -> None:
        """Writes a small set of tensors into one safetensors file."""
        layout = {name: Stack(TensorSpec.of(tensor), (name,)) for name, tensor in tensors.items()}
        with self._create(path) as file:
            write_tensors(file, layout, lambda name, _: tensors[name])

    def finish(self, manifest: Manifest) -> None:
        """Writes the manifest, with a record of every file; the last thing to call."""
        text = replace(manifest, files=self._files).to_json()
        with output_errors(self._out):
            (self._folder / MANIFEST).write_text(text, encoding="utf-8")
        self._finished = True

    # -- files

    @contextmanager
    def _create(self, path: str) -> Iterator[_HashingFile]:
        if path == MANIFEST or path in self._files or ".." in PurePosixPath(path).parts:
            raise InternalError(f"the artifact cannot hold a file {path!r}, or holds it already")
        target = self._folder / path
        with output_errors(self._out):
            target.parent.mkdir(parents=True, exist_ok=True)
            raw = target.open("wb")
        try:
            file = _HashingFile(raw, self._out)
            yield file
        finally:
            with output_errors(self._out):
                raw.close()
        self._files[path] = file.record()

    def _check_replaceable(self) -> None:
        with output_errors(self._out):
            taken = self._out.exists() and not is_artifact(self._out)
        if taken:
            raise OutputError(f"{self._out} exists and is not an .rdu artifact: remove it or choose another output")

    def _install(self) -> None:
        """Puts the folder in OUT's place; an old artifact comes back if that fails."""
        self._check_replaceable()
        old = self._out.with_name(f".{self._out.name}.old-{os.getpid()}")
        with output_errors(self._out):
            replacing = self._out.exists()
            if replacing:
                self._out.rename(old)
            try:
                self._folder.rename(self._out)
            except BaseException:
                if replacing:
                    old.rename(self._out)
                raise
        shutil.rmtree(old, ignore_errors=True)


def is_artifact(path: Path) -> bool:
    """Whether a folder has an artifact's manifest, of whatever version."""
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and "format" in data and "sscc" in data
