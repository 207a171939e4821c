"""Text of unknown origin gives a terminal no command."""

from __future__ import annotations

import io

import pytest

from sscc.ir.terminal import listing, shown_text, terminal_text

HOSTILE = "a\x1b]0;title\x07b\r\x08\x9b31mc\u202ed\x7f\x00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", ["", "two\nlines\ttabs", "\u3000wide\u00a0space", "\U0001f469\u200d\U0001f4bb", "é"])
def test_text_stays_as_it_is(text: str) -> None:
    assert terminal_text(text) == text


def test_control_characters_become_their_escapes() -> None:
    expected = r"a\x1b]0;title\x07b\r\x08\x9b31mc\u202ed\x7f\x00"
    assert terminal_text(HOSTILE) == expected
    assert "".join(map(terminal_text, HOSTILE)) == expected, "pieces give what the whole gives"
    assert terminal_text("\ud83d") == r"\ud83d"


def test_files_and_pipes_get_the_text_unchanged() -> None:
    assert shown_text(HOSTILE, io.StringIO()) == HOSTILE
    assert shown_text(HOSTILE, Terminal()) == terminal_text(HOSTILE)


def test_a_name_in_a_listing_stays_in_its_line() -> None:
    assert listing(["  name  x\x1b[2J", "other\nfake  y"]) == "  name  x\\x1b[2J\nother fake  y"
