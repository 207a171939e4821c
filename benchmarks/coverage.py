"""Which of transformers' causal language models compile, and agree with it: the table of docs/results/models.md.

    python benchmarks/coverage.py [--types a,b] [--jobs N] [--again] [--write docs/results/models.md]
    python benchmarks/coverage.py --fields [--types a,b] [--jobs N] [--again]
    python benchmarks/coverage.py --newest     the same with the newest release of transformers, before the range in
                                               pyproject.toml is widened

Of every type that transformers knows, a tiny random model is compiled and decoded greedily by the native interpreter,
after a prompt of several chunks that outgrows every window, and compared with transformers' own `generate`: equal
tokens, and logits within rounding. The cache has room for all of it, so compression is exact. A type is

    agrees    as said; of composite models, which hold a text decoder beside others, the text decoder
    refused   in words that name the reason
    wrong     compiled, and computes something else
    crashed   anything else: an error that is no refusal, too long, too much memory

With --fields the types that are used most are examined with other values of their fields than the default ones
(tests/tiny_configs.py, `VARIATIONS`), each by itself.

Each type runs in a process of its own, with a limit of time and memory; what is known is in a journal (a JSON object a
line), and is not run again.
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
MEMORY = 12 << 30  # of addresses, most of which are never touched
SEPARATOR = ", "  # between a type and its variation
VERDICTS = ("agrees", "refused", "wrong", "crashed")
PRELOADED = ("sscc.compiler.driver.driver", "sscc.runtime.backends.cpu.plan.library", "tests.agreement")


@dataclass(frozen=True)
class Finding:
    """What became of one type.

    Attributes:
        verdict: of VERDICTS.
        detail: why, or what agrees; one line.
    """

    type: str
    verdict: str
    detail: str
    seconds: float


def examine(name: str, file: str) -> None:
    """Writes the finding of one type, or of one with a variation ("type, variation"), to `file`; runs in a process of
    its own."""
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
    """Examines `types`, so many at a time, and adds each finding to the journal when it is known."""
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
    """The finding of a process that has ended, or whose time is over."""
    if process.is_alive():
        process.kill()
        process.join()
        return Finding(name, "crashed", f"not done after {SECONDS:.0f} s", seconds)
    if not file.exists():
        return Finding(name, "crashed", f"the process ended with {process.exitcode}", seconds)
    verdict, detail = json.loads(file.read_text())
    return Finding(name, verdict, detail, seconds)


def read_journal(journal: Path) -> dict[str, Finding]:
    """The last finding of each type."""
    if not journal.exists():
        return {}
    findings = [Finding(**json.loads(line)) for line in journal.read_text().splitlines()]
    return {finding.type: finding for finding in findings}


def render(findings: Sequence[Finding], version: str) -> str:
    """Markdown: how many of each verdict, the types that agree, and a table of the others."""
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
    """A text as a cell of a table, without the name of the model that the row has anyway."""
    return text.partition(" cannot be compiled: ")[2].replace("|", "\\|") or text.replace("|", "\\|")


def run_with_newest(arguments: Sequence[str]) -> None:
    """Run this command again with the newest transformers, which is installed beside the environment, not into it.
    Every other package stays as constraints.txt has it. Does not return."""
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
    parser = argparse.ArgumentParser(description="Examines every causal language model of transformers.")
    parser.add_argument("--types", type=lambda text: text.split(","), metavar="A,B", help="only these, again")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="types at a time")
    parser.add_argument("--journal", type=Path, help="default: .demo/coverage-VERSION.jsonl, of transformers' version")
    parser.add_argument("--again", action="store_true", help="also what the journal has")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    parser.add_argument("--fields", action="store_true", help="vary the fields of the types that are used most")
    parser.add_argument("--newest", action="store_true", help="install the newest transformers beside, and use it")
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
