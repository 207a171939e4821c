"""Which replica has what of a prompt: prompts that begin alike go where their beginning was prefilled before.

Nobody asks the replicas what they keep. A table notes which replica each prompt went to, under digests of its ever
longer beginnings, and forgets what was used longest ago; where it is wrong, a prompt is prefilled that might not have
had to be. Digests are of the text as the client sends it, so that nothing is tokenised twice.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

BLOCK = 256
"""Bytes of text between two digests; some 64 tokens of English."""
MOST_KEYS = 4096
"""Digests of one prompt: what is beyond them decides nothing."""
MOST_NOTED = 1 << 17
"""Digests that a table remembers, each a few hundred bytes."""
_DIGEST = 16

Replica = TypeVar("Replica", bound=Hashable)


def keys_of(body: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the digests of a body's first prompt; empty where there is none.

    A conversation's are those of its beginning and more, as long as nothing is changed in what was said.
    """
    text = _text(body)
    digest, keys = hashlib.blake2b(digest_size=_DIGEST), []
    for first in range(0, min(len(text) - BLOCK + 1, BLOCK * MOST_KEYS), BLOCK):
        digest.update(text[first : first + BLOCK])
        keys.append(digest.digest())
    return tuple(keys)


def _text(body: Mapping[str, Any]) -> bytes:
    """The first prompt in bytes; a list of tokens as four bytes each. What is no prompt is none: the replica refuses
    it."""
    if isinstance(messages := body.get("messages"), list):
        return "".join(_messages(messages)).encode(errors="replace")
    prompt = body.get("prompt")
    while isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt.encode(errors="replace")
    if isinstance(prompt, list) and all(type(token) is int and 0 <= token < 1 << 32 for token in prompt):
        return b"".join(token.to_bytes(4, "little") for token in prompt)
    return b""


def _messages(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        if not isinstance(message, dict):
            return
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [str(part.get("text")) for part in parts if isinstance(part, dict)]
        yield f"{message.get('role')}\0{chr(10).join(texts)}\0"


class Affinity(Generic[Replica]):
    """Remembers where prompts went.

    Args:
        imbalance: how many requests more than the least loaded replica another one may have and still be preferred for
            what it keeps.
        most: digests that are remembered.
    """

    def __init__(self, imbalance: int, most: int = MOST_NOTED) -> None:
        self._imbalance = imbalance
        self._most = most
        self._noted: OrderedDict[bytes, set[Replica]] = OrderedDict()

    def ranked(self, keys: Sequence[bytes], loads: Mapping[Replica, int]) -> list[list[Replica]]:
        """Replicas in the order in which to try them: first those that have the longest beginning of the prompt and not
        too much to do, then the others, each from the least to the most loaded.

        Args:
            keys: of the prompt.
            loads: requests that each replica has.
        """
        if not loads:
            return []
        bound = min(loads.values()) + self._imbalance
        holders = {one for one in self._holders(keys, loads) if loads[one] <= bound}
        order = sorted(loads, key=lambda one: loads[one])
        ranks = [[one for one in order if one in holders], [one for one in order if one not in holders]]
        return [rank for rank in ranks if rank]

    def _holders(self, keys: Sequence[bytes], loads: Mapping[Replica, int]) -> set[Replica]:
        for key in reversed(keys):
            if holders := self._noted.get(key, set()) & loads.keys():
                return holders
        return set()

    def note(self, keys: Sequence[bytes], replica: Replica) -> None:
        """A prompt went to a replica. Its beginning is the last of it to be forgotten."""
        for key in reversed(keys):
            self._noted.setdefault(key, set()).add(replica)
            self._noted.move_to_end(key)
        while len(self._noted) > self._most:
            self._noted.popitem(last=False)

    def keep_only(self, replicas: set[Replica]) -> None:
        """Forgets every other replica."""
        for key in list(self._noted):
            self._noted[key] &= replicas
            if not self._noted[key]:
                del self._noted[key]
