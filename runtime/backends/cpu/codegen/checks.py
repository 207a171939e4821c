"""Checked mode of generated code: every access to memory is compared with the extent of the object it points into.

The modules and functions here have the interface of those in `mlir.py`, and emit the same code with a check before each
load and store. The bounds of a pointer accompany it from an argument, a local or scratch (`Function.limit`) through
offsets, loops and calls. A pointer that was itself loaded from memory may point into any argument of its body. The
first access out of bounds is recorded, and each one is redirected to a harmless address, so that the process continues
and the interpreter can report it. Comparing and recording are functions, because as inline code they would be nine
tenths of all code and slow to compile.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sscc.ir.errors import ErrorKind, InternalError
from sscc.runtime.backends.cpu.codegen.mlir import (
    I1,
    I8,
    I64,
    PTR,
    TILE_ROW,
    Function,
    Loop,
    Module,
    Value,
    bits_of,
    element_of,
    lanes_of,
    vector,
)

_WHERE, _TABLE, _COUNT = "check.where", "check.table", "check.count"
"""Parameters that every private function has after its own: the step, and the bounds of the body's arguments."""

_WORDS = 8
_DIVERTED_BYTES = 4096


class NativeCheckErrors(ErrorKind):
    OUT_OF_BOUNDS = (
        InternalError,
        "generated code is wrong: {place}: {access} of {nbytes} bytes at {begin} leaves the operand's {extent} bytes",
    )
    OUT_OF_OPERANDS = (
        InternalError,
        "generated code is wrong: {place}: {access} of {nbytes} bytes at {begin} is in none of the operands",
    )


class Violations:
    """The place where checked code records its first access out of bounds. Code refers to it by address, so it must
    live as long as the code.

    Attributes:
        sites, places: names of accesses and of steps, by number.
    """

    def __init__(self) -> None:
        self.sites: list[str] = []
        self.places: list[str] = []
        self._note = (ctypes.c_int64 * _WORDS)()
        self._diverted = (ctypes.c_char * (_DIVERTED_BYTES + 64))()

    @property
    def note_address(self) -> int:
        return ctypes.addressof(self._note)

    @property
    def diverted_address(self) -> int:
        return -(-ctypes.addressof(self._diverted) // 64) * 64

    def raise_first(self) -> None:
        """Raise InternalError for the first access out of bounds since the last call."""
        site, place, begin, extent, nbytes = self._note[:5]
        if site == 0:
            return
        ctypes.memset(self._note, 0, ctypes.sizeof(self._note))
        where = {"place": self.places[place], "access": self.sites[site - 1]}
        fields: dict[str, Any] = {**where, "nbytes": nbytes, "begin": begin}
        if extent < 0:
            raise NativeCheckErrors.OUT_OF_OPERANDS(**fields)
        raise NativeCheckErrors.OUT_OF_BOUNDS(**fields, extent=extent)


class CheckedModule(Module):
    """A module of checked functions. Several modules may share one `Violations`."""

    def __init__(self, violations: Violations | None = None) -> None:
        super().__init__()
        self.violations = violations or Violations()

    def function(
        self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str] = (), *, exported: bool = False
    ) -> Function:
        hidden: list[tuple[str, str]] = []
        if not exported:
            pointers = [param for param, type in params if type == PTR]
            hidden += [(f"check.{bound}.{param}", I64) for param in pointers for bound in ("low", "high")]
            hidden += [(_WHERE, I64), (_TABLE, PTR), (_COUNT, I64)]
        return self._begin(name, [*params, *hidden], results, exported)

    def _make(self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], exported: bool) -> Function:
        return CheckedFunction(self, name, params, results, exported)

    # Functions that every access calls. Each one is written when first needed, and is not checked itself.

    def within(self) -> Function:
        """(pointer, begin, end, low, high, site, where) -> the pointer if the bytes from `begin` to `end` lie within
        `low` and `high`, or if there are none; otherwise a harmless address."""
        return self._written("check.within", _ACCESS, [PTR], self._within)

    def member(self) -> Function:
        """(pointer, begin, end, table, count, site, where) -> the pointer if the bytes lie within one of the `count`
        pairs of bounds in the table, or if there are none; otherwise a harmless address."""
        params = [*_ACCESS[:3], (_TABLE, PTR), (_COUNT, I64), *_ACCESS[5:]]
        return self._written("check.member", params, [PTR], self._member)

    def lanes(self, lanes: int) -> Function:
        """(mask) -> the first lane of a mask and the lane after the last one; for an empty mask, `lanes` and 0."""

        def write(f: Function) -> None:
            mask, numbers = f["mask"], f.values(range(lanes), I64)
            first = f.reduce("minsi", f.select(mask, numbers, f.like(lanes, numbers)))
            f.returns(first, f.reduce("maxsi", f.select(mask, numbers, f.like(-1, numbers))) + 1)

        return self._written(f"check.lanes.{lanes}", [("mask", vector(I1, lanes))], [I64, I64], write)

    def _written(
        self, name: str, params: Sequence[tuple[str, str]], results: Sequence[str], write: Callable[[Function], None]
    ) -> Function:
        if not self.has(name):
            self._functions[name] = Function(self, name, params, results, exported=False)
            self._functions[name].inlined = False
            write(self._functions[name])
        return self.get(name)

    def _within(self, f: Function) -> None:
        begin, end = f["begin"], f["end"]
        inside = (begin >= f["low"]) & (end <= f["high"]) | (end <= begin)
        self._divert(f, inside, begin - f["low"], f["high"] - f["low"])

    def _member(self, f: Function) -> None:
        begin, end = f["begin"], f["end"]
        with f.loop(0, f[_COUNT], 1, [end <= begin]) as loop:
            entry = f.offset(f[_TABLE], loop.index * 16)
            low, high = f.load(entry, I64), f.load(f.offset(entry, 8), I64)
            loop.carry(loop.state[0] | ((begin >= low) & (end <= high)))
        self._divert(f, loop.results[0], f.constant(0), f.constant(-1))

    def _divert(self, f: Function, inside: Value, offset: Value, extent: Value) -> None:
        """Emit the end of a check: record the first access that is not inside."""
        note, diverted = (
            f.op("llvm.inttoptr", [f.constant(address)], PTR, signature="i64 to !llvm.ptr")
            for address in (self.violations.note_address, self.violations.diverted_address)
        )
        with f.when(inside ^ f.constant(1, I1)), f.when(f.load(note, I64).eq(0)):
            for i, word in enumerate((f["site"], f[_WHERE], offset, extent, f["end"] - f["begin"])):
                f.store(word, f.offset(note, 8 * i))
        f.returns(f.select(inside, f["pointer"], diverted))


_ACCESS = [("pointer", PTR), *((name, I64) for name in ("begin", "end", "low", "high", "site", _WHERE))]

Bounds = tuple[Value, Value]
"""First address, and the address after the last one."""


class CheckedFunction(Function):
    """A function whose loads and stores are checked."""

    def __init__(
        self,
        module: CheckedModule,
        name: str,
        params: Sequence[tuple[str, str]],
        results: Sequence[str],
        exported: bool,
    ) -> None:
        super().__init__(module, name, params, results, exported)
        self._module = module
        self._violations = module.violations
        self._free: set[str] = set()
        self._bounds: dict[str, Bounds] = {}
        self._late: list[tuple[Value, Callable[[], int]]] = []
        self._here = {name: value for name, value in self.params.items() if name in (_WHERE, _TABLE, _COUNT)}
        if exported:
            self._free |= {value.name for value in self.params.values() if value.type == PTR}
            return
        self._free.add(self._here[_TABLE].name)
        for param, value in list(self.params.items()):
            if f"check.low.{param}" in self.params:
                self._bounds[value.name] = self.params[f"check.low.{param}"], self.params[f"check.high.{param}"]

    # -- bounds of pointers

    def limit(self, pointer: Value, nbytes: int | Callable[[], int]) -> Value:
        if pointer.name in self._bounds:  # these are the bounds of a larger piece of memory that starts here; keep them
            pointer = super().offset(pointer, self.constant(0))
        low = self.address_of(pointer)
        size = self.constant(nbytes) if isinstance(nbytes, int) else self._later(nbytes)
        self._bounds[pointer.name] = low, low + size
        self._free.discard(pointer.name)
        return pointer

    def operands(self, place: str, pointers: Sequence[Value]) -> None:
        self._violations.places.append(place)
        self._here[_WHERE] = self.constant(len(self._violations.places) - 1)
        self._here[_COUNT] = count = self.constant(len(pointers))
        table = self.fresh(PTR)
        self.emit(f"{table.name} = llvm.alloca {(count * 2).name} x i64 : (i64) -> !llvm.ptr")
        self._free.add(table.name)
        self._here[_TABLE] = table
        for i, pointer in enumerate(pointers):
            for j, bound in enumerate(self._bounds[pointer.name]):
                self.store(bound, table + (16 * i + 8 * j))

    def offset(self, pointer: Value, count: Value | int) -> Value:
        return self._like(super().offset(pointer, count), pointer)

    def select(self, condition: Value, a: Value | int | float, b: Value | int | float) -> Value:
        value = super().select(condition, a, b)
        if value.type == PTR and isinstance(a, Value) and isinstance(b, Value):
            one, two = self._bounds.get(a.name), self._bounds.get(b.name)
            if one is not None and two is not None:
                low, high = super().select(condition, one[0], two[0]), super().select(condition, one[1], two[1])
                self._bounds[value.name] = low, high
        return value

    @contextmanager
    def loop(
        self, lower: Value | int, upper: Value | int, step: Value | int = 1, state: Sequence[Value] = ()
    ) -> Iterator[Loop]:
        with super().loop(lower, upper, step, state) as loop:
            for before, inside, after in zip(state, loop.state, loop.results, strict=True):
                self._like(inside, before)
                self._like(after, before)
            yield loop

    def call(self, function: Function, *arguments: Value | int | float) -> list[Value]:
        hidden: list[Value | int] = []
        for argument in arguments:
            if isinstance(argument, Value) and argument.type == PTR:
                hidden += self._bounds.get(argument.name) or (self.constant(0), self.constant(2**63 - 1))
        return super().call(function, *arguments, *hidden, self._here[_WHERE], self._here[_TABLE], self._here[_COUNT])

    # -- accesses

    def load(self, pointer: Value, type: str) -> Value:
        return super().load(self._checked("a load", pointer, type), type)

    def store(self, value: Value, pointer: Value) -> None:
        super().store(value, self._checked("a store", pointer, value.type))

    def load_masked(self, pointer: Value, mask: Value, type: str) -> Value:
        return super().load_masked(self._checked("a load", pointer, type, mask), mask, type)

    def store_masked(self, value: Value, pointer: Value, mask: Value) -> None:
        super().store_masked(value, self._checked("a store", pointer, value.type, mask), mask)

    def load_tile(
        self, tile: int, pointer: Value, rows: int, width: int = TILE_ROW, stride: Value | int | None = None
    ) -> None:
        place, step = self._checked_rows("a load", pointer, rows, width, stride)
        super().load_tile(tile, place, rows, width, step)

    def store_tile(self, tile: int, pointer: Value, rows: int, stride: Value | int | None = None) -> None:
        place, step = self._checked_rows("a store", pointer, rows, TILE_ROW, stride)
        super().store_tile(tile, place, rows, step)

    def _checked_rows(
        self, what: str, pointer: Value, rows: int, width: int, stride: Value | int | None
    ) -> tuple[Value, Value]:
        """Return the address of the first row and the stride of rows. If a row leaves its bounds, return a harmless
        address and the stride of dense rows."""
        step = self.integer(width if stride is None else stride)
        place = self._checked(what, pointer, I8, nbytes=step * (rows - 1) + width)
        return place, self.select(self.address_of(place).eq(self.address_of(pointer)), step, width)

    def _checked(
        self, what: str, pointer: Value, type: str, mask: Value | None = None, nbytes: Value | None = None
    ) -> Value:
        """Return the pointer, or a harmless address if the access leaves its bounds.

        Args:
            type: type of the accessed value.
            mask: lanes that are accessed.
            nbytes: size of the access, if it is not that of the type.
        """
        if pointer.name in self._free:
            return pointer
        size, module = max(1, bits_of(element_of(type)) // 8), self._module
        begin = self.address_of(pointer)
        if nbytes is not None:
            end = begin + nbytes
        elif mask is None:
            end = begin + size * max(1, lanes_of(type))
        else:
            first, behind = super().call(module.lanes(lanes_of(mask.type)), mask)
            begin, end = begin + first * size, begin + behind * size
        self._violations.sites.append(f"{what} ({_caller()})")
        bounds = self._bounds.get(pointer.name)
        check = module.member() if bounds is None else module.within()
        limits = bounds or (self._here[_TABLE], self._here[_COUNT])
        site = self.constant(len(self._violations.sites))
        (result,) = super().call(check, pointer, begin, end, *limits, site, self._here[_WHERE])
        return result

    # -- plumbing

    def text(self) -> str:
        for value, number in self._late:
            self._constant_lines.append(f"    {value.name} = arith.constant {number()} : i64")
        self._late = []
        return super().text()

    def _later(self, number: Callable[[], int]) -> Value:
        """Return a constant whose value is known when the function is written out."""
        value = self.fresh(I64)
        self._late.append((value, number))
        return value

    def _like(self, value: Value, origin: Value) -> Value:
        if value.type == PTR and origin.name in self._bounds:
            self._bounds[value.name] = self._bounds[origin.name]
        elif value.type == PTR and origin.name in self._free:
            self._free.add(value.name)
        return value


def _caller() -> str:
    """Return the line of the code generator that emits an access."""
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).name in ("checks.py", "mlir.py", "contextlib.py"):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


__all__ = ["CheckedModule", "Violations"]
