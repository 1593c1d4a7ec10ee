"""Caffe layers that shift and scale: BatchNorm, BN, Scale, Bias, LRN, MVN, Normalize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.frontends.caffe.convolution import pooled
from tenon.frontends.caffe.layer import Layer, Tops, constant_filler
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Array, Value


def per_channel(layer: Layer, data: Array) -> Value:
    """One number per channel, in a shape that spreads over axis 1."""
    return layer.net.constant(data.reshape(-1, *(1,) * (len(layer.dims()) - 2)).astype(np.float32), "per_channel")


def batch_norm(layer: Layer) -> Value:
    """Blobs: mean, variance, the factor that both are to be divided by; of NVIDIA's fork also scale and bias."""
    parameter, dims = layer.message.batch_norm_param, layer.dims()
    channels = dims[1] if len(dims) > 1 else 1
    eps = max(float(parameter.eps), 1e-12)
    if parameter.has("use_global_stats") and not parameter.use_global_stats:
        return _batch_statistics(layer, eps)
    affine = layer.count == 5
    mean, variance = layer.array(0, (channels,)), layer.array(1, (channels,))
    if mean is None or variance is None:
        net = layer.net
        return layer.add("BatchNormalization", layer.x, *(net.placeholder((channels,)) for _ in range(4)), epsilon=eps)
    factor = layer.array(2, (1,))
    assert factor is not None
    rate = np.float32(0 if factor[0] == 0 else 1 / factor[0])
    scale = layer.array(3, (channels,)) if affine else np.ones(channels, np.float32)
    bias = layer.array(4, (channels,)) if affine else np.zeros(channels, np.float32)
    constants = [layer.net.constant(a, n) for a, n in _named(scale, bias, mean * rate, variance * rate)]
    return layer.add("BatchNormalization", layer.x, *constants, epsilon=eps)


def _named(*arrays: Array | None) -> list[tuple[Array, str]]:
    names = ("scale", "bias", "mean", "variance")
    return [(np.asarray(a, np.float32), n) for a, n in zip(arrays, names, strict=True)]


def _batch_statistics(layer: Layer, eps: float) -> Value:
    """Mean and variance of the batch at hand, for nets that ask for them even when testing."""
    axes = layer.net.ints(0, *range(2, len(layer.dims())))
    centred = layer.add("Sub", layer.x, layer.add("ReduceMean", layer.x, axes))
    variance = layer.add("ReduceMean", layer.add("Mul", centred, centred), axes)
    return layer.add("Div", centred, layer.add("Sqrt", layer.add("Add", variance, layer.net.floats(eps))))


def segnet_batch_norm(layer: Layer) -> Value:
    """``BN``: scale and shift, and in PSPNet's fork mean and variance (SegNet folds them into the first two)."""
    channels = layer.dims()[1]
    shape = (channels,)
    if layer.count == 2:
        scale, shift = layer.array(0, shape), layer.array(1, shape)
        assert scale is not None
        assert shift is not None
        return layer.add("Add", layer.add("Mul", layer.x, per_channel(layer, scale)), per_channel(layer, shift))
    eps = max(float(layer.message.bn_param.eps), 1e-12)
    return layer.add("BatchNormalization", layer.x, *(layer.weights(i, shape) for i in range(4)), epsilon=eps)


def _covered(layer: Layer, axis: int, num_axes: int) -> tuple[int, ...]:
    """The part of the bottom's shape that a learned scale or bias covers."""
    dims, first = layer.dims(), layer.axis(axis)
    return dims[first:] if num_axes < 0 else dims[first : first + num_axes]


def _spread(layer: Layer, value: Value, axis: int) -> Value:
    """``value``, aligned with the bottom's axes from ``axis`` on, in a shape that broadcasts."""
    dims, rank = layer.net.dims(value), len(layer.dims())
    first = layer.axis(axis) if dims else rank
    after = rank - first - len(dims)
    if after < 0:
        raise RefusedError(f"spreads a blob {list(dims)} from axis {first} over {list(layer.dims())}")
    wanted = (*dims, *(1,) * after)
    if value.data is not None:
        return layer.net.constant(value.data.reshape(wanted), "spread")
    return value if wanted == dims else layer.reshape(value, wanted)


def scale(layer: Layer) -> Value:
    parameter = layer.message.scale_param
    if len(layer.bottoms) > 1:
        factor, shape = layer.bottom(1), layer.dims(1)
    else:
        shape = _covered(layer, parameter.axis, parameter.num_axes)
        filler = parameter.filler if parameter.has("filler") else constant_filler(parameter.filler, 1.0)
        factor = layer.weights(0, shape, filler)
    y = layer.add("Mul", layer.x, _spread(layer, factor, parameter.axis))
    if parameter.bias_term:
        bias = layer.weights(0 if len(layer.bottoms) > 1 else 1, shape, parameter.bias_filler)
        y = layer.add("Add", y, _spread(layer, bias, parameter.axis))
    return y


def bias(layer: Layer) -> Value:
    parameter = layer.message.bias_param
    if len(layer.bottoms) > 1:
        added = layer.bottom(1)
    else:
        added = layer.weights(0, _covered(layer, parameter.axis, parameter.num_axes), parameter.filler)
    return layer.add("Add", layer.x, _spread(layer, added, parameter.axis))


def local_response(layer: Layer) -> Value:
    parameter = layer.message.lrn_param
    size, alpha, beta, k = parameter.local_size, float(parameter.alpha), float(parameter.beta), float(parameter.k)
    if size % 2 == 0:
        raise RefusedError(f"its local_size {size} is not odd")
    if parameter.norm_region == "ACROSS_CHANNELS":
        return layer.add("LRN", layer.x, size=size, alpha=alpha, beta=beta, bias=k)
    pad = (size - 1) // 2
    near = pooled(layer, layer.add("Mul", layer.x, layer.x), "AVE", (size, size), (1, 1), (pad, pad))
    base = layer.add("Add", layer.add("Mul", near, layer.net.floats(alpha)), layer.net.floats(1.0))
    return layer.add("Mul", layer.x, layer.add("Pow", base, layer.net.floats(-beta)))


def mean_variance(layer: Layer) -> Value:
    """Caffe adds eps to the standard deviation, not to the variance."""
    parameter, rank = layer.message.mvn_param, len(layer.dims())
    axes = layer.net.ints(*range(1 if parameter.across_channels else 2, rank))
    centred = layer.add("Sub", layer.x, layer.add("ReduceMean", layer.x, axes))
    if not parameter.normalize_variance:
        return centred
    deviation = layer.add("Sqrt", layer.add("ReduceMean", layer.add("Mul", centred, centred), axes))
    return layer.add("Div", centred, layer.add("Add", deviation, layer.net.floats(float(parameter.eps))))


def normalize(layer: Layer) -> Value:
    """SSD's: each place (or the whole picture) to length one, times a learned scale."""
    parameter, dims = layer.message.norm_param, layer.dims()
    axes = layer.net.ints(*(range(1, len(dims)) if parameter.across_spatial else (1,)))
    squares = layer.add("ReduceSumSquare", layer.x, axes)
    length = layer.add("Sqrt", layer.add("Add", squares, layer.net.floats(float(parameter.eps))))
    count = 1 if parameter.channel_shared else dims[1]
    factor = layer.weights(0, (count, *(1,) * (len(dims) - 2)), parameter.scale_filler)
    return layer.add("Mul", layer.add("Div", layer.x, length), factor)


LAYERS: dict[str, Callable[[Layer], Tops]] = {
    "BatchNorm": batch_norm,
    "Bias": bias,
    "BN": segnet_batch_norm,
    "LRN": local_response,
    "MVN": mean_variance,
    "Normalize": normalize,
    "Scale": scale,
}
