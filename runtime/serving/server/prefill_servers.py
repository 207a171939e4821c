"""Servers that prefill for this one (`sscc serve --role prefill`): the choice among them, and what follows a failure.

A prompt goes to the server that has prefilled most of its beginning, unless others have much less to do, else to the
one with the least. One that fails is asked last for a while. Where none can prefill the prompt, the log says why each
could not, and the request ends with an error that names none of them; or the prompt is prefilled here, if that is what
the user has asked for.

A call of a server has one deadline, from connecting to the last byte of its answer. A timer then shuts the connection
down, so that a server that sends a byte a second gains nothing by it.
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
"""Bytes of an answer other than a slot that are read for its message."""

AVOID_SECONDS = 5.0
"""Seconds in which a server that has failed comes last."""

BUSY_SECONDS = 0.5
"""Seconds between two rounds over servers that were all busy."""

BUSY = ("queue_full", "busy")
"""Codes of refusals that pass."""

REMEMBERED = 1 << 16
"""Beginnings of prompts that are known of each server."""

AHEAD = 1
"""A server that has a prompt's beginning is asked while it has at most so many prompts more than another one."""

_TOKENS_AT_ONCE = 1 << 12  # which become text in some hundred microseconds, in which no other thread runs
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""So that a machine that is gone is missed after some seconds, however long a prefill may take."""


class PrefillServerErrors(ErrorKind):
    NOT_AN_ADDRESS = UsageError, "{url!r} is no address of a prefill server: it must be http://HOST:PORT"
    NOBODY_WAITS = PrefillError, "the request has ended before its prompt was prefilled"
    NO_SERVER = PrefillError, "none of {servers} prefill servers could take the prompt: this server's log says why"
    FAILED = PrefillError, "asking for a prefill has failed: this server's log says why"


class _Refused(Exception):
    """A server did not prefill a prompt; the message says why.

    Attributes:
        busy: whether it may later.
        failed: whether others are to be asked before it.
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
        """Return a connection whose socket the call can shut down from its first moment on. Raises OSError."""
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
    """Return a socket that is connected to the first address of a host that answers. Raises OSError."""
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
    """Return the seconds until a time of `perf_counter`. Raises TimeoutError where it has come."""
    left = until - perf_counter()
    if left <= 0:
        raise TimeoutError
    return left


class PrefillServers:
    """The servers that prefill for an engine.

    Args:
        urls: where each is.
        slots: the messages that are expected.
        key: that they ask for; None: none.
        timeout: seconds that one server may take for a prefill, with all that waits before it; at most a week.
        locally: prefill a prompt here that no server can prefill.

    Raises UsageError for an address that is none.
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
        """What is known of every server."""
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

    # -- one prompt

    def _work(self, call: _Call) -> None:
        try:
            outcome = self._prefill(call)
        except BaseException as error:  # whatever it is, somebody waits to hear of an end
            log_exception(_log, "asking for a prefill has failed", error)
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
        _log.warning("no prefill server could take a prompt of %d tokens (%s)", len(call.prompt), quoted(listed))
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
        """Return the slot that a server makes of a prompt, its bytes, and how many tokens it knew. Raises _Refused."""
        until = min(call.until, perf_counter() + self._timeout)
        try:
            with call.within(until):
                data, cached = self._answer(server, call, until)
        except _Refused:
            if perf_counter() >= until:  # its connection was shut down
                raise _Refused(_LATE) from None
            raise
        except (OSError, http.client.HTTPException, _Cancelled) as error:
            raise _Refused(_LATE if perf_counter() >= until else _words(error)) from None
        try:
            message = self._slots.read(data.data, "what it sent")
        except InputError as error:
            raise _Refused(str(error)) from None
        if message.tokens.key != call.prompt.key:
            raise _Refused("what it sent is the slot of another prompt")
        known = int(cached) if cached.isascii() and cached.isdecimal() and len(cached) < 10 else 0
        return message, data.nbytes, min(known, len(call.prompt))

    def _answer(self, server: _Server, call: _Call, until: float) -> tuple[Array, str]:
        """Return the bytes of a server's answer, and its header about tokens that it did not prefill again."""
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
        """The body of an answer, in memory whose size is bounded before. It is written there once, by the system."""
        size, most = response.length, self._slots.most(length)
        if size is None or size > most:
            raise _Refused(f"it sends {size} bytes, and no slot after {length} tokens has more than {most}")
        data = np.empty(size, np.uint8)
        rest = data.data
        while rest:
            count = response.readinto(rest)
            if not count:
                raise _Refused(f"it has ended with {len(rest)} of {size} bytes still to come")
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

    # -- which server

    def _keys(self, prompt: Excerpt) -> list[bytes]:
        """Of what a server may have of a prompt, the longest last; none where there is no choice."""
        if len(self._servers) == 1:
            return []
        return [key for _, key, _ in chunks_of(prompt, self._slots.prefill_chunk)]

    def _order(self, keys: Sequence[bytes]) -> Iterator[_Server]:
        """The servers in the order in which they are asked, each counted as asked when its turn comes."""
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
    """A prompt that servers are asked for.

    Attributes:
        until: the time of `perf_counter` after which nobody waits.
        patience: the time of `perf_counter` until which busy servers are asked again.
        cancelled: set when nobody waits any more.
    """

    def __init__(self, prompt: Excerpt, until: float, patience: float, done: Callable[[Outcome], None]) -> None:
        self.prompt, self.until, self.patience, self.done = prompt, until, patience, done
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def use(self, used: socket.socket | None) -> None:
        """Notes what is to be shut when the call is cancelled. Raises _Cancelled where it was."""
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
        """Give the call up: the server finds that the connection has ended, and cancels the prefill."""
        self.cancelled.set()
        self._shut()

    @contextmanager
    def within(self, until: float) -> Iterator[None]:
        """Shut down the connection of the block at a time of `perf_counter`, whatever it waits for."""
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
                    # The socket below TLS: the shutdown of TLS belongs to the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _common(server: _Server, keys: Sequence[bytes]) -> int:
    """How much of a prompt a server has."""
    return next((count for count in range(len(keys), 0, -1) if keys[count - 1] in server.known), 0)


def _listed(numbers: Array) -> str:
    """Integers as JSON lists them."""
    pieces = (numbers[begin : begin + _TOKENS_AT_ONCE] for begin in range(0, len(numbers), _TOKENS_AT_ONCE))
    return ",".join(",".join(map(str, piece.tolist())) for piece in pieces)


def _refusal(response: http.client.HTTPResponse) -> _Refused:
    """What an answer that is no slot says."""
    text = response.read(ERROR_BYTES)
    try:
        error = json.loads(text)["error"]
        reason, code = error["message"], error["code"]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        reason, code = "it is no server of slots", None
    failed = response.status >= 500 or response.status in (401, 404, 409)
    return _Refused(f"{response.status}, {quoted(reason)}", busy=code in BUSY, failed=failed)


_LATE = "it did not answer in time"


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return _LATE
    if isinstance(error, OSError):
        return quoted(error.strerror or error)
    return quoted(error) or type(error).__name__
