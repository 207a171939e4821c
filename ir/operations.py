"""The operations of the algorithm, each declared once: shapes, what is read and written, and what it means.

Letters: B slots, H query heads, Hkv KV heads, D head dim, Dv that of values, R rows of a cache or of a segment, K
selected ones, N rows that attention is over, T rows of the prompt scratch, of a store, of what is updated or of what a
segment takes its rows from, E bytes of a landmark's codes, C tokens of a chunk, W queries of the observation window, J
gathered rows, S tokens of a captured call. Of latent rows: L numbers, of which the first P make N columns of a head's
keys, and its values. Of a convolution: H channels. Of a recurrence: H heads, G groups of heads with a key and a query
of D numbers each, Dv numbers of a value, N decays of a head (1 or D). Of a learned index: Hi heads with a query of D
numbers each, Hc choices per token, one for each Hkv / Hc KV heads, each of Top positions. Of weights: X matrices (one
per expert) of O rows of I numbers, stored in E bytes. Of a mixture of experts: S tokens, N scores to choose among, Top
chosen ones.

Attention is over segments: rows of K and of V, those of a tensor one after another or those that an index names.

The cache of a layer and a slot has `budget = sink + topk + recent` rows: attention sinks, the prompt positions that the
observation window voted for, and a ring of recent positions. A layer's `topk` is an operand, because layers may have
budgets of their own. `base` is the first row of a slot's ring; of a layer it is that number within sink .. sink + topk.
Rows in use are always the first. Where rows are encoded (`sscc.ir.kv_rows`), attention is
over the numbers that they stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sscc.ir.geometry import Span
from sscc.ir.opspec import Attribute, Group, Number, Op, Operand, Several, Sizes
from sscc.ir.weight_formats.weight_format import MOST_PARTS


def _one(n: Sizes) -> int:
    return 1


def _chunk(n: Sizes) -> int:
    return n["C"]


def _two_chunks(n: Sizes) -> int:
    return 2 * n["C"]


def _seen(n: Sizes) -> int:
    """Rows of a prompt that a chunk attends to."""
    return n["start"] - Span(n.get("window", 0), n.get("window_stride", 1)).first(n["start"]) + n["C"]


def _length(n: Sizes) -> int:
    return n["length"]


def _observed(n: Sizes) -> int:
    """How many of a chunk's queries are among the last W of the prompt."""
    return max(0, min(n["start"] + n["C"], n["length"]) - max(n["start"], n["length"] - n["W"]))


def _depth(n: Sizes) -> int:
    return n["D"]


def _gathered(n: Sizes) -> int:
    return n["J"]


def _rows(n: Sizes) -> int:
    return n["R"]


def _selected(n: Sizes) -> int:
    """Rows that are read through an index in the place of those of a cache: valid rows are the first, and behind
    sinks."""
    return max(min(n["valid"] - n["sink"], n["R"]), 0)


def _tokens(n: Sizes) -> int:
    return n["S"]


def _indexed(n: Sizes) -> int:
    """Index keys that a choice reads: those of all positions that a slot holds, up to the last token."""
    return min(n.get("live", n["T"]), n["start"] + n["C"])


def _attended(n: Sizes) -> int:
    """Rows that attention to chosen positions reads, those of each token apart."""
    return n["S"] * min(n["Top"], n.get("live", n["T"]))


def _zero(n: Sizes) -> int:
    return 0


def _last_start(n: Sizes) -> int:
    return n["T"] - n["C"]


def _prompt(n: Sizes) -> int:
    return n["T"]


def _candidates(n: Sizes) -> int:
    """Positions that a step's query chooses from: those that are neither sinks nor in the ring."""
    return max(min(n["live"], n["T"]) - n["sink"] - n["recent"], 0)


def _chosen(n: Sizes) -> int:
    """Rows of a store that a step attends to."""
    return min(n["topk"], _candidates(n))


def _fetched(n: Sizes) -> int:
    """Rows of a store that a step brings, where there is a limit or none."""
    return min(n["fetch"] or n["topk"], _candidates(n))


def _resident(n: Sizes) -> int:
    return n["K"]


def _most_selected(n: Sizes) -> int:
    return n["K"]


def _behind_ring(n: Sizes) -> int:
    """The most rows of a cache that are neither sinks nor the least ring."""
    return n["R"] - n["sink"] - n["recent"]


def latent_fits(n: Sizes, first: int) -> bool:
    """Return True if latent rows of L numbers make keys of D numbers: their first P make the N columns from `first` on,
    the rest are the other columns."""
    return n["L"] == n["P"] + n["D"] - n["N"] and 0 <= first <= n["D"] - n["N"]


def recurrence_fits(n: Sizes) -> bool:
    """Return True if H heads of a recurrence divide into groups, and have N decays: 1, or one for each of D numbers."""
    return n["H"] % n["G"] == 0 and n["N"] in (1, n["D"])


Query = Annotated[str, Operand("B H 1 D:f", "read")]
NewKey = Annotated[str, Operand("B Hkv 1 D:f", "read")]
PerhapsNewValue = Annotated[
    str, Operand("B Hkv 1 Dv:f", "read", optional=True, omissible=True, value_of="new_key")
]
PerhapsValue = Annotated[
    str, Operand("B Hkv R Dv:row", "read", copy_of="v_cache", optional=True, omissible=True, value_of="key")
]
PerhapsValueCache = Annotated[
    str,
    Operand(
        "B Hkv R Dv:row", "update", updated="v_updated", along="R", writes=_one, optional=True, omissible=True,
        value_of="k_cache",
    ),
]  # fmt: skip
PerSlot = Annotated[str, Operand("B:i64", "read")]
Active = Annotated[str, Operand("B:i1", "read")]
Attended = Annotated[str, Operand("B H 1 Dv:f", "write")]
ChunkQuery = Annotated[str, Operand("1 H C D:f", "read")]
ChunkOut = Annotated[str, Operand("1 H C Dv:f", "write", padded=True)]
ChunkSums = Annotated[str, Operand("1 H C 1:f32", "write", flat=True, optional=True, padded=True)]
Start = Annotated[str, Number(_zero, _last_start, _last_start)]
Length = Annotated[str, Number(_one, _prompt, _prompt)]
Scale = Annotated[float, Attribute()]
Softcap = Annotated[float | None, Attribute(optional=True)]
SinkLogits = Annotated[str | None, Operand("H:f", "read", optional=True, omissible=True)]
Bits = Annotated[int, Attribute("landmark_bits")]
Fetch = Annotated[int, Attribute("fetch_rows")]
Sink = Annotated[int, Attribute("sink")]
Recent = Annotated[int, Attribute("recent")]
WindowSize = Annotated[int, Attribute("window")]
WindowStride = Annotated[int | None, Attribute("window_stride")]


class SelfAttention(Op):
    """Causal attention of a model over exactly the tokens it is given, as captured; the compiler threads the
    cache through it. `layer` counts attention operators from 0. With a `window` above 0 the token at position p sees
    positions max(p - window + 1, 0) .. p, or where there is a `window_stride`, which is the window, those of its chunk,
    p - p mod window .. p."""

    op = "self_attention"
    query: Annotated[str, Operand("B H S D:f", "read")]
    key: Annotated[str, Operand("B Hkv S D:f", "read")]
    value: Annotated[str, Operand("B Hkv S Dv:f", "read")]
    sink_logits: SinkLogits
    layer: Annotated[int, Attribute()]
    scale: Scale
    softcap: Softcap
    window: Annotated[int, Attribute(optional=True)]
    window_stride: Annotated[int, Attribute(optional=True)]
    out: Annotated[str, Operand("B H S Dv:f", "write")]


class LatentAttention(Op):
    """`SelfAttention` of a prefill chunk whose heads make their keys and values of one row per position, `latent` [L]
    (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434): of each position that row is cached. With c its first
    P numbers, columns first .. first + N - 1 of head h's keys are `k_up`[h] c, and its values are `v_up`[h] c; the
    other numbers of the row are, in order, the other columns of the keys of all heads."""

    op = "latent_attention"
    query: Annotated[str, Operand("B H S D:f", "read")]
    latent: Annotated[str, Operand("B 1 S L:f", "read")]
    k_up: Annotated[str, Operand("H N P:f", "read")]
    v_up: Annotated[str, Operand("H Dv P:f", "read")]
    layer: Annotated[int, Attribute()]
    scale: Scale
    first: Annotated[int, Attribute()]
    out: Annotated[str, Operand("B H S Dv:f", "write")]


class SharedAttention(Op):
    """`SelfAttention` of a layer that makes no K and V of its own, but attends to those of layer `shares`, which stands
    before it (Gemma 3n and Gemma 4; arXiv 2405.12981 is an earlier use). D is the width of that layer's keys."""

    op = "shared_attention"
    query: Annotated[str, Operand("B H S D:f", "read")]
    sink_logits: SinkLogits
    layer: Annotated[int, Attribute()]
    shares: Annotated[int, Attribute()]
    scale: Scale
    softcap: Softcap
    window: Annotated[int, Attribute(optional=True)]
    window_stride: Annotated[int, Attribute(optional=True)]
    out: Annotated[str, Operand("B H S Dv:f", "write")]


class ShortConvolution(Op):
    """Causal convolution of each channel over the tokens of a call, as captured. The compiler threads its state through
    it: the last Taps - 1 inputs of a channel. Sums are in f32 and rounded once:

        out[b, h, s] = bias[h] + sum over j < Taps of weight[h, 0, j] * x[b, h, s - Taps + 1 + j]

    with zeros before the first token. `layer` counts decoder layers from 0."""

    op = "short_convolution"
    x: Annotated[str, Operand("B H S:f", "read")]
    weight: Annotated[str, Operand("H 1 Taps:f", "read")]
    bias: Annotated[str | None, Operand("H:f", "read", optional=True, omissible=True)]
    layer: Annotated[int, Attribute()]
    out: Annotated[str, Operand("B H S:f", "write")]


class Recurrence(Op):
    """A gated linear recurrence over the tokens of a call, as captured. A head h has a state S [D, Dv], zero before the
    first token, and reads key and query of group g = h // (H // G). In f32, of the token at s:

        S[i, :] *= exp(decay[b, s, h, min(i, N - 1)] * rate[h, i])
        u = value[b, s, h, :]                                        without `beta`
        u = beta[b, s, h] * (value[b, s, h, :] - sum over i of key[b, s, g, i] * S[i, :])
        S[i, :] += key[b, s, g, i] * u
        out[b, s, h, :] = sum over i of query[b, s, g, i] * S[i, :]

    `rate` is 1 where there is none. With `beta` this is the gated delta rule (arXiv 2412.06464; with N = D Kimi Delta
    Attention, arXiv 2510.26692), without it the recurrence of Mamba-2 (arXiv 2405.21060), with Dv = 1 and `rate` that
    of Mamba (arXiv 2312.00752), with D = Dv = 1 an RG-LRU (arXiv 2402.19427). No decay is positive. `layer` counts
    decoder layers from 0.
    """

    op = "recurrence"
    query: Annotated[str, Operand("B S G D:f32", "read")]
    key: Annotated[str, Operand("B S G D:f32", "read")]
    value: Annotated[str, Operand("B S H Dv:f32", "read")]
    decay: Annotated[str, Operand("B S H N:f32", "read")]
    rate: Annotated[str | None, Operand("H D:f32", "read", optional=True, omissible=True)]
    beta: Annotated[str | None, Operand("B S H:f32", "read", optional=True, omissible=True)]
    layer: Annotated[int, Attribute()]
    out: Annotated[str, Operand("B S H Dv:f32", "write")]


class Index(Op):
    """The choice of a learned index over the tokens of a call, as captured (`ChooseByIndex`, with position s for token
    s). The compiler threads its state through it: a key of each position. `layer` counts decoder layers from 0."""

    op = "index"
    query: Annotated[str, Operand("B S Hi D:f", "read")]
    key: Annotated[str, Operand("B S D:f", "read")]
    weight: Annotated[str | None, Operand("B S Hi:f32", "read", optional=True, omissible=True)]
    layer: Annotated[int, Attribute()]
    block: Annotated[int, Attribute()]
    local: Annotated[int, Attribute()]
    chosen: Annotated[str, Operand("B Hc S Top:i64", "write")]


class ChosenAttention(Op):
    """Attention of a model to positions that an index chooses (`AttendChosen`), as captured: rows are those of the
    tokens it is given. All rows of a sequence are kept."""

    op = "chosen_attention"
    query: Annotated[str, Operand("B H S D:f", "read")]
    key: Annotated[str, Operand("B Hkv S D:f", "read")]
    value: Annotated[str, Operand("B Hkv S Dv:f", "read")]
    chosen: Annotated[str, Operand("B Hc S Top:i64", "read")]
    sink_logits: SinkLogits
    layer: Annotated[int, Attribute()]
    scale: Scale
    softcap: Softcap
    out: Annotated[str, Operand("B H S Dv:f", "write")]


class Row(Op):
    """The cache row of each absolute position p: p where p < base, else base + (p - base) mod (sink + topk + recent -
    base), with `base` within sink .. sink + topk."""

    op = "row"
    position: PerSlot
    base: PerSlot
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    row: Annotated[str, Operand("B:i64", "write")]


class Validity(Op):
    """Rows that a query at `position` may see: row < min(position + 1, sink + topk + recent), or where the geometry has
    a window that moves by all of itself row <= position mod recent; none for a slot that is not active.

    With an `index` of selected rows, which are read in the place of rows sink .. sink + K - 1 of the cache, N = R + K
    and the last K are those of the index: row R + j is seen, and sink + j is not, where row sink + j would be and
    index[b, 0, j] is not negative. An index is negative in all KV heads or in none."""

    op = "validity"
    position: PerSlot
    active: Active
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    index: Annotated[str, Operand("B Hkv K:i64", "read", optional=True, omissible=True)]
    valid: Annotated[str, Operand("B N:i1", "write")]


class KeptPositions(Op):
    """The position that each row of the cache holds after a prompt of `length` tokens, -1 where it holds none.

    With B = sink + topk + recent: j in row j < min(length, B) where length <= B. Of a longer prompt j in row j < sink;
    selected[h, j] in row sink + j for j < topk (-1 without `selected`); and in row sink + topk <= j < B the newest
    position p with p = j modulo recent."""

    op, stored = "kept_positions", True
    length: Length
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    selected: Annotated[str, Operand("Hkv K:i64", "read", optional=True, omissible=True)]
    positions: Annotated[str, Operand("Hkv R:i64", "write")]


# ----------------------------------------------------------------------------------- operations that are steps too


@dataclass(frozen=True)
class UpdateRows(Op):
    """The cache with `new` in row `row` of every active slot: cache[b, h, row[b], :] = new[b, h, 0, :]; all other rows
    keep their bytes. Elements of both are of one type, whichever."""

    op, kind = "update", "update_rows"
    cache: Annotated[str, Operand("B Hkv T D:any", "update", updated="updated", along="T", writes=_one, by="row")]
    new: Annotated[str, Operand("B Hkv 1 D:any", "read")]
    row: PerSlot
    active: Active


@dataclass(frozen=True)
class QuantizeRows(Op):
    """Encodes rows, as codes of 8 bits or of 4: whichever has rows of as many bytes as `out`.

    8 bits: `out` holds D signed codes, then for each group of 128 numbers (the last may have fewer) the 4 bytes of an
    f32 scale, little endian; a number is code * scale. All in f32, of a group: scale = max |x| * f32(1 / 127), 0 below
    2^-126; code = x * (1 / scale), rounded half to even, within -127 .. 127. A group whose scale is 0 is zero bytes.

    4 bits: the same for each group of 32 numbers, with 7 in the place of 127 and scales rounded to bf16; two codes a
    byte, then all scales. `sscc.ir.kv_rows` has both in numpy.
    """

    op, kind = "quantize_rows", "quantize_rows"
    source: Annotated[str, Operand("B Hkv J D:f", "read")]
    out: Annotated[str, Operand("B Hkv J D:encoded", "write")]


SegmentIndex = Annotated[str, Operand("B Hkv R:i64", "read", optional=True)]


@dataclass(frozen=True)
class Segment(Group):
    """Rows that attention is over, and which of them each slot sees. Without an index they are those of `key` and
    `value`, R = T; with one, row j of slot b and KV head h is row index[b, h, j] of them, zeros where that is negative.
    Without `value` the first Dv numbers of a key are its value (latent rows). Only what is seen is read."""

    own, alike = ("R", "T"), {"index": {"T": "R"}}
    key: Annotated[str, Operand("B Hkv T D:row", "read", along="T", reads=_rows, by="index", fetched=True)]
    value: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "read", along="T", reads=_rows, by="index", fetched=True, optional=True, value_of="key"
        ),
    ]
    valid: Annotated[str, Operand("B R:i1", "read")]
    index: SegmentIndex = ""


@dataclass(frozen=True)
class CachedAttention(Op):
    """Attention of one query per slot over the valid rows of any number of segments; softmax and sums in f32.

    Query head h reads KV head h // (H // Hkv). A slot without a valid row gives zeros. Rows of key and value may be
    encoded. All segments have values, or none.
    """

    op, kind = "cached_attention", "cached_attention"
    query: Query
    segments: Annotated[tuple[Segment, ...], Several(Segment, most=3)]
    out: Attended
    scale: Scale
    softcap: Softcap = None
    sink_logits: SinkLogits = None


@dataclass(frozen=True)
class CausalAttention(Op):
    """Causal attention of one prefill chunk: the query at position p = start + i sees rows 0 .. p of the prompt
    scratch, or where the geometry has a window rows max(p - window + 1, 0) .. p, or p - p mod window .. p where that
    moves by all of itself (`window_stride`). Rows from start + C on are not read;
    rows may be encoded. Softmax and sums in f32. `log_sum_exp` (of a step "" where nobody wants it) is that of each
    query's scores over what it sees, a learned sink included. Positions from `length` on are padding, for which nothing
    is defined.
    """

    op, kind = "causal_attention", "causal_attention"
    query: ChunkQuery
    key: Annotated[str, Operand("1 Hkv T D:prompt", "read", along="T", reads=_seen, fetched=True)]
    value: Annotated[str, Operand("1 Hkv T Dv:prompt", "read", along="T", reads=_seen, fetched=True)]
    out: ChunkOut
    start: Start
    length: Length
    scale: Scale
    log_sum_exp: ChunkSums = ""
    window: WindowSize = 0
    softcap: Softcap = None
    sink_logits: SinkLogits = None
    window_stride: WindowStride = None


@dataclass(frozen=True)
class Observe(Op):
    """Keeps the last queries of a prompt (or a number for each of them, D = 1): that of position p = start + i goes to
    row p - max(length - W, 0); rows outside 0 .. min(W, length) - 1 are dropped (the padded tail of the last chunk
    among them)."""

    op, kind = "observe", "observe"
    observed: Annotated[str, Operand("1 H W D:f", "update", updated="updated", along="W", writes=_observed)]
    query: Annotated[str, Operand("1 H C D:f", "read", along="C", reads=_observed)]
    start: Annotated[str, Number(None, None, _zero)]
    length: Annotated[str, Number(None, None, _chunk)]


@dataclass(frozen=True)
class ObservationScores(Op):
    """SnapKV scores of every prompt position, per KV head (docs/algorithm.md): causal softmax of the observation
    queries over all earlier keys, summed over queries, averaged over the query heads of a group; zero for
    t >= length - min(W, recent). `log_sum_exp` is what attention found for these queries (of a step "": it is computed,
    in one more pass over the keys)."""

    op, kind = "observation_scores", "observation_scores"
    order = ("observed", "log_sum_exp", "key", "length", "scores")
    observed: Annotated[str, Operand("1 H W D:f", "read")]
    key: Annotated[str, Operand("1 Hkv T D:f", "read", along="T", reads=_length, fetched=True)]
    scores: Annotated[str, Operand("Hkv T:f32", "part", along="T", writes=_length)]
    length: Length
    scale: Scale
    recent: Recent
    log_sum_exp: Annotated[str, Operand("1 H W 1:f32", "read", flat=True, optional=True)] = ""
    softcap: Softcap = None


@dataclass(frozen=True)
class Pool(Op):
    """Pooling of scores along positions with a kernel of `width`, stride 1, padding width // 2; "avg" always divides
    by `width`. Only t < length need be written."""

    op, kind = "pool", "pool"
    scores: Annotated[str, Operand("Hkv T:f32", "read", along="T", reads=_length)]
    pooled: Annotated[str, Operand("Hkv T:f32", "part", along="T", writes=_length)]
    length: Length
    width: Annotated[int, Attribute("pool")]
    mode: Annotated[str, Attribute("pool_mode")]


@dataclass(frozen=True)
class Select(Op):
    """Top-K positions per KV head: candidates [sink, length - recent) by (score descending, position ascending), the
    first `topk` of them, in ascending order of position, then -1; all -1 where length <= sink + topk + recent, because
    every position has a row then."""

    op, kind = "select", "select"
    scores: Annotated[str, Operand("Hkv T:f32", "read", along="T", reads=_length)]
    selected: Annotated[str, Operand("Hkv K:i64", "write")]
    length: Length
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    sink: Sink
    recent: Recent


@dataclass(frozen=True)
class GatherRows(Op):
    """Rows of a prompt's K or V by position: out[0, h, j, :] = source[0, h, index[h, j], :], encoded where the rows of
    `out` are, byte for byte where those of `source` are too; zeros where the index is negative. An operation of the
    dialect takes the place that the rows are put into, a part of a cache, and gives it with the rows in it."""

    op, kind = "gather", "gather_rows"
    source: Annotated[str, Operand("1 Hkv T D:prompt", "read", along="T", reads=_gathered, by="index", fetched=True)]
    index: Annotated[str, Operand("Hkv J:i64", "read")]
    out: Annotated[str, Operand("1 Hkv J D:row", "write", updated="gathered")]


# ------------------------------------------------------------------------------------------- rows that queries choose


@dataclass(frozen=True)
class Landmarks(Op):
    """Copies of keys in 1, 2 or 4 bits (`sscc.ir.landmarks`): D * bits / 8 bytes of codes, and a scale."""

    op, kind = "landmarks", "landmarks"
    key: Annotated[str, Operand("B Hkv J D:f", "read")]
    codes: Annotated[str, Operand("B Hkv J E:i8", "write")]
    scales: Annotated[str, Operand("B Hkv J 1:bf16", "write")]
    bits: Bits


@dataclass(frozen=True)
class LandmarkScores(Op):
    """What each slot's query scores by landmarks, per query head (`sscc.ir.landmarks.logits`): of the candidates, which
    are the positions sink <= t < position[b] + 1 - recent. No others are written, and none of a slot that is not
    active. Landmarks of 16 bits are keys, E = D floats without scales: the scores are the scaled products of f32."""

    op, kind = "landmark_scores", "landmark_scores"
    query: Query
    codes: Annotated[
        str, Operand("B Hkv T E:landmark", "read", along="T", reads=_candidates, by="position", fetched=True)
    ]
    scales: Annotated[
        str,
        Operand(
            "B Hkv T 1:bf16", "read", along="T", reads=_candidates, by="position", fetched=True, optional=True,
            omissible=True,
        ),
    ]  # fmt: skip
    position: PerSlot
    active: Active
    scores: Annotated[str, Operand("B H T:f32", "part", along="T", writes=_candidates)]
    scale: Scale
    sink: Sink
    recent: Recent
    bits: Bits
    softcap: Softcap = None


@dataclass(frozen=True)
class ChooseRows(Op):
    """The positions that a step attends to besides sinks and ring, per slot and KV head.

    With n = position[b] + 1: each query head's softmax over its `scores` of the candidates sink <= t < n - recent and
    its scores of the rows of sinks and ring, row < min(n, SR) of `key`; the mean over the heads of a group; of
    the candidates the K largest, ties to the lower position. In ascending order, then -1; all -1 for a slot that is not
    active. In f32.
    """

    op, kind, stored = "choose", "choose_rows", True
    query: Query
    key: Annotated[str, Operand("B Hkv R D:row", "read", fetched=True)]
    scores: Annotated[str, Operand("B H T:f32", "read", along="T", reads=_candidates, by="position", fetched=True)]
    position: PerSlot
    active: Active
    selected: Annotated[str, Operand("B Hkv K:i64", "write")]
    scale: Scale
    sink: Sink
    recent: Recent
    softcap: Softcap = None
    sink_logits: SinkLogits = None


@dataclass(frozen=True)
class FetchRows(Op):
    """The rows that a step attends to besides sinks and ring where it may bring only few of a store: those of a
    resident set of K, which stays from step to step.

    A step wants what `ChooseRows` says. Of the rows that it wants and lacks it brings the `fetch` of largest mean
    probability, ties to the lower position. They take empty places, and those of resident rows that it does not want,
    of least probability first, of equal ones the higher position first. `resident` holds positions in ascending order,
    then -1; a position that is no candidate is none. `places` says which rows of `k_resident` and `v_resident` these
    are, then which are free: each of 0 .. K - 1 once. Of a slot that is not active, or has no candidates, nothing
    changes. Rows may be encoded, all or none: those of a store are copied as they are. Without `v_store` and
    `v_resident` rows are keys alone (latent rows).
    """

    op, kind, stored = "fetch", "fetch_rows", True
    query: Query
    key: Annotated[str, Operand("B Hkv R D:row", "read", fetched=True)]
    scores: Annotated[str, Operand("B H T:f32", "read", along="T", reads=_candidates, by="position", fetched=True)]
    k_store: Annotated[str, Operand("B Hkv T D:row", "read", along="T", reads=_fetched, by="scores", fetched=True)]
    v_store: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "read", along="T", reads=_fetched, by="scores", fetched=True, optional=True,
            omissible=True, value_of="k_store",
        ),
    ]  # fmt: skip
    position: PerSlot
    active: Active
    resident: Annotated[
        str, Operand("B Hkv K:i64", "update", updated="resident_now", along="K", reads=_resident, writes=_resident)
    ]
    places: Annotated[
        str, Operand("B Hkv K:i64", "update", updated="places_now", along="K", reads=_resident, writes=_resident)
    ]
    k_resident: Annotated[
        str, Operand("B Hkv K D:row", "update", updated="k_fetched", along="K", writes=_fetched, by="places")
    ]
    v_resident: Annotated[
        str,
        Operand(
            "B Hkv K Dv:row", "update", updated="v_fetched", along="K", writes=_fetched, by="places", optional=True,
            omissible=True, value_of="k_resident",
        ),
    ]  # fmt: skip
    scale: Scale
    sink: Sink
    recent: Recent
    fetch: Fetch
    softcap: Softcap = None
    sink_logits: SinkLogits = None


# ------------------------------------------------------------------------------------------------ quantized weights


@dataclass(frozen=True)
class StoredPart(Group):
    """Bytes of X matrices of O rows, a part of the format in which they are stored."""

    own = ("E",)
    bytes: Annotated[str, Operand("X O E:i8", "read")]


@dataclass(frozen=True)
class StoredTable(Group):
    """Bytes of a table of O rows, a part of the format in which it is stored."""

    own = ("E",)
    bytes: Annotated[str, Operand("O E:i8", "read", along="O", reads=_tokens, by="index", fetched=True)]


@dataclass(frozen=True)
class Dequantize(Op):
    """The numbers of X matrices from the parts in which they are stored, by the formula of the format of that name
    (`sscc.ir.weight_formats.weight_format`), in f32 and rounded once to the dtype of `out`."""

    op, kind = "dequantize", "dequantize"
    parts: Annotated[tuple[StoredPart, ...], Several(StoredPart, most=MOST_PARTS)]
    out: Annotated[str, Operand("X O I:f", "write")]
    format: Annotated[str, Attribute()]


@dataclass(frozen=True)
class LookUp(Op):
    """Rows of a table by number, out[s, :] = table[index[s], :], of a table that is stored in parts (`Dequantize`). An
    index outside 0 .. O - 1 ends a run with an error."""

    op, kind = "look_up", "look_up"
    index: Annotated[str, Operand("S:i64", "read")]
    tables: Annotated[tuple[StoredTable, ...], Several(StoredTable, most=MOST_PARTS)]
    out: Annotated[str, Operand("S I:f", "write")]
    format: Annotated[str, Attribute()]


# ------------------------------------------------------------------------------------------------ mixture of experts


class ExpertProduct(Op):
    """Each token's rows times the matrices of its experts, out[s, j, o] = sum over i of x[s, j, i] *
    weight[expert[s, j], o, i], accumulated in f32 or wider, rounded once. J is Top, or 1 where all experts of a token
    get the same row. Matrices that nobody names are not read. `expert` holds numbers of 0 .. X - 1.

    In a schedule it is a product whose second operand has an indirect axis."""

    op = "expert_product"
    x: Annotated[str, Operand("S J I:f", "read")]
    weight: Annotated[str, Operand("X O I:f", "read", fetched=True)]
    expert: Annotated[str, Operand("S Top:i64", "read")]
    out: Annotated[str, Operand("S Top O:f", "write")]


@dataclass(frozen=True)
class TopK(Op):
    """The Top largest of N numbers per row, in descending order, and where they are; of equal ones the lower index
    first. Where a number is NaN, the indices of its row are Top different ones of 0 .. N - 1, whichever. `values` of a
    step is "" where nobody wants them."""

    op, kind = "topk", "topk"
    order = ("source", "values", "indices")
    source: Annotated[str, Operand("S N:f", "read")]
    indices: Annotated[str, Operand("S Top:i64", "write")]
    values: Annotated[str, Operand("S Top:f", "write", optional=True)] = ""


@dataclass(frozen=True)
class ChooseByIndex(Op):
    """The positions that a learned index chooses for each token, ascending, then -1 (DeepSeek-V3.2). The new key of the
    token at p = position[b, s] is written to row p of `keys` first. Then, with key t that in row t:

        score[t] = sum over h of weight[b, s, h] * max(query[b, s, h, :] . key[t], 0)       with `weight`, one choice
        score[t] = query[b, s, c, :] . key[t]                                               without, for each choice c

    for t <= p, in f32. Positions are chosen in blocks of `block`, whose score is the largest one of their positions up
    to p. The Top / block blocks of the highest scores are chosen, of equal ones the earlier; before them the `local`
    ones that end with the block of p. For a token whose p is negative nothing is written or chosen. No key from `start`
    + C on is read.
    """

    op, kind = "choose_by_index", "choose_by_index"
    query: Annotated[str, Operand("B C Hi D:f", "read")]
    new_key: Annotated[str, Operand("B 1 C D:f", "read")]
    keys: Annotated[
        str,
        Operand("B 1 T D:f", "update", updated="updated", along="T", reads=_indexed, writes=_chunk, by="position"),
    ]
    position: Annotated[str, Operand("B C:i64", "read")]
    chosen: Annotated[str, Operand("B Hc C Top:i64", "write")]
    start: Start
    block: Annotated[int, Attribute()]
    local: Annotated[int, Attribute()]
    weight: Annotated[str | None, Operand("B C Hi:f32", "read", optional=True, omissible=True)] = None


@dataclass(frozen=True)
class AttendChosen(Op):
    """Attention of each token to the rows that an index names for it; softmax and sums in f32.

    `new_key` and `new_value` of the token at p = position[b, s] are written to row p of the stores first, where p is
    not negative. Query head h reads KV head g = h // (H // Hkv), and of that the rows chosen[b, g // (Hkv // Hc), s, :]
    that are not negative. A token without such a row gives zeros. Without values the first Dv numbers of a key are its
    value (latent rows). Rows of stores may be encoded; new rows are encoded before they are attended to.
    """

    op, kind = "attend_chosen", "attend_chosen"
    query: Annotated[str, Operand("B H S D:f", "read")]
    new_key: Annotated[str, Operand("B Hkv S D:f", "read")]
    new_value: Annotated[
        str, Operand("B Hkv S Dv:f", "read", optional=True, omissible=True, value_of="new_key")
    ]
    k_store: Annotated[
        str,
        Operand("B Hkv T D:row", "update", updated="k_stored", along="T", reads=_attended, writes=_tokens, by="chosen"),
    ]
    v_store: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "update", updated="v_stored", along="T", reads=_attended, writes=_tokens, by="chosen",
            optional=True, omissible=True, value_of="k_store",
        ),
    ]  # fmt: skip
    position: Annotated[str, Operand("B S:i64", "read")]
    chosen: Annotated[str, Operand("B Hc S Top:i64", "read")]
    out: Annotated[str, Operand("B H S Dv:f", "write")]
    scale: Scale
    softcap: Softcap = None
    sink_logits: SinkLogits = None


# --------------------------------------------------------------------------------------------------- fused operations


@dataclass(frozen=True)
class SelectedRows(Group):
    """Rows that an index selects of a prompt. They are fetched one by one, and only where the index is not negative."""

    own, in_place = ("R", "T"), True
    key: Annotated[str, Operand("B Hkv T D:row", "read", along="T", reads=_selected, by="index", fetched=True)]
    value: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "read", along="T", reads=_selected, by="index", fetched=True, optional=True,
            value_of="key",
        ),
    ]  # fmt: skip
    index: Annotated[str, Operand("B Hkv R:i64", "read")]


@dataclass(frozen=True)
class DecodeAttention(Op):
    """`row`, the `update`s, `validity` and `cached_attention` of one decode step in one, which reads each row once.

    For every active slot b: row as `Row` says for p = position[b]; new_key and new_value stand in that row of `key` and
    `value` for the attention, and are written to that row of `k_cache` and `v_cache`, whose other rows keep their
    bytes. Attention is over rows row < min(p + 1, sink + topk + recent), or where there is a `window_stride`, which is
    `recent`, row <= p mod recent. A slot that is not active writes nothing and returns zeros.

    With `segments`, of which there is one at most, rows sink .. sink + K - 1 of KV head h are those at index[b, h, j]
    of the segment's key and value where that is not negative.

    `key` is either `k_cache` itself or a copy (a stream) of it that was made before; `value` likewise. Rows may be
    encoded; the new row is encoded before it is attended to.

    Without `new_value`, `value` and `v_cache` a row is a key, and its first Dv numbers are its value (latent rows);
    then the segment has no values either.
    """

    op, kind, stored = "decode_attention", "decode_attention", True
    query: Query
    new_key: NewKey
    new_value: PerhapsNewValue
    key: Annotated[str, Operand("B Hkv R D:row", "read", copy_of="k_cache")]
    value: PerhapsValue
    k_cache: Annotated[str, Operand("B Hkv R D:row", "update", updated="k_updated", along="R", writes=_one)]
    v_cache: PerhapsValueCache
    position: PerSlot
    base: PerSlot
    active: Active
    topk: Annotated[str, Number(_zero, _behind_ring, _behind_ring)]
    out: Attended
    scale: Scale
    sink: Sink
    recent: Recent
    segments: Annotated[tuple[SelectedRows, ...], Several(SelectedRows, most=1)] = ()
    softcap: Softcap = None
    sink_logits: SinkLogits = None
    window_stride: WindowStride = None


@dataclass(frozen=True)
class QueryAttention(Op):
    """A decode step over sinks, ring and the rows that its query chooses, with everything that it writes, in one.

    As `DecodeAttention` over the rows of the cache, which are sinks and ring alone, and then over the rows of `k_store`
    and `v_store` that `ChooseRows` finds by `LandmarkScores`. For every active slot `new_key` and `new_value` are
    written to row position[b] of the stores too, and the landmark of `new_key` to that of `codes` and `scales` (of 16
    bits the key itself to that of `codes`, E = D, without scales); no position is a candidate in the step that writes
    it. Each landmark is read once. Rows of cache and store may be encoded, all or none; landmarks are those of keys
    before that.

    Where there is a limit `fetch`, attention is over the resident rows that `FetchRows` leaves, in ascending order of
    their positions, and not over rows of the stores. Without one `fetch` is 0 and there are none. Without `new_value`
    and what it is written to the first Dv numbers of a key are its value (latent rows).
    """

    op, kind, stored = "query_attention", "query_attention", True
    query: Query
    new_key: NewKey
    new_value: PerhapsNewValue
    key: Annotated[str, Operand("B Hkv R D:row", "read", copy_of="k_cache")]
    value: PerhapsValue
    k_cache: Annotated[str, Operand("B Hkv R D:row", "update", updated="k_updated", along="R", writes=_one)]
    v_cache: PerhapsValueCache
    k_store: Annotated[
        str,
        Operand("B Hkv T D:row", "update", updated="k_stored", along="T", reads=_fetched, writes=_one, by="position"),
    ]
    v_store: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "update", updated="v_stored", along="T", reads=_fetched, writes=_one, by="position",
            optional=True, omissible=True, value_of="k_store",
        ),
    ]  # fmt: skip
    codes: Annotated[
        str,
        Operand(
            "B Hkv T E:landmark", "update", updated="coded", along="T", reads=_candidates, writes=_one, by="position"
        ),
    ]
    scales: Annotated[
        str,
        Operand(
            "B Hkv T 1:bf16", "update", updated="scaled", along="T", reads=_candidates, writes=_one, by="position",
            optional=True, omissible=True,
        ),
    ]  # fmt: skip
    position: PerSlot
    active: Active
    out: Attended
    scale: Scale
    sink: Sink
    recent: Recent
    topk: Annotated[int, Attribute("topk")]
    bits: Bits
    resident: Annotated[
        str,
        Operand(
            "B Hkv K:i64", "update", updated="resident_now", along="K", reads=_resident, writes=_resident,
            optional=True, omissible=True,
        ),
    ] = ""  # fmt: skip
    places: Annotated[
        str,
        Operand(
            "B Hkv K:i64", "update", updated="places_now", along="K", reads=_resident, writes=_resident,
            optional=True, omissible=True,
        ),
    ] = ""  # fmt: skip
    k_resident: Annotated[
        str,
        Operand(
            "B Hkv K D:row", "update", updated="k_fetched", along="K", reads=_chosen, writes=_fetched, by="places",
            optional=True, omissible=True,
        ),
    ] = ""  # fmt: skip
    v_resident: Annotated[
        str,
        Operand(
            "B Hkv K Dv:row", "update", updated="v_fetched", along="K", reads=_chosen, writes=_fetched, by="places",
            optional=True, omissible=True, value_of="k_resident",
        ),
    ] = ""  # fmt: skip
    fetch: Fetch = 0
    softcap: Softcap = None
    sink_logits: SinkLogits = None


@dataclass(frozen=True)
class ChunkAttention(Op):
    """Append and causal attention of one prefill chunk.

    Rows start .. start + C - 1 of `k_scratch` and `v_scratch` become `new_key` and `new_value`, encoded where the
    scratches are; then as `CausalAttention`.

    Positions from `length` on are padding: their rows of the scratches keep their bytes. Whatever else the step's
    pipeline computes for them is undefined; it computes each position from the same one alone, but in this step, and
    nothing that a prompt leaves behind depends on its padding.
    """

    op, kind = "chunk_attention", "chunk_attention"
    query: ChunkQuery
    new_key: Annotated[str, Operand("1 Hkv C D:f", "read")]
    new_value: Annotated[str, Operand("1 Hkv C Dv:f", "read")]
    k_scratch: Annotated[
        str, Operand("1 Hkv T D:prompt", "update", updated="k_appended", along="T", reads=_seen, writes=_chunk)
    ]
    v_scratch: Annotated[
        str, Operand("1 Hkv T Dv:prompt", "update", updated="v_appended", along="T", reads=_seen, writes=_chunk)
    ]
    out: ChunkOut
    start: Start
    length: Length
    scale: Scale
    log_sum_exp: ChunkSums = ""
    window: WindowSize = 0
    softcap: Softcap = None
    sink_logits: SinkLogits = None
    window_stride: WindowStride = None


@dataclass(frozen=True)
class LatentChunkAttention(Op):
    """Append and causal attention of one prefill chunk over latent rows (`LatentAttention`).

    Rows start .. start + C - 1 of `latent_scratch` become `new_latent`, encoded where the scratch is. Then the query at
    position p = start + i attends to the keys and values that its head makes of rows 0 .. p as they are stored, in f32
    or rounded to the dtype of `query`. They are made where they are used, and no tensor holds them. Softmax and sums in
    f32; `log_sum_exp` and padding as in `ChunkAttention`.
    """

    op, kind = "latent_chunk_attention", "latent_chunk_attention"
    query: ChunkQuery
    new_latent: Annotated[str, Operand("1 1 C L:f", "read")]
    latent_scratch: Annotated[
        str, Operand("1 1 T L:prompt", "update", updated="appended", along="T", reads=_seen, writes=_chunk)
    ]
    k_up: Annotated[str, Operand("H N P:f", "read", fetched=True)]
    v_up: Annotated[str, Operand("H Dv P:f", "read", fetched=True)]
    out: ChunkOut
    start: Start
    length: Length
    scale: Scale
    first: Annotated[int, Attribute()]
    log_sum_exp: ChunkSums = ""


# ----------------------------------------------------------------------------------------------------- recurrences


@dataclass(frozen=True)
class RecurrentStep(Op):
    """A token of a recurrence for each slot (`Recurrence`), from the state that the tokens before it have left. A slot
    that is not active keeps its state."""

    op, kind = "recurrent_step", "recurrent_step"
    query: Annotated[str, Operand("B 1 G D:f32", "read")]
    key: Annotated[str, Operand("B 1 G D:f32", "read")]
    value: Annotated[str, Operand("B 1 H Dv:f32", "read")]
    decay: Annotated[str, Operand("B 1 H N:f32", "read")]
    state: Annotated[str, Operand("B H D Dv:f32", "update", updated="updated", along="D", reads=_depth, writes=_depth)]
    active: Active
    out: Annotated[str, Operand("B 1 H Dv:f32", "write")]
    rate: Annotated[str | None, Operand("H D:f32", "read", optional=True, omissible=True)] = None
    beta: Annotated[str | None, Operand("B 1 H:f32", "read", optional=True, omissible=True)] = None


@dataclass(frozen=True)
class RecurrentChunk(Op):
    """The tokens of a prefill chunk of a recurrence (`Recurrence`), from the state that the chunk before has left, or
    from zeros where `start` is 0. Positions from `length` on are padding: they leave the state as it is, and what `out`
    has for them is undefined.

    Tokens are taken in blocks, which gives the same sums in another order. With c[t] the sum of the block's decays up
    to token t, A[t, j] = key[t] . key[j] and P[t, j] = query[t] . key[j], each product of numbers weighed by exp(c[t] -
    c[j]):

        u[t] = beta[t] * (value[t] - (key[t] * exp(c[t])) S - sum over j < t of A[t, j] * u[j])
        out[t] = (query[t] * exp(c[t])) S + sum over j <= t of P[t, j] * u[j]
        S <- exp(c[last]) * S + sum over t of (key[t] * exp(c[last] - c[t])) u[t]
    """

    op, kind = "recurrent_chunk", "recurrent_chunk"
    query: Annotated[str, Operand("1 C G D:f32", "read")]
    key: Annotated[str, Operand("1 C G D:f32", "read")]
    value: Annotated[str, Operand("1 C H Dv:f32", "read")]
    decay: Annotated[str, Operand("1 C H N:f32", "read")]
    state: Annotated[str, Operand("1 H D Dv:f32", "update", updated="updated", along="D", reads=_depth, writes=_depth)]
    out: Annotated[str, Operand("1 C H Dv:f32", "write", padded=True)]
    start: Annotated[str, Number(None, None, _chunk)]
    length: Annotated[str, Number(None, None, _two_chunks)]
    rate: Annotated[str | None, Operand("H D:f32", "read", optional=True, omissible=True)] = None
    beta: Annotated[str | None, Operand("1 C H:f32", "read", optional=True, omissible=True)] = None


OPERATIONS: tuple[type[Op], ...] = tuple(
    item for item in globals().values() if isinstance(item, type) and issubclass(item, Op) and item is not Op
)
"""All of them, in the order in which they stand here."""
