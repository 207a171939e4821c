"""Records of options: one record says everything about an option, and parsers, checks and references derive from it.

A record stands in the metadata of a dataclass field, which gives the option its name, type and default::

    @dataclass(frozen=True)
    class Options:
        batch: int | None = option(None, "sequences that decode together", "B", least=1)

`check_options` checks the bounds and choices of such a dataclass, and `options_of` makes one of a parsed command line.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, TypeVar

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.suggestions import check_choice

_KEY = "option"
FINITE = sys.float_info.max
"""The bound of a number that may be as large as it likes."""

T = TypeVar("T")


class OptionRangeErrors(ErrorKind):
    TOO_SMALL = UsageError, "{option} is {value}, it must be at least {least}"
    OUT_OF_RANGE = UsageError, "{option} is {value:.12g}, it must be at least {least:.12g} and at most {most:.12g}"
    NOT_ABOVE = UsageError, "{option} is {value:.12g}, it must be above {least:.12g} and at most {most:.12g}"


@dataclass(frozen=True)
class Option:
    """An option of commands and of a function in Python.

    Attributes:
        help: a phrase for `--help` and the reference, which begins with a noun or a verb.
        metavar: name of its value in help.
        group: heading under which help lists it; "" for none.
        default: the default in words, where only a model or a machine decides it.
        model_help, model_default, model_choices: help, default and choices of commands that compile a model on the way,
            where they are others.
        least, most: bounds of a number. An option with `most` has `least`, too.
        exclusive: True if the number must be above `least`.
        choices: the values that it may have; called for them if they depend on what is installed.
        parse: reads the value from text; None for the reader of its type.
        flags: its names on the command line; () for `--name`. A name that begins with `--no-` sets it to False.
        positional: True for an argument that has a place instead of a flag.
        words: True if one flag takes several values, which `tuple` options otherwise take from several flags.
        optional_value: the value of a flag without one; None if it needs one.
        one_of: name of a set of options of which a command line has one at most; "" for none.
        inverted: True for a switch that is on by default.
        of_models: True for commands that take a model in place of an artifact, too.
        rows: True if it decides which rows a layer keeps that attends to all positions.
        in_dump: True if a dump holds its effect, so that a compilation from a dump cannot change it.
        identity: True if it is part of the identity of a program, or of the results of an evaluation: another value
            gives another one.
    """

    help: str
    metavar: str | None = None
    group: str = ""
    default: str = ""
    model_help: str = ""
    model_default: str = ""
    model_choices: Sequence[Any] = ()
    least: float | None = None
    most: float | None = None
    exclusive: bool = False
    choices: Sequence[Any] | Callable[[], Sequence[Any]] = ()
    parse: Callable[[str], Any] | None = None
    flags: tuple[str, ...] = ()
    positional: bool = False
    words: bool = False
    optional_value: Any = None
    one_of: str = ""
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

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a number out of bounds and for a value that is none of the choices; None is neither.

        Args:
            name: the option in an error.
            value: one value, or a list or tuple of them.
        """
        choices = tuple(self.values)
        for each in value if isinstance(value, list | tuple) else (value,):
            if each is None:
                continue
            if self.least is not None:
                self._check_bounds(name, each, self.least)
            if choices:
                check_choice(name, each, choices)

    def _check_bounds(self, name: str, number: float, least: float) -> None:
        if self.most in (None, FINITE) and number < least and not self.exclusive:
            raise OptionRangeErrors.TOO_SMALL(option=name, value=number, least=least)
        if self.most is None:
            return
        if not least <= number <= self.most or (self.exclusive and number == least):
            kind = OptionRangeErrors.NOT_ABOVE if self.exclusive else OptionRangeErrors.OUT_OF_RANGE
            raise kind(option=name, value=_bounded(number), least=least, most=self.most)


def option(value: Any, /, help: str, metavar: str | None = None, **record: Any) -> Any:
    """Return a dataclass field with the record of an option.

    Args:
        value: default of the field, a function without arguments that gives it, or `MISSING` for an option that a
            command line must have.
        help, metavar, record: see `Option`.
    """
    metadata = {_KEY: Option(help, metavar, **record)}
    if value is MISSING:
        return field(metadata=metadata)
    if callable(value):
        return field(default_factory=value, metadata=metadata)
    return field(default=value, metadata=metadata)


def option_like(kind: type, name: str, value: Any, **changes: Any) -> Any:
    """Return a dataclass field with the record of another dataclass's option, its flag and another default.

    Args:
        value: default of the field.
        changes: other attributes of the record.
    """
    record = records_of(kind)[name]
    flags = record.flags or (flag_of(name),)
    return field(default=value, metadata={_KEY: dataclasses.replace(record, **({"flags": flags} | changes))})


def records_of(kind: type) -> dict[str, Option]:
    """Return the records of a dataclass by field name, in their order."""
    return {each.name: each.metadata[_KEY] for each in dataclasses.fields(kind) if _KEY in each.metadata}


def flag_of(name: str, record: Option | None = None) -> str:
    """Return the longest name of an option on the command line."""
    flags = record.flags if record is not None else ()
    return max(flags, key=len) if flags else f"--{name.replace('_', '-')}"


def options_of(kind: type[T], parsed: object, **others: Any) -> T:
    """Return a dataclass of options with the values of a parsed command line. Raises as the dataclass.

    Args:
        parsed: has an attribute for each option of the command.
        others: values of other fields.
    """
    values = {name: getattr(parsed, name) for name in records_of(kind) if hasattr(parsed, name)}
    listed = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**(listed | others))


def check_options(values: Any, *, as_flags: bool = True) -> None:
    """Check bounds and choices of a dataclass's options.

    Args:
        as_flags: name options as the command line does, "--max-queue" for `max_queue`.

    Raises:
        UsageError: a value is out of range, or none of the choices.
    """
    for name, record in records_of(type(values)).items():
        record.check(flag_of(name, record) if as_flags else name, getattr(values, name))


def described_fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and description of each option of a dataclass, for the reference."""
    for each in dataclasses.fields(kind):
        record: Option | None = each.metadata.get(_KEY)
        if record is not None:
            text = record.described()
            if not record.default and type(each.default) in (int, float, str):
                text += f" (default: {each.default})"
            yield each.name, str(each.type), f"False: {text}" if record.inverted else text


def _bounded(value: float) -> float:
    """Return an integer beyond what a float holds as an infinite one, which formats."""
    try:
        float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value
