"""Layout of a directed acyclic graph in layers, from the top to the bottom.

After Sugiyama, Tagawa and Toda (1981): every node is placed below all nodes that it depends on, an edge that crosses
layers gets a lane in each of them, the order within layers is improved by barycentres to reduce crossings, and then
nodes are moved as close to their neighbours as that order allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Size = tuple[float, float]
Point = tuple[float, float]
Edge = tuple[str, str]

SWEEPS = 12
GAP_X, GAP_Y = 22.0, 46.0
LANE = 14.0
"""Width of the lane of an edge in a layer that it crosses."""


@dataclass(frozen=True)
class Placed:
    """The result of a layout.

    Attributes:
        nodes: upper left corner of each node.
        paths: points of each edge: its start, the lanes that it passes through, and its end.
    """

    nodes: Mapping[str, Point]
    paths: Mapping[Edge, tuple[Point, ...]]
    width: float
    height: float


def place(sizes: Mapping[str, Size], edges: Sequence[Edge]) -> Placed:
    """Place nodes of the given widths and heights. The order of nodes and edges breaks ties.

    Raises:
        ValueError: the edges form a cycle.
    """
    return _Layers(sizes, list(dict.fromkeys(edges))).placed()


class _Layers:
    def __init__(self, sizes: Mapping[str, Size], edges: list[Edge]) -> None:
        self._sizes, self._edges = sizes, edges
        self._rank = _ranks(list(sizes), edges)
        self._chains: dict[Edge, list[str]] = {}
        self._widths = {name: width for name, (width, _) in sizes.items()}
        self._above: dict[str, list[str]] = {}
        self._below: dict[str, list[str]] = {}
        self._layers: list[list[str]] = [[] for _ in range(max(self._rank.values(), default=-1) + 1)]
        for name in sizes:
            self._layers[self._rank[name]].append(name)
        for number, (source, target) in enumerate(edges):
            lanes = [f"\0{number}.{rank}" for rank in range(self._rank[source] + 1, self._rank[target])]
            for rank, lane in enumerate(lanes, self._rank[source] + 1):
                self._layers[rank].append(lane)
                self._widths[lane] = LANE
            chain = [source, *lanes, target]
            self._chains[source, target] = chain
            for upper, lower in itertools.pairwise(chain):
                self._below.setdefault(upper, []).append(lower)
                self._above.setdefault(lower, []).append(upper)

    def placed(self) -> Placed:
        self._order()
        centres = self._centres()
        heights = [max((self._sizes[n][1] for n in layer if n in self._sizes), default=0.0) for layer in self._layers]
        tops, top = [], 0.0
        for height in heights:
            tops.append(top)
            top += height + GAP_Y
        left = min((centres[n] - self._widths[n] / 2 for n in centres), default=0.0)
        right = max((centres[n] + self._widths[n] / 2 for n in centres), default=0.0)
        middle = {name: x - left for name, x in centres.items()}
        nodes = {n: (middle[n] - self._sizes[n][0] / 2, tops[self._rank[n]]) for n in self._sizes}
        paths = {edge: self._path(chain, middle, tops, heights) for edge, chain in self._chains.items()}
        return Placed(nodes, paths, right - left, max(0.0, top - GAP_Y))

    def _path(
        self, chain: list[str], middle: Mapping[str, float], tops: list[float], heights: list[float]
    ) -> tuple[Point, ...]:
        source, *lanes, target = chain
        start = (self._port(source, self._below[source], chain[1], middle), self._bottom(source, tops))
        points = [start]
        for rank, lane in enumerate(lanes, self._rank[source] + 1):
            points += [(middle[lane], tops[rank]), (middle[lane], tops[rank] + heights[rank])]
        return (*points, (self._port(target, self._above[target], chain[-2], middle), tops[self._rank[target]]))

    def _bottom(self, name: str, tops: list[float]) -> float:
        return tops[self._rank[name]] + self._sizes[name][1]

    def _port(self, name: str, neighbours: list[str], other: str, middle: Mapping[str, float]) -> float:
        """Return the x coordinate of the line to a neighbour at a node's border; lines follow the neighbours' order."""
        order = sorted(neighbours, key=lambda n: middle[n])
        share = (order.index(other) + 1) / (len(order) + 1)
        return middle[name] + (share - 0.5) * self._widths[name] * 0.8

    def _order(self) -> None:
        best, fewest = [list(layer) for layer in self._layers], self._crossings()
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            near = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                places = {name: at for row in self._layers for at, name in enumerate(row)}
                now = {name: at for at, name in enumerate(layer)}
                layer.sort(key=lambda n: (_mean([places[m] for m in near.get(n, [])], now[n]), now[n]))
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self._layers], crossings
        self._layers = best

    def _crossings(self) -> int:
        places = {name: at for layer in self._layers for at, name in enumerate(layer)}
        count = 0
        for layer in self._layers:
            ends = [place for name in layer for place in sorted(places[lower] for lower in self._below.get(name, []))]
            count += sum(a > b for at, b in enumerate(ends) for a in ends[:at])
        return count

    def _centres(self) -> dict[str, float]:
        centres: dict[str, float] = {}
        for layer in self._layers:
            centres.update(self._spread(layer, [0.0] * len(layer)))
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            near = self._above if down else self._below
            for layer in self._layers if down else reversed(self._layers):
                wanted = [_mean([centres[m] for m in near.get(n, [])], centres[n]) for n in layer]
                centres.update(self._spread(layer, wanted))
        return centres

    def _spread(self, layer: list[str], wanted: list[float]) -> dict[str, float]:
        """Return centres in the order of a layer, side by side without overlap, with the least squared distances from
        the wanted ones: an isotonic regression that pools neighbours which would overlap."""
        offsets, offset = [], 0.0
        for at, name in enumerate(layer):
            if at:
                offset += (self._widths[layer[at - 1]] + self._widths[name]) / 2 + GAP_X
            offsets.append(offset)
        pools: list[tuple[float, int]] = []
        for goal, offset in zip(wanted, offsets, strict=True):
            pools.append((goal - offset, 1))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (b, m), (a, n) = pools.pop(), pools.pop()
                pools.append(((a * n + b * m) / (n + m), n + m))
        shifts = [shift for shift, count in pools for _ in range(count)]
        return {name: shift + offset for name, shift, offset in zip(layer, shifts, offsets, strict=True)}


def _ranks(names: list[str], edges: list[Edge]) -> dict[str, int]:
    """Return the layer of each node: the length of the longest path to it. A node without predecessors is placed just
    above its first successor."""
    above: dict[str, list[str]] = {name: [] for name in names}
    below: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    rank: dict[str, int] = {}
    ready = [name for name in names if not above[name]]
    left = {name: len(above[name]) for name in names}
    for name in ready:
        rank[name] = max((rank[n] + 1 for n in above[name]), default=0)
        for lower in below[name]:
            left[lower] -= 1
            if not left[lower]:
                ready.append(lower)
    if len(rank) < len(names):
        raise ValueError("the edges form a cycle")
    for name in names:
        if not above[name] and below[name]:
            rank[name] = min(rank[n] for n in below[name]) - 1
    return rank


def _mean(values: list[float] | list[int], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
