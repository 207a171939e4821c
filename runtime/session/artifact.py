"""Reading an artifact, the folder NAME.rdu/::

    manifest.json                    versions, sizes, geometry, digests (`Manifest`)
    schedule.json, schedule.txt      the program, and a listing of it
    machine.json                     the machine that it was compiled for
    weights/constants.safetensors    tables computed from the model's config
    weights/model-*.safetensors      the weights, in mode "embedded"
    tokenizer/, golden/              optional

Nothing in an artifact is trusted, see SECURITY.md: only files that the manifest names are read, after their sizes and
digests have been checked, and through no link. Artifacts contain no code, and none would be read.

The files under weights/ have one entry per tensor of the schedule, under its name and in its shape, with the layers of
a looped kernel stacked to [N, ..], so that they can be used as mapped. The program and the weights are separate:
`Artifact.weights` combines the program with the embedded weights, or with those of a checkpoint of the same shapes,
which the caller opens: an artifact contains no path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path

from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.schedule import Program
from sscc.ir.target import Target, parse_target
from sscc.runtime.artifact.artifact_files import (
    CONSTANTS,
    FOREIGN_CODE,
    GOLDEN,
    MACHINE,
    MANIFEST,
    SCHEDULE,
    check_file,
    decoded,
    identity,
    is_shard,
    open_file,
    read_checked,
    read_manifest,
)
from sscc.runtime.artifact.golden import FILES as GOLDEN_FILES
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.manifest import Manifest
from sscc.runtime.artifact.proofs import prove_once
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import (
    Array,
    Layout,
    Packings,
    Specs,
    Stack,
    Unpacked,
    layout_of,
    read_specs,
    read_tensors,
    reading,
    specs_of,
    stack_tensors,
    stored_specs,
    taken,
)
from sscc.runtime.backends.backend import Backend
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend, backend_names
from sscc.runtime.support.verification import Claim, verify_files

_ATTEMPTS = 10


class ArtifactErrors(ErrorKind):
    CANNOT_PACK = InputError, "{path}: the schedule is malformed: {reason}"
    INVALID = InputError, "{path}: {cause}"
    NO_BACKEND = InputError, "{path}: its weights are packed for {backend!r}, which this sscc does not have"
    NO_FILE = InputError, "{path} has no {name}"
    NO_WEIGHTS = InputError, "{path} contains no weights: name the checkpoint with --checkpoint"
    PACKED_OTHERWISE = InputError, (
        "{path}: its weights are packed differently than this sscc packs them for {backend!r}: compile the model "
        "again with `sscc compile MODEL -o {path}`"
    )
    PACKED_RANKS = InputError, (
        "{path}: its weights are packed, but those of a program of several ranks must not be: compile the model again "
        "with `sscc compile MODEL -o {path}`"
    )
    REPLACED = InputError, "{path} was replaced {times} times while it was read: try again later"
    SPEC_DIFFERS = InputError, "{path}: {role} {tensor!r} is {held} in its files, but {expected} in the schedule"


Resolver = Callable[[Layout], Mapping[str, Array]]
"""Returns the tensors of a layout by name, made from the sources in a checkpoint; a rank's part of sharded tensors."""


@dataclass(frozen=True, repr=False)
class Artifact:
    """A loaded artifact. Weights are not read before `weights` is called, and afterwards only when they are used.

    Attributes:
        verify: True if `weights` compares the sha256 of the files that hold them.
    """

    path: Path
    manifest: Manifest
    program: Program
    verify: bool = True

    def __repr__(self) -> str:
        model = self.manifest.model.get("model_type", "exported program")
        weights = f"weights {self.manifest.weights.mode}"
        return f"Artifact({str(self.path)!r}: {model}, {self.signature.in_words()}, {weights})"

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Artifact:
        """Open and check an artifact.

        Checks the format version, the presence and size of every file, the sha256 of everything but weight shards, that
        the schedule is valid and fits the manifest (`contract`), the headers of weight shards, and that program and
        weights fit. An artifact that is replaced during loading is read again.

        Args:
            verify: compare the sha256 of weight shards too, when `weights` opens them, unless they are known to be
                unchanged since the last comparison (sscc.runtime.support.verification).

        Raises InputError naming the first part that is missing, truncated, damaged or of another format, and UsageError
        if `path` cannot be the name of a file.
        """
        folder = Path(path)
        for _ in range(_ATTEMPTS):
            before = identity(folder)
            try:
                return cls._load(folder, verify)
            except InputError:
                if before == identity(folder):
                    raise
        raise ArtifactErrors.REPLACED(path=folder, times=_ATTEMPTS)

    @classmethod
    def _load(cls, folder: Path, verify: bool) -> Artifact:
        manifest = Manifest.from_json(decoded(read_manifest(folder), folder / MANIFEST), folder)
        for name, record in manifest.files.items():
            if name != SCHEDULE and not name.startswith(FOREIGN_CODE):
                check_file(folder, name, record)
        if SCHEDULE not in manifest.files:
            raise ArtifactErrors.NO_FILE(path=folder, name=SCHEDULE)
        schedule = read_checked(folder, SCHEDULE, manifest.files[SCHEDULE])
        artifact = cls(folder, manifest, Program.from_json(decoded(schedule, folder / SCHEDULE)), verify)
        try:
            prove_once(artifact.program, manifest.files[SCHEDULE].sha256, manifest.signature)
        except InputError as error:
            raise ArtifactErrors.INVALID(path=folder, cause=error) from None
        artifact._check_specs()
        return artifact

    @property
    def signature(self) -> Signature:
        return self.manifest.signature

    @property
    def layout(self) -> Layout:
        """Weights of the program, of all ranks together, and the checkpoint's tensors from which they are made."""
        return layout_of(self.program, "weight")

    @property
    def tokenizer(self) -> Path | None:
        """Folder with the tokenizer's files, if the artifact has one."""
        return self.path / "tokenizer" if self.tokenizer_files else None

    @property
    def tokenizer_files(self) -> frozenset[str]:
        """Names of the tokenizer's files. Other files in its folder were not checked, and are ignored."""
        return frozenset(
            name.removeprefix("tokenizer/") for name in self.manifest.files if name.startswith("tokenizer/")
        )

    @property
    def tokenizer_file(self) -> Path | None:
        """File of the tokenizer itself, if the artifact has one."""
        name = "tokenizer.json"
        return self.path / "tokenizer" / name if name in self.tokenizer_files else None

    @property
    def schedule_digest(self) -> str:
        """Sha256 of schedule.json."""
        return self.manifest.files[SCHEDULE].sha256

    @property
    def identity(self) -> ProgramIdentity:
        """Identity of the program and its own weights."""
        return ProgramIdentity(self.schedule_digest, self.manifest.weights.digest)

    @property
    def target(self) -> Target:
        """Machine for which it was compiled. Raises InputError if the artifact has no description of it."""
        if MACHINE not in self.manifest.files:
            raise ArtifactErrors.NO_FILE(path=self.path, name=MACHINE)
        data = read_checked(self.path, MACHINE, self.manifest.files[MACHINE])
        return parse_target(decoded(data, self.path / MACHINE), str(self.path / MACHINE))

    def golden(self) -> Golden | None:
        """Recorded run, if the artifact was compiled with one."""
        return Golden.load(self.path / GOLDEN) if {*GOLDEN_FILES} <= {*self.manifest.files} else None

    @property
    def packer(self) -> str:
        """Backend for which weights are packed, in the artifact's files or, for a referenced checkpoint, in the user's
        cache; "" if they are not: weights of several ranks are stored once and unpacked, so that each rank can take its
        part and pack it."""
        record = self.manifest.weights
        if self.program.grid:
            return ""
        return record.packer if record.mode == "embedded" else DEFAULT_BACKEND

    def backend(self, name: str) -> Backend:
        """Return the program on the backend of that name, created once. Raises UsageError if there is no such backend.
        """
        if name not in self._backends:
            self._backends[name] = backend(name, self.program)
        return self._backends[name]

    @cached_property
    def _backends(self) -> dict[str, Backend]:
        return {}

    @cached_property
    def packings(self) -> Packings:
        """Return the packings of `packer`, by tensor. Raises InputError if the manifest lists other tensors as packed.
        """
        if self.program.grid and self.manifest.weights.packer:
            raise ArtifactErrors.PACKED_RANKS(path=self.path)
        if not self.packer:
            return {}
        if self.packer not in backend_names():
            raise ArtifactErrors.NO_BACKEND(path=self.path, backend=self.packer)
        try:
            packings = self.backend(self.packer).packings
        except (KeyError, ValueError, IndexError, StopIteration) as error:
            raise ArtifactErrors.CANNOT_PACK(path=self.path, reason=quoted(repr(error))) from None
        record = self.manifest.weights
        if record.mode == "embedded" and sorted(packings) != list(record.packed):
            raise ArtifactErrors.PACKED_OTHERWISE(path=self.path, backend=self.packer)
        return packings

    def weights(
        self, resolver: Resolver | None = None, *, packed: bool = False, rank: int = 0
    ) -> dict[str, Array]:
        """Return every tensor that the program needs besides its own memory: weights and constants, by `Tensor.name`.

        Tensors in the artifact's files are memory-mapped and read-only, unless they have to be unpacked; their
        addresses are multiples of 64 if their sizes are, and otherwise of their elements' size.

        Args:
            resolver: returns the weights instead of the embedded ones, plain or packed; required in mode "reference".
            packed: leave packed weights as in the files.
            rank: rank whose part of sharded tensors is returned.

        Raises InputError if there are no weights, their files are damaged, one is missing, or a shape differs. Floating
        dtypes are converted to the program's.
        """
        record, layout = self.manifest.weights, layout_of(self.program, "weight", rank)
        if resolver is None and record.mode == "reference":
            raise ArtifactErrors.NO_WEIGHTS(path=self.path)
        tensors = taken(layout, self._embedded()) if resolver is None else resolver(layout)
        where = str(self.path) if resolver is None else "the checkpoint"
        plain = specs_of(layout)
        unpacked = reading(Unpacked(tensors, self.packings, {n: spec.shape for n, spec in plain.items()}), where)
        if not packed:
            return {**stack_tensors(_alone(plain), unpacked), **self._constants(rank)}
        stored = stored_specs(layout, self.packings)
        specs = {n: stored[n] if n in tensors and tensors[n].shape == stored[n].shape else plain[n] for n in layout}
        return {**stack_tensors(_alone(specs), reading(tensors, where)), **self._constants(rank)}

    # -- files

    @contextmanager
    def _opened(self, names: Iterable[str]) -> Iterator[dict[str, BufferedReader]]:
        """Open files of the artifact and keep them open, so that they cannot be replaced between two accesses."""
        with ExitStack() as stack:
            yield {name: stack.enter_context(open_file(self.path, name)) for name in names}

    def _shards(self) -> AbstractContextManager[dict[str, BufferedReader]]:
        return self._opened(sorted(filter(is_shard, self.manifest.files)))

    def _embedded(self) -> dict[str, Array]:
        with self._shards() as shards:
            if self.verify:
                records = self.manifest.files
                verify_files([Claim(self.path / name, file, records[name].sha256) for name, file in shards.items()])
            return {
                name: tensor
                for shard, file in shards.items()
                for name, tensor in read_tensors(self.path / shard, file).items()
            }

    def _constants(self, rank: int) -> dict[str, Array]:
        if CONSTANTS not in self.manifest.files:
            return {}
        with open_file(self.path, CONSTANTS) as file:
            return taken(layout_of(self.program, "constant", rank), read_tensors(self.path / CONSTANTS, file))

    # -- checks

    def _check_specs(self) -> None:
        """Check that the files hold the tensors that the program needs, and no others."""
        if self.manifest.weights.mode == "embedded":
            expected = stored_specs(self.layout, self.packings)
            with self._shards() as shards:
                self._check_equal("weight", self._specs_in(shards), expected)
        with self._opened({CONSTANTS} & {*self.manifest.files}) as constants:
            self._check_equal("constant", self._specs_in(constants), specs_of(layout_of(self.program, "constant")))

    def _specs_in(self, files: Mapping[str, BufferedReader]) -> Specs:
        return {
            name: spec for path, file in files.items() for name, spec in read_specs(self.path / path, file).items()
        }

    def _check_equal(self, role: str, in_files: Specs, expected: Specs) -> None:
        for name in sorted({*in_files, *expected}):
            if in_files.get(name) != expected.get(name):
                raise ArtifactErrors.SPEC_DIFFERS(
                    path=self.path,
                    role=role,
                    tensor=name,
                    held=in_files.get(name, "missing"),
                    expected=expected.get(name, "missing"),
                )


def _alone(specs: Specs) -> Layout:
    """Return the layout of tensors that are stored under their own names."""
    return {name: Stack(spec, (name,)) for name, spec in specs.items()}
