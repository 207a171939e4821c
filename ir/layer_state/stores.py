"""Stores: the place of a layer's rows, for the prompt in progress and for each slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.codecs import PLAIN_ROWS, RowCodec
from sscc.ir.layer_state.row_streams import Stream
from sscc.ir.layer_state.state_tensors import Extent, ProgramSizes, StateTensor

TOPK, FIRST = "topk", "first"
"""Per-layer numbers of layers with different budgets: the number of selected positions, and the layer's first row in
the packed caches."""


class RowStore(Protocol):
    """The place of rows."""

    @property
    def cache_extent(self) -> Extent:
        """Leading axes of the layers' caches."""

    def numbers(self, index: int) -> dict[str, int]:
        """Return the numbers of a layer's own rows, by name; none where layers have equal ones."""

    @property
    def keeps_prompts(self) -> bool:
        """True if the rows of all positions of a slot's prompt stay."""

    @property
    def lies_far(self) -> bool:
        """True if rows lie in far memory, if the machine has any: they grow with the context, and a step reads few of
        them."""

    @property
    def prompt_codec(self) -> RowCodec:
        """Codec of a prompt's rows during prefill."""

    @property
    def gather_codec(self) -> RowCodec:
        """Codec applied to rows when they are copied from the prompt into the cache."""

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        """Return the tensors of a stream."""

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        """Return the rows of a stream that one sequence owns in all of `layers` layers, per KV head."""

    def far_bytes(self, layers: int, row_bytes: int, quantized_key_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        """Return the bytes of one sequence outside of caches, in all `layers` layers, by name of the part.

        Args:
            row_bytes: bytes of one position's rows in one layer.
            quantized_key_bytes: bytes of one position's quantized keys in one layer.
        """

    def near_in_words(self) -> str:
        """Return a description of the caches' contents, if other rows lie elsewhere."""

    def reads_in_words(self, nbytes: str) -> str:
        """Return a description of the bytes that a step reads of a sequence, if it does not read all of it."""

    def in_words(self) -> str:
        """Return where rows lie, as it follows the sizes of a cache, or ""."""


@dataclass(frozen=True)
class CompactRows:
    """Rows that stay are copied into the cache. The prompt's rows lie in a scratch that layers use in turn."""

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
        """Rows of the cache tensor."""
        return self.geometry.cache_rows

    def held_rows(self, layers: int, sizes: ProgramSizes) -> int:
        return layers * self.geometry.cache_rows

    def far_bytes(self, layers: int, row_bytes: int, quantized_key_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        return {}

    def near_in_words(self) -> str:
        return "rows"

    def reads_in_words(self, nbytes: str) -> str:
        return nbytes

    def in_words(self) -> str:
        return ""


@dataclass(frozen=True)
class PackedRows(CompactRows):
    """Compact rows of layers with different budgets: the caches are concatenated in one tensor."""

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
    """Prompt rows stay where prefill writes them, and steps read the selected ones through an index instead of cache
    rows. A prompt that fits in the cache is copied there completely."""

    geometry: Geometry
    codec: RowCodec
    keeps_prompts = True
    lies_far = False
    cache_extent = Extent.SLOTS
    gather_codec = PLAIN_ROWS
    """Rows are copied into the cache without conversion."""

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

    def far_bytes(self, layers: int, row_bytes: int, quantized_key_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        return {"prompt": layers * sizes.scratch_rows * row_bytes}

    def near_in_words(self) -> str:
        return "rows"

    def reads_in_words(self, nbytes: str) -> str:
        return f"the {nbytes} that compact rows would take"

    def in_words(self) -> str:
        return "; the topk rows stay in the prompt's K and V"


@dataclass(frozen=True)
class AllRows(IndexedRows):
    """Rows of all positions stay, prompt and generated ones, in the same encoding. With a limit on the rows that a step
    fetches, the rows read last are resident near the cache."""

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

    def far_bytes(self, layers: int, row_bytes: int, quantized_key_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        positions = layers * sizes.scratch_rows
        return {"quantized keys": positions * quantized_key_bytes, "store": positions * row_bytes}

    def near_in_words(self) -> str:
        return "sinks and ring" if self.geometry.fetch is None else "sinks, ring and resident rows"

    def reads_in_words(self, nbytes: str) -> str:
        return f"at most {nbytes}"

    def in_words(self) -> str:
        return "; every step selects the topk rows among all positions"


@dataclass(frozen=True)
class ChosenRows(AllRows):
    """Rows of all positions stay, and the model's learned index selects those that a token attends to. There is no
    cache."""

    def tensors(self, stream: Stream, kv_heads: int, sizes: ProgramSizes) -> list[StateTensor]:
        return [tensor for tensor in super().tensors(stream, kv_heads, sizes) if tensor.name == stream.store]

    def far_bytes(self, layers: int, row_bytes: int, quantized_key_bytes: int, sizes: ProgramSizes) -> dict[str, int]:
        return {"store": layers * sizes.scratch_rows * row_bytes}

    def near_in_words(self) -> str:
        return "index keys"

    def in_words(self) -> str:
        return "; the model's own index selects them among all positions"


def _cache(
    stream: Stream, kv_heads: int, rows: int, extent: Extent, codec: RowCodec, sizes: ProgramSizes
) -> StateTensor:
    dtype, width = codec.stored(stream.width, sizes.dtype)
    return StateTensor(stream.cache, extent, dtype, (kv_heads, rows, width), stepped=True, part="cache")


def _scratch(stream: Stream, kv_heads: int, sizes: ProgramSizes) -> StateTensor:
    return StateTensor(stream.scratch, Extent.PROMPT, sizes.dtype, (kv_heads, sizes.scratch_rows, stream.width))
