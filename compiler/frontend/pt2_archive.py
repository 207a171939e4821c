"""A `.pt2` archive as an ExportedProgram, without torch's reader of such archives, which runs code from them.

`torch.export.save` writes a fixed set of members for a plain decoder: a program in JSON, and tensors as raw bytes.
Everything else is refused. The program is rebuilt from the known parts of its JSON (`pt2_program`), the tensors are
views of the mapped file, and torch's deserialiser gets these objects. No member is unpickled or evaluated, and torch
never opens the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE, ExportedProgramDeserializer
from torch.export import ExportedProgram

from sscc.compiler.frontend.pt2_program import TRUST, ProgramReader
from sscc.compiler.frontend.quiet import one_line, quiet_libraries
from sscc.compiler.frontend.stored_zip import StoredZip
from sscc.ir.errors import ErrorKind, InputError, SsccError, UnsupportedError

MOST_JSON_BYTES = 64 << 20
MOST_JSON_OBJECTS = 1_000_000
MOST_JSON_DEPTH = 64

_FIXED = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
_IGNORED = re.compile(r"\.data/(version|serialization_id)|data/sample_inputs/model\.pt|extra/.+")
_PAYLOAD = re.compile(r"data/weights/weight_[0-9]{1,9}|data/constants/tensor_[0-9]{1,9}")
_PROGRAM = "models/model.json"
_CONFIGS = {
    "weights": "data/weights/model_weights_config.json",
    "constants": "data/constants/model_constants_config.json",
}
_PREFIXES = {"weights": "weight_", "constants": "tensor_"}


class Pt2Errors(ErrorKind):
    MEMBER_UNKNOWN = UnsupportedError, "{path}: a plain decoder has no member {name!r} (torch.export.save)" + TRUST
    MEMBER_DIFFERS = InputError, "{path}: member {name!r} is not {expected!r}"
    MEMBER_MISSING = InputError, "{path} is not an exported program: it has no member {name!r} (torch.export.save)"
    ROOTS = InputError, "{path}: members lie in different folders, {first!r} and {second!r}"
    JSON = InputError, "{path}: member {name!r} is not readable JSON: {reason}"
    JSON_TOO_LARGE = InputError, "{path}: member {name!r} has {bytes} bytes of JSON or {objects} objects, too many"
    PICKLED = UnsupportedError, "{path}: {tensor!r} is a pickled object, not a plain tensor" + TRUST
    PAYLOAD_NAME = UnsupportedError, "{path}: {tensor!r} lies in {name!r}, where no plain tensor does" + TRUST
    PAYLOAD_MISSING = InputError, "{path} lacks the member {name!r} of the tensor {tensor!r}"
    OUT_OF_BOUNDS = InputError, (
        "{path}: tensor {tensor!r} of sizes {sizes} and strides {strides} at {offset} goes beyond its {elements} "
        "elements"
    )
    SYMBOLIC = InputError, "{path}: tensor {tensor!r} has a symbolic size, but a stored tensor must have a fixed one"
    TENSOR_SIZE = InputError, "{path}: member {name!r} of {bytes} bytes is not a whole number of {dtype}"
    NOT_LOADED = InputError, "{path} cannot be loaded as an exported program: {cause}"


def load_archive(path: Path) -> ExportedProgram:
    """Return the program of an archive.

    Raises:
        InputError: a damaged archive, or one without a program.
        UnsupportedError: an archive that holds anything that a plain decoder does not have.
    """
    with StoredZip(path) as archive:
        root = _check_members(archive)
        archive.verify()
        tensors = {table: _tensors(archive, root, table) for table in _CONFIGS}
        value = _json(archive, f"{root}/{_PROGRAM}")
    program = ProgramReader(path, *tensors.values()).read(value)
    try:
        with quiet_libraries():
            return ExportedProgramDeserializer().deserialize(program, tensors["weights"], tensors["constants"])
    except SsccError:
        raise
    except Exception as error:  # torch raises SerializeError, and any exception of its operators
        raise Pt2Errors.NOT_LOADED(path=path, cause=_reason(error)) from error


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights of an archive, whatever else it holds: nothing else is read. Raises as `load_archive`."""
    with StoredZip(path) as archive:
        root = next(iter(archive.members), "").partition("/")[0]
        if f"{root}/{_CONFIGS['weights']}" not in archive.members:
            raise Pt2Errors.MEMBER_MISSING(path=path, name=_CONFIGS["weights"])
        archive.verify()
        return _tensors(archive, root, "weights")


def _reason(error: BaseException) -> str:
    """Return the innermost cause of an error: torch's own message repeats the whole operation, and tracebacks."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)


def _check_members(archive: StoredZip) -> str:
    """Return the folder that all members lie in. Raises where one is not known, or a part is missing."""
    path, names = archive.path, list(archive.members)
    root = names[0].partition("/")[0] if names else ""
    for name in names:
        first, _, inner = name.partition("/")
        if first != root:
            raise Pt2Errors.ROOTS(path=path, first=root, second=first)
        known = inner in _FIXED or inner == _PROGRAM or inner in _CONFIGS.values()
        if not known and not _PAYLOAD.fullmatch(inner) and not _IGNORED.fullmatch(inner):
            raise Pt2Errors.MEMBER_UNKNOWN(path=path, name=inner)
    for inner in ("archive_format", "archive_version", _PROGRAM, *_CONFIGS.values()):
        if f"{root}/{inner}" not in archive.members:
            raise Pt2Errors.MEMBER_MISSING(path=path, name=inner)
    for inner, expected in _FIXED.items():
        name = f"{root}/{inner}"
        if name in archive.members and (
            archive.members[name].size != len(expected) or archive.read(name) != expected
        ):
            raise Pt2Errors.MEMBER_DIFFERS(path=path, name=inner, expected=expected.decode())
    return root


def _json(archive: StoredZip, name: str) -> Any:
    """Return the JSON value of a member. Its size, number of objects and depth are bounded before it is parsed."""
    path, size = archive.path, archive.members[name].size
    if size > MOST_JSON_BYTES:
        raise Pt2Errors.JSON_TOO_LARGE(path=path, name=name, bytes=size, objects=0)
    data = archive.read(name)
    objects = data.count(b"{") + data.count(b"[")
    if objects > MOST_JSON_OBJECTS:
        raise Pt2Errors.JSON_TOO_LARGE(path=path, name=name, bytes=size, objects=objects)
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Pt2Errors.JSON(path=path, name=name, reason=one_line(error)) from None


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(items)
    if len(values) < len(items):
        raise ValueError("an object has a field twice")
    return values


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


# ------------------------------------------------------------------------------------------------------- tensors


def _tensors(archive: StoredZip, root: str, table: str) -> dict[str, torch.Tensor]:
    """Return the weights or the constants, as views of the mapped file."""
    name = f"{root}/{_CONFIGS[table]}"
    where = _CONFIGS[table]
    reader = ProgramReader(archive.path, (), ())
    config = reader.table(reader.fields(_json(archive, name), where, ("config",))["config"], where)
    tensors: dict[str, torch.Tensor] = {}
    storages = _Storages(archive, f"{root}/data/{table}/")
    for tensor, value in config.items():
        reader.weight_name(tensor, where)
        fields = reader.fields(value, f"{where}: {tensor}", ("path_name", "is_param", "use_pickle", "tensor_meta"))
        if fields["use_pickle"] is not False or fields["tensor_meta"] is None:
            raise Pt2Errors.PICKLED(path=archive.path, tensor=tensor)
        member = reader.text(fields["path_name"], f"{where}: {tensor}.path_name")
        if not re.fullmatch(f"{_PREFIXES[table]}[0-9]{{1,9}}", member):
            raise Pt2Errors.PAYLOAD_NAME(path=archive.path, tensor=tensor, name=member)
        meta = reader.tensor(fields["tensor_meta"], f"{where}: {tensor}.tensor_meta")
        view = _view(archive.path, tensor, meta, storages.of(tensor, member, _SERIALIZE_TO_TORCH_DTYPE[meta.dtype]))
        parameter = reader.truth(fields["is_param"], f"{where}: {tensor}.is_param")
        gradient = meta.requires_grad and view.dtype.is_floating_point
        tensors[tensor] = torch.nn.Parameter(view, requires_grad=gradient) if parameter else view
    return tensors


class _Storages:
    """Payloads as flat tensors: parts of one private mapping of the file, or copies of misaligned ones."""

    def __init__(self, archive: StoredZip, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._bytes: torch.Tensor | None = None
        self._cache: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def of(self, tensor: str, member: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the elements of a payload [n]. Raises InputError where there is none, or half an element."""
        if (member, dtype) not in self._cache:
            self._cache[member, dtype] = self._flat(tensor, member, dtype)
        return self._cache[member, dtype]

    def _flat(self, tensor: str, member: str, dtype: torch.dtype) -> torch.Tensor:
        path, name = self._archive.path, self._folder + member
        if name not in self._archive.members:
            raise Pt2Errors.PAYLOAD_MISSING(path=path, name=name, tensor=tensor)
        payload = self._archive.members[name]
        if payload.size % dtype.itemsize:
            raise Pt2Errors.TENSOR_SIZE(path=path, name=name, bytes=payload.size, dtype=str(dtype))
        if not payload.size:
            return torch.empty(0, dtype=dtype)
        if self._bytes is None:
            length = path.stat().st_size
            self._bytes = torch.from_file(str(path), shared=False, size=length, dtype=torch.uint8)
        part = self._bytes[payload.start : payload.start + payload.size]
        return (part if payload.start % dtype.itemsize == 0 else part.clone()).view(dtype)


def _view(path: Path, tensor: str, meta: schema.TensorMeta, flat: torch.Tensor) -> torch.Tensor:
    """Return a tensor within a payload. No element may lie outside of it, nor may there be more elements than it has.
    """
    sizes, strides = ([_number(path, tensor, item) for item in items] for items in (meta.sizes, meta.strides))
    offset = _number(path, tensor, meta.storage_offset)
    count, last = 1, offset
    for size, stride in zip(sizes, strides, strict=True):
        count *= size
        last += (size - 1) * stride
    if count and (last >= flat.numel() or count > flat.numel()):
        raise Pt2Errors.OUT_OF_BOUNDS(
            path=path, tensor=tensor, sizes=sizes, strides=strides, offset=offset, elements=flat.numel()
        )
    if not count:
        return torch.empty(sizes, dtype=flat.dtype)
    return flat.as_strided(sizes, strides, flat.storage_offset() + offset)


def _number(path: Path, tensor: str, size: schema.SymInt) -> int:
    if size.type != "as_int":
        raise Pt2Errors.SYMBOLIC(path=path, tensor=tensor)
    return int(size.as_int)
