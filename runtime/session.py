"""A session joins a program, weights and a geometry, and keeps what the host knows about each slot.

The host's share of SnapStream is small: per slot the position of the next token and the number of valid
top-K rows, and for a prefill in progress its cursor. Everything else happens in the program's entries
`prefill` and `decode`.

Logits are float32 numpy arrays that belong to the caller: no later call changes them. (They are float64 where the
reference interpreter computes in double precision.)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sscc.ir.errors import UsageError
from sscc.runtime.interpreter import DEFAULT_INTERPRETER, Interpreter, open_interpreter
from sscc.runtime.sampling import Sampler, Sampling
from sscc.runtime.signature import Signature
from sscc.runtime.tensor_files import Array

if TYPE_CHECKING:
    from sscc.runtime.artifact import Artifact, Resolver


@dataclass(frozen=True)
class Kept:
    """What one slot's cache holds, per layer and KV head in rows, over all layers in bytes.

    Attributes:
        prompt_len: tokens of the prompt.
        length: positions written so far (prompt plus fed tokens).
        kept: valid rows of the cache.
        evicted: positions that are no longer in the cache, length - kept.
        budget: rows that the slot owns.
        kv_bytes: bytes of the slot's K and V, of its whole prompt too where the selected rows are indexed.
        full_bytes: bytes of an uncompressed cache of max_context rows.
        full_bytes_now: bytes of an uncompressed cache of `length` rows.
    """

    prompt_len: int
    length: int
    kept: int
    evicted: int
    budget: int
    kv_bytes: int
    full_bytes: int
    full_bytes_now: int


@dataclass
class _Slot:
    prompt_len: int
    position: int


@dataclass
class _Prefill:
    slot: int
    length: int
    tokens: Array
    phase: int = 0
    chunk: int = 0


class Session:
    """Prefills and decodes on one program with one set of weights.

    Args:
        signature: sizes and geometry that the program was compiled for.
        interpreter: executes the program's entries `prefill` and `decode`, with its weights.
    """

    def __init__(self, signature: Signature, interpreter: Interpreter) -> None:
        self.signature = signature
        self.interpreter = interpreter
        self._slots: dict[int, _Slot] = {}
        self._pending: _Prefill | None = None
        self._prefill_logits: Array | None = None

    @classmethod
    def from_artifact(
        cls,
        artifact: Artifact,
        *,
        interpreter: str = DEFAULT_INTERPRETER,
        resolver: Resolver | None = None,
        threads: int | None = None,
        precision: str = "f32",
        checked: bool = False,
    ) -> Session:
        """Joins an artifact to its own weights, or to those of the checkpoint that `resolver` opens.

        The other arguments and the errors are those of `open_interpreter`.
        """
        opened = open_interpreter(
            interpreter, artifact, resolver, threads=threads, precision=precision, checked=checked
        )
        return cls(artifact.signature, opened)

    # -- prefill

    def start_prefill(self, slot: int, tokens: Sequence[int]) -> None:
        """Begins to write a prompt into a slot, whose previous content is given up.

        Raises UsageError for a slot, a token or a length that is out of range, or while another prefill is
        unfinished (the program has scratch for one).
        """
        prompt = self._check_prompt(slot, tokens)
        if self._pending is not None:
            raise UsageError(
                f"slot {slot} cannot prefill while slot {self._pending.slot} does: finish or abandon that prefill"
            )
        padded = np.zeros((1, self.signature.scratch_tokens), np.int64)
        padded[0, : len(prompt)] = prompt
        self._slots.pop(slot, None)
        self._pending = _Prefill(slot, len(prompt), padded)

    def step_prefill(self, steps: int) -> bool:
        """Does at most `steps` chunk steps of the prefill in progress; True when it has finished.

        Decode steps of other slots may run in between. Raises UsageError where no prefill is in progress.
        """
        pending = self._pending
        if pending is None:
            raise UsageError("no prefill is in progress: call start_prefill first")
        if steps < 1:
            raise UsageError(f"a prefill call takes at least 1 step, not {steps}")
        scalars = {
            "length": pending.length,
            "slot": pending.slot,
            "phase": pending.phase,
            "chunk": pending.chunk,
            "steps": steps,
        }
        outputs, (pending.phase, pending.chunk) = self.interpreter.run("prefill", {"tokens": pending.tokens}, scalars)
        if pending.phase < self.signature.layers + 2:
            return False
        self._prefill_logits = _plain(outputs["prefill_logits"][0])
        self._slots[pending.slot] = _Slot(pending.length, pending.length)
        self._pending = None
        return True

    def prefill_steps(self, length: int) -> int:
        """Chunk steps that a prompt of `length` tokens takes: every phase over its chunks, and the head."""
        chunks = -(-length // self.signature.prefill_chunk)
        return (self.signature.layers + 1) * chunks + 1

    @property
    def prefill_logits(self) -> Array:
        """Logits [V] after the last token of the prompt that was prefilled last."""
        if self._prefill_logits is None:
            raise UsageError("no prefill has finished yet")
        return self._prefill_logits

    def abandon_prefill(self) -> None:
        """Gives up the prefill in progress, if any; its slot is empty then."""
        self._pending = None

    def prefill(self, slot: int, tokens: Sequence[int]) -> Array:
        """Writes a whole prompt into a slot. Returns the logits [V] of its last token."""
        self.start_prefill(slot, tokens)
        try:
            while not self.step_prefill(self.prefill_steps(len(tokens))):
                pass
        except BaseException:
            self.abandon_prefill()
            raise
        return self.prefill_logits

    # -- decode

    def decode(self, tokens: Mapping[int, int]) -> Array:
        """Feeds one token to each slot named, at the slot's next position.

        Returns logits [B, V], of which only the rows of the slots named mean anything. Raises UsageError for a
        slot without a prompt, a token out of range, or a slot whose sequence is at max_context.
        """
        for slot, token in tokens.items():
            self._check_slot(slot)
            self._check_token(token)
            self._check_room(slot)
        outputs, _ = self.interpreter.run("decode", self._decode_inputs(tokens))
        for slot in tokens:
            self._slots[slot].position += 1
        return _plain(outputs["logits"])

    def _decode_inputs(self, tokens: Mapping[int, int]) -> dict[str, Array]:
        token, position, valid_topk = ([0] * self.signature.batch for _ in range(3))
        active = [False] * self.signature.batch
        for slot, value in tokens.items():
            state = self._slots[slot]
            token[slot], position[slot], active[slot] = value, state.position, True
            valid_topk[slot] = self.signature.geometry.valid_topk(state.prompt_len)
        return {
            "token": np.array(token, np.int64)[:, None],
            "position": np.array(position, np.int64),
            "valid_topk": np.array(valid_topk, np.int64),
            "active": np.array(active, np.bool_),
        }

    def generate(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        slot: int = 0,
    ) -> Iterator[int]:
        """Prefills a slot with a prompt and yields new tokens as they are made, the ending one included.

        `eos` are the tokens that end the text (those of the signature if None; none if empty). Raises UsageError
        at the call, not at the first token, where prompt plus new tokens exceed max_context.
        """
        prompt = self._check_prompt(slot, tokens)
        limit, total = self.signature.geometry.max_context, len(prompt) + max_new_tokens
        if max_new_tokens < 1:
            raise UsageError(f"max-new-tokens is {max_new_tokens}, it must be at least 1")
        if total > limit:
            raise UsageError(
                f"{len(prompt)} prompt tokens + {max_new_tokens} new tokens = {total} exceed the program's max-context "
                f"{limit}: ask for fewer or compile with a larger --max-context"
            )
        ends = frozenset(self.signature.eos_token_ids if eos is None else eos)
        return self._generate(slot, prompt, max_new_tokens, Sampler(sampling or Sampling()), ends)

    def _generate(
        self, slot: int, prompt: Sequence[int], max_new_tokens: int, sampler: Sampler, ends: frozenset[int]
    ) -> Iterator[int]:
        logits = self.prefill(slot, prompt)
        for left in reversed(range(max_new_tokens)):
            token = sampler.pick(logits)
            yield token
            if token in ends or left == 0:
                return
            logits = self.decode({slot: token})[slot]

    # -- slots

    def position(self, slot: int) -> int:
        """The absolute position that the slot's next token will have."""
        self._check_slot(slot)
        return self._filled(slot).position

    def release(self, slot: int) -> None:
        """Forgets a slot's sequence; nothing happens if it has none."""
        self._check_slot(slot)
        self._slots.pop(slot, None)

    def reset(self) -> None:
        """Forgets every sequence and zeroes the program's state."""
        self._slots.clear()
        self._pending = None
        self._prefill_logits = None
        self.interpreter.reset()

    def kept(self, slot: int) -> Kept:
        """What the slot's cache holds now."""
        self._check_slot(slot)
        state = self._filled(slot)
        geometry = self.signature.geometry
        kept = geometry.kept_rows(state.position, state.prompt_len)
        return Kept(
            prompt_len=state.prompt_len,
            length=state.position,
            kept=kept,
            evicted=state.position - kept,
            budget=geometry.budget,
            kv_bytes=self.signature.kv_bytes(self.signature.held_rows),
            full_bytes=self.signature.full_kv_bytes(geometry.max_context),
            full_bytes_now=self.signature.full_kv_bytes(state.position),
        )

    # -- checks

    def _filled(self, slot: int) -> _Slot:
        if slot not in self._slots:
            raise UsageError(f"slot {slot} holds no prompt: prefill it first")
        return self._slots[slot]

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.signature.batch:
            raise UsageError(f"slot {slot} does not exist, the program has slots 0 .. {self.signature.batch - 1}")

    def _check_prompt(self, slot: int, tokens: Sequence[int]) -> list[int]:
        """The prompt as ints, after checking that it can be prefilled into the slot."""
        self._check_slot(slot)
        limit = self.signature.geometry.max_context
        if len(tokens) == 0:
            raise UsageError("the prompt has 0 tokens, it must have at least 1")
        if len(tokens) > limit:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, the program was compiled for at most {limit}: "
                f"shorten it or compile with a larger --max-context"
            )
        return [self._check_token(token) for token in tokens]

    def _check_token(self, token: int) -> int:
        value = operator.index(token)
        if not 0 <= value < self.signature.vocab_size:
            raise UsageError(f"token {value} is out of range, the vocabulary is 0 .. {self.signature.vocab_size - 1}")
        return value

    def _check_room(self, slot: int) -> None:
        limit, held = self.signature.geometry.max_context, self._filled(slot).position
        if held >= limit:
            raise UsageError(
                f"slot {slot} holds {held} tokens, the program was compiled for at most {limit}: "
                f"compile with a larger --max-context"
            )


def _plain(logits: Array) -> Array:
    """Logits in float32, and in float64 if they are."""
    return logits if logits.dtype == np.float64 else logits.astype(np.float32, copy=False)
