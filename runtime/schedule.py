"""The schedule: the typed program that the compiler emits and the interpreters execute.

A `Program` needs no MLIR to run. It holds

* **tensors**: named regions with a shape, a dtype, a memory tier and an address;
* **bodies**: what one firing of a stage computes, on tiles of fixed shape;
* **kernels**: what the machine loads and launches: control around *pipelines*, each a graph of stages joined by
  on-chip buffers of bounded depth;
* **entries** (`prefill`, `decode`): control (loops, branches, scalar arithmetic) around kernel launches, whose
  arguments are strided views of tensors.

The file form is canonical JSON (`Program.to_json`): keys sorted, no spaces, so that equal programs are
equal bytes. Unknown fields, kinds or operations are refused at load.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from sscc.ir.errors import InputError

FORMAT_VERSION = 4
DTYPE_BYTES = {"f32": 4, "bf16": 2, "i64": 8, "i8": 1, "i1": 1}

Dtype = Literal["f32", "bf16", "i64", "i8", "i1"]
Role = Literal["weight", "constant", "input", "output", "state", "temporary"]
Tier = Literal["sram", "hbm", "ddr"]
ParamAccess = Literal["read", "write", "update"]
When = Literal["each", "first", "last"]


# ---------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Tensor:
    """A named region. Roles: `weight` (bytes from a checkpoint), `constant` (bytes computed from the model's
    config), `input`/`output` (the caller's, per call), `state` (zero at the start, kept between calls),
    `temporary` (undefined at the start of a call; addresses may be shared).

    `sources` names the checkpoint's tensors (or constants) that make up a weight: one of this shape, or, for the
    layers of a looped kernel, N that are stacked to shape [N, ..]. Interpreters are given weights by `name`.

    `encoding` says how each source becomes what is stored: "" as it is (floating dtypes are converted), or a part of a
    weight of 8 or 4 bits: "int8:32/values", "int4:32/scales", "int4:32:zero-point/zeros", each with "/transposed" where
    the source is [K, N]. sscc.runtime.quantization has the formula, the shapes and the dtypes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    role: Role
    tier: Tier
    address: int
    sources: tuple[str, ...] = ()
    encoding: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


# ---------------------------------------------------------------------------------------- control and views

Operand = Union[int, str]  # an integer literal, or the name of a scalar


@dataclass(frozen=True)
class View:
    """A strided window of a region: element (i0, i1, ..) sits at ``offset + sum(terms) + sum(i * stride)``.

    The region is a tensor (in a launch), a kernel's parameter or one slot of a buffer (in a stage's port), or a
    local (in a body). Offsets and strides count elements of the region, which is dense and row-major: of a parameter
    that a launch shows with other strides, ports take the whole. `terms` are (scalar name, coefficient) pairs, the
    only dynamic part.
    """

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Scalar:
    """``name = op(args)`` on 64-bit integers; comparisons give 0 or 1.

    Operations: add sub mul floordiv ceildiv mod min max eq ne lt le gt ge and or select.
    """

    kind: ClassVar[str] = "scalar"
    name: str
    op: str
    args: tuple[Operand, ...]


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: a view per tensor parameter, an operand per scalar parameter, both in order."""

    kind: ClassVar[str] = "launch"
    kernel: str
    args: tuple[View, ...]
    scalars: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class For:
    """``for index in range(lower, upper): body``."""

    kind: ClassVar[str] = "for"
    index: str
    lower: Operand
    upper: Operand
    body: tuple[Item, ...]


@dataclass(frozen=True)
class If:
    """``if condition != 0: body``."""

    kind: ClassVar[str] = "if"
    condition: Operand
    body: tuple[Item, ...]


Item = Union["Scalar", "Launch", "Pipeline", "For", "If"]
"""Launches stand in entries only, pipelines in kernels only."""


@dataclass(frozen=True)
class Entry:
    """What a caller can run. Inputs and outputs are tensor names; scalars are 64-bit integers."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalar_inputs: tuple[str, ...]
    scalar_outputs: tuple[Operand, ...]
    body: tuple[Item, ...]


# --------------------------------------------------------------------------------------- bodies and their steps


@dataclass(frozen=True)
class Param:
    """A tensor parameter of a kernel or of a body, always seen as a strided view of this shape."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    access: ParamAccess


@dataclass(frozen=True)
class Local:
    """A value that lives inside one firing of a body, between two of its steps: dense, undefined at the start."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True)
class Window:
    """Another name for a strided view of a local or of a dense parameter of a body; without dynamic terms."""

    name: str
    view: View


@dataclass(frozen=True)
class Access:
    """An affine access map: which element of `param` a point of the iteration space touches.

    `param` names a parameter, a local or a window of the body. `map` has one row per dimension of it: a
    coefficient per iteration dimension, then a constant.
    """

    param: str
    map: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Instr:
    """One scalar operation of a vector program, named as in MLIR's arith and math dialects.

    `args` name inputs (``in0``..), earlier results, scalar parameters of the body, or are literals.
    Special operations: ``index`` (args: an iteration dimension; gives i64), ``load`` (args: a parameter's
    name, then one i64 index per dimension), ``const`` (args: a literal). `type` is the result's dtype.
    Integer division by 0 is division by 1. `fptosi` and `fptoui` round towards zero; beyond the integers of the type
    they give the nearest one, and 0 for NaN.
    """

    name: str
    op: str
    args: tuple[Union[int, float, str], ...]
    type: str


@dataclass(frozen=True)
class Vector:
    """An element-wise program over `dims`: out = result(body(inputs)) at every point.

    Written once per point; with loads in the body it is a gather.
    """

    kind: ClassVar[str] = "vector"
    dims: tuple[int, ...]
    inputs: tuple[Access, ...]
    output: Access
    body: tuple[Instr, ...]
    result: str


@dataclass(frozen=True)
class Reduction:
    """A vector program whose results are combined over the dimensions in `reduce`, starting from `init`.

    `combine` is addf, mulf, maximumf or minimumf; accumulation is in f32 (or wider).
    """

    kind: ClassVar[str] = "reduction"
    dims: tuple[int, ...]
    reduce: tuple[int, ...]
    inputs: tuple[Access, ...]
    output: Access
    body: tuple[Instr, ...]
    result: str
    combine: str
    init: float


@dataclass(frozen=True)
class Product:
    """out[..] = sum over `reduce` of a[..] * b[..], accumulated in f32 (or wider), rounded once on writing."""

    kind: ClassVar[str] = "product"
    dims: tuple[int, ...]
    reduce: tuple[int, ...]
    a: Access
    b: Access
    output: Access


@dataclass(frozen=True)
class UpdateRows:
    """cache[b, h, row[b], :] = new[b, h, 0, :] for every slot b with active[b]; other rows keep their bytes.

    Shapes: cache [B, Hkv, R, D] (update), new [B, Hkv, 1, D], row [B] i64, active [B] i1. Rows of both are floats, or
    both are encoded (`QuantizeRows`).
    """

    kind: ClassVar[str] = "update_rows"
    cache: str
    new: str
    row: str
    active: str


@dataclass(frozen=True)
class QuantizeRows:
    """Encodes rows: `out` holds D signed codes, then the 4 bytes of an f32 scale, little endian; a number is
    code * scale.

    All in f32: scale = max |x| * f32(1 / 127), 0 below 2^-126; code = x * (1 / scale), rounded half to even, within
    -127 .. 127. A row whose scale is 0 is zero bytes. `sscc.ir.kv_rows` has it in numpy.

    Shapes: source [B, Hkv, J, D] of floats, out [B, Hkv, J, D + 4] i8 (write). Where other steps take encoded rows of a
    cache, their last axis has D + 4 elements of i8 too, and attention is over the numbers that they stand for.
    """

    kind: ClassVar[str] = "quantize_rows"
    source: str
    out: str


@dataclass(frozen=True)
class CachedAttention:
    """Attention of one query per slot over the valid rows of its cache; softmax and sums in f32.

    Shapes: query [B, H, 1, D], key [B, Hkv, R, D], value [B, Hkv, R, Dv], valid [B, R] i1, out [B, H, 1, Dv].
    Query head h reads KV head h // (H // Hkv). A slot without a valid row gives zeros. Rows of key and value may be
    encoded.
    """

    kind: ClassVar[str] = "cached_attention"
    query: str
    key: str
    value: str
    valid: str
    out: str
    scale: float


@dataclass(frozen=True)
class CausalAttention:
    """Full causal attention of one prefill chunk: the query at position start + i sees keys 0 .. start + i.

    Shapes: query [1, H, C, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv], out [1, H, C, Dv]; `start` is a
    scalar parameter. Rows from start + C on are not read. Softmax and sums in f32. `log_sum_exp` [1, H, C] f32 (write;
    "" where nobody wants it) is that of each query's scaled scores.
    """

    kind: ClassVar[str] = "causal_attention"
    query: str
    key: str
    value: str
    out: str
    start: str
    scale: float
    log_sum_exp: str = ""


@dataclass(frozen=True)
class Observe:
    """Keeps the last queries of a prompt: observed[0, h, pos - max(n - obs, 0), :] = query[0, h, i, :] for
    pos = start + i; rows outside 0 .. min(obs, n) - 1 are dropped.

    Shapes: observed [1, H, obs, D] (update), query [1, H, C, D]; `start` and `length` (n) are scalars.
    """

    kind: ClassVar[str] = "observe"
    observed: str
    query: str
    start: str
    length: str


@dataclass(frozen=True)
class ObservationScores:
    """SnapKV scores of every prompt position, per KV head (snapstream definition, docs/algorithm.md):
    causal softmax of the observation queries over all n keys, summed over queries, averaged over the query
    heads of a group; zero for t >= n - min(obs, recent).

    Shapes: observed [1, H, obs, D], key [1, Hkv, T, D], scores [Hkv, T] f32 (write), log_sum_exp [1, H, obs] f32, what
    attention found for these queries ("": it is computed, in one more pass over the keys).
    """

    kind: ClassVar[str] = "observation_scores"
    observed: str
    key: str
    scores: str
    length: str
    scale: float
    recent: int
    log_sum_exp: str = ""


@dataclass(frozen=True)
class Pool:
    """Pooling of scores along t, stride 1, padding width // 2; "avg" always divides by `width`.

    Shapes: scores [Hkv, T] f32, pooled [Hkv, T] f32 (write). Only t < length need be written.
    """

    kind: ClassVar[str] = "pool"
    scores: str
    pooled: str
    length: str
    width: int
    mode: str


@dataclass(frozen=True)
class Select:
    """Top-K positions per KV head: candidates [sink, n - recent) by (score descending, position ascending),
    the first valid_topk = min(max(n - sink - recent, 0), topk) of them, sorted ascending, then -1.

    Shapes: scores [Hkv, T] f32, selected [Hkv, topk] i64 (write).
    """

    kind: ClassVar[str] = "select"
    scores: str
    selected: str
    length: str
    sink: int
    recent: int


@dataclass(frozen=True)
class GatherRows:
    """out[b, h, j, :] = source[b, h, index[b, h, j], :], zeros where the index is negative.

    Shapes: source [B, Hkv, T, D], index [B, Hkv, J] i64, out [B, Hkv, J, D]; for B = 1 also index [Hkv, J], or [J] (the
    same for all heads).
    """

    kind: ClassVar[str] = "gather_rows"
    source: str
    index: str
    out: str


@dataclass(frozen=True)
class DecodeAttention:
    """Row update, validity and attention of one decode step, reading each cached row once.

    For every active slot b: row = sink + (p - sink) mod recent for p = position[b] >= sink, else p; new_key and
    new_value stand in that row of `key` and `value` for the attention, and are written to that row of `k_cache`
    and `v_cache`, whose other rows keep their bytes. Valid rows are row < min(p + 1, SR), and SR <= row <
    SR + valid_topk[b], SR = sink + recent. A slot that is not active writes nothing and returns zeros.

    Shapes: query [B, H, 1, D], new_key [B, Hkv, 1, D], new_value [B, Hkv, 1, Dv], key and k_cache
    [B, Hkv, R, D], value and v_cache [B, Hkv, R, Dv], position and valid_topk [B] i64, active [B] i1,
    out [B, H, 1, Dv]. `key` is either `k_cache` itself or a copy of it that was made before; `value` likewise. The rows
    of all four may be encoded; the new row is encoded before it is attended to.
    """

    kind: ClassVar[str] = "decode_attention"
    query: str
    new_key: str
    new_value: str
    key: str
    value: str
    k_cache: str
    v_cache: str
    position: str
    valid_topk: str
    active: str
    out: str
    scale: float
    sink: int
    recent: int


@dataclass(frozen=True)
class IndexedAttention:
    """As `DecodeAttention` over caches of SR rows, followed by rows of the prompt that an index stream names.

    Row SR + j of slot b and KV head h is selected[b, h, j] of `k_prompt` and `v_prompt`, zeros where that is negative.
    Which rows are valid, the new row and the order of rows are those of `DecodeAttention` with R = SR + topk. Rows of
    the prompt are fetched one by one as they are needed; no tensor of them exists.

    Shapes: query [B, H, 1, D], new_key [B, Hkv, 1, D], new_value [B, Hkv, 1, Dv], key and k_cache [B, Hkv, SR, D],
    value and v_cache [B, Hkv, SR, Dv], k_prompt [B, Hkv, T, D], v_prompt [B, Hkv, T, Dv], selected [B, Hkv, topk] i64,
    position and valid_topk [B] i64, active [B] i1, out [B, H, 1, Dv]. `key` is either `k_cache` itself or a copy of
    it that was made before; `value` likewise.
    """

    kind: ClassVar[str] = "indexed_attention"
    query: str
    new_key: str
    new_value: str
    key: str
    value: str
    k_cache: str
    v_cache: str
    k_prompt: str
    v_prompt: str
    selected: str
    position: str
    valid_topk: str
    active: str
    out: str
    scale: float
    sink: int
    recent: int


@dataclass(frozen=True)
class ChunkAttention:
    """Append, causal attention and observation of one prefill chunk.

    Rows start .. start + C - 1 of `k_scratch` and `v_scratch` become `new_key` and `new_value`; then as
    `CausalAttention`; the queries of the prompt's last positions are kept as in `Observe`, and the log-sum-exp of
    their scaled scores in the same rows of `log_sum_exp`, so that selection needs one more pass over K only.

    Positions from `length` on are padding: their rows of the scratches keep their bytes, those of `out` are undefined.
    So is whatever else the step's pipeline computes for them; it computes each position from the same one alone, but
    in this step, and nothing that a prompt leaves behind depends on its padding.

    Shapes: query [1, H, C, D], new_key [1, Hkv, C, D], new_value [1, Hkv, C, Dv], k_scratch [1, Hkv, T, D]
    (update), v_scratch [1, Hkv, T, Dv] (update), observed [1, H, obs, D] (update), log_sum_exp [1, H, obs] f32
    (update), out [1, H, C, Dv]; `start` and `length` are scalars.
    """

    kind: ClassVar[str] = "chunk_attention"
    query: str
    new_key: str
    new_value: str
    k_scratch: str
    v_scratch: str
    observed: str
    log_sum_exp: str
    out: str
    start: str
    length: str
    scale: float


@dataclass(frozen=True)
class Compress:
    """Scores, pooling, top-K, both gathers, ring build and cache assembly in one streaming pass over K and one
    over the rows that are kept; no buffer holds a score per prompt position.

    As `ObservationScores` (with the log-sum-exp that `ChunkAttention` kept), `Pool` and `Select`; then row j of
    `k_cache` is K[j] for j < sink; K[p_i] for j = sink + i < SR with p_i = last - floormod(last - sink - i,
    recent), last = length - 1, zeros where p_i < sink; K[selected[h, i]] for j = SR + i, zeros for -1, where the
    cache has more than SR rows. `v_cache` likewise.

    Shapes: observed [1, H, obs, D], log_sum_exp [1, H, obs] f32, key [1, Hkv, T, D], value [1, Hkv, T, Dv],
    k_cache [1, Hkv, R, D] (write), v_cache [1, Hkv, R, Dv] (write), selected [Hkv, topk] i64 (write; "" where
    topk is 0), R = SR + topk, or SR where the selected rows stay in the prompt; `length` is a scalar. The rows of both
    caches may be encoded.
    """

    kind: ClassVar[str] = "compress"
    observed: str
    log_sum_exp: str
    key: str
    value: str
    k_cache: str
    v_cache: str
    selected: str
    length: str
    scale: float
    sink: int
    recent: int
    pool: int
    pool_mode: str


Step = Union[
    Vector,
    Reduction,
    Product,
    UpdateRows,
    QuantizeRows,
    CachedAttention,
    CausalAttention,
    Observe,
    ObservationScores,
    Pool,
    Select,
    GatherRows,
    DecodeAttention,
    IndexedAttention,
    ChunkAttention,
    Compress,
]


@dataclass(frozen=True)
class Body:
    """What one firing computes: tensor parameters (tiles), scalar parameters (names), locals, windows, and steps
    in order. Parameters, locals, windows and scalars share one space of names."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[str, ...]
    locals: tuple[Local, ...]
    windows: tuple[Window, ...]
    steps: tuple[Step, ...]
    location: str = ""


# --------------------------------------------------------------------------- kernels: pipelines, stages, buffers


@dataclass(frozen=True)
class Buffer:
    """A stream between stages: `depth` slots, each a dense region of `shape`, one after another at `address`.

    A slot is filled by its producer, complete when that has fired `per` times on it (`Port.per`), and free again
    when every stage that will read it has. Slots are numbered from 0 through all iterations; number s lies in
    place s mod depth. Tier "sram": an address in the kernel's on-chip memory; "hbm": a spilled buffer, at an
    address of the arena.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    tier: Tier
    address: int
    depth: int

    @property
    def slot_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.depth * self.slot_bytes


@dataclass(frozen=True)
class Port:
    """What a stage's body sees as one of its parameters.

    `view` is a window of a kernel's parameter (`per` = 0: memory, not synchronised) or of a slot of a buffer.
    Firing number f of the stage, counted from 0 through all iterations, uses slot f // per + lag. A producer in
    iteration i with lag 1 makes what consumers read in iteration i + 1: a value carried on chip.
    """

    view: View
    per: int = 0
    lag: int = 0


@dataclass(frozen=True)
class Stage:
    """A part of the machine that fires a body again and again.

    Attributes:
        body: name of the body.
        grid: firings per iteration, row-major over the indices ``t0``, ``t1``, ..; () is one firing.
        ports: one per parameter of the body, in order; terms of their views may name the scalars of the kernel and
            of the pipeline, its index, and the stage's ``t0``, ``t1``, ..
        scalars: one operand per scalar of the body, in order.
        waits: buffers it waits for before each firing: for the slot to be complete where it reads, for the place to
            be free where it writes. A schedule is valid only if it waits for every buffer that it touches.
        when: "each" iteration; once, for the "first" (a prologue) or the "last" (an epilogue).
        pcus: compute units that the stage occupies.
    """

    name: str
    body: str
    grid: tuple[int, ...]
    ports: tuple[Port, ...]
    scalars: tuple[Operand, ...]
    waits: tuple[str, ...]
    when: When = "each"
    pcus: int = 0

    @property
    def trips(self) -> int:
        """Firings per iteration."""
        return prod(self.grid)


@dataclass(frozen=True)
class Pipeline:
    """A loop whose iterations overlap: ``for index in range(lower, upper)``, nothing where that is empty.

    Per iteration, `scalars` are computed from the index and the scalars around, and every stage with when="each"
    fires its grid. The order of firing: round after round over `stages` in order; in its turn a stage fires as
    often as its waits (and its firings: prod(grid) per iteration) allow. A round in which no stage fires before
    all are done is a deadlock.

    A valid pipeline gives the same in another order too: what fires first, then iteration after iteration, in each of
    them stage after stage, a stage's firings side by side, then what fires last. So nothing reads a slot that is
    filled later in that order, and memory that stages share is ordered by the slots that are filled and read, not by
    the depths of buffers.
    """

    kind: ClassVar[str] = "pipeline"
    name: str
    index: str
    lower: Operand
    upper: Operand
    scalars: tuple[Scalar, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Kernel:
    """What the machine loads and launches: tensor parameters, scalar parameters (names), and control around
    pipelines, which run one after another, so that their buffers may share addresses."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[str, ...]
    body: tuple[Item, ...]
    location: str = ""


# -------------------------------------------------------------------------------------------------- program


@dataclass(frozen=True)
class Program:
    """Everything an interpreter needs besides the bytes of weights and constants.

    Attributes:
        arena_bytes: bytes of the region that holds inputs, outputs, states and temporaries (addresses below
            it); weights and constants follow.
    """

    tensors: tuple[Tensor, ...]
    bodies: tuple[Body, ...]
    kernels: tuple[Kernel, ...]
    entries: tuple[Entry, ...]
    arena_bytes: int
    version: int = field(default=FORMAT_VERSION)

    def entry(self, name: str) -> Entry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise InputError(f"the schedule has no entry {name!r}, it has {[entry.name for entry in self.entries]}")

    def to_json(self) -> str:
        return json.dumps(_encode(self), sort_keys=True, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Parses and type-checks the file form. Raises InputError naming the first thing that does not fit."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the schedule is not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("version") != FORMAT_VERSION:
            found = data.get("version") if isinstance(data, dict) else None
            raise InputError(f"the schedule has format version {found}, this sscc reads {FORMAT_VERSION}")
        try:
            program: Program = _decode(data, cls, "program")
        except RecursionError:
            raise InputError("the schedule is malformed: its loops and branches are nested too deeply") from None
        return program


def launches(items: Sequence[Item]) -> Iterator[Launch]:
    """Every launch among `items` once, loops and branches entered."""
    for item in items:
        if isinstance(item, Launch):
            yield item
        elif isinstance(item, For | If):
            yield from launches(item.body)


def pipelines(items: Sequence[Item]) -> Iterator[Pipeline]:
    """Every pipeline among `items` once, loops and branches entered."""
    for item in items:
        if isinstance(item, Pipeline):
            yield item
        elif isinstance(item, For | If):
            yield from pipelines(item.body)


# -------------------------------------------------------------------------------- serialisation of dataclasses


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        encoded = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        kind = getattr(value, "kind", None)
        return encoded if kind is None else {"kind": kind, **encoded}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(data: Any, hint: Any, where: str) -> Any:
    hint = _resolve(hint)
    origin = get_origin(hint)
    if origin is Literal:
        return _expect(data in get_args(hint), data, where, f"one of {get_args(hint)}")
    if origin is tuple:
        return _decode_tuple(data, get_args(hint), where)
    if origin in (Union, types.UnionType):
        return _decode_union(data, get_args(hint), where)
    if dataclasses.is_dataclass(hint):
        return _decode_record(data, typing.cast(type, hint), where)
    if hint is float and type(data) is int:
        return float(_expect(_fits(data), data, where, "a number of 64 bits"))
    return _expect(type(data) is hint and _fits(data), data, where, hint.__name__)


def _fits(data: Any) -> bool:
    """Whether a number, if it is an integer, is one of 64 bits."""
    return type(data) is not int or -(1 << 63) <= data < 1 << 63


def _resolve(hint: Any) -> Any:
    if isinstance(hint, typing.ForwardRef):
        return globals()[hint.__forward_arg__]
    return globals()[hint] if isinstance(hint, str) else hint


def _expect(holds: bool, data: Any, where: str, wanted: str) -> Any:
    if not holds:
        raise InputError(f"the schedule is malformed: {where} is {str(data)[:60]!r}, expected {wanted}")
    return data


def _decode_tuple(data: Any, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    _expect(isinstance(data, list), data, where, "a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(item, args[0], f"{where}[{i}]") for i, item in enumerate(data))
    _expect(len(data) == len(args), data, where, f"{len(args)} items")
    return tuple(_decode(item, arg, f"{where}[{i}]") for i, (item, arg) in enumerate(zip(data, args, strict=True)))


def _decode_union(data: Any, args: tuple[Any, ...], where: str) -> Any:
    if isinstance(data, dict):
        for arg in map(_resolve, args):
            if dataclasses.is_dataclass(arg) and data.get("kind") == getattr(arg, "kind", None):
                return _decode_record(data, typing.cast(type, arg), where)
    elif type(data) in args and _fits(data):
        return data
    return _expect(False, data, where, " or ".join(getattr(_resolve(arg), "__name__", str(arg)) for arg in args))


@functools.cache
def _fields(record: type) -> dict[str, Any]:
    """The type of each field; computed once, because a schedule holds tens of thousands of records."""
    hints = typing.get_type_hints(record)
    return {f.name: hints[f.name] for f in dataclasses.fields(record)}


def _decode_record(data: Any, record: type, where: str) -> Any:
    _expect(isinstance(data, dict), data, where, record.__name__)
    given = {key: value for key, value in data.items() if key != "kind"}
    hints = _fields(record)
    _expect(
        given.keys() == hints.keys(), sorted(given.keys() ^ hints.keys()), where, f"the fields of {record.__name__}"
    )
    return record(**{name: _decode(value, hints[name], f"{where}.{name}") for name, value in given.items()})
