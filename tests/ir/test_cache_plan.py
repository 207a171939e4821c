"""The cache plan: which group a layer is in, and which groups share a prompt scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sscc.ir.cache_plan import CachePlan, LayerGroup, check_layers
from sscc.ir.geometry import Geometry, GeometryErrors, Span
from sscc.ir.layer_state.row_streams import Stream
from tests.errors import raises

G = Geometry(sink=2, recent=4, topk=3, obs=2, pool=3, pool_mode="avg", max_context=20)
STREAMS = (Stream("k", 8), Stream("v", 6))
WINDOWS = LayerGroup("window5", (0, 1, 3, 4), G.windowed(Span(5)), 4, 2, STREAMS)
OTHERS = LayerGroup("", (2, 5), G, 4, 2, STREAMS)
PLAN = CachePlan((WINDOWS, OTHERS))


def test_every_layer_has_a_place_in_its_group() -> None:
    assert PLAN.layers == 6
    assert [(group.name, index) for group, index in map(PLAN.of, range(6))] == [
        ("window5", 0), ("window5", 1), ("", 0), ("window5", 2), ("window5", 3), ("", 1)
    ]  # fmt: skip
    assert PLAN.main is OTHERS
    assert CachePlan((WINDOWS,)).main is WINDOWS
    assert list(PLAN) == [WINDOWS, OTHERS]


def test_states_are_called_after_their_group() -> None:
    assert (OTHERS.state("k_cache"), WINDOWS.state("k_cache")) == ("k_cache", "k_cache.window5")
    assert [(s.cache, s.scratch, s.store) for s in STREAMS] == [
        ("k_cache", "k_scratch", "k_store"), ("v_cache", "v_scratch", "v_store")
    ]  # fmt: skip
    assert OTHERS.key == STREAMS[0]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (OTHERS, True),
        (replace(OTHERS, geometry=replace(G, dtype="int8")), True),  # the prompt's own rows stay as they are
        (replace(OTHERS, geometry=replace(G, topk=0, recent=9)), True),
        (replace(OTHERS, heads=8), False),
        (replace(OTHERS, kv_heads=4), False),
        (replace(OTHERS, streams=(Stream("k", 8), Stream("v", 8))), False),
        (replace(OTHERS, geometry=replace(G, obs=3)), False),
        (replace(OTHERS, geometry=replace(G, rows="indexed")), False),  # its rows stay when the prompt is done
    ],
)
def test_groups_whose_prompts_are_alike_share_a_scratch(other: LayerGroup, shared: bool) -> None:
    for first, second in ((WINDOWS, other), (other, WINDOWS)):
        plan = CachePlan((first, second))
        assert first.shares_scratch_with(second) == shared
        assert plan.scratch(first) is first
        assert plan.scratch(second) is (first if shared else second)
        owners = tuple(group for group in plan if plan.scratch(group) is group)
        assert owners == ((first,) if shared else (first, second))


def test_indexed_groups_share_nothing_with_their_like() -> None:
    indexed = replace(OTHERS, geometry=replace(G, rows="indexed"))
    plan = CachePlan((indexed, replace(indexed, name="group_2", layers=(0, 1, 3, 4))))
    owners = tuple(group for group in plan if plan.scratch(group) is group)
    assert owners == plan.groups


@pytest.mark.parametrize("groups", [[[0, 1, 2]], [[0, 2], [1]], [[1], [0, 2]]])
def test_layers_in_one_group_each(groups: list[list[int]]) -> None:
    check_layers([group_of(group) for group in groups], 3)


def group_of(layers: Sequence[int], sharers: Sequence[int] = (), beside: bool = False) -> LayerGroup:
    return replace(OTHERS, layers=tuple(layers), sharers=tuple(sharers), beside=beside)


def test_a_group_beside_others_has_some_of_their_layers() -> None:
    check_layers([group_of([0, 1, 2]), group_of([0, 2], beside=True), group_of([1, 2], beside=True)], 3)
    for beside in ([], [2, 0], [0, 0], [3], [-1]):
        with pytest.raises(ValueError, match="must cover 3 layers"):
            check_layers([group_of([0, 1, 2]), group_of(beside, beside=True)], 3)
    plan = CachePlan((group_of([0, 1, 2]), group_of([0, 2], beside=True)))
    assert plan.layers == 3
    assert [(group.beside, index) for group, index in plan.all_of(2)] == [(False, 2), (True, 1)]


def test_layers_that_share_stand_behind_the_one_that_keeps_their_rows() -> None:
    check_layers([group_of([0], [2]), group_of([1])], 3)
    for groups in ([([0], [1]), ([2], [1])], [([1], [0, 2])], [([0], []), ([], [1, 2])]):
        with pytest.raises(ValueError, match=r"the groups' layers must cover 3 layers, got"):
            check_layers([group_of(*group) for group in groups], 3)
    with pytest.raises(ValueError, match=r"a group with sharers must have one layer, got \[0, 1\]"):
        check_layers([group_of([0, 1], [2])], 3)


def test_a_layer_that_shares_is_at_the_place_of_its_source() -> None:
    source = replace(OTHERS, name="group_2", layers=(6,), sharers=(7, 8))
    plan = CachePlan((WINDOWS, OTHERS, source))
    assert plan.layers == 9
    assert plan.of(8) == plan.of(6) == (source, 0)
    assert plan.sources == {7: 6, 8: 6}
    assert plan.scratch(source) is source, "its rows of a prompt are read in other layers' phases"


@pytest.mark.parametrize(
    "groups", [[], [[0, 1]], [[0, 1, 2], []], [[0, 1, 1, 2]], [[0, 1], [1, 2]], [[0, 2, 1]], [[0, 1, 3]], [[-1, 0, 1]],
               [[0, 1, 2, 3]]]
)  # fmt: skip
def test_layers_in_no_group_or_in_two(groups: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"the groups' layers must cover 3 layers, got"):
        check_layers([group_of(group) for group in groups], 3)


def test_a_window_is_a_ring_and_nothing_else() -> None:
    g = G.windowed(Span(5))
    assert (g.sink, g.recent, g.topk, g.window, g.max_context) == (0, 5, 0, 5, 20)
    assert (g.budget, g.cache_rows, g.sink_recent, g.selected(20)) == (5, 5, 5, 0)
    assert {g.base(prompt_len) for prompt_len in (1, 5, 6, 20)} == {0}
    assert [g.row(position, 0) for position in (0, 4, 5, 19)] == [0, 4, 0, 4]
    assert replace(G, rows="indexed").windowed(Span(5)) == g
    assert replace(G, dtype="int8").windowed(Span(5)).encoded
    assert Geometry.from_dict(g.to_dict()) == g
    assert "window" not in G.to_dict()
    for changes in ({"sink": 1}, {"recent": 4}, {"topk": 1}, {"window": 4}, {"window": -1}):
        with raises(GeometryErrors.WINDOW_RING):
            replace(g, **changes)
