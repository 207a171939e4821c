"""Import: captured torch programs become one MLIR module in the torch dialect, with operations of the `kv` dialect.

Every placeholder is a function argument with an attribute for its role (`sscc.weight`,
`sscc.constant` or `sscc.input`), and every operation keeps ``"module.path"("file.py":line:0)`` as its location.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import torch.fx
from torch_mlir import ir
from torch_mlir.extras.fx_importer import ContextCache, FxImporter

from sscc.compiler.frontend.capture import Capture, Captured
from sscc.compiler.frontend.rules import TENSORS, CapturedRule
from sscc.compiler.frontend.source_lines import frames_of
from sscc.ir.builders import Argument
from sscc.ir.context import mlir
from sscc.ir.dialects import kv
from sscc.ir.dialects.kv import ObservationScores, SelfAttention
from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import RULE, ProgramFacts, check_legal, set_facts, set_kinds, set_level, walk
from sscc.ir.locations import origin_of
from sscc.ir.rewriting import functions

_LIBRARY = re.compile(r"/torch/")
_OURS = "torch.sscc."


class ImporterErrors(ErrorKind):
    NO_LOWERING = UnsupportedError, "{origin}the operator {operator} has no lowering"
    NOT_STATIC = UnsupportedError, "an operator of sscc has a value of type {type}, expected a static tensor"


class SourceLocations(ContextCache):
    """Locations as the module path, wrapped around the model's own source line."""

    path_prefix = ""

    def get_node_location(self, node: torch.fx.Node) -> ir.Location:
        line = self._source_line(node)
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0].removeprefix(self.path_prefix) if stack else ""
        if path == self.path_prefix.rstrip("."):
            path = ""
        return ir.Location.name(path, line, context=self._c) if path else line

    def _source_line(self, node: torch.fx.Node) -> ir.Location:
        frames = frames_of(node)
        own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
        if not own:
            return ir.Location.unknown(context=self._c)
        file, line = own[-1]
        return ir.Location.file(_relative(file), int(line), 0, context=self._c)


def _relative(file: str) -> str:
    """Return a path that is the same on every machine: below site-packages, or the bare file name."""
    path = PurePath(file)
    if "site-packages" in path.parts:
        return str(PurePath(*path.parts[path.parts.index("site-packages") + 1 :]))
    return path.name


def import_capture(
    captured: Capture, facts: ProgramFacts, geometry: Geometry, rules: Sequence[CapturedRule] = ()
) -> ir.Module:
    """Return the module of level `import`, with a function for each captured entry and each of `rules`."""
    with mlir() as context:
        importer = FxImporter(context=context)
        locations = SourceLocations(context, py_attr_tracker=importer._py_attr_tracker)
        locations.path_prefix = captured.prefill.path_prefix
        importer._cc = locations
        for name, entry in captured.entries.items():
            importer.import_stateless_graph(entry.graph, func_name=name)
        locations.path_prefix = ""
        for number, rule in enumerate(rules):
            importer.import_stateless_graph(rule.graph, func_name=f"rule.{rule.name}.{number}")
        module: ir.Module = importer.module
        set_facts(module, facts, geometry)
        imported = functions(module)
        for entry, function in zip(captured.entries.values(), imported, strict=False):
            _name_arguments(function, entry)
        for function, rule in zip(imported, rules, strict=True):
            _make_rule(function, rule)
        _raise_operators(module)
        set_kinds(module, captured.kinds)
        set_level(module, "import")
        check_legal(module, "import")
        return module


def _name_arguments(function: ir.OpView, entry: Captured) -> None:
    names = [node.name for node in entry.graph.nodes if node.op == "placeholder"]
    attributes = []
    for name in names:
        for key, table in (("weight", entry.weights), ("constant", entry.constants), ("input", entry.inputs)):
            if name in table:
                attributes.append(ir.DictAttr.get({f"sscc.{key}": ir.StringAttr.get(table[name])}))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _make_rule(function: Any, rule: CapturedRule) -> None:
    """Mark a function as a rule that scores prompts, and add the length of the prompt as an index argument."""
    index = ir.IndexType.get()
    function.entry_block.add_argument(index, function.location)
    inputs, results = [*function.type.inputs, index], function.type.results
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    named = [Argument("input", name, index) for name in (*TENSORS, "length")]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([argument.attributes() for argument in named])
    function.attributes["res_attrs"] = ir.ArrayAttr.get([Argument("output", "scores", index).attributes()])
    f64 = ir.F64Type.get()
    numbers = {"scale": rule.sizes.scale, "softcap": rule.sizes.softcap}
    values = {name: ir.FloatAttr.get(f64, value) for name, value in numbers.items()}
    function.attributes[RULE] = ir.DictAttr.get({"name": ir.StringAttr.get(rule.name), **values})


def _raise_operators(module: ir.Module) -> None:
    """Replace every `torch.operator "torch.sscc..."` with its operation of the `kv` dialect, on builtin tensors."""
    for op in list(walk(module)):
        if op.name != "torch.operator":
            continue
        name = op.attributes["name"].value
        with ir.InsertionPoint(op), op.location:
            raised = _RAISED.get(name, _by_record)(op)
            for old, new in zip(op.results, raised.operation.results, strict=True):
                from_builtin = ir.Operation.create("torch_c.from_builtin_tensor", results=[old.type], operands=[new])
                old.replace_all_uses_with(from_builtin.result)
        op.erase()


def _attention(op: ir.Operation) -> Any:
    sinks = [_to_builtin(value) for value in list(op.operands)[7:8] if str(value.type) != "!torch.none"]
    operands = [_to_builtin(value) for value in op.operands[:3]]
    query, value = (ir.RankedTensorType(operands[i].type) for i in (0, 2))
    out = ir.RankedTensorType.get([*query.shape[:3], value.shape[3]], query.element_type)
    layer, scale, *settings = (operand.owner.attributes["value"] for operand in list(op.operands)[3:7])
    strides = [operand.owner.attributes["value"] for operand in list(op.operands)[8:]]
    attention = SelfAttention(*operands, *(sinks or [None]), layer, scale, out)
    for name, value in zip(("window", "softcap"), settings, strict=False):
        if value.value:
            attention.operation.attributes[name] = value
    for stride in strides:
        if stride.value > 1:
            attention.operation.attributes["window_stride"] = stride
    return attention


def _by_record(op: ir.Operation) -> Any:
    """Build the operation with an operator's name, from the operator's operands and then its attributes."""
    name = "kv." + op.attributes["name"].value.removeprefix(_OURS)
    if name not in kv.SPECS:
        raise ImporterErrors.NO_LOWERING(origin=origin_of(op), operator=op.attributes["name"].value)
    spec = kv.SPECS[name]
    count = len(spec.inputs)
    inputs, attributes = list(op.operands)[:count], list(op.operands)[count:][: len(spec.own_attributes)]
    operands = [None if str(value.type) == "!torch.none" else _to_builtin(value) for value in inputs]
    numbers = [operand.owner.attributes["value"] for operand in attributes]
    return kv.CLASSES[spec.record](*operands, *numbers, *map(_builtin_type, op.results))


def _chosen_attention(op: ir.Operation) -> Any:
    attention, softcap = _by_record(op), list(op.operands)[-1].owner.attributes["value"]
    if softcap.value:
        attention.operation.attributes["softcap"] = softcap
    return attention


def _attention_mass(op: ir.Operation) -> Any:
    observed, log_sum_exp, keys = (_to_builtin(value) for value in op.operands[:3])
    scale, softcap = (operand.owner.attributes["value"] for operand in list(op.operands)[5:7])
    block = op.operation.block
    length = list(block.arguments)[-1]
    scores = ObservationScores(observed, log_sum_exp, keys, length, scale, _builtin_type(op.results[0]))
    if softcap.value:
        scores.operation.attributes["softcap"] = softcap
    return scores


_RAISED: dict[str, Callable[[ir.Operation], Any]] = {
    "torch.sscc.attention": _attention,
    "torch.sscc.attention_mass": _attention_mass,
    "torch.sscc.chosen_attention": _chosen_attention,
}
"""Builders of operations by operator; `_by_record` builds the others."""

_VTENSOR = re.compile(r"!torch\.vtensor<\[([0-9,]*)\],(\w+)>")


def _builtin_type(value: ir.Value) -> ir.RankedTensorType:
    match = _VTENSOR.fullmatch(str(value.type))
    if match is None:
        raise ImporterErrors.NOT_STATIC(type=str(value.type))
    shape = [int(size) for size in match.group(1).split(",")]
    element = match.group(2).replace("si", "i")  # torch's integers are signed, linalg's are signless
    return ir.RankedTensorType.get(shape, ir.Type.parse(element))


def _to_builtin(value: ir.Value) -> ir.Value:
    type_ = _builtin_type(value)
    return ir.Operation.create("torch_c.to_builtin_tensor", results=[type_], operands=[value]).result
