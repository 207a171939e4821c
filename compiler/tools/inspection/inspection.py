"""Facts about an artifact from its schedule, and times from the timing model.

Traffic counts the bytes that the launches of a decode step move. The floor is the minimum traffic of a step: each
weight that it uses and each cache row, counted once. Tiers work concurrently, so the minimum time is that of the
slowest tier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from sscc.ir.choices import DECODE, VERIFY
from sscc.ir.errors import ErrorKind, InternalError, UsageError
from sscc.ir.looping import Looping
from sscc.ir.schedule import Pipeline, Program, Tensor, launches, pipelines
from sscc.ir.target import Target
from sscc.runtime.artifact.contract import states_of
from sscc.runtime.artifact.signature import ProgramIdentity, Signature
from sscc.runtime.artifact.tensor_files import NUMPY_DTYPES
from sscc.runtime.backends.interpreter import HostTensor
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.kept_rows import KeptRows
from sscc.runtime.session.slot_message import SlotFormat
from sscc.runtime.timing import ExpertReads, KernelSummary, Timing, expert_reads, time_entry

if TYPE_CHECKING:
    from sscc.runtime.backends.collectives.group import Value
    from sscc.runtime.backends.collectives.shared_windows import Windows

PREFILL = "prefill"


class InspectionErrors(ErrorKind):
    CONTEXT = UsageError, "a context of {tokens} tokens does not fit: the program accepts 1 to {max_context} tokens"
    PROMPT = UsageError, "a prompt of {tokens} tokens does not fit: the program accepts 1 to {max_context} tokens"
    NO_EXCHANGE = InternalError, "a placeholder for one of several ranks cannot exchange anything"


@dataclass(frozen=True)
class TimingReport:
    """One call of an entry according to the timing model.

    Attributes:
        launches: number of kernel launches.
        overhead_seconds: their launch and boundary cost, a part of `seconds`.
        nbytes, bandwidth: bytes, and bytes/s over the whole call, per tier.
        roofline_fraction: fraction of main memory's roofline.
        kernels: kernels, the most expensive first.
        assumptions: assumptions of the times.
    """

    seconds: float
    launches: int
    overhead_seconds: float
    nbytes: Mapping[str, int]
    bandwidth: Mapping[str, float]
    roofline_fraction: float
    kernels: tuple[KernelSummary, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class LevelReport:
    """Use and capacity of a level of memory, in bytes on all sockets. On the chip, the use is the high-water mark of
    buffers."""

    nbytes: int
    capacity_bytes: int


@dataclass(frozen=True)
class Inspection:
    """The contents of `sscc inspect`. Bytes, capacities and units are those of one rank, on all of its sockets; tiers
    are in the target's order.

    Attributes:
        target: target for which the program was compiled.
        model: name of the architecture.
        machine: machine of the times and bounds.
        sockets: number of its sockets per rank.
        ranks: number of ranks that run the program together.
        signature: the cache's geometry and the sizes of the program.
        kernels: number of distinct kernels.
        stages: number of their stages.
        steps: numbers of steps by kind, over all bodies.
        launches_per_token: kernel launches of one decode step.
        prefill_launches: launches in prefill's body, with loops entered once.
        looping: outcome of looping each run of equal layers.
        state_bytes: tensors that persist between calls, inputs and outputs included.
        temporary_bytes: region that temporaries share.
        weight_bytes: weights and constants.
        experts: experts that a decode step reads, by the sizes of their layers.
        kv_bytes: bytes of K and V that a decode step reads for one sequence.
        full_kv_bytes: the same for an uncompressed cache of max_context tokens.
        spare_kv_bytes: part of `held_kv_bytes` for the drafted tokens of a step; 0 without steps of several tokens.
        held_kv_bytes: bytes of K and V of one sequence in memory, including its whole prompt if the selected rows are
            indexed.
        decode_row_bytes: bytes of the caches that a step moves, by part ("cache", "store", "quantized keys", "resident
            rows") and tier.
        levels: memory levels by tier.
        decode_traffic_bytes: bytes moved by one decode step of all slots, without on-chip traffic.
        decode_floor_bytes: bytes of weights and caches that a step uses, each counted once.
        decode_floor_tiers: the same by tier.
        decode_floor_seconds: minimum time of a decode step by bandwidth alone: a bound, not a model.
        full_cache_floor_seconds: the same with uncompressed caches of max_context rows, placed in the space that the
            program leaves in main memory, then in farther memories; None if they do not fit.
        full_cache_tiers: bytes of such caches, by tier.
        context: tokens in each slot for `decode`.
        verify: a step of `Signature.drafted` + 1 tokens in each slot; None without such steps.
        prompt: prompt tokens of `prefill`; 0 without it.
        slot_message_bytes: size of the message that transfers a slot to another process after a prompt of `context`
            tokens, with the parts of all ranks.
        full_slot_bytes: the same for an uncompressed cache of that prompt.
        tokens_per_second: modelled tokens/s of all slots together.
    """

    target: str
    model: str
    machine: str
    sockets: int
    ranks: int
    signature: Signature
    kernels: int
    stages: int
    steps: dict[str, int]
    launches_per_token: int
    prefill_launches: int
    looping: tuple[Looping, ...]
    state_bytes: int
    temporary_bytes: int
    weight_bytes: int
    experts: tuple[ExpertReads, ...]
    kv_bytes: int
    held_kv_bytes: int
    full_kv_bytes: int
    spare_kv_bytes: int
    decode_traffic_bytes: int
    decode_floor_bytes: int
    decode_floor_tiers: Mapping[str, int]
    decode_row_bytes: Mapping[str, Mapping[str, int]]
    levels: Mapping[str, LevelReport]
    pcus: int
    pcus_capacity: int
    pmus: int
    pmus_capacity: int
    decode_floor_seconds: float
    full_cache_floor_seconds: float | None
    full_cache_tiers: Mapping[str, int]
    context: int
    slot_message_bytes: int
    full_slot_bytes: int
    decode: TimingReport
    tokens_per_second: float
    verify: TimingReport | None
    prompt: int
    prefill: TimingReport | None


def inspect_artifact(
    artifact: Artifact,
    target: Target | None = None,
    *,
    context: int | None = None,
    prompt: int | None = None,
    staying: float = 0.0,
) -> Inspection:
    """Collect facts from the manifest and the schedule, and time the entries.

    Args:
        target: machine to model; None for the target of the compilation.
        context: tokens in each slot of the decode step, including generated ones; max_context if None.
        prompt: prompt tokens of a prefill to time, too; None for no prefill.
        staying: fraction of the rows selected by each step that are already on chip (`time_entry`).

    Raises:
        UsageError: a context or prompt that the program does not accept.
    """
    target = artifact.target if target is None else target
    timings = time_steps(artifact, target, context, staying=staying)
    if prompt is not None:
        timings[PREFILL] = time_prefill(artifact, target, prompt)
    return inspection_of(artifact, timings, context, prompt)


def inspection_of(
    artifact: Artifact, timings: Mapping[str, Timing], context: int | None = None, prompt: int | None = None
) -> Inspection:
    """Return the inspection of an artifact.

    Args:
        timings: timings on the machine of one rank, by entry: a decode step of `context` tokens in each slot
            (max_context if None), a step of several tokens if the program has them, and a prefill of `prompt` tokens,
            or none.
    """
    timing, verify, prefill = timings[DECODE], timings.get(VERIFY), timings.get(PREFILL)
    program, signature, target = artifact.program, artifact.signature, timing.target
    geometry = signature.geometry
    tokens = geometry.max_context if context is None else context
    state = sum(t.nbytes for t in program.tensors if t.role in ("state", "input", "output"))
    weights = [t for t in program.tensors if t.role in ("weight", "constant")]
    floor, full = decode_floor(artifact, timing), _FullCaches.on(target, artifact, timing)
    on_chip = on_chip_bytes(program)
    taken = {target.nearest.name: on_chip, **placed_bytes(program, target)}
    return Inspection(
        target=artifact.manifest.target,
        model=str(artifact.manifest.model.get("model_type", "exported program")),
        machine=target.name,
        sockets=int(target.sockets.value),
        ranks=program.ranks,
        signature=signature,
        kernels=len(program.kernels),
        stages=sum(len(pipeline.stages) for pipeline in _pipelines(program)),
        steps=dict(sorted(Counter(step.kind for body in program.bodies for step in body.steps).items())),
        launches_per_token=len(timing.launches),
        prefill_launches=sum(1 for _ in launches(program.entry(PREFILL).body)),
        looping=tuple(artifact.manifest.looping),
        state_bytes=state,
        temporary_bytes=max(0, program.arena_bytes - state),
        weight_bytes=sum(tensor.nbytes for tensor in weights),
        experts=expert_reads(program, DECODE),
        kv_bytes=signature.read_bytes,
        held_kv_bytes=signature.held_bytes,
        full_kv_bytes=signature.full_kv_bytes(geometry.max_context),
        spare_kv_bytes=signature.spare_bytes,
        decode_traffic_bytes=sum(timing.nbytes.get(level.name, 0) for level in target.memories),
        decode_floor_bytes=sum(floor.values()),
        decode_floor_tiers=floor,
        decode_row_bytes=_row_bytes(artifact, timing),
        levels={tier: LevelReport(nbytes, target.capacity(tier)) for tier, nbytes in taken.items()},
        pcus=timing.pcus,
        pcus_capacity=int(target.units.pcus.value),
        pmus=ceil(on_chip / target.units.pmu_bytes.value),
        pmus_capacity=target.pmus,
        decode_floor_seconds=target.seconds(floor),
        full_cache_floor_seconds=full.seconds,
        full_cache_tiers=full.nbytes,
        context=tokens,
        slot_message_bytes=slot_message_bytes(artifact, tokens),
        full_slot_bytes=signature.full_kv_bytes(tokens, program.ranks),
        decode=report(timing),
        tokens_per_second=signature.batch / timing.seconds,
        verify=None if verify is None else report(verify),
        prompt=prompt or 0,
        prefill=None if prefill is None else report(prefill),
    )


@dataclass
class _Rank:
    """One of several ranks, without communication."""

    rank: int
    ranks: int

    def exchange(self, value: Value) -> Sequence[Value]:
        raise InspectionErrors.NO_EXCHANGE()

    def windows(self, nbytes: int) -> Windows:
        raise InspectionErrors.NO_EXCHANGE()

    def end(self, rank: int) -> None:
        """Do nothing, because no other rank waits."""


def slot_message_bytes(artifact: Artifact, length: int) -> int:
    """Return the size of the message of a slot after a prompt of `length` tokens, from the shapes of the program's
    states alone."""
    program, states = artifact.program, states_of(artifact.signature)

    def shaped(name: str) -> HostTensor:
        """Return a tensor of the state's shape and dtype, which takes no memory."""
        return HostTensor(np.broadcast_to(np.zeros((), NUMPY_DTYPES[states[name].dtype]), states[name].shape))

    rows = KeptRows(artifact.signature, shaped, _Rank(0, program.ranks))
    digests = ProgramIdentity("0" * 64, "0" * 64)  # all digests have the same length
    slots = SlotFormat(artifact.signature, digests, rows.layout, remembers=program.ranks == 1)
    return slots.nbytes(length)


def time_decode(
    artifact: Artifact,
    target: Target,
    context: int | None = None,
    *,
    staying: float = 0.0,
    mean_experts: bool = False,
    prefetch: bool = True,
    record: bool = False,
    entry: str = DECODE,
) -> Timing:
    """Return the timing of a step of an entry, of all slots, each of which holds `context` tokens (max_context if
    None), nearly all from its prompt. The ranks of a program share the sockets of `target`."""
    geometry = artifact.signature.geometry
    tokens = geometry.max_context if context is None else context
    _check_tokens(InspectionErrors.CONTEXT, tokens, geometry.max_context)
    means = {
        rows: round(fmean(min(tokens, budget) for budget in budgets))
        for _, state in artifact.signature.states
        for rows, budgets in state.unequal_budgets().items()
    }
    return time_entry(
        artifact.program, entry, target.of_rank(artifact.program.ranks), valid_rows=tokens, mean_rows=means,
        staying=staying, mean_experts=mean_experts, prefetch=prefetch, record=record,
    )  # fmt: skip


def time_steps(
    artifact: Artifact, target: Target, context: int | None = None, *, staying: float = 0.0, record: bool = False
) -> dict[str, Timing]:
    """Return the timings of a step of each entry that feeds tokens to all slots, by entry: see `time_decode`."""
    return {
        entry: time_decode(artifact, target, context, staying=staying, record=record, entry=entry)
        for entry in artifact.signature.step_tokens
    }


def time_prefill(artifact: Artifact, target: Target, prompt: int, *, record: bool = False) -> Timing:
    """Return the timing of a prefill of one prompt of `prompt` tokens, in one call."""
    signature = artifact.signature
    _check_tokens(InspectionErrors.PROMPT, prompt, signature.geometry.max_context)
    rank = target.of_rank(artifact.program.ranks)
    return time_entry(artifact.program, PREFILL, rank, signature.prefill_scalars(prompt), record=record)


def _check_tokens(kind: InspectionErrors, tokens: int, limit: int) -> None:
    if not 1 <= tokens <= limit:
        raise kind(tokens=tokens, max_context=limit)


def report(timing: Timing) -> TimingReport:
    """Return the figures of a timing."""
    return TimingReport(
        seconds=timing.seconds,
        launches=len(timing.launches),
        overhead_seconds=len(timing.launches) * timing.launch_overhead,
        nbytes=dict(timing.nbytes),
        bandwidth={tier: timing.bandwidth(tier) for tier in timing.nbytes},
        roofline_fraction=timing.roofline_fraction,
        kernels=timing.kernels(),
        assumptions=timing.assumptions,
    )


def _pipelines(program: Program) -> Iterator[Pipeline]:
    return (pipeline for kernel in program.kernels for pipeline in pipelines(kernel.body))


def on_chip_bytes(program: Program) -> int:
    """Return the high-water mark of on-chip memory: the end of the last buffer of any pipeline."""
    buffers = (buffer for pipeline in _pipelines(program) for buffer in pipeline.buffers if buffer.on_chip)
    return max((buffer.address + buffer.nbytes for buffer in buffers), default=0)


def placed_bytes(program: Program, target: Target) -> dict[str, int]:
    """Return the bytes of a program in each memory: its arena, and the weights and constants behind it."""
    stored = sum(tensor.nbytes for tensor in program.tensors if tensor.role in ("weight", "constant"))
    far: dict[str, int] = {
        level.name: sum(tensor.nbytes for tensor in program.tensors if tensor.tier == level.name)
        for level in target.far
    }
    return {target.main.name: program.arena_bytes + stored - sum(far.values()), **far}


def decode_floor(artifact: Artifact, timing: Timing) -> dict[str, int]:
    """Return the bytes of weights, constants and states that a decode step uses, each counted once, per tier."""
    kept = artifact.signature.state_parts
    return _once(artifact.program, timing, lambda tensor: _is_stored(tensor) or tensor.name in kept)


def stored_bytes(program: Program, timing: Timing) -> dict[str, int]:
    """Return the part of `decode_floor` that is weights and constants."""
    return _once(program, timing, _is_stored)


def _once(program: Program, timing: Timing, counts: Callable[[Tensor], bool]) -> dict[str, int]:
    """Return the bytes per tier that a call moves for tensors for which `counts` is true, at most the size of each."""
    moved = {str(level.name): 0 for level in timing.target.memories}
    for tensor in filter(counts, program.tensors):
        moved[tensor.tier] += min(tensor.nbytes, timing.tensor_bytes.get(tensor.name, 0))
    return moved


def _row_bytes(artifact: Artifact, timing: Timing) -> dict[str, dict[str, int]]:
    """Return the bytes of states that a call moves, by part and tier."""
    moved: dict[str, dict[str, int]] = {}
    parts = artifact.signature.state_parts
    for tensor in (tensor for tensor in artifact.program.tensors if tensor.name in parts):
        tiers = moved.setdefault(parts[tensor.name], {})
        tiers[tensor.tier] = tiers.get(tensor.tier, 0) + timing.tensor_bytes.get(tensor.name, 0)
    return moved


def _is_stored(tensor: Tensor) -> bool:
    return tensor.role in ("weight", "constant")


@dataclass(frozen=True)
class _FullCaches:
    """A decode step of the same program with uncompressed caches of max_context rows, by bandwidth alone.

    Attributes:
        seconds: minimum time; None if the target cannot hold such caches.
        nbytes: bytes of the caches per tier. Tiers are filled in order, beside the rest of the program; the last one
            gets the remainder.
    """

    seconds: float | None
    nbytes: Mapping[str, int]

    @classmethod
    def on(cls, target: Target, artifact: Artifact, timing: Timing) -> _FullCaches:
        program, signature = artifact.program, artifact.signature
        left = signature.batch * signature.full_kv_bytes(signature.geometry.max_context)
        nbytes: dict[str, int] = {}
        kept = signature.state_parts
        for tier, taken in placed_bytes(program, target).items():
            caches = sum(t.nbytes for t in program.tensors if t.tier == tier and t.name in kept)
            nbytes[tier] = min(left, max(0, target.capacity(tier) - (taken - caches)))
            left -= nbytes[tier]
        if left:
            nbytes[target.levels[-1].name] += left
            return cls(None, nbytes)
        stored = stored_bytes(program, timing)
        return cls(target.seconds({tier: moved + stored[tier] for tier, moved in nbytes.items()}), nbytes)
