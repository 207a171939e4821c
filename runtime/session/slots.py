"""The host's record of every slot: its prompt, and the position of its next token."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from sscc.ir.choices import POSITION_ID
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
        self._tokens, self._position_ids = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        self._inputs: dict[str, Array] = {
            "token": self._tokens[:, None],
            POSITION_ID: self._position_ids[:, None],
            "position": np.zeros(batch, np.int64),
            "base": np.zeros(batch, np.int64),
            "active": np.zeros(batch, np.bool_),
        }

    def __str__(self) -> str:
        filled = np.flatnonzero(self.prompt_length).tolist()
        held = [f"slot {slot} holds {int(self.position[slot])} tokens" for slot in filled]
        return ", ".join(held) or "all slots empty"

    def fill(self, slot: int, prompt: Prompt) -> None:
        """Record that a prompt is in a slot."""
        length = len(prompt.tokens)
        self.prompt_length[slot] = self.position[slot] = length
        self.last_token[slot] = prompt.tokens.tokens[-1]
        self.room[slot] = self._signature.geometry.max_context - prompt.tokens.text_length
        self._base[slot] = self._signature.plan.main.geometry.base(length)
        self._left_out[slot] = prompt.tokens.left_out
        self._prompts[slot] = prompt

    def empty(self, slot: int) -> None:
        """Forget a slot's sequence."""
        self.prompt_length[slot] = self.room[slot] = 0
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

    def inputs(self, tokens: Array, position: Array, active: Array) -> dict[str, Array]:
        """Return the inputs of a decode step, good until the next call; those of slots that are not active are 0."""
        inputs = self._inputs
        np.multiply(tokens, active, out=self._tokens)
        np.multiply(position, active, out=inputs["position"])
        np.multiply(position + self._left_out, active, out=self._position_ids)
        np.multiply(self._base, active, out=inputs["base"])
        np.copyto(inputs["active"], active)
        return inputs

    def advance(self, active: Array) -> None:
        """Record that a token was fed to every active slot."""
        self.position += active
        self.room -= active

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
            self._refuse(tokens, active)

    def _refuse(self, tokens: Array, active: Array) -> NoReturn:
        for slot in np.flatnonzero(active).tolist():
            checked_token(tokens[slot], slot, self._signature)
            held = self.text_position(slot)
            if held >= self._signature.geometry.max_context:
                raise SessionErrors.SLOT_FULL(slot=slot, tokens=held)
        raise SessionErrors.STEP_REFUSED()
