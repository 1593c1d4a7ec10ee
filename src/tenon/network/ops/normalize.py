"""Normalisation: layer, instance, local response (LRN) and batch normalisation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import norm as kernels
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.storage_types import NARROW
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Number
from tenon.network.graph.types import F32, ROW_MAJOR, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
    ErrorBound,
    Input,
    Layouts,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    Weights,
    broadcast_dims,
    register,
    typed,
)
from tenon.network.ops.reach import Operands, Reaches, alike
from tenon.network.ops.reduce import check_axes, plane_layout


def single_only(site: Site) -> str:
    """Why rows cannot be compiled: devices take floats of 16 bits, too, and processors that multiply tiles of them."""
    dtype, machine = site.input(0).dtype, site.machine
    if dtype in NARROW and (machine.launch is not None or machine.tiles(dtype) is not None):
        return ""
    return "" if dtype is F32 else f"element type {dtype}: convert the model to float32"


def per_channel(name: str, types: Sequence[TensorType]) -> TensorType:
    """The type of x, with [N, C, ...] and all others [C].  Raises ShapeError."""
    x = types[0]
    if x.rank < 2 or any(t.dims != (x.dims[1],) for t in types[1:]):
        shapes = ", ".join(str(list(t.dims)) for t in types[1:])
        raise ShapeError(f"{name}: input {list(x.dims)} does not fit per-channel operands {shapes}")
    return TensorType(x.dtype, x.dims)


def columns(per: Array, rank: int) -> Array:
    """[C] as [C, 1, ...] to meet a tensor [N, C, ...] of that rank."""
    return per.reshape(-1, *(1,) * (rank - 2))


@register
@dataclass(frozen=True)
class LayerNormalization(Operator):
    """Normalise over all axes from ``axis`` on; the further outputs are the mean and 1 / standard deviation."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1
    arity: ClassVar[tuple[int, int]] = (2, 3)
    narrow_rows: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, *weights = typed(inputs)
        (axis,) = check_axes(self.name, [self.axis], x.rank)
        for w in weights:
            if broadcast_dims(self.name, w.dims, x.dims[axis:]) != x.dims[axis:]:
                raise ShapeError(f"{self.name}: {list(w.dims)} does not broadcast to {list(x.dims[axis:])}")
        statistics = TensorType(F32, (*x.dims[:axis], *(1,) * (x.rank - axis)))
        return TensorType(x.dtype, x.dims), statistics, statistics

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.extents(0)
        axis = self.axis % len(extents)
        rows: list[Number] = [*extents[:axis], *[1] * (len(extents) - axis)]
        if any(a >= axis for a in node.changing(0)) or not node.fixed(1, *([2] if node.has(2) else [])):
            raise SizeRefusedError(f"{self.name} over an axis whose extent is known only at run time")
        return node.same(extents, rows, rows)

    def reference(self, x: Array, scale: Array, bias: Array | None = None) -> tuple[Array, ...]:
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True, dtype=np.float32)
        inverse = 1 / np.sqrt(
            np.square(x - mean).mean(axes, keepdims=True, dtype=np.float32) + np.float32(self.epsilon)
        )
        y = (x - mean) * inverse * scale
        y = y if bias is None else y + bias
        return y.astype(x.dtype), mean, inverse

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x = inputs[0]
        assert x is not None
        return alike(inputs, axis) if axis < self.axis % x.type.rank else None

    def supported(self, site: Site) -> str:
        shape = site.input(0).dims[self.axis % site.input(0).rank :]
        loose = [
            i for i in (1, 2) if site.has(i) and site.constants[i] is None and site.input(i).size != math.prod(shape)
        ]
        return "scale and bias computed at run time must have the normalised shape" if loose else single_only(site)

    def lower(self, site: Site) -> list[Step]:
        dims = site.input(0).dims
        axis = self.axis % len(dims)
        rows, shape = math.prod(dims[:axis]), dims[axis:]
        args: list[Arg] = [Input(0)]
        for i in (1, 2):
            if site.has(i):
                data = site.constants[i]
                args.append(Input(i) if data is None else Weights(np.ascontiguousarray(np.broadcast_to(data, shape))))
        outputs = len(site.outputs)
        dtype = site.input(0).dtype
        spec = kernels.Rows(rows, 1, math.prod(shape), self.epsilon, True, site.has(2), outputs > 1, dtype)
        extra = [Scratch("inverse", site.outputs[1].nbytes)] if outputs == 2 else []
        args += [*map(Output, range(outputs)), *extra]
        return [Step(kernels.normalize_rows(spec, site.machine), tuple(args))]

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 5, 37), (37,), (37,)), (1, 2), tolerance=1e-5, label="rows")
        yield Case(cls(), ((2, 8), (8,)), (1,), label="no_bias")
        yield Case(cls(1, 1e-3), ((2, 3, 5), (3, 5), (5,)), (1, 2), label="two_axes")
        yield Case(cls(-1), ((4, 6), (6,), (6,)), label="run_time_weights")


@register
@dataclass(frozen=True)
class RMSNormalization(Operator):
    """Divide by the root of the mean square over all axes from ``axis`` on, and multiply by the scale."""

    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, scale = typed(inputs)
        (axis,) = check_axes(self.name, [self.axis], x.rank)
        if broadcast_dims(self.name, scale.dims, x.dims[axis:]) != x.dims[axis:]:
            raise ShapeError(f"{self.name}: {list(scale.dims)} does not broadcast to {list(x.dims[axis:])}")
        return (TensorType(x.dtype, x.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.extents(0)
        if any(a >= self.axis % len(extents) for a in node.changing(0)) or not node.fixed(1):
            raise SizeRefusedError(f"{self.name} over an axis whose extent is known only at run time")
        return node.same(extents)

    def reference(self, x: Array, scale: Array) -> Array:
        axes = tuple(range(self.axis % x.ndim, x.ndim))
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        square = np.square(wide).mean(axes, keepdims=True) + wide.dtype.type(self.epsilon)
        return np.asarray((wide / np.sqrt(square)).astype(x.dtype) * scale.astype(x.dtype))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return alike(inputs, axis) if axis < self.axis % outputs[0].rank else None

    def supported(self, site: Site) -> str:
        shape = site.input(0).dims[self.axis % site.input(0).rank :]
        loose = site.constants[1] is None and site.input(1).size != math.prod(shape)
        return "a scale computed at run time must have the normalised shape" if loose else single_only(site)

    def lower(self, site: Site) -> list[Step]:
        dims, data = site.input(0).dims, site.constants[1]
        axis = self.axis % len(dims)
        rows, shape, dtype = math.prod(dims[:axis]), dims[axis:], site.input(0).dtype
        spec = kernels.Rows(rows, 1, math.prod(shape), self.epsilon, True, False, dtype=dtype, centred=False)
        scale: Arg = Input(1) if data is None else Weights(np.ascontiguousarray(np.broadcast_to(data, shape)))
        return [Step(kernels.normalize_rows(spec, site.machine), (Input(0), scale, Output()))]

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 5, 37), (37,)), (1,), label="rows")
        yield Case(cls(1, 1e-3), ((2, 3, 5), (5,)), (1,), label="two_axes")
        yield Case(cls(-1), ((4, 6), (6,)), label="run_time_scale")


@register
@dataclass(frozen=True)
class InstanceNormalization(Operator):
    """Normalise every plane of [N, C, spatial...], then scale and shift it per channel."""

    epsilon: float = 1e-5
    arity: ClassVar[tuple[int, int]] = (3, 3)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        return (per_channel(self.name, typed(inputs)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        x, rank = node.input(0), node.type(0).rank
        if not any(a >= 2 for a in node.changing(0)):
            return node.same(node.extents(0))
        axes, shape = node.ints(*range(2, rank)), node.ints(-1, *[1] * (rank - 2))
        scale, bias = (node.add("Reshape", node.input(i), shape) for i in (1, 2))
        centred = node.add("Sub", x, node.add("ReduceMean", x, axes))
        spread = node.add("ReduceMean", node.add("Mul", centred, centred), axes)
        epsilon = node.constant(np.array(self.epsilon, x.type.dtype.numpy))
        deviation = node.add("Sqrt", node.add("Add", spread, epsilon))
        return [node.add("Add", node.add("Mul", node.add("Div", centred, deviation), scale), bias)]

    def reference(self, x: Array, scale: Array, bias: Array) -> Any:
        axes = tuple(range(2, x.ndim))
        mean = x.mean(axes, keepdims=True)
        deviation = np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + x.dtype.type(self.epsilon))
        return (x - mean) / deviation * columns(scale, x.ndim) + columns(bias, x.ndim)

    def supported(self, site: Site) -> str:
        return single_only(site)

    def layouts(self, site: Site) -> Layouts:
        constant = site.constants[1] is not None and site.constants[2] is not None
        layout = plane_layout(site) if constant else ROW_MAJOR
        return Layouts((layout, ROW_MAJOR, ROW_MAJOR), (layout,))

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        if not x.layout.image:
            spec = kernels.Rows(x.dims[0], x.dims[1], math.prod(x.dims[2:]), self.epsilon, False)
            return [Step(kernels.normalize_rows(spec, site.machine), (*map(Input, range(3)), Output()))]
        image = Image.of(x)
        padding = image.blocks * image.block - image.channels
        weights = [Weights(np.pad(data, (0, padding))) for data in site.constants[1:] if data is not None]
        kernel = kernels.normalize_planes(image, Image.of(site.output), self.epsilon, site.machine)
        return [Step(kernel, (Input(0), *weights, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 19, 3, 6), (19,), (19,)), (1, 2), label="planes")
        yield Case(cls(1e-2), ((1, 5, 9), (5,), (5,)), (1, 2), label="rank3")
        yield Case(cls(), ((1, 3, 4, 4), (3,), (3,)), label="run_time_weights")


@register
@dataclass(frozen=True)
class LRN(Operator):
    """Divide by a power of the mean square of ``size`` neighbouring channels."""

    size: int = 5
    alpha: float = 0.0001
    beta: float = 0.75
    bias: float = 1.0
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        return (per_channel(self.name, [x]),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if 1 in node.changing(0):
            raise SizeRefusedError(f"{self.name} of channels whose number is known only at run time")
        return node.same(node.extents(0))

    def reference(self, x: Array) -> Any:
        total = np.zeros_like(x)
        before, after = (self.size - 1) // 2, self.size // 2
        for c in range(x.shape[1]):
            window = x[:, max(0, c - before) : c + after + 1]
            total[:, c] = np.square(window).sum(axis=1)
        return x / (self.bias + (self.alpha / self.size) * total) ** x.dtype.type(self.beta)

    def supported(self, site: Site) -> str:
        return single_only(site)

    def lower(self, site: Site) -> list[Step]:
        dims = site.input(0).dims
        spec = kernels.Lrn(dims[0], dims[1], math.prod(dims[2:]), self.size, self.alpha, self.beta, self.bias)
        return [Step(kernels.lrn(spec, site.machine), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(3, 2.0), ((2, 7, 3, 5),), low=-3, high=3, label="odd")
        yield Case(cls(4, 1.0, 0.5, 2.0), ((1, 6, 5),), low=-3, high=3, label="even")
        yield Case(cls(9, 1.0, 0.6), ((1, 4, 2, 2),), low=-3, high=3, label="wider_than_the_channels")


@register
@dataclass(frozen=True)
class BatchNormalization(Operator):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias per channel, with stored mean and variance."""

    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: int = 0
    arity: ClassVar[tuple[int, int]] = (5, 5)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        return (per_channel(self.name, typed(inputs)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if 1 in node.changing(0):
            raise SizeRefusedError(f"{self.name} of channels whose number is known only at run time")
        return node.same(node.extents(0))

    def reference(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
        factor = columns(scale / np.sqrt(variance + x.dtype.type(self.epsilon)), x.ndim)
        return ((x - columns(mean, x.ndim)) * factor + columns(bias, x.ndim)).astype(x.dtype)

    def supported(self, site: Site) -> str:
        if self.training_mode:
            return "training_mode is set: export the model for inference"
        return "statistics computed at run time: only a constant scale, bias, mean and variance can be folded"

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((2, 5, 3, 4), (5,), (5,), (5,), (5,)), (1, 2, 3, 4), low=0.1, high=2.0, label="images")
