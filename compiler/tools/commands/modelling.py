"""Options of the machine that is modelled and of the work of a step, for the commands that model time."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.target import load_target

if TYPE_CHECKING:
    from sscc.ir.target import Target
    from sscc.runtime.session.artifact import Artifact

MOST_VALUES = 256
"""Values of one sweep."""


class ModellingErrors(ErrorKind):
    NOT_A_FIGURE = UsageError, "{option} is {text!r}, but it must be NAME=VALUE, such as hbm.bandwidth=3.2e12"
    NOT_A_SWEEP = (
        UsageError,
        "{option} is {text!r}, but it must be NAME=VALUE,VALUE,.. or NAME=LOW..HIGH:COUNT with a count of 2 to {most}",
    )


@dataclass(frozen=True)
class Sweep:
    """A figure of the target, and the values that it takes one after another.

    Attributes:
        name: as in `Target.figures`.
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


def add_modelling_arguments(parser: argparse._ActionsContainer, *, prompt: str) -> None:
    """Add the options.

    Args:
        prompt: help of --prompt.
    """
    parser.add_argument(
        "--target", metavar="TARGET", help="machine to model: rdu, rdu:NAME or rdu:FILE (default: of the compilation)"
    )
    parser.add_argument("--sockets", type=int, metavar="N", help="sockets to model (default: the machine's)")
    parser.add_argument(
        "--set",
        dest="figures",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a figure of the machine, as `sscc targets` names it: hbm.bandwidth=3.2e12; repeatable",
    )
    parser.add_argument("--context", type=int, metavar="N", help="tokens in each slot (default: the longest context)")
    parser.add_argument("--prompt", type=int, metavar="N", help=prompt)
    parser.add_argument(
        "--staying",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the rows that each step's query chooses, the share that stays near from the step before",
    )


def target_of(artifact: Artifact, args: argparse.Namespace) -> Target:
    """Return the machine that the options describe; by default the one that the artifact was compiled for.

    Raises:
        UsageError: a figure that the machine does not have.
        InputError: a value that a figure cannot have, or a description that cannot be read.
    """
    target = artifact.target if args.target is None else load_target(args.target)
    target = target if args.sockets is None else target.with_sockets(args.sockets)
    return target.with_figures(dict(map(parse_figure, args.figures))) if args.figures else target
