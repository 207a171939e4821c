"""A session runs one program with one set of weights, and keeps the host's state of each slot.

The host's share of SnapStream is small: the position of each slot's next token and the first row of its ring
(`slots`), and the cursor of the prefill in progress (`prefilling`). Everything else happens in the program's entries
`prefill` and `decode`.

Logits are float32 numpy arrays that belong to the caller: no later call changes them. (They are float64 where the
reference interpreter computes in double precision.) Only `Session.decode_step` and `Session.score`, which serve callers
that run many slots at once, return live views of the program's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, overload

import numpy as np

from sscc.ir.choices import DECODE, FIRST, SCORE, VERIFY, step_tensor
from sscc.ir.files import mapped, replacing
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.registry import DEFAULT_BACKEND
from sscc.runtime.session.chunk_message import ChunkFormat, ChunkMessage
from sscc.runtime.session.excerpt import Excerpt, PromptTokens
from sscc.runtime.session.generation import Generation, default_new_tokens
from sscc.runtime.session.kept_positions import Kept, LayerKept, Selected, kept_layers, selected_by_prompt
from sscc.runtime.session.kept_rows import (
    Copy,
    CopySlot,
    DropCheckpoint,
    EmptyChunk,
    KeepsRows,
    KeptRows,
    PutCopy,
    RestoreSlot,
)
from sscc.runtime.session.observing import Observation, Stages, Watching, step_through
from sscc.runtime.session.prefilling import Prefill
from sscc.runtime.session.prompt import (
    Prompt,
    Snapshot,
    checked_prompt,
    checked_request,
    checked_token,
    selected_bytes,
)
from sscc.runtime.session.samplers import Sampler
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.session.slot_message import SlotFormat, SlotMessage
from sscc.runtime.session.slots import Slots
from sscc.runtime.session.speculation import Speculation, SpeculativeSlot
from sscc.runtime.session.tracing import CAPACITY, Tracer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.session.artifact import Artifact, Resolver
    from sscc.runtime.support._native import Team

Seen = Callable[[int, int], None]
"""Called with the amount of work that is done, and the whole amount."""
PARTS_SEEN = 100
"""Calls of a prefill that reports its progress."""


class Session:
    """Prefills and decodes on one program with one set of weights.

    Args:
        signature: sizes and geometry that the program was compiled for.
        interpreter: executes the program's entries `prefill` and `decode`, with its weights.
        tokenizer: the file that turns text into tokens and back, if there is one.
        identity: returns the identity of program and weights, which slot messages carry; called once at most.

    Attributes:
        interpreter_ns: nanoseconds that calls of the interpreter have taken so far.
        rows: copies of slots. With several ranks these are rank 0's, and the other ranks copy in step.
        tracer: the recorder that `start_trace` made; None before.
    """

    def __init__(
        self,
        signature: Signature,
        interpreter: Interpreter,
        tokenizer: Path | None = None,
        identity: Callable[[], ProgramIdentity] | None = None,
    ) -> None:
        self.signature = signature
        self._identity = identity
        self._tokenizer_file = tokenizer
        self.interpreter = interpreter
        self.interpreter_ns = 0
        self.tracer: Tracer | None = None
        self._slots = Slots(signature)
        self._prefill: Prefill | None = None
        self._prefill_logits: Array | None = None
        if isinstance(interpreter, KeepsRows):
            self.rows = interpreter.keep_rows(signature)
        else:
            self.rows = KeptRows(signature, interpreter.device_tensor)

    @classmethod
    def from_artifact(
        cls,
        artifact: Artifact,
        *,
        interpreter: str = DEFAULT_BACKEND,
        resolver: Resolver | None = None,
        threads: int | None = None,
        precision: str = "f32",
        checked: bool = False,
    ) -> Session:
        """Open an artifact with its own weights, or with those that `resolver` returns (`interpreter_of`)."""
        conditions = Conditions(artifact.schedule_digest, threads, precision, checked)
        opened = interpreter_of(artifact, conditions, interpreter, resolver)
        return cls(artifact.signature, opened, artifact.tokenizer_file, _own_identity(artifact, resolver))

    def __repr__(self) -> str:
        return f"Session({self.signature.in_words()}; {self._slots})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The artifact's tokenizer. Raises InputError if the artifact has none."""
        from sscc.runtime.text.tokenizer import load_tokenizer

        if self._tokenizer_file is None:
            raise SessionErrors.NO_TOKENIZER()
        return load_tokenizer(self._tokenizer_file)

    @property
    def ranks(self) -> int:
        """Number of ranks that run the program together."""
        return self.interpreter.ranks

    @property
    def failure(self) -> BaseException | None:
        """The error with which every further call fails, such as a lost rank; None while the program can run."""
        return self.interpreter.failure

    def close(self) -> None:
        """Release the device, and end the other ranks of the program. No call can be made after that."""
        self.interpreter.close()

    @property
    def host_threads(self) -> Team | None:
        """Threads of this process for work between two calls of the interpreter; None if it has none to lend."""
        return self.interpreter.host_threads

    # -- prefill

    def start_prefill(
        self,
        slot: int,
        tokens: PromptTokens,
        prefix: Sequence[Copy] = (),
        fill: Mapping[int, Copy] | None = None,
    ) -> None:
        """Begin to write a prompt into a slot, whose previous content is discarded.

        Args:
            tokens: the prompt's tokens, or some of them with their positions (`Excerpt`).
            prefix: rows of the prompt's first chunks, kept from a prefill of the same tokens and not computed again.
                The last one must be a checkpoint.
            fill: memory (`empty_chunk`) for the rows of later whole chunks, by chunk number; filled when the prefill
                has finished.

        Raises UsageError for a slot, a token or a length out of range, for more chunks than `reusable_chunks`, for a
        prefix that ends without a checkpoint, for chunks to fill that are not whole, and while another prefill is
        unfinished, because the program has scratch for one.
        """
        self._slots.check(slot)
        prompt = checked_prompt(tokens, self.signature)
        prefill = Prefill(self.signature, self.rows, slot, prompt, prefix, fill)
        if self._prefill is not None:
            raise SessionErrors.PREFILL_IN_PROGRESS(slot=slot, other=self._prefill.slot)
        self._slots.empty(slot)
        self._prefill = prefill

    def step_prefill(self, steps: int) -> bool:
        """Do at most `steps` chunk steps of the prefill in progress. Return True when it has finished.

        Decode steps of other slots may run in between. Raises UsageError if no prefill is in progress.
        """
        prefill = self._prefill
        if prefill is None:
            raise SessionErrors.NO_PREFILL()
        logits = prefill.step(steps, lambda inputs, scalars: self._run("prefill", inputs, scalars))
        if logits is None:
            return False
        self._prefill_logits = _plain(logits)
        selected: Selected = {}
        if self.ranks == 1:
            selected = selected_by_prompt(self.signature, self.interpreter.device_tensor, len(prefill.prompt))
        self._slots.fill(prefill.slot, Prompt(prefill.prompt, self._prefill_logits.copy(), selected))
        self._prefill = None
        return True

    def reusable_chunks(self, length: int) -> int:
        """Return the number of leading chunks of a prompt of `length` tokens whose rows can be reused. The last
        position is always computed for its logits, and so is the observation window if the end of the prompt selects
        rows."""
        return self.signature.reusable_chunks(length)

    def empty_chunk(self, checkpoint: bool = True) -> Copy:
        """Return memory for the rows of a chunk, which `start_prefill` fills. A checkpoint also holds the states that
        only the next chunk reads."""
        chunk = Copy(self.rows, self.rows.bytes_of_chunk(checkpoint), checkpoint)
        self.rows.do(EmptyChunk(chunk.number, checkpoint))
        return chunk

    def drop_checkpoint(self, chunk: Copy) -> None:
        """Free the states of a chunk that only the next chunk reads. No prompt can continue after the chunk then."""
        self.rows.do(DropCheckpoint(chunk.number))
        chunk.nbytes, chunk.checkpoint = self.rows.bytes_of_chunk(False), False

    @property
    def prefill_logits(self) -> Array:
        """Logits [V] after the latest prompt."""
        if self._prefill_logits is None:
            raise SessionErrors.NO_PREFILL_LOGITS()
        return self._prefill_logits

    def abandon_prefill(self) -> None:
        """Give up the prefill in progress, if any. Its slot is empty then."""
        self._prefill = None

    def prefill(self, slot: int, tokens: PromptTokens, seen: Seen | None = None) -> Array:
        """Write a whole prompt into a slot. Return the logits [V] after its last token.

        Args:
            tokens: the prompt's tokens, or some of them with their positions (`Excerpt`).
            seen: called with the chunk steps that are done and their total, about a hundred times. The prefill is one
                call of the program without it.
        """
        self.start_prefill(slot, tokens)
        total = self.signature.prefill_steps(len(tokens))
        part = total if seen is None else ceil(total / PARTS_SEEN)
        done = 0
        try:
            while not self.step_prefill(part):
                done += part
                if seen is not None:
                    seen(done, total)
        except BaseException:
            self.abandon_prefill()
            raise
        return self.prefill_logits

    # -- decode

    def decode(self, tokens: Mapping[int, int]) -> Array:
        """Feed one token to each of some slots, at the slot's next position.

        Args:
            tokens: the tokens by slot.

        Returns logits [B, V]; rows of other slots are undefined. Raises UsageError for a slot without a prompt, a token
        out of range, and a slot whose sequence is at max_context.
        """
        fed, active = np.zeros(self.signature.batch, np.int64), np.zeros(self.signature.batch, np.bool_)
        for slot, token in tokens.items():
            self._slots.check(slot)
            fed[slot], active[slot] = checked_token(token, slot, self.signature), True
        return _plain(self.decode_step(fed, active))

    def decode_step(self, tokens: Array, active: Array) -> Array:
        """Feed one token to every active slot: `decode` without a loop or a copy.

        Args:
            tokens: [B] i64; those of inactive slots are ignored.
            active: [B] bool.

        Returns a live view of the logits [B, V] in the program's dtype, valid until the next call; rows of inactive
        slots are undefined. Raises UsageError as `decode` does.
        """
        self._slots.check_step(tokens, active)
        logits = self._decode(tokens, self._slots.position, active)
        self._slots.decoded(active)
        return logits

    def verify(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, Array]:
        """Feed up to V + 1 tokens to each of some slots, from the slot's next position on, and keep none of them yet:
        `accept` keeps the first ones. Tokens that are not accepted leave no trace.

        Args:
            tokens: the tokens by slot.

        Returns:
            Logits [n, V] after each of a slot's n tokens, by slot. The first m rows equal those of `decode` with the
            first m tokens, bit for bit.

        Raises:
            UsageError: the program has no entry `verify` (`Signature.drafted`), a slot has no prompt or no room for
                its tokens, or a token is out of range.
        """
        fed = np.zeros((self.signature.batch, self.signature.drafted + 1), np.int64)
        count = np.zeros(self.signature.batch, np.int64)
        for slot, given in tokens.items():
            self._slots.check(slot)
            if len(given) > fed.shape[1]:
                raise SessionErrors.TOO_MANY_TOKENS(slot=slot, tokens=len(given), most=fed.shape[1])
            count[slot] = len(given)
            fed[slot, : len(given)] = [checked_token(token, slot, self.signature) for token in given]
        logits = self.verify_step(fed, count)
        return {slot: _plain(logits[slot, : len(given)]) for slot, given in tokens.items()}

    def verify_step(self, tokens: Array, count: Array) -> Array:
        """Feed count[b] tokens to slot b: `verify` without a loop or a copy.

        Args:
            tokens: [B, V + 1] i64; the first count[b] of row b are fed.
            count: [B] i64, 0 .. V + 1.

        Returns a live view of the logits [B, V + 1, vocabulary] in the program's dtype, valid until the next call; rows
        without a token are undefined. Raises UsageError as `verify` does.
        """
        slots = self._slots
        slots.check_verify(tokens, count)
        outputs, _ = self._run(VERIFY, slots.inputs(VERIFY, tokens, slots.position, slots.real(count)))
        slots.verified(count)
        return outputs[step_tensor(VERIFY, "logits")].reshape(*tokens.shape, -1)

    def accept(self, count: Array) -> None:
        """Keep the next count[b] tokens [B] i64 of those that the latest `verify` fed to slot b. Raises UsageError for
        more tokens than it fed."""
        self._slots.accept(count)

    def rewind(self, count: Array) -> None:
        """Forget the newest count[b] tokens [B] i64 that were fed to slot b; the next token takes their place.

        Raises UsageError for tokens of a prompt; for more than V tokens back from the last one that was ever written
        (`Signature.drafted`), because rows that the slot would see again may be overwritten; and for tokens before
        those of the latest step of several, where a recurrent state includes them.
        """
        self._slots.rewind(count)

    def score(self, first: int) -> Array:
        """Return logits after positions `first` .. `first` + B - 1 of the latest prompt.

        They are those of full attention, as `prefill` returns them for the last position. Rows of positions that were
        reused, or that are behind the prompt, are undefined. A program with more slots than positions has no such entry
        (`Signature.scores_prompts`).

        Args:
            first: 0 .. T - B (`Signature.scratch_tokens`).

        Returns:
            A live view [B, V] in the program's dtype, valid until the next call.

        Raises:
            UsageError: no prompt was prefilled, or another prefill has begun.
        """
        if self._prefill_logits is None:
            raise SessionErrors.NO_PREFILL_LOGITS()
        if self._prefill is not None:
            raise SessionErrors.PREFILL_BEGUN(slot=self._prefill.slot)
        outputs, _ = self._run(SCORE, {}, {FIRST: first})
        return outputs["logits"]

    def replay(self, slot: int) -> Array:
        """Feed the prompt's last token once more, at its own position, over the compressed cache.

        Returns the logits [V] after the prompt as later steps see it, whereas the logits of prefill come from full
        attention. The row of the last position is overwritten by one that is computed over the compressed cache, and
        decoding continues from it. A second call returns the same logits, except where a step fetches a limited number
        of rows (`Geometry.fetch`): each step changes the resident rows, so only `restore` of an earlier snapshot
        repeats it.

        Raises UsageError once a token was fed after the prompt, and for layers whose state cannot read a token twice
        (`Signature.reads_twice`): recurrent states and convolutions.
        """
        if not self.signature.reads_twice:
            raise SessionErrors.REPLAY_STATE()
        self._slots.check_fresh(slot, SessionErrors.REPLAY_AFTER_TOKENS)
        active = np.zeros(self.signature.batch, np.bool_)
        active[slot] = True
        return _plain(self._decode(self._slots.last_token, self._slots.prompt_length - 1, active)[slot])

    def _decode(self, tokens: Array, position: Array, active: Array) -> Array:
        """Run a decode step. Return a live view of the logits."""
        outputs, _ = self._run(DECODE, self._slots.inputs(DECODE, tokens[:, None], position, active[:, None]))
        return outputs["logits"]

    def _run(
        self, entry: str, inputs: Mapping[str, Array], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Run an entry. Its outputs may be live views."""
        start = perf_counter_ns()
        try:
            return self.interpreter.run(entry, inputs, scalars, copy=False)
        finally:
            end = perf_counter_ns()
            self.interpreter_ns += end - start
            if self.tracer is not None:
                facts: dict[str, int] = dict(scalars or {})
                if scalars is None:
                    active = inputs[step_tensor(entry, "active")].reshape(self.signature.batch, -1)
                    facts = {"slots": int(active.any(1).sum())}
                    if entry == VERIFY:
                        facts["tokens"] = int(active.sum())
                self.tracer.span(entry, start, end, facts)

    def start_trace(self, capacity: int = CAPACITY) -> Tracer:
        """Begin to record calls, stages, waits, and an engine's requests, the latest `capacity` of each kind and
        thread. `Tracer.write` ends the recording and writes a file for Perfetto."""
        self.tracer = Tracer(self.interpreter, capacity)
        return self.tracer

    @overload
    def generate(
        self,
        prompt: str,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        slot: int = 0,
        seen: Seen | None = None,
        speculation: Speculation | None = None,
    ) -> Iterator[str]: ...

    @overload
    def generate(
        self,
        prompt: Sequence[int] | Excerpt,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        slot: int = 0,
        seen: Seen | None = None,
        speculation: Speculation | None = None,
    ) -> Generation: ...

    def generate(
        self,
        prompt: str | Sequence[int] | Excerpt,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        slot: int = 0,
        seen: Seen | None = None,
        speculation: Speculation | None = None,
    ) -> Iterator[str] | Generation:
        """Prefill a slot with a prompt, and return an iterator over the answer: text pieces for text, tokens for
        tokens.

        The answer is computed as it is iterated over. For many prompts, stop strings or grammars use an engine or
        `sscc.LLM`, which give the same tokens.

        Args:
            max_new_tokens: the limit; None for 64, or the room that is left if that is less.
            eos: tokens that end the answer, which includes them; None for those of the model, empty for none.
            seen: reports the progress of the prefill (`prefill`).
            speculation: drafts the answer's tokens, which are the same without it; None for plain decoding.

        Raises UsageError at the call, not at the first token, if prompt and new tokens exceed max_context, and
        InputError for text where there is no tokenizer.
        """
        if isinstance(prompt, str):
            from sscc.runtime.text.tokenizer import encode, pieces

            given = encode(self.tokenizer, prompt)
            tokens = self.generate(given, max_new_tokens, sampling, eos, slot, seen, speculation)
            return pieces(self.tokenizer, tokens)
        self._slots.check(slot)
        if max_new_tokens is None:
            text_length = prompt.text_length if isinstance(prompt, Excerpt) else len(prompt)
            max_new_tokens = default_new_tokens(self.signature.geometry.max_context, text_length)
        checked = self.check_request(prompt, max_new_tokens)
        ahead = None
        if speculation is not None:
            ahead = SpeculativeSlot(self, slot, speculation, checked.tokens, max_new_tokens)
        return Generation(
            lambda: self.prefill(slot, checked, seen),
            (lambda token: self.decode({slot: token})[slot]) if ahead is None else ahead.decode,
            Sampler(sampling or Sampling(), checked.tokens),
            self.signature.eos_token_ids if eos is None else frozenset(eos),
            max_new_tokens,
        )

    def check_request(self, tokens: PromptTokens, max_new_tokens: int) -> Excerpt:
        """Return the prompt as it would be prefilled. Raises UsageError if the prompt and `max_new_tokens` more
        tokens do not fit the program. Safe in any thread."""
        return checked_request(tokens, max_new_tokens, self.signature)

    # -- looking inside

    @cached_property
    def _stages(self) -> Stages:
        program = self.interpreter.program
        if program is None:
            raise SessionErrors.NO_STAGES()
        return Stages(program, self.interpreter.stages)

    @property
    def stages(self) -> list[str]:
        """Names of the stages that can be watched, each "KERNEL.PIPELINE.STAGE"."""
        return [".".join(name) for name in self._stages.modules]

    def watching(
        self, *stages: str, layer: int | None = None, call: Callable[[Observation], object] | None = None
    ) -> Watching:
        """Observe the buffers that stages write, during the calls inside the context::

            with session.watching("q_proj", layer=3) as seen:
                session.decode({0: 5})
            print(seen[0].value)

        Calls outside the context run at full speed.

        Args:
            stages: names, patterns with `*`, or ends of module paths ("self_attn.q_proj"); none for all stages.
            layer: the only layer that is observed; None for all.
            call: called with each observation, instead of keeping all of them. It must not call the session. An
                exception that it raises ends the running call.

        Raises UsageError for a name that no stage has, and where several ranks run the program.
        """
        return Watching(self.interpreter, self._stages, stages, layer, call)

    def steps(self, tokens: Mapping[int, int], *stages: str, layer: int | None = None) -> Iterator[Observation]:
        """Feed tokens as `decode` does, and stop after every stage, or after stages named as for `watching`::

            for stage in session.steps({0: 5}):
                print(stage.stage, stage.buffers, session.interpreter.device_tensor("k_cache")[0].read().sum())

        Between two stages, memory is in the state in which the program left it. Leaving the loop runs the step to its
        end. Raises the errors of `decode` and `watching`.
        """
        names = self._stages  # raises here, not in the thread

        def watching(stop: Callable[[Observation], object]) -> Watching:
            return Watching(self.interpreter, names, stages, layer, stop)

        watching(lambda observation: None)  # raises here for a name that no stage has
        return step_through(watching, lambda: self.decode(tokens))

    # -- slots

    def position(self, slot: int) -> int:
        """Return the absolute position that the slot's next token has in its text."""
        return self._slots.text_position(slot)

    def room(self, slot: int) -> int:
        """Return the number of tokens that can still be fed to the slot; 0 for a slot without a prompt."""
        self._slots.check(slot)
        return int(self._slots.room[slot])

    def release(self, slot: int) -> None:
        """Forget a slot's sequence, if it has one."""
        self._slots.check(slot)
        self._slots.empty(slot)

    def snapshot(self, slot: int) -> Snapshot:
        """Copy a slot right after its prompt. Raises UsageError once a token was fed after the prompt."""
        self._slots.check_fresh(slot, SessionErrors.COPY_AFTER_TOKENS)
        prompt = self.prompt(slot)
        length = len(prompt.tokens)
        copy = Copy(self.rows, self.rows.slot_bytes(length))
        self.rows.do(CopySlot(copy.number, slot, length))
        return Snapshot(prompt, slot, copy)

    def snapshot_bytes(self, slot: int) -> int:
        """Return the bytes that `snapshot` would copy, on all ranks together. Raises UsageError as it does."""
        self._slots.check_fresh(slot, SessionErrors.COPY_AFTER_TOKENS)
        return self.rows.slot_bytes(int(self._slots.prompt_length[slot])) + selected_bytes(self.prompt(slot).selected)

    def whole_bytes(self, prompt: Excerpt) -> int:
        """Return the bytes of a snapshot after a prompt, with tokens and logits."""
        selected = sum(
            8 * len(group.layers) * group.kv_heads * count
            for group, state in self.signature.states
            for _, count in state.remembered(len(prompt)).values()
        )
        logits = 4 * self.signature.vocab_size
        return self.rows.slot_bytes(len(prompt)) + (selected if self.ranks == 1 else 0) + prompt.nbytes + logits

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Replace a slot's content by a snapshot of this session.

        Raises UsageError if the slot does not exist or is being prefilled.
        """
        self._slots.check(slot)
        if self._prefill is not None and self._prefill.slot == slot:
            raise SessionErrors.SLOT_IN_PREFILL(slot=slot)
        self.rows.do(RestoreSlot(snapshot.rows.number, slot, len(snapshot.prompt.tokens), snapshot.slot))
        self._slots.fill(slot, snapshot.prompt)

    def prompt(self, slot: int) -> Prompt:
        """Return the slot's prompt, with its logits. Raises UsageError if the slot has none."""
        return self._slots.prompt(slot)

    # -- slots of other processes

    @cached_property
    def slot_format(self) -> SlotFormat:
        """The format of the messages that carry slots of this program to other processes and into files. Raises
        UsageError for a session whose program and weights have no identity, because it was not opened from an
        artifact."""
        if self._identity is None:
            raise SessionErrors.NO_IDENTITY()
        return SlotFormat(self.signature, self._identity(), self.rows.layout, remembers=self.ranks == 1)

    def message(self, snapshot: Snapshot) -> SlotMessage:
        """Return a snapshot as a message for another process. With one rank the message shares the snapshot's
        memory."""
        prompt = snapshot.prompt
        parts = self.rows.parts(snapshot.rows.number)
        return SlotMessage(prompt.tokens, prompt.logits, snapshot.slot, parts, prompt.selected)

    def adopt(self, message: SlotMessage) -> Snapshot:
        """Return a snapshot of this session from a message that `slot_format` has read."""
        copy = Copy(self.rows, sum(rows.nbytes for part in message.parts for rows in part.values()))
        self.rows.do(PutCopy(copy.number, message.parts))
        return Snapshot(Prompt(message.tokens, message.logits, message.selected), message.slot, copy)

    @cached_property
    def chunk_format(self) -> ChunkFormat:
        """The format of files with the rows of prompt chunks. Raises UsageError as `slot_format` does."""
        if self._identity is None:
            raise SessionErrors.NO_IDENTITY()
        layout, checkpoint = (self.rows.chunk_layout(checkpoint) for checkpoint in (False, True))
        return ChunkFormat(self.signature, self._identity(), layout, checkpoint)

    def adopt_chunk(self, message: ChunkMessage) -> Copy:
        """Return a copy of this session from a message that `chunk_format` has read."""
        parts = tuple({name: rows.copy() for name, rows in part.items()} for part in message.parts)
        copy = Copy(self.rows, self.rows.bytes_of_chunk(message.checkpoint), message.checkpoint)
        self.rows.do(PutCopy(copy.number, parts))
        return copy

    def save_slot(self, slot: int, path: str | PathLike[str]) -> None:
        """Write a slot right after its prompt to a file, which `load_slot` reads in any process with this program.

        Raises UsageError as `snapshot` and `slot_format` do, and OutputError if the file cannot be written.
        """
        pieces = self.slot_format.pieces(self.message(self.snapshot(slot)))
        with replacing(Path(path)) as file:
            for piece in pieces:
                file.write(piece)

    def load_slot(self, slot: int, path: str | PathLike[str]) -> Array:
        """Replace a slot's content by a file of `save_slot`, written by a session of the same program and weights.
        Return the logits [V] after the prompt, as `prefill` does.

        Raises UsageError as `restore` does, and InputError if the file is missing, damaged, or of another program.
        """
        message = self.slot_format.read(mapped(Path(path)), str(path))
        self.restore(slot, self.adopt(message))
        return message.logits.copy()

    def reset(self) -> None:
        """Forget every sequence and zero the program's state."""
        for slot in range(self.signature.batch):
            self._slots.empty(slot)
        self._prefill = None
        self._prefill_logits = None
        self.interpreter.reset()

    def kept(self, slot: int) -> Kept:
        """Return the positions that the slot's cache holds now, by layer and KV head, and their sizes. The positions
        are a copy."""
        self._slots.check_filled(slot)
        prompt_len, length = int(self._slots.prompt_length[slot]), int(self._slots.position[slot])
        geometry = self.signature.plan.main.geometry
        kept = geometry.kept_rows(length)
        return Kept(
            prompt_len=prompt_len,
            length=length,
            kept=kept,
            evicted=length - kept,
            budget=geometry.most_kept,
            kv_bytes=self.signature.held_bytes,
            full_bytes=self.signature.full_kv_bytes(geometry.max_context),
            full_bytes_now=self.signature.full_kv_bytes(length),
            of_layers=None if self.ranks > 1 else self._kept_layers(slot, length, prompt_len),
        )

    def _kept_layers(self, slot: int, length: int, prompt_len: int) -> tuple[LayerKept, ...]:
        selected = self.prompt(slot).selected
        return kept_layers(self.signature, self.interpreter.device_tensor, slot, length, prompt_len, selected)

def interpreter_of(
    artifact: Artifact, conditions: Conditions, interpreter: str = DEFAULT_BACKEND, resolver: Resolver | None = None
) -> Interpreter:
    """Return an interpreter of an artifact, with its own weights or those that `resolver` returns (`Artifact.weights`).
    With several ranks, it is the interpreter of the rank that `conditions` name.

    Args:
        interpreter: the name of a backend. Other backends are not imported.

    Raises:
        UsageError: there is no such backend, or it does not support the conditions.
        InputError: weights are missing or do not fit the program, or the program is malformed.
    """
    backend = artifact.backend(interpreter)
    # Weights that were packed for this backend are mapped; others are packed now.
    packed = artifact.packer == backend.packer
    return backend.open(artifact.weights(resolver, packed=packed, rank=conditions.group.rank), conditions)


def _own_identity(artifact: Artifact, resolver: Resolver | None) -> Callable[[], ProgramIdentity] | None:
    """Return the identity of an artifact with its own weights; None with others, whose digests are not known here."""
    return None if resolver is not None else lambda: artifact.identity


def _plain(logits: Array) -> Array:
    """Copy logits as float32, or as float64 if they are that."""
    return np.array(logits, np.float64 if logits.dtype == np.float64 else np.float32)
