"""A session joins a program, weights and a geometry, and keeps what the host knows about each slot.

The host's share of SnapStream is small: per slot the position of the next token and the number of valid
top-K rows, and for a prefill in progress its cursor. Everything else happens in the program's entries
`prefill` and `decode`.

Logits are float32 numpy arrays that belong to the caller: no later call changes them. (They are float64 where the
reference interpreter computes in double precision.) Only `Session.decode_step`, made for whoever decodes many slots
at once, gives the program's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, NoReturn, overload

import numpy as np

from sscc.ir.choices import FIRST, POSITION_ID, POSITION_IDS, SCORE
from sscc.ir.errors import ErrorKind, InputError, InternalError, UsageError
from sscc.ir.files import mapped, replacing
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.interpreter import Interpreter
from sscc.runtime.backends.registry import DEFAULT_BACKEND
from sscc.runtime.session.chunk_message import ChunkFormat, ChunkMessage
from sscc.runtime.session.excerpt import Excerpt, PromptTokens
from sscc.runtime.session.kept_positions import Kept, LayerKept, Selected, kept_layers, selected_by_prompt
from sscc.runtime.session.kept_rows import (
    Copy,
    CopySlot,
    DropCheckpoint,
    EmptyChunk,
    KeepsRows,
    KeptRows,
    PutCopy,
    ReadChunks,
    RestoreSlot,
    WriteChunks,
    carries,
    rows_in_scratch,
)
from sscc.runtime.session.observing import Observation, Stages, Watching, step_through
from sscc.runtime.session.samplers import Sampler
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.slot_message import SlotFormat, SlotMessage
from sscc.runtime.session.tracing import CAPACITY, Tracer
from sscc.runtime.support.serving_options import NEW_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.session.artifact import Artifact, Resolver
    from sscc.runtime.support._native import Team

Seen = Callable[[int, int], None]
"""Told how much of some work is done, and how much there is."""
PARTS_SEEN = 100
"""Calls of a prefill whose caller wants to see how far it is."""


class SessionErrors(ErrorKind):
    NO_TOKENIZER = InputError, "the artifact has no tokenizer: pass tokens, or compile a checkpoint that has one"
    NO_SLOT = UsageError, "slot {slot} does not exist, the program has slots 0 .. {last}"
    SLOT_EMPTY = UsageError, "slot {slot} holds no prompt: prefill it first"
    SLOT_FULL = (
        UsageError,
        "slot {slot} holds {tokens} tokens, the maximum context of the program: compile with a larger --max-context",
    )
    SLOT_IN_PREFILL = UsageError, "slot {slot} is being prefilled: finish or abandon that prefill"
    COPY_AFTER_TOKENS = (
        UsageError,
        "slot {slot} was fed {tokens} tokens after its prompt: it can only be copied before the first",
    )
    REPLAY_AFTER_TOKENS = (
        UsageError,
        "slot {slot} was fed {tokens} tokens after its prompt: the prompt can only be replayed before the first",
    )
    EMPTY_PROMPT = UsageError, "the prompt has no tokens, and it must have at least 1"
    PROMPT_TOO_LONG = (
        UsageError,
        "the prompt has {tokens} tokens, but the program's maximum context is {max_context}: shorten the prompt or "
        "compile with a larger --max-context",
    )
    REQUEST_TOO_LONG = (
        UsageError,
        "{tokens} prompt tokens and {max_new_tokens} new tokens exceed the program's maximum context of {max_context}: "
        "ask for fewer new tokens or compile with a larger --max-context",
    )
    MAX_NEW_TOKENS = UsageError, "max-new-tokens is {value}, but must be at least 1"
    PROMPT_TOKEN = (
        UsageError,
        "token {token} at position {position} of the prompt is outside the vocabulary 0 .. {last}",
    )
    TOKEN = UsageError, "token {token} for slot {slot} is outside the vocabulary 0 .. {last}"
    NO_CHECKPOINT = UsageError, "chunk {chunk} is no checkpoint, so that no prompt can continue behind it"
    REUSED_CHUNKS = UsageError, "{chunks} chunks of a prompt of {tokens} tokens cannot be reused, at most {most} can"
    KEPT_CHUNK = (
        UsageError,
        "chunk {chunk} of a prompt of {tokens} tokens cannot be kept: whole chunks to prefill are {first} .. {last}",
    )
    PREFILL_IN_PROGRESS = (
        UsageError,
        "slot {slot} cannot be prefilled while the prefill of slot {other} is in progress: finish or abandon that one",
    )
    PREFILL_BEGUN = UsageError, "the prompt before is not there any more: the prefill of slot {slot} has begun"
    NO_PREFILL = UsageError, "no prefill is in progress: call start_prefill first"
    PREFILL_STEPS = UsageError, "a prefill call takes at least 1 step, not {steps}"
    PREFILL_STUCK = InputError, "the schedule's prefill makes no progress: it stays at phase {phase} and chunk {chunk}"
    NO_PREFILL_LOGITS = UsageError, "there are no prefill logits, because no prefill has finished yet"
    STEP_ARRAYS = (
        UsageError,
        "a decode step takes tokens int64 [{slots}] and active bool [{slots}], not {tokens_dtype} [{tokens_shape}] and "
        "{active_dtype} [{active_shape}]",
    )
    STEP_REFUSED = InternalError, "a decode step was refused, but its tokens and slots are valid"
    NO_STAGES = UsageError, "stages can only be watched in a program of one rank that runs a schedule"
    NO_IDENTITY = UsageError, "slots can only be saved and loaded by a session of an artifact with its own weights"


@dataclass(frozen=True, eq=False)
class Prompt:
    """What a prompt leaves besides rows.

    Attributes:
        tokens: that were prefilled, n of them.
        logits: [V] f32, after the last one.
        selected: the positions that it selected, where no state has them for every slot.
    """

    tokens: Excerpt
    logits: Array = field(repr=False)
    selected: Selected = field(default_factory=dict, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and logits."""
        return self.tokens.nbytes + self.logits.nbytes


@dataclass(frozen=True)
class Snapshot:
    """What a slot holds right after its prompt: all that decoding reads, the same in any slot.

    Attributes:
        prompt: what the slot's prompt has left besides rows.
        slot: that it was taken of.
        rows: the slot's part of the program's states, without the rows that are not valid.
    """

    prompt: Prompt
    slot: int
    rows: Copy

    @property
    def selected(self) -> Selected:
        return self.prompt.selected

    @property
    def nbytes(self) -> int:
        """Bytes of the states, on all ranks together, and of the selected positions."""
        return self.rows.nbytes + _nbytes(self.selected)


@dataclass
class _PrefillProgress:
    slot: int
    prompt: Excerpt
    inputs: Mapping[str, Array]
    prefix: Sequence[Copy] = ()
    fill: Mapping[int, Copy] = field(default_factory=dict)
    phase: int = 0
    chunk: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt)

    @property
    def reused(self) -> int:
        return len(self.prefix)


class Session:
    """Prefills and decodes on one program with one set of weights.

    Args:
        signature: sizes and geometry that the program was compiled for.
        interpreter: executes the program's entries `prefill` and `decode`, with its weights.
        tokenizer: the file that turns text into tokens and back, if there is one.
        identity: says which program and weights these are, for slots of other processes; asked once, if at all.

    Attributes:
        interpreter_ns: nanoseconds that calls of the interpreter have taken so far.
        rows: copies of what slots hold; of several ranks, rank 0's, with which the others make theirs.
        tracer: records what runs, if anybody wants that (`start_trace`).
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
        batch = signature.batch
        self._prompt_len = np.zeros(batch, np.int64)  # 0: the slot holds no prompt
        self._base = np.zeros(batch, np.int64)  # the first row of the ring
        self._position = np.zeros(batch, np.int64)
        self._left_out = np.zeros(batch, np.int64)  # of the text before that position
        self._room = np.zeros(batch, np.int64)  # positions that are left; 0 without a prompt
        self._last_token = np.zeros(batch, np.int64)
        self._prompts: list[Prompt | None] = [None] * batch
        self._token_input, self._position_id = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        self._decode_inputs: dict[str, Array] = {
            "token": self._token_input[:, None],
            POSITION_ID: self._position_id[:, None],
            "position": np.zeros(batch, np.int64),
            "base": np.zeros(batch, np.int64),
            "active": np.zeros(batch, np.bool_),
        }
        self._pending: _PrefillProgress | None = None
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
        """Joins an artifact to its own weights, or to those that `resolver` gives (`interpreter_of`)."""
        conditions = Conditions(artifact.schedule_digest, threads, precision, checked)
        opened = interpreter_of(artifact, conditions, interpreter, resolver)
        return cls(artifact.signature, opened, artifact.tokenizer_file, _own_identity(artifact, resolver))

    def __repr__(self) -> str:
        filled = {slot: int(self._position[slot]) for slot in np.flatnonzero(self._prompt_len)}
        held = ", ".join(f"slot {slot} holds {length} tokens" for slot, length in filled.items()) or "all slots empty"
        return f"Session({self.signature.in_words()}; {held})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Turns text into tokens and back. Raises InputError where the artifact brought none."""
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
        """The reason why no call can succeed any more, such as a rank that is gone; None while calls can."""
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
        """Begins to write a prompt into a slot, whose previous content is given up.

        Args:
            tokens: of the prompt, or some of them with their positions (`Excerpt`).
            prefix: what a prefill of the same tokens left of the prompt's first chunks, which are not done again. The
                last one is a checkpoint.
            fill: memory (`empty_chunk`) for what this one leaves of later whole chunks, by their number; it is theirs
                once the prefill has finished.

        Raises UsageError for a slot, a token or a length that is out of range, for more chunks than
        `reusable_chunks`, for chunks that end with no checkpoint, for others than whole ones to fill, or while another
        prefill is unfinished (the program has scratch for one).
        """
        self._check_slot(slot)
        prompt = self._check_prompt(tokens)
        most = self.reusable_chunks(len(prompt))
        if len(prefix) > most:
            raise SessionErrors.REUSED_CHUNKS(chunks=len(prefix), tokens=len(prompt), most=most)
        if prefix and not prefix[-1].checkpoint:
            raise SessionErrors.NO_CHECKPOINT(chunk=len(prefix) - 1)
        fill = fill or {}
        whole = len(prompt) // self.signature.prefill_chunk
        wrong = [chunk for chunk in fill if not len(prefix) <= chunk < whole]
        if wrong:
            first, last = len(prefix), whole - 1
            raise SessionErrors.KEPT_CHUNK(chunk=wrong[0], tokens=len(prompt), first=first, last=last)
        if self._pending is not None:
            raise SessionErrors.PREFILL_IN_PROGRESS(slot=slot, other=self._pending.slot)
        shape = (1, self.signature.scratch_tokens)
        padded, positions = np.zeros(shape, np.int64), np.full(shape, prompt.positions[-1])
        padded[0, : len(prompt)], positions[0, : len(prompt)] = prompt.tokens, prompt.positions
        self._empty(slot)
        inputs = {"tokens": padded, POSITION_IDS: positions}
        self._pending = _PrefillProgress(slot, prompt, inputs, prefix, fill)

    def step_prefill(self, steps: int) -> bool:
        """Does at most `steps` chunk steps of the prefill in progress; True when it has finished.

        Decode steps of other slots may run in between. Raises UsageError where no prefill is in progress.
        """
        pending = self._pending
        if pending is None:
            raise SessionErrors.NO_PREFILL()
        if steps < 1:
            raise SessionErrors.PREFILL_STEPS(steps=steps)
        left = min(steps, self.signature.prefill_steps(pending.length, pending.reused))
        if (pending.prefix or pending.fill) and rows_in_scratch(self.signature):
            return self._prefill_by_layer(pending, left)
        layers = range(self.signature.layers)
        if pending.phase == pending.chunk == 0:
            self._write_prefix(pending, layers)
        finished = self._run_prefill(pending, left)
        if finished:
            self._read_chunks(pending, range(self.signature.chunks(pending.length)), layers)
        return finished

    def _prefill_by_layer(self, pending: _PrefillProgress, left: int) -> bool:
        """Do `left` chunk steps in calls that end with their layer, or with their chunk where it leaves something for
        the next one, and copy rows before and after the calls. Return True when the prefill has finished."""
        chunks = self.signature.chunks(pending.length) - pending.reused
        while left:
            phase, chunk = pending.phase, pending.chunk
            layers = range(phase - 1, phase) if 1 <= phase <= self.signature.layers else range(0)
            taken = min(left, chunks - chunk)
            first = pending.reused + chunk
            if layers and carries(self.signature, layers[0]):
                ends = [each + 1 for each, copy in pending.fill.items() if copy.checkpoint and each >= first]
                taken = min([taken, *(end - first for end in ends)])
            if chunk == 0:
                self._write_prefix(pending, layers)
            if self._run_prefill(pending, taken):
                return True
            self._read_chunks(pending, range(first, first + taken), layers)
            left -= taken
        return False

    def _write_prefix(self, pending: _PrefillProgress, layers: range) -> None:
        if pending.prefix and layers:
            copies = tuple(chunk.number for chunk in pending.prefix)
            self.rows.do(WriteChunks(copies, pending.slot, layers))

    def _read_chunks(self, pending: _PrefillProgress, chunks: range, layers: range) -> None:
        copies = {chunk: copy.number for chunk, copy in pending.fill.items() if chunk in chunks}
        if copies and layers:
            self.rows.do(ReadChunks(copies, pending.slot, layers))

    def _run_prefill(self, pending: _PrefillProgress, steps: int) -> bool:
        """One call of the program."""
        before = (pending.phase, pending.chunk)
        scalars = self.signature.prefill_scalars(pending.length, pending.slot, before, steps, pending.reused)
        outputs, (pending.phase, pending.chunk) = self._run("prefill", pending.inputs, scalars)
        if (pending.phase, pending.chunk) <= before:
            raise SessionErrors.PREFILL_STUCK(phase=before[0], chunk=before[1])
        if pending.phase < self.signature.layers + 2:
            return False
        self._prefill_logits = _plain(outputs["prefill_logits"][0])
        selected: Selected = {}
        if self.ranks == 1:
            selected = selected_by_prompt(self.signature, self.interpreter.device_tensor, pending.length)
        self._fill(pending.slot, Prompt(pending.prompt, self._prefill_logits.copy(), selected))
        self._pending = None
        return True

    def reusable_chunks(self, length: int) -> int:
        """How many chunks of a prompt of so many tokens need not be prefilled, where their rows are there. Its last
        position is always: the logits are its; and where the end of the prompt chooses rows, all that observe."""
        return self.signature.reusable_chunks(length)

    def empty_chunk(self, checkpoint: bool = True) -> Copy:
        """Return memory for what prefill leaves of a chunk, for `start_prefill` to fill; of a checkpoint also for what
        it leaves for the next chunk alone."""
        chunk = Copy(self.rows, self.rows.bytes_of_chunk(checkpoint), checkpoint)
        self.rows.do(EmptyChunk(chunk.number, checkpoint))
        return chunk

    def drop_checkpoint(self, chunk: Copy) -> None:
        """Give up what a chunk leaves for the next one alone, so that no prompt continues behind it."""
        self.rows.do(DropCheckpoint(chunk.number))
        chunk.nbytes, chunk.checkpoint = self.rows.bytes_of_chunk(False), False

    @property
    def prefill_logits(self) -> Array:
        """Logits [V] after the last token of the prompt that was prefilled last."""
        if self._prefill_logits is None:
            raise SessionErrors.NO_PREFILL_LOGITS()
        return self._prefill_logits

    def abandon_prefill(self) -> None:
        """Gives up the prefill in progress, if any; its slot is empty then."""
        self._pending = None

    def prefill(self, slot: int, tokens: PromptTokens, seen: Seen | None = None) -> Array:
        """Writes a whole prompt into a slot. Returns the logits [V] of its last token.

        Args:
            tokens: of the prompt, or some of them with their positions (`Excerpt`).
            seen: told how many chunk steps are done, and how many there are, after every hundredth of them; the prompt
                takes as many calls then, and one without it.
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
        """Feeds one token to each slot named, at the slot's next position.

        Returns logits [B, V], of which only the rows of the slots named mean anything. Raises UsageError for a
        slot without a prompt, a token out of range, or a slot whose sequence is at max_context.
        """
        fed, active = np.zeros(self.signature.batch, np.int64), np.zeros(self.signature.batch, np.bool_)
        for slot, token in tokens.items():
            self._check_slot(slot)
            fed[slot], active[slot] = self._check_token(slot, token), True
        return _plain(self.decode_step(fed, active))

    def decode_step(self, tokens: Array, active: Array) -> Array:
        """Feeds one token to every active slot, at the slot's next position: `decode` without a loop or a copy.

        Args:
            tokens: [B] i64; those of slots that are not active mean nothing.
            active: [B] bool.

        Returns a live view of the logits [B, V] in the program's dtype, good until the next call, of which only the
        rows of active slots mean anything. Raises UsageError as `decode` does.
        """
        shape = self._position.shape
        if tokens.shape != shape or active.shape != shape or tokens.dtype != np.int64 or active.dtype != np.bool_:
            raise SessionErrors.STEP_ARRAYS(
                slots=self.signature.batch, tokens_dtype=tokens.dtype, tokens_shape=tokens.shape,
                active_dtype=active.dtype, active_shape=active.shape,
            )  # fmt: skip
        largest = tokens.view(np.uint64).max(where=active, initial=0)  # a token below 0 is beyond 2**63
        if largest >= self.signature.vocab_size or self._room.min(where=active, initial=1) <= 0:
            self._refuse_step(tokens, active)
        logits = self._decode(tokens, self._position, active)
        self._position += active
        self._room -= active
        return logits

    def score(self, first: int) -> Array:
        """Return logits after positions `first` .. `first` + B - 1 of the prompt that was prefilled last.

        They are those of full attention, as `prefill` has them for the last position. Only the positions of the prompt
        that were not reused have logits; the others' rows mean nothing. A program with more slots than positions
        (`Signature.scores_prompts`) has no such entry.

        Args:
            first: 0 .. T - B (`Signature.scratch_tokens`).

        Returns:
            A live view [B, V] in the program's dtype, good until the next call.

        Raises:
            UsageError: no prompt was prefilled, or another one has begun.
        """
        if self._prefill_logits is None:
            raise SessionErrors.NO_PREFILL_LOGITS()
        if self._pending is not None:
            raise SessionErrors.PREFILL_BEGUN(slot=self._pending.slot)
        outputs, _ = self._run(SCORE, {}, {FIRST: first})
        return outputs["logits"]

    def replay(self, slot: int) -> Array:
        """Feeds the prompt's last token once more, at its own position, over the compressed cache.

        Returns the logits [V] that follow the prompt as later steps see it; prefill's own are made by full attention
        and say nothing about the cache. The last position's row is written anew, from what the layers see of the
        compressed cache, and decoding goes on from that. Asked again it gives the same logits; but where a step fetches
        few rows (`Geometry.fetch`), it leaves other resident rows, as every step does, from which the next one begins:
        `restore` of a snapshot taken before repeats it. Raises UsageError once a token was fed after the prompt.
        """
        self._check_fresh(slot, SessionErrors.REPLAY_AFTER_TOKENS)
        active = np.zeros(self.signature.batch, np.bool_)
        active[slot] = True
        return _plain(self._decode(self._last_token, self._prompt_len - 1, active)[slot])

    def _decode(self, tokens: Array, position: Array, active: Array) -> Array:
        """Runs a step; slots that are not active are given token, position and rows 0. Returns a view of the logits."""
        inputs = self._decode_inputs
        np.multiply(tokens, active, out=self._token_input)
        np.multiply(position, active, out=inputs["position"])
        np.multiply(position + self._left_out, active, out=self._position_id)
        np.multiply(self._base, active, out=inputs["base"])
        np.copyto(inputs["active"], active)
        outputs, _ = self._run("decode", inputs)
        return outputs["logits"]

    def _run(
        self, entry: str, inputs: Mapping[str, Array], scalars: Mapping[str, int] | None = None
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Runs an entry; its outputs may be live views."""
        start = perf_counter_ns()
        try:
            return self.interpreter.run(entry, inputs, scalars, copy=False)
        finally:
            end = perf_counter_ns()
            self.interpreter_ns += end - start
            if self.tracer is not None:
                facts = {"slots": int(inputs["active"].sum())} if scalars is None else dict(scalars)
                self.tracer.span(entry, start, end, facts)

    def start_trace(self, capacity: int = CAPACITY) -> Tracer:
        """Begins to record calls, stages, waits, and an engine's requests; the latest `capacity` of each kind and
        thread are kept. `Tracer.write` ends it and writes a file for Perfetto."""
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
    ) -> Iterator[int]: ...

    def generate(
        self,
        prompt: str | Sequence[int] | Excerpt,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        slot: int = 0,
        seen: Seen | None = None,
    ) -> Iterator[str] | Iterator[int]:
        """Prefills a slot with a prompt and yields what is made of it as it is made: of tokens new tokens, the ending
        one included; of text pieces of text, which are the answer when they are joined.

        Args:
            max_new_tokens: None: `NEW_TOKENS`, or as many as fit.
            eos: the tokens that end the text (those of the signature if None; none if empty).
            seen: told how far the prompt is read, see `prefill`.

        Raises UsageError at the call, not at the first token, where prompt plus new tokens exceed max_context, and
        InputError for text where there is no tokenizer.
        """
        if isinstance(prompt, str):
            return self.stream(prompt, max_new_tokens, sampling, eos, slot, seen)
        self._check_slot(slot)
        text_length = prompt.text_length if isinstance(prompt, Excerpt) else len(prompt)
        room = self.signature.geometry.max_context - text_length
        count = max(1, min(NEW_TOKENS, room)) if max_new_tokens is None else max_new_tokens
        tokens = self.check_request(prompt, count)
        ends = frozenset(self.signature.eos_token_ids if eos is None else eos)
        return self._generate(slot, tokens, count, Sampler(sampling or Sampling(), tokens.tokens), ends, seen)

    def stream(
        self,
        prompt: str,
        max_new_tokens: int | None = None,
        sampling: Sampling | None = None,
        eos: Iterable[int] | None = None,
        slot: int = 0,
        seen: Seen | None = None,
    ) -> Iterator[str]:
        """What follows `prompt`, piece by piece as it is made; arguments and errors are those of `generate`."""
        from sscc.runtime.text.tokenizer import encode, pieces

        tokens = self.generate(encode(self.tokenizer, prompt), max_new_tokens, sampling, eos, slot, seen)
        return pieces(self.tokenizer, tokens)

    def _generate(
        self,
        slot: int,
        prompt: Excerpt,
        max_new_tokens: int,
        sampler: Sampler,
        ends: frozenset[int],
        seen: Seen | None,
    ) -> Iterator[int]:
        logits = self.prefill(slot, prompt, seen)
        for left in reversed(range(max_new_tokens)):
            token = sampler.pick(logits)
            yield token
            if token in ends or left == 0:
                return
            logits = self.decode({slot: token})[slot]

    def check_request(self, tokens: PromptTokens, max_new_tokens: int) -> Excerpt:
        """The prompt. Raises UsageError where it, or so many new tokens after it, can never be had; any thread
        may ask."""
        prompt = self._check_prompt(tokens)
        limit, total = self.signature.geometry.max_context, prompt.text_length + max_new_tokens
        if max_new_tokens < 1:
            raise SessionErrors.MAX_NEW_TOKENS(value=max_new_tokens)
        if total > limit:
            length = prompt.text_length
            raise SessionErrors.REQUEST_TOO_LONG(tokens=length, max_new_tokens=max_new_tokens, max_context=limit)
        return prompt

    # -- looking inside

    @cached_property
    def _stages(self) -> Stages:
        program = self.interpreter.program
        if program is None:
            raise SessionErrors.NO_STAGES()
        return Stages(program, self.interpreter.stages)

    @property
    def stages(self) -> list[str]:
        """The stages that can be watched, "KERNEL.PIPELINE.STAGE" of each."""
        return [".".join(name) for name in self._stages.modules]

    def watching(
        self, *stages: str, layer: int | None = None, call: Callable[[Observation], object] | None = None
    ) -> Watching:
        """Looks at what stages write while calls are made inside of the context::

            with session.watching("q_proj", layer=3) as seen:
                session.decode({0: 5})
            print(seen[0].value)

        Nothing is slower than before outside of it.

        Args:
            stages: names, patterns with `*`, or ends of the paths of modules ("self_attn.q_proj"); none for all.
            layer: of this one alone.
            call: called with each observation when it is made, in place of keeping all of them. It must not call the
                session; what it raises ends the call that is under way.

        Raises UsageError for a name that no stage has, and where several ranks run the program.
        """
        return Watching(self.interpreter, self._stages, stages, layer, call)

    def steps(self, tokens: Mapping[int, int], *stages: str, layer: int | None = None) -> Iterator[Observation]:
        """Feeds tokens as `decode` does, and stops after every stage, or after those that are named as for `watching`::

            for stage in session.steps({0: 5}):
                print(stage.stage, stage.buffers, session.interpreter.device_tensor("k_cache")[0].read().sum())

        Between two stages memory is as the program has left it. Leaving the loop lets the step run to its end. Raises
        as `decode` and `watching` do.
        """
        names = self._stages  # found before the thread begins

        def watching(stop: Callable[[Observation], object]) -> Watching:
            return Watching(self.interpreter, names, stages, layer, stop)

        watching(lambda observation: None)  # so that a name that is none is refused here
        return step_through(watching, lambda: self.decode(tokens))

    # -- slots

    def position(self, slot: int) -> int:
        """The absolute position that the slot's next token will have in its text."""
        self._check_filled(slot)
        return int(self._position[slot] + self._left_out[slot])

    def release(self, slot: int) -> None:
        """Forgets a slot's sequence; nothing happens if it has none."""
        self._check_slot(slot)
        self._empty(slot)

    def snapshot(self, slot: int) -> Snapshot:
        """A copy of what the slot holds right after its prompt. Raises UsageError once a token was fed after it."""
        self._check_fresh(slot, SessionErrors.COPY_AFTER_TOKENS)
        prompt = self.prompt(slot)
        length = len(prompt.tokens)
        copy = Copy(self.rows, self.rows.slot_bytes(length))
        self.rows.do(CopySlot(copy.number, slot, length))
        return Snapshot(prompt, slot, copy)

    def snapshot_bytes(self, slot: int) -> int:
        """Bytes that `snapshot` would copy, on all ranks together. Raises UsageError as it does."""
        self._check_fresh(slot, SessionErrors.COPY_AFTER_TOKENS)
        return self.rows.slot_bytes(int(self._prompt_len[slot])) + _nbytes(self.prompt(slot).selected)

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
        """Gives a slot what a slot of this session held when the snapshot was taken; its content is given up.

        Raises UsageError where the slot does not exist or is being prefilled.
        """
        self._check_slot(slot)
        if self._pending is not None and self._pending.slot == slot:
            raise SessionErrors.SLOT_IN_PREFILL(slot=slot)
        self.rows.do(RestoreSlot(snapshot.rows.number, slot, len(snapshot.prompt.tokens), snapshot.slot))
        self._fill(slot, snapshot.prompt)

    def _fill(self, slot: int, prompt: Prompt) -> None:
        length = len(prompt.tokens)
        self._prompt_len[slot] = self._position[slot] = length
        self._base[slot] = self.signature.plan.main.geometry.base(length)
        self._left_out[slot] = prompt.tokens.left_out
        self._room[slot] = self.signature.geometry.max_context - prompt.tokens.text_length
        self._last_token[slot] = prompt.tokens.tokens[-1]
        self._prompts[slot] = prompt

    def _empty(self, slot: int) -> None:
        self._prompt_len[slot] = self._room[slot] = 0
        self._prompts[slot] = None

    def prompt(self, slot: int) -> Prompt:
        """The prompt that was prefilled into the slot, and what it left besides rows."""
        self._check_filled(slot)
        prompt = self._prompts[slot]
        assert prompt is not None
        return prompt

    # -- slots of other processes

    @cached_property
    def slot_format(self) -> SlotFormat:
        """The messages in which slots of this program go from one process to another, and are kept in files. Raises
        UsageError where it is not known which program and weights this is: it was not loaded from an artifact."""
        if self._identity is None:
            raise SessionErrors.NO_IDENTITY()
        return SlotFormat(self.signature, self._identity(), self.rows.layout, remembers=self.ranks == 1)

    def message(self, snapshot: Snapshot) -> SlotMessage:
        """What a snapshot holds, on all ranks, for another process: nothing of it is copied where there is but one."""
        prompt = snapshot.prompt
        parts = self.rows.parts(snapshot.rows.number)
        return SlotMessage(prompt.tokens, prompt.logits, snapshot.slot, parts, prompt.selected)

    def adopt(self, message: SlotMessage) -> Snapshot:
        """The snapshot that a message, which `slot_format` has read, was made of, as one of this session."""
        copy = Copy(self.rows, sum(rows.nbytes for part in message.parts for rows in part.values()))
        self.rows.do(PutCopy(copy.number, message.parts))
        return Snapshot(Prompt(message.tokens, message.logits, message.selected), message.slot, copy)

    @cached_property
    def chunk_format(self) -> ChunkFormat:
        """The messages in which rows of prompts' chunks are kept in files. Raises UsageError as `slot_format` does."""
        if self._identity is None:
            raise SessionErrors.NO_IDENTITY()
        layout, checkpoint = (self.rows.chunk_layout(checkpoint) for checkpoint in (False, True))
        return ChunkFormat(self.signature, self._identity(), layout, checkpoint)

    def adopt_chunk(self, message: ChunkMessage) -> Copy:
        """Return the rows of a message, which `chunk_format` has read, as a copy of this session."""
        parts = tuple({name: rows.copy() for name, rows in part.items()} for part in message.parts)
        copy = Copy(self.rows, self.rows.bytes_of_chunk(message.checkpoint), message.checkpoint)
        self.rows.do(PutCopy(copy.number, parts))
        return copy

    def save_slot(self, slot: int, path: str | PathLike[str]) -> None:
        """Writes what a slot holds right after its prompt to a file, for `load_slot` of any process with this program.

        Raises UsageError as `snapshot` and `slot_format` do, and OutputError where the file cannot be written.
        """
        pieces = self.slot_format.pieces(self.message(self.snapshot(slot)))
        with replacing(Path(path)) as file:
            for piece in pieces:
                file.write(piece)

    def load_slot(self, slot: int, path: str | PathLike[str]) -> Array:
        """Gives a slot what `save_slot` has written, by a session of the same program and weights; its content is given
        up. Returns the logits [V] after the prompt's last token, as `prefill` of the same prompt would.

        Raises UsageError as `restore` does, and InputError where the file is missing, damaged, or of another program.
        """
        message = self.slot_format.read(mapped(Path(path)), str(path))
        self.restore(slot, self.adopt(message))
        return message.logits.copy()

    def reset(self) -> None:
        """Forgets every sequence and zeroes the program's state."""
        for slot in range(self.signature.batch):
            self._empty(slot)
        self._pending = None
        self._prefill_logits = None
        self.interpreter.reset()

    def kept(self, slot: int) -> Kept:
        """What the slot's cache holds now: which positions, by layer and KV head, and how much that is.

        The positions are a copy, which later calls leave as it is.
        """
        self._check_filled(slot)
        prompt_len, length = int(self._prompt_len[slot]), int(self._position[slot])
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

    # -- checks

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.signature.batch:
            raise SessionErrors.NO_SLOT(slot=slot, last=self.signature.batch - 1)

    def _check_filled(self, slot: int) -> None:
        self._check_slot(slot)
        if not self._prompt_len[slot]:
            raise SessionErrors.SLOT_EMPTY(slot=slot)

    def _check_fresh(self, slot: int, kind: SessionErrors) -> None:
        self._check_filled(slot)
        fed = int(self._position[slot] - self._prompt_len[slot])
        if fed:
            raise kind(slot=slot, tokens=fed)

    def _check_prompt(self, tokens: PromptTokens) -> Excerpt:
        """The prompt, after checking that it can be prefilled."""
        if isinstance(tokens, Excerpt):
            return Excerpt(self._checked_tokens(tokens.tokens, tokens.text_length), tokens.positions)
        return Excerpt.whole(self._checked_tokens(tokens, len(tokens)))

    def _checked_tokens(self, tokens: Sequence[int] | Array, text_length: int) -> Array:
        """Tokens [n] i64 of a text."""
        limit = self.signature.geometry.max_context
        if len(tokens) == 0:
            raise SessionErrors.EMPTY_PROMPT()
        if text_length > limit:
            raise SessionErrors.PROMPT_TOO_LONG(tokens=text_length, max_context=limit)
        vocabulary = self.signature.vocab_size
        if isinstance(tokens, np.ndarray) and tokens.dtype == np.int64:
            prompt: Array = tokens
        else:
            whole = [operator.index(token) for token in tokens]
            prompt = np.array([token if 0 <= token < vocabulary else -1 for token in whole], np.int64)
        wrong = np.flatnonzero((prompt < 0) | (prompt >= vocabulary))
        if len(wrong):
            position, last = int(wrong[0]), vocabulary - 1
            raise SessionErrors.PROMPT_TOKEN(token=operator.index(tokens[position]), position=position, last=last)
        return prompt

    def _check_token(self, slot: int, token: int) -> int:
        value = operator.index(token)
        if not 0 <= value < self.signature.vocab_size:
            raise SessionErrors.TOKEN(token=value, slot=slot, last=self.signature.vocab_size - 1)
        return value

    def _refuse_step(self, tokens: Array, active: Array) -> NoReturn:
        """Raise the error of the first slot of a decode step that cannot be done."""
        for slot in np.flatnonzero(active).tolist():
            self._check_token(slot, tokens[slot])
            self._check_filled(slot)
            self._check_room(slot)
        raise SessionErrors.STEP_REFUSED()

    def _check_room(self, slot: int) -> None:
        limit, held = self.signature.geometry.max_context, self.position(slot)
        if held >= limit:
            raise SessionErrors.SLOT_FULL(slot=slot, tokens=held)


def interpreter_of(
    artifact: Artifact, conditions: Conditions, interpreter: str = DEFAULT_BACKEND, resolver: Resolver | None = None
) -> Interpreter:
    """What executes an artifact, with its own weights or those that `resolver` gives (`Artifact.weights`); of several
    ranks, with the part of the one that `conditions` name.

    Args:
        interpreter: the name of a backend, of which only what it needs is imported.

    Raises:
        UsageError: there is no such backend, or it cannot do what is asked.
        InputError: the weights are missing or others than the program wants, or the program is malformed.
    """
    backend = artifact.backend(interpreter)
    # Weights that are packed as the backend wants them are used where they lie.
    packed = artifact.packer == backend.name
    return backend.open(artifact.weights(resolver, packed=packed, rank=conditions.group.rank), conditions)


def _own_identity(artifact: Artifact, resolver: Resolver | None) -> Callable[[], ProgramIdentity] | None:
    """Of an artifact with its own weights; of others it is not known here whose they are."""
    return None if resolver is not None else lambda: artifact.identity


def _nbytes(selected: Selected) -> int:
    return sum(positions.nbytes for positions in selected.values())


def _plain(logits: Array) -> Array:
    """A copy of logits in float32, and in float64 if they are."""
    return np.array(logits, np.float64 if logits.dtype == np.float64 else np.float32)
