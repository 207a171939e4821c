"""A session combines a program, weights and a geometry, and keeps the host's state of each slot.

The host's part of SnapStream is small: per slot the position of the next token and the number of valid top-K rows, and
for a prefill in progress its cursor. Everything else happens in the program's entries `prefill` and `decode`.

Logits are float32 numpy arrays that belong to the caller: later calls do not change them. (They are float64 if the
reference interpreter computes in double precision.) Only `Session.decode_step`, for callers that decode many slots at
once, returns the program's own.
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
from sscc.runtime.session.sampling import Sampler, Sampling
from sscc.runtime.session.slot_message import SlotFormat, SlotMessage
from sscc.runtime.session.tracing import CAPACITY, Tracer
from sscc.runtime.support.serving_defaults import NEW_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.session.artifact import Artifact, Resolver
    from sscc.runtime.support._native import Team

Seen = Callable[[int, int], None]
"""Called with the amount of work that is done, and the total."""
PARTS_SEEN = 100
"""Number of calls of a prefill whose progress is reported."""


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
    NO_CHECKPOINT = UsageError, "chunk {chunk} is not a checkpoint, so a prompt cannot continue behind it"
    REUSED_CHUNKS = UsageError, "{chunks} chunks of a prompt of {tokens} tokens cannot be reused, at most {most} can"
    KEPT_CHUNK = (
        UsageError,
        "chunk {chunk} of a prompt of {tokens} tokens cannot be kept: whole chunks to prefill are {first} .. {last}",
    )
    PREFILL_IN_PROGRESS = (
        UsageError,
        "slot {slot} cannot be prefilled while the prefill of slot {other} is in progress: finish or abandon that one",
    )
    PREFILL_BEGUN = UsageError, "the previous prompt no longer exists: the prefill of slot {slot} has begun"
    NO_PREFILL = UsageError, "no prefill is in progress: call start_prefill first"
    PREFILL_STEPS = UsageError, "a prefill call needs at least 1 step, not {steps}"
    PREFILL_STUCK = InputError, "the schedule's prefill makes no progress: it stays at phase {phase} and chunk {chunk}"
    NO_PREFILL_LOGITS = UsageError, "there are no prefill logits, because no prefill has finished yet"
    STEP_ARRAYS = (
        UsageError,
        "a decode step needs tokens int64 [{slots}] and active bool [{slots}], not {tokens_dtype} [{tokens_shape}] and "
        "{active_dtype} [{active_shape}]",
    )
    STEP_REFUSED = InternalError, "a decode step was refused, but its tokens and slots are valid"
    NO_STAGES = UsageError, "stages can only be watched in a program of one rank that runs a schedule"
    NO_IDENTITY = UsageError, "slots can only be saved and loaded by a session of an artifact with its own weights"


@dataclass(frozen=True, eq=False)
class Prompt:
    """Results of a prompt besides rows.

    Attributes:
        tokens: prefilled tokens, n of them.
        logits: [V] f32, after the last one.
        selected: positions that it selected, if no state has them for every slot.
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
    """The contents of a slot right after its prompt: everything that decoding reads, the same in any slot.

    Attributes:
        prompt: results of the slot's prompt besides rows.
        slot: slot from which it was taken.
        rows: the slot's part of the program's states, without invalid rows.
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
        signature: sizes and geometry for which the program was compiled.
        interpreter: executes the program's entries `prefill` and `decode`, with its weights.
        tokenizer: file of the tokenizer, if there is one.
        identity: returns the identity of the program and its weights, for slots of other processes; called at most
            once.

    Attributes:
        interpreter_ns: nanoseconds that calls of the interpreter have taken so far.
        rows: copies of slots' contents; with several ranks rank 0's, which the others mirror.
        tracer: records execution, if tracing has started (`start_trace`).
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
        self._left_out = np.zeros(batch, np.int64)  # omitted tokens of the text before that position
        self._room = np.zeros(batch, np.int64)  # remaining positions; 0 without a prompt
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
        """Return a session on an artifact with its own weights, or those that `resolver` returns (`interpreter_of`)."""
        conditions = Conditions(artifact.schedule_digest, threads, precision, checked)
        opened = interpreter_of(artifact, conditions, interpreter, resolver)
        return cls(artifact.signature, opened, artifact.tokenizer_file, _own_identity(artifact, resolver))

    def __repr__(self) -> str:
        filled = {slot: int(self._position[slot]) for slot in np.flatnonzero(self._prompt_len)}
        held = ", ".join(f"slot {slot} holds {length} tokens" for slot, length in filled.items()) or "all slots empty"
        return f"Session({self.signature.in_words()}; {held})"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Converter between text and tokens. Raises InputError if the artifact has none."""
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
        """Reason why no call can succeed any more, such as a rank that has ended; None while calls can succeed."""
        return self.interpreter.failure

    def close(self) -> None:
        """Release the device, and end the other ranks of the program. No calls are possible afterwards."""
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
        """Begin to write a prompt into a slot, whose previous contents are discarded.

        Args:
            tokens: tokens of the prompt, or some of them with their positions (`Excerpt`).
            prefix: results of a prefill of the same tokens for the prompt's first chunks, which are not computed again.
                The last one is a checkpoint.
            fill: memory (`empty_chunk`) for the results of later whole chunks, by their number; it is valid once the
                prefill has finished.

        Raises UsageError for a slot, a token or a length out of range, for more chunks than `reusable_chunks`, for
        chunks that do not end with a checkpoint, for other than whole chunks to fill, or while another prefill is
        unfinished (the program has scratch for one).
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
        """Execute at most `steps` chunk steps of the prefill in progress. Return True when it has finished.

        Decode steps of other slots may run in between. Raises UsageError if no prefill is in progress.
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
        """Execute `left` chunk steps in calls that end with their layer, or with their chunk if it leaves states for
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
        """Execute one call of the program."""
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
        """Return the number of chunks of a prompt of `length` tokens that need not be prefilled if their rows are
        cached. The last position is always prefilled, for its logits, and so is the observation window if it selects
        rows."""
        return self.signature.reusable_chunks(length)

    def empty_chunk(self, checkpoint: bool = True) -> Copy:
        """Return memory for the rows of a chunk, for `start_prefill` to fill; for a checkpoint also for the states that
        it leaves only for the next chunk."""
        chunk = Copy(self.rows, self.rows.bytes_of_chunk(checkpoint), checkpoint)
        self.rows.do(EmptyChunk(chunk.number, checkpoint))
        return chunk

    def drop_checkpoint(self, chunk: Copy) -> None:
        """Delete the states that a chunk leaves only for the next one, so that no prompt continues behind it."""
        self.rows.do(DropCheckpoint(chunk.number))
        chunk.nbytes, chunk.checkpoint = self.rows.bytes_of_chunk(False), False

    @property
    def prefill_logits(self) -> Array:
        """Logits [V] after the last token of the prompt that was prefilled last."""
        if self._prefill_logits is None:
            raise SessionErrors.NO_PREFILL_LOGITS()
        return self._prefill_logits

    def abandon_prefill(self) -> None:
        """Abandon the prefill in progress, if any; its slot is empty then."""
        self._pending = None

    def prefill(self, slot: int, tokens: PromptTokens, seen: Seen | None = None) -> Array:
        """Write a whole prompt into a slot. Returns the logits [V] of its last token.

        Args:
            tokens: tokens of the prompt, or some of them with their positions (`Excerpt`).
            seen: called with the number of chunk steps that are done, and their total, after every hundredth of them;
                the prompt then takes that many calls, and one call without it.
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
        """Feed one token to each named slot, at the slot's next position.

        Returns logits [B, V], of which only the rows of the named slots are valid. Raises UsageError for a slot without
        a prompt, a token out of range, or a slot whose sequence is at max_context.
        """
        fed, active = np.zeros(self.signature.batch, np.int64), np.zeros(self.signature.batch, np.bool_)
        for slot, token in tokens.items():
            self._check_slot(slot)
            fed[slot], active[slot] = self._check_token(slot, token), True
        return _plain(self.decode_step(fed, active))

    def decode_step(self, tokens: Array, active: Array) -> Array:
        """Feed one token to every active slot, at the slot's next position: `decode` without a loop or a copy.

        Args:
            tokens: [B] i64; those of inactive slots are ignored.
            active: [B] bool.

        Returns a live view of the logits [B, V] in the program's dtype, valid until the next call, of which only the
        rows of active slots are defined. Raises UsageError as `decode` does.
        """
        shape = self._position.shape
        if tokens.shape != shape or active.shape != shape or tokens.dtype != np.int64 or active.dtype != np.bool_:
            raise SessionErrors.STEP_ARRAYS(
                slots=self.signature.batch, tokens_dtype=tokens.dtype, tokens_shape=tokens.shape,
                active_dtype=active.dtype, active_shape=active.shape,
            )  # fmt: skip
        largest = tokens.view(np.uint64).max(where=active, initial=0)  # a negative token becomes at least 2**63
        if largest >= self.signature.vocab_size or self._room.min(where=active, initial=1) <= 0:
            self._refuse_step(tokens, active)
        logits = self._decode(tokens, self._position, active)
        self._position += active
        self._room -= active
        return logits

    def score(self, first: int) -> Array:
        """Return logits after positions `first` .. `first` + B - 1 of the prompt that was prefilled last.

        They are those of full attention, like those of `prefill` for the last position. Only positions of the prompt
        that were not reused have logits; rows of others are undefined. A program with more slots than positions
        (`Signature.scores_prompts`) has no such entry.

        Args:
            first: 0 .. T - B (`Signature.scratch_tokens`).

        Returns:
            A live view [B, V] in the program's dtype, valid until the next call.

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
        """Feed the prompt's last token once more, at its own position, over the compressed cache.

        Returns the logits [V] behind the prompt as later steps see it; prefill's own come from full attention and do
        not depend on the cache. The last position's row is written again, computed from the compressed cache, and
        decoding continues from it. Repeated calls return the same logits; but if a step fetches a limited number of
        rows (`Geometry.fetch`), it changes the resident rows, as every step does, and the next one begins with these:
        `restore` of an earlier snapshot repeats it. Raises UsageError once a token was fed after the prompt.
        """
        self._check_fresh(slot, SessionErrors.REPLAY_AFTER_TOKENS)
        active = np.zeros(self.signature.batch, np.bool_)
        active[slot] = True
        return _plain(self._decode(self._last_token, self._prompt_len - 1, active)[slot])

    def _decode(self, tokens: Array, position: Array, active: Array) -> Array:
        """Run a step; inactive slots get token, position and rows 0. Returns a view of the logits."""
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
        """Run an entry; its outputs may be live views."""
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
        """Begin to record calls, stages, waits, and an engine's requests; the latest `capacity` of each kind and thread
        are kept. `Tracer.write` ends it and writes a file for Perfetto."""
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
        """Prefill a slot with a prompt and yield its continuation as it is generated: for tokens new tokens, the end
        token included; for text pieces of text, which joined are the answer.

        Args:
            max_new_tokens: maximum number of new tokens; None for `NEW_TOKENS`, or as many as fit.
            eos: tokens that end the text (those of the signature if None; none if empty).
            seen: called with the progress of the prompt, see `prefill`.

        Raises UsageError at the call, not at the first token, if prompt plus new tokens exceed max_context, and
        InputError for text without a tokenizer.
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
        """Yield the continuation of `prompt`, piece by piece as it is generated; arguments and errors are those of
        `generate`."""
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
        """Return the prompt. Raises UsageError if it, or this number of new tokens after it, can never fit. Callable
        from any thread."""
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
        """Stages that can be watched, "KERNEL.PIPELINE.STAGE" of each."""
        return [".".join(name) for name in self._stages.modules]

    def watching(
        self, *stages: str, layer: int | None = None, call: Callable[[Observation], object] | None = None
    ) -> Watching:
        """Record the values that stages write during calls inside the context::

            with session.watching("q_proj", layer=3) as seen:
                session.decode({0: 5})
            print(seen[0].value)

        It does not slow down calls outside of the context.

        Args:
            stages: names, patterns with `*`, or ends of the paths of modules ("self_attn.q_proj"); none for all.
            layer: record only this layer.
            call: called with each observation when it is made, instead of keeping all of them. It must not call the
                session; an exception ends the call in progress.

        Raises UsageError for an unknown stage, and if several ranks run the program.
        """
        return Watching(self.interpreter, self._stages, stages, layer, call)

    def steps(self, tokens: Mapping[int, int], *stages: str, layer: int | None = None) -> Iterator[Observation]:
        """Feed tokens as `decode` does, and pause after every stage, or after those that are selected as for
        `watching`::

            for stage in session.steps({0: 5}):
                print(stage.stage, stage.buffers, session.interpreter.device_tensor("k_cache")[0].read().sum())

        Between two stages memory is as the program has left it. Leaving the loop lets the step run to its end. Raises
        as `decode` and `watching` do.
        """
        names = self._stages  # computed before the thread begins

        def watching(stop: Callable[[Observation], object]) -> Watching:
            return Watching(self.interpreter, names, stages, layer, stop)

        watching(lambda observation: None)  # so that an unknown name is refused here
        return step_through(watching, lambda: self.decode(tokens))

    # -- slots

    def position(self, slot: int) -> int:
        """Return the absolute position in its text of the slot's next token."""
        self._check_filled(slot)
        return int(self._position[slot] + self._left_out[slot])

    def release(self, slot: int) -> None:
        """Discard a slot's sequence; without effect if it has none."""
        self._check_slot(slot)
        self._empty(slot)

    def snapshot(self, slot: int) -> Snapshot:
        """Return a copy of the slot's contents right after its prompt. Raises UsageError once a token was fed after it.
        """
        self._check_fresh(slot, SessionErrors.COPY_AFTER_TOKENS)
        prompt = self.prompt(slot)
        length = len(prompt.tokens)
        copy = Copy(self.rows, self.rows.slot_bytes(length))
        self.rows.do(CopySlot(copy.number, slot, length))
        return Snapshot(prompt, slot, copy)

    def snapshot_bytes(self, slot: int) -> int:
        """Return the bytes that `snapshot` would copy, on all ranks together. Raises UsageError as it does."""
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
        """Write a snapshot into a slot of this session, whose contents are discarded.

        Raises UsageError if the slot does not exist or is being prefilled.
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
        """Return the prompt that was prefilled into the slot, with its results besides rows."""
        self._check_filled(slot)
        prompt = self._prompts[slot]
        assert prompt is not None
        return prompt

    # -- slots of other processes

    @cached_property
    def slot_format(self) -> SlotFormat:
        """Format of messages in which slots of this program are sent to other processes, and stored in files. Raises
        UsageError if the program and weights are unknown, because the session was not loaded from an artifact."""
        if self._identity is None:
            raise SessionErrors.NO_IDENTITY()
        return SlotFormat(self.signature, self._identity(), self.rows.layout, remembers=self.ranks == 1)

    def message(self, snapshot: Snapshot) -> SlotMessage:
        """Return the contents of a snapshot, on all ranks, for another process. With one rank nothing is copied."""
        prompt = snapshot.prompt
        parts = self.rows.parts(snapshot.rows.number)
        return SlotMessage(prompt.tokens, prompt.logits, snapshot.slot, parts, prompt.selected)

    def adopt(self, message: SlotMessage) -> Snapshot:
        """Return the snapshot from a message that `slot_format` has read, as one of this session."""
        copy = Copy(self.rows, sum(rows.nbytes for part in message.parts for rows in part.values()))
        self.rows.do(PutCopy(copy.number, message.parts))
        return Snapshot(Prompt(message.tokens, message.logits, message.selected), message.slot, copy)

    @cached_property
    def chunk_format(self) -> ChunkFormat:
        """Format of messages in which rows of prompts' chunks are stored in files. Raises UsageError as `slot_format`
        does."""
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
        """Write a slot's contents right after its prompt to a file, for `load_slot` of any process with this program.

        Raises UsageError as `snapshot` and `slot_format` do, and OutputError if the file cannot be written.
        """
        pieces = self.slot_format.pieces(self.message(self.snapshot(slot)))
        with replacing(Path(path)) as file:
            for piece in pieces:
                file.write(piece)

    def load_slot(self, slot: int, path: str | PathLike[str]) -> Array:
        """Read a slot that `save_slot` has written, by a session of the same program and weights; the slot's previous
        contents are discarded. Returns the logits [V] after the prompt's last token, as `prefill` of the same prompt
        would.

        Raises UsageError as `restore` does, and InputError if the file is missing, damaged, or of another program.
        """
        message = self.slot_format.read(mapped(Path(path)), str(path))
        self.restore(slot, self.adopt(message))
        return message.logits.copy()

    def reset(self) -> None:
        """Discard every sequence and zero the program's state."""
        for slot in range(self.signature.batch):
            self._empty(slot)
        self._pending = None
        self._prefill_logits = None
        self.interpreter.reset()

    def kept(self, slot: int) -> Kept:
        """Return the current contents of the slot's cache: positions by layer and KV head, and sizes.

        The positions are a copy, which later calls do not change.
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
        """Return the prompt, after checking that it can be prefilled."""
        if isinstance(tokens, Excerpt):
            return Excerpt(self._checked_tokens(tokens.tokens, tokens.text_length), tokens.positions)
        return Excerpt.whole(self._checked_tokens(tokens, len(tokens)))

    def _checked_tokens(self, tokens: Sequence[int] | Array, text_length: int) -> Array:
        """Return the tokens [n] i64 of a text, after checking them."""
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
    """Return an interpreter of `artifact`, with its own weights or those that `resolver` returns (`Artifact.weights`);
    for several ranks, with the part of the rank in `conditions`.

    Args:
        interpreter: name of a backend; only the modules that it needs are imported.

    Raises:
        UsageError: there is no such backend, or it does not support a request.
        InputError: the weights are missing or not those of the program, or the program is malformed.
    """
    backend = artifact.backend(interpreter)
    # Weights that are packed in the backend's form are used in place.
    packed = artifact.packer == backend.name
    return backend.open(artifact.weights(resolver, packed=packed, rank=conditions.group.rank), conditions)


def _own_identity(artifact: Artifact, resolver: Resolver | None) -> Callable[[], ProgramIdentity] | None:
    """Return the identity of an artifact with its own weights; None for other weights, whose identity is unknown here.
    """
    return None if resolver is not None else lambda: artifact.identity


def _nbytes(selected: Selected) -> int:
    return sum(positions.nbytes for positions in selected.values())


def _plain(logits: Array) -> Array:
    """Return a copy of logits in float32, or in float64 if they are."""
    return np.array(logits, np.float64 if logits.dtype == np.float64 else np.float32)
