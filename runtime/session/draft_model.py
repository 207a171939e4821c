"""Drafts by a smaller model with the same tokens, a program of its own in the same process."""

from __future__ import annotations

import numpy as np

from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.drafting import Drafter, Sequences
from sscc.runtime.session.session import Session

_KIND = 3
"""Kind of the drafts: their tokens have a good chance."""


class DraftModelErrors(ErrorKind):
    VOCABULARY = (
        UsageError,
        "the draft has {draft} tokens, and the model {tokens}: give a draft with the same tokenizer",
    )
    SLOTS = UsageError, "the draft has {draft} slots, and the model {slots}: compile the draft with --batch {slots}"
    SPARE = (
        UsageError,
        "the draft can go back by {draft} tokens, and the model drafts {drafted}: compile the draft with --verify "
        "{drafted}",
    )


class DraftModel(Drafter):
    """Drafts the tokens that a smaller model picks greedily.

    The model reads the prompt before the first draft, and the new tokens of the answer before each further one. It
    forgets tokens of its own drafts that were not accepted.

    Args:
        session: session of the draft, which the drafter takes over.
        signature: signature of the program whose tokens are drafted.

    Raises UsageError if the draft has another vocabulary, fewer slots, or too few spare rows.
    """

    def __init__(self, session: Session, signature: Signature) -> None:
        ours = session.signature
        if ours.vocab_size != signature.vocab_size:
            raise DraftModelErrors.VOCABULARY(draft=ours.vocab_size, tokens=signature.vocab_size)
        if ours.batch < signature.batch:
            raise DraftModelErrors.SLOTS(draft=ours.batch, slots=signature.batch)
        if ours.drafted < signature.drafted:
            raise DraftModelErrors.SPARE(draft=ours.drafted, drafted=signature.drafted)
        self._session, self._slots = session, signature.batch
        self._context = ours.geometry.max_context
        self._texts = Sequences(ours.batch, signature.geometry.max_context + 1, np.int64)
        self._read = np.zeros(ours.batch, np.int64)  # tokens of each sequence that the draft has read
        self._ahead = np.zeros(ours.batch, np.int64)  # drafted tokens that it has read after them
        self._prompts = np.zeros(ours.batch, np.int64)  # length of a prompt that it has not read
        self._drafts = np.zeros((ours.batch, signature.drafted), np.int64)
        self._step = np.zeros((ours.batch, ours.drafted + 1), np.int64)

    def start(self, slot: int, prompt: Array, predicted: Array | None = None) -> None:
        """See `Drafter`. A predicted text is not used."""
        self._texts.start(slot, prompt)
        self._prompts[slot] = len(prompt)
        self._read[slot] = self._ahead[slot] = 0

    def stop(self, slot: int) -> None:
        """See `Drafter`."""
        self._texts.stop(slot)
        self._prompts[slot] = 0
        self._session.release(slot)

    def extend(self, tokens: Array, receivers: Array) -> None:
        """See `Drafter`."""
        self._texts.extend(tokens, receivers)

    def find(self, most: Array) -> Array:
        """See `Drafter`."""
        count = self._texts.counts[: self._slots]
        kinds: Array = np.where((most > 0) & (count > 0) & (count + most < self._context), _KIND, 0)
        return kinds

    def draft(self, most: Array) -> tuple[Array, Array]:
        """See `Drafter`."""
        lengths = np.where(self.find(most) > 0, most, 0)
        padded = np.zeros_like(self._read)
        padded[: self._slots] = lengths
        self._read_prompts(padded)
        newest = self._catch_up(padded)
        for at in range(int(lengths.max(initial=0))):
            self._drafts[:, at] = newest
            wanted = padded > at + 1
            if wanted.any():
                newest = np.where(wanted, _likeliest(self._logits_behind(at + 1, wanted)), newest)
        return self._drafts[: self._slots], lengths

    def close(self) -> None:
        """See `Drafter`."""
        self._session.close()

    def _logits_behind(self, count: int, wanted: Array) -> Array:
        """Return the logits [B, V] after the first `count` tokens of the drafts of the wanted slots [B].

        A model that cannot go back over single steps reads them in one step, and keeps none.
        """
        if not self._session.signature.accumulates:
            self._ahead += wanted
            return self._session.decode_step(self._drafts[:, count - 1].copy(), wanted)
        self._step[:, :count] = self._drafts[:, :count]
        return self._session.verify_step(self._step, count * wanted)[:, count - 1]

    def _read_prompts(self, most: Array) -> None:
        """Read the prompts of slots before their first drafts."""
        for slot in np.flatnonzero((most > 0) & (self._prompts > 0)).tolist():
            length = int(self._prompts[slot])
            self._session.prefill(slot, self._texts.tokens[slot, :length].tolist())
            self._read[slot], self._prompts[slot] = length, 0

    def _catch_up(self, most: Array) -> Array:
        """Read the tokens of the answers that the draft has not read. Return its next token for each slot [B]."""
        wanted, rows = most > 0, np.arange(len(most))
        self._go_back(wanted)
        newest = np.zeros_like(most)
        width = self._step.shape[1]
        while (wanted & (self._read < self._texts.counts)).any():
            count = np.where(wanted, np.minimum(self._texts.counts - self._read, width), 0)
            places = np.minimum(self._read[:, None] + np.arange(width), self._texts.tokens.shape[1] - 1)
            np.copyto(self._step, self._texts.tokens[rows[:, None], places])
            logits = self._session.verify_step(self._step, count)
            self._session.accept(count)
            self._read += count
            newest = np.where(count > 0, _likeliest(logits[rows, np.maximum(count - 1, 0)]), newest)
        return newest

    def _go_back(self, wanted: Array) -> None:
        """Forget tokens of earlier drafts that are not those of the answers, and keep the others."""
        slots = np.flatnonzero(wanted & (self._ahead > 0))
        back = np.zeros_like(self._ahead)
        for slot in slots.tolist():
            ahead, read = int(self._ahead[slot]), int(self._read[slot])
            drafted = self._drafts[slot, :ahead]
            answer = self._texts.tokens[slot, read : min(read + ahead, int(self._texts.counts[slot]))]
            same = int(np.logical_and.accumulate(drafted[: len(answer)] == answer).sum())
            # The newest token is read once more for its logits.
            same = min(same, int(self._texts.counts[slot]) - read - 1)
            back[slot], self._read[slot] = ahead - same, read + same
        self._session.rewind(back)
        self._ahead[slots] = 0


def _likeliest(logits: Array) -> Array:
    """Return the token of the largest logit of each row [n, V]."""
    tokens: Array = logits.astype(np.float32).argmax(1)
    return tokens
