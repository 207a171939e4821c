"""What clients of a fleet reach: an ASGI application that gives each request to a replica of the server, and to another
one where that one dies.

Answers, errors and all of OpenAI's protocol are the replicas'; this module reads of a request only what it needs to
know the prompt again, and settles its seed. An answer that is no stream is passed on when it is whole, so that until
then it can be asked for again. A stream is passed on as it comes; where it breaks off, the request is sent to another
replica and what the client has already is left out (`sscc.runtime.serving.fleet.resumed_stream`).
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
"""The code of errors with which a replica refuses or ends what it would have served: it closes, or a rank is gone."""
LOST = Http(503, SERVER_ERROR, "replica_lost")
SEED_BYTES = 32
"""That a body may be longer once it has a seed."""
_SEED_BITS = 62
MOST_SENT = 16 << 20
"""Bytes of a stream that are remembered, to take it up again."""


class FleetErrors(ApiKind):
    NO_REPLICA = "no replica answers", UNAVAILABLE_HTTP
    REPLICAS_CANNOT_START = "the replicas cannot be started", UNAVAILABLE_HTTP
    QUEUE_FULL = "{requests} requests wait for a replica: try again later", QUEUE_FULL
    ANSWER_LOST = (
        "the answer ends here: the replica that made it was lost, and no other one could go on with it",
        LOST,
    )
    REQUEST_LOST = "the replicas that worked on this request were lost", LOST


class ReplicaLost(Exception):
    """The replica has died, or has ended what it was asked for because it ends itself."""


class Pool(Protocol):
    """The replicas."""

    def call(self, call: Call) -> AsyncGenerator[Part, None]:
        """What one of them answers. Closing it early cancels the request.

        Raises ReplicaLost, and ApiError where none takes the request.
        """
        ...

    async def states(self) -> Mapping[str, Mapping[str, Any]]:
        """Of every replica that answers, by its name: "metrics", its text for Prometheus; "status", the body of
        /v1/status."""
        ...


@dataclass
class Counts:
    """What a gateway counts since its start.

    Attributes:
        retried: requests that were sent again before anything of their answer was.
        resumed: streams that went on with another replica.
        lost: requests that ended with an error because their replica was lost.
    """

    retried: int = 0
    resumed: int = 0
    lost: int = 0

    def metrics(self, gateway: str, replicas: int) -> list[Metric]:
        """For Prometheus."""
        texts = {
            "retried": "Requests that went to another replica before anything of their answer was sent.",
            "resumed": "Streams that went on with another replica.",
            "lost": "Requests that ended with an error because their replica was lost.",
        }
        families: list[Metric] = [GaugeMetricFamily("sscc_fleet_replicas", "Replicas that answer.", value=replicas)]
        for name, text in texts.items():
            family = CounterMetricFamily(f"sscc_fleet_{name}", text, labels=["gateway"])
            family.add_metric([gateway], getattr(self, name))
            families.append(family)
        return families


class Gateway:
    """The application, behind the same gate as a server's.

    Args:
        pool: the replicas.
        by_prompt: True if they keep beginnings of prompts, so that requests go where theirs was prefilled.
        attempts: how many replicas a request may be sent to in all. It is bounded because a request may be what ends
            them.
        max_body: bytes of a request's body.
        api_keys: keys, one of which /v1/ asks for, and the replicas too; empty: none.
        name: the name of this gateway, in metrics.
        hosts: the names of the gateway; None: those of loopback.
        root_path: is taken off the beginning of paths that have it.
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
                _log.warning("%s: its replica was lost, it goes to another one", logged(call.path))
            except Diverged:
                break
        self.counts.lost += 1
        raise lost(answer.begun)

    async def _health(self) -> Response:
        """200 where a replica answers."""
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
    """Return a request for text with a seed, so that it means the same when it is sent again, and with the digests of
    its prompt where requests are routed by these. A body that is no JSON object stays as it is: the replica refuses
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
    # Of two fields of one name the last one counts, so that a null is replaced too; nothing else is touched.
    rest = call.body.rstrip().removesuffix(b"}")
    text = rest + (b"," if body else b"") + b'"seed":%d}' % secrets.randbits(_SEED_BITS)
    length = (b"content-length", str(len(text)).encode())
    headers = tuple(length if name == length[0] else (name, value) for name, value in call.headers)
    return replace(call, keys=keys, body=text, headers=headers)


def lost(begun: bool) -> ApiError:
    """Return the error of a request that went with its replica."""
    return FleetErrors.ANSWER_LOST() if begun else FleetErrors.REQUEST_LOST()


class _Answer:
    """What a client gets of the answers of one replica or of several.

    Attributes:
        send: of ASGI.
        begun: whether anything of a stream was sent.
        ended: whether the client has all.
        remembered: whether what was sent is known, so that another replica can go on.
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
        """An answer begins anew, with another replica."""
        self._start: Start | None = None
        self._body = bytearray()
        self._replay = Replay(b"".join(self._sent)) if self.begun else None

    async def add(self, part: Part) -> None:
        """Takes the next part of a replica's answer. Raises ReplicaLost where it says that the replica ends, and
        Diverged."""
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
        """The replica's answer is complete. Raises ReplicaLost as `add` does."""
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
        """Sends what is left of the body, and its end."""
        await self.send({"type": "http.response.body", "body": rest, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Ends the answer with an error: as an event where a stream has begun."""
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
        """Whether all events of a stream were sent."""
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
    """The code of an error's body."""
    try:
        code: str | None = json.loads(body)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return None
    return code
