"""Builder of MLIR text: a module of functions on raw pointers, in the dialects scf, arith, math, vector and llvm.

Kernels are written with Python's operators on `Value`, so that they resemble formulas::

    with f.loop(0, count, 1, [f.splat(0.0)]) as loop:
        w = f.load(weights + loop.index * (16 * 4), vector(F32, 16))
        loop.carry(f.fma(w, x, loop.state[0]))
    (total,) = loop.results

All integers are i64. Pointers count bytes: ``pointer + 12`` is 12 bytes further. Nothing here knows about schedules.
The text is the complete module: it can be printed, compared, and compiled by `machine_code.py`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, ParamSpec

I1, I8, I16, I32, I64, PTR = "i1", "i8", "i16", "i32", "i64", "!llvm.ptr"
BF16, F16, F32, F64 = "bf16", "f16", "f32", "f64"

TILE_ROW = 64
"""Bytes of a row of a tile register, as used here."""

FLUSH_TO_ZERO = 0x8040
"""Bits of MXCSR that flush subnormal operands and results to 0."""

INLINED_LINES = 40
"""Limit on inlined functions, in lines. LLVM would otherwise copy kernels into every body that calls them."""

_ROLLED = "#llvm.loop_annotation<unroll = <disable = true>>"
"""Annotation of every loop that keeps LLVM from unrolling it, which would take half of the compile time. Loops that
should be unrolled are emitted unrolled."""


def vector(element: str, lanes: int) -> str:
    """Return a vector type."""
    return f"vector<{lanes}x{element}>"


def element_of(type: str) -> str:
    """Return the element type of a vector type; a scalar type is its own element type."""
    return type[7:-1].split("x", 1)[1] if type.startswith("vector<") else type


def lanes_of(type: str) -> int:
    """Return the lanes of a vector type; 0 for a scalar type."""
    return int(type[7:-1].split("x", 1)[0]) if type.startswith("vector<") else 0


def bits_of(type: str) -> int:
    """Return the bits of an element type."""
    return 64 if type == PTR else int("".join(c for c in type if c.isdigit()))


def with_element(type: str, element: str) -> str:
    """Return a type with the same number of lanes and another element type."""
    return vector(element, lanes_of(type)) if lanes_of(type) else element


def is_float(type: str) -> bool:
    return element_of(type) in (BF16, F16, F32, F64)


@dataclass(frozen=True)
class Value:
    """An SSA value of a function under construction. Operators emit arithmetic; numbers become constants."""

    name: str
    type: str
    owner: Function

    def __add__(self, other: Value | int | float) -> Value:
        return self.owner.add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Value | int | float) -> Value:
        return self.owner.sub(self, other)

    def __rsub__(self, other: int | float) -> Value:
        return self.owner.sub(self.owner.like(other, self), self)

    def __mul__(self, other: Value | int | float) -> Value:
        return self.owner.mul(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | int | float) -> Value:
        return self.owner.binary("arith.divf", self, other)

    def __floordiv__(self, other: Value | int) -> Value:
        """Return the quotient of integers, which must not be negative."""
        return self.owner.binary("arith.divui", self, other)

    def __mod__(self, other: Value | int) -> Value:
        """Return the remainder of integers, which must not be negative."""
        return self.owner.binary("arith.remui", self, other)

    def __and__(self, other: Value | int) -> Value:
        return self.owner.binary("arith.andi", self, other)

    def __or__(self, other: Value | int) -> Value:
        return self.owner.binary("arith.ori", self, other)

    def __xor__(self, other: Value | int) -> Value:
        return self.owner.binary("arith.xori", self, other)

    def __lshift__(self, other: Value | int) -> Value:
        return self.owner.binary("arith.shli", self, other)

    def __rshift__(self, other: Value | int) -> Value:
        """Shift right logically: zeros are shifted in."""
        return self.owner.binary("arith.shrui", self, other)

    def __neg__(self) -> Value:
        return self.owner.op("arith.negf", [self], self.type) if is_float(self.type) else 0 - self

    def __lt__(self, other: Value | int | float) -> Value:
        return self.owner.compare("lt", self, other)

    def __le__(self, other: Value | int | float) -> Value:
        return self.owner.compare("le", self, other)

    def __gt__(self, other: Value | int | float) -> Value:
        return self.owner.compare("gt", self, other)

    def __ge__(self, other: Value | int | float) -> Value:
        return self.owner.compare("ge", self, other)

    def eq(self, other: Value | int | float) -> Value:
        return self.owner.compare("eq", self, other)

    def ne(self, other: Value | int | float) -> Value:
        return self.owner.compare("ne", self, other)


@dataclass
class Loop:
    """A loop under construction: `index`, the `state` carried into an iteration, and after the loop its `results`."""

    index: Value
    state: list[Value]
    results: list[Value] = field(default_factory=list)
    _next: list[Value] | None = None

    def carry(self, *values: Value) -> None:
        """Set the state of the next iteration; to be called once, at the end of the loop's block."""
        self._next = list(values)


class Module:
    """Functions by name. A kernel that several bodies need is emitted once, and later users find it by its name."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}

    def function(
        self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str] = (), *, exported: bool = False
    ) -> Function:
        """Begin a function; its body is everything that is emitted into it before `returns`."""
        return self._begin(name, params, results, exported)

    def _begin(self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], exported: bool) -> Function:
        if name in self._functions:
            raise ValueError(f"the module has a function {name!r} already")
        self._functions[name] = self._make(name, params, results, exported)
        return self._functions[name]

    def _make(self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], exported: bool) -> Function:
        return Function(self, name, params, results, exported)

    def has(self, name: str) -> bool:
        return name in self._functions

    def get(self, name: str) -> Function:
        return self._functions[name]

    @property
    def exported(self) -> list[str]:
        """Return the names of the functions that callers of the module see."""
        return [name for name, function in self._functions.items() if function.exported]

    def text(self, table: str | None = None) -> str:
        """Return the module as MLIR text; with `table`, it has a function of that name that writes the addresses of the
        exported functions into an array."""
        functions = [f.text() for f in self._functions.values()]
        if table is not None:
            functions.append(_table(table, [f for f in self._functions.values() if f.exported]))
        return "module {\n" + "\n".join(functions) + "\n}\n"


class Function:
    """A function under construction, and the builder that emits into it.

    Attributes:
        params: parameters by name.
        inlined: True if LLVM may inline it if it is short.
    """

    def __init__(
        self, module: Module, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], exported: bool
    ) -> None:
        self.module = module
        self.name = name
        self.results = list(results)
        self.exported = exported
        self.inlined = not exported
        self.types = [type for _, type in params]
        self.params = {name: Value(f"%{name}", type, self) for name, type in params}
        self._lines: list[str] = []
        self._constants: dict[tuple[str, str], Value] = {}
        self._constant_lines: list[str] = []
        self._indent = 1
        self._count = 0
        self._returned = False

    def __getitem__(self, param: str) -> Value:
        return self.params[param]

    # -- plumbing

    def emit(self, line: str) -> None:
        self._lines.append("  " * (self._indent + 1) + line)

    def fresh(self, type: str) -> Value:
        self._count += 1
        return Value(f"%{self._count}", type, self)

    def op(self, name: str, operands: Sequence[Value], result: str, *, signature: str | None = None) -> Value:
        """Emit an operation of the form ``%r = name %a, %b : signature`` (the signature is the result's type)."""
        value = self.fresh(result)
        self.emit(f"{value.name} = {name} {', '.join(o.name for o in operands)} : {signature or result}")
        return value

    # -- constants

    def constant(self, value: int | float, type: str = I64) -> Value:
        """Return a scalar, or a vector with the same value in every lane; emitted once, at the function's start."""
        element = element_of(type)
        if is_float(element):
            literal = _float_literal(float(value), element)
        elif element == I1:
            literal = "true" if value else "false"
        else:
            literal = str(int(value))
        if lanes_of(type):
            literal = f"dense<{literal}>"
        return self._literal(literal, type)

    def values(self, values: Sequence[int | float], element: str) -> Value:
        """Return a constant vector with these lanes."""
        if is_float(element):
            literals = [_float_literal(float(v), element) for v in values]
        else:
            literals = [str(int(v)) for v in values]
        type = vector(element, len(values))
        return self._literal(f"dense<[{', '.join(literals)}]>", type)

    def _literal(self, literal: str, type: str) -> Value:
        key = (literal, type)
        if key not in self._constants:
            constant = Value(f"%c{len(self._constants)}", type, self)
            self._constants[key] = constant
            typed = literal if type == I1 else f"{literal} : {type}"
            self._constant_lines.append(f"    {constant.name} = arith.constant {typed}")
        return self._constants[key]

    def like(self, value: Value | int | float, other: Value) -> Value:
        """Return a number as a constant of another value's type; a scalar is spread over a vector's lanes."""
        if isinstance(value, Value):
            if lanes_of(other.type) and not lanes_of(value.type):
                return self.broadcast(value, lanes_of(other.type))
            return value
        return self.constant(value, I64 if other.type == PTR else other.type)

    def address_of(self, pointer: Value) -> Value:
        """Return a pointer as i64."""
        return self.op("llvm.ptrtoint", [pointer], I64, signature="!llvm.ptr to i64")

    def integer(self, value: Value | int) -> Value:
        return value if isinstance(value, Value) else self.constant(value)

    # -- arithmetic

    def binary(self, name: str, a: Value, b: Value | int | float) -> Value:
        other = self.like(b, a)
        if lanes_of(other.type) and not lanes_of(a.type):
            a = self.broadcast(a, lanes_of(other.type))
        return self.op(name, [a, other], a.type)

    def add(self, a: Value, b: Value | int | float) -> Value:
        """Return a sum; for a pointer and an integer, the pointer that many bytes further."""
        if a.type == PTR:
            return self.offset(a, b)  # type: ignore[arg-type]
        if isinstance(b, int | float) and b == 0 and not is_float(a.type):
            return a
        return self.binary("arith.addf" if is_float(a.type) else "arith.addi", a, b)

    def sub(self, a: Value, b: Value | int | float) -> Value:
        return self.binary("arith.subf" if is_float(a.type) else "arith.subi", a, b)

    def mul(self, a: Value, b: Value | int | float) -> Value:
        if isinstance(b, int | float) and b == 1 and not is_float(a.type):
            return a
        return self.binary("arith.mulf" if is_float(a.type) else "arith.muli", a, b)

    def min(self, a: Value, b: Value | int | float) -> Value:
        return self.binary("arith.minimumf" if is_float(a.type) else "arith.minsi", a, b)

    def max(self, a: Value, b: Value | int | float) -> Value:
        return self.binary("arith.maximumf" if is_float(a.type) else "arith.maxsi", a, b)

    def ceildiv(self, a: Value, b: Value | int) -> Value:
        """Return a / b rounded up, for integers that are not negative."""
        return (a + (b - 1)) // b

    def fma(self, a: Value, b: Value | float, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        return self.op("math.fma", [a, self.like(b, a), self.like(c, a)], a.type)

    def dot(self, a: Value, b: Value, total: Value) -> Value:
        """Return total + a * b of f32 lanes, or total plus both products of pairs of bf16 (AVX512_BF16), in f32
        lanes."""
        if a.type == total.type:
            return self.fma(a, b, total)
        return self.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", [total, a, b], total.type)

    def compare(self, relation: str, a: Value, b: Value | int | float) -> Value:
        """Emit an ordered comparison of floats or a signed comparison of integers."""
        other = self.like(b, a)
        if lanes_of(other.type) and not lanes_of(a.type):
            a = self.broadcast(a, lanes_of(other.type))
        if is_float(a.type):
            predicate = "une" if relation == "ne" else f"o{relation}"
            name = f"arith.cmpf {predicate},"
        else:
            name = f"arith.cmpi {relation if relation in ('eq', 'ne') else 's' + relation},"
        return self.op(name, [a, other], with_element(a.type, I1), signature=a.type)

    def select(self, condition: Value, a: Value | int | float, b: Value | int | float) -> Value:
        first = a if isinstance(a, Value) else self.like(a, b)  # type: ignore[arg-type]
        second = self.like(b, first)
        signature = first.type if condition.type == I1 else f"{condition.type}, {first.type}"
        return self.op("arith.select", [condition, first, second], first.type, signature=signature)

    def cast(self, name: str, value: Value, element: str) -> Value:
        """Emit a conversion such as ``arith.extf``, lane by lane."""
        result = with_element(value.type, element)
        return self.op(name, [value], result, signature=f"{value.type} to {result}")

    def bitcast(self, value: Value, type: str) -> Value:
        """Return the same bits as another type; lanes may be split or joined."""
        if value.type == type:
            return value
        return self.op("llvm.bitcast", [value], type, signature=f"{value.type} to {type}")

    def widen(self, value: Value) -> Value:
        """Convert bf16 or f16 to f32 exactly; f32 is returned unchanged."""
        if element_of(value.type) == F32:
            return value
        if element_of(value.type) == F16:
            return self.cast("arith.extf", value, F32)
        bits = self.cast("arith.extui", self.bitcast(value, with_element(value.type, I16)), I32)
        return self.bitcast(bits << 16, with_element(value.type, F32))

    def narrow(self, value: Value, element: str) -> Value:
        """Convert f32 to `element`: f32 itself, or bf16 rounded to nearest even; NaN stays NaN.

        It uses integer operations: some CPUs lack an instruction for it, and the existing ones treat subnormal numbers
        as zero.
        """
        if element_of(value.type) == element:
            return value
        bits = self.bitcast(value, with_element(value.type, I32))
        rounded = bits + ((bits >> 16) & 1) + 0x7FFF
        kept = self.select(self.compare("ne", value, value), bits | 0x400000, rounded) >> 16
        return self.bitcast(self.cast("arith.trunci", kept, I16), with_element(value.type, element))

    # -- vectors

    def splat(self, value: int | float, lanes: int = 16, element: str = F32) -> Value:
        return self.constant(value, vector(element, lanes))

    def broadcast(self, value: Value, lanes: int) -> Value:
        type = vector(value.type, lanes)
        return self.op("vector.broadcast", [value], type, signature=f"{value.type} to {type}")

    def reduce(self, kind: str, value: Value) -> Value:
        """Combine all lanes: kind is add, mul, maximumf, minimumf, maxsi or minsi.

        The order is a tree of halves, so that it does not depend on the CPU.
        """
        lanes = lanes_of(value.type)
        combine: dict[str, Callable[[Value, Value], Value]] = {
            **{"add": self.add, "mul": self.mul},
            **{"maximumf": self.max, "minimumf": self.min, "maxsi": self.max, "minsi": self.min},
        }
        while lanes > 1:
            lanes //= 2
            low = self.shuffle(value, value, range(lanes))
            high = self.shuffle(value, value, range(lanes, 2 * lanes))
            value = combine[kind](low, high)
        return self.extract(value, 0)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int] | range) -> Value:
        """Select lanes of a, then of b, by constant numbers."""
        result = vector(element_of(a.type), len(lanes))
        value = self.fresh(result)
        self.emit(f"{value.name} = vector.shuffle {a.name}, {b.name} {list(lanes)} : {a.type}, {b.type}")
        return value

    def compress(self, value: Value, mask: Value) -> Value:
        """Move the lanes of the mask to the front; the lanes after them are unspecified."""
        return self.intrinsic("llvm.experimental.vector.compress", [value, mask, value], value.type)

    def any(self, mask: Value) -> Value:
        """Return True if any lane of a mask is set, i1."""
        return self.bitcast(mask, f"i{lanes_of(mask.type)}").ne(0)

    def count(self, mask: Value) -> Value:
        """Return the number of lanes of a mask of 16 that are set, i64."""
        return self.cast("arith.extui", self.op("math.ctpop", [self.bitcast(mask, I16)], I16), I64)

    def extract(self, value: Value, lane: int) -> Value:
        result = self.fresh(element_of(value.type))
        self.emit(f"{result.name} = vector.extract {value.name}[{lane}] : {result.type} from {value.type}")
        return result

    def insert(self, scalar: Value, value: Value, lane: int) -> Value:
        result = self.fresh(value.type)
        types = f"{scalar.type} into {value.type}"
        self.emit(f"{result.name} = vector.insert {scalar.name}, {value.name} [{lane}] : {types}")
        return result

    def lanes(self, count: int = 16, element: str = I32) -> Value:
        """Return 0, 1, 2, .. in the lanes."""
        return self.values(range(count), element)

    def first_lanes(self, count: Value | int, lanes: int = 16) -> Value:
        """Return a mask of the first `count` lanes."""
        limit = self.cast("arith.trunci", self.integer(count), I32)
        return self.broadcast(limit, lanes) > self.lanes(lanes)

    # -- memory

    def limit(self, pointer: Value, nbytes: int | Callable[[], int]) -> Value:
        """Return the same pointer. Checked code (`checks.py`) learns here how many bytes it may access from it; if
        `nbytes` is a function, it is called when the code is written out."""
        return pointer

    def operands(self, place: str, pointers: Sequence[Value]) -> None:
        """Pass the step's name, for messages, and all limited pointers that it may access to checked code."""

    def offset(self, pointer: Value, count: Value | int) -> Value:
        """Return the pointer `count` bytes further."""
        if isinstance(count, int) and count == 0:
            return pointer
        result = self.fresh(PTR)
        step = self.integer(count)
        self.emit(f"{result.name} = llvm.getelementptr {pointer.name}[{step.name}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        return result

    def load(self, pointer: Value, type: str) -> Value:
        """Load from memory; the pointer is aligned to an element."""
        return self.op(
            "llvm.load", [pointer], type, signature=f"!llvm.ptr -> {type}"
        ) if element_of(type) == type else self._load_vector(pointer, type)

    def _load_vector(self, pointer: Value, type: str) -> Value:
        value = self.fresh(type)
        self.emit(f"{value.name} = llvm.load {pointer.name} {{alignment = {_align(type)} : i64}} : !llvm.ptr -> {type}")
        return value

    def store(self, value: Value, pointer: Value) -> None:
        """Store to memory; the pointer is aligned to an element."""
        align = f" {{alignment = {_align(value.type)} : i64}}" if lanes_of(value.type) else ""
        self.emit(f"llvm.store {value.name}, {pointer.name}{align} : {value.type}, !llvm.ptr")

    def fill(self, pointer: Value, nbytes: Value | int, value: float = 0.0) -> None:
        """Store an f32 to whole lines of 64 bytes: the first `nbytes`, rounded up to the end of a line."""
        with self.loop(0, nbytes, 64) as line:
            self.store(self.splat(value), pointer + line.index)

    def load_masked(self, pointer: Value, mask: Value, type: str) -> Value:
        """Load the lanes of the mask; the others are zero, and their memory is not accessed."""
        value, zero = self.fresh(type), self.constant(0, type)
        self.emit(
            f"{value.name} = llvm.intr.masked.load {pointer.name}, {mask.name}, {zero.name} "
            f"{{alignment = {_align(type)} : i32}} : (!llvm.ptr, {mask.type}, {type}) -> {type}"
        )
        return value

    def store_masked(self, value: Value, pointer: Value, mask: Value) -> None:
        """Store the lanes of the mask."""
        self.emit(
            f"llvm.intr.masked.store {value.name}, {pointer.name}, {mask.name} "
            f"{{alignment = {_align(value.type)} : i32}} : {value.type}, {mask.type} into !llvm.ptr"
        )

    def prefetch(self, pointer: Value, locality: int = 3) -> None:
        """Prefetch the cache line at the pointer for reading; `locality` is LLVM's: 0 is none, 3 all caches."""
        self.emit(
            f'"llvm.intr.prefetch"({pointer.name}) <{{rw = 0 : i32, hint = {locality} : i32, cache = 1 : i32}}> '
            ": (!llvm.ptr) -> ()"
        )

    # -- calls

    def call(self, function: Function, *arguments: Value | int | float) -> list[Value]:
        """Call a function of the module."""
        operands = [
            a if isinstance(a, Value) else self.constant(a, type)
            for a, type in zip(arguments, function.types, strict=True)
        ]
        results = [self.fresh(type) for type in function.results]
        left = f"{', '.join(v.name for v in results)} = " if results else ""
        result = function.results[0] if len(function.results) == 1 else f"({', '.join(function.results)})"
        self.emit(
            f"{left}func.call @\"{function.name}\"({', '.join(o.name for o in operands)}) : "
            f"({', '.join(function.types)}) -> {result}"
        )
        return results

    def intrinsic(self, name: str, operands: Sequence[Value], result: str) -> Value:
        """Call an LLVM intrinsic by its full name."""
        value = self.fresh(result)
        self.emit(
            f'{value.name} = llvm.call_intrinsic "{name}"({", ".join(o.name for o in operands)}) : '
            f"({', '.join(o.type for o in operands)}) -> {result}"
        )
        return value

    # -- tile registers (AMX), by number: 0 .. 7. In memory a tile is rows of up to 64 bytes, dense or a stride apart.

    def configure_tiles(self, shapes: Sequence[tuple[int, int]], where: Value) -> None:
        """Set the number of rows and the bytes of a row of the first tile registers, until `release_tiles`. Writes 64
        bytes of memory."""
        rows = [count for count, _ in shapes]
        widths = [byte for _, width in shapes for byte in (width, 0)]
        palette = [1, *[0] * 15, *widths, *[0] * (32 - len(widths)), *rows, *[0] * (16 - len(rows))]
        self.store(self.values(palette, I8), where)
        self._effect("llvm.x86.ldtilecfg", [where])

    def release_tiles(self) -> None:
        self._effect("llvm.x86.tilerelease", [])

    def zero_tile(self, tile: int) -> None:
        self._effect("llvm.x86.tilezero", [self.constant(tile, I8)])

    def load_tile(
        self, tile: int, pointer: Value, rows: int, width: int = TILE_ROW, stride: Value | int | None = None
    ) -> None:
        """Load a register that is configured for `rows` rows of `width` bytes, which are `stride` bytes apart (None:
        dense)."""
        step = self.integer(width if stride is None else stride)
        self._effect("llvm.x86.tileloadd64", [self.constant(tile, I8), pointer, step])

    def store_tile(self, tile: int, pointer: Value, rows: int, stride: Value | int | None = None) -> None:
        """Store a register that is configured for `rows` rows of 64 bytes."""
        step = self.integer(TILE_ROW if stride is None else stride)
        self._effect("llvm.x86.tilestored64", [self.constant(tile, I8), pointer, step])

    def dot_tiles(self, sums: int, left: int, right: int) -> None:
        """Add sums[m][n] += left[m] . right[n]: f32 [m][16] by bf16 [m][16][2] and bf16 [16][n][2] (AMX_BF16)."""
        self._effect("llvm.x86.tdpbf16ps", [self.constant(tile, I8) for tile in (sums, left, right)])

    def dot_bytes(self, sums: int, left: int, right: int) -> None:
        """Add sums[m][n] += left[m] . right[n]: i32 [m][16] by i8 [m][k][4] and u8 [k][n][4] (AMX_INT8)."""
        self._effect("llvm.x86.tdpbsud", [self.constant(tile, I8) for tile in (sums, left, right)])

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Open a block in which subnormal operands and results are 0 (MXCSR)."""
        own, changed = self.stack(4), self.stack(4)
        self._effect("llvm.x86.sse.stmxcsr", [own])
        self.store(self.load(own, I32) | FLUSH_TO_ZERO, changed)
        self._effect("llvm.x86.sse.ldmxcsr", [changed])
        yield
        self._effect("llvm.x86.sse.ldmxcsr", [own])

    def stack(self, nbytes: int) -> Value:
        """Allocate memory of this call, aligned to a line and initially undefined. To be called outside of loops."""
        self.inlined = False
        pointer, count = self.fresh(PTR), self.constant(nbytes)
        self.emit(f"{pointer.name} = llvm.alloca {count.name} x i8 {{alignment = 64 : i64}} : (i64) -> !llvm.ptr")
        return self.limit(pointer, nbytes)

    def _effect(self, name: str, operands: Sequence[Value]) -> None:
        """Call an LLVM intrinsic without a result."""
        types = ", ".join(o.type for o in operands)
        self.emit(f'llvm.call_intrinsic "{name}"({", ".join(o.name for o in operands)}) : ({types}) -> ()')

    # -- control

    @contextmanager
    def loop(
        self, lower: Value | int, upper: Value | int, step: Value | int = 1, state: Sequence[Value] = ()
    ) -> Iterator[Loop]:
        """Open ``for index in range(lower, upper, step)``, with values that each iteration passes to the next."""
        low, high, by = self.integer(lower), self.integer(upper), self.integer(step)
        loop = Loop(self.fresh(I64), [self.fresh(v.type) for v in state], [self.fresh(v.type) for v in state])
        left, carried = "", ""
        if state:
            left = f"{', '.join(r.name for r in loop.results)} = "
            pairs = ", ".join(f"{inner.name} = {v.name}" for inner, v in zip(loop.state, state, strict=True))
            carried = f" iter_args({pairs}) -> ({', '.join(v.type for v in state)})"
        self.emit(f"{left}scf.for {loop.index.name} = {low.name} to {high.name} step {by.name}{carried} : i64 {{")
        self._indent += 1
        yield loop
        if state:
            if loop._next is None or [v.type for v in loop._next] != [v.type for v in state]:
                raise ValueError("the loop's block must carry one value per state, of the same types")
            types = ", ".join(v.type for v in state)
            self.emit(f"scf.yield {', '.join(v.name for v in loop._next)} : {types}")
        self._indent -= 1
        self.emit(f"}} {{loop_annotation = {_ROLLED}}}")

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Open a block that runs if the condition is true."""
        self.emit(f"scf.if {condition.name} {{")
        self._indent += 1
        yield
        self._indent -= 1
        self.emit("}")

    def returns(self, *values: Value) -> None:
        """End the function."""
        if [v.type for v in values] != self.results:
            raise ValueError(f"function {self.name!r} returns {self.results}")
        types = f" : {', '.join(v.type for v in values)}" if values else ""
        self.emit(f"func.return {', '.join(v.name for v in values)}{types}".rstrip())
        self._returned = True

    def text(self) -> str:
        if not self._returned:
            raise ValueError(f"function {self.name!r} has no return")
        params = ", ".join(f"{value.name}: {value.type}" for value in self.params.values())
        results = f" -> ({', '.join(self.results)})" if self.results else ""
        visibility = "" if self.exported else "private "
        lines = [f'  func.func {visibility}@"{self.name}"({params}){results}{self._attributes()} {{']
        return "\n".join([*lines, *self._constant_lines, *self._lines, "  }"])

    def _attributes(self) -> str:
        """Return the function's attributes. Exported functions are not inlined either, because the engine would copy
        them into the wrappers that it generates."""
        attributes = [] if self.exported else ["llvm.linkage = #llvm.linkage<internal>"]
        if not self.inlined or len(self._lines) > INLINED_LINES:
            attributes.append("llvm.no_inline")
        return f" attributes {{{', '.join(attributes)}}}" if attributes else ""


Settings = ParamSpec("Settings")
Body = Callable[Concatenate[Function, Settings], None]
Kernel = Callable[Concatenate[Function, Settings], Callable[..., list[Value]]]


def kernel(**params: str) -> Callable[[Body[Settings]], Kernel[Settings]]:
    """Convert a function that emits the body of a kernel into one that returns the callable kernel::

        @kernel(source=PTR, count=I64)
        def sums(f: Function, width: int) -> None: ...  # reads f["source"] and f["count"]

        sums(caller, 3)(source, count)

    The module of `caller` gets the kernel once for each combination of settings. A setting is a number, a word, or an
    object with a `tag` or `name`; the emitted code may depend on nothing else.
    """

    def decorate(body: Body[Settings]) -> Kernel[Settings]:
        module_name = body.__module__.rpartition(".")[2]

        def of(caller: Function, /, *args: Settings.args, **named: Settings.kwargs) -> Callable[..., list[Value]]:
            name = "_".join([f"{module_name}.{body.__name__}", *map(_tag, (*args, *named.values()))])
            if not caller.module.has(name):
                f = caller.module.function(name, list(params.items()))
                body(f, *args, **named)
                f.returns()
            return partial(caller.call, caller.module.get(name))

        return of

    return decorate


def _tag(setting: Any) -> str:
    if isinstance(setting, float):
        return setting.hex()
    return str(getattr(setting, "tag", getattr(setting, "name", setting)))


def _table(name: str, functions: Sequence[Function]) -> str:
    lines = [f'  func.func @"{name}"(%out: !llvm.ptr) {{']
    for i, f in enumerate(functions):
        signature = f"({', '.join(f.types)}) -> ({', '.join(f.results)})"
        lines.append(f'    %f{i} = func.constant @"{f.name}" : {signature}')
        lines.append(f"    %a{i} = builtin.unrealized_conversion_cast %f{i} : {signature} to !llvm.ptr")
        lines.append(f"    %p{i} = llvm.getelementptr %out[{i}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        lines.append(f"    llvm.store %a{i}, %p{i} : !llvm.ptr, !llvm.ptr")
    return "\n".join([*lines, "    func.return", "  }"])


def _align(type: str) -> int:
    return max(1, bits_of(element_of(type)) // 8)


def _float_literal(value: float, element: str) -> str:
    """Return a literal that reads back as exactly this value in the element type."""
    if element == F64:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if math.isinf(value) or math.isnan(value):
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    else:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return f"0x{bits >> 16:04X}" if element == BF16 else f"0x{bits:08X}"
