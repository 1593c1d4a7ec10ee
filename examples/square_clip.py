"""A plug-in with an operator: y = min(x * x, limit).

    TENON_PLUGINS=square_clip.py tenon compile model.onnx -o model.tenon

Models name it in any domain of their own.  The bundle holds its code: what opens the bundle needs no plug-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.plugins import (
    Array,
    Builder,
    Case,
    Input,
    Operator,
    Output,
    Site,
    Step,
    TensorType,
    Value,
    lane_segments,
    minimum,
    register_operator,
)


@register_operator
@dataclass(frozen=True)
class SquareClip(Operator):
    """y = min(x * x, limit), for f32 of any shape."""

    limit: float = 1.0
    arity: ClassVar[tuple[int, int]] = (1, 1)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """The type rule."""
        assert inputs[0] is not None
        return (inputs[0].type,)

    def reference(self, x: Array) -> Array:
        """The definition, which verification compares with."""
        return np.minimum(x * x, np.float32(self.limit))

    def lower(self, site: Site) -> list[Step]:
        """A kernel in vectors of the machine's length, and the rest in scalars."""
        n = site.output.size
        k = Builder(f"square_clip_{n}")
        x, y = k.param("x", n), k.param("y", n, out=True)
        for start, iterations, lanes in lane_segments(n, site.machine.lanes):
            with k.loop("i", iterations) as i:
                at = i + start // lanes
                value = x.vec(lanes)[at]
                y.vec(lanes)[at] = minimum(self.limit, value * value)
        return [Step(k.done(), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        """What tests run."""
        yield Case(cls(limit=0.5), ((3, 7),), label="matrix")
