"""Axes along which the operands and results of an operation correspond: if one is cut, so are the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import linalg

from sscc.ir.dialects import kv
from sscc.ir.levels import walk
from sscc.ir.rewriting import is_zeros, producer
from sscc.passes.tiling import is_contraction


class NotCuttable(Exception):
    """A cut has an impossible consequence."""


@dataclass(frozen=True)
class Space:
    """Axes along which the operands and results of an operation correspond.

    Attributes:
        values: operands and results, with a letter for each axis; axes with equal letters correspond. A letter that
            occurs only once is not cut.
        reduced: letters that the result does not have.
        fixed: letters along which nothing can be cut.
        sums: True if the reduced elements are summed, starting from zero.
    """

    values: tuple[tuple[ir.Value, tuple[str, ...]], ...]
    reduced: frozenset[str]
    fixed: frozenset[str]
    sums: bool

    @property
    def letters(self) -> set[str]:
        return {letter for _, letters in self.values for letter in letters}

    def size(self, letter: str) -> int:
        """Return the number of elements along a letter."""
        return next(int(v.type.shape[ls.index(letter)]) for v, ls in self.values if letter in ls)


_PARALLEL = frozenset({"H", "Hkv", "G", "O"})
_SUMMED = frozenset({"I"})


def space_of(op: ir.Operation) -> Space:
    """Return the space of an operation. Raises NotCuttable for an unknown operation."""
    if op.name.startswith("kv."):
        return _of_kv(op)
    if op.name.startswith("linalg."):
        return _of_linalg(op)
    tensors = [v for v in (*op.operands, *op.results) if isinstance(v.type, ir.RankedTensorType)]
    if op.name.partition(".")[0] in ("arith", "math") and len({tuple(v.type.shape) for v in tensors}) == 1:
        letters = tuple(f"d{axis}" for axis in range(tensors[0].type.rank))
        return Space(tuple((value, letters) for value in tensors), frozenset(), frozenset(), True)
    raise NotCuttable


def _of_kv(op: ir.Operation) -> Space:
    spec = kv.spec_of_op(op)
    named = zip((*spec.inputs, *spec.results), (*op.operands, *op.results), strict=True)
    values = tuple((value, spec.operands[name].dims) for name, value in named if name in spec.operands)
    if "Hc" in {letter for _, dims in values for letter in dims}:
        values = _with_choices(values)
    letters = {letter for _, dims in values for letter in dims}
    reduced = letters & _SUMMED if spec.record.op == "expert_product" else set()
    return Space(values, frozenset(reduced), frozenset(letters - _PARALLEL - reduced), True)


def _with_choices(
    values: tuple[tuple[ir.Value, tuple[str, ...]], ...]
) -> tuple[tuple[ir.Value, tuple[str, ...]], ...]:
    """Return the axes of an index, or of attention to its choice. Where each KV head has its own choice, choices and
    index heads are cut with the KV heads. Where several KV heads share a choice, no head is cut."""
    sizes = {letter: size for value, dims in values for letter, size in zip(dims, value.type.shape, strict=True)}
    if sizes["Hc"] == 1:
        return values
    heads = sizes.get("Hkv", sizes.get("Hi"))
    names = {"Hc": "Hkv", "Hi": "Hkv"} if sizes["Hc"] == heads else {"Hkv": "whole", "H": "whole"}
    return tuple((value, tuple(names.get(letter, letter) for letter in dims)) for value, dims in values)


def _of_linalg(op: ir.Operation) -> Space:
    maps = [ir.AffineMapAttr(attribute).value for attribute in linalg.get_indexing_maps(op)]
    values = list(zip(op.operands, map(_letters, maps), strict=True))
    written = values[-1][1]
    values += [(result, written) for result in op.results]
    fixed = {f"d{dim}" for affine in maps for e in affine.results for dim in _composite(e)}
    indices = [inner for inner in walk(op) if inner.name == "linalg.index"]
    indexed = {inner.results[0]: f"d{inner.attributes['dim'].value}" for inner in indices}
    for inner in walk(op):
        places = list(inner.operands)[1:] if inner.name == "tensor.extract" else []
        if places:
            letters = tuple(indexed.get(place, f"?{number}") for number, place in enumerate(places))
            values.append((inner.operands[0], letters))
            fixed |= {letter for letter in letters if letter.startswith("?")}
        else:
            fixed |= {indexed[value] for value in inner.operands if value in indexed}
    tensors = tuple((v, letters) for v, letters in values if isinstance(v.type, ir.RankedTensorType))
    reduced = {letter for _, letters in tensors for letter in letters} - set(written) - fixed
    return Space(tensors, frozenset(reduced), frozenset(fixed), is_contraction(op) or is_sum(op))


def _letters(affine: ir.AffineMap) -> tuple[str, ...]:
    """Return a letter for each axis that a map reads: that of the dimension, or a new one."""
    return tuple(
        f"d{ir.AffineDimExpr(e).position}" if isinstance(e, ir.AffineDimExpr) else f"c{number}"
        for number, e in enumerate(affine.results)
    )


def _composite(expression: Any) -> Iterator[int]:
    """Return the dimensions in an expression that is neither a dimension nor a constant."""
    if isinstance(expression, ir.AffineBinaryExpr):
        for side in (expression.lhs, expression.rhs):
            yield from [ir.AffineDimExpr(side).position] if isinstance(side, ir.AffineDimExpr) else _composite(side)


def looks_up(op: ir.Operation) -> bool:
    """Return True if an operation looks rows up in a table."""
    return any(inner.name == "tensor.extract" for inner in walk(op))


def is_sum(op: ir.Operation) -> bool:
    """Return True if a linalg.generic adds to its result, which was zero."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return False
    block = op.regions[0].blocks[0]
    *_, last = block.operations
    total = producer(last.operands[0])
    adds = total is not None and total.name == "arith.addf" and block.arguments[-1] in list(total.operands)
    return adds and is_zeros(op.operands[-1])
