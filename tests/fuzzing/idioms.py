"""Idioms of image networks that passes look for, added to a value of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tenon.errors import TenonError
from tenon.network.graph.graph import Value
from tenon.network.graph.writer import HOSTILE

if TYPE_CHECKING:
    from fuzzing.generate import Generator

UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Identity", "HardSigmoid", "HardSwish", "Elu", "Exp", "Sqrt", "Erf")


def weights(g: Generator, *shape: int, low: float = -1, high: float = 1) -> Value:
    return g.fresh(g.rng.uniform(low, high, shape).astype(np.float32), constant=True)


def number(g: Generator, value: float) -> Value:
    return g.fresh(np.array(value, np.float32), constant=True)


def kernel(g: Generator, x: Value) -> tuple[int, int]:
    most = [min(n, 5) for n in x.type.dims[2:]]
    return 1 + int(g.rng.integers(most[0])), 1 + int(g.rng.integers(most[1]))


def conv(g: Generator, x: Value) -> Value:
    channels = x.type.dims[1]
    group = g.pick([d for d in range(1, channels + 1) if channels % d == 0])
    filters = group * g.pick((1, 1, 2, 3, 5)) if group > 1 else g.pick((1, 3, 4, 8, 16, 17, 32))
    kh, kw = (3, 3) if g.chance(0.5) else kernel(g, x)
    pads = tuple(int(g.rng.integers(3)) for _ in range(4)) if g.chance(0.5) else (kh // 2, kw // 2) * 2
    strides = (g.pick((1, 1, 2, 3)), g.pick((1, 1, 2, 3))) if g.chance(0.5) else (1, 1)
    w = weights(g, filters, channels // group, kh, kw)
    bias = [weights(g, filters)] if g.chance(0.5) else []
    dilations = (g.pick((1, 2)), g.pick((1, 2))) if g.chance(0.2) else (1, 1)
    return g.add("Conv", x, w, *bias, pads=pads, strides=strides, group=group, dilations=dilations)


def deconvolution(g: Generator, x: Value) -> Value:
    kh, kw = kernel(g, x)
    strides = (min(g.pick((1, 2, 3)), kh), min(g.pick((1, 2, 3)), kw))
    w = weights(g, x.type.dims[1], g.pick((1, 3, 16)), kh, kw)
    return g.add("ConvTranspose", x, w, strides=strides)


def pooling(g: Generator, x: Value) -> Value:
    kh, kw = kernel(g, x)
    pads = tuple(int(g.rng.integers(k)) for k in (kh, kw, kh, kw))
    strides = (g.pick((1, 2)), g.pick((1, 2)))
    given = {"kernel_shape": (kh, kw), "pads": pads, "strides": strides, "ceil_mode": int(g.chance(0.3))}
    if g.chance(0.5):
        return g.add("MaxPool", x, **given)
    return g.add("AveragePool", x, **given, count_include_pad=int(g.chance(0.5)))


def normalization(g: Generator, x: Value) -> Value:
    c = x.type.dims[1]
    rest = [weights(g, c), weights(g, c), weights(g, c), weights(g, c, low=0.5, high=2)]
    return g.add("BatchNormalization", x, *rest)


def scale(g: Generator, x: Value) -> Value:
    _, c, h, w = x.type.dims
    shape = g.pick([(1, c, 1, 1), (c, 1, 1), (1,), (), (w,), (h, 1), (1, c, h, w)])
    operands = [x, weights(g, *shape, low=0.5, high=2)]
    kind = g.pick(("Mul", "Add", "Sub", "Div"))
    if kind in ("Mul", "Add") and g.chance(0.5):
        operands.reverse()
    return g.add(kind, *operands)


def unary(g: Generator, x: Value) -> Value:
    return g.add(g.pick(UNARY), x)


def binary(g: Generator, x: Value) -> Value:
    alike = [v for v in g.pool if v.type.dims == x.type.dims and v.type.dtype is x.type.dtype]
    return g.add(g.pick(("Add", "Mul", "Sub", "Max", "Sum", "Min", "Mean")), x, g.pick(alike or [x]))


def concatenated(g: Generator, x: Value) -> Value:
    n, _, h, w = x.type.dims
    alike = [
        v
        for v in g.pool
        if v.type.dtype is x.type.dtype and v.type.rank == 4 and (v.type.dims[0], *v.type.dims[2:]) == (n, h, w)
    ]
    return g.add("Concat", x, g.pick(alike or [x]), axis=1)


def swish(g: Generator, x: Value) -> Value:
    return g.add("Mul", x, g.add(g.pick(("Sigmoid", "HardSigmoid")), x))


def hard_swish(g: Generator, x: Value) -> Value:
    clip = g.add("Clip", g.add("Add", x, number(g, 3)), number(g, 0), number(g, 6))
    return g.add("Div", g.add("Mul", x, clip), number(g, 6))


def gelu(g: Generator, x: Value) -> Value:
    erf = g.add("Erf", g.add("Div", x, number(g, 2**0.5)))
    return g.add("Mul", g.add("Mul", x, g.add("Add", erf, number(g, 1))), number(g, 0.5))


def transposed(g: Generator, x: Value) -> Value:
    """A conversion to channels-last and back."""
    there = g.add("Transpose", x, perm=(0, 2, 3, 1))
    inside = g.add(g.pick(("Relu", "Tanh", "Softmax")), there)
    if g.chance(0.5):
        inside = g.add("Mul", inside, weights(g, x.type.dims[1], low=0.5, high=2))
    return g.add("Transpose", inside, perm=g.pick([(0, 3, 1, 2), (0, 1, 2, 3), (0, 3, 2, 1)]))


def reshaped(g: Generator, x: Value) -> Value:
    flat = g.add("Flatten", x)
    return g.add("Reshape", flat, g.integers(*x.type.dims))


def shuffle(g: Generator, x: Value) -> Value:
    n, c, h, w = x.type.dims
    groups = g.pick([d for d in range(1, c + 1) if c % d == 0])
    split = g.add("Reshape", x, g.integers(n, groups, c // groups, h, w))
    return g.add("Reshape", g.add("Transpose", split, perm=(0, 2, 1, 3, 4)), g.integers(n, c, h, w))


def gate(g: Generator, x: Value) -> Value:
    """Squeeze and excitation."""
    c = x.type.dims[1]
    mean = g.add("GlobalAveragePool", x)
    return g.add("Mul", x, g.add("Sigmoid", g.add("Conv", mean, weights(g, c, c, 1, 1))))


def dense(g: Generator, x: Value) -> Value:
    flat = g.add("Flatten", x)
    width = flat.type.dims[1]
    if width > 600:
        flat, width = g.add("Slice", flat, g.integers(0), g.integers(600), g.integers(1)), 600
    units = g.pick((1, 3, 10, 17, 64))
    return g.add("Gemm", flat, weights(g, units, width), weights(g, units), transB=1)


def attention(g: Generator, x: Value) -> Value:
    scores = g.add("MatMul", x, g.add("Transpose", x, perm=(0, 1, 3, 2)))
    scaled = g.add("Mul", scores, number(g, float(x.type.dims[3]) ** -0.5))
    return g.add("MatMul", g.add("Softmax", scaled), x)


def layer_norm(g: Generator, x: Value) -> Value:
    """As decomposed by exporters."""
    mean = g.add("ReduceMean", x, g.integers(-1))
    centred = g.add("Sub", x, mean)
    variance = g.add("ReduceMean", g.add("Mul", centred, centred), g.integers(-1))
    return g.add("Div", centred, g.add("Sqrt", g.add("Add", variance, number(g, 1e-3))))


def padded(g: Generator, x: Value) -> Value:
    pads = g.integers(0, 0, *(int(g.rng.integers(3)) for _ in range(2)), 0, 0, *(int(g.rng.integers(3)) for _ in "ab"))
    return conv(g, g.add("Pad", x, pads)) if g.chance(0.7) else g.add("Pad", x, pads)


def bottleneck(g: Generator, x: Value) -> Value:
    """Depthwise then 1x1, with activations between."""
    c = x.type.dims[1]
    deep = g.add("Conv", x, weights(g, c, 1, 3, 3), weights(g, c), pads=(1, 1, 1, 1), group=c)
    if g.chance(0.6):
        deep = g.add(g.pick(("Relu", "HardSwish", "LeakyRelu")), deep)
    out = g.pick((c, 8, 16, 17))
    flat = g.add("Conv", deep, weights(g, out, c, 1, 1), weights(g, out))
    return g.add("Add", flat, x) if out == c else flat


def split(g: Generator, x: Value) -> Value:
    c = x.type.dims[1]
    at = int(g.rng.integers(c)) if c > 1 else 0
    first = g.add("Slice", x, g.integers(0), g.integers(max(at, 1)), g.integers(1))
    if at == 0:
        return first
    return g.add("Concat", g.add("Slice", x, g.integers(at), g.integers(c), g.integers(1)), first, axis=1)


def _attempt(make: Callable[[Generator, Value], Value]) -> Callable[[Generator, Value], None]:
    """An idiom that does not fit is left incomplete."""

    def grow(g: Generator, x: Value) -> None:
        try:
            make(g, x)
        except (TenonError, *HOSTILE):
            return

    return grow


IDIOMS: list[Callable[[Generator, Value], None]] = [
    _attempt(make)
    for make in (
        conv,
        conv,
        deconvolution,
        pooling,
        normalization,
        scale,
        scale,
        unary,
        binary,
        concatenated,
        swish,
        hard_swish,
        gelu,
        transposed,
        reshaped,
        shuffle,
        gate,
        dense,
        attention,
        layer_norm,
        padded,
        bottleneck,
        split,
    )
]
