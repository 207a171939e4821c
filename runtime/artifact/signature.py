"""What a caller must know about a compiled program: sizes, cache geometry, tokens that end a text."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.geometry import Geometry
from sscc.ir.kv_rows import encoded_width
from sscc.ir.schedule import DTYPE_BYTES
from sscc.ir.sizes import format_bytes


@dataclass(frozen=True)
class Signature:
    """The model signature of an artifact.

    Attributes:
        geometry: rows of the compressed cache and the longest sequence.
        batch: slots that decode together (B).
        prefill_chunk: prompt tokens per prefill step (C).
        dtype: of activations and caches, "f32" or "bf16".
        layers, heads, kv_heads, head_dim: of the model (L, H, Hkv, D).
        value_dim: width of a value (Dv), where head_dim is that of a key.
        vocab_size: tokens are 0 .. vocab_size - 1.
        eos_token_ids: tokens that end a text; may be empty.
    """

    geometry: Geometry
    batch: int
    prefill_chunk: int
    dtype: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()

    @property
    def scratch_tokens(self) -> int:
        """T: max_context rounded up to whole chunks; prompts are zero-padded to it."""
        return self.chunks(self.geometry.max_context) * self.prefill_chunk

    def chunks(self, length: int) -> int:
        """Chunks of a prompt of `length` tokens."""
        return -(-length // self.prefill_chunk)

    def prefill_steps(self, length: int) -> int:
        """Chunk steps that a prompt of `length` tokens takes: every phase over its chunks, and the head."""
        return (self.layers + 1) * self.chunks(length) + 1

    @property
    def held_rows(self) -> int:
        """Rows of K and V that a sequence owns, per layer and KV head: those of the cache, and where the selected ones
        are indexed those of its whole prompt."""
        return self.geometry.cache_rows + (self.scratch_tokens if self.geometry.indexed else 0)

    def kv_bytes(self, rows: int) -> int:
        """Bytes of `rows` cache rows of one sequence, as they are stored: K and V, every layer and KV head."""
        widths = encoded_width(self.head_dim) + encoded_width(self.value_dim)
        return self._rows(rows) * (widths if self.geometry.encoded else self._plain_row)

    def full_kv_bytes(self, tokens: int) -> int:
        """Bytes of K and V of `tokens` tokens in a cache that is neither compressed nor encoded."""
        return self._rows(tokens) * self._plain_row

    def _rows(self, tokens: int) -> int:
        return self.layers * self.kv_heads * tokens

    @property
    def _plain_row(self) -> int:
        return (self.head_dim + self.value_dim) * DTYPE_BYTES[self.dtype]

    def kv_in_words(self) -> str:
        """What one sequence holds, what a decode step reads of it, and what an uncompressed cache would be."""
        g = self.geometry
        read, full = self.kv_bytes(g.budget), self.full_kv_bytes(g.max_context)
        plain = f"{format_bytes(full)} uncompressed ({full / read:.1f}x)"
        if not g.indexed:
            return f"{format_bytes(read)} a sequence, {plain}"
        ring, prompt = self.kv_bytes(g.cache_rows), self.kv_bytes(self.scratch_tokens)
        return (
            f"{format_bytes(ring + prompt)} a sequence ({format_bytes(ring)} of sinks and ring, {format_bytes(prompt)} "
            f"of prompt), of which a step reads the {format_bytes(read)} that compact rows would take; {plain}"
        )
