"""`sscc chat`: a conversation with a model at a terminal or through a pipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from sscc.compiler.options.execution_options import ExecutionOptions, SpeculationOptions
from sscc.compiler.options.progress import status
from sscc.compiler.tools.commands.engines import (
    followed,
    log_to_stderr,
    open_artifact,
    opened_speculation,
    session_of,
    tokenizer_and_template,
)
from sscc.compiler.tools.commands.generation import GENERATION, sampling_of
from sscc.compiler.tools.commands.model_arguments import (
    ModelArgument,
    add_compilation_options,
    announce,
    name_of,
    resolve_model,
)
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.errors import ErrorKind, InputError, InternalError, UsageError
from sscc.ir.option import option, options_of
from sscc.ir.terminal import shown_text
from sscc.runtime.session.sampling import Sampling
from sscc.runtime.support.serving_options import MOST_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from sscc.runtime.serving.engine import Completion, Engine
    from sscc.runtime.text.chat_template import ChatTemplate

QUOTES = '"""'
SCARCE = 0.25
"""Share of the context below which the number of remaining tokens is shown before every answer."""

HELP = f"""\
/reset         start a new conversation with the same system message
/system TEXT   set the system message and start a new conversation; "-" removes it, no TEXT shows it
/stats         figures of the last answer
/exit          leave; so does Ctrl-D
{QUOTES}            begins and ends a message of several lines
//             begins a message whose first character is /
Ctrl-C stops an answer; its text up to there stays in the conversation."""


class ChatErrors(ErrorKind):
    NO_TEMPLATE = InputError, "{artifact} has no chat template, so it cannot chat: use sscc run --prompt"
    NO_ROOM = (
        UsageError,
        "the conversation has {tokens} tokens, which leaves no room for an answer in a context of {context}; the "
        "message was not sent (/reset starts a new conversation)",
    )
    ENGINE_FAILED = InternalError, "the engine failed while it generated the answer"


@dataclass(frozen=True)
class ChatOptions:
    """Options of a conversation."""

    system: str | None = option(None, "system message of the conversation", "TEXT")
    max_new_tokens: int | None = option(
        None, "maximum tokens of an answer", "N", group=GENERATION, default="the rest of the context", least=1,
        most=MOST_TOKENS,
    )


def add_arguments(parser: Parser) -> None:
    parser.add_options(ModelArgument)
    parser.add_options(ChatOptions)
    parser.add_options(CommonOptions, ["quiet"])
    parser.add_options(Sampling, heading=GENERATION, of_models=True)
    add_compilation_options(parser)
    parser.add_options(SpeculationOptions)
    parser.add_options(ExecutionOptions)


def main(args: argparse.Namespace) -> int:
    execution = options_of(ExecutionOptions, args)
    log_to_stderr(args.quiet)
    from sscc.runtime.serving.engine import Engine

    resolve_model(args)
    if followed(args.artifact, execution):
        return 0
    artifact = open_artifact(args.artifact, verify=execution.digests)
    announce(args, artifact)
    sampling = sampling_of(args, artifact)
    tokenizer, template = tokenizer_and_template(artifact)
    if template is None:
        raise ChatErrors.NO_TEMPLATE(artifact=artifact.path)
    geometry = artifact.signature.geometry
    drafts = opened_speculation(options_of(SpeculationOptions, args), execution, artifact.signature)
    with (
        closing(session_of(artifact, execution)) as session,
        drafts as speculation,
        Engine(session, tokenizer, speculation=speculation) as engine,
    ):
        if sys.stdin.isatty() and not args.quiet:
            _say(f"{name_of(args)}: a context of {geometry.max_context} tokens; /help lists the commands")
        chat = Chat(engine, tokenizer, template, sampling, geometry.max_context, args.max_new_tokens, args.system)
        with suppress(_Exit):
            for text in read_messages():
                try:
                    chat.take(text)
                except KeyboardInterrupt:  # a second Ctrl-C, or one before the answer began
                    print(file=sys.stderr)
    return 0


class _Exit(Exception):
    """The user leaves the conversation."""


class Chat:
    """A conversation. Every answer prefills the whole conversation, because the rows of a compressed cache are selected
    for one prompt. If the program can continue a cached prompt, only the last answer and the new message are prefilled.

    Args:
        engine: engine that generates the answers.
        tokenizer: tokenizer of the model.
        template: chat template of the model.
        sampling: sampling parameters of the answers.
        max_context: maximum number of tokens of the conversation and the next answer together.
        max_new_tokens: maximum number of tokens of an answer; None for the rest of the context.
        system: system message; None for none.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        sampling: Sampling,
        max_context: int,
        max_new_tokens: int | None = None,
        system: str | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._template = template
        self._sampling = sampling
        self._max_context = max_context
        self._max_new_tokens = max_new_tokens
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._last: Completion | None = None

    def take(self, text: str) -> None:
        """Execute a command, or answer a message on stdout. Raises the errors of the engine."""
        if text.startswith("//"):
            self._answer(text[1:])
        elif text.startswith("/"):
            self._command(*text[1:].partition(" ")[::2])
        elif text.strip():
            self._answer(text)

    # -- answers

    def _answer(self, text: str) -> None:
        """Answer a message. A message without an answer is removed from the conversation."""
        self._turns.append({"role": "user", "content": text})
        try:
            answer = self._stream(self._room())
        except UsageError as error:
            _say(str(error))
            answer = ""
        if answer:
            self._turns.append({"role": "assistant", "content": answer})
        else:
            self._turns.pop()

    def _room(self) -> tuple[tuple[int, ...], int]:
        """Return the conversation as tokens, and the maximum length of the answer. Raises UsageError if that is 0."""
        prompt = tuple(self._template.encode(self._tokenizer, self._messages()))
        room = self._max_context - len(prompt)
        if room < 1:
            raise ChatErrors.NO_ROOM(tokens=len(prompt), context=self._max_context)
        if room < SCARCE * self._max_context or (self._max_new_tokens is not None and room < self._max_new_tokens):
            _say(f"{room} of {self._max_context} tokens of context remain")
        return prompt, room if self._max_new_tokens is None else min(room, self._max_new_tokens)

    def _stream(self, prompt_and_room: tuple[tuple[int, ...], int]) -> str:
        """Print an answer while it is generated, and return its text up to the point where the user stopped it."""
        from sscc.runtime.serving.engine import Request

        prompt, room = prompt_and_room
        handle = self._engine.submit(Request(prompt=prompt, max_new_tokens=room, sampling=self._sampling))
        texts: list[str] = []
        try:
            pieces = handle.pieces()
            with status(f"reading a prompt of {len(prompt)} tokens"):
                begin = list(islice(pieces, 1))
            for piece in chain(begin, pieces):
                texts.append(piece.text)
                print(shown_text(piece.text, sys.stdout), end="", flush=True)
        except KeyboardInterrupt:
            handle.cancel()
            print()
            _say("stopped")
            return "".join(texts)
        except BaseException:
            handle.cancel()
            raise
        print(flush=True)
        self._last = handle.result()
        if self._last.finish == "length":
            _say(f"cut after {len(self._last.tokens)} tokens")
        elif self._last.finish == "error":
            raise ChatErrors.ENGINE_FAILED()
        return "".join(texts)

    def _messages(self) -> list[dict[str, str]]:
        return [*([] if self._system is None else [{"role": "system", "content": self._system}]), *self._turns]

    # -- commands

    def _command(self, name: str, rest: str) -> None:
        if name == "reset":
            self._turns.clear()
            _say("the conversation is cleared")
        elif name == "system":
            self._set_system(rest.strip())
        elif name == "stats":
            _say("there is no answer yet" if self._last is None else "\n      ".join(_figures(self._last)))
        elif name == "help":
            print(HELP, file=sys.stderr)
        elif name in ("exit", "quit"):
            raise _Exit
        else:
            _say(f"there is no command /{name}: /help lists them, // begins a message with /")

    def _set_system(self, text: str) -> None:
        if text:
            self._system = None if text == "-" else text
            self._turns.clear()
            _say(f"new conversation with{' this' if self._system else 'out a'} system message")
        else:
            _say(f"the system message is: {self._system}" if self._system else "there is no system message")


def _figures(done: Completion) -> Iterator[str]:
    known = f" ({done.cached_tokens} of them cached)" if done.cached_tokens else ""
    yield f"{done.prompt_tokens} prompt tokens{known}, {len(done.tokens)} new ({done.finish})"
    length = done.kept_rows + done.evicted_rows
    yield f"{done.kept_rows} of {length} positions kept in the cache, {done.evicted_rows} evicted"
    rest = done.seconds - done.first_token_seconds
    speed = f", then {(len(done.tokens) - 1) / rest:.2f} tokens/s" if len(done.tokens) > 1 and rest > 0 else ""
    yield f"first token after {done.first_token_seconds:.2f} s{speed}"


def _say(text: str) -> None:
    """Print a message of sscc itself to stderr, so that stdout has only the answers."""
    print(f"sscc: {text}", file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------------------------- input


def read_messages() -> Iterator[str]:
    """Yield the messages of a terminal or a pipe until the end of input: single lines, or lines between triple
    quotes."""
    typed = sys.stdin.isatty()
    if typed:
        with suppress(ImportError):
            import readline  # noqa: F401  (input() edits and remembers lines with it)
    read = _typed if typed else _piped
    while True:
        try:
            text = read("> ")
            if text is not None and text.startswith(QUOTES):
                text = _block(text, read)
        except KeyboardInterrupt:
            if not typed:
                raise
            print(file=sys.stderr)
            _say("Ctrl-D or /exit leaves")
            continue
        if text is None:
            return
        yield text


def _block(first: str, read: Callable[[str], str | None]) -> str:
    """Return the text between triple quotes, or up to the end of input."""
    text = first.removeprefix(QUOTES)
    while not text.endswith(QUOTES):
        line = read("... ")
        if line is None:
            break
        text = f"{text}\n{line}"
    return text.removesuffix(QUOTES).strip("\n")


def _typed(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        print(file=sys.stderr)
        return None


def _piped(prompt: str) -> str | None:
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None
