"""Tokens of a text in a cache: for each token the reason why it is kept, the fraction of layers and KV heads that keep
it, and its lost attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.compiler.frontend.full_attention import Needed
    from sscc.runtime.session.kept_positions import Kept

SPANS = 8
"""Maximum number of evicted spans of a text to show."""
_JOINED = 2  # maximum number of tokens between two spans that are merged


@dataclass(frozen=True)
class Token:
    """A token as shown to the user.

    Attributes:
        text: text that it completes, name of a special token, or its number without a tokenizer.
        reason: most frequent reason among the layers and heads that keep it, the name of a `Reason` in lower case.
        share: fraction of the layers and heads in which every step reads it, 0 .. 1.
        lost: fraction of the answer's attention over a full cache that goes to this token in layers and heads that
            have evicted it; 0 if it was not measured.
    """

    text: str
    reason: str
    share: float
    lost: float = 0.0


def shown_tokens(
    tokenizer: Tokenizer | None,
    tokens: Sequence[int],
    kept: Kept,
    layer: int | None = None,
    head: int | None = None,
    needed: Needed | None = None,
) -> list[Token]:
    """Return the first `kept.length` tokens, as kept by all layers and heads, by one layer, or by one of its KV heads.
    Raises UsageError for a layer or head that does not exist."""
    texts = token_texts(tokenizer, tokens[: kept.length])
    lost = [0.0] * kept.length if needed is None else needed.mass.tolist()
    shares = kept.shares(layer, head).tolist()
    columns = zip(texts, main_reasons(kept, layer, head), shares, lost, strict=True)
    return [Token(*token) for token in columns]


def main_reasons(kept: Kept, layer: int | None = None, head: int | None = None) -> list[str]:
    """Return the most frequent reason among the layers and heads that keep each position: the name of a `Reason` in
    lower case."""
    import numpy as np

    from sscc.runtime.session.kept_positions import Reason

    reasons = kept.reasons(layer, head)
    counts = np.stack([(reasons == reason).sum(axis=0) for reason in Reason])
    near, far = counts[Reason.SELECTED :], counts[: Reason.SELECTED]
    main = np.where(near.any(axis=0), near.argmax(axis=0) + Reason.SELECTED, far.argmax(axis=0))
    return [Reason(reason).name.lower() for reason in main.tolist()]


def token_texts(tokenizer: Tokenizer | None, tokens: Sequence[int]) -> list[str]:
    """Return the text that each token completes. A character of several tokens is the text of the last one."""
    if tokenizer is None:
        return [f"{token} " for token in tokens]
    from sscc.runtime.text.tokenizer import TextStream

    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    stream = TextStream(tokenizer)
    texts = [tokenizer.id_to_token(token) or "" if token in special else stream.push(token) for token in tokens]
    rest = stream.finish()
    return [*texts[:-1], texts[-1] + rest] if texts else texts


def lost_spans(tokens: Sequence[Token]) -> list[tuple[int, int, float]]:
    """Return the evicted spans [begin, end) that the answer would have attended to most, with their fractions of its
    attention, largest first."""
    threshold = max((token.lost for token in tokens), default=0.0) / 4
    spans: list[tuple[int, int, float]] = []
    for position, token in enumerate(tokens):
        if token.lost <= threshold or not token.lost:
            continue
        begin = spans.pop()[0] if spans and position - spans[-1][1] <= _JOINED else position
        spans.append((begin, position + 1, sum(one.lost for one in tokens[begin : position + 1])))
    return sorted(spans, key=lambda span: (-span[2], span[0]))[:SPANS]
