"""The option that silences a command."""

from __future__ import annotations

import argparse


def add_quiet_argument(parser: argparse._ActionsContainer) -> None:
    """Of commands that tell on stderr what they do, or draw there how far they are (`sscc.compiler.progress`)."""
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors and warnings")
