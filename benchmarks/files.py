"""GGUF files with sscc and llama.cpp: decode, prefill, first token, memory and perplexity.

    python benchmarks/files.py [--models NAME ..] [--parts speed start perplexity] [--write PAGE] [--json]

Both programs read the same file, in interleaved repeats. `benchmarks/gguf_files.py` creates the files.
docs/results/speed.md explains the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks import file_perplexity, file_starts, table
from benchmarks.command import parser, run
from benchmarks.decode import workload
from benchmarks.gguf_files import FILES, GgufFile
from benchmarks.harness import PeerResult, Workload
from benchmarks.peers.registry import AS_STORED, INT8_ACTIVATIONS, PEERS, Peer
from benchmarks.quality import essays
from sscc.runtime.backends.registry import NATIVE, NATIVE_INT8

BLOCK = "benchmarks/files.py"
PARTS = ("speed", "start", "perplexity")
DECODE = ("1x128", "1x4096", "8x128")
PREFILL = (512, 2048)
_KNOWN = {peer.name: peer for peer in PEERS}
LLAMA = replace(_KNOWN["llama.cpp"], precisions=(AS_STORED,))
OURS = {
    NATIVE: replace(_KNOWN["sscc"], precisions=(AS_STORED,)),
    NATIVE_INT8: replace(_KNOWN["sscc"], name="sscc, native-int8", precisions=(INT8_ACTIVATIONS,)),
}
"""sscc by its interpreter."""


def render(results: Sequence[PeerResult], ours: Sequence[Peer]) -> str:
    """Return the table of speeds: a row for each file and program, and rows of the ratios to llama.cpp."""
    workloads = list(dict.fromkeys(result.workload for result in results))
    cells = {(result.model, result.peer, result.workload): result for result in results}
    peers = [peer.name for peer in (*ours, LLAMA)]
    lines = [
        "| " + " | ".join(["file", "", *(each.label for each in workloads), "read GB/s"]) + " |",
        "|" + "|".join(["---", "---", *("---:" for _ in workloads), "---:"]) + "|",
    ]
    for name in dict.fromkeys(result.model for result in results):
        for peer in peers:
            row = [cells.get((name, peer, each)) for each in workloads]
            known = [result for result in row if result is not None]
            figures = [table.cell(result) for result in row]
            lines.append("| " + " | ".join([name, peer, *figures, table.calibration(known)]) + " |")
        for number, peer in enumerate(peers[:-1]):
            ratios = [_ratio(cells.get((name, peer, each)), cells.get((name, LLAMA.name, each))) for each in workloads]
            lines.append("| " + " | ".join([name, f"ratio of {peer}" if number else "ratio", *ratios, ""]) + " |")
    return "\n".join(lines)


def _ratio(ours: PeerResult | None, theirs: PeerResult | None) -> str:
    if ours is None or theirs is None or not ours.seconds or not theirs.seconds:
        return ""
    return f"**{ours.rate / theirs.rate:.2f}**"


def speed_parser(
    description: str, files: Mapping[str, GgufFile], parts: Sequence[str], tokens: Sequence[int]
) -> argparse.ArgumentParser:
    """Return the parser of a command that measures the speed of files and further parts.

    Args:
        description: description of the command.
        files: files by name.
        parts: names of the parts.
        tokens: default prompt lengths of the prefill workloads.
    """
    options = parser(description, tuple(files))
    options.add_argument("--parts", nargs="+", default=parts, choices=parts, metavar="PART", help=", ".join(parts))
    options.add_argument("--cases", nargs="*", default=DECODE, metavar="BATCHxCONTEXT", help=", ".join(DECODE))
    shown = " ".join(map(str, tokens))
    options.add_argument("--tokens", nargs="*", type=int, default=tokens, metavar="N", help=f"prompt lengths ({shown})")
    options.add_argument("--steps", type=int, default=32, help="decode steps of a measurement (32)")
    options.add_argument(
        "--interpreters", nargs="+", default=[NATIVE], choices=tuple(OURS), metavar="NAME", help=", ".join(OURS)
    )
    return options


class Report:
    """The measured parts of a command, as text and as JSON.

    Args:
        words: options of `speed_parser`.
    """

    def __init__(self, words: argparse.Namespace) -> None:
        self._words = words
        self._texts = [f"{table.machine()}; {words.threads} threads; medians of {words.repeats} interleaved repeats."]
        self._document: dict[str, object] = {"machine": table.machine(), "threads": words.threads}

    def add(self, part: str, records: list[dict[str, Any]], *texts: str) -> None:
        """Add a part with its records for JSON and its paragraphs."""
        self._texts += texts
        self._document[part] = records

    def add_speed(self, files: Mapping[str, GgufFile]) -> None:
        """Measure the speed of the chosen files with sscc and llama.cpp, and add it."""
        words = self._words
        cases = [workload(case, words.steps) for case in words.cases]
        cases += [Workload("prefill", 1, count, 1) for count in words.tokens]
        ours = [OURS[name] for name in words.interpreters]
        done = run(words, cases, peers=(*ours, LLAMA), subject=lambda name: files[name])
        texts = render(done.results, ours), *table.notes(done.results, done.skipped)
        self.add("speed", [result.record() for result in done.results], *texts)

    def publish(self, block: str) -> None:
        """Print the parts, and write the block of the page. Its default name lists the parts. Raises ValueError for a
        page without it."""
        words, text = self._words, "\n\n".join(self._texts)
        print(json.dumps(self._document) if words.json else text)
        if words.write:
            named = words.block or " ".join([block, *words.parts])
            words.write.write_text(table.replace_block(words.write.read_text(), named, text))


def main() -> None:
    options = speed_parser("Measure GGUF files.", FILES, PARTS, PREFILL)
    options.add_argument("--chunks", type=int, default=20, help="chunks of 512 tokens for the perplexity (20)")
    words = options.parse_args()
    report = Report(words)
    if "speed" in words.parts:
        report.add_speed(FILES)
    files = [FILES[name].prepare(llama=True) for name in words.models]
    if "start" in words.parts:
        starts = [file_starts.measure(file, words.threads, words.repeats) for file in files]
        report.add("start", [each.record() for each in starts], file_starts.render(starts))
    if "perplexity" in words.parts:
        perplexities = [
            file_perplexity.measure(file, essays(), words.threads, words.chunks, interpreter)
            for file in files
            for interpreter in words.interpreters
        ]
        report.add("perplexity", [each.record() for each in perplexities], file_perplexity.render(perplexities))
    report.publish(BLOCK)


if __name__ == "__main__":
    main()
