"""The cheapest cut of a network of capacities (Edmonds and Karp)."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Hashable

_LEAST = 1e-15


class Capacities:
    """Capacities between vertices, of which a cut pays those that lead from its first side to its second."""

    def __init__(self) -> None:
        self._left: defaultdict[Hashable, dict[Hashable, float]] = defaultdict(dict)

    def add(self, start: Hashable, end: Hashable, capacity: float) -> None:
        """Adds to the capacity from ``start`` to ``end``."""
        self._left[start][end] = self._left[start].get(end, 0.0) + capacity
        self._left[end].setdefault(start, 0.0)

    def first_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The vertices on the side of ``source`` of the cheapest cut between it and ``sink``; the fewest, if several
        cuts cost the same.  The capacities are used up."""
        while sink in (came := self._reached(source)):
            path = [sink]
            while path[-1] != source:
                path.append(came[path[-1]])
            steps = [(start, end) for end, start in itertools.pairwise(path)]
            flow = min(self._left[start][end] for start, end in steps)
            for start, end in steps:
                self._left[start][end] -= flow
                self._left[end][start] += flow
        return set(came)

    def _reached(self, source: Hashable) -> dict[Hashable, Hashable]:
        """The nodes that can be reached over capacities that are left, each with the node before it."""
        came: dict[Hashable, Hashable] = {source: source}
        waiting = deque([source])
        while waiting:
            start = waiting.popleft()
            for end, capacity in self._left[start].items():
                if end not in came and capacity > _LEAST:
                    came[end] = start
                    waiting.append(end)
        return came
