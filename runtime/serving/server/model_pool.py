"""Several models in one server. A model is opened when a request names it, within a memory limit.

The first model is always open and serves requests that name no other model. Other models without requests are closed
when another one needs their memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sscc.ir.errors import SsccError
from sscc.ir.sizes import format_bytes
from sscc.runtime.serving.server.api_errors import BUSY, ApiError, ApiKind, Http
from sscc.runtime.serving.server.request_bodies import CLIENT_GONE, BodyMemory, more_values_than, whole_body
from sscc.runtime.serving.server.workers import SMALL, Workers
from sscc.runtime.support.logs import log_exception, logged

Json = dict[str, Any]
_log = logging.getLogger("sscc.server")


class ModelErrors(ApiKind):
    NO_ROOM = "there is no memory for model {name!r} beside those in use: try again later", BUSY
    NOT_OPENED = "model {name!r} cannot be opened: see the server's log", Http(500, "server_error")


class OpenModel(Protocol):
    """An open model: the application that answers its requests, and its engine."""

    @property
    def app(self) -> ASGIApp: ...

    @property
    def engine(self) -> Closing: ...


class Closing(Protocol):
    """Interface of engines for shutting down; see `Engine.close`."""

    def close(self, drain: bool = True, timeout: float | None = None) -> None: ...


@dataclass(frozen=True)
class ModelSource:
    """A model that can be opened.

    Attributes:
        nbytes: memory of the open model.
        opening: returns a context manager that opens the model.
        card: entry of the model in /v1/models.
    """

    nbytes: int
    opening: Callable[[], AbstractContextManager[OpenModel]]
    card: Json


@dataclass
class _Entry:
    source: ModelSource
    opened: OpenModel | None = None
    block: AbstractContextManager[OpenModel] | None = None
    users: int = 0
    used: float = 0.0
    task: asyncio.Task[OpenModel] | None = None  # shared by all requests that wait for the model

    def taken(self) -> AbstractContextManager[OpenModel]:
        """Remove and return the context manager of an open model, so that no new request can use it."""
        assert self.block is not None
        block, self.block, self.opened = self.block, None, None
        return block


class Shelf:
    """The models besides the first one. Used in one event loop, except for `close`.

    Args:
        sources: models by name.
        most: maximum bytes of all open models together.
    """

    def __init__(self, sources: Mapping[str, ModelSource], most: int) -> None:
        self._entries = {name: _Entry(source) for name, source in sources.items()}
        self._most = most
        self._moving = asyncio.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def longest(self) -> int:
        """Maximum context length of the models, in tokens."""
        return max(int(entry.source.card["max_model_len"]) for entry in self._entries.values())

    def cards(self) -> list[Json]:
        """Return the entries of /v1/models."""
        return [entry.source.card | {"loaded": entry.opened is not None} for entry in self._entries.values()]

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[OpenModel]:
        """Keep a model open while the block runs, opening it if necessary.

        Raises:
            ApiError: there is no memory for it, or it cannot be opened.
        """
        entry = self._entries[name]
        entry.users += 1  # protects the model from being closed
        try:
            opened = entry.opened
            if opened is None:
                if entry.task is None:
                    entry.task = asyncio.create_task(self._open(name, entry))
                opened = await asyncio.shield(entry.task)
            yield opened
        finally:
            entry.users -= 1
            entry.used = monotonic()

    async def _open(self, name: str, entry: _Entry) -> OpenModel:
        try:
            async with self._moving:
                await self._make_room(name, entry.source.nbytes)
                block = entry.source.opening()
                entry.opened = await asyncio.to_thread(block.__enter__)
                entry.block = block
        except ApiError:
            raise
        except SsccError as error:
            _log.error("model %s cannot be opened: %s", name, logged(error))
            raise ModelErrors.NOT_OPENED(name=name) from None
        except Exception as error:
            log_exception(_log, f"model {name} cannot be opened", error)
            raise ModelErrors.NOT_OPENED(name=name) from None
        finally:
            entry.task = None
        _log.info("model %s is open, %s", name, format_bytes(entry.source.nbytes))
        return entry.opened

    async def _make_room(self, name: str, nbytes: int) -> None:
        """Close models that nobody uses, least recently used first, until there is room for `nbytes`."""
        if nbytes > self._most:
            raise ModelErrors.NO_ROOM(name=name)
        while sum(entry.source.nbytes for entry in self._entries.values() if entry.opened) + nbytes > self._most:
            idle = [entry for entry in self._entries.values() if entry.opened is not None and not entry.users]
            if not idle:
                raise ModelErrors.NO_ROOM(name=name)
            block = min(idle, key=lambda entry: entry.used).taken()  # before the await lets a request use it
            await asyncio.to_thread(block.__exit__, None, None, None)

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """End the requests of all open models; see `Engine.close`."""
        for entry in self._entries.values():
            if entry.opened is not None:
                entry.opened.engine.close(drain, timeout)

    def end(self) -> None:
        """Close all open models. Must be called after the last request."""
        for entry in self._entries.values():
            if entry.block is not None:
                entry.taken().__exit__(None, None, None)


@dataclass(frozen=True)
class AllEngines:
    """The engines of all models, for shutting down together."""

    first: Closing
    shelf: Shelf

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """See `Engine.close`."""
        self.first.close(drain, timeout)
        self.shelf.close(drain, timeout)


class ModelSwitch:
    """Middleware that passes requests to the application of the model that they name.

    Args:
        app: application of the first model, for requests that name no other model.
        shelf: the other models.
        workers: thread pools that parse large bodies.
        memory: memory of all bodies while they are read.
        most_values: maximum number of JSON values in a body; a larger one goes to the first model, which refuses it.
    """

    def __init__(self, app: ASGIApp, shelf: Shelf, workers: Workers, memory: BodyMemory, most_values: int) -> None:
        self._app, self._shelf, self._workers = app, shelf, workers
        self._memory, self._most_values = memory, most_values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "POST":
            await self._post(scope, receive, send)
        else:
            await self._get(scope, receive, send)

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("model", [""])[0]
        if path == "/v1/models":
            await self._app(scope, receive, _extended(send, self._shelf.cards()))
        elif path.startswith("/v1/models/") and (name := path.removeprefix("/v1/models/")) in self._shelf:
            (card,) = (card for card in self._shelf.cards() if card["id"] == name)
            await JSONResponse(card)(scope, receive, send)
        else:
            await self._passed(asked, scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._memory.hold() as grow:
                body = bytes(await whole_body(Request(scope, receive), grow))
                work = partial(_model_of, body, self._most_values)
                name = work() if len(body) <= SMALL else await self._workers.run(len(body), work)
        except ClientDisconnect:
            await Response(status_code=CLIENT_GONE)(scope, receive, send)
            return
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send)
            return
        read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        del body, work  # so that only the application keeps the body in memory

        async def replayed() -> Message:
            return read.pop() if read else await receive()

        await self._passed(name, scope, replayed, send)

    async def _passed(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        if name not in self._shelf:
            await self._app(scope, receive, send)
            return
        try:
            async with self._shelf.using(name) as opened:
                await opened.app(scope, receive, send)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send)


def _model_of(body: bytes, most_values: int) -> str:
    """Return the model that a body names; "" for none. Invalid bodies name none, so that the first model refuses
    them."""
    if more_values_than(most_values, body):
        return ""
    try:
        name = json.loads(body).get("model")
    except (ValueError, RecursionError, AttributeError):
        return ""
    return name if isinstance(name, str) else ""


def _extended(send: Send, cards: list[Json]) -> Send:
    """Return a `send` that adds entries to a JSON list of models, which must be sent as one piece."""
    start: list[Message] = []

    async def extend(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.append(message)
            return
        body = message.get("body", b"")
        if start[0]["status"] == 200 and body:
            answer = json.loads(body)
            answer["data"] += cards
            body = json.dumps(answer, separators=(",", ":")).encode()
        headers = [(name, value) for name, value in start[0]["headers"] if name != b"content-length"]
        await send({**start[0], "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({**message, "body": body})

    return extend
