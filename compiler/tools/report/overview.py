"""Overview section: main facts of the program, and the costs of a step in a few numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sscc.compiler.tools.inspection.inspection import TimingReport
from sscc.compiler.tools.inspection.inspection_words import (
    Fact,
    bound_facts,
    looping_facts,
    memory_facts,
    program_facts,
    slots_in_words,
)
from sscc.compiler.tools.report.report_inputs import Sources
from sscc.ir.sizes import format_bytes, format_seconds


@dataclass(frozen=True)
class Tile:
    """A key figure with its name and an explanation."""

    label: str
    number: str
    note: str


@dataclass(frozen=True)
class Part:
    """A part of a whole.

    Attributes:
        share: fraction of the whole, 0 .. 1.
        kind: name of its colour.
    """

    label: str
    share: float
    number: str
    kind: str


@dataclass(frozen=True)
class Split:
    """The time of a call, divided among kernels.

    Attributes:
        note: time spent on launches, in words.
    """

    title: str
    total: str
    note: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Overview:
    """The contents of the section.

    Attributes:
        facts: facts as `sscc inspect` prints them.
        files: digest of the schedule, and versions.
    """

    tiles: tuple[Tile, ...]
    splits: tuple[Split, ...]
    facts: tuple[Fact, ...]
    files: tuple[Fact, ...]


def overview(sources: Sources) -> Overview:
    i = sources.inspection
    facts = (*program_facts(i), *looping_facts(i), *memory_facts(i), *bound_facts(i))
    assert i.prefill is not None  # a prompt is always requested
    splits = _split(f"Decode step, {slots_in_words(i)}", i.decode), _split(f"Prefill of {i.prompt} tokens", i.prefill)
    return Overview(tuple(_tiles(sources)), splits, facts, tuple(_files(sources)))


def _tiles(sources: Sources) -> Iterator[Tile]:
    i = sources.inspection
    s, g = i.signature, i.signature.geometry
    assert i.prefill is not None
    rate = f"{slots_in_words(i)}: {_count(i.tokens_per_second)} tokens/s"
    yield Tile("Decode step, modelled", format_seconds(i.decode.seconds), rate)
    main = sources.machine.main.label
    least = f"lower bound {format_seconds(i.decode_floor_seconds)}"
    share = f"{100 * i.decode.roofline_fraction:.0f}% of the {main} roofline"
    yield Tile("Decode bound", _bound(i.decode), f"{share}; {least}")
    chunks = s.chunks(i.prompt)
    prefill = f"{i.prompt} tokens, {chunks} chunk{'s' * (chunks > 1)}: {_count(i.prompt / i.prefill.seconds)} tokens/s"
    yield Tile("Prefill, modelled", format_seconds(i.prefill.seconds), f"{prefill}; bound by {_bound(i.prefill)}")
    ratio = i.full_kv_bytes / i.kv_bytes
    full = f"a step reads 1/{ratio:.3g} of a full cache ({format_bytes(i.full_kv_bytes)})"
    yield Tile("KV cache per sequence", format_bytes(i.held_kv_bytes), f"{g.most_in_words(g.budget)} rows; {full}")
    record = sources.artifact.manifest.weights
    held = {"embedded": "stored in the artifact", "reference": "read from the checkpoint"}.get(record.mode, record.mode)
    each = f", per rank ({i.ranks} ranks)" if i.ranks > 1 else ""
    yield Tile("Weights", format_bytes(i.weight_bytes), held + each)
    sockets = f"{i.sockets} socket{'s' * (i.sockets > 1)}"
    units = f"{i.pcus} of {i.pcus_capacity} PCUs, {i.pmus} of {i.pmus_capacity} PMUs"
    machine = f"{i.ranks} ranks of {sockets}" if i.ranks > 1 else sockets
    yield Tile("Machine", i.machine, f"{machine}; {units} used")


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def _bound(report: TimingReport) -> str:
    """Return the bound that accounts for the largest part of a call's time."""
    seconds: dict[str, float] = {"launches": report.overhead_seconds}
    for kernel in report.kernels:
        seconds[kernel.bound] = seconds.get(kernel.bound, 0.0) + kernel.seconds - kernel.launch_seconds
    return max(seconds, key=lambda name: seconds[name]) or "none"


def _split(title: str, report: TimingReport) -> Split:
    parts = [(k.name, k.seconds, f"kernel{min(at, 5)}") for at, k in enumerate(report.kernels)]
    shown, rest = parts[:5], parts[5:]
    if rest:
        shown.append((f"{len(rest)} other kernels", sum(seconds for _, seconds, _ in rest), "kernel5"))
    total = report.seconds or 1.0
    bars = tuple(Part(name, spent / total, format_seconds(spent), kind) for name, spent, kind in shown)
    launches = f"{report.launches} launch{'es' * (report.launches != 1)}"
    note = f"{format_seconds(report.overhead_seconds)} of it for {launches}"
    return Split(title, format_seconds(report.seconds), note, bars)


def _files(sources: Sources) -> Iterator[Fact]:
    manifest = sources.artifact.manifest
    yield "artifact", sources.name
    yield "schedule", f"sha256 {sources.artifact.schedule_digest}"
    if manifest.weights.digest:
        yield "weights", manifest.weights.digest
    yield "sscc", manifest.sscc
    yield "tools", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())
