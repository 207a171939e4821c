"""Places of nodes: below their dependences, and without overlaps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sscc.compiler.tools.report.graph_layout import GAP_X, place


def test_a_diamond() -> None:
    placed = place(dict.fromkeys("abcd", (100.0, 40.0)), [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = (placed.nodes[name] for name in "abcd")
    assert ay < by == cy < dy
    assert abs(cx - bx) == pytest.approx(100 + GAP_X)
    assert ax == pytest.approx((bx + cx) / 2) == pytest.approx(dx)
    assert placed.width == pytest.approx(200 + GAP_X)


def test_lines_that_need_not_cross_do_not() -> None:
    edges = [("a", "y"), ("b", "x")]
    placed = place(dict.fromkeys("abxy", (10.0, 10.0)), edges)
    left_to_right = [placed.nodes[a][0] < placed.nodes[b][0] for a, b in ("ab", "yx")]
    assert left_to_right[0] == left_to_right[1]


def test_a_line_that_passes_a_layer_goes_round_its_nodes() -> None:
    placed = place(dict.fromkeys("abc", (80.0, 30.0)), [("a", "b"), ("b", "c"), ("a", "c")])
    (_, top, bottom, _) = placed.paths["a", "c"]
    x, y = placed.nodes["b"]
    assert top[0] == bottom[0]
    assert top[1] <= y < y + 30 <= bottom[1]
    assert not x < top[0] < x + 80


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="cycle"):
        place(dict.fromkeys("ab", (1.0, 1.0)), [("a", "b"), ("b", "a")])


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=25))
@settings(max_examples=40, deadline=None)
def test_any_graph(pairs: list[tuple[int, int]]) -> None:
    sizes = {str(n): (30.0 + 5 * n, 20.0 + n) for n in range(12)}
    edges = [(str(min(pair)), str(max(pair))) for pair in pairs if pair[0] != pair[1]]
    placed = place(sizes, edges)
    boxes = {name: (*placed.nodes[name], *sizes[name]) for name in sizes}
    for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(boxes.values(), 2):
        assert x + w <= x2 + 1e-6 or x2 + w2 <= x + 1e-6 or y + h <= y2 + 1e-6 or y2 + h2 <= y + 1e-6
    for x, y, w, h in boxes.values():
        assert -1e-6 <= x <= x + w <= placed.width + 1e-6
        assert -1e-6 <= y <= y + h <= placed.height + 1e-6
    for source, target in edges:
        (x, y), *_, (x2, y2) = placed.paths[source, target]
        assert y < y2
        assert boxes[source][0] <= x <= boxes[source][0] + boxes[source][2]
        assert boxes[target][0] <= x2 <= boxes[target][0] + boxes[target][2]
