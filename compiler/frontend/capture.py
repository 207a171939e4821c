"""Capture: a transformers decoder, or somebody's own ExportedProgram, becomes two static torch programs.

`prefill` sees one sequence in chunks of C tokens ([1, C]); `decode` sees B slots of one token ([B, 1]). Both
call `sscc::attention` once per layer and know nothing of a cache: the compiler threads it through later. No
weight bytes are touched: parameters live on the meta device and become named arguments. Buffers that no
checkpoint holds (rotary frequencies, embedding scales) are computed from the config and kept as constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from sscc.compiler.frontend.decompositions import decomposition_table
from sscc.compiler.frontend.distinct import only_captured
from sscc.compiler.frontend.operator import IMPLEMENTATION, context_limit
from sscc.compiler.frontend.quiet import quiet_export
from sscc.ir.errors import UnsupportedError
from sscc.ir.levels import LayerKinds, renamed

WRAPPER_PREFIX = "model."


@dataclass(frozen=True)
class Captured:
    """One captured entry.

    Attributes:
        program: decomposed ExportedProgram; every placeholder is a weight, a constant or an input.
        weights: placeholder name -> name of the tensor in the checkpoint.
        constants: placeholder name -> name of the constant.
        inputs: placeholder name -> role (`ids`, `positions`, `last`).
        path_prefix: what module paths in the program start with and the person's own paths do not.
    """

    program: ExportedProgram
    weights: dict[str, str]
    constants: dict[str, str]
    inputs: dict[str, str]
    path_prefix: str


@dataclass(frozen=True)
class Capture:
    """Both entries of a model, and the values of its constants.

    Attributes:
        weight_shapes: checkpoint name -> shape, for every weight that an entry uses.
        constants: constant name -> value, on the CPU.
        kinds: which layers were captured for which; None where every layer was.
    """

    prefill: Captured
    decode: Captured
    weight_shapes: dict[str, tuple[int, ...]]
    constants: dict[str, torch.Tensor]
    kinds: LayerKinds | None


class _Entry(torch.nn.Module):
    """A decoder as a function of ids, positions and, in prefill, the index of the last prompt token."""

    def __init__(self, model: torch.nn.Module, exported: bool) -> None:
        super().__init__()
        self.model = model
        self.exported = exported

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.exported:
            # Node by node, so that every operation keeps the module path and source line of the original export.
            with torch.fx.traceback.preserve_node_meta():
                out = torch.fx.Interpreter(self.model).run(ids, positions)
            logits: torch.Tensor = out[0] if isinstance(out, (tuple, list)) else out
            return logits if last is None else logits.index_select(1, last)
        keep: dict[str, Any] = {} if last is None else {"logits_to_keep": last}
        result: torch.Tensor = self.model(input_ids=ids, position_ids=positions, use_cache=False, **keep).logits
        return result


def build_model(config: transformers.PreTrainedConfig, dtype: torch.dtype) -> torch.nn.Module:
    """The untouched transformers model of `config` with its parameters on the meta device and its buffers
    computed on the CPU, calling our attention operator."""
    own = deepcopy(config)  # transformers notes the dtype in it, and the checkpoint's digest covers its config
    with _parameters_on_meta():
        model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(
            own, attn_implementation=IMPLEMENTATION, dtype=dtype
        )
    return model.eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters registered inside move to the meta device at once; buffers stay real.

    A parameter is allocated before it is registered, but never written, so its memory is never touched.
    """
    original = torch.nn.Module.register_parameter

    def register(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = torch.nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        original(module, name, param)

    torch.nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore[method-assign]


def capture(
    model: torch.nn.Module | ExportedProgram,
    *,
    batch: int,
    chunk: int,
    max_context: int,
    kinds: LayerKinds | None = None,
) -> Capture:
    """Exports `model` at [1, chunk] and [batch, 1].

    Args:
        model: from `build_model`, or an ExportedProgram over (ids, positions), both [b, s] and dynamic.
        batch: decode slots B.
        chunk: prefill chunk C in tokens, at least 2 (a chunk of one token could not be told from a slot).
        max_context: longest sequence that will be run, in tokens; a sliding window at least as long is inert.
        kinds: capture only the first and last layer of each kind.

    Raises:
        UnsupportedError: when the model cannot be exported, naming torch's first reason.
    """
    exported = isinstance(model, ExportedProgram)
    module = model.module() if isinstance(model, ExportedProgram) else model
    module.requires_grad_(False)
    aliases = _canonical_names(module)
    _freeze_frequencies(module)
    constants = _lift_hidden_buffers(module)
    # An exported program guards its tensors' device, so it stays where it is; a model needs no memory at all.
    entry = _Entry(module if exported else module.to("meta"), exported)
    with context_limit(max_context), only_captured(module, kinds):
        prefill = _export(entry, (1, chunk), True, aliases, set(constants))
        decode = _export(entry, (batch, 1), False, aliases, set(constants))
    shapes: dict[str, tuple[int, ...]] = {}
    for captured in (prefill, decode):
        shapes |= _weight_shapes(captured)
        for name in captured.constants.values():
            if name not in constants:
                constants[name] = _program_constant(captured.program, name)
    return Capture(prefill, decode, _all_layers(shapes, kinds), constants, kinds)


def _all_layers(shapes: dict[str, tuple[int, ...]], kinds: LayerKinds | None) -> dict[str, tuple[int, ...]]:
    """The shapes of every layer's weights, from those of the captured layers."""
    found = dict(shapes)
    for layer, first in enumerate(kinds.first if kinds else ()):
        for name, shape in shapes.items():
            found.setdefault(renamed(name, kinds.path if kinds else "", first, layer), shape)
    return found


def _canonical_names(module: torch.nn.Module) -> dict[str, str]:
    """Every name of every parameter -> the first name of the same parameter (tied embeddings share one)."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(p), name) for name, p in module.named_parameters(remove_duplicate=False)}


def _freeze_frequencies(module: torch.nn.Module) -> None:
    """Makes rotary embeddings static that would choose their frequencies anew in every call, by the longest position
    they see (longrope): within the original context, which admission has checked, the choice is the one at hand."""
    for child in module.modules():
        if getattr(child, "rope_type", None) == "longrope":
            vars(child)["rope_type"] = "default"


def _lift_hidden_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Values of the non-persistent buffers; they become persistent so that export lifts them as inputs (with
    hidden ones torch's importers lose the state mapping)."""
    constants: dict[str, torch.Tensor] = {}
    for path, child in module.named_modules():
        for name in sorted(child._non_persistent_buffers_set):
            buffer = child._buffers.get(name)
            if buffer is not None:
                constants[f"{path}.{name}" if path else name] = buffer.detach().clone()
        child._non_persistent_buffers_set = set()
    return constants


def _export(
    entry: _Entry, shape: tuple[int, int], with_last: bool, aliases: dict[str, str], hidden: set[str]
) -> Captured:
    device = next(entry.parameters()).device
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    args: tuple[torch.Tensor, ...] = (ids, torch.zeros_like(ids))
    if with_last:
        args = (*args, torch.zeros(1, dtype=torch.long, device=device))
    try:
        with quiet_export(), torch.no_grad():
            program = torch.export.export(entry, args, strict=False)
            program = program.run_decompositions(decomposition_table())
    except UnsupportedError:
        raise
    except Exception as error:  # torch.export raises many kinds; all mean: this model cannot be captured
        reason = str(error).strip().splitlines()
        raise UnsupportedError(
            f"torch.export cannot capture this model at {list(shape)}: {reason[0] if reason else error!r}"
        ) from error
    return _classify(program, aliases, hidden, "" if entry.exported else WRAPPER_PREFIX)


def _classify(program: ExportedProgram, aliases: dict[str, str], hidden: set[str], path_prefix: str) -> Captured:
    mutated = [spec.target for spec in program.graph_signature.output_specs if spec.kind is not OutputKind.USER_OUTPUT]
    if mutated:
        raise UnsupportedError(
            f"the model changes {str(mutated[0]).removeprefix(WRAPPER_PREFIX)} while it runs: a compiled program "
            "keeps no state besides its KV cache"
        )
    weights: dict[str, str] = {}
    constants: dict[str, str] = {}
    inputs: dict[str, str] = {}
    roles = iter(("ids", "positions", "last"))
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, (spec.target or "").removeprefix(WRAPPER_PREFIX)
        if spec.kind is InputKind.USER_INPUT:
            inputs[name] = next(roles)
        elif spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and target not in hidden):
            weights[name] = aliases.get(target, target)
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            constants[name] = target
        else:
            raise UnsupportedError(f"the captured program has an input of kind {spec.kind.name}: {target or name}")
    return Captured(program, weights, constants, inputs, path_prefix)


def _weight_shapes(captured: Captured) -> dict[str, tuple[int, ...]]:
    placeholders = {node.name: node for node in captured.program.graph.nodes if node.op == "placeholder"}
    return {name: tuple(placeholders[arg].meta["val"].shape) for arg, name in captured.weights.items()}


def config_constants(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The values of a model's non-persistent buffers, by name; `model` from `build_model`, not yet captured."""
    return _lift_hidden_buffers(model)


def program_constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """The constants of somebody's exported program, by name."""
    return {name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}


def _program_constant(program: ExportedProgram, name: str) -> torch.Tensor:
    for table in (program.constants, program.state_dict):
        value = table.get(WRAPPER_PREFIX + name, table.get(name))
        if isinstance(value, torch.Tensor) and value.device.type != "meta":
            return value.detach().clone()
    raise UnsupportedError(f"the value of the constant {name!r} was lost at capture; store it as a buffer")


def vocabulary(captured: Captured) -> int:
    """How many token ids are legal: rows of the smallest table that ids index, else the width of the logits."""
    graph = captured.program.graph
    ids = next(name for name, role in captured.inputs.items() if role == "ids")
    tables = [
        node.args[0].meta["val"].shape[0]
        for node in graph.nodes
        if node.target is torch.ops.aten.embedding.default and node.args[1].name == ids
    ]
    if tables:
        return int(min(tables))
    output = next(node for node in graph.nodes if node.op == "output")
    return int(output.args[0][0].meta["val"].shape[-1])


def count_layers(captured: Capture, config: transformers.PreTrainedConfig | None) -> int:
    """Decoder layers: what the config says, or for an exported program the attention operators it calls."""
    if config is not None:
        return int(config.num_hidden_layers)
    layers = len(attention_layers(captured.prefill))
    if layers == 0:
        raise UnsupportedError(
            "the exported program never calls torch.ops.sscc.attention: its decoder must attend through this "
            "operator, once per layer (docs/models.md shows how)"
        )
    return layers


def attention_layers(captured: Captured) -> list[int]:
    """The `layer` argument of every attention operator, in program order."""
    target = torch.ops.sscc.attention.default
    return [int(node.args[3]) for node in captured.program.graph.nodes if node.target is target]


def check_attention(captured: Captured, layers: int, kinds: LayerKinds | None = None) -> None:
    """Refuses a program that does not call the attention operator exactly once per layer 0 .. layers-1 (of those,
    the captured ones): some models export cleanly while computing attention in a way of their own."""
    found = attention_layers(captured)
    wanted = list(range(layers)) if kinds is None else list(kinds.captured)
    if found == wanted:
        return
    missing = [layer for layer in wanted if layer not in found]
    doubled = sorted({layer for layer in found if found.count(layer) > 1})
    detail = f"layers {missing[:8]} never call it" if missing else f"layers {doubled[:8]} call it more than once"
    if not missing and not doubled:
        detail = f"it is called for layers {found[:8]} in this order"
    raise UnsupportedError(
        f"the model must call sscc::attention exactly once in each of its {layers} layers, in order, but {detail}: "
        "it computes attention in a way of its own, which would bypass the KV cache"
    )
