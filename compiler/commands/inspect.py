"""`sscc inspect`: what an artifact is, what a decode step moves, and how long the modelled machine takes for it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from sscc.compiler.commands.modelling import add_modelling_arguments, target_of
from sscc.compiler.files import printing_beside
from sscc.compiler.inspection_words import described


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="OUT.rdu", help="what `sscc compile` wrote")
    parser.add_argument("--json", action="store_true", help="one object, for programs; bytes as integers")
    add_modelling_arguments(parser, prompt="time the prefill of N tokens too (default: no prefill)")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace for Perfetto of the decode step, and of the prefill with --prompt; - for stdout, and then "
        "what else is printed goes to stderr",
    )


def main(args: argparse.Namespace) -> int:
    from sscc.runtime.artifact.reading import Artifact
    from sscc.runtime.inspection import inspect_artifact, time_decode, time_prefill
    from sscc.runtime.timing import write_trace

    artifact = Artifact.load(args.artifact)
    target = target_of(artifact, args)
    inspection = inspect_artifact(artifact, target, context=args.context, prompt=args.prompt, staying=args.staying)
    if args.trace is not None:
        timings = [time_decode(artifact, target, args.context, staying=args.staying, record=True)]
        if args.prompt:
            timings.append(time_prefill(artifact, target, args.prompt, record=True))
        write_trace(args.trace, *timings)
    with printing_beside(args.trace):
        print(json.dumps(asdict(inspection)) if args.json else "\n".join(described(inspection)))
    return 0
<<<<<<< HEAD


def described(i: Inspection) -> Iterator[str]:
    """What is printed, line by line."""
    yield from _program(i)
    yield from _looping(i)
    yield from _memory(i)
    yield from _bounds(i)
    yield from _times(i)


def _program(i: Inspection) -> Iterator[str]:
    s, g = i.signature, i.signature.geometry
    main = s.plan.main
    each = f" on each of {i.ranks} ranks" if i.ranks > 1 else ""
    heads = main.heads_in_words(" and values of ")
    yield f"model      {i.model}: {s.layers} layers, {heads}{each}, {s.vocab_size} tokens"
    yield f"program    {i.target}, {s.dtype}, batch {s.batch}, prefill chunk {s.prefill_chunk}"
    most = "up to " if g.layer_topk else ""
    parts = f"sink {g.sink} + recent {g.recent} + topk {most}{g.topk}"
    where = "; those of topk stay in the prompt's K and V" if g.indexed else ""
    where = "; those of topk are chosen in every step, of all positions" if g.by_query else where
    where += f"; rows of {g.dtype} codes and {'a scale' if g.dtype == 'int8' else 'scales'}" if g.encoded else ""
    yield f"cache      {most}{g.budget} rows = {parts}, for {g.max_context} tokens{where}"
    if g.by_query:
        copies = "keys, which are their own landmarks (16 bits)"
        by = copies if g.landmark_bits == PLAIN_BITS else f"landmarks of {g.landmark_bits} bits"
        limit = "" if g.fetch is None else f"; it fetches {g.fetch} rows at most, {g.topk} are resident"
        yield f"selection  every step's query, by {by}{limit}"
    else:
        by = "" if g.rule is None else f"the rule {g.rule[0]} (sha256 {g.rule[1][:16]}), "
        yield f"selection  {by}observation window {g.obs}, {g.pool_mode} pool {g.pool}"
    for line in s.groups_in_words() if len(s.plan.groups) > 1 or main.name or g.layer_topk else ():
        yield f"layers     {line}{each}"
    yield f"KV         {s.kv_in_words()}{each}"
    if s.continues:
        kept = f"{format_bytes(s.prefix_bytes)} a token kept{each}"
        yield f"prefixes   prompts that begin alike share their prefill: {kept}"
    steps = ", ".join(f"{count} {kind}" for kind, count in i.steps.items())
    yield f"kernels    {i.kernels} of {i.stages} stages: {steps}"
    yield f"launches   {i.launches_per_token} per decode step, {i.prefill_launches} in prefill's body"


def _looping(i: Inspection) -> Iterator[str]:
    for record in i.looping:
        if record.looped:
            yield f"looping    {record.entry}: {record.layers} layers in one launch of {record.kernel}"
        else:
            yield f"looping    {record.entry}: {record.layers} calls of {record.kernel} stay: {record.reason}"


def _memory(i: Inspection) -> Iterator[str]:
    sockets = "1 socket" if i.sockets == 1 else f"{i.sockets} sockets"
    ranks = f"{i.ranks} ranks of " if i.ranks > 1 else ""
    each = "; what follows is of each rank" if i.ranks > 1 else ""
    yield f"machine    {i.machine}, {ranks}{sockets}{each}"
    yield (
        f"memory     weights {format_bytes(i.weight_bytes)}, states {format_bytes(i.state_bytes)}, "
        f"temporaries {format_bytes(i.temporary_bytes)}"
    )
    for tier, level in i.levels.items():
        if level.nbytes or tier in (ON_CHIP, MAIN):
            yield f"{tier.upper():10} {_fits(level.nbytes, level.capacity_bytes)}"
    yield f"units      {_share(i.pcus, i.pcus_capacity)} PCUs, {_share(i.pmus, i.pmus_capacity)} PMUs"


def _fits(used: int, capacity: int) -> str:
    verb = "do not fit into" if used > capacity else "of"
    return f"{format_bytes(used)} {verb} {format_bytes(capacity)}"


def _share(used: int, of: int) -> str:
    return f"{used} of {of} ({100 * used / of:.0f}%)"


def _bounds(i: Inspection) -> Iterator[str]:
    moved, floor = i.decode_traffic_bytes, i.decode_floor_bytes
    yield (
        f"decode     moves {format_bytes(moved)} a step, at least {format_bytes(floor)} "
        f"(weights and caches once): {moved / floor:.2f}x"
    )
    for reads in i.experts:
        mean, most = (format_bytes(reads.bytes_of(count)) for count in (reads.mean, reads.most))
        yield (
            f"experts    {reads.chosen} of {reads.experts} a token; a step reads {reads.mean:.1f} of each layer's in "
            f"the mean ({mean}, were all choices alike) and at most {reads.most} ({most}, which it is timed with)"
        )
    if i.ranks > 1:
        sent = sum(nbytes for tier, nbytes in i.decode.nbytes.items() if tier not in TIERS)
        yield f"ranks      a step sends {format_bytes(sent)} to other ranks and receives as much"
    if i.signature.geometry.by_query:
        parts = [(part, tier, nbytes) for part, tiers in i.decode_row_bytes.items() for tier, nbytes in tiers.items()]
        listed = ", ".join(f"{format_bytes(nbytes)} of {part} in {tier.upper()}" for part, tier, nbytes in parts)
        yield f"rows       a step moves {listed}"
    far = _far(i.decode_floor_tiers)
    tiers = " and ".join(tier.upper() for tier in (MAIN, *far))
    shares = ", ".join(f"{format_bytes(nbytes)} of it from {tier.upper()}" for tier, nbytes in far.items())
    alone = f"{tiers} bandwidth alone" + (f" ({shares})" if shares else "")
    yield f"bound      {format_seconds(i.decode_floor_seconds)} a step by {alone}, {_full_caches(i)}"


def _full_caches(i: Inspection) -> str:
    """The bound with caches that are not compressed, and where they would lie."""
    caches = f"full caches of {i.signature.geometry.max_context} tokens"
    if i.full_cache_floor_seconds is None:
        return f"{caches} ({format_bytes(i.signature.batch * i.full_kv_bytes)}) do not fit into the machine"
    far = _far(i.full_cache_tiers).items()
    where = "".join(f", {format_bytes(nbytes)} of them in {tier.upper()}" for tier, nbytes in far)
    return f"{format_seconds(i.full_cache_floor_seconds)} with {caches}{where}"


def _far(nbytes: Mapping[str, int]) -> dict[str, int]:
    """What lies behind main memory, per tier."""
    return {tier: part for tier, part in nbytes.items() if tier != MAIN and part}


def _times(i: Inspection) -> Iterator[str]:
    slots = f"{i.signature.batch} slot{'s' if i.signature.batch > 1 else ''} of {i.context} tokens"
    yield (
        f"modelled   {format_seconds(i.decode.seconds)} a step with {slots}: {i.tokens_per_second:.4g} tokens/s; "
        f"{format_seconds(i.decode.overhead_seconds)} of it between launches"
    )
    yield f"roofline   {_bandwidth(i.decode)}"
    yield from _kernels(i, i.decode)
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
=======
>>>>>>> b8c44e91a0c00d782deb3b0d4cf36aebfd029453
