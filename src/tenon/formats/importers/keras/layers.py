"""Keras's layers in ONNX's operators: one small function for each, or one line of a table.

Source: the documentation of keras.layers, and of TensorFlow's model optimisation for the wrappers of
quantisation-aware training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.keras.attention import ATTENTION, einsum_dense
from tenon.formats.importers.keras.functions import FUNCTIONS
from tenon.formats.importers.keras.importer import MODELS, KerasLayer, LayerFunction
from tenon.formats.importers.keras.normalisation import NORMALISATION
from tenon.formats.importers.keras.recurrent import RECURRENT
from tenon.formats.importers.keras.weights import KerasWeights
from tenon.network.graph.graph import Array, Value


# -------------------------------------------------------------------------------------------------- activations
def activation_name(given: Any) -> tuple[str, Mapping[str, Any]]:
    """The name and settings of an activation, however the file writes it."""
    if isinstance(given, dict):
        config = given.get("config")
        if isinstance(config, str):
            return config, {}
        return str(given.get("class_name", "")), config if isinstance(config, dict) else {}
    return str(given or "linear"), {}


def activated(layer: KerasLayer, y: Value, given: Any = None) -> Value:
    """``y`` with the layer's activation, or the given one, as a node of its own."""
    name, config = activation_name(layer.get("activation") if given is None else given)
    if name in LAYERS and name not in ("Add", "Dense"):
        outputs = LAYERS[name](KerasLayer(layer.importer, name, config, layer.weights, [y]))
        return outputs if isinstance(outputs, Value) else outputs[0]
    function = ACTIVATIONS.get(name)
    if function is None:
        raise RefusedError(f"the activation '{name}' is not supported")
    return function(layer, y)


def _hard_sigmoid(layer: KerasLayer, y: Value) -> Value:
    alpha = 1 / 6 if layer.importer.version >= 3 else 0.2
    return layer.builder.add("HardSigmoid", y, alpha=alpha, beta=0.5)


def _gated(layer: KerasLayer, y: Value) -> Value:
    n = layer.builder.dims(y)[-1]
    if n % 2:
        raise RefusedError(f"{n} channels cannot be split in two")
    half, gate = layer.builder.split(y, [n // 2, n // 2], layer.builder.type(y).rank - 1)
    return layer.builder.add("Mul", half, layer.builder.add("Sigmoid", gate))


def _sparse_plus(layer: KerasLayer, y: Value) -> Value:
    """A parabola between -1 and 1, linear beyond."""
    builder, unary = layer.builder, layer.builder.scalar(1.0)
    bent = builder.square(builder.clip(builder.add("Add", y, unary), 0, 2))
    return builder.add(
        "Add", builder.add("Mul", bent, builder.scalar(0.25)), builder.add("Relu", builder.add("Sub", y, unary))
    )


def _square_plus(layer: KerasLayer, y: Value) -> Value:
    builder = layer.builder
    root = builder.add("Sqrt", builder.add("Add", builder.square(y), builder.scalar(4.0)))
    return builder.add("Mul", builder.add("Add", y, root), builder.scalar(0.5))


def _soft_shrink(layer: KerasLayer, y: Value) -> Value:
    builder, half = layer.builder, layer.builder.scalar(0.5)
    above, below = builder.add("Sub", y, half), builder.add("Sub", builder.add("Neg", y), half)
    return builder.add("Sub", builder.add("Relu", above), builder.add("Relu", below))


def _hard_shrink(layer: KerasLayer, y: Value) -> Value:
    builder = layer.builder
    return builder.add(
        "Where", builder.add("Greater", builder.add("Abs", y), builder.scalar(0.5)), y, builder.scalar(0.0)
    )


def _log_sigmoid(layer: KerasLayer, y: Value) -> Value:
    return layer.builder.add("Neg", layer.builder.add("Softplus", layer.builder.add("Neg", y)))


def _plain(op: str, **attributes: object) -> Callable[[KerasLayer, Value], Value]:
    return lambda layer, y: layer.builder.add(op, y, **attributes)


ACTIVATIONS: dict[str, Callable[[KerasLayer, Value], Value]] = {
    "linear": lambda layer, y: y,
    "NoOpActivation": lambda layer, y: y,
    "relu": _plain("Relu"),
    "relu6": lambda layer, y: layer.builder.clip(y, 0, 6),
    "softmax": _plain("Softmax", axis=-1),
    "log_softmax": _plain("LogSoftmax", axis=-1),
    "sigmoid": _plain("Sigmoid"),
    "hard_sigmoid": _hard_sigmoid,
    "tanh": _plain("Tanh"),
    "elu": _plain("Elu"),
    "selu": _plain("Selu"),
    "softplus": _plain("Softplus"),
    "softsign": _plain("Softsign"),
    "exponential": _plain("Exp"),
    **dict.fromkeys(("swish", "silu"), _plain("Swish")),
    **dict.fromkeys(("hard_swish", "hard_silu"), _plain("HardSwish")),
    "gelu": _plain("Gelu"),
    "mish": _plain("Mish"),
    "leaky_relu": _plain("LeakyRelu", alpha=0.2),
    "celu": _plain("Elu"),
    "glu": _gated,
    "hard_shrink": _hard_shrink,
    "hard_tanh": lambda layer, y: layer.builder.clip(y, -1, 1),
    "log_sigmoid": _log_sigmoid,
    "soft_shrink": _soft_shrink,
    "sparse_plus": _sparse_plus,
    "sparse_sigmoid": _plain("HardSigmoid", alpha=0.5, beta=0.5),
    "squareplus": _square_plus,
    "tanh_shrink": lambda layer, y: layer.builder.add("Sub", y, layer.builder.add("Tanh", y)),
}


def _relu(layer: KerasLayer) -> Outputs:
    top, slope = layer.get("max_value"), float(layer.get("negative_slope", 0.0))
    if threshold := float(layer.get("threshold", 0.0)):
        builder, minimum = layer.builder, layer.builder.scalar(threshold)
        low = builder.add("Mul", builder.add("Sub", layer.x, minimum), builder.scalar(slope))
        high = layer.x if top is None else builder.clip(layer.x, None, float(top))
        return builder.add("Where", builder.add("GreaterOrEqual", layer.x, minimum), high, low)
    if slope:
        y = layer.builder.add("LeakyRelu", layer.x, alpha=slope)
        return y if top is None else layer.builder.clip(y, None, float(top))
    return layer.builder.add("Relu", layer.x) if top is None else layer.builder.clip(layer.x, 0, float(top))


def _leaky_relu(layer: KerasLayer) -> Outputs:
    return layer.builder.add("LeakyRelu", layer.x, alpha=float(layer.get("alpha", layer.get("negative_slope", 0.3))))


def _prelu(layer: KerasLayer) -> Outputs:
    (alpha,) = layer.arrays("alpha")
    return layer.builder.add("PRelu", layer.x, layer.builder.constant(alpha, "alpha"))


def _softmax(layer: KerasLayer) -> Outputs:
    axis = layer.get("axis", -1)
    axes = sorted(int(a) % layer.rank for a in (axis if isinstance(axis, list) else [axis]))
    if len(axes) == 1:
        return layer.builder.add("Softmax", layer.x, axis=axes[0])
    builder, perm = layer.builder, [*(i for i in range(layer.rank) if i not in axes), *axes]
    transposed = builder.transpose(layer.x, perm)
    rows = builder.reshape(transposed, (*builder.dims(transposed)[: -len(axes)], -1))
    y = builder.reshape(builder.add("Softmax", rows, axis=-1), builder.dims(transposed))
    return builder.transpose(y, [int(i) for i in np.argsort(perm)])


# ------------------------------------------------------------------------------------------------------ products
def _biased(layer: KerasLayer, *roles: str) -> tuple[list[Array], Value | None]:
    """The weights of these roles and the bias, if there is one."""
    if not layer.get("use_bias", True):
        return layer.arrays(*roles), None
    *weights, bias = layer.arrays(*roles, "bias")
    return weights, layer.builder.constant(bias, "bias")


def _dense(layer: KerasLayer) -> Outputs:
    (kernel,), bias = _biased(layer, "kernel")
    return activated(layer, layer.builder.matmul(layer.x, _kernel(layer, kernel, "kernel"), bias))


def _kernel(layer: KerasLayer, data: Array, role: str) -> Value:
    """A kernel as a constant; within a wrapper of quantisation-aware training, with fake quantisation."""
    low, high = layer.weights.find(f"{role}_min"), layer.weights.find(f"{role}_max")
    if low is None or high is None:
        return layer.builder.constant(data, role)
    scale = np.maximum(np.abs(low), np.abs(high)).ravel() / 127
    if scale.size not in (1, data.shape[-1]):
        raise RefusedError(f"{scale.size} ranges do not fit weights of shape {list(data.shape)}")
    return layer.builder.on_grid(data, np.where(scale > 0, scale, 1.0), np.full(scale.size, 128), 1, 8)


# ------------------------------------------------------------------------------------------------------- windows
def _image(layer: KerasLayer) -> Value:
    return layer.builder.last(layer.x) if layer.first else layer.x


def _back(layer: KerasLayer, y: Value) -> Value:
    return layer.builder.first(y) if layer.first else y


def _padding(layer: KerasLayer) -> str:
    return str(layer.get("padding", "valid")).upper()


def _channels_first(layer: KerasLayer, kernel: Value) -> Value:
    """[out, in, spatial...] of Keras's [spatial..., in, out]."""
    spatial = layer.builder.type(kernel).rank - 2
    return layer.builder.transpose(kernel, (spatial + 1, spatial, *range(spatial)))


def _conv(layer: KerasLayer) -> Outputs:
    spatial = layer.rank - 2
    (kernel,), bias = _biased(layer, "kernel")
    w, dilations = _channels_first(layer, _kernel(layer, kernel, "kernel")), layer.per_axis("dilation_rate", spatial)
    padding: str | list[int] = _padding(layer)
    if padding == "CAUSAL":
        padding = [(kernel.shape[0] - 1) * dilations[0], 0]
    y = layer.builder.conv(
        _image(layer),
        w,
        bias,
        strides=layer.per_axis("strides", spatial),
        dilations=dilations,
        padding=padding,
        group=int(layer.get("groups", 1)),
    )
    return activated(layer, _back(layer, y))


def _depthwise(layer: KerasLayer, x: Value, kernel: Value, bias: Value | None) -> Value:
    """``kernel`` is [kernel..., channels, multiplier]."""
    builder, spatial = layer.builder, layer.builder.type(x).rank - 2
    *sizes, channels, multiplier = builder.dims(kernel)
    w = _channels_first(layer, builder.reshape(kernel, (*sizes, 1, channels * multiplier)))
    return builder.conv(
        x,
        w,
        bias,
        strides=layer.per_axis("strides", spatial),
        dilations=layer.per_axis("dilation_rate", spatial),
        padding=_padding(layer),
        group=channels,
    )


def _depthwise_conv(layer: KerasLayer) -> Outputs:
    (kernel,), bias = _biased(layer, "depthwise_kernel")
    y = _depthwise(layer, _image(layer), _kernel(layer, kernel, "depthwise_kernel"), bias)
    return activated(layer, _back(layer, y))


def _separable_conv(layer: KerasLayer) -> Outputs:
    builder = layer.builder
    (depthwise, pointwise), bias = _biased(layer, "depthwise_kernel", "pointwise_kernel")
    y = _depthwise(layer, _image(layer), builder.constant(depthwise, "depthwise"), None)
    w = _channels_first(layer, builder.constant(pointwise, "pointwise"))
    return activated(layer, _back(layer, builder.conv(y, w, bias)))


def _transposed_size(n: int, window: int, stride: int, padding: str, extra: int | None) -> int:
    """The output size of a transposed convolution of ``n`` elements."""
    if extra is None:
        return n * stride + (max(window - stride, 0) if padding == "VALID" else 0)
    return (n - 1) * stride + window + extra - (2 * (window // 2) if padding == "SAME" else 0)


def _conv_transpose(layer: KerasLayer) -> Outputs:
    builder = layer.builder
    x = _image(layer)
    spatial = layer.rank - 2
    padding = _padding(layer)
    (kernel,), bias = _biased(layer, "kernel")
    w = _channels_first(layer, _kernel(layer, kernel, "kernel"))
    strides, dilations = layer.per_axis("strides", spatial), layer.per_axis("dilation_rate", spatial)
    extra = layer.per_axis("output_padding", spatial) if layer.get("output_padding") is not None else [None] * spatial
    settings = zip(builder.dims(x)[1:-1], kernel.shape, strides, dilations, extra, strict=False)
    sizes = [_transposed_size(n, (k - 1) * d + 1, s, padding, more) for n, k, s, d, more in settings]
    y = builder.conv_transpose(x, w, bias, sizes, strides=strides, dilations=dilations, padding=padding)
    return activated(layer, _back(layer, y))


def _pool(kind: str) -> LayerFunction:
    def function(layer: KerasLayer) -> Outputs:
        spatial = layer.rank - 2
        kernel = layer.per_axis("pool_size", spatial, 2)
        strides = layer.per_axis("strides", spatial) if layer.get("strides") is not None else kernel
        return _back(layer, layer.builder.pool(kind, _image(layer), kernel, strides, _padding(layer)))

    return function


def _global_pool(kind: str) -> LayerFunction:
    def function(layer: KerasLayer) -> Outputs:
        axes = range(2, layer.rank) if layer.first else range(1, layer.rank - 1)
        return layer.builder.reduce(kind, layer.x, tuple(axes), bool(layer.get("keepdims", False)))

    return function


def _pairs(layer: KerasLayer, name: str) -> list[tuple[int, int]]:
    """Amounts before and after each spatial axis: one number, one for each axis, or pairs."""
    given, spatial = layer.get(name, 1), layer.rank - 2
    if isinstance(given, int):
        return [(given, given)] * spatial
    if spatial == 1 and len(given) == 2:
        return [(int(given[0]), int(given[1]))]
    return [(int(v), int(v)) if isinstance(v, int) else (int(v[0]), int(v[1])) for v in given]


def _zero_padding(layer: KerasLayer) -> Outputs:
    pads = np.zeros((layer.rank, 2), np.int64)
    start = 2 if layer.first else 1
    pads[start : start + layer.rank - 2] = _pairs(layer, "padding")
    return layer.builder.pad(layer.x, pads)


def _cropping(layer: KerasLayer) -> Outputs:
    start, pairs, dims = 2 if layer.first else 1, _pairs(layer, "cropping"), layer.builder.dims(layer.x)
    axes = range(start, start + len(pairs))
    ends = [dims[axis] - after for axis, (_, after) in zip(axes, pairs, strict=True)]
    return layer.builder.slice(layer.x, [before for before, _ in pairs], ends, axes)


def _center_crop(layer: KerasLayer) -> Outputs:
    """A centre crop; an image that is too small is cropped to the aspect ratio and enlarged."""
    first = 2 if layer.first else 1
    sizes, wanted = layer.builder.dims(layer.x)[first : first + 2], [int(layer.get("height")), int(layer.get("width"))]
    if any(n < m for n, m in zip(sizes, wanted, strict=True)):
        return _resized(layer, _proportioned(layer, _image(layer), wanted), wanted, "bilinear", half_pixel=True)
    starts = [(n - m) // 2 for n, m in zip(sizes, wanted, strict=True)]
    ends = [a + m for a, m in zip(starts, wanted, strict=True)]
    return layer.builder.slice(layer.x, starts, ends, range(first, first + 2))


def _proportioned(layer: KerasLayer, x: Value, wanted: Sequence[int]) -> Value:
    """A centre crop to the aspect ratio of ``wanted``."""
    (height, width), (rows, columns) = layer.builder.dims(x)[-3:-1], wanted
    kept = [min(height, width * rows // columns), min(width, height * columns // rows)]
    starts = [(height - kept[0]) // 2, (width - kept[1]) // 2]
    return layer.builder.slice(x, starts, [a + n for a, n in zip(starts, kept, strict=True)], (1, 2))


def _surrounded(layer: KerasLayer, x: Value, wanted: Sequence[int]) -> Value:
    """An image in the middle of a larger one that has the proportions of ``wanted``; an odd remainder is rounded
    down."""
    if layer.get("fill_mode", "constant") != "constant":
        raise RefusedError(f"fill_mode={layer.get('fill_mode')} is not supported")
    (height, width), (rows, columns) = layer.builder.dims(x)[-3:-1], wanted
    spare = [max(height, width * rows // columns) - height, max(width, height * columns // rows) - width]
    pads = np.array([[0, 0], *([n // 2, n // 2] for n in spare), [0, 0]])
    return layer.builder.pad(x, pads, layer.builder.number(float(layer.get("fill_value", 0.0)), x))


def _resized(
    layer: KerasLayer, x: Value, sizes: Sequence[int], default: str, *, half_pixel: bool | None = None
) -> Outputs:
    """``half_pixel`` says how positions are counted, where that does not follow from the interpolation."""
    name = layer.get("interpolation", default)
    if name not in _INTERPOLATIONS:
        raise RefusedError(f"the interpolation {name} is not supported")
    mode = _INTERPOLATIONS[name]
    centred = mode != "nearest" if half_pixel is None else half_pixel
    return _back(layer, layer.builder.resize(x, sizes, mode, align_corners=False, half_pixel=centred))


_INTERPOLATIONS = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def _up_sampling(layer: KerasLayer) -> Outputs:
    x, factors = _image(layer), layer.per_axis("size", layer.rank - 2, 2)
    sizes = [n * f for n, f in zip(layer.builder.dims(x)[1:-1], factors, strict=True)]
    return _resized(layer, x, sizes, "nearest")


def _resizing(layer: KerasLayer) -> Outputs:
    sizes, x = [int(layer.get("height")), int(layer.get("width"))], _image(layer)
    if layer.get("crop_to_aspect_ratio", False):
        x = _proportioned(layer, x, sizes)
    elif layer.get("pad_to_aspect_ratio", False):
        x = _surrounded(layer, x, sizes)
    return _resized(layer, x, sizes, "bilinear", half_pixel=True)


# ------------------------------------------------------------------------------------------------------- merging
def _merge(op: str) -> LayerFunction:
    def function(layer: KerasLayer) -> Outputs:
        total, *rest = layer.inputs
        for value in rest:
            total = layer.builder.add(op, total, value)
        return total

    return function


# ---------------------------------------------------------------------------------------------- moving elements
def _same(layer: KerasLayer) -> Outputs:
    return layer.builder.add("Identity", layer.x)


def _flatten(layer: KerasLayer) -> Outputs:
    x = _image(layer) if layer.rank > 2 else layer.x
    return layer.builder.reshape(x, (layer.builder.dims(x)[0], -1))


def _reshape(layer: KerasLayer) -> Outputs:
    if "newshape" in layer.config:
        return FUNCTIONS["ops.Reshape"](layer)
    return layer.builder.reshape(layer.x, (layer.builder.dims(layer.x)[0], *layer.get("target_shape", [])))


def _repeat_vector(layer: KerasLayer) -> Outputs:
    n, width = layer.builder.dims(layer.x)
    wide = layer.builder.reshape(layer.x, (n, 1, width))
    return layer.builder.add("Tile", wide, layer.builder.ints(1, int(layer.get("n", 1)), 1))


def _layer_scale(layer: KerasLayer) -> Outputs:
    """LayerScale of keras.applications' ConvNeXt: a factor for each channel."""
    return layer.builder.add("Mul", layer.x, layer.builder.constant(layer.arrays("gamma")[0], "gamma"))


def _scaled_sum(layer: KerasLayer) -> Outputs:
    """CustomScaleLayer of keras.applications' InceptionResNetV2: the first input plus the second one times a number."""
    if len(layer.inputs) != 2:
        raise RefusedError(f"it has {len(layer.inputs)} inputs instead of 2")
    return layer.builder.add(
        "Add", layer.x, layer.builder.add("Mul", layer.inputs[1], layer.builder.scalar(layer.get("scale")))
    )


def _embedding(layer: KerasLayer) -> Outputs:
    (table,) = layer.arrays("embeddings")
    indices = layer.builder.add("Cast", layer.x, to="i32")
    return layer.builder.add("Gather", layer.builder.constant(table, "embeddings"), indices, axis=0)


# ------------------------------------------------------------------------------------------------------ wrappers
def _time_distributed(layer: KerasLayer) -> Outputs:
    """The inner layer sees all steps as one batch."""
    builder, entry = layer.builder, layer.get("layer")
    n, steps, *rest = builder.dims(layer.x)
    outputs = _inner(layer, entry, layer.weights.wrapped(), [builder.reshape(layer.x, (n * steps, *rest))])
    return builder.reshape(outputs[0], (n, steps, *builder.dims(outputs[0])[1:]))


def _inner(layer: KerasLayer, entry: Mapping[str, Any], weights: KerasWeights, inputs: Sequence[Value]) -> list[Value]:
    kind = str(entry["class_name"])
    if kind in MODELS:
        return layer.importer.model(entry, weights, inputs, f"{layer.builder.origin.layer}/", 1)
    if kind not in LAYERS:
        raise RefusedError(f"the layer {kind} within it is not supported")
    result = LAYERS[kind](layer.inner(entry, weights, inputs))
    return [result] if isinstance(result, Value) else list(result)


def _spectral_normalization(layer: KerasLayer) -> Outputs:
    """The kernel is normalised at the end of training."""
    return _inner(layer, layer.get("layer"), layer.weights.wrapped(), layer.inputs)


def _ranged(layer: KerasLayer, y: Value, low: Array | None, high: Array | None, quantizer: Any = None) -> Value:
    """``y`` with fake quantisation by a learnt range; unchanged where there is none."""
    if low is None or high is None or low.size != 1 or high.size != 1:
        return y
    config = quantizer.get("config", {}) if isinstance(quantizer, dict) else {}
    bits, narrow = int(config.get("num_bits", 8)), bool(config.get("narrow_range", False))
    lowest, highest = min(0.0, float(low.item())), max(0.0, float(high.item()))
    return layer.builder.fake_quant(y, lowest, highest, bits, narrow=narrow) if lowest < highest else y


def _quantize_layer(layer: KerasLayer) -> Outputs:
    """Import QuantizeLayer, whose first two variables are called after the layer."""
    quantizer = layer.get("quantizer")
    if quantizer is None:
        return layer.x
    low, high = layer.arrays("min", "max")
    return _ranged(layer, layer.x, low, high, quantizer)


_RANGE_BEFORE = frozenset({"gelu", "sigmoid", "softmax", "tanh"})
_RANGE_AFTER = frozenset({"gelu", "linear", "relu", "silu", "swish"})
"""Activations whose operand, and those whose result, training gives a range."""


def _learnt(layer: KerasLayer, stage: str) -> KerasWeights:
    """The weights within a wrapper; ``stage`` is the activation.  Ranges are those that ``quantize_config`` lists."""
    chosen, kernels = _settings(layer.get("quantize_config")), True
    while isinstance(chosen.get("quantize_config"), dict):  # OutputOnlyConfig of another one
        chosen, kernels = _settings(chosen["quantize_config"]), False
    ranges = [
        name
        for name, kinds in (("pre_activation", _RANGE_BEFORE), ("post_activation", _RANGE_AFTER))
        if chosen.get("activation_attrs") and stage in kinds
    ]
    outputs = ["output"] if chosen.get("quantize_output") else []
    names = [str(name) for name in chosen.get("weight_attrs") or ()] if kernels else []
    return layer.weights.quantised(names, [*ranges, *outputs])


def _settings(written: Any) -> Mapping[str, Any]:
    config = written.get("config") if isinstance(written, dict) else None
    return config if isinstance(config, dict) else {}


def _quantize_wrapper(layer: KerasLayer) -> Outputs:
    """The wrapped layer with its kernel, what its activation makes and its output with fake quantisation by the learnt
    ranges."""
    entry = layer.get("layer")
    config = {**entry["config"]}
    activation = config.get("activation")
    if isinstance(activation, dict) and activation.get("class_name") == "QuantizeAwareActivation":
        activation = activation.get("config", {}).get("activation")
    stage = activation_name(activation)[0]
    weights = _learnt(layer, stage)

    def ranged(y: Value, stem: str) -> Value:
        return _ranged(layer, y, weights.find(f"{stem}_min"), weights.find(f"{stem}_max"))

    if "activation" in config and entry["class_name"] != "Activation":
        config["activation"] = "linear"
        (y,) = _inner(layer, {**entry, "config": config}, weights, layer.inputs)
        y = ranged(y, "pre_activation")
        y = activated(layer, y, activation) if stage not in ("linear", "NoOpActivation") else y
    else:
        (y,) = _inner(layer, entry, weights, layer.inputs)
    return ranged(ranged(y, "post_activation"), "output")


def _quantize_annotate(layer: KerasLayer) -> Outputs:
    return _inner(layer, layer.get("layer"), layer.weights, layer.inputs)


_MERGES = {"Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Maximum": "Max", "Minimum": "Min"}
_AXES = ("1D", "2D", "3D")
_NOTHING = (
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "InputLayer",
    *(f"Random{what}" for what in ("Brightness", "Contrast", "Flip", "Rotation", "Translation", "Zoom")),
)
"""Layers that do nothing at inference."""

LAYERS: dict[str, LayerFunction] = {
    **dict.fromkeys(_NOTHING, _same),
    "Activation": lambda layer: activated(layer, layer.x),
    "Average": lambda layer: layer.builder.add("Mean", *layer.inputs),
    **{f"AveragePooling{d}": _pool("AveragePool") for d in _AXES},
    "CenterCrop": _center_crop,
    "Concatenate": lambda layer: layer.builder.add("Concat", *layer.inputs, axis=int(layer.get("axis", -1))),
    **{f"Conv{d}": _conv for d in _AXES},
    **{f"Conv{d}Transpose": _conv_transpose for d in _AXES},
    **{f"Cropping{d}": _cropping for d in _AXES},
    "CustomScaleLayer": _scaled_sum,
    "Dense": _dense,
    "DepthwiseConv1D": _depthwise_conv,
    "DepthwiseConv2D": _depthwise_conv,
    "ELU": lambda layer: layer.builder.add("Elu", layer.x, alpha=float(layer.get("alpha", 1.0))),
    "Embedding": _embedding,
    "Flatten": _flatten,
    **{f"GlobalAveragePooling{d}": _global_pool("Mean") for d in _AXES},
    **{f"GlobalMaxPooling{d}": _global_pool("Max") for d in _AXES},
    "LayerScale": _layer_scale,
    "LeakyReLU": _leaky_relu,
    **{f"MaxPooling{d}": _pool("MaxPool") for d in _AXES},
    **{name: _merge(op) for name, op in _MERGES.items()},
    "PReLU": _prelu,
    "Permute": lambda layer: layer.builder.transpose(layer.x, (0, *(int(d) for d in layer.get("dims", [])))),
    "QuantizeAnnotate": _quantize_annotate,
    "QuantizeLayer": _quantize_layer,
    "QuantizeWrapper": _quantize_wrapper,
    "QuantizeWrapperV2": _quantize_wrapper,
    "ReLU": _relu,
    "RepeatVector": _repeat_vector,
    "Reshape": _reshape,
    "Resizing": _resizing,
    "SeparableConv1D": _separable_conv,
    "SeparableConv2D": _separable_conv,
    "Softmax": _softmax,
    **{f"SpatialDropout{d}": _same for d in _AXES},
    "SpectralNormalization": _spectral_normalization,
    "ThresholdedReLU": lambda layer: layer.builder.add(
        "ThresholdedRelu", layer.x, alpha=float(layer.get("theta", 1.0))
    ),
    "TimeDistributed": _time_distributed,
    **{f"UpSampling{d}": _up_sampling for d in _AXES},
    **{f"ZeroPadding{d}": _zero_padding for d in _AXES},
    **ATTENTION,
    **FUNCTIONS,
    **NORMALISATION,
    **RECURRENT,
    "EinsumDense": lambda layer: activated(layer, einsum_dense(layer)),
}
