"""The rows of each method: all of one budget keep the same number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sscc.compiler.options.layer_topk import LayerTopk
from sscc.compiler.tools.quality.cells import METHODS, Cell, CellErrors, Selection, make_cells
from sscc.ir.geometry import Geometry, GeometryErrors
from tests.errors import raises


def cells(
    methods: tuple[str, ...] = METHODS,
    budgets: tuple[int, ...] = (128, 256),
    dtypes: tuple[str, ...] = ("model",),
    selection: Selection | None = None,
    layer_topks: tuple[str, ...] = (),
) -> list[Cell]:
    layered = [LayerTopk.parse(text) for text in layer_topks]
    return make_cells(methods, budgets, dtypes, selection or Selection(), layered, max_context=1100, new_tokens=64)


def rows(geometry: Geometry) -> tuple[int, int, int]:
    return geometry.sink, geometry.recent, geometry.topk


def test_geometries() -> None:
    assert {cell.name: rows(cell.geometry) for cell in cells()} == {
        "full": (0, 1100, 0),
        "streamingllm 128": (4, 124, 0),
        "streamingllm 256": (4, 252, 0),
        "snapkv 128": (0, 96, 32),
        "snapkv 256": (0, 96, 160),
        "snapstream 128": (4, 39, 85),
        "snapstream 256": (4, 64, 188),
        "query 128 2-bit": (4, 39, 85),
        "query 256 2-bit": (4, 64, 188),
    }


def test_each_width_of_quantized_keys_is_a_cell() -> None:
    found = make_cells(
        ("query",), (64,), ("model", "int8"), Selection(recent=16), (), (1, 4), max_context=99, new_tokens=1
    )
    assert [(cell.name, cell.series, cell.geometry.key_bits) for cell in found] == [
        ("query 64 1-bit", "query 1-bit", 1),
        ("query 64 4-bit", "query 4-bit", 4),
        ("query 64 1-bit int8", "query 1-bit int8", 1),
        ("query 64 4-bit int8", "query 4-bit int8", 4),
    ]
    assert {rows(cell.geometry) for cell in found} == {(4, 16, 44)}
    assert {(cell.geometry.policy, cell.geometry.rows) for cell in found} == {("query", "indexed")}


def test_what_the_policy_cannot_do_the_geometry_says() -> None:
    with raises(GeometryErrors.QUERY_WITHOUT_TOPK):
        cells(("query",), (43,))


def test_options_reach_the_geometry() -> None:
    selection = Selection(obs=8, pool=5, pool_mode="max", sink=2, recent=16)
    (cell,) = cells(("snapstream",), (64,), ("int8",), selection)
    assert cell.geometry == Geometry(2, 16, 46, 8, 5, "max", 1100, "compact", "int8")
    assert (cell.name, cell.series) == ("snapstream 64 int8", "snapstream int8")
    (cell,) = cells(("snapkv",), (128,), selection=selection)
    assert rows(cell.geometry) == (0, 72, 56)
    (cell,) = cells(("streamingllm",), (128,), selection=selection)
    assert rows(cell.geometry) == (2, 126, 0)


def test_limits_of_what_is_fetched_stand_beside_none() -> None:
    bounds = {"fetches": (4, 16), "max_context": 99, "new_tokens": 1}
    found = make_cells(("query",), (64,), ("model",), Selection(), (), (2,), **bounds)
    assert [(cell.name, cell.geometry.fetch) for cell in found] == [
        ("query 64 2-bit", None),
        ("query 64 2-bit fetch 4", 4),
        ("query 64 2-bit fetch 16", 16),
    ]
    assert {cell.series for cell in found} == {"query 2-bit", "query 2-bit fetch 4", "query 2-bit fetch 16"}
    for fetch in (0, 22):
        with raises(GeometryErrors.FETCH, topk=21, fetch=fetch):
            make_cells(("query",), (64,), ("model",), Selection(), (), (2,), **{**bounds, "fetches": (fetch,)})


def test_each_width_of_pooling_is_a_cell_of_the_methods_that_pool() -> None:
    pools = (7, 31)
    found = make_cells(METHODS[:4], (128,), ("model",), Selection(), (), (), pools, max_context=1100, new_tokens=10)
    assert [(cell.name, cell.series, cell.geometry.pool, cell.geometry.recent) for cell in found] == [
        ("full", "full", 15, 1100),
        ("streamingllm 128", "streamingllm", 15, 124),
        ("snapkv 128 pool 7", "snapkv pool 7", 7, 42),
        ("snapkv 128 pool 31", "snapkv pool 31", 31, 42),
        ("snapstream 128 pool 7", "snapstream pool 7", 7, 35),
        ("snapstream 128 pool 31", "snapstream pool 31", 31, 47),
    ]
    assert {cell.budget for cell in found[1:]} == {128}


def test_the_full_cache_comes_once_per_dtype_and_first() -> None:
    names = [cell.name for cell in cells(("snapstream", "full"), (128,), ("model", "int8"))]
    assert names == ["full", "snapstream 128", "full int8", "snapstream 128 int8"]


def test_layers_that_differ_stand_beside_the_same_rows_shared_alike() -> None:
    found = cells(("full",), (), ("model", "int8"), layer_topks=("pyramid:120,60", "30,90,60"))
    assert [(cell.name, cell.series) for cell in found if cell.geometry.dtype == "model"] == [
        ("full", "full"),
        ("snapstream 133", "snapstream"),
        ("snapstream 133 by layer pyramid:120,60", "snapstream by layer"),
        ("snapstream 103", "snapstream"),
        ("snapstream 103 by layer 30,90,60", "snapstream by layer"),
    ]
    assert [cell.name for cell in found[5:]] == [f"{cell.name} int8" for cell in found[:5]]
    alike, apart = found[1:3]
    assert (rows(alike.geometry), rows(apart.geometry)) == ((4, 39, 90), (4, 39, 120))
    assert (alike.layer_topk, apart.layer_topk) == (None, LayerTopk((120, 60), True))
    assert alike.budget == apart.budget == 133, "the mean of the layers"
    assert apart.geometry.budget == 163, "what the layer that selects most has room for"


def test_layers_that_differ_have_the_ring_of_the_same_budget() -> None:
    selection = Selection(obs=8, pool=5, pool_mode="max", sink=2, recent=16)
    alike, apart = cells(("full",), (), selection=selection, layer_topks=("64,32",))[1:]
    assert alike.geometry == Geometry(2, 16, 48, 8, 5, "max", 1100)
    assert apart.geometry == Geometry(2, 16, 64, 8, 5, "max", 1100)
    alike, apart = cells(("full",), (), layer_topks=("400,200",))[1:]
    assert (rows(alike.geometry), rows(apart.geometry)) == ((4, 101, 300), (4, 101, 400))


@given(st.integers(0, 800), st.integers(0, 8))
def test_layers_that_differ_stand_beside_what_their_budget_is_by_default(mean: int, sink: int) -> None:
    """A name of a cell is of one geometry."""
    selection = Selection(sink=sink)
    _, alike, _ = cells(("full",), (), selection=selection, layer_topks=(f"{mean},{mean}",))
    (default,) = cells(("snapstream",), (alike.budget,), selection=selection)
    assert alike == default


def test_a_budget_that_is_there_already_is_not_measured_twice() -> None:
    found = cells(("snapstream",), (128,), layer_topks=("96,74", "74,96"))
    assert [cell.name for cell in found] == [
        "snapstream 128", "snapstream 128 by layer 96,74", "snapstream 128 by layer 74,96"
    ]  # fmt: skip
    assert rows(found[0].geometry) == (4, 39, 85)


def test_refusals() -> None:
    with raises(CellErrors.UNKNOWN_METHOD, method="h2o"):
        cells(("h2o",))
    with raises(CellErrors.NO_ROWS_TO_SELECT, obs=32, new_tokens=64, budget=96):
        cells(("snapkv",), (96,))
    with raises(CellErrors.NO_BUDGET):
        cells(budgets=())
    with raises(GeometryErrors.TOPK_EXCEEDS_CONTEXT):
        cells(("snapstream",), (2000,))
    with raises(GeometryErrors.TOPK_EXCEEDS_CONTEXT):
        cells(("full",), (), layer_topks=("20,2000",))
    assert [cell.name for cell in cells(("full",), ())] == ["full"]
