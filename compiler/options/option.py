"""Records of options: one record says everything about an option, and parsers, checks and references derive from it.

A record stands in the metadata of a dataclass field, which gives the option its name, type and default::

    @dataclass(frozen=True)
    class Options:
        batch: int | None = option(None, "sequences that decode together", "B", least=1)

`add_options` adds the options of a dataclass to a parser, and `check_options` checks their bounds and choices.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from sscc.ir.errors import ErrorKind
from sscc.ir.suggestions import check_choice

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """An option of a command and of its function in Python.

    Attributes:
        help: a phrase for `--help` and the reference.
        metavar: name of its value in help.
        group: heading under which help lists it; "" for none.
        default: the default in words, where only a model or a machine decides it.
        model_help, model_default, model_choices: help, default and choices of commands that compile a model on the way,
            where they are others.
        least: smallest value of a number.
        choices: the values that it may have; called for them if they depend on what is installed.
        flags: its names on the command line; () for `--name`. A name that begins with `--no-` sets it to False.
        inverted: True for a switch that is on by default.
        of_models: True for commands that take a model in place of an artifact, too.
        rows: True if it decides which rows a layer keeps that attends to all positions.
        in_dump: True if a dump holds its effect, so that a compilation from a dump cannot change it.
        identity: True if it is part of a program's identity: another value gives another program.
    """

    help: str
    metavar: str | None = None
    group: str = ""
    default: str = ""
    model_help: str = ""
    model_default: str = ""
    model_choices: Sequence[Any] = ()
    least: int | None = None
    choices: Sequence[Any] | Callable[[], Sequence[Any]] = ()
    flags: tuple[str, ...] = ()
    inverted: bool = False
    of_models: bool = False
    rows: bool = False
    in_dump: bool = False
    identity: bool = True

    @property
    def values(self) -> Sequence[Any]:
        """The values that it may have; () for any."""
        return self.choices() if callable(self.choices) else self.choices

    def described(self, *, of_models: bool = False) -> str:
        """Return the help with the default in words.

        Args:
            of_models: for a command that compiles a model on the way.
        """
        help, default = self.help, self.default
        if of_models:
            help, default = self.model_help or help, self.model_default or default
        return f"{help} (default: {default})" if default else help


def option(value: Any, /, help: str, metavar: str | None = None, **record: Any) -> Any:
    """Return a dataclass field with the record of an option.

    Args:
        value: default of the field, or a function without arguments that gives it.
        help, metavar, record: see `Option`.
    """
    metadata = {_KEY: Option(help, metavar, **record)}
    if callable(value):
        return field(default_factory=value, metadata=metadata)
    return field(default=value, metadata=metadata)


def records_of(kind: type) -> dict[str, Option]:
    """Return the records of a dataclass by field name, in their order."""
    return {each.name: each.metadata[_KEY] for each in dataclasses.fields(kind) if _KEY in each.metadata}


def flag_of(name: str, record: Option | None = None) -> str:
    """Return the longest name of an option on the command line."""
    flags = record.flags if record is not None else ()
    return max(flags, key=len) if flags else f"--{name.replace('_', '-')}"


def add_options(
    parser: argparse._ActionsContainer,
    kind: type,
    names: Sequence[str],
    *,
    of_models: bool = False,
    batch: int | None = None,
) -> None:
    """Add options of a dataclass to a parser or a group of one.

    Args:
        names: names of the fields.
        of_models: for a command that compiles a model on the way.
        batch: default of `batch` there.
    """
    records, hints = records_of(kind), get_type_hints(kind)
    defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    for name in names:
        record = records[name]
        help = record.described(of_models=of_models)
        if name == "batch" and batch is not None:
            help = f"{record.help} (default: {batch})"
        flags = record.flags or (flag_of(name),)
        keywords = _keywords(record, hints[name], defaults[name])
        if of_models:
            keywords |= {"default": None} | ({"choices": record.model_choices} if record.model_choices else {})
        parser.add_argument(*flags, dest=name, help=help, **keywords)


def _keywords(record: Option, hint: Any, default: Any) -> dict[str, Any]:
    """Return the keywords of `add_argument` for a field of a type."""
    if record.inverted:
        return {"action": "store_false", "default": argparse.SUPPRESS if default is dataclasses.MISSING else default}
    if hint is bool:
        return {"action": "store_true"}
    keywords: dict[str, Any] = {"metavar": record.metavar, "default": None if record.default else default}
    if hint == tuple[str, ...]:
        return {**keywords, "action": "append", "default": []}
    kinds = [kind for kind in (hint, *get_args(hint)) if kind in (int, float, Path)]
    if kinds:
        keywords["type"] = kinds[0]
    if record.values:
        keywords["choices"] = record.values
    return keywords


def check_options(values: Any, too_small: ErrorKind) -> None:
    """Check bounds and choices of a dataclass's options.

    Args:
        too_small: kind of error of a number below its bound, with the fields `option`, `value` and `least`.

    Raises:
        UsageError: a value is out of range, or none of the choices.
    """
    for name, record in records_of(type(values)).items():
        value = getattr(values, name)
        if value is None:
            continue
        if record.least is not None and value < record.least:
            raise too_small(option=flag_of(name, record), value=value, least=record.least)
        if record.values:
            check_choice(flag_of(name, record), value, tuple(record.values))


def described_fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and description of each option of a dataclass, for the reference."""
    types: Mapping[str, str] = kind.__annotations__
    for name, record in records_of(kind).items():
        yield name, str(types[name]), f"False: {record.described()}" if record.inverted else record.described()
