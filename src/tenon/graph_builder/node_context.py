"""Writing operators the short way: what the layers of several formats share on top of ``Net``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tenon.errors import ShapeError
from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError
from tenon.ir.bind import remedy
from tenon.ir.graph import Array, Value
from tenon.ir.types import TensorType

Operand = Value | Array | float | None
"""An input of a node: arrays become constants, numbers become f32 scalars."""

MOST_PARTS = 1 << 12
"""Tensors that one layer may cut its input into."""

Made = Value | Sequence[Value]
"""What a layer makes: its one output, or several."""


class NodeContext:
    """Adds operators to ``builder`` on behalf of one layer."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def add(self, type: str, *inputs: Operand, **attributes: Any) -> Value:
        return self.builder.add(type, *map(self.value, inputs), **attributes)

    def value(self, given: Operand) -> Value | None:
        if isinstance(given, Value) or given is None:
            return given
        return (
            self.builder.constant(given, "weights")
            if isinstance(given, np.ndarray)
            else self.builder.scalar(float(given))
        )

    def ints(self, *numbers: int) -> Value:
        return self.builder.ints(*numbers)

    def reshape(self, x: Value, *dims: int) -> Value:
        return self.add("Reshape", x, self.ints(*dims))

    def chain(self, x: Value, *types: str) -> Value:
        """One operator after the other."""
        for type in types:
            x = self.add(type, x)
        return x

    def square(self, x: Value) -> Value:
        return self.add("Mul", x, x)

    def fold(self, type: str, values: Sequence[Value]) -> Value:
        """The same operator over all values, from the left."""
        if not values:
            raise RefusedError("it has no inputs")
        total = values[0]
        for value in values[1:]:
            total = self.add(type, total, value)
        return total

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> Sequence[Value]:
        return self.builder.adds("Split", len(sizes), x, self.ints(*sizes), axis=axis)

    def equal_parts(self, x: Value, axis: int, count: int) -> Sequence[Value]:
        size = self.builder.dims(x)[axis]
        if count == 1:
            return [x]
        if not 0 < count <= MOST_PARTS or size % count:
            raise RefusedError(f"an axis of {size} cannot be cut into {count} equal parts")
        return self.split(x, axis, [size // count] * count)

    def stacked(self, values: Sequence[Value], axis: int) -> Value:
        """Equal tensors along a new axis."""
        return self.add("Concat", *(self.add("Unsqueeze", value, self.ints(axis)) for value in values), axis=axis)

    def unstacked(self, x: Value, axis: int) -> Sequence[Value]:
        """The tensors along an axis."""
        dims = self.builder.dims(x)
        axis = self.axis(axis, len(dims))
        return [self.add("Squeeze", part, self.ints(axis)) for part in self.equal_parts(x, axis, dims[axis])]

    def swapped(self, x: Value, wanted: bool = True) -> Value:
        """The matrices of the last two axes transposed, where that is ``wanted``."""
        rank = len(self.builder.dims(x)) if wanted else 0
        return self.add("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else x

    def slice(
        self, x: Value, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()
    ) -> Value:
        given = [self.ints(*starts), self.ints(*ends), self.ints(*axes), *([self.ints(*steps)] if steps else [])]
        return self.add("Slice", x, *given)

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front.  Raises RefusedError for one that is not there."""
        if not -rank <= axis < rank:
            raise RefusedError(f"axis {axis} of {rank} is impossible")
        return axis % rank

    def image(self, x: Value) -> tuple[int, int, int, int]:
        """N, C, H and W.  Raises RefusedError for what is no image."""
        dims = self.builder.dims(x)
        if len(dims) != 4:
            raise RefusedError(f"it needs an image, not {list(dims)}")
        return dims[0], dims[1], dims[2], dims[3]

    def as_matrix(self, x: Value, axis: int = 1) -> Value:
        """[what stands before the axis, the rest]."""
        dims = self.builder.dims(x)
        axis = axis + len(dims) if axis < 0 else axis
        if len(dims) == 2 and axis == 1:
            return x
        return self.reshape(x, math.prod(dims[:axis]), math.prod(dims[axis:]))

    def channels(self, vector: Operand, x: Value, axis: int = 1) -> Operand:
        """A vector shaped to broadcast along one axis of ``x``."""
        rank = len(self.builder.dims(x))
        shape = (-1, *(1,) * (rank - 1 - self.axis(axis, rank)))
        if isinstance(vector, Value):
            return self.reshape(vector, *shape)
        return vector.reshape(shape) if isinstance(vector, np.ndarray) else vector

    def resized(self, x: Value, height: int, width: int, mode: str, centre: str) -> Value:
        """Images [N, C, H, W] of another size; nearest neighbours are rounded down."""
        dims = self.builder.dims(x)
        if len(dims) != 4 or not (0 < height < 1 << 16 and 0 < width < 1 << 16):
            raise RefusedError(f"{list(dims)} cannot be resized to {height}x{width}")
        options = {"mode": mode, "coordinate_transformation_mode": centre, "nearest_mode": "floor"}
        return self.add("Resize", x, None, None, self.ints(dims[0], dims[1], height, width), **options)

    def shuffled(self, x: Value, groups: int) -> Value:
        """Channels dealt out of ``groups`` hands."""
        n, channels, *rest = self.builder.dims(x)
        if groups < 1 or channels % groups:
            raise RefusedError(f"{channels} channels do not make {groups} groups")
        split = self.reshape(x, n, groups, channels // groups, *rest)
        swapped = self.add("Transpose", split, perm=(0, 2, 1, *range(3, 3 + len(rest))))
        return self.reshape(swapped, n, channels, *rest)

    def broadcast(self, a: Value, b: Value, axis: int) -> tuple[Value, Value]:
        """Two values of which the second lies along the first's axes from ``axis`` on (-1: the last ones)."""
        first, second = self.builder.dims(a), self.builder.dims(b)
        tail = len(first) - axis - len(second)
        if axis < 0 or tail <= 0 or not second:
            return a, b
        return a, self.reshape(b, *second, *(1,) * tail)


class HasInput(Protocol):
    """A layer with a first input, as the functions of a format see it."""

    @property
    def x(self) -> Value: ...

    def add(self, type: str, *inputs: Operand, **attributes: Any) -> Value: ...


def simple(type: str, **attributes: Any) -> Callable[[HasInput], Value]:
    """What a layer becomes that is one operator of its first input."""
    return lambda node: node.add(type, node.x, **attributes)


def same(node: HasInput) -> Value:
    """What a layer becomes that does nothing when the network runs."""
    return node.x


def full_windows(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> list[int]:
    """Pads (all befores, then all afters) with as much added after each axis as windows that begin inside need."""
    half = len(sizes)
    after = []
    for n, k, s, p, q in zip(sizes, kernel, strides, pads[:half], pads[half:], strict=True):
        if min(k, s) < 1:
            raise RefusedError(f"windows of {k} with stride {s} are impossible")
        steps = -(-(n + p + q - k) // s)
        steps -= steps > 0 and steps * s >= n + p  # the last window would begin in the padding
        after.append(max(q, steps * s + k - n - p))
    return [*pads[:half], *after]


def port(builder: GraphBuilder, name: str, type: TensorType) -> Value:
    """A graph input in a format whose layers need shapes.  Raises ShapeError while its shape is not all known."""
    value = builder.input(name, type)
    if not value.type.bound:
        hint = remedy(name, value.type)
        raise ShapeError(f"{builder.file.name}: the file does not say the shape of '{name}': {hint}")
    return value
