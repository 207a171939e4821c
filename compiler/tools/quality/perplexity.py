"""Windows of a long text: tokens to prefill, followed by tokens to predict one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.scoring import NATS
from sscc.compiler.tools.quality.tasks import GOLDEN, PERPLEXITY
from sscc.ir.errors import ErrorKind, UsageError
from sscc.runtime.text.tokenizer import encode


class PerplexityErrors(ErrorKind):
    TEXT_TOO_SHORT = (
        UsageError,
        "{name} has {tokens} tokens, fewer than one window of {length} + {scored}: give a longer text",
    )


def perplexity_examples(
    text: str, name: str, lengths: Sequence[int], scored: int, count: int, tokenizer: Tokenizer
) -> Iterator[Example]:
    """Return `count` windows per length, spread over the whole text: `length` tokens, then `scored` tokens to predict.

    Windows overlap if the text is too short for disjoint ones.

    Args:
        text: the text.
        name: name of the text in messages.
        lengths: prefilled tokens of a window.
        scored: predicted tokens of a window.
        count: windows per length.
        tokenizer: tokenizer of the model.

    Raises:
        UsageError: the text is shorter than one window.
    """
    tokens = encode(tokenizer, text)
    for length in lengths:
        room = len(tokens) - length - scored
        if room < 0:
            raise PerplexityErrors.TEXT_TOO_SHORT(name=name, tokens=len(tokens), length=length, scored=scored)
        for index in range(count):
            start = int((index + 1) * GOLDEN % 1.0 * room)
            end = start + length
            prompt, rest = tuple(tokens[start:end]), tuple(tokens[end : end + scored])
            yield Example(PERPLEXITY, length, index, prompt, (), NATS, 0, continuation=rest)
