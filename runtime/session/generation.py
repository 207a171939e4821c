"""One answer in one slot of a session, in the caller's thread.

An engine (`sscc.runtime.serving.engine`) gives the same tokens to a request with the same sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.samplers import Sampler
from sscc.runtime.support.serving_options import NEW_TOKENS


def default_new_tokens(max_context: int, text_length: int) -> int:
    """Return the default limit of new tokens: `NEW_TOKENS`, or less if a text leaves less room."""
    return max(1, min(NEW_TOKENS, max_context - text_length))


class Generation(Iterator[int]):
    """Iterator over the new tokens, including an end token. Each token is computed on demand.

    Args:
        prefill: returns the logits [V] after the prompt; called for the first token.
        decode: feeds a token and returns the logits [V] after it.
        sampler: picks the tokens.
        ends: tokens that end the text.
        most: the limit of new tokens.

    Attributes:
        tokens: the tokens so far.
        finish: "eos" after an ending token, "length" at the limit; None before.
    """

    def __init__(
        self,
        prefill: Callable[[], Array],
        decode: Callable[[int], Array],
        sampler: Sampler,
        ends: Collection[int],
        most: int,
    ) -> None:
        self.tokens: list[int] = []
        self.finish: str | None = None
        self._prefill, self._decode = prefill, decode
        self._sampler, self._ends, self._most = sampler, frozenset(ends), most

    def __next__(self) -> int:
        if self.finish is not None:
            raise StopIteration
        logits = self._decode(self.tokens[-1]) if self.tokens else self._prefill()
        token = self._sampler.pick(logits)
        self.tokens.append(token)
        if token in self._ends:
            self.finish = "eos"
        elif len(self.tokens) == self._most:
            self.finish = "length"
        return token
