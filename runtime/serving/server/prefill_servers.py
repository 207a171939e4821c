"""Client of prefill servers (`sscc serve --role prefill`): choice of a server, and handling of failures.

A prompt goes to the server that has prefilled the longest prefix of it, unless that server is much busier than others;
otherwise to the least busy one. A server that has failed is asked last for a while. If no server can prefill the
prompt, the log says why each of them could not, and the request ends with an error that names none of them; or the
prompt is prefilled here, if the user has chosen that.

A request to a server has one deadline, from connecting to the last byte of the answer. At the deadline a timer shuts
the connection down, so that a server that sends one byte a second cannot hold a request.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from sscc.ir.errors import ErrorKind, InputError, UsageError, quoted
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.serving.engine import Outcome, PrefillError, Received
from sscc.runtime.serving.server.prefill_endpoint import CACHED_TOKENS, PATH
from sscc.runtime.session.chunk_message import chunks_of
from sscc.runtime.session.excerpt import Excerpt
from sscc.runtime.session.slot_message import SlotFormat, SlotMessage
from sscc.runtime.support.logs import log_exception
from sscc.runtime.support.serving_options import MOST_SECONDS

_log = logging.getLogger("sscc.server")

CONNECT_SECONDS = 5.0
ERROR_BYTES = 1 << 16
"""Maximum bytes of an error answer that are read for its message."""

AVOID_SECONDS = 5.0
"""Time in seconds during which a server that has failed is asked last."""

BUSY_SECONDS = 0.5
"""Pause in seconds between two attempts when all servers were busy."""

BUSY = ("queue_full", "busy")
"""Error codes of temporary refusals."""

REMEMBERED = 1 << 16
"""Number of chunk keys remembered for each server."""

AHEAD = 1
"""A server that has a prefix of the prompt is preferred as long as it has at most this many prompts more than the least
busy one."""

_TOKENS_AT_ONCE = 1 << 12  # converting these to text takes some hundred microseconds, during which the GIL is held
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Detects within seconds that a machine is gone, however long a prefill may take."""


class PrefillServerErrors(ErrorKind):
    NOT_AN_ADDRESS = UsageError, "{url!r} is not an address of a prefill server: it must be http://HOST:PORT"
    NOBODY_WAITS = PrefillError, "the request ended before its prompt was prefilled"
    NO_SERVER = PrefillError, "none of {servers} prefill servers could prefill the prompt: see the log of this server"
    FAILED = PrefillError, "the remote prefill has failed: see the log of this server"


class _Refused(Exception):
    """A server did not prefill a prompt, for the reason in the message.

    Attributes:
        busy: True if the refusal is temporary.
        failed: True if the server is avoided for a while.
    """

    def __init__(self, reason: str, *, busy: bool = False, failed: bool = True) -> None:
        super().__init__(reason)
        self.busy, self.failed = busy, failed


@dataclass(eq=False)
class _Server:
    url: str
    in_flight: int = 0
    prefilled: int = 0
    failures: int = 0
    last_error: str = ""
    avoided_until: float = -math.inf
    known: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.username:
            raise PrefillServerErrors.NOT_AN_ADDRESS(url=self.url)
        self.secure, self.host, self.port, self.path = parts.scheme == "https", parts.hostname, port, parts.path

    def connect(self, call: _Call, until: float) -> http.client.HTTPConnection:
        """Return a connection whose socket the call can shut down at any time. Raises OSError."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port)
        try:
            connection.sock = _connected(self.host, connection.port, until)
            call.use(connection.sock)
            if self.secure:
                context = ssl.create_default_context()
                secured = context.wrap_socket(
                    connection.sock, server_hostname=self.host, do_handshake_on_connect=False
                )
                connection.sock = secured
                call.use(secured)
                secured.do_handshake()
        except BaseException:
            connection.close()
            raise
        return connection


def _connected(host: str, port: int, until: float) -> socket.socket:
    """Return a socket connected to the first address of a host that accepts. Raises OSError."""
    error: OSError = TimeoutError()
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = _left(until)
        candidate = socket.socket(family, kind, protocol)
        try:
            candidate.settimeout(min(CONNECT_SECONDS, left))
            candidate.connect(address)
            candidate.settimeout(_left(until))
            return candidate
        except OSError as refused:
            candidate.close()
            error = refused
    raise error


def _left(until: float) -> float:
    """Return the seconds left until a time of `perf_counter`. Raises TimeoutError if there are none."""
    left = until - perf_counter()
    if left <= 0:
        raise TimeoutError
    return left


class PrefillServers:
    """Remote prefill of an engine, by servers.

    Args:
        urls: addresses of the servers.
        slots: format of the messages.
        key: API key of the servers; None for none.
        timeout: seconds for a prefill by one server, its queue included; at most a week.
        locally: True to prefill prompts here that no server can prefill.

    Raises UsageError for an invalid address.
    """

    def __init__(
        self,
        urls: Sequence[str],
        slots: SlotFormat,
        *,
        key: str | None = None,
        timeout: float = MOST_SECONDS,
        locally: bool = False,
    ) -> None:
        self._servers = [_Server(url.rstrip("/")) for url in urls]
        self._slots, self._key = slots, key
        self._timeout, self._locally = min(timeout, MOST_SECONDS), locally
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()

    def start(self, prompt: Excerpt, deadline: float, done: Callable[[Outcome], None]) -> Callable[[], None]:
        call = _Call(prompt, deadline, min(deadline, perf_counter() + self._timeout), done)
        with self._lock:
            self._calls.add(call)
        threading.Thread(target=self._work, args=(call,), name="sscc-prefill", daemon=True).start()
        return call.cancel

    def close(self) -> None:
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def states(self) -> list[dict[str, Any]]:
        """Return the state of every server."""
        with self._lock:
            return [
                {
                    "url": server.url,
                    "in_flight": server.in_flight,
                    "prefilled": server.prefilled,
                    "failures": server.failures,
                    "last_error": server.last_error or None,
                }
                for server in self._servers
            ]

    # -- request for one prompt

    def _work(self, call: _Call) -> None:
        try:
            outcome = self._prefill(call)
        except BaseException as error:  # the outcome must be delivered in any case, because requests wait for it
            log_exception(_log, "a remote prefill has failed", error)
            outcome = PrefillServerErrors.FAILED()
        finally:
            with self._lock:
                self._calls.discard(call)
        call.done(outcome)

    def _prefill(self, call: _Call) -> Outcome:
        keys = self._keys(call.prompt)
        while True:
            reasons: dict[str, str] = {}
            busy = False
            for server in self._order(keys):
                try:
                    return self._ask(server, call, keys)
                except _Refused as refused:
                    if call.cancelled.is_set():
                        return PrefillServerErrors.NOBODY_WAITS()
                    reasons[server.url] = str(refused)
                    busy = busy or refused.busy
            left = call.patience - perf_counter()
            if not busy or left < BUSY_SECONDS or call.cancelled.wait(BUSY_SECONDS):
                break
        listed = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
        _log.warning("no prefill server could prefill a prompt of %d tokens (%s)", len(call.prompt), quoted(listed))
        return None if self._locally else PrefillServerErrors.NO_SERVER(servers=len(self._servers))

    def _ask(self, server: _Server, call: _Call, keys: Sequence[bytes]) -> Received:
        try:
            message, nbytes, cached = self._fetch(server, call)
        except _Refused as refused:
            with self._lock:
                if refused.failed and not call.cancelled.is_set():
                    server.failures += 1
                    server.last_error = str(refused)
                    server.avoided_until = perf_counter() + AVOID_SECONDS
            raise
        finally:
            with self._lock:
                server.in_flight -= 1
        with self._lock:
            server.prefilled += 1
            server.avoided_until = -math.inf
            for key in reversed(keys):
                server.known[key] = None
                server.known.move_to_end(key)
            while len(server.known) > REMEMBERED:
                server.known.popitem(last=False)
        return Received(message, nbytes, cached)

    def _fetch(self, server: _Server, call: _Call) -> tuple[SlotMessage, int, int]:
        """Return a prompt's slot from a server, its bytes, and the number of tokens in the server's cache. Raises
        _Refused."""
        until = min(call.until, perf_counter() + self._timeout)
        try:
            with call.within(until):
                data, cached = self._answer(server, call, until)
        except _Refused:
            if perf_counter() >= until:  # the timer has shut the connection down
                raise _Refused(_LATE) from None
            raise
        except (OSError, http.client.HTTPException, _Cancelled) as error:
            raise _Refused(_LATE if perf_counter() >= until else _words(error)) from None
        try:
            message = self._slots.read(data.data, "the answer")
        except InputError as error:
            raise _Refused(str(error)) from None
        if message.tokens.key != call.prompt.key:
            raise _Refused("the answer is the slot of another prompt")
        known = int(cached) if cached.isascii() and cached.isdecimal() and len(cached) < 10 else 0
        return message, data.nbytes, min(known, len(call.prompt))

    def _answer(self, server: _Server, call: _Call, until: float) -> tuple[Array, str]:
        """Return the body of a server's answer, and its header with the number of cached tokens."""
        connection = server.connect(call, until)
        try:
            connection.request("POST", f"{server.path}{PATH}", self._body(call.prompt, _left(until)), self._headers())
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise _refusal(response)
                return self._received(response, len(call.prompt)), response.getheader(CACHED_TOKENS) or "0"
        finally:
            call.use(None)
            connection.close()

    def _received(self, response: http.client.HTTPResponse, length: int) -> Array:
        """Receive the body of an answer into memory of its announced size, which is checked first."""
        size, most = response.length, self._slots.most(length)
        if size is None or size > most:
            raise _Refused(f"the answer has {size} bytes, but a slot after {length} tokens has at most {most}")
        data = np.empty(size, np.uint8)
        rest = data.data
        while rest:
            count = response.readinto(rest)
            if not count:
                raise _Refused(f"the answer ended {len(rest)} bytes before its end at {size}")
            rest = rest[count:]
        return data

    def _body(self, prompt: Excerpt, seconds: float) -> bytes:
        identity = self._slots.identity
        facts: dict[str, Any] = {"program": identity.program, "weights": identity.weights, "timeout": seconds}
        lists = {"prompt": prompt.tokens} | ({"positions": prompt.positions} if prompt.left_out else {})
        numbers = "".join(f', "{name}": [{_listed(array)}]' for name, array in lists.items())
        return f"{json.dumps(facts)[:-1]}{numbers}}}".encode()

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "connection": "close"}
        return headers if self._key is None else headers | {"authorization": f"Bearer {self._key}"}

    # -- choice of the server

    def _keys(self, prompt: Excerpt) -> list[bytes]:
        """Return the keys of the prompt's prefixes of whole chunks, longest last; none if there is only one server."""
        if len(self._servers) == 1:
            return []
        return [key for _, key, _ in chunks_of(prompt, self._slots.prefill_chunk)]

    def _order(self, keys: Sequence[bytes]) -> Iterator[_Server]:
        """Yield the servers in the order in which to ask them. Each is counted as busy when it is yielded."""
        left = list(self._servers)
        while left:
            with self._lock:
                now = perf_counter()
                up = [server for server in left if server.avoided_until <= now] or left
                least = min(server.in_flight for server in up)
                free = [server for server in up if server.in_flight <= least + AHEAD]
                best = max(free, key=lambda server: (_common(server, keys), -server.in_flight, -server.prefilled))
                best.in_flight += 1
            left.remove(best)
            yield best


class _Cancelled(Exception):
    pass


class _Call:
    """A remote prefill of one prompt.

    Attributes:
        until: time of `perf_counter` after which nobody waits any more.
        patience: time of `perf_counter` until which busy servers are asked again.
        cancelled: set when nobody waits any more.
    """

    def __init__(self, prompt: Excerpt, until: float, patience: float, done: Callable[[Outcome], None]) -> None:
        self.prompt, self.until, self.patience, self.done = prompt, until, patience, done
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def use(self, used: socket.socket | None) -> None:
        """Set the socket to shut down on cancellation. Raises _Cancelled if the call has been cancelled already."""
        with self._lock:
            self._socket = used
        if used is None:
            return
        if self.cancelled.is_set():
            raise _Cancelled
        used.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                used.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def cancel(self) -> None:
        """Give up: the server notices the closed connection, and cancels the prefill."""
        self.cancelled.set()
        self._shut()

    @contextmanager
    def within(self, until: float) -> Iterator[None]:
        """Shut the connection down at a time of `perf_counter`, whatever the block is waiting for."""
        timer = threading.Timer(_left(until), self._shut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _shut(self) -> None:
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    # On the socket below TLS, because TLS's own shutdown must be called by the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _common(server: _Server, keys: Sequence[bytes]) -> int:
    """Return the number of chunks of a prompt that a server has prefilled."""
    return next((count for count in range(len(keys), 0, -1) if keys[count - 1] in server.known), 0)


def _listed(numbers: Array) -> str:
    """Return integers as the elements of a JSON array."""
    pieces = (numbers[begin : begin + _TOKENS_AT_ONCE] for begin in range(0, len(numbers), _TOKENS_AT_ONCE))
    return ",".join(",".join(map(str, piece.tolist())) for piece in pieces)


def _refusal(response: http.client.HTTPResponse) -> _Refused:
    """Return the reason in an error answer."""
    text = response.read(ERROR_BYTES)
    try:
        error = json.loads(text)["error"]
        reason, code = error["message"], error["code"]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        reason, code = "it is not a prefill server", None
    failed = response.status >= 500 or response.status in (401, 404, 409)
    return _Refused(f"{response.status}, {quoted(reason)}", busy=code in BUSY, failed=failed)


_LATE = "no answer in time"


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return _LATE
    if isinstance(error, OSError):
        return quoted(error.strerror or error)
    return quoted(error) or type(error).__name__
