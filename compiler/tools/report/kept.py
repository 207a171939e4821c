"""Kept-text section: the fraction of layers and heads that keep each token, and details per layer and head."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sscc.compiler.tools.inspection.kept_tokens import main_reasons
from sscc.compiler.tools.report.report_inputs import Sources

MOST_DETAIL = 4 << 20
"""Maximum number of characters of the details per layer and head; longer texts are shown without them."""
SHADES = 4


@dataclass(frozen=True)
class Word:
    """A token.

    Attributes:
        kind: name of the most frequent `Reason`, in lower case.
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
        rows: for each KV head, the `Reason` of each token as a digit.
    """

    number: int
    source: int | None
    rows: tuple[str, ...]


@dataclass(frozen=True)
class KeptText:
    """The tokens of a text.

    Attributes:
        layers: details per layer; empty if they would be too long.
        heads: number of KV heads in all layers.
    """

    words: tuple[Word, ...]
    prompt: int
    kept: int
    budget: int
    heads: int
    layers: tuple[Layer, ...]
    chosen_each_step: bool


def kept(sources: Sources) -> KeptText | None:
    """Return the section; None if no text was given."""
    if sources.text is None:
        return None
    positions = sources.text.kept
    reasons = positions.reasons()
    columns = zip(sources.text.texts, main_reasons(positions), positions.shares().tolist(), strict=True)
    words = tuple(
        Word(text, position, kind, share, ceil(share * SHADES))
        for position, (text, kind, share) in enumerate(columns)
    )
    layers = tuple(
        Layer(layer.layer, layer.source, tuple("".join(map(str, row)) for row in layer.reasons.tolist()))
        for layer in (positions.layers if reasons.size <= MOST_DETAIL else ())
    )
    each_step = any(not layer.choice_known for layer in positions.layers)
    return KeptText(words, positions.prompt_len, positions.kept, positions.budget, len(reasons), layers, each_step)
