"""manifest.json of an artifact: the compiled model, its sizes and weights, and a record of every file.

It is one JSON object with `format` (`FORMAT_VERSION`) and the fields of a `Manifest`; those of the signature are at the
top level (`geometry`, `batch`, `prefill_chunk`, `dtype`, `vocab_size`, `eos_token_ids`, and its plan as `groups`). Keys
are sorted, so that equal artifacts have equal manifests. A missing or ill-typed field is refused, and so is another
format. Unknown fields are ignored: `weights.source`, a path that earlier versions wrote, is never read.

A manifest contains no paths except for the names in `files`, which are below the artifact's folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from sscc.ir.cache_plan import STATELESS, CachePlan, LayerGroup, check_layers
from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.row_streams import STREAMS_OF_A_GROUP, Stream
from sscc.ir.looping import Looping
from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.artifact.signature import Signature

FORMAT_VERSION = 8
WEIGHT_MODES = ("embedded", "reference")
_SIZES = ("batch", "prefill_chunk", "vocab_size")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NO_NAME = re.compile("[\0\ud800-\udfff]")
"""Characters that file names cannot contain."""
UNNAMED = Path("OUT.rdu")
_SHOWN = 60
"""Maximum characters of an invalid value in a message."""


class _ManifestKind(ErrorKind):
    def __init__(self, message: str) -> None:
        super().__init__(InputError, message)


class ManifestErrors(_ManifestKind):
    FORMAT_NEWER = (
        "the artifact has format {version}; this sscc reads format {supported}: a newer sscc ({writer}) wrote it, so "
        "update sscc, or compile the model again with `sscc compile MODEL -o {path}`"
    )
    FORMAT_OLDER = (
        "the artifact has format {version}; this sscc reads format {supported}: an older sscc ({writer}) wrote it, so "
        "compile the model again with `sscc compile MODEL -o {path}`"
    )
    FORMAT_UNKNOWN = "the artifact has format {version!r}; this sscc reads format {supported}"
    NOT_JSON = "the manifest is not JSON: {reason}"
    BELOW_LEAST = "the manifest is malformed: {field} must be integers of at least {least}, got {values!r}"
    DIGEST = "the manifest is malformed: weights.digest must be a sha256 of 64 hexadecimal digits, got {digest!r}"
    DTYPE = "the manifest is malformed: dtype must be one of {dtypes}, got {dtype!r}"
    FILE_NAME = "the manifest is malformed: files has the entry {name!r}, which is not a file in the artifact's folder"
    GEOMETRY = "the manifest is malformed: {field}: {cause}"
    GEOMETRY_VALUE = "the manifest is malformed: {field} must be an integer or a word, got {value!r}"
    GROUP_NAMES = "the manifest is malformed: two groups have the same name"
    GROUPS = "the manifest is malformed: groups has no layers, or their max_context is not the geometry's"
    HEADS = "the manifest is malformed: {field} is {heads}, which is not a multiple of the {kv_heads} KV heads"
    LAYER_TOPK = "the manifest is malformed: {field} has {numbers} numbers for {layers} layers"
    LAYERS = "the manifest is malformed: {reason}"
    NAME_TWICE = "the manifest is malformed: one object has the name {name!r} twice"
    PACKED = "the manifest is malformed: weights.packed must be names of tensors, got {packed!r}"
    STREAMS = "the manifest is malformed: {field} must be one of {known}, got {streams!r}"
    TYPE = "the manifest is malformed: {field} must be of type {type}, got {value!r}"
    WEIGHT_MODE = "the manifest is malformed: weights.mode must be one of {modes}, got {mode!r}"


@dataclass(frozen=True)
class WeightsRecord:
    """The weights of a program: their digest, and their place.

    Attributes:
        mode: "embedded" (in the artifact) or "reference" (in a checkpoint, whose path is not in the artifact).
        digest: digest of the weights used for compilation, stacked in the program's form (`weights_digest`); "" without
            weights.
        packer: backend for which some are packed; "" if all are stored as in the schedule.
        packed: names of the packed ones, sorted.
    """

    mode: str
    digest: str
    packer: str = ""
    packed: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and sha256 of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json.

    Attributes:
        sscc: version of the compiler.
        tools: versions of its libraries, by name.
        target: target, "rdu".
        model: the Hugging Face config, or {}.
        signature: sizes and geometry.
        weights: see `WeightsRecord`.
        looping: outcome of looping each run of equal layers, in the program's order.
        files: every other file of the artifact, by relative path.
    """

    sscc: str
    tools: Mapping[str, str]
    target: str
    model: Mapping[str, Any]
    signature: Signature
    weights: WeightsRecord
    looping: Sequence[Looping] = ()
    files: Mapping[str, FileRecord] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no times, no paths."""
        signature = self.signature
        data = {
            "format": FORMAT_VERSION,
            "sscc": self.sscc,
            "tools": dict(self.tools),
            "target": self.target,
            "model": dict(self.model),
            "geometry": signature.geometry.to_dict(),
            "dtype": signature.dtype,
            "eos_token_ids": list(signature.eos_token_ids),
            **{name: getattr(signature, name) for name in _SIZES},
            "groups": [_group_data(group) for group in signature.plan],
            "weights": {
                "mode": self.weights.mode,
                "digest": self.weights.digest,
                "packer": self.weights.packer,
                "packed": list(self.weights.packed),
            },
            "looping": [asdict(record) for record in self.looping],
            "files": {path: {"bytes": r.bytes, "sha256": r.sha256} for path, r in self.files.items()},
        }
        return json.dumps(data, sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, path: Path = UNNAMED) -> Manifest:
        """Return the manifest in a text.

        Args:
            path: path of the artifact, for messages.

        Raises InputError naming the invalid field, or if it is not a manifest of this format version.
        """
        try:
            data = json.loads(text, object_pairs_hook=_without_doubles)
        except (ValueError, RecursionError) as error:
            raise ManifestErrors.NOT_JSON(reason=quoted(error)) from None
        version = data.get("format") if isinstance(data, dict) else None
        if type(version) is not int:
            raise ManifestErrors.FORMAT_UNKNOWN(version=_short(version), supported=FORMAT_VERSION)
        if version != FORMAT_VERSION:
            older = version < FORMAT_VERSION
            kind = ManifestErrors.FORMAT_OLDER if older else ManifestErrors.FORMAT_NEWER
            raise kind(version=version, supported=FORMAT_VERSION, writer=_short(data.get("sscc")), path=path)
        return cls(
            sscc=_take(data, "sscc", str),
            tools=_take(data, "tools", dict),
            target=_take(data, "target", str),
            model=_take(data, "model", dict),
            signature=_signature(data),
            weights=_weights(_take(data, "weights", dict)),
            looping=_looping(_take(data, "looping", list)),
            files=_files(_take(data, "files", dict)),
        )


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Readers differ in which of two equal names counts, so neither does."""
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise ManifestErrors.NAME_TWICE(name=name[:_SHOWN])
        data[name] = value
    return data


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."


def _take(data: dict[str, Any], key: str, kind: type, where: str = "") -> Any:
    value = data.get(key)
    if type(value) is not kind:
        raise ManifestErrors.TYPE(field=f"{where}{key}", value=_short(value), type=kind.__name__)
    return value


def _integers(values: list[Any], name: str, low: int) -> tuple[int, ...]:
    if any(type(value) is not int or value < low for value in values):
        raise ManifestErrors.BELOW_LEAST(field=name, values=[_short(value) for value in values], least=low)
    return tuple(values)


def _dtype(data: dict[str, Any]) -> str:
    dtype: str = _take(data, "dtype", str)
    if dtype not in DTYPE_BYTES:
        raise ManifestErrors.DTYPE(dtype=_short(dtype), dtypes=list(DTYPE_BYTES))
    return dtype


def _signature(data: dict[str, Any]) -> Signature:
    sizes = {name: _take(data, name, int) for name in _SIZES}
    _integers(list(sizes.values()), ", ".join(sizes), 1)
    geometry = _geometry(data, "")
    return Signature(
        geometry=geometry,
        dtype=_dtype(data),
        plan=_plan(_take(data, "groups", list), geometry),
        eos_token_ids=_integers(_take(data, "eos_token_ids", list), "eos_token_ids", 0),
        **sizes,
    )


def _geometry(data: dict[str, Any], where: str) -> Geometry:
    values = _take(data, "geometry", dict, where)
    if "layer_topk" in values:
        _integers(_take(values, "layer_topk", list, f"{where}geometry."), f"{where}geometry.layer_topk", 0)
    for name, value in values.items():
        if type(value) not in (int, str) and name != "layer_topk":
            raise ManifestErrors.GEOMETRY_VALUE(field=f"{where}geometry.{_short(name)}", value=_short(value))
    try:
        return Geometry.from_dict(values)
    except (TypeError, UsageError) as error:
        cause = error if isinstance(error, UsageError) else quoted(error)
        raise ManifestErrors.GEOMETRY(field=f"{where}geometry", cause=cause) from None


def _group_data(group: LayerGroup) -> dict[str, Any]:
    data = {**asdict(group), "geometry": group.geometry.to_dict(), "layers": list(group.layers)}
    data["streams"] = [{k: v for k, v in stream.items() if k != "rows" or v} for stream in data["streams"]]
    sharers, slots, beside = list(data.pop("sharers")), data.pop("slots"), data.pop("beside")
    data |= ({"sharers": sharers} if sharers else {}) | ({} if slots is None else {"slots": slots})
    return data | ({"beside": True} if beside else {})


def _plan(entries: list[Any], geometry: Geometry) -> CachePlan:
    groups = tuple(_group(entry, f"groups[{index}].") for index, entry in enumerate(entries))
    layers = CachePlan(groups).layers
    if not layers or any(group.geometry.max_context != geometry.max_context for group in groups):
        raise ManifestErrors.GROUPS()
    if len({group.name for group in groups}) < len(groups):
        raise ManifestErrors.GROUP_NAMES()
    try:
        check_layers(groups, layers)
    except ValueError as error:
        raise ManifestErrors.LAYERS(reason=quoted(error)) from None
    return CachePlan(groups)


def _group(data: Any, where: str) -> LayerGroup:
    if not isinstance(data, dict):
        raise ManifestErrors.TYPE(field=where[:-1], value=_short(data), type="dict")
    heads, kv_heads = _integers([_take(data, name, int, where) for name in ("heads", "kv_heads")], f"{where}heads", 1)
    if heads % kv_heads:
        raise ManifestErrors.HEADS(field=f"{where}heads", heads=heads, kv_heads=kv_heads)
    streams = [_stream(stream, f"{where}streams.") for stream in _take(data, "streams", list, where)]
    stateless = not streams and data.get("name") == STATELESS
    if not stateless and tuple(stream.name for stream in streams) not in STREAMS_OF_A_GROUP:
        known = [" and ".join(names) for names in STREAMS_OF_A_GROUP]
        shown = [_short(stream.name) for stream in streams]
        raise ManifestErrors.STREAMS(field=f"{where}streams", streams=shown, known=known)
    layers = _integers(_take(data, "layers", list, where), f"{where}layers", 0)
    geometry = _geometry(data, where)
    numbers = len(geometry.layer_topk)
    if numbers not in (0, len(layers)):
        raise ManifestErrors.LAYER_TOPK(field=f"{where}geometry.layer_topk", numbers=numbers, layers=len(layers))
    return LayerGroup(
        name=_take(data, "name", str, where),
        layers=layers,
        geometry=geometry,
        heads=heads,
        kv_heads=kv_heads,
        streams=tuple(streams),
        sharers=_integers(_take(data, "sharers", list, where), f"{where}sharers", 0) if "sharers" in data else (),
        slots=_integers([_take(data, "slots", int, where)], f"{where}slots", 1)[0] if "slots" in data else None,
        beside=_take(data, "beside", bool, where) if "beside" in data else False,
    )


def _stream(data: Any, where: str) -> Stream:
    if not isinstance(data, dict):
        raise ManifestErrors.TYPE(field=where[:-1], value=_short(data), type="dict")
    (width,) = _integers([_take(data, "width", int, where)], f"{where}width", 1)
    rows = _integers([_take(data, "rows", int, where)], f"{where}rows", 1)[0] if "rows" in data else 0
    return Stream(_take(data, "name", str, where), width, rows)


def _weights(data: dict[str, Any]) -> WeightsRecord:
    mode = _take(data, "mode", str, "weights.")
    if mode not in WEIGHT_MODES:
        raise ManifestErrors.WEIGHT_MODE(mode=_short(mode), modes=WEIGHT_MODES)
    packed = _take(data, "packed", list, "weights.")
    if not all(isinstance(name, str) for name in packed):
        raise ManifestErrors.PACKED(packed=[_short(name) for name in packed])
    digest, packer = (_take(data, name, str, "weights.") for name in ("digest", "packer"))
    if digest and not _DIGEST.fullmatch(digest):  # the user's cache uses it as a file name
        raise ManifestErrors.DIGEST(digest=_short(digest))
    return WeightsRecord(mode, digest, packer, tuple(packed))


def _looping(entries: list[Any]) -> tuple[Looping, ...]:
    records = []
    for index, entry in enumerate(entries):
        where = f"looping[{index}]"
        if not isinstance(entry, dict):
            raise ManifestErrors.TYPE(field=where, value=_short(entry), type="dict")
        names = {name: _take(entry, name, str, f"{where}.") for name in ("entry", "kernel", "reason")}
        (layers,) = _integers([_take(entry, "layers", int, f"{where}.")], f"{where}.layers", 1)
        records.append(Looping(layers=layers, **names))
    return tuple(records)


def _files(data: dict[str, Any]) -> dict[str, FileRecord]:
    files = {}
    for path, entry in data.items():
        if not _is_plain(path) or not isinstance(entry, dict):
            raise ManifestErrors.FILE_NAME(name=_short(path))
        where = f"files.{_short(path)}."
        files[path] = FileRecord(_take(entry, "bytes", int, where), _take(entry, "sha256", str, where))
    return files


def _is_plain(path: str) -> bool:
    """Return True if a path is below its folder and in canonical form, so that each file has one name."""
    pure = PurePosixPath(path)
    plain = bool(pure.parts) and path == str(pure) and not _NO_NAME.search(path)
    return plain and not pure.is_absolute() and ".." not in pure.parts
