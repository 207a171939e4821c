"""`sscc completion`: a script by which a shell completes commands, options, their choices and file names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sscc.ir.extras import COMPLETION, require

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")


def main(args: argparse.Namespace) -> int:
    require(COMPLETION, "sscc completion")
    import shtab

    from sscc.compiler.commands.parser import build_parser, command_parsers

    parser = build_parser()
    for command in command_parsers(parser).values():
        for action in command._actions:
            if action.type is Path:
                completed: Any = action
                completed.complete = shtab.FILE
    print(shtab.complete(parser, args.shell))
    return 0
