"""Layered drawing of a graph, from top to bottom, with few edge crossings.

The method of Sugiyama, Tagawa and Toda ("Methods for visual understanding of hierarchical system structures", 1981):
vertices are assigned to layers by their longest path, edges over several layers get a bend in each, the order in a
layer is the mean of the neighbours' positions, and positions are the closest to that mean without overlap (isotonic
regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP, DROP = 26.0, 78.0
"""Pixels between boxes of a layer, and from one layer to the next."""

_SWEEPS = 8
_BEND = 10.0  # width reserved for an edge in a layer that it crosses

Edge = tuple[int, int]
Point = tuple[float, float]


@dataclass(frozen=True)
class GraphLayout:
    """Centres of the boxes, points on each edge, and total width and height."""

    positions: list[Point]
    paths: list[list[Point]]
    size: Point


def arrange(widths: Sequence[float], edges: Sequence[Edge]) -> GraphLayout:
    """Positions of vertices with these widths; edges point to vertices with larger numbers."""
    ranks = [0] * len(widths)
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        ranks[b] = max(ranks[b], ranks[a] + 1)
    fed = {b for _, b in edges}
    for a, b in sorted(
        edges, key=lambda edge: -ranks[edge[1]]
    ):  # vertices without inputs are placed directly above their first reader
        if a not in fed:
            ranks[a] = ranks[b] - 1
    wide, level, chains = list(widths), list(ranks), []
    for a, b in edges:
        bends = list(range(len(wide), len(wide) + max(0, ranks[b] - ranks[a] - 1)))
        wide += [_BEND] * len(bends)
        level += range(ranks[a] + 1, ranks[b])
        chains.append([a, *bends, b])
    x = _positions(wide, level, [pair for chain in chains for pair in pairwise(chain)])
    left = min((c - w / 2 for c, w in zip(x, wide, strict=True)), default=0.0) - GAP
    right = max((c + w / 2 for c, w in zip(x, wide, strict=True)), default=0.0) + GAP
    points = [(c - left, DROP * (rank + 0.7)) for c, rank in zip(x, level, strict=True)]
    paths = [[points[i] for i in chain] for chain in chains]
    return GraphLayout(points[: len(widths)], paths, (right - left, DROP * (max(level, default=0) + 1.4)))


def _positions(wide: Sequence[float], level: Sequence[int], edges: Sequence[Edge]) -> list[float]:
    """The horizontal centre of every vertex."""
    above: list[list[int]] = [[] for _ in wide]
    below: list[list[int]] = [[] for _ in wide]
    for a, b in edges:
        below[a].append(b)
        above[b].append(a)
    layers: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for i, rank in enumerate(level):
        layers[rank].append(i)
    x = [0.0] * len(wide)
    for layer in layers:
        _spread(layer, x, x, wide)
    for sweep in range(2 * _SWEEPS):
        downwards, ordering = sweep % 2 == 0, sweep < _SWEEPS
        for layer in layers if downwards else reversed(layers):
            desired = list(x)
            for i in layer:
                near = (above if downwards else below)[i] or (below if downwards else above)[i]
                if near:
                    desired[i] = sum(x[j] for j in near) / len(near)
            if ordering:
                layer.sort(key=desired.__getitem__)
            _spread(layer, desired, x, wide)
    return x


def _spread(layer: Sequence[int], desired: Sequence[float], x: list[float], wide: Sequence[float]) -> None:
    """Put a layer, in its order, as close to ``desired`` as possible without overlap: pool adjacent violators."""
    offset, pools, offsets = 0.0, list[tuple[float, int]](), []
    for n, i in enumerate(layer):
        if n:
            offset += (wide[layer[n - 1]] + wide[i]) / 2 + GAP
        offsets.append(offset)
        mean, count = desired[i] - offset, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (mean * count + before * many) / (count + many), count + many
        pools.append((mean, count))
    base = [mean for mean, count in pools for _ in range(count)]
    for i, start, shift in zip(layer, base, offsets, strict=True):
        x[i] = start + shift
