"""The option that silences a command."""

from __future__ import annotations

import argparse


def add_quiet_argument(parser: argparse._ActionsContainer) -> None:
    """Add `--quiet` to a command that reports or draws its progress on stderr."""
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors and warnings")
