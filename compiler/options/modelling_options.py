"""Options of the modelled machine and of the modelled step, for commands that model time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.option import check_options, option
from sscc.ir.target import load_target

if TYPE_CHECKING:
    from sscc.ir.target import Target
    from sscc.runtime.session.artifact import Artifact

MODELLED = "modelled times"
"""Heading of the option group in help."""
MOST_VALUES = 256
"""Maximum number of values of a sweep."""


class ModellingErrors(ErrorKind):
    NOT_A_FIGURE = UsageError, "{option} must be NAME=VALUE, such as hbm.bandwidth=3.2e12, got {text!r}"
    NOT_A_SWEEP = (
        UsageError,
        "{option} must be NAME=VALUE,VALUE,.. or NAME=LOW..HIGH:COUNT with a count of 2 to {most}, got {text!r}",
    )


@dataclass(frozen=True)
class Sweep:
    """A figure of the target, and its values in order.

    Attributes:
        name: name of the figure, as in `Target.figures`.
        values: values in the units of the figure.
    """

    name: str
    values: tuple[float, ...]


def parse_figure(text: str, option: str = "--set") -> tuple[str, float]:
    """Return the name and the value of ``NAME=VALUE``. Raises UsageError for any other text."""
    name, equals, value = text.partition("=")
    try:
        if equals and name:
            return name.strip(), float(value)
    except ValueError:
        pass
    raise ModellingErrors.NOT_A_FIGURE(option=option, text=text)


def parse_sweep(text: str, option: str = "--sweep") -> Sweep:
    """Return the sweep of ``NAME=VALUE,VALUE,..`` or of ``NAME=LOW..HIGH:COUNT``, whose values are evenly spaced.

    Raises:
        UsageError: any other text, or too many values.
    """
    name, equals, listed = text.partition("=")
    low, dots, rest = listed.partition("..")
    try:
        if dots:
            high, _, count = rest.partition(":")
            first, last, steps = float(low), float(high), int(count)
            if not 2 <= steps <= MOST_VALUES:
                raise ValueError
            values = tuple(first + (last - first) * step / (steps - 1) for step in range(steps))
        else:
            values = tuple(float(value) for value in listed.split(","))
        if equals and name and len(values) <= MOST_VALUES:
            return Sweep(name.strip(), values)
    except ValueError:
        pass
    raise ModellingErrors.NOT_A_SWEEP(option=option, text=text, most=MOST_VALUES)


@dataclass(frozen=True)
class ModellingOptions:
    """Options of the modelled machine and of the modelled step. Raises UsageError for a value out of bounds."""

    target: str | None = option(
        None, "machine to model: rdu, rdu:NAME or rdu:FILE", "TARGET", group=MODELLED,
        default="the target of the compilation",
    )  # fmt: skip
    sockets: int | None = option(None, "sockets to model", "N", group=MODELLED, default="those of the machine", least=1)
    figures: tuple[str, ...] = option(
        (), "figure of the machine to change, named as in `sscc targets`: hbm.bandwidth=3.2e12; repeatable",
        "NAME=VALUE", group=MODELLED, flags=("--set",),
    )  # fmt: skip
    context: int | None = option(None, "tokens in each slot", "N", group=MODELLED, default="the longest context")
    prompt: int | None = option(
        None, "prompt tokens of the prefill to time", "N", group=MODELLED,
        default="none for `sscc inspect`, a chunk in a report",
    )  # fmt: skip
    staying: float = option(
        0.0, "share of the rows selected by a query that are already on chip from the previous step", "SHARE",
        group=MODELLED, least=0, most=1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self)

    def target_of(self, artifact: Artifact) -> Target:
        """Return the machine that the options describe; by default the one that the artifact was compiled for.

        Raises:
            UsageError: a figure that the machine does not have.
            InputError: a value that a figure cannot have, or a description that cannot be read.
        """
        target = artifact.target if self.target is None else load_target(self.target)
        target = target if self.sockets is None else target.with_sockets(self.sockets)
        return target.with_figures(dict(map(parse_figure, self.figures))) if self.figures else target
