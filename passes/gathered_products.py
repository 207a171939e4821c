"""Products that are sharded although every rank needs the whole result, where that pays (used by the pass shard).

If the whole result of a product is needed (by a norm, or a choice of the largest), each rank can still compute a part
if the parts are gathered directly after it. A rank then reads only a part of the weight and does a part of the
arithmetic, at the cost of an exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch_mlir import ir
from torch_mlir.dialects import tensor

from sscc.ir.choices import DECODE
from sscc.ir.levels import get_target
from sscc.ir.rewriting import producer
from sscc.ir.sharding import Cut
from sscc.ir.target import Target
from sscc.ir.views import bytes_of
from sscc.passes.base import count
from sscc.passes.cut_consequences import GATHERING, RESHAPED, Consequences, CutProgram
from sscc.passes.iteration_space import NotCuttable
from sscc.passes.tiling import is_cast, is_contraction


def cut_where_it_pays(module: ir.Module, ranks: int, cuts: Mapping[ir.Value, Cut]) -> dict[ir.Value, Cut]:
    """Return the cuts, together with those of products for which gathering their parts pays in a decode step.

    Weights are stored once, so a prompt's products follow the decision of decode. A `GATHERING` is inserted behind each
    such product; its operand is cut.
    """
    program = CutProgram(module)
    whole = [(value, axis) for value, axis in program.candidates() if _is_whole(value, cuts)]
    points = [_put_behind(value) for value in dict.fromkeys(value for value, _ in whole)]
    decided = dict(cuts)
    costs = _Costs(get_target(module).of_rank(ranks), ranks)
    for value, axis in whole:
        if value in decided or value.type.shape[axis] % ranks:
            continue
        try:
            with_it = Consequences(program, ranks, decided).of(value, axis)
        except NotCuttable:
            continue
        if costs.pays({other: cut for other, cut in with_it.items() if other not in decided}):
            decided = with_it
            count("products whose parts are gathered")
    for point in points:
        if point.operands[0] not in decided:
            point.results[0].replace_all_uses_with(point.operands[0])
            point.erase()
    return decided


def _is_whole(value: ir.Value, cuts: Mapping[ir.Value, Cut]) -> bool:
    """Return True if every rank would compute all of a product."""
    op = producer(value)
    return op is not None and is_contraction(op) and not any(v in cuts for v in (*op.operands, value))


def _put_behind(value: ir.Value) -> ir.Operation:
    """Insert a `GATHERING` behind a product, where its result has the fewest bytes: some results are rounded
    immediately."""
    smallest = value
    while len(uses := list(value.uses)) == 1:
        user = uses[0].owner.operation
        if not is_cast(user) and user.name not in RESHAPED:
            break
        value = user.results[0]
        if bytes_of(value) < bytes_of(smallest):
            smallest = value
    source = producer(smallest)
    assert source is not None
    with ir.InsertionPoint.after(source), source.location:
        point = tensor.CastOp(smallest.type, smallest).operation
    point.attributes[GATHERING] = ir.UnitAttr.get()
    smallest.replace_all_uses_except(point.results[0], point)
    return point


@dataclass(frozen=True)
class _Costs:
    """Savings and costs of a decode step, in seconds, on the machine of one rank.

    A rank saves all but its part of the longer of reading the weight and computing with it, on all units. It pays for
    a message's latency and for sending its part to all others.
    """

    machine: Target
    ranks: int

    def pays(self, new: Mapping[ir.Value, Cut]) -> bool:
        step = {value: cut for value, cut in new.items() if _function(value).attributes["sscc.entry"].value == DECODE}
        weights = sum(bytes_of(value) for value in step if producer(value) is None)
        products = [op for op in map(producer, step) if op is not None and is_contraction(op)]
        reading = weights / self.machine.bandwidth(self.machine.main.name)
        saved = max(reading, sum(map(self._arithmetic, products))) * (1 - 1 / self.ranks)
        return saved > sum(self._exchange(value, cut) for value, cut in step.items() if _is_gathered(value))

    def _arithmetic(self, op: ir.Operation) -> float:
        units, factors = self.machine.units, list(op.operands)[:2]
        bf16 = all(str(value.type.element_type) == "bf16" for value in factors)
        peak = (units.bf16_flops if bf16 else units.f32_flops).value * self.machine.sockets.value
        sizes = [prod(value.type.shape) for value in (*factors, op.results[0])]
        return float(2 * prod(sizes) ** 0.5 / peak)

    def _exchange(self, value: ir.Value, cut: Cut) -> float:
        piece = bytes_of(value) * cut.local / cut.size
        return float(self.machine.link_latency + (self.ranks - 1) * piece / self.machine.link_bandwidth)


def _function(value: ir.Value) -> ir.Operation:
    """Return the function that contains a value."""
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    return block.owner.operation


def _is_gathered(value: ir.Value) -> bool:
    return any(GATHERING in use.owner.operation.attributes for use in value.uses)
