"""The levels of the compiler and the operations that are legal at each, as data.

Every module carries its level, its cache geometry and the facts of its program, so that a dump is self-contained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from torch_mlir import ir

from sscc.ir.attributes import read_record, write_record
from sscc.ir.cache_plan import check_layers
from sscc.ir.choices import DTYPES
from sscc.ir.collectives import grid_of
from sscc.ir.dialects.kv import GEOMETRY, GROUPS, geometry_attribute, group_geometry, groups_attribute, read_geometry
from sscc.ir.dialects.shapes import SignatureMismatch
from sscc.ir.errors import ErrorKind, InputError, InternalError, SsccError, quoted
from sscc.ir.file_form import shown
from sscc.ir.geometry import Geometry
from sscc.ir.locations import origin_of
from sscc.ir.looping import Looping
from sscc.ir.target import Target, load_target, parse_target
from sscc.ir.weight_formats.registry import Encoding


class IllegalIR(InternalError):
    """IR that its level does not permit.

    Attributes:
        location: the location of the operation at fault.
    """

    location: ir.Location

    @property
    def reason(self) -> str:
        """The message without the operation's origin."""
        return str(self).removeprefix(str(self.fields["origin"]))


class LevelErrors(ErrorKind):
    """Modules that are not dumps of sscc, are damaged, or hold operations that their level does not permit."""

    NO_FACTS = InputError, "the module lacks one of the attributes {attributes}: it is not a dump of sscc"
    NO_LEVEL = InputError, "the module's {attribute} is {level!r}, which is not a level: it is not a dump of sscc"
    GEOMETRY = InputError, "the module's {cause}"
    DAMAGED = InputError, "the module's {attribute} is damaged: {cause}"
    FACT_TOO_SMALL = InputError, "the module's {attribute} is damaged: {name} must be at least 1, got {value}"
    FACT_DTYPE = InputError, "the module's {attribute} is damaged: dtype must be one of {choices}, got {dtype!r}"
    FACT_EOS = InputError, "the module's {attribute} is damaged: eos is {eos!r}, expected a list of tokens"
    FACT_CONFIG = InputError, "the module's {attribute} is damaged: config is not a JSON object"
    GROUPS = InputError, "one of the module's attributes {attributes} is damaged: {cause}"
    FIRST_LAYER = (
        InputError,
        "the module's {attribute} is damaged: the first layer of a kind belongs to another kind, in [{layers}]",
    )
    INVALID_IR = InternalError, "invalid IR at level {level}: {diagnostics}"
    ILLEGAL_OPERATION = IllegalIR, "{origin}'{op}' is not legal at level {level}"
    LARGE_LITERAL = IllegalIR, "{origin}'{op}' holds a literal of {elements} elements, over {most} bytes"


LEVEL = "sscc.level"
PROGRAM = "sscc.program"
PASSES = "sscc.passes"
KINDS = "sscc.kinds"
MACHINE = "sscc.machine"
TILE_ROWS = "sscc.tile_rows"
LOOPING = "sscc.looping"
LAYERS = "sscc.layers"
BESIDE = "sscc.beside"
"""Module attribute: names of groups whose layers are in another group too."""
SHARES = "sscc.shares"
STORED_FORMATS = "sscc.stored"
RULE = "sscc.rule"
"""Attribute of a function that scores prompt positions by a user's rule: the rule's name, and the common settings of
the attention layers that it serves."""
MAX_LITERAL_BYTES = 1024

_GRAPH = frozenset({"builtin", "func", "linalg", "tensor", "arith", "math", "scf", "kv", "shard"})
LEGAL_DIALECTS: dict[str, frozenset[str]] = {
    "import": frozenset({"builtin", "func", "torch", "torch_c", "kv"}),
    "graph": _GRAPH,
    "kernels": _GRAPH,
    "looped": _GRAPH,
    "fused": _GRAPH | {"df"},
    "placed": _GRAPH | {"df"},
}


@dataclass(frozen=True)
class ProgramFacts:
    """Facts of a program that passes and backends need besides its operations.

    Attributes:
        batch: number of decode slots, B.
        chunk: tokens of a prefill chunk, C.
        dtype: dtype of activations and caches, "f32" or "bf16".
        layers: number of decoder layers, L.
        vocab_size: token ids are 0 .. vocab_size - 1.
        config: the model's Hugging Face config as canonical JSON, "{}" for an exported program.
        digest: sha256 of the checkpoint, "" without weights.
        eos: token ids that end a text.
    """

    batch: int
    chunk: int
    dtype: str
    layers: int
    vocab_size: int
    config: str
    digest: str
    eos: tuple[int, ...]

    def scratch_rows(self, geometry: Geometry) -> int:
        """Return T: max_context rounded up to whole chunks."""
        return -(-geometry.max_context // self.chunk) * self.chunk


def set_target(module: ir.Module, target: Target) -> None:
    """Record the machine that the module is compiled for."""
    module.operation.attributes[MACHINE] = ir.StringAttr.get(target.to_json())


def get_target(module: ir.Module) -> Target:
    """Return the part of the module's machine that one rank has. The machine is the recorded one, or the default
    target.

    Raises:
        InputError: the recorded machine is damaged.
        UsageError: ranks cannot share the machine.
    """
    ranks = prod(grid_of(module))
    if MACHINE not in module.operation.attributes:
        return load_target("rdu").of_rank(ranks)
    text = ir.StringAttr(module.operation.attributes[MACHINE]).value
    return parse_target(text, f"in the module's {MACHINE}").of_rank(ranks)


def set_tile_rows(module: ir.Module, rows: int) -> None:
    """Record the number of matrix rows that the executing backend packs together."""
    module.operation.attributes[TILE_ROWS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), rows)


def get_tile_rows(module: ir.Module) -> int:
    """Return the number that `set_tile_rows` recorded; 1 by default. Tiles of matrices are multiples of it where that
    costs little.

    Raises:
        InputError: the attribute is damaged.
    """
    attributes = module.operation.attributes
    if TILE_ROWS not in attributes:
        return 1
    try:
        rows = int(ir.IntegerAttr(attributes[TILE_ROWS]).value)
    except ValueError:
        rows = 0
    if rows < 1:
        raise LevelErrors.DAMAGED(attribute=TILE_ROWS, cause=str(attributes[TILE_ROWS]))
    return rows


_FIELDS = {name: int if name in ("batch", "chunk", "layers", "vocab_size") else str
           for name in ProgramFacts.__dataclass_fields__}  # fmt: skip


def set_facts(module: ir.Module, facts: ProgramFacts, geometry: Geometry) -> None:
    """Write geometry and facts as attributes of `module`."""
    values = {**asdict(facts), "eos": json.dumps(facts.eos)}
    module.operation.attributes[PROGRAM] = write_record(values)
    module.operation.attributes[GEOMETRY] = geometry_attribute(geometry)


def get_facts(module: ir.Module) -> tuple[ProgramFacts, Geometry]:
    """Return the facts and geometry that `set_facts` wrote.

    Raises:
        InputError: they are missing (the module is not a dump of this compiler), or damaged.
    """
    attributes = module.operation.attributes
    if PROGRAM not in attributes or GEOMETRY not in attributes:
        raise LevelErrors.NO_FACTS(attributes=(PROGRAM, GEOMETRY))
    try:
        geometry = read_geometry(attributes[GEOMETRY])
    except SignatureMismatch as error:
        raise LevelErrors.GEOMETRY(cause=str(error)) from None
    try:
        values = read_record(attributes[PROGRAM], _FIELDS)
        eos, config = json.loads(values["eos"]), json.loads(values["config"])
    except (InputError, ValueError) as error:
        raise _damaged(PROGRAM, error) from None
    _check_facts(values, eos, config)
    return ProgramFacts(**{**values, "eos": tuple(eos)}), geometry


def _damaged(attribute: str, error: Exception) -> SsccError:
    cause = error if isinstance(error, SsccError) else quoted(error)
    return LevelErrors.DAMAGED(attribute=attribute, cause=cause)


def _check_facts(values: dict[str, Any], eos: object, config: object) -> None:
    for name in ("batch", "chunk", "layers", "vocab_size"):
        if values[name] < 1:
            raise LevelErrors.FACT_TOO_SMALL(attribute=PROGRAM, name=name, value=values[name])
    if values["dtype"] not in DTYPES:
        raise LevelErrors.FACT_DTYPE(attribute=PROGRAM, dtype=values["dtype"], choices=DTYPES)
    if not isinstance(eos, list) or not all(type(token) is int for token in eos):
        raise LevelErrors.FACT_EOS(attribute=PROGRAM, eos=shown(eos))
    if not isinstance(config, dict):
        raise LevelErrors.FACT_CONFIG(attribute=PROGRAM)


@dataclass(frozen=True)
class GroupFacts:
    """A group of layers that keep the same rows, as recorded in a module.

    Attributes:
        name: name of the group; "" for the one under the module's geometry.
        geometry: geometry of each layer.
        layers: layer numbers.
        sharers: layers that share the rows of the group's only layer.
        beside: True if its layers are in another group too and keep these rows in addition.
    """

    name: str
    layers: tuple[int, ...]
    geometry: Geometry
    sharers: tuple[int, ...] = ()
    beside: bool = False


def set_groups(module: ir.Module, groups: Sequence[GroupFacts]) -> None:
    """Record the groups of layers; nothing if all layers are under the module's geometry."""
    named = {group.name: group for group in groups if group.name}
    attributes = module.operation.attributes
    sources = {sharer: group.layers[0] for group in groups for sharer in group.sharers}
    if sources:
        attributes[SHARES] = ir.DictAttr.get(
            {"layers": ir.DenseI64ArrayAttr.get(list(sources)), "of": ir.DenseI64ArrayAttr.get(list(sources.values()))}
        )
    if not named:
        return
    attributes[GROUPS] = groups_attribute({name: group.geometry for name, group in named.items()})
    attributes[LAYERS] = ir.DictAttr.get(
        {name: ir.DenseI64ArrayAttr.get(list(group.layers)) for name, group in named.items()}
    )
    marked = [ir.StringAttr.get(group.name) for group in groups if group.beside]
    if marked:
        attributes[BESIDE] = ir.ArrayAttr.get(marked)


def get_groups(module: ir.Module) -> tuple[GroupFacts, ...]:
    """Return the groups that `set_groups` recorded, in the order of their first layers. Raises InputError if damaged.
    """
    facts, geometry = get_facts(module)
    attributes = module.operation.attributes
    layers: dict[str, tuple[int, ...]] = {}
    try:
        sources = _sources(module)
        if LAYERS in attributes:
            named = ir.DictAttr(attributes[LAYERS])
            layers = {entry.name: tuple(ir.DenseI64ArrayAttr(entry.attr)) for entry in named}
        beside = {ir.StringAttr(name).value for name in attributes[BESIDE]} if BESIDE in attributes else set()
        groups = [
            GroupFacts(name, where, group_geometry(module, name), beside=name in beside)
            for name, where in layers.items()
        ]
        placed = {layer for group in groups for layer in group.layers if not group.beside}
        others = set(range(facts.layers)) - placed - set(sources)
        if others:
            groups.append(GroupFacts("", tuple(sorted(others)), geometry))
        sharers = [
            tuple(layer for layer, of in sources.items() if of in group.layers and not group.beside)
            for group in groups
        ]
        groups = [replace(group, sharers=theirs) for group, theirs in zip(groups, sharers, strict=True)]
        check_layers(groups, facts.layers)
        groups = with_own_budgets(groups)
    except (KeyError, TypeError, SignatureMismatch, ValueError) as error:
        raise LevelErrors.GROUPS(attributes=(GROUPS, LAYERS, BESIDE, SHARES), cause=quoted(error)) from None
    return tuple(sorted(groups, key=lambda group: (group.layers[0], group.beside)))


def _sources(module: ir.Module) -> dict[int, int]:
    """Return the layer whose rows each sharer reads. Raises KeyError or ValueError if damaged."""
    if SHARES not in module.operation.attributes:
        return {}
    noted = ir.DictAttr(module.operation.attributes[SHARES])
    return dict(zip(*(ir.DenseI64ArrayAttr(noted[name]) for name in ("layers", "of")), strict=True))


def with_own_budgets(groups: Sequence[GroupFacts]) -> list[GroupFacts]:
    """Return groups whose geometries have the budgets of their own layers only. The module's geometry lists the budgets
    of every layer that keeps rows and has no window. Raises ValueError if their number differs."""
    governed = sorted(layer for group in groups if group.geometry.takes_budget for layer in group.layers)
    for geometry in (group.geometry for group in groups):
        geometry.check_layers(len(governed))
    places = {layer: place for place, layer in enumerate(governed)}
    return [
        replace(group, geometry=group.geometry.of_layers([places[layer] for layer in group.layers]))
        if group.geometry.takes_budget
        else group
        for group in groups
    ]


def set_stored_formats(module: ir.Module, formats: Mapping[str, Encoding]) -> None:
    """Record the weights that the checkpoint stores in formats that programs can execute, by name; nothing if there are
    none.

    Of each encoding, the format and the transposition are recorded.
    """
    if formats:
        named = {name: ir.StringAttr.get(str(encoding)) for name, encoding in formats.items()}
        module.operation.attributes[STORED_FORMATS] = ir.DictAttr.get(named)


def get_stored_formats(module: ir.Module) -> dict[str, Encoding]:
    """Return the formats that `set_stored_formats` recorded. Raises InputError if damaged."""
    attributes = module.operation.attributes
    if STORED_FORMATS not in attributes:
        return {}
    try:
        return {e.name: Encoding.parse(ir.StringAttr(e.attr).value) for e in ir.DictAttr(attributes[STORED_FORMATS])}
    except (ValueError, InputError) as error:
        raise _damaged(STORED_FORMATS, error) from None


def set_level(module: ir.Module, level: str) -> None:
    module.operation.attributes[LEVEL] = ir.StringAttr.get(level)


def get_level(module: ir.Module) -> str:
    attributes = module.operation.attributes
    level = attributes[LEVEL].value if LEVEL in attributes and isinstance(attributes[LEVEL], ir.StringAttr) else ""
    if level not in LEGAL_DIALECTS:
        raise LevelErrors.NO_LEVEL(attribute=LEVEL, level=level)
    return str(level)


@dataclass(frozen=True)
class LayerKinds:
    """The decoder layers of a model by kind. Layers of one kind are identical except for their weights.

    Attributes:
        path: module path of their ModuleList.
        first: for each layer, the first layer of its kind.
        both_ends: True if the last layer of every kind is captured too.
    """

    path: str
    first: tuple[int, ...]
    both_ends: bool = True

    @property
    def captured(self) -> tuple[int, ...]:
        """The layers that the frontend exports, ascending: the first and, with `both_ends`, the last layer of every
        kind."""
        last = {kind: layer for layer, kind in enumerate(self.first)}
        return tuple(sorted({*last, *(last.values() if self.both_ends else ())}))


def renamed(name: str, path: str, layer: int, other: int) -> str:
    """Return the name, in layer `other`, of a tensor or module of `layer` in the stack `path`."""
    prefix = f"{path}.{layer}"
    if name == prefix or name.startswith(prefix + "."):
        return f"{path}.{other}{name[len(prefix) :]}"
    return name


def set_kinds(module: ir.Module, kinds: LayerKinds | None) -> None:
    """Record that only `kinds.captured` are in the module; None means every layer."""
    if kinds is not None:
        first = ir.DenseI64ArrayAttr.get(list(kinds.first))
        values = {"path": ir.StringAttr.get(kinds.path), "first": first}
        module.operation.attributes[KINDS] = ir.DictAttr.get(values)


def get_kinds(module: ir.Module) -> LayerKinds | None:
    """Return the kinds that `set_kinds` recorded, until `repeat-layers` has run. Raises InputError if damaged."""
    if KINDS not in module.operation.attributes:
        return None
    try:
        values = ir.DictAttr(module.operation.attributes[KINDS])
        kinds = LayerKinds(ir.StringAttr(values["path"]).value, tuple(ir.DenseI64ArrayAttr(values["first"])))
    except (KeyError, ValueError):
        raise LevelErrors.DAMAGED(attribute=KINDS, cause=str(module.operation.attributes[KINDS])) from None
    if any(not 0 <= first <= layer or kinds.first[first] != first for layer, first in enumerate(kinds.first)):
        raise LevelErrors.FIRST_LAYER(attribute=KINDS, layers=kinds.first)
    return kinds


def add_looping(module: ir.Module, item: Looping) -> None:
    """Record the outcome of looping a run of calls."""
    attributes = module.operation.attributes
    items = list(attributes[LOOPING]) if LOOPING in attributes else []
    attributes[LOOPING] = ir.ArrayAttr.get([*items, write_record(asdict(item))])


def get_looping(module: ir.Module) -> tuple[Looping, ...]:
    """Return the outcomes that `add_looping` recorded, in order. Raises InputError if damaged."""
    attributes = module.operation.attributes
    if LOOPING not in attributes:
        return ()
    fields = {"entry": str, "kernel": str, "layers": int, "reason": str}
    try:
        return tuple(Looping(**read_record(item, fields)) for item in ir.ArrayAttr(attributes[LOOPING]))
    except (InputError, ValueError) as error:
        raise _damaged(LOOPING, error) from None


def record_pass(module: ir.Module, name: str) -> None:
    """Record that pass `name` has run, so that compilation of a dump continues behind it."""
    done = [ir.StringAttr.get(other) for other in passes_done(module)]
    module.operation.attributes[PASSES] = ir.ArrayAttr.get([*done, ir.StringAttr.get(name)])


def passes_done(module: ir.Module) -> tuple[str, ...]:
    """Return the names of the passes that have run, in order. Raises InputError for an unknown list."""
    attributes = module.operation.attributes
    if PASSES not in attributes:
        return ()
    try:
        return tuple(str(ir.StringAttr(item).value) for item in ir.ArrayAttr(attributes[PASSES]))
    except ValueError:
        raise LevelErrors.DAMAGED(attribute=PASSES, cause=str(attributes[PASSES])) from None


def walk(op: Any) -> Iterator[ir.Operation]:
    """Return all operations inside `op`, outermost first, in program order, as of the start of the walk."""
    ops: list[ir.Operation] = []

    def note(inner: ir.Operation) -> Any:
        ops.append(inner)
        return ir.WalkResult.ADVANCE

    op.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return iter(ops[1:])


def _illegal(op: ir.Operation, kind: LevelErrors, **fields: Any) -> IllegalIR:
    """Return the error of an operation that its level does not permit."""
    error = kind(origin=origin_of(op), op=op.name, **fields)
    assert isinstance(error, IllegalIR)
    error.location = op.location
    return error


def check_legal(module: ir.Module, level: str) -> None:
    """Verify the module, and check that it holds only what its level permits.

    Raises:
        InternalError: the module is invalid, because a pass produced invalid IR; the message names the operation and
            its location. `IllegalIR` for an operation that the level does not permit.
    """
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        diagnostics = [f"{origin_of(d)}{d.message}" for d in error.error_diagnostics]
        raise LevelErrors.INVALID_IR(level=level, diagnostics=diagnostics or [str(error)]) from None
    legal = LEGAL_DIALECTS[level]
    checked: set[ir.Attribute] = set()  # most attributes occur many times in a module
    for op in walk(module):
        dialect = op.name.partition(".")[0]
        if dialect not in legal:
            raise _illegal(op, LevelErrors.ILLEGAL_OPERATION, level=level)
        for attribute in op.attributes.values():
            if attribute not in checked:
                _check_literal(op, attribute)
                checked.add(attribute)


def _check_literal(op: ir.Operation, attribute: ir.Attribute) -> None:
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return
    shaped = attribute.type  # any kind of literal: dense, sparse, resource
    if not isinstance(shaped, ir.RankedTensorType):
        return
    elements = 1
    for size in shaped.shape:
        elements *= size
    if elements * _width(shaped) > MAX_LITERAL_BYTES:
        raise _illegal(op, LevelErrors.LARGE_LITERAL, elements=elements, most=MAX_LITERAL_BYTES)


def _width(shaped: ir.RankedTensorType) -> int:
    element = shaped.element_type
    return max(1, (getattr(element, "width", 64) + 7) // 8)
