"""Reading of request bodies: in bounded memory, and outside the event loop if they are large."""

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

CLIENT_GONE = 499  # nginx's status for a client that has disconnected; nobody receives it
FREE_BYTES = 1 << 16
"""Bytes of each body that are not counted against the limit for all bodies."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


class BodyErrors(ApiKind):
    NOT_AN_OBJECT = "the body must be a JSON object, with content-type application/json"
    NOT_JSON = "the body is not JSON: {reason}"
    UNREADABLE = "the body cannot be parsed"
    TOO_MANY_VALUES = "the body has more than {most} values, which is the limit of this server"
    TOO_MANY_AT_ONCE = "too many large bodies are arriving at once: try again later", BUSY
    UNKNOWN_PARAMETER = "unknown parameter {param!r}", Http(code="unknown_parameter")
    MISSING_PARAMETER = "the parameter {param!r} is missing", Http(code="missing_required_parameter")
    WRONG_TYPE = "{param} is {value}: {reason}", Http(code="invalid_type")
    WRONG_VALUE = "{param} is {value}: {reason}", INVALID_VALUE


class BodyMemory:
    """Memory of large bodies while they are received and parsed.

    Args:
        most: maximum bytes of all bodies together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the size of the body so far. It raises ApiError if all bodies together are too
        large."""
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
        grow: function from `BodyMemory.hold`.

    Raises:
        ApiError: the bodies take too much memory.
        ClientDisconnect: the client has disconnected.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece
        grow(len(data))
    return data


class BodyReader:
    """Reader and validator of bodies.

    Args:
        workers: thread pools that parse large bodies.
        memory: memory of all bodies.
        most_values: maximum number of JSON values in a body.
    """

    def __init__(self, workers: Workers, memory: BodyMemory, most_values: int) -> None:
        self._workers = workers
        self._memory = memory
        self._most_values = most_values

    async def read(self, request: Request, kind: type[Model]) -> Model:
        """Read and validate the body of a request. Raises ApiError, and ClientDisconnect."""
        with self._memory.hold() as grow:
            data = await whole_body(request, grow)
            if not _is_json(request.headers.get("content-type", "")):
                raise BodyErrors.NOT_AN_OBJECT()
            if len(data) <= SMALL:
                return parse(data, kind, self._most_values)
            work = self._workers.run(len(data), partial(parse, data, kind, self._most_values))
            return await unless_gone(request.receive, work)

    def route(self) -> type[APIRoute]:
        """Return a class of routes whose endpoints `(body, request)` receive a body from this reader."""
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
    """Return the model of a JSON text. Raises ApiError for the first error in it."""
    if more_values_than(most_values, data):
        raise BodyErrors.TOO_MANY_VALUES(most=most_values)
    try:
        value = json.loads(data or b"null")
    except json.JSONDecodeError as error:
        raise BodyErrors.NOT_JSON(reason=error.msg) from None
    except (ValueError, RecursionError):  # not UTF-8, a number with thousands of digits, or nested too deep
        raise BodyErrors.UNREADABLE() from None
    if not isinstance(value, dict):
        raise BodyErrors.NOT_AN_OBJECT()
    return validated(value, kind)


def validated(value: dict[str, Any], kind: type[Model]) -> Model:
    """Return the model of a JSON object. Raises ApiError for the first error in it."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise malformed(error) from None


def malformed(error: ValidationError) -> ApiError:
    """Return the error for the first of pydantic's errors."""
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
    """Return a value from a client for an error message. Containers are summarized, because they may be huge."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return ascii(value)


def more_values_than(most: int, data: bytes | bytearray) -> bool:
    """Return True if a JSON text has more than `most` values. For most texts the count of commas and brackets
    suffices."""
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
    """Return the number of commas and opening brackets: a bound on the values minus one in a text without strings."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
