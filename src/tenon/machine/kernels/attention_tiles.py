"""How attention on processors is cut into blocks of queries and keys and tiles of registers (``blocked_attention``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine

LEAST = float(np.finfo(np.float32).min)
"""The greatest score before the first key: the lowest number, so that scores of that number still have a maximum."""

_BLOCK = 128
"""Keys of a block: the scores of a block of queries and the keys stay in the caches of a core."""


@dataclass(frozen=True)
class AttentionTile:
    """``block`` keys and ``vecs`` vectors of queries at a time; tiles of ``keys`` keys by these vectors, and of
    ``rows`` queries by ``across`` vectors of channels, are summed in registers."""

    lanes: int
    vecs: int
    keys: int
    rows: int
    across: int
    block: int

    @property
    def queries(self) -> int:
        """Queries of a block."""
        return self.lanes * self.vecs


def tile_of(s: HeadSizes, machine: Machine) -> AttentionTile:
    """The tile for a machine: as large as its registers allow, less a row for what is loaded."""
    lanes, free = machine.lanes, machine.registers - 1
    while lanes > 1 and lanes >= 2 * s.queries:
        lanes //= 2
    vecs = min(2 if lanes >= 8 else 4 if machine.registers >= 32 else 2, -(-s.queries // lanes))
    across = max(1, min(4 if machine.registers >= 32 else 2, s.channels // machine.lanes))
    keys, rows = ((free - n) // n for n in (vecs, across))
    return AttentionTile(lanes, vecs, max(1, min(keys, 12)), max(1, min(rows, 12)), across, min(_BLOCK, s.keys))


def scratch(s: HeadSizes, machine: Machine) -> list[tuple[str, tuple[int, ...]]]:
    """The scratch memory of a thread, in f32, by parameter: queries, scores, factors, where there are several blocks of
    keys sums, and where keys and values are stored in another type a block of them.  Whole blocks of queries and the
    rest of them have parameters of their own, which may be the same memory."""
    t = tile_of(s, machine)
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for run in query_runs(s, t):
        wide = run.lanes * run.vecs
        shapes += [("turned", (s.depth, wide)), ("scores", (t.block, wide)), ("factors", (wide,))]
        if s.keys > t.block:
            shapes.append(("sums", (run.count, s.channels)))
        if s.cache is not None:
            shapes.append(("widened", (t.block, max(s.depth, s.channels))))
    return shapes


def places(s: HeadSizes) -> int:
    """Numbers 0, 1, 2, ... that the kernel takes where queries see some of the keys; 0 if it takes none."""
    return s.keys + 2 * s.queries + 64 if s.causal else 0


@dataclass(frozen=True)
class QueryRun:
    """``blocks`` blocks of ``count`` queries from ``start`` on, in ``vecs`` vectors."""

    start: int
    blocks: int
    count: int
    lanes: int
    vecs: int


def query_runs(s: HeadSizes, t: AttentionTile) -> Iterator[QueryRun]:
    """Whole blocks of queries, and the rest in as few vectors as it fills."""
    for start, blocks, count in segments(s.queries, t.queries):
        lanes = t.lanes
        while lanes > 1 and lanes >= 2 * count:
            lanes //= 2
        yield QueryRun(start, blocks, count, lanes, -(-count // lanes))
