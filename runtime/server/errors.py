"""Errors as OpenAI's API words them: a status and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from sscc.ir.errors import RankError, SsccError, UsageError
from sscc.runtime.engine import EngineClosed, PrefillError, QueueFull

_log = logging.getLogger("sscc.server")

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RETRY_SECONDS = "1"
_SHOWN = 200  # characters of a person's own value that an error repeats


class ApiError(HTTPException):
    """An answer other than 200. An HTTPException, as FastAPI lets nothing else through while it reads a body.

    Attributes:
        status_code, headers: of HTTP.
        detail: what is wrong, for a person.
        kind: OpenAI's `type`.
        param: the parameter of the request that it is about, if any.
        code: for programs, if any.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.kind, self.param, self.code = kind, param, code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.detail, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # In ASCII: what a client sent, half a character even, may be repeated in it.
        return Response(json.dumps(self.body()), self.status_code, self.headers, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request cannot be honoured as it is."""
    return ApiError(400, message, param=param, code=code)


def engine_failed(message: str) -> ApiError:
    """500: not the client's fault, and the same request may well fail again."""
    return ApiError(500, message, kind=SERVER_ERROR, code="engine_error", headers={"x-should-retry": "false"})


def timed_out(seconds: float, tokens: int) -> ApiError:
    """504: the request took longer than it may. Clients are told not to send it again by themselves."""
    message = f"the request was not finished after {seconds:g} s, with {tokens} tokens made"
    return ApiError(504, message, kind="timeout_error", code="timeout", headers={"x-should-retry": "false"})


def unavailable(message: str = "the server is closing") -> ApiError:
    """503: no requests are taken any more."""
    return ApiError(503, message, kind=SERVER_ERROR, code="unavailable")


def busy(message: str) -> ApiError:
    """503: not now, but soon."""
    headers = {"retry-after": RETRY_SECONDS, "connection": "close"}
    return ApiError(503, message, kind=SERVER_ERROR, code="busy", headers=headers)


def queue_full(message: str) -> ApiError:
    """429: as many requests wait as may."""
    headers = {"retry-after": RETRY_SECONDS}
    return ApiError(429, message, kind="rate_limit_error", code="queue_full", headers=headers)


def from_engine(error: SsccError) -> ApiError:
    """What a refusal by the engine is in HTTP."""
    if isinstance(error, QueueFull):
        return queue_full(str(error))
    if isinstance(error, EngineClosed | PrefillError | RankError):
        return unavailable(str(error))
    if isinstance(error, UsageError):
        return invalid(str(error))
    return engine_failed(str(error))


def install_handlers(app: FastAPI) -> None:
    """Makes the app word every error so, its own and those of FastAPI."""
    app.add_exception_handler(SsccError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(Exception, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    api_error = as_api_error(error)
    if api_error.status_code in (404, 405) and not isinstance(error, ApiError):
        api_error.detail = f"there is no {request.method} {request.url.path} here"
    return api_error.response()


def as_api_error(error: BaseException) -> ApiError:
    """The error that a client is told of; what nobody expected is logged here and not told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SsccError):
        return from_engine(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), headers=error.headers)
    _log.error("an unexpected error in the server: %s: %s", type(error).__name__, error, exc_info=error)
    return ApiError(500, "an error inside the server, which has logged it", kind=SERVER_ERROR, code="internal_error")


def malformed(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first = error.errors(include_url=False)[0]
    kind, value = first["type"], first.get("input")
    place = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
    param = ".".join(place) or None
    if param is None:
        return invalid("the body must be a JSON object, with content-type application/json")
    if kind == "extra_forbidden":
        return invalid(f"the parameter {param!r} is not known here", param, "unknown_parameter")
    if kind == "missing":
        return invalid(f"the parameter {param!r} is missing", param, "missing_required_parameter")
    message = f"{param} is {_shown(value)}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return invalid(message, param, "invalid_type" if kind.endswith("_type") else "invalid_value")


def _shown(value: object) -> str:
    """A value of a client's in few characters: one may be a million characters long, or a thousand lists deep."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = ascii(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + ".."
