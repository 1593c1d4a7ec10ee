"""Random quantised TFLite files: a few operators of 8-bit integers, whose results feed each other where shapes fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from typing import Any, TypeVar

import numpy as np

from fuzzing.quantised_moves import MOST_ELEMENTS, blocks, moved, multiplied
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import limits
from tflite_models import Model

T = TypeVar("T")
Shape = tuple[int, ...]

CHANNELS = (1, 2, 3, 4, 5, 8, 8, 12, 16, 16, 17, 24, 33)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13)
SAME, VALID = 0, 1
UNARY_16 = ("ABS", "LEAKY_RELU", "LOGISTIC", "QUANTIZE", "RELU", "RELU6", "TANH")
UNARY = (
    "ABS",
    "ELU",
    "EXP",
    "HARD_SWISH",
    "LEAKY_RELU",
    "LOG",
    "LOGISTIC",
    "QUANTIZE",
    "RELU",
    "RELU6",
    "RELU_N1_TO_1",
    "RSQRT",
    "SQRT",
    "TANH",
)


@dataclass(frozen=True)
class Tensor:
    """A quantised tensor computed at run time."""

    index: int
    shape: Shape
    scale: float
    zero: int


@dataclass
class TfliteNet:
    """A file under construction.  ``dtype`` is that of all activations, i8 or u8."""

    rng: np.random.Generator
    dtype: str = "i8"
    model: Model = field(default_factory=Model)
    inputs: list[Tensor] = field(default_factory=list)
    pool: list[Tensor] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    wide: list[int] = field(default_factory=list)

    # ------------------------------------------------------------------------------------- chances
    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def scale(self, low: float = 0.002, high: float = 0.5) -> float:
        if self.chance(0.15):
            return self.pick((1 / 256, 1 / 128, 1 / 16, 0.25))
        return float(np.float32(np.exp(self.rng.uniform(np.log(low), np.log(high)))))

    @property
    def range(self) -> tuple[int, int]:
        return limits(DType(self.dtype))

    def zero(self) -> int:
        low, high = self.range
        if self.dtype == "i16":
            return 0
        return self.pick((low, low, high, low + 128, int(self.rng.integers(low, high + 1))))

    # ------------------------------------------------------------------------------------- tensors
    def tensor(self, shape: Shape, scale: float | None = None, zero: int | None = None) -> Tensor:
        scale, zero = self.scale() if scale is None else scale, self.zero() if zero is None else zero
        scale = float(np.float32(scale))
        name = f"t{len(self.model.tensors)}"
        return Tensor(self.model.tensor(name, shape, self.dtype, scale=[scale], zero=[zero]), shape, scale, zero)

    def fresh(self, shape: Shape) -> Tensor:
        made = self.tensor(shape)
        self.inputs.append(made)
        self.pool.append(made)
        return made

    def fixed(self, shape: Shape, *, divisor: bool = False) -> Tensor:
        """A constant, of any shape that broadcasts; a divisor is nowhere zero."""
        low, high = self.range
        data = self.rng.integers(low, high + 1, self.pick((shape, shape, (1,) * len(shape))))
        scale, zero = self.scale(), self.zero()
        data = np.where(data == zero, zero ^ 1, data) if divisor else data
        made = self.model.constant(
            f"c{len(self.model.tensors)}", data.astype(DType(self.dtype).numpy), scale=[scale], zero=[zero]
        )
        return Tensor(made, shape, float(np.float32(scale)), zero)

    def image(self) -> Tensor:
        images = [t for t in self.pool if len(t.shape) == 4]
        if images and self.chance(0.85):
            return self.pick(images[-3:])
        while True:
            shape = (self.pick((1, 1, 1, 2)), self.pick(SIDES), self.pick(SIDES), self.pick(CHANNELS))
            if prod(shape) <= 1500:
                return self.fresh(shape)

    def any(self) -> Tensor:
        return self.pick(self.pool[-3:]) if self.pool and self.chance(0.85) else self.image()

    def add(self, type: str, inputs: Sequence[int], made: Tensor, **options: Any) -> Tensor:
        self.model.add(type, inputs, [made.index], **options)
        self.read.update(inputs)
        self.pool.append(made)
        return made

    def ints(self, *numbers: int) -> int:
        return self.model.constant(f"c{len(self.model.tensors)}", np.array(numbers, np.int32))

    # ------------------------------------------------------------------------------------ products
    def weights(self, shape: Shape, axis: int, x: Tensor, *, channels: bool) -> tuple[int, list[float], list[int]]:
        """Constant weights, their scales, and the bias if there is one."""
        outs, name = shape[axis], f"w{len(self.model.tensors)}"
        whole = self.dtype == "u8" or not channels or self.chance(0.3)
        scales = [self.scale(0.003, 0.1) for _ in range(1 if whole else outs)]
        if self.dtype == "u8":
            data = self.rng.integers(0, 256, shape).astype(np.uint8)
            zeros = [int(self.rng.integers(256))]
        else:
            data = self.rng.integers(-127, 128, shape).astype(np.int8)
            zeros = [0] * len(scales)
            if self.chance(0.1):
                data[self.rng.random(shape) < 0.7] = 0
        w = self.model.constant(name, data, scale=scales, zero=zeros, axis=0 if whole else axis)
        whole_bias = self.rng.integers(-3000, 3000, outs)
        bias: Array = 300 * whole_bias if self.dtype == "i16" else whole_bias.astype(np.int32)
        of_sums = [float(np.float32(np.float32(s) * np.float32(x.scale))) for s in scales]
        b = self.model.constant(f"b{len(self.model.tensors)}", bias, scale=of_sums)
        return w, scales, [b] if self.chance(0.9) else []

    def sums(self, shape: Shape, x: Tensor, scales: Sequence[float], terms: int) -> Tensor:
        """A result whose grid the sums of so many products about fill."""
        spread = float(np.exp(self.rng.uniform(np.log(0.3), np.log(4))))
        return self.tensor(shape, x.scale * float(np.mean(scales)) * sqrt(terms) * 40 * spread)

    def window(self, x: Tensor) -> tuple[Shape, Shape, Shape, int, Shape]:
        """Kernel, strides, dilations, padding, and the result's extents."""
        padding = self.pick((SAME, SAME, VALID))
        kernel = tuple(
            min(self.pick((1, 1, 2, 3, 3, 5)), n) if padding == VALID else self.pick((1, 2, 3, 3, 5))
            for n in x.shape[1:3]
        )
        strides = (self.pick((1, 1, 2, 3)),) * 2 if self.chance(0.8) else (self.pick((1, 2)), self.pick((1, 2, 3)))
        dilations: Shape = (1, 1)
        if strides == (1, 1) and self.chance(0.2):
            dilations = tuple(
                self.pick((1, 2)) if (k - 1) * 2 < n else 1 for k, n in zip(kernel, x.shape[1:3], strict=True)
            )
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        outs = tuple(
            -(-(n if padding == SAME else n - span + 1) // s)
            for n, span, s in zip(x.shape[1:3], spans, strides, strict=True)
        )
        return kernel, strides, dilations, padding, outs

    def options(self, strides: Shape, dilations: Shape, padding: int) -> dict[str, int]:
        return {
            "padding": padding,
            "stride_h": strides[0],
            "stride_w": strides[1],
            "dilation_h": dilations[0],
            "dilation_w": dilations[1],
            "activation": self.pick((0, 0, 1, 2, 3)),
        }

    def conv(self) -> None:
        x, outs = self.image(), self.pick(CHANNELS)
        kernel, strides, dilations, padding, sizes = self.window(x)
        group = 1
        if self.chance(0.1):
            group = self.pick([g for g in (1, 2, 3, 4) if x.shape[3] % g == 0])
            outs = -(-outs // group) * group
        shape = (outs, *kernel, x.shape[3] // group)
        w, scales, bias = self.weights(shape, 0, x, channels=True)
        y = self.sums((x.shape[0], *sizes, outs), x, scales, prod(shape[1:]))
        self.add("CONV_2D", [x.index, w, *bias], y, **self.options(strides, dilations, padding))

    def depthwise(self) -> None:
        x, multiplier = self.image(), self.pick((1, 1, 1, 2, 3))
        kernel, strides, dilations, padding, sizes = self.window(x)
        strides = (strides[0], strides[0])
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        sizes = tuple(
            -(-(n if padding == SAME else n - span + 1) // strides[0])
            for n, span in zip(x.shape[1:3], spans, strict=True)
        )
        outs = x.shape[3] * multiplier
        w, scales, bias = self.weights((1, *kernel, outs), 3, x, channels=True)
        y = self.sums((x.shape[0], *sizes, outs), x, scales, prod(kernel))
        options = self.options(strides, dilations, padding)
        self.add("DEPTHWISE_CONV_2D", [x.index, w, *bias], y, multiplier=multiplier, **options)

    def transposed(self) -> None:
        x, outs = self.image(), self.pick(CHANNELS[:8])
        kernel, stride, padding = (self.pick((1, 2, 3, 4, 5)),) * 2, self.pick((1, 2, 2, 3)), self.pick((SAME, VALID))
        sizes = tuple(
            n * stride if padding == SAME else (n - 1) * stride + k for n, k in zip(x.shape[1:3], kernel, strict=True)
        )
        shape = (x.shape[0], *sizes, outs)
        if prod(shape) > MOST_ELEMENTS or (padding == VALID and kernel[0] < stride):
            return
        w, scales, bias = self.weights((outs, *kernel, x.shape[3]), 0, x, channels=True)
        y = self.sums(shape, x, scales, x.shape[3] * max(1, kernel[0] // stride) ** 2)
        inputs = [self.ints(*shape), w, x.index, *bias]
        self.add(
            "TRANSPOSE_CONV",
            inputs,
            y,
            padding=padding,
            stride_h=stride,
            stride_w=stride,
            activation=self.pick((0, 0, 1)),
        )

    def fully_connected(self) -> None:
        x, outs = self.any(), self.pick(CHANNELS)
        deep = x.shape[-1] if self.chance(0.5) else prod(x.shape[1:])
        if prod(x.shape) // deep * outs > MOST_ELEMENTS or deep > 2000:
            return
        w, scales, bias = self.weights((outs, deep), 0, x, channels=self.chance(0.3))
        y = self.sums((prod(x.shape) // deep, outs), x, scales, deep)
        self.add("FULLY_CONNECTED", [x.index, w, *bias], y, activation=self.pick((0, 0, 1, 2, 3)))

    # --------------------------------------------------------------------------------- two operands
    def matmul(self) -> None:
        a = self.any()
        if len(a.shape) < 2:
            return
        outs, turned = self.pick(CHANNELS[:10]), self.chance(0.5)
        shape = (*a.shape[:-2], *((outs, a.shape[-1]) if turned else (a.shape[-1], outs)))
        if max(prod(shape), prod(a.shape[:-1]) * outs) > MOST_ELEMENTS:
            return
        b = self.fresh(shape)
        y = self.sums((*a.shape[:-1], outs), a, [b.scale], a.shape[-1])
        self.add("BATCH_MATMUL", [a.index, b.index], y, adj_y=turned)

    def binary(self) -> None:
        a = self.any()
        alike = [t for t in self.pool if t.shape == a.shape]
        shape = a.shape if self.chance(0.6) or len(a.shape) != 4 else (1, 1, 1, a.shape[3])
        b = self.pick(alike) if self.chance(0.6) else self.fixed(shape) if self.chance(0.5) else self.fresh(shape)
        type = self.pick(("ADD", "ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", *(() if self.dtype == "i16" else ("DIV",))))
        real = a.scale * b.scale * 100 if type in ("MUL", "SQUARED_DIFFERENCE") else a.scale + b.scale
        y = self.tensor(a.shape, real * float(self.rng.uniform(0.3, 2)))
        pair = (a, b) if self.chance(0.7) else (b, a)
        if type == "DIV":  # in float, 0 / 0 is no number, of which every target makes another integer
            pair = a, self.fixed(shape, divisor=True)
            quotient = pair[0].scale / pair[1].scale
            y = self.tensor(a.shape, quotient * self.pick((0.008, 0.05, 0.7)))
        self.add(type, [t.index for t in pair], y, **self.activation(type))

    def activation(self, type: str) -> dict[str, int]:
        return {} if type == "SQUARED_DIFFERENCE" else {"activation": self.pick((0, 0, 1, 2))}

    def prelu(self) -> None:
        x = self.any()
        low, high = self.range
        shape = (1,) * (len(x.shape) - 2) + x.shape[-1:]
        slopes = self.rng.integers(low, high + 1, shape).astype(DType(self.dtype).numpy)
        w = self.model.constant(
            f"w{len(self.model.tensors)}", slopes, scale=[self.scale(0.003, 0.02)], zero=[self.pick((0, 7))]
        )
        self.add("PRELU", [x.index, w], self.tensor(x.shape, x.scale * self.pick((1.0, 0.7, 1.6))))

    def svdf(self) -> None:
        """Add an SVDF of a tensor with two axes, or of a fresh one."""
        known = [t for t in self.pool if len(t.shape) == 2 and t.shape[1] < 200]
        x = self.pick(known) if known and self.chance(0.8) else self.fresh((self.pick((1, 2)), self.pick(CHANNELS)))
        rank, units, memory, wide = (
            self.pick((1, 1, 2)),
            self.pick(CHANNELS[:9]),
            self.pick((1, 2, 5, 9)),
            self.chance(0.7),
        )
        count, reach = rank * units, 32767 if wide else 127
        features = self.rng.integers(-127, 128, (count, x.shape[1])).astype(np.int8)
        filters = self.rng.integers(-reach, reach + 1, (count, memory)).astype(np.int16 if wide else np.int8)
        state = float(np.float32(x.scale * sqrt(x.shape[1]) * (0.002 if wide else 0.5)))
        names = [f"{name}{len(self.model.tensors)}" for name in ("f", "t", "b", "s")]
        operands = [
            self.model.constant(names[0], features, scale=[0.01]),
            self.model.constant(names[1], filters, scale=[1 / reach]),
            self.model.constant(
                names[2], self.rng.integers(-3000, 3000, units).astype(np.int32), scale=[state / reach]
            ),
            self.model.tensor(names[3], (x.shape[0], count * memory), "i16" if wide else "i8", scale=[state], zero=[0]),
        ]
        self.model.tensors[-1] = {**self.model.tensors[-1], 5: ("bool", True)}  # is_variable
        y = self.tensor((x.shape[0], units), state * sqrt(rank * memory) * (100 if wide else 0.5))
        self.add("SVDF", [x.index, *operands], y, rank=rank, activation=self.pick((0, 1)))

    def concatenation(self) -> None:
        a = self.any()
        axis = int(self.rng.integers(1, len(a.shape))) if len(a.shape) > 1 else 0
        alike = [t for t in self.pool if t.shape == a.shape]
        parts = [a, self.pick(alike), *([self.fresh(a.shape)] if self.chance(0.3) else [])]
        shape = (*a.shape[:axis], a.shape[axis] * len(parts), *a.shape[axis + 1 :])
        if prod(shape) > MOST_ELEMENTS:
            return
        y = self.tensor(shape) if self.chance(0.5) else self.tensor(shape, a.scale, a.zero)
        self.add("CONCATENATION", [t.index for t in parts], y, axis=axis, activation=0)

    # ----------------------------------------------------------------------------------- one operand
    def pooled(self) -> None:
        x, type = self.image(), self.pick(("AVERAGE_POOL_2D", "MAX_POOL_2D"))
        kernel, strides, _, padding, sizes = self.window(x)
        spans = zip(x.shape[1:3], kernel, strides, strict=True)
        sizes = tuple(-(-(n if padding == SAME else n - k + 1) // s) for n, k, s in spans)
        y = self.tensor((x.shape[0], *sizes, x.shape[3]), x.scale, x.zero)
        self.add(
            type,
            [x.index],
            y,
            filter_h=kernel[0],
            filter_w=kernel[1],
            padding=padding,
            stride_h=strides[0],
            stride_w=strides[1],
            activation=self.pick((0, 0, 1, 2)),
        )

    def reduced(self) -> None:
        type = self.pick(("MEAN", "MEAN", "SUM"))
        x, keep = self.image(), self.chance(0.5)
        axes = self.pick(((1, 2), (1, 2), (1, 2), (3,), (1,)))
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes)
        spread = 0.7 if type == "MEAN" else sqrt(prod(x.shape[a] for a in axes))
        y = self.tensor(shape, x.scale, x.zero) if self.chance(0.3) else self.tensor(shape, x.scale * spread)
        self.add(type, [x.index, self.ints(*axes)], y, keep_dims=keep)

    def softmax(self) -> None:
        x = self.fine() if self.dtype == "i16" else self.any()
        if self.dtype == "i8" and self.chance(0.2):  # to 16 bits, which nothing else reads
            name = f"t{len(self.model.tensors)}"
            wide = self.model.tensor(name, x.shape, "i16", scale=[2.0**-16], zero=[-(1 << 15)])
            self.model.add("SOFTMAX", [x.index], [wide], beta=self.pick((1.0, 0.5)))
            self.read.add(x.index)
            self.wide.append(wide)
            return
        y = self.tensor(x.shape, *((2.0**-15, 0) if self.dtype == "i16" else (1 / 256, self.range[0])))
        self.add("SOFTMAX", [x.index], y, beta=self.pick((1.0, 1.0, 0.5)))

    def normalized(self) -> None:
        """L2 normalisation and LogSoftmax, whose results have one quantisation."""
        x = self.any()
        middle = (1 / 128, self.range[0] + 128)
        if self.dtype == "i8" and self.chance(0.5):
            self.add("LOG_SOFTMAX", [x.index], self.tensor(x.shape, 1 / 16, 127))
        else:
            self.add("L2_NORMALIZATION", [x.index], self.tensor(x.shape, *middle))

    def fine(self) -> Tensor:
        """A tensor of 16 bits whose exponentials do not vanish."""
        fine = [t for t in self.pool if t.scale < 0.002]
        if fine and self.chance(0.5):
            return self.pick(fine)
        shape = (1, self.pick(SIDES), self.pick(SIDES), self.pick(CHANNELS[:10]))
        made = self.tensor(shape, self.pick((2.0**-12, 2.0**-11, self.scale(1e-5, 2e-3))))
        self.inputs.append(made)
        self.pool.append(made)
        return made

    def unary(self) -> None:
        wide = self.dtype == "i16"
        type = self.pick(UNARY_16 if wide else UNARY)
        x = self.fine() if wide and type in ("LOGISTIC", "TANH") else self.any()
        bounds = {"LOGISTIC": (1 / 256, self.range[0]), "TANH": (1 / 128, self.range[0] + 128)}
        bounds = dict.fromkeys(bounds, (2.0**-15, 0)) if wide else bounds
        scale, zero = bounds.get(type, (x.scale * self.pick((1.0, 0.6, 1.7)), None))
        self.add(type, [x.index], self.tensor(x.shape, scale, zero), **{"alpha": 0.2} if type == "LEAKY_RELU" else {})

    def resized(self) -> None:
        x, type = self.image(), self.pick(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"))
        sizes = tuple(self.pick((n, 2 * n, n + 3, max(1, n // 2))) for n in x.shape[1:3])
        shape = (x.shape[0], *sizes, x.shape[3])
        if prod(shape) > MOST_ELEMENTS:
            return
        ways = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
        if type == "RESIZE_NEAREST_NEIGHBOR":
            ways.append({"align_corners": True, "half_pixel_centers": True})
        way = self.pick(ways)
        self.add(type, [x.index, self.ints(*sizes)], self.tensor(shape, x.scale, x.zero), **way)

    def connected_at_run_time(self) -> None:
        """FULLY_CONNECTED by weights that are an input, of 8 bits."""
        x, outs = self.any(), self.pick(CHANNELS)
        deep = x.shape[-1]
        if prod(x.shape[:-1]) * outs > MOST_ELEMENTS or deep * outs > MOST_ELEMENTS or self.dtype == "u8":
            return
        scale = self.scale(0.003, 0.1)
        name = f"t{len(self.model.tensors)}"
        made = self.model.tensor(name, (outs, deep), "i8", scale=[scale], zero=[0])
        w = Tensor(made, (outs, deep), float(np.float32(scale)), 0)
        self.inputs.append(w)
        y = self.sums((prod(x.shape[:-1]), outs), x, [w.scale], deep)
        self.add("FULLY_CONNECTED", [x.index, w.index], y, activation=self.pick((0, 0, 1)))

    # ------------------------------------------------------------------------------------------ all
    def bytes(self) -> bytes:
        outputs = [t.index for t in self.pool if t.index not in self.read and t not in self.inputs]
        return self.model.bytes([t.index for t in self.inputs], [*outputs, *self.wide])


MAKERS: tuple[Callable[[TfliteNet], None], ...] = (
    *(TfliteNet.matmul,) * 2,
    TfliteNet.transposed,
    *(TfliteNet.conv,) * 4,
    *(TfliteNet.depthwise,) * 3,
    *(TfliteNet.fully_connected,) * 2,
    *(TfliteNet.binary,) * 4,
    TfliteNet.concatenation,
    TfliteNet.pooled,
    TfliteNet.pooled,
    TfliteNet.reduced,
    TfliteNet.softmax,
    TfliteNet.unary,
    TfliteNet.unary,
    TfliteNet.resized,
    moved,
    moved,
    moved,
    blocks,
    blocks,
    multiplied,
    TfliteNet.prelu,
    TfliteNet.svdf,
    TfliteNet.normalized,
    TfliteNet.normalized,
    TfliteNet.resized,
    TfliteNet.connected_at_run_time,
)

MAKERS_16 = tuple(
    maker
    for maker in MAKERS
    if maker
    not in {TfliteNet.concatenation, TfliteNet.normalized, TfliteNet.prelu, TfliteNet.svdf, TfliteNet.transposed}
)
"""Operators that are computed in integers of 16 bits."""


def tflite(rng: np.random.Generator) -> bytes:
    """A file of one to five operators."""
    net = TfliteNet(rng, str(rng.choice(["u8", *["i16"] * 3, *["i8"] * 5])))
    wanted = int(rng.integers(1, 6))
    while len(net.model.operators) < wanted:
        maker = net.pick(MAKERS_16 if net.dtype == "i16" else MAKERS)
        if maker is not TfliteNet.svdf or net.dtype == "i8":
            maker(net)
    return net.bytes()
