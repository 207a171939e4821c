"""What a caller must know about a compiled program: sizes, cache geometry, tokens that end a text."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.geometry import Geometry
from sscc.runtime.schedule import DTYPE_BYTES


@dataclass(frozen=True)
class Signature:
    """The model signature of an artifact.

    Attributes:
        geometry: rows of the compressed cache and the longest sequence.
        batch: slots that decode together (B).
        prefill_chunk: prompt tokens per prefill step (C).
        dtype: of activations and caches, "f32" or "bf16".
        layers, heads, kv_heads, head_dim: of the model (L, H, Hkv, D).
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
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()

    @property
    def scratch_tokens(self) -> int:
        """T: max_context rounded up to whole chunks; prompts are zero-padded to it."""
        return -(-self.geometry.max_context // self.prefill_chunk) * self.prefill_chunk

    def kv_bytes(self, rows: int) -> int:
        """Bytes of `rows` cache rows of one sequence: K and V, every layer and KV head."""
        return 2 * self.layers * self.kv_heads * rows * self.head_dim * DTYPE_BYTES[self.dtype]
