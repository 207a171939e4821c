"""The body of a linalg.generic as the schedule's vector program."""

from __future__ import annotations

from typing import Union

from torch_mlir import ir

from sscc.ir.errors import ErrorKind, UnsupportedError
from sscc.ir.schedule import Instr

Literal = Union[int, float]
Arg = Union[int, float, str]

_CMPF = "false oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno true".split()
_CMPI = "eq ne slt sle sgt sge ult ule ugt uge".split()
_TYPES = {name: name for name in ("f32", "f64", "bf16", "f16", "i1", "i8", "i32", "i64")} | {"index": "i64"}


class LoopBodyErrors(ErrorKind):
    READ_FROM_OUTSIDE = (
        UnsupportedError,
        "{origin}a loop body reads {type} from outside, which a schedule cannot express",
    )
    OPERATION = UnsupportedError, "{origin}a schedule has no vector instruction for '{op}' in a loop body"
    TYPE = UnsupportedError, "{origin}a loop body computes in {type}, for which a schedule has no dtype"


class BodyTranslator:
    """Translator of the operations of one block, which names inputs `in0`.. and results `v0`..

    Args:
        block: the body block.
        names: names of the kernel's tensor and scalar parameters.
        literals: values known at compile time.
        origin: source line with which an error's message begins (`origin_of`).
    """

    def __init__(
        self, block: ir.Block, names: dict[ir.Value, str], literals: dict[ir.Value, Literal], origin: str = ""
    ) -> None:
        self.origin = origin
        self.block = block
        self.names = names
        self.known: dict[ir.Value, Arg] = dict(literals)
        self.instructions: dict[ir.Value, Instr] = {}
        *self.operations, self.terminator = [op.operation for op in block.operations]

    def bind(self, argument: ir.Value, value: Arg) -> None:
        """Set the value of a block argument."""
        self.known[argument] = value

    def bind_output(self, argument: ir.Value, init: Literal | None) -> None:
        """Set the initial value of the output, which the block may read only if it is a constant."""
        if init is not None:
            self.known[argument] = init

    def program_for(self, value: ir.Value) -> tuple[tuple[Instr, ...], str]:
        """Return the instructions that compute `value`, in order, and its name."""
        for op in self._needed(value):
            if op.results[0] not in self.known:
                self._translate(op)
        needed = tuple(
            self.instructions[op.results[0]] for op in self._needed(value) if op.results[0] in self.instructions
        )
        name = self._arg(value)
        if isinstance(name, str):
            return needed, name
        return (*needed, Instr("literal", "const", (name,), self._type(value.type))), "literal"

    def product_of(self, value: ir.Value) -> tuple[str, str] | None:
        """Return (a, b) if `value` is in_a * in_b, each optionally widened first; None otherwise."""
        op = value.owner
        if isinstance(op, ir.Block) or op.operation.name != "arith.mulf":
            return None
        factors = []
        for operand in op.operation.operands:
            source = operand.owner
            if not isinstance(source, ir.Block) and source.operation.name == "arith.extf":
                operand = source.operation.operands[0]
            name = self.known.get(operand)
            if not isinstance(name, str):
                return None
            factors.append(name)
        return factors[0], factors[1]

    def _needed(self, value: ir.Value) -> list[ir.Operation]:
        """Return the operations that `value` depends on, in order."""
        needed_values = {value}
        needed = []
        for op in reversed(self.operations):
            if op.results and op.results[0] in needed_values:
                needed.append(op)
                needed_values.update(op.operands)
        return needed[::-1]

    def _arg(self, value: ir.Value) -> Arg:
        if value in self.known:
            return self.known[value]
        if value in self.names:
            return self.names[value]
        raise LoopBodyErrors.READ_FROM_OUTSIDE(origin=self.origin, type=value.type)

    def _translate(self, op: ir.Operation) -> None:
        if op.name == "arith.constant":
            self.known[op.results[0]] = literal(op.attributes["value"])
            return
        name, args = self._operation(op)
        result = op.results[0]
        if name in ("sitofp", "uitofp") and not isinstance(args[0], str):
            self.known[result] = float(args[0])  # a literal has no dtype to convert from
            return
        instruction = Instr(f"v{len(self.instructions)}", name, tuple(args), self._type(result.type))
        self.instructions[result] = instruction
        self.known[result] = instruction.name

    def _operation(self, op: ir.Operation) -> tuple[str, list[Arg]]:
        dialect, _, name = op.name.partition(".")
        if op.name == "linalg.index":
            return "index", [op.attributes["dim"].value]
        if op.name == "tensor.extract":
            table, *indices = op.operands
            return "load", [self.names[table], *map(self._arg, indices)]
        if dialect not in ("arith", "math"):
            raise LoopBodyErrors.OPERATION(origin=self.origin, op=op.name)
        if name in ("cmpf", "cmpi"):
            predicates = _CMPF if name == "cmpf" else _CMPI
            name = f"{name}_{predicates[op.attributes['predicate'].value]}"
        return name, [self._arg(operand) for operand in op.operands]

    def _type(self, type_: ir.Type) -> str:
        name = _TYPES.get(str(type_))
        if name is None:
            raise LoopBodyErrors.TYPE(origin=self.origin, type=type_)
        return name


def literal(attribute: ir.Attribute) -> Literal:
    """Return the number in a scalar attribute; flags are 0 and 1, as everywhere in a schedule."""
    value: Literal = attribute.value
    return int(value) if isinstance(value, bool) else value
