"""Text of `sscc inspect`: labelled facts, and the lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sscc.ir.choices import MAIN, ON_CHIP, TIERS
from sscc.ir.sizes import format_bytes, format_seconds

if TYPE_CHECKING:
    from sscc.compiler.tools.inspection.inspection import Inspection, TimingReport
    from sscc.ir.geometry import Geometry
    from sscc.ir.layer_state.codecs import RowCodec
    from sscc.ir.layer_state.selectors import RowSelector
    from sscc.ir.layer_state.stores import RowStore
    from sscc.runtime.timing import Timing

SHOWN_KERNELS = 5

Fact = tuple[str, str]
"""A label of one word, and its text."""


def described(i: Inspection) -> Iterator[str]:
    """Return the lines of the output."""
    for facts in (program_facts, looping_facts, memory_facts, bound_facts):
        yield from (f"{label:10} {text}" for label, text in facts(i))
    yield from _times(i)


def program_facts(i: Inspection) -> Iterator[Fact]:
    s, g = i.signature, i.signature.cache_geometry
    main = s.plan.main
    store, codec, selector = _asked(g)
    each = f" on each of {i.ranks} ranks" if i.ranks > 1 else ""
    heads = s.rows(main).heads_in_words(" and values of ")
    yield "model", f"{i.model}: {s.layers} layers, {heads}{each}, {s.vocab_size} tokens"
    yield "program", f"{i.target}, {s.dtype}, batch {s.batch}, prefill chunk {s.prefill_chunk}"
    parts = f"sink {g.sink} + recent {g.recent} + topk {g.most_in_words(g.topk)}"
    where = f"{store.in_words()}{codec.in_words()}"
    yield "cache", f"{g.most_in_words(g.budget)} rows = {parts}, for {g.max_context} tokens{where}"
    yield "selection", selector.in_words()
    for line in s.groups_in_words() if len(s.plan.groups) > 1 or main.name or g.varies else ():
        yield "layers", f"{line}{each}"
    yield "KV", f"{s.kv_in_words()}{each}"
    kept = [f"{format_bytes(s.chunk_bytes // s.prefill_chunk)} per cached token"] if s.chunk_bytes else []
    kept += [f"{format_bytes(s.carried_bytes)} per checkpoint"] if s.carried_bytes else []
    yield "prefixes", f"prompts with a common prefix share its prefill: {', '.join(kept)}{each}"
    steps = ", ".join(f"{count} {kind}" for kind, count in i.steps.items())
    yield "kernels", f"{i.kernels}, with {i.stages} stages: {steps}"
    yield "launches", f"{i.launches_per_token} per decode step, {i.prefill_launches} in prefill's body"


def _asked(geometry: Geometry) -> tuple[RowStore, RowCodec, RowSelector]:
    """Return store, codec and selector of the requested rows, even if all layers attend within sliding windows."""
    from sscc.ir.layer_state.codecs import codec_of
    from sscc.ir.layer_state.rows import selector_of, store_of  # imported late: --help needs no numpy

    return store_of(geometry), codec_of(geometry), selector_of(geometry)


def looping_facts(i: Inspection) -> Iterator[Fact]:
    for record in i.looping:
        if record.looped:
            yield "looping", f"{record.entry}: {record.layers} layers in one launch of {record.kernel}"
        else:
            yield "looping", f"{record.entry}: {record.layers} calls of {record.kernel}, not looped: {record.reason}"


def memory_facts(i: Inspection) -> Iterator[Fact]:
    sockets = "1 socket" if i.sockets == 1 else f"{i.sockets} sockets"
    ranks = f"{i.ranks} ranks of " if i.ranks > 1 else ""
    each = "; the following figures are per rank" if i.ranks > 1 else ""
    yield "machine", f"{i.machine}, {ranks}{sockets}{each}"
    yield "memory", (
        f"weights {format_bytes(i.weight_bytes)}, states {format_bytes(i.state_bytes)}, "
        f"temporaries {format_bytes(i.temporary_bytes)}"
    )
    for tier, level in i.levels.items():
        if level.nbytes or tier in (ON_CHIP, MAIN):
            yield tier.upper(), _fits(level.nbytes, level.capacity_bytes)
    yield "units", f"{_share(i.pcus, i.pcus_capacity)} PCUs, {_share(i.pmus, i.pmus_capacity)} PMUs"


def _fits(used: int, capacity: int) -> str:
    verb = "do not fit into" if used > capacity else "of"
    return f"{format_bytes(used)} {verb} {format_bytes(capacity)}"


def _share(used: int, of: int) -> str:
    return f"{used} of {of} ({100 * used / of:.0f}%)"


def bound_facts(i: Inspection) -> Iterator[Fact]:
    moved, floor = i.decode_traffic_bytes, i.decode_floor_bytes
    yield "decode", (
        f"moves {format_bytes(moved)} a step, at least {format_bytes(floor)} "
        f"(weights and caches once): {moved / floor:.2f}x"
    )
    for reads in i.experts:
        mean, most = (format_bytes(reads.bytes_of(count)) for count in (reads.mean, reads.most))
        yield "experts", (
            f"{reads.chosen} of {reads.experts} per token; a step reads {reads.mean:.1f} per layer on average "
            f"({mean}, if all experts are equally likely) and at most {reads.most} ({most}, used for the times)"
        )
    if i.ranks > 1:
        sent = sum(nbytes for tier, nbytes in i.decode.nbytes.items() if tier not in TIERS)
        yield "ranks", f"a step sends {format_bytes(sent)} to other ranks and receives the same amount"
    _, _, selector = _asked(i.signature.cache_geometry)
    if selector.keeps_quantized_keys:
        parts = [(part, tier, nbytes) for part, tiers in i.decode_row_bytes.items() for tier, nbytes in tiers.items()]
        listed = ", ".join(f"{format_bytes(nbytes)} of {part} in {tier.upper()}" for part, tier, nbytes in parts)
        yield "rows", f"a step moves {listed}"
    far = _far(i.decode_floor_tiers)
    tiers = " and ".join(tier.upper() for tier in (MAIN, *far))
    shares = ", ".join(f"{format_bytes(nbytes)} of it from {tier.upper()}" for tier, nbytes in far.items())
    limit = f"{tiers} bandwidth alone" + (f" ({shares})" if shares else "")
    yield "bound", f"{format_seconds(i.decode_floor_seconds)} a step by {limit}, {_full_caches(i)}"


def _full_caches(i: Inspection) -> str:
    """Return the bound with uncompressed caches, and the location of these caches."""
    caches = f"full caches of {i.signature.geometry.max_context} tokens"
    if i.full_cache_floor_seconds is None:
        return f"{caches} ({format_bytes(i.signature.batch * i.full_kv_bytes)}) do not fit into the machine"
    far = _far(i.full_cache_tiers).items()
    where = "".join(f", {format_bytes(nbytes)} of them in {tier.upper()}" for tier, nbytes in far)
    return f"{format_seconds(i.full_cache_floor_seconds)} with {caches}{where}"


def _far(nbytes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes per tier in memories farther than main memory."""
    return {tier: part for tier, part in nbytes.items() if tier != MAIN and part}


def slots_in_words(i: Inspection) -> str:
    """Return the slots and context of the modelled decode step."""
    return f"{i.signature.batch} slot{'s' * (i.signature.batch > 1)} of {i.context} tokens"


def stage_lines(entry: str, timing: Timing) -> Iterator[str]:
    """Yield a table of the stages of one call of an entry, in the order in which they fire.

    The share is the stage's busy time as a fraction of the time of the call. Stages run concurrently, so that shares
    add up to more than 100 %.
    """
    stages = timing.stages()
    width = max((len(stage.stage) + 2 for stage in stages), default=0)
    figures = f"{'firings':>9} {'bytes':>12} {'operations':>11} {'busy':>12} {'share':>7}  bound"
    yield f"{'stages of ' + entry:{width}} {figures}"
    pipeline = ("", "")
    for stage in stages:
        if (stage.kernel, stage.pipeline) != pipeline:
            pipeline = stage.kernel, stage.pipeline
            yield ".".join(pipeline)
        name = f"  {stage.stage}"
        moved = sum(nbytes for tier, nbytes in stage.nbytes.items() if tier != ON_CHIP)
        yield (
            f"{name:{width}} {stage.firings:9} {format_bytes(moved):>12} {stage.operations:11.4g} "
            f"{format_seconds(stage.busy_seconds):>12} {100 * stage.busy_seconds / timing.seconds:6.1f}%  {stage.bound}"
        )


def _times(i: Inspection) -> Iterator[str]:
    yield (
        f"modelled   {format_seconds(i.decode.seconds)} a step with {slots_in_words(i)}: "
        f"{i.tokens_per_second:.4g} tokens/s; "
        f"{format_seconds(i.decode.overhead_seconds)} of it between launches"
    )
    yield f"roofline   {_bandwidth(i.decode)}"
    yield from _kernels(i, i.decode)
    if i.verify is not None:
        tokens = i.signature.drafted + 1
        yield (
            f"verify     {format_seconds(i.verify.seconds)} a step with {tokens} tokens in each slot: "
            f"{i.verify.seconds / i.decode.seconds:.2f} times a step of one; "
            f"{format_bytes(i.spare_kv_bytes)} a sequence for rejected tokens"
        )
    if i.prefill is not None:
        yield (
            f"prefill    {format_seconds(i.prefill.seconds)} for {i.prompt} tokens: "
            f"{i.prompt / i.prefill.seconds:.4g} tokens/s; {i.prefill.launches} launches"
        )
        yield f"roofline   {_bandwidth(i.prefill)}"
        yield from _kernels(i, i.prefill)
    for line in i.decode.assumptions:
        yield f"assumed    {line}"


def _bandwidth(r: TimingReport) -> str:
    tiers = [tier for tier in TIERS if tier != ON_CHIP and tier in r.bandwidth]
    rates = [f"{tier.upper()} {r.bandwidth[tier] / 1e9:.4g} GB/s" for tier in tiers]
    return f"{', '.join(rates)}: {100 * r.roofline_fraction:.1f}% of the {MAIN.upper()} roofline"


def _kernels(i: Inspection, r: TimingReport) -> Iterator[str]:
    for kernel in r.kernels[:SHOWN_KERNELS]:
        units = f"{_share(kernel.pcus, i.pcus_capacity)} PCUs, {_share(kernel.pmus, i.pmus_capacity)} PMUs"
        yield (
            f"  {100 * kernel.seconds / r.seconds:5.1f}%  {kernel.name} x {kernel.launches}: "
            f"{format_seconds(kernel.seconds)}, {units}; slowest stage {kernel.slowest} ({kernel.bound})"
        )
    rest = r.kernels[SHOWN_KERNELS:]
    if rest:
        share = 100 * sum(kernel.seconds for kernel in rest) / r.seconds
        yield f"  {share:5.1f}%  {len(rest)} other kernels"
