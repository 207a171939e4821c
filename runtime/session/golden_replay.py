"""Replay of a golden through a session: every recorded tensor is compared, up to the first difference.

Both sides are numpy arrays; the tolerances below separate rounding differences from errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sscc.ir.errors import CheckError, ErrorKind, InputError, SsccError
from sscc.ir.layer_state.codecs import codec_of
from sscc.ir.layer_state.protocol import LayerState
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.tensor_files import Array
from sscc.runtime.session.session import Session

QUANTIZED = "f32 with quantized weights"
ENCODED = {"int8": "f32 with int8 KV rows", "int4": "int4 KV rows"}
TOLERANCE = {"f32": 1e-4, QUANTIZED: 1e-3, ENCODED["int8"]: 2e-2, "bf16": 5e-2, ENCODED["int4"]: 1.5e-1}
"""Maximum error of a row (last axis), relative to the norm of that row or of the average row.

Both sides compute the same formulas and round in different places. f32: a rounding is 6e-8, a sum of k terms has an
error of about sqrt(k) of them, and some hundred operations follow each other through the layers, which gives 1e-6 to
1e-5; 1e-4 leaves a factor of ten. bf16: a rounding is 2e-3 and every layer adds a few to the residual stream, so errors
grow with the square root of their number: 5e-2 is some 600 independent roundings. A wrong row, position or head is an
error of order 1 in both. With quantized weights the native interpreter rounds the other factor of a product to 16 bits,
an error of about 2e-5 in each. With int8 KV rows a number between two codes may become either, a 127th of the largest
number of its row; with int4 rows a 7th of the largest of 32.
"""

SINGLE_ROW = {"bf16": 0.5}
"""The same for a single row if the tensor as a whole, by its norm, is within the tolerance. Layers amplify the rounding
of bf16 in single tokens: in layer 20 of SmolLM2-135M rows of V differ by 0.018 in the median, and one of 1,500 by 0.18.
A wrong row is still beyond it."""

EXCUSED = {"f32": 0.01, QUANTIZED: 0.05, ENCODED["int8"]: 0.05, "bf16": 0.1, ENCODED["int4"]: 0.1}
"""Fraction of a layer's picks that may differ, at least one per KV head: scores closer than rounding are ties."""


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
        "positions differ, and {dtype} allows {allowed} near ties",
    )
    UNKNOWN_TENSORS = InputError, "the golden holds tensors that this program does not compute: {unknown!r}"
    SHAPE_DIFFERS = InputError, "golden tensor {tensor!r} has the shape [{shape}], but the program's has [{computed}]"


# ------------------------------------------------------------------------------------------------- comparing


@dataclass(frozen=True)
class Difference:
    """Difference of `a` from `b`.

    Attributes:
        max_abs: largest |a - b|.
        max_rel: largest |a - b| / |b|, with |b| at least a thousandth of the largest |b|.
        correlation: Pearson's, over all elements.
        normwise: ||a - b|| / ||b||.
        rowwise: largest ||a - b|| / ||b|| of a row (last axis), with ||b|| at least the root mean square over rows.

    Everything is infinite, and the correlation 0, if a NaN or an infinity is in one but not in the other.
    """

    max_abs: float
    max_rel: float
    correlation: float
    normwise: float
    rowwise: float

    def __str__(self) -> str:
        return f"max abs {self.max_abs:.3g}, max rel {self.max_rel:.3g}, correlation {self.correlation:.6f}"


def compare(a: Array, b: Array) -> Difference:
    """Return the difference of `a` from the reference `b`, arrays of one shape, in f64."""
    if a.size == 0:
        return Difference(0.0, 0.0, 1.0, 0.0, 0.0)
    with np.errstate(all="ignore"):  # infinities are expected here
        return _compare(a.astype(np.float64), b.astype(np.float64))


def _compare(a: Array, b: Array) -> Difference:
    error = np.where(a == b, 0.0, a - b)  # equal infinities have no error
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
    """Return the largest error / size, where 0 / 0 is 0 and anything else over 0 is infinite."""
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
        passed: True if the difference is within the tolerance.
        layer: layer of the cache or picks; None for logits.
        picks, excused: number of selected positions, and of those that differ, at most `allowed`.
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
        """Number of picks that differ from the golden's and count as near ties."""
        return sum(check.excused for check in self.checks if check.passed)

    def summary(self) -> str:
        error = self.error
        if error is not None:
            return str(error)
        worst = max(self.checks, key=lambda check: check.difference.rowwise, default=None)
        near = f", {self.excused} near ties excused" if self.excused else ""
        tolerance, single = TOLERANCE[self.dtype], SINGLE_ROW.get(self.dtype)
        allowed = f"{tolerance:g} of a row's norm" if single is None else f"{tolerance:g} of a tensor's norm"
        return f"{len(self.checks)} golden tensors agree within {allowed}{near}; largest difference: {worst}"

    @property
    def error(self) -> SsccError | None:
        """Return the error about the first tensor that differs; None if all agree."""
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


def replay(session: Session, golden: Golden, *, quantized: bool = False) -> ReplayReport:
    """Run the golden's prompt and tokens in slot 0 and compare every tensor in the golden.

    Only valid rows of caches are compared. Picks may differ if scores are nearly equal (`EXCUSED`); rows of such picks
    are not compared, and get the golden's K and V (or for indexed rows its picks) before decoding, so that logits are
    comparable.

    Args:
        quantized: True if the program's weights are quantized.

    Raises InputError for a golden that does not fit the program, UsageError for tokens that do not.
    """
    dtype = session.signature.dtype
    coded = ENCODED.get(codec_of(session.signature.geometry).name)
    if coded is not None:
        dtype = max(coded, dtype, key=TOLERANCE.__getitem__)
    elif dtype == "f32" and quantized:
        dtype = QUANTIZED
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
    """Compare one tensor, or with `rows` the rows of its last axis."""
    expected = golden.tensors[name]
    if values.shape != expected.shape:
        raise GoldenReplayErrors.SHAPE_DIFFERS(tensor=name, shape=expected.shape, computed=values.shape)
    difference = compare(values, expected) if rows is None else compare(values[rows], expected[rows])
    return Check(name, _within(difference, dtype), difference, layer)


def _within(difference: Difference, dtype: str) -> bool:
    """Return True for a difference that rounding explains."""
    tolerance = TOLERANCE[dtype]
    single = SINGLE_ROW.get(dtype, tolerance) if difference.normwise <= tolerance else tolerance
    return difference.rowwise <= single


def _check_layer(session: Session, golden: Golden, layer: int, dtype: str) -> Iterator[Check]:
    """Yield the checks of one layer's states and picks. If picks differ, the slot gets the golden's."""
    for state, index in session.signature.states_of(layer):
        yield from _check_state(session, golden, state, index, layer, dtype)


def _check_state(
    session: Session, golden: Golden, state: LayerState, index: int, layer: int, dtype: str
) -> Iterator[Check]:
    tensor, length = session.interpreter.device_tensor, len(golden.prompt)
    picked, name, match = state.picked(tensor, index), f"selected.{layer}", None
    selected = None
    if picked is not None and name in golden.tensors:
        match = _Match.of(picked.read(), golden.tensors[name], state.picks(index, length))
        selected = _check_selected(match, name, layer, dtype)
    adopts = picked is not None and selected is not None and selected.passed and selected.excused > 0
    for item in state.recorded(tensor, index, length):
        recorded = f"{item.name}.{layer}"
        adopts = adopts and item.put is None
        if recorded not in golden.tensors:
            continue
        values, valid = item.values, item.valid
        if match is not None and valid is not None:
            values, valid = match.aligned(values, item.picks), match.shared_rows(valid, item.picks)
        yield _check(recorded, values, golden, dtype, valid, layer)
        if selected is not None and selected.excused and item.put is not None:
            item.put(golden.tensors[recorded][:, item.picks])
    if adopts and picked is not None:
        picked.write(golden.tensors[name])
    if selected is not None:
        yield selected


@dataclass(frozen=True, eq=False)
class _Match:
    """The positions that a program selected, with those of a golden.

    Attributes:
        picked, golden: [Hkv, K], `picks` of each ascending, then padding.
        at: [Hkv, picks], index of each of the golden's among the program's.
        shared: [Hkv, picks], True for those that the program selected too.
    """

    picked: Array
    golden: Array
    picks: int
    at: Array
    shared: Array

    @classmethod
    def of(cls, picked: Array, golden: Array, picks: int) -> _Match:
        if picked.shape != golden.shape:
            return cls(picked, golden, picks, np.zeros((0, 0), np.int64), np.zeros((0, 0), np.bool_))
        return cls(picked, golden, picks, *_find(picked[:, :picks], golden[:, :picks]))

    def aligned(self, values: Array, rows: slice) -> Array:
        """Return a copy of values [Hkv, n, D] whose selected rows stand in the order of the golden's picks."""
        aligned = values.copy()
        aligned[:, rows] = np.take_along_axis(values[:, rows], self.at[..., None], axis=1)
        return aligned

    def shared_rows(self, valid: Array, rows: slice) -> Array:
        """Return the valid rows, except those of positions that only one side selected."""
        shared = valid.copy()
        shared[:, rows] = self.shared
        return shared


def _check_selected(match: _Match, name: str, layer: int, dtype: str) -> Check:
    """Return the check of one layer's picks."""
    picked, golden, picks = match.picked, match.golden, match.picks
    if picked.shape != golden.shape:
        raise GoldenReplayErrors.SHAPE_DIFFERS(tensor=name, shape=golden.shape, computed=picked.shape)
    missed = int((~match.shared).sum())
    allowed = max(len(golden), math.floor(EXCUSED[dtype] * match.shared.size))
    padded = np.array_equal(picked[:, picks:], golden[:, picks:])
    passed = padded and missed <= allowed
    return Check(name, passed, compare(picked, golden), layer, match.shared.size, missed, allowed)


def _find(picked: Array, golden_picks: Array) -> tuple[Array, Array]:
    """Return the index of each of `golden_picks` in `picked` ([Hkv, picks], rows of both ascending), and True if it is
    there."""
    if picked.shape[-1] == 0:
        return np.zeros_like(golden_picks), np.zeros_like(golden_picks, np.bool_)
    rows = zip(picked, golden_picks, strict=True)
    at = np.stack([np.searchsorted(*row) for row in rows]).clip(max=picked.shape[-1] - 1)
    return at, np.take_along_axis(picked, at, axis=-1) == golden_picks
