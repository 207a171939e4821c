"""The small faults that a source file can have: each is one expression or statement, written otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SILENT = frozenset({"count", "debug", "info", "warning", "setLevel"})
"""Calls that only tell somebody something: statistics and logs."""


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: relative to the root. scope: the function or class around it, "" for the module.
        line: from 1. begin, end: offsets in the file's bytes. before, after: the text there, and what replaces it.
        number: which of those in the scope that are written alike.
    """

    file: str
    scope: str
    line: int
    begin: int
    end: int
    before: str
    after: str
    number: int

    @property
    def key(self) -> str:
        """The same as long as the code around stays, wherever it moves in its file."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        again = f" #{self.number}" if self.number else ""
        return f"{self.file}: {self.scope}: {before} -> {after}{again}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.begin] + self.after.encode() + source[self.end :]


def mutants(file: str, source: str) -> list[Mutant]:
    """All of a file, in order."""
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return finder.mutants


class _Finder(ast.NodeVisitor):
    """Visits what is executed: no annotations, no docstrings, no messages of errors."""

    def __init__(self, file: str, source: str) -> None:
        self.file, self.source = file, source.encode()
        self.mutants: list[Mutant] = []
        self._starts = [0]
        for line in self.source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._scope: list[str] = []
        self._known: dict[str, int] = {}

    def _add(self, node: ast.expr | ast.stmt, after: str) -> None:
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before, scope = self.source[begin:end].decode(), ".".join(self._scope)
        mutant = Mutant(self.file, scope, node.lineno, begin, end, before, after, 0)
        number = self._known[mutant.key] = self._known.get(mutant.key, -1) + 1
        self.mutants.append(Mutant(self.file, scope, node.lineno, begin, end, before, after, number))

    def _add_expression(self, old: ast.expr, new: ast.expr) -> None:
        self._add(old, f"({ast.unparse(new)})")

    # ------------------------------------------------------------------------------------------------ what is left out

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *node.kw_defaults):
            if default is not None:
                self.visit(default)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._scope.append(node.name)
        self.visit_arguments(node.args)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negated(node.test)
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """`strict=True` asserts that lengths are equal."""
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Names and messages."""

    # ------------------------------------------------------------------------------------------------------ statements

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "continue")

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call) or _called(node.value) in SILENT:
            return
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if isinstance(node.value, ast.Compare | ast.BoolOp):
            self._negated(node.value)
        elif not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool | None)):  # None is False
            self._add(node, "return None")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave assertions unchanged: they help the type checker."""

    # ----------------------------------------------------------------------------------------------------- expressions

    def _negated(self, node: ast.expr) -> None:
        self._add(node, f"(not ({ast.unparse(node)}))")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negated(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, operator in enumerate(node.ops):
            other = COMPARISONS[type(operator)]()
            operators = [*node.ops[:index], other, *node.ops[index + 1 :]]
            self._add_expression(node, ast.Compare(node.left, operators, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add_expression(node, ast.BoolOp(other, node.values))
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            self._add_expression(node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add_expression(node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = ARITHMETIC.get(type(node.op))
        text = any(isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side)
                   for side in (node.left, node.right))  # fmt: skip
        if other is not None and not text:
            self._add_expression(node, ast.BinOp(node.left, other(), node.right))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif _is_number(node):
            self._add(node, f"({node.value!r} + 1)")


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def lines_of(mutant: Mutant) -> Iterator[str]:
    """The change as a diff."""
    yield f"{mutant.file}:{mutant.line} in {mutant.scope or 'the module'}"
    yield from (f"  - {line}" for line in mutant.before.splitlines())
    yield from (f"  + {line}" for line in mutant.after.splitlines())
