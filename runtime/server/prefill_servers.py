"""Servers that prefill for this one (`sscc serve --role prefill`): which one is asked, and what is done when one fails.

A prompt goes to the server that has prefilled most of its beginning, unless others have much less to do, else to the
one with the least. One that fails is asked last for a while. Where none can prefill the prompt, the request ends with
an error that names each and why, or the prompt is prefilled here, if that is what the user has asked for.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from sscc.ir.errors import InputError, UsageError, quoted
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.engine import Outcome, PrefillError, Received
from sscc.runtime.engine.prefixes import chunk_keys
from sscc.runtime.excerpt import Excerpt
from sscc.runtime.server.slots import CACHED_TOKENS, PATH
from sscc.runtime.slot_message import SlotFormat, SlotMessage

CONNECT_SECONDS = 5.0
ERROR_BYTES = 1 << 16
"""Of an answer that is no slot, which are read for what it says."""

AVOID_SECONDS = 5.0
"""In which a server that has failed is asked after all others."""

BUSY_SECONDS = 0.5
"""After which servers that all had too much to do are asked again."""

BUSY = ("queue_full", "busy")
"""Codes of refusals that pass."""

REMEMBERED = 1 << 16
"""Beginnings of prompts that are known of each server."""

AHEAD = 1
"""A server that has a prompt's beginning is asked while it has at most so many prompts more than another one."""

_TOKENS_AT_ONCE = 1 << 12  # which become text in some hundred microseconds, in which no other thread runs
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""So that a machine that is gone is missed after some seconds, however long a prefill may take."""


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
            raise UsageError(f"{self.url!r} is no address of a prefill server: it must be http://HOST:PORT")
        self.secure, self.host, self.port, self.path = parts.scheme == "https", parts.hostname, port, parts.path

    def connection(self) -> http.client.HTTPConnection:
        if self.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=CONNECT_SECONDS, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_SECONDS)


class PrefillServers:
    """The servers that prefill for an engine.

    Args:
        urls: where each is.
        slots: the messages that are expected.
        chunk: tokens of which servers may have a prompt's beginning; None where they only have whole prompts.
        key: that they ask for; None: none.
        timeout: seconds that a prefill may take, with all that waits before it.
        locally: whether a prompt that no server can prefill is prefilled here.

    Raises UsageError for an address that is none.
    """

    def __init__(
        self,
        urls: Sequence[str],
        slots: SlotFormat,
        *,
        chunk: int | None = None,
        key: str | None = None,
        timeout: float = math.inf,
        locally: bool = False,
    ) -> None:
        self._servers = [_Server(url.rstrip("/")) for url in urls]
        self._slots, self._chunk, self._key = slots, chunk, key
        self._timeout, self._locally = timeout, locally
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()

    def start(self, prompt: Excerpt, deadline: float, done: Callable[[Outcome], None]) -> Callable[[], None]:
        until = min(deadline, perf_counter() + self._timeout)
        call = _Call(prompt, until, done)
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
            outcome = PrefillError(f"asking for a prefill has failed: {type(error).__name__}: {quoted(error)}")
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
                        return PrefillError("nobody waits for the prompt any more")
                    reasons[server.url] = str(refused)
                    busy = busy or refused.busy
            left = call.until - perf_counter()
            if not busy or left < BUSY_SECONDS or call.cancelled.wait(BUSY_SECONDS):
                break
        if self._locally:
            return None
        listed = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
        return PrefillError(f"no prefill server could take the prompt ({listed})")

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
        """What a server makes of a prompt, its bytes, and how many tokens it knew. Raises _Refused."""
        connection = server.connection()
        try:
            connection.connect()
            call.use(connection.sock)
            connection.sock.settimeout(self._patience(call))
            connection.request("POST", f"{server.path}{PATH}", self._body(call), self._headers())
            with connection.getresponse() as response:
                if response.status != http.client.OK:
                    raise _refusal(response)
                data = self._received(response, len(call.prompt))
                cached = response.getheader(CACHED_TOKENS, "0")
        except (OSError, http.client.HTTPException, _Cancelled) as error:
            raise _Refused(_words(error)) from None
        finally:
            call.use(None)
            connection.close()
        try:
            message = self._slots.read(data.data, "what it sent")
        except InputError as error:
            raise _Refused(str(error)) from None
        if message.tokens.key != call.prompt.key:
            raise _Refused("what it sent is the slot of another prompt")
        known = int(cached) if cached.isascii() and cached.isdecimal() and len(cached) < 10 else 0
        return message, data.nbytes, min(known, len(call.prompt))

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

    def _patience(self, call: _Call) -> float | None:
        left = call.until - perf_counter()
        if left <= 0:
            raise TimeoutError
        return None if left == math.inf else left

    def _body(self, call: _Call) -> bytes:
        identity, left = self._slots.identity, call.until - perf_counter()
        facts: dict[str, Any] = {"program": identity.program, "weights": identity.weights}
        if left < math.inf:
            facts["timeout"] = max(left, 0.001)
        lists = {"prompt": call.prompt.tokens} | ({"positions": call.prompt.positions} if call.prompt.left_out else {})
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
        return list(chunk_keys(prompt, self._chunk or len(prompt)))

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
        cancelled: whether nobody waits any more.
    """

    def __init__(self, prompt: Excerpt, until: float, done: Callable[[Outcome], None]) -> None:
        self.prompt, self.until, self.done = prompt, until, done
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
        """Gives the call up: the server finds that the connection has ended, and cancels the prefill."""
        self.cancelled.set()
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


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


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError):
        return quoted(error.strerror or error)
    return quoted(error) or type(error).__name__
