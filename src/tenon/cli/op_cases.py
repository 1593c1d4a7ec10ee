"""The operators timed by ``tenon bench-op``, with shapes of real networks.

A name is the operator, the shape of its first input and further parameters: o64 is 64 output channels, k3 a 3x3 window,
s2 stride 2, d2 dilation 2, g32 32 groups, dw a depthwise convolution.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tenon.network.graph.types import DType
from tenon.network.ops.activation import Gelu, HardSwish, Relu, Sigmoid, Tanh
from tenon.network.ops.base import Case, Operator
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.move import Concat, Transpose
from tenon.network.ops.normalize import LayerNormalization
from tenon.network.ops.pointwise import Add, Mul
from tenon.network.ops.pool import AveragePool, MaxPool
from tenon.network.ops.reduce import GlobalAveragePool, ReduceMean
from tenon.network.ops.resize import Resize
from tenon.network.ops.softmax import Softmax

Ints = tuple[int, ...]

_CONVOLUTIONS = (  # channels in, height and width, channels out, kernel, stride, dilation, groups
    (3, 224, 32, 3, 2, 1, 1),
    (3, 224, 64, 7, 2, 1, 1),
    (3, 416, 16, 3, 1, 1, 1),
    (64, 56, 64, 3, 1, 1, 1),
    (128, 28, 128, 3, 1, 1, 1),
    (256, 14, 256, 3, 1, 1, 1),
    (512, 7, 512, 3, 1, 1, 1),
    (64, 56, 128, 3, 2, 1, 1),
    (256, 14, 512, 3, 2, 1, 1),
    (192, 35, 64, 5, 1, 1, 1),
    (256, 28, 256, 3, 1, 2, 1),
    (32, 112, 64, 1, 1, 1, 1),
    (128, 56, 128, 1, 1, 1, 1),
    (256, 28, 256, 1, 1, 1, 1),
    (512, 14, 512, 1, 1, 1, 1),
    (1024, 7, 1024, 1, 1, 1, 1),
    (256, 56, 64, 1, 1, 1, 1),
    (64, 56, 128, 1, 2, 1, 1),
    (128, 28, 128, 3, 1, 1, 32),
    (32, 112, 32, 3, 1, 1, 32),
    (64, 112, 64, 3, 2, 1, 64),
    (128, 56, 128, 3, 1, 1, 128),
    (512, 14, 512, 3, 1, 1, 512),
    (1024, 7, 1024, 3, 1, 1, 1024),
    (240, 28, 240, 5, 2, 1, 240),
    (96, 14, 96, 5, 1, 1, 96),
    (96, 14, 96, 7, 1, 1, 96),
)

_INTEGER_CONVOLUTIONS = (  # channels in, height and width, channels out, kernel, stride, groups
    (3, 224, 64, 7, 2, 1),
    (64, 56, 64, 3, 1, 1),
    (256, 14, 256, 3, 1, 1),
    (32, 112, 64, 1, 1, 1),
    (512, 14, 512, 1, 1, 1),
    (128, 56, 128, 3, 1, 128),
)

_POINTWISE = (Relu(), HardSwish(), Sigmoid(), Tanh(), Gelu())


def cases() -> Iterator[Case]:
    """Every case; ``label`` is its name."""
    for conv in _CONVOLUTIONS:
        yield _convolution(*conv)
    for integers in _INTEGER_CONVOLUTIONS:
        yield _integer_convolution(*integers)
    yield _case(
        ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1)), "o64_k4_s2", (1, 128, 28, 28), (128, 64, 4, 4), constant=(1,)
    )
    yield _case(Gemm(transB=1), "o1000", (1, 1024), (1000, 1024), (1000,), constant=(1, 2))
    yield _case(Gemm(transB=1), "o4096", (1, 4096), (4096, 4096), (4096,), constant=(1, 2))
    yield _case(Gemm(transB=1), "o576", (197, 192), (576, 192), (576,), constant=(1, 2))
    yield _case(MatMul(), "o768", (1, 197, 192), (192, 768), constant=(1,))
    yield _case(MatMul(), "scores", (1, 3, 197, 64), (1, 3, 64, 197))
    yield _case(MatMul(), "values", (1, 3, 197, 197), (1, 3, 197, 64))
    yield _case(MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), "k3_s2", (1, 64, 112, 112))
    yield _case(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), "k2_s2", (1, 64, 112, 112))
    yield _case(AveragePool(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), "k3", (1, 192, 35, 35))
    yield _case(GlobalAveragePool(), "", (1, 1024, 7, 7))
    for op in _POINTWISE:
        yield _case(op, "", (1, 64, 112, 112))
    yield _case(Add(), "", (1, 256, 56, 56), (1, 256, 56, 56))
    yield _case(Mul(), "gate", (1, 96, 56, 56), (1, 96, 1, 1))
    yield _case(Softmax(), "", (1, 1000))
    yield _case(Softmax(), "", (1, 3, 197, 197))
    yield _case(LayerNormalization(), "", (1, 197, 192), (192,), (192,), constant=(1, 2))
    yield _case(ReduceMean(), "hw", (1, 256, 28, 28), np.array([2, 3]), constant=(1,))
    yield _case(Transpose((0, 2, 3, 1)), "nhwc", (1, 64, 56, 56))
    yield _case(Concat(1), "", (1, 64, 56, 56), (1, 64, 56, 56))
    scales = np.array([1, 1, 2, 2], np.float32)
    yield _case(Resize(), "nearest_x2", (1, 128, 40, 40), None, scales, constant=(2,))
    yield _case(Resize(mode="linear"), "linear_x2", (1, 128, 40, 40), None, scales, constant=(2,))


def _convolution(ins: int, size: int, outs: int, kernel: int, stride: int, dilation: int, group: int) -> Case:
    pad = dilation * (kernel - 1) // 2
    op = Conv(
        kernel_shape=(kernel, kernel),
        strides=(stride, stride),
        dilations=(dilation, dilation),
        group=group,
        pads=(pad, pad, pad, pad),
    )
    details = [
        f"o{outs}" if outs != ins else "",
        f"k{kernel}",
        f"s{stride}" if stride > 1 else "",
        f"d{dilation}" if dilation > 1 else "",
        "dw" if group == ins else f"g{group}" if group > 1 else "",
    ]
    weights = (outs, ins // group, kernel, kernel)
    return _case(op, "_".join(filter(None, details)), (1, ins, size, size), weights, (outs,), constant=(1, 2))


def _integer_convolution(ins: int, size: int, outs: int, kernel: int, stride: int, group: int) -> Case:
    """A convolution of u8 by i8, requantised by factors in f32."""
    floats = _convolution(ins, size, outs, kernel, stride, 1, group)
    pad = (kernel - 1) // 2
    op = IntegerConv(
        "float", 128, zero=120, low=0, high=255, to="u8", group=group, pads=(pad,) * 4, strides=(stride,) * 2
    )
    count = outs * (ins // group) * kernel * kernel
    weights = (np.arange(count) % 255 - 127).astype(np.int8).reshape(outs, ins // group, kernel, kernel)
    constants = weights, np.zeros(outs, np.int32), np.full(outs, 1e-3, np.float32)
    label = floats.label.replace("Conv", "IntegerConv")
    return Case(op, ((1, ins, size, size), *constants), (1, 2, 3), label=label, dtypes=(DType.U8,))


def _case(op: Operator, details: str, first: Ints, *rest: Ints | np.ndarray | None, constant: Ints = ()) -> Case:
    name = "_".join(filter(None, (op.name, "x".join(map(str, first)), details)))
    return Case(op, (first, *rest), constant, label=name)
