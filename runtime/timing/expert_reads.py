"""Number of experts that a call of an entry reads: the maximum, and the mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from sscc.ir.operations import Dequantize
from sscc.ir.schedule import Body, Launch, Param, Product, Program, Vector, launches, pipelines
from sscc.runtime.timing.work import mean_places


@dataclass(frozen=True)
class ExpertReads:
    """Layers that choose `chosen` of `experts` experts for each of `tokens` tokens.

    Attributes:
        nbytes: bytes of the matrices of all experts of all these layers, codes and scales if they are quantized.
    """

    experts: int
    chosen: int
    tokens: int
    nbytes: int

    @property
    def most(self) -> int:
        """Maximum number of experts of a layer that are read: all choices of tokens differ."""
        return min(self.experts, self.tokens * self.chosen)

    @property
    def mean(self) -> float:
        """Mean number of experts of a layer that are read (`mean_places`)."""
        return mean_places(self.experts, self.chosen, self.tokens)

    def bytes_of(self, experts: float) -> int:
        """Return the bytes of `experts` experts of each layer."""
        return round(self.nbytes * experts / self.experts)


def expert_reads(program: Program, entry: str) -> tuple[ExpertReads, ...]:
    """Return the reads of an entry's products with an indirect axis, by the numbers of experts, choices and tokens."""
    bodies = {body.name: body for body in program.bodies}
    kernels = {kernel.name: kernel for kernel in program.kernels}
    tensors = {tensor.name: tensor for tensor in program.tensors}
    read: dict[tuple[int, int, int], set[str]] = {}
    for launch in launches(program.entry(entry).body):
        kernel = kernels[launch.kernel]
        for stage in (stage for pipeline in pipelines(kernel.body) for stage in pipeline.stages):
            body = bodies[stage.body]
            for step in body.steps:
                if isinstance(step, Product) and step.b.indirect is not None:
                    ports = dict(zip((param.name for param in body.params), stage.ports, strict=True))
                    names = {ports[param].view.tensor for param in _made_of(body, step.b.param) if param in ports}
                    read.setdefault(_sizes(body, step), set()).update(_stored(launch, kernel.params, names))
    return tuple(
        ExpertReads(*sizes, sum(tensors[name].nbytes for name in names if tensors[name].role == "weight"))
        for sizes, names in sorted(read.items())
    )


def _sizes(body: Body, step: Product) -> tuple[int, int, int]:
    """Return the numbers of experts, choices per token, and tokens."""
    assert step.b.indirect is not None
    shapes = {param.name: param.shape for param in body.params}
    shapes |= {local.name: local.shape for local in body.locals}
    shapes |= {window.name: window.view.shape for window in body.windows}
    rows = step.b.indirect.index.map
    moved = [size for d, size in enumerate(step.dims) if any(row[d] for row in rows)]
    return shapes[step.b.param][step.b.indirect.axis], moved[-1] if moved else 1, prod(moved[:-1])


def _made_of(body: Body, name: str) -> Iterator[str]:
    """Return the parameters that an operand is, or from which it is made."""
    name = next((window.view.tensor for window in body.windows if window.name == name), name)
    sources = [access.param for step in body.steps if isinstance(step, Vector) and step.output.param == name
               for access in step.inputs]  # fmt: skip
    sources += [part.bytes for step in body.steps if isinstance(step, Dequantize) and step.out == name
                for part in step.parts]  # fmt: skip
    if not sources:
        yield name
    for source in sources:
        yield from _made_of(body, source)


def _stored(launch: Launch, params: Sequence[Param], names: set[str]) -> set[str]:
    """Return the tensors that a launch passes for these parameters of its kernel."""
    return {view.tensor for param, view in zip(params, launch.args, strict=True) if param.name in names}
