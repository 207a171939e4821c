"""Options of what is modelled, which several commands share: the machine, and how much a step has to do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sscc.ir.target import load_target

if TYPE_CHECKING:
    from sscc.ir.target import Target
    from sscc.runtime.session.artifact import Artifact


def add_modelling_arguments(parser: argparse._ActionsContainer, *, prompt: str) -> None:
    """Args: prompt: what --prompt does, and its default."""
    parser.add_argument(
        "--target", metavar="TARGET", help="machine to model: rdu, rdu:NAME or rdu:FILE (default: of the compilation)"
    )
    parser.add_argument("--sockets", type=int, metavar="N", help="sockets to model (default: the machine's)")
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
    """The machine that the options name, else the one that the artifact was compiled for."""
    target = artifact.target if args.target is None else load_target(args.target)
    return target if args.sockets is None else target.with_sockets(args.sockets)
