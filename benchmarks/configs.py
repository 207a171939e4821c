"""Compilation of published configs: programs, time and memory. It makes a table of docs/results/models.md.

    python benchmarks/configs.py [--only NAME ..] [--parts] [--journal FILE] [--write docs/results/models.md]

Each config of benchmarks/configs is compiled without weights at the longest context of its model, one after another,
in a separate process. Caches keep 8192 rows, but at most a quarter of the context. Programs and weights are bf16; if
the modelled machine has too little memory for bf16 weights, they are fp8 as published. No native code is compiled,
because the weights would not fit the memory of the machine. Results are appended to a journal of JSON lines, of which
the table has the last for each config.

For a config that is refused, the table has the reason. --parts prints the seconds of each part of a compilation
(capture, import, every pass, emission, writing).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.table import machine, replace_block

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from sscc.ir.schedule import Tensor
    from sscc.ir.weight_formats.weight_format import WeightFormat
    from sscc.runtime.session.artifact import Artifact

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "configs"
JOURNAL = ROOT / ".demo" / "configs.jsonl"
BLOCK = "configs"
ROWS = 8192
SECONDS = 580.0
PARTS = ("open_checkpoint", "capture", "import_capture", "emit_program", "prove", "write_artifact")
BITS = {"fp8": 8.0, "mxfp4": 4.25}
"""Bits per weight including scales, by quant_method. fp8 also has an f32 scale per block."""


@dataclass(frozen=True)
class Compiled:
    """Result of one config.

    Attributes:
        model: name of the config.
        refusal: reason why it is refused, in which case the other fields have no meaning; else "".
        context: maximum context in tokens.
        rows: rows of the compressed cache.
        layers: number of layers by kind of cache, as {"window 128": 18, "full": 18}.
        loops: number of layers in each looped launch of a decode step.
        experts: "8 of 256", or "" without experts.
        launches: launches of a decode step.
        parameters: number of weights.
        weight_format: format of the program's weights; "" for bf16.
        published_bytes: bytes of the weights as stored according to `quantization_config`.
        step_bytes: bytes of weights and caches that a decode step of one sequence reads.
        cache_bytes, full_cache_bytes: compressed and full cache of one sequence of maximum context.
        seconds, processor_seconds: wall and processor time of the compilation.
        peak_bytes: peak resident memory of its process.
        parts: seconds by part of the compilation.
    """

    model: str
    refusal: str = ""
    context: int = 0
    rows: int = 0
    layers: Mapping[str, int] = field(default_factory=dict)
    loops: tuple[int, ...] = ()
    experts: str = ""
    launches: int = 0
    parameters: int = 0
    weight_format: str = ""
    published_bytes: int = 0
    step_bytes: int = 0
    cache_bytes: int = 0
    full_cache_bytes: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_bytes: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------- one config


def compiled(config: Path) -> Compiled:
    """Compile a config in this process."""
    started = time.perf_counter()
    from sscc.compiler.driver import driver
    from sscc.compiler.frontend.admission import model_context
    from sscc.compiler.frontend.checkpoint import open_checkpoint
    from sscc.compiler.frontend.construction import build_skeleton
    from sscc.compiler.options.compile_options import CompileOptions
    from sscc.ir.errors import UnsupportedError
    from sscc.runtime.session.artifact import Artifact

    parts: dict[str, float] = {"start (imports)": time.perf_counter() - started}
    with tempfile.TemporaryDirectory() as folder:
        try:
            opened = open_checkpoint(config, weights=False).config
            assert opened is not None
            context = model_context(opened)
            rows = None if context is None else min(ROWS, context // 4)
            parameters = sum(parameter.numel() for parameter in build_skeleton(opened).parameters())
            form = _weight_format(opened, 2 * parameters)
            output = Path(folder) / "model.rdu"
            options = CompileOptions(
                config, output, weights="none", weight_format=form, kv_budget=rows, dtype="bf16", native_code=False
            )
            with _timed(driver, parts):
                driver.compile_model(options)
        except UnsupportedError as error:
            return Compiled(config.stem, str(error).replace(f"{config}: ", ""))
        seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        taken = {"seconds": seconds, "processor_seconds": time.process_time(), "peak_bytes": peak, "parts": parts}
        facts = _facts(Artifact.load(output), json.loads(config.read_text()))
        stored = "" if form is None else str(form)
        return Compiled(config.stem, parameters=parameters, weight_format=stored, **facts, **taken)


def _weight_format(config: PreTrainedConfig, nbytes: int) -> WeightFormat | None:
    """Return the format of the weights: None for bf16 if `nbytes`, their size in bf16, fits the modelled machine or the
    published weights are not fp8; else fp8 with blocks of 128, as `--weights keep` keeps it."""
    from sscc.compiler.frontend.model_config import quantization_of
    from sscc.ir.target import load_target
    from sscc.ir.weight_formats.registry import format_named

    target = load_target("rdu")
    published = quantization_of(config)
    if nbytes <= sum(target.capacity(level.name) for level in target.memories):
        return None
    fp8 = published.get("quant_method") == "fp8" and published.get("weight_block_size") == [128, 128]
    return format_named("e4m3:128:f32") if fp8 else None


def _facts(artifact: Artifact, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Compiled` that describe a program."""
    from sscc.compiler.tools.inspection.inspection import inspect_artifact

    inspection = inspect_artifact(artifact)
    signature, weights = artifact.signature, [t for t in artifact.program.tensors if t.role == "weight"]
    layers: Counter[str] = Counter()
    for group in signature.plan:
        window, kept = group.geometry.window, "latent" if group.latent else "full"
        seen = f"{'chunk' if group.geometry.window_stride else 'window'} {window}"
        layers[seen if window else kept] += len(group.layers)
    return {
        "context": signature.geometry.max_context,
        "rows": signature.geometry.budget,
        "layers": dict(layers),
        "loops": tuple(loop.layers for loop in inspection.looping if loop.looped and loop.entry == "decode"),
        "experts": ", ".join(f"{reads.chosen} of {reads.experts}" for reads in inspection.experts),
        "launches": inspection.launches_per_token,
        "published_bytes": published_bytes(weights, config.get("quantization_config") or {}),
        "step_bytes": inspection.decode_floor_bytes,
        "cache_bytes": inspection.held_kv_bytes,
        "full_cache_bytes": inspection.full_kv_bytes,
    }


def published_bytes(weights: Iterable[Tensor], quantization: Mapping[str, Any]) -> int:
    """Return the bytes of a program's weights when stored according to a `quantization_config` of fp8 or mxfp4.

    Quantized are the matrices of projections (for mxfp4 only those of experts) that the config does not exclude.
    Weights that the program stores in 8 bits count with that size. Raises KeyError for another method.
    """
    if not quantization:
        return sum(weight.nbytes for weight in weights)
    method = quantization["quant_method"]
    block = prod(quantization.get("weight_block_size") or ())
    bits = BITS[method] + (32 / block if method == "fp8" and block else 0)
    kept = quantization.get("modules_to_not_convert") or ()
    total = 0.0
    for weight in weights:
        name = weight.sources[0].removesuffix(".weight")
        if weight.encoding:
            total += weight.nbytes
            continue
        plain = any(fnmatch(f".{name}.", f"*.{module}.*") for module in kept)
        plain = plain or (method == "mxfp4" and ".experts." not in name)
        total += prod(weight.shape) * bits / 8 if name.endswith("_proj") and not plain else weight.nbytes
    return round(total)


@contextmanager
def _timed(driver: Any, seconds: dict[str, float]) -> Iterator[None]:
    """Time the driver's parts and passes by wrapping the functions that it calls."""
    originals = {name: getattr(driver, name) for name in (*PARTS, "run_passes")}

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **keywords)
            if name == "run_passes":
                seconds.update({item.name: item.seconds for item in result})
            else:
                seconds[name] = time.perf_counter() - start
            return result

        return timed

    try:
        for name, call in originals.items():
            setattr(driver, name, wrap(name, call))
        yield
    finally:
        for name, call in originals.items():
            setattr(driver, name, call)


# ------------------------------------------------------------------------------------------------------ all configs


def run(configs: Sequence[Path], journal: Path) -> None:
    """Compile configs, and append the result of each to the journal.

    Raises:
        RuntimeError: a compilation fails with another error than a refusal.
    """
    for config in configs:
        command = [sys.executable, __file__, "--one", str(config)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        if done.returncode:
            raise RuntimeError(f"{config.stem}: {done.stderr.strip()[-2000:]}")
        line = done.stdout.splitlines()[-1]
        with journal.open("a") as lines:
            lines.write(line + "\n")
        print(_in_words(read(line)), flush=True)


def read(line: str) -> Compiled:
    """Return the result in a line of a journal."""
    values = json.loads(line)
    return Compiled(**values | {"loops": tuple(values["loops"])})


def read_journal(journal: Path) -> dict[str, Compiled]:
    """Return the last result of each config."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {result.model: result for result in map(read, lines)}


def _in_words(result: Compiled) -> str:
    if result.refusal:
        return f"{result.model:18} refused: {result.refusal}"
    return (
        f"{result.model:18} {result.seconds:6.1f} s, {result.processor_seconds:6.1f} s of processor, "
        f"{_gib(result.peak_bytes)} GiB, {result.launches} launches per token"
    )


def _gib(nbytes: float) -> str:
    value = nbytes / 2**30
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


HEADINGS = (
    *("config", "layers", "experts", "context", "launches per token", "weights, G", "GiB in bf16", "as published"),
    *("read per token", "full cache", "kept", "seconds", "processor seconds", "peak GiB"),
)


def render(results: Sequence[Compiled]) -> str:
    """Return Markdown: the machine, a table of programs, and a table of refusals."""
    done, refused = ([each for each in results if bool(each.refusal) is is_refused] for is_refused in (False, True))
    lines = [
        f"| {' | '.join(HEADINGS)} |",
        f"|{'|'.join(['---', '---', '---', *['---:'] * (len(HEADINGS) - 3)])}|",
        *(f"| {' | '.join(_row(result))} |" for result in done),
    ]
    heading = (
        f"{machine()}. Layers by kind of cache; in brackets the layers of each looped launch. Sizes are in GiB: "
        "weights in bf16 and as `quantization_config` stores them, bytes that a decode step of one sequence of that "
        f"context reads, a full cache of the sequence, and a cache of {ROWS} rows (a quarter of the context if "
        "that is less). Weights of programs are bf16 unless a format is named."
    )
    parts = [heading, "\n".join(lines)]
    if refused:
        whys = ((each.model, each.refusal.partition(" cannot be compiled: ")[2] or each.refusal) for each in refused)
        parts.append("\n".join(["| refused | why |", "|---|---|", *(f"| {model} | {why} |" for model, why in whys)]))
    return "\n\n".join(parts)


def _row(result: Compiled) -> list[str]:
    layers = ", ".join(f"{count} {kind}" for kind, count in result.layers.items())
    loops = f" ({' + '.join(map(str, result.loops))})" if len(result.loops) > 1 else ""
    sizes = (2 * result.parameters, result.published_bytes, result.step_bytes, result.full_cache_bytes)
    stored = f" ({result.weight_format})" if result.weight_format else ""
    kept = f"{_gib(result.cache_bytes)} ({result.full_cache_bytes / result.cache_bytes:.1f}x)"
    return [
        *(result.model, layers + loops, result.experts, str(result.context), str(result.launches)),
        *(f"{result.parameters / 1e9:.1f}{stored}", *map(_gib, sizes), kept),
        *(f"{result.seconds:.0f}", f"{result.processor_seconds:.0f}", _gib(result.peak_bytes)),
    ]


def parts_of(results: Sequence[Compiled]) -> str:
    """Return a table of seconds by part, with a column per config."""
    names = list(dict.fromkeys(name for result in results for name in result.parts))
    lines = [f"{'seconds':22}" + "".join(f"{result.model:>18}" for result in results)]
    for name in names:
        lines.append(f"{name:22}" + "".join(f"{result.parts.get(name, 0):18.2f}" for result in results))
    return "\n".join(lines)


def main() -> None:
    known = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
    parser = argparse.ArgumentParser(description="Compile published configs without weights.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=known, help=f"configs: {', '.join(known)}")
    parser.add_argument("--parts", action="store_true", help="print seconds by part")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked block of a Markdown page")
    words = parser.parse_args()
    names = words.only or list(known)
    words.journal.parent.mkdir(parents=True, exist_ok=True)
    run([known[name] for name in names], words.journal)
    found = read_journal(words.journal)
    if words.parts:
        print(parts_of([found[name] for name in names if not found[name].refusal]))
    text = render([found[name] for name in known if name in found])
    print(text)
    if words.write is not None:
        words.write.write_text(replace_block(words.write.read_text(), BLOCK, text))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(asdict(compiled(Path(sys.argv[2])))))
    else:
        main()
