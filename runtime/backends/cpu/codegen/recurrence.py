"""Gated linear recurrences (`RecurrentStep`, `RecurrentChunk`): states are f32, and a prompt is processed by products
over blocks of tokens.

The method depends on the shape of a state:

* [D, Dv] with Dv above 1: a unit has one head. A step visits the rows of its state twice if the delta rule reads the
  state, otherwise once; either way the state is loaded from memory and stored only once. A chunk is processed in blocks
  of `BLOCK` tokens (`RecurrentChunk` has the formulas), which read the state 2 D Dv times for 16 tokens, from a cache.
* [D, 1], as in Mamba: a unit has several heads, whose states are in the lanes of vectors, token by token.
* [1, 1], as in an RG-LRU: the lanes of a vector are heads, except in steps with pending inputs.

A step with pending inputs applies them as the steps of their tokens would have, so that a state has the same bits
whether its tokens came one by one or were drafted.

Decays of tokens are multiplied and never used as divisors, so a forgotten state is 0 and not 0 / 0. Before that its
numbers become subnormal, which makes a CPU ten times slower, so they are flushed to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sscc.ir.operations import RecurrentChunk, RecurrentStep
from sscc.ir.opspec import executes
from sscc.runtime.backends.cpu.codegen.approximations import decay as exp_of
from sscc.runtime.backends.cpu.codegen.features import LANES, Features
from sscc.runtime.backends.cpu.codegen.mlir import F32, Function, Value, vector
from sscc.runtime.backends.cpu.codegen.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.codegen.row_copies import (
    Meta,
    ScratchPieces,
    address,
    copy_row,
    load_element,
    transpose,
    zero_row,
)

BLOCK = 16
"""Tokens of a block: the lanes of a vector, so that the products of its keys are vectors."""
LINE = LANES * 4
CHANNELS = 32
"""Heads of a unit if a head's state is one column."""
ROWS, COLUMNS = 8, 2
"""Rows, and vectors of columns, whose sums are in registers at a time."""
TOKEN_COLUMNS = 4
"""Vectors of columns of one token whose sums are in registers at a time."""

Step = RecurrentStep | RecurrentChunk
Vector = vector(F32, LANES)


@executes(RecurrentStep)
def lower_recurrent_step(step: RecurrentStep, operands: dict[str, Meta], features: Features) -> Lowered:
    """Return one phase. Inactive slots keep their states and have zeros in `out`."""
    return _lowered(step, operands)


@executes(RecurrentChunk)
def lower_recurrent_chunk(step: RecurrentChunk, operands: dict[str, Meta], features: Features) -> Lowered:
    """Return one phase. Padding rows of `out` keep their bytes."""
    return _lowered(step, operands)


def _lowered(step: Step, operands: dict[str, Meta]) -> Lowered:
    recurrence = _Recurrence(step, operands)
    shape = recurrence.shape
    if shape == "matrix":
        return Lowered((_Matrices(recurrence).phase,))
    return Lowered(((_Columns(recurrence) if shape == "column" else _Numbers(recurrence)).phase,))


@dataclass(frozen=True)
class _Recurrence:
    """The sizes of a step, and its operands by the fields of its record."""

    step: Step
    operands: dict[str, Meta]

    @property
    def decodes(self) -> bool:
        return isinstance(self.step, RecurrentStep)

    def meta(self, field: str) -> Meta:
        return self.operands[getattr(self.step, field)]

    @property
    def slots(self) -> int:
        return self.meta("state")[0][0]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of a slot in a step."""
        return self.meta("query")[0][0] // self.slots

    @property
    def has_pending(self) -> bool:
        return isinstance(self.step, RecurrentStep) and bool(self.step.pending)

    @property
    def heads(self) -> int:
        return self.meta("state")[0][1]

    @property
    def depth(self) -> int:
        """Return D."""
        return self.meta("state")[0][2]

    @property
    def width(self) -> int:
        """Return Dv."""
        return self.meta("state")[0][3]

    @property
    def groups(self) -> int:
        return self.meta("key")[0][2]

    @property
    def chunk(self) -> int:
        return self.meta("key")[0][1]

    @property
    def by_channel(self) -> bool:
        """True if each number of a key has a decay of its own."""
        return self.meta("decay")[0][3] > 1 or bool(self.step.rate)

    @property
    def shape(self) -> Literal["matrix", "column", "number"]:
        if self.width > 1 or self.step.beta:
            return "matrix"
        along = [self.meta(field)[1][2] for field in ("value", "decay", "out")]
        plain = self.depth == 1 and self.groups == 1 and not self.step.rate and not self.has_pending
        return "number" if plain and along == [1, 1, 1] else "column"


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a token for one head, f32: addresses, and the distances of numbers in elements.

    Attributes:
        query: None for a token whose result is known.
        beta: None without the delta rule.
    """

    key: tuple[Value, int]
    query: tuple[Value, int] | None
    value: tuple[Value, int]
    decay: tuple[Value, int]
    beta: Value | None


@dataclass
class _Operands:
    """The operands of a step in a function, by the fields of its record."""

    recurrence: _Recurrence
    context: Context

    def __getitem__(self, field: str) -> Operand:
        return self.context.operands[getattr(self.recurrence.step, field)]

    def number(self, field: str) -> Value:
        """Return a scalar operand."""
        return self.context.scalars[getattr(self.recurrence.step, field)]

    @property
    def live(self) -> Value:
        """Return the number of tokens of the chunk that are not padding; may be negative."""
        return self.context.f.min(self.number("length") - self.number("start"), self.recurrence.chunk)

    def at(self, field: str, *indices: Value | int) -> Value:
        """Return an element, f32."""
        return self.context.f.load(address(self.context.f, self[field], *indices), F32)

    def group(self, head: Value) -> Value:
        return head // (self.recurrence.heads // self.recurrence.groups)

    def is_active(self, token: Value) -> Value:
        return load_element(self.context.f, self["active"], token).ne(0)

    def count(self, slot: Value) -> Value:
        """Return the number of active tokens of a slot, which come first."""
        f, tokens = self.context.f, self.recurrence.tokens
        count = f.constant(0)
        for token in range(tokens):
            count = f.select(self.is_active(slot * tokens + token), token + 1, count)
        return count

    def inputs(self, head: Value, *token: Value) -> _Inputs:
        """Return the inputs of a token of the step."""
        f = self.context.f

        def row(field: str, index: Value) -> tuple[Value, int]:
            return address(f, self[field], *token, index), self[field].strides[-1]

        group = self.group(head)
        beta = address(f, self["beta"], *token, head) if self.recurrence.step.beta else None
        return _Inputs(row("key", group), row("query", group), row("value", head), row("decay", head), beta)

    def pending(self, slot: Value, head: Value, position: Value) -> _Inputs:
        """Return the place of the inputs of a position among the pending ones."""
        f, rows = self.context.f, self["pending"]
        key = address(f, rows, slot, head, position % rows.shape[2])
        value = key + self.recurrence.depth * 4
        decay = value + self.recurrence.width * 4
        beta = key + (rows.shape[3] - 1) * 4 if self.recurrence.step.beta else None
        return _Inputs((key, 1), None, (value, 1), (decay, 1), beta)

    def keep(self, inputs: _Inputs, slot: Value, head: Value, position: Value) -> None:
        """Write the inputs of a token of the step to the pending ones."""
        f, kept, recurrence = self.context.f, self.pending(slot, head, position), self.recurrence
        _copy(f, *inputs.key, *kept.key, recurrence.depth)
        _copy(f, *inputs.value, *kept.value, recurrence.width)
        _copy(f, *inputs.decay, *kept.decay, recurrence.meta("decay")[0][3])
        if inputs.beta is not None and kept.beta is not None:
            f.store(f.load(inputs.beta, F32), kept.beta)

    def position(self, slot: Value) -> Value:
        """Return the position of the first token of a slot; 0 for an inactive slot."""
        return load_element(self.context.f, self["position"], slot * self.recurrence.tokens)

    def first_pending(self, slot: Value, head: Value, position: Value) -> Value:
        """Return the position of the first pending inputs; `position` if there are none."""
        f = self.context.f
        held = load_element(f, self["held"], slot, head)
        most = f.min(position, self["pending"].shape[2])
        return position - f.max(f.min(position - held, most), 0)

    def hold(self, slot: Value, head: Value, positions: Value) -> None:
        """Write the number of positions that a state includes."""
        self.context.f.store(positions, address(self.context.f, self["held"], slot, head))

    def row(self, field: str, target: Value, *indices: Value) -> None:
        """Copy a row of f32 numbers."""
        f, operand = self.context.f, self[field]
        _copy(f, address(f, operand, *indices), operand.strides[-1], target, 1, operand.shape[-1])

    def write(self, field: str, source: Value, *indices: Value) -> None:
        """Copy f32 numbers to a row."""
        f, operand = self.context.f, self[field]
        _copy(f, source, 1, address(f, operand, *indices), operand.strides[-1], operand.shape[-1])

    def decays(self, target: Value, padded: int, head: Value, inputs: _Inputs) -> None:
        """Write the factors, `padded` of them, by which a token's decays multiply the rows of a state."""
        f, recurrence = self.context.f, self.recurrence
        wide = recurrence.meta("decay")[0][3] > 1
        if wide:
            zero_row(f, target, "f32", padded)
            _copy(f, *inputs.decay, target, 1, recurrence.depth)
        one = None if wide else f.broadcast(f.load(inputs.decay[0], F32), LANES)
        for first in range(0, padded, LANES):
            exponent = f.load(target + first * 4, Vector) if one is None else one
            if recurrence.step.rate:
                exponent = exponent * self.rates(head, first)
            factor, count = exp_of(f, exponent), recurrence.depth - first
            if count < LANES:
                factor = f.select(f.first_lanes(count), factor, 0.0)  # a rate of 0 times -inf would be NaN
            f.store(factor, target + first * 4)

    def rates(self, head: Value, first: int) -> Value:
        """Return the rates of up to 16 channels of a head from `first` on, 0 behind the last one."""
        f, rate = self.context.f, self["rate"]
        count = min(self.recurrence.depth - first, LANES)
        if rate.strides[1] == 1 or count == 1:
            source = address(f, rate, head, first)
            return f.load(source, Vector) if count == LANES else f.load_masked(source, f.first_lanes(count), Vector)
        values = f.splat(0.0)
        for lane in range(count):
            values = f.insert(f.load(address(f, rate, head, first + lane), F32), values, lane)
        return values


def _copy(f: Function, source: Value, source_stride: int, target: Value, target_stride: int, count: int) -> None:
    """Copy `count` f32 numbers; strides are in elements."""
    if count == 1 or source_stride == target_stride == 1:
        copy_row(f, source, "f32", target, "f32", count)
        return
    with f.loop(0, count) as item:
        number = f.load(source + item.index * (source_stride * 4), F32)
        f.store(number, target + item.index * (target_stride * 4))


def _flushed(emit: Callable[[Context], None]) -> Callable[[Context], None]:
    def flushed(context: Context) -> None:
        with context.f.flushing():
            emit(context)

    return flushed


def _padded(count: int) -> int:
    return -(-count // LANES) * LANES


# ------------------------------------------------------------------------------------------- states that are matrices


class _Matrices:
    """States [D, Dv]; a unit has one head."""

    def __init__(self, recurrence: _Recurrence) -> None:
        self.r = recurrence
        self.depth, self.width = _padded(recurrence.depth), _padded(recurrence.width)
        rows, delta = (1 if recurrence.decodes else BLOCK), bool(recurrence.step.beta)
        key, value = rows * self.depth * 4, rows * self.width * 4
        pieces = {"key": key, "query": key, "factor": key, "value": value}
        if recurrence.decodes:
            pieces |= {"update": value}
            pieces |= {"state": recurrence.depth * recurrence.width * 4} if recurrence.tokens > 1 else {}
        else:
            pieces |= {"sides": 2 * key, "late": key, "left": self.depth * 4, "turned": key, "walked": key}
            pieces |= {"pairs": BLOCK * LINE, "weights": BLOCK * LINE, "read": 2 * value, "beta": LINE, "decay": LINE}
            pieces |= {"state": self.depth * self.width * 4}
        self.delta = delta
        self.scratch = ScratchPieces(**pieces)

    @property
    def phase(self) -> Phase:
        emit = self._steps if self.r.decodes else self._chunks
        return Phase(self.r.slots * self.r.heads, _flushed(emit), private_bytes=self.scratch.nbytes)

    # -- steps

    def _steps(self, context: Context) -> None:
        f, x, at = context.f, _Operands(self.r, context), self.scratch.at(context.private)
        zero, tokens = f.constant(0), self.r.tokens
        with f.loop(context.begin, context.end) as unit:
            slot, head = unit.index // self.r.heads, unit.index % self.r.heads
            active = x.is_active(slot * tokens)
            with f.when(active):
                self._slot(context, x, at, slot, head)
            with f.when(active ^ 1):
                self._nothing(x, at, slot, head, zero)

    def _nothing(self, x: _Operands, at: dict[str, Value], slot: Value, head: Value, first: Value) -> None:
        """Write zeros as the results of the tokens of a slot from number `first` on."""
        f, tokens = x.context.f, self.r.tokens
        zero_row(f, at["value"], "f32", self.width)
        with f.loop(first, tokens) as token:
            x.write("out", at["value"], slot * tokens + token.index, f.constant(0), head)

    def _slot(self, context: Context, x: _Operands, at: dict[str, Value], slot: Value, head: Value) -> None:
        """Compute the active tokens of a slot."""
        f, zero, tokens = context.f, context.f.constant(0), self.r.tokens
        state, position = address(f, x["state"], slot, head), zero
        if self.r.has_pending:
            position = x.position(slot)
            with f.loop(x.first_pending(slot, head, position), position) as earlier:
                self._token(context, x, at, head, x.pending(slot, head, earlier.index), state, state)
            x.hold(slot, head, position + int(tokens == 1))
        if tokens == 1:
            self._token(context, x, at, head, x.inputs(head, slot, zero), state, state)
            x.write("out", at["update"], slot, zero, head)
            return
        count = x.count(slot)
        with f.loop(0, count) as token:
            row = slot * tokens + token.index
            inputs = x.inputs(head, row, zero)
            x.keep(inputs, slot, head, position + token.index)
            source = f.select(token.index.eq(0), state, at["state"])
            self._token(context, x, at, head, inputs, source, at["state"])
            x.write("out", at["update"], row, zero, head)
        self._nothing(x, at, slot, head, count)

    def _token(
        self, context: Context, x: _Operands, at: dict[str, Value], head: Value, inputs: _Inputs, state: Value,
        target: Value,
    ) -> None:  # fmt: skip
        """Compute a token from `state`, and write the state after it to `target`. Its result is in "update", unless its
        inputs have no query."""
        f = context.f
        _copy(f, *inputs.key, at["key"], 1, self.r.depth)
        _copy(f, *inputs.value, at["value"], 1, self.r.width)
        if inputs.query is not None:
            _copy(f, *inputs.query, at["query"], 1, self.r.depth)
        if self.r.by_channel:
            x.decays(at["factor"], self.depth, head, inputs)
        else:
            factor = f.extract(exp_of(f, f.broadcast(f.load(inputs.decay[0], F32), LANES)), 0)
        beta = f.broadcast(f.load(inputs.beta, F32), LANES) if inputs.beta is not None else None

        def factor_of(row: Value) -> Value:
            return f.broadcast(f.load(at["factor"] + row * 4, F32) if self.r.by_channel else factor, LANES)

        for first in range(0, self.width, 8 * LANES):
            columns = list(range(first, min(first + 8 * LANES, self.width), LANES))
            rows, new_rows = (_StateRows(f, place, self.r.width, columns) for place in (state, target))
            updates = [f.load(at["value"] + column * 4, Vector) for column in columns]
            if beta is not None:
                with f.loop(0, self.r.depth, 1, [f.splat(0.0) for _ in columns]) as row:
                    weight = f.broadcast(f.load(at["key"] + row.index * 4, F32), LANES) * factor_of(row.index)
                    read = rows.load(row.index)
                    row.carry(*(f.fma(weight, s, known) for s, known in zip(read, row.state, strict=True)))
                updates = [beta * (value - known) for value, known in zip(updates, row.results, strict=True)]
            totals = [f.splat(0.0) for _ in columns] if inputs.query is not None else []
            with f.loop(0, self.r.depth, 1, totals) as row:
                key = f.broadcast(f.load(at["key"] + row.index * 4, F32), LANES)
                factors = factor_of(row.index)
                new = [f.fma(key, u, s * factors) for u, s in zip(updates, rows.load(row.index), strict=True)]
                new_rows.store(row.index, new)
                if totals:
                    query = f.broadcast(f.load(at["query"] + row.index * 4, F32), LANES)
                    row.carry(*(f.fma(query, s, total) for s, total in zip(new, row.state, strict=True)))
            if totals:
                for column, total in zip(columns, row.results, strict=True):
                    f.store(total, at["update"] + column * 4)

    # -- a chunk

    def _chunks(self, context: Context) -> None:
        f, x, at = context.f, _Operands(self.r, context), self.scratch.at(context.private)
        with f.loop(context.begin, context.end) as unit:
            head = unit.index
            state = address(f, x["state"], 0, head)
            stride = self.r.width * 4
            begins = x.number("start") <= 0
            zero_row(f, at["state"], "f32", self.depth * self.width)
            with f.when(begins ^ 1), f.loop(0, self.r.depth) as row:
                copy_row(f, state + row.index * stride, "f32", at["state"] + row.index * (self.width * 4), "f32",
                         self.r.width)  # fmt: skip
            live = x.live
            with f.loop(0, live, BLOCK) as first:
                self._block(context, x, at, head, first.index, f.min(live - first.index, BLOCK))
            with f.loop(0, self.r.depth) as row:
                copy_row(f, at["state"] + row.index * (self.width * 4), "f32", state + row.index * stride, "f32",
                         self.r.width)  # fmt: skip

    def _block(
        self, context: Context, x: _Operands, at: dict[str, Value], head: Value, first: Value, live: Value
    ) -> None:
        self._gather(context, x, at, head, first, live)
        self._weigh(context.f, at)
        self._pairs(context.f, at)
        self._read(context.f, at)
        if self.delta:
            self._solve(context.f, at)
        self._sum(context.f, at)
        self._update(context.f, at)
        with context.f.loop(0, live) as token:
            source = at["read"] + token.index * (self.width * 4)
            x.write("out", source, context.f.constant(0), first + token.index, head)

    def _gather(
        self, context: Context, x: _Operands, at: dict[str, Value], head: Value, first: Value, live: Value
    ) -> None:
        """Copy the operands of a block's tokens; those of padding are chosen so that they change nothing."""
        f, zero = context.f, context.f.constant(0)
        for name, size in (("key", self.depth), ("query", self.depth), ("value", self.width)):
            zero_row(f, at[name], "f32", BLOCK * size)
        f.store(f.splat(0.0), at["beta"])
        f.store(f.splat(0.0), at["decay"])
        if self.r.by_channel:
            with f.loop(0, BLOCK * self.depth, LANES) as place:
                f.store(f.splat(1.0), at["factor"] + place.index * 4)
        with f.loop(0, live) as token:
            here = first + token.index
            row = token.index * (self.depth * 4)
            x.row("key", at["key"] + row, zero, here, x.group(head))
            x.row("query", at["query"] + row, zero, here, x.group(head))
            x.row("value", at["value"] + token.index * (self.width * 4), zero, here, head)
            if self.delta:
                f.store(x.at("beta", zero, here, head), at["beta"] + token.index * 4)
            if self.r.by_channel:
                x.decays(at["factor"] + row, self.depth, head, x.inputs(head, zero, here))
            else:
                f.store(x.at("decay", zero, here, head), at["decay"] + token.index * 4)
        if not self.r.by_channel:
            f.store(exp_of(f, f.load(at["decay"], Vector)), at["decay"])

    def _factor(self, f: Function, at: dict[str, Value], token: int, place: Value) -> Value:
        """Return the factors of a token for the 16 rows from byte `place` of a row of keys on."""
        if self.r.by_channel:
            return f.load(at["factor"] + place + token * self.depth * 4, Vector)
        return f.broadcast(f.load(at["decay"] + token * 4, F32), LANES)

    def _weigh(self, f: Function, at: dict[str, Value]) -> None:
        """Weight keys and queries by the decays up to their tokens, and keys by the decays after them."""
        with f.loop(0, self.depth * 4, LINE) as place:
            passed = f.splat(1.0)
            for token in range(BLOCK):
                row = place.index + token * self.depth * 4
                passed = passed * self._factor(f, at, token, place.index)
                if self.delta:
                    f.store(f.load(at["key"] + row, Vector) * passed, at["sides"] + row + BLOCK * self.depth * 4)
                f.store(f.load(at["query"] + row, Vector) * passed, at["sides"] + row)
            f.store(passed, at["left"] + place.index)
            later = f.splat(1.0)
            for token in reversed(range(BLOCK)):
                row = place.index + token * self.depth * 4
                f.store(f.load(at["key"] + row, Vector) * later, at["late"] + row)
                later = later * self._factor(f, at, token, place.index)

    def _pairs(self, f: Function, at: dict[str, Value]) -> None:
        """Compute the products of keys ("pairs") and of queries ("weights") with keys, weighed by the decays between, a
        vector of the earlier tokens for each token."""
        turn = transpose(f)
        with f.loop(0, self.depth // LANES) as part:
            source = at["key"] + part.index * LINE
            turn(source, self.depth * 4, at["turned"] + part.index * (LANES * LINE), LINE)
        if self.r.by_channel:
            with f.loop(0, self.depth * LINE, LINE) as place:
                f.store(f.splat(0.0), at["walked"] + place.index)
        between = f.splat(0.0)
        lanes = f.lanes()
        sides = [("query", "weights"), *([("key", "pairs")] if self.delta else [])]
        for token in range(BLOCK):
            own = lanes.eq(token)
            row = token * self.depth * 4
            if not self.r.by_channel:
                between = f.select(own, 1.0, between * self._factor(f, at, token, f.constant(0)))
            with f.loop(0, self.depth, 1, [f.splat(0.0) for _ in sides]) as item:
                keys = f.load(at["turned"] + item.index * LINE, Vector)
                if self.r.by_channel:
                    factor = f.broadcast(f.load(at["factor"] + row + item.index * 4, F32), LANES)
                    keys = f.select(own, keys, f.load(at["walked"] + item.index * LINE, Vector) * factor)
                    f.store(keys, at["walked"] + item.index * LINE)
                numbers = [f.broadcast(f.load(at[side] + row + item.index * 4, F32), LANES) for side, _ in sides]
                item.carry(*(f.fma(number, keys, total) for number, total in zip(numbers, item.state, strict=True)))
            for (_, name), total in zip(sides, item.results, strict=True):
                weighed = total if self.r.by_channel else total * between
                f.store(f.select(lanes > token, 0.0, weighed), at[name] + token * LINE)

    def _read(self, f: Function, at: dict[str, Value]) -> None:
        """Multiply the weighted queries, followed by keys, with the state: "read"."""
        self._by_columns(f, COLUMNS, lambda place, vectors: self._read_columns(f, at, place, vectors))

    def _read_columns(self, f: Function, at: dict[str, Value], place: Value, vectors: int) -> None:
        with f.loop(0, BLOCK * (2 if self.delta else 1), ROWS) as first:
            sides = at["sides"] + first.index * (self.depth * 4)
            with f.loop(0, self.depth, 1, [f.splat(0.0)] * (ROWS * vectors)) as item:
                state = at["state"] + item.index * (self.width * 4) + place
                columns = [f.load(state + number * LINE, Vector) for number in range(vectors)]
                totals = []
                for row in range(ROWS):
                    number = f.broadcast(f.load(sides + item.index * 4 + row * self.depth * 4, F32), LANES)
                    own = item.state[row * vectors : (row + 1) * vectors]
                    totals += [f.fma(number, column, total) for column, total in zip(columns, own, strict=True)]
                item.carry(*totals)
            for row in range(ROWS):
                target = at["read"] + (first.index + row) * (self.width * 4) + place
                for column in range(vectors):
                    f.store(item.results[row * vectors + column], target + column * LINE)

    def _solve(self, f: Function, at: dict[str, Value]) -> None:
        """Turn values into updates: subtract from each token's value what the state and earlier updates predict for its
        key."""
        known = at["read"] + BLOCK * self.width * 4

        def solve(place: Value, vectors: int) -> None:
            columns = [place + number * LINE for number in range(vectors)]
            with f.loop(0, BLOCK) as token:
                row = at["value"] + token.index * (self.width * 4)
                read = known + token.index * (self.width * 4)
                begin = [f.load(row + c, Vector) - f.load(read + c, Vector) for c in columns]
                beta = f.broadcast(f.load(at["beta"] + token.index * 4, F32), LANES)
                rest = self._with_updates(f, at, "pairs", token.index, token.index, columns, begin, negated=True)
                for column, total in zip(columns, rest, strict=True):
                    f.store(beta * total, row + column)

        self._by_columns(f, TOKEN_COLUMNS, solve)

    def _sum(self, f: Function, at: dict[str, Value]) -> None:
        """Add the parts of queries that come from the updates to those that come from the state."""

        def add(place: Value, vectors: int) -> None:
            columns = [place + number * LINE for number in range(vectors)]
            with f.loop(0, BLOCK) as token:
                row = at["read"] + token.index * (self.width * 4)
                begin = [f.load(row + c, Vector) for c in columns]
                totals = self._with_updates(f, at, "weights", token.index, token.index + 1, columns, begin)
                for column, total in zip(columns, totals, strict=True):
                    f.store(total, row + column)

        self._by_columns(f, TOKEN_COLUMNS, add)

    def _with_updates(
        self, f: Function, at: dict[str, Value], weights: str, token: Value, count: Value, columns: Sequence[Value],
        begin: Sequence[Value], negated: bool = False,
    ) -> list[Value]:  # fmt: skip
        """Return `begin` plus the updates of the block's first `count` tokens, by the weights of one token."""
        with f.loop(0, count, 1, begin) as earlier:
            weight = f.load(at[weights] + token * LINE + earlier.index * 4, F32)
            weight = f.broadcast(0.0 - weight if negated else weight, LANES)
            update = at["value"] + earlier.index * (self.width * 4)
            pairs = zip(columns, earlier.state, strict=True)
            earlier.carry(*(f.fma(weight, f.load(update + column, Vector), total) for column, total in pairs))
        return earlier.results

    def _by_columns(self, f: Function, most: int, emit: Callable[[Value, int], None]) -> None:
        """Emit code for `most` vectors of columns at a time, then for the rest; `emit` takes the first byte in a row.
        """
        whole, rest = divmod(self.width // LANES, most)
        if whole:
            with f.loop(0, whole) as block:
                emit(block.index * (most * LINE), most)
        if rest:
            emit(f.constant(whole * most * LINE), rest)

    def _update(self, f: Function, at: dict[str, Value]) -> None:
        """Apply the decay of the block to the state, then add the updates of its tokens."""
        self._by_columns(f, COLUMNS, lambda place, vectors: self._update_columns(f, at, place, vectors))

    def _update_columns(self, f: Function, at: dict[str, Value], place: Value, vectors: int) -> None:
        with f.loop(0, self.depth, ROWS) as first:
            rows = [at["state"] + (first.index + row) * (self.width * 4) + place for row in range(ROWS)]
            begin = []
            for number, row in enumerate(rows):
                left = f.broadcast(f.load(at["left"] + (first.index + number) * 4, F32), LANES)
                begin += [f.load(row + column * LINE, Vector) * left for column in range(vectors)]
            with f.loop(0, BLOCK, 1, begin) as token:
                update = at["value"] + token.index * (self.width * 4) + place
                columns = [f.load(update + number * LINE, Vector) for number in range(vectors)]
                late = at["late"] + token.index * (self.depth * 4) + first.index * 4
                totals = []
                for number in range(ROWS):
                    key = f.broadcast(f.load(late + number * 4, F32), LANES)
                    own = token.state[number * vectors : (number + 1) * vectors]
                    totals += [f.fma(key, column, total) for column, total in zip(columns, own, strict=True)]
                token.carry(*totals)
            for number, row in enumerate(rows):
                for column in range(vectors):
                    f.store(token.results[number * vectors + column], row + column * LINE)


class _StateRows:
    """Some columns of the rows of a state in memory, as vectors."""

    def __init__(self, f: Function, state: Value, width: int, columns: Sequence[int]) -> None:
        self.f, self.state, self.width, self.columns = f, state, width, columns

    def load(self, row: Value) -> list[Value]:
        place = self.state + row * (self.width * 4)
        return [
            self.f.load(place + column * 4, Vector)
            if column + LANES <= self.width
            else self.f.load_masked(place + column * 4, self.f.first_lanes(self.width - column), Vector)
            for column in self.columns
        ]

    def store(self, row: Value, values: Sequence[Value]) -> None:
        place = self.state + row * (self.width * 4)
        for column, value in zip(self.columns, values, strict=True):
            if column + LANES <= self.width:
                self.f.store(value, place + column * 4)
            else:
                self.f.store_masked(value, place + column * 4, self.f.first_lanes(self.width - column))


# ---------------------------------------------------------------------------------- states that are columns or numbers


class _Columns:
    """States [D, 1]: the lanes are rows; a unit has `CHANNELS` heads of a slot."""

    def __init__(self, recurrence: _Recurrence) -> None:
        self.r = recurrence
        self.depth = _padded(recurrence.depth)
        self.blocks = -(-recurrence.heads // CHANNELS)
        self.scratch = ScratchPieces(key=self.depth * 4, query=self.depth * 4, factor=self.depth * 4)

    @property
    def phase(self) -> Phase:
        return Phase(self.r.slots * self.blocks, _flushed(self._emit), private_bytes=self.scratch.nbytes)

    def _emit(self, context: Context) -> None:
        f, x, at = context.f, _Operands(self.r, context), self.scratch.at(context.private)
        for piece in at.values():
            zero_row(f, piece, "f32", self.depth)
        with f.loop(context.begin, context.end) as unit:
            slot, first = unit.index // self.blocks, unit.index % self.blocks * CHANNELS
            with f.loop(first, f.min(first + CHANNELS, self.r.heads)) as head:
                self._head(context, x, at, slot, head.index)

    def _head(self, context: Context, x: _Operands, at: dict[str, Value], slot: Value, head: Value) -> None:
        f = context.f
        rows = _StateRows(f, address(f, x["state"], slot, head), self.r.depth, range(0, self.depth, LANES))
        old = rows.load(f.constant(0))
        if self.r.decodes:
            self._step(x, at, slot, head, rows, old)
            return
        begins = x.number("start") <= 0
        begin = [f.select(begins, f.splat(0.0), part) for part in old]
        with f.loop(0, x.live, 1, begin) as token:
            new, out = self._token(x, at, head, x.inputs(head, slot, token.index), token.state)
            f.store(out, address(f, x["out"], slot, token.index, head))
            token.carry(*new)
        rows.store(f.constant(0), token.results)

    def _step(
        self, x: _Operands, at: dict[str, Value], slot: Value, head: Value, rows: _StateRows, old: Sequence[Value]
    ) -> None:
        """Compute the active tokens of a slot, from the state `old`."""
        f, zero, tokens = x.context.f, x.context.f.constant(0), self.r.tokens
        active, position = x.is_active(slot * tokens), zero
        state = list(old)
        if self.r.has_pending:
            position = x.position(slot)
            first = x.first_pending(slot, head, position)
            with f.loop(f.select(active, first, position), position, 1, state) as earlier:
                new, _ = self._token(x, at, head, x.pending(slot, head, earlier.index), earlier.state)
                earlier.carry(*new)
            state = earlier.results
            with f.when(active):
                x.hold(slot, head, position + int(tokens == 1))
        if tokens == 1:
            new, out = self._token(x, at, head, x.inputs(head, slot, zero), state)
            f.store(f.select(active, out, f.constant(0.0, F32)), address(f, x["out"], slot, 0, head))
            rows.store(zero, [f.select(active, a, b) for a, b in zip(new, old, strict=True)])
            return
        rows.store(zero, state)
        count = x.count(slot)
        with f.loop(0, count, 1, state) as token:
            row = slot * tokens + token.index
            inputs = x.inputs(head, row, zero)
            x.keep(inputs, slot, head, position + token.index)
            new, out = self._token(x, at, head, inputs, token.state)
            f.store(out, address(f, x["out"], row, 0, head))
            token.carry(*new)
        with f.loop(count, tokens) as rest:
            f.store(f.constant(0.0, F32), address(f, x["out"], slot * tokens + rest.index, 0, head))

    def _token(
        self, x: _Operands, at: dict[str, Value], head: Value, inputs: _Inputs, state: Sequence[Value]
    ) -> tuple[list[Value], Value]:
        """Return the new state of a head, and its result, which is undefined if the inputs have no query."""
        f = x.context.f
        _copy(f, *inputs.key, at["key"], 1, self.r.depth)
        if inputs.query is not None:
            _copy(f, *inputs.query, at["query"], 1, self.r.depth)
        x.decays(at["factor"], self.depth, head, inputs)
        value = f.broadcast(f.load(inputs.value[0], F32), LANES)
        new, total = [], f.splat(0.0)
        for number, part in enumerate(state):
            key, query, factor = (f.load(at[name] + number * LINE, Vector) for name in ("key", "query", "factor"))
            new.append(f.fma(key, value, part * factor))
            total = f.fma(query, new[-1], total)
        return new, f.reduce("add", total)


class _Numbers:
    """States [1, 1] of heads with a key in common: the lanes are heads; a unit has one vector of heads of a slot."""

    def __init__(self, recurrence: _Recurrence) -> None:
        self.r = recurrence
        self.blocks = -(-recurrence.heads // LANES)

    @property
    def phase(self) -> Phase:
        return Phase(self.r.slots * self.blocks, _flushed(self._emit))

    def _emit(self, context: Context) -> None:
        f, x = context.f, _Operands(self.r, context)
        with f.loop(context.begin, context.end) as unit:
            slot, first = unit.index // self.blocks, unit.index % self.blocks * LANES
            mask = f.first_lanes(f.min(f.constant(self.r.heads) - first, LANES))
            state = address(f, x["state"], slot, first)
            old = f.load_masked(state, mask, Vector)
            if self.r.decodes:
                active = x.is_active(slot)
                new = self._token(x, mask, slot, f.constant(0), first, old, active)
                f.store_masked(f.select(active, new, old), state, mask)
            else:
                begin = f.select(x.number("start") <= 0, f.splat(0.0), old)
                with f.loop(0, x.live, 1, [begin]) as token:
                    token.carry(self._token(x, mask, slot, token.index, first, token.state[0]))
                f.store_masked(token.results[0], state, mask)

    def _token(
        self, x: _Operands, mask: Value, slot: Value, token: Value, first: Value, state: Value,
        active: Value | None = None,
    ) -> Value:  # fmt: skip
        """Return the new states of 16 heads; their results are written, zeros for an inactive token."""
        f = x.context.f
        value, decay = (
            f.load_masked(address(f, x[field], slot, token, first), mask, Vector) for field in ("value", "decay")
        )
        key, query = (f.broadcast(x.at(field, slot, token), LANES) for field in ("key", "query"))
        new = f.fma(key, value, state * exp_of(f, decay))
        result = new * query if active is None else f.select(active, new * query, 0.0)
        f.store_masked(result, address(f, x["out"], slot, token, first), mask)
        return new
