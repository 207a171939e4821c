"""The `kv` dialect: a compressed KV cache, stated the way a person would write the algorithm.

The cache of a layer and a slot has `budget = sink + recent + topk` rows: attention sinks, a ring of recent
positions, and the prompt positions that the observation window voted for. The geometry stands once, as the
attribute `kv.geometry` of the enclosing module; every operation here has exact semantics under it.

Tensors are values: an "update" returns the new cache. Letters in signatures: B slots, H query heads, Hkv KV
heads, D head dim, R budget rows, SR those of sinks and ring, T rows of the prompt scratch, C tokens of a chunk, J
gathered rows. Where the geometry's `rows` are "indexed", the cache itself has SR rows. `[.. D]:row` are rows of D
floats, or where the geometry's `dtype` is "int8" encoded ones, D + 4 bytes of i8 (sscc.ir.kv_rows); attention is over
the numbers that they stand for.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from sscc.ir.attributes import MalformedRecord, read_record, write_record
from sscc.ir.dialects.shapes import SignatureMismatch, check_signature
from sscc.ir.errors import UsageError
from sscc.ir.geometry import Geometry

GEOMETRY = "kv.geometry"


class Kv(ext.Dialect, name="kv"):
    """Compressed-cache operations on tensors."""


_FIELDS = {field.name: str if field.type == "str" else int for field in fields(Geometry)}
_OPTIONAL = {field.name: field.default for field in fields(Geometry) if field.default is not MISSING}
"""Fields that a module may leave out."""


def geometry_attribute(geometry: Geometry) -> ir.DictAttr:
    """`geometry` as the dictionary attribute that modules carry under ``kv.geometry``."""
    return write_record(geometry.to_dict())


def read_geometry(attribute: ir.Attribute) -> Geometry:
    """The geometry that `geometry_attribute` wrote.

    Raises:
        SignatureMismatch: naming the field that does not fit or the rule that the geometry breaks.
    """
    try:
        return Geometry(**read_record(attribute, _FIELDS, _OPTIONAL))
    except (MalformedRecord, UsageError) as error:
        raise SignatureMismatch(f"{GEOMETRY} is invalid: {error}") from None


def geometry_of(op: ir.Operation) -> Geometry:
    """The geometry of the module around `op`.

    Raises:
        SignatureMismatch: when no enclosing module carries a valid ``kv.geometry``.
    """
    current: Any = op
    while current is not None:
        current = current.operation
        if GEOMETRY in current.attributes:
            return read_geometry(current.attributes[GEOMETRY])
        current = current.parent
    raise SignatureMismatch(f"no enclosing module has the attribute {GEOMETRY}")


class Checked(Kv.Operation):
    """Verifies an operation against its `signature` (operands, then results) and `extra` rules."""

    signature = dict[str, str]()
    stored = False
    """Whether R counts the rows of the cache itself, which does not hold the selected rows where they are indexed."""

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        """Rules beyond shapes; raises SignatureMismatch."""

    @classmethod
    def verify_invariants(cls, op: Any) -> bool:
        try:
            geometry = geometry_of(op)
            known = {"K": geometry.topk, "W": geometry.obs, "N": geometry.recent, "SR": geometry.sink_recent}
            rows = geometry.cache_rows if cls.stored else geometry.budget
            sizes = check_signature(op.operation, cls.signature, {"R": rows, **known}, encoded=geometry.encoded)
            cls.extra(op, sizes, geometry)
        except SignatureMismatch as error:
            op.location.emit_error(f"'{op.OPERATION_NAME}' {error}")
            return False
        return True


def _require_groups(sizes: Mapping[str, int]) -> None:
    if sizes["H"] % sizes["Hkv"]:
        raise SignatureMismatch(f"{sizes['H']} query heads are not a multiple of {sizes['Hkv']} KV heads")


class SelfAttention(Checked, name="self_attention", traits=[ext.Pure]):
    """Causal attention of a model over exactly the tokens it is given, as captured; the compiler threads the
    cache through it. `layer` counts attention operators from 0."""

    signature = {"query": "B H S D:f", "key": "B Hkv S D:f", "value": "B Hkv S Dv:f", "out": "B H S Dv:f"}

    query: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    value: ext.Operand[ir.RankedTensorType]
    layer: ir.IntegerAttr
    scale: ir.FloatAttr
    out: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)


class Row(Checked, name="row", traits=[ext.Pure]):
    """The cache row of each absolute position: p where p < sink, else sink + (p - sink) mod recent."""

    signature = {"position": "B:i64", "row": "B:i64"}

    position: ext.Operand[ir.RankedTensorType]
    row: ext.Result[ir.RankedTensorType]


class Update(Checked, name="update", traits=[ext.Pure]):
    """The cache with `new` in row `row` of every active slot; all other rows keep their bytes."""

    stored = True
    signature = {
        "cache": "B Hkv R D:row",
        "new": "B Hkv 1 D:row",
        "row": "B:i64",
        "active": "B:i1",
        "updated": "B Hkv R D:row",
    }

    cache: ext.Operand[ir.RankedTensorType]
    new: ext.Operand[ir.RankedTensorType]
    row: ext.Operand[ir.RankedTensorType]
    active: ext.Operand[ir.RankedTensorType]
    updated: ext.Result[ir.RankedTensorType]


class QuantizeRows(Checked, name="quantize_rows", traits=[ext.Pure]):
    """Rows of D numbers as D codes of 8 bits and the bytes of their f32 scale, where the geometry's `dtype` is "int8":
    scale = max |x| / 127, code = x / scale rounded half to even; a row of zeros is zero bytes (sscc.ir.kv_rows)."""

    signature = {"source": "B Hkv J D:f", "out": "B Hkv J D:row"}

    source: ext.Operand[ir.RankedTensorType]
    out: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        if not geometry.encoded:
            raise SignatureMismatch(f"encodes rows, and those of {GEOMETRY} have the dtype {geometry.dtype}")


class Validity(Checked, name="validity", traits=[ext.Pure]):
    """Rows a query at `position` may see: row < min(position + 1, SR), or SR <= row < SR + valid_topk; none
    for a slot that is not active."""

    signature = {"position": "B:i64", "valid_topk": "B:i64", "active": "B:i1", "valid": "B R:i1"}

    position: ext.Operand[ir.RankedTensorType]
    valid_topk: ext.Operand[ir.RankedTensorType]
    active: ext.Operand[ir.RankedTensorType]
    valid: ext.Result[ir.RankedTensorType]


class CachedAttention(Checked, name="cached_attention", traits=[ext.Pure]):
    """Attention of one query per slot over the valid rows of its cache; zeros where no row is valid."""

    signature = {
        "query": "B H 1 D:f",
        "key": "B Hkv R D:row",
        "value": "B Hkv R Dv:row",
        "valid": "B R:i1",
        "out": "B H 1 Dv:f",
    }

    query: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    value: ext.Operand[ir.RankedTensorType]
    valid: ext.Operand[ir.RankedTensorType]
    scale: ir.FloatAttr
    out: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)


class CausalAttention(Checked, name="causal_attention", traits=[ext.Pure]):
    """Full causal attention of a prefill chunk: the query at position start + i sees rows 0 .. start + i of
    the prompt scratch. Rows from start + C on are never read. `log_sum_exp` is that of each query's scaled scores
    over what it sees."""

    signature = {
        "query": "1 H C D:f",
        "key": "1 Hkv T D:f",
        "value": "1 Hkv T Dv:f",
        "start": ":index",
        "out": "1 H C Dv:f",
        "log_sum_exp": "1 H C 1:f32",
    }

    query: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    value: ext.Operand[ir.RankedTensorType]
    start: ext.Operand[ir.IndexType]
    scale: ir.FloatAttr
    out: ext.Result[ir.RankedTensorType]
    log_sum_exp: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)
        if sizes["T"] % sizes["C"]:
            raise SignatureMismatch(f"{sizes['T']} scratch rows are not a multiple of the chunk of {sizes['C']}")


class Observe(Checked, name="observe", traits=[ext.Pure]):
    """Keeps the last queries of the prompt (or a number for each of them, D = 1): that of position p goes to row
    p - max(length - obs, 0); rows outside 0 .. min(obs, length) - 1 are dropped (the padded tail of the last chunk
    among them)."""

    signature = {
        "observed": "1 H W D:f",
        "query": "1 H C D:f",
        "start": ":index",
        "length": ":index",
        "updated": "1 H W D:f",
    }

    observed: ext.Operand[ir.RankedTensorType]
    query: ext.Operand[ir.RankedTensorType]
    start: ext.Operand[ir.IndexType]
    length: ext.Operand[ir.IndexType]
    updated: ext.Result[ir.RankedTensorType]


class ObservationScores(Checked, name="observation_scores", traits=[ext.Pure]):
    """SnapKV scores per KV head: softmax over all earlier keys of each observation query, summed over the
    queries, averaged over the heads of a group; zero for the newest min(obs, recent) positions. `log_sum_exp` is what
    attention found for these queries."""

    signature = {
        "observed": "1 H W D:f",
        "log_sum_exp": "1 H W 1:f32",
        "key": "1 Hkv T D:f",
        "length": ":index",
        "scores": "Hkv T:f32",
    }

    observed: ext.Operand[ir.RankedTensorType]
    log_sum_exp: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    length: ext.Operand[ir.IndexType]
    scale: ir.FloatAttr
    scores: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)


class Pool(Checked, name="pool", traits=[ext.Pure]):
    """Scores pooled along positions with the geometry's kernel, stride 1, padding pool // 2."""

    signature = {"scores": "Hkv T:f32", "length": ":index", "pooled": "Hkv T:f32"}

    scores: ext.Operand[ir.RankedTensorType]
    length: ext.Operand[ir.IndexType]
    pooled: ext.Result[ir.RankedTensorType]


class Select(Checked, name="select", traits=[ext.Pure]):
    """The top-K candidates in [sink, length - recent) per KV head by (score descending, position ascending),
    in ascending order of position, then -1 for rows that stay empty."""

    signature = {"scores": "Hkv T:f32", "length": ":index", "selected": "Hkv K:i64"}

    scores: ext.Operand[ir.RankedTensorType]
    length: ext.Operand[ir.IndexType]
    selected: ext.Result[ir.RankedTensorType]


class RingPositions(Checked, name="ring_positions", traits=[ext.Pure]):
    """Which position each ring row holds after a prompt: p_i = last - floormod(last - sink - i, recent) with
    last = length - 1; -1 where p_i < sink (a short prompt)."""

    signature = {"length": ":index", "positions": "N:i64"}

    length: ext.Operand[ir.IndexType]
    positions: ext.Result[ir.RankedTensorType]


class Gather(Checked, name="gather", traits=[ext.Pure]):
    """Rows of a prompt's K or V by position, per KV head or the same for all, or those of every slot's prompt, by
    slot and KV head; zeros where it is negative."""

    signature = {"source": "1 Hkv T D:f", "index": "Hkv J:i64", "out": "1 Hkv J D:f"}
    shared = {"source": "1 Hkv T D:f", "index": "J:i64", "out": "1 Hkv J D:f"}
    slots = {"source": "B Hkv T D:f", "index": "B Hkv J:i64", "out": "B Hkv J D:f"}

    source: ext.Operand[ir.RankedTensorType]
    index: ext.Operand[ir.RankedTensorType]
    out: ext.Result[ir.RankedTensorType]

    @classmethod
    def verify_invariants(cls, op: Any) -> bool:
        types = [operand.type for operand in op.operation.operands][1:]
        rank = next((index.rank for index in types if isinstance(index, ir.RankedTensorType)), 0)
        try:
            check_signature(op.operation, {1: cls.shared, 3: cls.slots}.get(rank, cls.signature), {})
        except SignatureMismatch as error:
            op.location.emit_error(f"'{op.OPERATION_NAME}' {error}")
            return False
        return True


# ------------------------------------------------------------------------------------------------------ fused forms


class DecodeAttention(Checked, name="decode_attention", traits=[ext.Pure]):
    """`row`, two `update`s, `validity` and `cached_attention` in one, which reads each cached row once.

    `key` and `value` are the rows as they were: `k_cache` and `v_cache` themselves, or streams of them. The new row
    takes the place of row(position) in the attention, and is the only one that the updated caches change. Where rows
    are encoded, it is encoded first.
    """

    signature = {
        "query": "B H 1 D:f",
        "new_key": "B Hkv 1 D:f",
        "new_value": "B Hkv 1 Dv:f",
        "key": "B Hkv R D:row",
        "value": "B Hkv R Dv:row",
        "k_cache": "B Hkv R D:row",
        "v_cache": "B Hkv R Dv:row",
        "position": "B:i64",
        "valid_topk": "B:i64",
        "active": "B:i1",
        "out": "B H 1 Dv:f",
        "k_updated": "B Hkv R D:row",
        "v_updated": "B Hkv R Dv:row",
    }

    query: ext.Operand[ir.RankedTensorType]
    new_key: ext.Operand[ir.RankedTensorType]
    new_value: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    value: ext.Operand[ir.RankedTensorType]
    k_cache: ext.Operand[ir.RankedTensorType]
    v_cache: ext.Operand[ir.RankedTensorType]
    position: ext.Operand[ir.RankedTensorType]
    valid_topk: ext.Operand[ir.RankedTensorType]
    active: ext.Operand[ir.RankedTensorType]
    scale: ir.FloatAttr
    out: ext.Result[ir.RankedTensorType]
    k_updated: ext.Result[ir.RankedTensorType]
    v_updated: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)


class IndexedAttention(Checked, name="indexed_attention", traits=[ext.Pure]):
    """`decode_attention` where the selected rows are indexed: `row`, two `update`s, both `gather`s, `validity` and
    `cached_attention` over the cache's rows and the gathered ones in one, without a gathered tensor.

    Row SR + j of slot b and KV head h is row selected[b, h, j] of `k_prompt` and `v_prompt`. `key` and `value` as in
    `decode_attention`, without the selected rows.
    """

    signature = {
        "query": "B H 1 D:f",
        "new_key": "B Hkv 1 D:f",
        "new_value": "B Hkv 1 Dv:f",
        "key": "B Hkv SR D:f",
        "value": "B Hkv SR Dv:f",
        "k_cache": "B Hkv SR D:f",
        "v_cache": "B Hkv SR Dv:f",
        "k_prompt": "B Hkv T D:f",
        "v_prompt": "B Hkv T Dv:f",
        "selected": "B Hkv K:i64",
        "position": "B:i64",
        "valid_topk": "B:i64",
        "active": "B:i1",
        "out": "B H 1 Dv:f",
        "k_updated": "B Hkv SR D:f",
        "v_updated": "B Hkv SR Dv:f",
    }

    query: ext.Operand[ir.RankedTensorType]
    new_key: ext.Operand[ir.RankedTensorType]
    new_value: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    value: ext.Operand[ir.RankedTensorType]
    k_cache: ext.Operand[ir.RankedTensorType]
    v_cache: ext.Operand[ir.RankedTensorType]
    k_prompt: ext.Operand[ir.RankedTensorType]
    v_prompt: ext.Operand[ir.RankedTensorType]
    selected: ext.Operand[ir.RankedTensorType]
    position: ext.Operand[ir.RankedTensorType]
    valid_topk: ext.Operand[ir.RankedTensorType]
    active: ext.Operand[ir.RankedTensorType]
    scale: ir.FloatAttr
    out: ext.Result[ir.RankedTensorType]
    k_updated: ext.Result[ir.RankedTensorType]
    v_updated: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)
        if not geometry.indexed:
            raise SignatureMismatch(f"reads the prompt by index, the rows of {GEOMETRY} are {geometry.rows}")


class ChunkAttention(Checked, name="chunk_attention", traits=[ext.Pure]):
    """Appending a chunk's keys and values to the prompt scratch at row `start`, `causal_attention` over it, and both
    `observe`s (queries, and their log-sum-exp) in one."""

    signature = {
        "query": "1 H C D:f",
        "new_key": "1 Hkv C D:f",
        "new_value": "1 Hkv C Dv:f",
        "k_scratch": "1 Hkv T D:f",
        "v_scratch": "1 Hkv T Dv:f",
        "observed": "1 H W D:f",
        "log_sum_exp": "1 H W 1:f32",
        "start": ":index",
        "length": ":index",
        "out": "1 H C Dv:f",
        "k_appended": "1 Hkv T D:f",
        "v_appended": "1 Hkv T Dv:f",
        "observed_now": "1 H W D:f",
        "log_sum_exp_now": "1 H W 1:f32",
    }

    query: ext.Operand[ir.RankedTensorType]
    new_key: ext.Operand[ir.RankedTensorType]
    new_value: ext.Operand[ir.RankedTensorType]
    k_scratch: ext.Operand[ir.RankedTensorType]
    v_scratch: ext.Operand[ir.RankedTensorType]
    observed: ext.Operand[ir.RankedTensorType]
    log_sum_exp: ext.Operand[ir.RankedTensorType]
    start: ext.Operand[ir.IndexType]
    length: ext.Operand[ir.IndexType]
    scale: ir.FloatAttr
    out: ext.Result[ir.RankedTensorType]
    k_appended: ext.Result[ir.RankedTensorType]
    v_appended: ext.Result[ir.RankedTensorType]
    observed_now: ext.Result[ir.RankedTensorType]
    log_sum_exp_now: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)
        if sizes["T"] % sizes["C"]:
            raise SignatureMismatch(f"{sizes['T']} scratch rows are not a multiple of the chunk of {sizes['C']}")


class Compress(Checked, name="compress", traits=[ext.Pure]):
    """`observation_scores`, `pool`, `select`, the gathers of K and V, the ring and the assembly of one slot's cache
    rows in one pass: rows of `k_cache` become sinks, ring and (unless they are indexed) selected rows of `key`, encoded
    where the cache's rows are; `v_cache` likewise."""

    stored = True
    signature = {
        "observed": "1 H W D:f",
        "log_sum_exp": "1 H W 1:f32",
        "key": "1 Hkv T D:f",
        "value": "1 Hkv T Dv:f",
        "k_cache": "1 Hkv R D:row",
        "v_cache": "1 Hkv R Dv:row",
        "length": ":index",
        "k_compressed": "1 Hkv R D:row",
        "v_compressed": "1 Hkv R Dv:row",
        "selected": "Hkv K:i64",
    }

    observed: ext.Operand[ir.RankedTensorType]
    log_sum_exp: ext.Operand[ir.RankedTensorType]
    key: ext.Operand[ir.RankedTensorType]
    value: ext.Operand[ir.RankedTensorType]
    k_cache: ext.Operand[ir.RankedTensorType]
    v_cache: ext.Operand[ir.RankedTensorType]
    length: ext.Operand[ir.IndexType]
    scale: ir.FloatAttr
    k_compressed: ext.Result[ir.RankedTensorType]
    v_compressed: ext.Result[ir.RankedTensorType]
    selected: ext.Result[ir.RankedTensorType]

    @staticmethod
    def extra(op: Any, sizes: Mapping[str, int], geometry: Geometry) -> None:
        _require_groups(sizes)


# ------------------------------------------------------------------------------------------- what lowering must know

UPDATES: dict[str, dict[int, int]] = {
    "kv.update": {0: 0},
    "kv.observe": {0: 0},
    "kv.decode_attention": {1: 5, 2: 6},
    "kv.indexed_attention": {1: 5, 2: 6},
    "kv.chunk_attention": {1: 3, 2: 4, 3: 5, 4: 6},
    "kv.compress": {0: 4, 1: 5},
}
"""Per operation: which results are which operands, updated in place."""

DECODING = ("kv.decode_attention", "kv.indexed_attention")
"""Operations that read caches and update them, as operands apart."""

FETCHED: dict[str, tuple[int, ...]] = {
    "kv.cached_attention": (1, 2),
    "kv.causal_attention": (1, 2),
    "kv.observation_scores": (2,),
    "kv.gather": (0,),
    "kv.indexed_attention": (7, 8),
    "kv.compress": (2, 3),
}
"""Per operation: the operands of which it fetches the rows that it needs from memory by itself, as it goes."""
