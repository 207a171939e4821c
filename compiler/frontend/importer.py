"""Import: captured torch programs become one MLIR module in the torch dialect, with `kv.self_attention`.

Every placeholder is a function argument with an attribute that tells what it is (`sscc.weight`,
`sscc.constant` or `sscc.input`), and every operation keeps ``"module.path"("file.py":line:0)`` as its location.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import torch.fx
from torch_mlir import ir
from torch_mlir.extras.fx_importer import ContextCache, FxImporter

from sscc.compiler.frontend.capture import Capture, Captured
from sscc.ir.context import mlir
from sscc.ir.dialects.kv import SelfAttention
from sscc.ir.errors import UnsupportedError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import ProgramFacts, check_legal, set_facts, set_kinds, set_level, walk

ATTENTION_OPERATOR = "torch.sscc.attention"
_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')
_LIBRARY = re.compile(r"/torch/")


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
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
        if not own:
            return ir.Location.unknown(context=self._c)
        file, line = own[-1]
        return ir.Location.file(_relative(file), int(line), 0, context=self._c)


def _relative(file: str) -> str:
    """A path that is the same on every machine: below site-packages, or the bare file name."""
    path = PurePath(file)
    if "site-packages" in path.parts:
        return str(PurePath(*path.parts[path.parts.index("site-packages") + 1 :]))
    return path.name


def import_capture(captured: Capture, facts: ProgramFacts, geometry: Geometry) -> ir.Module:
    """The module of level `import`, with the functions `prefill` and `decode`."""
    with mlir() as context:
        importer = FxImporter(context=context)
        locations = SourceLocations(context, py_attr_tracker=importer._py_attr_tracker)
        locations.path_prefix = captured.prefill.path_prefix
        importer._cc = locations
        for name, entry in (("prefill", captured.prefill), ("decode", captured.decode)):
            importer.import_stateless_graph(entry.graph, func_name=name)
        module: ir.Module = importer.module
        for function in module.body.operations:
            entry = captured.prefill if function.name.value == "prefill" else captured.decode
            _name_arguments(function, entry)
        _raise_attention(module)
        set_facts(module, facts, geometry)
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


def _raise_attention(module: ir.Module) -> None:
    """Replaces `torch.operator "torch.sscc.attention"` by `kv.self_attention` on builtin tensors."""
    for op in list(walk(module)):
        if op.name != "torch.operator":
            continue
        name = op.attributes["name"].value
        if name != ATTENTION_OPERATOR:
            raise UnsupportedError(f"{op.location}: the operator {name} has no lowering")
        with ir.InsertionPoint(op), op.location:
            operands = [_to_builtin(value) for value in op.operands[:3]]
            query, value = (ir.RankedTensorType(operands[i].type) for i in (0, 2))
            out = ir.RankedTensorType.get([*query.shape[:3], value.shape[3]], query.element_type)
            layer, scale, *window = (operand.owner.attributes["value"] for operand in op.operands[3:])
            attention = SelfAttention(*operands, layer, scale, out)
            if window and window[0].value:
                attention.operation.attributes["window"] = window[0]
            result = ir.Operation.create(
                "torch_c.from_builtin_tensor", results=[op.results[0].type], operands=[attention.out]
            ).result
        op.results[0].replace_all_uses_with(result)
        op.erase()


_VTENSOR = re.compile(r"!torch\.vtensor<\[([0-9,]*)\],(\w+)>")


def _to_builtin(value: ir.Value) -> ir.Value:
    match = _VTENSOR.fullmatch(str(value.type))
    if match is None:
        raise UnsupportedError(f"an attention operand has the type {value.type}, expected a static tensor")
    shape = [int(size) for size in match.group(1).split(",")]
    type_ = ir.RankedTensorType.get(shape, ir.Type.parse(match.group(2)))
    return ir.Operation.create("torch_c.to_builtin_tensor", results=[type_], operands=[value]).result
