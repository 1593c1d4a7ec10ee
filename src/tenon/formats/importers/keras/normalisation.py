"""Keras's layers of normalisation.

Source: the documentation of keras.layers.
"""

from __future__ import annotations

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.keras.attention import unit
from tenon.formats.importers.keras.importer import KerasLayer, LayerFunction
from tenon.network.graph.graph import Array, Value


def _affine(layer: KerasLayer, *others: str) -> dict[str, Array]:
    """The learned scale and offset, where the layer has them, and after them the weights of other roles."""
    learned = [role for role, setting in (("gamma", "scale"), ("beta", "center")) if layer.get(setting, True)]
    roles = [*learned, *others]
    return dict(zip(roles, layer.arrays(*roles), strict=True)) if roles else {}


def _batch_normalization(layer: KerasLayer) -> Outputs:
    builder, affine = layer.builder, _affine(layer, "moving_mean", "moving_variance")
    mean, variance = affine["moving_mean"], affine["moving_variance"]
    parts = (affine.get("gamma", np.ones_like(mean)), affine.get("beta", np.zeros_like(mean)), mean, variance)
    axis = layer.get("axis", -1)
    axis = (axis[0] if isinstance(axis, list) else axis) % layer.rank
    perm = [0, axis, *(i for i in range(1, layer.rank) if i != axis)] if layer.rank > 1 else [0]
    x = builder.transpose(layer.x, perm)
    constants = [builder.constant(p.astype(np.float32), "statistics") for p in parts]
    y = builder.add("BatchNormalization", x, *constants, epsilon=float(layer.get("epsilon", 1e-3)))
    return builder.transpose(y, [int(i) for i in np.argsort(perm)])


def _layer_normalization(layer: KerasLayer) -> Outputs:
    """Over other axes than the last ones these are moved to the end and back."""
    given, builder = layer.get("axis", -1), layer.builder
    axes = sorted(int(a) % layer.rank for a in (given if isinstance(given, list) else [given]))
    perm = [*(i for i in range(layer.rank) if i not in axes), *axes]
    x, epsilon = builder.transpose(layer.x, perm), float(layer.get("epsilon", 1e-3))
    if layer.get("rms_scaling", False):
        y = _scaled_by_spread(layer, x, len(axes), epsilon)
    else:
        affine, dims = _affine(layer), builder.dims(x)[-len(axes) :]
        gamma = builder.constant(affine.get("gamma", np.ones(dims, np.float32)), "gamma")
        beta = builder.constant(affine["beta"], "beta") if "beta" in affine else None
        y = builder.add("LayerNormalization", x, gamma, beta, axis=-len(axes), epsilon=epsilon)
    return builder.transpose(y, [int(i) for i in np.argsort(perm)])


def _scaled_by_spread(layer: KerasLayer, x: Value, count: int, epsilon: float) -> Value:
    """Divided by the standard deviation over the last axes, the mean left as it is, and scaled as was learnt."""
    builder, axes = layer.builder, layer.builder.ints(*range(-count, 0))
    apart = builder.add("Sub", x, builder.add("ReduceMean", x, axes, keepdims=1))
    variance = builder.add("ReduceMean", builder.square(apart), axes, keepdims=1)
    y = builder.add("Div", x, builder.add("Sqrt", builder.add("Add", variance, builder.scalar(epsilon))))
    return builder.add("Mul", y, builder.constant(layer.arrays("gamma")[0], "gamma"))


def _group_normalization(layer: KerasLayer) -> Outputs:
    builder, axis = layer.builder, int(layer.get("axis", -1)) % layer.rank
    perm = [*(i for i in range(layer.rank) if i != axis), axis]
    transposed = builder.transpose(layer.x, perm)
    dims, groups = builder.dims(transposed), int(layer.get("groups", 32))
    groups = dims[-1] if groups == -1 else groups
    if axis == 0 or groups < 1 or dims[-1] % groups:
        raise RefusedError(f"{groups} groups of {dims[-1]} channels are not supported")
    affine, axes = _affine(layer), builder.ints(1, 3)
    x = builder.reshape(transposed, (dims[0], -1, groups, dims[-1] // groups))
    x = builder.add("Sub", x, builder.add("ReduceMean", x, axes, keepdims=1))
    spread = builder.add("ReduceMean", builder.square(x), axes, keepdims=1)
    epsilon = builder.scalar(float(layer.get("epsilon", 1e-3)))
    y = builder.reshape(builder.add("Div", x, builder.add("Sqrt", builder.add("Add", spread, epsilon))), dims)
    for role, op in (("gamma", "Mul"), ("beta", "Add")):
        y = builder.add(op, y, builder.constant(affine[role], role)) if role in affine else y
    return builder.transpose(y, [int(i) for i in np.argsort(perm)])


def _rms_normalization(layer: KerasLayer) -> Outputs:
    builder, axis = layer.builder, layer.get("axis", -1)
    axes = builder.ints(*(int(a) for a in (axis if isinstance(axis, list) else [axis])))
    mean = builder.add("ReduceMean", builder.square(layer.x), axes, keepdims=1)
    epsilon = builder.scalar(float(layer.get("epsilon", 1e-6)))
    y = builder.add("Div", layer.x, builder.add("Sqrt", builder.add("Add", mean, epsilon)))
    return builder.add("Mul", y, builder.constant(layer.arrays("scale")[0], "scale"))


def _unit_normalization(layer: KerasLayer) -> Outputs:
    axis = layer.get("axis", -1)
    return unit(layer, layer.x, [int(a) for a in axis] if isinstance(axis, list) else [int(axis)])


def _normalization(layer: KerasLayer) -> Outputs:
    """By mean and variance that the layer has learnt or was given, per element of some axes."""
    given = [layer.get("mean"), layer.get("variance")]
    mean, variance = layer.arrays("mean", "variance") if given[0] is None else (np.array(v, np.float32) for v in given)
    axis = layer.config.get("axis", -1)
    axes = {a % layer.rank for a in (axis if isinstance(axis, list) else [] if axis is None else [axis])}
    shape = [n if i in axes else 1 for i, n in enumerate(layer.builder.dims(layer.x))]
    shape = shape if mean.size == np.prod(shape) else [1] * layer.rank
    length = np.maximum(np.sqrt(variance.reshape(shape)), np.float32(1e-7))
    offset = layer.builder.constant(mean.reshape(shape), "mean")
    if layer.get("invert", False):
        return layer.builder.add(
            "Add", layer.builder.add("Mul", layer.x, layer.builder.constant(length, "deviation")), offset
        )
    return layer.builder.add(
        "Div", layer.builder.add("Sub", layer.x, offset), layer.builder.constant(length, "deviation")
    )


def _rescaling(layer: KerasLayer) -> Outputs:
    x = layer.x
    scale, offset = (np.array(layer.get(k, d), np.float32) for k, d in (("scale", 1.0), ("offset", 0.0)))
    y = layer.builder.add("Mul", x, layer.builder.constant(scale, "scale"))
    return layer.builder.add("Add", y, layer.builder.constant(offset, "offset")) if offset.any() else y


NORMALISATION: dict[str, LayerFunction] = {
    "BatchNormalization": _batch_normalization,
    "BatchNormalizationV1": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "Normalization": _normalization,
    "RMSNormalization": _rms_normalization,
    "Rescaling": _rescaling,
    "UnitNormalization": _unit_normalization,
}
