"""A text as a cache has it: each token with why it is kept, by how many layers and KV heads, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.compiler.frontend.full_attention import Needed
    from sscc.runtime.session.kept_positions import Kept

SPANS = 8
"""Lost parts of a text that are shown."""
_JOINED = 2  # tokens between two parts that are shown as one


@dataclass(frozen=True)
class Token:
    """A token as it is shown.

    Attributes:
        text: that it completes, a special token's name, or its number where there is no tokenizer.
        reason: why most of the layers and heads that keep it do, the name of a `Reason` in lower case.
        share: of the layers and heads, those whose every step reads it, 0 .. 1.
        lost: of the answer's attention over a full cache, the part that goes to it where it is evicted; 0 where nobody
            has looked.
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
    """The first `kept.length` of the tokens, as all layers and heads keep them, as one layer does, or one of its KV
    heads. Raises UsageError for one that there is not."""
    texts = token_texts(tokenizer, tokens[: kept.length])
    lost = [0.0] * kept.length if needed is None else needed.mass.tolist()
    shares = kept.shares(layer, head).tolist()
    columns = zip(texts, main_reasons(kept, layer, head), shares, lost, strict=True)
    return [Token(*token) for token in columns]


def main_reasons(kept: Kept, layer: int | None = None, head: int | None = None) -> list[str]:
    """Of every position, why most of the layers and heads that keep it do, the name of a `Reason` in lower case."""
    import numpy as np

    from sscc.runtime.session.kept_positions import Reason

    reasons = kept.reasons(layer, head)
    counts = np.stack([(reasons == reason).sum(axis=0) for reason in Reason])
    near, far = counts[Reason.SELECTED :], counts[: Reason.SELECTED]
    main = np.where(near.any(axis=0), near.argmax(axis=0) + Reason.SELECTED, far.argmax(axis=0))
    return [Reason(reason).name.lower() for reason in main.tolist()]


def token_texts(tokenizer: Tokenizer | None, tokens: Sequence[int]) -> list[str]:
    """The text that each token completes; that of a character in several tokens is the last one's."""
    if tokenizer is None:
        return [f"{token} " for token in tokens]
    from sscc.runtime.text.tokenizer import TextStream

    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    stream = TextStream(tokenizer)
    texts = [tokenizer.id_to_token(token) or "" if token in special else stream.push(token) for token in tokens]
    rest = stream.finish()
    return [*texts[:-1], texts[-1] + rest] if texts else texts


def lost_spans(tokens: Sequence[Token]) -> list[tuple[int, int, float]]:
    """The parts [begin, end) of a text that were evicted and that the answer would have attended to most, with their
    shares of its attention, largest first."""
    threshold = max((token.lost for token in tokens), default=0.0) / 4
    spans: list[tuple[int, int, float]] = []
    for position, token in enumerate(tokens):
        if token.lost <= threshold or not token.lost:
            continue
        begin = spans.pop()[0] if spans and position - spans[-1][1] <= _JOINED else position
        spans.append((begin, position + 1, sum(one.lost for one in tokens[begin : position + 1])))
    return sorted(spans, key=lambda span: (-span[2], span[0]))[:SPANS]
