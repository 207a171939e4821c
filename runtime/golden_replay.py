"""The replay of a golden through a session: every tensor that was recorded is compared, and where they first differ.

Both sides are numpy arrays; what differs by rounding alone is told from what is wrong by the tolerances below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sscc.ir.cache_plan import Stream
from sscc.ir.errors import CheckError, ErrorKind, InputError, SsccError
from sscc.ir.kv_rows import INT4
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session import Session

QUANTISED = "f32 with quantised weights"
ENCODED = {"int8": "f32 with int8 KV rows", "int4": "int4 KV rows"}
TOLERANCE = {"f32": 1e-4, QUANTISED: 1e-3, ENCODED["int8"]: 2e-2, "bf16": 5e-2, ENCODED["int4"]: 1.5e-1}
"""Largest error of a row (last axis), relative to the norm of that row or of the average row.

Both sides compute the same formulas and round in different places. f32: a rounding is 6e-8, a sum of k terms
errs by about sqrt(k) of them and some hundred operations follow each other through the layers, which gives
1e-6 to 1e-5; 1e-4 leaves a decade. bf16: a rounding is 2e-3 and every layer adds a few to the residual
stream, so errors grow with the square root of their number: 5e-2 is some 600 independent roundings. A wrong
row, position or head is an error of order 1 in both. With quantised weights the native interpreter rounds the other
factor of a product to 16 bits, which is an error of about 2e-5 in each. With int8 KV rows a number that lies between
two codes may take either, which is a 127th of the largest number of its row; with int4 rows a 7th of the largest of 32.
"""

EXCUSED = {"f32": 0.01, QUANTISED: 0.05, ENCODED["int8"]: 0.05, "bf16": 0.1, ENCODED["int4"]: 0.1}
"""Share of a layer's picks that may differ, at least one per KV head: scores nearer than rounding are ties."""


class GoldenReplayErrors(ErrorKind):
    LOGITS_DIFFER = (
        CheckError,
        "first diverging tensor of {tensors}: {tensor} differs (max abs {max_abs:.3g}, max rel {max_rel:.3g}, "
        "correlation {correlation:.6f}): the largest error of a row is {rowwise:.3g} of its norm, and {dtype} allows "
        "{tolerance:g}",
    )
    CACHE_DIFFERS = (
        CheckError,
        "first diverging tensor of {tensors}: {tensor} of layer {layer} differs (max abs {max_abs:.3g}, max rel "
        "{max_rel:.3g}, correlation {correlation:.6f}): the largest error of a row is {rowwise:.3g} of its norm, and "
        "{dtype} allows {tolerance:g}",
    )
    SELECTION_DIFFERS = (
        CheckError,
        "first diverging tensor of {tensors}: {tensor} of layer {layer} differs: {differing} of {selected} selected "
        "positions are others, and {dtype} allows {allowed} near ties",
    )
    UNKNOWN_TENSORS = InputError, "the golden holds tensors that this program does not compute: {unknown!r}"
    SHAPE_DIFFERS = InputError, "golden tensor {tensor!r} has the shape [{shape}], but the program's has [{computed}]"


# ------------------------------------------------------------------------------------------------- comparing


@dataclass(frozen=True)
class Difference:
    """How far `a` is from `b`.

    Attributes:
        max_abs: largest |a - b|.
        max_rel: largest |a - b| / |b|, where |b| counts as at least a thousandth of the largest |b|.
        correlation: Pearson's, over all elements.
        normwise: ||a - b|| / ||b||.
        rowwise: largest ||a - b|| / ||b|| of a row (last axis), where ||b|| counts as at least the root mean
            square over rows.

    Everything is infinite, and the correlation 0, where a NaN or an infinity is in one and not in the other.
    """

    max_abs: float
    max_rel: float
    correlation: float
    normwise: float
    rowwise: float

    def __str__(self) -> str:
        return f"max abs {self.max_abs:.3g}, max rel {self.max_rel:.3g}, correlation {self.correlation:.6f}"


def compare(a: Array, b: Array) -> Difference:
    """Compares `a` with the reference `b`, arrays of one shape, in f64."""
    if a.size == 0:
        return Difference(0.0, 0.0, 1.0, 0.0, 0.0)
    with np.errstate(all="ignore"):  # infinities are what this is about
        return _compare(a.astype(np.float64), b.astype(np.float64))


def _compare(a: Array, b: Array) -> Difference:
    error = np.where(a == b, 0.0, a - b)  # equal infinities are no error
    if not np.isfinite(error).all():
        return Difference(math.inf, math.inf, 0.0, math.inf, math.inf)
    b = np.nan_to_num(b)
    size = np.abs(b)
    width = b.shape[-1] if b.ndim else 1
    rows, row_errors = (np.linalg.norm(each.reshape(-1, width), axis=1) for each in (b, error))
    typical = np.sqrt(np.square(rows).mean())
    return Difference(
        max_abs=float(np.abs(error).max()),
        max_rel=_ratio(np.abs(error), np.maximum(size, size.max() / 1000)),
        correlation=_correlation(np.nan_to_num(a), b),
        normwise=_ratio(np.linalg.norm(error.reshape(-1)), np.linalg.norm(b.reshape(-1))),
        rowwise=_ratio(row_errors, np.maximum(rows, typical)),
    )


def _ratio(error: Array | np.floating[Any], size: Array | np.floating[Any]) -> float:
    """The largest error / size, where 0 / 0 is 0 and anything else over 0 is infinite."""
    return float(np.where(error == 0, 0.0, error / size).max())


def _correlation(a: Array, b: Array) -> float:
    a, b = (a - a.mean()).reshape(-1), (b - b.mean()).reshape(-1)
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    if scale == 0.0:
        return float(np.array_equal(a, b))
    return float(a @ b) / scale


# --------------------------------------------------------------------------------------------------- replay


@dataclass(frozen=True)
class Check:
    """The comparison of one golden tensor.

    Attributes:
        passed: the difference is within the tolerance.
        layer: whose cache or picks these are; None for logits.
        picks, excused: positions that were selected, and those of them that differ, at most `allowed`.
    """

    name: str
    passed: bool
    difference: Difference
    layer: int | None = None
    picks: int = 0
    excused: int = 0
    allowed: int = 0

    def __str__(self) -> str:
        picks = f", {self.excused} of {self.picks} picks differ" if self.picks else ""
        return f"{self.name}: {'agrees' if self.passed else 'DIFFERS'} ({self.difference}{picks})"


@dataclass(frozen=True)
class ReplayReport:
    """The outcome of a replay, tensors in execution order."""

    dtype: str
    checks: Sequence[Check]

    @property
    def first_failure(self) -> Check | None:
        return next((check for check in self.checks if not check.passed), None)

    @property
    def passed(self) -> bool:
        return self.first_failure is None

    @property
    def excused(self) -> int:
        """Picks that differ from the golden's and were taken for near ties."""
        return sum(check.excused for check in self.checks if check.passed)

    def summary(self) -> str:
        error = self.error
        if error is not None:
            return str(error)
        worst = max(self.checks, key=lambda check: check.difference.rowwise, default=None)
        near = f", {self.excused} near ties excused" if self.excused else ""
        allowed = f"{TOLERANCE[self.dtype]:g} of a row's norm"
        return f"{len(self.checks)} golden tensors agree within {allowed}{near}; largest difference: {worst}"

    @property
    def error(self) -> SsccError | None:
        """The error about the first tensor that differs; None if all agree."""
        failure = self.first_failure
        if failure is None:
            return None
        fields: dict[str, Any] = {"tensors": len(self.checks), "tensor": failure.name, "dtype": self.dtype}
        if failure.picks:
            return GoldenReplayErrors.SELECTION_DIFFERS(
                **fields, layer=failure.layer, differing=failure.excused, selected=failure.picks,
                allowed=failure.allowed,
            )  # fmt: skip
        d = failure.difference
        fields |= {"max_abs": d.max_abs, "max_rel": d.max_rel, "correlation": d.correlation, "rowwise": d.rowwise}
        fields["tolerance"] = TOLERANCE[self.dtype]
        if failure.layer is None:
            return GoldenReplayErrors.LOGITS_DIFFER(**fields)
        return GoldenReplayErrors.CACHE_DIFFERS(**fields, layer=failure.layer)

    def require(self) -> None:
        """Raise CheckError about the first tensor that differs, if any does."""
        error = self.error
        if error is not None:
            raise error


def replay(session: Session, golden: Golden, *, quantised: bool = False) -> ReplayReport:
    """Runs the golden's prompt and tokens in slot 0 and compares every tensor that the golden holds.

    Only valid rows of caches are compared. Picks may differ where scores are nearly equal (`EXCUSED`); rows of
    such picks are left out, and take the golden's K and V (or where they are indexed its picks) before decoding, so
    that logits compare like with like.

    Args:
        quantised: whether the program's weights are.

    Raises InputError for a golden that does not fit the program; UsageError for tokens that do not.
    """
    dtype = session.signature.dtype
    g = session.signature.geometry
    if g.dtype in ENCODED:
        dtype = ENCODED[g.dtype] if dtype == "f32" or g.row_format is INT4 else dtype
    elif dtype == "f32" and quantised:
        dtype = QUANTISED
    session.release(0)
    prefill_logits = session.prefill(0, golden.prompt)
    layers = range(session.signature.layers)
    checks = [check for layer in layers for check in _check_layer(session, golden, layer, dtype)]
    if "prefill_logits" in golden.tensors:
        checks.append(_check("prefill_logits", prefill_logits, golden, dtype))
    for step, token in enumerate(golden.new_tokens):
        logits = session.decode({0: token})[0]
        if f"logits.{step}" in golden.tensors:
            checks.append(_check(f"logits.{step}", logits, golden, dtype))
    if len(checks) != len(golden.tensors):
        unknown = sorted(set(golden.tensors) - {check.name for check in checks})
        raise GoldenReplayErrors.UNKNOWN_TENSORS(unknown=unknown)
    return ReplayReport(dtype, sorted(checks, key=lambda check: list(golden.tensors).index(check.name)))


def _check(
    name: str, values: Array, golden: Golden, dtype: str, rows: Array | None = None, layer: int | None = None
) -> Check:
    """Compare one tensor, or the rows of its last axis where `rows` is true."""
    expected = golden.tensors[name]
    if values.shape != expected.shape:
        raise GoldenReplayErrors.SHAPE_DIFFERS(tensor=name, shape=expected.shape, computed=values.shape)
    difference = compare(values, expected) if rows is None else compare(values[rows], expected[rows])
    return Check(name, difference.rowwise <= TOLERANCE[dtype], difference, layer)


def _check_layer(session: Session, golden: Golden, layer: int, dtype: str) -> Iterator[Check]:
    """The checks of one layer's caches and picks; equips the slot with the golden's picks where some differ."""
    group, index = session.signature.plan.of(layer)
    geometry, length = group.geometry.of_layer(index), len(golden.prompt)
    ring = min(length, geometry.sink_recent)
    picks = 0 if geometry.by_query else geometry.valid_topk(length)
    valid = np.zeros((group.kv_heads, geometry.cache_rows if geometry.by_query else geometry.budget), np.bool_)
    valid[:, :ring] = True
    block = slice(geometry.sink_recent, geometry.sink_recent + picks)
    name, selected, shared = f"selected.{layer}", None, None
    if name in golden.tensors:
        selected, shared = _check_selected(session, golden, layer, picks, dtype)
        valid[:, block] = shared
    for stream in group.streams:
        cache_name, cache = f"{stream.cache}.{layer}", _cache(session, stream, layer)
        if cache_name not in golden.tensors:
            continue
        rows = _by_pick(session, golden, layer, cache, picks) if selected is not None else cache
        yield _check(cache_name, rows, golden, dtype, valid, layer)
        if selected is not None and selected.excused and not geometry.indexed:
            live = group.rows(session.interpreter.tensor(group.state(stream.cache)), index)[0]
            expected = golden.tensors[cache_name]
            live[:, block] = geometry.row_format.encode(expected[:, block]) if geometry.encoded else expected[:, block]
    for stream in group.streams if geometry.by_query else ():
        rows = session.interpreter.tensor(group.state(stream.store))[index, 0, :, :length]
        store = geometry.row_format.decode(rows) if geometry.encoded else rows
        if f"{stream.name}_store.{layer}" in golden.tensors:
            yield _check(f"{stream.name}_store.{layer}", store, golden, dtype, layer=layer)
    if selected is not None:
        if selected.passed and selected.excused and geometry.indexed:
            _selected(session, layer)[...] = golden.tensors[name]
        yield selected


def _selected(session: Session, layer: int) -> Array:
    """The picks [Hkv, topk] of slot 0 in a layer, a live view."""
    group, index = session.signature.plan.of(layer)
    picks: Array = session.interpreter.tensor(group.state("selected"))[index]
    return (picks[0] if group.geometry.indexed else picks)[:, : group.geometry.of_layer(index).topk]


def _cache(session: Session, stream: Stream, layer: int) -> Array:
    """The rows [Hkv, R, D] of slot 0 in a layer, those that the prompt selected included, as the numbers that they
    stand for."""
    group, index = session.signature.plan.of(layer)
    cache: Array = group.rows(session.interpreter.tensor(group.state(stream.cache)), index)[0]
    if group.geometry.encoded:
        return group.geometry.row_format.decode(cache)
    if group.geometry.by_query or not group.geometry.indexed:
        return cache
    prompt, picks = session.interpreter.tensor(group.state(stream.store))[index, 0], _selected(session, layer)
    rows = np.take_along_axis(prompt, picks.clip(min=0)[..., None], axis=1)
    rows[picks < 0] = 0
    return np.concatenate([cache, rows], axis=1)


def _check_selected(
    session: Session, golden: Golden, layer: int, picks: int, dtype: str
) -> tuple[Check, Array]:
    """The check of one layer's picks, and which of the golden's picks [Hkv, picks] the program made too."""
    name = f"selected.{layer}"
    picked, golden_picks = _selected(session, layer), golden.tensors[name]
    if picked.shape != golden_picks.shape:
        raise GoldenReplayErrors.SHAPE_DIFFERS(tensor=name, shape=golden_picks.shape, computed=picked.shape)
    shared = _find(picked[:, :picks], golden_picks[:, :picks])[1]
    missed = int((~shared).sum())
    allowed = max(len(golden_picks), math.floor(EXCUSED[dtype] * shared.size))
    padded = np.array_equal(picked[:, picks:], golden_picks[:, picks:])
    difference = compare(picked, golden_picks)
    passed = padded and missed <= allowed
    return Check(name, passed, difference, layer, shared.size, missed, allowed), shared


def _find(picked: Array, golden_picks: Array) -> tuple[Array, Array]:
    """Where each of `golden_picks` stands in `picked` ([Hkv, picks], both ascending in a row), and whether it does."""
    if picked.shape[-1] == 0:
        return np.zeros_like(golden_picks), np.zeros_like(golden_picks, np.bool_)
    rows = zip(picked, golden_picks, strict=True)
    at = np.stack([np.searchsorted(*row) for row in rows]).clip(max=picked.shape[-1] - 1)
    return at, np.take_along_axis(picked, at, axis=-1) == golden_picks


def _by_pick(session: Session, golden: Golden, layer: int, cache: Array, picks: int) -> Array:
    """A copy of a cache [Hkv, R, D] whose top-K rows stand in the order of the golden's picks."""
    first = session.signature.plan.of(layer)[0].geometry.sink_recent
    picked = _selected(session, layer)[:, :picks]
    at, _ = _find(picked, golden.tensors[f"selected.{layer}"][:, :picks])
    rows = cache.copy()
    rows[:, first : first + picks] = np.take_along_axis(cache[:, first : first + picks], at[..., None], axis=1)
    return rows
