"""The parser of the command line: commands, options and examples, and the errors for unknown words."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import sscc
from sscc.compiler.tools.commands.examples import EXAMPLES
from sscc.ir.errors import ErrorKind, UsageError, quoted
from sscc.ir.files import check_name
from sscc.ir.option import Option, flag_of, option, records_of
from sscc.ir.sizes import format_bytes, parse_bytes
from sscc.ir.suggestions import check_choice, did_you_mean

COMMANDS = {
    "compile": "compile a model into an artifact that `sscc run` executes",
    "run": "generate text from a model or an artifact, or replay an artifact's goldens",
    "serve": "serve a model or an artifact over HTTP, with OpenAI's protocol",
    "chat": "talk to a model or an artifact at a terminal",
    "inspect": "show the sizes of an artifact, and the bytes and modelled time of a decode step",
    "report": "write a page that shows an artifact: its kernels, memory, times and passes",
    "bench": "measure how fast a model or an artifact runs on this machine",
    "diff": "compare two artifacts or two dumps",
    "print": "print a dump or a schedule in readable form",
    "targets": "print every figure of the machine that programs are compiled for",
    "opt": "run passes on a dump and print the result",
    "eval": "measure the quality of a model with fixed KV budgets",
    "bisect": "find the first pass after which a model's outputs change",
    "pack": "write a checkpoint and its tokenizer into one .pt file",
    "cache": "list the files in sscc's cache folder, or remove them",
    "doctor": "examine this machine: versions, extras, CPU and memory",
    "completion": "print a script for completion of sscc's command lines in a shell",
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
    "eval": ("-o", "--tasks", "--lengths", "--examples", "--text", "--methods", "--budgets", "--kv-policy",
             "--kv-dtype", "--threads"),
    "bisect": ("-O", "--pass-pipeline", "--load-pass", "--checkpoint", "--no-weights", "--compile-to", "--tolerance",
               "--kv-budget", "--max-context", "--json"),
}  # fmt: skip
"""Options in `--help` of the commands with many options; `--help-all` shows every option."""
EXAMPLES_HEADING = "examples:"
REMOVED = {
    "--policy": "use --kv-policy",
    "--kv-landmark-bits": "use --kv-key-bits",
    "compile --verbose": "use --timing, --pass-statistics or --dump-ir-dir",
    "compile -v": "use --timing, --pass-statistics or --dump-ir-dir",
    "opt --no-verify-each": "the IR is always verified after each pass",
    "opt --reproducer": "a reproducer of a failing pass is written to the folder sscc-reproducer",
    "serve --ssl-keyfile-password": "set the environment variable SSCC_SSL_PASSWORD",
    "serve --prefill-key": "set the environment variable SSCC_PREFILL_KEY",
    "bisect --seed": "the seed of tokens and random weights is always 0",
    "run --slot": "a run has one sequence, in slot 0",
} | {
    f"{command} --batch": "the command decodes one sequence; use `sscc compile --batch` for several slots"
    for command in ("run", "chat")
} | {
    f"{command} --tp": "an artifact runs on the ranks of its compilation; use `sscc compile --tp`"
    for command in ("run", "serve", "chat", "bench", "diff")
}
"""Replacements of options of earlier versions. A key without a command applies to all commands."""


def removed_option(command: str, option: str) -> str | None:
    """Return the replacement of an option that a command ("sscc run") had in an earlier version; None for others."""
    return REMOVED.get(f"{command.removeprefix('sscc ')} {option}", REMOVED.get(option))


@dataclass(frozen=True)
class CommonOptions:
    """Options that most commands have."""

    quiet: bool = option(False, "print only errors and warnings on stderr", flags=("-q", "--quiet"))
    json: bool = option(False, "print one JSON object on stdout")


class CommandLineErrors(ErrorKind):
    INVALID = UsageError, "{reason} (see `{command} --help`)"
    INVALID_ARGUMENT = UsageError, "argument {option}: {cause} (see `{command} --help`)"
    UNKNOWN_OPTION = UsageError, "there is no option {option}{hint} (see `{command} --help`)"
    REMOVED = UsageError, "{option} was removed: {replacement}"
    UNKNOWN_COMMAND = UsageError, "there is no command {name!r}; the commands are {commands}{hint}"


class Parser(argparse.ArgumentParser):
    """Parser of a command. Its options are the fields of dataclasses (`sscc.ir.option`), whose bounds and choices it
    checks.

    A wrong command line is reported like every other user error: one line on stderr with the most similar valid word,
    and exit code 2.
    """

    first: tuple[str, ...] = ()
    """Options that `--help` shows; () for all."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._records: dict[str, tuple[str, Option]] = {}  # flag and record by the name of the field
        self._headings: dict[str, argparse._ActionsContainer] = {"": self}
        self._sets: dict[str, argparse._ActionsContainer] = {}

    def add_options(
        self,
        kind: type,
        names: Sequence[str] | None = None,
        *,
        heading: str | None = None,
        of_models: bool = False,
        **helps: str,
    ) -> None:
        """Add the options of a dataclass.

        Args:
            kind: dataclass whose fields are made with `option`.
            names: names of the fields to add; None for all that have a record.
            heading: heading in `--help` that replaces the records' headings.
            of_models: True if the defaults depend on the model on the command line.
            helps: help texts by field name that replace the records' texts.
        """
        records, hints = records_of(kind), get_type_hints(kind)
        defaults = {each.name: each.default for each in fields(kind)}
        for name in records if names is None else names:
            record = records[name]
            keywords = _keywords(record, hints[name], defaults[name])
            keywords["help"] = helps.get(name, record.described(of_models=of_models))
            if of_models and (record.default or record.model_default):
                keywords["default"] = None
            if of_models and record.model_choices:
                keywords["choices"] = record.model_choices
            flags = (name,) if record.positional else record.flags or (flag_of(name),)
            if not record.positional:
                keywords["dest"] = name
            place = self._under(record.group if heading is None else heading, record.one_of)
            place.add_argument(*flags, **keywords)
            self._records[name] = max(flags, key=len), record

    def _under(self, heading: str, one_of: str) -> argparse._ActionsContainer:
        """Return the argparse group of a heading, or the group of mutually exclusive options `one_of` in it."""
        if heading not in self._headings:
            self._headings[heading] = self.add_argument_group(heading)
        if not one_of:
            return self._headings[heading]
        if one_of not in self._sets:
            self._sets[one_of] = self._headings[heading].add_mutually_exclusive_group()
        return self._sets[one_of]

    def error(self, message: str) -> NoReturn:
        raise CommandLineErrors.INVALID(reason=quoted(message), command=self.prog)

    def add_help_options(self) -> None:
        """Add `--help`, and `--help-all` if `--help` hides options."""
        self.add_argument("-h", "--help", action=_ShowHelp, every=False, help="show this message")
        if self.first:
            self.add_argument("--help-all", action=_ShowHelp, every=True, help="show every option")

    def help_text(self, every: bool) -> str:
        """Return the help text.

        Args:
            every: show every option, not only those in `first`.
        """
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
        """Parse as argparse does. Raises UsageError for an unknown option, and for a value out of bounds."""
        parsed, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0]
                if replacement := removed_option(self.prog, name):
                    raise CommandLineErrors.REMOVED(option=name, replacement=replacement)
                hint = did_you_mean(name, self._option_string_actions)
                raise CommandLineErrors.UNKNOWN_OPTION(option=name, hint=hint, command=self.prog)
        for name, (flag, record) in self._records.items():
            record.check(flag, getattr(parsed, name, None))
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
    """Formatter of help texts that shows defaults uniformly and keeps the lines of examples."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return help_of(action).replace("%", "%%")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not text.startswith(EXAMPLES_HEADING):
            return super()._fill_text(text, width, indent)
        return textwrap.indent(text, indent)


def _keywords(record: Option, hint: Any, default: Any) -> dict[str, Any]:
    """Return the keywords of `add_argument` for a field of a type."""
    if record.inverted:
        return {"action": "store_false", "default": argparse.SUPPRESS if default is MISSING else default}
    if hint is bool:
        return {"action": "store_true"}
    keywords: dict[str, Any] = {"metavar": record.metavar}
    keywords["default"] = None if record.default or default is MISSING else default
    if record.words:
        keywords |= {"nargs": "*" if record.optional_value is not None else "+"}
        keywords |= {} if default else {"action": "extend", "default": None if default is None else []}
    elif record.optional_value is not None:
        keywords |= {"nargs": "?", "const": record.optional_value}
    elif record.parse is None and any(get_origin(kind) is tuple for kind in (hint, *get_args(hint))):
        keywords |= {"action": "append", "default": []}
    if record.positional and default is not MISSING:
        keywords["nargs"] = "?"
    elif not record.positional and default is MISSING:
        keywords["required"] = True
    readers = [kind for kind in _types(hint) if kind in (int, float, Path)]
    if record.parse is not None or readers:
        keywords["type"] = record.parse or readers[0]
    if record.values:
        keywords["choices"] = record.values
    return keywords


def _types(hint: Any) -> list[Any]:
    """Return the innermost arguments of a generic type; the type itself if it is not generic."""
    return [inner for part in get_args(hint) for inner in _types(part)] if get_args(hint) else [hint]


def help_of(action: argparse.Action) -> str:
    """Return the help of an option with the parser's default. A default that depends on the model, the machine or
    another option is already in the help text."""
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
    """Return the parser of all commands.

    Args:
        only: command to add options for, which saves the imports of the others; None for all.
    """
    purpose = "Compile language models for decoding with a compressed KV cache."
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
    """Return the parsers of the commands by name."""
    actions: Sequence[argparse.Action] = parser._actions
    return next(dict(action.choices) for action in actions if isinstance(action, argparse._SubParsersAction))


def _epilog(name: str) -> str:
    lines = [f"  # {what}\n  {line}" if what else f"  {line}" for what, line in EXAMPLES[name]]
    return "\n".join([EXAMPLES_HEADING, *lines])
