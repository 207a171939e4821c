"""`sscc pack`: a checkpoint and its tokenizer in one `.pt` file."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path

from sscc.compiler.options.outputs import StdoutErrors, refuse_stdout
from sscc.compiler.tools.commands.parser import CommonOptions, Parser
from sscc.ir.extras import COMPILE, require
from sscc.ir.files import check_output
from sscc.ir.option import option


@dataclass(frozen=True)
class PackOptions:
    """Options of a packed checkpoint."""

    model: Path = option(MISSING, "Hugging Face folder or .gguf file", "MODEL", positional=True)
    output: Path | None = option(
        None, "file to write", "OUT.pt", flags=("-o", "--output"), default="MODEL's stem + .pt, in this folder"
    )


def add_arguments(parser: Parser) -> None:
    parser.add_options(PackOptions)
    parser.add_options(CommonOptions, ["quiet"])


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
