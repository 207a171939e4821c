"""Routing by prompt: prompts with a common prefix go to the replica that has prefilled the prefix.

The replicas are not asked for the contents of their caches. A table records the replica of each prompt, under digests
of increasing prefixes, and drops the least recently used entries. If the table is wrong, a prompt is prefilled that
could have been reused. The digests are of the text that the client sends, so that nothing is tokenized twice.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

BLOCK = 256
"""Bytes of text between two digests, about 64 tokens of English."""
MOST_KEYS = 4096
"""Maximum number of digests of a prompt. Longer prompts are routed by their beginning."""
MOST_NOTED = 1 << 17
"""Maximum number of digests in a table, of a few hundred bytes each."""
_DIGEST = 16

Replica = TypeVar("Replica", bound=Hashable)


def keys_of(body: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the digests of the prefixes of a body's first prompt; empty if there is none.

    A later turn of a conversation has the digests of the earlier ones, as long as the earlier messages are unchanged.
    """
    text = _text(body)
    digest, keys = hashlib.blake2b(digest_size=_DIGEST), []
    for first in range(0, min(len(text) - BLOCK + 1, BLOCK * MOST_KEYS), BLOCK):
        digest.update(text[first : first + BLOCK])
        keys.append(digest.digest())
    return tuple(keys)


def _text(body: Mapping[str, Any]) -> bytes:
    """Return the first prompt in bytes, with four bytes for each token of a list; empty for an invalid prompt, which
    the replica refuses."""
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
    """Table of the replicas to which prompts went.

    Args:
        imbalance: number of requests by which the load of a replica with a cached prefix may exceed the smallest load
            and still be preferred.
        most: maximum number of digests.
    """

    def __init__(self, imbalance: int, most: int = MOST_NOTED) -> None:
        self._imbalance = imbalance
        self._most = most
        self._noted: OrderedDict[bytes, set[Replica]] = OrderedDict()

    def ranked(self, keys: Sequence[bytes], loads: Mapping[Replica, int]) -> list[list[Replica]]:
        """Return groups of replicas in the order in which to try them: first those with the longest prefix of the
        prompt and an acceptable load, then the others, each group from the least to the most loaded.

        Args:
            keys: digests of the prompt.
            loads: number of requests of each replica.
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
        """Record that a prompt went to a replica. Its shortest prefix is marked last, so that it is dropped last."""
        for key in reversed(keys):
            self._noted.setdefault(key, set()).add(replica)
            self._noted.move_to_end(key)
        while len(self._noted) > self._most:
            self._noted.popitem(last=False)

    def keep_only(self, replicas: set[Replica]) -> None:
        """Drop all other replicas."""
        for key in list(self._noted):
            self._noted[key] &= replicas
            if not self._noted[key]:
                del self._noted[key]
