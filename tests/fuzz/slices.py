"""Single launches of compiled programs as programs of their own: small enough for thousands of cases a minute."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence

from sscc.ir import schedule as sch
from sscc.ir.sizes import align
from sscc.runtime.validator.linear import evaluate, value_of

ENTRY = "main"


@dataclasses.dataclass(frozen=True)
class Slice:
    """A program of one launch, and the scalars of its entry as the whole program has them at that place."""

    program: sch.Program
    scalars: Mapping[str, int]


def slices(program: sch.Program, scalars: Mapping[str, Mapping[str, int]]) -> Iterator[Slice]:
    """One slice for each different kernel that the entries launch with these scalars."""
    bodies = {body.name: body for body in program.bodies}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    seen: set[str] = set()
    for entry in program.entries:
        for launch, known in _launched(entry.body, dict(scalars[entry.name])):
            kernel = kernels[launch.kernel]
            used = {stage.body for pipeline in sch.pipelines(kernel.body) for stage in pipeline.stages}
            chosen = tuple(bodies[name] for name in sorted(used))
            shape = _shape(kernel, chosen)
            if shape not in seen:
                seen.add(shape)
                yield _slice(program, launch, kernel, chosen, known)


def _launched(items: Sequence[sch.Item], known: dict[str, int]) -> Iterator[tuple[sch.Launch, dict[str, int]]]:
    """Yield every launch that control flow reaches, with its scalars."""
    for item in items:
        if isinstance(item, sch.Scalar):
            known[item.name] = evaluate(item, known, ENTRY)
        elif isinstance(item, sch.If) and value_of(item.condition, known):
            yield from _launched(item.body, known)
        elif isinstance(item, sch.For):
            for index in range(value_of(item.lower, known), value_of(item.upper, known)):
                known[item.index] = index
                yield from _launched(item.body, known)
        elif isinstance(item, sch.Launch):
            yield item, dict(known)


def _slice(
    program: sch.Program, launch: sch.Launch, kernel: sch.Kernel, bodies: tuple[sch.Body, ...], known: dict[str, int]
) -> Slice:
    access: dict[str, set[str]] = {}
    for view, param in zip(launch.args, kernel.params, strict=True):
        access.setdefault(view.tensor, set()).add(param.access)
    names = [name for view in launch.args for name, _ in view.terms] + [s for s in launch.scalars if isinstance(s, str)]
    scalars = {name: known[name] for name in dict.fromkeys(names)}
    spilled = [b for pipeline in sch.pipelines(kernel.body) for b in pipeline.buffers if b.tier == "hbm"]
    first = align(max((b.address + b.nbytes for b in spilled), default=0))
    tensors, arena = _placed([t for t in program.tensors if t.name in access], access, first)
    inputs = tuple(t.name for t in tensors if t.role == "input")
    outputs = tuple(t.name for t in tensors if t.role == "output")
    entry = sch.Entry(ENTRY, inputs, outputs, tuple(scalars), (), (launch,))
    return Slice(sch.Program(tensors, bodies, (kernel,), (entry,), arena, grid=program.grid), scalars)


def _placed(
    tensors: Sequence[sch.Tensor], access: Mapping[str, set[str]], address: int
) -> tuple[tuple[sch.Tensor, ...], int]:
    """The tensors one after the other from an address on, in the roles that the launch gives them; and the arena."""
    placed = []
    for tensor in tensors:
        if tensor.role in ("weight", "constant"):
            placed.append(tensor)
            continue
        role: sch.Role = "state"
        if access[tensor.name] == {"read"}:
            role = "input"
        elif access[tensor.name] == {"write"}:
            role = "output"
        placed.append(dataclasses.replace(tensor, role=role, address=address, sources=(), encoding=""))
        address += align(tensor.nbytes)
    return tuple(placed), address


def _shape(kernel: sch.Kernel, bodies: Sequence[sch.Body]) -> str:
    """Return a kernel's text without the names that distinguish layers."""
    numbers = {body.name: f"body{i}" for i, body in enumerate(bodies)}
    anonymous = [dataclasses.replace(body, name=numbers[body.name], location="") for body in bodies]
    data = sch.Program((), tuple(anonymous), (dataclasses.replace(kernel, name="", location=""),), (), 0).to_json()
    text = json.dumps(json.loads(data), sort_keys=True)
    for name, number in numbers.items():
        text = text.replace(f'"{name}"', f'"{number}"')
    return text
