"""What each kind of step reads and writes, the shapes it takes, and the scalars it needs in range.

A pattern is a dtype ("float": f32 or bf16) and a size per dimension, each a number or a letter that stands for the
same size in all operands of the step. "encoded" is i8 rows of codes and a scale, "rows" those or floats; the last size
is the width of the numbers, whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sscc.ir.geometry import LARGEST_POOL
from sscc.runtime import schedule as sch

Sizes = Mapping[str, int]
Refuse = Callable[[str], None]

LARGEST_SCALE = 1024.0
"""Of attention. Models scale by 1 at most; scores that are too large round by more than the exponent can stand."""

SCALE_BYTES = 4
"""Elements of i8 by which an encoded row is wider than its numbers: an f32."""


@dataclass(frozen=True)
class Operand:
    """One operand of a step that is not affine.

    Attributes:
        field: of the step's record.
        mode: "read"; "write": every element; "update": some, the others keep their bytes; "part": some, the
            others are left undefined.
        pattern: dtype and shape.
        writes, reads: elements that one firing moves, from the sizes of the letters, the last one of the pattern as
            the operand stores it; None: all of them, but that what is written is not read.
    """

    field: str
    mode: str
    pattern: str
    writes: Callable[[Sizes], int] | None = None
    reads: Callable[[Sizes], int] | None = None


def _row(width: str) -> Callable[[Sizes], int]:
    return lambda n: n["B"] * n["V"] * n[width]


def _chosen(width: str) -> Callable[[Sizes], int]:
    return lambda n: n["B"] * n["V"] * n["K"] * n[width]


def _window(width: str) -> Callable[[Sizes], int]:
    return lambda n: n["H"] * min(n["N"], n["C"]) * (n["D"] if width else 1)


def _chunk(width: str) -> Callable[[Sizes], int]:
    return lambda n: n["V"] * n["C"] * n[width]


def _prompt(width: str) -> Callable[[Sizes], int]:
    return lambda n: n["V"] * n["T"] * n[width]


OPERANDS: dict[type, tuple[Operand, ...]] = {
    sch.UpdateRows: (
        Operand("cache", "update", "rows B V R D", _row("D")),
        Operand("new", "read", "rows B V 1 D"),
        Operand("row", "read", "i64 B"),
        Operand("active", "read", "i1 B"),
    ),
    sch.QuantizeRows: (Operand("source", "read", "float B V J D"), Operand("out", "write", "encoded B V J D")),
    sch.CachedAttention: (
        Operand("query", "read", "float B H 1 D"),
        Operand("key", "read", "rows B V R D"),
        Operand("value", "read", "rows B V R W"),
        Operand("valid", "read", "i1 B R"),
        Operand("out", "write", "float B H 1 W"),
    ),
    sch.CausalAttention: (
        Operand("query", "read", "float 1 H C D"),
        Operand("key", "read", "float 1 V T D"),
        Operand("value", "read", "float 1 V T W"),
        Operand("out", "write", "float 1 H C W"),
        Operand("log_sum_exp", "write", "f32 1 H C"),
    ),
    sch.Observe: (
        Operand("observed", "update", "float 1 H N D", _window("D")),
        Operand("query", "read", "float 1 H C D"),
    ),
    sch.ObservationScores: (
        Operand("observed", "read", "float 1 H N D"),
        Operand("key", "read", "float 1 V T D"),
        Operand("scores", "part", "f32 V T"),
        Operand("log_sum_exp", "read", "f32 1 H N"),
    ),
    sch.Pool: (Operand("scores", "read", "f32 V T"), Operand("pooled", "part", "f32 V T")),
    sch.Select: (Operand("scores", "read", "f32 V T"), Operand("selected", "write", "i64 V K")),
    sch.GatherRows: (
        Operand("source", "read", "float B V T D", reads=lambda n: n.get("B", 1) * n["V"] * n["J"] * n["D"]),
        Operand("index", "read", "i64 B V J"),
        Operand("out", "write", "float B V J D"),
    ),
    sch.DecodeAttention: (
        Operand("query", "read", "float B H 1 D"),
        Operand("new_key", "read", "float B V 1 D"),
        Operand("new_value", "read", "float B V 1 W"),
        Operand("key", "read", "rows B V R D"),
        Operand("value", "read", "rows B V R W"),
        Operand("k_cache", "update", "rows B V R D", _row("D")),
        Operand("v_cache", "update", "rows B V R W", _row("W")),
        Operand("position", "read", "i64 B"),
        Operand("valid_topk", "read", "i64 B"),
        Operand("active", "read", "i1 B"),
        Operand("out", "write", "float B H 1 W"),
    ),
    sch.IndexedAttention: (
        Operand("query", "read", "float B H 1 D"),
        Operand("new_key", "read", "float B V 1 D"),
        Operand("new_value", "read", "float B V 1 W"),
        Operand("key", "read", "float B V R D"),
        Operand("value", "read", "float B V R W"),
        Operand("k_cache", "update", "float B V R D", _row("D")),
        Operand("v_cache", "update", "float B V R W", _row("W")),
        Operand("k_prompt", "read", "float B V T D", reads=_chosen("D")),
        Operand("v_prompt", "read", "float B V T W", reads=_chosen("W")),
        Operand("selected", "read", "i64 B V K"),
        Operand("position", "read", "i64 B"),
        Operand("valid_topk", "read", "i64 B"),
        Operand("active", "read", "i1 B"),
        Operand("out", "write", "float B H 1 W"),
    ),
    sch.ChunkAttention: (
        Operand("query", "read", "float 1 H C D"),
        Operand("new_key", "read", "float 1 V C D"),
        Operand("new_value", "read", "float 1 V C W"),
        Operand("k_scratch", "update", "float 1 V T D", _chunk("D"), _prompt("D")),
        Operand("v_scratch", "update", "float 1 V T W", _chunk("W"), _prompt("W")),
        Operand("observed", "update", "float 1 H N D", _window("D")),
        Operand("log_sum_exp", "update", "f32 1 H N", _window("")),
        Operand("out", "write", "float 1 H C W"),
    ),
    sch.Compress: (
        Operand("observed", "read", "float 1 H N D"),
        Operand("log_sum_exp", "read", "f32 1 H N"),
        Operand("key", "read", "float 1 V T D", reads=lambda n: n["V"] * (n["T"] + n["R"]) * n["D"]),
        Operand("value", "read", "float 1 V T W", reads=lambda n: n["V"] * n["R"] * n["W"]),
        Operand("k_cache", "write", "rows 1 V R D"),
        Operand("v_cache", "write", "rows 1 V R W"),
        Operand("selected", "write", "i64 V K"),
    ),
}
"""Every step kind but the affine ones (Vector, Reduction, Product)."""

CACHES = (("k_cache", "key"), ("v_cache", "value"))
"""Operands that are written, and by which name the same rows are read."""

ALIKE: dict[type, tuple[str, ...]] = {
    sch.UpdateRows: ("cache", "new"),
    sch.DecodeAttention: ("key", "value", "k_cache", "v_cache"),
}
"""Operands whose rows are all encoded, or all floats."""


def check_sizes(step: Any, sizes: Sizes, refuse: Refuse) -> None:
    """The sizes of a cache and of the groups of heads: what patterns cannot say."""
    if "H" in sizes and "V" in sizes and sizes["H"] % sizes["V"]:
        refuse(f"{sizes['H']} query heads do not divide into groups of {sizes['V']} KV heads")
    if isinstance(step, sch.DecodeAttention | sch.IndexedAttention | sch.Compress):
        if step.sink < 0 or step.recent < 1:
            refuse(f"the ring has sink {step.sink} and recent {step.recent}")
        _check_rows(step, sizes, refuse)
    if isinstance(step, sch.Select) and (step.sink < 0 or step.recent < 0):
        refuse(f"it selects with sink {step.sink} and recent {step.recent}")
    if isinstance(step, sch.ObservationScores) and step.recent < 0:
        refuse(f"it scores with recent {step.recent}")
    if hasattr(step, "scale") and not 0 < step.scale <= LARGEST_SCALE:
        refuse(f"its scale is {step.scale}, it must be above 0 and at most {LARGEST_SCALE:g}")
    if isinstance(step, sch.Pool):
        _check_pooling(step.width, step.mode, refuse)
    if isinstance(step, sch.Compress):
        _check_pooling(step.pool, step.pool_mode, refuse)


def _check_pooling(width: int, mode: str, refuse: Refuse) -> None:
    if width not in range(1, LARGEST_POOL, 2) or mode not in ("avg", "max"):
        refuse(f"it pools with mode {mode!r} and width {width}")


def _check_rows(step: sch.DecodeAttention | sch.IndexedAttention | sch.Compress, sizes: Sizes, refuse: Refuse) -> None:
    ring, rows, topk = step.sink + step.recent, sizes["R"], sizes.get("K", 0)
    if ring > rows:
        refuse(f"rows 0 .. {ring - 1} of sink {step.sink} and recent {step.recent} are used, the cache has {rows} rows")
    if isinstance(step, sch.Compress) and rows not in (ring + topk, ring):
        refuse(f"sink {step.sink} + recent {step.recent} + topk {topk} rows are written, the cache has {rows}")
    if isinstance(step, sch.IndexedAttention) and ring != rows:
        refuse(f"sink {step.sink} + recent {step.recent} rows come before the prompt's, the cache has {rows}")


def scalar_needs(step: Any, sizes: Sizes) -> list[tuple[str, int, int]]:
    """(field, lowest, highest) of every scalar that decides which rows are touched."""
    if isinstance(step, sch.CausalAttention):
        return [("start", 0, sizes["T"] - sizes["C"])]
    if isinstance(step, sch.ChunkAttention):
        return [("start", 0, sizes["T"] - sizes["C"]), ("length", 1, sizes["T"])]
    if isinstance(step, sch.ObservationScores | sch.Pool | sch.Select | sch.Compress):
        return [("length", 1, sizes["T"])]
    return []


SCALAR_FIELDS = ("start", "length")
"""Fields of steps that name a scalar of the body."""
