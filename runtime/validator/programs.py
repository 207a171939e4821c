"""Vector programs: names, numbers of arguments, and the ranges of integers, which decide where loads go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NoReturn, Protocol

from sscc.runtime.schedule import Instr, Reduction, Vector
from sscc.runtime.validator.linear import Range

_FLOATS = ("f32", "bf16")
ARITY: dict[str, int] = {
    **dict.fromkeys("negf absf exp exp2 expm1 log log2 log10 log1p sqrt rsqrt tanh sin cos tan atan".split(), 1),
    **dict.fromkeys("sinh cosh erf erfc floor ceil round roundeven trunc absi".split(), 1),
    **dict.fromkeys("truncf extf sitofp uitofp fptosi fptoui extsi extui trunci index_cast index_castui".split(), 1),
    **dict.fromkeys("addf subf mulf divf remf maximumf minimumf maxnumf minnumf atan2 powf copysign fpowi".split(), 2),
    **dict.fromkeys("addi subi muli divsi floordivsi ceildivsi remsi maxsi minsi shli shrsi andi ori xori".split(), 2),
    **dict.fromkeys((f"cmpf_{n}" for n in "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno".split()), 2),
    **dict.fromkeys(("cmpf_false", "cmpf_true", *(f"cmpi_{n}" for n in "eq ne slt sle sgt sge".split())), 2),
    **dict.fromkeys((f"cmpi_{n}" for n in "ult ule ugt uge".split()), 2),
    **dict.fromkeys("fma select".split(), 3),
}
"""Arguments of every operation of vector programs (MLIR's arith and math dialects), the special ones left out."""

_COMPARE = {"cmpi_eq": "eq", "cmpi_ne": "ne", "cmpi_slt": "lt", "cmpi_sle": "le", "cmpi_sgt": "gt", "cmpi_sge": "ge"}


@dataclass(frozen=True)
class Integer:
    """The range of an integer or truth value. Exact: it surely takes both ends."""

    low: float = -inf
    high: float = inf
    exact: bool = False


class Owner(Protocol):
    """The proof of the body that a program stands in."""

    def load(self, instr: Instr, indices: Sequence[Integer | None], count: int) -> None: ...

    def scalar(self, name: str) -> Range: ...

    def fail(self, reason: str) -> NoReturn: ...


class VectorProgram:
    """The instructions of one step, with inputs of these dtypes. Raises InputError through its owner."""

    def __init__(self, step: Vector | Reduction, dtypes: Sequence[str], owner: Owner) -> None:
        self._owner, self._step = owner, step
        self._types = {f"in{number}": dtype for number, dtype in enumerate(dtypes)}
        self._integers = {name: Integer() for name, dtype in self._types.items() if dtype not in _FLOATS}

    def result(self) -> str:
        """The dtype of the result."""
        for instr in self._step.body:
            if instr.name in self._types:
                self._owner.fail(f"the vector program defines {instr.name!r} twice")
            value = self._value(instr)
            self._types[instr.name] = "i64" if instr.type == "index" else instr.type
            if instr.type not in _FLOATS:
                self._integers[instr.name] = value or Integer()
        if self._step.result not in self._types:
            self._owner.fail(f"the result {self._step.result!r} of the vector program is not defined")
        return self._types[self._step.result]

    def _value(self, instr: Instr) -> Integer | None:
        if instr.op == "index":
            return self._index(instr)
        if instr.op == "const":
            if len(instr.args) != 1 or isinstance(instr.args[0], str):
                self._owner.fail(f"const {instr.name!r} takes one literal, it has {list(instr.args)}")
            return self._argument(instr.args[0])
        if instr.op == "load":
            if not instr.args or not isinstance(instr.args[0], str):
                self._owner.fail(f"load {instr.name!r} takes the name of a parameter, it has {list(instr.args)}")
            indices = [self._argument(arg) for arg in instr.args[1:]]
            self._owner.load(instr, indices, prod(self._step.dims))
            return None
        if ARITY.get(instr.op, -1) != len(instr.args):
            self._owner.fail(f"{instr.name!r} is {instr.op!r} of {len(instr.args)} arguments")
        return _integer(instr.op, [self._argument(arg) for arg in instr.args])

    def _index(self, instr: Instr) -> Integer:
        dim = instr.args[0] if len(instr.args) == 1 else None
        if not isinstance(dim, int) or not 0 <= dim < len(self._step.dims):
            self._owner.fail(f"index {instr.name!r} takes a dimension of {list(self._step.dims)}, it has {dim}")
        return Integer(0, self._step.dims[dim] - 1, True)

    def _argument(self, arg: int | float | str) -> Integer | None:
        """None for a float. Refuses a name that is not defined."""
        if isinstance(arg, int):
            return Integer(arg, arg, True)
        if isinstance(arg, float):
            return None
        if arg not in self._types:
            return Integer(*self._owner.scalar(arg))
        return self._integers.get(arg)


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
    """1 where it always holds, 0 where it never does."""
    below, above, apart = a.high < b.low, a.low > b.high, a.high < b.low or a.low > b.high
    same = a.low == a.high == b.low == b.high
    at_most, at_least = a.high <= b.low, a.low >= b.high
    always = {"lt": below, "le": at_most, "gt": above, "ge": at_least, "eq": same, "ne": apart}[op]
    never = {"lt": at_least, "le": above, "gt": at_most, "ge": below, "eq": apart, "ne": same}[op]
    return Integer(int(always), int(not never))
