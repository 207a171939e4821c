"""`sscc completion`: a script for shell completion of commands, options, their choices and file names."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from sscc.compiler.tools.commands.parser import Parser, build_parser, command_parsers
from sscc.ir.extras import COMPLETION, require
from sscc.ir.geometry import KV_POLICIES
from sscc.ir.option import option

SHELLS = ("bash", "zsh", "tcsh")
POLICIES = {
    "bash": "_sscc_compgen_policies",
    "zsh": f"""_alternative 'names:name:({" ".join(KV_POLICIES)})' 'files:rule:_files -g "*.py"'""",
    "tcsh": "f:*.py",
}
"""Completion of `--kv-policy` in each shell: names of policies, and Python files."""
PREAMBLE = {
    "bash": f"""{POLICIES["bash"]}() {{
  compgen -W "{" ".join(KV_POLICIES)}" -- "$1"
  compgen -d -- "$1"
  compgen -f -X '!*.py' -- "$1"
}}"""
}


@dataclass(frozen=True)
class CompletionOptions:
    """Options of a completion script."""

    shell: str = option(MISSING, f"shell: {', '.join(SHELLS)}", "SHELL", choices=SHELLS, positional=True)


def add_arguments(parser: Parser) -> None:
    parser.add_options(CompletionOptions)


def main(args: argparse.Namespace) -> int:
    require(COMPLETION, "sscc completion")
    import shtab

    parser = build_parser()
    for command in command_parsers(parser).values():
        for action in command._actions:
            completed: Any = action
            if action.type is Path:
                completed.complete = shtab.FILE
            elif "--kv-policy" in action.option_strings:
                completed.complete = POLICIES
    print(shtab.complete(parser, args.shell, preamble=PREAMBLE.get(args.shell, "")))
    return 0
