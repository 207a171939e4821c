"""A prompt of which only a part is prefilled: the prefilled tokens, and their positions in the text.

A model rotates keys and queries by positions in the text; rows of a cache are counted in tokens that are prefilled and
fed. Without omissions both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.tensor_files import Array


class ExcerptErrors(ErrorKind):
    NOT_ASCENDING = (
        UsageError,
        "positions of a prompt's tokens must be ascending and at least 0, and there must be at least one",
    )
    LAST_LEFT_OUT = (
        UsageError,
        "the last prefilled token is at position {position}; it must be at the last position of the text, {last}",
    )


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Tokens of a text, including its last one.

    Attributes:
        tokens: [m] i64, at least one.
        positions: [m] i64, position of each token, ascending from 0 or later.
    """

    tokens: Array
    positions: Array

    @classmethod
    def whole(cls, tokens: Array) -> Excerpt:
        """Return a text [n] i64 without omissions."""
        return cls(tokens, np.arange(len(tokens), dtype=np.int64))

    @classmethod
    def of(cls, tokens: Sequence[int] | Array, positions: Sequence[int] | Array) -> Excerpt:
        """Return the tokens of a text at `positions`. Raises UsageError if these are not ascending, or not positions of
        the text, or omit its last token: the continuation follows that one."""
        chosen = np.asarray(positions, np.int64).reshape(-1)
        if not len(chosen) or chosen[0] < 0 or np.any(chosen[1:] <= chosen[:-1]):
            raise ExcerptErrors.NOT_ASCENDING()
        if chosen[-1] != len(tokens) - 1:
            raise ExcerptErrors.LAST_LEFT_OUT(position=int(chosen[-1]), last=len(tokens) - 1)
        return cls(np.asarray(tokens, np.int64)[chosen], chosen)

    def __len__(self) -> int:
        """Return the number of tokens that are prefilled."""
        return len(self.tokens)

    @property
    def text_length(self) -> int:
        """Number of tokens of the text, including omitted ones."""
        return int(self.positions[-1]) + 1

    @property
    def left_out(self) -> int:
        """Number of tokens of the text that are not prefilled."""
        return self.text_length - len(self.tokens)

    @property
    def key(self) -> bytes:
        """Key that is equal exactly for excerpts that leave the same rows."""
        return self.tokens.tobytes() + (self.positions.tobytes() if self.left_out else b"")

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.positions.nbytes

    def __repr__(self) -> str:
        return f"Excerpt({len(self)} of {self.text_length} tokens)"


PromptTokens = Sequence[int] | Array | Excerpt
"""A prompt as given by callers: all of its tokens, or some."""
