"""Caffe layers that work on each number alone: activations, Eltwise, Power, Exp, Log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tenon.frontends.caffe.layer import Layer, Tops, constant_filler
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Value


def eltwise(layer: Layer) -> Value:
    parameter, values = layer.message.eltwise_param, list(layer.bottoms)
    if not values:
        raise RefusedError("has no bottoms")
    coefficients = [float(c) for c in parameter.coeff]
    if parameter.operation == "SUM" and coefficients:
        if len(coefficients) != len(values):
            raise RefusedError(f"has {len(coefficients)} coefficients for {len(values)} bottoms")
        scaled = zip(values, coefficients, strict=True)
        values = [v if c == 1 else layer.add("Mul", v, layer.net.floats(c)) for v, c in scaled]
    type = {"SUM": "Add", "PROD": "Mul", "MAX": "Max", "MIN": "Min"}[parameter.operation]
    y = values[0]
    for value in values[1:]:
        y = layer.add(type, y, value)
    return y


def axpy(layer: Layer) -> Value:
    """The first bottom, one number per channel, times the second, plus the third."""
    factor = _spread_over(layer, layer.bottom(0), layer.dims(1))
    return layer.add("Add", layer.add("Mul", factor, layer.bottom(1)), layer.bottom(2))


def _spread_over(layer: Layer, value: Value, dims: Sequence[int]) -> Value:
    own = layer.net.dims(value)
    return value if len(own) == len(dims) else layer.reshape(value, (*own, *(1,) * (len(dims) - len(own))))


def affine(layer: Layer, factor: float, offset: float) -> Value:
    """The first bottom times ``factor`` plus ``offset``."""
    y = layer.x
    if factor != 1:
        y = layer.add("Mul", y, layer.net.floats(factor))
    return layer.add("Add", y, layer.net.floats(offset)) if offset else y


def power(layer: Layer) -> Value:
    parameter = layer.message.power_param
    y = affine(layer, float(parameter.scale), float(parameter.shift))
    return y if parameter.power == 1 else layer.add("Pow", y, layer.net.floats(float(parameter.power)))


def _log_of_base(base: float) -> float:
    if base != -1 and (base <= 0 or base == 1):
        raise RefusedError(f"has the base {base}")
    return 1.0 if base == -1 else math.log(base)


def exponential(layer: Layer) -> Value:
    parameter = layer.message.exp_param
    rate = _log_of_base(float(parameter.base))
    return layer.add("Exp", affine(layer, float(parameter.scale) * rate, float(parameter.shift) * rate))


def logarithm(layer: Layer) -> Value:
    parameter = layer.message.log_param
    rate = _log_of_base(float(parameter.base))
    y = layer.add("Log", affine(layer, float(parameter.scale), float(parameter.shift)))
    return y if rate == 1 else layer.add("Mul", y, layer.net.floats(1 / rate))


def relu(layer: Layer) -> Value:
    slope = float(layer.message.relu_param.negative_slope)
    return layer.add("LeakyRelu", layer.x, alpha=slope) if slope else layer.add("Relu", layer.x)


def prelu(layer: Layer) -> Value:
    parameter, dims = layer.message.prelu_param, layer.dims()
    count = 1 if parameter.channel_shared else dims[1]
    filler = parameter.filler if parameter.has("filler") else constant_filler(parameter.filler, 0.25)
    slope = layer.weights(0, (count, *(1,) * (len(dims) - 2)), filler)
    return layer.add("PRelu", layer.x, slope)


def clip(layer: Layer) -> Value:
    if layer.type == "ReLU6":
        low, high = 0.0, float(layer.message.relu6_param.threshold)
    else:
        low, high = float(layer.message.clip_param.min), float(layer.message.clip_param.max)
    return layer.add("Clip", layer.x, layer.net.scalar(low), layer.net.scalar(high))


def threshold(layer: Layer) -> Value:
    above = layer.add("Greater", layer.x, layer.net.floats(float(layer.message.threshold_param.threshold)))
    return layer.add("Cast", above, to="f32")


def dropout(layer: Layer) -> Value:
    parameter = layer.message.dropout_param
    return layer.x if parameter.scale_train else affine(layer, 1 - float(parameter.dropout_ratio), 0.0)


def simple(type: str) -> Callable[[Layer], Value]:
    """A layer that is one operator without attributes."""
    return lambda layer: layer.add(type, layer.x)


LAYERS: dict[str, Callable[[Layer], Tops]] = {
    "AbsVal": simple("Abs"),
    "Axpy": axpy,
    "BNLL": simple("Softplus"),
    "Clip": clip,
    "Dropout": dropout,
    "Eltwise": eltwise,
    "ELU": lambda layer: layer.add("Elu", layer.x, alpha=float(layer.message.elu_param.alpha)),
    "Exp": exponential,
    "HSwish": simple("HardSwish"),
    "Log": logarithm,
    "Mish": simple("Mish"),
    "Power": power,
    "PReLU": prelu,
    "ReLU": relu,
    "ReLU6": clip,
    "Sigmoid": simple("Sigmoid"),
    "Swish": lambda layer: layer.add("Swish", layer.x, alpha=float(layer.message.swish_param.beta)),
    "TanH": simple("Tanh"),
    "Threshold": threshold,
}
