"""The rows of each method: all of one budget keep the same number."""

from __future__ import annotations

import pytest

from sscc.compiler.quality.cells import METHODS, Cell, Selection, make_cells
from sscc.ir.errors import UsageError
from sscc.ir.geometry import Geometry


def cells(
    methods: tuple[str, ...] = METHODS,
    budgets: tuple[int, ...] = (128, 256),
    dtypes: tuple[str, ...] = ("model",),
    selection: Selection | None = None,
) -> list[Cell]:
    return make_cells(methods, budgets, dtypes, selection or Selection(), max_context=1100, new_tokens=64)


def rows(geometry: Geometry) -> tuple[int, int, int]:
    return geometry.sink, geometry.recent, geometry.topk


def test_geometries() -> None:
    assert {cell.name: rows(cell.geometry) for cell in cells()} == {
        "full": (0, 1100, 0),
        "streamingllm 128": (4, 124, 0),
        "streamingllm 256": (4, 252, 0),
        "snapkv 128": (0, 96, 32),
        "snapkv 256": (0, 96, 160),
        "snapstream 128": (4, 35, 89),
        "snapstream 256": (4, 64, 188),
    }


def test_options_reach_the_geometry() -> None:
    selection = Selection(obs=8, pool=5, pool_mode="max", sink=2, recent=16)
    (cell,) = cells(("snapstream",), (64,), ("int8",), selection)
    assert cell.geometry == Geometry(2, 16, 46, 8, 5, "max", 1100, "compact", "int8")
    assert (cell.name, cell.series) == ("snapstream 64 int8", "snapstream int8")
    (cell,) = cells(("snapkv",), (128,), selection=selection)
    assert rows(cell.geometry) == (0, 72, 56)
    (cell,) = cells(("streamingllm",), (128,), selection=selection)
    assert rows(cell.geometry) == (2, 126, 0)


def test_the_full_cache_comes_once_per_dtype_and_first() -> None:
    names = [cell.name for cell in cells(("snapstream", "full"), (128,), ("model", "int8"))]
    assert names == ["full", "snapstream 128", "full int8", "snapstream 128 int8"]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="--methods has 'h2o', it must be one of full, streamingllm"):
        cells(("h2o",))
    with pytest.raises(
        UsageError, match=r"observation window of 32 tokens and the new ones, up to 64.* none of 96 rows"
    ):
        cells(("snapkv",), (96,))
    with pytest.raises(UsageError, match="give --budgets"):
        cells(budgets=())
    with pytest.raises(UsageError, match="lower --kv-topk or raise --max-context"):
        cells(("snapstream",), (2000,))
    assert [cell.name for cell in cells(("full",), ())] == ["full"]
