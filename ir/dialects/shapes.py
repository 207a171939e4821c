"""Shape signatures for dialect verifiers: one line per operand instead of a page of comparisons.

A signature names dimensions, e.g. ``"1 Hkv T D : f"``. Equal names must have equal sizes in all operands of one
operation, a number must match exactly, and the part after the colon is the element type: ``i1``, ``i64``, ``i8``,
``f32``, ``bf16``, ``index`` (not a tensor), ``f`` for any float type, or ``any`` for any type (``f`` and ``any`` each
stand for one type in the whole operation). ``row`` is ``f``, or i8 for an encoded cache, whose last dimension has the
bytes of an encoded row of the named width.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir

from sscc.ir.kv_rows import RowFormat


class SignatureMismatch(Exception):
    """An operand that does not fit its signature. The message becomes the operation's error."""


def check_signature(
    op: ir.Operation, signature: Mapping[str, str], sizes: Mapping[str, int], *, encoded: RowFormat | None = None
) -> dict[str, int]:
    """Check the operands, then the results, of `op` against `signature`, in order.

    Args:
        op: operation under verification.
        signature: pattern of every operand and then every result, by name.
        sizes: dimensions known beforehand (for example from the cache geometry).
        encoded: encoding of a ``row``; None for rows of floats.

    Returns:
        The sizes of all named dimensions.

    Raises:
        SignatureMismatch: an operand does not match; the message has its name, its type and the expected one.
    """
    bound = dict(sizes)
    element: dict[str, str] = {}
    values = [*op.operands, *op.results]
    if len(values) != len(signature):
        counts = f"{len(op.operands)} operands and {len(op.results)} results"
        raise SignatureMismatch(f"has {counts}, expected {', '.join(signature)}")
    for (name, pattern), value in zip(signature.items(), values, strict=True):
        if pattern.endswith(":row"):
            pattern = pattern.replace(":row", ":encoded" if encoded else ":f")
        _check_value(name, pattern, value.type, bound, element, encoded)
    return bound


def _check_value(
    name: str, pattern: str, type_: ir.Type, bound: dict[str, int], element: dict[str, str], encoded: RowFormat | None
) -> None:
    dims, _, dtype = pattern.partition(":")
    dtype = dtype.strip()
    if dtype == "index":
        if not isinstance(type_, ir.IndexType):
            raise SignatureMismatch(f"{name} is {type_}, expected index")
        return
    expected = dims.split()
    if not isinstance(type_, ir.RankedTensorType) or type_.rank != len(expected):
        raise SignatureMismatch(f"{name} is {type_}, expected a tensor of rank {len(expected)} [{dims.strip()}]")
    if not type_.has_static_shape:
        raise SignatureMismatch(f"{name} is {type_}, expected static sizes")
    row_format = encoded if dtype == "encoded" else None
    dtype = "i8" if dtype == "encoded" else dtype
    for axis, (dim, size) in enumerate(zip(expected, type_.shape, strict=True)):
        in_bytes = row_format if axis == type_.rank - 1 else None  # of an encoded row a letter counts the numbers
        count = in_bytes.numbers(size) if in_bytes else size
        expected_count = int(dim) if dim.isdigit() else bound.setdefault(dim, count)
        expected_size = in_bytes.width(expected_count) if in_bytes else expected_count
        if size != expected_size:
            raise SignatureMismatch(f"{name} is {type_}: dimension {axis} ({dim}) is {size}, expected {expected_size}")
    actual = str(type_.element_type)
    if dtype == "f" and actual not in ("f32", "bf16", "f16", "f64"):
        raise SignatureMismatch(f"{name} is {type_}, expected a float element type")
    expected_type = element.setdefault(dtype, actual) if dtype in ("f", "any") else dtype
    if actual != expected_type:
        raise SignatureMismatch(f"{name} is {type_}, expected element type {expected_type}")
