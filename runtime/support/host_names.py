"""Names of hosts in HTTP headers and options."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, UsageError

ANY_HOST = "*"
_ADDRESS = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]\\?#,*]+))(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)


class AllowedHostErrors(ErrorKind):
    NOT_A_HOST = UsageError, "hosts of --allowed-hosts must be NAME, NAME:PORT, or * for any, got {name!r}"


@dataclass(frozen=True)
class HostName:
    """A host by its name or IP address in lower case, and its port, if one is written."""

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostName | None:
        """Return the host in `NAME`, `NAME:PORT`, `[IPv6]:PORT` or `IPv6`; None for any other text."""
        bare_ipv6 = text.count(":") > 1 and not text.startswith("[")
        match = _ADDRESS.fullmatch(f"[{text}]" if bare_ipv6 else text)
        if match is None:
            return None
        name = (match[1] or match[2]).lower()
        return cls(name.removesuffix("."), None if match[3] is None else int(match[3]))

    def includes(self, other: HostName) -> bool:
        """Return True if `other` has this name, and this port if this host has one."""
        return self.name == other.name and self.port in (None, other.port)


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, which may include `*`. Raises UsageError for an invalid name."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name != ANY_HOST and HostName.parse(name) is None:
            raise AllowedHostErrors.NOT_A_HOST(name=name)
    return names
