"""Rows: the state of an attention layer, one row per position and KV head.

It is composed of streams (the rows that exist), a codec (storage of a row), a store (place of the rows) and a selector
(choice of those that stay). `Geometry` has their sizes, and is their form in dumps and manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from sscc.ir import operations
from sscc.ir import schedule as sch
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.codecs import PLAIN_ROWS, RowCodec, codec_of
from sscc.ir.layer_state.kept import PositionReasons, Reason
from sscc.ir.layer_state.protocol import Array, DeviceTensor, Selected, Tensors, tensor_if_there
from sscc.ir.layer_state.recorded import Recorded
from sscc.ir.layer_state.row_streams import Stream, is_latent, state_name
from sscc.ir.layer_state.selectors import (
    LOG_SUM_EXP,
    OBSERVED,
    RESIDENT,
    SELECTED,
    ModelSelection,
    NoSelection,
    PromptSelection,
    QuerySelection,
    RowSelector,
)
from sscc.ir.layer_state.state_tensors import Extent, ProgramSizes, StateTensor
from sscc.ir.layer_state.stores import AllRows, ChosenRows, CompactRows, IndexedRows, PackedRows, RowStore
from sscc.ir.schedule import DTYPE_BYTES


def store_of(geometry: Geometry) -> RowStore:
    """Return where the rows of a geometry lie."""
    codec = codec_of(geometry)
    if geometry.by_index:
        return ChosenRows(geometry, codec)
    if geometry.by_query:
        return AllRows(geometry, codec)
    if geometry.indexed:
        return IndexedRows(geometry, codec)
    return PackedRows(geometry, codec) if geometry.packed else CompactRows(geometry, codec)


def selector_of(geometry: Geometry) -> RowSelector:
    """Return who chooses the rows of a geometry that stay."""
    if geometry.by_query:
        return QuerySelection(geometry)
    if geometry.by_index:
        return ModelSelection(geometry)
    return PromptSelection(geometry, per_slot=geometry.indexed) if geometry.selects else NoSelection(geometry)


@dataclass(frozen=True)
class Rows:
    """The rows of a group of layers.

    Attributes:
        group: name of the group.
        scratch: name of the group that owns the prompt scratch.
        layers: number of layers of the group.
        geometry: rows of the layers; `Geometry.of_layer` gives those of one.
        heads: query heads.
        kv_heads: KV heads.
        streams: streams, as in `STREAMS_OF_A_GROUP`.
        sizes: sizes of the program.
    """

    group: str
    scratch: str
    layers: int
    geometry: Geometry
    heads: int
    kv_heads: int
    streams: tuple[Stream, ...]
    sizes: ProgramSizes
    attends: ClassVar[bool] = True
    """True if the layers attend to the rows."""

    @cached_property
    def codec(self) -> RowCodec:
        return codec_of(self.geometry)

    @cached_property
    def store(self) -> RowStore:
        return store_of(self.geometry)

    @cached_property
    def selector(self) -> RowSelector:
        return selector_of(self.geometry)

    @property
    def latent(self) -> bool:
        """True for latent rows: all heads compute their K and V from one cached row per position."""
        return is_latent(self.streams)

    @property
    def budgets(self) -> tuple[int, ...]:
        """Rows that a query may see, per layer."""
        return tuple(self.geometry.of_layer(index).budget for index in range(self.layers))

    @cached_property
    def by_name(self) -> dict[str, StateTensor]:
        """Tensors by name, without the group's suffix."""
        rows = [t for stream in self.streams for t in self.store.tensors(stream, self.kv_heads, self.sizes)]
        key = self.streams[0].width
        query = None if self.latent else key  # prefill's queries are narrower than a latent row
        more = self.selector.tensors(self.heads, self.kv_heads, key, query, self.sizes)
        return {tensor.name: tensor for tensor in (*rows, *more)}

    def tensors(self) -> tuple[StateTensor, ...]:
        """See `LayerState`."""
        return tuple(self.by_name.values())

    def name_of(self, tensor: StateTensor) -> str:
        """Return the name of a tensor in the entries."""
        return state_name(tensor.name, self.scratch if tensor.extent is Extent.PROMPT else self.group)

    # ------------------------------------------------------------------------------------------------ bytes

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row of one layer, in all KV heads and streams."""
        return self._row_bytes(self.codec)

    def held_bytes(self) -> int:
        """See `LayerState`."""
        rows = self.row_bytes * self.store.held_rows(self.layers, self.sizes)
        return rows + self._quantized_key_bytes(self.sizes.scratch_rows)

    def spare_bytes(self) -> int:
        """See `LayerState`."""
        without = replace(self, geometry=replace(self.geometry, spare=0))
        return self.held_bytes() - without.held_bytes()

    def far_bytes(self) -> dict[str, int]:
        """See `LayerState`."""
        key_bytes = self._quantized_key_bytes(1) // self.layers
        return self.store.far_bytes(self.layers, self.row_bytes, key_bytes, self.sizes)

    def read_bytes(self, tokens: int) -> int:
        """See `LayerState`. Rows that layers share are read by each of them; here they count once."""
        rows = sum(min(budget, tokens) for budget in self.budgets)
        return self.row_bytes * rows + self._quantized_key_bytes(max(0, tokens - self.geometry.sink_recent))

    def uncompressed_bytes(self, tokens: int) -> int:
        """See `LayerState`. A layer that attends within a window holds no more rows than that."""
        return self.layers * self._row_bytes(PLAIN_ROWS) * min(tokens, self.geometry.window or tokens)

    def chunk_bytes(self) -> int:
        """See `LayerState`: rows as they are before a ring encodes them, quantized keys, and queries where all
        select."""
        row = self._row_bytes(self.store.prompt_codec)
        for tensor in self._queries():
            heads, _, width = (size or 0 for size in tensor.shape)
            row += 0 if tensor.optional else heads * width * DTYPE_BYTES[tensor.dtype]
        return self.sizes.chunk * (self.layers * row + self._quantized_key_bytes(1))

    def carried_bytes(self) -> int:
        """See `LayerState`."""
        return 0

    def _row_bytes(self, codec: RowCodec) -> int:
        return self.kv_heads * sum(codec.nbytes(stream.width, self.sizes.dtype) for stream in self.streams)

    def _quantized_key_bytes(self, positions: int) -> int:
        quantized_key = self.selector.quantized_key_bytes(self.streams[0].width, self.sizes.dtype)
        return self.layers * self.kv_heads * positions * quantized_key

    # -------------------------------------------------------------------------------------------- snapshots

    def observed_tokens(self, prompt_len: int) -> int:
        """See `LayerState`."""
        return 1 if self._queries() else self.selector.observed_tokens(prompt_len)

    def _queries(self) -> list[StateTensor]:
        """Return the tensors in which each query of the prompt has a row; [] where only the last queries are kept."""
        if SELECTED not in self.by_name:
            return []
        known = [self.by_name[name] for name in (OBSERVED, LOG_SUM_EXP)]
        every = self.geometry.obs >= self.sizes.max_context and all(None not in tensor.shape for tensor in known)
        return known if every else []

    def slot(self, tensor: Tensors, slot: int, length: int) -> dict[str, DeviceTensor]:
        """See `LayerState`."""
        rows = min(length, self.geometry.cache_rows)  # rows in use come first
        used = {"cache": rows, "store": length, "quantized keys": length}
        views: dict[str, DeviceTensor] = {}
        for part in self.tensors():
            name = self.name_of(part)
            if part.extent is Extent.PACKED:
                views[name] = tensor(name)[slot]
            elif part.extent is Extent.SLOTS:
                views[name] = tensor(name)[:, slot, :, : used.get(part.part)]
        return views

    def picks(self, index: int, prompt_len: int) -> int:
        """See `LayerState`."""
        return self.selector_of_layer(index).picks(prompt_len)

    def remembered(self, length: int) -> dict[str, tuple[str, int]]:
        """See `LayerState`."""
        last = next((part for part in self.tensors() if part.extent is Extent.LAST_PROMPT), None)
        return {} if last is None else {self.group: (self.name_of(last), self.selector.picks(length))}

    def positions(self, tensor: Tensors, index: int, slot: int) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`."""
        for part in self.tensors():
            if part.part in ("store", "quantized keys"):
                yield self.name_of(part), tensor(self.name_of(part))[index, slot]
            elif part.name in [stream.scratch for stream in self.streams] or part in self._queries():
                rows = tensor_if_there(tensor, self.name_of(part)) if part.optional else tensor(self.name_of(part))
                if rows is not None:
                    yield state_name(part.name, self.group), rows[0]

    def carried(self, tensor: Tensors) -> Iterator[tuple[str, DeviceTensor]]:
        """See `LayerState`: all that rows leave is of single positions."""
        return iter(())

    carries: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    reads_twice: ClassVar[bool] = True

    def prompt_rows(self, tensor: Tensors, stream: Stream, index: int, slot: int) -> DeviceTensor:
        """Return the rows [Hkv, T, ..] of the prompt that one layer has in a slot or prefilled last."""
        kept = self.by_name.get(stream.store)
        if kept is not None:
            return tensor(self.name_of(kept))[index, slot]
        return tensor(self.name_of(self.by_name[stream.scratch]))[0]

    @property
    def in_scratch(self) -> bool:
        """See `LayerState`."""
        return not self.keeps_prompts or bool(self._queries())

    @property
    def keeps_prompts(self) -> bool:
        """See `LayerState`."""
        return self.store.keeps_prompts

    def first_seen(self, position: int) -> int:
        """See `LayerState`."""
        return self.geometry.sees.first(position)

    def layer_rows(self, tensor: Tensors, stream: Stream, index: int) -> DeviceTensor:
        """Return one layer's cache, [B, Hkv, R, ..], which may have the rows of other layers behind."""
        cache = tensor(state_name(stream.cache, self.group))
        return cache[:, :, self.geometry.layer_offsets[index] :] if self.geometry.packed else cache[index]

    # --------------------------------------------------------------------------------------------- contract

    def settings(self, step: sch.Step) -> Mapping[str, Any]:
        """See `LayerState`."""
        g = self.geometry
        ring = {"sink": g.sink, "recent": g.recent}
        match step:
            case operations.Pool():
                return {"width": g.pool, "mode": g.pool_mode}
            case operations.ObservationScores():
                return {"recent": g.recent}
            case operations.CausalAttention() | operations.ChunkAttention():
                return {"window": g.window, "window_stride": g.window_stride}
            case operations.DecodeAttention():
                return {**ring, "window_stride": g.window_stride, "spare": g.spare}
            case operations.QuantizeKeys():
                return {"bits": g.key_bits}
            case operations.QuantizedKeyScores():
                return {**ring, "bits": g.key_bits}
            case operations.QueryAttention():
                return {**ring, "topk": g.topk, "bits": g.key_bits, "fetch": g.fetch_rows, "spare": g.spare}
            case operations.FetchRows():
                return {**ring, "fetch": g.fetch_rows}
            case operations.ChooseRows():
                return {**ring, "spare": g.spare}
            case operations.Select():
                return ring
        return {}

    def tables(self) -> tuple[tuple[int, ...], ...]:
        """Return the tables that a looped kernel reads for its layer: number of selected rows, and first row."""
        g = self.geometry
        return (g.layer_topk, g.layer_offsets) if g.packed else (g.layer_topk,)

    def selected_counts(self) -> frozenset[int]:
        """Return how many positions the layers select, each number once."""
        return frozenset(self.geometry.layer_topk or [self.geometry.topk])

    def unequal_budgets(self) -> dict[int, tuple[int, ...]]:
        """See `LayerState`."""
        return {self.geometry.cache_rows: self.budgets} if self.geometry.packed else {}

    # -------------------------------------------------------------------------------------------- reporting

    def kept(
        self, tensor: Tensors, index: int, slot: int, length: int, prompt_len: int, selected: Selected
    ) -> PositionReasons:
        """See `LayerState`."""
        g = self.geometry.of_layer(index)
        chosen, known = self._chosen(g, tensor, index, slot, length, prompt_len, selected)
        stays = Reason.STORED if g.keeps_all else Reason.EVICTED
        reasons = np.full((self.kv_heads, length), stays, np.uint8)
        head, place = np.nonzero(chosen >= 0)
        reasons[head, chosen[head, place]] = Reason.SELECTED
        base = g.base(prompt_len)
        if not g.selected(prompt_len):
            reasons[:, :base] = Reason.SELECTED
        reasons[:, max(length - (g.visible_rows - base), base) :] = Reason.RECENT
        reasons[:, : g.sink] = Reason.SINK
        return PositionReasons(reasons, known)

    def _chosen(
        self, g: Geometry, tensor: Tensors, index: int, slot: int, length: int, prompt_len: int, selected: Selected
    ) -> tuple[Array, bool]:
        """Return the positions [Hkv, k] in a layer's top-K rows, -1 for an empty row, and False if the selection is
        unknown."""
        resident, state = self.by_name.get(RESIDENT), self.by_name.get(SELECTED)
        if resident is not None:
            return tensor(self.name_of(resident))[index, slot].read(), True
        if g.keeps_all:
            candidates = np.arange(g.sink, max(length - g.recent, g.sink))
            known = len(candidates) <= g.topk
            return np.tile(candidates[: len(candidates) if known else 0], (self.kv_heads, 1)), known
        if state is None:
            return np.zeros((self.kv_heads, 0), np.int64), True
        slots = state.extent is Extent.SLOTS
        of_layer = tensor(self.name_of(state))[index, slot].read() if slots else selected[self.group][index]
        return of_layer[:, : g.selected(prompt_len)], True

    def picked(self, tensor: Tensors, index: int) -> DeviceTensor | None:
        """See `LayerState`."""
        state = self.by_name.get(SELECTED)
        if state is None:
            return None
        picks = tensor(self.name_of(state))[index]
        return (picks[0] if state.extent is Extent.SLOTS else picks)[:, : self.geometry.of_layer(index).topk]

    def recorded(self, tensor: Tensors, index: int, length: int) -> Iterator[Recorded]:
        """See `LayerState`. Rows that are read through an index take the place of cache rows."""
        g, picks = self.geometry.of_layer(index), self.picks(index, length)
        chosen = slice(g.sink, g.sink + picks)
        visible = [g.sees_row(row, length - 1, g.base(length)) for row in range(g.cache_rows)]
        for stream in self.streams if g.cache_rows else ():
            live = self.layer_rows(tensor, stream, index)[0][:, : g.cache_rows]
            values, put = self.codec.decode(live.read()), None
            if picks and self.store.keeps_prompts:
                values[:, chosen] = self._indexed(tensor, stream, index)
            elif picks:
                put = partial(self._put, live, chosen)
            valid = np.zeros(values.shape[:2], np.bool_)
            valid[:, visible] = True
            yield Recorded(stream.cache, values, valid, chosen, put)
        for stream in self.streams if g.keeps_all else ():
            rows = self.prompt_rows(tensor, stream, index, 0)[:, :length]
            yield Recorded(stream.store, self.codec.decode(rows.read()))

    def selector_of_layer(self, index: int) -> RowSelector:
        """Return who chooses the rows of one layer."""
        return selector_of(self.geometry.of_layer(index))

    def _put(self, live: DeviceTensor, rows: slice, values: Array) -> None:
        live[:, rows].write(self.codec.encode(values))

    def _indexed(self, tensor: Tensors, stream: Stream, index: int) -> Array:
        """Return the rows [Hkv, K, D] of slot 0 that were selected."""
        prompt, picks = self.prompt_rows(tensor, stream, index, 0), self.picked(tensor, index)
        assert picks is not None
        rows: Array = np.take_along_axis(prompt.read(), picks.read()[..., None], axis=1)
        return rows

    def heads_in_words(self, between: str) -> str:
        """Return a description of the heads and their widths.

        Args:
            between: separator of different widths of streams.
        """
        if self.latent:
            return f"{self.heads} heads over one latent row of {self.streams[0].width}"
        widths = dict.fromkeys(str(stream.width) for stream in self.streams)
        return f"{self.heads}/{self.kv_heads} heads of {between.join(widths)}"

    def in_words(self) -> str:
        """See `LayerState`."""
        g, heads = self.geometry, self.heads_in_words("/")
        if g.sees.chunked:
            return f"{heads}, the rows of a chunk of {g.window}"
        if g.window:
            return f"{heads}, the last {g.window} rows (sliding window)"
        if g.by_index:
            return f"{heads}, rows of all positions, of which the model's own index chooses {g.topk}"
        if g.layer_topk:
            return (
                f"{heads}, {min(self.budgets)} to {max(self.budgets)} rows: sink {g.sink}, recent {g.recent}, "
                f"top-K by layer {' '.join(map(str, g.layer_topk))}"
            )
        return f"{heads}, {g.budget} rows: sink {g.sink}, recent {g.recent}, top-K {g.topk}"
