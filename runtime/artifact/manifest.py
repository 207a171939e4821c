"""manifest.json of an artifact: what was compiled, for which sizes, with which weights, and every file.

One JSON object of `format` (`FORMAT_VERSION`) and the fields of a `Manifest`, of which those of the signature stand by
themselves (`geometry`, `batch`, `prefill_chunk`, `dtype`, `vocab_size`, `eos_token_ids`, and its plan as `groups`).
Keys are sorted, so that equal artifacts have equal manifests. A field that is missing or of another type is refused,
and so is another format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from sscc.ir.cache_plan import STREAMS_OF_A_GROUP, CachePlan, LayerGroup, Stream, check_layers
from sscc.ir.errors import InputError, UsageError, quoted
from sscc.ir.geometry import Geometry
from sscc.ir.looping import Looping
from sscc.ir.schedule import DTYPE_BYTES
from sscc.runtime.artifact.signature import Signature

FORMAT_VERSION = 5
WEIGHT_MODES = ("embedded", "reference")
_SIZES = ("batch", "prefill_chunk", "vocab_size")


@dataclass(frozen=True)
class WeightsRecord:
    """Which weights a program wants, and where they are.

    Attributes:
        mode: "embedded" (in the artifact) or "reference" (a checkpoint is opened at load).
        digest: of the weights that it was compiled with, stacked as the program wants them (`weights_digest`); ""
            if there were none.
        source: the checkpoint's path in mode "reference", else None.
        packer: the backend for which some are packed; "" where all lie as the schedule has them.
        packed: the names of those, sorted.
    """

    mode: str
    digest: str
    source: str | None
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
        sscc: version of the compiler; tools: versions of what it used, by name.
        target: the machine, "rdu".
        model: the Hugging Face config, or {}.
        signature: sizes and geometry.
        weights: see `WeightsRecord`.
        looping: what became of each run of equal layers, in the program's order.
        files: every other file of the artifact by relative path.
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
        """Canonical: sorted keys, no times, no paths but `weights.source`."""
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
                "source": self.weights.source,
                "packer": self.weights.packer,
                "packed": list(self.weights.packed),
            },
            "looping": [asdict(record) for record in self.looping],
            "files": {path: {"bytes": r.bytes, "sha256": r.sha256} for path, r in self.files.items()},
        }
        return json.dumps(data, sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Raises InputError where the text is no manifest of this format version, naming what is wrong."""
        try:
            data = json.loads(text, object_pairs_hook=_without_doubles)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the manifest is not JSON: {error}") from None
        version = data.get("format") if isinstance(data, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            raise InputError(
                f"the artifact has format version {version}, this sscc reads {FORMAT_VERSION}: it was made by a newer "
                f"sscc ({data.get('sscc')}), update yours or compile again"
            )
        if type(version) is int and version < FORMAT_VERSION:
            raise InputError(
                f"the artifact has format version {version}, this sscc reads {FORMAT_VERSION}: it was made by an older "
                f"sscc ({data.get('sscc')}), compile again"
            )
        if type(version) is not int or version != FORMAT_VERSION:
            raise InputError(f"the artifact has format version {version!r}, this sscc reads {FORMAT_VERSION}")
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
    """A JSON object. Readers differ in which of two equal names counts, so neither does."""
    data: dict[str, Any] = {}
    for name, value in pairs:
        if name in data:
            raise InputError(f"the manifest is malformed: it names {name[:60]!r} twice in one object")
        data[name] = value
    return data


def _take(data: dict[str, Any], key: str, kind: type, where: str = "") -> Any:
    value = data.get(key)
    if type(value) is not kind:
        raise InputError(f"the manifest is malformed: {where}{key} is {str(value)[:60]!r}, expected {kind.__name__}")
    return value


def _integers(values: list[Any], name: str, low: int) -> tuple[int, ...]:
    if any(type(value) is not int or value < low for value in values):
        raise InputError(f"the manifest is malformed: {name} is {quoted(values)}, expected integers of at least {low}")
    return tuple(values)


def _dtype(data: dict[str, Any]) -> str:
    dtype: str = _take(data, "dtype", str)
    if dtype not in DTYPE_BYTES:
        raise InputError(f"the manifest is malformed: dtype is {dtype!r}, expected one of {list(DTYPE_BYTES)}")
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
            raise InputError(f"the manifest is malformed: {where}geometry: {name[:60]!r} is {str(value)[:60]!r}")
    try:
        return Geometry.from_dict(values)
    except (TypeError, UsageError) as error:
        raise InputError(f"the manifest is malformed: {where}geometry: {quoted(error)}") from None


def _group_data(group: LayerGroup) -> dict[str, Any]:
    data = {**asdict(group), "geometry": group.geometry.to_dict(), "layers": list(group.layers)}
    sharers, slots = list(data.pop("sharers")), data.pop("slots")
    return data | ({"sharers": sharers} if sharers else {}) | ({} if slots is None else {"slots": slots})


def _plan(entries: list[Any], geometry: Geometry) -> CachePlan:
    groups = tuple(_group(entry, f"groups[{index}].") for index, entry in enumerate(entries))
    layers = sum(len(group.layers) + len(group.sharers) for group in groups)
    if not layers or any(group.geometry.max_context != geometry.max_context for group in groups):
        raise InputError("the manifest is malformed: groups has no layers, or their max_context is not the geometry's")
    if len({group.name for group in groups}) < len(groups):
        raise InputError("the manifest is malformed: two groups have one name")
    try:
        check_layers([(group.layers, group.sharers) for group in groups], layers)
    except ValueError as error:
        raise InputError(f"the manifest is malformed: {quoted(error)}") from None
    return CachePlan(groups)


def _group(data: Any, where: str) -> LayerGroup:
    if not isinstance(data, dict):
        raise InputError(f"the manifest is malformed: {where[:-1]} is {str(data)[:60]!r}, expected dict")
    heads, kv_heads = _integers([_take(data, name, int, where) for name in ("heads", "kv_heads")], f"{where}heads", 1)
    if heads % kv_heads:
        raise InputError(f"the manifest is malformed: {where}heads is {heads}, no multiple of its {kv_heads} KV heads")
    streams = [_stream(stream, f"{where}streams.") for stream in _take(data, "streams", list, where)]
    if tuple(stream.name for stream in streams) not in STREAMS_OF_A_GROUP:
        known = " or ".join(" and ".join(names) for names in STREAMS_OF_A_GROUP)
        raise InputError(f"the manifest is malformed: {where}streams must be {known}")
    layers = _integers(_take(data, "layers", list, where), f"{where}layers", 0)
    geometry = _geometry(data, where)
    if geometry.layer_topk and len(geometry.layer_topk) != len(layers):
        raise InputError(
            f"the manifest is malformed: {where}geometry.layer_topk has {len(geometry.layer_topk)} numbers for "
            f"{len(layers)} layers"
        )
    return LayerGroup(
        name=_take(data, "name", str, where),
        layers=layers,
        geometry=geometry,
        heads=heads,
        kv_heads=kv_heads,
        streams=tuple(streams),
        sharers=_integers(_take(data, "sharers", list, where), f"{where}sharers", 0) if "sharers" in data else (),
        slots=_integers([_take(data, "slots", int, where)], f"{where}slots", 1)[0] if "slots" in data else None,
    )


def _stream(data: Any, where: str) -> Stream:
    if not isinstance(data, dict):
        raise InputError(f"the manifest is malformed: {where[:-1]} has {str(data)[:60]!r}, expected dict")
    (width,) = _integers([_take(data, "width", int, where)], f"{where}width", 1)
    return Stream(_take(data, "name", str, where), width)


def _weights(data: dict[str, Any]) -> WeightsRecord:
    mode = _take(data, "mode", str, "weights.")
    if mode not in WEIGHT_MODES:
        raise InputError(f"the manifest is malformed: weights.mode is {mode!r}, expected one of {WEIGHT_MODES}")
    source = data.get("source")
    if source is not None:
        _take(data, "source", str, "weights.")
    packed = _take(data, "packed", list, "weights.")
    if not all(isinstance(name, str) for name in packed):
        raise InputError(f"the manifest is malformed: weights.packed is {quoted(packed)}, expected names")
    digest, packer = (_take(data, name, str, "weights.") for name in ("digest", "packer"))
    return WeightsRecord(mode, digest, source, packer, tuple(packed))


def _looping(entries: list[Any]) -> tuple[Looping, ...]:
    records = []
    for index, entry in enumerate(entries):
        where = f"looping[{index}]"
        if not isinstance(entry, dict):
            raise InputError(f"the manifest is malformed: {where} is {str(entry)[:60]!r}, expected dict")
        names = {name: _take(entry, name, str, f"{where}.") for name in ("entry", "kernel", "reason")}
        (layers,) = _integers([_take(entry, "layers", int, f"{where}.")], f"{where}.layers", 1)
        records.append(Looping(layers=layers, **names))
    return tuple(records)


def _files(data: dict[str, Any]) -> dict[str, FileRecord]:
    files = {}
    for path, entry in data.items():
        if not _is_plain(path) or not isinstance(entry, dict):
            raise InputError(f"the manifest is malformed: files has an entry {path[:60]!r}")
        where = f"files.{path}."
        files[path] = FileRecord(_take(entry, "bytes", int, where), _take(entry, "sha256", str, where))
    return files


def _is_plain(path: str) -> bool:
    """Whether a path leads down from a folder, and is the only way to write it: no name stands for another file."""
    pure = PurePosixPath(path)
    plain = bool(pure.parts) and path == str(pure) and "\0" not in path
    return plain and not pure.is_absolute() and ".." not in pure.parts
