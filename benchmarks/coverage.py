"""Coverage of transformers' causal language models: a table of docs/results/models.md.

    python benchmarks/coverage.py [--types a,b] [--jobs N] [--again] [--write docs/results/models.md]
    python benchmarks/coverage.py --fields [--types a,b] [--jobs N] [--again]
    python benchmarks/coverage.py --newest     the same with the newest release of transformers, to check it before
                                               the range in pyproject.toml is widened

For each type of transformers, a tiny random model is compiled and decoded greedily by the native interpreter, after a
prompt of several chunks that is longer than every window. Tokens must equal those of transformers' `generate`, and
logits must be within rounding. The cache has room for the whole text, so nothing is evicted. Verdicts of a type:

    agrees    tokens and logits agree (for a composite model, those of its text decoder)
    refused   the compiler refuses it with a reason
    wrong     it compiles, but tokens or logits differ
    crashed   any other outcome: an error that is not a refusal, or the limit of time or memory

--fields examines the most used types with other values of single config fields (tests/tiny_configs.py, `VARIATIONS`).

Each type runs in a separate process with a limit of time and memory. Findings are appended to a journal of JSON lines;
types in the journal are not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.table import replace_block

ROOT = Path(__file__).parents[1]
DEMO = ROOT / ".demo"
BLOCK = "coverage"
SECONDS = 300.0
MEMORY = 12 << 30  # limit of the address space, most of which is never touched
SEPARATOR = ", "  # between a type and its variation
VERDICTS = ("agrees", "refused", "wrong", "crashed")
PRELOADED = ("sscc.compiler.driver.driver", "sscc.runtime.backends.cpu.plan.library", "tests.agreement")


@dataclass(frozen=True)
class Finding:
    """Result of one type.

    Attributes:
        type: the type, or "type, variation".
        verdict: a value of VERDICTS.
        detail: one line: the reason, or the name of the text decoder that agrees.
        seconds: wall time.
    """

    type: str
    verdict: str
    detail: str
    seconds: float


def examine(name: str, file: str) -> None:
    """Examine a type, or a type with a variation ("type, variation"), and write the finding to a file. Runs in a
    separate process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
        from tests.agreement import Disagreement, agreement

        from sscc.ir.errors import SsccError, UnsupportedError

        folder = Path(file).with_suffix(".files")
        folder.mkdir()
        try:
            model_type, _, variation = name.partition(SEPARATOR)
            found = "agrees", agreement(model_type, folder, variation)
        except UnsupportedError as error:
            found = "refused", str(error)
        except Disagreement as error:
            found = "wrong", str(error)
        except SsccError as error:
            found = "crashed", f"{type(error).__name__}: {error}"
        except Exception as error:
            import traceback

            at = traceback.extract_tb(error.__traceback__)[-1]
            found = "crashed", f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}"
    shutil.rmtree(folder)
    detail = " ".join(found[1].split()).replace(f"{folder}/", "")
    Path(file).write_text(json.dumps([found[0], detail]))


def run(types: Sequence[str], jobs: int, journal: Path) -> None:
    """Examine types, at most `jobs` at a time, and append each finding to the journal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    waiting, running = list(types), {}
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                file = Path(folder, str(next(numbers)))
                process: Any = context.Process(target=examine, args=(name, str(file)))
                process.start()
                running[name] = process, time.monotonic(), file
            for name, (process, started, file) in list(running.items()):
                seconds = time.monotonic() - started
                process.join(0.2)
                if process.is_alive() and seconds < SECONDS:
                    continue
                finding = _ended(name, process, file, seconds)
                del running[name]
                print(f"{finding.type:24} {finding.verdict:8} {seconds:4.0f} s  {finding.detail}", flush=True)
                with journal.open("a") as lines:
                    lines.write(json.dumps(asdict(finding)) + "\n")


def _ended(name: str, process: Any, file: Path, seconds: float) -> Finding:
    """Return the finding of a process that has ended or exceeded its time."""
    if process.is_alive():
        process.kill()
        process.join()
        return Finding(name, "crashed", f"not finished after {SECONDS:.0f} s", seconds)
    if not file.exists():
        return Finding(name, "crashed", f"the process ended with {process.exitcode}", seconds)
    verdict, detail = json.loads(file.read_text())
    return Finding(name, verdict, detail, seconds)


def read_journal(journal: Path) -> dict[str, Finding]:
    """Return the last finding of each type."""
    if not journal.exists():
        return {}
    findings = [Finding(**json.loads(line)) for line in journal.read_text().splitlines()]
    return {finding.type: finding for finding in findings}


def render(findings: Sequence[Finding], version: str) -> str:
    """Return Markdown: the number of types by verdict, the types that agree, and a table of the others."""
    counts = Counter(finding.verdict for finding in findings)
    numbers = (
        f"{counts['agrees']} agree, {counts['refused']} are refused, {counts['wrong']} are wrong, "
        f"{counts['crashed']} crash"
    )
    agreeing = [finding for finding in findings if finding.verdict == "agrees"]
    plain = ", ".join(f"`{finding.type}`" for finding in agreeing if not finding.detail)
    heading = f"transformers {version} has {len(findings)} types of causal language models: {numbers}."
    parts = [heading, f"Agree: {plain}."]
    composite = [f"`{finding.type}` ({finding.detail})" for finding in agreeing if finding.detail]
    if composite:
        parts.append(f"Agree, as text decoders of composite models: {', '.join(composite)}.")
    others = [finding for finding in findings if finding.verdict != "agrees"]
    rows = [f"| `{each.type}` | {each.verdict} | {_cell(each.detail)} |" for each in others]
    parts.append("\n".join(["| type | | why |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def _cell(text: str) -> str:
    """Return a text as a cell of a table, without the name of the model, which is in the row already."""
    return text.partition(" cannot be compiled: ")[2].replace("|", "\\|") or text.replace("|", "\\|")


def run_with_newest(arguments: Sequence[str]) -> None:
    """Run this command again with the newest transformers, installed into a separate folder. Other packages keep their
    versions of constraints.txt. Does not return."""
    folder = DEMO / "transformers-newest"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        constraints.write("\n".join(line for line in lines if not line.startswith("transformers==")))
        constraints.flush()
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
        subprocess.run([*install, "--constraint", constraints.name, "transformers"], check=True)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, __file__, *(word for word in arguments if word != "--newest")]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})


def main() -> None:
    parser = argparse.ArgumentParser(description="Examine the causal language models of transformers.")
    parser.add_argument("--types", type=lambda text: text.split(","), metavar="A,B", help="types to examine (again)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="number of types examined concurrently")
    parser.add_argument("--journal", type=Path, help="journal (default: .demo/coverage-VERSION.jsonl)")
    parser.add_argument("--again", action="store_true", help="examine types in the journal again")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    parser.add_argument("--fields", action="store_true", help="vary config fields of the most used types")
    parser.add_argument("--newest", action="store_true", help="use the newest transformers, in a separate folder")
    words = parser.parse_args()
    if words.newest:
        run_with_newest(sys.argv[1:])
    import transformers
    from tests.tiny_configs import CAUSAL_TYPES, MOST_USED, variations

    unknown = sorted(set(words.types or ()) - set(CAUSAL_TYPES))
    if unknown:
        parser.error(f"transformers has no causal language model of type {', '.join(unknown)}")
    if words.fields and words.write is not None:
        parser.error("--write is of the table of types, not of their fields")
    journal = words.journal or DEMO / f"coverage-{transformers.__version__}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    known = {} if words.again or (words.types and not words.fields) else read_journal(journal)
    names = list(words.types or (MOST_USED if words.fields else CAUSAL_TYPES))
    if words.fields:
        names = [f"{name}{SEPARATOR}{variation}" for name in names for variation in variations(name)]
    run([name for name in names if name not in known], words.jobs, journal)
    found = read_journal(journal)
    findings = [found[name] for name in (names if words.fields else CAUSAL_TYPES) if name in found]
    print(", ".join(f"{sum(each.verdict == verdict for each in findings)} {verdict}" for verdict in VERDICTS))
    if words.write is not None:
        text = render(findings, transformers.__version__)
        words.write.write_text(replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    main()
