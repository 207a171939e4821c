"""Log of a server: a line for each request when it ends, and a line every few seconds while requests run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sscc.runtime.serving.engine import Engine, Figures, Metrics, RequestHandle
from sscc.runtime.support.logs import logged

REPORT_SECONDS = 10.0
"""Time in seconds between two lines about the load."""

_RECORD = "sscc.record"
_log = logging.getLogger("sscc.server")


@dataclass(eq=False)
class Record:
    """Data for the log line of a request.

    Attributes:
        handles: handles of its answers, `per_prompt` for each prompt.
        status: HTTP status of the answer; None before the answer begins.
        complete: True if the answer was sent completely.
    """

    handles: Sequence[RequestHandle] = ()
    per_prompt: int = 1
    status: int | None = None
    complete: bool = False


def record_of(request: Request) -> Record:
    """Return the record of a request. Without a log it is a new one that nobody reads."""
    record: Record = request.scope.get(_RECORD) or Record()
    return record


class Traffic:
    """Number of requests being answered, and a periodic log of the throughput.

    Attributes:
        open: number of POST requests that have not ended.
    """

    def __init__(self, engine: Engine) -> None:
        self.open = 0
        self._engine = engine
        self._timer: asyncio.TimerHandle | None = None
        self._before: tuple[float, Metrics] | None = None

    def begin(self) -> None:
        """Count a request that begins. Must be called in an event loop."""
        self.open += 1
        if self._timer is None and _log.isEnabledFor(logging.INFO):
            self._arm()

    def end(self) -> None:
        self.open -= 1

    def _arm(self) -> None:
        self._before = perf_counter(), self._engine.metrics()
        self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report)

    def _report(self) -> None:
        self._timer = None
        if self.open and self._before is not None:
            now = self._engine.metrics()
            _log.info("%s", throughput(self._before[1], now, perf_counter() - self._before[0]))
            self._arm()


def throughput(before: Metrics, now: Metrics, seconds: float) -> str:
    """Return a line about the load, from the metrics at two times."""
    read = (now.prompt_tokens - now.cached_prompt_tokens) - (before.prompt_tokens - before.cached_prompt_tokens)
    made = now.new_tokens - before.new_tokens
    running = now.running + now.prefilling
    rates = f"{read / seconds:.1f} prompt tokens/s, {made / seconds:.1f} new tokens/s"
    return f"{running} running, {now.queued} waiting, {rates}"


class RequestLog:
    """Middleware that logs requests: POST requests and errors at level INFO, others at level DEBUG.

    Args:
        app: application that answers.
        traffic: counter of POST requests.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app, self._traffic = app, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        outer = scope.get(_RECORD)  # set if the first model's application passed the request on; that one logs it
        record = scope[_RECORD] = outer or Record()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)
            record.complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        asks = scope["method"] == "POST"
        if asks:
            self._traffic.begin()
        try:
            await self._app(scope, receive, noted)
        finally:
            if asks:
                self._traffic.end()
            level = logging.INFO if asks or (record.status or 500) >= 400 else logging.DEBUG
            if outer is None and _log.isEnabledFor(level):
                _log.log(level, "%s", line_of(scope, record))


def line_of(scope: Scope, record: Record) -> str:
    """Return the log line of a request. Method and path come from the client and are escaped."""
    facts = [f"{logged(scope['method'])} {logged(scope['path'])} {record.status or 'without an answer'}"]
    if record.handles:
        facts += words_of([handle.figures for handle in record.handles], record.per_prompt)
    if record.status is not None and not record.complete:
        facts.append("client disconnected")
    return ", ".join(facts)


def words_of(figures: Sequence[Figures], per_prompt: int) -> Iterator[str]:
    """Yield the facts about the answers of a request. A prompt is counted once, however many answers it has."""
    prompts = figures[::per_prompt]
    cached = sum(each.cached_tokens for each in prompts)
    yield f"{sum(each.prompt_tokens for each in prompts)} prompt tokens ({cached} cached)"
    yield f"{sum(each.new_tokens for each in figures)} new tokens"
    begun = [each for each in figures if each.first_token is not None]
    times = [each.first_token for each in figures if each.first_token is not None]
    if begun:
        first = min(times)
        yield f"first token after {first - min(each.submitted for each in figures):.3f} s"
        seconds = max(each.ended for each in begun) - first
        later = sum(each.new_tokens - 1 for each in begun)
        if later > 0 and seconds > 0:
            yield f"{later / seconds:.1f} tokens/s"
    yield f"finish {'+'.join(sorted({each.finish or 'cancelled' for each in figures}))}"

