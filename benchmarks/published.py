"""Comparison of the timing model with published deployments: the tables of docs/results/published.md.

    python benchmarks/published.py [--only TABLE ..] [--write docs/results/published.md]

Compiles full configs of benchmarks/configs without weights, in bf16 or with the fp8 weights of their checkpoints, for
ranks of one socket each (`--tp`), and models decode steps and a prompt. All rows use the figures of the node's machine
description. Programs are written to a temporary folder. Takes some minutes and 3 GiB.

Sources: kernel looping, arXiv 2410.23668; SnapStream, arXiv 2511.03092; the SN40L, arXiv 2405.07518; one user of
DeepSeek-R1: abstract of the talk "SambaNova SN40L: Unleashing Agentic AI with Dataflow" (DAC 62).
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.table import replace_block

if TYPE_CHECKING:
    from sscc.ir.target import Figure, SocketLink, Target
    from sscc.runtime.session.artifact import Artifact
    from sscc.runtime.timing import Timing
    from sscc.runtime.timing.result import PipelineTiming

FOLDER = Path(__file__).parent / "configs"
INSIDE = 0.15
"""Maximum relative difference of a row from its published figure that is not marked."""
MULTI_TOKEN = 2.4
"""Tokens per step of DeepSeek-R1. SnapStream scales its rates by this factor, for multi-token prediction."""
H100_BANDWIDTH = 8 * 3.35e12
"""Memory bandwidth of the eight GPUs of a DGX H100 in bytes/s, published by the vendor."""
H100_SHARE = 0.21
"""Fraction of this bandwidth in decoding, from arXiv 2410.23668."""
R1, R1_CHUNK = "deepseek-r1", 1024
R1_LEVEL = 1
"""-O level of DeepSeek-R1: the layers of the published program are separate launches."""
R1_KERNELS = 2
"""Published number of kernels of a layer with experts."""
BETWEEN_STEPS = 1.8e-4
"""Seconds between two steps of a deployment (sampling, text, requests), which are part of its rate but not of kernel
times. One value for all deployments, fitted to one user of Llama-3.1-8B."""
FP8 = "e4m3:128:f32"
UP_TO, OVER = "up to", "over"


@dataclass(frozen=True)
class Setup:
    """A compilation: a config for a number of sockets, with a cache of `rows` rows for `context` tokens."""

    config: str
    sockets: int
    context: int
    rows: int
    batch: int = 1
    level: int = 2
    weights: str = ""
    sums: str = "f32"
    chunk: int | None = None


@dataclass
class Programs:
    """Compiled programs, each compiled once, timed on machines with links that are faster by a factor."""

    folder: Path
    known: dict[Setup, Artifact] = field(default_factory=dict)
    prompts: dict[Setup, Timing] = field(default_factory=dict)
    links: float = 1.0

    def __getitem__(self, setup: Setup) -> Artifact:
        from sscc.compiler.driver.driver import compile_model
        from sscc.compiler.options.compile_options import CompileOptions
        from sscc.ir.weight_formats.registry import format_named
        from sscc.runtime.session.artifact import Artifact

        if setup not in self.known:
            output = self.folder / f"{len(self.known)}.rdu"
            print(f"compiling {setup}", file=sys.stderr, flush=True)
            compile_model(
                CompileOptions(
                    FOLDER / f"{setup.config}.json",
                    output,
                    weights="none",
                    weight_format=format_named(setup.weights) if setup.weights else None,
                    dtype="bf16",
                    kv_budget=setup.rows,
                    max_context=setup.context,
                    batch=setup.batch,
                    prefill_chunk=setup.chunk,
                    opt_level=setup.level,
                    tp=setup.sockets,
                    tp_sums=setup.sums,
                    native_code=False,
                )
            )
            self.known[setup] = Artifact.load(output)
        return self.known[setup]

    def with_links(self, factor: float) -> Programs:
        """Return the same programs for machines with links that are faster by a factor."""
        return dataclasses.replace(self, links=factor)

    def machine(self, sockets: int) -> Target:
        return with_links(node(sockets), self.links)

    def step(self, setup: Setup) -> Timing:
        """Return the timing of a decode step with full slots, whose tokens choose experts independently."""
        from sscc.compiler.tools.inspection.inspection import time_decode

        return time_decode(self[setup], self.machine(setup.sockets), setup.context, mean_experts=True)

    def served(self, setup: Setup) -> float:
        """Return the seconds from one decode step of a deployment to the next."""
        return self.step(setup).seconds + BETWEEN_STEPS

    def prompt(self, setup: Setup) -> Timing:
        """Return the timing of a prompt of the whole context, with the assumed links."""
        from sscc.compiler.tools.inspection.inspection import time_prefill

        if setup not in self.prompts:
            self.prompts[setup] = time_prefill(self[setup], node(setup.sockets), setup.context)
        return self.prompts[setup]


def node(sockets: int) -> Target:
    """Return the machine with a number of sockets."""
    from sscc.ir.target import load_target

    return load_target("rdu" if sockets == 1 else f"rdu:sn40l-{sockets}")


@dataclass(frozen=True)
class Row:
    """A modelled figure and the published one.

    Attributes:
        what: name of the figure.
        published, modelled: the two values.
        unit: their unit.
        bound: "up to" or "over" if the published figure is a bound; "" otherwise.
        why: explanation of the figure.
        lacks: limitation of the model that explains a difference, shown if the row is outside.
    """

    what: str
    published: float
    modelled: float
    unit: str
    bound: str = ""
    why: str = ""
    lacks: str = ""

    @property
    def ratio(self) -> float:
        return self.modelled / self.published

    @property
    def inside(self) -> bool:
        return abs(self.ratio - 1) <= INSIDE or (self.bound == OVER and self.ratio > 1)

    @property
    def remark(self) -> str:
        return "; ".join(text for text in (self.why, "" if self.inside else self.lacks) if text)


# ------------------------------------------------------------------------------------------------------------ tables


def looping(programs: Programs) -> Iterator[Row]:
    """Yield the rows of Llama-3.1-8B, one user, 4096 tokens of context."""
    steps = {
        (sockets, level): programs.step(Setup("llama-3.1-8b", sockets, 4096, 4096, level=level))
        for sockets in (1, 8, 16)
        for level in (1, 2)
    }
    unfused = programs.step(Setup("llama-3.1-8b", 1, 4096, 4096, level=0))
    looped = steps[8, 2]
    yield Row("bytes per token", 15.4, 8 * looped.nbytes["hbm"] / 1e9, "GB", why="all ranks together")
    yield Row("launches per token, looped", 3, len(looped.launches), "")
    yield Row(
        "launches per token, not looped", 800, len(unfused.launches), "",
        why=f"one kernel per operation (`-O0`), against {len(steps[8, 1].launches)} with one per layer (`-O1`); the "
        "published baseline of about 25 kernels per layer (about 800 in total) lies between them",
    )  # fmt: skip
    gains = {sockets: steps[sockets, 1].seconds / steps[sockets, 2].seconds for sockets in (1, 8, 16)}
    listed = ", ".join(f"{gain:.2f} on {sockets}" for sockets, gain in gains.items())
    yield Row(
        "largest gain of looping", 2.2, max(gains.values()), "x", UP_TO,
        why=f"`-O1` against `-O2`: {listed} sockets. `boundary_seconds`, one value for all rows, is fitted to this "
        "figure, so the agreement is no evidence; up to 2.5 is published for an increasing number of sockets",
    )  # fmt: skip
    for sockets in (8, 16):
        yield Row(f"HBM roofline, looped, {sockets} sockets", 90, 100 * steps[sockets, 2].roofline_fraction, "%", OVER)
    gpu = 15.4e9 / (H100_SHARE * H100_BANDWIDTH)
    implied = f"a DGX H100 at the published {100 * H100_SHARE:.0f} % of its {H100_BANDWIDTH / 1e12:.1f} TB/s"
    yield Row("speed over a DGX H100, 8 sockets", 2, gpu / steps[8, 2].seconds, "x", UP_TO, implied)
    yield Row("speed over a DGX H100, 16 sockets", 3.7, gpu / steps[16, 2].seconds, "x", UP_TO, implied)


def users(programs: Programs) -> Iterator[Row]:
    """Yield the rows of one user of Llama-3.1 on 16 sockets, 8192 tokens of context, bf16."""
    for size, published in (("8b", 1042), ("70b", 457), ("405b", 129)):
        setup = Setup(f"llama-3.1-{size}", 16, 8192, 8192)
        step = programs.step(setup)
        least = step.target.seconds({"hbm": step.nbytes["hbm"]})
        share = f"the published rate is {100 * published * least:.0f} % of HBM's bandwidth"
        why = f"{share}; the time between two steps is fitted to this row, so the agreement is no evidence"
        if published * least > 1:
            why = f"{share}, with speculative decoding, which is not modelled"
        yield Row(f"{size.upper()}, tokens/s", published, 1 / programs.served(setup), "", why=why)
        yield Row(f"{size.upper()}, HBM roofline", 85, 100 * step.roofline_fraction, "%", OVER)


@dataclass(frozen=True)
class Deployment:
    """A line of SnapStream's Table 5: maximum number of sequences and tokens/s, with a cache of `rows` rows."""

    context: int
    rows: int
    batch: int
    rate: float

    @property
    def setup(self) -> Setup:
        return Setup(R1, 16, self.context, self.rows, self.batch, level=R1_LEVEL, weights=FP8, chunk=R1_CHUNK)

    @property
    def step(self) -> float:
        """Published seconds of a step."""
        return MULTI_TOKEN * self.batch / self.rate

    @property
    def name(self) -> str:
        compressed = f" in {self.rows // 1024}k rows" if self.rows < self.context else ", not compressed"
        return f"{self.context // 1024}k{compressed}"


ONE_USER, ONE_USER_RATE = Setup(R1, 16, 8192, 8192, level=R1_LEVEL, weights=FP8, chunk=R1_CHUNK), 198
"""One sequence and its tokens/s; its length is not published."""
DEPLOYMENTS = (
    Deployment(131072, 131072, 16, 434),
    Deployment(131072, 32768, 64, 1832),
    Deployment(32768, 32768, 64, 1832),
    Deployment(32768, 8192, 256, 7903),
)


def deployments(programs: Programs) -> Iterator[Row]:
    """Yield the rows of DeepSeek-R1 671B on 16 sockets: fp8 weights, bf16 rows, steps of the published batch."""
    rates: dict[tuple[int, int], float] = {}
    for one in DEPLOYMENTS:
        step = programs.step(one.setup)
        most = largest_batch(programs[one.setup], step.target)
        power = 1 << (most.bit_length() - 1)
        seconds = programs.served(one.setup)
        rate = rates[one.context, one.rows] = MULTI_TOKEN * one.batch / seconds
        yield Row(f"{one.name}: largest batch", one.batch, power, "", why=f"a power of two; HBM has room for {most}",
                  lacks="other contents of main memory are not published and not counted")  # fmt: skip
        yield Row(f"{one.name}: step", 1e3 * one.step, 1e3 * seconds, "ms",
                  why=f"{100 * step.roofline_fraction:.0f} % of the HBM roofline",
                  lacks="published steps take 78 ms or more for any batch, which is not modelled")  # fmt: skip
        yield Row(f"{one.name}: tokens/s", one.rate, rate, "", lacks="follows from the step, with the published batch")
    for context, full, rows in ((131072, 131072, 32768), (32768, 32768, 8192)):
        published = {(one.context, one.rows): one.rate for one in DEPLOYMENTS}
        yield Row(f"{context // 1024}k: gain of compression", published[context, rows] / published[context, full],
                  rates[context, rows] / rates[context, full], "x", why="tokens/s",
                  lacks="published steps do not grow with the batch, but modelled steps do")  # fmt: skip
    alone = programs.step(ONE_USER)
    seconds, looped = (programs.served(dataclasses.replace(ONE_USER, level=level)) for level in (R1_LEVEL, 2))
    overhead = (R1_KERNELS - 1) * len(alone.launches) * alone.launch_overhead
    yield Row("one user, tokens/s", ONE_USER_RATE, 1 / seconds, "",
              why=f"one token per step; {1 / (seconds + overhead):.3g} with the published {R1_KERNELS} kernels a "
              f"layer, {1 / looped:.3g} looped")  # fmt: skip


def largest_batch(artifact: Artifact, target: Target) -> int:
    """Return the number of sequences that fit a rank's main memory besides weights, prefill scratch and the program's
    other tensors. Only caches are proportional to the batch."""
    from sscc.compiler.tools.inspection.inspection import placed_bytes
    from sscc.ir.layer_state.row_streams import CACHES

    program = artifact.program
    caches = sum(t.nbytes for t in program.tensors if t.role == "state" and t.name.partition(".")[0] in CACHES)
    rest = sum(placed_bytes(program, target).values()) - caches
    return int((target.capacity(target.main.name) - rest) * artifact.signature.batch // caches)


def room(programs: Programs) -> str:
    """Return the table of sequences that fit main memory, under assumptions about its other contents."""
    machine = node(16).of_rank(16)
    main = machine.capacity(machine.main.name)
    counts = {one: largest_batch(programs[one.setup], machine) for one in DEPLOYMENTS}
    free = {one: count * row_bytes(programs[one.setup]) for one, count in counts.items()}
    # The published number of sequences must fit, twice that number must not.
    missing = [(f - 2 * one.batch * (f / counts[one]), f - one.batch * (f / counts[one])) for one, f in free.items()]
    at_least, at_most = max(low for low, _ in missing), min(high for _, high in missing)
    sizes = {"counted": 1.0, "with separate values of 512 elements (rows have 576)": 1088 / 576, "every row twice": 2.0}
    lines = [
        f"| rows | {' | '.join(one.name for one in DEPLOYMENTS)} |",
        "|---" + "|---:" * len(DEPLOYMENTS) + "|",
        f"| published | {' | '.join(str(one.batch) for one in DEPLOYMENTS)} |",
        *(f"| {name} | {' | '.join(str(int(counts[one] / size)) for one in DEPLOYMENTS)} |"
          for name, size in sizes.items()),
        "",
        f"The published number of sequences fits, and twice that number does not, if between {1e-9 * at_least:.3g} and "
        f"{1e-9 * at_most:.3g} GB of a socket's {1e-9 * main:.3g} GB are not available for rows.",
    ]  # fmt: skip
    return "\n".join(lines)


def row_bytes(artifact: Artifact) -> float:
    """Return the bytes of a rank's caches per sequence."""
    from sscc.ir.cache_plan import CACHES

    program = artifact.program
    caches = sum(t.nbytes for t in program.tensors if t.role == "state" and t.name.partition(".")[0] in CACHES)
    return caches / artifact.signature.batch


EXPERTS, CHOSEN, EXPERT_LAYERS, LAYERS = 256, 8, 58, 61
"""Sizes of DeepSeek-R1: experts, experts per token, layers with experts, layers."""


def _chosen(setup: Setup) -> float:
    from sscc.runtime.timing.work import mean_places

    return EXPERT_LAYERS * mean_places(EXPERTS, CHOSEN, setup.batch)


EFFECTS: Mapping[str, Callable[[Setup], float]] = {
    "each step": lambda setup: 1,
    "each sequence": lambda setup: setup.batch,
    "each chosen expert of a layer": _chosen,
    "each expert of a layer": lambda setup: EXPERT_LAYERS * EXPERTS,
    "each cached row of a layer": lambda setup: LAYERS * setup.batch * setup.rows / setup.sockets,
}
"""Possible causes of additional time, with their number in a rank's step."""


def effects(programs: Programs) -> str:
    """Return a table of DeepSeek-R1's modelled over published step times with one more constant: for each effect, the
    value with the best fit over all steps (least squares of the logarithms)."""
    published = {"one user": (ONE_USER, 1 / ONE_USER_RATE)} | {one.name: (one.setup, one.step) for one in DEPLOYMENTS}
    steps = {name: programs.served(setup) for name, (setup, _) in published.items()}
    lines = [
        f"| constant for | value | {' | '.join(published)} |",
        "|---|---:" + "|---:" * len(published) + "|",
        f"| none | | {' | '.join(f'{steps[name] / step:.2f}' for name, (_, step) in published.items())} |",
    ]
    for effect, count in EFFECTS.items():
        counts = {name: count(setup) for name, (setup, _) in published.items()}
        value = fitted([(steps[name], counts[name], step) for name, (_, step) in published.items()])
        ratios = (f"{(steps[name] + value * counts[name]) / step:.2f}" for name, (_, step) in published.items())
        lines.append(f"| {effect} | {value:.2g} s | {' | '.join(ratios)} |")
    return "\n".join(lines)


def fitted(points: Sequence[tuple[float, float, float]]) -> float:
    """Return the v >= 0 for which ``modelled + v * count`` is nearest to the published times, by least squares of the
    logarithms of their ratios.

    Args:
        points: triples of modelled time, count and published time.
    """

    def error(value: float) -> float:
        return sum(math.log((modelled + value * count) / published) ** 2 for modelled, count, published in points)

    most = max(0.0, *((published - modelled) / count for modelled, count, published in points))
    return min((most * step / 1000 for step in range(1001)), key=error)


PREFILL_SHARES = {
    "QKV": 4.10,
    "attention": 69.40,
    "output projection": 5.84,
    "router": 3.15,
    "experts": 14.67,
    "SnapKV": 2.52,
    "ring": 0.32,
}
"""Percentages of a layer with experts at 128k, from SnapStream's Table 4."""
PROMPT = DEPLOYMENTS[1].setup
LACKS = {
    "output projection": "its sums are exchanged in f32 at the assumed bandwidth of links; see below",
    "experts": f"their weights are read for every chunk of {R1_CHUNK} tokens, but once in the published kernel",
    "attention": "the other shares are too large; every chunk expands the keys and values of all earlier latent rows",
    "router": "scores are modelled at the peak rate, and sorting tokens by experts is not modelled",
    "SnapKV": "scores are modelled at the peak rate, gathered rows at HBM's bandwidth; launch times are not modelled",
    "ring": "gathered rows are modelled at HBM's bandwidth; launch times are not modelled",
}
KERNELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("router", ("gate ", "topk", "mlp.gate.")),
    ("experts", ("expert", "mlp", "gate", "up_proj", "down_proj", "post_attention_layernorm", "addf 2")),
    ("output projection", ("o_proj", "addf")),
    ("SnapKV", ("observ", "select", "log_sum_exp", "all_reduce", "kept_positions", "concat", "self_attn.kv_b_proj")),
    ("ring", ("gather",)),
    ("attention", ("latent_chunk_attention",)),
    ("QKV", ("q_", "kv_", "input_layernorm", "self_attn", "table", "hidden", "x")),
)
"""Published kernels with the prefixes of the names of their stages, or of the values that those load."""


def prefill(programs: Programs) -> Iterator[Row]:
    """Yield the rows of a prompt of 131072 tokens of DeepSeek-R1 on 16 sockets: shares of a layer with experts."""
    shares = kernel_shares(layer_of_experts(programs.prompt(PROMPT)), programs.machine(1))
    for name, share in PREFILL_SHARES.items():
        lacks = LACKS.get(name, "")
        if name == "QKV":
            ratios = (each[name] / each["attention"] for each in (shares, PREFILL_SHARES))
            lacks = "as for attention, of which it is {:.3f} (published: {:.3f})".format(*ratios)
        yield Row(name, share, shares[name], "%", lacks=lacks)


CHUNKS = (128, 256, 512, 640, 1024)


def chunks(programs: Programs) -> str:
    """Return the table of the prompt's time by chunk size, with the times of memory and links alone."""
    lines = [
        "| tokens per chunk | prompt, s | HBM, s | links, s | on-chip memory, MB | busiest stage of a layer with "
        "experts |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for chunk in CHUNKS:
        timing = programs.prompt(dataclasses.replace(PROMPT, chunk=chunk))
        pipeline = max(layer_of_experts(timing), key=lambda pipeline: pipeline.seconds)
        (link,) = timing.target.links
        hbm = timing.target.seconds({timing.target.main.name: timing.nbytes[timing.target.main.name]})
        busiest = max(stage.busy_seconds for stage in pipeline.stages)
        lines.append(
            f"| {chunk} | {timing.seconds:.3g} | {hbm:.3g} | {timing.nbytes[link.name] / link.bandwidth.value:.3g} "
            f"| {1e-6 * timing.on_chip_bytes:.0f} | {100 * busiest / pipeline.seconds:.0f} % |"
        )
    return "\n".join(lines)


def layer_of_experts(timing: Timing) -> Sequence[PipelineTiming]:
    """Return the pipelines of the kernel of a prompt's last layers, which have experts."""
    return next(launch.kernel for launch in reversed(timing.launches) if len(launch.kernel.pipelines) > 1).pipelines


def kernel_shares(pipelines: Sequence[PipelineTiming], target: Target) -> Mapping[str, float]:
    """Return the percentages of the published kernels if they ran one after another on a whole socket. The time of each
    is the maximum of its times of arithmetic, of each memory and of exchanges."""
    units = target.units.pcus.value
    bandwidth = {tier.name: target.bandwidth(tier.name) for tier in target.levels}
    bandwidth |= {link.name: link.bandwidth.value for link in target.links}
    parts: dict[str, Counter[str]] = {}
    for stage in (stage for pipeline in pipelines for stage in pipeline.stages):
        kernel = parts.setdefault(kernel_of(stage.name), Counter())
        kernel["compute"] += stage.compute_seconds * (stage.pcus or units) / units
        for tier, nbytes in stage.nbytes.items():
            kernel[tier] += nbytes / bandwidth[tier]
    seconds = {name: max(each.values()) for name, each in parts.items()}
    return {name: 100 * each / sum(seconds.values()) for name, each in seconds.items()}


def kernel_of(stage: str) -> str:
    """Return the published kernel of a stage. Raises ValueError if no prefix of `KERNELS` matches."""
    name = stage.removeprefix("load ").removeprefix("store ")
    for kernel, prefixes in KERNELS:
        if name.startswith(prefixes):
            return kernel
    raise ValueError(f"stage {stage!r} belongs to no published kernel")


LINKS = (0.4, 0.5, 1.0, 2.0, 4.0)
"""Factors by which links are faster than assumed: multiplied with the bandwidth, divided into the latency."""
LINKED = {
    "Llama-3.1-8B, 8 sockets, 4k": Setup("llama-3.1-8b", 8, 4096, 4096),
    "Llama-3.1-8B, 16 sockets, 4k": Setup("llama-3.1-8b", 16, 4096, 4096),
    "Llama-3.1-8B, 16 sockets, 8k": Setup("llama-3.1-8b", 16, 8192, 8192),
    "Llama-3.1-405B, 16 sockets, 8k": Setup("llama-3.1-405b", 16, 8192, 8192),
    **{f"DeepSeek-R1, 16 sockets, {d.name}, batch {d.batch}": d.setup for d in (DEPLOYMENTS[1], DEPLOYMENTS[3])},
}
COMPARED: Mapping[str, Callable[[Programs], Iterator[Row]]] = {
    "looping": looping, "users": users, "deployments": deployments, "prefill": prefill
}  # fmt: skip
"""Tables with published figures."""


def links(programs: Programs) -> str:
    """Return the table of step times with slower and faster links between sockets, and of the fit of all rows."""
    (link,) = node(16).links
    assumed = [f"{figure.value * scale:g} {unit}" for figure, scale, unit in _link_figures(link)]
    by_factor = [programs.with_links(factor) for factor in (*LINKS, 1e12)]
    lines = [
        f"Steps in ms. Links are faster than the assumed {assumed[0]} and {assumed[1]} by a factor, which multiplies "
        "the bandwidth and divides the latency; the last column is without their time.\n",
        f"| | {' | '.join(f'{factor:g}x' for factor in LINKS)} | no time |",
        "|---" + "|---:" * (len(LINKS) + 1) + "|",
    ]
    for name, setup in LINKED.items():
        lines.append(f"| {name} | {' | '.join(f'{1e3 * each.step(setup).seconds:.4g}' for each in by_factor)} |")
    rows = [{name: list(table(each)) for name, table in COMPARED.items()} for each in by_factor]
    for name, what in (("looping", "HBM roofline, looped, 16 sockets"), ("users", "8B, tokens/s"),
                       ("prefill", "output projection"), ("prefill", "attention")):  # fmt: skip
        shown = [next(row for row in each[name] if row.what == what) for each in rows]
        heading = f"{what}, {shown[0].unit}".removesuffix(", ")
        published = f"{shown[0].bound} {shown[0].published:.4g}".strip()
        lines.append(f"| {heading} (published {published}) | {' | '.join(f'{row.modelled:.3g}' for row in shown)} |")
    flat = [[row for table in each.values() for row in table] for each in rows]
    inside = (str(sum(row.inside for row in each)) for each in flat)
    lines.append(f"| rows within 15 %, of {len(flat[0])} | {' | '.join(inside)} |")
    lines.append(f"| mean factor off | {' | '.join(f'{distance(each):.2f} x' for each in flat)} |")
    return "\n".join(lines)


def distance(rows: Sequence[Row]) -> float:
    """Return the mean factor between modelled and published figures (root mean square of the logarithms); 1 if all are
    equal."""
    off = [0.0 if row.bound and row.inside else math.log(row.ratio) for row in rows]
    return math.exp(math.sqrt(sum(each**2 for each in off) / len(off)))


def exchanges(programs: Programs) -> str:
    """Return the table of the time of sums over ranks in a step, and of possible savings."""
    lines = [
        "Milliseconds of a step; the busy time of its exchanging stages, which exchange tiles or whole values; the "
        "step with bf16 sums (`--tp-sums model`); and the maximum saving if each rank computed the addition and the "
        "norm after a sum for its part only.\n",
        "| step | time | exchange of tiles | exchange of whole values | time with bf16 sums | saving by split norms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, setup in LINKED.items():
        step, parts = programs.step(setup), Counter[str]()
        for pipeline in (pipeline for launch in step.launches for pipeline in launch.kernel.pipelines):
            parts.update(exchange_seconds(pipeline, step.target, setup.sockets))
        rounded = programs.step(dataclasses.replace(setup, sums="model"))
        shown = (step.seconds, parts["tiles"], parts["whole"], rounded.seconds, parts["norms"])
        lines.append(f"| {name} | {' | '.join(f'{1e3 * each:.4g}' for each in shown)} |")
    return "\n".join(lines)


def exchange_seconds(pipeline: PipelineTiming, target: Target, sockets: int) -> Counter[str]:
    """Return times of one execution of a pipeline: busy seconds of stages that exchange "tiles" or "whole" values, and
    seconds saved if each rank computed "norms" for its part only."""
    (link,) = target.links
    seconds = Counter[str]()
    for stage in pipeline.stages:
        if stage.name.startswith(("addf", "post_attention_layernorm", "input_layernorm")):
            seconds["norms"] += stage.busy_seconds * (1 - 1 / sockets)
        if link.name in stage.nbytes:
            seconds["tiles" if stage.firings > pipeline.iterations else "whole"] += stage.busy_seconds
    return seconds


def _link_figures(link: SocketLink) -> Iterator[tuple[Figure, float, str]]:
    yield link.bandwidth, 1e-9, "GB/s"
    if link.latency is not None:
        yield link.latency, 1e6, "us"


def with_links(target: Target, factor: float) -> Target:
    """Return the machine with links that are faster by a factor."""
    better = []
    for link in target.links:
        bandwidth = dataclasses.replace(link.bandwidth, value=link.bandwidth.value * factor)
        latency = None if link.latency is None else dataclasses.replace(link.latency, value=link.latency.value / factor)
        better.append(dataclasses.replace(link, bandwidth=bandwidth, latency=latency))
    return dataclasses.replace(target, links=tuple(better))


# --------------------------------------------------------------------------------------------------------- rendering


def table(make: Callable[[Programs], Iterator[Row]]) -> Callable[[Programs], str]:
    """Return a function that renders rows as Markdown. Rows that differ by more than `INSIDE` are marked as outside."""

    def rendered(programs: Programs) -> str:
        rows = list(make(programs))
        lines = ["| what | published | modelled | modelled / published | |", "|---|---:|---:|---:|---|"]
        for row in rows:
            ratio = f"{row.ratio:.2f}" if row.inside else f"**outside** {row.ratio:.2f}"
            published, modelled = (f"{value:.4g} {row.unit}".strip() for value in (row.published, row.modelled))
            bound = f"{row.bound} {published}".strip()
            lines.append(f"| {row.what} | {bound} | {modelled} | {ratio} | {row.remark} |")
        return "\n".join(lines)

    return rendered


TABLES: Mapping[str, Callable[[Programs], str]] = {
    **{name: table(make) for name, make in COMPARED.items() if name != "prefill"},
    "room": room,
    "effects": effects,
    "prefill": table(prefill),
    "chunks": chunks,
    "links": links,
    "exchanges": exchanges,
}


def figures() -> str:
    """Return the table of the assumptions: the figures of the machine that are not published."""
    kept = [(name, figure) for name, figure in node(16).figures.items() if figure.origin != "published"]
    kept.insert(0, ("hbm.bandwidth", node(16).figures["hbm.bandwidth"]))
    lines = ["| figure | value | origin | |", "|---|---:|---|---|"]
    for name, figure in kept:
        lines.append(f"| `{name}` | {figure.value:g} {figure.unit} | {figure.origin} | {figure.note} |")
    note = "part of the rates of all deployments; fitted to one user of Llama-3.1-8B"
    lines.append(f"| between two steps | {BETWEEN_STEPS:g} s | fitted | {note} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the timing model with published deployments.")
    parser.add_argument("--only", nargs="+", metavar="TABLE", choices=TABLES, help=f"tables: {', '.join(TABLES)}")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="replace the marked blocks of a Markdown page")
    words = parser.parse_args()
    logging.getLogger("sscc").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder))
        texts = {name: TABLES[name](programs) for name in words.only or TABLES}
    texts["figures"] = figures()
    for name, text in texts.items():
        print(f"{name}\n\n{text}\n")
        if words.write is not None:
            words.write.write_text(replace_block(words.write.read_text(), name, text))


if __name__ == "__main__":
    main()
