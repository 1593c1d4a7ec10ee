"""A plug-in with an operator in C: y = sign(x) * max(|x| - limit, 0).

    TENON_PLUGINS=soft_threshold.py tenon compile model.onnx -o model.tenon

The C is compiled into the bundle, for every target: what opens the bundle needs no plug-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.plugins import Array, Case, Site, Source, SourceOperator, TensorType, Value, register_operator

C = """\
static inline void soft_threshold(const float *x, float *y, int64_t count, float limit) {
  for (int64_t i = 0; i < count; i++) y[i] = x[i] > limit ? x[i] - limit : x[i] < -limit ? x[i] + limit : 0.0f;
}
"""


@register_operator
@dataclass(frozen=True)
class SoftThreshold(SourceOperator):
    """y = sign(x) * max(|x| - limit, 0), for f32 of any shape."""

    limit: float = 0.5
    arity: ClassVar[tuple[int, int]] = (1, 1)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """The type rule."""
        assert inputs[0] is not None
        return (inputs[0].type,)

    def reference(self, x: Array) -> Array:
        """The definition, which verification compares with."""
        return np.sign(x) * np.maximum(np.abs(x) - np.float32(self.limit), np.float32(0))

    def source(self, site: Site) -> Source:
        """The function, and what it gets behind the tensors."""
        return Source("soft_threshold", C, (site.output.size, self.limit))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        """What tests run."""
        yield Case(cls(limit=0.25), ((3, 7),), label="matrix")
