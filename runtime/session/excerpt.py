"""A prompt of which only a part is prefilled: the tokens that are, and where they stand in their text.

A model rotates keys and queries by positions in the text; the rows of a cache are counted in tokens that are prefilled
and fed. Where nothing is left out both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.tensor_files import Array


class ExcerptErrors(ErrorKind):
    NOT_ASCENDING = UsageError, "positions of a prompt's tokens must ascend from 0 or later, and there must be one"
    LAST_LEFT_OUT = (
        UsageError,
        "the last token that is prefilled stands at {position}, it must be the text's last one, {last}",
    )


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Tokens of a text, its last one among them.

    Attributes:
        tokens: [m] i64, at least one.
        positions: [m] i64, ascending from 0 or later: where each stands.
    """

    tokens: Array
    positions: Array

    @classmethod
    def whole(cls, tokens: Array) -> Excerpt:
        """A text [n] i64 of which nothing is left out."""
        return cls(tokens, np.arange(len(tokens), dtype=np.int64))

    @classmethod
    def of(cls, tokens: Sequence[int] | Array, positions: Sequence[int] | Array) -> Excerpt:
        """The tokens of a text at `positions`. Raises UsageError where these do not ascend, or the text has others, or
        its last token is left out: what follows a prompt follows that one."""
        chosen = np.asarray(positions, np.int64).reshape(-1)
        if not len(chosen) or chosen[0] < 0 or np.any(chosen[1:] <= chosen[:-1]):
            raise ExcerptErrors.NOT_ASCENDING()
        if chosen[-1] != len(tokens) - 1:
            raise ExcerptErrors.LAST_LEFT_OUT(position=int(chosen[-1]), last=len(tokens) - 1)
        return cls(np.asarray(tokens, np.int64)[chosen], chosen)

    def __len__(self) -> int:
        """Tokens that are prefilled."""
        return len(self.tokens)

    @property
    def text_length(self) -> int:
        """Tokens of the text, those that are left out too."""
        return int(self.positions[-1]) + 1

    @property
    def left_out(self) -> int:
        """Tokens of the text that are not prefilled."""
        return self.text_length - len(self.tokens)

    @property
    def key(self) -> bytes:
        """The same for excerpts that leave the same rows, and for no others."""
        return self.tokens.tobytes() + (self.positions.tobytes() if self.left_out else b"")

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.positions.nbytes

    def __repr__(self) -> str:
        return f"Excerpt({len(self)} of {self.text_length} tokens)"


PromptTokens = Sequence[int] | Array | Excerpt
"""A prompt as callers give it: all of its tokens, or some."""
