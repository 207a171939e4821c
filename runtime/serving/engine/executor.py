"""The thread of an engine: it gives slots to requests, prefills, decodes, and ends requests.

A round is: what was asked since the last one (new requests, cancellations), timeouts, some chunk steps of prefill, one
decode step of all active slots. All that other threads read is changed under one lock, held for microseconds; calls of
the interpreter and of the sampler run without it.

The thread outlives exceptions. One that is raised on behalf of a request ends this request; one of a decode step ends
the requests that decode. Their slots are free for others, whose prompts replace all that a slot holds. The thread ends
where the session can compute no more: a rank is gone, or a step without any active slot fails too.
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
from sscc.runtime.serving.engine.elsewhere import Arrivals, Elsewhere, Fetch, Outcome, Received
from sscc.runtime.serving.engine.job import Job
from sscc.runtime.serving.engine.metrics import Counters, Figures, Metrics, SlotState
from sscc.runtime.serving.engine.prompt_files import FileCount, load_prompts, save_prompts
from sscc.runtime.serving.engine.prompt_store import PromptStore, default_limit
from sscc.runtime.serving.engine.request import EngineClosed, EngineOptions, Finish, QueueFull, Request
from sscc.runtime.serving.engine.slot_table import SlotTable
from sscc.runtime.serving.engine.wakeups import Wakeups
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.prompt import Snapshot
from sscc.runtime.session.prompt_scores import PromptScorer
from sscc.runtime.session.sampling import BatchSampler, TokenLogprobs
from sscc.runtime.session.session import Session
from sscc.runtime.session.shortening import Shortener
from sscc.runtime.session.slot_message import SlotMessage
from sscc.runtime.session.tracing import RequestSpan
from sscc.runtime.support.logs import log_exception, logged

_log = logging.getLogger("sscc.engine")

LONGEST_WAIT = 3600.0
"""Seconds after which a thread without work looks at its deadlines again. A wait of 292 years would overflow."""


class EngineErrors(ErrorKind):
    QUEUE_FULL = (
        QueueFull,
        "{queue} requests wait for {slots} slots already: try again later, or allow a longer queue",
    )
    CLOSED = EngineClosed, "the engine is closed and takes no requests"
    FAILED = EngineClosed, "the engine has failed and takes no requests: {cause}"
    REQUEST_FAILED = InternalError, "the engine failed while it worked on this request: {cause}"


@dataclass(frozen=True)
class News:
    """What a request has made since its first `start` tokens. `error` says why where `finish` is "error"."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None
    error: BaseException | None


class Close(Enum):
    """How the thread ends."""

    DRAIN = "every request is finished first"
    CANCEL = "every request is cancelled"


@dataclass(eq=False)
class Task:
    """Work that needs the session, done between two rounds.

    Attributes:
        work: is given the session and the store of prompts.
        outcome: of the work.
    """

    work: Callable[[Session, PromptStore], Any]
    outcome: Future[Any] = field(default_factory=Future)

    def run(self, session: Session, prompts: PromptStore) -> None:
        try:
            self.outcome.set_result(self.work(session, prompts))
        except Exception as error:
            self.outcome.set_exception(error)


Message = Job | tuple[Job, Finish] | tuple[Fetch, Outcome] | Task | Close
"""What other threads ask of the engine's, or tell it."""


@dataclass
class _PrefillJob:
    """A prefill in progress.

    Attributes:
        left: chunk steps, or steps of the scorer.
        scorer: scores the tokens of the prompt, once they are prefilled.
    """

    job: Job
    slot: int
    left: int
    scorer: PromptScorer | None = None


class Executor:
    """What the thread runs, and what other threads ask of it.

    Args:
        session: nobody else may use it from now on; what its slots hold is given up.
        elsewhere: prefills prompts; None: they are prefilled here.
        shortener: shortens the prompts of requests that ask for it.

    Attributes:
        done: set when the thread has ended.
    """

    def __init__(
        self,
        session: Session,
        options: EngineOptions,
        elsewhere: Elsewhere | None = None,
        shortener: Shortener | None = None,
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
        self._queue: OrderedDict[int, Job] = OrderedDict()
        self._table = SlotTable(signature.batch, signature.geometry.max_context)
        self._drafts = None if shortener is None else Drafts(shortener)
        self._drafted_last = False
        self._prefilling: _PrefillJob | None = None
        self._sampler = BatchSampler(signature.batch, signature.vocab_size, session.host_threads)
        self._constraints = ConstraintTable(signature.batch, signature.vocab_size)
        self._first_logits = np.zeros((signature.batch, signature.vocab_size), np.float32)
        limit = default_limit() if options.prompt_cache_bytes is None else options.prompt_cache_bytes
        self._prompts = PromptStore(session, limit, elsewhere=elsewhere is not None)
        self._arrivals = None if elsewhere is None else self._expecting(elsewhere)
        self._counters = Counters()
        self._ids = 0
        self._open = 0  # requests that have not ended
        self._closing = False
        self._earliest = float("inf")  # no open request has an earlier deadline, so until then none is looked at
        session.abandon_prefill()
        for slot in range(signature.batch):
            session.release(slot)

    def _expecting(self, elsewhere: Elsewhere) -> Arrivals:
        ahead = self._options.prefill_ahead or self.session.signature.batch
        inbox = self._inbox  # and not the executor, which a prefill that hangs would keep alive
        return Arrivals(elsewhere, ahead, lambda fetch, outcome: inbox.put((fetch, outcome)))

    # ------------------------------------------------------------------------------------- asked by other threads

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended it, if one did, or that the next call of the session will end with."""
        return self._failure or self.session.failure

    def submit(self, request: Request, prompt: Excerpt, ends: Array, constraint: Constraint | None = None) -> Job:
        """Take a request that was checked. Raises QueueFull, EngineClosed."""
        with self._lock:
            if self.failure is not None:
                raise EngineErrors.FAILED(cause=_cause(self.failure)) from self.failure
            if self._closing:
                raise EngineErrors.CLOSED()
            queue = self._options.max_queue
            if queue is not None and self._open >= self.session.signature.batch + queue:
                self._counters.rejected += 1
                raise EngineErrors.QUEUE_FULL(queue=queue, slots=self.session.signature.batch)
            job = Job(self._ids, request, prompt, ends, perf_counter(), constraint)
            self._ids += 1
            self._open += 1
            self._counters.submitted += 1
            self._inbox.put(job)
            return job

    def end(self, job: Job, finish: Finish) -> None:
        """Asks that a request ends; nothing happens if it has. Takes no lock, because finalizers call it."""
        if job.finish is None:
            self._inbox.put((job, finish))

    def do(self, work: Callable[[Session, PromptStore], Any]) -> Any:
        """Have work done that needs the session, between two rounds, and return what it returns. Raises what it raises,
        and EngineClosed."""
        task = Task(work)
        with self._lock:
            if self.failure is not None:
                raise EngineErrors.FAILED(cause=_cause(self.failure)) from self.failure
            if self._closing:
                raise EngineErrors.CLOSED()
            self._inbox.put(task)
        return task.outcome.result()

    def close(self, how: Close) -> None:
        """Refuses new requests, and asks the thread to end."""
        with self._lock:
            self._closing = True
        self.abort(how)

    def abort(self, how: Close = Close.CANCEL) -> None:
        """Asks the thread to end. Takes no lock, because finalizers call it."""
        self._inbox.put(how)

    def wait(self, job: Job, start: int, *, whole: bool, timeout: float | None = None) -> News | None:
        """Waits for tokens from number `start` on, or for the end, with `whole` for the end only.

        None where there is no such news after `timeout` seconds.
        """
        until = None if timeout is None else perf_counter() + timeout
        with self._lock:
            while True:
                news = self._news(job, start, whole)
                left = None if until is None else until - perf_counter()
                if news is not None or (left is not None and left <= 0):
                    return news
                self._wakeups.wait(change=whole or not job.prefilled, timeout=left)

    async def wait_async(self, job: Job, start: int, *, whole: bool) -> News:
        """The same for a task of an event loop."""
        while True:
            with self._lock:
                news = self._news(job, start, whole)
                if news is not None:
                    return news
                future = self._wakeups.future(change=whole or not job.prefilled)
            await future

    async def wait_prefilled(self, job: Job) -> SlotMessage | None:
        """What the prefill of a request that keeps its slot has left (`Request.keep_slot`); None where the request has
        ended before. Raises what the request ended with."""
        while True:
            with self._lock:
                if job.error is not None:
                    raise job.error.with_traceback(job.trace)
                if job.message is not None or job.finish is not None:
                    return job.message
                future = self._wakeups.future(change=True)
            await future

    def _news(self, job: Job, start: int, whole: bool) -> News | None:
        if job.finish is not None:
            tokens = job.tokens[start:]
        elif whole or job.slot is None or self._table.counts[job.slot] <= start:
            return None
        else:
            tokens = self._table.tokens(job.slot, start)
        return News(tokens.tolist(), job.logprobs[start:], job.finish, job.error)

    def metrics(self) -> Metrics:
        with self._lock:
            lengths = self._table.lengths().tolist()
            kept = sum(map(self._geometry.kept_rows, lengths))
            running, prefilling = self._table.running, int(self._prefilling is not None)
            taken = sum(job is not None and job.message is not None for job in self._table.jobs)
            return self._counters.read(
                queued=self._open - running - prefilling - taken,
                running=running,
                slots=self.session.signature.batch,
                prefilling=prefilling,
                kept_rows=kept,
                evicted_rows=sum(lengths) - kept,
            )

    def figures(self, job: Job) -> Figures:
        with self._lock:
            new = len(job.tokens) if job.slot is None else int(self._table.counts[job.slot])
            ended = perf_counter() if job.ended is None else job.ended
            return Figures(
                job.prompt_tokens, job.cached, new, job.submitted, job.first_token, ended, job.finish
            )

    def slots(self) -> list[SlotState]:
        """What every slot does now."""
        with self._lock:
            return [self._slot_state(slot, job) for slot, job in enumerate(self._table.jobs)]

    def _slot_state(self, slot: int, job: Job | None) -> SlotState:
        if job is None:
            return SlotState(slot)
        prompt, new, seconds = len(job.prompt), int(self._table.counts[slot]), perf_counter() - job.submitted
        if not self._table.active[slot]:
            return SlotState(slot, job.id, "prefill", prompt, read_tokens=self._read_tokens(job), seconds=seconds)
        length = prompt + max(new - 1, 0)  # the newest token is not in the cache
        kept = self._geometry.kept_rows(length)
        return SlotState(slot, job.id, "decode", prompt, new, kept, length - kept, prompt, seconds)

    def _read_tokens(self, job: Job) -> int:
        """Return how many tokens of a prompt are as good as prefilled: layers are done one after another."""
        prefill, prompt = self._prefilling, len(job.prompt)
        if prefill is None or prefill.job is not job or prefill.scorer is not None:
            return prompt
        signature = self.session.signature
        total = signature.prefill_steps(prompt, job.cached // signature.prefill_chunk)
        return job.cached + (prompt - job.cached) * (total - prefill.left) // total

    # ---------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        """Serve until it is closed, or the session can compute no more, which ends every request."""
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
        """Read or write the prompts of the options' folder, where there is one."""
        folder = self._options.prompt_folder
        if folder is None:
            return
        start = perf_counter()
        try:
            count = action(self._prompts, self.session, folder)
        except SsccError as error:
            _log.error("prompts are not %s %s: %s", done, folder, logged(error))
            return
        _log.info("prompts %s %s: %s in %.1f s", done, folder, count, perf_counter() - start)

    def _round(self) -> bool:
        """`_serve`; an exception that no part of it has dealt with ends the requests that have slots, or all others
        where none has one. One that no request can be blamed for ends the thread."""
        try:
            return self._serve()
        except Exception as error:
            blamed = [job for job in self._table.jobs if job is not None] or self._jobs()
            if not blamed:
                raise
            self._survive(error, blamed, ran=True)
            return True

    def _serve(self) -> bool:
        """A round; False when it is closed and nothing is left to do."""
        drafting = self._drafts is not None and self._drafts.waiting
        idle = not (self._admissible() or self._prefilling or drafting or self._table.active.any())
        if idle and self._closing and self._inbox.empty() and not self._jobs():
            return False
        message = self._await_message() if idle else None
        start, interpreter_ns = perf_counter_ns(), self.session.interpreter_ns
        if message is not None:
            self._hear(message)
        self._listen()
        worked = self._read_some()
        self._listen()
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
        """Whether a request could be given a slot now."""
        ready = self._queue if self._arrivals is None else self._arrivals.ready()
        return bool(ready and self._table.free)

    def _await_message(self) -> Message | None:
        """Wait for the next message; None where a request's time is over before it comes."""
        wait = self._earliest - perf_counter()
        try:
            return self._inbox.get(timeout=None if wait == float("inf") else min(max(wait, 0.0), LONGEST_WAIT))
        except Empty:
            return None

    def _listen(self) -> None:
        """Does what was asked, and ends requests whose time is over."""
        while not self._inbox.empty():
            self._hear(self._inbox.get())
        self._expire()
        if self._arrivals is not None:
            self._arrivals.begin(self._prompts.find, lambda job, error: self._survive(error, [job]))

    def _hear(self, message: Message) -> None:
        """`_handle`; an exception ends the requests that the message is about."""
        try:
            self._handle(message)
        except Exception as error:
            self._survive(error, _concerned(message))

    def _handle(self, message: Message) -> None:
        if isinstance(message, Job):
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
                    for job in self._jobs():
                        self._end(job, "cancelled")
            else:
                self._end(*message)
            self._wakeups.wake(change=True)

    def _enqueue(self, job: Job) -> None:
        """A request waits for a slot."""
        self._queue[job.id] = job
        if self._arrivals is not None:
            self._arrivals.add(job)

    def _settle(self, fetch: Fetch, outcome: Outcome) -> None:
        """A prefill elsewhere has ended; one that nobody waits for any more says nothing to anybody."""
        fetch.done, fetch.outcome = True, outcome
        if isinstance(outcome, SsccError):
            now = perf_counter()
            with self._lock:
                for job in list(fetch.waiting.values()):
                    if job.deadline <= now:
                        self._end(job, "timeout")
                    else:
                        self._end(job, "error", outcome)
                self._wakeups.wake(change=True)

    def _expire(self) -> None:
        now = perf_counter()
        if now < self._earliest:
            return
        with self._lock:
            for job in self._jobs():
                if job.deadline <= now:
                    self._end(job, "timeout")
            self._earliest = min((job.deadline for job in self._jobs()), default=float("inf"))
            self._wakeups.wake(change=True)

    def _jobs(self) -> list[Job]:
        """Every request that has not ended and that the thread knows of."""
        drafting = () if self._drafts is None else self._drafts.waiting.values()
        return [*drafting, *self._queue.values(), *(job for job in self._table.jobs if job is not None)]

    def _fail(self, error: BaseException) -> None:
        """Ends every request. The session may be in any state and is not touched, so that nothing keeps an end from who
        waits for it."""
        if not isinstance(error, SsccError):
            log_exception(_log, "the engine has failed and takes no more requests", error)
        else:
            _log.error("the engine has failed and takes no more requests: %s", error)
        with self._lock:
            self._failure = error
            waiting = [self._inbox.get() for _ in range(self._inbox.qsize())]
            for job in [*self._jobs(), *(message for message in waiting if isinstance(message, Job))]:
                self._end(job, "error", error)
            for task in (message for message in waiting if isinstance(message, Task)):
                task.outcome.set_exception(EngineErrors.FAILED(cause=_cause(error)))
            self._wakeups.wake(change=True)

    # ------------------------------------------------------------------------------------------------------- prefill

    def _read_some(self) -> bool:
        """Reads prompts between two decode steps: prefills, or does a piece of the draft's work, in turn where both
        wait and there is something to decode. Returns whether anything was done."""
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
        """Does a piece of shortening a prompt."""
        start, job = perf_counter_ns(), drafts.first
        left = None
        try:
            left = drafts.step()
            if left is not None:
                job.prompt = self.session.check_request(left, job.request.max_new_tokens)
                self._enqueue(job)
        except Exception as error:
            self._survive(error, [job])
            left = None
        with self._lock:
            self._counters.draft_ns += perf_counter_ns() - start
            if left is not None:
                self._counters.shortened_prompts += 1
                self._counters.left_out_prompt_tokens += job.prompt_tokens - len(job.prompt)

    def _prefill_some(self) -> bool:
        """At most the chunk steps that may run between two decode steps, of as many prompts as they suffice for.

        Where nothing decodes it is at least one chunk through all layers. Returns whether anything was done.
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
            if self._table.active.any():  # perhaps only now, and its second token is not to wait for other prompts
                budget = min(budget, self._prefill_budget)
        return worked

    def _admit(self) -> _PrefillJob | None:
        """Gives a free slot to the request that has waited longest, and begins its prefill; None where either lacks.

        Where its prompt is kept, it is copied into the slot, and no step is left.
        """
        while self._admissible():
            job, fetch = self._next()
            with self._lock:
                del self._queue[job.id]
                slot = self._table.take(job)
                job.admitted = perf_counter()
                self._counters.waited.add(np.array([job.admitted - job.submitted]))
            try:
                return self._begin(job, slot, fetch)
            except Exception as error:
                self._survive(error, [job])
        return None

    def _begin(self, job: Job, slot: int, fetch: Fetch | None) -> _PrefillJob:
        """Begin the prefill of a request that has its slot, or finish it where its prompt is there."""
        self._sampler.start(slot, job.request.sampling, job.prompt.tokens, job.request.logprobs)
        self._constraints.start(slot, job.constraint)
        if self._start_with_kept(job, slot, fetch):
            return _PrefillJob(job, slot, 0)
        self._tidy(self.session.abandon_prefill)  # nothing else prefills now, whatever was left behind
        prefix, fill = self._prompts.begin(job.prompt)
        if job.request.prompt_logprobs is not None:
            prefix = []  # of chunks that are not prefilled there are no logits
        job.cached = len(prefix) * self.session.signature.prefill_chunk
        self.session.start_prefill(slot, job.prompt, prefix, fill)
        prefill = _PrefillJob(job, slot, self.session.signature.prefill_steps(len(job.prompt), len(prefix)))
        with self._lock:
            self._prefilling = prefill
        return prefill

    def _next(self) -> tuple[Job, Fetch | None]:
        """The request that is to have a slot, and what came of its prompt where that was prefilled elsewhere."""
        if self._arrivals is None:
            return next(iter(self._queue.values())), None
        ready = self._arrivals.ready()
        assert ready is not None
        self._arrivals.drop(ready[0])
        return ready

    def _start_with_kept(self, job: Job, slot: int, fetch: Fetch | None) -> bool:
        """Gives a slot the prompt that came from elsewhere, or is kept here; False where it is to be prefilled."""
        if job.request.prompt_logprobs is not None:
            return False
        first = fetch is not None and fetch.snapshot is None
        kept = self._prompts.find(job.prompt) if fetch is None else self._received(fetch)
        if kept is None:
            return False
        job.cached = fetch.cached if fetch is not None and first else len(job.prompt)
        if not job.request.keep_slot:
            self.session.restore(slot, kept)
        self._prefilled(job, slot, kept)
        return True

    def _received(self, fetch: Fetch) -> Snapshot | None:
        """What came of a prompt from elsewhere; None where it is to be prefilled here."""
        if fetch.snapshot is None and isinstance(fetch.outcome, Received):
            received = fetch.outcome  # which stays where it cannot be adopted, so that nobody else prefills it here
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

    def _step_prefill(self, prefill: _PrefillJob, steps: int) -> None:
        before = self.session.interpreter_ns
        try:
            finished = self._advance(prefill, steps)
        except Exception as error:
            self._survive(error, [prefill.job], ran=True)
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
            self._prefilled(prefill.job, prefill.slot, kept)
        except Exception as error:
            self._survive(error, [prefill.job])

    def _advance(self, prefill: _PrefillJob, steps: int) -> bool:
        """Do steps of a prefill, then of scoring the prompt where that was asked for. Return True when all is done."""
        job, top = prefill.job, prefill.job.request.prompt_logprobs
        if prefill.scorer is None:
            finished = self.session.step_prefill(steps)
            prefill.left -= steps
            if not finished:
                return False
            if top is None:
                return True
            prefill.scorer = PromptScorer(self.session, job.prompt.tokens, top)
            prefill.left = prefill.scorer.steps
        else:
            for _ in range(steps):
                prefill.scorer.step()
            prefill.left -= steps
        job.prompt_logprobs = prefill.scorer.scores
        return not prefill.left

    def _prefilled(self, job: Job, slot: int, kept: Snapshot | None) -> None:
        """A prompt is in its slot; `kept` is a copy of it, if there is one."""
        if not job.request.keep_slot:
            self._first_token(job, slot, self.session.prompt(slot).logits)
            return
        message = self.session.message(kept or self.session.snapshot(slot))
        self._count_message(len(job.prompt), self.session.slot_format.nbytes(len(job.prompt)))
        with self._lock:
            self._count_prompt(job)
            job.message = message
            self._wakeups.wake(change=True)

    def _first_token(self, job: Job, slot: int, logits: Array) -> None:
        """Activates a slot whose prompt is there, and picks its first token from the prompt's own logits [V] f32."""
        self._first_logits[slot] = logits
        only = np.zeros(len(self._table.active), np.bool_)
        only[slot] = True
        with self._lock:
            self._table.activate(slot, job)
            self._count_prompt(job)
        self._pick(self._first_logits, only, first=True)

    def _count_prompt(self, job: Job) -> None:
        """Called with the lock."""
        job.prefilled = True
        self._counters.prompt_tokens += len(job.prompt)
        self._counters.cached_prompt_tokens += job.cached
        self._counters.cached_prompts += job.cached > 0

    # -------------------------------------------------------------------------------------------------------- decode

    def _decode_step(self) -> bool:
        """One token for every active slot; False where there is none."""
        table = self._table
        if not table.active.any():
            return False
        before = self.session.interpreter_ns
        try:
            logits = self.session.decode_step(table.next_tokens, table.active)
        except Exception as error:
            self._survive(error, self._decoding(), ran=True)
            return True
        with self._lock:
            self._counters.decode_steps += 1
            self._counters.decode_ns += self.session.interpreter_ns - before
        try:
            self._pick(logits, table.active, first=False)
        except Exception as error:
            self._survive(error, self._decoding())
        return True

    def _decoding(self) -> list[Job]:
        """Return the requests whose slots decode."""
        return [self._table.job(slot) for slot in np.flatnonzero(self._table.active).tolist()]

    def _pick(self, logits: Array, active: Array, *, first: bool) -> None:
        """Picks a token for each of these slots and publishes it; requests that have all of theirs end."""
        start = perf_counter_ns()
        allowed = self._constraints.ready()
        if allowed is not None:
            active = active & ~self._end_constrained(active)
            if not active.any():
                return
        try:
            tokens = self._sampler.pick(logits, active, allowed)
        except InputError as error:
            good = active & np.isfinite(logits.astype(np.float32).max(axis=1))
            self._end_slots(active & ~good, error)
            if not good.any():
                return
            tokens, active = self._sampler.pick(logits, good, allowed), good
        table, counters, now = self._table, self._counters, perf_counter()
        untold: list[tuple[Job, Exception]] = []
        with self._lock:
            gaps, over = table.append(tokens, active, now)
            counters.new_tokens += len(gaps)
            if first:
                self._note_first_token(int(active.argmax()), now)
            else:
                counters.inter_token.add(gaps)
                for slot in table.telling:
                    try:
                        self._tell(slot)
                    except Exception as error:
                        untold.append((table.job(slot), error))
            for slot, finish in over:
                self._end(table.job(slot), finish)
            self._wakeups.wake(change=first or bool(over))
        self._constraints.advance(tokens, active & table.active)
        for job, cause in untold:
            self._survive(cause, [job])
        if (tracer := self.session.tracer) is not None:
            tracer.span("pick tokens", start, perf_counter_ns(), {"slots": len(gaps)})

    def _end_constrained(self, active: Array) -> Array:
        """End the requests whose grammars allow no further token, and return their slots [B] bool."""
        over = self._constraints.over(active)
        ended = np.zeros(len(active), np.bool_)
        if over:
            ended[list(over)] = True
            with self._lock:
                for slot, failure in over.items():
                    job = self._table.job(slot)
                    if failure is not None:
                        _log.warning("request %s ends early, because of its grammar: %s", job.id, logged(failure))
                    self._end(job, "stop" if failure is None else "grammar")
                self._wakeups.wake(change=True)
        return ended

    def _note_first_token(self, slot: int, now: float) -> None:
        job = self._table.job(slot)
        job.first_token = now
        self._counters.first_token.add(np.array([now - job.submitted]))
        self._tell(slot)

    def _tell(self, slot: int) -> None:
        """Keeps the logprobs of a slot's newest token, where they were asked for."""
        told = self._sampler.logprobs(slot)
        if told is not None:
            self._table.job(slot).logprobs.append(told)

    # ---------------------------------------------------------------------------------------- the end of a request

    def _end_slots(self, which: Array, error: BaseException) -> None:
        with self._lock:
            for slot in np.flatnonzero(which).tolist():
                self._end(self._table.job(slot), "error", error)
            self._wakeups.wake(change=True)

    def _survive(self, error: Exception, jobs: Sequence[Job], *, ran: bool = False) -> None:
        """End the requests that an exception concerns, and log it. Raises it where the session can compute no more.

        Args:
            ran: whether the interpreter may have raised it, which is then asked whether it still computes.
        """
        if not self._computes(error, ask=ran):
            raise error
        if not isinstance(error, UsageError):
            numbers = ", ".join(str(job.id) for job in jobs) or "none"
            log_exception(_log, f"an exception in the engine ends its requests (numbers: {numbers})", error)
        with self._lock:
            for job in jobs:
                self._end(job, "error", error)
            self._wakeups.wake(change=True)

    def _computes(self, error: Exception, *, ask: bool) -> bool:
        """Return True if the session can still compute after an exception: no rank is gone, and a step of which no
        slot takes part runs."""
        if isinstance(error, RankError) or self.session.failure is not None:
            return False
        if ask:
            try:
                self.session.decode_step(self._table.next_tokens, np.zeros(len(self._table.active), np.bool_))
            except Exception:
                return False
        return True

    def _end(self, job: Job, finish: Finish, error: BaseException | None = None) -> None:
        """End a request wherever it is and free its slot; nothing happens if it has ended. Called with the lock.

        What fails while the session is tidied is logged: a slot's next prompt replaces all that it holds.
        """
        if job.finish is not None:
            return
        if self._queue.pop(job.id, None) is not None and self._arrivals is not None:
            self._tidy(self._arrivals.drop, job)
        if self._drafts is not None:
            self._tidy(self._drafts.drop, job)
        job.message = None
        if job.slot is not None:
            if self._prefilling is not None and self._prefilling.job is job:
                self._prefilling = None
                if self.failure is None:
                    self._tidy(self.session.abandon_prefill)
            job.tokens = self._table.tokens(job.slot)
            self._table.clear(job.slot)
            if self.failure is None:
                self._tidy(self._sampler.stop, job.slot)
                self._tidy(self._constraints.stop, job.slot)
                self._tidy(self.session.release, job.slot)
            job.slot = None
        self._open -= 1
        self._counters.finished[finish] += 1
        job.error, job.trace = _told(error), None if error is None else error.__traceback__
        job.ended = perf_counter()
        if (tracer := self.session.tracer) is not None:
            facts = {"finish": finish, "prompt": job.prompt_tokens, "cached": job.cached, "new": len(job.tokens)}
            span = RequestSpan(job.id, job.submitted, job.admitted, job.first_token, job.ended, facts)
            self._tidy(tracer.request, span)
        job.finish = finish

    def _tidy(self, action: Callable[..., object], *arguments: object) -> None:
        """Do one part of ending a request, whatever becomes of the others."""
        try:
            action(*arguments)
        except Exception as error:
            log_exception(_log, "an exception in the engine while it ended a request", error)


def _concerned(message: Message) -> list[Job]:
    """Return the requests that a message is about."""
    if isinstance(message, Job):
        return [message]
    if isinstance(message, Close | Task):
        return []
    subject = message[0]
    return list(subject.waiting.values()) if isinstance(subject, Fetch) else [subject]


def _told(error: BaseException | None) -> BaseException | None:
    """Return the error that callers get: an exception that sscc does not raise on purpose becomes the cause of one that
    it does."""
    if error is None or isinstance(error, SsccError):
        return error
    told = EngineErrors.REQUEST_FAILED(cause=_cause(error))
    told.__cause__ = error
    return told


def _cause(error: BaseException) -> str | SsccError:
    return error if isinstance(error, SsccError) else quoted(f"{type(error).__name__}: {error}")
