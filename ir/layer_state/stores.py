"""Stores: where the rows of a layer lie, those of the prompt in progress and those of a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.codecs import PLAIN_ROWS, RowCodec
from sscc.ir.layer_state.row_streams import Stream
from sscc.ir.layer_state.state_tensors import Extent, ProgramSizes, StateTensor

TOPK, FIRST = "topk", "first"
"""Numbers of a layer where layers have different budgets: how many positions it selects, and where its rows begin in
the caches that all layers have in common."""


class RowStore(Protocol):
    """The place of rows."""

    @property
    def cache_extent(self) -> Extent:
        """The axes that the layers' caches have in front of their own."""

    def numbers(self, index: int) -> dict[str, int]:
        """Return the numbers of a layer's own rows, by name; none where layers have equal ones."""

    @property
    def keeps_prompts(self) -> bool:
        """True if the rows of all positions of a slot's prompt stay."""

    @property
    def lies_far(self) -> bool:
        """True if rows lie behind main memory, where there is any: they grow with the context, and a step reads few of
        them."""

    @property
    def prompt_codec(self) -> RowCodec:
        """The codec of a prompt's rows while it is prefilled."""

    @property
    def gather_codec(self) -> RowCodec:
        """The codec that rows get as they are gathered from the prompt into a cache."""

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        """Return the tensors of a stream."""

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        """Return the rows of a stream that one sequence owns in all of `layers` layers, per KV head."""

    def far_bytes(self, layers: int, row_bytes: int, landmark_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        """Return the bytes of one sequence that lie in no cache, in all of `layers` layers, by the name of the part.

        Args:
            row_bytes, landmark_bytes: of one position in one layer.
        """

    def near_in_words(self) -> str:
        """Return what the caches hold, where other rows lie elsewhere."""

    def reads_in_words(self, nbytes: str) -> str:
        """Return what a step reads of a sequence, where that is not all of it."""

    def in_words(self) -> str:
        """Return where rows lie, as it follows the sizes of a cache, or ""."""


@dataclass(frozen=True)
class CompactRows:
    """The rows that stay are gathered into the cache; the prompt's lie in a scratch that layers use in turn."""

    geometry: Geometry
    codec: RowCodec
    keeps_prompts = False
    lies_far = False
    prompt_codec = PLAIN_ROWS
    cache_extent = Extent.SLOTS

    def numbers(self, index: int) -> dict[str, int]:
        return {}

    @property
    def gather_codec(self) -> RowCodec:
        return self.codec

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        return [
            _cache(stream, kv_heads, self._rows, self.cache_extent, self.codec, sizes),
            _scratch(stream, kv_heads, sizes),
        ]

    @property
    def _rows(self) -> int:
        """Rows of the tensor that is a cache."""
        return self.geometry.cache_rows

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        return layers * self.geometry.cache_rows

    def far_bytes(self, layers: int, row_bytes: int, landmark_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        return {}

    def near_in_words(self) -> str:
        return "rows"

    def reads_in_words(self, nbytes: str) -> str:
        return nbytes

    def in_words(self) -> str:
        return ""


@dataclass(frozen=True)
class PackedRows(CompactRows):
    """Compact rows of layers with budgets of their own: their caches lie one behind the other in one tensor."""

    cache_extent = Extent.PACKED

    def numbers(self, index: int) -> dict[str, int]:
        return {TOPK: self.geometry.layer_topk[index], FIRST: self.geometry.layer_offsets[index]}

    @property
    def _rows(self) -> int:
        return self.geometry.packed_rows

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        return self.geometry.packed_rows


@dataclass(frozen=True)
class IndexedRows:
    """The rows of the prompt stay where prefill writes them, and an index names those that steps read in the place of
    rows of the cache; of a prompt that fits the cache all are there."""

    geometry: Geometry
    codec: RowCodec
    keeps_prompts = True
    lies_far = False
    cache_extent = Extent.SLOTS
    gather_codec = PLAIN_ROWS
    """Rows are in the cache as they are in the prompt."""

    @property
    def prompt_codec(self) -> RowCodec:
        return PLAIN_ROWS

    def numbers(self, index: int) -> dict[str, int]:
        return {TOPK: self.geometry.layer_topk[index]} if self.geometry.varies else {}

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        dtype, width = self.codec.stored(stream.width, sizes.dtype)
        rows = (kv_heads, sizes.scratch_rows, width)
        return [
            _cache(stream, kv_heads, self.geometry.cache_rows, Extent.SLOTS, self.codec, sizes),
            StateTensor(stream.store, Extent.SLOTS, dtype, rows, stepped=self._stepped, part="store"),
        ]

    _stepped = False

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        return layers * (self.geometry.cache_rows + sizes.scratch_rows)

    def far_bytes(self, layers: int, row_bytes: int, landmark_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        return {"prompt": layers * sizes.scratch_rows * row_bytes}

    def near_in_words(self) -> str:
        return "rows"

    def reads_in_words(self, nbytes: str) -> str:
        return f"the {nbytes} that compact rows would take"

    def in_words(self) -> str:
        return "; those of topk stay in the prompt's K and V"


@dataclass(frozen=True)
class AllRows(IndexedRows):
    """Rows of all positions stay, those of steps too; with a limit on what a step fetches, those that it read last are
    resident near the cache. Whoever wrote a row, it is stored alike."""

    lies_far = True
    _stepped = True

    @property
    def prompt_codec(self) -> RowCodec:
        return self.codec

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        tensors = super().tensors(stream, kv_heads, sizes)
        if self.geometry.fetch is not None:
            dtype, width = self.codec.stored(stream.width, sizes.dtype)
            rows = (kv_heads, self.geometry.topk, width)
            tensors.append(StateTensor(stream.resident, Extent.SLOTS, dtype, rows, stepped=True, part="resident rows"))
        return tensors

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        resident = 0 if self.geometry.fetch is None else self.geometry.topk
        return super().held_rows(layers, sizes) + layers * resident

    def far_bytes(self, layers: int, row_bytes: int, landmark_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        positions = layers * sizes.scratch_rows
        return {"landmarks": positions * landmark_bytes, "store": positions * row_bytes}

    def near_in_words(self) -> str:
        return "sinks and ring" if self.geometry.fetch is None else "sinks, ring and resident rows"

    def reads_in_words(self, nbytes: str) -> str:
        return f"at most {nbytes}"

    def in_words(self) -> str:
        return "; those of topk are chosen in every step, of all positions"


@dataclass(frozen=True)
class ChosenRows(AllRows):
    """Rows of all positions stay, and an index of the model's own chooses those that a token attends to. None lies in a
    cache."""

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        return [tensor for tensor in super().tensors(stream, kv_heads, sizes) if tensor.name == stream.store]

    def far_bytes(self, layers: int, row_bytes: int, landmark_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        return {"store": layers * sizes.scratch_rows * row_bytes}

    def near_in_words(self) -> str:
        return "index keys"

    def in_words(self) -> str:
        return "; the model's own index chooses them, of all positions"


def _cache(
    stream: Stream, kv_heads: int, rows: int, extent: Extent, codec: RowCodec, sizes: ProgramSizes
) -> StateTensor:
    dtype, width = codec.stored(stream.width, sizes.dtype)
    return StateTensor(stream.cache, extent, dtype, (kv_heads, rows, width), stepped=True, part="cache")


def _scratch(stream: Stream, kv_heads: int, sizes: ProgramSizes) -> StateTensor:
    return StateTensor(stream.scratch, Extent.PROMPT, sizes.dtype, (kv_heads, sizes.scratch_rows, stream.width))
