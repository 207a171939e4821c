"""The geometry of a compressed KV cache: the rows that it has, and the absolute position in each of them.

One sequence and one layer own ``budget = sink + recent + topk`` rows::

    row:   0 .......... sink-1 | sink ........ sink+topk-1 | sink+topk ..... budget-1
           attention sinks     | kept: top-K of the prompt | recent ring (rotates)

A sequence of at most `budget` tokens has each position p in row p, and nothing is evicted. After a shorter prompt the
ring begins where the prompt ends (`Geometry.base`), so that it uses the rows that the prompt does not need. Selected
rows are copied into the cache ("compact") or stay where prefill wrote them and are read from there ("indexed"; see
`Geometry.rows`). Under the policy "query" a store keeps the rows of all positions, and each step reads the `topk` rows
that its query selects by quantized keys (`sscc.ir.quantized_keys`); the cache itself has only sinks and ring.

This is the only module that checks a geometry. Passes, dialect verifiers, the runtime and the command line all use it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sscc.ir.choices import KEY_BITS, ROW_CODES
from sscc.ir.errors import ErrorKind, UsageError

if TYPE_CHECKING:
    from sscc.ir.kv_rows import RowFormat


class GeometryErrors(ErrorKind):
    """Invalid geometries of a KV cache."""

    TOO_SMALL = UsageError, "KV {field} must be at least {least}, got {value}"
    EVEN_POOL = UsageError, "KV pool must be odd, got {pool}"
    LARGE_POOL = UsageError, "KV pool must be at most {most}, got {pool}"
    POOL_MODE = UsageError, "KV pool mode must be one of {choices}, got {mode!r}"
    ROWS = UsageError, "KV rows must be one of {choices}, got {rows!r}"
    DTYPE = UsageError, "KV dtype must be one of {choices}, got {dtype!r}"
    POLICY = UsageError, "KV policy must be one of {choices} or {rule}NAME@SHA256, got {policy!r}"
    KEY_BITS = UsageError, "bits of quantized keys must be one of {choices} with --kv-policy query, got {bits}"
    KEY_BITS_UNUSED = UsageError, "bits of quantized keys are {bits}, but only --kv-policy query has such keys"
    FETCH_UNUSED = (
        UsageError,
        "KV fetch is {fetch}, but it limits the rows that a step reads from a store, which only --kv-policy query has",
    )
    ENCODED_INDEXED = (
        UsageError,
        "--kv-dtype {dtype} encodes rows as they are copied into the cache, but with --kv-rows indexed the selected "
        "rows stay in the prompt: use --kv-rows compact, or --kv-dtype model",
    )
    EXCEEDS_CONTEXT = (
        UsageError,
        "sink + recent = {sink} + {recent} = {rows} rows exceed max-context {max_context}: lower --kv-recent or raise "
        "--max-context",
    )
    TOPK_EXCEEDS_CONTEXT = (
        UsageError,
        "topk = {topk} exceeds max-context - sink - recent = {max_context} - {sink} - {recent} = {most}: lower "
        "--kv-topk or raise --max-context",
    )
    WINDOW_RING = (
        UsageError,
        "a layer that attends within a window of {window} positions keeps a ring of {window} rows, not sink {sink}, "
        "recent {recent} and topk {topk}",
    )
    WINDOW_STRIDE = (
        UsageError,
        "a window of {window} positions moves in steps of {stride}: it must slide, or move by its whole size, so that "
        "a query sees the first rows of its ring",
    )
    INDEXED_WITHOUT_TOPK = (
        UsageError,
        "--kv-rows indexed keeps the whole prompt to read the selected rows from, and with topk = 0 none are selected: "
        "raise --kv-topk, or use --kv-rows compact",
    )
    LAYER_TOPK = UsageError, "a layer must select 0 .. {most} positions, got {topk}"
    QUERY_ROWS = (
        UsageError,
        "--kv-policy query keeps all rows and chooses equally many in every layer: it takes neither --kv-rows compact "
        "nor --kv-topk-per-layer",
    )
    QUERY_WITHOUT_TOPK = (
        UsageError,
        "--kv-policy query keeps all rows and chooses topk of them in every step, and topk is 0: raise --kv-topk, or "
        "use --kv-policy snapstream",
    )
    FETCH = (
        UsageError,
        "a step fetches {fetch} rows of topk = {topk} from the store; it must fetch 1 .. topk: change --kv-fetch, or "
        "leave it out for no limit",
    )
    SPARE_FETCH = (
        UsageError,
        "steps with {spare} drafted tokens (--verify) cannot limit the rows that they fetch (--kv-fetch {fetch}): "
        "leave one of them out",
    )
    SPARE_RECENT = (
        UsageError,
        "a ring of {recent} rows (--kv-recent) must have more rows than a step has drafted tokens (--verify {spare})",
    )
    BUDGET = (
        UsageError,
        "a KV budget of {budget} rows cannot hold sink {sink} + recent {recent} = {rows} rows: raise --kv-budget or "
        "give --kv-sink and --kv-recent",
    )


POOL_MODES = ("avg", "max")
COMPACT, INDEXED = KV_ROWS = ("compact", "indexed")
PLAIN = "model"
KV_DTYPES = (PLAIN, *ROW_CODES)
SNAPSTREAM, QUERY = KV_POLICIES = ("snapstream", "query")
INDEX = "index"
"""Policy of layers whose model selects rows by a learned index. It is not an option."""
RULE = "rule:"
_RULE = re.compile(rf"{RULE}([^\W\d]\w*)@([0-9a-f]{{64}})")
DEFAULT_KEY_BITS = 2
DEFAULT_SINK = 4
DEFAULT_RECENT = 512
DEFAULT_OBS = 32
DEFAULT_POOL = 15
LARGEST_POOL = 1 << 20
"""Limit of the pooling width: a kernel is padded by half its width on either side, which takes memory."""


def default_recent(budget: int, obs: int, pool: int) -> int:
    """Return the default number of ring rows: a quarter of the budget, but enough that pooling does not spread the
    unscored columns of the observation window to a candidate."""
    return min(DEFAULT_RECENT, max(obs + pool // 2, budget // 4))


@dataclass(frozen=True)
class Span:
    """Span of positions that a query sees: its own position, and those before it from `first` on.

    A window of `size` positions moves in steps of `stride`; the query at position p sees positions
    ``max(p - p mod stride + stride - size, 0) .. p``. With stride 1 the window slides (Mistral, arXiv 2310.06825). With
    stride `size` the text is divided into chunks of `size` tokens, and a query sees its own chunk (Llama 4).

    Attributes:
        size: maximum number of positions that a query sees; 0 for no limit. A span without a limit is falsy.
        stride: step of the window, in positions.
    """

    size: int = 0
    stride: int = 1

    def __bool__(self) -> bool:
        return self.size > 0

    def first(self, position: int) -> int:
        """Return the first position that the query at `position` sees."""
        return max(position - position % self.stride + self.stride - self.size, 0) if self else 0

    @property
    def chunked(self) -> bool:
        """True if queries see only the chunk that they are in."""
        return self.stride > 1

    def inside(self, context: int) -> Span:
        """Return the window for texts of at most `context` positions: an unlimited span if the window never limits
        them."""
        return self if self.size < context else Span()

    @property
    def name(self) -> str:
        """Name of a group of layers with this window; "" without a window."""
        return f"{'chunk' if self.chunked else 'window'}{self.size}" if self else ""

    def __str__(self) -> str:
        if not self:
            return "all positions"
        return f"a chunk of {self.size} positions" if self.chunked else f"a sliding window of {self.size} positions"


@dataclass(frozen=True)
class Geometry:
    """Sizes of a compressed cache, in rows (tokens) unless stated otherwise.

    Attributes:
        sink: leading positions that are always kept (attention sinks), >= 0.
        recent: rows of the ring of the newest positions, >= 1.
        topk: prompt positions selected at the end of prefill, per KV head, >= 0.
        obs: observation window: number of last prompt queries that score the prompt, >= 1.
        pool: odd width of the pooling kernel over scores.
        pool_mode: "avg" (always divides by ``pool``) or "max".
        max_context: longest sequence (prompt plus new tokens) that the program accepts, in tokens.
        rows: place of the selected rows. "compact": copied into the cache once; "indexed": kept in the prompt's K and
            V, and read through their positions at every step.
        dtype: storage of cache rows. "model": the model's dtype; "int8" or "int4": codes of that many bits and their
            scales (`sscc.ir.kv_rows`).
        window: size of the attention window (`Span`), which is the ring, of layers that have one; 0 for none.
        window_stride: step of the window, equal to `window` if queries see their chunk; None for a sliding window.
        policy: selector of rows. "snapstream": once, by the prompt's last queries; "rule:NAME@SHA256": once, by the
            scores of a user's rule; "query": at every step, by its query, from the rows of all positions, which are
            kept ("indexed"); "index": by the model's learned index, also from all rows, without sinks and ring.
        key_bits: bits per number of the key copies by which a query selects: 1, 2, 4, or 16 (the keys themselves);
            0 if queries do not select.
        fetch: maximum number of rows that a step copies from the store per KV head, 1 .. `topk`, if queries select. The
            step then attends to `topk` resident rows, which stay from step to step. None for no limit: the step
            attends to all rows that it selects.
        layer_topk: selected positions of each layer under this geometry, in order, if layers have different budgets;
            `topk` is then the largest number that a layer may select.
        spare: rows of the ring beyond those that a query sees, >= 0. A step that writes up to `spare` rows more than
            are accepted overwrites no row that a later query sees.
    """

    sink: int
    recent: int
    topk: int
    obs: int
    pool: int
    pool_mode: str
    max_context: int
    rows: str = COMPACT
    dtype: str = PLAIN
    window: int = 0
    policy: str = SNAPSTREAM
    key_bits: int = 0
    fetch: int | None = None
    layer_topk: tuple[int, ...] = ()
    window_stride: int | None = None
    spare: int = 0

    def __post_init__(self) -> None:
        recent = 0 if self.by_index else 1
        least = {"sink": 0, "recent": recent, "topk": 0, "obs": 1, "pool": 1, "max_context": 1, "spare": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise GeometryErrors.TOO_SMALL(field=name, value=getattr(self, name), least=low)
        if self.pool % 2 == 0:
            raise GeometryErrors.EVEN_POOL(pool=self.pool)
        if self.pool > LARGEST_POOL:
            raise GeometryErrors.LARGE_POOL(pool=self.pool, most=LARGEST_POOL - 1)
        if self.pool_mode not in POOL_MODES:
            raise GeometryErrors.POOL_MODE(mode=self.pool_mode, choices=POOL_MODES)
        if self.rows not in KV_ROWS:
            raise GeometryErrors.ROWS(rows=self.rows, choices=KV_ROWS)
        if self.dtype not in KV_DTYPES:
            raise GeometryErrors.DTYPE(dtype=self.dtype, choices=KV_DTYPES)
        if self.policy not in (*KV_POLICIES, INDEX) and self.rule is None:
            raise GeometryErrors.POLICY(policy=self.policy, choices=KV_POLICIES, rule=RULE)
        if self.by_query and self.key_bits not in KEY_BITS:
            raise GeometryErrors.KEY_BITS(bits=self.key_bits, choices=KEY_BITS)
        if self.key_bits and not self.by_query:
            raise GeometryErrors.KEY_BITS_UNUSED(bits=self.key_bits)
        if self.by_query:
            self._check_by_query()
        elif self.fetch is not None:
            raise GeometryErrors.FETCH_UNUSED(fetch=self.fetch)
        if self.indexed and self.encoded and not self.keeps_all:
            raise GeometryErrors.ENCODED_INDEXED(dtype=self.dtype)
        if self.sink + self.recent > self.max_context:
            raise GeometryErrors.EXCEEDS_CONTEXT(
                sink=self.sink, recent=self.recent, rows=self.sink_recent, max_context=self.max_context
            )
        if self.topk > self.max_context - self.sink_recent:
            raise GeometryErrors.TOPK_EXCEEDS_CONTEXT(
                topk=self.topk, max_context=self.max_context, sink=self.sink, recent=self.recent,
                most=self.max_context - self.sink_recent,
            )  # fmt: skip
        if self.window and (self.sink, self.recent, self.topk) != (0, self.window, 0):
            raise GeometryErrors.WINDOW_RING(
                window=self.window, sink=self.sink, recent=self.recent, topk=self.topk
            )
        if self.spare and self.fetch is not None:
            raise GeometryErrors.SPARE_FETCH(spare=self.spare, fetch=self.fetch)
        if self.spare and self.by_query and self.recent <= self.spare:
            raise GeometryErrors.SPARE_RECENT(recent=self.recent, spare=self.spare)
        if self.window_stride not in (None, self.window or None):
            raise GeometryErrors.WINDOW_STRIDE(window=self.window, stride=self.window_stride)
        if self.indexed and not min(self.layer_topk, default=self.topk):
            raise GeometryErrors.INDEXED_WITHOUT_TOPK()
        wrong = [topk for topk in self.layer_topk if not 0 <= topk <= self.topk]
        if wrong:
            raise GeometryErrors.LAYER_TOPK(topk=wrong[0], most=self.topk)

    def _check_by_query(self) -> None:
        if not self.indexed or self.layer_topk:
            raise GeometryErrors.QUERY_ROWS()
        if not self.topk:
            raise GeometryErrors.QUERY_WITHOUT_TOPK()
        if self.fetch is not None and not 1 <= self.fetch <= self.topk:
            raise GeometryErrors.FETCH(fetch=self.fetch, topk=self.topk)

    @classmethod
    def from_budget(
        cls,
        budget: int,
        max_context: int,
        *,
        sink: int | None = None,
        recent: int | None = None,
        obs: int = DEFAULT_OBS,
        pool: int = DEFAULT_POOL,
        pool_mode: str = "avg",
        rows: str = COMPACT,
        dtype: str = PLAIN,
        policy: str = SNAPSTREAM,
        key_bits: int = 0,
        fetch: int | None = None,
        spare: int = 0,
    ) -> Geometry:
        """Return a geometry of `budget` rows: sink 4, recent min(512, max(obs + pool//2, budget//4)), and topk the
        rest."""
        sink = DEFAULT_SINK if sink is None else sink
        if recent is None:
            recent = default_recent(budget, obs, pool)
        topk = budget - sink - recent
        if topk < 0:
            raise GeometryErrors.BUDGET(budget=budget, sink=sink, recent=recent, rows=sink + recent)
        parts = (sink, recent, topk, obs, pool, pool_mode, max_context, rows, dtype)
        return cls(*parts, policy=policy, key_bits=key_bits, fetch=fetch, spare=spare)

    def windowed(self, window: Span) -> Geometry:
        """Return the geometry of a layer with an attention window of fewer positions than max_context."""
        return replace(
            self, sink=0, recent=window.size, topk=0, rows=COMPACT, window=window.size,
            window_stride=window.stride if window.chunked else None, policy=SNAPSTREAM, key_bits=0, fetch=None,
            layer_topk=(),
        )  # fmt: skip

    def chosen(self, topk: int) -> Geometry:
        """Return the geometry of a layer whose model chooses `topk` rows of all positions by an index of its own."""
        return replace(
            self, sink=0, recent=0, topk=topk, rows=INDEXED, policy=INDEX, key_bits=0, fetch=None, layer_topk=(),
            spare=0,
        )  # fmt: skip

    @property
    def sees(self) -> Span:
        """Span of positions that a query of the layer may see; some of them may have been evicted."""
        return Span(self.window, self.window_stride or 1)

    def with_layers(self, layer_topk: Sequence[int]) -> Geometry:
        """Return this geometry with the number of selected positions of each layer; equal numbers become `topk` alone.
        """
        if len(set(layer_topk)) == 1:
            return replace(self, topk=layer_topk[0], layer_topk=())
        return replace(self, topk=max(layer_topk), layer_topk=tuple(layer_topk))

    @property
    def takes_budget(self) -> bool:
        """True if a budget of rows governs the layers; False where a window does, or an index of the model's own."""
        return not self.window and not self.by_index

    def check_layers(self, count: int) -> None:
        """Raise ValueError if there are budgets for another number of layers than `count`."""
        if self.layer_topk and len(self.layer_topk) != count:
            raise ValueError(f"there are {len(self.layer_topk)} top-K budgets for {count} layers")

    def of_layers(self, layers: Sequence[int]) -> Geometry:
        """Return the geometry of some of the layers under this one; `layers` are their numbers, counted from 0."""
        return replace(self, layer_topk=tuple(self.layer_topk[layer] for layer in layers)) if self.layer_topk else self

    def of_layer(self, layer: int) -> Geometry:
        """Return the geometry of one of the layers under this one, counted from 0."""
        return replace(self, topk=self.layer_topk[layer], layer_topk=()) if self.layer_topk else self

    @property
    def sink_recent(self) -> int:
        """SR: rows outside of the top-K block."""
        return self.sink + self.recent

    @property
    def budget(self) -> int:
        """Rows per sequence, layer and KV head that a query may see."""
        return self.sink_recent + self.topk

    @property
    def varies(self) -> bool:
        """True if layers select different numbers of positions."""
        return bool(self.layer_topk)

    def most_in_words(self, rows: int) -> str:
        """Return a number of rows in words: "up to" it where layers with a lower budget have fewer."""
        return f"{'up to ' if self.varies else ''}{rows}"

    @property
    def indexed(self) -> bool:
        """True if the selected rows stay in the prompt's K and V."""
        return self.rows == INDEXED

    @property
    def reads_prompts(self) -> bool:
        """True if steps read selected rows from where prefill wrote them instead of from the cache."""
        return self.indexed and not self.keeps_all

    @property
    def by_query(self) -> bool:
        """True if the query of each step selects rows."""
        return self.policy == QUERY

    @property
    def by_index(self) -> bool:
        """True if an index of the model's own chooses the rows that a token attends to."""
        return self.policy == INDEX

    @property
    def keeps_all(self) -> bool:
        """True if the rows of all positions stay."""
        return self.by_query or self.by_index

    @property
    def rule(self) -> tuple[str, str] | None:
        """Name and digest of the user's rule that scores prompts; None without a rule."""
        match = _RULE.fullmatch(self.policy)
        return (match[1], match[2]) if match else None

    @property
    def selects(self) -> bool:
        """True if rows are selected at the end of a prompt."""
        return self.topk > 0 and not self.keeps_all

    @property
    def fetch_rows(self) -> int:
        """The limit `fetch`; 0 for no limit."""
        return self.fetch or 0

    @property
    def encoded(self) -> bool:
        """True if cache rows are codes and scales."""
        return self.dtype != PLAIN

    @property
    def row_format(self) -> RowFormat:
        """Encoding of cache rows. Raises KeyError if they are not encoded."""
        from sscc.ir.kv_rows import FORMATS  # imported late: parsing options needs no numpy

        return FORMATS[self.dtype]

    @property
    def encodes_prompts(self) -> bool:
        """True if prefill writes the rows of a prompt as codes and attends to the decoded rows. This is so if all rows
        are kept: prompt rows and rows of later steps are then stored in the same way. Otherwise rows are encoded as
        they are copied into the cache at the end of the prompt."""
        return self.encoded and self.keeps_all

    @property
    def cache_rows(self) -> int:
        """Rows of the cache itself: the whole budget, or only sinks and ring if a store keeps the rows of all
        positions; and the spare rows."""
        return self.visible_rows + self.spare

    @property
    def ring_rows(self) -> int:
        """Rows of the shortest ring, spare rows included."""
        return self.recent + self.spare

    @property
    def covered_rows(self) -> int:
        """Rows that the attention of a step covers: those of the cache and, if queries select, the selected rows."""
        return self.budget + self.spare

    @property
    def visible_rows(self) -> int:
        """Maximum number of cache rows that a query sees."""
        return self.sink_recent if self.keeps_all else self.budget

    @property
    def most_kept(self) -> int:
        """Maximum number of positions that a sequence keeps."""
        return self.max_context if self.keeps_all else self.budget

    @property
    def packed(self) -> bool:
        """True if the layers' caches have different numbers of rows; they are then concatenated in one state instead of
        stacked."""
        return bool(self.layer_topk) and not self.indexed

    @property
    def layer_offsets(self) -> tuple[int, ...]:
        """First row of each layer in a packed state."""
        return tuple(accumulate((self.sink + topk + self.ring_rows for topk in self.layer_topk[:-1]), initial=0))

    @property
    def packed_rows(self) -> int:
        """Rows of a packed state. A program sees `cache_rows` rows from a layer's first row on, even if the layer has
        fewer, so the last layer is padded to that number."""
        return max(self.layer_offsets) + self.cache_rows

    def selected(self, prompt_len: int) -> int:
        """Return the maximum number of positions that a layer selects at the end of a prompt of `prompt_len` tokens: 0
        if all of the prompt fits."""
        counts = [topk for topk in self.layer_topk or (self.topk,) if prompt_len > self.sink_recent + topk]
        return max(counts, default=0) if self.selects else 0

    def base(self, prompt_len: int) -> int:
        """Return the first row of the ring after a prompt of `prompt_len` tokens; rows before it are never overwritten
        (docs/algorithm.md)."""
        return min(max(prompt_len, self.sink), self.visible_rows - self.recent)

    def row(self, position: int, base: int) -> int:
        """Return the cache row of an absolute position (0-based) that is not a selected one, for a ring that begins at
        row `base`."""
        return position if position < base else base + (position - base) % (self.cache_rows - base)

    def written_of_ring(self, position: Any, base: Any) -> Any:
        """Return the number of positions up to `position` that a ring from row `base` on receives and a query there may
        see: all of them, or with a chunked window those of the query's chunk. Both are integers or tensors of them."""
        return (position % self.window_stride if self.window_stride else position - base) + 1

    def sees_row(self, row: int, position: int, base: int) -> bool:
        """Return True if the query at `position` sees a row of the cache, for a ring that begins at row `base`.

        Rows before `base` are visible once they are written. Of the ring, the newest rows are: all that the budget has
        room for, or with a chunked window those of the query's chunk.
        """
        if row < base or position < base:
            return row <= position
        newest: int = self.written_of_ring(position, base)
        age = (self.row(position, base) - row) % (self.cache_rows - base)
        return age < min(newest, self.visible_rows - base)

    def kept_rows(self, length: int) -> int:
        """Return the number of positions that are kept after `length` of them have been written. Unless queries select
        among them, a step reads all of these rows."""
        return length if self.keeps_all else min(length, self.budget)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, with lists for tuples. Fields from `window` on that have their default are
        omitted."""
        values = asdict(self) | {"layer_topk": list(self.layer_topk)}
        defaults: dict[str, Any] = {
            "window": 0, "policy": SNAPSTREAM, "key_bits": 0, "fetch": None, "layer_topk": [],
            "window_stride": None, "spare": 0,
        }  # fmt: skip
        return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Geometry:
        """Return the geometry that `to_dict` wrote. Raises TypeError for unknown fields, UsageError for an invalid
        geometry."""
        return cls(**{**values, "layer_topk": tuple(values.get("layer_topk", ()))})
