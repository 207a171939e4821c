"""build-entries: the two programs a caller can run, `prefill` and `decode`, as control around the layers.

What: `decode` runs embedding, layers and head once for all slots. `prefill` runs one sequence layer-major: for
each phase (embedding, every layer, head), for each chunk of the prompt; after the last chunk of a layer, that
layer is compressed into its slot of the decode cache. So the full-length K/V scratch exists for one layer at a
time, and trip counts follow the prompt's actual length. A cursor (phase, chunk) and a number of chunk steps make
prefill resumable: decode steps can run between two calls.

Before::

    func.func private @decode.embed(tensor<2x1xi64> {sscc.input = "ids"}, tensor<2x1xi64> {sscc.input = "positions"})
      -> (tensor<2x1x8xf32> {sscc.output = "hidden"})
    func.func private @decode.layer.0(tensor<2x1x8xf32> {sscc.input = "hidden"}, tensor<8xf32> {sscc.weight = "w"},
      tensor<2x1x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1x4x8xf32> {sscc.state = "v_cache"},
      tensor<2xi64> {sscc.input = "position"}, tensor<2xi64> {sscc.input = "valid_topk"},
      tensor<2xi1> {sscc.input = "active"}) -> (tensor<2x1x8xf32> {sscc.output = "hidden"},
      tensor<2x1x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1x4x8xf32> {sscc.state = "v_cache"})
    func.func private @decode.head(tensor<2x1x8xf32> {sscc.input = "hidden"})
      -> (tensor<2x1x9xf32> {sscc.output = "logits"})
    func.func private @prefill.embed(tensor<1x4xi64> {sscc.input = "ids"}, tensor<1x4xi64> {sscc.input = "positions"})
      -> (tensor<1x4x8xf32> {sscc.output = "hidden"})
    func.func private @prefill.layer.0(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<8xf32> {sscc.weight = "w"},
      tensor<1x1x8x8xf32> {sscc.state = "k_scratch"}, tensor<1x1x8x8xf32> {sscc.state = "v_scratch"},
      tensor<1x1x1x8xf32> {sscc.state = "observed"}, index {sscc.input = "start"}, index {sscc.input = "length"})
      -> (tensor<1x4x8xf32> {sscc.output = "hidden"}, tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
      tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"})
    func.func private @prefill.compress.0(tensor<1x1x8x8xf32> {sscc.state = "k_scratch"},
      tensor<1x1x8x8xf32> {sscc.state = "v_scratch"}, tensor<1x1x1x8xf32> {sscc.state = "observed"},
      tensor<2x1x4x8xf32> {sscc.state = "k_cache"}, tensor<2x1x4x8xf32> {sscc.state = "v_cache"},
      index {sscc.input = "slot"}, index {sscc.input = "length"}) -> (tensor<2x1x4x8xf32> {sscc.state = "k_cache"},
      tensor<2x1x4x8xf32> {sscc.state = "v_cache"}, tensor<1x1xi64> {sscc.state = "selected"})
    func.func private @prefill.head(tensor<1x4x8xf32> {sscc.input = "hidden"}, tensor<1xi64> {sscc.input = "last"})
      -> (tensor<1x1x9xf32> {sscc.output = "logits"})

After, of prefill the part of a layer::

    func.func public @prefill(%tokens: .. "tokens"}, %length: .. "length"}, %slot: .. "slot"}, %phase: .. "phase"}, ..
      %c = arith.constant 4 : index
      %chunks = arith.ceildivsi %length, %c : index
      ..
      %upto:5 = call @advance(%before#2, %before#3, %before#4, %one, %chunks) ..
      ..
      %done:4 = scf.for %chunk = %before#3 to %upto#0 step %step iter_args(%hidden = %embedded, ..
        %start = arith.muli %chunk, %size : index
        %h = tensor.extract_slice %hidden[0, %start, 0] [1, 4, 8] [1, 1, 1] ..
        %made:4 = func.call @prefill.layer.0(%h, ..
        %hidden1 = tensor.insert_slice %made#0 into %hidden[0, %start, 0] ..
        scf.yield %hidden1, %made#1, %made#2, %made#3 : ..
      }
      %cache:3 = scf.if %upto#1 -> ..
        %k = tensor.extract_slice %k_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
        %v = tensor.extract_slice %v_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
        %kept:3 = func.call @prefill.compress.0(%done#1, %done#2, %done#3, %k, %v, %slot, %length) ..
        ..
      } else {
        scf.yield %k_cache, %v_cache, %selected : ..
      }

After, the whole of decode::

    func.func public @decode(%token: .. "token"}, %position: .. "position"}, %valid_topk: .. "valid_topk"}, ..
      %positions = tensor.expand_shape %position ..
      %h = call @decode.embed(%token, %positions) ..
      %k = tensor.extract_slice %k_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
      %v = tensor.extract_slice %v_cache[0, 0, 0, 0, 0] [1, 2, 1, 4, 8] ..
      %made:3 = call @decode.layer.0(%h, %w, %k, %v, %position, %valid_topk, %active) ..
      %k_cache1 = tensor.insert_slice %made#1 into %k_cache[0, 0, 0, 0, 0] ..
      %v_cache1 = tensor.insert_slice %made#2 into %v_cache[0, 0, 0, 0, 0] ..
      %logits = call @decode.head(%made#0) ..
      %flat = tensor.collapse_shape %logits ..
      return %flat, %k_cache1, %v_cache1 : ..

When it does not apply: a table whose token axis cannot be told from the two captures is refused.

Preserves: the layer functions. States are threaded as values; every update is in place by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch_mlir import ir
from torch_mlir.dialects import arith, func, scf

from sscc.ir.builders import (
    Argument,
    Offset,
    arguments_of,
    extract_slice,
    index_constant,
    insert_slice,
    make_function,
    positions_tensor,
    reshape,
    results_of,
    tensor_type,
)
from sscc.ir.errors import UnsupportedError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import ProgramFacts, get_facts
from sscc.ir.rewriting import functions
from sscc.passes.base import Pass

ADVANCE = "advance"
CURSOR = ("phase", "chunk")


@dataclass(frozen=True)
class BuildEntries(Pass):
    name: ClassVar[str] = "build-entries"
    level: ClassVar[str] = "graph"

    def run(self, module: ir.Module) -> None:
        facts, geometry = get_facts(module)
        parts = {function.name.value: function for function in functions(module)}
        _build_advance(module)
        _Prefill(module, parts, facts, geometry).build()
        _Decode(module, parts, facts, geometry).build()


def _build_advance(module: ir.Module) -> None:
    """``advance(phase, chunk, steps, index, limit) -> (hi, done, phase, chunk, steps)``: how far phase `index`,
    which has `limit` chunks, gets from the cursor with the remaining steps."""
    index, flag = ir.IndexType.get(), ir.IntegerType.get_signless(1)
    names = ("phase", "chunk", "steps", "index", "limit")
    arguments = [Argument("input", name, index) for name in names]
    outputs = ("hi", index), ("done", flag), ("phase", index), ("chunk", index), ("steps", index)
    results = [Argument("output", name, type_) for name, type_ in outputs]
    location = ir.Location.name(ADVANCE)
    function = make_function(module, ADVANCE, arguments, results, location)
    phase, chunk, steps, this, limit = function.arguments
    with ir.InsertionPoint(function.entry_block), location:
        active = arith.CmpIOp(arith.CmpIPredicate.eq, phase, this).result
        reach = arith.MinSIOp(arith.AddIOp(chunk, steps).result, limit).result
        hi = arith.SelectOp(active, reach, chunk).result
        ended = arith.CmpIOp(arith.CmpIPredicate.eq, hi, limit).result
        done = arith.AndIOp(active, ended).result
        zero, one = index_constant(0), index_constant(1)
        next_phase = arith.AddIOp(phase, arith.SelectOp(done, one, zero).result).result
        next_chunk = arith.SelectOp(done, zero, hi).result
        left = arith.SubIOp(steps, arith.SubIOp(hi, chunk).result).result
        func.ReturnOp([hi, done, next_phase, next_chunk, left])


class _Entry:
    """What both entries share: parts by name, arguments found by (role, name), weights in order of first use."""

    name: str

    def __init__(self, module: ir.Module, parts: dict[str, Any], facts: ProgramFacts, geometry: Geometry) -> None:
        self.module, self.parts, self.facts, self.geometry = module, parts, facts, geometry
        self.values: dict[tuple[str, str], ir.Value] = {}

    def part(self, suffix: str) -> Any:
        return self.parts[f"{self.name}.{suffix}"]

    def weights(self) -> list[Argument]:
        found: dict[tuple[str, str], Argument] = {}
        for suffix in ("embed", *(f"layer.{layer}" for layer in range(self.facts.layers)), "head"):
            for argument in arguments_of(self.part(suffix)):
                if argument.role in ("weight", "constant"):
                    found.setdefault((argument.role, argument.name), argument)
        return list(found.values())

    def start(self, arguments: Sequence[Argument], results: Sequence[Argument]) -> Any:
        location = ir.Location.name(self.name)
        function = make_function(self.module, self.name, arguments, results, location)
        function.attributes["sym_visibility"] = ir.StringAttr.get("public")
        for argument, value in zip(arguments, function.arguments, strict=True):
            self.values[argument.role, argument.name] = value
        return function

    def call(self, function: Any, given: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Calls a part: inputs and states by name from `given`, weights from the entry's arguments."""
        operands = []
        for argument in arguments_of(function):
            stored = argument.role in ("weight", "constant")
            operands.append(self.values[argument.role, argument.name] if stored else given[argument.name])
        results = results_of(function)
        with function.location:
            call = func.CallOp([r.type for r in results], function.name.value, operands)
        return {result.name: value for result, value in zip(results, call.results, strict=True)}

    def stacked(self, name: str, shape: Sequence[int], element: ir.Type) -> Argument:
        return Argument("state", name, tensor_type([self.facts.layers, *shape], element))

    def layer_slice(self, stacked: ir.Value, layer: int) -> ir.Value:
        shape = list(stacked.type.shape)
        return extract_slice(stacked, [layer] + [0] * (len(shape) - 1), [1, *shape[1:]], drop=1)

    def put_layer(self, part: ir.Value, stacked: ir.Value, layer: int) -> ir.Value:
        return insert_slice(part, stacked, [layer] + [0] * (stacked.type.rank - 1))


class _Decode(_Entry):
    """One step of one token for every active slot."""

    name = "decode"

    def build(self) -> None:
        layer = {argument.name: argument for argument in arguments_of(self.part("layer.0"))}
        i64 = ir.IntegerType.get_signless(64)
        token = Argument("input", "token", tensor_type([self.facts.batch, 1], i64))
        states = [
            self.stacked(name, layer[name].type.shape, layer[name].type.element_type)
            for name in ("k_cache", "v_cache")
        ]
        logits = results_of(self.part("head"))[0].type
        out = Argument("output", "logits", tensor_type([self.facts.batch, logits.shape[-1]], logits.element_type))
        slots = [layer[name] for name in ("position", "valid_topk", "active")]
        function = self.start([token, *slots, *states, *self.weights()], [out, *states])
        with ir.InsertionPoint(function.entry_block), ir.Location.name(self.name):
            func.ReturnOp(self._body())

    def _body(self) -> list[ir.Value]:
        inputs = {name: self.values["input", name] for name in ("position", "valid_topk", "active")}
        caches = {name: self.values["state", name] for name in ("k_cache", "v_cache")}
        positions = reshape(inputs["position"], [self.facts.batch, 1])
        given = self.call(self.part("embed"), {"ids": self.values["input", "token"], "positions": positions})
        for layer in range(self.facts.layers):
            slices = {name: self.layer_slice(cache, layer) for name, cache in caches.items()}
            done = self.call(self.part(f"layer.{layer}"), {**given, **inputs, **slices})
            given["hidden"] = done["hidden"]
            caches = {name: self.put_layer(done[name], cache, layer) for name, cache in caches.items()}
        logits = self.call(self.part("head"), given)["logits"]
        return [reshape(logits, [logits.type.shape[0], logits.type.shape[2]]), *caches.values()]


class _Prefill(_Entry):
    """One sequence, layer-major over chunks, resumable."""

    name = "prefill"

    def build(self) -> None:
        self.rows = self.facts.scratch_rows(self.geometry)
        self.axes = self._token_axes()
        layer = {argument.name: argument for argument in arguments_of(self.part("layer.0"))}
        compress = {argument.name: argument for argument in arguments_of(self.part("compress.0"))}
        index, i64 = ir.IndexType.get(), ir.IntegerType.get_signless(64)
        scalars = [Argument("input", name, index) for name in ("length", "slot", *CURSOR, "steps")]
        states = [self._full_length(argument) for argument in results_of(self.part("embed"))]
        states += [layer[name] for name in ("k_scratch", "v_scratch", "observed")]
        states += [
            self.stacked(name, compress[name].type.shape, compress[name].type.element_type)
            for name in ("k_cache", "v_cache")
        ]
        states += [
            self.stacked(result.name, result.type.shape, result.type.element_type)
            for result in results_of(self.part("compress.0"))
            if result.name == "selected"
        ]
        logits = results_of(self.part("head"))[0].type
        out = Argument("output", "prefill_logits", tensor_type([1, logits.shape[-1]], logits.element_type))
        tokens = Argument("input", "tokens", tensor_type([1, self.rows], i64))
        cursor = [Argument("output", name, index) for name in CURSOR]
        function = self.start([tokens, *scalars, out, *states, *self.weights()], [out, *cursor, *states])
        self.state = {argument.name: self.values["state", argument.name] for argument in states}
        with ir.InsertionPoint(function.entry_block), ir.Location.name(self.name):
            func.ReturnOp(self._body())

    def _token_axes(self) -> dict[str, int]:
        """The axis along which each embedding result holds tokens: C in prefill where decode has 1."""
        decoded = {result.name: result.type.shape for result in results_of(self.parts["decode.embed"])}
        axes = {}
        for result in results_of(self.part("embed")):
            ours, theirs = list(result.type.shape), list(decoded.get(result.name, []))
            wanted = (self.facts.chunk, 1)
            found = [axis for axis, sizes in enumerate(zip(ours, theirs, strict=False)) if sizes == wanted]
            if len(found) != 1 or len(ours) != len(theirs):
                raise UnsupportedError(
                    f"the token axis of {result.name} cannot be told from its shapes {ours} (prefill) and {theirs} "
                    "(decode); try another --prefill-chunk"
                )
            axes[result.name] = found[0]
        return axes

    def _full_length(self, result: Argument) -> Argument:
        shape = list(result.type.shape)
        shape[self.axes[result.name]] = self.rows
        return Argument("state", result.name, tensor_type(shape, result.type.element_type))

    # ---------------------------------------------------------------------------------------------- phases

    def _body(self) -> list[ir.Value]:
        self.cursor = [self.values["input", name] for name in (*CURSOR, "steps")]
        chunk = index_constant(self.facts.chunk)
        self.chunks = arith.CeilDivSIOp(self.values["input", "length"], chunk).result
        self._phase(0, ["hidden", *self._tables()], self._embed)
        for layer in range(self.facts.layers):
            names = ["hidden", "k_scratch", "v_scratch", "observed"]
            done = self._phase(layer + 1, names, partial(self._layer, layer))
            self._when(done, self._cache_names(), partial(self._compress, layer))
        logits = self._head()
        return [logits, *self.cursor[:2], *self.state.values()]

    def _tables(self) -> list[str]:
        return [name for name in self.axes if name != "hidden"]

    def _cache_names(self) -> list[str]:
        return [name for name in ("k_cache", "v_cache", "selected") if name in self.state]

    def _advance(self, index: int, limit: ir.Value) -> tuple[ir.Value, ir.Value]:
        types = [ir.IndexType.get(), ir.IntegerType.get_signless(1)] + [ir.IndexType.get()] * 3
        call = func.CallOp(types, ADVANCE, [*self.cursor, index_constant(index), limit])
        hi, done, *self.cursor = call.results
        return hi, done

    def _phase(self, index: int, names: list[str], step: Callable[[ir.Value], None]) -> ir.Value:
        """Runs `step(start)` for the chunks this phase gets; it updates the states in `names`. Gives `done`."""
        lower = self.cursor[1]
        upper, done = self._advance(index, self.chunks)
        one, size = index_constant(1), index_constant(self.facts.chunk)
        loop = scf.ForOp(lower, upper, one, [self.state[name] for name in names])
        with ir.InsertionPoint(loop.body), self._carried(names, list(loop.inner_iter_args)):
            step(arith.MulIOp(loop.induction_variable, size).result)
            scf.YieldOp([self.state[name] for name in names])
        self.state.update(zip(names, loop.results, strict=True))
        return done

    def _when(self, condition: ir.Value, names: list[str], then: Callable[[], None]) -> None:
        """Runs `then`, which updates the states in `names`, where `condition` holds."""
        branch = scf.IfOp(condition, [self.state[name].type for name in names], has_else=True)
        with ir.InsertionPoint(branch.then_block), self._carried(names, [self.state[name] for name in names]):
            then()
            scf.YieldOp([self.state[name] for name in names])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([self.state[name] for name in names])
        self.state.update(zip(names, branch.results, strict=True))

    def _carried(self, names: list[str], inside: list[ir.Value]) -> Any:
        return _Scope(self.state, dict(zip(names, inside, strict=True)))

    def _read_chunk(self, name: str, start: ir.Value) -> ir.Value:
        shape = list(self.state[name].type.shape)
        offsets: list[Offset] = [0] * len(shape)
        offsets[self.axes[name]] = start
        shape[self.axes[name]] = self.facts.chunk
        return extract_slice(self.state[name], offsets, shape)

    def _write_chunk(self, name: str, value: ir.Value, start: ir.Value) -> None:
        offsets: list[Offset] = [0] * value.type.rank
        offsets[self.axes[name]] = start
        self.state[name] = insert_slice(value, self.state[name], offsets)

    def _embed(self, start: ir.Value) -> None:
        shape = [1, self.facts.chunk]
        last = arith.SubIOp(self.values["input", "length"], index_constant(1)).result
        ids = extract_slice(self.values["input", "tokens"], [0, start], shape)
        made = self.call(self.part("embed"), {"ids": ids, "positions": positions_tensor(shape, start, last)})
        for name, value in made.items():
            self._write_chunk(name, value, start)

    def _layer(self, layer: int, start: ir.Value) -> None:
        given = {name: self._read_chunk(name, start) for name in self.axes}
        scratch = {name: self.state[name] for name in ("k_scratch", "v_scratch", "observed")}
        length = self.values["input", "length"]
        made = self.call(self.part(f"layer.{layer}"), {**given, **scratch, "start": start, "length": length})
        self._write_chunk("hidden", made.pop("hidden"), start)
        self.state.update(made)

    def _compress(self, layer: int) -> None:
        scratch = {name: self.state[name] for name in ("k_scratch", "v_scratch", "observed")}
        slices = {name: self.layer_slice(self.state[name], layer) for name in ("k_cache", "v_cache")}
        scalars = {name: self.values["input", name] for name in ("slot", "length")}
        made = self.call(self.part(f"compress.{layer}"), {**scratch, **slices, **scalars})
        for name, value in made.items():
            self.state[name] = self.put_layer(value, self.state[name], layer)

    def _head(self) -> ir.Value:
        """The head runs once, on the chunk that holds the last token."""
        name = "prefill_logits"
        self.state[name] = self.values["output", name]
        _, done = self._advance(self.facts.layers + 1, index_constant(1))
        self._when(done, [name], self._last_token)
        return self.state.pop(name)

    def _last_token(self) -> None:
        size, one = index_constant(self.facts.chunk), index_constant(1)
        start = arith.MulIOp(arith.SubIOp(self.chunks, one).result, size).result
        last = arith.SubIOp(arith.SubIOp(self.values["input", "length"], one).result, start).result
        given = {"hidden": self._read_chunk("hidden", start), "last": positions_tensor([1], last, last)}
        logits = self.call(self.part("head"), given)["logits"]
        flat = reshape(logits, [1, logits.type.shape[2]])
        self.state["prefill_logits"] = insert_slice(flat, self.state["prefill_logits"], [0, 0])


class _Scope:
    """Replaces some entries of a dictionary inside a region and restores all of it after."""

    def __init__(self, table: dict[str, ir.Value], inside: dict[str, ir.Value]) -> None:
        self.table, self.inside = table, inside

    def __enter__(self) -> None:
        self.before = dict(self.table)
        self.table.update(self.inside)

    def __exit__(self, *_: object) -> None:
        self.table.clear()
        self.table.update(self.before)


def entries(module: ir.Module) -> Iterator[Any]:
    """The public functions of a module: its entries."""
    for function in functions(module):
        if function.visibility.value == "public":
            yield function
