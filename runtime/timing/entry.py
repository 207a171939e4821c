"""Timing of an entry: its control flow runs on concrete scalars, and the launches are added up in sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType

from sscc.ir.choices import RANK
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.operations import QueryAttention
from sscc.ir.schedule import Launch, Program
from sscc.ir.target import Target
from sscc.runtime.support.scalars import executed, value_of
from sscc.runtime.timing.kernel import Binding, KernelTimer, Settings, repeat_limit
from sscc.runtime.timing.result import LaunchTiming, Timing


class TimingErrors(ErrorKind):
    """Calls that cannot be timed."""

    SCALARS = UsageError, "entry {entry!r} takes the scalars {expected!r}, but {actual!r} were passed"
    VALID_ROWS = UsageError, "a cache cannot have {rows} valid rows"
    STAYING = UsageError, "the share of selected rows that stay must be 0 .. 1, got {share}"
    NOTHING_STAYS = (
        UsageError,
        "no step of the program reads selected rows directly from a store: a share of rows that stay requires "
        "--kv-policy query without --kv-fetch, at -O1 or -O2",
    )


def time_entry(
    program: Program,
    entry: str,
    target: Target,
    scalars: Mapping[str, int] | None = None,
    *,
    valid_rows: int | None = None,
    mean_rows: Mapping[int, int] = MappingProxyType({}),
    staying: float = 0.0,
    mean_experts: bool = False,
    prefetch: bool = True,
    record: bool = False,
) -> Timing:
    """Model one call of an entry.

    Args:
        scalars: exactly the entry's scalar inputs; the number of the rank may be omitted for 0.
        valid_rows: number of rows of each slot's caches that hold a token, at most all; None for all. Every slot is
            active.
        mean_rows: for caches that layers share, the mean number of rows of a layer, by the number of rows that
            attention sees.
        staying: if each step's query selects rows of a store, the measured fraction of them that stays near from the
            previous step, 0 .. 1.
        mean_experts: True to count the mean number of experts read, for uniform choices; False for the maximum.
        prefetch: False holds every load of iteration i + 1 of a pipeline back until iteration i has ended.
        record: keep every firing, for a trace; implies a full replay.
        target: for a program of several ranks, the machine of one of them (`Target.of_rank`).

    Raises:
        UsageError: other scalars than the entry takes.
        InputError: no such entry, a tier that the target lacks, or a schedule that deadlocks. The schedule must be one
            that the validator has accepted.
    """
    inputs = dict(scalars or {})
    called = program.entry(entry)
    if RANK in called.scalar_inputs:
        inputs.setdefault(RANK, 0)
    if set(inputs) != set(called.scalar_inputs):
        raise TimingErrors.SCALARS(entry=entry, expected=sorted(called.scalar_inputs), actual=sorted(inputs))
    if valid_rows is not None and valid_rows < 0:
        raise TimingErrors.VALID_ROWS(rows=valid_rows)
    if not 0 <= staying <= 1:
        raise TimingErrors.STAYING(share=staying)
    steps = (step for body in program.bodies for step in body.steps)
    if staying and not any(isinstance(step, QueryAttention) and not step.fetch for step in steps):
        raise TimingErrors.NOTHING_STAYS()
    for tier in {tensor.tier for tensor in program.tensors}:
        target.level(tier)
    settings = Settings(valid_rows, mean_rows, staying, prefetch, record, program.grid, mean_experts)
    timer = KernelTimer(program, target, settings)
    tensors = {tensor.name: tensor for tensor in program.tensors}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    overhead = target.costs.launch_seconds.value + target.costs.boundary_seconds.value
    launches: list[LaunchTiming] = []
    moved: Counter[str] = Counter()
    now = 0.0
    environment = dict(inputs)
    for launch in executed(called.body, environment):
        assert isinstance(launch, Launch)  # the validator allows nothing else in an entry
        values = [value_of(operand, environment) for operand in launch.scalars]
        shown = [(view, tensors[view.tensor]) for view in launch.args]
        bindings = [Binding(tensor.tier, repeat_limit(view, tensor.dtype)) for view, tensor in shown]
        timing = timer.time(launch.kernel, bindings, values)
        launches.append(LaunchTiming(launch, timing, now))
        now += overhead + timing.seconds
        for param, view in zip(kernels[launch.kernel].params, launch.args, strict=True):
            moved[view.tensor] += timing.param_bytes.get(param.name, 0)
    return Timing(
        entry=entry,
        target=target,
        scalars=inputs,
        launches=tuple(launches),
        launch_overhead=overhead,
        tensor_bytes={name: nbytes for name, nbytes in moved.items() if nbytes},
        assumptions=tuple(_assumptions(target, settings)),
    )


def _assumptions(target: Target, settings: Settings) -> Iterator[str]:
    grid, valid_rows, staying = settings.grid, settings.valid_rows, settings.staying
    used = ["boundary_seconds", "launch_seconds", "firing_seconds"]
    used += [f"{level.name}.{what}" for level in target.memories for what in ("bandwidth", "latency")]
    used += ["clock", "simd_lanes", "simd_stages", "f32_flops"]
    used += [f"{link.name}.{what}" for link in target.links[:1] for what in ("bandwidth", "latency") if grid]
    for name in used:
        figure = target.figures.get(name)
        if figure is not None:  # a level of memory may have no latency
            yield f"{name} {figure.value:g} {figure.unit}: {figure.origin}, {figure.note}"
    yield "every launch pays launch_seconds and boundary_seconds, then fills its pipelines in the replay"
    tiers = ", ".join(level.name for level in target.levels)
    yield f"tiers ({tiers}) have their full bandwidth; concurrent transfers share it equally"
    yield "products run at the peak rate of their stage's compute units"
    rows = "all rows" if valid_rows is None else f"those that {valid_rows} tokens fill"
    yield f"every slot is active; decode attention reads every row of a cache and computes on {rows} of each slot"
    if staying:
        yield f"a share of {staying:g} of the rows that a query selects stays near from the step before"
    if settings.mean_experts:
        yield "tokens choose experts independently and uniformly: the mean number of them is read"
    if grid:
        yield (
            f"{prod(grid)} ranks do the same at the same time; a sum over ranks takes two hops over the link, and it, "
            f"or a tile of it, is complete before it is read"
        )
    if target.sockets.value > 1:
        yield (
            f"{target.sockets.value:g} sockets are that many sockets' worth of bandwidth, arithmetic and capacity: "
            "no tensor parallelism, no traffic between sockets"
        )
    if not settings.prefetch:
        yield "loads of an iteration wait for the end of the previous one (no prefetch)"
