"""An ATen operator as the functions that import it see it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType

TYPES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
    "bfloat16": "bf16",
}
"""torch's element types, which bear NumPy's names, and ours."""


class PytorchNode(NodeContext):
    """The operator being imported: its arguments by name, the shape and the element type of its first result, and
    which of several results are read."""

    builder: GraphBuilder
    inputs: list[Value]

    def __init__(
        self,
        builder: GraphBuilder,
        name: str,
        arguments: dict[str, Any],
        result: tuple[tuple[int, ...], str],
        read: Collection[int] = (0,),
    ) -> None:
        super().__init__(builder, attributes=arguments)
        self.name, self.read = name, read
        self.shape, self.kind = result

    def get(self, name: str, default: Any = None) -> Any:
        """An argument as it is; the default for None too."""
        given = self.attributes.get(name)
        return default if given is None else given

    @property
    def x(self) -> Value:
        for name in ("self", "input", "x"):
            if isinstance(self.attributes.get(name), Value):
                value: Value = self.attributes[name]
                return value
        raise RefusedError("its operand is not a tensor")

    def dim(self, name: str = "dim", default: int = 0) -> int:
        """An axis of ``x``, counted from the front; a scalar is taken for a vector of one."""
        return self.axis(self.integer(name, default), max(1, self.x_rank))

    def axes(self, name: str = "dim") -> list[int]:
        """Axes of ``x``; all of them where none are given."""
        given = self.get(name, [])
        rank = self.x_rank
        chosen = given if isinstance(given, list | tuple) else [given]
        return [self.axis(int(a), max(1, rank)) for a in chosen if rank] or list(range(rank))

    @property
    def numpy(self) -> np.dtype[Any]:
        """The element type of the result."""
        if self.kind not in TYPES:
            raise RefusedError(f"elements of type {self.kind} are not supported")
        return DType(TYPES[self.kind]).numpy

    def cast(self, x: Value, to: np.dtype[Any] | None = None) -> Value:
        """``x`` in another element type; that of the result unless one is given."""
        wanted = TYPES[str(to or self.numpy)]
        return x if self.builder.type(x).dtype == wanted else self.add("Cast", x, to=wanted)

    def full(self, number: Any, like: np.dtype[Any] | None = None) -> Array:
        """A number of the result's element type, of rank 0."""
        return np.array(number, like or self.numpy)

    def operand(self, name: str, like: np.dtype[Any] | None = None) -> Value:
        """A tensor, or a number, in the element type of the result or in the one given."""
        argument = self.attributes.get(name)
        if isinstance(argument, Value):
            return self.cast(argument, like)
        value = self.value(self.full(argument, like))
        assert value is not None
        return value

    def pair(self, first: str = "self", second: str = "other") -> tuple[Value, Value]:
        """Both operands of a comparison in the type that holds both; a Python number takes the tensor's kind."""
        given = [self.attributes.get(name) for name in (first, second)]
        types = [self.builder.type(v).dtype.numpy for v in given if isinstance(v, Value)]
        common = np.result_type(*types)
        fractions = any(isinstance(v, float) for v in given)
        like = np.dtype(np.float32) if fractions and common.kind in "iub" else common
        return self.operand(first, like), self.operand(second, like)


def simple(type: str, **attributes: Any) -> Callable[[PytorchNode], Value]:
    """One operator of ONNX, in the element type of the result."""
    return lambda node: node.add(type, node.cast(node.x), **attributes)


def kept(type: str) -> Callable[[PytorchNode], Value]:
    """One operator of ONNX, in the element type of the operand."""
    return lambda node: node.add(type, node.x)
