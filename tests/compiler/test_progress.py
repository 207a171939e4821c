"""Progress on a terminal, and elsewhere; the phases of a compilation's time."""

from __future__ import annotations

import gc
import io
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from sscc.compiler.options.progress import bar, prompt_bar, silenced, status
from sscc.compiler.tools.commands import cli
from sscc.ir.stopwatch import REST, Stopwatch, recorded, timed
from tests.models.tiny_llama import save_tiny_llama


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def drawn_on(stream: io.StringIO) -> str:
    with redirect_stderr(stream):
        with status("capturing") as update:
            update("lowering [all]")
            sys.stderr.write("a line of its own, " * 10 + "\n")
            with status("inside"):  # one at a time
                pass
            with bar("packing") as (advance, update):  # but a bar takes the place of a line
                advance(1, 4)
                update("packing weights")
                with bar("inside"):
                    pass
        with bar("measuring", alive=False) as (advance, _):
            advance(1, 8)
    return stream.getvalue()


def test_progress_on_a_terminal() -> None:
    text = drawn_on(Terminal())
    assert all(words in text for words in ("lowering [all]", "packing weights", " 25%", "\x1b[32m"))
    assert "a line of its own, " * 10 in text
    assert "inside" not in text
    assert "measuring" in text[text.rindex("lowering [all]") :]  # which goes on after the bar
    assert " 12%" in text


def test_no_colour_where_nobody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = drawn_on(Terminal())
    assert " 25%" in text
    assert "\x1b[32m" not in text


def test_nothing_is_drawn_elsewhere() -> None:
    assert drawn_on(io.StringIO()) == "a line of its own, " * 10 + "\n"
    with redirect_stderr(Terminal()) as terminal:
        for show in (status, bar):
            with show("capturing", quiet=True):
                pass
            with silenced(), show("capturing"), prompt_bar(8) as seen:
                assert seen is None
    assert terminal.getvalue() == ""


def test_stages_have_what_is_theirs_alone() -> None:
    names: list[str] = []
    began = time.perf_counter()
    with recorded(Stopwatch(began, names.append)) as stages, timed("outer"):
        with timed("inner"):
            time.sleep(0.02)
        with timed("inner"), recorded(Stopwatch()) as same:
            time.sleep(0.02)
    seconds = stages.seconds()
    assert same is stages
    assert list(seconds) == ["outer", "inner", REST]
    assert seconds["inner"] >= 0.04 > seconds["outer"]
    assert sum(seconds.values()) <= time.perf_counter() - began
    assert names == ["outer", "inner", "outer", "inner", "outer", REST]
    with timed("unrecorded"):
        pass
    assert "unrecorded" not in stages.seconds()


def test_the_stages_of_a_compilation_add_up_to_its_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save_tiny_llama(tmp_path / "tiny", max_position_embeddings=64)
    words = ["compile", str(model), "-o", str(tmp_path / "tiny.rdu"), "--kv-budget", "48", "--prefill-chunk", "16"]
    gc.collect()  # what earlier tests left would otherwise be collected in the first unnamed moment
    began = time.perf_counter()
    assert cli.main([*words, "--golden-tokens", "1", "--save-golden", "--timing"]) == 0
    wall = time.perf_counter() - began
    lines = [line.split(" s  ") for line in caplog.messages if " s  " in line]
    seconds = {name: float(number) for number, name in lines}
    total = seconds.pop("in all")
    named = {"imports", "capture", "lower-torch", "verification of passes", "validation", "goldens", "weights"}
    assert named <= seconds.keys()
    assert sum(seconds.values()) == pytest.approx(total, abs=1e-4 * len(seconds))
    assert 0.8 * wall < total <= wall
    assert seconds[REST] < 0.25 * total
