"""Caffe layers that work on each number alone: activations, Eltwise, Power, Exp, Log."""

from __future__ import annotations

from tenon.decompositions import caffe_family as family
from tenon.importers.caffe.layer import Layer, Table, filler, simple
from tenon.ir.graph import Value

_ELTWISE = {"SUM": "Add", "PROD": "Mul", "MAX": "Max", "MIN": "Min"}


def axpy(layer: Layer) -> Value:
    """The first bottom, one number per channel, times the second, plus the third."""
    factor, missing = layer.x, len(layer.dims(1)) - len(layer.dims())
    factor = layer.reshape(factor, *layer.dims(), *(1,) * missing) if missing > 0 else factor
    return layer.add("Add", layer.add("Mul", factor, layer.bottom(1)), layer.bottom(2))


def prelu(layer: Layer) -> Value:
    count = 1 if layer.p.channel_shared else layer.dims()[1]
    shape = (count, *(1,) * (len(layer.dims()) - 2))
    return layer.add("PRelu", layer.x, layer.weights(0, shape, filler(layer.p, 0.25)))


def dropout(layer: Layer) -> Value:
    """Nets that do not scale when they are trained scale when they are run."""
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
    "Clip": ("clip_param", lambda c: c.add("Clip", c.x, c.p.min, c.p.max)),
    "Dropout": ("dropout_param", dropout),
    "Eltwise": ("eltwise_param", lambda c: family.eltwise(c, _ELTWISE[c.p.operation], c.bottoms, c.p.coeff.tolist())),
    "ELU": ("elu_param", lambda c: c.add("Elu", c.x, alpha=c.p.alpha)),
    "Exp": ("exp_param", lambda c: family.exponential(c, c.x, c.p.base, c.p.scale, c.p.shift)),
    "Log": ("log_param", lambda c: family.logarithm(c, c.x, c.p.base, c.p.scale, c.p.shift)),
    "Power": ("power_param", lambda c: family.power(c, c.x, c.p.power, c.p.scale, c.p.shift)),
    "PReLU": ("prelu_param", prelu),
    "ReLU": ("relu_param", lambda c: family.rectified(c, c.x, c.p.negative_slope)),
    "ReLU6": ("relu6_param", lambda c: c.add("Clip", c.x, 0.0, c.p.threshold)),
    "Swish": ("swish_param", lambda c: c.add("Swish", c.x, alpha=c.p.beta)),
    "Threshold": ("threshold_param", lambda c: family.exceeds(c, c.x, c.p.threshold)),
}
