"""Bytes of a prompt's slot message from a prefill server to a decode server, and of an uncompressed cache.

    python benchmarks/slot_messages.py [--write docs/results/serving.md]

Compiles full configs of benchmarks/configs without weights, and reads the sizes from their programs like
`sscc inspect --json` (`slot_message_bytes`, `full_slot_bytes`). Nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks import table
from sscc.compiler.driver.driver import compile_model
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.tools.inspection.inspection import slot_message_bytes
from sscc.ir.sizes import format_bytes
from sscc.runtime.session.artifact import Artifact

BLOCK = "benchmarks/slot_messages.py"
FOLDER = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class Setup:
    """A config, the tokens of the prompt, and the rows of its cache."""

    config: str
    context: int
    rows: int
    row_dtype: str = "model"
    policy: str = "snapstream"

    @property
    def kept(self) -> str:
        rows = f"{self.rows} rows" if self.policy == "snapstream" else "all rows (policy query)"
        return rows if self.row_dtype == "model" else f"{rows} of {self.row_dtype}"


LLAMA = Setup("llama-3.1-8b", 131072, 4096)
R1 = Setup("deepseek-r1", 131072, 4096)
SETUPS = (
    LLAMA,
    replace(LLAMA, row_dtype="int8"),
    replace(LLAMA, policy="query"),
    R1,
)


def compiled(setup: Setup, output: Path) -> Artifact:
    """Return the program, compiled without weights."""
    print(f"compiling {setup}", file=sys.stderr, flush=True)
    compile_model(
        CompileOptions(
            FOLDER / f"{setup.config}.json",
            output,
            weights="none",
            dtype="bf16",
            kv_budget=setup.rows,
            kv_dtype=setup.row_dtype,
            kv_policy=setup.policy,
            max_context=setup.context,
            native_code=False,
        )
    )
    return Artifact.load(output)


def rows() -> Iterator[str]:
    """Yield the rows of the table."""
    for setup in SETUPS:
        with tempfile.TemporaryDirectory() as folder:
            artifact = compiled(setup, Path(folder) / "model.rdu")
            message = slot_message_bytes(artifact, setup.context)
            full = artifact.signature.full_kv_bytes(setup.context)
        cells = (setup.config, setup.kept, str(setup.context), format_bytes(message), format_bytes(full))
        yield f"| {' | '.join(cells)} | {full / message:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute the bytes of slot messages between servers.")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = parser.parse_args()
    head = "| config, bf16 | kept | tokens of the prompt | message | full cache | ratio |"
    text = "\n".join([head, "|---|---|---:|---:|---:|---:|", *rows()]) + "\n"
    print(text)
    if words.write:
        words.write.write_text(table.replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    main()
