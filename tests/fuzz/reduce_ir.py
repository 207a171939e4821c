"""``python -m tests.fuzz.reduce_ir DUMP.mlir -- COMMAND ..``: the smallest module on which a command still fails.

COMMAND is run on each candidate with its path as the last word; it fails where its exit code is not 0. Operations are
left out one set after the other: a value that is still read becomes another value of its type, or an empty tensor.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from torch_mlir import ir
from torch_mlir.dialects import tensor

from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.levels import walk
from sscc.ir.rewriting import is_rematerialised
from tests.fuzz.harness import Finding
from tests.fuzz.reduce import reduce

AROUND = ("func.func", "scf.for", "scf.if")

TIMEOUT = 120.0
"""Seconds that a command may take on a candidate; one that takes longer has not failed as the module did."""


def reduced(text: str, still_fails: Callable[[str], bool]) -> str:
    """A module with as few operations as leave `still_fails` true, which it must be of `text`."""
    while True:
        items = list(range(_count(text)))
        kept = reduce(items, lambda part: _fails(text, part, still_fails))
        if len(kept) == len(items):
            return text
        text = without(text, set(items) - set(kept)) or text


def reduced_finding(text: str, judge: Callable[[str], object], tries: int) -> str:
    """Return the smallest module with the finding of `judge` on `text`, found in at most `tries` tries. Raises
    ValueError if `judge` has no finding on `text`."""
    left = tries

    def fails(module: str) -> bool:
        nonlocal left
        left -= 1
        try:
            judge(module)
        except Finding:
            return left >= 0
        except Exception:  # another fault than the one that is looked for
            return False
        return False

    if not fails(text):
        raise ValueError("there is no finding to reduce")
    return reduced(text, fails)


def _fails(text: str, kept: Collection[int], still_fails: Callable[[str], bool]) -> bool:
    left = without(text, set(range(_count(text))) - set(kept))
    return left is not None and still_fails(left)


def _count(text: str) -> int:
    with mlir():
        return len(_removable(parse_module(text, "module")))


def _removable(module: ir.Module) -> list[ir.Operation]:
    """Operations that may be left out, in order: those with results, calls among them, but no functions. What stands in
    the body of one goes with it: the bindings must not hold an operation that is erased with another."""
    return [op for op in walk(module) if op.results and not is_rematerialised(op) and op.parent.name in AROUND]


def without(text: str, numbers: Collection[int]) -> str | None:
    """The module without the operations of these numbers; None where one cannot be done without."""
    with mlir():
        module = parse_module(text, "module")
        operations = _removable(module)
        for number in sorted(numbers, reverse=True):
            if not _leave_out(operations[number]):
                return None
        try:
            module.operation.verify()
        except ir.MLIRError:
            return None
        return print_module(module)


def _leave_out(op: ir.Operation) -> bool:
    for result in op.results:
        if not any(True for _ in result.uses):
            continue
        other = _instead(op, result.type)
        if other is None:
            return False
        result.replace_all_uses_with(other)
    op.erase()
    return True


def _instead(op: ir.Operation, type_: ir.Type) -> ir.Value | None:
    """A value of a type that is there before `op`: an operand, an argument of its block, or an empty tensor."""
    known = [value for value in (*op.operands, *op.block.arguments) if value.type == type_]
    if known:
        return known[0]
    if not isinstance(type_, ir.RankedTensorType):
        return None
    with ir.InsertionPoint(op), op.location:
        empty: ir.Value = tensor.EmptyOp(list(type_.shape), type_.element_type).result
    return empty


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.reduce_ir", description=__doc__)
    parser.add_argument("dump", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="where the smallest module goes (default: beside the dump)")
    parser.add_argument("command", nargs="+", help="behind --")
    options = parser.parse_args()
    text = options.dump.read_text()
    with tempfile.TemporaryDirectory(prefix="sscc-reduce-") as folder:
        candidate = Path(folder) / options.dump.name

        def fails(module: str) -> bool:
            candidate.write_text(module)
            return _exit_code([*options.command, str(candidate)]) not in (0, None)

        if not fails(text):
            parser.error("the command does not fail on the dump as it is")
        smallest = reduced(text, fails)
    output = options.output or options.dump.with_suffix(".reduced.mlir")
    output.write_text(smallest)
    sys.stdout.write(f"{output}: {_count(text)} operations became {_count(smallest)}\n")
    return 0


def _exit_code(words: list[str]) -> int | None:
    try:
        return subprocess.run(words, capture_output=True, timeout=TIMEOUT, check=False).returncode
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    sys.exit(main())
