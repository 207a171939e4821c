"""Reading the bodies of requests: in bounded memory, and where they are large, off the event loop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from sscc.runtime.serving.server.api_errors import BUSY, INVALID_VALUE, ApiError, ApiKind, Http
from sscc.runtime.serving.server.request_fields import REFUSED
from sscc.runtime.serving.server.streaming import ClientGone, unless_gone
from sscc.runtime.serving.server.workers import SMALL, Workers

Model = TypeVar("Model", bound=BaseModel)

CLIENT_GONE = 499  # the status that nginx logs; nobody is there to read it
FREE_BYTES = 1 << 16
"""Bytes of each body that are free; the rest counts against what all bodies may take together."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


class BodyErrors(ApiKind):
    NOT_AN_OBJECT = "the body must be a JSON object, with content-type application/json"
    NOT_JSON = "the body is not JSON: {reason}"
    UNREADABLE = "there was an error parsing the body"
    TOO_MANY_VALUES = "the body has more than {most} values, which is the most that this server reads"
    TOO_MANY_AT_ONCE = "too many large bodies arrive at once: try again later", BUSY
    UNKNOWN_PARAMETER = "the parameter {param!r} is not known here", Http(code="unknown_parameter")
    MISSING_PARAMETER = "the parameter {param!r} is missing", Http(code="missing_required_parameter")
    WRONG_TYPE = "{param} is {value}: {reason}", Http(code="invalid_type")
    WRONG_VALUE = "{param} is {value}: {reason}", INVALID_VALUE


class BodyMemory:
    """What large bodies take together while they are read and parsed.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Gives a function to call with the size of a body so far; it raises ApiError where bodies take too much."""
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            more = max(size - FREE_BYTES, 0) - held
            if self._taken + more > self._most:
                raise BodyErrors.TOO_MANY_AT_ONCE()
            held += more
            self._taken += more

        try:
            yield grow
        finally:
            self._taken -= held


async def whole_body(request: Request, grow: Callable[[int], None]) -> bytearray:
    """Return the body of a request.

    Args:
        grow: of `BodyMemory.hold`.

    Raises:
        ApiError: bodies take too much memory.
        ClientDisconnect: the client has left.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece
        grow(len(data))
    return data


class BodyReader:
    """Makes models of bodies.

    Args:
        workers: parse what is large.
        memory: that bodies may take together.
        most_values: numbers, texts, lists and objects that a body may have.
    """

    def __init__(self, workers: Workers, memory: BodyMemory, most_values: int) -> None:
        self._workers = workers
        self._memory = memory
        self._most_values = most_values

    async def read(self, request: Request, kind: type[Model]) -> Model:
        """The model that a body describes. Raises ApiError, and ClientDisconnect."""
        with self._memory.hold() as grow:
            data = await whole_body(request, grow)
            if not _is_json(request.headers.get("content-type", "")):
                raise BodyErrors.NOT_AN_OBJECT()
            if len(data) <= SMALL:
                return parse(data, kind, self._most_values)
            work = self._workers.run(len(data), partial(parse, data, kind, self._most_values))
            return await unless_gone(request.receive, work)

    def route(self) -> type[APIRoute]:
        """A route whose endpoint `(body, request)` gets a body that this reader has read."""
        reader = self

        class Route(APIRoute):
            def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
                (parameter,) = self.dependant.body_params
                kind = cast(type[BaseModel], parameter.field_info.annotation)

                async def handle(request: Request) -> Response:
                    try:
                        body = await reader.read(request, kind)
                        response: Response = await self.endpoint(body, request)
                    except (ClientGone, ClientDisconnect):
                        return Response(status_code=CLIENT_GONE)
                    return response

                return handle

        return Route


def parse(data: bytes | bytearray, kind: type[Model], most_values: int) -> Model:
    """The model that a JSON text describes. Raises ApiError for the first thing that is wrong with it."""
    if more_values_than(most_values, data):
        raise BodyErrors.TOO_MANY_VALUES(most=most_values)
    try:
        value = json.loads(data or b"null")
    except json.JSONDecodeError as error:
        raise BodyErrors.NOT_JSON(reason=error.msg) from None
    except (ValueError, RecursionError):  # not UTF-8, a number of thousands of digits, nested beyond reason
        raise BodyErrors.UNREADABLE() from None
    if not isinstance(value, dict):
        raise BodyErrors.NOT_AN_OBJECT()
    return validated(value, kind)


def validated(value: dict[str, Any], kind: type[Model]) -> Model:
    """Return the model that an object describes. Raises ApiError for the first thing that is wrong with it."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise malformed(error) from None


def malformed(error: ValidationError) -> ApiError:
    """Return the error for the first thing that is wrong with a body."""
    first = error.errors(include_url=False)[0]
    fault = first["type"]
    place = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
    param = ".".join(place) or None
    if param is None:
        return BodyErrors.NOT_AN_OBJECT()
    if fault == "extra_forbidden":
        return BodyErrors.UNKNOWN_PARAMETER(param=param)
    if fault == "missing":
        return BodyErrors.MISSING_PARAMETER(param=param)
    value, context = _shown(first.get("input")), first.get("ctx", {})
    if fault == REFUSED:
        refusal: ApiKind = context["kind"]
        return refusal(param=param, value=value, **context["fields"])
    kind = BodyErrors.WRONG_TYPE if fault.endswith("_type") else BodyErrors.WRONG_VALUE
    return kind(param=param, value=value, reason=f"{first['msg'][:1].lower()}{first['msg'][1:]}")


def _shown(value: object) -> str:
    """Return a value of a client as an error shows it: one may be a thousand lists deep."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return ascii(value)


def more_values_than(most: int, data: bytes | bytearray) -> bool:
    """Return True if a JSON text has more values than `most`; commas alone show that most texts have fewer."""
    if _values(data) <= most:
        return False
    count, end = 0, 0
    for string in _STRING.finditer(data):
        count += _values(data[end : string.start()])
        end = string.end()
        if count > most:
            return True
    return count + _values(data[end:]) > most


def _values(data: bytes | bytearray) -> int:
    """What separates and opens values in a text that has no strings: at most one less than there are values."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
