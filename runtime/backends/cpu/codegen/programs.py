"""Scalar programs of vector steps, evaluated for a vector of points, or for one value that all of them share.

Float values are f32 in registers whatever their dtype; a value of dtype bf16 is rounded to bf16 after each operation,
as in the reference interpreter. Integers are i64, conditions i1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Instr
from sscc.runtime.backends.cpu.codegen import approximations
from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.mlir import (
    BF16,
    F16,
    F32,
    I1,
    I8,
    I16,
    I32,
    I64,
    Function,
    Value,
    element_of,
    lanes_of,
    vector,
    with_element,
)

FLOATS = ("f32", "bf16")


FLOAT8_FACTOR = 256.0
"""The factor that `widen_float8` omits: the exponent biases of f16 and e4m3 differ by 8."""


class NativeProgramErrors(ErrorKind):
    OPERATION = InputError, "the vector operation {op!r} has no native code"


def widen_float8(f: Function, codes: Value) -> Value:
    """Return the numbers of finite e4m3 as f32, divided by FLOAT8_FACTOR; exact. An e4m3 is an f16 with fewer bits."""
    wide = f.cast("arith.extsi", codes, I16)
    bits = (wide << 7) & -16385  # the sign was copied to two bits, of which one is cleared
    return f.widen(f.bitcast(bits, with_element(codes.type, F16)))


@dataclass(frozen=True)
class Ramp:
    """The i64 values base, base + 1, .. in the lanes; base is not negative."""

    base: Value


Arg = Value | Ramp


def expand(f: Function, value: Arg, lanes: int = LANES) -> Value:
    """Return the value in every lane."""
    if isinstance(value, Ramp):
        return f.broadcast(value.base, lanes) + f.values(range(lanes), I64)
    return value if lanes_of(value.type) else f.broadcast(value, lanes)


def register_type(dtype: str) -> str:
    """Return the register type of a schedule's dtype."""
    return {"f32": F32, "bf16": F32, "i64": I64, "i32": I64, "i8": I64, "i1": I1}[dtype]


def rounded(f: Function, value: Value, dtype: str) -> Value:
    """Round an f32 value to its dtype."""
    return f.widen(f.narrow(value, BF16)) if dtype == "bf16" else value


def spread(f: Function, *values: Arg) -> list[Value]:
    """Convert the operands of one operation to all scalars or all vectors."""
    if any(isinstance(v, Ramp) or lanes_of(v.type) for v in values):
        return [expand(f, v) for v in values]
    return [v for v in values if isinstance(v, Value)]


def apply(f: Function, instr: Instr, args: Sequence[Arg], dtypes: Sequence[str]) -> Arg:
    """Return the value of one operation other than `index`, `load` and `const`.

    Raises InputError for an unknown operation.
    """
    op = instr.op
    if op in ("index_cast", "index_castui", "extsi", "extui") and isinstance(args[0], Ramp):
        return args[0]
    if op == "addi" and isinstance(args[0], Ramp) and isinstance(args[1], Value) and not lanes_of(args[1].type):
        return f.broadcast(args[1], LANES) + expand(f, args[0])
    if op == "cmpi_slt" and isinstance(args[0], Ramp) and _is_zero(f, args[1]):
        return f.constant(0, I1)
    values = spread(f, *args)
    if op == "select":
        return _select(f, args)
    if op in _FLOAT:
        result = _FLOAT[op](f, *values)
        return rounded(f, result, instr.type)
    if op in _DIVISIONS:
        return _wrapped(f, _DIVISIONS[op](f, *values), instr.type)
    if op in _INTEGER:
        return _wrapped(f, f.op(_INTEGER[op], values, values[0].type), instr.type)
    if op == "absi":
        return _wrapped(f, f.max(values[0], 0 - values[0]), instr.type)
    if op.startswith("cmpf_") or op.startswith("cmpi_"):
        return _compare(f, op, *values)
    if op in _CONVERSIONS:
        return _CONVERSIONS[op](f, values[0], dtypes[0], instr.type)
    raise NativeProgramErrors.OPERATION(op=op)


def _is_zero(f: Function, value: Arg) -> bool:
    return isinstance(value, Value) and value == f.constant(0)


def _select(f: Function, args: Sequence[Arg]) -> Arg:
    condition = args[0]
    if condition == f.constant(0, I1):
        return args[2]
    values = spread(f, *args)
    if isinstance(condition, Value) and not lanes_of(condition.type):
        values[0] = condition
    return f.select(*values)


def _math(name: str) -> Callable[..., Value]:
    return lambda f, *args: f.op(f"math.{name}", args, args[0].type)


def _arith(name: str) -> Callable[..., Value]:
    return lambda f, *args: f.op(f"arith.{name}", args, args[0].type)


def _power(f: Function, base: Value, exponent: Value) -> Value:
    return f.op("math.powf", [base, exponent], base.type)


_FLOAT: dict[str, Callable[..., Value]] = {
    **{name: _arith(name) for name in ("addf", "subf", "mulf", "divf", "remf", "negf")},
    **{name: _arith(name) for name in ("maximumf", "minimumf", "maxnumf", "minnumf")},
    **{name: _math(name) for name in ("absf", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos")},
    **{name: _math(name) for name in ("tan", "atan", "atan2", "sinh", "cosh", "erfc", "floor", "ceil")},
    **{name: _math(name) for name in ("round", "roundeven", "trunc", "copysign", "fma")},
    "exp": approximations.exp,
    "tanh": approximations.tanh,
    "erf": approximations.erf,
    "rsqrt": lambda f, x: f.like(1.0, x) / f.op("math.sqrt", [x], x.type),
    "powf": _power,
}

_INTEGER: dict[str, str] = {
    "addi": "arith.addi",
    "subi": "arith.subi",
    "muli": "arith.muli",
    "maxsi": "arith.maxsi",
    "minsi": "arith.minsi",
    "shli": "arith.shli",
    "shrsi": "arith.shrsi",
    "andi": "arith.andi",
    "ori": "arith.ori",
    "xori": "arith.xori",
}


def _quotient(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """Return a / b rounded towards zero, and the remainder; a divisor of 0 counts as 1, because the CPU would trap."""
    negated = b.eq(-1)
    safe = f.select(negated | b.eq(0), f.like(1, b), b)
    whole = f.select(negated, 0 - a, f.op("arith.divsi", [a, safe], a.type))
    return whole, f.select(negated, f.like(0, a), a - whole * safe)


def _floor_divide(f: Function, a: Value, b: Value) -> Value:
    whole, rest = _quotient(f, a, b)
    below = f.select(rest.ne(0), f.select((rest ^ b) < 0, f.like(1, a), f.like(0, a)), f.like(0, a))
    return whole - below


def _ceil_divide(f: Function, a: Value, b: Value) -> Value:
    return 0 - _floor_divide(f, 0 - a, b)


_DIVISIONS: dict[str, Callable[[Function, Value, Value], Value]] = {
    "divsi": lambda f, a, b: _quotient(f, a, b)[0],
    "remsi": lambda f, a, b: _quotient(f, a, b)[1],
    "floordivsi": _floor_divide,
    "ceildivsi": _ceil_divide,
}


def _wrapped(f: Function, value: Value, dtype: str) -> Value:
    """Wrap an i64 to the range of a narrower signed integer, if the dtype is one."""
    bits = {"i8": 8, "i32": 32}.get(dtype)
    if bits is None:
        return value
    return f.op("arith.shrsi", [value << (64 - bits), f.like(64 - bits, value)], value.type)


def _compare(f: Function, op: str, a: Value, b: Value) -> Value:
    kind, predicate = op.split("_", 1)
    result = f.fresh(vector(I1, lanes_of(a.type)) if lanes_of(a.type) else I1)
    f.emit(f"{result.name} = arith.{kind} {predicate}, {a.name}, {b.name} : {a.type}")
    return result


def _to_float(name: str, f: Function, value: Value, source: str, target: str) -> Value:
    whole = _unsigned(value, source) if name == "uitofp" else value
    return rounded(f, f.cast(f"arith.{name}", whole, F32), target)


def _from_float(name: str, f: Function, value: Value, source: str, target: str) -> Value:
    """Convert a float to an integer with saturation: MLIR's own operation is undefined outside of the type's range."""
    narrow = {"i8": I8, "i32": I32}.get(target, I64)
    integer = f.intrinsic(f"llvm.{name}.sat", [value], with_element(value.type, narrow))
    return integer if narrow == I64 else f.cast("arith.extsi", integer, I64)


def _extend(name: str, f: Function, value: Value, source: str, target: str) -> Value:
    if element_of(value.type) == I1:
        wide = f.cast(f"arith.{name}", value, I64)
    else:
        wide = value if name == "extsi" else _unsigned(value, source)
    return _wrapped(f, wide, target)


def _unsigned(value: Value, dtype: str) -> Value:
    """Return a signed integer of a narrow dtype as the unsigned integer with the same bits."""
    return value & {"i8": 0xFF, "i32": 0xFFFFFFFF}[dtype] if dtype in ("i8", "i32") else value


def _truncate(f: Function, value: Value, source: str, target: str) -> Value:
    return f.cast("arith.trunci", value, I1) if target == "i1" else _wrapped(f, value, target)


_CONVERSIONS: dict[str, Callable[[Function, Value, str, str], Value]] = {
    "extf": lambda f, value, source, target: value,
    "truncf": lambda f, value, source, target: rounded(f, value, target),
    "sitofp": partial(_to_float, "sitofp"),
    "uitofp": partial(_to_float, "uitofp"),
    "fptosi": partial(_from_float, "fptosi"),
    "fptoui": partial(_from_float, "fptoui"),
    "index_cast": partial(_extend, "extsi"),
    "index_castui": partial(_extend, "extui"),
    "extsi": partial(_extend, "extsi"),
    "extui": partial(_extend, "extui"),
    "trunci": _truncate,
}


def is_floating(dtype: str) -> bool:
    return dtype in FLOATS


__all__ = ["Ramp", "apply", "expand", "is_floating", "register_type", "rounded", "spread"]
