"""The node being imported, as the functions that import it see it: one class, which formats extend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.sized_ints import sized_ints
from tenon.network.graph.graph import Array, Origin, Value
from tenon.network.graph.writer import Writer, is_known

Operand = Value | Array | float | None
"""An input of a node: arrays become constants, numbers become f32 scalars."""

MAX_PARTS = 1 << 12
"""Tensors that one layer may cut its input into."""

AttributeName = str | int
"""Attributes are numbered in ncnn."""

Outputs = Value | Sequence[Value]
"""The outputs of a node: one, or several."""


class NodeBuilder(Protocol):
    """The interface of the builder of a graph that nodes need; ``GraphBuilder`` has it."""

    @property
    def origin(self) -> Origin: ...

    @property
    def writer(self) -> Writer: ...

    def add(self, type: str, *inputs: Value | None, **attributes: Any) -> Value: ...

    def adds(self, type: str, count: int, *inputs: Value | None, **attributes: Any) -> Sequence[Value]: ...

    def constant(self, data: Array, stem: str = "constant") -> Value: ...

    def rank(self, value: Value) -> int: ...

    def dims(self, value: Value) -> tuple[int, ...]: ...


class NodeContext:
    """A node of a model file: its inputs, its attributes, and the operators that are added on its behalf.

    ``inputs`` are its operands, None where one is absent; ``attributes`` are its settings as the file has them.  A
    format extends the class where its files differ: in how attributes are decoded (``attribute``), and where operands
    come from (``input``).  Everything here raises RefusedError with what is wrong; the builder adds file, name and
    type of the node.
    """

    builder: NodeBuilder
    inputs: Sequence[Value | None] = ()
    attributes: Mapping[Any, Any] = {}

    def __init__(
        self,
        builder: NodeBuilder,
        inputs: Sequence[Value | None] | None = None,
        attributes: Mapping[Any, Any] | None = None,
    ) -> None:
        self.builder = builder
        if inputs is not None:
            self.inputs = inputs
        if attributes is not None:
            self.attributes = attributes

    @property
    def origin(self) -> Origin:
        """The file, the name and the type of the node."""
        return self.builder.origin

    # ----------------------------------------------------------------------------------------- inputs
    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int = 0) -> Value:
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise RefusedError(f"input {i} is missing")
        return value

    def optional(self, i: int) -> Value | None:
        return self.input(i) if self.has(i) else None

    @property
    def x(self) -> Value:
        """The first input."""
        return self.input(0)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.builder.dims(self.x)

    @property
    def x_rank(self) -> int:
        """The number of axes of the first input."""
        return self.builder.rank(self.x)

    def dims_of(self, i: int) -> tuple[int, ...]:
        """The shape of an input."""
        return self.builder.dims(self.input(i))

    @property
    def inputs_known(self) -> bool:
        """Whether the types of all inputs are known."""
        return all(value is None or is_known(value) for value in self.inputs)

    def constant_input(self, i: int) -> Array:
        """The data of an input that must not be computed at run time."""
        value = self.input(i)
        if value.data is None:
            raise RefusedError(f"input {i} ('{value.name}') is computed at run time; it must be a constant")
        return value.data

    def constant_integers(self, i: int) -> list[int]:
        """The integers of a constant input, flattened."""
        return [int(n) for n in self.constant_input(i).ravel()]

    # ------------------------------------------------------------------------------------- attributes
    def attribute(self, name: AttributeName) -> Any:
        """An attribute as a number, a string or a list; None where the file does not have it."""
        return self.attributes.get(name)

    def integer(self, name: AttributeName, default: int = 0) -> int:
        """An integer; of a float the whole part, of a list of one number that number."""
        value = self._scalar(name)
        return default if value is None else self._converted(int, name, value)

    def number(self, name: AttributeName, default: float = 0.0) -> float:
        """A float, or an integer where the file holds one; of a list of one number that number."""
        value = self._scalar(name)
        return default if value is None else self._converted(float, name, value)

    def flag(self, name: AttributeName, default: bool = False) -> bool:
        value = self.attribute(name)
        return default if value is None else bool(value)

    def text(self, name: AttributeName, default: str = "") -> str:
        value = self.attribute(name)
        return default if value is None else str(value)

    def integers(self, name: AttributeName, default: Sequence[int] = ()) -> list[int]:
        """A list of integers; a single one is a list of one."""
        return [self._converted(int, name, value) for value in self._list(name, default)]

    def numbers(self, name: AttributeName, default: Sequence[float] = ()) -> list[float]:
        """A list of floats; a single one is a list of one."""
        return [self._converted(float, name, value) for value in self._list(name, default)]

    def per_axis(self, name: AttributeName, count: int, default: int = 1) -> list[int]:
        """One integer for each of ``count`` axes; a single one is for all."""
        values = self.integers(name, (default,))
        return values * count if len(values) == 1 else values

    def _scalar(self, name: AttributeName) -> Any:
        value = self.attribute(name)
        return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value

    def _list(self, name: AttributeName, default: Sequence[float]) -> Sequence[Any]:
        value = self.attribute(name)
        if value is None:
            return default
        return list(value) if isinstance(value, list | tuple | np.ndarray) else [value]

    def _converted(self, kind: Callable[[Any], _Number], name: AttributeName, value: Any) -> _Number:
        try:
            return kind(value)
        except (TypeError, ValueError, OverflowError):
            raise RefusedError(f"its attribute '{name}' is {value!r:.60}, which is not a usable number") from None

    # ------------------------------------------------------------------------------------- operators
    def add(self, type: str, *inputs: Operand, **attributes: Any) -> Value:
        """The first output of a new operator of ``ops``, called by its ONNX name."""
        return self.builder.add(type, *map(self.value, inputs), **attributes)

    def adds(self, type: str, count: int, *inputs: Operand, **attributes: Any) -> Sequence[Value]:
        """The first ``count`` outputs of a new operator."""
        return self.builder.adds(type, count, *map(self.value, inputs), **attributes)

    def value(self, given: Operand) -> Value | None:
        if isinstance(given, Value) or given is None:
            return given
        if isinstance(given, np.ndarray):
            return self.builder.constant(given, "weights")
        return self.builder.constant(np.array(given, np.float32), "scalar")

    def constant(self, data: Array, stem: str = "constant") -> Value:
        """A new constant; ``stem`` tells what it is for, in its name."""
        return self.builder.constant(data, stem)

    def ints(self, *numbers: int) -> Value:
        """A constant of rank 1, i64."""
        return sized_ints(self.builder, numbers)

    def reshape(self, x: Value, *dims: int) -> Value:
        return self.add("Reshape", x, self.ints(*dims))

    def chain(self, x: Value, *types: str) -> Value:
        """Applies operators one after the other."""
        for type in types:
            x = self.add(type, x)
        return x

    def square(self, x: Value) -> Value:
        return self.add("Mul", x, x)

    def fold(self, type: str, values: Sequence[Value]) -> Value:
        """Reduces values by a binary operator, from the left."""
        if not values:
            raise RefusedError("it has no inputs")
        total = values[0]
        for value in values[1:]:
            total = self.add(type, total, value)
        return total

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> Sequence[Value]:
        return self.adds("Split", len(sizes), x, self.ints(*sizes), axis=axis)

    def equal_parts(self, x: Value, axis: int, count: int) -> Sequence[Value]:
        size = self.builder.dims(x)[axis]
        if count == 1:
            return [x]
        if not 0 < count <= MAX_PARTS or size % count:
            raise RefusedError(f"an axis of {size} cannot be cut into {count} equal parts")
        return self.split(x, axis, [size // count] * count)

    def stack(self, values: Sequence[Value], axis: int) -> Value:
        """Stacks tensors of one shape along a new axis."""
        return self.add("Concat", *(self.add("Unsqueeze", value, self.ints(axis)) for value in values), axis=axis)

    def unstack(self, x: Value, axis: int) -> Sequence[Value]:
        """The slices along an axis, without that axis."""
        dims = self.builder.dims(x)
        axis = self.axis(axis, len(dims))
        return [self.add("Squeeze", part, self.ints(axis)) for part in self.equal_parts(x, axis, dims[axis])]

    def transpose_last(self, x: Value, wanted: bool = True) -> Value:
        """The matrices of the last two axes transposed, where that is ``wanted``."""
        rank = self.builder.rank(x) if wanted else 0
        return self.add("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else x

    def slice(
        self, x: Value, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()
    ) -> Value:
        given = [self.ints(*starts), self.ints(*ends), self.ints(*axes), *([self.ints(*steps)] if steps else [])]
        return self.add("Slice", x, *given)

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front.  Raises RefusedError if it does not exist."""
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
        """Flattened to [axes before ``axis``, the rest]."""
        dims = self.builder.dims(x)
        axis = axis + len(dims) if axis < 0 else axis
        if len(dims) == 2 and axis == 1:
            return x
        return self.reshape(x, math.prod(dims[:axis]), math.prod(dims[axis:]))

    def channels(self, vector: Operand, x: Value, axis: int = 1) -> Operand:
        """A vector shaped to broadcast along one axis of ``x``."""
        rank = self.builder.rank(x)
        shape = (-1, *(1,) * (rank - 1 - self.axis(axis, rank)))
        if isinstance(vector, Value):
            return self.reshape(vector, *shape)
        return vector.reshape(shape) if isinstance(vector, np.ndarray) else vector

    def resize(self, x: Value, height: int, width: int, mode: str, centre: str) -> Value:
        """Images [N, C, H, W] of another size; nearest neighbours are rounded down."""
        dims = self.builder.dims(x)
        if len(dims) != 4 or not (0 < height < 1 << 16 and 0 < width < 1 << 16):
            raise RefusedError(f"{list(dims)} cannot be resized to {height}x{width}")
        options = {"mode": mode, "coordinate_transformation_mode": centre, "nearest_mode": "floor"}
        return self.add("Resize", x, None, None, self.ints(dims[0], dims[1], height, width), **options)

    def channel_shuffle(self, x: Value, groups: int) -> Value:
        """Channel shuffle: [groups, channels / groups] transposed."""
        n, channels, *rest = self.builder.dims(x)
        if groups < 1 or channels % groups:
            raise RefusedError(f"{channels} channels cannot be divided into {groups} groups")
        split = self.reshape(x, n, groups, channels // groups, *rest)
        swapped = self.add("Transpose", split, perm=(0, 2, 1, *range(3, 3 + len(rest))))
        return self.reshape(swapped, n, channels, *rest)

    def broadcast(self, a: Value, b: Value, axis: int) -> tuple[Value, Value]:
        """Two values, the second reshaped to broadcast along the first's axes from ``axis`` on (-1: the last ones)."""
        first, second = self.builder.dims(a), self.builder.dims(b)
        tail = len(first) - axis - len(second)
        if axis < 0 or tail <= 0 or not second:
            return a, b
        return a, self.reshape(b, *second, *(1,) * tail)


_Number = TypeVar("_Number", int, float)


def simple(type: str, **attributes: Any) -> Callable[[NodeContext], Value]:
    """Imports a layer as one operator of its first input."""
    return lambda node: node.add(type, node.x, **attributes)


def same(node: NodeContext) -> Value:
    """Imports a layer that does nothing at inference."""
    return node.x


def full_windows(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> list[int]:
    """Pads (all begins, then all ends), the ends enlarged so that windows that begin inside are complete (ceil
    mode)."""
    half = len(sizes)
    after = []
    for n, k, s, p, q in zip(sizes, kernel, strides, pads[:half], pads[half:], strict=True):
        if min(k, s) < 1:
            raise RefusedError(f"windows of {k} with stride {s} are impossible")
        steps = -(-(n + p + q - k) // s)
        steps -= steps > 0 and steps * s >= n + p  # the last window would begin in the padding
        after.append(max(q, steps * s + k - n - p))
    return [*pads[:half], *after]
