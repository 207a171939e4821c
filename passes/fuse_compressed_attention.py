"""fuse-compressed-attention: attention over the cache becomes two streaming operations.

What: two patterns, each with exactly the same result.

* decode: row, both updates, validity and attention become `kv.decode_attention`, which reads each row once. Attention
  may cover any number of segments, in any order: one of them is the updated cache, the others follow it in the
  numbering of the validity mask;
* prefill, per chunk: the appends of K and V and causal attention become `kv.chunk_attention`.

Operations after a layer's last chunk are unchanged: each of them is a stage by itself.

Why: unfused, decode would read the cache twice, and updates and reads of the cache could only be ordered by launches.

Before, a decode step and a chunk of prefill::

    func.func private @decode.layer.0(%q: tensor<2x4x1x8xf32> {sscc.input = "q"},
        %k: tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, %v: tensor<2x2x4x8xf32> {sscc.state = "v_cache"},
        %kn: tensor<2x2x1x8xf32> {sscc.input = "kn"}, %vn: tensor<2x2x1x8xf32> {sscc.input = "vn"},
        %p: tensor<2xi64> {sscc.input = "position"}, %b: tensor<2xi64> {sscc.input = "base"},
        %a: tensor<2xi1> {sscc.input = "active"}) -> (tensor<2x4x1x8xf32> {sscc.output = "o"},
        tensor<2x2x4x8xf32> {sscc.state = "k_cache"}, tensor<2x2x4x8xf32> {sscc.state = "v_cache"})
        attributes {sscc.kernel} {
      %c1 = arith.constant 1 : index
      %row = "kv.row"(%p, %b, %c1) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64>
      %k1 = "kv.update"(%k, %kn, %row, %a)
        : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x8xf32>
      %v1 = "kv.update"(%v, %vn, %row, %a)
        : (tensor<2x2x4x8xf32>, tensor<2x2x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x2x4x8xf32>
      %valid = "kv.validity"(%p, %b, %a, %c1) : (tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x4xi1>
      %o = "kv.cached_attention"(%q, %k1, %v1, %valid) {scale = 0.5 : f64,
          operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>}
        : (tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>, tensor<2x4xi1>) -> tensor<2x4x1x8xf32>
      return %o, %k1, %v1 : tensor<2x4x1x8xf32>, tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32>
    }
    func.func private @prefill.layer.0(%q: tensor<1x4x4x8xf32> {sscc.input = "q"},
        %k: tensor<1x2x8x8xf32> {sscc.state = "k_scratch"}, %v: tensor<1x2x8x8xf32> {sscc.state = "v_scratch"},
        %kn: tensor<1x2x4x8xf32> {sscc.input = "kn"}, %vn: tensor<1x2x4x8xf32> {sscc.input = "vn"},
        %start: index {sscc.input = "start"}, %n: index {sscc.input = "length"})
        -> (tensor<1x4x4x8xf32> {sscc.output = "o"}, tensor<1x2x8x8xf32> {sscc.state = "k_scratch"},
        tensor<1x2x8x8xf32> {sscc.state = "v_scratch"}) attributes {sscc.kernel} {
      %k1 = tensor.insert_slice %kn into %k[0, 0, %start, 0] [1, 2, 4, 8] [1, 1, 1, 1]
        : tensor<1x2x4x8xf32> into tensor<1x2x8x8xf32>
      %v1 = tensor.insert_slice %vn into %v[0, 0, %start, 0] [1, 2, 4, 8] [1, 1, 1, 1]
        : tensor<1x2x4x8xf32> into tensor<1x2x8x8xf32>
      %o:2 = "kv.causal_attention"(%q, %k1, %v1, %start, %n) {scale = 0.5 : f64}
        : (tensor<1x4x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, index, index)
        -> (tensor<1x4x4x8xf32>, tensor<1x4x4x1xf32>)
      return %o#0, %k1, %v1 : tensor<1x4x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>
    }

After, the decode step::

    func.func private @decode.layer.0(%q: .. "q"}, %k: .. "k_cache"}, %v: .. "v_cache"}, ..
      %c1 = arith.constant 1 : index
      %o:3 = "kv.decode_attention"(%q, %kn, %vn, %k, %v, %k, %v, %p, %b, %a, %c1) ..
      return %o#0, %o#1, %o#2 : ..
    }

After, the chunk::

    func.func private @prefill.layer.0(%q: .. "q"}, %k: .. "k_scratch"}, %v: .. "v_scratch"}, ..
      %o:4 = "kv.chunk_attention"(%q, %kn, %vn, %k, %v, %start, %n) {scale = 5.000000e-01 : f64} ..
      return %o#0, %o#2, %o#3 : ..
    }

If cache rows are encoded, the decode step takes the row before `kv.quantize_rows` and encodes it on writing; so does
the chunk if rows of a prompt are encoded. For latent rows, whose first numbers are V, attention has no values, and the
decode step has one cache.

When it does not apply: with another mask, a segment that is missing or read twice, other scalars or positions, or
another reader of an intermediate value. The operations are then unchanged, and their kernel becomes kernels of one
operation each, marked `sscc.plain`, which read and write memory as at -O0: launches order updates and reads of the same
memory. A loop whose operations need no such order becomes a kernel of stages; an example is the loop over a prompt's
chunks after which a query selects the first resident rows (`--kv-fetch`).

Preserves: results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.builders import index_of
from sscc.ir.dialects import kv
from sscc.ir.levels import get_facts, walk
from sscc.ir.operations import DecodeAttention
from sscc.ir.rewriting import functions, producer
from sscc.ir.views import root_of
from sscc.passes.base import Pass, count
from sscc.passes.outline_kernels import KERNEL
from sscc.passes.plain_kernels import make_plain


@dataclass(frozen=True)
class FuseCompressedAttention(Pass):
    name: ClassVar[str] = "fuse-compressed-attention"
    takes: ClassVar[tuple[str, ...]] = ("kernels", "looped")
    follows: ClassVar[tuple[str, ...]] = ("merge-equal-kernels", "kernel-looping")
    level: ClassVar[str] = "fused"

    def run(self, module: ir.Module) -> None:
        get_facts(module)  # raises for a module that is not a dump
        for function in functions(module):
            if KERNEL in function.attributes:
                for op in _named(function, "kv.cached_attention"):
                    _fuse_decode(op) or _fuse_query(op)
                for op in _named(function, "kv.causal_attention"):
                    _fuse_chunk(op)
        make_plain(module)


def _named(function: Any, name: str) -> list[ir.Operation]:
    return [op for op in walk(function) if op.name == name]


def _made_by(value: ir.Value, name: str) -> ir.Operation | None:
    """Return the operation that defines `value`, if it is called `name`."""
    source = producer(value)
    return source if source is not None and source.name == name else None


def _readers(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _replace(pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    for old, new in pairs:
        old.replace_all_uses_with(new)


def _erase(*ops: ir.Operation | None) -> None:
    """Erase those of `ops` (readers first) that have no readers left."""
    for op in dict.fromkeys(op for op in ops if op is not None):
        if not any(True for result in op.results for _ in result.uses):
            op.erase()


# ------------------------------------------------------------------------------------------------------------ decode


def _fuse_decode(attention: ir.Operation) -> bool:
    """Fuse attention whose first segment is a cache that this step updates, and whose second one, if there is any, has
    the selected rows of a prompt, by the index that the validity of all rows also uses."""
    ranges = [(_range(segment["valid"]), segment) for segment in kv.members_of(attention)]
    known = [(columns, segment) for columns, segment in ranges if columns is not None]
    placed = sorted(known, key=lambda item: item[0].first)
    ends = [0, *(columns.end for columns, _ in placed)]
    if len(placed) != len(ranges) or [columns.first for columns, _ in placed] != ends[:-1]:
        return False
    validity = placed[0][0].validity
    if {columns.validity for columns, _ in placed} != {validity} or ends[-1] != validity.results[0].type.shape[1]:
        return False
    (_, cache), *rest = placed
    sides = [cache[name] for name in ("key", "value") if name in cache]
    updates = [op for op in (_made_by(updated, "kv.update") for updated in sides) if op is not None]
    if len(updates) != len(sides) or "index" in cache:
        return False
    parts = [kv.operands_of(op) for op in updates]
    parts_of_validity = kv.operands_of(validity)
    position, active, topk = (parts_of_validity[name] for name in ("position", "active", "topk"))
    row = _made_by(parts[0]["row"], "kv.row")
    new, encoders = _decoded([part["new"] for part in parts])
    if row is None or {part["row"] for part in parts} != {row.results[0]} or kv.operand_of(row, "position") != position:
        return False
    base, index = kv.operand_of(row, "base"), parts_of_validity.get("index")
    if not _same_number(kv.operand_of(row, "topk"), topk) or parts_of_validity["base"] != base:
        return False
    if [segment.get("index") for _, segment in rest] != ([] if index is None else [index]):
        return False
    if {part["active"] for part in parts} != {active} or not _one_group(attention, row, validity, *updates):
        return False
    others = [{name: item for name, item in segment.items() if name != "valid"} for _, segment in rest]
    before = [part["cache"] for part in parts]
    caches = [root_of(item) for item in (*sides, *before)]
    read = [root_of(item) for other in others for item in other.values()]
    if len(set(before)) != len(before) or any(item in caches for item in read):
        return False  # the updated tensor has another user, which may need its old value
    readers = [reader for value in sides for reader in _readers(value)]
    if not all(_follows(reader, attention) for reader in readers):
        return False
    (k_new, v_new), (k_before, v_before), (k_type, v_type) = (
        [*items, None][:2] for items in (new, before, [value.type for value in sides])
    )
    with ir.InsertionPoint(attention), attention.location:
        fused = kv.DecodeAttention(
            attention.operands[0], k_new, v_new, k_before, v_before, k_before, v_before, position, base, active,
            topk, kv.operands_of(attention).get("sink_logits"), *kv.members(DecodeAttention, *others),
            attention.attributes["scale"], attention.results[0].type, k_type, v_type,
        )  # fmt: skip
        kv.in_group(fused, kv.group_of(attention))
        kv.inherit(fused, attention)
    masks = [producer(segment["valid"]) for _, segment in placed]
    _replace([(attention.results[0], fused.results[0]), *zip(sides, list(fused.results)[1:], strict=True)])
    _erase(attention, *updates, *encoders, *masks, validity, row)
    count("decode attentions fused")
    return True


def _same_number(a: ir.Value, b: ir.Value) -> bool:
    """Return True if two index values are one, or equal constants."""
    return bool(a == b) or (index_of(a) is not None and index_of(a) == index_of(b))


@dataclass(frozen=True)
class _Range:
    """Rows first .. end - 1 of those that a `kv.validity` covers."""

    validity: ir.Operation
    first: int
    end: int


def _range(mask: ir.Value) -> _Range | None:
    """Return the `kv.validity` and the columns of it that a mask of all slots shows; None for another mask."""
    source, first, (slots, rows) = producer(mask), 0, mask.type.shape
    if source is not None and source.name == "tensor.extract_slice" and len(source.operands) == 1:
        offsets, strides = list(source.attributes["static_offsets"]), list(source.attributes["static_strides"])
        if offsets[0] != 0 or strides != [1, 1] or source.operands[0].type.shape[0] != slots:
            return None
        source, first = producer(source.operands[0]), offsets[1]
    return _Range(source, first, first + rows) if source is not None and source.name == "kv.validity" else None


def _decoded(rows: Sequence[ir.Value]) -> tuple[list[ir.Value], list[ir.Operation]]:
    """Return rows as they were before `kv.quantize_rows` encoded them for the cache, and the operations that did."""
    encoders = [op for op in (_made_by(value, "kv.quantize_rows") for value in rows) if op is not None]
    plain = {op.results[0]: op.operands[0] for op in encoders}
    return [plain.get(value, value) for value in rows], encoders


def _one_group(*ops: ir.Operation | None) -> bool:
    """Return True if operations belong to one group of layers, that is, one geometry."""
    return len({kv.group_of(op) for op in ops if op is not None}) == 1


def _follows(op: ir.Operation, other: ir.Operation) -> bool:
    """Return True if `op` is `other` or follows it in its block."""
    return bool(op == other or (op.block == other.block and other.is_before_in_block(op)))


# ------------------------------------------------------------------------------- decode, rows that its query chooses


def _fuse_query(attention: ir.Operation) -> bool:
    """Fuse attention over sinks and ring, and over rows of a store that a `kv.choose` of the same query selects by
    quantized keys, or over resident rows that a `kv.fetch` leaves, if cache, store and quantized keys all get a row in
    this step.
    """
    members = kv.members_of(attention)
    choice = producer(members[1]["index"]) if len(members) == 2 and "index" in members[1] else None
    if choice is None or choice.name not in ("kv.choose", "kv.fetch"):
        return False
    scores = _made_by(kv.operand_of(choice, "scores"), "kv.quantized_key_scores")
    if scores is None:
        return False
    ring, chosen, query = members[0], members[1], attention.operands[0]
    sinks = kv.operands_of(attention).get("sink_logits")
    chooses, scored = kv.operands_of(choice), kv.operands_of(scores)
    position, active = chooses["position"], chooses["active"]
    quantized_keys = [scored[name] for name in ("codes", "scales") if name in scored]
    sides = [name for name in ("key", "value") if name in ring]
    streams = len(sides)
    if any((name in part) != (name in ring) for part in (ring, chosen) for name in ("key", "value")):
        return False
    residents = [chooses[name] for name in ("resident", "places", "k_resident", "v_resident") if name in chooses]
    kept = list(choice.results) if residents else []
    stored = [chosen[side] for side in sides]
    if residents:
        stored = [chooses[name] for name in ("k_store", "v_store") if name in chooses]
    updated = [*(ring[side] for side in sides), *stored, *quantized_keys]
    updates = [op for op in (_made_by(value, "kv.update") for value in updated) if op is not None]
    roots = {root_of(value) for value in (*(op.operands[0] for op in updates), *residents)}
    if len(updates) != len(updated) or len(roots) != len(updated) + len(residents) or len(stored) != streams:
        return False
    parts = [kv.operands_of(op) for op in updates]
    new_rows, encoders = _decoded([part["new"] for part in parts[:streams]])
    quantized_key = _made_by(parts[2 * streams]["new"], "kv.quantize_keys")  # None if keys are not quantized
    row = _made_by(parts[0]["row"], "kv.row")
    masks = [mask for mask in (_range(member["valid"]) for member in members) if mask is not None]
    if row is None or len(masks) != len(members):
        return False
    newest = parts[2 * streams]["new"]
    quantized = (newest, [newest]) if quantized_key is None else (quantized_key.operands[0], quantized_key.results)
    key, new_quantized_keys = quantized
    rows, topk = kv.geometry_of(attention).cache_rows, kv.geometry_of(attention).topk
    validity = masks[0].validity
    bound = kv.operands_of(validity)
    fits = (
        list(new_quantized_keys) == [part["new"] for part in parts[2 * streams :]] and new_rows[0] == key,
        [part["new"] for part in parts[:streams]] == [part["new"] for part in parts[streams : 2 * streams]],
        {part["row"] for part in parts[:streams]} == {row.results[0]} and row.operands[0] == position,
        {part["row"] for part in parts[streams:]} == {position},
        {*(part["active"] for part in parts), scored["active"], bound["active"]} == {active},
        {scored["position"], bound["position"]} == {position} and "index" not in bound,
        bound["base"] == kv.operand_of(row, "base"),
        (index_of(kv.operand_of(row, "topk")), index_of(bound["topk"])) == (0, topk),
        chooses.get("sink_logits") == sinks,
        chooses["key"] == ring["key"] and {chooses["query"], scored["query"]} == {query} and "index" not in ring,
        masks == [_Range(validity, 0, rows), _Range(validity, rows, rows + topk)],
        len({(op.attributes["scale"], kv.optional_of(op, "softcap")) for op in (attention, choice, scores)}) == 1,
        _one_group(attention, choice, scores, quantized_key, row, validity, *updates),
        _readers(scores.results[0]) == [choice],
        kept[1:] == [chosen[name] for name in ("index", *sides)]
        if kept
        else _readers(choice.results[0]) == [attention],
    )
    gone = [attention, choice, scores]
    made_here = [*(op.results[0] for op in updates), *kept]
    others = [reader for value in made_here for reader in _readers(value) if reader not in gone]
    if not all(fits) or not all(_follows(reader, attention) for reader in others):
        return False
    with ir.InsertionPoint(attention), attention.location:
        before, types = [part["cache"] for part in parts], [value.type for value in updated]
        near, near_types = residents, [value.type for value in kept]

        def filled(values: Sequence[Any]) -> list[Any]:
            """Return rows of K and V twice, then quantized keys, with None for those that are absent."""
            pairs = [_two(values[:streams]), _two(values[streams : 2 * streams]), _two(values[2 * streams :])]
            return [value for pair in pairs for value in pair]

        fused = kv.QueryAttention(
            query, *_two(new_rows), *_two(before[:streams]), *filled(before), position, active,
            *_four(near), sinks, attention.attributes["scale"], attention.results[0].type, *filled(types),
            *_four(near_types),
        )  # fmt: skip
        kv.in_group(fused, kv.group_of(attention))
        kv.inherit(fused, attention)
    slices = [producer(member["valid"]) for member in members]
    _replace(list(zip([attention.results[0], *updated, *kept], fused.results, strict=True)))
    _erase(attention, choice, scores, *updates, quantized_key, *encoders, *slices, validity, row)
    count("query attentions fused")
    return True


def _two(values: Sequence[Any]) -> list[Any]:
    """Return one or two values as two, of which the last may be None."""
    return [*values, None][:2]


def _four(values: Sequence[Any]) -> list[Any]:
    """Return up to four values as four, of which the last may be None."""
    return [*values, *([None] * 4)][:4]


# ------------------------------------------------------------------------------------------------- prefill, per chunk


def _fuse_chunk(attention: ir.Operation) -> None:
    query, key, value, start, length, *sinks = attention.operands
    out, sums = attention.results
    appends = [op for op in (_appended(appended, start) for appended in (key, value)) if op is not None]
    if len(appends) != 2:
        return
    (k_rows, k_scratch), (v_rows, v_scratch) = (list(op.operands)[:2] for op in appends)
    (k_new, v_new), encoders = _decoded([k_rows, v_rows])
    readers = [reader for appended in (key, value) for reader in _readers(appended)]
    if k_scratch == v_scratch or not all(_follows(reader, attention) for reader in readers):
        return
    with ir.InsertionPoint(attention), attention.location:
        fused = kv.ChunkAttention(
            query, k_new, v_new, k_scratch, v_scratch, start, length, *(sinks or [None]),
            attention.attributes["scale"], out.type, sums.type, key.type, value.type,
        )  # fmt: skip
        kv.in_group(fused, kv.group_of(attention))
        kv.inherit(fused, attention)
    replacements = [fused.out, fused.log_sum_exp, fused.k_appended, fused.v_appended]
    _replace(list(zip([out, sums, key, value], replacements, strict=True)))
    _erase(attention, *appends, *encoders)
    count("chunk attentions fused")


def _appended(value: ir.Value, start: ir.Value) -> ir.Operation | None:
    """Return the insertion of all heads' rows at row `start` that defines `value`; None otherwise."""
    op = _made_by(value, "tensor.insert_slice")
    dynamic = ir.ShapedType.get_dynamic_size()
    if op is None or list(op.operands)[2:] != [start] or list(op.attributes["static_offsets"]) != [0, 0, dynamic, 0]:
        return None
    _, heads, _, width = value.type.shape
    expected_sizes = [1, heads, op.operands[0].type.shape[2], width]
    return op if list(op.attributes["static_sizes"]) == expected_sizes else None
