"""Selection of the prompt positions that stay, by the last queries or by a user's rule, as IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import arith

from sscc.ir.builders import index_constant, positions_tensor, tensor_type
from sscc.ir.collectives import Peers
from sscc.ir.dialects import kv
from sscc.ir.geometry import Geometry
from sscc.ir.levels import RULE
from sscc.ir.locations import origin_of
from sscc.ir.rewriting import ValueMap, clone_all, functions
from sscc.passes.attended import ThreadCacheErrors


def rules(module: ir.Module) -> list[Any]:
    """Return the functions that score a prompt by a user's rule: one for each kind of layers."""
    return [function for function in functions(module) if RULE in function.attributes]


@dataclass(frozen=True)
class PromptChoice:
    """Selection of positions for one layer at the end of a prompt.

    Attributes:
        attention: attention operator of the layer.
        layer: number of the layer.
        by_rule: True if a function of the module computes the scores, and not attention.
        peers: ranks that have the same KV heads, whose scores are summed; None if there are no others.
    """

    module: ir.Module
    attention: ir.Operation
    layer: int
    geometry: Geometry
    kv_heads: int
    by_rule: bool
    peers: Peers | None

    def positions(
        self, observed: Sequence[ir.Value], rows: Sequence[ir.Value], length: ir.Value, topk: ir.Value
    ) -> ir.Value:
        """Return the positions [Hkv, K] that a prompt's last queries select.

        Args:
            observed: the last queries, and the log-sum-exp that attention computed for each.
            rows: rows of the prompt, keys first.
            length: length of the prompt, an index value.
            topk: number of positions, an index value.
        """
        by_rule = self.by_rule
        scores = self._by_rule(observed, rows, length) if by_rule else self._observed(observed, rows[0], length)
        if not by_rule or self.geometry.pool > 1:
            scores = kv.Pool(scores, length, scores.type).pooled
        type_ = tensor_type([self.kv_heads, self.geometry.topk], ir.IntegerType.get_signless(64))
        selected: ir.Value = kv.Select(scores, length, topk, type_).selected
        return selected

    def _observed(self, observed: Sequence[ir.Value], keys: ir.Value, length: ir.Value) -> ir.Value:
        scores_type = tensor_type([self.kv_heads, keys.type.shape[2]], ir.F32Type.get())
        scale = self.attention.attributes["scale"]
        scores: ir.Value = kv.ObservationScores(*observed, keys, length, scale, scores_type).scores
        if self.peers is not None:  # a sum of means over query heads: a common factor does not change the selection
            scores = self.peers.summed(scores)
        return scores

    def _by_rule(self, observed: Sequence[ir.Value], rows: Sequence[ir.Value], length: ir.Value) -> ir.Value:
        """Return scores [Hkv, T] of a prompt's positions by the function of a user's rule, whose operations are cloned
        here."""
        if self.attention.name == "kv.latent_attention" or len(rows) == 1:
            raise ThreadCacheErrors.RULE_OF_LATENT_ROWS(origin=origin_of(self.attention), layer=self.layer)
        g = self.geometry
        first = arith.MaxSIOp(arith.SubIOp(length, index_constant(g.obs)).result, index_constant(0)).result
        end = arith.AddIOp(first, index_constant(g.obs)).result
        at = positions_tensor([g.obs], first, end)
        arguments = [*observed, *rows, at, positions_tensor([1], length, length), length]
        rule = self._rule([value.type for value in arguments])
        values: ValueMap = dict(zip(rule.arguments, arguments, strict=True))
        *body, terminator = [op.operation for op in rule.entry_block.operations]
        clone_all(body, values)
        return values[terminator.operands[0]]

    def _rule(self, types: Sequence[ir.Type]) -> Any:
        """Return the function that scores by the rule in this layer. Raise InputError where a dump has none."""
        expected = self.attention.attributes["scale"].value, kv.optional_of(self.attention, "softcap") or 0.0
        for function in rules(self.module):
            numbers = ir.DictAttr(function.attributes[RULE])
            if list(function.type.inputs) == list(types) and expected == tuple(
                ir.FloatAttr(numbers[name]).value for name in ("scale", "softcap")
            ):
                return function
        raise ThreadCacheErrors.NO_RULE(origin=origin_of(self.attention))
