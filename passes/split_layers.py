"""split-layers: each captured entry becomes one function per decoder layer, an embedding and a head.

What: operations carry the module path they came from. The paths of attention operators show which component names the
layer; other modules of the same list are layers too. An operation belongs to the layer that its path names, to the
embedding if it depends on no layer, and to the head if it follows the last one. Each group becomes a function. A layer
that attends to the K and V of an earlier one becomes `kv.shared_attention`, and reads no value of that layer.

Layers may read other results of the embedding than the hidden state. If a tensor has a slice for every layer (per-layer
inputs), the embedding returns it with the layers as first axis, and each layer reads its slice (`layer_input.0`); a
tensor that layers read whole is passed to all of them, like a table.

Why: kernels are layers. A layer that consumes exactly the hidden state, tables of positions (rotary), its
weights and its own K/V can run layer-major over the chunks of a prompt, and N equal layers can become one
looped kernel.

Before::

    func.func @decode(%ids: tensor<2x1x1x8xi64> {sscc.input = "ids"},
                      %positions: tensor<2x1x1x8xi64> {sscc.input = "positions"},
                      %w: tensor<2x1x1x8xf32> {sscc.weight = "layers.0.w"}) -> tensor<2x1x1x8xf32> {
      %h = arith.sitofp %ids : tensor<2x1x1x8xi64> to tensor<2x1x1x8xf32> loc("embed")
      %cos = arith.sitofp %positions : tensor<2x1x1x8xi64> to tensor<2x1x1x8xf32> loc("rotary")
      %q = arith.mulf %h, %cos : tensor<2x1x1x8xf32> loc("layers.0.attention")
      %o = "kv.self_attention"(%q, %q, %h) {layer = 0 : i64, scale = 0.25 : f64} : (tensor<2x1x1x8xf32>,
        tensor<2x1x1x8xf32>, tensor<2x1x1x8xf32>) -> tensor<2x1x1x8xf32> loc("layers.0.attention")
      %h1 = arith.mulf %o, %w : tensor<2x1x1x8xf32> loc("layers.0.mlp")
      %logits = math.tanh %h1 : tensor<2x1x1x8xf32> loc("head")
      return %logits : tensor<2x1x1x8xf32>
    }

After::

    func.func private @decode.embed(%ids: .. "ids"}, %positions: .. "positions"}) -> (.. "hidden"}, .. "table.0"}) ..
      %h = arith.sitofp %ids : ..
      %cos = arith.sitofp %positions : ..
      return %h, %cos : ..
    }
    func.func private @decode.layer.0(%h: .. "hidden"}, %cos: .. "table.0"}, %w: .. "layers.0.w"}) -> (.. "hidden"}) ..
      %q = arith.mulf %h, %cos : ..
      %o = "kv.self_attention"(%q, %q, %h) ..
      %h1 = arith.mulf %o, %w : ..
      return %h1 : ..
    }
    func.func private @decode.head(%h1: .. "hidden"}) -> (.. "logits"}) ..
      %logits = math.tanh %h1 : ..
      return %logits : ..
    }

When it does not apply: a layer that reads a value of a layer other than the previous one (except both K and V,
unchanged), or another layer's slice of such a tensor, is refused with the source line of the reader.

Preserves: every operation and its location; constants are cloned to their users.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from sscc.ir.builders import Argument, arguments_of, i64_attr, make_function, reshape, tensor_type
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind, InternalError, UnsupportedError
from sscc.ir.levels import KINDS, PROGRAM, RULE, get_facts
from sscc.ir.locations import module_path, origin_of
from sscc.ir.rewriting import ValueMap, clone_all, functions, is_rematerialised, outer_values, producer
from sscc.ir.structure import describe
from sscc.passes.base import Pass, count
from sscc.passes.transposes import transposed

EMBED = -1
CHOICE = "choice"
"""Name of the positions that an index selects, if later layers reuse them: an input of these layers, and a result of
every layer with an index."""
LAYER_INPUT = "layer_input"
"""Prefix of inputs with a separate value for every layer."""


class LayersDiffer(InternalError):
    """Two layers of one kind have different programs, so that every layer has to be captured."""


class SplitLayersErrors(ErrorKind):
    NO_ATTENTION = UnsupportedError, "{entry} has no attention operator, so there are no layers to split"
    READS_LATER_LAYER = UnsupportedError, "{origin}layer {layer} reads a value computed by layer {source}"
    OTHER_SLICE_OF_KIND = LayersDiffer, "layer {layer} reads slice {index} of a result of the embedding"
    OTHER_SLICE = (
        UnsupportedError,
        "{origin}layer {layer} reads slice {index} of the inputs per layer that the embedding makes, but it may read "
        "its own only",
    )
    READS_EMBEDDING = (
        UnsupportedError,
        "{origin}{stage} reads a value of the embedding, but it may read only the hidden state of the stage before it",
    )
    READS_EARLIER_LAYER = (
        UnsupportedError,
        "{origin}{stage} reads a value of layer {source}, but it may read only the hidden state of the stage before it",
    )
    NOT_ONE_HIDDEN_STATE = (
        UnsupportedError,
        "{origin}{stage} reads {values} token-dependent values of the stage before it, besides its weights and its "
        "K and V, but it may read exactly the hidden state",
    )
    NOT_IN_A_LIST = (
        UnsupportedError,
        "{origin}this attention operator is not inside a numbered module (such as layers.0), so that layers cannot be "
        "told apart: put the decoder layers into a torch.nn.ModuleList",
    )
    TWO_ATTENTIONS = (
        UnsupportedError,
        "{origin}the module {module} has two attention operators, so that layers cannot be told apart: make every "
        "decoder layer a module of its own",
    )


@dataclass(frozen=True)
class SplitLayers(Pass):
    name: ClassVar[str] = "split-layers"
    takes: ClassVar[tuple[str, ...]] = ("graph",)
    follows: ClassVar[tuple[str, ...]] = ("lower-torch",)
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        for function in [each for each in functions(module) if RULE not in each.attributes]:
            _Splitter(module, function).split()
            function.operation.erase()



class _Splitter:
    """Splitter of one captured function. Stages are numbered -1 (embedding), 0 .. L-1 (layers), L (head)."""

    def __init__(self, module: ir.Module, function: Any) -> None:
        self.module = module
        self.is_partial = KINDS in module.operation.attributes
        self.entry = function.name.value
        self.arguments = dict(zip(function.arguments, arguments_of(function), strict=True))
        _share(function)
        *body, self.terminator = [op.operation for op in function.entry_block.operations]
        self.ops = [op for op in body if not is_rematerialised(op)]
        layers: dict[int, list[ir.Operation]] = {}  # layer numbers are not consecutive if layers repeat
        for op in (op for op in self.ops if op.name in kv.STATEFUL):
            layers.setdefault(op.attributes["layer"].value, []).append(op)
        if not layers:
            raise SplitLayersErrors.NO_ATTENTION(entry=self.entry)
        of_layer = dict(zip(layers, _layer_prefixes(list(layers.values())), strict=True))
        if PROGRAM in module.operation.attributes:
            of_layer |= _stateless_prefixes(self.ops, of_layer, get_facts(module)[0].layers)
        self.numbers, self.prefixes = sorted(of_layer), [of_layer[number] for number in sorted(of_layer)]
        self.layers = len(self.prefixes)
        self.stage: dict[ir.Operation, int] = {}
        self.of_token: set[ir.Value] = {v for v, a in self.arguments.items() if (a.role, a.name) == ("input", "ids")}
        self._assign()

    def _assign(self) -> None:
        for op in self.ops:
            operands = outer_values(op)
            after = max((self._stage_of(value) for value in operands), default=EMBED)
            stage = self._named_layer(op)
            if stage is None:
                stage = after if after < self.layers - 1 else self.layers
            if stage < after:
                raise SplitLayersErrors.READS_LATER_LAYER(origin=origin_of(op), layer=stage, source=after)
            self.stage[op] = stage
            if any(value in self.of_token for value in operands):
                self.of_token.update(op.results)
        self._share_tables()
        self._sink_to_head()
        self._join_reshapes()
        self._find_choices()

    def _find_choices(self) -> None:
        """Record the selections of indexes, by layer, if another layer reads any of them; otherwise none."""
        choices = {op.results[0]: self.stage[op] for op in self.ops if op.name == "kv.index"}
        read = ((value, stage) for op, stage in self.stage.items() for value in outer_values(op))
        taken = any(value in choices and choices[value] < stage < self.layers for value, stage in read)
        self.choices = {stage: value for value, stage in choices.items()} if taken else {}

    def _choice_of(self, stage: int, crossing: dict[ir.Value, ir.Operation]) -> list[ir.Value]:
        """Return the choice of an earlier layer that a layer reads, if it reads one: the last one before it."""
        taken = [value for value in crossing if value in self.choices.values()]
        before = [layer for layer in self.choices if layer < stage]
        for value in taken:
            if value != self.choices[max(before)]:
                origin, name = origin_of(crossing[value]), self._stage_name(stage)
                raise SplitLayersErrors.READS_EARLIER_LAYER(origin=origin, stage=name, source=self._stage_of(value))
        return taken

    def _share_tables(self) -> None:
        """Merge equal computations of the embedding: a model may compute a table for each layer, and layers that read
        different tables are not equal."""
        numbers: dict[ir.Value, int] = {}
        first: dict[str, ir.Operation] = {}
        kept: list[tuple[ir.Operation, int]] = []
        for op, stage in [(op, self.stage[op]) for op in self.ops]:
            operands = {value: _spelled(value, numbers) for value in outer_values(op)} if stage == EMBED else {}
            before = first.setdefault(describe(op, operands), op) if stage == EMBED else op
            if before == op:
                kept.append((op, stage))
                continue
            for result, other in zip(op.results, before.results, strict=True):
                result.replace_all_uses_with(other)
        # An operation's hash depends on its operands, which have changed, so the table of stages is built anew.
        self.ops, self.stage = [op for op, _ in kept], dict(kept)

    def _sink_to_head(self) -> None:
        """Move operations that only the head uses (index arithmetic on the last position) from the embedding to the
        head."""
        head_only: set[ir.Value] = set()
        read_elsewhere: set[ir.Value] = set()
        for op in reversed(self.ops):
            results = set(op.results)
            if self.stage[op] == EMBED and results & head_only and not results & read_elsewhere:
                self.stage[op] = self.layers
            (head_only if self.stage[op] == self.layers else read_elsewhere).update(outer_values(op))

    def _join_reshapes(self) -> None:
        """If a layer reads both the hidden state and the value from which it was reshaped, which are the same data, let
        it read only the first, and reshape it back."""
        placed = [(op, self.stage[op]) for op in self.ops]
        readers: dict[ir.Value, list[tuple[ir.Operation, int]]] = {}
        for op, stage in placed:
            for value in op.operands:
                readers.setdefault(value, []).append((op, stage))
        for reshaped, origin in list(placed):
            if reshaped.name != "tensor.expand_shape" or reshaped.operands[0] not in self.of_token:
                continue
            source, result = reshaped.operands[0], reshaped.results[0]
            for stage in {stage for _, stage in readers.get(result, [])} - {origin}:
                users = [reader for reader, place in readers[source] if place == stage]
                if not users or _sizes(source) != _sizes(result):
                    continue
                with ir.InsertionPoint(users[0]), users[0].location:
                    back = reshape(result, source.type.shape)
                for user in users:
                    for index, value in enumerate(user.operands):
                        if value == source:
                            user.operands[index] = back
                at = next(place for place, (op, _) in enumerate(placed) if op == users[0])
                placed.insert(at, (back.owner, stage))
                self.of_token.add(back)
        # An operation's hash depends on its operands, which have changed, so the table of stages is built anew.
        self.ops, self.stage = [op for op, _ in placed], dict(placed)

    def _named_layer(self, op: ir.Operation) -> int | None:
        path = module_path(op.location)
        for layer, prefix in enumerate(self.prefixes):
            if path == prefix or path.startswith(prefix + "."):
                return layer
        return None

    def _stage_of(self, value: ir.Value) -> int:
        op = producer(value)
        return EMBED if op is None or is_rematerialised(op) else self.stage[op]

    def split(self) -> None:
        groups: dict[int, list[ir.Operation]] = {stage: [] for stage in range(EMBED, self.layers + 1)}
        for op in self.ops:
            groups[self.stage[op]].append(op)
        crossing = [self._crossing(groups[stage], stage) for stage in range(self.layers + 1)]
        slices = self._layer_inputs(crossing[: self.layers])
        tables = self._tables(crossing[: self.layers], slices)
        hidden = [self._hidden_into(stage, crossing[stage], {*tables, *slices}) for stage in range(self.layers + 1)]
        # The positions themselves are not a table: callers of a layer have them.
        own = [table for table in tables if table not in self.arguments]
        stacks = list(dict.fromkeys(slices.values()))
        self._build("embed", groups[EMBED], [], [hidden[0], *own], stacks=stacks)
        for layer in range(self.layers):
            number, of_stacks = self.numbers[layer], {stack: list[ir.Value]() for stack in stacks}
            for value in (value for value in crossing[layer] if value in slices):
                of_stacks[slices[value]].append(value)
            reads = [hidden[layer], *tables, *self._choice_of(layer, crossing[layer])]
            writes = [hidden[layer + 1], *([self.choices[layer]] if layer in self.choices else [])]
            self._build(f"layer.{number}", groups[layer], reads, writes, layer, of_stacks)
        self._build("head", groups[self.layers], [hidden[self.layers]], list(self.terminator.operands))

    def _layer_inputs(self, crossing: list[dict[ir.Value, ir.Operation]]) -> dict[ir.Value, _Stack]:
        """Return the slices that layers read of tensors with a slice for every layer."""
        embedded = {v for reads in crossing for v in reads if self._stage_of(v) == EMBED and v in self.of_token}
        parts = {value: part for value, part in ((value, _slice_of(value)) for value in embedded) if part is not None}
        # The hidden state may be a slice too, so only tensors of which several layers read slices count.
        counts = Counter(stack for stack, _ in parts.values())
        slices: dict[ir.Value, _Stack] = {}
        for layer, reads in enumerate(crossing):
            for value, reader in reads.items():
                stack, index = parts.get(value, (None, 0))
                if stack is None or counts[stack] < 2:
                    continue
                if index != self.numbers[layer] and self.is_partial:
                    raise SplitLayersErrors.OTHER_SLICE_OF_KIND(layer=self.numbers[layer], index=index)
                if index != self.numbers[layer]:
                    raise SplitLayersErrors.OTHER_SLICE(
                        origin=origin_of(reader), layer=self.numbers[layer], index=index
                    )
                slices[value] = stack
        return slices

    def _crossing(self, ops: list[ir.Operation], stage: int) -> dict[ir.Value, ir.Operation]:
        """Return values that `ops` read from earlier stages, except weights, with their first reader."""
        first_readers: dict[ir.Value, ir.Operation] = {}
        for op in ops:
            for value in outer_values(op):
                source = producer(value)
                if source is None and self.arguments[value].role in ("weight", "constant"):
                    continue
                if (source is None or not is_rematerialised(source)) and self._stage_of(value) != stage:
                    first_readers.setdefault(value, op)
        if stage == self.layers:
            for value in self.terminator.operands:
                if self._stage_of(value) != stage:
                    first_readers.setdefault(value, self.terminator)
        return first_readers

    def _hidden_into(
        self, stage: int, crossing: dict[ir.Value, ir.Operation], inputs: Container[ir.Value]
    ) -> ir.Value:
        """Return the hidden state that a stage reads; `inputs` are the other inputs of layers. The first layer's hidden
        state is also a table if later layers read all of it."""
        hidden: dict[ir.Value, ir.Operation] = {}
        embedded = [value for value in crossing if self._stage_of(value) == EMBED and value in self.of_token]
        shared_inputs = {value for value in embedded if value in inputs} if stage < self.layers else set()
        if stage == 0 and shared_inputs == set(embedded):
            shared_inputs -= {value for value in embedded if _slice_of(value) is None}
        for value, reader in crossing.items():
            origin = self._stage_of(value)
            if (origin == EMBED and value not in self.of_token) or value in shared_inputs:
                continue
            if value in self.choices.values() and stage < self.layers:
                continue
            if origin != stage - 1:
                at, name = origin_of(reader), self._stage_name(stage)
                if origin == EMBED:
                    raise SplitLayersErrors.READS_EMBEDDING(origin=at, stage=name)
                raise SplitLayersErrors.READS_EARLIER_LAYER(origin=at, stage=name, source=origin)
            hidden[value] = reader
        if len(hidden) != 1:
            reader = next(iter(hidden.values()), self.terminator)
            raise SplitLayersErrors.NOT_ONE_HIDDEN_STATE(
                origin=origin_of(reader), stage=self._stage_name(stage), values=len(hidden)
            )
        return next(iter(hidden))

    def _stage_name(self, stage: int) -> str:
        return "the head" if stage == self.layers else f"layer {stage}"

    def _tables(
        self, crossing: list[dict[ir.Value, ir.Operation]], slices: Container[ir.Value]
    ) -> list[ir.Value]:
        """Return the values that layers read from the embedding, in program order: values of positions only (rotary
        tables), and values of tokens that later layers read whole."""
        tables = {
            value
            for layer, reads in enumerate(crossing)
            for value in reads
            if self._stage_of(value) == EMBED and value not in slices
            and (value not in self.of_token or (layer and value not in self.arguments))
        }
        order = {value: index for index, value in enumerate(self.arguments)}
        for op in (op for op in self.ops if self.stage[op] == EMBED):
            order.update({result: len(order) for result in op.results})
        return sorted(tables, key=lambda value: order[value])

    def _build(
        self,
        suffix: str,
        ops: list[ir.Operation],
        reads: list[ir.Value],
        writes: list[ir.Value],
        layer: int | None = None,
        stacks: Mapping[_Stack, Sequence[ir.Value]] | Sequence[_Stack] = (),
    ) -> None:
        """Return a function of `ops`. For each of `stacks` the embedding returns all slices, and a layer reads its own.
        """
        arguments = [Argument("input", name, v.type) for name, v in zip(self._names(reads), reads, strict=True)]
        if layer is not None:
            arguments += [Argument("input", _input_name(n), s.slice_type) for n, s in enumerate(stacks)]
        needed = [*writes, *([] if layer is not None else (stack.value for stack in stacks))]
        captured = [value for value in self._arguments_read(ops, needed) if value not in reads]
        location = _location(ops)
        results = [Argument("output", name, v.type) for name, v in zip(self._names(writes), writes, strict=True)]
        if layer is None:
            results += [Argument("output", _input_name(n), s.type) for n, s in enumerate(stacks)]
        if suffix == "head":
            results = [Argument("output", "logits", value.type) for value in writes]
        attributes: dict[str, ir.Attribute] = {"sscc.entry": ir.StringAttr.get(self.entry)}
        if layer is not None:
            attributes["sscc.layer"] = i64_attr(self.numbers[layer])
            location = ir.Location.name(self.prefixes[layer])
        function = make_function(
            self.module,
            f"{self.entry}.{suffix}",
            [*arguments, *(self.arguments[value] for value in captured)],
            results,
            location,
            attributes,
        )
        taken = list(function.arguments)
        values: ValueMap = dict(zip(reads, taken, strict=False))
        values |= dict(zip(captured, taken[len(arguments) :], strict=True))
        if isinstance(stacks, Mapping):
            own = zip(stacks.values(), taken[len(reads) :], strict=False)
            values |= {value: argument for parts, argument in own for value in parts}
        with ir.InsertionPoint(function.entry_block), location:
            clone_all(ops, values)
            slices = [] if layer is not None else [stack.layers_first(values[stack.value]) for stack in stacks]
            func.ReturnOp([*(values[value] for value in writes), *slices])

    def _names(self, values: list[ir.Value]) -> list[str]:
        """Return the names of the hidden state, of tables, which follow it, and of a choice. An argument of the program
        keeps its name."""
        numbers = itertools.count()

        def name(value: ir.Value) -> str:
            if value in self.choices.values():
                return CHOICE
            return self.arguments[value].name if value in self.arguments else f"table.{next(numbers)}"

        return ["hidden", *map(name, values[1:])] if values else []

    def _arguments_read(self, ops: list[ir.Operation], writes: list[ir.Value]) -> list[ir.Value]:
        read = {value for op in ops for value in outer_values(op)} | set(writes)
        return [value for value in self.arguments if value in read]


@dataclass(frozen=True)
class _Stack:
    """A value with a slice for every layer along `axis`."""

    value: ir.Value
    axis: int

    @property
    def slice_type(self) -> ir.Type:
        sizes = [size for axis, size in enumerate(self.value.type.shape) if axis != self.axis]
        return tensor_type(sizes, self.value.type.element_type)

    @property
    def type(self) -> ir.Type:
        """Type with the layers as first axis."""
        sizes = [self.value.type.shape[self.axis], *self.slice_type.shape]
        return tensor_type(sizes, self.value.type.element_type)

    def layers_first(self, value: ir.Value) -> ir.Value:
        order = [self.axis, *(axis for axis in range(value.type.rank) if axis != self.axis)]
        return transposed(value, order)


def _slice_of(value: ir.Value) -> tuple[_Stack, int] | None:
    """Return the tensor and index of which a value is a slice along an axis that the value lacks; None for other
    values."""
    source = producer(value)
    while source is not None and source.name in ("tensor.collapse_shape", "tensor.expand_shape"):
        source = producer(source.operands[0])
    if source is None or source.name != "tensor.extract_slice" or len(source.operands) != 1:
        return None
    whole = list(source.operands[0].type.shape)
    names = ("static_offsets", "static_sizes", "static_strides")
    offsets, sizes, strides = (list(source.attributes[name]) for name in names)
    axes = [axis for axis, size in enumerate(whole) if sizes[axis] != size]
    if len(axes) != 1 or sizes[axes[0]] != 1 or set(strides) != {1}:
        return None
    stack = _Stack(source.operands[0], axes[0])
    return (stack, offsets[axes[0]]) if list(stack.slice_type.shape) == list(value.type.shape) else None


def _input_name(number: int) -> str:
    return f"{LAYER_INPUT}.{number}"


def _share(function: Any) -> None:
    """Turn attention to the K and V of an earlier layer into `kv.shared_attention`."""
    sources: dict[tuple[ir.Value, ir.Value], ir.Operation] = {}
    for op in [op.operation for op in function.entry_block.operations]:
        if op.name != "kv.self_attention":
            continue
        query, key, value, *sinks = op.operands
        source = sources.setdefault((key, value), op)
        if source == op:
            continue
        with ir.InsertionPoint(op), op.location:
            layer, shares, scale = op.attributes["layer"], source.attributes["layer"], op.attributes["scale"]
            shared = kv.SharedAttention(query, *(sinks or [None]), layer, shares, scale, op.results[0].type)
        kv.inherit(shared, op)
        op.results[0].replace_all_uses_with(shared.out)
        op.erase()
        count("layers that share K and V")


def _spelled(value: ir.Value, numbers: dict[ir.Value, int]) -> str:
    """Return a word for a value: the same one for equal constants and equal empty tensors."""
    source = producer(value)
    if source is not None and is_rematerialised(source) and not list(source.operands):
        return describe(source, {})
    return f"%{numbers.setdefault(value, len(numbers))}"


def _sizes(value: ir.Value) -> list[int]:
    """Return the dimensions of a tensor that are not 1."""
    return [size for size in value.type.shape if size != 1]


def _location(ops: list[ir.Operation]) -> ir.Location:
    return ops[0].location if ops else ir.Location.unknown()


def _layer_prefixes(layers: list[list[ir.Operation]]) -> list[str]:
    """Return the module path of each layer, from the paths of its operators that depend on earlier tokens.

    With several layers it ends at the component in which the first two layers' paths differ; with one, at the last
    numeric component of its operators' common prefix.
    """
    unnumbered = [op for operators in layers for op in operators if not any(map(str.isdigit, _path(op)))]
    if unnumbered:
        raise SplitLayersErrors.NOT_IN_A_LIST(origin=origin_of(unnumbered[0]))
    paths = [_common(map(_path, operators)) for operators in layers]
    if len(paths) == 1:
        depth = max(index for index, part in enumerate(paths[0]) if part.isdigit())
    else:
        differing = (i for i, (a, b) in enumerate(zip(paths[0], paths[1], strict=False)) if a != b)
        depth = next(differing, len(paths[0]) - 1)
    prefixes = [".".join(path[: depth + 1]) for path in paths]
    for index, (first, *_) in enumerate(layers):
        if prefixes[index] in prefixes[:index]:
            raise SplitLayersErrors.TWO_ATTENTIONS(origin=origin_of(first), module=prefixes[index])
    return prefixes


def _stateless_prefixes(ops: Iterable[ir.Operation], known: Mapping[int, str], layers: int) -> dict[int, str]:
    """Return the module paths of layers without an operator that depends on earlier tokens, by number: modules in the
    same list as the `known` layers, numbered as the list is.

    Args:
        layers: number of layers of the model.
    """
    stems = {prefix.rpartition(".")[0] for prefix in known.values()}
    numbered = all(prefix.rpartition(".")[2] == str(number) for number, prefix in known.items())
    if len(stems) > 1 or not numbered:
        return {}
    (stem,) = stems
    rest = (_path(op)[stem.count(".") + 1 :] for op in ops if module_path(op.location).startswith(f"{stem}."))
    numbers = {int(parts[0]) for parts in rest if parts and parts[0].isdigit()}
    return {number: f"{stem}.{number}" for number in numbers - known.keys() if number < layers}


def _path(op: ir.Operation) -> list[str]:
    return module_path(op.location).split(".")


def _common(paths: Iterable[list[str]]) -> list[str]:
    """Return the components that paths begin with alike."""
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return [part for part, *_ in common]

