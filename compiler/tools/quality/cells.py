"""Cells of an evaluation: methods with budgets of cache rows. All methods with the same budget keep the same number of
rows, except selection by query, which keeps all rows and reads that number per step."""

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
    DEFAULT_KEY_BITS,
    DEFAULT_OBS,
    DEFAULT_POOL,
    DEFAULT_RECENT,
    DEFAULT_SINK,
    Geometry,
)
from sscc.ir.suggestions import did_you_mean

FULL, STREAMING, SNAPKV, SNAPSTREAM, QUERY = METHODS = ("full", "streamingllm", "snapkv", "snapstream", "query")


POOLING = (SNAPKV, SNAPSTREAM)
"""Methods that select once, by pooled scores."""


class CellErrors(ErrorKind):
    UNKNOWN_METHOD = UsageError, "--methods must be among {methods}, got {method!r}{similar_hint}"
    NO_BUDGET = UsageError, "the methods other than full need a budget: give --budgets"
    NO_ROWS_TO_SELECT = (
        UsageError,
        "the method snapkv keeps its observation window of {obs} tokens and up to {new_tokens} new tokens, which "
        "leaves none of {budget} rows for selected positions: raise --budgets, or leave snapkv out of --methods",
    )


@dataclass(frozen=True)
class Selection:
    """Options of prompt scoring, and of SnapStream's unselected rows; None for the compiler's default."""

    obs: int | None = None
    pool: int | None = None
    pool_mode: str | None = None
    sink: int | None = None
    recent: int | None = None


@dataclass(frozen=True)
class Cell:
    """A method with a budget, compiled to a program of its own.

    Attributes:
        geometry: geometry of its program.
        layer_topk: budgets per layer, if they differ; the geometry has the largest.
        one_of_pools: True to include the pooling width in the name, because other cells differ in it only.
        rule: user's rule that scores prompts; the method is its name.
        keep: fraction of each prompt that is prefilled, selected by a draft; None for the whole prompt.
    """

    method: str
    geometry: Geometry
    layer_topk: LayerTopk | None = None
    one_of_pools: bool = False
    rule: Rule | None = None
    keep: float | None = None

    @property
    def budget(self) -> int:
        """Rows per query, averaged over the layers that have a budget."""
        return self.geometry.budget if self.layer_topk is None else self.geometry.sink_recent + self.layer_topk.mean

    @property
    def name(self) -> str:
        rows = "" if self.method == FULL else f" {self.budget}"
        rows += "" if self.layer_topk is None else f" by layer {self.layer_topk}"
        return f"{self.method}{rows}{self._ending()}"

    @property
    def series(self) -> str:
        """Name of the cell's line in a plot."""
        shape = "" if self.layer_topk is None else " by layer"
        return f"{self.method}{shape}{self._ending()}"

    def _ending(self) -> str:
        """Return the suffix of the name: selector, pooling width, fraction of prompts, codec."""
        from sscc.ir.layer_state.codecs import codec_of
        from sscc.ir.layer_state.rows import selector_of  # imported late: --help needs no numpy

        pool = f" pool {self.geometry.pool}" if self.one_of_pools else ""
        keep = "" if self.keep is None else f" keep {self.keep:g}"
        return f"{selector_of(self.geometry).in_name()}{pool}{keep}{codec_of(self.geometry).in_name()}"


def make_cells(
    methods: Sequence[str],
    budgets: Sequence[int],
    kv_dtypes: Sequence[str],
    selection: Selection,
    layer_topks: Sequence[LayerTopk] = (),
    key_bits: Sequence[int] = (DEFAULT_KEY_BITS,),
    pools: Sequence[int] = (),
    fetches: Sequence[int] = (),
    rules: Sequence[Rule] = (),
    *,
    max_context: int,
    new_tokens: int,
) -> list[Cell]:
    """Return the cells in the order of a table. For each dtype of rows: the full cache, then each method's budgets.

    Args:
        methods: names of methods.
        budgets: cache rows of the methods other than the full cache.
        kv_dtypes: dtypes of cache rows.
        selection: options of all cells.
        layer_topks: budgets per layer for SnapStream, each compared with the same total spread evenly.
        key_bits: bits of the quantized keys for selection by query; there is a cell for each budget and number.
        pools: pooling widths, which replace that of `selection`. Methods that pool have a cell for each budget and
            width.
        fetches: limits of the rows that a step of selection by query fetches, each compared with the same cell without
            a limit.
        rules: user's rules, which follow the methods with a cell for each budget.
        max_context: maximum tokens of a sequence.
        new_tokens: maximum number of tokens that any example generates. SnapKV's cache has rows for all of them,
            because it keeps the observation window.

    Raises:
        UsageError: an unknown method, no budget for one that needs it, or an invalid geometry.
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
                        for policy in _policies(method, key_bits, fetches):
                            geometry = _geometry(rows | policy, kind, dtype, max_context)
                            cells.append(Cell(method, geometry, one_of_pools=bool(kinds)))
        for rule, budget in product(rules, budgets):
            rows = _rows(rule.name, budget, selection, max_context, new_tokens)
            geometry = _geometry({**rows, "kv_policy": rule}, _said_by(rule, selection), dtype, max_context)
            cells.append(Cell(rule.name, geometry, rule=rule))
        for layer_topk in layer_topks:
            rows = _shared_rows(layer_topk, selection)
            uniform = _geometry({**rows, "kv_topk": layer_topk.mean}, selection, dtype, max_context)
            per_layer = _geometry({**rows, "kv_topk_per_layer": str(layer_topk)}, selection, dtype, max_context)
            cells += [Cell(SNAPSTREAM, uniform), Cell(SNAPSTREAM, per_layer, layer_topk)]
    return list({cell.name: cell for cell in cells}.values())


def _said_by(rule: Rule, selection: Selection) -> Selection:
    """Return the options without those that a rule defines: pooling, and possibly the observation window."""
    obs = selection.obs if rule.policy.obs is None else None
    return replace(selection, obs=obs, pool=None, pool_mode=None)


def _shared_rows(layer_topk: LayerTopk, selection: Selection) -> dict[str, Any]:
    """Return the options of sinks and ring for budgets per layer, with the sizes of the same total spread evenly."""
    least = (selection.obs or DEFAULT_OBS) + (selection.pool or DEFAULT_POOL) // 2
    sink = DEFAULT_SINK if selection.sink is None else selection.sink
    recent = selection.recent or min(DEFAULT_RECENT, max(least, (sink + layer_topk.mean) // 3))  # budget / 4
    return {"kv_sink": selection.sink, "kv_recent": recent}


def _policies(method: str, key_bits: Sequence[int], fetches: Sequence[int]) -> list[dict[str, Any]]:
    """Return the fields of `CompileOptions` for the selector of each cell."""
    if method != QUERY:
        return [{}]
    return [
        {"kv_policy": QUERY, "kv_key_bits": bits, "kv_fetch": fetch}
        for bits, fetch in product(key_bits, [None, *fetches])
    ]


def _rows(method: str, budget: int, selection: Selection, max_context: int, new_tokens: int) -> dict[str, Any]:
    """Return the fields of `CompileOptions` for the number of rows of each kind."""
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
