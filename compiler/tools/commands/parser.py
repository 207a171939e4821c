"""The parser of the command line: every command, its options and examples; what is said of words that do not exist."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import sscc
from sscc.compiler.tools.commands.examples import EXAMPLES
from sscc.ir.errors import ErrorKind, UsageError, quoted
from sscc.ir.files import check_name
from sscc.ir.sizes import format_bytes, parse_bytes
from sscc.ir.suggestions import check_choice, did_you_mean

COMMANDS = {
    "compile": "compile a model into an artifact that `sscc run` executes",
    "run": "generate text from a model or an artifact, or replay an artifact's goldens",
    "serve": "serve a model or an artifact over HTTP, with OpenAI's protocol",
    "chat": "talk to a model or an artifact at a terminal",
    "inspect": "tell what an artifact is and what a decode step moves",
    "report": "write a page that shows an artifact: its kernels, memory, times and passes",
    "bench": "measure how fast a model or an artifact runs on this machine",
    "diff": "tell in what two artifacts or two dumps differ",
    "print": "print a dump or a schedule as a person reads it",
    "targets": "print every figure of the machine that programs are compiled for",
    "opt": "run passes on a dump and print the result",
    "eval": "measure what a fixed KV budget costs in quality",
    "bisect": "name the first pass after which a model's outputs change",
    "pack": "write a checkpoint and its tokenizer into one .pt file",
    "cache": "list the files that sscc keeps for later, or remove them",
    "doctor": "tell what sscc finds on this machine",
    "completion": "print a script that completes sscc's command lines in a shell",
}
_MODEL = ("--kv-budget", "--max-context", "--weights")
_DRAWN = ("--max-new-tokens", "--temperature")
FIRST: dict[str, tuple[str, ...]] = {
    "compile": ("-o", "--target", "--no-weights", "--lora", "--kv-policy", "--batch", "--dtype", *_MODEL),
    "run": ("--prompt", "--prompt-file", *_DRAWN, "--seed", *_MODEL, "--check", "--show-kept"),
    "serve": ("--port", "--host", "--api-key", "--batch", *_MODEL, "--max-queue", "--prompt-cache", "--threads"),
    "chat": ("--system", *_DRAWN, "--top-p", "--seed", *_MODEL, "--lora", "--threads"),
    "inspect": ("--json", "--stages", "--target", "--sockets", "--set", "--context", "--prompt", "--sweep", "--plot",
                "--trace"),
    "report": ("-o", "--dot", "--model-explorer", "--bench", "--ir-dir", "--prompt-file", "--target", "--set",
               "--context", "--prompt"),
    "bench": ("--prompt-tokens", "--new-tokens", "--depth", "--batch", "--repetitions", *_MODEL, "--threads", "--json"),
    "diff": ("--json", "--all", "--target", "--context", "--prompt", "--prompt-file", "--token-ids", "--max-new-tokens",
             "--checkpoint", "--threads"),
    "opt": ("-o", "--pass-pipeline", "--load-pass", "--list-passes", "--explain", "--split-input-file",
            "--verify-diagnostics", "--print-ir-after", "--ir-function", "--timing"),
    "eval": ("-o", "--tasks", "--lengths", "--examples", "--text", "--methods", "--budgets", "--policy", "--kv-dtype",
             "--threads"),
    "bisect": ("-O", "--pass-pipeline", "--load-pass", "--checkpoint", "--no-weights", "--compile-to", "--tolerance",
               "--kv-budget", "--max-context", "--json"),
}  # fmt: skip
"""Options that `--help` of a command shows; `--help-all` shows every option. Other commands have few."""
EXAMPLES_HEADING = "examples:"


class CommandLineErrors(ErrorKind):
    INVALID = UsageError, "{reason} (see `{command} --help`)"
    INVALID_ARGUMENT = UsageError, "argument {option}: {cause} (see `{command} --help`)"
    UNKNOWN_OPTION = UsageError, "there is no option {option}{hint} (see `{command} --help`)"
    UNKNOWN_COMMAND = UsageError, "there is no command {name!r}; the commands are {commands}{hint}"


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line like every other mistake of the user: in one line, with exit code 2, and with the
    word that was probably meant."""

    first: tuple[str, ...] = ()
    """Options that `--help` shows; () for all."""

    def error(self, message: str) -> NoReturn:
        raise CommandLineErrors.INVALID(reason=quoted(message), command=self.prog)

    def add_help_options(self) -> None:
        """Add `--help`, and `--help-all` where `--help` shows a part of the options."""
        self.add_argument("-h", "--help", action=_ShowHelp, every=False, help="show this message")
        if self.first:
            self.add_argument("--help-all", action=_ShowHelp, every=True, help="show every option")

    def help_text(self, every: bool) -> str:
        """Return the help, with every option or with `first` alone."""
        shown = {*self.first, "-h", "--help-all"}
        hidden = [
            (action, action.help)
            for action in self._actions
            if self.first and not every and action.option_strings and shown.isdisjoint(action.option_strings)
        ]
        more = f"\n{len(hidden)} more options: {self.prog} --help-all\n" if hidden else ""
        try:
            for action, _ in hidden:
                action.help = argparse.SUPPRESS
            return self.format_help() + more
        finally:
            for action, text in hidden:
                action.help = text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which every command's parser goes through. Raises UsageError for an option that none has."""
        parsed, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0]
                hint = did_you_mean(name, self._option_string_actions)
                raise CommandLineErrors.UNKNOWN_OPTION(option=name, hint=hint, command=self.prog)
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction):
            if value not in COMMANDS:
                likely = did_you_mean(str(value), COMMANDS)
                raise CommandLineErrors.UNKNOWN_COMMAND(name=str(value), commands=list(COMMANDS), hint=likely)
        elif action.choices is not None:
            check_choice(_name(action), value, tuple(action.choices))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            value = super()._get_value(action, arg_string)
            if isinstance(value, Path):
                check_name(value)
            return value
        except UsageError as error:
            raise CommandLineErrors.INVALID_ARGUMENT(option=_name(action), cause=error, command=self.prog) from None


class _ShowHelp(argparse.Action):
    """`--help` and `--help-all`.

    Args:
        every: show every option.
    """

    def __init__(self, option_strings: Sequence[str], every: bool, help: str, **others: Any) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)
        self._every = every

    def __call__(self, parser: argparse.ArgumentParser, *others: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        print(parser.help_text(self._every), end="")
        parser.exit()


class Formatter(argparse.HelpFormatter):
    """Help in which every default is told, in one way, and examples keep their lines."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return help_of(action).replace("%", "%%")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not text.startswith(EXAMPLES_HEADING):
            return super()._fill_text(text, width, indent)
        return textwrap.indent(text, indent)


def help_of(action: argparse.Action) -> str:
    """What an option does, and its default: the parser's, and where only a model, a machine or another option decides
    it, what the help says of it itself."""
    text = action.help or ""
    takes_value = action.option_strings and action.nargs != 0
    if not takes_value or action.default in (None, argparse.SUPPRESS, [], ()):
        return text
    return f"{text} (default: {_shown(action)})"


def _shown(action: argparse.Action) -> str:
    default: Any = action.default
    if action.type is parse_bytes:
        return format_bytes(default)
    if isinstance(default, float):
        return f"{default:g}"
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def _name(action: argparse.Action) -> str:
    return max(action.option_strings, key=len, default=str(action.metavar or action.dest))


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of every command, or of one alone, which spares the time to import the others."""
    purpose = "Compiles language models for decoding over a compressed KV cache."
    parser = Parser(prog="sscc", description=purpose, formatter_class=Formatter, epilog=_epilog("sscc"))
    parser.add_argument("--version", action="version", version=f"sscc {sscc.__version__}")
    common = Parser(add_help=False)
    common.add_argument(
        "--traceback", action="store_true", help="show Python's traceback of an error (SSCC_TRACEBACK=1)"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            parents=[common],
            formatter_class=Formatter,
            epilog=_epilog(name),
            add_help=False,
        )
        assert isinstance(command, Parser)
        command.first = FIRST.get(name, ())
        command.add_help_options()
        if only in (None, name):
            importlib.import_module(f"sscc.compiler.tools.commands.{name}").add_arguments(command)
    return parser


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by its name."""
    actions: Sequence[argparse.Action] = parser._actions
    return next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))


def _epilog(name: str) -> str:
    lines = [f"  # {what}\n  {line}" if what else f"  {line}" for what, line in EXAMPLES[name]]
    return "\n".join([EXAMPLES_HEADING, *lines])
