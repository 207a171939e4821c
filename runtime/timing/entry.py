"""Times an entry: runs its control on concrete scalars and adds up the launches, one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sscc.ir.errors import InputError, UsageError
from sscc.ir.machine import Machine
from sscc.ir.schedule import For, If, Item, Launch, Program, Scalar, Tensor
from sscc.runtime.scalars import evaluate, value_of
from sscc.runtime.timing.cost import TIERS
from sscc.runtime.timing.kernel import Binding, KernelTimer, Settings, repeat_limit
from sscc.runtime.timing.result import LaunchTiming, Timing

_FIGURES = (
    "boundary_seconds",
    "launch_seconds",
    "firing_seconds",
    "hbm_bandwidth",
    "ddr_bandwidth",
    "clock",
    "simd_lanes",
    "simd_stages",
    "f32_flops",
)


def time_entry(
    program: Program,
    entry: str,
    machine: Machine,
    scalars: Mapping[str, int] | None = None,
    *,
    valid_rows: int | None = None,
    prefetch: bool = True,
    record: bool = False,
    extrapolate: bool = True,
) -> Timing:
    """Models one call of an entry.

    Args:
        scalars: exactly the entry's scalar inputs.
        valid_rows: how many rows of each slot's caches hold a token, at most all; None for all. Every slot is active.
        prefetch: False holds every load of iteration i + 1 of a pipeline back until iteration i has ended.
        record: keep every firing, for a trace; implies a full replay.
        extrapolate: skip the periods of a steady state; the result is the same.

    Raises:
        UsageError: other scalars than the entry takes. InputError: no such entry, or a schedule that is malformed
            or deadlocks.
    """
    inputs = dict(scalars or {})
    target = program.entry(entry)
    if set(inputs) != set(target.scalar_inputs):
        raise UsageError(f"entry {entry!r} takes scalars {sorted(target.scalar_inputs)}, it was given {sorted(inputs)}")
    if valid_rows is not None and valid_rows < 0:
        raise UsageError(f"a cache cannot have {valid_rows} valid rows")
    timer = KernelTimer(program, machine, Settings(valid_rows, prefetch, record, extrapolate))
    tensors = {tensor.name: tensor for tensor in program.tensors}
    overhead = machine.launch_seconds.value + machine.boundary_seconds.value
    launches: list[LaunchTiming] = []
    moved: Counter[str] = Counter()
    now = 0.0
    for launch, values in _launched(target.body, dict(inputs)):
        kernel = timer.kernel(launch.kernel)
        if len(launch.args) != len(kernel.params) or len(values) != len(kernel.scalars):
            raise InputError(
                f"the schedule is malformed: a launch of {kernel.name!r} passes {len(launch.args)} tensors and "
                f"{len(values)} scalars, it takes {len(kernel.params)} and {len(kernel.scalars)}"
            )
        timing = timer.time(kernel, [_binding(launch, i, tensors) for i in range(len(launch.args))], values)
        launches.append(LaunchTiming(launch, timing, now))
        now += overhead + timing.seconds
        for param, view in zip(kernel.params, launch.args, strict=True):
            moved[view.tensor] += timing.param_bytes.get(param.name, 0)
    return Timing(
        entry=entry,
        machine=machine,
        scalars=inputs,
        launches=tuple(launches),
        launch_overhead=overhead,
        tensor_bytes={name: nbytes for name, nbytes in moved.items() if nbytes},
        assumptions=tuple(_assumptions(machine, valid_rows, prefetch)),
    )


def _binding(launch: Launch, index: int, tensors: Mapping[str, Tensor]) -> Binding:
    view = launch.args[index]
    if view.tensor not in tensors:
        raise InputError(f"the schedule is malformed: a launch of {launch.kernel!r} passes unknown {view.tensor!r}")
    tensor = tensors[view.tensor]
    return Binding(tensor.tier, repeat_limit(view, tensor.dtype))


def _launched(items: Sequence[Item], environment: dict[str, int]) -> Iterator[tuple[Launch, list[int]]]:
    """The launches of an entry in order, with the values of their scalars."""
    for item in items:
        if isinstance(item, Scalar):
            environment[item.name] = evaluate(item, environment)
        elif isinstance(item, Launch):
            yield item, [value_of(operand, environment) for operand in item.scalars]
        elif isinstance(item, For):
            for index in range(value_of(item.lower, environment), value_of(item.upper, environment)):
                environment[item.index] = index
                yield from _launched(item.body, environment)
        elif isinstance(item, If):
            if value_of(item.condition, environment):
                yield from _launched(item.body, environment)
        else:
            raise InputError(f"the schedule is malformed: pipeline {item.name!r} stands in an entry")


def _assumptions(machine: Machine, valid_rows: int | None, prefetch: bool) -> Iterator[str]:
    for name in _FIGURES:
        figure = machine.figures[name]
        yield f"{name} {figure.value:g} {figure.unit}: {figure.origin}, {figure.note}"
    yield "every launch pays launch_seconds and boundary_seconds, then fills its pipelines in the replay"
    yield f"tiers ({', '.join(TIERS)}) move their full bandwidth; transfers under way at a time share it equally"
    yield "products run at the peak rate of their stage's compute units"
    rows = "all rows" if valid_rows is None else f"those that {valid_rows} tokens fill"
    yield f"every slot is active; decode attention reads every row of a cache and computes on {rows} of each slot"
    if machine.sockets.value > 1:
        yield (
            f"{machine.sockets.value:g} sockets are that many sockets' worth of bandwidth, arithmetic and capacity: "
            "no tensor parallelism, no traffic between sockets"
        )
    if not prefetch:
        yield "loads of an iteration wait for the end of the one before (no prefetch)"
