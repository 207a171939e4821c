"""The thread of an engine: it assigns slots to requests, prefills, decodes, and ends requests.

A round consists of: messages since the last round (new requests, cancellations), timeouts, some chunk steps of prefill,
and one decode step of all active slots. Data that other threads read is changed under one lock, which is held for
microseconds; calls of the interpreter and of the sampler run without it.

The thread survives exceptions. An exception raised on behalf of a request ends this request; an exception of a decode
step ends the requests that decode. Their slots become free for others, because the next prompt replaces all of a slot's
contents. The thread ends if the session cannot compute any more: a rank is gone, or a step without active slots fails
too.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

from sscc.ir.errors import ErrorKind, InputError, InternalError, RankError, SsccError, UsageError, quoted
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine.constraints import Constraint, ConstraintTable
from sscc.runtime.serving.engine.drafted_requests import Drafts
from sscc.runtime.serving.engine.metrics import Counters, Figures, Metrics, SlotState
from sscc.runtime.serving.engine.prompt_files import FileCount, load_prompts, save_prompts
from sscc.runtime.serving.engine.prompt_store import PromptStore, default_limit
from sscc.runtime.serving.engine.remote_prefill import Arrivals, Fetch, Outcome, Received, RemotePrefill
from sscc.runtime.serving.engine.request import EngineClosed, Finish, QueueFull, Request
from sscc.runtime.serving.engine.request_state import RequestState
from sscc.runtime.serving.engine.slot_table import SlotTable
from sscc.runtime.serving.engine.wakeups import Wakeups
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.prompt_scores import PromptScorer
from sscc.runtime.session.samplers import BatchSampler, TokenLogprobs
from sscc.runtime.session.session import Session
from sscc.runtime.session.shortening import Shortener
from sscc.runtime.session.slot_message import SlotMessage
from sscc.runtime.session.speculation import Plan, Speculation
from sscc.runtime.session.tracing import RequestSpan
from sscc.runtime.support.logs import log_exception, logged
from sscc.runtime.support.serving_options import EngineOptions

_log = logging.getLogger("sscc.engine")

LONGEST_WAIT = 3600.0
"""Maximum time in seconds that an idle thread sleeps before it checks its deadlines again. An unbounded wait would
overflow the timeout of `SimpleQueue.get` at 292 years."""


class EngineErrors(ErrorKind):
    QUEUE_FULL = (
        QueueFull,
        "{queue} requests are waiting for {slots} slots already: try again later, or allow a longer queue",
    )
    CLOSED = EngineClosed, "the engine is closed and accepts no requests"
    FAILED = EngineClosed, "the engine has failed and accepts no requests: {cause}"
    REQUEST_FAILED = InternalError, "the engine failed while processing this request: {cause}"


@dataclass(frozen=True)
class News:
    """Output of a request since its first `start` tokens. `error` is set if `finish` is "error"."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None
    error: BaseException | None


class Close(Enum):
    """Ways to end the thread."""

    DRAIN = "every request is finished first"
    CANCEL = "every request is cancelled"


@dataclass(eq=False)
class Task:
    """Work that needs the session, done between two rounds.

    Attributes:
        work: function of the session and the prompt store.
        outcome: result or exception of the work.
    """

    work: Callable[[Session, PromptStore], Any]
    outcome: Future[Any] = field(default_factory=Future)

    def run(self, session: Session, prompts: PromptStore) -> None:
        try:
            self.outcome.set_result(self.work(session, prompts))
        except Exception as error:
            self.outcome.set_exception(error)


Message = RequestState | tuple[RequestState, Finish] | tuple[Fetch, Outcome] | Task | Close
"""Messages from other threads to the engine's thread."""


@dataclass
class _Prefill:
    """A prefill in progress.

    Attributes:
        left: remaining chunk steps, or steps of the scorer.
        scorer: scores the tokens of the prompt after their prefill, if requested.
    """

    state: RequestState
    slot: int
    left: int
    scorer: PromptScorer | None = None


class Executor:
    """The engine's thread, and the methods with which other threads reach it.

    Args:
        session: session to decode with; the executor takes it over and discards the contents of its slots.
        remote_prefill: other processes that prefill prompts; None to prefill here.
        shortener: shortens the prompts of requests with `Request.keep`.
        speculation: drafts the tokens of answers; None for plain decoding.

    Attributes:
        done: set when the thread has ended.
    """

    def __init__(
        self,
        session: Session,
        options: EngineOptions,
        remote_prefill: RemotePrefill | None = None,
        shortener: Shortener | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        signature = session.signature
        self.session = session
        self.done = threading.Event()
        self._failure: BaseException | None = None
        self._options = options
        self._geometry = signature.plan.main.geometry
        self._one_chunk = session.signature.prefill_steps(1)
        self._prefill_budget = options.prefill_steps or self._one_chunk
        self._lock = threading.Lock()
        self._wakeups = Wakeups(self._lock)
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._queue: OrderedDict[int, RequestState] = OrderedDict()
        self._table = SlotTable(signature.batch, signature.geometry.max_context)
        self._speculation = speculation
        self._drafts = None if shortener is None else Drafts(shortener)
        self._drafted_last = False
        self._prefilling: _Prefill | None = None
        self._sampler = BatchSampler(signature.batch, signature.vocab_size, session.host_threads)
        self._constraints = ConstraintTable(signature.batch, signature.vocab_size)
        self._first_logits = np.zeros((signature.batch, signature.vocab_size), np.float32)
        limit = default_limit() if options.prompt_cache_bytes is None else options.prompt_cache_bytes
        self._prompts = PromptStore(session, limit, remote_prefill=remote_prefill is not None)
        self._arrivals = None if remote_prefill is None else self._expecting(remote_prefill)
        self._counters = Counters()
        self._ids = 0
        self._open = 0  # number of requests that have not ended
        self._closing = False
        self._earliest = float("inf")  # lower bound of all deadlines, so that they need not be checked before this time
        session.abandon_prefill()
        for slot in range(signature.batch):
            session.release(slot)

    def _expecting(self, remote_prefill: RemotePrefill) -> Arrivals:
        ahead = self._options.prefill_ahead or self.session.signature.batch
        inbox = self._inbox  # not self: a remote prefill that hangs would keep the executor alive
        return Arrivals(remote_prefill, ahead, lambda fetch, outcome: inbox.put((fetch, outcome)))

    # -------------------------------------------------------------------------------------- called by other threads

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the thread, or that the session's next call will raise; None if there is none."""
        return self._failure or self.session.failure

    def submit(
        self, request: Request, prompt: Excerpt, ends: Array, constraint: Constraint | None = None
    ) -> RequestState:
        """Queue a request that has been checked. Raises QueueFull, EngineClosed."""
        with self._lock:
            if self.failure is not None:
                raise EngineErrors.FAILED(cause=_cause(self.failure)) from self.failure
            if self._closing:
                raise EngineErrors.CLOSED()
            queue = self._options.max_queue
            if queue is not None and self._open >= self.session.signature.batch + queue:
                self._counters.rejected += 1
                raise EngineErrors.QUEUE_FULL(queue=queue, slots=self.session.signature.batch)
            state = RequestState(self._ids, request, prompt, ends, perf_counter(), constraint)
            self._ids += 1
            self._open += 1
            self._counters.submitted += 1
            self._inbox.put(state)
            return state

    def end(self, state: RequestState, finish: Finish) -> None:
        """Ask the thread to end a request; does nothing if it has ended. Takes no lock, because finalizers call it."""
        if state.finish is None:
            self._inbox.put((state, finish))

    def do(self, work: Callable[[Session, PromptStore], Any]) -> Any:
        """Run work that needs the session between two rounds, and return its result. Raises its exceptions, and
        EngineClosed."""
        task = Task(work)
        with self._lock:
            if self.failure is not None:
                raise EngineErrors.FAILED(cause=_cause(self.failure)) from self.failure
            if self._closing:
                raise EngineErrors.CLOSED()
            self._inbox.put(task)
        return task.outcome.result()

    def close(self, how: Close) -> None:
        """Refuse new requests, and ask the thread to end."""
        with self._lock:
            self._closing = True
        self.abort(how)

    def abort(self, how: Close = Close.CANCEL) -> None:
        """Ask the thread to end. Takes no lock, because finalizers call it."""
        self._inbox.put(how)

    def wait(self, state: RequestState, start: int, *, whole: bool, timeout: float | None = None) -> News | None:
        """Wait for tokens from index `start` on, or for the end of the request; with `whole` only for the end.

        Returns None if `timeout` seconds pass without either.
        """
        until = None if timeout is None else perf_counter() + timeout
        with self._lock:
            while True:
                news = self._news(state, start, whole)
                left = None if until is None else until - perf_counter()
                if news is not None or (left is not None and left <= 0):
                    return news
                self._wakeups.wait(change=whole or not state.prefilled, timeout=left)

    async def wait_async(self, state: RequestState, start: int, *, whole: bool) -> News:
        """`wait` for asyncio, without a timeout."""
        while True:
            with self._lock:
                news = self._news(state, start, whole)
                if news is not None:
                    return news
                future = self._wakeups.future(change=whole or not state.prefilled)
            await future

    async def wait_prefilled(self, state: RequestState) -> SlotMessage | None:
        """Return the result of the prefill of a request with `Request.keep_slot`, or None if the request ended before.
        Raises the exception that ended the request."""
        while True:
            with self._lock:
                if state.error is not None:
                    raise state.error.with_traceback(state.trace)
                if state.message is not None or state.finish is not None:
                    return state.message
                future = self._wakeups.future(change=True)
            await future

    def _news(self, state: RequestState, start: int, whole: bool) -> News | None:
        if state.finish is not None:
            tokens = state.tokens[start:]
        elif whole or state.slot is None or self._table.counts[state.slot] <= start:
            return None
        else:
            tokens = self._table.tokens(state.slot, start)
        return News(tokens.tolist(), state.logprobs[start:], state.finish, state.error)

    def metrics(self) -> Metrics:
        with self._lock:
            lengths = self._table.lengths().tolist()
            kept = sum(map(self._geometry.kept_rows, lengths))
            running, prefilling = self._table.running, int(self._prefilling is not None)
            taken = sum(state is not None and state.message is not None for state in self._table.states)
            return self._counters.read(
                queued=self._open - running - prefilling - taken,
                running=running,
                slots=self.session.signature.batch,
                prefilling=prefilling,
                kept_rows=kept,
                evicted_rows=sum(lengths) - kept,
            )

    def figures(self, state: RequestState) -> Figures:
        with self._lock:
            new = len(state.tokens) if state.slot is None else int(self._table.counts[state.slot])
            ended = perf_counter() if state.ended is None else state.ended
            return Figures(
                state.prompt_tokens, state.cached, new, state.drafted, state.accepted, state.submitted,
                state.first_token, ended, state.finish,
            )  # fmt: skip

    def slots(self) -> list[SlotState]:
        """Return the state of every slot."""
        with self._lock:
            return [self._slot_state(slot, state) for slot, state in enumerate(self._table.states)]

    def _slot_state(self, slot: int, state: RequestState | None) -> SlotState:
        if state is None:
            return SlotState(slot)
        prompt, new, seconds = len(state.prompt), int(self._table.counts[slot]), perf_counter() - state.submitted
        if not self._table.active[slot]:
            return SlotState(slot, state.id, "prefill", prompt, read_tokens=self._read_tokens(state), seconds=seconds)
        length = prompt + max(new - 1, 0)  # the newest token is not in the cache
        kept = self._geometry.kept_rows(length)
        return SlotState(slot, state.id, "decode", prompt, new, kept, length - kept, prompt, seconds)

    def _read_tokens(self, state: RequestState) -> int:
        """Return the progress of a prefill in tokens of the prompt. All tokens advance together, layer by layer, so it
        is the share of the chunk steps that are done, counted in tokens."""
        prefill, prompt = self._prefilling, len(state.prompt)
        if prefill is None or prefill.state is not state or prefill.scorer is not None:
            return prompt
        signature = self.session.signature
        total = signature.prefill_steps(prompt, state.cached // signature.prefill_chunk)
        return state.cached + (prompt - state.cached) * (total - prefill.left) // total

    # ---------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        """Serve requests until the engine is closed. An exception that leaves the session unusable ends every
        request."""
        try:
            self._with_folder(load_prompts, "read from")
            while self._round():
                pass
            self._with_folder(save_prompts, "written to")
        except BaseException as error:
            self._fail(error)
        finally:
            self.done.set()

    def _with_folder(self, action: Callable[[PromptStore, Session, Path], FileCount], done: str) -> None:
        """Read or write the cached prompts of the folder in the options, if there is one."""
        folder = self._options.prompt_folder
        if folder is None:
            return
        start = perf_counter()
        try:
            count = action(self._prompts, self.session, folder)
        except SsccError as error:
            _log.error("the prompt cache cannot be %s %s: %s", done, folder, logged(error))
            return
        _log.info("prompt cache %s %s: %s in %.1f s", done, folder, count, perf_counter() - start)

    def _round(self) -> bool:
        """Run `_serve`. An exception that it does not handle itself ends the requests that have slots or, if there are
        none, all other requests. If there are no requests at all, it ends the thread."""
        try:
            return self._serve()
        except Exception as error:
            blamed = [state for state in self._table.states if state is not None] or self._open_requests()
            if not blamed:
                raise
            self._survive(error, blamed, ran=True)
            return True

    def _serve(self) -> bool:
        """Run a round. Return False when the engine is closed and no work is left."""
        drafting = self._drafts is not None and self._drafts.waiting
        idle = not (self._admissible() or self._prefilling or drafting or self._table.active.any())
        if idle and self._closing and self._inbox.empty() and not self._open_requests():
            return False
        message = self._await_message() if idle else None
        start, interpreter_ns = perf_counter_ns(), self.session.interpreter_ns
        if message is not None:
            self._receive(message)
        self._receive_all()
        worked = self._read_some()
        self._receive_all()
        worked = self._decode_step() or worked
        if worked:
            end = perf_counter_ns()
            taken, inside = end - start, self.session.interpreter_ns - interpreter_ns
            with self._lock:
                self._counters.overhead_ns += taken - inside
            if (tracer := self.session.tracer) is not None:
                tracer.span("round", start, end, {"queued": len(self._queue), "decoding": self._table.running})
        return True

    def _admissible(self) -> bool:
        """Return True if a request could get a slot now."""
        ready = self._queue if self._arrivals is None else self._arrivals.ready()
        return bool(ready and self._table.free)

    def _await_message(self) -> Message | None:
        """Return the next message; None if the earliest deadline passes before one comes."""
        wait = self._earliest - perf_counter()
        try:
            return self._inbox.get(timeout=None if wait == float("inf") else min(max(wait, 0.0), LONGEST_WAIT))
        except Empty:
            return None

    def _receive_all(self) -> None:
        """Handle all messages, and end requests whose timeout has passed."""
        while not self._inbox.empty():
            self._receive(self._inbox.get())
        self._expire()
        if self._arrivals is not None:
            self._arrivals.begin(self._prompts.find, lambda state, error: self._survive(error, [state]))

    def _receive(self, message: Message) -> None:
        """Call `_handle`; an exception ends the requests that the message concerns."""
        try:
            self._handle(message)
        except Exception as error:
            self._survive(error, _concerned(message))

    def _handle(self, message: Message) -> None:
        if isinstance(message, RequestState):
            self._earliest = min(self._earliest, message.deadline)
            if self._drafts is not None and message.request.keep is not None:
                self._drafts.add(message)
            else:
                self._enqueue(message)
            return
        if isinstance(message, Task):
            message.run(self.session, self._prompts)
            return
        if isinstance(message, tuple) and isinstance(message[0], Fetch):
            self._settle(*message)
            return
        with self._lock:
            if isinstance(message, Close):
                self._closing = True
                if message is Close.CANCEL:
                    for state in self._open_requests():
                        self._end(state, "cancelled")
            else:
                self._end(*message)
            self._wakeups.wake(change=True)

    def _enqueue(self, state: RequestState) -> None:
        """Add a request to those that wait for a slot."""
        self._queue[state.id] = state
        if self._arrivals is not None:
            self._arrivals.add(state)

    def _settle(self, fetch: Fetch, outcome: Outcome) -> None:
        """Record the outcome of a remote prefill. A failure ends the requests that wait for it, if there still are
        any."""
        fetch.done, fetch.outcome = True, outcome
        if isinstance(outcome, SsccError):
            now = perf_counter()
            with self._lock:
                for state in list(fetch.waiting.values()):
                    if state.deadline <= now:
                        self._end(state, "timeout")
                    else:
                        self._end(state, "error", outcome)
                self._wakeups.wake(change=True)

    def _expire(self) -> None:
        now = perf_counter()
        if now < self._earliest:
            return
        with self._lock:
            for state in self._open_requests():
                if state.deadline <= now:
                    self._end(state, "timeout")
            self._earliest = min((state.deadline for state in self._open_requests()), default=float("inf"))
            self._wakeups.wake(change=True)

    def _open_requests(self) -> list[RequestState]:
        """Return every request that the thread has received and that has not ended."""
        drafting = () if self._drafts is None else self._drafts.waiting.values()
        return [*drafting, *self._queue.values(), *(state for state in self._table.states if state is not None)]

    def _fail(self, error: BaseException) -> None:
        """End every request. The session may be in any state and is not used, so that nothing can keep the waiters from
        being notified."""
        if not isinstance(error, SsccError):
            log_exception(_log, "the engine has failed and accepts no more requests", error)
        else:
            _log.error("the engine has failed and accepts no more requests: %s", error)
        with self._lock:
            self._failure = error
            waiting = [self._inbox.get() for _ in range(self._inbox.qsize())]
            queued = [message for message in waiting if isinstance(message, RequestState)]
            for state in [*self._open_requests(), *queued]:
                self._end(state, "error", error)
            for task in (message for message in waiting if isinstance(message, Task)):
                task.outcome.set_exception(EngineErrors.FAILED(cause=_cause(error)))
            self._wakeups.wake(change=True)

    # ------------------------------------------------------------------------------------------------------- prefill

    def _read_some(self) -> bool:
        """Process prompts between two decode steps: prefill, or do a piece of the draft's work. If both have work and
        requests are decoding, they take turns. Return True if there was work."""
        drafts = self._drafts
        if drafts is None or not drafts.waiting:
            return self._prefill_some()
        both = self._prefilling is not None or self._admissible()
        self._drafted_last = not (both and self._drafted_last and self._table.active.any())
        if self._drafted_last:
            self._draft(drafts)
        if not self._drafted_last or not self._table.active.any():
            self._prefill_some()
        return True

    def _draft(self, drafts: Drafts) -> None:
        """Do a piece of the draft's work on the first prompt."""
        start, state = perf_counter_ns(), drafts.first
        left = None
        try:
            left = drafts.step()
            if left is not None:
                state.prompt = self.session.check_request(left, state.request.max_new_tokens)
                self._enqueue(state)
        except Exception as error:
            self._survive(error, [state])
            left = None
        with self._lock:
            self._counters.draft_ns += perf_counter_ns() - start
            if left is not None:
                self._counters.shortened_prompts += 1
                self._counters.left_out_prompt_tokens += state.prompt_tokens - len(state.prompt)

    def _prefill_some(self) -> bool:
        """Run at most the chunk steps allowed between two decode steps, for as many prompts as they suffice for.

        While nothing decodes, the budget is at least one chunk through all layers. Returns True if there was work.
        """
        budget = self._prefill_budget
        if not self._table.active.any():
            budget = max(budget, self._one_chunk)
        worked = False
        while budget > 0:
            prefill = self._prefilling or self._admit()
            if prefill is None:
                break
            worked = True
            if prefill.left:
                steps = min(budget, prefill.left)
                self._step_prefill(prefill, steps)
                budget -= steps
            else:
                budget -= self._one_chunk  # copying a cache may take as long
            if self._table.active.any():  # perhaps since just now; its second token must not wait for other prompts
                budget = min(budget, self._prefill_budget)
        return worked

    def _admit(self) -> _Prefill | None:
        """Assign a free slot to the request that has waited longest, and begin its prefill. Return None without either.

        If the prompt is cached, it is copied into the slot, and no steps are left.
        """
        while self._admissible():
            state, fetch = self._next()
            with self._lock:
                del self._queue[state.id]
                slot = self._table.take(state)
                state.admitted = perf_counter()
                self._counters.waited.add(np.array([state.admitted - state.submitted]))
            try:
                return self._begin(state, slot, fetch)
            except Exception as error:
                self._survive(error, [state])
        return None

    def _begin(self, state: RequestState, slot: int, fetch: Fetch | None) -> _Prefill:
        """Begin the prefill of a request that has its slot, or finish it if the prompt is cached."""
        self._sampler.start(slot, state.request.sampling, state.prompt.tokens, state.request.logprobs)
        self._constraints.start(slot, state.constraint)
        if self._speculation is not None:
            self._speculation.start(slot, state.text_tokens, state.request.predicted_tokens)
        if self._start_with_kept(state, slot, fetch):
            return _Prefill(state, slot, 0)
        self._tidy(self.session.abandon_prefill)  # there is one prefill at a time; drop any rest of an earlier one
        prefix, fill = self._prompts.begin(state.prompt)
        if state.request.prompt_logprobs is not None:
            prefix = []  # the chunks of a cached prefix are not prefilled and would have no logits
        state.cached = len(prefix) * self.session.signature.prefill_chunk
        self.session.start_prefill(slot, state.prompt, prefix, fill)
        prefill = _Prefill(state, slot, self.session.signature.prefill_steps(len(state.prompt), len(prefix)))
        with self._lock:
            self._prefilling = prefill
        return prefill

    def _next(self) -> tuple[RequestState, Fetch | None]:
        """Return the request that gets the next slot, and its remote prefill if there is one."""
        if self._arrivals is None:
            return next(iter(self._queue.values())), None
        ready = self._arrivals.ready()
        assert ready is not None
        self._arrivals.drop(ready[0])
        return ready

    def _start_with_kept(self, state: RequestState, slot: int, fetch: Fetch | None) -> bool:
        """Fill a slot from a remote prefill or from the cache. Return False if the prompt must be prefilled."""
        if state.request.prompt_logprobs is not None:
            return False
        first = fetch is not None and fetch.snapshot is None
        kept = self._prompts.find(state.prompt) if fetch is None else self._received(fetch)
        if kept is None:
            return False
        state.cached = fetch.cached if fetch is not None and first else len(state.prompt)
        if not state.request.keep_slot:
            self.session.restore(slot, kept)
        self._prefilled(state, slot, kept)
        return True

    def _received(self, fetch: Fetch) -> Snapshot | None:
        """Return the snapshot of a remote prefill; None if the prompt must be prefilled here."""
        if fetch.snapshot is None and isinstance(fetch.outcome, Received):
            received = fetch.outcome  # kept if `adopt` fails, so that the other requests do not prefill here instead
            fetch.snapshot, fetch.cached = self.session.adopt(received.message), received.cached
            fetch.outcome = None
            self._prompts.add(fetch.snapshot)
            self._count_message(len(received.message.tokens), received.nbytes)
        return fetch.snapshot

    def _count_message(self, length: int, nbytes: int) -> None:
        with self._lock:
            self._counters.slot_messages += 1
            self._counters.slot_message_bytes += nbytes
            full = self.session.signature.full_kv_bytes(length, self.session.ranks)
            self._counters.slot_message_full_kv_bytes += full

    def _step_prefill(self, prefill: _Prefill, steps: int) -> None:
        before = self.session.interpreter_ns
        try:
            finished = self._advance(prefill, steps)
        except Exception as error:
            self._survive(error, [prefill.state], ran=True)
            return
        with self._lock:
            self._counters.prefill_steps += steps
            self._counters.prefill_ns += self.session.interpreter_ns - before
            if finished:
                self._prefilling = None
        if not finished:
            return
        try:
            kept = self._prompts.finish(prefill.slot)
            self._prefilled(prefill.state, prefill.slot, kept)
        except Exception as error:
            self._survive(error, [prefill.state])

    def _advance(self, prefill: _Prefill, steps: int) -> bool:
        """Do steps of a prefill, then of scoring the prompt if requested. Return True when all are done."""
        state, top = prefill.state, prefill.state.request.prompt_logprobs
        if prefill.scorer is None:
            finished = self.session.step_prefill(steps)
            prefill.left -= steps
            if not finished:
                return False
            if top is None:
                return True
            prefill.scorer = PromptScorer(self.session, state.prompt.tokens, top)
            prefill.left = prefill.scorer.steps
        else:
            for _ in range(steps):
                prefill.scorer.step()
            prefill.left -= steps
        state.prompt_logprobs = prefill.scorer.scores
        return not prefill.left

    def _prefilled(self, state: RequestState, slot: int, kept: Snapshot | None) -> None:
        """Continue with a request whose prompt is in its slot. `kept` is a copy of the slot, if there is one."""
        if not state.request.keep_slot:
            self._first_token(state, slot, self.session.prompt(slot).logits)
            return
        message = self.session.message(kept or self.session.snapshot(slot))
        self._count_message(len(state.prompt), self.session.slot_format.nbytes(len(state.prompt)))
        with self._lock:
            self._count_prompt(state)
            state.message = message
            self._wakeups.wake(change=True)

    def _first_token(self, state: RequestState, slot: int, logits: Array) -> None:
        """Activate a slot after prefill, and pick its first token from the prompt's logits [V] f32."""
        self._first_logits[slot] = logits
        only = np.zeros(len(self._table.active), np.bool_)
        only[slot] = True
        with self._lock:
            self._table.activate(slot, state)
            self._count_prompt(state)
        self._pick(self._first_logits, only, first=True)

    def _count_prompt(self, state: RequestState) -> None:
        """Count a prefilled prompt. Called with the lock held."""
        state.prefilled = True
        self._counters.prompt_tokens += len(state.prompt)
        self._counters.cached_prompt_tokens += state.cached
        self._counters.cached_prompts += state.cached > 0

    # -------------------------------------------------------------------------------------------------------- decode

    def _decode_step(self) -> bool:
        """Decode one token in every active slot. Return False if there is none."""
        table = self._table
        if not table.active.any():
            return False
        before, speculation = self.session.interpreter_ns, self._speculation
        try:
            plan = None
            if speculation is not None:
                plan = speculation.plan(table.next_tokens, table.active, table.limits - table.counts)
            if plan is None:
                logits = self.session.decode_step(table.next_tokens, table.active)
            else:
                logits = self.session.verify_step(plan.tokens, plan.count)
            if speculation is not None:
                speculation.ran()
        except Exception as error:
            self._survive(error, self._decoding(), ran=True)
            return True
        with self._lock:
            self._counters.decode_steps += 1
            self._counters.decode_ns += self.session.interpreter_ns - before
        try:
            if plan is None:
                self._pick(logits, table.active, first=False)
            else:
                self._pick_verified(plan, logits)
        except Exception as error:
            self._survive(error, self._decoding())
        return True

    def _pick_verified(self, plan: Plan, logits: Array) -> None:
        """Pick the tokens of a step of several tokens, as long as they are the drafted ones.

        Args:
            logits: [B, V + 1, vocabulary], live.
        """
        assert self._speculation is not None
        receivers, taken = self._table.active.copy(), np.zeros(len(plan.count), np.int64)
        none = np.zeros_like(taken)
        with self._lock:
            self._counters.verify_steps += 1
            self._count_drafts(plan.drafted, none)
        for row in range(plan.tokens.shape[1]):
            picked = self._pick(np.ascontiguousarray(logits[:, row]), receivers, first=False)
            taken += picked >= 0
            receivers = self._table.active & plan.next_of(row, picked)
            if not receivers.any():
                break
            with self._lock:
                self._count_drafts(none, receivers)
        self.session.accept(taken * self._table.active)
        self._speculation.verified(plan, taken)

    def _count_drafts(self, drafted: Array, accepted: Array) -> None:
        """Count tokens [B] that were drafted and accepted. Called with the lock held."""
        self._counters.drafted_tokens += int(drafted.sum())
        self._counters.accepted_tokens += int(accepted.sum())
        for slot in np.flatnonzero(drafted + accepted).tolist():
            state = self._table.state(slot)
            state.drafted += int(drafted[slot])
            state.accepted += int(accepted[slot])

    def _decoding(self) -> list[RequestState]:
        """Return the requests whose slots decode."""
        return [self._table.state(slot) for slot in np.flatnonzero(self._table.active).tolist()]

    def _pick(self, logits: Array, active: Array, *, first: bool) -> Array:
        """Pick a token for each active slot and publish it, and end the requests that are complete. Return the tokens
        [B], -1 where none was picked."""
        start, none = perf_counter_ns(), np.full(len(active), -1)
        allowed = self._constraints.ready()
        if allowed is not None:
            active = active & ~self._end_constrained(active)
            if not active.any():
                return none
        try:
            tokens = self._sampler.pick(logits, active, allowed)
        except InputError as error:
            good = active & np.isfinite(logits.astype(np.float32).max(axis=1))
            self._end_slots(active & ~good, error)
            if not good.any():
                return none
            tokens, active = self._sampler.pick(logits, good, allowed), good
        table, counters, now = self._table, self._counters, perf_counter()
        failures: list[tuple[RequestState, Exception]] = []
        with self._lock:
            gaps, over = table.append(tokens, active, now)
            counters.new_tokens += len(gaps)
            if first:
                self._note_first_token(int(active.argmax()), now)
            else:
                counters.inter_token.add(gaps)
                for slot in [slot for slot in table.with_logprobs if active[slot]]:
                    try:
                        self._record_logprobs(slot)
                    except Exception as error:
                        failures.append((table.state(slot), error))
            for slot, finish in over:
                self._end(table.state(slot), finish)
            self._wakeups.wake(change=first or bool(over))
        self._constraints.advance(tokens, active & table.active)
        if self._speculation is not None:
            self._speculation.extend(tokens, active & table.active)
        for state, cause in failures:
            self._survive(cause, [state])
        if (tracer := self.session.tracer) is not None:
            tracer.span("pick tokens", start, perf_counter_ns(), {"slots": len(gaps)})
        return tokens

    def _end_constrained(self, active: Array) -> Array:
        """End the requests whose grammars allow no further token. Return their slots [B] bool."""
        over = self._constraints.over(active)
        ended = np.zeros(len(active), np.bool_)
        if over:
            ended[list(over)] = True
            with self._lock:
                for slot, failure in over.items():
                    state = self._table.state(slot)
                    if failure is not None:
                        _log.warning("request %s ends early because its grammar failed: %s", state.id, logged(failure))
                    self._end(state, "stop" if failure is None else "grammar")
                self._wakeups.wake(change=True)
        return ended

    def _note_first_token(self, slot: int, now: float) -> None:
        state = self._table.state(slot)
        state.first_token = now
        self._counters.first_token.add(np.array([now - state.submitted]))
        self._record_logprobs(slot)

    def _record_logprobs(self, slot: int) -> None:
        """Record the logprobs of a slot's newest token, if requested."""
        logprobs = self._sampler.logprobs(slot)
        if logprobs is not None:
            self._table.state(slot).logprobs.append(logprobs)

    # ---------------------------------------------------------------------------------------- the end of a request

    def _end_slots(self, which: Array, error: BaseException) -> None:
        with self._lock:
            for slot in np.flatnonzero(which).tolist():
                self._end(self._table.state(slot), "error", error)
            self._wakeups.wake(change=True)

    def _survive(self, error: Exception, states: Sequence[RequestState], *, ran: bool = False) -> None:
        """End the requests that an exception concerns, and log it. Re-raises it if the session cannot compute any more.

        Args:
            ran: True if the interpreter may have raised it; a step without active slots then tests if it still
                computes.
        """
        if not self._computes(error, ask=ran):
            raise error
        if not isinstance(error, UsageError):
            numbers = ", ".join(str(state.id) for state in states) or "none"
            log_exception(_log, f"an exception in the engine ends its requests (numbers: {numbers})", error)
        with self._lock:
            for state in states:
                self._end(state, "error", error)
            self._wakeups.wake(change=True)

    def _computes(self, error: Exception, *, ask: bool) -> bool:
        """Return True if the session can still compute after an exception: no rank is gone, and a step without active
        slots succeeds."""
        if isinstance(error, RankError) or self.session.failure is not None:
            return False
        if ask:
            try:
                self.session.decode_step(self._table.next_tokens, np.zeros(len(self._table.active), np.bool_))
            except Exception:
                return False
        return True

    def _end(self, state: RequestState, finish: Finish, error: BaseException | None = None) -> None:
        """End a request in any state and free its slot; does nothing if it has ended. Called with the lock held.

        Failures of the clean-up are only logged, because a slot's next prompt replaces all of its contents.
        """
        if state.finish is not None:
            return
        if self._queue.pop(state.id, None) is not None and self._arrivals is not None:
            self._tidy(self._arrivals.drop, state)
        if self._drafts is not None:
            self._tidy(self._drafts.drop, state)
        state.message = None
        if state.slot is not None:
            if self._prefilling is not None and self._prefilling.state is state:
                self._prefilling = None
                if self.failure is None:
                    self._tidy(self.session.abandon_prefill)
            state.tokens = self._table.tokens(state.slot)
            self._table.clear(state.slot)
            if self.failure is None:
                self._tidy(self._sampler.stop, state.slot)
                self._tidy(self._constraints.stop, state.slot)
                if self._speculation is not None:
                    self._tidy(self._speculation.stop, state.slot)
                self._tidy(self.session.release, state.slot)
            state.slot = None
        self._open -= 1
        self._counters.finished[finish] += 1
        state.error, state.trace = _reported(error), None if error is None else error.__traceback__
        state.ended = perf_counter()
        if (tracer := self.session.tracer) is not None:
            facts = {"finish": finish, "prompt": state.prompt_tokens, "cached": state.cached, "new": len(state.tokens)}
            span = RequestSpan(state.id, state.submitted, state.admitted, state.first_token, state.ended, facts)
            self._tidy(tracer.request, span)
        state.finish = finish

    def _tidy(self, action: Callable[..., object], *arguments: object) -> None:
        """Do one part of the clean-up after a request, so that its failure does not keep the other parts from being
        done."""
        try:
            action(*arguments)
        except Exception as error:
            log_exception(_log, "an exception in the engine during the clean-up after a request", error)


def _concerned(message: Message) -> list[RequestState]:
    """Return the requests that a message concerns."""
    if isinstance(message, RequestState):
        return [message]
    if isinstance(message, Close | Task):
        return []
    subject = message[0]
    return list(subject.waiting.values()) if isinstance(subject, Fetch) else [subject]


def _reported(error: BaseException | None) -> BaseException | None:
    """Return the error for callers: an unexpected exception becomes the cause of an InternalError."""
    if error is None or isinstance(error, SsccError):
        return error
    reported = EngineErrors.REQUEST_FAILED(cause=_cause(error))
    reported.__cause__ = error
    return reported


def _cause(error: BaseException) -> str | SsccError:
    return error if isinstance(error, SsccError) else quoted(f"{type(error).__name__}: {error}")
