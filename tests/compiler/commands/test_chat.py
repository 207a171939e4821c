"""`sscc chat`: conversations through a pipe and at a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.tools.commands import cli
from sscc.compiler.tools.commands.chat import Chat, ChatErrors, read_messages
from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.option import OptionRangeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.runtime.serving.engine import Engine
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.session.session import Session
from sscc.runtime.text.chat_template import ChatTemplate
from tests.compiler.commands.chatting import TEMPLATE, with_template
from tests.errors import check, one_line
from tests.runtime.server.fake import ALPHABET, CONTEXT, SIGNATURE, TOKENIZER, AlphabetInterpreter, reply
from tests.runtime.signatures import altered

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def chatting(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(artifact, tmp_path_factory.mktemp("chatting") / "tiny.rdu")


def chat(artifact: Path, lines: str, patch: Patch, capsys: Capture, *words: str) -> tuple[str, str]:
    """Stdout and stderr of a chat whose stdin is a pipe."""
    patch.setattr(sys, "stdin", io.StringIO(lines))
    assert cli.main(["chat", str(artifact), "--traceback", "--threads", "1", *words]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def answer(artifact: Path, prompt: str, count: int, capsys: Capture, *words: str) -> str:
    """Return the answer of `sscc run` to a prompt without its template."""
    arguments = ["--prompt", prompt, "--raw", "--max-new-tokens", str(count), "--threads", "1", "--json", *words]
    assert cli.main(["run", str(artifact), *arguments]) == 0
    text: str = json.loads(capsys.readouterr().out.splitlines()[-1])["text"]
    return text


class TestPiped:
    """With the tiny model: an answer is what `sscc run` makes of the rendered conversation."""

    def test_an_answer(self, chatting: Path, monkeypatch: Patch, capsys: Capture) -> None:
        expected = answer(chatting, "u:hello;a:", 6, capsys)
        out, err = chat(chatting, "hello\n", monkeypatch, capsys, "--max-new-tokens", "6")
        assert out == f"{expected}\n"
        assert err in ("", "sscc: cut after 6 tokens\n")

    def test_the_conversation_goes_on(self, chatting: Path, monkeypatch: Patch, capsys: Capture) -> None:
        first = answer(chatting, "s:brief;u:hello;a:", 6, capsys)
        second = answer(chatting, f"s:brief;u:hello;a:{first};u:so;a:", 6, capsys)
        words = ["--system", "brief", "--max-new-tokens", "6"]
        out, _ = chat(chatting, "hello\nso\n", monkeypatch, capsys, *words)
        assert out == f"{first}\n{second}\n"

    def test_sampling(self, chatting: Path, monkeypatch: Patch, capsys: Capture) -> None:
        words = ["--temperature", "5", "--seed", "3", "--top-k", "50"]
        expected = answer(chatting, "u:hello;a:", 8, capsys, *words)
        assert chat(chatting, "hello", monkeypatch, capsys, *words, "--max-new-tokens", "8")[0] == f"{expected}\n"


class Talk:
    """A conversation with an engine that answers with letters."""

    def __init__(self, **options: Any) -> None:
        self.interpreter = AlphabetInterpreter(altered(SIGNATURE, batch=1))
        self.engine = Engine(Session(altered(SIGNATURE, batch=1), self.interpreter), TOKENIZER)
        template = ChatTemplate(TEMPLATE)
        self.chat = Chat(self.engine, TOKENIZER, template, Sampling(), CONTEXT, **options)


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk(max_new_tokens=8)
    with talk.engine:
        yield talk


class TestCommands:
    def test_reset_keeps_the_system_message(self, talk: Talk, capsys: Capture) -> None:
        for line in ("hi", "/system brief", "so", "/reset", "so", "/system"):
            talk.chat.take(line)
        out, err = capsys.readouterr()
        again = reply("s:brief;u:so;a:", 8)
        assert out.splitlines() == [reply("u:hi;a:", 8), again, again]
        assert "new conversation with this system message" in err
        assert err.endswith("sscc: the system message is: brief\n")

    def test_the_system_message_goes_away(self, talk: Talk, capsys: Capture) -> None:
        for line in ("/system brief", "/system -", "hi", "/system"):
            talk.chat.take(line)
        out, err = capsys.readouterr()
        assert out == reply("u:hi;a:", 8) + "\n"
        assert err.endswith("sscc: there is no system message\n")

    def test_stats(self, talk: Talk, capsys: Capture) -> None:
        talk.chat.take("/stats")
        assert "there is no answer yet" in capsys.readouterr().err
        talk.chat.take("x" * 50)
        talk.chat.take("/stats")
        err = capsys.readouterr().err
        assert "55 prompt tokens, 8 new (length)" in err
        assert "16 of 62 positions kept in the cache, 46 evicted" in err
        assert "first token after" in err
        assert "tokens/s" in err

    def test_help_and_unknown_commands(self, talk: Talk, capsys: Capture) -> None:
        for line in ("/help", "/what", "", "   "):
            talk.chat.take(line)
        out, err = capsys.readouterr()
        assert out == ""
        assert all(name in err for name in ("/reset", "/system", "/stats", "/exit", "Ctrl-C", "no command /what"))

    def test_a_message_that_begins_with_a_slash(self, talk: Talk, capsys: Capture) -> None:
        talk.chat.take("//etc")
        assert capsys.readouterr().out == reply("u:/etc;a:", 8) + "\n"

    def test_exit(self, chatting: Path, monkeypatch: Patch, capsys: Capture) -> None:
        assert chat(chatting, "/exit\nhello\n", monkeypatch, capsys) == ("", "")


class TestRoom:
    def test_what_is_left_is_told_when_it_matters(self, talk: Talk, capsys: Capture) -> None:
        talk.chat.take("x" * 30)
        assert "of context" not in capsys.readouterr().err
        talk.chat.take("x" * 50)
        assert "of context" in capsys.readouterr().err

    def test_a_message_without_room_is_not_part_of_it(self, talk: Talk, capsys: Capture) -> None:
        talk.chat.take("hi")
        talk.chat.take("x" * CONTEXT)
        assert "/reset starts a new conversation" in capsys.readouterr().err
        talk.chat.take("so")
        assert capsys.readouterr().out == reply(f"u:hi;a:{reply('u:hi;a:', 8)};u:so;a:", 8) + "\n"

    def test_without_a_limit_answers_end_by_themselves(self, capsys: Capture) -> None:
        talk = Talk()
        with talk.engine:
            talk.chat.take("hi")
        assert capsys.readouterr() == (reply("u:hi;a:") + "\n", "")

    def test_a_message_that_the_template_refuses(self, talk: Talk, capsys: Capture) -> None:
        talk.chat.take("refuse")
        talk.chat.take("hi")
        out, err = capsys.readouterr()
        assert out == reply("u:hi;a:", 8) + "\n"
        assert "the chat template refuses the messages: not this message" in err


class TestInterruption:
    def test_ctrl_c_stops_the_answer_and_keeps_what_there_is(self, capsys: Capture) -> None:
        talk = Talk()
        with talk.engine:
            talk.interpreter.seconds = 0.05
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
            talk.chat.take("hi")
            out, err = capsys.readouterr()
            part = out.removesuffix("\n")
            assert "sscc: stopped" in err
            assert part
            assert part == reply("u:hi;a:", len(part)) != reply("u:hi;a:")
            talk.interpreter.seconds = 0.0
            talk.chat.take("so")
            assert capsys.readouterr().out == reply(f"u:hi;a:{part};u:so;a:") + "\n"
            assert talk.engine.metrics().finished["cancelled"] == 1

    def test_a_failure_is_not_an_answer(self, talk: Talk) -> None:
        talk.interpreter.error = InternalError("broken")
        with pytest.raises(InternalError, match="broken"):
            talk.chat.take("hi")


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        ("a\nb", ["a", "b"]),
        ('"""\na\n\nb\n"""\nc\n', ["a\n\nb", "c"]),
        ('"""a\nb"""\nc', ["a\nb", "c"]),
        ('"""a\nb', ["a\nb"]),
        ("", []),
    ],
)
def test_messages_of_several_lines(typed: str, messages: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert list(read_messages()) == messages


class Terminal:
    """`sscc chat` at a terminal."""

    def __init__(self, artifact: Path) -> None:
        self._master, slave = pty.openpty()
        words = ["chat", str(artifact), "--threads", "1", "--max-new-tokens", "3"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sscc.compiler.tools.commands.cli", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=os.environ | {"TERM": "dumb"},
        )
        os.close(slave)
        self.seen = ""
        self._read = 0  # characters of it that were expected

    def answer(self, text: str) -> None:
        """Types it at the next prompt; before there is one, readline does not read."""
        self.expect("> ")
        os.write(self._master, text.encode())

    def expect(self, text: str, seconds: float = 60.0) -> None:
        """Read until `text` appears after the previously expected text."""
        until = time.monotonic() + seconds
        while (at := self.seen.find(text, self._read)) < 0:
            assert time.monotonic() < until, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 4096).decode(errors="replace")
        self._read = at + len(text)

    def interrupt(self, text: str) -> None:
        """Send Ctrl-C until `text` appears: a signal right before Python's readline waits is seen only after it."""
        for _ in range(60):
            self.process.send_signal(signal.SIGINT)
            with suppress(AssertionError):
                self.expect(text, 1.0)
                return
        pytest.fail(self.seen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_at_a_terminal(chatting: Path) -> None:
    terminal = Terminal(chatting)
    try:
        terminal.expect("a context of 128 tokens; /help lists the commands")
        terminal.answer('"""one\n')
        terminal.expect("... ")
        terminal.interrupt("Ctrl-D or /exit leaves")
        terminal.answer("hello\n")
        terminal.expect("cut after 3 tokens")
        terminal.answer("/stats\n")
        terminal.expect("10 prompt tokens, 3 new")
        terminal.answer("\x04")  # Ctrl-D
        assert terminal.process.wait(60) == 0, terminal.seen
    finally:
        terminal.close()


REFUSED = {
    "no-template": ([], ChatErrors.NO_TEMPLATE, {}),
    "threads": (["--threads", "0"], OptionRangeErrors.OUT_OF_RANGE, {"option": "--threads", "value": 0, "least": 1}),
    "interpreter": (
        ["--interpreter", "quantum"],
        ChoiceErrors.UNKNOWN,
        {"option": "--interpreter", "value": "quantum", "choices": ["native", "native-int8", "reference"]},
    ),
    "no-answer": (
        ["--max-new-tokens", "0"],
        OptionRangeErrors.OUT_OF_RANGE,
        {"option": "--max-new-tokens", "value": 0, "least": 1},
    ),
    "temperature": (["--temperature", "-1"], OptionRangeErrors.TOO_SMALL, {"value": -1.0}),
    "min-p": (["--min-p", "2"], OptionRangeErrors.OUT_OF_RANGE, {"option": "--min-p", "value": 2.0}),
}


@pytest.mark.parametrize(("words", "kind", "fields"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_one_line(
    words: list[str], kind: ErrorKind, fields: dict[str, Any], artifact: Path, capsys: Capture
) -> None:
    error = one_line(["chat", str(artifact), *words], capsys)
    check(error, kind, **fields)
    assert error.fields.get("artifact", str(artifact)) == str(artifact)


def test_the_alphabet_is_what_these_tests_expect() -> None:
    assert sorted(reply("u:hi;a:")) == sorted(ALPHABET)
