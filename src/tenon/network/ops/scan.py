"""A loop over the slices of tensors that carries a state: recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import InputError, InternalError, ShapeError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Alias, Operator, Site, register

_SHAPES = "; the shapes of a loop are those that the model was loaded with: load it again with other shapes"


@register
@dataclass(frozen=True)
class Scan(Operator):
    """ONNX's Scan along axis 0: its body runs ``count`` times.

    The node's inputs are the first ``states`` (what they hold before the first iteration), then ``slices`` tensors of
    ``count`` slices along axis 0, then what all iterations read alike.  The body's inputs are the states, a slice of
    each of those tensors, and the rest.  Its outputs are the next states and slices of results; the node's are the last
    states, and the results with all slices along axis 0.  ``reverse``: from the last slice to the first one.

    ``counted``: the first state, an i64 of one element, says how often the body runs.  It is read before every
    iteration, so that a body that lowers it ends the loop; more than ``count`` iterations are an error.  Slices of
    results that no iteration writes are zeros.
    """

    count: int
    states: int
    slices: int = 0
    reverse: bool = False
    counted: bool = False

    arity: ClassVar[tuple[int, int]] = (0, 1 << 16)
    internal: ClassVar[bool] = True

    @property
    def shared(self) -> int:
        """The number of the first input that all iterations read alike."""
        return self.states + self.slices

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        raise InternalError("the types of a Scan follow from its body")

    def infer_with(self, inputs: Sequence[Value | None], bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        (body,) = bodies
        given = [v.type for v in inputs if v is not None]
        if len(given) != len(inputs) or len(given) != len(body.inputs) or len(body.outputs) < self.states:
            raise ShapeError(f"{self.name}: its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs")
        for i, (type, inner) in enumerate(zip(given, body.inputs, strict=True)):
            sliced = self.states <= i < self.states + self.slices
            if sliced and type.dims[:1] != (self.count,):
                raise ShapeError(f"{self.name}: input {i} is {type}: it has not {self.count} slices{_SHAPES}")
            if (type.dtype, type.dims[1:] if sliced else type.dims) != (inner.type.dtype, inner.type.dims):
                raise ShapeError(f"{self.name}: input {i} is {type}, and its body takes {inner.type}{_SHAPES}")
        if self.counted and (self.reverse or not self.states or given[0] != TensorType(DType.I64, given[0].dims)):
            raise ShapeError(f"{self.name}: no state says how often its body runs")
        for i, (type, after) in enumerate(zip(given, body.outputs[: self.states], strict=False)):
            if (type.dtype, type.dims) != (after.type.dtype, after.type.dims):
                raise ShapeError(f"{self.name}: state {i} is {type} first and then {after.type}")
        stacked = (TensorType(v.type.dtype, (self.count, *v.type.dims)) for v in body.outputs[self.states :])
        return (*(TensorType(t.dtype, t.dims) for t in given[: self.states]), *stacked)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        """The nodes of the body took their places by their own rules already, for what all iterations read alike."""
        if not node.fixed(*range(self.shared)):
            raise SizeRefusedError("a state or slices of a loop have extents that are known only at run time")
        return node.same()

    def reference(self, *inputs: Any) -> Array | tuple[Array, ...]:
        raise InternalError("a Scan is defined by its body")

    def evaluate_with(self, inputs: Sequence[Array | None], bodies: Sequence[Graph]) -> tuple[Array, ...]:
        (body,) = bodies
        arrays = [np.asarray(a) for a in inputs if a is not None]
        states, sliced = arrays[: self.states], arrays[self.states : self.states + self.slices]
        results = body.outputs[self.states :]
        stacked = [np.zeros((self.count, *v.type.dims), v.type.dtype.numpy) for v in results]
        for t in self.iterations():
            if self.counted and states[0].item() <= t:
                break
            fed = [*states, *(a[t] for a in sliced), *arrays[self.states + self.slices :]]
            known = evaluate(body, dict(zip((v.name for v in body.inputs), fed, strict=True)))
            states = [known[v.name] for v in body.outputs[: self.states]]
            for whole, v in zip(stacked, results, strict=True):
                whole[t] = known[v.name]
        if self.counted and states[0].item() > self.count:
            raise InputError(f"a loop runs more often than the {self.count} times for which it was compiled")
        return (*states, *stacked)

    def alias(self, site: Site) -> tuple[Alias, ...]:
        """States are changed in place."""
        return tuple(Alias(i, i, written=True) for i in range(self.states))

    def iterations(self) -> range:
        """The number of the slice of each iteration, of those that there are at most."""
        return range(self.count - 1, -1, -1) if self.reverse else range(self.count)
