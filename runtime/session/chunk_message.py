"""The rows of one chunk of a prompt as bytes, one of the `RowMessages`, for prompts with a common prefix.

Rows depend on all tokens up to the chunk's end. A message has only the tokens of the chunk, and the key of the previous
chunk; its own key follows from both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import Array, Specs, TensorSpec
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.row_messages import RowMessages, by_rank, check_parts, check_tokens, parts_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FORMAT, VERSION = "sscc-chunk", 2
FIRST = b""
"""Key in place of the previous chunk of the first one."""

TOKENS, POSITIONS, BEFORE = "tokens", "positions", "before"
"""Names of tensors besides the rows: the tokens of the chunk [C] i64, their positions in the text [C] i64, and the key
of the previous chunk, 32 bytes, or none for the first."""
_KEY_BYTES = 32


@dataclass(frozen=True, eq=False)
class ChunkMessage:
    """The rows of a chunk, outside of a session.

    Attributes:
        before: key of the previous chunk, or `FIRST`.
        tokens: tokens of the chunk, C of them.
        parts: states by name, for every rank (`KeptRows`).
        checkpoint: True if they include the states that the chunk leaves for the next one.
    """

    before: bytes
    tokens: Excerpt
    parts: tuple[Mapping[str, Array], ...]
    checkpoint: bool

    @property
    def key(self) -> bytes:
        return chunk_key(self.before, self.tokens)


class ChunkFormat:
    """The messages of the chunks of one program.

    Args:
        layout: shape and dtype of the states of a chunk, by rank.
        checkpoint: the same for a chunk that is a checkpoint.
    """

    def __init__(
        self,
        signature: Signature,
        identity: ProgramIdentity,
        layout: list[dict[str, TensorSpec]],
        checkpoint: list[dict[str, TensorSpec]],
    ) -> None:
        self._signature, self._layouts = signature, (layout, checkpoint)
        self._messages = RowMessages(FORMAT, VERSION, signature, identity, len(layout))

    def pieces(self, message: ChunkMessage) -> list[memoryview]:
        """Return the bytes of a message, to be written one after another."""
        tokens = message.tokens
        arrays = {TOKENS: tokens.tokens, POSITIONS: tokens.positions, BEFORE: np.frombuffer(message.before, np.int8)}
        arrays |= by_rank(message.parts)
        numbers = {"follows": bool(message.before), "checkpoint": message.checkpoint}
        return self._messages.pieces(arrays, {name: str(int(number)) for name, number in numbers.items()})

    def read(self, data: ReadableBuffer, where: str) -> ChunkMessage:
        """Return the message in bytes; its rows are views of them.

        Args:
            where: source of the bytes, for errors.

        Raises:
            InputError: not a message, another version, rows of another program or other weights, damaged, with invalid
                tokens, or with numbers that are not finite.
        """
        opened = self._messages.opened(data, where, ("follows", "checkpoint"))
        numbers = {name: opened.number(name, 0, 1) for name in ("follows", "checkpoint")}
        texts = {name: str(number) for name, number in numbers.items()}
        arrays = self._messages.arrays(opened, self._specs(**numbers), texts)
        check_tokens(arrays[TOKENS], arrays[POSITIONS], self._signature, where)
        parts = parts_of(arrays, self._layouts[numbers["checkpoint"]])
        check_parts(parts, where)
        tokens = Excerpt(arrays[TOKENS], arrays[POSITIONS])
        return ChunkMessage(arrays[BEFORE].tobytes(), tokens, parts, bool(numbers["checkpoint"]))

    def _specs(self, follows: int, checkpoint: int) -> Specs:
        specs = dict.fromkeys((TOKENS, POSITIONS), TensorSpec((self._signature.prefill_chunk,), "i64"))
        specs[BEFORE] = TensorSpec((_KEY_BYTES * follows,), "i8")
        return specs | by_rank(self._layouts[checkpoint])


def chunk_key(before: bytes, tokens: Excerpt) -> bytes:
    """Return the key of a chunk: a digest of its tokens, of their positions in the text, and of the previous chunks.

    Args:
        before: key of the previous chunk, or `FIRST`.
        tokens: tokens of the chunk.
    """
    digest = hashlib.sha256(before)
    digest.update(tokens.tokens.tobytes())
    digest.update(tokens.positions.tobytes())
    return digest.digest()


def chunks_of(prompt: Excerpt, size: int) -> Iterator[tuple[bytes, bytes, Excerpt]]:
    """Yield the whole chunks of `size` tokens of a prompt: the key of the chunk before, the chunk's key, its tokens."""
    before = FIRST
    for first in range(0, len(prompt) - size + 1, size):
        tokens = Excerpt(prompt.tokens[first : first + size], prompt.positions[first : first + size])
        key = chunk_key(before, tokens)
        yield before, key, tokens
        before = key
