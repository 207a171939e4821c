"""Section on the tokens that the cache keeps of a text: the fraction of layers and heads that keep each token, and each
of them individually."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sscc.compiler.tools.inspection.kept_tokens import main_reasons
from sscc.compiler.tools.report.report_inputs import Sources

MOST_DETAIL = 4 << 20
"""Maximum number of characters for what each layer and head keeps; a longer text is shown without this detail."""
SHADES = 4


@dataclass(frozen=True)
class Word:
    """A token.

    Attributes:
        kind: name of the most frequent `Reason`.
        shade: 0 (no layer keeps it) .. `SHADES`.
    """

    text: str
    position: int
    kind: str
    share: float
    shade: int


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes:
        rows: for each KV head a digit per token, its `Reason`.
    """

    number: int
    source: int | None
    rows: tuple[str, ...]


@dataclass(frozen=True)
class KeptText:
    """The tokens of a text.

    Attributes:
        layers: details by layer; empty if they would be too long.
        heads: KV heads of all layers together.
    """

    words: tuple[Word, ...]
    prompt: int
    kept: int
    budget: int
    heads: int
    layers: tuple[Layer, ...]
    chosen_anew: bool


def kept(sources: Sources) -> KeptText | None:
    """Return the section; None if no text was given."""
    if sources.text is None:
        return None
    told = sources.text.kept
    reasons = told.reasons()
    columns = zip(sources.text.texts, main_reasons(told), told.shares().tolist(), strict=True)
    words = tuple(
        Word(text, position, kind, share, ceil(share * SHADES))
        for position, (text, kind, share) in enumerate(columns)
    )
    layers = tuple(
        Layer(layer.layer, layer.source, tuple("".join(map(str, row)) for row in layer.reasons.tolist()))
        for layer in (told.layers if reasons.size <= MOST_DETAIL else ())
    )
    anew = any(not layer.choice_known for layer in told.layers)
    return KeptText(words, told.prompt_len, told.kept, told.budget, len(reasons), layers, anew)
