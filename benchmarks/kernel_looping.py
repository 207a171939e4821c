"""Speed-up of kernel looping on the modelled machine, for a decode step of Llama-3.1-8B compiled without weights.

    python benchmarks/kernel_looping.py [CONFIG.json] [--context N] [--batch N]

Compiles at -O0 (one kernel per operation), -O1 (fused layers) and -O2 (looped layers), each in a separate process, and
models the schedules with the bandwidth of 1, 8 and 16 sockets. Prints launches per token, modelled time, fraction of
the HBM roofline and speed-ups, the published figures (arXiv 2410.23668), and all assumptions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIG = Path(__file__).parent / "configs" / "llama-3.1-8b.json"
LEVELS = (0, 1, 2)
SOCKETS = (1, 8, 16)
PUBLISHED = (
    "decode up to 2.2x faster by looping",
    "over 90% of peak bandwidth on 8 and 16 sockets with looping",
    "about 800 calls per token become 3: embedding, all decoder layers, classifier",
)


def measure(config: Path, level: int, context: int, batch: int) -> dict[str, Any]:
    """Compile in this process, and return the modelled step for each number of sockets, with and without prefetch."""
    from sscc.compiler.driver import driver
    from sscc.compiler.options.compile_options import CompileOptions
    from sscc.compiler.tools.inspection.inspection import time_decode
    from sscc.ir.target import load_target
    from sscc.runtime.session.artifact import Artifact

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.rdu"
        options = CompileOptions(
            model=config,
            output=out,
            weights="none",
            kv_budget=context,
            max_context=context,
            batch=batch,
            opt_level=level,
        )
        driver.compile_model(options)
        artifact = Artifact.load(out)
    steps = []
    for sockets in SOCKETS:
        machine = load_target("rdu").with_sockets(sockets)
        timing = time_decode(artifact, machine, context)
        steps.append(
            {
                "sockets": sockets,
                "launches": len(timing.launches),
                "seconds": timing.seconds,
                "overhead": len(timing.launches) * timing.launch_overhead,
                "hbm_bytes": timing.nbytes.get("hbm", 0),
                "roofline_fraction": timing.roofline_fraction,
                "without_prefetch": time_decode(artifact, machine, context, prefetch=False).seconds,
                "assumptions": timing.assumptions,
            }
        )
    return {"level": level, "steps": steps}


def main(config: Path, context: int, batch: int) -> int:
    results = []
    for level in LEVELS:
        command = [sys.executable, __file__, str(config), "--context", str(context), "--batch", str(batch)]
        done = subprocess.run([*command, "--one", str(level)], check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"-O{level} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
            return 1
        results.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{config.stem}, batch {batch}, context {context}: one decode step, modelled\n")
    _print_table(results)
    print("\npublished (arXiv 2410.23668):")
    for line in PUBLISHED:
        print(f"  {line}")
    print("\nassumed:")
    for line in dict.fromkeys(line for result in results for step in result["steps"] for line in step["assumptions"]):
        print(f"  {line}")
    return 0


def _print_table(results: list[dict[str, Any]]) -> None:
    looped = next(result for result in results if result["level"] == max(LEVELS))
    print(f"{'sockets':>8}{'level':>7}{'launches':>10}{'ms':>10}{'between launches':>18}{'HBM roofline':>14}", end="")
    print(f"{'speed-up of -O2':>18}{'no prefetch, ms':>17}")
    for index, sockets in enumerate(SOCKETS):
        for result in results:
            step = result["steps"][index]
            gain = step["seconds"] / looped["steps"][index]["seconds"]
            print(
                f"{sockets:8}{'-O' + str(result['level']):>7}{step['launches']:10}{step['seconds'] * 1e3:10.3f}"
                f"{100 * step['overhead'] / step['seconds']:17.1f}%{100 * step['roofline_fraction']:13.1f}%"
                f"{gain:17.2f}x{step['without_prefetch'] * 1e3:17.3f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Model a decode step with and without kernel looping.")
    parser.add_argument("config", nargs="?", type=Path, default=CONFIG)
    parser.add_argument("--context", type=int, default=4096, help="tokens in each slot, with a full cache (4096)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--one", type=int, metavar="LEVEL", help="compile at one level and print JSON")
    words = parser.parse_args()
    if words.one is None:
        sys.exit(main(words.config, words.context, words.batch))
    print(json.dumps(measure(words.config, words.one, words.context, words.batch)))
