"""Tensor arrays and lists of TensorFlow: lists of tensors while importing, tensors with one axis more in loops.

A loop that stays one carries a list as a tensor, whose rows it reads and writes at positions that a run computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.importer import NodeResult, TensorArray, TensorflowNode
from tenon.network.graph.graph import Value
from tenon.network.graph.types import TensorType


def element_of(result: NodeResult) -> TensorType | None:
    """The type of the elements of a list; None where it has none yet, and for what is no list."""
    if not isinstance(result, TensorArray):
        return None
    if result.whole is not None:
        return TensorType(result.whole.type.dtype, result.whole.type.dims[1:])
    return next((TensorType(v.type.dtype, v.type.dims) for v in result.values.values() if v.typed), None)


def whole_of(builder: ChannelsLast, items: TensorArray, element: TensorType | None = None) -> Value:
    """All elements as one tensor, with zeros for those that are not written.  Raises RefusedError where nothing says
    what they are."""
    element = element or element_of(items)
    if items.whole is not None:
        return items.whole
    if element is None:
        raise RefusedError("a list of tensors is empty, and what its elements are is not known")
    if not items.values:
        return builder.constant(np.zeros((items.size, *element.dims), element.dtype.numpy), "list")
    zeros = builder.constant(np.zeros(element.dims, element.dtype.numpy), "element")
    return builder.pack([items.values.get(i, zeros) for i in range(items.size)], 0)


@dataclass(frozen=True)
class StateKind:
    """The kind of a state of a loop: a tensor, or a list of ``size`` tensors of type ``element``."""

    size: int | None = None
    element: TensorType | None = None

    @staticmethod
    def of(first: NodeResult, following: NodeResult | None = None) -> StateKind:
        """The kind of a state that has these first and following values.  Raises RefusedError for other results."""
        if isinstance(first, Value):
            return StateKind()
        if not isinstance(first, TensorArray):
            raise RefusedError("a state of its loop is neither a tensor nor a list of tensors")
        element = element_of(first) or (None if following is None else element_of(following))
        return StateKind(first.size, element)

    def state(self, value: Value) -> NodeResult:
        """The state that a tensor of the loop stands for."""
        return value if self.size is None else TensorArray(self.size, {}, value)

    def value(self, builder: ChannelsLast, result: NodeResult) -> Value:
        """The tensor of the loop that stands for a state.  Raises RefusedError where that is of another kind."""
        if isinstance(result, Value) and self.size is None:
            return result
        if not isinstance(result, TensorArray) or result.size != self.size:
            raise RefusedError("a state of its loop becomes a list of another length, or none")
        return whole_of(builder, result, self.element)


# ------------------------------------------------------------------------------------------------- operators
def _new_array(node: TensorflowNode) -> Sequence[NodeResult]:
    (size,) = node.constant_integers(0)
    return [TensorArray(size), TensorArray(size)]


def _reserve(node: TensorflowNode) -> Sequence[NodeResult]:
    return [TensorArray(node.constant_integers(1)[0])]


def _from_tensor(node: TensorflowNode) -> Sequence[NodeResult]:
    x = node.input(0)
    return [TensorArray(node.builder.dims(x)[0], {}, x)]


def _scatter(node: TensorflowNode) -> Sequence[NodeResult]:
    """Operands: array, indices, a tensor to unpack, flow."""
    flow, x, indices = node.items(3), node.input(2), node.constant_integers(1)
    if list(indices) == list(range(flow.size)):
        return [TensorArray(flow.size, {}, x)]
    parts = dict(zip(indices, node.builder.unpack(x, 0), strict=True))
    return [TensorArray(flow.size, {**_separate(node, flow), **parts})]


def _separate(node: TensorflowNode, items: TensorArray) -> dict[int, Value]:
    """The elements by index."""
    return items.values if items.whole is None else dict(enumerate(node.builder.unpack(items.whole, 0)))


def _write(items: int, value: int) -> Callable[[TensorflowNode], Sequence[NodeResult]]:
    """Operands: array or list, index, and those numbers."""

    def import_node(node: TensorflowNode) -> Sequence[NodeResult]:
        old, index, x = node.items(items), node.input(1), node.input(value)
        if index.data is not None:
            (number,) = node.constant_integers(1)
            return [TensorArray(old.size, {**_separate(node, old), number: x})]
        builder, dims = node.builder, node.builder.dims(x)
        whole = whole_of(builder, old, TensorType(x.type.dtype, dims))
        row = builder.reshape(x, (1, *dims))
        place = builder.reshape(index, (1, 1))
        return [TensorArray(old.size, {}, builder.add("ScatterND", whole, place, row))]

    return import_node


def _read(flow: int) -> Callable[[TensorflowNode], Sequence[NodeResult]]:
    def import_node(node: TensorflowNode) -> Sequence[NodeResult]:
        items, index = node.items(flow), node.input(1)
        if items.whole is not None or index.data is None:
            place = node.builder.reshape(index, ())
            return [node.builder.add("Gather", whole_of(node.builder, items), place, axis=0)]
        (number,) = node.constant_integers(1)
        if number not in items.values:
            raise RefusedError(f"reads element {number} of a tensor array before it is written")
        return [items.values[number]]

    return import_node


def _gather(node: TensorflowNode) -> Sequence[NodeResult]:
    """Operands: array, indices, flow."""
    items = node.items(2)
    if items.whole is not None:
        indices = node.input(1)
        if indices.data is not None and list(node.constant_integers(1)) == list(range(items.size)):
            return [items.whole]
        return [node.builder.add("Gather", items.whole, indices, axis=0)]
    numbers = node.constant_integers(1)
    if any(i not in items.values for i in numbers):
        raise RefusedError("reads elements of a tensor array before they are written")
    return [node.builder.pack([items.values[i] for i in numbers], 0)]


def _stack(node: TensorflowNode) -> Sequence[NodeResult]:
    items = node.items(0)
    if items.whole is None and len(items.values) != items.size:
        raise RefusedError("reads elements of a list before they are written")
    return [whole_of(node.builder, items)]


def _size(flow: int) -> Callable[[TensorflowNode], Sequence[NodeResult]]:
    return lambda node: [node.builder.constant(np.array(node.items(flow).size, np.int32), "size")]


ARRAYS: dict[str, Callable[[TensorflowNode], Sequence[NodeResult]]] = {
    "TensorArrayV3": _new_array,
    "TensorArrayScatterV3": _scatter,
    "TensorArrayWriteV3": _write(3, 2),
    "TensorArrayReadV3": _read(2),
    "TensorArrayGatherV3": _gather,
    "TensorArraySizeV3": _size(1),
    "TensorListReserve": _reserve,
    "TensorListFromTensor": _from_tensor,
    "TensorListSetItem": _write(0, 2),
    "TensorListGetItem": _read(0),
    "TensorListStack": _stack,
    "TensorListLength": _size(0),
}
"""Operators on tensor arrays and lists."""
