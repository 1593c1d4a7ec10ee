"""Caffe layers that work on each number alone: activations, Eltwise, Power, Exp, Log."""

from __future__ import annotations

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.importers.caffe.node import CaffeLayer, Table, filler, simple
from tenon.network.graph.graph import Value

_ELTWISE = {"SUM": "Add", "PROD": "Mul", "MAX": "Max", "MIN": "Min"}


def axpy(layer: CaffeLayer) -> Value:
    """The first bottom, one number per channel, times the second, plus the third."""
    factor, missing = layer.x, len(layer.dims_of(1)) - len(layer.dims)
    factor = layer.reshape(factor, *layer.dims, *(1,) * missing) if missing > 0 else factor
    return layer.add("Add", layer.add("Mul", factor, layer.input(1)), layer.input(2))


def prelu(layer: CaffeLayer) -> Value:
    count = 1 if layer.p.channel_shared else layer.dims[1]
    shape = (count, *(1,) * (len(layer.dims) - 2))
    return layer.add("PRelu", layer.x, layer.weights(0, shape, filler(layer.p, 0.25)))


def dropout(layer: CaffeLayer) -> Value:
    """Nets trained without scaling (scale_train: false) scale at inference."""
    return layer.x if layer.p.scale_train else family.affine(layer, layer.x, 1 - layer.p.dropout_ratio, 0.0)


LAYERS: Table = {
    **{
        theirs: simple(ours)
        for theirs, ours in (
            ("AbsVal", "Abs"),
            ("BNLL", "Softplus"),
            ("HSwish", "HardSwish"),
            ("Mish", "Mish"),
            ("Sigmoid", "Sigmoid"),
            ("TanH", "Tanh"),
        )
    },
    "Axpy": ("", axpy),
    "Clip": ("clip_param", lambda layer: layer.add("Clip", layer.x, layer.p.min, layer.p.max)),
    "Dropout": ("dropout_param", dropout),
    "Eltwise": (
        "eltwise_param",
        lambda layer: family.eltwise(layer, _ELTWISE[layer.p.operation], layer.inputs, layer.p.coeff.tolist()),
    ),
    "ELU": ("elu_param", lambda layer: layer.add("Elu", layer.x, alpha=layer.p.alpha)),
    "Exp": ("exp_param", lambda layer: family.exponential(layer, layer.x, layer.p.base, layer.p.scale, layer.p.shift)),
    "Log": ("log_param", lambda layer: family.logarithm(layer, layer.x, layer.p.base, layer.p.scale, layer.p.shift)),
    "Power": ("power_param", lambda layer: family.power(layer, layer.x, layer.p.power, layer.p.scale, layer.p.shift)),
    "PReLU": ("prelu_param", prelu),
    "ReLU": ("relu_param", lambda layer: family.rectified(layer, layer.x, layer.p.negative_slope)),
    "ReLU6": ("relu6_param", lambda layer: layer.add("Clip", layer.x, 0.0, layer.p.threshold)),
    "Swish": ("swish_param", lambda layer: layer.add("Swish", layer.x, alpha=layer.p.beta)),
    "Threshold": ("threshold_param", lambda layer: family.exceeds(layer, layer.x, layer.p.threshold)),
}
