"""Ranks that follow rank 0, which owns the session and sends each of its interpreter calls to the others.

Session, engine and server therefore live in one process, for any number of ranks. Each rank makes the same calls to its
own interpreter, which holds its part of the weights. During a call the ranks exchange data as the program prescribes.
"""

from __future__ import annotations

import copy
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from sscc.ir.cache_plan import CachePlan, LayerGroup
from sscc.ir.errors import ErrorKind, RankError, SsccError, UsageError, quoted
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.protocol import DeviceTensor, Tensors
from sscc.ir.layer_state.row_streams import Stream
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.backends.collectives.group import Group, GroupErrors
from sscc.runtime.backends.collectives.links import PATIENCE, Link, LinkErrors, Waited
from sscc.runtime.backends.collectives.processes import TransportErrors
from sscc.runtime.backends.collectives.rank_messages import MessageErrors
from sscc.runtime.backends.interpreter import Interpreter, MemoryUse, StageName, Watcher
from sscc.runtime.backends.stage_trace import StageTrace
from sscc.runtime.session.kept_rows import Drop, KeptRows, RowOperation
from sscc.runtime.support.native_errors import NativeErrors

if TYPE_CHECKING:
    from sscc.runtime.artifact.tensor_files import Array
    from sscc.runtime.support._native import Team


class CrewErrors(ErrorKind):
    RANK_FAILED = RankError, "rank {rank} failed: {cause}"
    ANOTHER_FAILED = RankError, "another rank failed: {cause}"
    SILENT = RankError, "rank {rank} does not answer"
    NOT_A_COMMAND = RankError, "rank {rank} sent {what!r}, which is not a message between ranks"
    NOT_WATCHED = UsageError, "the stages of a program of {ranks} ranks cannot be watched: compile without --tp"


class Word(StrEnum):
    """The first item of a message."""

    RUN = "run"  # rank 0 to the others
    RESET = "reset"
    SIGNATURE = "signature"
    ROWS = "rows"
    END = "end"
    READY = "ready"  # the others to rank 0
    FAILED = "failed"
    LOST = "lost"
    PING = "ping"  # on a separate link, by separate threads, so that busy ranks answer too
    PONG = "pong"


VOCABULARY = {
    kind.__name__: kind for kind in (Signature, Geometry, CachePlan, LayerGroup, Stream, *get_args(RowOperation))
}
"""Dataclasses that commands may contain."""

PING_SECONDS = 0.5
OPENING_PATIENCE = 60.0
"""Time in seconds in which a rank must send or answer a ping while the program is opened. It is long because imports
may block the other threads of the rank."""
REASON_SECONDS = 5.0
"""Time in seconds in which a failed rank reports the reason, after another rank has noticed the failure. It is long
because a rank on a busy machine may be slow to report."""
BLAME_SECONDS = 1.0
"""Time in seconds in which the ranks report that they could not reach each other. A rank that does not report has
stalled."""


class ReportedError(SsccError):
    """Error that another rank has raised. It is built from the result of `SsccError.as_json`, because its kind may
    belong to a module that this process has not imported."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        message, fields = report.get("message"), report.get("fields")
        super().__init__(str(message), fields=fields if isinstance(fields, Mapping) else {})
        self._code = report.get("kind")

    def as_json(self) -> dict[str, Any]:
        return {"kind": self._code, "message": str(self), "fields": self.fields}

    def __reduce__(self) -> tuple[Any, ...]:
        return ReportedError, (self.as_json(),)


def report_of(error: BaseException) -> dict[str, Any]:
    """Return the report of an error for another rank, in the form of `SsccError.as_json`."""
    if isinstance(error, SsccError):
        return error.as_json()
    return {"kind": None, "message": f"{type(error).__name__}: {quoted(error)}", "fields": {}}


_RANK_KINDS: dict[str, ErrorKind] = {
    kind.code: kind
    for kinds in (LinkErrors, GroupErrors, CrewErrors, MessageErrors, TransportErrors, NativeErrors)
    for kind in kinds
}
_IN_A_MEETING = (
    GroupErrors.FAILED,
    NativeErrors.RANK_STALLED,
    NativeErrors.RANK_ENDED,
    NativeErrors.RANK_FAILED,
)
"""Kinds of errors which mean that another rank has failed, without the reason."""
_WITH_A_REASON = (GroupErrors.FAILED, NativeErrors.RANK_FAILED)
"""Kinds in `_IN_A_MEETING` after which the failed rank sends the reason."""


def _reported(report: Mapping[str, Any]) -> SsccError:
    """Return the error that another rank reports about a third one, with the same kind if it is known here."""
    kind, fields = _RANK_KINDS.get(str(report.get("kind"))), report.get("fields")
    if kind is None or not isinstance(fields, Mapping) or fields.keys() != set(kind.field_names):
        return CrewErrors.ANOTHER_FAILED(cause=ReportedError(report))
    cause = {name: ReportedError(value) for name, value in fields.items() if isinstance(value, Mapping)}
    return kind(**{**fields, **cause})


class Crew:
    """The ranks that follow rank 0, as seen by rank 0.

    A thread receives their messages and pings them, also while they are idle.

    Args:
        links: links to the other ranks, in order.
        group: group of rank 0.
        stop: function that ends the other ranks: at once if its argument is True, otherwise after giving them time to
            end by themselves. It is called at most twice.
        beats: links to the other ranks, in order, on which they are pinged. Ranks that are threads of this process
            have none, because they end with it.
        suspended: function that returns the ranks that have been suspended for `PATIENCE`; called twice a second. It
            tells a suspended rank from one that is too busy to answer while it opens the program.
    """

    def __init__(
        self,
        links: Sequence[Link],
        group: Group,
        stop: Callable[[bool], None],
        beats: Sequence[Link] = (),
        suspended: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.group = group
        self.error: SsccError | None = None
        self._links = list(links)
        for link in self._links:
            link.vocabulary = VOCABULARY
        self._stop = stop
        self._beats = list(beats)
        self._suspended = suspended
        self._state = threading.Condition()
        self._ready: set[int] = set()
        self._blameless: set[int] = set()  # ranks that have ended because of another rank's failure
        self._asked: dict[int, Waited] = {}  # time since a ping that is not answered yet, by rank
        self._noticed: tuple[SsccError, int, Waited] | None = None  # a failure without its reason, and its reporter
        self._closed = False
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="sscc-ranks", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until all ranks are ready. Raises RankError if one has failed."""
        with self._state:
            self._state.wait_for(lambda: self.error is not None or len(self._ready) == len(self._links))
        self.check()

    def check(self) -> None:
        """Raise the error that has ended the ranks, if any."""
        if self.error is not None:
            raise copy.copy(self.error)  # each caller gets a traceback of its own

    def call(self, *message: object) -> None:
        """Send a message to all other ranks. Raises the error that has ended the ranks, if any."""
        self.check()
        with self._sending:
            for link in self._links:
                try:
                    link.send(message)
                except RankError as error:
                    self._lost(error, link.peer)
        self.check()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Context in which the other ranks work. An error in it ends all ranks."""
        try:
            yield
        except BaseException as error:
            self.failed(error)

    def failed(self, error: BaseException) -> NoReturn:
        """End all ranks because rank 0 has failed. Raises the error, or the earlier error of another rank."""
        if isinstance(error, SsccError) and error.kind is GroupErrors.UNREACHED:
            with self._state:
                peers = len(self._links)
                self._state.wait_for(lambda: self.error is not None or len(self._blameless) == peers, BLAME_SECONDS)
            silent = [link.peer for link in self._links if link.peer not in self._blameless]
            if silent:
                error = CrewErrors.SILENT(rank=silent[0])
        if isinstance(error, RankError):
            if error.kind in _IN_A_MEETING:
                with self._state:
                    self._state.wait_for(lambda: self.error is not None, REASON_SECONDS)
            self._lost(error, 0)
            self.check()
        self._lost(CrewErrors.RANK_FAILED(rank=0, cause=ReportedError(report_of(error))), 0)
        raise error

    def close(self) -> None:
        """End the other ranks. Calling it again has no effect."""
        with self._state:
            if self._closed:
                return
            self._closed = True
        if self.error is None:
            for link in self._links:
                try:
                    link.send((Word.END,), 1.0)
                except RankError:
                    continue
        self._stop(False)
        for link in self._all:
            link.shut()
        self._thread.join()
        for link in self._all:
            link.close()

    @property
    def _all(self) -> list[Link]:
        return [*self._links, *self._beats]

    # -- the thread

    def _listen(self) -> None:
        poll = select.poll()
        links = {link.fileno(): link for link in self._all}
        for descriptor in links:
            poll.register(descriptor, select.POLLIN)
        last = time.monotonic() - PING_SECONDS
        while not self._closed and self.error is None:
            now = time.monotonic()
            if now - last >= PING_SECONDS:
                last = now
                self._ask()
            for descriptor, _ in poll.poll(PING_SECONDS * 500):
                if not self._receive(links[descriptor]):
                    poll.unregister(descriptor)
            self._judge()

    def _receive(self, link: Link) -> bool:
        """Receive a message. Return False if no more will come on the link."""
        try:
            message = link.receive()
            known = self._take(link.peer, message)
        except RankError as error:
            # A rank reports on the other link why it ends, so a closed link for pings is no error.
            if link.peer not in self._blameless and link not in self._beats:
                self._lost(error, link.peer)
            return False
        if not known:
            self._lost(CrewErrors.NOT_A_COMMAND(rank=link.peer, what=quoted(message)), link.peer)
        return known

    def _take(self, rank: int, message: Any) -> bool:
        """Process a message. Return False if it is invalid."""
        match message:
            case (Word.FAILED, dict(report)):
                self._lost(CrewErrors.RANK_FAILED(rank=rank, cause=ReportedError(report)), rank)
            case (Word.LOST, None | dict() as report):
                with self._state:
                    self._blameless.add(rank)
                    self._state.notify_all()
                if report is not None:
                    error = _reported(report)
                    if error.kind not in _WITH_A_REASON:
                        self._lost(error, rank)
                    elif self._noticed is None:  # the failed rank's own report, with the reason, may come later
                        self._noticed = error, rank, Waited()
            case (Word.PONG,):
                self._asked.pop(rank, None)
            case (Word.READY,):
                with self._state:
                    self._ready.add(rank)
                    self._state.notify_all()
            case _:
                return False
        return True

    def _ask(self) -> None:
        for link in self._beats:
            if link.peer not in self._asked and link.peer not in self._blameless:
                self._asked[link.peer] = Waited()
                try:
                    link.send((Word.PING,), 0.0)
                except RankError as error:
                    self._lost(error, link.peer)

    def _judge(self) -> None:
        if self._noticed is not None:
            error, by, waited = self._noticed
            if waited.seconds() > REASON_SECONDS:
                self._lost(error, by)
        suspended = self._suspended()
        for rank, waited in self._asked.items():
            patience = PATIENCE if rank in self._ready or rank in suspended else OPENING_PATIENCE
            if waited.seconds() > patience and rank not in self._blameless:
                self._lost(CrewErrors.SILENT(rank=rank), rank)

    def _lost(self, error: SsccError, rank: int) -> None:
        """Record an error and end all ranks. Only the first error counts."""
        with self._state:
            if self._closed or self.error is not None:
                return
            self.error = error
            self._state.notify_all()
        self.group.end(rank)
        for link in self._all:
            link.shut()
        self._stop(True)


class LeadingRows(KeptRows):
    """Kept rows of rank 0. Every operation is sent to the other ranks too.

    Copies that are dropped here are dropped on the other ranks before the next operation, because a finalizer must not
    wait for them.
    """

    def __init__(self, signature: Signature, tensor: Tensors, crew: Crew) -> None:
        super().__init__(signature, tensor, crew.group)
        self._crew = crew
        self._forgotten: deque[int] = deque()
        crew.call(Word.SIGNATURE, signature)

    def do(self, operation: RowOperation) -> None:
        forgotten = tuple(self._forgotten.popleft() for _ in range(len(self._forgotten)))
        with self._crew.at_work():
            if forgotten:
                self._crew.call(Word.ROWS, Drop(forgotten))
            self._crew.call(Word.ROWS, operation)
            super().do(operation)

    def forget(self, number: int) -> None:
        super().forget(number)
        self._forgotten.append(number)


class LeadingInterpreter:
    """Interpreter of a program of several ranks, in the process of rank 0. It is all that a session sees of the ranks.

    Its tensors are rank 0's part and must not be written, because the other ranks would not receive the change.

    Attributes:
        own: interpreter of rank 0's part.
    """

    def __init__(self, inner: Interpreter, crew: Crew) -> None:
        self.own = inner
        self._crew = crew
        self._rows: LeadingRows | None = None
        weakref.finalize(self, crew.close)
        crew.wait()

    def __repr__(self) -> str:
        return f"LeadingInterpreter({self.own!r})"

    @property
    def ranks(self) -> int:
        return self._crew.group.ranks

    @property
    def failure(self) -> SsccError | None:
        """Error that has ended the ranks; see `Interpreter`."""
        return self._crew.error

    @property
    def program(self) -> None:
        """None, because each rank executes only a part of the program."""

    @property
    def host_threads(self) -> Team | None:
        """Threads of rank 0; see `Interpreter`."""
        return self.own.host_threads

    def run(
        self,
        entry: str,
        inputs: Mapping[str, Array],
        scalars: Mapping[str, int] | None = None,
        *,
        copy: bool = True,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        with self._crew.at_work():
            self._crew.call(Word.RUN, entry, dict(inputs), None if scalars is None else dict(scalars))
            return self.own.run(entry, inputs, scalars, copy=copy)

    @property
    def stages(self) -> frozenset[StageName]:
        return frozenset()

    def watch(self, stages: Collection[StageName], watcher: Watcher | None) -> None:
        """Raise UsageError: a stage of several ranks runs in several processes."""
        raise CrewErrors.NOT_WATCHED(ranks=self.ranks)

    def keep_rows(self, signature: Signature) -> KeptRows:
        """Return the object that keeps copies of rows on all ranks. Every call returns the same object."""
        if self._rows is None:
            self._rows = LeadingRows(signature, self.own.device_tensor, self._crew)
        return self._rows

    def device_tensor(self, name: str) -> DeviceTensor:
        """Return rank 0's part of a tensor; see `Interpreter`."""
        return self.own.device_tensor(name)

    def start_trace(self, capacity: int) -> None:
        """Trace the threads of rank 0; see `Interpreter`."""
        self.own.start_trace(capacity)

    def end_trace(self) -> StageTrace | None:
        """See `Interpreter`."""
        return self.own.end_trace()

    def reset(self) -> None:
        self._crew.call(Word.RESET)
        self.own.reset()

    def memory(self) -> MemoryUse | None:
        return self.own.memory()

    def close(self) -> None:
        self._crew.close()


class _Answers:
    """Thread of a rank other than 0 that answers the pings of rank 0, and detects that they have stopped.

    Args:
        beats: link on which rank 0 sends pings.
        lost: function that ends the work of this rank when rank 0 is lost.

    Attributes:
        patience: maximum time between two pings in seconds.
        error: error that says why rank 0 is considered lost; None as long as it is not.
    """

    def __init__(self, beats: Link, lost: Callable[[], None]) -> None:
        self.patience = OPENING_PATIENCE
        self.error: SsccError | None = None
        self._beats, self._lost = beats, lost
        self._closed = False
        self._thread = threading.Thread(target=self._answer, name="sscc-answers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._beats.shut()
        self._thread.join()
        self._beats.close()

    def _answer(self) -> None:
        waited = Waited()
        try:
            while True:
                if not self._beats.silent():
                    self._beats.receive()
                    self._beats.send((Word.PONG,))
                    waited = Waited()
                elif waited.seconds() >= self.patience:
                    raise self._beats.unanswered()
        except RankError as error:
            if not self._closed:
                self.error = error
                self._lost()


def follow(
    link: Link, group: Group, open_interpreter: Callable[[], Interpreter], beats: Link | None = None
) -> None:
    """Execute the commands of rank 0 on another rank until rank 0 ends it.

    Args:
        link: link to rank 0.
        group: group of this rank.
        open_interpreter: function that opens this rank's part of the program.
        beats: link on which rank 0 sends pings; None if it sends none.

    Raises:
        RankError: rank 0 or another rank is lost.
        SsccError: this rank has failed. The error is reported to rank 0.
    """

    def rank_0_is_lost() -> None:
        group.end(0)
        link.shut()

    link.vocabulary = VOCABULARY
    answers = None if beats is None else _Answers(beats, rank_0_is_lost)
    try:
        interpreter = open_interpreter()
        rows: KeptRows | None = None
        link.send((Word.READY,))
        while True:
            message = link.receive(None)  # no time limit: rank 0 may be idle, and `answers` detects its loss
            if message == (Word.END,):
                return
            if answers is not None:
                answers.patience = PATIENCE
            match message:
                case (Word.RUN, str(entry), dict(inputs), None | dict() as scalars):
                    interpreter.run(entry, inputs, scalars, copy=False)
                case (Word.RESET,):
                    interpreter.reset()
                case (Word.SIGNATURE, Signature() as signature):
                    rows = KeptRows(signature, interpreter.device_tensor, group)
                case (Word.ROWS, operation) if rows is not None and isinstance(operation, RowOperation):
                    rows.do(operation)
                case _:
                    raise CrewErrors.NOT_A_COMMAND(rank=0, what=quoted(message))
    except BaseException as error:
        group.end(group.rank)
        if answers is not None and answers.error is not None and isinstance(error, RankError):
            raise answers.error from None
        unreached = isinstance(error, SsccError) and error.kind is GroupErrors.UNREACHED
        report = None if unreached else report_of(error)
        with suppress(RankError):
            link.send((Word.LOST if isinstance(error, RankError) else Word.FAILED, report))
        raise
    finally:
        if answers is not None:
            answers.close()


def simulated(groups: Sequence[Group], open_interpreter: Callable[[Group], Interpreter]) -> LeadingInterpreter:
    """Return the interpreter of rank 0, with the other ranks as threads of this process."""
    pairs = [socket.socketpair() for _ in groups[1:]]
    threads = [
        threading.Thread(target=_follow_quietly, args=(Link(there, 0), group, open_interpreter), daemon=True)
        for (_, there), group in zip(pairs, groups[1:], strict=True)
    ]

    def stop(at_once: bool) -> None:
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(PATIENCE)

    for thread in threads:
        thread.start()
    links = [Link(here, rank + 1) for rank, (here, _) in enumerate(pairs)]
    crew = Crew(links, groups[0], stop)
    try:
        return LeadingInterpreter(open_interpreter(groups[0]), crew)
    except BaseException as error:
        crew.failed(error)


def _follow_quietly(link: Link, group: Group, open_interpreter: Callable[[Group], Interpreter]) -> None:
    """Follow rank 0 without raising, because rank 0 reports errors."""
    try:
        follow(link, group, lambda: open_interpreter(group))
    except Exception:
        return
    finally:
        link.close()
