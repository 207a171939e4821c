"""repeat-layers: one captured layer is repeated for every layer of its kind.

What: the frontend exports only the first and the last layer of each kind (`sscc.kinds`), because torch.export
is by far the slowest step. This pass checks that the two are the same function, operation by operation, and then
clones the first for each layer between them, with that layer's weights and locations.

Why: the slowest step no longer grows with the number of layers, and the assumption that layers are equal is checked on
their programs.

Before::

    func.func private @prefill.layer.0(tensor<8xf32> {sscc.weight = "layers.0.w"}) attributes {sscc.entry = "prefill"}
    func.func private @prefill.layer.3(tensor<8xf32> {sscc.weight = "layers.3.w"}) attributes {sscc.entry = "prefill"}
    func.func private @decode.layer.0(%w: tensor<8xf32> {sscc.weight = "layers.0.w"}) -> tensor<8xf32>
        attributes {sscc.entry = "decode", sscc.layer = 0 : i64} {
      %0 = math.tanh %w : tensor<8xf32>
      return %0 : tensor<8xf32>
    }
    func.func private @decode.layer.3(%w: tensor<8xf32> {sscc.weight = "layers.3.w"}) -> tensor<8xf32>
        attributes {sscc.entry = "decode", sscc.layer = 3 : i64} {
      %0 = math.tanh %w : tensor<8xf32>
      return %0 : tensor<8xf32>
    }

After, with ``sscc.kinds = {first = array<i64: 0, 0, 0, 0>, path = "layers"}``::

    func.func private @prefill.layer.1(.. "layers.1.w"}) ..
    func.func private @prefill.layer.2(.. "layers.2.w"}) ..
    func.func private @decode.layer.1(%w: .. "layers.1.w"}) .. {sscc.entry = "decode", sscc.layer = 1 : i64} {
      %0 = math.tanh %w : ..
      return %0 : ..
    }
    func.func private @decode.layer.2(%w: .. "layers.2.w"}) .. {sscc.entry = "decode", sscc.layer = 2 : i64} {
      %0 = math.tanh %w : ..
      return %0 : ..
    }

When it does not apply: without `sscc.kinds` every layer was captured. If first and last layer differ (a layer depends
on its index), or a layer might share the K and V of a layer that was not captured, it raises `LayersDiffer`, and the
driver captures every layer.

Preserves: the captured layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir

from sscc.ir.builders import i64_attr
from sscc.ir.choices import STEPS
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind
from sscc.ir.levels import KINDS, LayerKinds, get_kinds, renamed, walk
from sscc.ir.rewriting import functions
from sscc.ir.structure import structure
from sscc.passes.base import Pass
from sscc.passes.split_layers import LayersDiffer

LAYER_NUMBER = "layer"


class RepeatLayersErrors(ErrorKind):
    OTHER_PROGRAMS = LayersDiffer, "layers {first} and {layer} have equal modules, but compute differently in {entry}"
    SHARES_WITH_REPEATED = (
        LayersDiffer,
        "layer {layer} shares the K and V of a layer that is captured for others too in {entry}",
    )


@dataclass(frozen=True)
class RepeatLayers(Pass):
    name: ClassVar[str] = "repeat-layers"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("split-layers", "shard")
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        kinds = get_kinds(module)
        if kinds is None:
            return
        parts = {function.name.value: function for function in functions(module)}
        entries = [entry for entry in ("prefill", *STEPS) if f"{entry}.layer.{kinds.captured[0]}" in parts]
        for entry in entries:
            _confirm(parts, entry, kinds)
            _confirm_sources(parts, entry, kinds)
            for layer, first in enumerate(kinds.first):
                if f"{entry}.layer.{layer}" not in parts:
                    _repeat(module, parts[f"{entry}.layer.{first}"], kinds.path, first, layer)
        del module.operation.attributes[KINDS]


def _confirm(parts: dict[str, Any], entry: str, kinds: LayerKinds) -> None:
    for layer in kinds.captured:
        first = kinds.first[layer]
        ours, theirs = (parts[f"{entry}.layer.{number}"] for number in (layer, first))
        if structure(ours, {LAYER_NUMBER}) != structure(theirs, {LAYER_NUMBER}):
            raise RepeatLayersErrors.OTHER_PROGRAMS(first=first, layer=layer, entry=entry)


def _confirm_sources(parts: dict[str, Any], entry: str, kinds: LayerKinds) -> None:
    """Raise LayersDiffer if a layer shares the K and V of one that is captured for others too: which of them it shares
    is unknown."""
    for layer in kinds.captured:
        for op in walk(parts[f"{entry}.layer.{layer}"]):
            if op.name == "kv.shared_attention" and kinds.first.count(kinds.first[op.attributes["shares"].value]) > 1:
                raise RepeatLayersErrors.SHARES_WITH_REPEATED(layer=layer, entry=entry)


def _repeat(module: ir.Module, function: Any, path: str, first: int, layer: int) -> None:
    with ir.InsertionPoint(module.body):
        clone = function.operation.clone()
    entry = function.attributes["sscc.entry"].value
    clone.attributes["sym_name"] = ir.StringAttr.get(f"{entry}.layer.{layer}")
    clone.attributes["sscc.layer"] = i64_attr(layer)
    clone.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [_renamed_argument(attributes, path, first, layer) for attributes in function.arg_attrs]
    )
    for op in (clone.operation, *walk(clone)):
        op.location = _renamed_location(op.location, path, first, layer)
        if op.name in kv.STATEFUL:
            op.attributes[LAYER_NUMBER] = i64_attr(layer)


def _renamed_argument(attributes: ir.DictAttr, path: str, first: int, layer: int) -> ir.DictAttr:
    return ir.DictAttr.get(
        {entry.name: ir.StringAttr.get(renamed(entry.attr.value, path, first, layer)) for entry in attributes}
    )


def _renamed_location(location: ir.Location, path: str, first: int, layer: int) -> ir.Location:
    if not isinstance(location, ir.NameLoc):
        return location
    return ir.Location.name(renamed(location.name_str, path, first, layer), location.child_loc)
