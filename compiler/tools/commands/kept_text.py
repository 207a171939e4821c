"""Text in which each token is shaded by the share of layers and KV heads that keep it, in colours or plain marks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sscc.compiler.tools.inspection.kept_tokens import Token, lost_spans
from sscc.ir.errors import ErrorKind, UsageError

if TYPE_CHECKING:
    from sscc.compiler.frontend.full_attention import Needed
    from sscc.runtime.artifact.signature import Signature

EVERYTHING = "all"
_AROUND = 6  # tokens shown before and after an evicted span
_LONGEST = 80  # maximum characters shown of an evicted span
_BLACK, _DIM, _PLAIN = "\x1b[38;5;16m", "\x1b[2m", "\x1b[0m"
_SHADES = {"sink": (195, 159, 117, 75), "recent": (194, 157, 114, 77), "selected": (230, 222, 214, 208)}
"""Background colours (of the 256-colour palette), from the smallest share to the largest."""
_LETTERS = {"sink": "s", "recent": "r"}


class ShownPartErrors(ErrorKind):
    NO_LAYER = UsageError, "--show-kept: there is no layer {layer}; the layers are 0 to {last}"
    NO_HEAD = UsageError, "--show-kept: layer {layer} has no KV head {head}; its heads are 0 to {last}"
    UNREADABLE = UsageError, "{text!r} is neither LAYER nor LAYER:HEAD, numbers from 0 up"


@dataclass(frozen=True)
class Part:
    """The displayed part of a cache: all layers, one layer, or one KV head of a layer."""

    layer: int | None = None
    head: int | None = None

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that "all", "LAYER" or "LAYER:HEAD" names. Raises UsageError for other texts."""
        if text == EVERYTHING:
            return cls()
        match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text)
        if match is None:
            raise ShownPartErrors.UNREADABLE(text=text)
        return cls(int(match[1]), None if match[2] is None else int(match[2]))

    def check(self, signature: Signature) -> None:
        """Raise UsageError if a program does not have the layer or the head."""
        if self.layer is None:
            return
        if self.layer >= signature.layers:
            raise ShownPartErrors.NO_LAYER(layer=self.layer, last=signature.layers - 1)
        heads = signature.plan.of(self.layer)[0].kv_heads
        if self.head is not None and self.head >= heads:
            raise ShownPartErrors.NO_HEAD(layer=self.layer, head=self.head, last=heads - 1)

    def __str__(self) -> str:
        if self.layer is None:
            return "all layers and KV heads"
        return f"layer {self.layer}" if self.head is None else f"layer {self.layer}, KV head {self.head}"


# ------------------------------------------------------------------------------------------------------- as lines


def shaded(tokens: Sequence[Token], part: Part, width: int, *, colours: bool, fetched_each_step: bool) -> Iterator[str]:
    """Yield a legend, then the text in colours, or with a line of marks below each line.

    Args:
        tokens: tokens with the share of layers and heads that keep them.
        part: displayed part of the cache.
        width: columns of a line.
        colours: True for colours, False for marks.
        fetched_each_step: True if every step selects rows of the store, without a record of them.
    """
    yield from _legend(tokens, part, colours=colours, fetched_each_step=fetched_each_step)
    yield ""
    text, marks, column = "", "", 0
    for token in tokens:
        for piece in re.split(r"(\n)", token.text):
            shown = "\\n" if piece == "\n" else _printable(piece)
            columns = _columns(shown)
            if column and column + columns > width:
                yield from _line(text, marks, colours=colours)
                text, marks, column = "", "", 0
            text += _coloured(shown, token) if colours else shown
            marks += (_mark(token) * min(columns, 1)).ljust(columns)
            column += columns
            if piece == "\n":
                yield from _line(text, marks, colours=colours)
                text, marks, column = "", "", 0
    if text:
        yield from _line(text, marks, colours=colours)


def _line(text: str, marks: str, *, colours: bool) -> Iterator[str]:
    yield text
    if not colours:
        yield marks.rstrip()


def _legend(tokens: Sequence[Token], part: Part, *, colours: bool, fetched_each_step: bool) -> Iterator[str]:
    whole = sum(token.share == 1 for token in tokens)
    some = sum(0 < token.share < 1 for token in tokens)
    none = len(tokens) - whole - some
    yield f"kept by {part}: {whole} of {len(tokens)} tokens by every one, {some} by some, {none} by none"
    if colours:
        swatches = [
            "".join(f"\x1b[48;5;{shade}m{_BLACK}  {_PLAIN}" for shade in shades) + f" {name}"
            for name, shades in (("first (sink)", _SHADES["sink"]), ("selected", _SHADES["selected"]),
                                 ("most recent (ring)", _SHADES["recent"]))
        ]  # fmt: skip
        yield f"{'   '.join(swatches)}   darker: more layers and heads   {_DIM}evicted{_PLAIN}"
    else:
        yield "S first (sink)  R most recent (ring); lower case: kept by some layers and heads only"
        yield "1 to 9: selected by that many tenths of layers and heads, #: by all  . evicted"
    if any(token.reason == "stored" for token in tokens):
        mark = f"\x1b[4mstored{_PLAIN}" if colours else "- stored"
        which = "; the rows that the last step read are recorded with --kv-fetch only" if fetched_each_step else ""
        yield f"{mark}: in the store; read when a step's query selects it{which}"


def _coloured(text: str, token: Token) -> str:
    if token.reason not in _SHADES:
        return f"{_DIM if token.reason == 'evicted' else chr(27) + '[4m'}{text}{_PLAIN}"
    shades = _SHADES[token.reason]
    shade = shades[min(int(token.share * len(shades)), len(shades) - 1)]
    return f"\x1b[48;5;{shade}m{_BLACK}{text}{_PLAIN}"


def _mark(token: Token) -> str:
    if token.reason in _LETTERS:
        letter = _LETTERS[token.reason]
        return letter.upper() if token.share == 1 else letter
    if token.reason == "selected":
        return "#" if token.share == 1 else str(min(max(round(token.share * 10), 1), 9))
    return "-" if token.reason == "stored" else "."


def _printable(text: str) -> str:
    """Return a text without control characters, which would move the cursor or send commands to the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


# ------------------------------------------------------------------------------- attention to evicted positions


def needed_lines(tokens: Sequence[Token], needed: Needed) -> Iterator[str]:
    """Yield lines on the attention that a full cache would have paid to evicted positions."""
    if not needed.queries:
        yield "needed   unknown: the answer is a single token, which prefill computed from the whole prompt"
        return
    yield (
        f"needed   {needed.share:.1%} of the attention of {needed.queries} answer tokens over a full cache goes to "
        "evicted positions (mean over layers and heads)"
    )
    for begin, end, share in lost_spans(tokens):
        before = _printable("".join(token.text for token in tokens[max(begin - _AROUND, 0) : begin]))
        inside = _printable("".join(token.text for token in tokens[begin:end]))
        if len(inside) > _LONGEST:
            inside = f"{inside[: _LONGEST // 2]} .. {inside[-_LONGEST // 2 :]}"
        after = _printable("".join(token.text for token in tokens[end : end + _AROUND]))
        where = f"position {begin}" if end == begin + 1 else f"positions {begin} to {end - 1}"
        yield f"  {share:6.2%}  {where}: ..{before}[{inside}]{after}.."


def record(tokens: Sequence[Token], part: Part, needed: Needed | None) -> dict[str, Any]:
    """Return the facts of `shaded` and `needed_lines` as a JSON object."""
    facts: dict[str, Any] = {"layer": part.layer, "head": part.head}
    facts |= {"tokens": [{"text": one.text, "reason": one.reason, "share": one.share} for one in tokens]}
    if needed is not None:
        facts["needed"] = {
            "queries": needed.queries, "evicted_share": needed.share, "by_position": needed.mass.tolist()
        }  # fmt: skip
    return facts
