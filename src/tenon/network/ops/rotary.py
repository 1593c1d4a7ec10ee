"""Rotary position embedding of heads, by tables of the positions of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tenon.errors import ShapeError
from tenon.machine.kernels.rotary import RotaryHeads, rotary
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import F32, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.reach import Operands, Reach, Reaches


@register
@dataclass(frozen=True)
class RotateHeads(Operator):
    """Inputs: heads f32 [1, length, heads, depth], cosines and sines [length, n].  Tenon's own, not ONNX's.

    Of the first 2 n elements of a head, the pairs i and i + n, or 2 i and 2 i + 1 if ``interleaved``, are turned by the
    angles; the other elements stay.
    """

    interleaved: int = 0
    arity: ClassVar[tuple[int, int]] = (3, 3)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, cosine, sine = typed(inputs)
        fits = x.rank == 4 and cosine.rank == 2 and cosine.dims == sine.dims and x.dims[0] == 1
        if not fits or x.dims[1] != cosine.dims[0] or not 0 < 2 * cosine.dims[1] <= x.dims[3] or x.dtype is not F32:
            raise ShapeError(f"RotateHeads: {x} does not fit tables of {list(cosine.dims)} and {list(sine.dims)}")
        return (TensorType(F32, x.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same(node.extents(0))

    def reference(self, x: Array, cosine: Array, sine: Array) -> Array:
        n, y = cosine.shape[1], x.copy()
        places = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if self.interleaved else (slice(0, n), slice(n, 2 * n))
        (a, b), (c, s) = (x[..., place] for place in places), (table[None, :, None] for table in (cosine, sine))
        y[..., places[0]], y[..., places[1]] = a * c - b * s, a * s + b * c
        return y

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return {1: (Reach(1), Reach(0), Reach(0)), 2: (Reach(2), None, None)}.get(axis)

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    def lower(self, site: Site) -> list[Step]:
        _, length, heads, depth = site.input(0).dims
        s = RotaryHeads(length, heads, depth, 2 * site.input(1).dims[1], bool(self.interleaved))
        return [Step(rotary(s, site.machine), (*map(Input, range(3)), Output()))] if site.output.size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 3, 2, 64), (3, 32), (3, 32)), label="halves")
        yield Case(cls(), ((1, 2, 3, 20), (2, 6), (2, 6)), label="some")
        yield Case(cls(1), ((1, 2, 3, 16), (2, 6), (2, 6)), label="neighbours")
