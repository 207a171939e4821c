"""Serving on a port until a signal arrives, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from sscc.ir.errors import ErrorKind, SsccError, UsageError, quoted
from sscc.runtime.serving.server.connections import Connection
from sscc.runtime.serving.server.freed_memory import keep_little
from sscc.runtime.serving.server.model_pool import Closing

_log = logging.getLogger("sscc.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AFTER_DRAIN_SECONDS = 5.0
"""Time in seconds to send the rest of the answers after the engine has ended their requests."""

_SWITCH_SECONDS = 0.001
"""Switch interval of Python threads in seconds. The event loop waits for the GIL several times per answer, so the
default of 5 ms would add up."""


class ListeningErrors(ErrorKind):
    NO_SUCH_HOST = UsageError, "--host {host!r} is not an address of this machine: {cause}"
    PORT_IN_USE = UsageError, "port {port} of {host} is in use: choose another one with --port (0 for any free port)"
    CERTIFICATE = UsageError, "the certificate {path} cannot be used: {cause}"
    CANNOT_LISTEN = UsageError, "cannot listen on port {port} of {host}: {cause}"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet. Port 0 selects a free port.

    Raises UsageError if the address is not an address of this machine, or is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ListeningErrors.NO_SUCH_HOST(host=host, cause=quoted(error)) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        bound.close()
        raise no_address(host, port, error) from None
    return bound


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


@dataclass(frozen=True)
class Tls:
    """TLS certificate of a server.

    Attributes:
        certificate: file with the certificate chain.
        key: file with the private key; None if it is in `certificate`.
        password: password of the key; None if it is not encrypted.
    """

    certificate: Path
    key: Path | None = None
    password: str | None = None


def config_of(app: ASGIApp, graceful_seconds: int, tls: Tls | None = None) -> uvicorn.Config:
    """Return uvicorn's configuration for the application. Connections are cut `graceful_seconds` after the shutdown
    begins.

    Raises UsageError for an invalid certificate.
    """
    secure = {}
    if tls is not None:
        secure = {
            "ssl_certfile": str(tls.certificate),
            "ssl_keyfile": None if tls.key is None else str(tls.key),
            "ssl_keyfile_password": tls.password,
        }
    config = _config(app, graceful_seconds, secure)
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        if tls is None:
            raise
        raise ListeningErrors.CERTIFICATE(path=tls.certificate, cause=quoted(error)) from None
    return config


def _config(app: ASGIApp, graceful_seconds: int, secure: dict[str, Any]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=graceful_seconds,
        **secure,
    )


def serve(
    app: FastAPI,
    engine: Closing,
    bound: socket.socket,
    drain_seconds: float,
    when_ready: Callable[[], None],
    tls: Tls | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, and return when every request has ended.

    The first signal closes the port and gives requests `drain_seconds` to end. They are cancelled after that time, or
    at the second signal. Raises UsageError if another process has started to listen on the address.
    """
    keep_little()
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # imported objects are never garbage, and a traversal of all of them takes longer than a decode step
    config = config_of(app, int(drain_seconds + _AFTER_DRAIN_SECONDS), tls)
    server = _EngineServer(config, app, engine, drain_seconds, when_ready)
    try:
        asyncio.run(server.serve([bound]))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        host, port = bound.getsockname()[:2]
        raise no_address(host, port, error) from None
    finally:
        gc.unfreeze()  # the application is among the frozen objects, and refers to the engine


class _EngineServer(uvicorn.Server):
    """Uvicorn's server, which also shuts down the engine, and returns normally after a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        engine: Closing,
        drain_seconds: float,
        when_ready: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._app = app
        self._engine = engine
        self._drain_seconds = drain_seconds
        self._when_ready = when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._when_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.should_exit
        self.should_exit = self._app.state.closing = True
        # `close` blocks until requests have ended, while this thread must send their answers. A signal handler must not
        # log either, because the interrupted code may hold a lock of the logging module.
        threading.Thread(target=self._end, args=(again, sig == signal.SIGINT), daemon=True).start()

    def _end(self, again: bool, by_keyboard: bool) -> None:
        seconds = 0.0 if again else self._drain_seconds
        if count := self._app.state.traffic.open:
            requests = f"{count} request{'s' * (count > 1)}"
            pronoun = "them" if count > 1 else "it"
            advice = f"press Ctrl-C again to cancel {pronoun}" if by_keyboard else f"a second signal cancels {pronoun}"
            _log.warning("%s", f"waiting for {requests}; {advice}" if seconds else f"cancelling {requests}")
        self._engine.close(drain=seconds > 0, timeout=seconds or None)


def no_address(host: str, port: int, error: Exception) -> SsccError:
    """Return the error for an address on which the server cannot listen."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return ListeningErrors.PORT_IN_USE(host=host, port=port)
    reason = error.strerror if isinstance(error, OSError) else error
    return ListeningErrors.CANNOT_LISTEN(host=host, port=port, cause=quoted(reason))
