"""Geometries of layers that select different numbers of positions; what one geometry refuses is tested with the options
that ask for it (`tests/compiler/test_options.py`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sscc.ir.geometry import Geometry, GeometryErrors, Span
from tests.errors import raises

G = Geometry(sink=2, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=20)
LAYERED = G.with_layers([3, 0, 5, 1])


def test_the_room_is_that_of_the_layer_that_selects_most() -> None:
    assert replace(G, topk=5, layer_topk=(3, 0, 5, 1)) == LAYERED
    assert (LAYERED.topk, LAYERED.budget, LAYERED.cache_rows) == (5, 11, 11)


def test_layers_that_select_alike_are_one_number() -> None:
    assert G.with_layers([7, 7, 7]) == replace(G, topk=7)
    assert LAYERED.with_layers([4]) == replace(G, topk=4)
    assert not G.with_layers([7, 7]).packed


def test_a_layer_has_a_geometry_of_its_own() -> None:
    assert [LAYERED.of_layer(layer) for layer in range(4)] == [replace(G, topk=topk) for topk in (3, 0, 5, 1)]
    assert G.of_layer(9) is G


def test_some_of_the_layers_keep_the_room_of_all() -> None:
    """Programs of all layers are one loop, whichever group a layer is in."""
    assert LAYERED.of_layers([0, 3]) == replace(G, topk=5, layer_topk=(3, 1))
    assert LAYERED.of_layers([0, 3]).of_layer(1) == replace(G, topk=1)
    assert LAYERED.of_layers([2]).packed
    assert G.of_layers([0, 3]) is G


def test_a_sliding_window_is_the_same_for_all_layers() -> None:
    assert LAYERED.windowed(Span(5)) == G.windowed(Span(5))


def test_rows_lie_one_behind_the_other() -> None:
    """6 rows of sinks and ring each; behind the last layer's 7 there are the 4 more that a program sees."""
    assert LAYERED.packed
    assert LAYERED.layer_offsets == (0, 9, 15, 26)
    assert LAYERED.packed_rows == 26 + 11
    assert not G.packed


def test_indexed_rows_are_not_packed() -> None:
    """Caches of all layers have the same number of rows: that of the layer that selects most."""
    indexed = replace(G, rows="indexed").with_layers([3, 5, 1])
    assert not indexed.packed
    assert (indexed.cache_rows, indexed.layer_topk) == (11, (3, 5, 1))


@pytest.mark.parametrize(
    ("prompt_len", "base", "selected"), [(1, 2, 0), (2, 2, 0), (4, 4, 0), (5, 5, 0), (9, 5, 0), (10, 5, 3), (20, 5, 3)]
)
def test_a_ring_begins_where_a_short_prompt_ends(prompt_len: int, base: int, selected: int) -> None:
    """2 sinks, up to 3 rows that a prompt keeps, and at least 4 rows of the ring."""
    assert (G.base(prompt_len), G.selected(prompt_len)) == (base, selected)
    indexed = replace(G, rows="indexed")
    assert (indexed.base(prompt_len), indexed.selected(prompt_len)) == (base, selected)


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 4), st.integers(1, 20))
def test_no_row_stays_empty_while_positions_are_evicted(sink: int, recent: int, topk: int, prompt_len: int) -> None:
    """Every position is written to its row, a prompt's first; the selected ones are left out."""
    g = Geometry(sink, recent, topk, 2, 3, "avg", 40)
    base, budget = g.base(prompt_len), sink + topk + recent
    kept: dict[int, int] = {}
    for position in range(prompt_len):
        if prompt_len <= budget or position < sink or position >= prompt_len - recent:
            row = g.row(position, base)
            assert row not in kept, "rows of a prompt do not overwrite one another"
            kept[row] = position
    kept |= {sink + place: -1 for place in range(g.selected(prompt_len))}
    assert sorted(kept) == list(range(g.kept_rows(prompt_len)))
    for position in range(prompt_len, 40):
        kept[g.row(position, base)] = position
        assert sorted(kept) == list(range(g.kept_rows(position + 1))) == list(range(min(position + 1, budget)))
        first = max(position + 1 - (budget - base), base)
        assert {kept[row] for row in kept if row >= base} == set(range(first, position + 1))
    assert all(kept[row] in (row, -1) for row in range(base)), "rows before the ring are never overwritten"


def test_layers_with_budgets_of_their_own_select_of_longer_prompts() -> None:
    """Of 7 tokens a layer with 6 rows cannot keep all, and selects none: its top-K is 0."""
    assert [LAYERED.selected(prompt_len) for prompt_len in (6, 7, 8, 9, 10, 11, 12)] == [0, 0, 1, 1, 3, 3, 5]
    assert [LAYERED.of_layer(layer).selected(10) for layer in range(4)] == [3, 0, 0, 1]


def test_where_every_query_chooses_the_prompt_selects_nothing() -> None:
    g = replace(G, rows="indexed", policy="query", key_bits=2)
    assert (g.cache_rows, g.selected(20), g.base(20), g.kept_rows(17)) == (6, 0, 2, 17)
    assert [g.row(position, g.base(20)) for position in (1, 2, 5, 6, 19)] == [1, 2, 5, 2, 3]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.integers(0, 3), st.integers(1, 4))
def test_a_program_sees_as_many_rows_from_where_a_layer_begins(layers: list[int], sink: int, recent: int) -> None:
    g = Geometry(sink, recent, 9, 2, 3, "avg", 20, layer_topk=tuple(layers))
    ends = [first + g.of_layer(layer).budget for layer, first in enumerate(g.layer_offsets)]
    assert list(g.layer_offsets[1:]) == ends[:-1], "no row is between two layers, and none is of both"
    assert g.layer_offsets[0] == 0
    assert all(first + g.cache_rows <= g.packed_rows for first in g.layer_offsets)
    assert all(first < second for first, second in pairwise(g.layer_offsets))
    assert g.packed_rows - ends[-1] == 9 - layers[-1]


@pytest.mark.parametrize(
    "geometry",
    [
        G,
        LAYERED,
        LAYERED.of_layers([1, 2]),
        G.windowed(Span(5)),
        G.windowed(Span(5, 5)),
        replace(G, dtype="int8"),
    ],
)
def test_a_geometry_survives_its_fields(geometry: Geometry) -> None:
    assert Geometry.from_dict(geometry.to_dict()) == geometry


def test_fields_that_say_nothing_are_left_out() -> None:
    assert G.to_dict().keys().isdisjoint({"window", "layer_topk"})
    assert LAYERED.to_dict()["layer_topk"] == [3, 0, 5, 1]
    assert Geometry.from_dict({**G.to_dict(), "layer_topk": []}) == G


@pytest.mark.parametrize(("layers", "wrong"), [((3, 4), 4), ((-1, 3), -1), ((1 << 40,), 1 << 40)])
def test_a_layer_that_selects_more_than_there_is_room_for_is_refused(layers: tuple[int, ...], wrong: int) -> None:
    with raises(GeometryErrors.LAYER_TOPK, most=3, topk=wrong):
        replace(G, layer_topk=layers)


def test_every_layer_of_an_indexed_cache_selects() -> None:
    with raises(GeometryErrors.INDEXED_WITHOUT_TOPK):
        replace(G, rows="indexed").with_layers([3, 0])


def test_a_room_beyond_the_context_is_refused() -> None:
    with raises(GeometryErrors.TOPK_EXCEEDS_CONTEXT):
        G.with_layers([3, 15])


def test_what_a_query_sees() -> None:
    """A query sees all earlier positions, the last ones, or those of its chunk."""
    seen = {window: [window.first(position) for position in range(7)] for window in (Span(), Span(3), Span(3, 3))}
    assert list(seen.values()) == [[0] * 7, [0, 0, 0, 1, 2, 3, 4], [0, 0, 0, 3, 3, 3, 6]]
    assert [window.name for window in seen] == ["", "window3", "chunk3"]
    assert (Span(3, 3).inside(3), Span(3, 3).inside(4)) == (Span(), Span(3, 3))
    assert (G.windowed(Span(5, 5)).sees, G.sees) == (Span(5, 5), Span())


def test_a_window_slides_or_moves_by_all_of_it() -> None:
    with raises(GeometryErrors.WINDOW_STRIDE, window=5, stride=2):
        replace(G.windowed(Span(5)), window_stride=2)
    with raises(GeometryErrors.WINDOW_STRIDE, window=0, stride=1):
        replace(G, window_stride=1)
