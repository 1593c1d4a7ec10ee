"""Caffe layers that shift and scale: BatchNorm, BN, Scale, Bias, LRN, MVN, Normalize."""

from __future__ import annotations

import numpy as np

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.caffe.node import CaffeLayer, Table, filler
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value


def batch_norm(layer: CaffeLayer) -> Value:
    """Blobs: mean, variance, the factor that both are to be divided by; of NVIDIA's fork also scale and bias."""
    p, shape = layer.p, layer.dims[1:2] or (1,)
    eps = max(p.eps, 1e-12)
    if p.has("use_global_stats") and not p.use_global_stats:
        return _batch_statistics(layer, eps)
    statistics = [layer.weights(i, shape) for i in (0, 1)]
    divisor = layer.array(2, (1,)) if layer.blobs is not None else None
    if divisor is not None:
        rate = 1 / divisor if divisor[0] else 0 * divisor
        statistics = [layer.add("Mul", value, rate) for value in statistics]
    affine = [layer.weights(i, shape) for i in (3, 4)] if layer.count == 5 else []
    scale, bias = affine or (np.ones(shape, np.float32), np.zeros(shape, np.float32))
    return layer.add("BatchNormalization", layer.x, scale, bias, *statistics, epsilon=eps)


def _batch_statistics(layer: CaffeLayer, eps: float) -> Value:
    """Mean and variance of the batch itself, for nets that request them even when testing."""
    axes = layer.ints(0, *range(2, len(layer.dims)))
    centred = layer.add("Sub", layer.x, layer.add("ReduceMean", layer.x, axes))
    variance = layer.add("ReduceMean", layer.square(centred), axes)
    return layer.add("Div", centred, layer.add("Sqrt", layer.add("Add", variance, eps)))


def segnet_batch_norm(layer: CaffeLayer) -> Value:
    """``BN``: scale and shift, and in PSPNet's fork mean and variance (SegNet folds them into the first two)."""
    shape, x = layer.dims[1:2], layer.x
    if layer.count == 2:
        scale, shift = (layer.channels(layer.weights(i, shape), x) for i in (0, 1))
        return layer.add("Add", layer.add("Mul", x, scale), shift)
    weights = [layer.weights(i, shape) for i in range(4)]
    return layer.add("BatchNormalization", x, *weights, epsilon=max(layer.p.eps, 1e-12))


def _operand(layer: CaffeLayer, initial: Message) -> Value:
    """The second bottom, or a learned blob over the axes that the parameters give."""
    if len(layer.inputs) > 1:
        return layer.input(1)
    first, count = layer.along(layer.p.axis), layer.p.num_axes
    covered = layer.dims[first:]
    return layer.weights(0, covered if count < 0 else covered[:count], initial)


def _spread(layer: CaffeLayer, value: Value) -> Value:
    """``value``, aligned with the first bottom's axes from the given one on, in a shape that broadcasts."""
    dims, rank = layer.builder.dims(value), len(layer.dims)
    first = layer.along(layer.p.axis) if dims else rank
    after = rank - first - len(dims)
    if after < 0:
        raise RefusedError(f"spreads a blob {list(dims)} from axis {first} over {list(layer.dims)}")
    return layer.reshape(value, *dims, *(1,) * after) if after else value


def scale(layer: CaffeLayer) -> Value:
    factor = _operand(layer, filler(layer.p, 1.0))
    y = layer.add("Mul", layer.x, _spread(layer, factor))
    if not layer.p.bias_term:
        return y
    added = layer.weights(int(len(layer.inputs) == 1), layer.builder.dims(factor), layer.p.bias_filler)
    return layer.add("Add", y, _spread(layer, added))


def bias(layer: CaffeLayer) -> Value:
    return layer.add("Add", layer.x, _spread(layer, _operand(layer, layer.p.filler)))


def local_response(layer: CaffeLayer) -> Value:
    p, within = layer.p, layer.p.norm_region == "WITHIN_CHANNEL"
    if p.local_size % 2 == 0:
        raise RefusedError(f"its local_size {p.local_size} is not odd")
    k = 1.0 if within else p.k
    return family.local_response(layer, layer.x, p.local_size, p.alpha, p.beta, k, within=within)


def mean_variance(layer: CaffeLayer) -> Value:
    p = layer.p
    eps = p.eps if p.normalize_variance else None
    return family.mean_variance(layer, layer.x, across_channels=p.across_channels, eps=eps)


def normalize(layer: CaffeLayer) -> Value:
    """SSD's Normalize: each position (or the image) L2-normalised, times a learned scale."""
    p, rank, channels = layer.p, len(layer.dims), layer.dims[1]
    y = family.l2_normalised(layer, layer.x, range(1, rank) if p.across_spatial else (1,), p.eps)
    factor = layer.weights(0, (1 if p.channel_shared else channels, *(1,) * (rank - 2)), p.scale_filler)
    return layer.add("Mul", y, factor)


LAYERS: Table = {
    "BatchNorm": ("batch_norm_param", batch_norm),
    "Bias": ("bias_param", bias),
    "BN": ("bn_param", segnet_batch_norm),
    "LRN": ("lrn_param", local_response),
    "MVN": ("mvn_param", mean_variance),
    "Normalize": ("norm_param", normalize),
    "Scale": ("scale_param", scale),
}
