"""`sscc pack`: a checkpoint and its tokenizer become one `.pt` file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sscc.compiler.options.outputs import StdoutErrors, refuse_stdout
from sscc.compiler.tools.commands.noise import add_quiet_argument
from sscc.ir.extras import COMPILE, require
from sscc.ir.files import check_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="Hugging Face folder or .gguf file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT.pt", help="(default: MODEL's stem + .pt, in this folder)"
    )
    add_quiet_argument(parser)


def main(args: argparse.Namespace) -> int:
    output: Path = args.output or Path(_stem(args.model) + ".pt")
    refuse_stdout(output, StdoutErrors.PACKED_CHECKPOINT)
    check_output(output)
    require(COMPILE, "sscc pack")
    from sscc.compiler.frontend.checkpoint import open_checkpoint, pack

    checkpoint = open_checkpoint(args.model)
    pack(checkpoint, output)
    if not args.quiet:
        tokenizer = "with" if checkpoint.tokenizer else "without"
        print(f"sscc: wrote {output}: {len(checkpoint.names())} tensors, {tokenizer} a tokenizer", file=sys.stderr)
    return 0


def _stem(model: Path) -> str:
    return model.stem if os.path.isfile(model) else model.absolute().name
