"""Facts about an artifact that can be read off its schedule, without running it.

Traffic counts the bytes of every view that a launch reads or writes, each once per launch; the floor is what a
decode step must move in any case: every weight once and every valid row of the caches once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from sscc.runtime.artifact import Artifact
from sscc.runtime.schedule import DTYPE_BYTES, For, GatherRows, If, Item, Kernel, Launch, Program, UpdateRows, Vector
from sscc.runtime.signature import Signature

DECODE, PREFILL = "decode", "prefill"


@dataclass(frozen=True)
class Inspection:
    """What `sscc inspect` prints. Bytes are of HBM, the only tier that a schedule uses so far.

    Attributes:
        target, model: the machine, and the architecture's name.
        signature: the cache's geometry and the sizes of the program.
        kernels: distinct kernels.
        stages: stages by kind, over all kernels.
        launches_per_token: kernel launches of one decode step.
        prefill_launches: launches in prefill's body, loops entered once.
        state_bytes: tensors that persist between calls, inputs and outputs among them.
        temporary_bytes: the region that temporaries share.
        weight_bytes: weights and constants.
        kv_bytes, full_kv_bytes: of one sequence, compressed, and uncompressed at max_context.
        decode_traffic_bytes: moved by one decode step of all slots.
        decode_floor_bytes: weights and caches, once.
        hbm_bytes, hbm_capacity_bytes: what the program places in HBM, and what the machine has.
        decode_floor_seconds: the least time of a decode step, by HBM bandwidth alone: a bound, not a model.
        full_cache_floor_seconds: the same with uncompressed caches of max_context rows.
    """

    target: str
    model: str
    signature: Signature
    kernels: int
    stages: dict[str, int]
    launches_per_token: int
    prefill_launches: int
    state_bytes: int
    temporary_bytes: int
    weight_bytes: int
    kv_bytes: int
    full_kv_bytes: int
    decode_traffic_bytes: int
    decode_floor_bytes: int
    hbm_bytes: int
    hbm_capacity_bytes: int
    decode_floor_seconds: float
    full_cache_floor_seconds: float


def inspect_artifact(artifact: Artifact) -> Inspection:
    """Reads everything off the manifest and the schedule."""
    program, signature = artifact.program, artifact.signature
    geometry = signature.geometry
    state = sum(t.nbytes for t in program.tensors if t.role in ("state", "input", "output"))
    weights = sum(t.nbytes for t in program.tensors if t.role in ("weight", "constant"))
    kv, full = signature.kv_bytes(geometry.budget), signature.kv_bytes(geometry.max_context)
    read, machine = weights_read(program, DECODE), artifact.machine
    return Inspection(
        target=artifact.manifest.target,
        model=str(artifact.manifest.model.get("model_type", "exported program")),
        signature=signature,
        kernels=len(program.kernels),
        stages=dict(sorted(Counter(stage.kind for kernel in program.kernels for stage in kernel.stages).items())),
        launches_per_token=sum(1 for _ in launches(program.entry(DECODE).body)),
        prefill_launches=sum(1 for _ in launches(program.entry(PREFILL).body)),
        state_bytes=state,
        temporary_bytes=max(0, program.arena_bytes - state),
        weight_bytes=weights,
        kv_bytes=kv,
        full_kv_bytes=full,
        decode_traffic_bytes=traffic(program, DECODE),
        decode_floor_bytes=read + signature.batch * kv,
        hbm_bytes=weights + program.arena_bytes,
        hbm_capacity_bytes=int(machine.hbm_bytes.value * machine.sockets.value),
        decode_floor_seconds=machine.hbm_seconds(read + signature.batch * kv),
        full_cache_floor_seconds=machine.hbm_seconds(read + signature.batch * full),
    )


def launches(items: tuple[Item, ...]) -> Iterator[Launch]:
    """Every launch of an entry's body once, loops and branches entered."""
    for item in items:
        if isinstance(item, Launch):
            yield item
        elif isinstance(item, For | If):
            yield from launches(item.body)


def traffic(program: Program, entry: str) -> int:
    """Bytes that the launches of `entry` read and write, loops entered once; an updated view counts twice.

    Where a stage touches only part of a view (a row that is updated, rows that are gathered), that part counts.
    """
    kernels = {kernel.name: kernel for kernel in program.kernels}
    return sum(_launch_bytes(launch, kernels[launch.kernel]) for launch in launches(program.entry(entry).body))


def _launch_bytes(launch: Launch, kernel: Kernel) -> int:
    written = sum(_param_bytes(kernel, index) for index, p in enumerate(kernel.params) if p.access == "write")
    if any(isinstance(stage, UpdateRows) for stage in kernel.stages):
        new = next(p.name for p in kernel.params if p.access == "read")
        return 2 * sum(_param_bytes(kernel, index) for index, p in enumerate(kernel.params) if p.name == new)
    moved = 0
    for index, param in enumerate(kernel.params[: len(launch.args)]):
        size = _param_bytes(kernel, index)
        if _gathers(kernel) and param.access == "read":
            size = min(size, written)
        moved += 2 * size if param.access == "update" else size
    return moved


def _gathers(kernel: Kernel) -> bool:
    """Whether the kernel reads chosen rows of a table rather than all of it."""
    loads = (i.op == "load" for stage in kernel.stages if isinstance(stage, Vector) for i in stage.body)
    return any(loads) or any(isinstance(stage, GatherRows) for stage in kernel.stages)


def _param_bytes(kernel: Kernel, index: int) -> int:
    param = kernel.params[index]
    return prod(param.shape) * DTYPE_BYTES[param.dtype]


def weights_read(program: Program, entry: str) -> int:
    """Bytes of the distinct weights that an entry reads whole."""
    tensors = {tensor.name: tensor for tensor in program.tensors}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    read = {
        view.tensor
        for launch in launches(program.entry(entry).body)
        if not _gathers(kernels[launch.kernel])
        for view in launch.args
        if tensors[view.tensor].role in ("weight", "constant")
    }
    return sum(tensors[name].nbytes for name in read)
