"""Errors in the form of OpenAI's API: an HTTP status and `{"error": {"message", "type", "param", "code"}}`.

The server's modules declare their kinds in enums over `ApiKind`, whose members add the HTTP status and the OpenAI
fields. The `code` of an error is OpenAI's, or the code of its kind if OpenAI has none. Errors of the engine keep their
kinds (`as_api_error`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from sscc.ir.errors import ErrorKind, InternalError, RankError, SsccError, UsageError
from sscc.runtime.serving.engine import EngineClosed, PrefillError, QueueFull
from sscc.runtime.support.logs import log_exception, logged

_log = logging.getLogger("sscc.server")

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RETRY_SECONDS = "1"
_ANTHROPIC = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
NO_RETRY = {"x-should-retry": "false"}
"""Header that keeps OpenAI's client from repeating the request automatically."""


@dataclass(frozen=True)
class Http:
    """Representation of a kind in HTTP and in OpenAI's protocol.

    Attributes:
        status, headers: HTTP status and headers of the answer.
        type: OpenAI's class of the error.
        code: OpenAI's name of the error; None for the code of the kind.
    """

    status: int = 400
    type: str = INVALID_REQUEST
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


INVALID = Http()
INVALID_VALUE = Http(code="invalid_value")
UNAVAILABLE = Http(503, SERVER_ERROR, "unavailable")
BUSY = Http(503, SERVER_ERROR, "busy", {"retry-after": RETRY_SECONDS, "connection": "close"})
QUEUE_FULL = Http(429, "rate_limit_error", "queue_full", {"retry-after": RETRY_SECONDS})
ENGINE_ERROR = Http(500, SERVER_ERROR, "engine_error", NO_RETRY)


class ApiError(SsccError):
    """An error answer.

    Attributes:
        http: its representation in HTTP.
    """

    def __init__(
        self,
        message: object = "",
        *,
        kind: ErrorKind | None = None,
        fields: Mapping[str, Any] | None = None,
        excerpt: str = "",
        http: Http | None = None,
    ) -> None:
        super().__init__(message, kind=kind, fields=fields, excerpt=excerpt)
        self.http = http or (kind.http if isinstance(kind, ApiKind) else ENGINE_ERROR)

    @property
    def status_code(self) -> int:
        return self.http.status

    @property
    def code(self) -> str | None:
        """Name of the error, for programs."""
        return self.http.code or (self.kind.code if self.kind else None)

    @property
    def param(self) -> str | None:
        """Parameter of the request that caused the error."""
        param: str | None = self.fields.get("param")
        return param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.http.type, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> Response:
        """Return the answer to a request, in the form of the path's protocol."""
        body = anthropic_body(self) if path.startswith(_ANTHROPIC) else self.body()
        # In ASCII, because the message may repeat a lone surrogate that the client has sent.
        return Response(json.dumps(body), self.http.status, dict(self.http.headers), "application/json")


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """Return an error in the form of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(error.status_code, "invalid_request_error" if error.status_code < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


class ApiKind(ErrorKind):
    """Base of the enums of errors in answers. A member is a message, or `message, Http`; without `Http` the status is
    400.

    Attributes:
        http: its representation in HTTP.
    """

    def __init__(self, message: str, http: Http = INVALID) -> None:
        super().__init__(ApiError, message)
        self.http = http

    def __call__(self, *, excerpt: str = "", param: str | None = None, **fields: Any) -> ApiError:
        """Return an error of this kind.

        Args:
            param: parameter of the request that caused the error, also a field if the message contains {param}.
        """
        if "param" in self.field_names:
            fields["param"] = param
        error = super().__call__(excerpt=excerpt, **fields)
        assert isinstance(error, ApiError)
        if param is not None:
            error.fields["param"] = param
        return error


class ServerErrors(ApiKind):
    NO_SUCH_PATH = "there is no {method} {path} on this server", Http(404)
    WRONG_METHOD = "{path} does not accept {method}", Http(405)
    REFUSED = "{detail}"
    TIMED_OUT = (
        "the request has timed out after {seconds:g} s and {tokens} tokens",
        Http(504, "timeout_error", "timeout", NO_RETRY),
    )
    CLOSING = "the server is closing", UNAVAILABLE
    ENGINE_FAILED = "the engine failed while processing this request", ENGINE_ERROR
    ENGINE_GONE = "the engine has failed and accepts no requests", UNAVAILABLE
    RANK_GONE = "a rank of the program is gone, so the server accepts no requests", UNAVAILABLE
    INTERNAL = "internal error: see the server's log", Http(500, SERVER_ERROR, "internal_error")


def timed_out(seconds: float, tokens: int) -> ApiError:
    """Return the error of a request that has timed out."""
    return ServerErrors.TIMED_OUT(seconds=seconds, tokens=tokens)


def install_handlers(app: FastAPI) -> None:
    """Install handlers that give all errors of an application this form, FastAPI's own included."""
    app.add_exception_handler(SsccError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(Exception, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        kind = ServerErrors.NO_SUCH_PATH if error.status_code == 404 else ServerErrors.WRONG_METHOD
        return kind(method=request.method, path=request.url.path).response(request.url.path)
    return as_api_error(error).response(request.url.path)


def as_api_error(error: BaseException) -> ApiError:
    """Return the error for the client. Details that clients must not see are logged here."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, SsccError):
        return _from_engine(error)
    if isinstance(error, HTTPException):
        refused = ServerErrors.REFUSED(detail=str(error.detail))
        refused.http = Http(error.status_code, headers=error.headers or {})
        return refused
    log_exception(_log, f"an unexpected error in the server: {type(error).__name__}: {logged(error)}", error)
    return ServerErrors.INTERNAL()


def _from_engine(error: SsccError) -> ApiError:
    """Return an error of the engine as an answer. Reasons that may name machines are only logged."""
    if isinstance(error, RankError):
        _log.warning("a request ends because a rank is gone: %s", logged(error))
        return ServerErrors.RANK_GONE()
    if isinstance(error, EngineClosed):
        return ServerErrors.ENGINE_GONE() if error.fields else _placed(error, UNAVAILABLE)
    if isinstance(error, QueueFull):
        return _placed(error, QUEUE_FULL)
    if isinstance(error, PrefillError):
        return _placed(error, UNAVAILABLE)
    if isinstance(error, UsageError):
        return _placed(error, INVALID)
    return ServerErrors.ENGINE_FAILED() if isinstance(error, InternalError) else _placed(error, ENGINE_ERROR)


def _placed(error: SsccError, http: Http) -> ApiError:
    return ApiError(str(error), kind=error.kind, fields=error.fields, http=http)
