"""The host's record of every slot: its prompt, and the position of its next token."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from sscc.ir.choices import POSITION_ID, step_tensor
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.prompt import Prompt, checked_token
from sscc.runtime.session.session_errors import SessionErrors


class Slots:
    """Per-slot state of a session.

    Attributes:
        prompt_length: [B] i64, tokens that were prefilled; 0 for a slot without a prompt.
        position: [B] i64, the number of the next token among those that were prefilled or fed.
        last_token: [B] i64, the last token of the prompt.
        room: [B] i64, tokens that can still be fed; 0 for a slot without a prompt.
        fed: [B] i64, tokens of the latest step of several tokens that can still be accepted.
        written: [B] i64, the position after the last one whose row was written.
        held: [B] i64, number of positions that recurrent states include.
    """

    def __init__(self, signature: Signature) -> None:
        batch = signature.batch
        self._signature = signature
        self.prompt_length = np.zeros(batch, np.int64)
        self.position = np.zeros(batch, np.int64)
        self.last_token = np.zeros(batch, np.int64)
        self.room = np.zeros(batch, np.int64)
        self._base = np.zeros(batch, np.int64)  # the first row of the ring
        self._left_out = np.zeros(batch, np.int64)  # tokens of the text that were not prefilled
        self._prompts: list[Prompt | None] = [None] * batch
        self.fed = np.zeros(batch, np.int64)
        self.written = np.zeros(batch, np.int64)
        self.held = np.zeros(batch, np.int64)
        self._inputs = {entry: _StepInputs(entry, batch, tokens) for entry, tokens in signature.step_tokens.items()}

    def __str__(self) -> str:
        filled = np.flatnonzero(self.prompt_length).tolist()
        held = [f"slot {slot} holds {int(self.position[slot])} tokens" for slot in filled]
        return ", ".join(held) or "all slots empty"

    def fill(self, slot: int, prompt: Prompt) -> None:
        """Record that a prompt is in a slot."""
        length = len(prompt.tokens)
        self.prompt_length[slot] = self.position[slot] = self.written[slot] = self.held[slot] = length
        self.fed[slot] = 0
        self.last_token[slot] = prompt.tokens.tokens[-1]
        self.room[slot] = self._signature.geometry.max_context - prompt.tokens.text_length
        self._base[slot] = self._signature.plan.main.geometry.base(length)
        self._left_out[slot] = prompt.tokens.left_out
        self._prompts[slot] = prompt

    def empty(self, slot: int) -> None:
        """Forget a slot's sequence."""
        self.prompt_length[slot] = self.room[slot] = self.fed[slot] = 0
        self._prompts[slot] = None

    def prompt(self, slot: int) -> Prompt:
        """Return a slot's prompt. Raises UsageError if it has none."""
        self.check_filled(slot)
        prompt = self._prompts[slot]
        assert prompt is not None
        return prompt

    def text_position(self, slot: int) -> int:
        """Return the position that a slot's next token has in its text."""
        self.check_filled(slot)
        return int(self.position[slot] + self._left_out[slot])

    def inputs(self, entry: str, tokens: Array, position: Array, active: Array) -> dict[str, Array]:
        """Return the inputs of a step, good until the next step; those of tokens that are not active are 0.

        Args:
            entry: `decode` or `verify`, which takes n tokens of each slot.
            tokens, active: [B, n].
            position: [B], position of each slot's first token.
        """
        return self._inputs[entry].filled(tokens, position, self._base, self._left_out, active)

    def decoded(self, active: Array) -> None:
        """Record a step of one token in the active slots [B]."""
        self._advance(active)
        self.fed[:] = 0
        np.copyto(self.held, self.position, where=active)

    def verified(self, count: Array) -> None:
        """Record a step of count[b] tokens in slot b [B], none of which is accepted yet."""
        self.fed[:] = count
        np.maximum(self.written, self.position + count, out=self.written)
        np.copyto(self.held, self.position, where=count > 0)

    def accept(self, count: Array) -> None:
        """Keep the next count[b] tokens [B] of the latest step of several. Raises UsageError for more than it fed."""
        self._check_accept(count)
        self._advance(count)
        self.fed -= count

    def _advance(self, count: Array) -> None:
        self.position += count
        self.room -= count
        np.maximum(self.written, self.position, out=self.written)

    def rewind(self, count: Array) -> None:
        """Forget the newest count[b] tokens [B] of each slot. Raises UsageError for tokens of a prompt, and where rows
        that the slot would see again may be overwritten, or are in a recurrent state."""
        back = self.position - count
        seen = back + self._signature.drafted + 1 >= self.written
        if self._signature.accumulates:
            seen &= back >= self.held
        for slot in np.flatnonzero((count < 0) | (count > 0) & ~(seen & (back >= self.prompt_length))).tolist():
            fed = int(self.position[slot] - self.prompt_length[slot])
            raise SessionErrors.REWIND(slot=slot, tokens=int(count[slot]), fed=fed, most=self._signature.drafted)
        self.position -= count
        self.room += count
        self.fed[count > 0] = 0

    # -- checks

    def check(self, slot: int) -> None:
        """Raise UsageError for a slot that does not exist."""
        if not 0 <= slot < self._signature.batch:
            raise SessionErrors.NO_SLOT(slot=slot, last=self._signature.batch - 1)

    def check_filled(self, slot: int) -> None:
        """Raise UsageError for a slot without a prompt."""
        self.check(slot)
        if not self.prompt_length[slot]:
            raise SessionErrors.SLOT_EMPTY(slot=slot)

    def check_fresh(self, slot: int, kind: SessionErrors) -> None:
        """Raise an error of `kind` for a slot to which a token was fed after its prompt."""
        self.check_filled(slot)
        fed = int(self.position[slot] - self.prompt_length[slot])
        if fed:
            raise kind(slot=slot, tokens=fed)

    def check_step(self, tokens: Array, active: Array) -> None:
        """Check the arguments of a decode step. Raises UsageError for arrays of another form, and for the first active
        slot that can take no token."""
        shape = self.position.shape
        if tokens.shape != shape or active.shape != shape or tokens.dtype != np.int64 or active.dtype != np.bool_:
            raise SessionErrors.STEP_ARRAYS(
                slots=self._signature.batch, tokens_dtype=tokens.dtype, tokens_shape=tokens.shape,
                active_dtype=active.dtype, active_shape=active.shape,
            )  # fmt: skip
        largest = tokens.view(np.uint64).max(where=active, initial=0)  # a negative token becomes 2**63 or more
        if largest >= self._signature.vocab_size or self.room.min(where=active, initial=1) <= 0:
            self._refuse(tokens[:, None], active.astype(np.int64))

    def check_verify(self, tokens: Array, count: Array) -> None:
        """Check the arguments of a step of several tokens. Raises UsageError for a program without such steps, for
        arrays of another form, and for the first slot that cannot take its tokens."""
        signature = self._signature
        if not signature.drafted:
            raise SessionErrors.NO_VERIFY()
        shape = (signature.batch, signature.drafted + 1)
        if tokens.shape != shape or count.shape != shape[:1] or tokens.dtype != np.int64 or count.dtype != np.int64:
            raise SessionErrors.VERIFY_ARRAYS(
                slots=shape[0], tokens=shape[1], tokens_dtype=tokens.dtype, tokens_shape=tokens.shape,
                count_dtype=count.dtype, count_shape=count.shape,
            )  # fmt: skip
        for slot in np.flatnonzero((count < 0) | (count > shape[1])).tolist():
            raise SessionErrors.TOO_MANY_TOKENS(slot=slot, tokens=int(count[slot]), most=shape[1])
        largest = tokens.view(np.uint64).max(where=self.real(count), initial=0)
        if largest >= signature.vocab_size or (count > self.room).any():
            self._refuse(tokens, count)

    def _check_accept(self, count: Array) -> None:
        """Raise UsageError for a slot that shall keep more tokens than the latest step of several tokens fed it."""
        for slot in np.flatnonzero((count < 0) | (count > self.fed)).tolist():
            raise SessionErrors.ACCEPTED(slot=slot, tokens=int(count[slot]), fed=int(self.fed[slot]))

    def real(self, count: Array) -> Array:
        """Return which tokens [B, V + 1] of a step are real: the first count[b] of slot b."""
        return np.arange(self._signature.drafted + 1) < count[:, None]

    def _refuse(self, tokens: Array, count: Array) -> NoReturn:
        for slot in np.flatnonzero(count).tolist():
            for token in tokens[slot, : count[slot]]:
                checked_token(token, slot, self._signature)
            held, room = self.text_position(slot), int(self.room[slot])
            if room <= 0:
                raise SessionErrors.SLOT_FULL(slot=slot, tokens=held)
            if count[slot] > room:
                raise SessionErrors.NO_ROOM(slot=slot, tokens=int(count[slot]), room=room)
        raise SessionErrors.STEP_REFUSED()


class _StepInputs:
    """Inputs of a step of n tokens per slot, in arrays that every step reuses."""

    def __init__(self, entry: str, batch: int, tokens: int) -> None:
        self._ahead = np.arange(tokens)
        numbers = ("token", POSITION_ID, "position", "base")
        self._by_name: dict[str, Array] = {name: np.zeros((batch, tokens), np.int64) for name in numbers}
        self._active = np.zeros((batch, tokens), np.bool_)
        columns = {name: array.reshape(-1) for name, array in self._by_name.items()}
        columns["active"] = self._active.reshape(-1)
        columns |= {name: columns[name][:, None] for name in ("token", POSITION_ID)}
        self._given = {step_tensor(entry, name): columns[name] for name in (*numbers, "active")}

    def filled(self, tokens: Array, position: Array, base: Array, left_out: Array, active: Array) -> dict[str, Array]:
        """Return the inputs of a step: see `Slots.inputs`."""
        inputs = self._by_name
        places = position[:, None] + self._ahead
        np.multiply(tokens, active, out=inputs["token"])
        np.multiply(places, active, out=inputs["position"])
        np.multiply(places + left_out[:, None], active, out=inputs[POSITION_ID])
        np.multiply(base[:, None], active, out=inputs["base"])
        np.copyto(self._active, active)
        return self._given

