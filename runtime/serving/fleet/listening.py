"""Serving an ASGI application on a port within an event loop that is already running."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from sscc.ir.errors import UsageError
from sscc.runtime.serving.server.service import bind, config_of, no_address

FREE_SECONDS = 10.0
"""Time in seconds to wait for a previous gateway to close its port."""
_LOOK_SECONDS = 0.1
_BACKLOG = 2048


class Listening:
    """An application that is served on a port until `stop`."""

    def __init__(self, application: ASGIApp, bound: socket.socket, drain_seconds: float) -> None:
        self._server = _Server(config_of(application, int(drain_seconds)))
        self._task = asyncio.ensure_future(self._server.serve([bound]))

    @classmethod
    async def start(cls, application: ASGIApp, host: str, port: int, drain_seconds: float) -> Listening:
        """Start to serve, and return when clients can connect.

        Raises UsageError if the address is not available.
        """
        until = time.monotonic() + FREE_SECONDS
        while True:
            try:
                bound = _listening(host, port)
                break
            except UsageError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_LOOK_SECONDS)
        return cls(application, bound, drain_seconds)

    @property
    def ended(self) -> bool:
        """True if the server has ended."""
        return self._task.done()

    async def stop(self) -> None:
        """Close the port, and return when all answers have been sent or `drain_seconds` have passed."""
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)


class _Server(uvicorn.Server):
    """Uvicorn's server without signal handlers, which belong to the process's owner."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UsageError if the address is not available."""
    bound = bind(host, port)
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise no_address(host, port, error) from None
    return bound
