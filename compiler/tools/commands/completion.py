"""`sscc completion`: a script by which a shell completes commands, options, their choices and file names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sscc.ir.extras import COMPLETION, require
from sscc.ir.geometry import KV_POLICIES

SHELLS = ("bash", "zsh", "tcsh")
POLICIES = {
    "bash": "_sscc_compgen_policies",
    "zsh": f"""_alternative 'names:name:({" ".join(KV_POLICIES)})' 'files:rule:_files -g "*.py"'""",
    "tcsh": "f:*.py",
}
"""How shells complete a policy: by a name or the file of a rule."""
PREAMBLE = {
    "bash": f"""{POLICIES["bash"]}() {{
  compgen -W "{" ".join(KV_POLICIES)}" -- "$1"
  compgen -d -- "$1"
  compgen -f -X '!*.py' -- "$1"
}}"""
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"one of: {', '.join(SHELLS)}")


def main(args: argparse.Namespace) -> int:
    require(COMPLETION, "sscc completion")
    import shtab

    from sscc.compiler.tools.commands.parser import build_parser, command_parsers

    parser = build_parser()
    for command in command_parsers(parser).values():
        for action in command._actions:
            completed: Any = action
            if action.type is Path:
                completed.complete = shtab.FILE
            elif "--policy" in action.option_strings:
                completed.complete = POLICIES
    print(shtab.complete(parser, args.shell, preamble=PREAMBLE.get(args.shell, "")))
    return 0
