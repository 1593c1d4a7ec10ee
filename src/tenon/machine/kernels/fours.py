"""Four neighbouring elements at a time, as devices load and store them: where they may be."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Buffer
from tenon.network.graph.types import F32, I32, DType

FOUR = 4
VECTORS = (F32, I32, DType.F16, DType.BF16)
"""Types of which devices load and store four elements at once."""


def loops_over(extents: Sequence[int], along: int) -> list[Index]:
    """Positions of loops of these extents, one of them by every fourth element: to ask where an access may lie."""
    variables = (Index(((Var("i", (Index((), n),), i), 1),)) for i, n in enumerate(extents))
    return [variable * FOUR if i == along else variable for i, variable in enumerate(variables)]


def aligned(buffer: Buffer, at: Sequence[Index]) -> bool:
    """Whether an element lies at a multiple of four in its buffer, wherever the loops are."""
    flat = buffer.flat(tuple(at))
    return flat.const % FOUR == 0 and not any(step % FOUR for _, step in flat.terms)
