"""The `kv` dialect: attention and recurrences over a compressed KV cache, at the level of the algorithm.

The operations are those of `sscc.ir.operations`, from whose specifications the classes here are generated. The
attribute `kv.geometry` of the enclosing module holds the cache geometry; every operation has exact semantics under it.
Layers with another geometry belong to a named group: their operations carry its name (`kv.group`), and the module's
`kv.groups` holds its geometry.

Tensors are values: an update returns the new cache as a result. If the geometry's `policy` is "query", the cache itself
has sink + recent rows. `[.. D]:row` are rows of D floats or, depending on the geometry's `dtype`, encoded rows, stored
as bytes in a tensor of i8 (sscc.ir.kv_rows). `[.. D]:prompt` are rows of a prompt in progress, which are encoded only
if the policy is "query" too. `[.. E]:quantized_key` are codes of i8; with a `key_bits` of 16 they are keys (E = D)
without scales.

A score is x, the product of a query and a key times `scale`, or with a `softcap` above 0, softcap * tanh(x / softcap)
(Gemma 2, arXiv 2408.00118). Softmaxes are over scores. With `sink_logits`, the softmax of query head h also includes
sink_logits[h], which has no row (learned sinks: GPT-OSS, arXiv 2508.10925).

Attention takes segments: groups of operands behind its other operands. `operandSegmentSizes` says which operands are
present: a 1 for each operand outside of segments, then, for every possible segment, a 1 or 0 per operand in the order
of its table. Missing segments are the last ones.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from types import new_class
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from sscc.ir import operations
from sscc.ir.attributes import read_record, write_record
from sscc.ir.choices import PLAIN_BITS
from sscc.ir.dialects.shapes import SignatureMismatch, check_signature
from sscc.ir.errors import InputError, UsageError
from sscc.ir.geometry import Geometry, Span
from sscc.ir.layer_state.codecs import CodedRows, codec_of
from sscc.ir.layer_state.rows import selector_of, store_of
from sscc.ir.opspec import Op, OpSpec, group_operands, quantized_key_element, spec_of
from sscc.ir.quantized_keys import quantized_key_width
from sscc.ir.weight_formats.registry import format_named

GEOMETRY = "kv.geometry"
GROUPS = "kv.groups"
"""Module attribute: geometries by group, for groups of layers whose geometry is not the module's."""
GROUP = "kv.group"
"""Operation attribute: the name of the layers' group."""
HEAD_PARTS = "kv.head_parts"
"""Attribute of a captured attention whose query heads are sharded over all ranks: the number of parts of its KV heads.
If that is less than the number of ranks, neighbouring ranks hold the same KV heads and the same rows."""


class Kv(ext.Dialect, name="kv"):
    """Compressed-cache operations on tensors."""


_TYPES = {"str": str, "int": int, "int | None": int}
_FIELDS = {field.name: _TYPES.get(str(field.type), list) for field in fields(Geometry)}
_OPTIONAL = {field.name: field.default for field in fields(Geometry) if field.default is not MISSING}
"""Default values of the fields that a module may omit."""


def geometry_attribute(geometry: Geometry) -> ir.DictAttr:
    """Return `geometry` as the dictionary attribute that modules carry under ``kv.geometry``."""
    return write_record(geometry.to_dict())


def read_geometry(attribute: ir.Attribute, where: str = GEOMETRY) -> Geometry:
    """Return the geometry that `geometry_attribute` wrote.

    Raises:
        SignatureMismatch: a field is invalid, or the geometry breaks a rule; the message names it.
    """
    try:
        return Geometry.from_dict(read_record(attribute, _FIELDS, _OPTIONAL))
    except (InputError, UsageError) as error:
        raise SignatureMismatch(f"{where} is invalid: {error}") from None


def geometry_of(op: ir.Operation) -> Geometry:
    """Return the geometry that governs `op`: that of its group of layers, or of the enclosing module if it names no
    group.

    Raises:
        SignatureMismatch: no enclosing module has a valid ``kv.geometry``, or its ``kv.groups`` lacks the group.
    """
    name = group_of(op)
    current: Any = op
    while current is not None:
        current = current.operation
        if GEOMETRY in current.attributes:
            return group_geometry(current, name) if name else read_geometry(current.attributes[GEOMETRY])
        current = current.parent
    raise SignatureMismatch(f"no enclosing module has the attribute {GEOMETRY}")


def group_of(op: ir.Operation) -> str:
    """Return the name of an operation's group of layers; "" if the module's geometry governs it."""
    attributes = op.operation.attributes
    if GROUP not in attributes:
        return ""
    if not isinstance(attributes[GROUP], ir.StringAttr):
        raise SignatureMismatch(f"{GROUP} is {attributes[GROUP]}, expected a name")
    return str(attributes[GROUP].value)


def group_geometry(module: ir.Operation, name: str) -> Geometry:
    """Return the geometry of a group of layers by its name. Raises SignatureMismatch if the module's ``kv.groups`` has
    no valid geometry for it."""
    attributes = module.operation.attributes
    groups = attributes[GROUPS] if GROUPS in attributes else ir.DictAttr.get({})
    if not isinstance(groups, ir.DictAttr):
        raise SignatureMismatch(f"{GROUPS} is {groups}, expected a dictionary")
    if name not in groups:
        raise SignatureMismatch(f"its {GROUP} {name!r} is not in the module's {GROUPS}")
    return read_geometry(groups[name], f"{GROUPS}.{name}")


def groups_attribute(geometries: Mapping[str, Geometry]) -> ir.DictAttr:
    """Return geometries by group as the dictionary attribute that modules carry under ``kv.groups``."""
    return ir.DictAttr.get({name: geometry_attribute(geometry) for name, geometry in geometries.items()})


def in_group(op: Any, name: str) -> None:
    """Record the group of layers that an operation belongs to; "" records nothing."""
    if name:
        op.operation.attributes[GROUP] = ir.StringAttr.get(name)


def note_head_parts(attention: ir.Operation, parts: int) -> None:
    """Record the number of parts of an attention's KV heads. Its query heads are sharded over all ranks."""
    attention.attributes[HEAD_PARTS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), parts)


def head_parts_of(attention: ir.Operation) -> int | None:
    """Return the number that `note_head_parts` recorded; None if every rank has all heads."""
    return int(attention.attributes[HEAD_PARTS].value) if HEAD_PARTS in attention.attributes else None


def optional_of(op: ir.Operation, name: str) -> Any:
    """Return the value of an optional attribute of an operation; None if it is absent."""
    attributes = op.operation.attributes
    return attributes[name].value if name in attributes else None


def inherit(op: Any, source: ir.Operation) -> None:
    """Copy the optional attributes that `source` has to `op`, as far as `op` may have them."""
    for name in spec_of_op(op.operation).optional_attributes:
        if name in source.attributes:
            op.operation.attributes[name] = source.attributes[name]


def window_of(attention: ir.Operation) -> Span:
    """Return the span of positions that a captured attention sees."""
    return Span(int(optional_of(attention, "window") or 0), int(optional_of(attention, "window_stride") or 1))


class Checked(Kv.Operation):
    """Base of the dialect's operations. Each is verified against its specification."""

    @classmethod
    def verify_invariants(cls, op: Any) -> bool:
        try:
            cls._check(op, geometry_of(op))
        except SignatureMismatch as error:
            op.location.emit_error(f"'{op.OPERATION_NAME}' {error}")
            return False
        return True

    @classmethod
    def _check(cls, op: Any, geometry: Geometry) -> None:
        spec, codec, selector = spec_of_op(op.operation), codec_of(geometry), selector_of(geometry)
        rows = geometry.cache_rows if spec.record.stored else geometry.covered_rows
        known = {"K": geometry.topk, "W": geometry.obs, "R": rows}
        if spec.several and not spec.members and cls.OPERATION_NAME not in DECODING:
            raise SignatureMismatch("has no segment to attend to")
        for name in spec.optional_attributes:
            expected = ir.IntegerAttr if spec.kind(name) is int else ir.FloatAttr
            if name in op.operation.attributes and not isinstance(op.operation.attributes[name], expected):
                raise SignatureMismatch(f"{name} is {op.operation.attributes[name]}, expected a number")
        if any(operand.element == "encoded" for operand in spec.operands.values()) and not codec.rounds:
            raise SignatureMismatch(f"encodes rows, but rows of {GEOMETRY} have the dtype {codec.name}")
        bits = selector.key_bits
        exact, quantized_key = bits == PLAIN_BITS, f":{quantized_key_element(bits)}"
        patterns = {name: pattern.replace(":quantized_key", quantized_key) for name, pattern in spec.patterns.items()}
        if "codes" in spec.operands and exact == ("scales" in spec.operands):
            scales = "no scales" if exact else "scales"
            raise SignatureMismatch(f"quantized keys of {bits} bits must have {scales}")
        if cls.OPERATION_NAME == "kv.update" and not geometry.keeps_all:  # all rows that it can update are cache rows
            known["T"] = geometry.cache_rows
            patterns = {name: pattern.replace(":any", ":row") for name, pattern in patterns.items()}
        prompt = ":row" if store_of(geometry).prompt_codec.rounds else ":f"
        patterns = {name: pattern.replace(":prompt", prompt) for name, pattern in patterns.items()}
        encoded = codec.format if isinstance(codec, CodedRows) else None
        sizes = check_signature(op.operation, patterns, known, encoded=encoded)
        if cls.OPERATION_NAME in FETCHING and (selector.fetch is None) == ("resident" in spec.operands):
            there = "" if "resident" in spec.operands else "no "
            raise SignatureMismatch(f"has {there}resident rows, {GEOMETRY} has fetch {selector.fetch}")
        if "E" in sizes and sizes["E"] != quantized_key_width(sizes["D"], bits):
            raise SignatureMismatch(
                f"{bits}-bit quantized keys of width {sizes['D']} cannot have rows of width {sizes['E']}"
            )
        if "format" in spec.attributes:
            _check_parts(op, spec, sizes)
        if "P" in sizes and not operations.latent_fits(sizes, first := int(op.operation.attributes["first"].value)):
            raise SignatureMismatch(
                f"latent rows of width {sizes['L']}, whose first {sizes['P']} give the {sizes['N']} columns from "
                f"{first} on, do not give keys of width {sizes['D']}"
            )
        if {"G", "N"} <= sizes.keys() and not operations.recurrence_fits(sizes):
            raise SignatureMismatch(
                f"{sizes['H']} heads do not divide into {sizes['G']} groups, or {sizes['N']} decays per head do not "
                f"fit keys of width {sizes['D']} (1 or {sizes['D']})"
            )
        if not operations.index_fits(sizes):
            raise SignatureMismatch("has an index that has rows neither for each slot nor for each token")
        if {"Q", "B"} <= sizes.keys():
            _check_tokens(cls.OPERATION_NAME, sizes["Q"], sizes["B"], geometry)
        if cls.OPERATION_NAME == "kv.expert_product" and sizes["J"] not in (1, sizes["Top"]):
            top = sizes["Top"]
            raise SignatureMismatch(f"has {sizes['J']} rows for the {top} experts of a token, expected 1 or {top}")
        if {"H", "Hkv"} <= sizes.keys() and sizes["H"] % sizes["Hkv"]:
            raise SignatureMismatch(f"{sizes['H']} query heads are not a multiple of {sizes['Hkv']} KV heads")
        if "start" in spec.numbers and "T" in sizes and sizes["T"] % sizes["C"]:
            raise SignatureMismatch(f"{sizes['T']} scratch rows are not a multiple of the chunk of {sizes['C']}")
        _check_sides(spec, sizes)
        chosen = geometry.topk if "topk" in spec.attributes else 0
        if cls.OPERATION_NAME in DECODING and spec.rows(sizes) + chosen != geometry.covered_rows:
            raise SignatureMismatch(f"attends to {spec.rows(sizes)} rows, {GEOMETRY} has {geometry.covered_rows}")
        if "R0" in sizes and cls.OPERATION_NAME in DECODING and sizes["R0"] != geometry.topk:
            raise SignatureMismatch(f"selects {sizes['R0']} rows, {GEOMETRY} has topk {geometry.topk}")
        if cls.OPERATION_NAME == "kv.decode_attention" and ("R0" in sizes) != geometry.reads_prompts:
            there = "" if geometry.reads_prompts else "no "
            raise SignatureMismatch(f"has {len(spec.members)} segments, but {GEOMETRY} reads {there}rows of prompts")
        if cls.OPERATION_NAME == "kv.validity" and "index" in spec.operands and not geometry.reads_prompts:
            raise SignatureMismatch(f"has an index, but {GEOMETRY} reads no rows of prompts")
        covered = geometry.covered_rows + (geometry.topk if "index" in spec.operands else 0)
        if cls.OPERATION_NAME == "kv.validity" and sizes["N"] != covered:
            raise SignatureMismatch(f"covers {sizes['N']} rows, {GEOMETRY} has {covered}")


def _check_tokens(name: str, tokens: int, slots: int, geometry: Geometry) -> None:
    """Check the number of tokens in a step of an operation over the caches of slots."""
    if tokens % slots:
        raise SignatureMismatch(f"has {tokens} tokens for {slots} slots, expected a multiple")
    if tokens > slots and name not in SEVERAL_TOKENS:
        raise SignatureMismatch(f"has {tokens} tokens for {slots} slots, but takes one token per slot")
    unbounded = name == "kv.cached_attention" or geometry.by_index  # which overwrites no row that is still seen
    if tokens // slots > geometry.spare + 1 and not unbounded:
        raise SignatureMismatch(f"has {tokens // slots} tokens per slot, {GEOMETRY} has {geometry.spare} spare rows")


def _check_parts(op: Any, spec: OpSpec, sizes: Mapping[str, int]) -> None:
    """Check that the widths of a weight's parts are those of its format."""
    name = str(op.operation.attributes["format"].value)
    try:
        weight_format = format_named(name)
    except UsageError as error:
        raise SignatureMismatch(f"has an unknown format: {error}") from None
    widths = [sizes[f"E{number}"] for number in range(len(spec.members))]
    if not weight_format.has_widths(widths, sizes["I"]):
        raise SignatureMismatch(f"has parts of {widths} bytes per row, {name} has others for {sizes['I']} numbers")


def _check_sides(spec: OpSpec, sizes: Mapping[str, int]) -> None:
    """Check that an operation has values for all of its keys, or for none: then values are the first numbers of keys.
    """
    if missing := spec.missing_values(spec.operands):
        raise SignatureMismatch(
            f"has values for some of its keys, but not {', '.join(missing)}; give all of them, or none"
        )
    if not spec.has_values(spec.operands) and sizes.get("Dv", 0) > sizes["D"]:
        raise SignatureMismatch(f"has no values, and keys of {sizes['D']} numbers cannot hold {sizes['Dv']} of a value")


_PERHAPS = ext.Operand[ir.RankedTensorType] | None
_ATTRIBUTES: Mapping[type, Any] = {float: ir.FloatAttr, int: ir.IntegerAttr, str: ir.StringAttr}


def _operation(record: type[Op]) -> Any:
    """Return the class of an operation: its operands (those of group members last), the attributes that are not part of
    the geometry, and its results."""
    spec = spec_of(record)
    hints: dict[str, Any] = {
        name: ext.Operand[ir.IndexType if name in spec.numbers else ir.RankedTensorType] for name in spec.inputs
    }
    hints |= dict.fromkeys((name for name, o in spec.operands.items() if o.omissible), _PERHAPS)
    for group, several in spec.several.items():
        names = [f"{group}{number}_{name}" for number in range(several.most) for name in group_operands(several.record)]
        hints |= dict.fromkeys(names, _PERHAPS)
    hints |= {name: _ATTRIBUTES[spec.kind(name)] for name in spec.own_attributes}
    hints |= dict.fromkeys(spec.results, ext.Result[ir.RankedTensorType])
    omissible = (o.updated for o in spec.operands.values() if o.omissible and o.updated)
    hints |= dict.fromkeys(omissible, ext.Result[ir.RankedTensorType] | None)

    def fill(namespace: dict[str, Any]) -> None:
        namespace |= {"__annotations__": hints, "__doc__": record.__doc__, "__module__": __name__}

    operation: Any = new_class(record.__name__, (Checked,), {"name": record.op, "traits": [ext.Pure]}, fill)
    if not spec.several and len(_omissible(spec)) == 1:
        operation.__init__ = _without_sizes(operation.__init__)
    return operation


def _omissible(spec: OpSpec) -> list[str]:
    """Return the operands that an operation may omit."""
    return [name for name in spec.inputs if name in spec.operands and spec.operands[name].omissible]


def _without_sizes(make: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` that sets no `operandSegmentSizes`: the number of operands shows whether the only omissible
    one is present."""

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        del self.operation.attributes[PRESENT]

    return init


CLASSES: Mapping[type[Op], Any] = {record: _operation(record) for record in operations.OPERATIONS}
"""Dialect class of each operation."""
_NAMED = {record.__name__: operation for record, operation in CLASSES.items()}


def __getattr__(name: str) -> Any:
    """Return the dialect class of the record with this name: `kv.Select` is the class of `operations.Select`."""
    if name not in _NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _NAMED[name]


SPECS: Mapping[str, OpSpec] = {f"kv.{record.op}": spec_of(record) for record in operations.OPERATIONS}
"""Specifications by operation name, without members of their groups."""


STATEFUL = frozenset(name for name, spec in SPECS.items() if "layer" in spec.attributes)
"""Operations of a captured layer that depend on earlier tokens and for which the layer keeps a state. A layer has at
most one of each kind."""
ATTENDING = frozenset(name for name in STATEFUL if "scale" in SPECS[name].attributes)
"""The attention operations among them."""
FETCHING = frozenset(("kv.fetch", "kv.query_attention"))
"""Operations with resident rows; `kv.query_attention` has them only if a step may fetch a limited number of rows."""
SEVERAL_TOKENS = frozenset(f"kv.{record.op}" for record in operations.SEVERAL_TOKENS)
DECODING = frozenset(name for name, spec in SPECS.items() if any(item.copy_of for item in spec.operands.values()))
"""Operations that take the cache they read and the cache they update as separate operands."""


def spec_of_op(op: ir.Operation) -> OpSpec:
    """Return the specification of an operation of this dialect, with its members and without the operands that it
    omits.

    Raises:
        SignatureMismatch: its `operandSegmentSizes` omit a required operand, or part of a member.
    """
    spec = SPECS[op.name]
    omissible = _omissible(spec)
    if not omissible and not spec.several:
        return spec
    (several,) = spec.several.values() or [None]
    fixed, names = len(spec.inputs), list(group_operands(several.record)) if several else []
    count = fixed + (several.most * len(names) if several else 0)
    sizes = list(op.attributes[PRESENT]) if PRESENT in op.attributes else _counted(op, spec, omissible)
    without = frozenset(name for name, size in zip(spec.inputs, sizes, strict=False) if not size)
    if len(sizes) != count or not without <= set(omissible):
        of = f"{fixed} operands and {several.most} {several.spelled}" if several else ", ".join(spec.inputs)
        raise SignatureMismatch(f"{PRESENT} are {sizes}, of {of}")
    parts = [sizes[at : at + len(names)] for at in range(fixed, count, len(names))] if several else []
    members = [tuple(name for name, size in zip(names, part, strict=True) if size) for part in parts]
    while members and not members[-1]:
        members.pop()
    if several and any(name not in member for member in members for name in several.needed):
        raise SignatureMismatch(f"{PRESENT} are {sizes}: each member is {several.spelled}")
    return spec_of(spec.record, tuple(members), without)


def _counted(op: ir.Operation, spec: OpSpec, omissible: Sequence[str]) -> list[int]:
    """Return the segment sizes of an operation that lacks `PRESENT` because it has a single omissible operand."""
    there = len(op.operands) == len(spec.inputs) or len(omissible) != 1
    return [int(there or name not in omissible) for name in spec.inputs] if not spec.several else []


PRESENT = "operandSegmentSizes"
"""Attribute of an operation that has group members or several omissible operands: 1 or 0 for each operand that it has
or lacks, members' operands included."""


def members(record: type[Op], *present: Mapping[str, ir.Value]) -> list[ir.Value | None]:
    """Return the operands of these group members (each a mapping of operands by name), as the class of an operation
    takes them."""
    (several,) = spec_of(record).several.values()
    absent: list[Mapping[str, ir.Value]] = [{}] * (several.most - len(present))
    return [member.get(name) for member in (*present, *absent) for name in group_operands(several.record)]


def operand_of(op: ir.Operation, name: str) -> ir.Value:
    """Return an operand of an operation of this dialect by its name."""
    return op.operands[spec_of_op(op).inputs.index(name)]


def operands_of(op: ir.Operation) -> dict[str, ir.Value]:
    """Return all operands of an operation of this dialect by name."""
    return dict(zip(spec_of_op(op).inputs, op.operands, strict=True))


def members_of(op: ir.Operation) -> list[dict[str, ir.Value]]:
    """Return the members of an operation's group, each as operands by name."""
    spec = spec_of_op(op)
    values = iter(list(op.operands)[len(op.operands) - sum(map(len, spec.members)) :])
    return [{name: next(values) for name in names} for names in spec.members]


def ties_of(op: ir.Operation) -> Mapping[int, int]:
    """Return the operand index of each result that updates an operand in place; empty for operations of other dialects.
    """
    return spec_of_op(op).ties if op.name in SPECS else {}


def shares_part(op: ir.Operation, reader: ir.Operation) -> bool:
    """Return True if `op` writes only a part of its result and `reader` reads only that part, because both have the
    same scalars."""
    if op.name not in SPECS or reader.name not in SPECS:
        return False
    ours, theirs, operands = spec_of_op(op), spec_of_op(reader), operands_of(reader)
    parts = {op.results[ours.results.index(n)]: o.writes for n, o in ours.operands.items() if o.mode == "part"}
    read = {value: theirs.operands[name].reads for name, value in operands.items() if value in op.results}
    equal = all(name in operands and operands[name] == operand_of(op, name) for name in ours.numbers)
    return equal and bool(read) and all(value in parts and parts[value] is count for value, count in read.items())


def fetched_by(op: ir.Operation) -> tuple[int, ...]:
    """Return the operands whose rows an operation fetches from memory by itself, on demand."""
    return spec_of_op(op).fetched if op.name in SPECS else ()
