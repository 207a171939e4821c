"""Capture: a transformers decoder, or a user's ExportedProgram, becomes two static torch programs.

`prefill` processes one sequence in chunks of C tokens ([1, C]), `decode` one token of each of B slots ([B, 1]),
`verify` V + 1 tokens of each ([B * (V + 1), 1], those of a slot one after another). All call `sscc::attention` once per
layer and have no cache: the compiler threads it through later. No weight bytes are
touched: parameters live on the meta device and become named arguments. Buffers that no checkpoint holds (rotary
frequencies, embedding scales) are computed from the config and kept as constants.
"""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from sscc.compiler.frontend.construction import canonical_names
from sscc.compiler.frontend.decompositions import decompose
from sscc.compiler.frontend.distinct import only_captured
from sscc.compiler.frontend.frequencies import fix_frequencies
from sscc.compiler.frontend.mutations import works_in_place
from sscc.compiler.frontend.numbers import NumberFolding
from sscc.compiler.frontend.operator import context_limit
from sscc.compiler.frontend.quiet import quiet_libraries
from sscc.compiler.frontend.source_lines import forward_frames_only
from sscc.compiler.frontend.stateful import TARGETS
from sscc.ir.choices import DECODE, VERIFY
from sscc.ir.errors import ErrorKind, InputError, UnsupportedError, UsageError, quoted
from sscc.ir.geometry import Span
from sscc.ir.levels import LayerKinds, renamed

WRAPPER_PREFIX = "model."
EXPERT_PRODUCTS = 2
LOOKUPS: frozenset[object] = frozenset(
    {
        torch.ops.aten.embedding.default,
        torch.ops.aten.gather.default,
        torch.ops.aten.index.Tensor,
        torch.ops.aten.index_select.default,
    }
)
COUNTING = frozenset(
    {
        torch.ops.aten.arange.default,
        torch.ops.aten.arange.start,
        torch.ops.aten.arange.start_step,
        torch.ops.aten.cumsum.default,
        torch.ops.aten.slice.Tensor,
        torch.ops.prims.iota.default,
    }
)


SHOWN_LAYERS = 8


class CaptureErrors(ErrorKind):
    NOT_EXPORTED = UnsupportedError, "torch.export cannot capture this model at [{shape}]: {cause}"
    INPUT = (
        UnsupportedError,
        "the captured program has the input {name} of kind {kind}, which programs cannot have",
    )
    SHAPE_NOT_STATIC = (
        UnsupportedError,
        "{module} makes a tensor of shape [{shape}] ({operator}): its shape depends on values, and a compiled program "
        "is static",
    )
    STATE = (
        UnsupportedError,
        "the model changes {name} while it runs, but a compiled program keeps no state besides its KV cache",
    )
    CONVOLUTION = (
        UnsupportedError,
        "{module} convolves tokens by a filter of [{shape}], whose inputs before a chunk or a step are not kept",
    )
    CONSTANT_WITHOUT_BUFFER = UnsupportedError, "{module} makes a constant that no buffer holds: store it as a buffer"
    LOST_CONSTANT = UnsupportedError, "the value of the constant {name!r} was lost at capture: store it as a buffer"
    LOGITS_DIFFER = (
        UnsupportedError,
        "the model gives {logits} logits, and looks tokens up in a table of {rows} rows: both must be the size of one "
        "vocabulary",
    )
    NO_LAYERS = InputError, "the config of {model} has {layers!r:.80} for num_hidden_layers, not 1 or more"
    PROGRAM_WITHOUT_ATTENTION = (
        UnsupportedError,
        "the exported program never calls torch.ops.sscc.attention: its decoder must attend through this operator, "
        "once per layer (docs/models.md shows how)",
    )
    LAYERS_BYPASS = (
        UnsupportedError,
        "the model must call sscc::attention once in each of its {total} layers, but layers {layers} never call it: "
        "they compute attention in a way of their own, which would bypass the KV cache",
    )
    LAYERS_ATTEND_TWICE = (
        UnsupportedError,
        "the model must call sscc::attention once in each of its {total} layers, but layers {layers} call it, or "
        "another operator that depends on earlier tokens, up to {calls} times, and a layer keeps one state for each",
    )
    LAYERS_OUT_OF_ORDER = (
        UnsupportedError,
        "the model must call sscc::attention once in each of its {total} layers, in order, but the order of the calls "
        "is {layers}",
    )
    WINDOW_DIFFERS = (
        UnsupportedError,
        "layer {layer} attends to {expected} by its config ({field}), and tells its attention function of {window}: "
        "sscc would compile something else",
    )
    SOFTCAP_DIFFERS = (
        UnsupportedError,
        "the config caps the scores of attention ({fields}), and layer {layer} tells its attention function of the "
        "cap {softcap}: sscc would compile something else",
    )
    EXPERT_PRODUCTS = (
        UnsupportedError,
        "{module} multiplies by matrices of experts {products} times, expected are {expected} products: in and out "
        "again",
    )
    COUNTS_TOKENS = (
        UnsupportedError,
        "the logits do not depend on the positions that the model is given: {module} counts its tokens itself, and "
        "would start again at zero in every chunk and every decode step",
    )
    TABLE_TOO_SHORT = (
        UsageError,
        "--max-context {context} exceeds the {rows} positions of the table {table}: lower --max-context",
    )


@dataclass(frozen=True)
class Captured:
    """One captured entry.

    Attributes:
        graph: decomposed operators; every placeholder is a weight, a constant or an input.
        weights: name of the checkpoint's tensor, by placeholder.
        constants: name of the constant, by placeholder.
        inputs: role (`ids`, `positions`, `last`), by placeholder.
        values: value by name of constants that are not buffers of the model.
        path_prefix: prefix of module paths in the graph that the user's own paths do not have.
    """

    graph: torch.fx.Graph
    weights: dict[str, str]
    constants: dict[str, str]
    inputs: dict[str, str]
    values: dict[str, torch.Tensor]
    path_prefix: str


@dataclass(frozen=True)
class Capture:
    """The entries of a model, and the values of its constants.

    Attributes:
        verify: a step of several tokens per slot, if the program has one.
        weight_shapes: shape of every weight that an entry uses, by its name in the checkpoint.
        constants: values by name, on the CPU.
        kinds: kinds of layers, of which only some are captured; None if every layer is.
    """

    prefill: Captured
    decode: Captured
    weight_shapes: dict[str, tuple[int, ...]]
    constants: dict[str, torch.Tensor]
    kinds: LayerKinds | None
    verify: Captured | None = None

    @property
    def entries(self) -> dict[str, Captured]:
        """The captured entries, by name."""
        several = {} if self.verify is None else {VERIFY: self.verify}
        return {"prefill": self.prefill, DECODE: self.decode, **several}


class _DecoderFunction(torch.nn.Module):
    """A decoder as a function of ids, positions and, in prefill, the index of the last prompt token."""

    def __init__(self, model: torch.nn.Module, exported: bool) -> None:
        super().__init__()
        self.model = model
        self.exported = exported

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor | None = None) -> torch.Tensor:
        if self.exported:
            # Node by node, so that every operation keeps the module path and source line of the original export.
            with torch.fx.traceback.preserve_node_meta():
                out = torch.fx.Interpreter(self.model).run(ids, positions)
            logits: torch.Tensor = out[0] if isinstance(out, (tuple, list)) else out
            return logits if last is None else logits.index_select(1, last)
        keep: dict[str, Any] = {} if last is None else {"logits_to_keep": last}
        result: torch.Tensor = self.model(input_ids=ids, position_ids=positions, use_cache=False, **keep).logits
        # Some models return bf16 logits widened to f32; a program returns the same numbers in its own dtype.
        result = result.to(self.model.dtype)  # type: ignore[arg-type]
        # Some models accept `logits_to_keep` but ignore it, and return the logits of every token.
        return result if last is None or result.shape[1] == 1 else result.index_select(1, last)


def capture(
    model: torch.nn.Module | ExportedProgram,
    *,
    batch: int,
    chunk: int,
    max_context: int,
    kinds: LayerKinds | None = None,
    check: Callable[[Captured], None] = lambda prefill: None,
    drafted: int = 0,
) -> Capture:
    """Export `model` at [1, chunk] and [batch, 1], and with `drafted` at [batch * (drafted + 1), 1].

    Args:
        model: from `construction.build_model`, or an ExportedProgram over (ids, positions), both [b, s] and dynamic.
        batch: decode slots B.
        chunk: prefill chunk C in tokens, at least 2 (a chunk of one token could not be told from a slot).
        max_context: longest sequence that will be run, in tokens; a sliding window of at least this size has no effect.
        kinds: capture only the first and last layer of each kind.
        check: called with the captured prefill, to refuse it before decode is exported, which takes equally long.
        drafted: maximum number V of drafted tokens per slot that a step verifies; 0 for a program without such steps.

    Raises:
        UnsupportedError: the model cannot be exported; the message has torch's first reason.
    """
    exported = isinstance(model, ExportedProgram)
    module = model.module() if isinstance(model, ExportedProgram) else model
    module.requires_grad_(False)
    aliases = canonical_names(module)
    fix_frequencies(module, max_context)
    constants = _lift_hidden_buffers(module)
    # An exported program guards its tensors' device, so it stays where it is; a model needs no memory at all.
    entry = _DecoderFunction(module if exported else module.to("meta"), exported)
    with context_limit(max_context), only_captured(module, kinds), _uncollected():
        prefill = _export(entry, (1, chunk), True, aliases, set(constants))
        check(prefill)
        decode = _export(entry, (batch, 1), False, aliases, set(constants))
        several = (batch * (drafted + 1), 1)
        verify = _export(entry, several, False, aliases, set(constants)) if drafted else None
    shapes: dict[str, tuple[int, ...]] = {}
    for captured in (prefill, decode, *([verify] if verify else [])):
        shapes |= _weight_shapes(captured)
        constants = captured.values | constants
    return Capture(prefill, decode, _all_layers(shapes, kinds), constants, kinds, verify)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause Python's garbage collector. An export creates a million objects that live until its end, and repeated
    searches for garbage among them take a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _all_layers(shapes: dict[str, tuple[int, ...]], kinds: LayerKinds | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of every layer's weights, from those of the captured layers."""
    all_shapes = dict(shapes)
    for layer, first in enumerate(kinds.first if kinds else ()):
        for name, shape in shapes.items():
            all_shapes.setdefault(renamed(name, kinds.path if kinds else "", first, layer), shape)
    return all_shapes


def _lift_hidden_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return values of the non-persistent buffers. They become persistent, so that export lifts them as inputs (with
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
    entry: _DecoderFunction, shape: tuple[int, int], with_last: bool, aliases: dict[str, str], hidden: set[str]
) -> Captured:
    device = next(entry.parameters()).device
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    args: tuple[torch.Tensor, ...] = (ids, torch.zeros_like(ids))
    if with_last:
        args = (*args, torch.zeros(1, dtype=torch.long, device=device))
    try:
        # An export makes some forty graphs but runs few; recompiled lazily, only these get generated code.
        with quiet_libraries(), torch.no_grad(), _use_lazy_graph_module(True), forward_frames_only():
            with NumberFolding():
                program = torch.export.export(entry, args, strict=False)
            graph = decompose(program.graph_module).graph
    except UnsupportedError:
        raise
    except Exception as error:  # torch.export raises many types; all mean that the model cannot be captured
        first, *_ = [*str(error).strip().splitlines(), repr(error)]
        raise CaptureErrors.NOT_EXPORTED(shape=list(shape), cause=quoted(first)) from error
    return _classify(program, graph, aliases, hidden, "" if entry.exported else WRAPPER_PREFIX)


def _classify(
    program: ExportedProgram, graph: torch.fx.Graph, aliases: dict[str, str], hidden: set[str], path_prefix: str
) -> Captured:
    """Classify the placeholders of `graph`, the program's decomposed graph."""
    weights: dict[str, str] = {}
    constants: dict[str, str] = {}
    inputs: dict[str, str] = {}
    targets: dict[torch.fx.Node, str] = {}
    values: dict[str, torch.Tensor] = {}
    roles = iter(("ids", "positions", "last"))
    placeholders = (node for node in graph.nodes if node.op == "placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        name, target = node.name, (spec.target or "").removeprefix(WRAPPER_PREFIX)
        targets[node] = target or spec.arg.name
        if spec.kind is InputKind.USER_INPUT:
            inputs[name] = next(roles)
        elif spec.kind is InputKind.PARAMETER or (spec.kind is InputKind.BUFFER and target not in hidden):
            weights[name] = aliases.get(target, target)
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            constants[name] = target
            if target not in hidden and node.users:
                values[target] = _program_constant(program, target)
        else:
            raise CaptureErrors.INPUT(kind=spec.kind.name, name=targets[node])
    _refuse_what_is_not_static(graph, targets)
    return Captured(graph, weights, constants, inputs, values, path_prefix)


def _refuse_what_is_not_static(graph: torch.fx.Graph, targets: dict[torch.fx.Node, str]) -> None:
    """Refuse values whose shape depends on other values, updates of a placeholder, and convolutions over tokens except
    by our operator: a program is static, and keeps no other state."""
    for node in graph.nodes:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        where = stack[-1][0].removeprefix(WRAPPER_PREFIX) if stack else node.name
        if any(not isinstance(size, int) for size in _shape(node)):
            raise CaptureErrors.SHAPE_NOT_STATIC(module=where, shape=list(_shape(node)), operator=node.target)
        if works_in_place(node):
            raise CaptureErrors.STATE(name=targets.get(node.args[0], where))
        if node.target is torch.ops.aten.convolution.default and max(filter_shape := _shape(node.args[1])[2:]) > 1:
            raise CaptureErrors.CONVOLUTION(module=where, shape=list(filter_shape))
        if node.op == "get_attr":
            raise CaptureErrors.CONSTANT_WITHOUT_BUFFER(module=where)


def _weight_shapes(captured: Captured) -> dict[str, tuple[int, ...]]:
    placeholders = {node.name: node for node in captured.graph.nodes if node.op == "placeholder"}
    return {name: tuple(placeholders[arg].meta["val"].shape) for arg, name in captured.weights.items()}


def config_constants(model: torch.nn.Module, max_context: int) -> dict[str, torch.Tensor]:
    """Return the values of a model's non-persistent buffers by name, as `capture` at `max_context` would find them;
    `model` is from `build_model` and not captured yet."""
    fix_frequencies(model, max_context)
    return _lift_hidden_buffers(model)


def program_constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the constants of a user's exported program, by name."""
    return {name: value for name, value in program.constants.items() if isinstance(value, torch.Tensor)}


def _program_constant(program: ExportedProgram, name: str) -> torch.Tensor:
    for table in (program.constants, program.state_dict):
        value = table.get(WRAPPER_PREFIX + name, table.get(name))
        if isinstance(value, torch.Tensor) and value.device.type != "meta":
            return value.detach().clone()
    raise CaptureErrors.LOST_CONSTANT(name=name)


def vocabulary(captured: Captured) -> int:
    """Return the number of legal token ids: the width of the logits.

    Raises:
        UnsupportedError: the smallest table that ids index has another number of rows.
    """
    graph = captured.graph
    ids = next(name for name, role in captured.inputs.items() if role == "ids")
    tables = [
        node.args[0].meta["val"].shape[0]
        for node in graph.nodes
        if node.target is torch.ops.aten.embedding.default and node.args[1].name == ids
    ]
    output = next(node for node in graph.nodes if node.op == "output")
    width = int(output.args[0][0].meta["val"].shape[-1])
    if tables and min(tables) != width:
        raise CaptureErrors.LOGITS_DIFFER(logits=width, rows=min(tables))
    return width


def layer_count(config: transformers.PreTrainedConfig) -> int:
    """Return the number of decoder layers by the config. Raises InputError where it has none."""
    # In classes with an encoder and a decoder, num_hidden_layers counts the encoder's layers.
    layers = getattr(config, "decoder_layers", None) or getattr(config, "num_hidden_layers", None)
    if type(layers) is not int or layers < 1:
        raise CaptureErrors.NO_LAYERS(model=config.model_type, layers=layers)
    return layers


def count_layers(captured: Capture, config: transformers.PreTrainedConfig | None) -> int:
    """Return the number of decoder layers: the config's, or for an exported program its number of attention operators.
    """
    if config is not None:
        return layer_count(config)
    layers = len({layer for layer, _ in stateful_operators(captured.prefill)})
    if layers == 0:
        raise CaptureErrors.PROGRAM_WITHOUT_ATTENTION()
    return layers


def stateful_operators(captured: Captured) -> list[tuple[int, Any]]:
    """Return the layer and target of every operator that depends on earlier tokens, in program order."""
    nodes = (node for node in captured.graph.nodes if node.target in TARGETS)
    return [(int(node.args[TARGETS[node.target]]), node.target) for node in nodes]


def _attention_nodes(captured: Captured) -> list[Any]:
    target = torch.ops.sscc.attention.default
    return [node for node in captured.graph.nodes if node.target is target]


def check_attention(
    captured: Captured, layers: int, kinds: LayerKinds | None = None, stateless: Collection[int] = ()
) -> None:
    """Refuse a program unless each of its (captured) layers 0 .. layers-1 calls attention, or another operator that
    depends on earlier tokens, in order and once: some models export without errors although they compute attention in
    their own code. Layers in `stateless` must call none."""
    operators = stateful_operators(captured)
    called = [layer for layer, _ in itertools.groupby(layer for layer, _ in operators)]
    expected = list(range(layers)) if kinds is None else list(kinds.captured)
    expected = [layer for layer in expected if layer not in stateless]
    missing = [layer for layer in expected if layer not in called]
    if missing:
        raise CaptureErrors.LAYERS_BYPASS(total=layers, layers=missing[:SHOWN_LAYERS])
    calls = Counter(operators)
    doubled = sorted({layer for (layer, _), times in calls.items() if times > 1})
    if doubled:
        most = max(calls.values())
        raise CaptureErrors.LAYERS_ATTEND_TWICE(total=layers, layers=doubled[:SHOWN_LAYERS], calls=most)
    if called != expected:
        raise CaptureErrors.LAYERS_OUT_OF_ORDER(total=layers, layers=called[:SHOWN_LAYERS])


def check_windows(captured: Captured, windows: Callable[[int], tuple[Span, str]]) -> None:
    """Refuse a layer whose attention has another window than the config states: a model may have the window only in its
    own mask, which captured attention does not get.

    Args:
        windows: window and config field, by layer.

    Raises:
        UnsupportedError: naming the first such layer.
    """
    for node in _attention_nodes(captured):
        layer, window = node.args[3], _window(node)
        expected, field = windows(layer)
        if window != expected:
            field = field or "layer_types"
            raise CaptureErrors.WINDOW_DIFFERS(layer=layer, field=field, expected=str(expected), window=str(window))


def check_softcaps(captured: Captured, softcaps: Mapping[str, float]) -> None:
    """Refuse a layer that does not pass the config's cap on scores to its attention function: it caps them in its own
    code, or not at all.

    Args:
        softcaps: caps by field of the config; if empty, layers may have any cap.

    Raises:
        UnsupportedError: naming the first such layer.
    """
    if not softcaps:
        return
    for node in _attention_nodes(captured):
        softcap = (*node.args[6:], 0.0)[0]
        if softcap not in softcaps.values():
            fields = [f"{name} = {value}" for name, value in softcaps.items()]
            raise CaptureErrors.SOFTCAP_DIFFERS(layer=node.args[3], fields=fields, softcap=softcap)


def check_experts(captured: Captured, modules: Sequence[str]) -> None:
    """Refuse a program in which a module of experts does not multiply exactly once by each of its matrices.

    Args:
        modules: paths of the modules of experts in the captured layers.

    Raises:
        UnsupportedError: naming the first such module.
    """
    target = torch.ops.sscc.expert_product.default
    stacks = [list(node.meta["nn_module_stack"].values()) for node in captured.graph.nodes if node.target is target]
    calls = Counter(stack[-1][0].removeprefix(WRAPPER_PREFIX) for stack in stacks)
    for name in dict.fromkeys((*modules, *calls)):
        if calls[name] != (EXPERT_PRODUCTS if name in modules else 0):
            raise CaptureErrors.EXPERT_PRODUCTS(module=name, products=calls[name], expected=EXPERT_PRODUCTS)


def count_governed(captured: Captured, max_context: int) -> int:
    """Return the number of captured layers that keep rows and attend to every position, whose rows the KV budget
    determines. Layers that share the K and V of an earlier one keep none."""
    keeping = {node.args[1:3]: _window(node) for node in reversed(_attention_nodes(captured))}
    return sum(not window.inside(max_context) for window in keeping.values())


def chosen_layers(capture: Capture) -> list[int]:
    """Return the layers in which an index of the model's own chooses the rows that a token attends to."""
    target = torch.ops.sscc.chosen_attention.default
    captured = [layer for layer, operator in stateful_operators(capture.prefill) if operator is target]
    first = capture.kinds.first if capture.kinds else ()
    return [layer for layer, known in enumerate(first) if known in captured] or captured


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes and settings of an attention, by which rules for different layers are distinguished.

    Attributes:
        heads, kv_heads, width, value_width: H, Hkv, D and Dv.
        scale: factor on products of queries and keys.
        softcap: cap of the scores; 0 for none.
        dtype: dtype of keys and queries.
    """

    heads: int
    kv_heads: int
    width: int
    value_width: int
    scale: float
    softcap: float
    dtype: torch.dtype


def governed_attentions(captured: Captured, max_context: int) -> list[AttentionSizes]:
    """Return each kind of attention among the captured layers that attend to every position, once."""
    sizes: dict[AttentionSizes, None] = {}
    for node in _attention_nodes(captured):
        if not _window(node).inside(max_context):
            query, key, value = (argument.meta["val"] for argument in node.args[:3])
            scale, softcap = float(node.args[4]), float((*node.args[6:], 0.0)[0])
            heads, kv_heads, width, value_width = query.shape[1], key.shape[1], key.shape[3], value.shape[3]
            sizes.setdefault(AttentionSizes(heads, kv_heads, width, value_width, scale, softcap, key.dtype))
    return list(sizes)


def _window(node: Any) -> Span:
    """Return the span of positions that a query of an attention operator sees."""
    return Span(*(int((*node.args[place:], default)[0]) for place, default in ((5, 0), (8, 1))))


def check_positions(captured: Capture) -> None:
    """Refuse a program that counts its tokens itself instead of reading `positions`: it would start again at zero in
    every chunk and every decode step. A model without positions passes.

    Raises:
        UnsupportedError: naming the module that counts.
    """
    if _reads_positions(captured.prefill):
        return
    chunk = next(_shape(node)[1] for node in _placeholders(captured.prefill, "ids"))
    # A table that happens to have this length is in both programs; a count of tokens has the length of only one.
    counters = _counters(captured.prefill, chunk)
    if len(counters) <= len(_counters(captured.decode, chunk)):
        return
    stack = list(counters[0].meta.get("nn_module_stack", {}).values())
    where = stack[-1][0].removeprefix(WRAPPER_PREFIX) if stack else counters[0].name
    raise CaptureErrors.COUNTS_TOKENS(module=where or "the model")


def check_tables(captured: Captured, max_context: int) -> None:
    """Refuse a context that exceeds a table of positions.

    Raises:
        UsageError: naming the table, its rows and the context.
    """
    # A value that is looked up at a position (such as a token type) is not itself a position. Neither is the result of
    # attention, by which experts are selected and their biases looked up.
    positions = _reached(captured, "positions", beyond=LOOKUPS | TARGETS.keys())
    for node in captured.graph.nodes:
        if node.target not in (torch.ops.aten.embedding.default, torch.ops.aten.index.Tensor):
            continue
        index = node.args[1] if isinstance(node.args[1], torch.fx.Node) else node.args[1][0]
        if index not in positions or node.args[0].op != "placeholder":
            continue
        rows = _shape(node.args[0])[0]
        if rows < max_context:
            name = captured.weights.get(node.args[0].name, node.args[0].name)
            raise CaptureErrors.TABLE_TOO_SHORT(context=max_context, rows=rows, table=name)


def _placeholders(captured: Captured, role: str) -> list[torch.fx.Node]:
    return [node for node in captured.graph.nodes if captured.inputs.get(node.name) == role]


def _shape(node: torch.fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _reads_positions(captured: Captured) -> bool:
    """Return True if the logits depend on the positions."""
    reached = _reached(captured, "positions")
    return any(node in reached for node in captured.graph.nodes if node.op == "output")


def _reached(captured: Captured, role: str, beyond: frozenset[object] = frozenset()) -> set[torch.fx.Node]:
    """Return every value that depends on the input `role` other than through an operator of `beyond`."""
    reached = set(_placeholders(captured, role))
    for node in captured.graph.nodes:
        if node.target not in beyond and not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return reached


def _counters(captured: Captured, length: int) -> list[torch.fx.Node]:
    """Return values with a dimension of `length` elements that depend on no weight or input and are not constant along
    it: counts, or slices of a constant table."""
    fixed: set[torch.fx.Node] = set()
    counters = []
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            fixed |= {node} if node.name in captured.constants else set()
        elif node.op == "call_function" and fixed.issuperset(node.all_input_nodes):
            fixed.add(node)
            if node.target in COUNTING and length in _shape(node):
                counters.append(node)
    return counters
