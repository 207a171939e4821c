"""The operations of the algorithm, each declared once: shapes, memory accesses and semantics.

Letters: B slots, Q tokens of a decode step (those of a slot follow one another, Q / B each), H query heads, Hkv KV
heads, D head dim, Dv width of values, R rows of a cache or of a segment, K selected rows, N rows that attention covers,
T rows of the prompt scratch, of a store, of an updated tensor or of a segment's source, E bytes of a quantized key's
codes, C tokens of a chunk, W queries of the observation window, J gathered rows, S tokens of a captured call. Latent
rows: L numbers, the first P of which give N columns of a head's keys, and its values. Convolutions: H channels.
Recurrences: H heads, G groups of heads with a key and a query of D numbers each, Dv numbers of a value, N decays of a
head (1 or D), Pend tokens whose inputs, Packed numbers of each head, are not in the state yet. Learned indexes: Hi
heads with a query of D numbers each, Hc choices per token, one for each Hkv / Hc KV heads, each of Top positions.
Weights: X matrices (one per expert) of O rows of I numbers, stored in E bytes. Mixtures of experts: S tokens, N scores
to choose among, Top chosen experts.

Attention covers segments: rows of K and V, either all rows of a tensor in order or those that an index names.

The cache of a layer and a slot has `budget = sink + topk + recent` rows: attention sinks, prompt positions selected by
the observation window, and a ring of recent positions. A layer's `topk` is an operand, because layers may have
different budgets. `base` is the first row of a slot's ring, clamped per layer to sink .. sink + topk. A ring may have
`spare` rows more than a query sees. Rows in use come first. If rows are encoded (`sscc.ir.kv_rows`), attention uses
the decoded numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sscc.ir.geometry import Span
from sscc.ir.opspec import Attribute, Group, Number, Op, Operand, Several, Sizes
from sscc.ir.weight_formats.weight_format import MOST_PARTS


def _one(n: Sizes) -> int:
    return 1


def _new(n: Sizes) -> int:
    """Return the number of rows that a decode step writes for each slot."""
    return n["Q"] // n["B"]


def _chunk(n: Sizes) -> int:
    return n["C"]


def _two_chunks(n: Sizes) -> int:
    return 2 * n["C"]


def _seen(n: Sizes) -> int:
    """Return the number of prompt rows that a chunk attends to."""
    return n["start"] - Span(n.get("window", 0), n.get("window_stride", 1)).first(n["start"]) + n["C"]


def _length(n: Sizes) -> int:
    return n["length"]


def _observed(n: Sizes) -> int:
    """Return the number of a chunk's queries that are among the last W of the prompt."""
    return max(0, min(n["start"] + n["C"], n["length"]) - max(n["start"], n["length"] - n["W"]))


def _depth(n: Sizes) -> int:
    return n["D"]


def _heads(n: Sizes) -> int:
    return n["H"]


def _drafted(n: Sizes) -> int:
    """Return the maximum number of tokens of a step behind a slot's first one."""
    return _new(n) - 1


def _pending(n: Sizes) -> int:
    """Return the number of tokens of a slot whose inputs a step keeps: none of a step of one token."""
    return _new(n) if _new(n) > 1 else 0


def _gathered(n: Sizes) -> int:
    return n["J"]


def _rows(n: Sizes) -> int:
    return n["R"]


def _selected(n: Sizes) -> int:
    """Return the number of rows that are read through an index instead of from the cache. Valid rows come first, those
    of the segment behind the sinks."""
    return max(min(n["valid"] - n["sink"], n["R"]), 0)


def _tokens(n: Sizes) -> int:
    return n["S"]


def _attending(n: Sizes) -> int:
    """Return the number of tokens of a slot that attend to chosen positions."""
    return _new(n) * n["S"]


def _indexed_new(n: Sizes) -> int:
    return _new(n) * n["C"]


def _indexed(n: Sizes) -> int:
    """Return the number of index keys that the choices of a slot read: those of all positions up to the last token,
    once for a chunk and separately for each token of a step."""
    return _new(n) * min(n.get("live", n["T"]), n["start"] + n["C"])


def _attended(n: Sizes) -> int:
    """Return the number of rows that attention to chosen positions reads, counted separately for each token."""
    return _attending(n) * min(n["Top"], n.get("live", n["T"]))


def _zero(n: Sizes) -> int:
    return 0


def _last_start(n: Sizes) -> int:
    return n["T"] - n["C"]


def _prompt(n: Sizes) -> int:
    return n["T"]


def _candidates(n: Sizes) -> int:
    """Return the number of positions that a step's query selects from: those that are neither sinks nor in the ring."""
    return max(min(n["live"], n["T"]) - n["sink"] - n["recent"], 0)


def _candidates_of_all(n: Sizes) -> int:
    """Return the number of candidates of all tokens of a slot."""
    return _new(n) * _candidates(n)


def _chosen(n: Sizes) -> int:
    """Return the number of rows of a store that a step attends to."""
    return min(n["topk"], _candidates(n))


def _fetched(n: Sizes) -> int:
    """Return the number of rows of a store that a step fetches, with or without a limit."""
    return min(n["fetch"] or n["topk"], _candidates(n))


def _fetched_by_all(n: Sizes) -> int:
    """Return the number of rows of a store that all tokens of a slot fetch."""
    return _new(n) * _fetched(n)


def _resident(n: Sizes) -> int:
    return n["K"]


def _most_selected(n: Sizes) -> int:
    return n["K"]


def _behind_ring(n: Sizes) -> int:
    """Return the maximum number of cache rows that are neither sinks nor in the shortest ring."""
    return n["R"] - n["sink"] - n["recent"] - n.get("spare", 0)


def latent_fits(n: Sizes, first: int) -> bool:
    """Return True if latent rows of L numbers give keys of D numbers: their first P numbers give the N columns from
    `first` on, the rest are the other columns."""
    return n["L"] == n["P"] + n["D"] - n["N"] and 0 <= first <= n["D"] - n["N"]


def index_fits(n: Sizes) -> bool:
    """Return True if the indices of all segments have rows for each slot, or for each token."""
    return all(size in (n["B"], n["Q"]) for name, size in n.items() if name.startswith("Slots"))


def recurrence_fits(n: Sizes) -> bool:
    """Return True if H heads of a recurrence divide into groups, and have N decays: 1, or one for each of D numbers;
    and rows of pending inputs have `pending_width` numbers."""
    width = pending_width(n["D"], n["Dv"], n["N"])
    return n["H"] % n["G"] == 0 and n["N"] in (1, n["D"]) and n.get("Packed", width) == width


def pending_width(depth: int, width: int, decays: int) -> int:
    """Return the numbers of the inputs of a token for one head of a recurrence: a key, a value, decays, and a beta."""
    return depth + width + decays + 1


Query = Annotated[str, Operand("Q H 1 D:f", "read")]
NewKey = Annotated[str, Operand("Q Hkv 1 D:f", "read")]
PerhapsNewValue = Annotated[
    str, Operand("Q Hkv 1 Dv:f", "read", optional=True, omissible=True, value_of="new_key")
]
PerhapsValue = Annotated[
    str, Operand("B Hkv R Dv:row", "read", copy_of="v_cache", optional=True, omissible=True, value_of="key")
]
PerhapsValueCache = Annotated[
    str,
    Operand(
        "B Hkv R Dv:row", "update", updated="v_updated", along="R", writes=_new, optional=True, omissible=True,
        value_of="k_cache",
    ),
]  # fmt: skip
PerSlot = Annotated[str, Operand("Q:i64", "read")]
Active = Annotated[str, Operand("Q:i1", "read")]
Attended = Annotated[str, Operand("Q H 1 Dv:f", "write")]
ChunkQuery = Annotated[str, Operand("1 H C D:f", "read")]
ChunkOut = Annotated[str, Operand("1 H C Dv:f", "write", padded=True)]
ChunkSums = Annotated[str, Operand("1 H C 1:f32", "write", flat=True, optional=True, padded=True)]
Start = Annotated[str, Number(_zero, _last_start, _last_start)]
Length = Annotated[str, Number(_one, _prompt, _prompt)]
Scale = Annotated[float, Attribute()]
Softcap = Annotated[float | None, Attribute(optional=True)]
SinkLogits = Annotated[str | None, Operand("H:f", "read", optional=True, omissible=True)]
Bits = Annotated[int, Attribute("key_bits")]
Fetch = Annotated[int, Attribute("fetch_rows")]
Sink = Annotated[int, Attribute("sink")]
Recent = Annotated[int, Attribute("recent")]
Spare = Annotated[int, Attribute("spare")]
WindowSize = Annotated[int, Attribute("window")]
WindowStride = Annotated[int | None, Attribute("window_stride")]


class SelfAttention(Op):
    """Causal attention of a captured model over exactly the tokens of the call; the compiler threads the cache through
    it. `layer` counts attention operators from 0. With a `window` above 0 the token at position p sees positions
    ``max(p - window + 1, 0) .. p``, or if there is a `window_stride` (equal to the window), those of its chunk,
    ``p - p mod window .. p``."""

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
    """`SelfAttention` of a prefill chunk whose heads compute their keys and values from one row per position, `latent`
    [L] (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434). The cache holds this row for each position. With c
    its first P numbers, columns first .. first + N - 1 of head h's keys are `k_up`[h] c, and its values are `v_up`[h]
    c; the other numbers of the row are, in order, the other columns of the keys of all heads."""

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
    """`SelfAttention` of a layer that computes no K and V and attends to those of an earlier layer, `shares` (Gemma 3n
    and Gemma 4; arXiv 2405.12981 is an earlier use). D is the width of that layer's keys."""

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
    """Causal convolution of each channel over the tokens of a captured call. The compiler threads its state through it:
    the last Taps - 1 inputs of each channel. Sums are in f32 and rounded once:

        out[b, h, s] = bias[h] + sum over j < Taps of weight[h, 0, j] * x[b, h, s - Taps + 1 + j]

    with zeros before the first token. `layer` counts decoder layers from 0.
    """

    op = "short_convolution"
    x: Annotated[str, Operand("B H S:f", "read")]
    weight: Annotated[str, Operand("H 1 Taps:f", "read")]
    bias: Annotated[str | None, Operand("H:f", "read", optional=True, omissible=True)]
    layer: Annotated[int, Attribute()]
    out: Annotated[str, Operand("B H S:f", "write")]


class Recurrence(Op):
    """A gated linear recurrence over the tokens of a captured call. Head h has a state S [D, Dv], zero before the first
    token, and reads the key and query of group g = h // (H // G). For the token at s, in f32:

        S[i, :] *= exp(decay[b, s, h, min(i, N - 1)] * rate[h, i])
        u = value[b, s, h, :]                                        without `beta`
        u = beta[b, s, h] * (value[b, s, h, :] - sum over i of key[b, s, g, i] * S[i, :])
        S[i, :] += key[b, s, g, i] * u
        out[b, s, h, :] = sum over i of query[b, s, g, i] * S[i, :]

    `rate` defaults to 1. With `beta` this is the gated delta rule (arXiv 2412.06464; with N = D Kimi Delta Attention,
    arXiv 2510.26692), without it the recurrence of Mamba-2 (arXiv 2405.21060), with Dv = 1 and `rate` that of Mamba
    (arXiv 2312.00752), with D = Dv = 1 an RG-LRU (arXiv 2402.19427). Decays are never positive. `layer` counts decoder
    layers from 0.
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
    """Selection by a learned index over the tokens of a captured call (`ChooseByIndex`, with position s for token s).
    The compiler threads its state through it: one key per position. `layer` counts decoder layers from 0."""

    op = "index"
    query: Annotated[str, Operand("B S Hi D:f", "read")]
    key: Annotated[str, Operand("B S D:f", "read")]
    weight: Annotated[str | None, Operand("B S Hi:f32", "read", optional=True, omissible=True)]
    layer: Annotated[int, Attribute()]
    block: Annotated[int, Attribute()]
    local: Annotated[int, Attribute()]
    chosen: Annotated[str, Operand("B Hc S Top:i64", "write")]


class ChosenAttention(Op):
    """Attention of a captured model to positions that an index selects (`AttendChosen`) among the tokens of the call.
    All rows of a sequence are kept."""

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
    """The cache row of each absolute position p: p if p < base, else base + (p - base) mod (sink + topk + recent +
    spare - base), with `base` within sink .. sink + topk."""

    op = "row"
    position: PerSlot
    base: PerSlot
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    row: Annotated[str, Operand("Q:i64", "write")]


class Validity(Op):
    """The rows that a query at `position` may see: those before `base` up to row `position`, and in the ring those of
    the newest min(position + 1 - base, sink + topk + recent - base) positions, or, with a chunked window, of the newest
    position mod recent + 1; none for an inactive slot. Without spare rows this is row < min(position + 1, sink + topk +
    recent), or row <= position mod recent.

    If queries select, the cache is sinks and ring alone, as with a topk of 0, and the K rows behind it are those that a
    query selects: the first min(position + 1 - sink - recent, K) of them are visible.

    With an `index` of selected rows that replace rows sink .. sink + K - 1 of the cache, N = R + K and the last K rows
    are those of the index. If row sink + j is visible and index[b, 0, j] is not negative, row R + j is visible in its
    place. An index is negative in all KV heads or in none.
    """

    op = "validity"
    position: PerSlot
    base: PerSlot
    active: Active
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    index: Annotated[str, Operand("B Hkv K:i64", "read", optional=True, omissible=True)]
    valid: Annotated[str, Operand("Q N:i1", "write")]


class KeptPositions(Op):
    """The position that each row of the cache holds after a prompt of `length` tokens, -1 for an empty row.

    Let B = sink + topk + recent. If length <= B, row j < length holds position j. After a longer prompt row j < sink
    holds j; row sink + j, for j < topk, holds selected[h, j] (-1 without `selected`); and each row sink + topk <= j < B
    + spare holds the newest position p with p = j modulo recent + spare, -1 if p < length - recent.
    """

    op, stored = "kept_positions", True
    length: Length
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    selected: Annotated[str, Operand("Hkv K:i64", "read", optional=True, omissible=True)]
    positions: Annotated[str, Operand("Hkv R:i64", "write")]


# ----------------------------------------------------------------------------------- operations that are steps too


@dataclass(frozen=True)
class UpdateRows(Op):
    """The cache with the rows of new tokens: cache[b, h, row[q], :] = new[q, h, 0, :] for every active token q of slot
    b = q // (Q / B); all other rows are unchanged. Both have the same element type, which may be any."""

    op, kind = "update", "update_rows"
    cache: Annotated[str, Operand("B Hkv T D:any", "update", updated="updated", along="T", writes=_new, by="row")]
    new: Annotated[str, Operand("Q Hkv 1 D:any", "read")]
    row: PerSlot
    active: Active


@dataclass(frozen=True)
class QuantizeRows(Op):
    """Encodes rows as 8-bit or 4-bit codes, depending on the bytes of the rows of `out`.

    8 bits: `out` holds D signed codes, then for each group of 128 numbers (the last may have fewer) the 4 bytes of an
    f32 scale, little endian; a number is code * scale. For each group, in f32: scale = max |x| * f32(1 / 127), 0 below
    2^-126; code = x * (1 / scale), rounded half to even, within -127 .. 127. A group whose scale is 0 is zero bytes.

    4 bits: the same for each group of 32 numbers, with 7 instead of 127 and scales rounded to bf16; two codes per byte,
    then all scales. `sscc.ir.kv_rows` implements both in numpy.
    """

    op, kind = "quantize_rows", "quantize_rows"
    source: Annotated[str, Operand("B Hkv J D:f", "read")]
    out: Annotated[str, Operand("B Hkv J D:encoded", "write")]


SegmentIndex = Annotated[str, Operand("Slots Hkv R:i64", "read", optional=True)]


@dataclass(frozen=True)
class Segment(Group):
    """Rows that attention covers, and those of them that each slot sees. Without an index they are the rows of `key`
    and `value`, R = T; with one, row j of slot b and KV head h is row index[b, h, j] of them, or zeros if that is
    negative. The index may also have rows for each token, [Q, Hkv, R]. Without `value` the first Dv numbers of a key
    are its value (latent rows). Only visible rows are read."""

    own, alike = ("R", "T", "Slots"), {"index": {"T": "R"}}
    key: Annotated[str, Operand("B Hkv T D:row", "read", along="T", reads=_rows, by="index", fetched=True)]
    value: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "read", along="T", reads=_rows, by="index", fetched=True, optional=True, value_of="key"
        ),
    ]
    valid: Annotated[str, Operand("Q R:i1", "read")]
    index: SegmentIndex = ""


@dataclass(frozen=True)
class CachedAttention(Op):
    """Attention of one query per token over the visible rows of its slot in any number of segments; softmax and sums in
    f32.

    Query head h reads KV head h // (H // Hkv). A token without a visible row returns zeros. Rows of key and value may
    be encoded. Either all segments have values, or none.
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
    scratch, or with a window rows max(p - window + 1, 0) .. p, or with a chunked window (`window_stride`)
    p - p mod window .. p. Rows from start + C on are not read; rows may be encoded. Softmax and sums in f32.
    `log_sum_exp` ("" in a step if it is not needed) is that of each query's scores over the rows that it sees, a
    learned sink included. Positions from `length` on are padding; their results are undefined."""

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
    """Keeps the last queries of a prompt (or a number for each of them, D = 1). The query of position p = start + i is
    written to row p - max(length - W, 0); rows outside 0 .. min(W, length) - 1 are dropped (including the padded tail
    of the last chunk)."""

    op, kind = "observe", "observe"
    observed: Annotated[str, Operand("1 H W D:f", "update", updated="updated", along="W", writes=_observed)]
    query: Annotated[str, Operand("1 H C D:f", "read", along="C", reads=_observed)]
    start: Annotated[str, Number(None, None, _zero)]
    length: Annotated[str, Number(None, None, _chunk)]


@dataclass(frozen=True)
class ObservationScores(Op):
    """SnapKV scores of every prompt position, per KV head (docs/algorithm.md): causal softmax of the observation
    queries over all earlier keys, summed over queries, averaged over the query heads of a group; zero for
    t >= length - min(W, recent). `log_sum_exp` is the result of attention for these queries; if it is "" in a step, it
    is computed in one more pass over the keys."""

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
    by `width`. Results for t >= length are undefined."""

    op, kind = "pool", "pool"
    scores: Annotated[str, Operand("Hkv T:f32", "read", along="T", reads=_length)]
    pooled: Annotated[str, Operand("Hkv T:f32", "part", along="T", writes=_length)]
    length: Length
    width: Annotated[int, Attribute("pool")]
    mode: Annotated[str, Attribute("pool_mode")]


@dataclass(frozen=True)
class Select(Op):
    """Top-K positions per KV head: the first `topk` of the candidates [sink, length - recent), ordered by (score
    descending, position ascending). They are returned in ascending order of position, followed by -1; all are -1 if
    length <= sink + topk + recent, because every position has a row then."""

    op, kind = "select", "select"
    scores: Annotated[str, Operand("Hkv T:f32", "read", along="T", reads=_length)]
    selected: Annotated[str, Operand("Hkv K:i64", "write")]
    length: Length
    topk: Annotated[str, Number(_zero, _most_selected, _most_selected)]
    sink: Sink
    recent: Recent


@dataclass(frozen=True)
class GatherRows(Op):
    """Rows of a prompt's K or V by position: out[0, h, j, :] = source[0, h, index[h, j], :], or zeros if the index is
    negative. They are encoded if rows of `out` are, or copied byte for byte if those of `source` are encoded too. In
    the dialect the operation takes the destination of the rows, a part of a cache, and returns it with the rows in it.
    """

    op, kind = "gather", "gather_rows"
    source: Annotated[str, Operand("1 Hkv T D:prompt", "read", along="T", reads=_gathered, by="index", fetched=True)]
    index: Annotated[str, Operand("Hkv J:i64", "read")]
    out: Annotated[str, Operand("1 Hkv J D:row", "write", updated="gathered")]


# ------------------------------------------------------------------------------------------- rows that queries choose


@dataclass(frozen=True)
class QuantizeKeys(Op):
    """Copies of keys in 1, 2 or 4 bits (`sscc.ir.quantized_keys`): D * bits / 8 bytes of codes, and a scale."""

    op, kind = "quantize_keys", "quantize_keys"
    key: Annotated[str, Operand("B Hkv J D:f", "read")]
    codes: Annotated[str, Operand("B Hkv J E:i8", "write")]
    scales: Annotated[str, Operand("B Hkv J 1:bf16", "write")]
    bits: Bits


@dataclass(frozen=True)
class QuantizedKeyScores(Op):
    """Scores of each token's query by quantized keys, per query head (`sscc.ir.quantized_keys.logits`), for the
    candidate positions sink <= t < position[q] + 1 - recent. Other scores are not written, and none for an inactive
    token. Quantized keys of 16 bits are keys, E = D floats without scales: scores are the scaled products in f32."""

    op, kind = "quantized_key_scores", "quantized_key_scores"
    query: Query
    codes: Annotated[
        str,
        Operand("B Hkv T E:quantized_key", "read", along="T", reads=_candidates_of_all, by="position", fetched=True),
    ]
    scales: Annotated[
        str,
        Operand(
            "B Hkv T 1:bf16", "read", along="T", reads=_candidates_of_all, by="position", fetched=True, optional=True,
            omissible=True,
        ),
    ]  # fmt: skip
    position: PerSlot
    active: Active
    scores: Annotated[str, Operand("Q H T:f32", "part", along="T", writes=_candidates)]
    scale: Scale
    sink: Sink
    recent: Recent
    bits: Bits
    softcap: Softcap = None


@dataclass(frozen=True)
class ChooseRows(Op):
    """The positions that a step attends to besides sinks and ring, per token and KV head.

    With n = position[q] + 1, take each query head's softmax over its `scores` of the candidates sink <= t < n - recent
    and its scores of the rows of sinks and ring that it sees (`Validity`), of `key`; average it over the heads of a
    group; select the K candidates with the largest values, ties to the lower position. Positions are returned in
    ascending order, followed by -1; all are -1 for an inactive token. In f32.
    """

    op, kind, stored = "choose", "choose_rows", True
    query: Query
    key: Annotated[str, Operand("B Hkv R D:row", "read", fetched=True)]
    scores: Annotated[str, Operand("Q H T:f32", "read", along="T", reads=_candidates, by="position", fetched=True)]
    position: PerSlot
    active: Active
    selected: Annotated[str, Operand("Q Hkv K:i64", "write")]
    scale: Scale
    sink: Sink
    recent: Recent
    softcap: Softcap = None
    sink_logits: SinkLogits = None
    spare: Spare = 0


@dataclass(frozen=True)
class FetchRows(Op):
    """The rows that a step attends to besides sinks and ring if it may fetch a limited number of rows from a store: a
    resident set of K rows, which stays from step to step.

    `ChooseRows` defines the rows that a step wants. Of those that are not resident, the step fetches the `fetch` rows
    of largest mean probability, ties to the lower position. They take free places, then those of unwanted resident
    rows, least probable first, ties to the higher position. `resident` holds positions in ascending order, followed by
    -1; positions that are not candidates do not count. `places` holds the row of each position in `k_resident` and
    `v_resident`, followed by the free rows: each of 0 .. K - 1 once. Nothing changes for an inactive slot, or one
    without candidates. Either all rows are encoded or none; rows of a store are copied byte for byte. Without `v_store`
    and `v_resident` rows are keys alone (latent rows).
    """

    op, kind, stored = "fetch", "fetch_rows", True
    query: Query
    key: Annotated[str, Operand("B Hkv R D:row", "read", fetched=True)]
    scores: Annotated[str, Operand("Q H T:f32", "read", along="T", reads=_candidates, by="position", fetched=True)]
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
    """Bytes of X matrices of O rows, one part of the format in which they are stored."""

    own = ("E",)
    bytes: Annotated[str, Operand("X O E:i8", "read")]


@dataclass(frozen=True)
class StoredTable(Group):
    """Bytes of a table of O rows, one part of the format in which it is stored."""

    own = ("E",)
    bytes: Annotated[str, Operand("O E:i8", "read", along="O", reads=_tokens, by="index", fetched=True)]


@dataclass(frozen=True)
class Dequantize(Op):
    """The numbers of X matrices, computed from their stored parts by the formula of the named format
    (`sscc.ir.weight_formats.weight_format`), in f32 and rounded once to the dtype of `out`."""

    op, kind = "dequantize", "dequantize"
    parts: Annotated[tuple[StoredPart, ...], Several(StoredPart, most=MOST_PARTS)]
    out: Annotated[str, Operand("X O I:f", "write")]
    format: Annotated[str, Attribute()]


@dataclass(frozen=True)
class LookUp(Op):
    """Rows of a table by number, out[s, :] = table[index[s], :], for a table that is stored in parts (`Dequantize`). An
    index outside 0 .. O - 1 ends a run with an error."""

    op, kind = "look_up", "look_up"
    index: Annotated[str, Operand("S:i64", "read")]
    tables: Annotated[tuple[StoredTable, ...], Several(StoredTable, most=MOST_PARTS)]
    out: Annotated[str, Operand("S I:f", "write")]
    format: Annotated[str, Attribute()]


# ------------------------------------------------------------------------------------------------ mixture of experts


class ExpertProduct(Op):
    """Each token's rows times the matrices of its experts, out[s, j, o] = sum over i of x[s, j, i] *
    weight[expert[s, j], o, i], accumulated in f32 or wider, rounded once. J is Top, or 1 if all experts of a token
    get the same row. Matrices of unused experts are not read. `expert` holds numbers of 0 .. X - 1.

    In a schedule it is a product whose second operand has an indirect axis.
    """

    op = "expert_product"
    x: Annotated[str, Operand("S J I:f", "read")]
    weight: Annotated[str, Operand("X O I:f", "read", fetched=True)]
    expert: Annotated[str, Operand("S Top:i64", "read")]
    out: Annotated[str, Operand("S Top O:f", "write")]


@dataclass(frozen=True)
class TopK(Op):
    """The Top largest of N numbers per row, in descending order, and their indices; ties to the lower index. If a row
    contains NaN, its indices are Top different but arbitrary ones of 0 .. N - 1. `values` is "" in a step if it is not
    needed."""

    op, kind = "topk", "topk"
    order = ("source", "values", "indices")
    source: Annotated[str, Operand("S N:f", "read")]
    indices: Annotated[str, Operand("S Top:i64", "write")]
    values: Annotated[str, Operand("S Top:f", "write", optional=True)] = ""


@dataclass(frozen=True)
class ChooseByIndex(Op):
    """The positions that a learned index selects for each token, ascending, then -1 (DeepSeek-V3.2). First the new key
    of each token, at p = position[q, s] of slot b = q // (Q / B), is written to row p of keys[b]. Then, with key t in
    row t:

        score[t] = sum over h of weight[q, s, h] * max(query[q, s, h, :] . key[t], 0)       with `weight`, one choice
        score[t] = query[q, s, c, :] . key[t]                                               without, for each choice c

    for t <= p, in f32. Positions are selected in blocks of `block`; the score of a block is the largest one of its
    positions up to p. The `local` blocks that end with the block of p are always selected, then those with the highest
    scores, ties to the earlier block, Top / block blocks in all. For a token with a negative p nothing is written or
    selected. Keys from `start` + C on are not read.
    """

    op, kind = "choose_by_index", "choose_by_index"
    query: Annotated[str, Operand("Q C Hi D:f", "read")]
    new_key: Annotated[str, Operand("Q 1 C D:f", "read")]
    keys: Annotated[
        str,
        Operand(
            "B 1 T D:f", "update", updated="updated", along="T", reads=_indexed, writes=_indexed_new, by="position"
        ),
    ]
    position: Annotated[str, Operand("Q C:i64", "read")]
    chosen: Annotated[str, Operand("Q Hc C Top:i64", "write")]
    start: Start
    block: Annotated[int, Attribute()]
    local: Annotated[int, Attribute()]
    weight: Annotated[str | None, Operand("Q C Hi:f32", "read", optional=True, omissible=True)] = None


@dataclass(frozen=True)
class AttendChosen(Op):
    """Attention of each token to the rows that an index names for it; softmax and sums in f32.

    First `new_key` and `new_value` of each token, at p = position[q, s] of slot b = q // (Q / B), are written to row p
    of that slot's stores, unless p is negative. Query head h reads KV head g = h // (H // Hkv), and of its rows those
    of chosen[q, g // (Hkv // Hc), s, :] that are not negative. A token without such a row returns zeros. Without values
    the first Dv numbers of a key are its value (latent rows). Rows of stores may be encoded; new rows are encoded
    before they are attended to.
    """

    op, kind = "attend_chosen", "attend_chosen"
    query: Annotated[str, Operand("Q H S D:f", "read")]
    new_key: Annotated[str, Operand("Q Hkv S D:f", "read")]
    new_value: Annotated[
        str, Operand("Q Hkv S Dv:f", "read", optional=True, omissible=True, value_of="new_key")
    ]
    k_store: Annotated[
        str,
        Operand(
            "B Hkv T D:row", "update", updated="k_stored", along="T", reads=_attended, writes=_attending, by="chosen"
        ),
    ]
    v_store: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "update", updated="v_stored", along="T", reads=_attended, writes=_attending, by="chosen",
            optional=True, omissible=True, value_of="k_store",
        ),
    ]  # fmt: skip
    position: Annotated[str, Operand("Q S:i64", "read")]
    chosen: Annotated[str, Operand("Q Hc S Top:i64", "read")]
    out: Annotated[str, Operand("Q H S Dv:f", "write")]
    scale: Scale
    softcap: Softcap = None
    sink_logits: SinkLogits = None


# --------------------------------------------------------------------------------------------------- fused operations


@dataclass(frozen=True)
class SelectedRows(Group):
    """Prompt rows that an index selects. They are fetched one by one, skipping negative indices."""

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
    """One decode step: `row`, the `update`s, `validity` and `cached_attention` fused, which reads each row once.

    For every active token q: `Row` gives the row of p = position[q]; new_key and new_value replace that row of `key`
    and `value` for the attention of all tokens of the slot, and are written to that row of `k_cache` and `v_cache`,
    whose other rows are unchanged. Attention covers the rows of `Validity`, with a `window_stride` (equal to `recent`)
    those of a chunked window. An inactive token writes nothing and returns zeros. A slot has at most `spare` + 1
    active tokens, whose positions follow one another.

    With `segments` (at most one), rows sink .. sink + K - 1 of KV head h are replaced by those at index[b, h, j] of the
    segment's key and value where that is not negative.

    `key` is either `k_cache` itself or a copy (a stream) of it that was made before; `value` likewise. Rows may be
    encoded; the new row is encoded before it is attended to.

    Without `new_value`, `value` and `v_cache` a row is a key whose first Dv numbers are its value (latent rows); then
    the segment has no values either.
    """

    op, kind, stored = "decode_attention", "decode_attention", True
    query: Query
    new_key: NewKey
    new_value: PerhapsNewValue
    key: Annotated[str, Operand("B Hkv R D:row", "read", copy_of="k_cache")]
    value: PerhapsValue
    k_cache: Annotated[str, Operand("B Hkv R D:row", "update", updated="k_updated", along="R", writes=_new)]
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
    spare: Spare = 0


@dataclass(frozen=True)
class QueryAttention(Op):
    """One decode step over sinks, ring and the rows that its query selects, with all its writes, fused.

    It is `DecodeAttention` over the rows of the cache, which are only sinks and ring, together with the rows of
    `k_store` and `v_store` that `ChooseRows` selects by `QuantizedKeyScores`. For every active token `new_key` and
    `new_value` are also written to row position[q] of the stores, and the quantized key of `new_key` to that row of
    `codes` and `scales` (for quantized keys of 16 bits the key itself, to `codes` with E = D, without scales). A
    position is not a candidate in the step that writes it. Each quantized key is read once. Either all rows of cache
    and store are encoded or none; quantized keys are made from keys before they are encoded.

    With a limit `fetch`, attention covers the resident rows that `FetchRows` leaves, in ascending order of their
    positions, instead of rows of the stores. Without a limit `fetch` is 0 and there are no resident rows. Without
    `new_value` and the tensors it is written to, the first Dv numbers of a key are its value (latent rows).
    """

    op, kind, stored = "query_attention", "query_attention", True
    query: Query
    new_key: NewKey
    new_value: PerhapsNewValue
    key: Annotated[str, Operand("B Hkv R D:row", "read", copy_of="k_cache")]
    value: PerhapsValue
    k_cache: Annotated[str, Operand("B Hkv R D:row", "update", updated="k_updated", along="R", writes=_new)]
    v_cache: PerhapsValueCache
    k_store: Annotated[
        str,
        Operand(
            "B Hkv T D:row", "update", updated="k_stored", along="T", reads=_fetched_by_all, writes=_new, by="position"
        ),
    ]
    v_store: Annotated[
        str,
        Operand(
            "B Hkv T Dv:row", "update", updated="v_stored", along="T", reads=_fetched_by_all, writes=_new,
            by="position", optional=True, omissible=True, value_of="k_store",
        ),
    ]  # fmt: skip
    codes: Annotated[
        str,
        Operand(
            "B Hkv T E:quantized_key", "update", updated="coded", along="T", reads=_candidates_of_all, writes=_new,
            by="position",
        ),
    ]  # fmt: skip
    scales: Annotated[
        str,
        Operand(
            "B Hkv T 1:bf16", "update", updated="scaled", along="T", reads=_candidates_of_all, writes=_new,
            by="position", optional=True, omissible=True,
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
    spare: Spare = 0


@dataclass(frozen=True)
class ChunkAttention(Op):
    """Append and causal attention of one prefill chunk.

    Rows start .. start + C - 1 of `k_scratch` and `v_scratch` become `new_key` and `new_value`, encoded if the
    scratches are; then as `CausalAttention`.

    Positions from `length` on are padding: their rows of the scratches are unchanged, and everything else that the
    pipeline computes for them is undefined. Apart from this step, the pipeline computes each position from that
    position alone, so that the states after a prompt do not depend on its padding.
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

    Rows start .. start + C - 1 of `latent_scratch` become `new_latent`, encoded if the scratch is. Then the query at
    position p = start + i attends to the keys and values that its head computes from rows 0 .. p as they are stored, in
    f32 or rounded to the dtype of `query`. They are computed on use and never stored in a tensor. Softmax and sums in
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
    """A decode step of a recurrence (`Recurrence`), from the state after the previous token of each slot. An inactive
    token returns zeros, and the state of a slot without an active token is unchanged.

    With `pending`, tokens can be taken back later. `state` is then the state after the first held[b, h] positions. For
    each later position p, row p mod Pend of `pending` has the inputs: key | value | decay | beta (0 without a beta).
    The step first applies the inputs of positions held[b, h] .. position[b] - 1 to the state. A step of one token per
    slot then applies that token. A step of several tokens does not apply its own tokens: it writes the inputs of the
    active ones to `pending`. `held` becomes the number of positions that the state contains.
    """

    op, kind = "recurrent_step", "recurrent_step"
    query: Annotated[str, Operand("Q 1 G D:f32", "read")]
    key: Annotated[str, Operand("Q 1 G D:f32", "read")]
    value: Annotated[str, Operand("Q 1 H Dv:f32", "read")]
    decay: Annotated[str, Operand("Q 1 H N:f32", "read")]
    state: Annotated[str, Operand("B H D Dv:f32", "update", updated="updated", along="D", reads=_depth, writes=_depth)]
    active: Active
    out: Annotated[str, Operand("Q 1 H Dv:f32", "write")]
    rate: Annotated[str | None, Operand("H D:f32", "read", optional=True, omissible=True)] = None
    beta: Annotated[str | None, Operand("Q 1 H:f32", "read", optional=True, omissible=True)] = None
    pending: Annotated[
        str,
        Operand(
            "B H Pend Packed:f32", "update", updated="pending_now", along="Pend", reads=_drafted, writes=_pending,
            optional=True, omissible=True,
        ),
    ] = ""  # fmt: skip
    held: Annotated[
        str,
        Operand(
            "B H:i64", "update", updated="held_now", along="H", reads=_heads, writes=_heads, optional=True,
            omissible=True,
        ),
    ] = ""  # fmt: skip
    position: Annotated[str, Operand("Q:i64", "read", optional=True, omissible=True)] = ""


@dataclass(frozen=True)
class RecurrentChunk(Op):
    """The tokens of a prefill chunk of a recurrence (`Recurrence`), from the state after the previous chunk, or from
    zeros if `start` is 0. Positions from `length` on are padding: they do not change the state, and their `out` is
    undefined.

    Tokens are processed in blocks, which gives the same sums in another order. With c[t] the sum of the block's decays
    up to token t, A[t, j] = key[t] . key[j] and P[t, j] = query[t] . key[j], each product of numbers weighted by
    exp(c[t] - c[j]):

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
"""All operations, in the order of this file."""

SEVERAL_TOKENS: tuple[type[Op], ...] = (
    *(UpdateRows, Validity, CachedAttention, DecodeAttention, RecurrentStep, ChooseByIndex, AttendChosen),
    *(QuantizedKeyScores, ChooseRows, QueryAttention),
)
"""Operations of a decode step that take several tokens of each slot."""
