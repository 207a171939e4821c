"""Protection of a local server against web pages: allowed host names and origins.

A page of a foreign site runs in a browser on this machine, so it can send requests to a server on a loopback address.
Two headers reveal it. `Host` is the name in the page's address, which may be a name of the attacker's site that
resolves to 127.0.0.1 (DNS rebinding). `Origin` is the origin of a page that sends requests to another server than its
own. Programs other than browsers send no `Origin`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers

from sscc.runtime.serving.server.api_errors import ApiError, ApiKind, Http
from sscc.runtime.support.host_names import ANY_HOST, HostName

_LOCAL_NAME = "localhost"
_ORIGIN = re.compile(r"(https?)://([^/]+)", re.IGNORECASE | re.ASCII)
_PORTS = {"http": 80, "https": 443}


class HostErrors(ApiKind):
    HOST_NOT_ALLOWED = (
        "{host!r} is not an allowed name of this server: to allow names other than loopback, use --allowed-hosts",
        Http(421, code="host_not_allowed"),
    )
    ORIGIN_NOT_ALLOWED = (
        "a page of {origin!r} may not send requests to this server: only its own pages and those of --allowed-hosts "
        "and --allowed-origins may",
        Http(403, code="origin_not_allowed"),
    )


class Hosts:
    """Names by which a server may be addressed, and origins that may send requests to it.

    Requests that arrive at a loopback address must name it by a loopback name or address, or by one of `names`. With
    `only`, this holds at every address.

    Args:
        names: further names, such as the value of `--host`.
        only: values of `--allowed-hosts`, NAME or NAME:PORT; "*" for any.
        origins: origins of pages that may send requests and read the answers, SCHEME://NAME[:PORT]; "*" for any.
    """

    def __init__(self, names: Collection[str] = (), only: Sequence[str] = (), origins: Collection[str] = ()) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._any = ANY_HOST in only
        self._everywhere = bool(only)
        self._named = _parsed(name for name in only if name != ANY_HOST)
        self._known = _parsed(names)

    def refusal(self, hosts: Sequence[str], origins: Sequence[str], server: Sequence[Any] | None) -> ApiError | None:
        """Return the error for a request that is not allowed; None if it is allowed.

        Args:
            hosts, origins: values of the request's headers of these names. Browsers always send the ones that apply.
            server: local address of the connection, as in ASGI.
        """
        arrived = None if server is None else str(server[0]).lower()
        for host in hosts:
            if not self._is_own(HostName.parse(host), arrived):
                return HostErrors.HOST_NOT_ALLOWED(host=host)
        for origin in origins:
            if not self._may_ask(origin, hosts):
                return HostErrors.ORIGIN_NOT_ALLOWED(origin=origin)
        return None

    def refusal_of(self, headers: Headers, server: Sequence[Any] | None) -> ApiError | None:
        """Return the error for the headers of a request; None if it is allowed."""
        return self.refusal(headers.getlist("host"), headers.getlist("origin"), server)

    def shared_with(self, origins: Sequence[str]) -> str | None:
        """Return the origin for the answer's `access-control-allow-origin` header; None for no header."""
        return origins[0] if len(origins) == 1 and self._is_named(origins[0]) else None

    def _is_named(self, origin: str) -> bool:
        return ANY_HOST in self._origins or origin.lower() in self._origins

    def _is_own(self, host: HostName | None, arrived: str | None) -> bool:
        if self._any or not (self._everywhere or _is_loopback(arrived)):
            return True
        if host is None:
            return False
        own = host.name == _LOCAL_NAME or _is_loopback(host.name) or host.name == arrived
        return own or any(address.includes(host) for address in (*self._named, *self._known))

    def _may_ask(self, origin: str, hosts: Sequence[str]) -> bool:
        if self._is_named(origin):
            return True
        match = _ORIGIN.fullmatch(origin)
        asking = None if match is None else HostName.parse(match[2])
        if match is None or asking is None:
            return False
        usual = _PORTS[match[1].lower()]
        asking = HostName(asking.name, asking.port or usual)
        own = [HostName(host.name, host.port or usual) for text in hosts if (host := HostName.parse(text)) is not None]
        return asking in own or any(address.includes(asking) for address in self._named)


def _parsed(names: Iterable[str]) -> list[HostName]:
    return [host for name in names if (host := HostName.parse(name)) is not None]


def _is_loopback(name: str | None) -> bool:
    try:
        address = ip_address(name or "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
