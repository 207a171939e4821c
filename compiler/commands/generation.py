"""Options of the commands that make text: how tokens are chosen."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sscc.runtime.sampling import Sampling


def add_sampling_arguments(group: argparse._ArgumentGroup) -> None:
    """One option per field of `Sampling`."""
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest; 0: all (default)")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest of total P")
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="drop what is less likely than P times the likeliest"
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="of tokens of prompt and text; above 1: fewer",
    )
    group.add_argument(
        "--presence-penalty", type=float, default=0.0, metavar="X", help="of every token that the text has, -2 .. 2"
    )
    group.add_argument(
        "--frequency-penalty", type=float, default=0.0, metavar="X", help="the same for each time that it has it"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")


def sampling_of(args: argparse.Namespace) -> Sampling:
    """What the options say. Raises UsageError."""
    from sscc.runtime.sampling import Sampling

    names = [field.name for field in fields(Sampling) if hasattr(args, field.name)]
    return Sampling(**{name: getattr(args, name) for name in names})
