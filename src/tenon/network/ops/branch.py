"""A choice between two graphs at run time: only the chosen one is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import InternalError, ShapeError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Operator, register


@register
@dataclass(frozen=True)
class If(Operator):
    """ONNX's If: of its two bodies the first one runs where the condition holds, else the second one.

    The node's inputs are the condition, a bool of rank 0, and then what the bodies read: each body takes all of
    them.  Both bodies give outputs of the same types, which are those of the node.
    """

    arity: ClassVar[tuple[int, int]] = (1, 1 << 16)
    internal: ClassVar[bool] = True
    shared: ClassVar[int] = 1
    """The first input that the bodies read as it is."""

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        raise InternalError("the types of an If follow from its bodies")

    def infer_with(self, inputs: Sequence[Value | None], bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        first, second = bodies
        condition, *given = [v.type for v in inputs if v is not None]
        if len(given) + 1 != len(inputs) or condition.dtype is not DType.BOOL or condition.dims:
            raise ShapeError(f"{self.name}: its condition is {condition}, not a bool of rank 0")
        for body in bodies:
            if [_bare(v.type) for v in body.inputs] != [_bare(type) for type in given]:
                raise ShapeError(f"{self.name}: a branch does not take {', '.join(map(str, given))}{_SHAPES}")
        results = [[_bare(v.type) for v in body.outputs] for body in (first, second)]
        if results[0] != results[1]:
            shown = " and ".join(", ".join(map(str, types)) for types in results)
            raise ShapeError(f"{self.name}: its branches give {shown}")
        return tuple(results[0])

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        """The nodes of the bodies took their places by their own rules already."""
        return node.same()

    def reference(self, *inputs: Any) -> Array | tuple[Array, ...]:
        raise InternalError("an If is defined by its bodies")

    def evaluate_with(self, inputs: Sequence[Array | None], bodies: Sequence[Graph]) -> tuple[Array, ...]:
        condition, *given = [np.asarray(a) for a in inputs if a is not None]
        body = bodies[0 if condition.item() else 1]
        results = evaluate(body, dict(zip((v.name for v in body.inputs), given, strict=True)))
        return tuple(results[v.name] for v in body.outputs)


_SHAPES = "; the shapes of a branch are those that the model was loaded with: load it again with other shapes"


def _bare(type: TensorType) -> TensorType:
    return TensorType(type.dtype, type.dims)
