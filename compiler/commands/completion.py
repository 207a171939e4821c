"""`sscc completion`: a script by which a shell completes commands, options, their choices and file names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sscc.ir.errors import UsageError

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")


def main(args: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise UsageError(
            "sscc completion needs a package that is not installed (shtab): pip install 'sscc[completion]'"
        ) from None
    from sscc.compiler.commands.parser import build_parser, command_parsers

    parser = build_parser()
    for command in command_parsers(parser).values():
        for action in command._actions:
            if action.type is Path:
                completed: Any = action
                completed.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))
    return 0
