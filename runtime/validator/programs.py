"""Vector programs: names, numbers of arguments, and the ranges of integers, which determine the places of loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sscc.ir.schedule import Instr, Reduction, Vector
from sscc.runtime.validator.failure import ProofKind
from sscc.runtime.validator.linear import Range


class VectorProofErrors(ProofKind):
    """Inconsistent instructions of a vector program."""

    DEFINED_TWICE = "the vector program defines {name!r} twice"
    UNKNOWN_TYPE = "{name!r} has the unknown type {type!r}"
    RESULT_UNDEFINED = "the vector program does not define its result {result!r}"
    CONST_ARGUMENTS = "const {name!r} needs one literal, but has [{arguments}]"
    LOAD_ARGUMENTS = "load {name!r} needs the name of a parameter first, but has [{arguments}]"
    ARGUMENT_COUNT = "{name!r} is {op!r} of {count} arguments, but there is no such operation"
    RESULT_TYPE = "{name!r}: {op!r} cannot have the type {type} for an argument of {argument}"
    MAY_DIVIDE_BY_ZERO = "{name!r}: {op!r} divides by {divisor}, which may be 0 or -1"
    SHIFT_TOO_FAR = "{name!r}: {op!r} shifts {type} by {bits} bits"
    INDEX_DIMENSION = "index {name!r} needs the number of a dimension of [{dims}], but has {dim}"
    INDEX_TYPE = "index {name!r} is i64, not {type}"
    ARGUMENT_TYPE = "{name!r}: {op!r} needs {type}, but {argument!r} is {actual}"
    LITERAL_TYPE = "{name!r}: the literal {literal} is not a value of {type}"


_FLOATS = ("f32", "bf16")
_BITS = {"i64": 64, "i32": 32, "i8": 8}
_UNARY = "negf absf exp exp2 expm1 log log2 log10 log1p sqrt rsqrt tanh sin cos tan atan sinh cosh erf erfc"
_BINARY = "addf subf mulf divf remf maximumf minimumf maxnumf minnumf atan2 powf copysign"
_INTEGERS = "addi subi muli divsi floordivsi ceildivsi remsi maxsi minsi shli shrsi"
_COMPARED = "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno false true"
_ORDERED = "eq ne slt sle sgt sge ult ule ugt uge"
_EXTENSIONS = "extsi extui trunci index_cast index_castui"

RULES: dict[str, tuple[int, str]] = {
    **dict.fromkeys(f"{_UNARY} floor ceil round roundeven trunc".split(), (1, "float")),
    **dict.fromkeys(_BINARY.split(), (2, "float")),
    "fma": (3, "float"),
    "fpowi": (2, "power"),
    "absi": (1, "integer"),
    **dict.fromkeys(_INTEGERS.split(), (2, "integer")),
    **dict.fromkeys("andi ori xori".split(), (2, "bits")),
    **dict.fromkeys((f"cmpf_{name}" for name in _COMPARED.split()), (2, "float comparison")),
    **dict.fromkeys((f"cmpi_{name}" for name in _ORDERED.split()), (2, "integer comparison")),
    "select": (3, "select"),
    **dict.fromkeys(("truncf", "extf"), (1, "float to float")),
    **dict.fromkeys(("sitofp", "uitofp"), (1, "integer to float")),
    **dict.fromkeys(("fptosi", "fptoui"), (1, "float to integer")),
    **dict.fromkeys(_EXTENSIONS.split(), (1, "integer to integer")),
}
"""Number of arguments and type rule of every operation of vector programs (MLIR's arith and math dialects), except the
special ones."""

_DIVISIONS = ("divsi", "floordivsi", "ceildivsi", "remsi")
_SHIFTS = ("shli", "shrsi")
_COMPARE = {"cmpi_eq": "eq", "cmpi_ne": "ne", "cmpi_slt": "lt", "cmpi_sle": "le", "cmpi_sgt": "gt", "cmpi_sge": "ge"}


@dataclass(frozen=True)
class Integer:
    """The range of an integer or truth value. Exact: it takes both ends."""

    low: float
    high: float
    exact: bool = False

    def __str__(self) -> str:
        return f"{self.low} .. {self.high}" if self.low < self.high else str(self.low)


class Owner(Protocol):
    """The proof of the body that contains a program."""

    def load(self, instr: Instr, indices: Sequence[Integer | None]) -> None: ...

    def scalar(self, name: str) -> Range: ...

    @property
    def where(self) -> str: ...


class VectorProgram:
    """The instructions of one step, with inputs of these dtypes. Raises InputError through its owner."""

    def __init__(self, step: Vector | Reduction, dtypes: Sequence[str], owner: Owner) -> None:
        self._owner, self._step = owner, step
        self._types = {f"in{number}": dtype for number, dtype in enumerate(dtypes)}
        self._integers = {name: _any(dtype) for name, dtype in self._types.items() if _kind(dtype) != "float"}

    def result(self) -> str:
        """Dtype of the result."""
        for instr in self._step.body:
            if instr.name in self._types:
                raise VectorProofErrors.DEFINED_TWICE(where=self._owner.where, name=instr.name)
            if instr.type not in (*_FLOATS, *_BITS, "i1", "index"):
                raise VectorProofErrors.UNKNOWN_TYPE(where=self._owner.where, name=instr.name, type=instr.type)
            value = self._value(instr)
            self._types[instr.name] = _dtype(instr)
            if instr.type not in _FLOATS:
                self._integers[instr.name] = _within(value, _dtype(instr))
        if self._step.result not in self._types:
            raise VectorProofErrors.RESULT_UNDEFINED(where=self._owner.where, result=self._step.result)
        return self._types[self._step.result]

    def _value(self, instr: Instr) -> Integer | None:
        if instr.op == "index":
            return self._index(instr)
        if instr.op == "const":
            if len(instr.args) != 1 or isinstance(instr.args[0], str):
                raise VectorProofErrors.CONST_ARGUMENTS(
                    where=self._owner.where, name=instr.name, arguments=instr.args
                )
            return self._argument(instr, instr.args[0], _dtype(instr))
        if instr.op == "load":
            if not instr.args or not isinstance(instr.args[0], str):
                raise VectorProofErrors.LOAD_ARGUMENTS(where=self._owner.where, name=instr.name, arguments=instr.args)
            indices = [self._argument(instr, arg, "i64") for arg in instr.args[1:]]
            self._owner.load(instr, indices)
            return None
        arity, rule = RULES.get(instr.op, (None, ""))
        if arity != len(instr.args):
            raise VectorProofErrors.ARGUMENT_COUNT(
                where=self._owner.where, name=instr.name, op=instr.op, count=len(instr.args)
            )
        takes = self._takes(instr, rule)
        args = [self._argument(instr, arg, dtype) for arg, dtype in zip(instr.args, takes, strict=True)]
        self._check_defined(instr, args)
        if takes[0] == "i1" and instr.op != "select":  # as a signed number an i1 is 0 or -1
            return None
        return _integer(instr.op, args)

    # -- types

    def _takes(self, instr: Instr, rule: str) -> list[str]:
        """Return the dtype of each argument of an operation. Refuses one that cannot have its declared type."""
        result, first = _dtype(instr), self._first(instr)
        kinds = [_kind(first), _kind(result)]
        fits, takes = {
            "float": (kinds[1] == "float", [result] * len(instr.args)),
            "integer": (kinds[1] == "integer", [result] * len(instr.args)),
            "bits": (kinds[1] != "float", [result] * len(instr.args)),
            "select": (True, ["i1", result, result]),
            "power": (kinds[1] == "float", [result, "i64"]),
            "float comparison": (kinds[0] == "float" and result == "i1", [first, first]),
            "integer comparison": (kinds[0] != "float" and result == "i1", [first, first]),
            "float to float": (kinds == ["float", "float"], [first]),
            "integer to float": (kinds[0] != "float" and kinds[1] == "float", [first]),
            "float to integer": (kinds == ["float", "integer"], [first]),
            "integer to integer": ("float" not in kinds, [first]),
        }[rule]
        if not fits:
            raise VectorProofErrors.RESULT_TYPE(
                where=self._owner.where, name=instr.name, op=instr.op, type=result, argument=first
            )
        return takes

    def _first(self, instr: Instr) -> str:
        """Return the dtype of the first named argument: a literal has the dtype of the other argument."""
        for arg in instr.args:
            if isinstance(arg, str):
                return self._dtype_of(arg)
        return "i64" if instr.type == "i1" else _dtype(instr)

    def _dtype_of(self, name: str) -> str:
        return self._types.get(name, "i64")  # a scalar of the body, or an unknown name, which `_argument` refuses

    def _check_defined(self, instr: Instr, args: Sequence[Integer | None]) -> None:
        """Refuse division by 0, or of the smallest number by -1, and shifts by more bits than there are."""
        by = args[1] if len(args) > 1 else None
        if by is None:
            return
        if instr.op in _DIVISIONS and by.low <= 0 and by.high >= -1:
            raise VectorProofErrors.MAY_DIVIDE_BY_ZERO(
                where=self._owner.where, name=instr.name, op=instr.op, divisor=by
            )
        if instr.op in _SHIFTS and not (by.low >= 0 and by.high < _BITS[_dtype(instr)]):
            raise VectorProofErrors.SHIFT_TOO_FAR(
                where=self._owner.where, name=instr.name, op=instr.op, type=_dtype(instr), bits=by
            )

    def _index(self, instr: Instr) -> Integer:
        dim = instr.args[0] if len(instr.args) == 1 else None
        if not isinstance(dim, int) or not 0 <= dim < len(self._step.dims):
            raise VectorProofErrors.INDEX_DIMENSION(
                where=self._owner.where, name=instr.name, dims=self._step.dims, dim=dim
            )
        if _dtype(instr) != "i64":
            raise VectorProofErrors.INDEX_TYPE(where=self._owner.where, name=instr.name, type=instr.type)
        return Integer(0, self._step.dims[dim] - 1, True)

    def _argument(self, instr: Instr, arg: int | float | str, dtype: str) -> Integer | None:
        """Return the range of an argument of this dtype; None for a float. Refuses undefined arguments and other
        dtypes."""
        if isinstance(arg, str):
            known = arg in self._types
            value = self._integers.get(arg) if known else _within(Integer(*self._owner.scalar(arg)), "i64")
            if self._dtype_of(arg) != dtype:
                raise VectorProofErrors.ARGUMENT_TYPE(
                    where=self._owner.where, name=instr.name, op=instr.op, type=dtype, argument=arg,
                    actual=self._dtype_of(arg),
                )  # fmt: skip
            return value
        if dtype in _FLOATS:
            return None
        every = _any(dtype)
        if not isinstance(arg, int) or not every.low <= arg <= every.high:
            raise VectorProofErrors.LITERAL_TYPE(where=self._owner.where, name=instr.name, literal=arg, type=dtype)
        return Integer(arg, arg, True)


def _any(dtype: str) -> Integer:
    """Return the range of all values of an integer dtype."""
    return Integer(0, 1) if dtype == "i1" else Integer(-(1 << _BITS[dtype] - 1), (1 << _BITS[dtype] - 1) - 1)


def _within(value: Integer | None, dtype: str) -> Integer:
    """Return the range of a value of an integer dtype; the whole range if unknown, or if it may wrap around."""
    every = _any(dtype)
    return value if value is not None and value.low >= every.low and value.high <= every.high else every


def _dtype(instr: Instr) -> str:
    return "i64" if instr.type == "index" else instr.type


def _kind(dtype: str) -> str:
    return "float" if dtype in _FLOATS else "bit" if dtype == "i1" else "integer"


def _integer(op: str, args: Sequence[Integer | None]) -> Integer | None:
    known = [arg for arg in args if arg is not None]
    if len(known) != len(args):
        return None
    if op == "index_cast":
        return known[0]
    if op == "select":
        return _select(*known)
    if len(known) != 2:
        return None
    a, b = known
    exact = a.exact and b.exact and (a.low == a.high or b.low == b.high)
    if op == "addi":
        return Integer(a.low + b.low, a.high + b.high, exact)
    if op == "subi":
        return Integer(a.low - b.high, a.high - b.low, exact)
    if op == "muli":
        ends = [x * y if x and y else 0 for x in (a.low, a.high) for y in (b.low, b.high)]
        return Integer(min(ends), max(ends), exact)
    if op in ("minsi", "maxsi"):
        pick = min if op == "minsi" else max
        return Integer(pick(a.low, b.low), pick(a.high, b.high), exact)
    return _compare(_COMPARE[op], a, b) if op in _COMPARE else None


def _select(condition: Integer, yes: Integer, no: Integer) -> Integer:
    if condition.low > 0:
        return yes
    return no if condition.high == 0 else Integer(min(yes.low, no.low), max(yes.high, no.high))


def _compare(op: str, a: Integer, b: Integer) -> Integer:
    """Return 1 if a comparison always holds, 0 if it never does, else 0 .. 1."""
    below, above, differ = a.high < b.low, a.low > b.high, a.high < b.low or a.low > b.high
    same = a.low == a.high == b.low == b.high
    at_most, at_least = a.high <= b.low, a.low >= b.high
    always = {"lt": below, "le": at_most, "gt": above, "ge": at_least, "eq": same, "ne": differ}[op]
    never = {"lt": at_least, "le": above, "gt": at_most, "ge": below, "eq": differ, "ne": same}[op]
    return Integer(int(always), int(not never))
