"""Tables in the user's cache with the results of successful checks, so that they need not be repeated."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sscc.ir.errors import InputError, OutputError
from sscc.runtime.support.user_cache import UnsafeCacheError, open_cached, replacing_cached

MOST_BYTES = 2**20
"""Maximum bytes of a table that is read."""

_LOGGER = logging.getLogger("sscc")


@dataclass(frozen=True)
class Table:
    """A table of strings by string.

    Attributes:
        file: its name in the cache.
        most: maximum number of entries; the ones added last are kept.
        otherwise: consequence of a table that cannot be written, for the log.
    """

    file: str
    most: int
    otherwise: str

    def read(self) -> dict[str, str]:
        """Return the entries; {} if there are none, or they cannot be read.

        Raises:
            UnsafeCacheError: another user could have written the table.
        """
        try:
            file = open_cached(self.file)
            if file is None:
                return {}
            with file:
                entries = json.loads(file.read(MOST_BYTES))
        except UnsafeCacheError:
            raise
        except (InputError, OSError, ValueError, RecursionError):
            return {}
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            return {}
        return entries

    def add(self, added: Mapping[str, str]) -> None:
        """Add entries. An entry that another process adds at the same time may be lost.

        Raises:
            UnsafeCacheError: another user could write the table.
        """
        entries = {key: value for key, value in self.read().items() if key not in added} | dict(added)
        kept = dict(list(entries.items())[-self.most :])
        try:
            with replacing_cached(self.file) as file:
                file.write(json.dumps(kept, indent=0).encode())
        except OutputError as error:
            _LOGGER.info(f"{self.otherwise}, because the cache cannot be written: {error}")
