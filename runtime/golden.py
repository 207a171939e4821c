"""Goldens: a run of eager PyTorch recorded at compile time, and its replay through an artifact.

A golden holds prompt and new tokens, and tensors in the order in which execution makes them::

    k_cache.{i}, v_cache.{i}   [Hkv, R, D]   layer i's compressed cache of slot 0 after prefill
    selected.{i}               [Hkv, topk]   positions picked, -1 for padding (absent when topk = 0)
    prefill_logits             [V]
    logits.{s}                 [V]           after feeding new_tokens[s] at position len(prompt) + s
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sscc.ir.errors import CheckError, InputError
from sscc.runtime.tensor_files import read_tensors

if TYPE_CHECKING:
    from sscc.runtime.artifact_writer import ArtifactWriter
    from sscc.runtime.session import Session

TOLERANCE = {"f32": 1e-4, "bf16": 5e-2}
"""Largest error of a row (last axis), relative to the norm of that row or of the average row.

Both sides compute the same formulas and round in different places. f32: a rounding is 6e-8, a sum of k terms
errs by about sqrt(k) of them and some hundred operations follow each other through the layers, which gives
1e-6 to 1e-5; 1e-4 leaves a decade. bf16: a rounding is 2e-3 and every layer adds a few to the residual
stream, so errors grow with the square root of their number: 5e-2 is some 600 independent roundings. A wrong
row, position or head is an error of order 1 in both.
"""

EXCUSED = {"f32": 0.01, "bf16": 0.1}
"""Share of a layer's picks that may differ, at least one per KV head: scores nearer than rounding are ties."""

_PROMPT, _TOKENS, _NAMES = "prompt", "new_tokens", "tensors"


@dataclass(frozen=True)
class Golden:
    """A recorded run: token ids, and tensors by name in execution order."""

    prompt: tuple[int, ...]
    new_tokens: tuple[int, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def save(self, writer: ArtifactWriter) -> None:
        """Writes golden/golden.json and golden/golden.safetensors of an artifact."""
        index = {_PROMPT: list(self.prompt), _TOKENS: list(self.new_tokens), _NAMES: list(self.tensors)}
        writer.write_json("golden/golden.json", index)
        writer.write_tensors("golden/golden.safetensors", self.tensors)

    @classmethod
    def load(cls, folder: Path) -> Golden:
        """Raises InputError where the folder holds no golden, or one whose parts do not fit."""
        path = folder / "golden.json"
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            prompt, new_tokens, names = (tuple(index[key]) for key in (_PROMPT, _TOKENS, _NAMES))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is missing or damaged: {error!r}") from None
        tensors = read_tensors(folder / "golden.safetensors")
        if set(names) != set(tensors) or any(type(token) is not int for token in (*prompt, *new_tokens)):
            raise InputError(f"{path} does not fit golden.safetensors")
        return cls(prompt, new_tokens, {name: tensors[name] for name in names})


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


def compare(a: Tensor, b: Tensor) -> Difference:
    """Compares `a` with the reference `b`, tensors of one shape, in f64."""
    if a.numel() == 0:
        return Difference(0.0, 0.0, 1.0, 0.0, 0.0)
    a, b = a.to(torch.float64), b.to(torch.float64)
    error = torch.where(a == b, 0.0, a - b)  # equal infinities are no error
    if not bool(torch.isfinite(error).all()):
        return Difference(math.inf, math.inf, 0.0, math.inf, math.inf)
    b = torch.nan_to_num(b)
    size = b.abs()
    rows, row_errors = (t.reshape(-1, t.shape[-1] if t.ndim else 1).norm(dim=1) for t in (b, error))
    typical = rows.square().mean().sqrt()
    return Difference(
        max_abs=float(error.abs().max()),
        max_rel=_ratio(error.abs(), torch.maximum(size, size.max() / 1000)),
        correlation=_correlation(torch.nan_to_num(a), b),
        normwise=_ratio(error.norm(), b.norm()),
        rowwise=_ratio(row_errors, torch.maximum(rows, typical)),
    )


def _ratio(error: Tensor, size: Tensor) -> float:
    """The largest error / size, where 0 / 0 is 0 and anything else over 0 is infinite."""
    return float(torch.where(error == 0, 0.0, error / size).max())


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = (a - a.mean()).flatten(), (b - b.mean()).flatten()
    scale = float(a.norm() * b.norm())
    if scale == 0.0:
        return float(torch.equal(a, b))
    return float(a @ b) / scale


# --------------------------------------------------------------------------------------------------- replay


@dataclass(frozen=True)
class Check:
    """One golden tensor compared: passed or not, how far, and how many picks were excused as near ties."""

    name: str
    passed: bool
    difference: Difference
    picks: int = 0
    excused: int = 0

    def __str__(self) -> str:
        picks = f", {self.excused} of {self.picks} picks differ" if self.picks else ""
        return f"{self.name}: {'agrees' if self.passed else 'DIFFERS'} ({self.difference}{picks})"


@dataclass(frozen=True)
class Report:
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
        failure = self.first_failure
        if failure is not None:
            return f"first diverging tensor of {len(self.checks)}: {failure}; {self.dtype} allows {self._allowed()}"
        worst = max(self.checks, key=lambda check: check.difference.rowwise, default=None)
        near = f", {self.excused} near ties excused" if self.excused else ""
        return f"{len(self.checks)} golden tensors agree within {self._allowed()}{near}; largest difference: {worst}"

    def _allowed(self) -> str:
        return f"{TOLERANCE[self.dtype]:g} of a row's norm"

    def require(self) -> None:
        """Raises CheckError with the summary where a tensor differs."""
        if not self.passed:
            raise CheckError(self.summary())


def replay(session: Session, golden: Golden) -> Report:
    """Runs the golden's prompt and tokens in slot 0 and compares every tensor that the golden holds.

    Only valid rows of caches are compared. Picks may differ where scores are nearly equal (`EXCUSED`); rows of
    such picks are left out, and take the golden's K and V (or where they are indexed its picks) before decoding, so
    that logits compare like with like.
    Raises InputError for a golden that does not fit the program; UsageError for tokens that do not.
    """
    dtype = session.signature.dtype
    session.release(0)
    prefill_logits = session.prefill(0, golden.prompt)
    checks = [check for layer in range(session.signature.layers) for check in _check_layer(session, golden, layer)]
    if "prefill_logits" in golden.tensors:
        checks.append(_check("prefill_logits", prefill_logits, golden, dtype))
    for step, token in enumerate(golden.new_tokens):
        logits = session.decode({0: token})[0]
        if f"logits.{step}" in golden.tensors:
            checks.append(_check(f"logits.{step}", logits, golden, dtype))
    if len(checks) != len(golden.tensors):
        unknown = sorted(set(golden.tensors) - {check.name for check in checks})
        raise InputError(f"the golden holds tensors that this program does not make: {unknown}")
    return Report(dtype, sorted(checks, key=lambda check: list(golden.tensors).index(check.name)))


def _check(name: str, found: Tensor, golden: Golden, dtype: str, rows: Tensor | None = None) -> Check:
    """Compares one tensor, or the rows of its last axis where `rows` is true."""
    wanted = golden.tensors[name]
    if found.shape != wanted.shape:
        raise InputError(f"golden {name!r} is {list(wanted.shape)}, the program makes {list(found.shape)}")
    difference = compare(found, wanted) if rows is None else compare(found[rows], wanted[rows])
    return Check(name, difference.rowwise <= TOLERANCE[dtype], difference)


def _check_layer(session: Session, golden: Golden, layer: int) -> Iterator[Check]:
    """The checks of one layer's caches and picks; equips the slot with the golden's picks where some differ."""
    signature = session.signature
    geometry, length = signature.geometry, len(golden.prompt)
    ring = min(length, geometry.sink_recent)
    valid = torch.zeros(signature.kv_heads, geometry.budget, dtype=torch.bool)
    valid[:, :ring] = True
    picks = geometry.valid_topk(length)
    block = slice(geometry.sink_recent, geometry.sink_recent + picks)
    name, selected, shared = f"selected.{layer}", None, None
    if name in golden.tensors:
        selected, shared = _check_selected(session, golden, layer, picks)
        valid[:, block] = shared
    for kind in ("k", "v"):
        cache_name, cache = f"{kind}_cache.{layer}", _cache(session, kind, layer)
        if cache_name not in golden.tensors:
            continue
        rows = _by_pick(session, golden, layer, cache, picks) if selected is not None else cache
        yield _check(cache_name, rows, golden, signature.dtype, valid)
        if selected is not None and selected.excused and not geometry.indexed:
            cache[:, block] = golden.tensors[cache_name][:, block].to(cache.dtype)
    if selected is not None:
        if selected.passed and selected.excused and geometry.indexed:
            _selected(session, layer).copy_(golden.tensors[name])
        yield selected


def _selected(session: Session, layer: int) -> Tensor:
    """The picks [Hkv, topk] of slot 0 in a layer."""
    picks = session.interpreter.tensor("selected")[layer]
    return picks[0] if session.signature.geometry.indexed else picks


def _cache(session: Session, kind: str, layer: int) -> Tensor:
    """The rows [Hkv, R, D] of slot 0 in a layer; a copy where the selected ones are indexed."""
    cache = session.interpreter.tensor(f"{kind}_cache")[layer, 0]
    if not session.signature.geometry.indexed:
        return cache
    prompt, picks = session.interpreter.tensor(f"{kind}_prompt")[layer, 0], _selected(session, layer)
    at = picks.clamp(min=0)[..., None].expand(-1, -1, prompt.shape[-1])
    return torch.cat([cache, torch.where((picks < 0)[..., None], 0, prompt.gather(1, at))], 1)


def _check_selected(session: Session, golden: Golden, layer: int, picks: int) -> tuple[Check, Tensor]:
    """The check of one layer's picks, and which of the golden's picks [Hkv, picks] the program made too."""
    dtype = session.signature.dtype
    name = f"selected.{layer}"
    found, wanted = _selected(session, layer), golden.tensors[name]
    if found.shape != wanted.shape:
        raise InputError(f"golden {name!r} is {list(wanted.shape)}, the program makes {list(found.shape)}")
    shared = _find(found[:, :picks], wanted[:, :picks])[1]
    missed = int((~shared).sum())
    allowed = max(len(wanted), math.floor(EXCUSED[dtype] * shared.numel()))
    padded = torch.equal(found[:, picks:], wanted[:, picks:])
    difference = compare(found, wanted)
    return Check(name, padded and missed <= allowed, difference, shared.numel(), missed), shared


def _find(found: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where each of `wanted` stands in `found` (both ascending along their last axis), and whether it does."""
    if found.shape[-1] == 0:
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    at = torch.searchsorted(found.contiguous(), wanted.contiguous()).clamp(max=found.shape[-1] - 1)
    return at, found.gather(-1, at) == wanted


def _by_pick(session: Session, golden: Golden, layer: int, cache: Tensor, picks: int) -> Tensor:
    """A copy of a cache [Hkv, R, D] whose top-K rows stand in the order of the golden's picks."""
    first = session.signature.geometry.sink_recent
    found = _selected(session, layer)[:, :picks]
    at, _ = _find(found, golden.tensors[f"selected.{layer}"][:, :picks])
    rows = cache.clone()
    rows[:, first : first + picks] = cache[:, first : first + picks].gather(
        1, at[..., None].expand(-1, -1, cache.shape[-1])
    )
    return rows
