"""The cells of a table: which rows each method keeps. All methods of one budget keep the same number of rows, but for
selection by query, which keeps them all and reads that number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.layer_topk import LayerTopk
from sscc.compiler.options.policy import Rule
from sscc.ir.errors import ErrorKind, UsageError
from sscc.ir.geometry import (
    DEFAULT_LANDMARK_BITS,
    DEFAULT_OBS,
    DEFAULT_POOL,
    DEFAULT_RECENT,
    DEFAULT_SINK,
    Geometry,
)
from sscc.ir.suggestions import did_you_mean

FULL, STREAMING, SNAPKV, SNAPSTREAM, QUERY = METHODS = ("full", "streamingllm", "snapkv", "snapstream", "query")


POOLING = (SNAPKV, SNAPSTREAM)
"""The methods that select once, by pooled scores."""


class CellErrors(ErrorKind):
    UNKNOWN_METHOD = UsageError, "--methods has {method!r}, which is none of {methods}{similar_hint}"
    NO_BUDGET = UsageError, "the compressed caches have no budget: give --budgets"
    NO_ROWS_TO_SELECT = (
        UsageError,
        "the method snapkv keeps its observation window of {obs} tokens and up to {new_tokens} new ones, which leaves "
        "none of {budget} rows for selected positions: raise --budgets, or leave snapkv out of --methods",
    )


@dataclass(frozen=True)
class Selection:
    """How prompts are scored and what SnapStream keeps besides; None is the compiler's default."""

    obs: int | None = None
    pool: int | None = None
    pool_mode: str | None = None
    sink: int | None = None
    recent: int | None = None


@dataclass(frozen=True)
class Cell:
    """One method with one budget: a program of its own.

    Attributes:
        geometry: what its program keeps.
        layer_topk: where layers select different numbers of positions; the geometry has the most.
        one_of_pools: whether there are others that differ in the width of pooling alone, so that it is in the name.
        rule: of one's own, that scores prompts; the method is its name.
        keep: the share of prompts that is read, as a draft chooses; None: all.
    """

    method: str
    geometry: Geometry
    layer_topk: LayerTopk | None = None
    one_of_pools: bool = False
    rule: Rule | None = None
    keep: float | None = None

    @property
    def budget(self) -> int:
        """Rows that a query may see, in the mean of the layers that a budget governs."""
        return self.geometry.budget if self.layer_topk is None else self.geometry.sink_recent + self.layer_topk.mean

    @property
    def name(self) -> str:
        rows = "" if self.method == FULL else f" {self.budget}"
        rows += "" if self.layer_topk is None else f" by layer {self.layer_topk}"
        return f"{self.method}{rows}{self._ending()}"

    @property
    def series(self) -> str:
        """What a line of a plot is drawn for."""
        shape = "" if self.layer_topk is None else " by layer"
        return f"{self.method}{shape}{self._ending()}"

    def _ending(self) -> str:
        """Return what follows the rows in a name: the choice of rows, pooling, the share that is read, the codec."""
        from sscc.ir.layer_state.codecs import codec_of
        from sscc.ir.layer_state.rows import selector_of  # needs numpy, which --help does without

        pool = f" pool {self.geometry.pool}" if self.one_of_pools else ""
        keep = "" if self.keep is None else f" keep {self.keep:g}"
        return f"{selector_of(self.geometry).in_name()}{pool}{keep}{codec_of(self.geometry).in_name()}"


def make_cells(
    methods: Sequence[str],
    budgets: Sequence[int],
    kv_dtypes: Sequence[str],
    selection: Selection,
    layer_topks: Sequence[LayerTopk] = (),
    landmark_bits: Sequence[int] = (DEFAULT_LANDMARK_BITS,),
    pools: Sequence[int] = (),
    fetches: Sequence[int] = (),
    rules: Sequence[Rule] = (),
    *,
    max_context: int,
    new_tokens: int,
) -> list[Cell]:
    """The cells in the order of a table: the full cache, then each method's budgets; for each dtype of rows.

    Args:
        layer_topks: budgets per layer for SnapStream, each beside the same total that all layers have alike.
        landmark_bits: for selection by query, whose budgets have a cell for each.
        pools: widths of pooling, of which each has a cell for every budget of the methods that pool; instead of that of
            `selection`.
        fetches: for selection by query, limits of the rows that a step brings, each beside the same cell without one.
        rules: of one's own, each with every budget, behind the methods.
        new_tokens: the most that any example generates; SnapKV's window stays while they are made.

    Raises:
        UsageError: an unknown method, no budget for one that needs it, or a geometry that cannot be.
    """
    for method in methods:
        if method not in METHODS:
            likely = did_you_mean(method, METHODS)
            raise CellErrors.UNKNOWN_METHOD(method=method, methods=METHODS, similar_hint=likely)
    if not budgets and (rules or set(methods) != {FULL}):
        raise CellErrors.NO_BUDGET()
    cells = []
    for dtype in kv_dtypes:
        for method in METHODS:
            if method in methods:
                for budget in [max_context] if method == FULL else budgets:
                    kinds = [replace(selection, pool=pool) for pool in pools] if method in POOLING else []
                    for kind in kinds or [selection]:
                        rows = _rows(method, budget, kind, max_context, new_tokens)
                        for policy in _policies(method, landmark_bits, fetches):
                            geometry = _geometry(rows | policy, kind, dtype, max_context)
                            cells.append(Cell(method, geometry, one_of_pools=bool(kinds)))
        for rule, budget in product(rules, budgets):
            rows = _rows(rule.name, budget, selection, max_context, new_tokens)
            geometry = _geometry({**rows, "kv_policy": rule}, _said_by(rule, selection), dtype, max_context)
            cells.append(Cell(rule.name, geometry, rule=rule))
        for layer_topk in layer_topks:
            rows = _shared_rows(layer_topk, selection)
            alike = _geometry({**rows, "kv_topk": layer_topk.mean}, selection, dtype, max_context)
            apart = _geometry({**rows, "kv_topk_per_layer": str(layer_topk)}, selection, dtype, max_context)
            cells += [Cell(SNAPSTREAM, alike), Cell(SNAPSTREAM, apart, layer_topk)]
    return list({cell.name: cell for cell in cells}.values())


def _said_by(rule: Rule, selection: Selection) -> Selection:
    """What is left to say of how a rule scores: it has its own pooling, and may have its own window."""
    obs = selection.obs if rule.policy.obs is None else None
    return replace(selection, obs=obs, pool=None, pool_mode=None)


def _shared_rows(layer_topk: LayerTopk, selection: Selection) -> dict[str, Any]:
    """Sinks and ring beside budgets per layer: of the size that they have where a budget is split by default."""
    least = (selection.obs or DEFAULT_OBS) + (selection.pool or DEFAULT_POOL) // 2
    sink = DEFAULT_SINK if selection.sink is None else selection.sink
    recent = selection.recent or min(DEFAULT_RECENT, max(least, (sink + layer_topk.mean) // 3))  # a quarter of all
    return {"kv_sink": selection.sink, "kv_recent": recent}


def _policies(method: str, landmark_bits: Sequence[int], fetches: Sequence[int]) -> list[dict[str, Any]]:
    """The options of `CompileOptions` that say who chooses the selected rows: a cell for each of these."""
    if method != QUERY:
        return [{}]
    return [
        {"kv_policy": QUERY, "kv_landmark_bits": bits, "kv_fetch": fetch}
        for bits, fetch in product(landmark_bits, [None, *fetches])
    ]


def _rows(method: str, budget: int, selection: Selection, max_context: int, new_tokens: int) -> dict[str, Any]:
    """The options of `CompileOptions` that say how many rows there are of each kind."""
    if method == FULL:
        return {"kv_sink": 0, "kv_recent": max_context, "kv_topk": 0}
    if method == STREAMING:
        return {"kv_budget": budget, "kv_sink": selection.sink, "kv_topk": 0}
    if method == SNAPKV:
        obs = selection.obs or DEFAULT_OBS
        if budget <= obs + new_tokens:
            raise CellErrors.NO_ROWS_TO_SELECT(obs=obs, new_tokens=new_tokens, budget=budget)
        return {"kv_sink": 0, "kv_recent": obs + new_tokens, "kv_topk": budget - obs - new_tokens}
    return {"kv_budget": budget, "kv_sink": selection.sink, "kv_recent": selection.recent}


def _geometry(rows: dict[str, Any], selection: Selection, dtype: str, max_context: int) -> Geometry:
    options = CompileOptions(
        model=Path("model"),
        kv_obs=selection.obs,
        kv_pool=selection.pool,
        kv_pool_mode=selection.pool_mode,
        kv_dtype=dtype,
        max_context=max_context,
        **rows,
    )
    return options.resolve(None).geometry
