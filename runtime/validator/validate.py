"""The proof of a whole schedule, in order: names, bodies, entries, kernels, addresses, samples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf

from sscc.ir import schedule as sch
from sscc.ir.target import Target
from sscc.runtime.validator.bodies import prove_body
from sscc.runtime.validator.entries import EntryFacts, Pair, callers, lifetimes, prove_entry
from sscc.runtime.validator.failure import Limits, ProofKind
from sscc.runtime.validator.findings import EntryReport, Report
from sscc.runtime.validator.kernels import KernelFacts, prove_kernel
from sscc.runtime.validator.pipelines import Bound
from sscc.runtime.validator.placement import check_capacity, check_overlaps, check_sizes, check_tensors
from sscc.runtime.validator.samples import SampleRunner


class ProgramProofErrors(ProofKind):
    """Duplicate names in a schedule, and bounds that could not be proved."""

    TENSOR_TWICE = "two tensors have the name {name!r}"
    BODY_TWICE = "two bodies have the name {name!r}"
    KERNEL_TWICE = "two kernels have the name {name!r}"
    ENTRY_TWICE = "two entries have the name {name!r}"
    NOT_PROVED = "the {subject} could not be proved for all values of the scalars, and no sample run reaches it"


Samples = Mapping[str, Sequence[Mapping[str, int]]]


def validate(
    program: sch.Program,
    target: Target | None = None,
    *,
    ranges: Mapping[str, tuple[int, int]] | None = None,
    samples: Samples | None = None,
    longest: int | None = None,
    limits: Limits | None = None,
) -> Report:
    """Prove that a schedule can be executed as documented in `sscc.ir.schedule`.

    It checks names, shapes, dtypes and access kinds; that views stay inside their tensors; that addresses are shared
    only by tensors with disjoint lifetimes; capacities; that every slot of a stream is filled once before it is read,
    without deadlock and without overwriting; that memory which stages share is accessed in a defined order.

    Args:
        target: target whose capacities are checked; None for no check.
        ranges: lowest and highest value of entries' scalar inputs, by name; others may have any value.
        samples: for each entry, values of its scalar inputs. They decide bounds that the ranges do not prove. An entry
            without scalar inputs is always run once.
        longest: maximum number of iterations of a loop; None for any number.
        limits: limits of the proof's work.

    Raises:
        InputError: the first fault, or the first bound that can be neither proved nor sampled, with place and numbers.
    """
    limits = limits or Limits()
    loops = inf if longest is None else longest
    for kind, items in (
        (ProgramProofErrors.TENSOR_TWICE, program.tensors),
        (ProgramProofErrors.BODY_TWICE, program.bodies),
        (ProgramProofErrors.KERNEL_TWICE, program.kernels),
        (ProgramProofErrors.ENTRY_TWICE, program.entries),
    ):
        _check_unique(kind, [item.name for item in items])
    check_tensors(program)
    tensors = {tensor.name: tensor for tensor in program.tensors}
    bodies = {body.name: prove_body(body, limits, grid=program.grid) for body in program.bodies}
    by_name = {kernel.name: kernel for kernel in program.kernels}
    entries = [prove_entry(entry, tensors, by_name, ranges or {}, loops) for entry in program.entries]
    callers_of = callers(entries, by_name)
    firing: set[Hashable] = set()
    kernels = {
        name: prove_kernel(kernel, bodies, callers_of[name], target, limits, loops, firing)
        for name, kernel in by_name.items()
    }
    lives = {facts.entry.name: lifetimes(facts, tensors, limits) for facts in entries}
    check_overlaps(program, entries, lives, kernels)
    check_sizes(program)
    if target is not None:
        check_capacity(program, kernels, target)
    sampler = SampleRunner(program, entries, kernels, ranges or {}, limits)
    reports = tuple(_run(facts, sampler, samples or {}) for facts in entries)
    data = tuple(sorted({line for facts in kernels.values() for line in facts.data}))
    proved = sum(facts.proved for facts in entries) + sum(facts.proved for facts in kernels.values())
    sampled = _sampled(entries, kernels, sampler)
    return Report(reports, proved, sampled, data)


def _check_unique(kind: ProgramProofErrors, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise kind(where="program", name=name)
        seen.add(name)


def _run(facts: EntryFacts, sampler: SampleRunner, samples: Samples) -> EntryReport:
    scalar_sets = samples.get(facts.entry.name, ())
    if not scalar_sets and not facts.entry.scalar_inputs:
        scalar_sets = ({},)
    runs = tuple(sampler.run(facts.entry, scalars) for scalars in scalar_sets)
    return EntryReport(facts.entry.name, runs)


def _sampled(
    entries: Sequence[EntryFacts], kernels: Mapping[str, KernelFacts], sampler: SampleRunner
) -> tuple[str, ...]:
    """Return the bounds that samples have decided. Refuses a bound that none of them has reached."""
    lines = []
    for facts in entries:
        for launch in facts.launches:
            items: list[Bound | Pair] = [*launch.open, *launch.pairs]
            for item in items:
                if item not in sampler.seen:
                    raise ProgramProofErrors.NOT_PROVED(where=item.where, subject=item.subject)
                lines.append(f"{item.where}: {item.subject}")
    for kernel in kernels.values():
        for pipeline in kernel.pipelines.values():
            for _, bound in pipeline.open:
                if bound not in sampler.seen:
                    raise ProgramProofErrors.NOT_PROVED(where=bound.where, subject=bound.subject)
                lines.append(f"{bound.where}: {bound.subject}")
    return tuple(lines)
