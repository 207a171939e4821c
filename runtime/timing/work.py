"""Work of one firing of a body: operations of the compute units, and bytes of each parameter.

Counting rules for steps that do not simply access all of their operands once:

* A parameter that several steps read is loaded once per firing; it counts at most with its own size.
* A gather (`load`, `GatherRows`) moves one element, or row, per point; at most the whole table.
* A product with an indirect axis reads a slice per index, at most all of them: for experts the maximum number, or the
  mean number (`mean_places`). A step that dequantizes the slices processes and reads only these.
* `UpdateRows` and `DecodeAttention` write one row per slot and head. Decode attention reads all R rows of a cache: the
  tile is streamed whole, and invalid rows are masked. Its arithmetic counts `valid_rows` rows. From rows selected by an
  index it fetches only the valid ones, and does not read the cache rows that they replace. From a cache that layers
  with different budgets share it reads in place, counted with the mean number of rows of these layers.
* `CausalAttention` and `ChunkAttention` read rows 0 .. start + C of K and V; `ObservationScores` reads `length` rows
  of K.
* If queries select, scores by quantized keys are those of the candidates, the positions of a slot without sinks and
  ring: `valid_rows` without these. Attention reads the selected rows of the store, or with a limit the fetched rows,
  and the resident rows in their memory. A given fraction of selected rows may stay from step to step (`staying`): these
  are read from the memory of sinks and ring.
* Encoded rows move in stored form, bytes of codes and a scale, and are decoded for arithmetic: `ENCODE_OPS`
  element-wise operations per number for encoding, `DECODE_OPS` in attention.
* For a sum over N ranks each rank receives 1/N of the values from all others, adds them up, and sends the sums to all
  others: two hops, in which it sends (and receives) 2 (N - 1) / N of its bytes. A reduce-scatter is the first hop with
  half of these bytes. An all-gather takes one hop, in which a rank sends its piece to all others; an all-to-all takes
  one hop, in which it sends everything but its own part.
* Softmax counts `SOFTMAX_OPS` element-wise operations per score, a streaming top-K log2(k) + 1 per candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log2, prod
from types import MappingProxyType
from typing import Any

from sscc.ir.choices import PLAIN_BITS
from sscc.ir.geometry import Span
from sscc.ir.operations import (
    AttendChosen,
    CachedAttention,
    CausalAttention,
    ChooseByIndex,
    ChooseRows,
    ChunkAttention,
    DecodeAttention,
    Dequantize,
    FetchRows,
    GatherRows,
    LatentChunkAttention,
    LookUp,
    ObservationScores,
    Observe,
    Pool,
    QuantizedKeyScores,
    QuantizeKeys,
    QuantizeRows,
    QueryAttention,
    RecurrentChunk,
    RecurrentStep,
    Segment,
    Select,
    TopK,
    UpdateRows,
)
from sscc.ir.opspec import Op, OpSpec, Sizes, executes, functions_of, spec_of, spec_of_step
from sscc.ir.schedule import (
    DTYPE_BYTES,
    Access,
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Body,
    Dtype,
    Product,
    ReduceScatter,
    Reduction,
    Vector,
)
from sscc.ir.weight_formats.registry import format_named

SOFTMAX_OPS = 5  # scale, running maximum, subtract, exponential, sum
CAP_OPS = 6  # per capped score: two products, a hyperbolic tangent (exponential, sum, quotient, difference)
ENCODE_OPS = 4  # magnitude, maximum, product with the inverse scale, rounding
DECODE_OPS = 2  # conversion, product with the scale
ROTATE_OPS = 2  # a sum and a difference per number and level of butterflies
DECAY_OPS = 1  # an exponential
RECURRENT_BLOCK = 16  # tokens whose updates of a state are summed together
DOT_OPS = 2  # per four byte products, because lanes have 32 bits: multiply, add up
KEY_SCORE_OPS = 4  # per score: conversion to float, two products, a running maximum
_FREE_OPS = frozenset({"index", "const", "load"})  # addresses and literals, made by the memory units


@dataclass(frozen=True)
class Work:
    """Work of one firing.

    Attributes:
        products: floating-point operations of products by dtype of the operands (two per multiply and add).
        vectors: (points, operations per point) of each element-wise pass.
        read, written: bytes per parameter.
        local_bytes: bytes read and written in the body's locals.
        sent: bytes that a rank sends to others; it receives the same number.
        hops: number of messages in sequence.
    """

    products: Mapping[Dtype, int]
    vectors: tuple[tuple[int, int], ...]
    read: Mapping[str, int]
    written: Mapping[str, int]
    local_bytes: int
    sent: int = 0
    hops: int = 0

    @property
    def operations(self) -> int:
        """Total operations of products and of element-wise passes."""
        return sum(self.products.values()) + sum(points * each for points, each in self.vectors)


def dynamic_scalars(body: Body) -> frozenset[str]:
    """Return the body's scalars on which the amount of work depends."""
    steps = (step for step in body.steps if isinstance(step, Op))
    return frozenset(getattr(step, name) for step in steps for name in spec_of(type(step)).numbers)


def measure(
    body: Body,
    scalars: Mapping[str, int],
    valid_rows: int | None = None,
    mean_rows: Mapping[int, int] = MappingProxyType({}),
    staying: float = 0.0,
    grid: Sequence[int] = (),
    mean_experts: bool = False,
) -> Work:
    """Return the work of one firing.

    Args:
        scalars: values of `dynamic_scalars(body)`, by name.
        valid_rows: rows of each slot's cache that hold a token; None for all of them.
        mean_rows: for caches that layers share, the mean number of rows of a layer, by the number of rows that
            attention sees.
        staying: fraction of the rows selected by a query that stays near, if any may be fetched.
        grid: the ranks of the program.
        mean_experts: True to count the mean number of slices that products read by an index, False for the maximum.
    """
    return _Meter(body, scalars, valid_rows, mean_rows, staying, grid, mean_experts).measure()


def mean_places(places: int, chosen: int, tokens: int) -> float:
    """Return the mean number of distinct places out of `places` if each of the tokens names `chosen` different ones,
    uniformly and independently: X (1 - (1 - k / X)^T)."""
    return float(places * (1 - (1 - chosen / places) ** tokens))


@dataclass(frozen=True)
class _Region:
    root: str
    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class _Meter:
    """Counts the steps of a body. Bytes of affine accesses are capped at the region's size, others add up."""

    def __init__(
        self,
        body: Body,
        scalars: Mapping[str, int],
        valid_rows: int | None,
        mean_rows: Mapping[int, int],
        staying: float,
        grid: Sequence[int],
        mean_experts: bool,
    ) -> None:
        self._body, self._scalars, self._valid, self._mean = body, scalars, valid_rows, mean_rows
        self.staying = staying
        self._grid, self._mean_experts = grid, mean_experts
        self._sent = self._hops = 0
        self._roots = {p.name: _Region(p.name, p.shape, p.dtype) for p in body.params}
        self._roots.update({local.name: _Region(local.name, local.shape, local.dtype) for local in body.locals})
        self._regions = dict(self._roots)
        for window in body.windows:
            source = self._regions[window.view.tensor]
            self._regions[window.name] = _Region(source.root, window.view.shape, source.dtype)
        products = (step for step in body.steps if isinstance(step, Product) and step.b.indirect is not None)
        self._named = {step.b.param: self._named_by(step.b, step.dims) for step in products}
        self._capped: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._extra: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._products: Counter[Dtype] = Counter()
        self._vectors: list[tuple[int, int]] = []

    def measure(self) -> Work:
        for step in self._body.steps:
            if isinstance(step, Op):
                _move(self, step)
            ARITHMETIC[type(step)](self, step)
        params = [param.name for param in self._body.params]
        moved = {write: {name: self._total(name, write) for name in self._roots} for write in (False, True)}
        return Work(
            products=dict(self._products),
            vectors=tuple(self._vectors),
            read={name: moved[False][name] for name in params if moved[False][name]},
            written={name: moved[True][name] for name in params if moved[True][name]},
            local_bytes=sum(moved[write][local.name] for local in self._body.locals for write in (False, True)),
            sent=self._sent,
            hops=self._hops,
        )

    def _total(self, root: str, write: bool) -> int:
        return min(self._capped[write][root], self._roots[root].nbytes) + self._extra[write][root]

    # -- counting

    def shape(self, name: str) -> tuple[int, ...]:
        return self._regions[name].shape

    def scalar(self, name: str) -> int:
        return self._scalars[name]

    def own_rows(self, rows: int) -> int:
        """Return the number of rows that belong to the layer among those that attention sees in a cache."""
        return self._mean.get(rows, rows)

    def valid_rows(self, rows: int) -> int:
        own = self.own_rows(rows)
        return own if self._valid is None else min(own, self._valid)

    def elements(self, name: str, count: int, *, write: bool = False) -> None:
        """Count `count` elements of a region, at most the whole of it."""
        region = self._regions[name]
        self._capped[write][region.root] += min(count * DTYPE_BYTES[region.dtype], region.nbytes)

    def move(self, name: str, count: int, *, write: bool, capped: bool) -> None:
        """Count `count` elements of a region; without a cap they may exceed its size."""
        if capped:
            self.elements(name, count, write=write)
        else:
            region = self._regions[name]
            self._extra[write][region.root] += count * DTYPE_BYTES[region.dtype]

    def read_nearer(self, far: str, near: str, count: int) -> None:
        """Count `count` elements that are read from the memory of `near` instead of `far`."""
        nbytes = count * DTYPE_BYTES[self._regions[far].dtype]
        self._capped[False][self._regions[far].root] -= nbytes
        self._extra[False][self._regions[near].root] += nbytes

    def share(self, name: str) -> Fraction:
        """Return the fraction of a step's result that is read: all, or for slices those that a product may name."""
        root = self._regions[name].root
        for operand, (axis, named) in self._named.items():
            if self._regions[operand].root == root and root in {local.name for local in self._body.locals}:
                return Fraction(named, self.shape(operand)[axis])
        return Fraction(1)

    def access(
        self, access: Access, dims: tuple[int, ...], *, write: bool = False, share: Fraction = Fraction(1)
    ) -> None:
        """Count the elements that an affine map reaches, or a fraction of them: per dimension of the region no more
        than its span. Along an indirect axis one place per index is counted, because all may differ; other places are
        not read."""
        spans, rows = [_span(row, dims) for row in access.map], access.map
        if access.indirect is not None:
            index = access.indirect.index
            self.access(index, dims)
            axis, named = self._named_by(access, dims)
            spans[axis], rows = named, (*rows, *index.map)
        used = [size for d, size in enumerate(dims) if any(row[d] for row in rows)]
        count = min(prod(spans), prod(used)) if prod(dims) else 0
        self.elements(access.param, int(count * share), write=write)

    def _named_by(self, access: Access, dims: tuple[int, ...]) -> tuple[int, int]:
        """Return the indirect axis of a product's operand, and the number of its places that are named. In the tensor
        of indices, the numbers along the last dimension are a token's choices."""
        assert access.indirect is not None
        places = self.shape(access.param)[access.indirect.axis]
        *tokens, chosen = [s for d, s in enumerate(dims) if any(row[d] for row in access.indirect.index.map)] or [1]
        if self._mean_experts:
            return access.indirect.axis, round(mean_places(places, min(chosen, places), prod(tokens)))
        return access.indirect.axis, min(prod(tokens) * chosen, places)

    def dtype(self, name: str) -> Dtype:
        return self._regions[name].dtype

    def flops(self, dtype: Dtype, count: int) -> None:
        self._products[dtype] += count

    def ranks(self, axes: Sequence[int]) -> int:
        """Return the number of ranks that a collective along these axes of the grid joins."""
        return prod(self._grid[axis] for axis in axes)

    def send(self, nbytes: int, hops: int) -> None:
        self._sent += nbytes
        self._hops += hops

    def vector(self, points: int, operations: int) -> None:
        if points and operations:
            self._vectors.append((points, operations))


def _span(row: tuple[int, ...], dims: tuple[int, ...]) -> int:
    moving = [(abs(factor), size) for factor, size in zip(row, dims, strict=False) if factor]
    return min(1 + sum(factor * (size - 1) for factor, size in moving), prod(size for _, size in moving))


# ------------------------------------------------------------------------------------------- one counter per step


def _elementwise(meter: _Meter, step: Vector | Reduction, extra: int) -> None:
    share = meter.share(step.output.param)
    points = int(prod(step.dims) * share)
    for access in step.inputs:
        meter.access(access, step.dims, share=share)
    meter.access(step.output, step.dims, write=True, share=share)
    for instr in step.body:
        if instr.op == "load":
            meter.elements(str(instr.args[0]), points)
    meter.vector(points, sum(1 for instr in step.body if instr.op not in _FREE_OPS) + extra)


@executes(Vector)
def _vector(meter: _Meter, step: Vector) -> None:
    _elementwise(meter, step, 0)


@executes(Reduction)
def _reduction(meter: _Meter, step: Reduction) -> None:
    _elementwise(meter, step, 1)


@executes(Product)
def _product(meter: _Meter, step: Product) -> None:
    meter.access(step.a, step.dims)
    meter.access(step.b, step.dims)
    meter.access(step.output, step.dims, write=True)
    dtypes = {meter.dtype(step.a.param), meter.dtype(step.b.param)}
    meter.flops("bf16" if dtypes == {"bf16"} else "f32", 2 * prod(step.dims))


@executes(AllReduce)
def _all_reduce(meter: _Meter, step: AllReduce) -> None:
    ranks, count = meter.ranks(step.axes), prod(meter.shape(step.part))
    meter.elements(step.part, count)
    meter.elements(step.total, count, write=True)
    meter.vector(ceil(count / ranks), ranks - 1)
    meter.send(2 * (ranks - 1) * ceil(count / ranks) * DTYPE_BYTES[meter.dtype(step.part)], 2)


@executes(ReduceScatter)
def _reduce_scatter(meter: _Meter, step: ReduceScatter) -> None:
    ranks, count = meter.ranks(step.axes), prod(meter.shape(step.piece))
    meter.elements(step.part, ranks * count)
    meter.elements(step.piece, count, write=True)
    meter.vector(count, ranks - 1)
    meter.send((ranks - 1) * count * DTYPE_BYTES[meter.dtype(step.part)], 1)


@executes(AllGather)
def _all_gather(meter: _Meter, step: AllGather) -> None:
    count = prod(meter.shape(step.part))
    meter.elements(step.part, count)
    meter.elements(step.whole, prod(meter.shape(step.whole)), write=True)
    meter.send((meter.ranks(step.axes) - 1) * count * DTYPE_BYTES[meter.dtype(step.part)], 1)


@executes(AllSlice)
def _all_slice(meter: _Meter, step: AllSlice) -> None:
    count = prod(meter.shape(step.part))
    meter.elements(step.whole, count)
    meter.elements(step.part, count, write=True)


@executes(AllToAll)
def _all_to_all(meter: _Meter, step: AllToAll) -> None:
    ranks, count = meter.ranks(step.axes), prod(meter.shape(step.part))
    meter.elements(step.part, count)
    meter.elements(step.joined, count, write=True)
    meter.send((ranks - 1) * (count // ranks) * DTYPE_BYTES[meter.dtype(step.part)], 1)


def _move(meter: _Meter, step: Any) -> None:
    """Count the elements that an operation of the algorithm moves, according to its specification."""
    spec = spec_of_step(step)
    present = spec.regions(step)
    sizes: dict[str, int] = {name: meter.scalar(getattr(step, name)) for name in spec.numbers} | spec.settings(step)
    for name, region in present.items():
        sizes |= dict(zip(spec.step_patterns[name][1], meter.shape(region), strict=True))
    sizes |= {"valid": meter.valid_rows(spec.rows(sizes)), "live": meter.valid_rows(sizes.get("T", 0))}
    replaced = _replaced_rows(spec, sizes)
    share = meter.share(step.out) if isinstance(step, Dequantize) else 1
    for name, region in present.items():
        operand, shape = spec.operands[name], meter.shape(region)
        for count, write in zip(operand.moved(sizes, shape), (False, True), strict=True):
            if operand.copy_of:
                count = count // sizes["R"] * (meter.own_rows(sizes["R"]) - replaced)
            meter.move(region, int(count * share), write=write, capped=not operand.along or bool(operand.by))


def _replaced_rows(spec: OpSpec, sizes: Sizes) -> int:
    """Return the number of rows of a cache that are not read, because selected rows replace them."""
    groups = [group for group, several in spec.several.items() if several.record.in_place and spec.members]
    counts = [spec.operands[f"{group}[0].key"].reads for group in groups]
    return sum(count(sizes) for count in counts if count is not None)


@executes(QuantizeRows)
def _quantize_rows(meter: _Meter, step: QuantizeRows) -> None:
    meter.vector(prod(meter.shape(step.source)), ENCODE_OPS)


def _attend(meter: _Meter, step: Any, scores: int) -> None:
    """Count two products and a softmax over `scores` pairs of a query row and a key row."""
    meter.flops(meter.dtype(step.query), 2 * scores * (meter.shape(step.query)[-1] + meter.shape(step.out)[-1]))
    meter.vector(scores, _softmax_ops(step))


def _softmax_ops(step: Any) -> int:
    """Return the element-wise operations of a softmax per score."""
    return SOFTMAX_OPS + _cap_ops(step)


def _cap_ops(step: Any) -> int:
    return 0 if getattr(step, "softcap", None) is None else CAP_OPS


def _convert(meter: _Meter, cache: str, like: str, rows: int, operations: int) -> None:
    """Count encoding or decoding of `rows` rows per slot and head of a cache, of the width of `like`; nothing for
    floats."""
    if meter.dtype(cache) == "i8":
        slots, heads = meter.shape(cache)[:2]
        meter.vector(slots * heads * rows * meter.shape(like)[-1], operations)


def _attend_cached(
    meter: _Meter, step: CachedAttention | DecodeAttention, segments: Sequence[Segment | DecodeAttention]
) -> None:
    """Count the arithmetic of attention over the valid rows of segments."""
    batch, heads = meter.shape(step.query)[:2]
    rows = sum(meter.shape(getattr(segment, "index", "") or segment.key)[2] for segment in segments)
    valid = meter.valid_rows(rows)
    for segment in segments[:1]:
        _convert(meter, segment.key, step.query, valid, DECODE_OPS)
        if segment.value:
            _convert(meter, segment.value, step.out, valid, DECODE_OPS)
    _attend(meter, step, batch * heads * valid)


@executes(CachedAttention)
def _cached_attention(meter: _Meter, step: CachedAttention) -> None:
    _attend_cached(meter, step, step.segments)


@executes(DecodeAttention)
def _decode_attention(meter: _Meter, step: DecodeAttention) -> None:
    for cache, new in ((step.k_cache, step.new_key), (step.v_cache, step.new_value)):
        if cache:
            _convert(meter, cache, new, 1, ENCODE_OPS)
    _attend_cached(meter, step, (step,))


@executes(QuantizeKeys)
def _quantized_keys(meter: _Meter, step: QuantizeKeys) -> None:
    _rotate(meter, step.key)


def _rotate(meter: _Meter, rows: str) -> None:
    """Count butterflies, and the codes of their results."""
    shape = meter.shape(rows)
    meter.vector(prod(shape), ROTATE_OPS * ceil(log2(max(shape[-1], 2))) + ENCODE_OPS)


def _candidates(meter: _Meter, step: QuantizedKeyScores | ChooseRows | FetchRows | QueryAttention, rows: int) -> int:
    """Return the number of candidates among the `rows` positions of a slot."""
    return max(meter.valid_rows(rows) - step.sink - step.recent, 0)


@executes(QuantizedKeyScores)
def _quantized_key_scores(meter: _Meter, step: QuantizedKeyScores | QueryAttention) -> None:
    (batch, heads, _, dim) = meter.shape(step.query)
    scores = batch * heads * _candidates(meter, step, meter.shape(step.codes)[2])
    if step.bits == PLAIN_BITS:
        meter.flops(meter.dtype(step.query), 2 * scores * dim)
        meter.vector(scores, _cap_ops(step))
        return
    _rotate(meter, step.query)
    meter.vector(scores * ceil(dim / 4), DOT_OPS)
    meter.vector(scores, KEY_SCORE_OPS + _cap_ops(step))


@executes(ChooseRows, FetchRows)
def _choose_rows(meter: _Meter, step: ChooseRows | FetchRows | QueryAttention) -> None:
    """Count the exact scores of sinks and ring, one softmax over these and those by quantized keys, and a streaming
    top-K.
    """
    (batch, heads, _, dim), (_, kv_heads, ring, _) = meter.shape(step.query), meter.shape(step.key)
    if isinstance(step, ChooseRows | FetchRows):
        chosen = step.selected if isinstance(step, ChooseRows) else step.resident
        rows, topk = meter.shape(step.scores)[2], meter.shape(chosen)[2]
    else:
        rows, topk = meter.shape(step.codes)[2], step.topk
    candidates = _candidates(meter, step, rows)
    meter.flops(meter.dtype(step.query), 2 * batch * heads * ring * dim)
    meter.vector(batch * heads * (ring + candidates), SOFTMAX_OPS)
    meter.vector(batch * heads * ring, _cap_ops(step))
    meter.vector(batch * kv_heads * candidates, ceil(log2(max(topk, 1))) + 1)


@executes(QueryAttention)
def _query_attention(meter: _Meter, step: QueryAttention) -> None:
    """Count the quantization of a new key, scores by all quantized keys, the selection, and attention over the selected
    rows."""
    if step.bits != PLAIN_BITS:
        _rotate(meter, step.new_key)
    _quantized_key_scores(meter, step)
    _choose_rows(meter, step)
    (batch, heads, _, _), (_, kv_heads, ring, _) = meter.shape(step.query), meter.shape(step.key)
    valid = meter.valid_rows(ring + step.topk)
    sides = [(step.k_cache, step.new_key, step.k_store), (step.v_cache, step.new_value, step.v_store)]
    sides = sides if step.v_cache else sides[:1]
    for cache, new, _ in sides:
        _convert(meter, cache, new, 1, ENCODE_OPS)
        _convert(meter, cache, new, valid, DECODE_OPS)
    _attend(meter, step, batch * heads * valid)
    if meter.staying and not step.fetch:
        chosen = min(step.topk, _candidates(meter, step, meter.shape(step.codes)[2]))
        rows = batch * kv_heads * round(meter.staying * chosen)
        for cache, _, store in sides:
            meter.read_nearer(store, cache, rows * meter.shape(store)[3])


@executes(ChooseByIndex)
def _choose_by_index(meter: _Meter, step: ChooseByIndex) -> None:
    """Count scores of all positions by each head, their sum over heads, and a streaming top-K. In a chunk a token sees
    half of the chunk's positions on average."""
    (slots, tokens, heads, dim), (_, choices, _, topk) = meter.shape(step.query), meter.shape(step.chosen)
    start = meter.scalar(step.start)
    pairs = slots * (_triangle(start + tokens) - _triangle(start))
    if tokens == 1:
        pairs = slots * meter.valid_rows(meter.shape(step.keys)[2])
    meter.flops(meter.dtype(step.query), 2 * pairs * heads * dim)
    if step.weight:
        meter.vector(pairs * heads, 2)
    meter.vector(pairs * choices, ceil(log2(max(topk, 1))) + 1)


@executes(AttendChosen)
def _attend_chosen(meter: _Meter, step: AttendChosen) -> None:
    (slots, heads, tokens, _), topk = meter.shape(step.query), meter.shape(step.chosen)[3]
    rows = meter.valid_rows(topk)
    for store, new in ((step.k_store, step.new_key), (step.v_store, step.new_value)):
        if store:
            _convert(meter, store, new, tokens, ENCODE_OPS)
            _convert(meter, store, new, tokens * rows, DECODE_OPS)
    _attend(meter, step, slots * heads * tokens * rows)


def _causal(meter: _Meter, step: CausalAttention | ChunkAttention | LatentChunkAttention) -> None:
    start, (_, heads, chunk, _) = meter.scalar(step.start), meter.shape(step.query)
    end, window = start + chunk, _window(step)
    pairs = _triangle(end) - _triangle(start)
    if window.chunked:
        pairs = _in_chunks(end, window.size) - _in_chunks(start, window.size)
    elif window:  # a query at p sees min(p + 1, window) positions
        pairs -= _triangle(max(end - window.size, 0)) - _triangle(max(start - window.size, 0))
    _attend(meter, step, heads * pairs)


@executes(LatentChunkAttention)
def _latent_chunk_attention(meter: _Meter, step: LatentChunkAttention) -> None:
    """Count attention, and the keys and values that heads compute from every row that the chunk sees."""
    _causal(meter, step)
    for up in (step.k_up, step.v_up):
        meter.flops(meter.dtype(step.query), 2 * prod(meter.shape(up)) * _seen(meter, step))
    _convert(meter, step.latent_scratch, step.new_latent, meter.shape(step.new_latent)[2], ENCODE_OPS)
    _convert(meter, step.latent_scratch, step.new_latent, _seen(meter, step), DECODE_OPS)


@executes(CausalAttention)
def _causal_attention(meter: _Meter, step: CausalAttention) -> None:
    _causal(meter, step)
    for rows, like in ((step.key, step.query), (step.value, step.out)):
        _convert(meter, rows, like, _seen(meter, step), DECODE_OPS)


@executes(ChunkAttention)
def _chunk_attention(meter: _Meter, step: ChunkAttention) -> None:
    _causal(meter, step)
    for rows, new in ((step.k_scratch, step.new_key), (step.v_scratch, step.new_value)):
        _convert(meter, rows, new, meter.shape(new)[2], ENCODE_OPS)
        _convert(meter, rows, new, _seen(meter, step), DECODE_OPS)


def _seen(meter: _Meter, step: CausalAttention | ChunkAttention | LatentChunkAttention) -> int:
    """Return the number of prompt rows that the queries of a chunk attend to."""
    start, window = meter.scalar(step.start), _window(step)
    return start - window.first(start) + meter.shape(step.query)[2]


def _window(step: CausalAttention | ChunkAttention | LatentChunkAttention) -> Span:
    """Return the span of positions that a query sees."""
    return Span() if isinstance(step, LatentChunkAttention) else Span(step.window, step.window_stride or 1)


def _in_chunks(n: int, size: int) -> int:
    """Return the total number of positions that the first `n` queries see, each in its chunk up to itself."""
    return n // size * _triangle(size) + _triangle(n % size)


def _triangle(n: int) -> int:
    """Return 1 + 2 + .. + n."""
    return n * (n + 1) // 2


@executes(ObservationScores)
def _score(meter: _Meter, step: ObservationScores) -> None:
    """Count Q K^T of the observation queries over the prompt, and its softmax."""
    length, (_, heads, window, width) = meter.scalar(step.length), meter.shape(step.observed)
    meter.flops(meter.dtype(step.observed), 2 * heads * window * length * width)
    meter.vector(heads * window * length, _softmax_ops(step))


@executes(Pool)
def _pool(meter: _Meter, step: Pool) -> None:
    meter.vector(meter.shape(step.scores)[0] * meter.scalar(step.length), step.width)


def _top_k(meter: _Meter, selected: str, length: int, topk: int) -> None:
    meter.vector(meter.shape(selected)[0] * length, ceil(log2(topk)) + 1 if topk else 0)


@executes(Select)
def _select(meter: _Meter, step: Select) -> None:
    _top_k(meter, step.selected, meter.scalar(step.length), meter.scalar(step.topk))


@executes(TopK)
def _topk(meter: _Meter, step: TopK) -> None:
    """Count a pass over the row for each selected number."""
    meter.vector(prod(meter.shape(step.source)), meter.shape(step.indices)[1])


@executes(GatherRows)
def _gather_rows(meter: _Meter, step: GatherRows) -> None:
    if meter.dtype(step.source) != "i8":
        _convert(meter, step.out, step.source, meter.shape(step.out)[2], ENCODE_OPS)


@executes(Dequantize, LookUp)
def _dequantize(meter: _Meter, step: Dequantize | LookUp) -> None:
    share = meter.share(step.out)
    meter.vector(int(prod(meter.shape(step.out)) * share), format_named(step.format).operations)


@executes(RecurrentStep, RecurrentChunk)
def _recurrent(meter: _Meter, step: RecurrentStep | RecurrentChunk) -> None:
    """Count products of keys and queries with the state and of keys with updates; in blocks of tokens also products of
    keys and queries with keys, and of these with updates. One exponential per decay."""
    _, heads, depth, width = meter.shape(step.state)
    tokens, decays = prod(meter.shape(step.query)[:2]), meter.shape(step.decay)[3]
    sides = 2 if step.beta else 1
    operations = 2 * (sides + 1) * depth * width
    if isinstance(step, RecurrentChunk):
        operations += sides * RECURRENT_BLOCK * (depth + width)
    meter.flops("f32", tokens * heads * operations)
    meter.vector(tokens * heads * (depth if step.rate else decays), DECAY_OPS)


@executes(UpdateRows, Observe)
def _nothing(meter: _Meter, step: Any) -> None:
    """Count no arithmetic: the step only moves data."""


ARITHMETIC: Mapping[type, Callable[..., None]] = functions_of(globals())
"""Arithmetic of each kind of step, besides the data that it moves."""
