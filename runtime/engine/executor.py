"""The thread of an engine: it gives slots to requests, prefills, decodes, and ends requests.

A round is: what was asked since the last one (new requests, cancellations), timeouts, some chunk steps of prefill, one
decode step of all active slots. All that other threads read is changed under one lock, held for microseconds; calls of
the interpreter and of the sampler run without it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from time import perf_counter, perf_counter_ns

import numpy as np

from sscc.ir.errors import InputError, SsccError
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.engine.job import Job
from sscc.runtime.engine.metrics import Counters, Metrics, SlotState
from sscc.runtime.engine.prefixes import PrefixStore
from sscc.runtime.engine.prompt_cache import PromptCache
from sscc.runtime.engine.request import EngineClosed, EngineOptions, Finish, QueueFull, Request
from sscc.runtime.engine.slots import SlotTable
from sscc.runtime.engine.wakeups import Wakeups
from sscc.runtime.sampling import BatchSampler, TokenLogprobs
from sscc.runtime.session import Session
from sscc.runtime.tracing import RequestSpan


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


@dataclass
class _PrefillJob:
    job: Job
    slot: int
    left: int  # chunk steps


class Executor:
    """What the thread runs, and what other threads ask of it.

    Args:
        session: nobody else may use it from now on; what its slots hold is given up.

    Attributes:
        done: set when the thread has ended.
    """

    def __init__(self, session: Session, options: EngineOptions) -> None:
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
        self._inbox: SimpleQueue[Job | tuple[Job, Finish] | Close] = SimpleQueue()
        self._queue: OrderedDict[int, Job] = OrderedDict()
        self._table = SlotTable(signature.batch, signature.geometry.max_context)
        self._prefilling: _PrefillJob | None = None
        self._sampler = BatchSampler(signature.batch, signature.vocab_size, session.team)
        self._first_logits = np.zeros((signature.batch, signature.vocab_size), np.float32)
        keep = options.prompt_cache_bytes
        self._prompts = PromptCache(0 if signature.continues else keep)
        self._prefixes = PrefixStore(session, keep if signature.continues else 0)
        self._counters = Counters()
        self._ids = 0
        self._open = 0  # requests that have not ended
        self._closing = False
        self._earliest = float("inf")  # no open request has an earlier deadline, so until then none is looked at
        session.abandon_prefill()
        for slot in range(signature.batch):
            session.release(slot)

    # ------------------------------------------------------------------------------------- asked by other threads

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended it, if one did, or that the next call of the session will end with."""
        return self._failure or self.session.failure

    def submit(self, request: Request, prompt: Array, ends: Array) -> Job:
        """Takes a request that was checked. Raises QueueFull, EngineClosed."""
        with self._lock:
            if self.failure is not None:
                raise EngineClosed(f"the engine has failed and takes no requests: {self.failure}") from self.failure
            if self._closing:
                raise EngineClosed("the engine is closed and takes no requests")
            if self._open >= self.session.signature.batch + self._options.max_queue:
                self._counters.rejected += 1
                raise QueueFull(
                    f"{self._options.max_queue} requests wait for {self.session.signature.batch} slots already: try "
                    "again later, or allow a longer queue"
                )
            job = Job(self._ids, request, prompt, ends, perf_counter())
            self._ids += 1
            self._open += 1
            self._counters.submitted += 1
            self._inbox.put(job)
            return job

    def end(self, job: Job, finish: Finish) -> None:
        """Asks that a request ends; nothing happens if it has. Takes no lock, because finalizers call it."""
        if job.finish is None:
            self._inbox.put((job, finish))

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
            prompts = self._table.prompt_lens[self._table.active].tolist()
            kept = sum(map(self._geometry.kept_rows, lengths, prompts))
            running, prefilling = self._table.running, int(self._prefilling is not None)
            return self._counters.read(
                queued=self._open - running - prefilling,
                running=running,
                slots=self.session.signature.batch,
                prefilling=prefilling,
                kept_rows=kept,
                evicted_rows=sum(lengths) - kept,
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
            return SlotState(slot, job.id, "prefill", prompt, seconds=seconds)
        length = prompt + max(new - 1, 0)  # the newest token is not in the cache
        kept = self._geometry.kept_rows(length, prompt)
        return SlotState(slot, job.id, "decode", prompt, new, kept, length - kept, seconds)

    # ---------------------------------------------------------------------------------------------------- the thread

    def run(self) -> None:
        """Serves until it is closed. An exception of the interpreter ends every request."""
        try:
            while self._serve():
                pass
        except BaseException as error:
            self._fail(error)
        finally:
            self.done.set()

    def _serve(self) -> bool:
        """A round; False when it is closed and nothing is left to do."""
        idle = not (self._queue or self._prefilling or self._table.active.any())
        if idle and self._closing and self._inbox.empty():
            return False
        message = self._inbox.get() if idle else None
        start, interpreter_ns = perf_counter_ns(), self.session.interpreter_ns
        if message is not None:
            self._handle(message)
        self._listen()
        worked = self._prefill_some()
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

    def _listen(self) -> None:
        """Does what was asked, and ends requests whose time is over."""
        while not self._inbox.empty():
            self._handle(self._inbox.get())
        self._expire()

    def _handle(self, message: Job | tuple[Job, Finish] | Close) -> None:
        if isinstance(message, Job):
            self._queue[message.id] = message
            self._earliest = min(self._earliest, message.deadline)
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
        return [*self._queue.values(), *(job for job in self._table.jobs if job is not None)]

    def _fail(self, error: BaseException) -> None:
        """Ends every request. The session may be in any state and is not touched, so that nothing keeps an end from who
        waits for it."""
        with self._lock:
            self._failure = error
            waiting = [self._inbox.get() for _ in range(self._inbox.qsize())]
            for job in [*self._jobs(), *(message for message in waiting if isinstance(message, Job))]:
                self._end(job, "error", error)
            self._wakeups.wake(change=True)

    # ------------------------------------------------------------------------------------------------------- prefill

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
        return worked

    def _admit(self) -> _PrefillJob | None:
        """Gives a free slot to the request that has waited longest, and begins its prefill; None where either lacks.

        Where its prompt is kept, it is copied into the slot, and no step is left.
        """
        while self._queue and self._table.free:
            with self._lock:
                _, job = self._queue.popitem(last=False)
                slot = self._table.take(job)
                job.admitted = perf_counter()
                self._counters.waited.add(np.array([job.admitted - job.submitted]))
            try:
                self._sampler.start(slot, job.request.sampling, job.prompt, job.request.logprobs)
            except SsccError as error:
                with self._lock:
                    self._end(job, "error", error)
                    self._wakeups.wake(change=True)
                continue
            kept = self._prompts.find(job.prompt)
            if kept is not None:
                self.session.restore(slot, kept.snapshot)
                job.cached = len(job.prompt)
                self._first_token(job, slot, kept.logits)
                return _PrefillJob(job, slot, 0)
            prefix, fill = self._prefixes.begin(job.prompt)
            job.cached = len(prefix) * self.session.signature.prefill_chunk
            self.session.start_prefill(slot, job.prompt, prefix, fill)
            prefill = _PrefillJob(job, slot, self.session.signature.prefill_steps(len(job.prompt), len(prefix)))
            with self._lock:
                self._prefilling = prefill
            return prefill
        return None

    def _step_prefill(self, prefill: _PrefillJob, steps: int) -> None:
        before = self.session.interpreter_ns
        finished = self.session.step_prefill(steps)
        prefill.left -= steps
        with self._lock:
            self._counters.prefill_steps += steps
            self._counters.prefill_ns += self.session.interpreter_ns - before
            if finished:
                self._prefilling = None
        if finished:
            logits = self.session.prefill_logits
            self._prompts.keep(prefill.job.prompt, self.session, prefill.slot, logits)
            self._prefixes.finish()
            self._first_token(prefill.job, prefill.slot, logits)

    def _first_token(self, job: Job, slot: int, logits: Array) -> None:
        """Activates a slot whose prompt is there, and picks its first token from the prompt's own logits [V] f32."""
        self._first_logits[slot] = logits
        only = np.zeros(len(self._table.active), np.bool_)
        only[slot] = True
        with self._lock:
            self._table.activate(slot, job)
            job.prefilled = True
            self._counters.prompt_tokens += len(job.prompt)
            self._counters.cached_prompt_tokens += job.cached
            self._counters.cached_prompts += job.cached > 0
        self._pick(self._first_logits, only, first=True)

    # -------------------------------------------------------------------------------------------------------- decode

    def _decode_step(self) -> bool:
        """One token for every active slot; False where there is none."""
        table = self._table
        if not table.active.any():
            return False
        before = self.session.interpreter_ns
        logits = self.session.decode_step(table.next_tokens, table.active)
        with self._lock:
            self._counters.decode_steps += 1
            self._counters.decode_ns += self.session.interpreter_ns - before
        self._pick(logits, table.active, first=False)
        return True

    def _pick(self, logits: Array, active: Array, *, first: bool) -> None:
        """Picks a token for each of these slots and publishes it; requests that have all of theirs end."""
        start = perf_counter_ns()
        try:
            tokens = self._sampler.pick(logits, active)
        except InputError as error:
            good = active & np.isfinite(logits.astype(np.float32).max(axis=1))
            self._end_slots(active & ~good, error)
            if not good.any():
                return
            tokens, active = self._sampler.pick(logits, good), good
        table, counters, now = self._table, self._counters, perf_counter()
        with self._lock:
            gaps, over = table.append(tokens, active, now)
            counters.new_tokens += len(gaps)
            if first:
                self._note_first_token(int(active.argmax()), now)
            else:
                counters.inter_token.add(gaps)
                for slot in table.telling:
                    self._tell(slot)
            for slot, finish in over:
                self._end(table.job(slot), finish)
            self._wakeups.wake(change=first or bool(over))
        if (tracer := self.session.tracer) is not None:
            tracer.span("pick tokens", start, perf_counter_ns(), {"slots": len(gaps)})

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

    def _end(self, job: Job, finish: Finish, error: BaseException | None = None) -> None:
        """Ends a request wherever it is and frees its slot; nothing happens if it has ended. Called with the lock."""
        if job.finish is not None:
            return
        self._queue.pop(job.id, None)
        if job.slot is not None:
            if self._prefilling is not None and self._prefilling.job is job:
                self._prefilling = None
                if self.failure is None:
                    self.session.abandon_prefill()
            job.tokens = self._table.tokens(job.slot)
            self._table.clear(job.slot)
            if self.failure is None:
                self._sampler.stop(job.slot)
                self.session.release(job.slot)
            job.slot = None
        self._open -= 1
        self._counters.finished[finish] += 1
        job.error, job.trace = error, None if error is None else error.__traceback__
        job.ended = perf_counter()
        if (tracer := self.session.tracer) is not None:
            facts = {"finish": finish, "prompt": len(job.prompt), "cached": job.cached, "new": len(job.tokens)}
            tracer.request(RequestSpan(job.id, job.submitted, job.admitted, job.first_token, job.ended, facts))
        job.finish = finish
