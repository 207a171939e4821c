"""Drafts of the tokens that may come next in each slot, which a step of several tokens verifies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.support import _native

KINDS = 5
"""Number of kinds of drafts, by the chance of their tokens; kind 0 is no draft."""
BETWEEN_TEXTS = -1
"""Number in place of a token between two texts of a slot, which no draft crosses."""


class Drafter(ABC):
    """Drafts the next tokens of the sequences in the slots of a program.

    B is the number of slots, V the maximum number of drafted tokens.
    """

    @abstractmethod
    def start(self, slot: int, prompt: Array, predicted: Array | None = None) -> None:
        """Begin a sequence.

        Args:
            prompt: [n], its tokens.
            predicted: [m], tokens of a text that the answer is expected to resemble; None for no such text.
        """

    @abstractmethod
    def stop(self, slot: int) -> None:
        """Forget a slot's sequence."""

    @abstractmethod
    def extend(self, tokens: Array, receivers: Array) -> None:
        """Append a token to some of the sequences.

        Args:
            tokens: [B] i64.
            receivers: [B] bool, slots whose token is appended.
        """

    @abstractmethod
    def find(self, most: Array) -> Array:
        """Return the kinds [B] i64 of the drafts that there are, 0 .. `KINDS` - 1; 0 for no draft.

        Args:
            most: [B] i64, maximum length of a draft, 0 .. V.
        """

    @abstractmethod
    def draft(self, most: Array) -> tuple[Array, Array]:
        """Return the drafts that `find` found, [B, V] i64, good until the next call, and their lengths [B] i64.

        Args:
            most: [B] i64, maximum length of a draft; not above that of `find`.
        """

    def close(self) -> None:  # noqa: B027
        """Release what the drafter has opened; nothing by default."""


class Sequences:
    """The tokens of the sequences in B slots.

    Attributes:
        tokens: [B, `capacity`], of which slot b has the first counts[b].
        counts: [B] i64.
    """

    def __init__(self, slots: int, capacity: int, dtype: type[np.integer[Any]]) -> None:
        self.tokens: Array = np.zeros((slots, capacity), dtype)  # pages that no token has reached use no memory
        self.counts: Array = np.zeros(slots, np.int64)

    def start(self, slot: int, tokens: Array) -> None:
        """Begin a sequence with these tokens."""
        self.tokens[slot, : len(tokens)] = tokens
        self.counts[slot] = len(tokens)

    def stop(self, slot: int) -> None:
        """Forget a slot's sequence."""
        self.counts[slot] = 0

    def extend(self, tokens: Array, receivers: Array) -> None:
        """Append tokens[b] to the sequences in `receivers` [B]."""
        slots = np.flatnonzero(receivers)
        self.tokens[slots, self.counts[slots]] = tokens[slots]
        self.counts[slots] += 1


class PromptLookup(Drafter):
    """Drafts the tokens that followed the newest ones earlier in the prompt or the answer (prompt lookup decoding).

    A draft continues the earlier position that has the longest suffix in common with the end of the sequence. Of
    several it is the one closest to where the last draft would have gone on, so that an edited text is followed behind
    a changed word. A changed word itself has no common suffix; the text is followed for a few tokens anyway. The kind
    of a draft is the length of the suffix, at most `KINDS` - 1, and 1 without one.

    Args:
        slots: B.
        drafted: V.
        capacity: maximum number of tokens of a sequence, with its prompt.
    """

    _LONGEST = 8
    """Length from which on common suffixes count as equal."""
    _LOST = 4
    """Tokens without a common suffix behind which a text is not followed."""

    def __init__(self, slots: int, drafted: int, capacity: int) -> None:
        # The prompt and the answer, with a predicted text between them.
        self._texts = Sequences(slots, 2 * capacity + 2, np.int32)
        self._expected, self._searched = np.full(slots, -1), np.zeros(slots, np.int64)
        self._found = np.zeros(slots, np.int64)  # tokens when a suffix was found last
        self._draft = np.zeros((slots, drafted), np.int64)
        self._drafted, self._matched = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self._capacity = capacity

    @classmethod
    def of(cls, signature: Signature) -> PromptLookup:
        """Return the drafter for the slots of a program."""
        return cls(signature.batch, signature.drafted, signature.geometry.max_context)

    def start(self, slot: int, prompt: Array, predicted: Array | None = None) -> None:
        """See `Drafter`."""
        border = np.array([BETWEEN_TEXTS])
        more = [] if predicted is None else [border, predicted[: self._capacity], border]
        self._texts.start(slot, np.concatenate([prompt, *more]))
        self._expected[slot] = -1

    def stop(self, slot: int) -> None:
        """See `Drafter`."""
        self._texts.stop(slot)

    def extend(self, tokens: Array, receivers: Array) -> None:
        """See `Drafter`."""
        self._texts.extend(tokens, receivers)

    def find(self, most: Array) -> Array:
        """See `Drafter`."""
        counts = self._texts.counts
        followed = (self._expected >= 0) & (counts - self._found <= self._LOST)
        self._expected[:] = np.where(followed, self._expected + counts - self._searched, -1)
        found = (self._expected, self._draft, self._drafted, self._matched)
        _native.look_up(self._texts.tokens, counts, most, self._LONGEST, *found)
        np.copyto(self._searched, counts)
        np.copyto(self._found, counts, where=self._matched > 0)
        kinds: Array = np.where(self._drafted > 0, np.clip(self._matched, 1, KINDS - 1), 0)
        return kinds

    def draft(self, most: Array) -> tuple[Array, Array]:
        """See `Drafter`."""
        return self._draft, np.minimum(self._drafted, most)
