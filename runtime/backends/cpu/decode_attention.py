"""Attention of a decode step: `DecodeAttention` and `IndexedAttention` as phases.

A unit is (slot, KV head, split): all query heads of the group over one part of the rows that the slot sees, so that a
cached row is read once. How many splits there are depends on shapes alone; where they begin, on the slot's number of
valid rows, so that the work is even at every context length. With more than one split, a second phase merges them in
order. The unit that has the new row writes it to the caches, encoded where they are, and nobody else reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sscc.ir.errors import InputError
from sscc.ir.schedule import DTYPE_BYTES, CachedAttention, DecodeAttention, IndexedAttention
from sscc.runtime.backends.cpu import decode_attention_block as block_kernels
from sscc.runtime.backends.cpu.approximations import decay
from sscc.runtime.backends.cpu.decode_attention_block import NEGATIVE_INFINITY, Block, Result, Scratch
from sscc.runtime.backends.cpu.decode_attention_chunks import Rows, in_order, store_row
from sscc.runtime.backends.cpu.encoded_rows import check_encoded, encode_row
from sscc.runtime.backends.cpu.features import LANES, Features
from sscc.runtime.backends.cpu.figures import ADDRESSES, ATTENTION_UNITS, LINE, SPLIT_ROWS
from sscc.runtime.backends.cpu.indices import report_index
from sscc.runtime.backends.cpu.mlir import F32, I8, I64, Function, Value, vector
from sscc.runtime.backends.cpu.phases import Context, Lowered, Operand, Phase
from sscc.runtime.backends.cpu.row_copies import copy_row

Meta = tuple[tuple[int, ...], tuple[int, ...], str]
"""Shape, strides in elements, dtype."""



@dataclass(frozen=True)
class Attention:
    """The sizes of a decode step's attention.

    Attributes:
        slots, kv_heads: B and Hkv.
        rows: R, those that a slot may see.
        block: what a unit does with a block of rows.
        splits: parts of a slot's rows.
    """

    slots: int
    kv_heads: int
    rows: int
    block: Block

    @property
    def splits(self) -> int:
        wanted = -(-ATTENTION_UNITS // (self.slots * self.kv_heads))
        return max(1, min(wanted, self.rows // SPLIT_ROWS))

    @property
    def units(self) -> int:
        return self.slots * self.kv_heads * self.splits

    @classmethod
    def of(
        cls, step: CachedAttention | DecodeAttention | IndexedAttention, meta: Mapping[str, Meta], features: Features
    ) -> Attention:
        """Raises InputError where a row of an operand is not contiguous, or neither f32 nor bf16, nor, of keys and
        values other than an `IndexedAttention`'s, encoded."""
        for name in (step.query, step.out):
            check_rows(step.kind, name, meta[name])
        (slots, heads, _, depth), _, query = meta[step.query]
        width = meta[step.out][0][3]
        for name, size in ((step.key, depth), (step.value, width)):
            check_rows(step.kind, name, meta[name], 0 if isinstance(step, IndexedAttention) else size)
        (_, kv_heads, rows, _), _, cache = meta[step.key]
        values = meta[step.value][2]
        dot = features.bf16_dot and query == cache == "bf16"
        block = Block(Rows(depth, cache, dot), Rows(width, values), heads // kv_heads, features)
        return cls(slots, kv_heads, rows, block)


def check_rows(kind: str, name: str, meta: Meta, encoded: int = 0) -> None:
    """Raises InputError unless an operand is f32 or bf16 and its last axis has stride 1.

    Args:
        encoded: where it is not 0, encoded rows of this many numbers are taken too.
    """
    shape, strides, dtype = meta
    if encoded and dtype == "i8":
        check_encoded(kind, name, meta, encoded)
        return
    if dtype not in ("f32", "bf16"):
        raise InputError(f"{kind} takes rows of f32 or bf16, but {name!r} is {dtype}")
    if shape[-1] > 1 and strides[-1] != 1:
        raise InputError(f"{kind} reads and writes rows at stride 1, but {name!r} has strides {list(strides)}")


# ---------------------------------------------------------------------------------------------------- lowering


def lower_decode_attention(step: DecodeAttention, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """The step on operands of static shapes and strides, named as in the step.

    A negative position of an active slot is reported. Raises InputError where a row is not contiguous, or where
    keys, values and caches are of dtypes that do not go together.
    """
    attention = Attention.of(step, meta, features)
    sides = (step.new_key, step.k_cache, attention.block.keys), (step.new_value, step.v_cache, attention.block.values)
    for new, cache, rows in sides:
        check_rows(step.kind, new, meta[new])
        check_rows(step.kind, cache, meta[cache], rows.size)
    _check_caches(step, meta)
    return _lowered(attention, step, lambda unit: _decode_rows(unit, step))


def _check_caches(step: DecodeAttention, meta: Mapping[str, Meta]) -> None:
    names = (step.key, step.k_cache, step.value, step.v_cache)
    key, k_cache, value, v_cache = (meta[name][2] for name in names)
    if (key, value) != (k_cache, v_cache) or (key == "i8") != (value == "i8"):
        found = ", ".join(f"{name!r} is {meta[name][2]}" for name in dict.fromkeys(names))
        raise InputError(
            f"{step.kind} takes rows in the dtype of their cache, and keys and values both encoded (i8) or neither, "
            f"but {found}"
        )


def lower_indexed_attention(step: IndexedAttention, meta: Mapping[str, Meta], features: Features) -> Lowered:
    """As `lower_decode_attention`; an index beyond the prompt gives a row of zeros, as a negative one does."""
    attention = Attention.of(step, meta, features)
    for name in (step.new_key, step.new_value, step.k_cache, step.v_cache, step.k_prompt, step.v_prompt):
        check_rows(step.kind, name, meta[name])
    topk = meta[step.selected][0][2]
    attention = replace(attention, rows=attention.rows + topk, block=replace(attention.block, scattered=True))
    return _lowered(attention, step, lambda unit: _indexed_rows(unit, step, topk))


def _lowered(
    attention: Attention, step: DecodeAttention | IndexedAttention, rows: Callable[[Unit], UnitRows]
) -> Lowered:
    def emit(context: Context) -> None:
        with context.f.loop(context.begin, context.end) as loop:
            unit = Unit.of(attention, context, loop.index)
            found = rows(unit)
            _write_new_row(unit, step, found)
            attend(unit, context.operands[step.query], found, step.scale)
            if attention.splits == 1:
                write_result(unit, context.operands[step.out])

    zeros = max(attention.block.keys.nbytes, attention.block.values.nbytes) + LINE
    return with_merge(attention, step.out, emit, zeros)


def with_merge(attention: Attention, out: str, emit: Callable[[Context], None], extra_bytes: int = 0) -> Lowered:
    """The phase `emit` of `attention.units` units, and where there are splits, the one that merges them."""
    block = attention.block
    if attention.splits == 1:
        return Lowered([Phase(attention.units, emit, block.scratch_bytes + block.result_bytes + extra_bytes)])
    merge = Phase(attention.slots * attention.kv_heads, lambda context: _merge(context, attention, out),
                  attention.splits * LINE + block.values.padded_bytes)  # fmt: skip
    first = Phase(attention.units, emit, block.scratch_bytes + extra_bytes)
    return Lowered([first, merge], attention.units * block.result_bytes)


# ------------------------------------------------------------------------------------------------------- units


@dataclass(frozen=True)
class Unit:
    """One unit under construction: where it is, and its memory."""

    attention: Attention
    context: Context
    slot: Value
    head: Value
    split: Value
    scratch: Scratch
    result: Result
    extra: Value

    @classmethod
    def of(cls, attention: Attention, context: Context, number: Value) -> Unit:
        block, splits = attention.block, attention.splits
        pair = number // splits
        extra = context.private + block.scratch_bytes
        result = extra if splits == 1 else context.shared + number * block.result_bytes
        return cls(
            attention,
            context,
            pair // attention.kv_heads,
            pair % attention.kv_heads,
            number % splits,
            Scratch(block, context.private),
            Result(block, result),
            extra + block.result_bytes if splits == 1 else extra,
        )

    def at(self, operand: str | Operand, head: Value | None = None) -> Value:
        """The first row of the unit's slot and KV head (or another head)."""
        o = self.context.operands[operand] if isinstance(operand, str) else operand
        index = self.slot * o.strides[0] + (self.head if head is None else head) * o.strides[1]
        return o.pointer + index * DTYPE_BYTES[o.dtype]

    def row_bytes(self, operand: str) -> int:
        """From one row of an operand to the next."""
        o = self.context.operands[operand]
        return o.strides[2] * DTYPE_BYTES[o.dtype]

    def of_slot(self, operand: str) -> Value:
        """The slot's integer, as i64."""
        o, f = self.context.operands[operand], self.context.f
        at = o.pointer + self.slot * (o.strides[0] * DTYPE_BYTES[o.dtype])
        return f.load(at, I64) if o.dtype == "i64" else f.cast("arith.extui", f.load(at, I8), I64)


@dataclass(frozen=True)
class UnitRows:
    """The rows of a unit: numbers first .. first + count - 1 of the rows that its slot sees.

    `keys` and `values` give the address, as i64, of the row of a number; with `lanes` > 1 of that many at once. Row
    number `new` is the new row, and `has_new` whether it is among the unit's.
    """

    first: Value
    count: Value
    keys: Callable[[Value], Value]
    values: Callable[[Value], Value]
    lanes: int
    new: Value
    has_new: Value


def _visible(unit: Unit, step: DecodeAttention | IndexedAttention, topk: int) -> tuple[Value, Value, Value, Value]:
    """The unit's first row and number of rows, the new row, and how many of the slot's rows come before SR."""
    f, size = unit.context.f, step.sink + step.recent
    position = unit.of_slot(step.position)
    report_index(f, unit.of_slot(step.active).ne(0) & (position < 0))
    seen = f.select(unit.of_slot(step.active).ne(0), f.max(position + 1, 0), 0)
    written = f.min(seen, size)
    chosen = f.min(f.max(unit.of_slot(step.prompt_len) - size, 0), topk)
    total = written + f.select(seen.eq(0), 0, chosen)
    part = f.ceildiv(f.ceildiv(total, unit.attention.splits), LANES) * LANES
    first = f.min(unit.split * part, total)
    row = f.select(position < step.sink, position, f.max(position - step.sink, 0) % step.recent + step.sink)
    return first, f.min(part, total - first), row, written


def _decode_rows(unit: Unit, step: DecodeAttention) -> UnitRows:
    f, size = unit.context.f, step.sink + step.recent
    first, count, row, written = _visible(unit, step, unit.attention.rows - size)

    def rows_of(source: str, cache: str) -> Callable[[Value], Value]:
        base, fresh = address(f, unit.at(source)), address(f, unit.at(cache))

        def at(number: Value) -> Value:
            r = f.select(number < written, number, number + (size - written))
            usual = r * unit.row_bytes(source) + base
            return usual if source == cache else f.select(r.eq(row), r * unit.row_bytes(cache) + fresh, usual)

        return at

    keys, values = rows_of(step.key, step.k_cache), rows_of(step.value, step.v_cache)
    return UnitRows(first, count, keys, values, ADDRESSES, row, _between(first, row, count))


def _indexed_rows(unit: Unit, step: IndexedAttention, topk: int) -> UnitRows:
    f = unit.context.f
    first, count, row, written = _visible(unit, step, topk)
    zeros = address(f, _zero_row(unit))
    selected = unit.at(step.selected)

    def rows_of(source: str, cache: str, prompt: str) -> Callable[[Value], Value]:
        base, fresh, far = (address(f, unit.at(name)) for name in (source, cache, prompt))
        length = unit.context.operands[prompt].shape[2]

        def at(number: Value) -> Value:
            near = number * unit.row_bytes(source) + base
            if source != cache:
                near = f.select(number.eq(row), number * unit.row_bytes(cache) + fresh, near)
            if topk == 0:
                return near
            index = f.load(selected + f.max(number - written, 0) * unit.row_bytes(step.selected), I64)
            report_index(f, (number >= written) & (index >= length))
            exists = (index >= 0) & (index < length)
            there = f.select(exists, index * unit.row_bytes(prompt) + far, zeros)
            return f.select(number < written, near, there)

        return at

    keys, values = rows_of(step.key, step.k_cache, step.k_prompt), rows_of(step.value, step.v_cache, step.v_prompt)
    return UnitRows(first, count, keys, values, 1, row, _between(first, row, count))


def _between(first: Value, row: Value, count: Value) -> Value:
    return (row >= first) & (row < first + count)


def _zero_row(unit: Unit) -> Value:
    f, block = unit.context.f, unit.attention.block
    with f.loop(0, max(block.keys.nbytes, block.values.nbytes), LINE) as loop:
        f.store(f.splat(0.0), unit.extra + loop.index)
    return unit.extra


def address(f: Function, pointer: Value) -> Value:
    """A pointer as an i64."""
    return f.op("llvm.ptrtoint", [pointer], I64, signature="!llvm.ptr to i64")


# --------------------------------------------------------------------------------------------------- attention


def begin_unit(unit: Unit, query: Operand) -> None:
    """Fetches the group's queries and clears the result."""
    f, block = unit.context.f, unit.attention.block
    heads = [unit.head * block.group + g for g in range(block.group)]
    block_kernels.put_queries(f, block, [(unit.at(query, head), query.dtype) for head in heads], unit.scratch)
    unit.result.clear(f)


def attend_block(unit: Unit, count: Value, scale: float, then: Callable[[], None] | None = None) -> None:
    """Adds the first `count` rows (1 .. `Block.rows`) of the lists; `then` emits what to do once all keys are read."""
    f, block, scratch = unit.context.f, unit.attention.block, unit.scratch
    for tile in range(len(block.tiles)):
        block_kernels.scores(f, block, tile, count, scratch)
        block_kernels.weights(f, block, tile, count, scale, scratch, unit.result)
        if then is not None and tile == len(block.tiles) - 1:
            then()
        block_kernels.values(f, block, tile, count, scratch, unit.result)


def attend(unit: Unit, query: Operand, rows: UnitRows, scale: float) -> None:
    """Attention of the unit's group over its rows, into `unit.result`. The next block's keys are listed, and asked
    for, while the values of this one are summed."""
    f, scratch, size = unit.context.f, unit.scratch, unit.attention.block.rows
    begin_unit(unit, query)
    with f.when(rows.count > 0):
        _list_rows(f, rows, rows.keys, scratch.keys, rows.first, size)
    with f.loop(0, rows.count, size) as loop:
        start = rows.first + loop.index
        _list_rows(f, rows, rows.values, scratch.values, start, size)
        count = f.min(rows.count - loop.index, size)
        attend_block(unit, count, scale, lambda: _list_rows(f, rows, rows.keys, scratch.keys, start + size, size))


def _list_rows(
    f: Function, rows: UnitRows, address_of: Callable[[Value], Value], entries: Value, start: Value, size: int
) -> None:
    """Lists the addresses of `size` rows from number `start` on, the unit's last one again where it has no more."""
    last = rows.first + rows.count - 1
    with f.loop(0, size, rows.lanes) as loop:
        number = start + loop.index
        if rows.lanes > 1:
            number = f.broadcast(number, rows.lanes) + f.lanes(rows.lanes, I64)
        f.store(address_of(f.min(number, f.like(last, number))), entries + loop.index * 8)


def _write_new_row(unit: Unit, step: DecodeAttention | IndexedAttention, rows: UnitRows) -> None:
    f = unit.context.f
    with f.when(rows.has_new):
        for new, cache in ((step.new_key, step.k_cache), (step.new_value, step.v_cache)):
            source, to = unit.context.operands[new], unit.context.operands[cache].dtype
            target = unit.at(cache) + rows.new * unit.row_bytes(cache)
            if to == "i8":
                encode_row(f, unit.at(new), source.dtype, target, source.shape[3])
            else:
                copy_row(f, unit.at(new), source.dtype, target, to, source.shape[3])


# ----------------------------------------------------------------------------------------------------- results


def write_result(unit: Unit, out: Operand) -> None:
    """Divides the weighted values by the sums and writes the group's rows; zeros where nothing was seen."""
    f, block, result = unit.context.f, unit.attention.block, unit.result
    for tile, (first, count) in enumerate(block.tiles):
        sums = f.load(result.state(tile) + LINE, vector(F32, LANES))
        divisors = f.select(sums.eq(0.0), 1.0, sums)
        for head in range(first, first + count):
            divisor = f.broadcast(f.extract(divisors, head - first), LANES)
            target = unit.at(out, unit.head * block.group + head)
            _write_head(f, block.values, result.head(head), divisor, target, out)


def _write_head(f: Function, rows: Rows, source: Value, divisor: Value, target: Value, out: Operand) -> None:
    for chunk in range(rows.chunks):
        at = source + chunk * rows.vectors * LINE
        parts = [f.load(at + i * LINE, vector(F32, LANES)) / divisor for i in range(rows.vectors)]
        start = chunk * rows.elements
        store_row(
            f,
            in_order(f, rows, parts),
            target + start * DTYPE_BYTES[out.dtype],
            out.dtype,
            rows.size - start,
        )


def _merge(context: Context, attention: Attention, out: str) -> None:
    """For each slot and KV head: the splits' results, weighted by exp of their maxima, in order."""
    f, block, splits = context.f, attention.block, attention.splits
    operand, lanes = context.operands[out], vector(F32, LANES)
    factors, total = context.private, context.private + splits * LINE
    with f.loop(context.begin, context.end) as loop:
        slot, kv_head = loop.index // attention.kv_heads, loop.index % attention.kv_heads
        parts = context.shared + loop.index * (splits * block.result_bytes)
        for tile, (first, count) in enumerate(block.tiles):
            state = Result(block, parts).state(tile)
            with f.loop(0, splits, 1, [f.splat(NEGATIVE_INFINITY)]) as peaks:
                peaks.carry(
                    block_kernels.larger(f, f.load(state + peaks.index * block.result_bytes, lanes), peaks.state[0])
                )
            floor = f.select(peaks.results[0].eq(NEGATIVE_INFINITY), 0.0, peaks.results[0])
            with f.loop(0, splits, 1, [f.splat(0.0)]) as sums:
                at = state + sums.index * block.result_bytes
                factor = decay(f, f.load(at, lanes) - floor)
                f.store(factor, factors + sums.index * LINE)
                sums.carry(f.fma(f.load(at + LINE, lanes), factor, sums.state[0]))
            divisors = f.select(sums.results[0].eq(0.0), 1.0, sums.results[0])
            for head in range(first, first + count):
                _merge_head(f, block, splits, Result(block, parts).head(head), factors + (head - first) * 4, total)
                index = slot * operand.strides[0] + (kv_head * block.group + head) * operand.strides[1]
                target = operand.pointer + index * DTYPE_BYTES[operand.dtype]
                divisor = f.broadcast(f.extract(divisors, head - first), LANES)
                _write_head(f, block.values, total, divisor, target, operand)


def _merge_head(f: Function, block: Block, splits: int, parts: Value, factors: Value, total: Value) -> None:
    """total = sum over splits of factor * part, of one head."""
    with f.loop(0, block.values.padded_bytes, LINE) as column:
        with f.loop(0, splits, 1, [f.splat(0.0)]) as split:
            part = f.load(parts + split.index * block.result_bytes + column.index, vector(F32, LANES))
            factor = f.broadcast(f.load(factors + split.index * LINE, F32), LANES)
            split.carry(f.fma(part, factor, split.state[0]))
        f.store(split.results[0], total + column.index)
