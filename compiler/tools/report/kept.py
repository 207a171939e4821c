"""What the cache keeps of a text: of each token the share of layers and heads that do, and each of them by itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sscc.compiler.tools.inspection.kept_tokens import main_reasons
from sscc.compiler.tools.report.report_inputs import Sources

MOST_DETAIL = 4 << 20
"""Letters that say of each layer and head what it keeps; a text of which it would be more has none."""
SHADES = 4


@dataclass(frozen=True)
class Word:
    """A token. Attributes: kind: the name of the `Reason` that most have. shade: 0 (nobody keeps it) .. `SHADES`."""

    text: str
    position: int
    kind: str
    share: float
    shade: int


@dataclass(frozen=True)
class Layer:
    """A layer. Attributes: rows: for each KV head a digit per token, its `Reason`."""

    number: int
    source: int | None
    rows: tuple[str, ...]


@dataclass(frozen=True)
class KeptText:
    """Attributes: layers: none where they would be too much. heads: of all layers together."""

    words: tuple[Word, ...]
    prompt: int
    kept: int
    budget: int
    heads: int
    layers: tuple[Layer, ...]
    chosen_anew: bool


def kept(sources: Sources) -> KeptText | None:
    """None where no text was given."""
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
