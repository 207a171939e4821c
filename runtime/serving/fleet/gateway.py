"""ASGI application in front of a fleet: it forwards each request to a replica of the server, and to another one if that
replica dies.

Answers, errors and OpenAI's protocol are the replicas'. The gateway reads only the parts of a request that identify its
prompt, and sets its seed. An answer without streaming is passed on when it is complete, so until then the request can
be repeated. A stream is passed on as it comes. If it breaks off, the request is sent to another replica, and the part
that the client already has is left out (`sscc.runtime.serving.fleet.resumed_stream`).
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sscc.runtime.serving.fleet.affinity import keys_of
from sscc.runtime.serving.fleet.forwarded_requests import Call, Part, Start
from sscc.runtime.serving.fleet.replica_summary import metrics_of, status_of
from sscc.runtime.serving.fleet.resumed_stream import DONE, ERROR, Diverged, Replay, events_of
from sscc.runtime.serving.server.answers import event
from sscc.runtime.serving.server.api_errors import QUEUE_FULL, SERVER_ERROR, ApiError, ApiKind, Http, as_api_error
from sscc.runtime.serving.server.api_errors import UNAVAILABLE as UNAVAILABLE_HTTP
from sscc.runtime.serving.server.app import LARGE_BODIES
from sscc.runtime.serving.server.gate import Gate
from sscc.runtime.serving.server.hosts import Hosts
from sscc.runtime.serving.server.prometheus import CONTENT_TYPE
from sscc.runtime.serving.server.request_bodies import BodyMemory, whole_body
from sscc.runtime.serving.server.streaming import ClientGone, unless_gone
from sscc.runtime.serving.server.workers import Workers
from sscc.runtime.support.logs import logged

_log = logging.getLogger("sscc.fleet")

GENERATION = ("/v1/completions", "/v1/chat/completions")
UNAVAILABLE = "unavailable"
"""Error code of a replica that refuses or ends a request because it is closing, or one of its ranks is gone."""
LOST = Http(503, SERVER_ERROR, "replica_lost")
SEED_BYTES = 32
"""Maximum increase of a body's size when it gets a seed."""
_SEED_BITS = 62
MOST_SENT = 16 << 20
"""Maximum bytes of a stream that are kept for resuming it."""


class FleetErrors(ApiKind):
    NO_REPLICA = "no replica is available", UNAVAILABLE_HTTP
    REPLICAS_CANNOT_START = "the replicas cannot be started", UNAVAILABLE_HTTP
    QUEUE_FULL = "{requests} requests are waiting for a replica: try again later", QUEUE_FULL
    ANSWER_LOST = (
        "the answer is incomplete: its replica was lost, and no other one could continue it",
        LOST,
    )
    REQUEST_LOST = "the replicas that processed this request were lost", LOST


class ReplicaLost(Exception):
    """The replica has died, or has ended the request because it is shutting down."""


class Pool(Protocol):
    """Interface to the replicas."""

    def call(self, call: Call) -> AsyncGenerator[Part, None]:
        """Yield the answer of a replica. Closing the iterator early cancels the request.

        Raises ReplicaLost, and ApiError if no replica accepts the request.
        """
        ...

    async def states(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the state of every available replica by its name: "metrics", its metrics in Prometheus's text format,
        and "status", its /v1/status."""
        ...


@dataclass
class Counts:
    """Counters of a gateway since its start.

    Attributes:
        retried: requests that were sent again before any part of their answer was sent to the client.
        resumed: streams that another replica continued.
        lost: requests that failed because their replica was lost.
    """

    retried: int = 0
    resumed: int = 0
    lost: int = 0

    def metrics(self, gateway: str, replicas: int) -> list[Metric]:
        """Return the counters for Prometheus."""
        texts = {
            "retried": "Requests sent to another replica before any part of their answer was sent.",
            "resumed": "Streams continued by another replica.",
            "lost": "Requests that failed because their replica was lost.",
        }
        families: list[Metric] = [GaugeMetricFamily("sscc_fleet_replicas", "Replicas available.", value=replicas)]
        for name, text in texts.items():
            family = CounterMetricFamily(f"sscc_fleet_{name}", text, labels=["gateway"])
            family.add_metric([gateway], getattr(self, name))
            families.append(family)
        return families


class Gateway:
    """The ASGI application, behind the same `Gate` as a server.

    Args:
        pool: the replicas.
        by_prompt: True to route requests to replicas that have cached a prefix of the prompt.
        attempts: maximum number of replicas to which a request is sent. It is bounded because the request itself may be
            what kills them.
        max_body: maximum size of a body in bytes.
        api_keys: API keys of /v1/, which the replicas also require; empty for none.
        name: name of this gateway in metrics.
        hosts: allowed host names and origins; None for those of loopback.
        root_path: prefix to remove from paths that begin with it.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        by_prompt: bool,
        attempts: int,
        max_body: int,
        api_keys: Sequence[str],
        name: str = "gateway",
        hosts: Hosts | None = None,
        root_path: str = "",
    ) -> None:
        self._pool = pool
        self._by_prompt = by_prompt
        self._attempts = attempts
        self._name = name
        self._memory = BodyMemory(LARGE_BODIES * max_body)
        self._workers = Workers()
        self._gate = Gate(self._answer, api_keys, max_body, hosts or Hosts(), root_path.rstrip("/"))
        self.counts = Counts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gate(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _Answer(send)
        try:
            with suppress(ClientGone, ClientDisconnect):
                await self._route(scope, receive, answer)
        except Exception as error:
            await answer.fail(as_api_error(error))

    async def _route(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        request = Request(scope, receive)
        own = {"/health": self._health, "/metrics": self._metrics, "/v1/status": self._status}.get(scope["path"])
        with self._memory.hold() as grow:
            body = await whole_body(request, grow)
            if own is not None and scope["method"] == "GET":
                response = await unless_gone(receive, own())
                await response(scope, receive, answer.send)
                return
            headers = tuple((name, value) for name, value in scope["headers"])
            call = Call(scope["method"], scope["path"], scope.get("query_string", b""), headers, bytes(body))
            if call.method == "POST" and call.path in GENERATION:
                call = await self._workers.run(len(body), partial(prepared, call, by_prompt=self._by_prompt))
            await unless_gone(receive, self._relay(call, answer))

    async def _relay(self, call: Call, answer: _Answer) -> None:
        for attempt in range(1, self._attempts + 1):
            answer.again()
            try:
                async with aclosing(self._pool.call(call)) as parts:
                    async for part in parts:
                        await answer.add(part)
                await answer.end()
                return
            except ReplicaLost:
                if answer.complete:
                    await answer.close()
                    return
                resumable = not answer.begun or answer.remembered
                if attempt == self._attempts or not resumable:
                    break
                self.counts.resumed += answer.begun
                self.counts.retried += not answer.begun
                _log.warning("%s: its replica was lost, sending the request to another one", logged(call.path))
            except Diverged:
                break
        self.counts.lost += 1
        raise lost(answer.begun)

    async def _health(self) -> Response:
        """200 if a replica is available."""
        replicas = len(await self._pool.states())
        return JSONResponse({"status": "ok" if replicas else "failed", "replicas": replicas}, 200 if replicas else 503)

    async def _metrics(self) -> Response:
        states = await self._pool.states()
        texts = {name: state["metrics"] for name, state in states.items()}
        text = metrics_of(texts, self.counts.metrics(self._name, len(states)))
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def _status(self) -> Response:
        states = await self._pool.states()
        if not states:
            raise FleetErrors.NO_REPLICA()
        return JSONResponse(status_of({name: dict(state["status"]) for name, state in states.items()}))


def prepared(call: Call, *, by_prompt: bool) -> Call:
    """Return a generation request with a seed, so that repeating it gives the same answer, and with the digests of its
    prompt if they are needed for routing. A body that is not a JSON object is not changed, and the replica refuses
    it."""
    try:
        body = json.loads(call.body)
    except (ValueError, RecursionError):
        return call
    if not isinstance(body, dict):
        return call
    keys = keys_of(body) if by_prompt else ()
    if body.get("seed") is not None:
        return replace(call, keys=keys)
    # If a field occurs twice, the last one counts, so this also replaces a null. The rest is unchanged.
    rest = call.body.rstrip().removesuffix(b"}")
    text = rest + (b"," if body else b"") + b'"seed":%d}' % secrets.randbits(_SEED_BITS)
    length = (b"content-length", str(len(text)).encode())
    headers = tuple(length if name == length[0] else (name, value) for name, value in call.headers)
    return replace(call, keys=keys, body=text, headers=headers)


def lost(begun: bool) -> ApiError:
    """Return the error of a request whose replica was lost."""
    return FleetErrors.ANSWER_LOST() if begun else FleetErrors.REQUEST_LOST()


class _Answer:
    """The answer to a client, from one replica or from several in turn.

    Attributes:
        send: ASGI's `send`, with a record of the end.
        begun: True if a part of a stream has been sent.
        ended: True if the answer is complete.
        remembered: True if all that was sent is still in memory, so that another replica can continue.
    """

    def __init__(self, send: Send) -> None:
        self.send = self._counted(send)
        self.begun = self.ended = False
        self._started = False
        self._sent: list[bytes] = []
        self._bytes = 0
        self.again()

    @property
    def remembered(self) -> bool:
        return self._bytes <= MOST_SENT

    def again(self) -> None:
        """Start over with the answer of another replica."""
        self._start: Start | None = None
        self._body = bytearray()
        self._replay = Replay(b"".join(self._sent)) if self.begun else None

    async def add(self, part: Part) -> None:
        """Add the next part of a replica's answer. Raises ReplicaLost if the part is an error of a replica that shuts
        down, and Diverged."""
        if isinstance(part, Start):
            self._start = part
            if self.begun and not self._streams:
                raise Diverged
        elif not self._streams:
            self._body += part
        else:
            for one in events_of(part):
                if one.startswith(ERROR) and _code(one.removeprefix(b"data: ")) == UNAVAILABLE:
                    raise ReplicaLost
            await self._pass_on(part if self._replay is None else self._replay.rest(part))

    async def end(self) -> None:
        """End the replica's answer. Raises ReplicaLost as `add` does."""
        if self._start is None:
            raise ReplicaLost
        if self._streams:
            if not self.complete:
                raise ReplicaLost
            await self.close()
            return
        if self._start.status == 503 and _code(self._body) == UNAVAILABLE:
            raise ReplicaLost
        await self._begin(self._start)
        await self.close(bytes(self._body))

    async def close(self, rest: bytes = b"") -> None:
        """Send the rest of the body, and end it."""
        await self.send({"type": "http.response.body", "body": rest, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """End the answer with an error, as an event if a stream has begun."""
        if self.ended:
            return
        if not self._started:
            response = error.response()
            await self._begin(Start(response.status_code, tuple(response.raw_headers)))
            await self.close(bytes(response.body))
        else:
            await self.close(event(error.body()) + DONE if self.begun else b"")

    @property
    def _streams(self) -> bool:
        assert self._start is not None
        return self._start.streams

    @property
    def complete(self) -> bool:
        """True if all events of a stream have been sent."""
        return bool(self._sent) and self._sent[-1].endswith(DONE)

    async def _begin(self, start: Start) -> None:
        if not self._started:
            self._started = True
            await self.send({"type": "http.response.start", "status": start.status, "headers": list(start.headers)})

    async def _pass_on(self, data: bytes) -> None:
        if not data:
            return
        assert self._start is not None
        await self._begin(self._start)
        self.begun = True
        self._bytes += len(data)
        if self.remembered:
            self._sent.append(data)
        else:
            self._sent = [data[-len(DONE) :]]
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    def _counted(self, send: Send) -> Send:
        async def counted(message: Mapping[str, Any]) -> None:
            self.ended = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(dict(message))

        return counted


def _code(body: bytes | bytearray) -> str | None:
    """Return the code in the body of an error."""
    try:
        code: str | None = json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code
