"""A commented operator to copy.  It is not registered: this file is only read.

1. Copy the class into the file of its family, keep the parts you need, and add ``@register``.
2. Write ``reference`` from the ONNX text, then ``cases``: odd sizes, broadcasting, a channel count that is
   not a multiple of a block.
3. Declare the traits that are true of it (``ops.base.Operator`` lists them; the defaults are safe).
   ``scripts/test tests/unit/test_traits.py -k YourOperator`` checks them against the reference.
4. Run ``scripts/test tests/unit/test_lowering.py -k YourOperator``: every case is lowered for 16, 8, 4 and 1
   lanes, run under the interpreter and compared with the reference.
5. Run ``scripts/test tests/unit/test_c_dialect.py``: the C of every case does what the interpreter does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Case, Input, Operator, Output, Site, Step


@dataclass(frozen=True)
class Example(Operator):
    """y = x * factor, for f32 of any shape.

    The docstring gives the meaning, shapes and dtypes.  Fields are ONNX's attributes, with the newest opset's
    defaults; what ONNX passes as an input is an input here too.
    """

    factor: float = 2.0
    arity: ClassVar[tuple[int, int]] = (1, 1)  # least and most number of inputs

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """The type rule.  Shapes are bound here; raise ShapeError, naming the shapes, when they do not fit."""
        assert inputs[0] is not None
        return (inputs[0].type,)

    def reference(self, x: Array) -> Array:
        """The definition, with which everything else is compared."""
        return np.asarray(x * np.float32(self.factor))

    def lower(self, site: Site) -> list[Step]:
        """Kernels and what to call them with: one argument per parameter of the kernel.

        ``layouts`` was not overridden, so operands are row-major.  The generator knows no operator and no
        target; it gets numbers and ``site.machine``.
        """
        from tenon.machine.kernel_ir.build import Builder, lane_segments

        n = site.output.size
        k = Builder(f"example_{n}")
        x, y = k.param("x", n), k.param("y", n, out=True)
        for start, iterations, lanes in lane_segments(n, site.machine.lanes):
            with k.loop("i", iterations) as i:
                at = i + start // lanes
                y.vec(lanes)[at] = x.vec(lanes)[at] * self.factor
        return [Step(k.done(), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        """Tests: the operator, and inputs as shapes (filled with random numbers) or arrays."""
        yield Case(cls(), ((3, 7),), label="matrix")
        yield Case(cls(factor=0.5), ((1,),), label="one_element")
