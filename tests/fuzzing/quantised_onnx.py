"""Random quantised ONNX files: operators between DequantizeLinear and QuantizeLinear, and QLinear operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuzzing.quantised_volumes import chained, convolved, pooled
from tenon.network.graph.graph import Array

T = TypeVar("T")
Shape = tuple[int, ...]

CHANNELS = (1, 2, 3, 4, 5, 8, 8, 12, 16, 16, 17, 24, 33)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13)
MOST_ELEMENTS = 4000
UNARY = ("Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Tanh")


@dataclass(frozen=True)
class Tensor:
    """A quantised tensor: the names of its integers, its scale and its zero point, and what these are."""

    name: str
    shape: Shape
    scale: float
    zero: int
    dtype: np.dtype[Any]

    @property
    def grid(self) -> tuple[str, str]:
        return f"{self.name}_scale", f"{self.name}_zero"


@dataclass
class OnnxNet:
    """A file under construction; ``qlinear`` says that operators are QLinear ones where there are such."""

    rng: np.random.Generator
    qlinear: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: list[Tensor] = field(default_factory=list)
    pool: list[Tensor] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    count: int = 0

    # ------------------------------------------------------------------------------------- chances
    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def scale(self, low: float = 0.002, high: float = 0.5) -> float:
        return float(np.float32(np.exp(self.rng.uniform(np.log(low), np.log(high)))))

    def zero(self, dtype: np.dtype[Any]) -> int:
        kind = np.iinfo(dtype)
        return self.pick(
            (int(kind.min), int(kind.max), int(kind.min) + 128, int(self.rng.integers(kind.min, kind.max)))
        )

    # ------------------------------------------------------------------------------------- tensors
    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def constant(self, data: Array) -> str:
        name = self.name()
        self.weights[name] = data
        return name

    def tensor(self, shape: Shape, like: Tensor | None = None, scale: float | None = None) -> Tensor:
        dtype = np.dtype(self.pick((np.int8, np.uint8))) if like is None else like.dtype
        made = Tensor(
            self.name(), shape, self.scale() if scale is None else float(np.float32(scale)), self.zero(dtype), dtype
        )
        return self.known(made)

    def known(self, made: Tensor) -> Tensor:
        self.weights[made.grid[0]] = np.array(made.scale, np.float32)
        self.weights[made.grid[1]] = np.array(made.zero, made.dtype)
        return made

    def same(self, shape: Shape, x: Tensor) -> Tensor:
        """A tensor of the grid of ``x``."""
        return self.known(Tensor(self.name(), shape, x.scale, x.zero, x.dtype))

    def fresh(self, shape: Shape, like: Tensor | None = None) -> Tensor:
        made = self.tensor(shape, like)
        self.inputs.append(made)
        self.pool.append(made)
        return made

    def image(self) -> Tensor:
        images = [t for t in self.pool if len(t.shape) == 4]
        if images and self.chance(0.85):
            return self.pick(images[-3:])
        while True:
            shape = (self.pick((1, 1, 1, 2)), self.pick(CHANNELS), self.pick(SIDES), self.pick(SIDES))
            if prod(shape) <= 1500:
                return self.fresh(shape)

    def any(self) -> Tensor:
        return self.pick(self.pool[-3:]) if self.pool and self.chance(0.85) else self.image()

    # --------------------------------------------------------------------------------------- nodes
    def node(self, type: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or self.name()
        self.nodes.append(helper.make_node(type, inputs, [output], name=f"the_{output}", **attributes))
        self.read.update(inputs)
        return output

    def contrib(self, type: str, inputs: Sequence[str], y: Tensor, **attributes: Any) -> None:
        self.node(type, inputs, y.name, domain="com.microsoft", **attributes)
        self.pool.append(y)

    def real(self, x: Tensor) -> str:
        return self.node("DequantizeLinear", [x.name, *x.grid])

    def store(self, value: str, y: Tensor) -> None:
        self.node("QuantizeLinear", [value, *y.grid], y.name)
        self.pool.append(y)

    def activated(self, value: str) -> str:
        kind = self.pick(("", "", "Relu", "Clip"))
        if not kind:
            return value
        bounds = [self.constant(np.array(b, np.float32)) for b in (0.0, 6.0)] if kind == "Clip" else []
        return self.node(kind, [value, *bounds])

    # ------------------------------------------------------------------------------------ products
    def constants(self, shape: Shape, axis: int, *, bits: bool = False) -> tuple[str, str, str, Array]:
        """Weights, their scales and zero points; one for all, or one for each of ``axis``."""
        whole, dtype = self.chance(0.4), np.dtype(np.uint8 if self.chance(0.2) else np.int8)
        kind = np.iinfo(dtype)
        count = 1 if whole else shape[axis]
        scales = np.array([self.scale(0.003, 0.1) for _ in range(count)], np.float32)
        zero = 0 if dtype == np.int8 else int(self.rng.integers(256))
        zeros, data = np.full(count, zero, dtype), self.rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
        if self.chance(0.1):
            data[self.rng.random(shape) < 0.7] = zero
        scale, offset = (a.reshape(()) if whole else a for a in (scales, zeros))
        return self.constant(data), self.constant(scale), self.constant(offset), scales

    def bias(self, x: Tensor, scales: Array, outs: int) -> tuple[str, Array]:
        units = (np.float32(x.scale) * scales).astype(np.float32)
        return self.constant(self.rng.integers(-3000, 3000, outs).astype(np.int32)), units

    def real_bias(self, x: Tensor, scales: Array, outs: int) -> str:
        stored, units = self.bias(x, scales, outs)
        if self.chance(0.3):  # as constants of floats that are whole numbers of steps
            return self.constant((self.weights.pop(stored) * units).astype(np.float32))
        zero = self.constant(np.zeros(units.shape if units.size > 1 else (), np.int32))
        scale = self.constant(units if units.size > 1 else units.reshape(()))
        return self.node("DequantizeLinear", [stored, scale, zero], axis=0)

    def sums(self, shape: Shape, x: Tensor, scales: Array, terms: int) -> Tensor:
        spread = float(np.exp(self.rng.uniform(np.log(0.3), np.log(4))))
        return self.tensor(shape, x, x.scale * float(scales.mean()) * sqrt(terms) * 40 * spread)

    def window(self, x: Tensor) -> tuple[Shape, dict[str, Any], Shape]:
        kernel = tuple(self.pick((1, 1, 2, 3, 3, 5)) for _ in range(2))
        strides, dilations = (self.pick((1, 1, 2, 3)),) * 2, (self.pick((1, 1, 1, 2)),) * 2
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = [int(self.rng.integers(0, k)) for k in (*kernel, *kernel)]
        full = [n + pads[i] + pads[i + 2] for i, n in enumerate(x.shape[2:])]
        if any(n < span for n, span in zip(full, spans, strict=True)):
            kernel, strides, dilations, pads, spans, full = (1, 1), (1, 1), (1, 1), [0] * 4, [1, 1], list(x.shape[2:])
        outs = tuple((n - span) // s + 1 for n, span, s in zip(full, spans, strides, strict=True))
        return kernel, {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}, outs

    def conv(self) -> None:
        x, (kernel, window, sizes) = (image := self.image()), self.window(image)
        deep = x.shape[1]
        group = self.pick([deep, deep, *(g for g in (1, 2, 3, 4) if deep % g == 0)] if self.chance(0.5) else [1])
        outs = group * self.pick((1, 1, 2)) if group == deep > 1 else -(-self.pick(CHANNELS) // group) * group
        shape = (outs, deep // group, *kernel)
        w, scale, zero, scales = self.constants(shape, 0)
        y = self.sums((x.shape[0], outs, *sizes), x, scales, prod(shape[1:]))
        if self.qlinear:
            more = [self.bias(x, scales, outs)[0]] if self.chance(0.8) else []
            inputs = [x.name, *x.grid, w, scale, zero, *y.grid, *more]
            self.node("QLinearConv", inputs, y.name, group=group, **window)
            self.pool.append(y)
            return
        weights = self.node("DequantizeLinear", [w, scale, zero], axis=0)
        more = [self.real_bias(x, scales, outs)] if self.chance(0.8) else []
        self.store(self.activated(self.node("Conv", [self.real(x), weights, *more], group=group, **window)), y)

    def transposed(self) -> None:
        x, outs = self.image(), self.pick(CHANNELS[:8])
        kernel, stride = (self.pick((1, 2, 3, 4)), self.pick((1, 2, 3))), self.pick((1, 2, 2, 3))
        pads = [int(self.rng.integers(0, k)) // 2 for k in (*kernel, *kernel)]
        extra = self.pick((0, stride - 1))
        sizes = [
            (n - 1) * stride + k + extra - pads[i] - pads[i + 2]
            for i, (n, k) in enumerate(zip(x.shape[2:], kernel, strict=True))
        ]
        shape = (x.shape[0], outs, *sizes)
        if self.qlinear or min(sizes) < 1 or prod(shape) > MOST_ELEMENTS:
            return
        w, scale, zero, scales = self.constants((x.shape[1], outs, *kernel), 1)
        weights = self.node("DequantizeLinear", [w, scale, zero], axis=1)
        more = [self.real_bias(x, scales, outs)] if self.chance(0.8) else []
        value = self.node(
            "ConvTranspose",
            [self.real(x), weights, *more],
            kernel_shape=kernel,
            pads=pads,
            strides=(stride, stride),
            output_padding=(extra, extra),
        )
        y = self.sums(shape, x, scales, x.shape[1] * max(1, prod(kernel) // stride**2))
        self.store(self.activated(value), y)

    def matmul(self) -> None:
        x, outs = self.any(), self.pick(CHANNELS)
        if prod(x.shape[:-1]) * outs > MOST_ELEMENTS:
            return
        w, scale, zero, scales = self.constants((x.shape[-1], outs), 1)
        y = self.sums((*x.shape[:-1], outs), x, scales, x.shape[-1])
        if self.qlinear:
            self.node("QLinearMatMul", [x.name, *x.grid, w, scale, zero, *y.grid], y.name)
            self.pool.append(y)
            return
        weights = self.node("DequantizeLinear", [w, scale, zero], axis=1)
        self.store(self.activated(self.node("MatMul", [self.real(x), weights])), y)

    def gemm(self) -> None:
        if self.qlinear:
            return self.matmul()
        x, outs = self.any(), self.pick(CHANNELS)
        deep = prod(x.shape[1:])
        if deep > 2000:
            return None
        w, scale, zero, scales = self.constants((outs, deep), 0)
        flat = self.node("Flatten", [self.real(x)])
        weights = self.node("DequantizeLinear", [w, scale, zero], axis=0)
        more = [self.real_bias(x, scales, outs)] if self.chance(0.8) else []
        y = self.sums((x.shape[0], outs), x, scales, deep)
        return self.store(self.activated(self.node("Gemm", [flat, weights, *more], transB=1)), y)

    def zero_at_run_time(self, x: Tensor) -> str:
        """A zero point for ``x`` that only its user knows, or its own."""
        if self.chance(0.2):
            return x.grid[1]
        made = self.known(Tensor(self.name(), (), 1.0, 0, x.dtype))
        self.inputs.append(made)
        return made.name

    def dynamic(self) -> None:
        """Sums of integers whose zero point is known at run time, also of activations quantised then, scaled."""
        convolved = self.chance(0.5)
        x = self.image() if convolved else self.any()
        name, zero = x.name, self.zero_at_run_time(x)
        if self.chance(0.4):
            name, zero = self.name(), self.name()
            step = self.name()
            self.nodes.append(helper.make_node("DynamicQuantizeLinear", [self.real(x)], [name, step, zero]))
        kernel, window, sizes = self.window(x) if convolved else ((), {}, ())
        outs, deep = self.pick(CHANNELS), x.shape[1] if convolved else x.shape[-1]
        group = self.pick((1, deep)) if convolved else 1
        outs = group if group > 1 else outs
        dims = (outs, deep // group, *kernel) if convolved else (deep, outs)
        shape = (x.shape[0], outs, *sizes) if convolved else (*x.shape[:-1], outs)
        if prod(shape) > MOST_ELEMENTS:
            return
        w, _, offset, scales = self.constants(dims, 0 if convolved else 1)
        if self.weights[offset].size > 1 and (convolved or self.chance(0.5)):
            self.weights[offset] = self.weights[offset][0].reshape(())
        operands, attributes = [name, w, zero, offset], {"group": group, **window} if convolved else {}
        total = self.node("ConvInteger" if convolved else "MatMulInteger", operands, **attributes)
        y = self.sums(shape, x, scales, prod(dims[1:]) if convolved else deep)
        factor = self.constant(np.array(x.scale * scales[0], np.float32))
        self.store(self.activated(self.node("Mul", [self.node("Cast", [total], to=1), factor])), y)

    # --------------------------------------------------------------------------------- two operands
    def matrices(self) -> None:
        a, outs = self.any(), self.pick(CHANNELS[:10])
        shape = (*a.shape[:-2], a.shape[-1], outs)
        if len(a.shape) < 2 or max(prod(shape), prod(a.shape[:-1]) * outs) > MOST_ELEMENTS:
            return
        b = self.fresh(shape, a)
        y = self.sums((*a.shape[:-1], outs), a, np.array([b.scale]), a.shape[-1])
        if self.qlinear:
            self.node("QLinearMatMul", [a.name, *a.grid, b.name, *b.grid, *y.grid], y.name)
            self.pool.append(y)
        else:
            self.store(self.activated(self.node("MatMul", [self.real(a), self.real(b)])), y)

    def binary(self) -> None:
        a = self.any()
        alike = [t for t in self.pool if t.shape == a.shape and t.dtype == a.dtype]
        shape = a.shape if self.chance(0.6) or len(a.shape) != 4 else (a.shape[1], 1, 1)
        b = self.pick(alike) if self.chance(0.6) else self.fresh(shape, a)
        type = self.pick(("Add", "Add", "Mul") if self.qlinear else ("Add", "Add", "Sub", "Mul"))
        real = a.scale * b.scale * 100 if type == "Mul" else a.scale + b.scale
        y = self.tensor(a.shape, a, real * float(self.rng.uniform(0.3, 2)))
        if self.qlinear:
            return self.contrib(f"QLinear{type}", [a.name, *a.grid, b.name, *b.grid, *y.grid], y)
        return self.store(self.activated(self.node(type, [self.real(a), self.real(b)])), y)

    def concat(self) -> None:
        a = self.any()
        axis = int(self.rng.integers(1, len(a.shape))) if len(a.shape) > 1 else 0
        alike = [t for t in self.pool if t.shape == a.shape and t.dtype == a.dtype]
        parts = [a, self.pick(alike), *([self.fresh(a.shape, a)] if self.chance(0.3) else [])]
        shape = (*a.shape[:axis], a.shape[axis] * len(parts), *a.shape[axis + 1 :])
        if prod(shape) > MOST_ELEMENTS:
            return
        y = self.tensor(shape, a)
        if self.qlinear:
            self.contrib("QLinearConcat", [*y.grid, *(n for p in parts for n in (p.name, *p.grid))], y, axis=axis)
        else:
            self.store(self.node("Concat", [self.real(p) for p in parts], axis=axis), y)

    # ----------------------------------------------------------------------------------- one operand
    def pooled(self) -> None:
        x, type = self.image(), self.pick(("AveragePool", "MaxPool"))
        kernel, window, sizes = self.window(x)
        window["pads"] = [min(p, (k - 1) // 2) for p, k in zip(window["pads"], (*kernel, *kernel), strict=True)]
        full = [n + window["pads"][i] + window["pads"][i + 2] for i, n in enumerate(x.shape[2:])]
        if any(n < k for n, k in zip(full, kernel, strict=True)):
            return
        window["dilations"] = (1, 1)
        sizes = tuple((n - k) // s + 1 for n, k, s in zip(full, kernel, window["strides"], strict=True))
        shape = (*x.shape[:2], *sizes)
        if type == "AveragePool":
            window["count_include_pad"] = self.pick((0, 1))
            del window["dilations"]
        y = self.tensor(shape, x) if type == "AveragePool" and self.chance(0.5) else self.same(shape, x)
        if self.qlinear and type == "AveragePool":
            self.contrib("QLinearAveragePool", [x.name, *x.grid, *y.grid], y, **window)
        else:
            self.store(self.node(type, [self.real(x)], **window), y)

    def whole(self) -> None:
        x = self.image()
        y = self.tensor((*x.shape[:2], 1, 1), x, x.scale * 0.7)
        if self.qlinear:
            self.contrib("QLinearGlobalAveragePool", [x.name, *x.grid, *y.grid], y, channels_last=0)
        else:
            self.store(self.node("GlobalAveragePool", [self.real(x)]), y)

    def unary(self) -> None:
        x, type = self.any(), self.pick(("LeakyRelu", "Sigmoid") if self.qlinear else UNARY)
        y = self.tensor(x.shape, x, 1 / 256 if type == "Sigmoid" else x.scale * self.pick((1.0, 0.6, 1.7)))
        more: dict[str, Any] = {"alpha": 0.2} if type == "LeakyRelu" else {}
        if self.qlinear:
            self.contrib(f"QLinear{type}", [x.name, *x.grid, *y.grid], y, **more)
        else:
            self.store(self.node(type, [self.real(x)], **more), y)

    def probabilities(self) -> None:
        """Softmax or its logarithm along any axis."""
        if self.qlinear:
            self.unary()
            return
        x, type = self.any(), self.pick(("Softmax", "Softmax", "LogSoftmax"))
        y = self.tensor(x.shape, x, 1 / 256 if type == "Softmax" else 0.1)
        self.store(self.node(type, [self.real(x)], axis=int(self.rng.integers(-1, len(x.shape)))), y)

    def moved(self) -> None:
        x = self.image()
        type = self.pick(("Pad", "Pad", "Reshape", "Transpose", "Slice"))
        n, c, h, w = x.shape
        shape: Shape
        more: list[Array] = []
        attributes: dict[str, Any] = {}
        if type == "Pad":
            pads = np.array([0, 0, *self.rng.integers(0, 3, 2), 0, 0, *self.rng.integers(0, 3, 2)], np.int64)
            shape, more = (n, c, int(h + pads[2] + pads[6]), int(w + pads[3] + pads[7])), [pads]
            modes = ["constant", "constant", "edge", *(["reflect"] if min(h, w) > 2 else [])]
            if (mode := self.pick(modes)) != "constant":
                attributes = {"mode": mode}
            elif self.chance(0.5):  # a number that is not zero, on the grid or beside it
                more.append(np.array(x.scale * self.pick((1.0, -7.0, 2.6)), np.float32))
        elif type == "Reshape":
            shape = self.pick(((n, c, h * w), (n, c, w, h), (n, c * h * w)))
            more = [np.array(shape, np.int64)]
        elif type == "Transpose":
            perm = self.pick(((0, 1, 3, 2), (0, 2, 3, 1), (0, 2, 1, 3)))
            shape, attributes = tuple(x.shape[p] for p in perm), {"perm": perm}
        else:
            ends = np.array([n, max(1, c - 1), max(1, h - 1), w], np.int64)
            shape = (n, int(ends[1]), int(ends[2]), -(-w // 2))
            more = [np.zeros(4, np.int64), ends, np.arange(4), np.array([1, 1, 1, 2], np.int64)]
        operands = [self.real(x), *map(self.constant, more)]
        self.store(
            self.node(type, operands, **attributes), self.same(shape, x) if self.chance(0.8) else self.tensor(shape, x)
        )

    # ------------------------------------------------------------------------------------------ all
    def bytes(self) -> bytes:
        types = {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8}
        infos = [helper.make_tensor_value_info(t.name, types[t.dtype], t.shape) for t in self.inputs]
        made = [t for t in self.pool if t.name not in self.read and t not in self.inputs]
        outputs = [helper.make_tensor_value_info(t.name, types[t.dtype], t.shape) for t in made]
        weights = [numpy_helper.from_array(data, name) for name, data in self.weights.items()]
        graph = helper.make_graph(self.nodes, "made", infos, outputs, weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


MAKERS: tuple[Callable[[OnnxNet], None], ...] = (
    OnnxNet.matrices,
    OnnxNet.transposed,
    *(OnnxNet.conv,) * 5,
    *(OnnxNet.matmul,) * 2,
    OnnxNet.gemm,
    *(OnnxNet.binary,) * 3,
    OnnxNet.concat,
    OnnxNet.pooled,
    OnnxNet.pooled,
    OnnxNet.whole,
    OnnxNet.unary,
    OnnxNet.unary,
    OnnxNet.moved,
    OnnxNet.moved,
    OnnxNet.probabilities,
    convolved,
    pooled,
    chained,
    *(OnnxNet.dynamic,) * 2,
)


def onnx_file(rng: np.random.Generator, *, qlinear: bool) -> bytes:
    """A file of one to five operators."""
    net = OnnxNet(rng, qlinear)
    wanted = int(rng.integers(1, 6))
    while len(net.pool) - len(net.inputs) < wanted:
        net.pick(MAKERS)(net)
    return net.bytes()
