"""Ranks that follow one: rank 0 has the session, and tells the others of every call of the interpreter that it makes.

So session, engine and server are of one process, whatever the number of ranks. Each rank makes the same calls of its
own interpreter, with its own part of the weights; in them they exchange what the program says.
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
    NOT_A_COMMAND = RankError, "rank {rank} sent {what!r}, which is no message of ranks"
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
    PING = "ping"  # on a link of their own, by threads of their own, also while ranks are at work
    PONG = "pong"


VOCABULARY = {
    kind.__name__: kind for kind in (Signature, Geometry, CachePlan, LayerGroup, Stream, *get_args(RowOperation))
}
"""The dataclasses of commands."""

PING_SECONDS = 0.5
OPENING_PATIENCE = 60.0
"""Seconds in which a rank that opens the program answers, or asks: its imports may keep its other threads waiting."""
REASON_SECONDS = 5.0
"""Seconds in which a rank that has failed says why, after another one has noticed; a busy machine takes long to let
it."""
BLAME_SECONDS = 1.0
"""Seconds in which ranks that do not reach each other say so, and the one that does not is the one that stalls."""


class ReportedError(SsccError):
    """An error that another rank has raised, as `SsccError.as_json` describes it: its kind may belong to a module that
    this process has not imported."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        message, fields = report.get("message"), report.get("fields")
        super().__init__(str(message), fields=fields if isinstance(fields, Mapping) else {})
        self._code = report.get("kind")

    def as_json(self) -> dict[str, Any]:
        return {"kind": self._code, "message": str(self), "fields": self.fields}

    def __reduce__(self) -> tuple[Any, ...]:
        return ReportedError, (self.as_json(),)


def report_of(error: BaseException) -> dict[str, Any]:
    """Return an error as `SsccError.as_json` has it, for another rank."""
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
"""Kinds that tell a rank that another one has failed, and not why."""
_WITH_A_REASON = (GroupErrors.FAILED, NativeErrors.RANK_FAILED)
"""Those of them after which the rank that has failed sends the reason."""


def _reported(report: Mapping[str, Any]) -> SsccError:
    """Return what another rank says of a third one as an error of the same kind here."""
    kind, fields = _RANK_KINDS.get(str(report.get("kind"))), report.get("fields")
    if kind is None or not isinstance(fields, Mapping) or fields.keys() != set(kind.field_names):
        return CrewErrors.ANOTHER_FAILED(cause=ReportedError(report))
    cause = {name: ReportedError(value) for name, value in fields.items() if isinstance(value, Mapping)}
    return kind(**{**fields, **cause})


class Crew:
    """The ranks that follow rank 0, which makes one.

    A thread of its own listens to them and asks whether they are there, also while nothing is to be done.

    Args:
        links: to the others, by rank.
        group: rank 0's.
        stop: ends the others, at once or where they do not end themselves; called twice at most.
        beats: links to the others, by rank, on which they are asked whether they are there. Threads of one process
            have none: they end with it.
        suspended: the ranks that are known not to run at all, for `PATIENCE` by now; asked twice a second. It tells of
            those that do not answer because they are busy while they open the program.
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
        self._blameless: set[int] = set()  # ranks that have ended because of another one
        self._asked: dict[int, Waited] = {}  # since a rank was asked whether it is there, until it answers
        self._noticed: tuple[SsccError, int, Waited] | None = None  # the first failure without its reason, and by whom
        self._closed = False
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._listen, name="sscc-ranks", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when all ranks are ready. Raises RankError: one has failed."""
        with self._state:
            self._state.wait_for(lambda: self.error is not None or len(self._ready) == len(self._links))
        self.check()

    def check(self) -> None:
        """Raises RankError if a rank is gone."""
        if self.error is not None:
            raise copy.copy(self.error)  # every caller gets a traceback of its own

    def call(self, *message: object) -> None:
        """Tells all others what to do."""
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
        """In which the others are at work; an error here ends them all."""
        try:
            yield
        except BaseException as error:
            self.failed(error)

    def failed(self, error: BaseException) -> NoReturn:
        """End all ranks because rank 0 has failed. Raises the error, or what was known of another rank before."""
        if isinstance(error, SsccError) and error.kind is GroupErrors.UNREACHED:
            with self._state:
                everybody = len(self._links)
                self._state.wait_for(lambda: self.error is not None or len(self._blameless) == everybody, BLAME_SECONDS)
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
        """Ends the others; nothing happens if they have ended."""
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
                if not self._hear(links[descriptor]):
                    poll.unregister(descriptor)
            self._judge()

    def _hear(self, link: Link) -> bool:
        """Take a message. Return True if there may be more."""
        try:
            message = link.receive()
            known = self._take(link.peer, message)
        except RankError as error:
            # A rank says on the other link why it ends.
            if link.peer not in self._blameless and link not in self._beats:
                self._lost(error, link.peer)
            return False
        if not known:
            self._lost(CrewErrors.NOT_A_COMMAND(rank=link.peer, what=quoted(message)), link.peer)
        return known

    def _take(self, rank: int, message: Any) -> bool:
        """Do what a message asks for. Return False if it is none."""
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
                    elif self._noticed is None:  # the reason of the rank that has failed may come later than this
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
        """The first error ends everything."""
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
    """Rank 0's copies, with which the others make theirs.

    What is given up here the others hear of before the next operation, since finalizers may not wait for them.
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
    """Rank 0's interpreter, which the others follow. A session sees nothing else of them.

    What it shows of tensors is rank 0's part. Nobody may write there: the others would not know.

    Attributes:
        own: the interpreter of rank 0's part.
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
        """See `Interpreter`: the error of a rank."""
        return self._crew.error

    @property
    def program(self) -> None:
        """None: a rank executes a part of the program."""

    @property
    def host_threads(self) -> Team | None:
        """See `Interpreter`: those of rank 0."""
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
        """Raises UsageError: a stage of several ranks is in several processes."""
        raise CrewErrors.NOT_WATCHED(ranks=self.ranks)

    def keep_rows(self, signature: Signature) -> KeptRows:
        """What keeps copies of this program's rows on all ranks: always the same."""
        if self._rows is None:
            self._rows = LeadingRows(signature, self.own.device_tensor, self._crew)
        return self._rows

    def device_tensor(self, name: str) -> DeviceTensor:
        """See `Interpreter`: rank 0's part."""
        return self.own.device_tensor(name)

    def start_trace(self, capacity: int) -> None:
        """See `Interpreter`: rank 0's threads."""
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
    """Another rank's thread that says it is there when rank 0 asks; and finds that rank 0 asks no more.

    Args:
        beats: the link on which rank 0 asks.
        lost: ends what this rank does, because rank 0 is gone.

    Attributes:
        patience: seconds in which rank 0 asks again.
        error: why rank 0 is taken for gone.
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
    """Does on another rank what rank 0 says, until it says that this was all.

    Args:
        link: to rank 0.
        beats: the link on which rank 0 asks whether this rank is there, if it does.

    Raises:
        RankError: rank 0 is gone, or another rank is.
        SsccError: what has failed here; rank 0 is told.
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
            message = link.receive(None)  # rank 0 may take its time, and that it is there the answers know
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
    """The interpreter of rank 0, which ranks follow that are threads of this process."""
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
    """Rank 0 says what has happened."""
    try:
        follow(link, group, lambda: open_interpreter(group))
    except Exception:
        return
    finally:
        link.close()
