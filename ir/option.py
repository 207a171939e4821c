"""Option records: the single description of each option, from which parsers, checks and the reference are derived.

A record is kept in the metadata of a dataclass field, whose name, type and default are those of the option::

    @dataclass(frozen=True)
    class Options:
        batch: int | None = option(None, "sequences decoded together", "B", least=1)

`check_options` checks the bounds and choices of such a dataclass, and `options_of` builds one from a parsed command
line.
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
"""Value of `most` for a number without an upper bound."""

T = TypeVar("T")


class OptionRangeErrors(ErrorKind):
    TOO_SMALL = UsageError, "{option} must be at least {least}, got {value}"
    OUT_OF_RANGE = UsageError, "{option} must be at least {least:.12g} and at most {most:.12g}, got {value:.12g}"
    NOT_ABOVE = UsageError, "{option} must be above {least:.12g} and at most {most:.12g}, got {value:.12g}"


@dataclass(frozen=True)
class Option:
    """An option of commands and of a function in Python.

    Attributes:
        help: phrase for `--help` and the reference; begins with a noun or a verb.
        metavar: placeholder for the value in help.
        group: heading of its group in help; "" for none.
        default: description of a default that depends on the model or the machine.
        model_help, model_default, model_choices: help, default and choices for commands that compile a model
            implicitly, if they differ.
        least, most: bounds of a number. `most` requires `least`.
        exclusive: True if the number must be greater than `least`.
        choices: allowed values, or a function that returns them if they depend on installed packages.
        parse: converts text to the value; None for the converter of its type.
        flags: names on the command line; () for `--name`. A flag that begins with `--no-` sets the option to False.
        positional: True for a positional argument.
        words: True if one flag takes several values; otherwise the flag of a `tuple` option is repeated.
        optional_value: value of the flag without an argument; None if the flag needs one.
        one_of: name of a set of mutually exclusive options; "" for none.
        inverted: True for a switch that is on by default.
        of_models: True if commands that accept a model in place of an artifact have this option, too.
        rows: True if it affects the selection of cache rows in layers with full attention.
        in_dump: True if dumps record its effect, so that compilation from a dump cannot change it.
        identity: True if a different value gives a different program, or different results of an evaluation.
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
        """The allowed values; () for any."""
        return self.choices() if callable(self.choices) else self.choices

    def described(self, *, of_models: bool = False) -> str:
        """Return the help text, with the default if it is described in words.

        Args:
            of_models: True for a command that compiles a model implicitly.
        """
        help, default = self.help, self.default
        if of_models:
            help, default = self.model_help or help, self.model_default or default
        return f"{help} (default: {default})" if default else help

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a number out of bounds, or a value that is not one of the choices. None is always valid.

        Args:
            name: name of the option in the error.
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
        value: default of the field, a function without arguments that returns it, or `MISSING` for a required option.
        help, metavar, record: see `Option`.
    """
    metadata = {_KEY: Option(help, metavar, **record)}
    if value is MISSING:
        return field(metadata=metadata)
    if callable(value):
        return field(default_factory=value, metadata=metadata)
    return field(default=value, metadata=metadata)


def option_like(kind: type, name: str, value: Any, **changes: Any) -> Any:
    """Return a dataclass field with the record and the flag of another dataclass's option, and a new default.

    Args:
        value: default of the field.
        changes: attributes of the record to replace.
    """
    record = records_of(kind)[name]
    flags = record.flags or (flag_of(name),)
    return field(default=value, metadata={_KEY: dataclasses.replace(record, **({"flags": flags} | changes))})


def records_of(kind: type) -> dict[str, Option]:
    """Return the records of a dataclass by field name, in the order of the fields."""
    return {each.name: each.metadata[_KEY] for each in dataclasses.fields(kind) if _KEY in each.metadata}


def flag_of(name: str, record: Option | None = None) -> str:
    """Return the longest name of an option on the command line."""
    flags = record.flags if record is not None else ()
    return max(flags, key=len) if flags else f"--{name.replace('_', '-')}"


def options_of(kind: type[T], parsed: object, **others: Any) -> T:
    """Return an instance of a dataclass of options, with the values of a parsed command line. Raises its errors.

    Args:
        parsed: namespace with an attribute for each option of the command.
        others: values of other fields.
    """
    values = {name: getattr(parsed, name) for name in records_of(kind) if hasattr(parsed, name)}
    listed = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**(listed | others))


def check_options(values: Any, *, as_flags: bool = True) -> None:
    """Check the bounds and choices of the options of a dataclass instance.

    Args:
        as_flags: True if errors name options as on the command line: "--max-queue" for `max_queue`.

    Raises:
        UsageError: a value is out of range, or not one of the choices.
    """
    for name, record in records_of(type(values)).items():
        record.check(flag_of(name, record) if as_flags else name, getattr(values, name))


def described_fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the name, type and description of each option of a dataclass, for the reference."""
    for each in dataclasses.fields(kind):
        record: Option | None = each.metadata.get(_KEY)
        if record is not None:
            text = record.described()
            if not record.default and type(each.default) in (int, float, str):
                text += f" (default: {each.default})"
            yield each.name, str(each.type), f"False: {text}" if record.inverted else text


def _bounded(value: float) -> float:
    """Return `value`, or an infinity for an integer beyond the range of floats, which could not be formatted."""
    try:
        float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value
