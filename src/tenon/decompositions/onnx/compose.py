"""ONNX operators spelled out in simpler ones that are not functions in the standard: one function per operator.

A function gets a ``OnnxNode`` and returns the values of its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.decompositions.onnx.grid_sample import deform_conv, grid_sample
from tenon.decompositions.onnx.image_decoder import image_decoder
from tenon.decompositions.onnx.node import OnnxNode
from tenon.decompositions.onnx.random import bernoulli, multinomial, random_normal, random_uniform
from tenon.decompositions.onnx.recurrent import gru, lstm, rnn
from tenon.decompositions.onnx.signal import dft, mel_weights, stft
from tenon.decompositions.onnx.training import adagrad, adam, momentum
from tenon.decompositions.onnx.trees import tree_ensemble
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Value
from tenon.ir.types import DType

Results = Sequence[Value | None]


# -------------------------------------------------------------------------------------------- constants
def _trilu(layer: OnnxNode) -> Results:
    x = layer.input(0)
    rows, cols = layer.dims(0)[-2:]
    k = int(layer.known(1, "k").item()) if layer.has(1) else 0
    distance = np.arange(cols) - np.arange(rows)[:, None]
    kept = distance >= k if layer.attributes.get("upper", 1) else distance <= k
    return [layer.emit("Where", layer.constant("kept", kept), x, layer.scalar("zero", 0))]


def _eye_like(layer: OnnxNode) -> Results:
    rows, cols = layer.dims(0)
    number = layer.attributes.get("dtype")
    dtype = layer.input(0).type.dtype if number is None else layer.element(number)
    return [layer.constant("eye", np.eye(rows, cols, layer.attributes.get("k", 0)).astype(dtype.numpy))]


def _hardmax(layer: OnnxNode) -> Results:
    """Before opset 13: over all dimensions from ``axis`` on, seen as one."""
    x, axis = layer.input(0), layer.attributes["axis"] % len(layer.dims(0))
    if layer.opset >= 13:
        return [_one_hot_max(layer, x, axis)]
    flat = layer.emit("Flatten", x, axis=axis)
    return [layer.emit("Reshape", _one_hot_max(layer, flat, 1), layer.ints("shape", layer.dims(0)), allowzero=1)]


def _one_hot_max(layer: OnnxNode, x: Value, axis: int) -> Value:
    """One where the first greatest element along an axis is, zero elsewhere."""
    where = layer.emit("ArgMax", x, axis=axis, keepdims=0)
    values = layer.constant("values", np.array([0, 1], x.type.dtype.numpy))
    return layer.emit("OneHot", where, layer.ints("depth", [x.type.dims[axis]]), values, axis=axis)


# ------------------------------------------------------------------------------------- norms and pooling
def _lp_normalization(layer: OnnxNode) -> Results:
    x, axes = layer.input(0), layer.ints("axes", [layer.attributes["axis"]])
    norm = layer.emit("ReduceL1" if layer.attributes["p"] == 1 else "ReduceL2", x, axes)
    zero = layer.scalar("zero", 0)
    none = layer.emit("Equal", norm, zero)
    return [
        layer.emit("Where", none, zero, layer.emit("Div", x, layer.emit("Where", none, layer.scalar("one", 1), norm)))
    ]


def _power(layer: OnnxNode, x: Value, p: int) -> Value:
    size = layer.emit("Abs", x)
    return size if p == 1 else layer.emit("Pow", size, layer.scalar("p", p))


def _root(layer: OnnxNode, total: Value, p: int) -> Value:
    if p == 2:
        return layer.emit("Sqrt", total)
    return total if p == 1 else layer.emit("Pow", total, layer.scalar("root", 1 / p))


def _lp_pool(layer: OnnxNode) -> Results:
    x, p, attributes = layer.input(0), layer.attributes.pop("p"), layer.attributes
    dims, kernel = layer.dims(0), attributes["kernel_shape"]
    ones = layer.constant("ones", np.ones((dims[1], 1, *kernel), x.type.dtype.numpy))
    if attributes.pop("ceil_mode", 0):
        attributes["pads"] = _ceiled(dims[2:], attributes)
    total = layer.emit("Conv", _power(layer, x, p), ones, group=dims[1], **attributes)
    return [_root(layer, total, p)]


def _ceiled(sizes: Sequence[int], attributes: dict[str, object]) -> list[int]:
    """Pads that let the last window stick out."""
    from tenon.ops.window import Window

    def given(name: str) -> tuple[int, ...]:
        value = attributes.get(name) or ()
        assert isinstance(value, list | tuple)
        return tuple(value)

    auto = str(attributes.get("auto_pad", "NOTSET"))
    window = Window(given("kernel_shape"), given("strides"), given("dilations"), given("pads"), auto, True)
    axes = window.axes("LpPool", sizes)
    attributes["auto_pad"] = "NOTSET"
    return [*(a.before for a in axes), *(max(a.after, a.reach) for a in axes)]


def _global_lp_pool(layer: OnnxNode) -> Results:
    x, p = layer.input(0), layer.attributes["p"]
    axes = layer.ints("axes", range(2, len(layer.dims(0))))
    return [_root(layer, layer.emit("ReduceSum", _power(layer, x, p), axes), p)]


def _batch_normalization(layer: OnnxNode) -> Results | None:
    """In training mode: normalised by the batch's own statistics, which update the running ones."""
    if not layer.attributes.get("training_mode"):
        return None
    x, scale, bias, mean, variance = (layer.input(i) for i in range(5))
    rank = len(layer.dims(0))
    axes = layer.ints("axes", [i for i in range(rank) if i != 1])
    shape = layer.ints("columns", [-1, *(1,) * (rank - 2)])
    own = layer.emit("ReduceMean", x, axes, keepdims=1)
    centred = layer.emit("Sub", x, own)
    spread = layer.emit("ReduceMean", layer.emit("Mul", centred, centred), axes, keepdims=1)
    epsilon = layer.scalar("epsilon", layer.attributes["epsilon"])
    deviation = layer.emit("Sqrt", layer.emit("Add", spread, epsilon))
    scaled = layer.emit("Mul", layer.emit("Div", centred, deviation), layer.emit("Reshape", scale, shape))
    y = layer.emit("Add", scaled, layer.emit("Reshape", bias, shape))
    flat, m = layer.ints("flat", [-1]), layer.attributes["momentum"]

    def running(old: Value, new: Value) -> Value:
        kept = layer.emit("Mul", old, layer.scalar("momentum", m))
        return layer.emit("Add", kept, layer.emit("Mul", layer.emit("Reshape", new, flat), layer.scalar("rest", 1 - m)))

    return [y, running(mean, own), running(variance, spread)]


def _dropout(layer: OnnxNode) -> Results:
    x = layer.input(0)
    training = bool(layer.known(2, "training_mode").item()) if layer.has(2) else False
    ratio = float(layer.known(1, "the ratio").item()) if layer.has(1) else layer.attributes.get("ratio", 0.5)
    if not training or ratio == 0:
        true = layer.constant("mask", np.broadcast_to(np.array(True), layer.dims(0)))
        return [layer.emit("Identity", x), true]
    seed = layer.attributes.get("seed")
    if seed is None:
        raise RefusedError("it is in training mode, and without a seed", "export the model for inference")
    numbers = np.random.RandomState(seed & 0xFFFFFFFF).uniform(0, 1, layer.dims(0))
    mask = layer.constant("mask", numbers >= ratio)
    kept = layer.emit("Mul", x, layer.scalar("scale", 1 / (1 - ratio)))
    return [layer.emit("Where", mask, kept, layer.scalar("zero", 0)), mask]


# ------------------------------------------------------------------------------------------ quantisation
def _per_axis(layer: OnnxNode, parameter: Value, rank: int, axis: int) -> Value:
    """A scale or zero point along an axis, to meet a tensor of that rank; per-tensor ones as scalars."""
    if parameter.type.size == 1:
        return layer.emit("Reshape", parameter, layer.ints("scalar", []))
    if parameter.type.rank != 1:
        return parameter
    shape = [1] * rank
    shape[axis] = -1
    return layer.emit("Reshape", parameter, layer.ints("column", shape))


def _spread(layer: OnnxNode, parameter: Value) -> Value:
    """A scale or zero point of QuantizeLinear or DequantizeLinear as broadcasting wants it; blocks are repeated."""
    dims, block = layer.dims(0), layer.attributes.get("block_size", 0)
    axis = layer.attributes.get("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    if not block or parameter.type.rank != len(dims):
        return _per_axis(layer, parameter, len(dims), axis)
    shape = list(parameter.type.dims)
    wider = layer.emit("Unsqueeze", parameter, layer.ints("block", [axis + 1]))
    copies = layer.emit("Expand", wider, layer.ints("blocks", [*shape[: axis + 1], block, *shape[axis + 1 :]]))
    shape[axis] *= block
    whole = layer.emit("Reshape", copies, layer.ints("whole", shape))
    if shape[axis] == dims[axis]:
        return whole
    ends = [layer.ints(stem, [n]) for stem, n in (("start", 0), ("end", dims[axis]), ("axis", axis))]
    return layer.emit("Slice", whole, *ends)


def _quantize(layer: OnnxNode) -> Results:
    x, number = layer.input(0), layer.attributes.get("output_dtype", 0)
    zero = _spread(layer, layer.input(2)) if layer.has(2) else None
    to = layer.input(2).type.dtype if layer.has(2) else layer.element(number) if number else DType.U8
    scale = _spread(layer, layer.input(1))
    saturate = layer.attributes.get("saturate", 1)
    return [layer.emit("QuantizeLinear", x, scale, zero, to=to.value, saturate=saturate)]


def _dequantize(layer: OnnxNode) -> Results:
    number = layer.attributes.get("output_dtype", 0)
    scale = layer.input(1)
    to = layer.element(number) if number else scale.type.dtype
    zero = _spread(layer, layer.input(2)) if layer.has(2) else None
    return [layer.emit("DequantizeLinear", layer.input(0), _spread(layer, scale), zero, to=to.value)]


def _centred(layer: OnnxNode, i: int, zero: int, rank: int, axis: int) -> Value:
    """Input ``i`` less its zero point, as i32."""
    x = layer.emit("Cast", layer.input(i), to="i32")
    if not layer.has(zero):
        return x
    point = _per_axis(layer, layer.input(zero), rank, axis)
    return layer.emit("Sub", x, layer.emit("Cast", point, to="i32"))


def _mat_mul_integer(layer: OnnxNode) -> Results:
    a = _centred(layer, 0, 2, len(layer.dims(0)), len(layer.dims(0)) - 2)
    b = _centred(layer, 1, 3, len(layer.dims(1)), len(layer.dims(1)) - 1)
    return [layer.emit("MatMul", a, b)]


def _conv_integer(layer: OnnxNode) -> Results:
    rank = len(layer.dims(0))
    return [layer.emit("Conv", _centred(layer, 0, 2, rank, 1), _centred(layer, 1, 3, rank, 0), **layer.attributes)]


def _rescaled(layer: OnnxNode, total: Value, scales: Sequence[Value], y_scale: Value, y_zero: Value) -> Value:
    """An i32 total as the output's quantised numbers."""
    real = layer.emit("Cast", total, to="f32")
    for scale in scales:
        real = layer.emit("Mul", real, layer.emit("Cast", scale, to="f32"))
    y_scale = layer.emit("Cast", y_scale, to="f32")
    return layer.emit("QuantizeLinear", real, y_scale, y_zero, to=y_zero.type.dtype.value)


def _q_linear_mat_mul(layer: OnnxNode) -> Results:
    rank = len(layer.dims(0)), len(layer.dims(3))

    def operand(i: int, rank: int, axis: int) -> Value:
        x = layer.emit("Cast", layer.input(i), to="i32")
        point = _per_axis(layer, layer.input(i + 2), rank, axis)
        return layer.emit("Sub", x, layer.emit("Cast", point, to="i32"))

    total = layer.emit("MatMul", operand(0, rank[0], rank[0] - 2), operand(3, rank[1], rank[1] - 1))
    scales = [
        _per_axis(layer, layer.input(1), rank[0], rank[0] - 2),
        _per_axis(layer, layer.input(4), rank[1], rank[1] - 1),
    ]
    y_scale, y_zero = (_per_axis(layer, layer.input(i), rank[0], rank[0] - 1) for i in (6, 7))
    return [_rescaled(layer, total, scales, y_scale, y_zero)]


def _q_linear_conv(layer: OnnxNode) -> Results:
    rank = len(layer.dims(0))
    x, w = _centred(layer, 0, 2, rank, 1), _centred(layer, 3, 5, rank, 0)
    operands = [x, w, layer.input(8)] if layer.has(8) else [x, w]
    total = layer.emit("Conv", *operands, **layer.attributes)
    scales = [_per_axis(layer, layer.input(i), rank, 1) for i in (1, 4)]
    y_scale, y_zero = (_per_axis(layer, layer.input(i), rank, 1) for i in (6, 7))
    return [_rescaled(layer, total, scales, y_scale, y_zero)]


# -------------------------------------------------------------------------------------------- rearranging
def _col2im(layer: OnnxNode) -> Results:
    """Columns of blocks added up where they came from: a transposed convolution with one-hot weights."""
    n, rows, _ = layer.dims(0)
    image, block = (layer.known(i, what).tolist() for i, what in ((1, "image_shape"), (2, "block_shape")))
    rank, size = len(image), math.prod(block)
    strides, dilations = layer.attributes.get("strides") or [1] * rank, layer.attributes.get("dilations") or [1] * rank
    pads = layer.attributes.get("pads") or [0] * (2 * rank)
    counts = [
        (i + pads[d] + pads[rank + d] - dilations[d] * (b - 1) - 1) // strides[d] + 1
        for d, (i, b) in enumerate(zip(image, block, strict=True))
    ]
    channels = rows // size
    x = layer.emit("Reshape", layer.input(0), layer.ints("shape", [n * channels, size, *counts]))
    weights = np.eye(size).reshape(size, 1, *block).astype(layer.input(0).type.dtype.numpy)
    extra = [
        i + pads[d] + pads[rank + d] - (strides[d] * (counts[d] - 1) + dilations[d] * (block[d] - 1) + 1)
        for d, i in enumerate(image)
    ]
    y = layer.emit(
        "ConvTranspose",
        x,
        layer.constant("weights", weights),
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
    )
    return [layer.emit("Reshape", y, layer.ints("image", [n, channels, *image]))]


def _max_unpool(layer: OnnxNode) -> Results:
    """The elements scattered over zeros, to the positions that MaxPool gave."""
    dims = layer.dims(0)
    kernel = layer.attributes["kernel_shape"]
    strides = layer.attributes.get("strides") or [1] * len(kernel)
    pads = layer.attributes.get("pads") or [0] * (2 * len(kernel))
    sizes = [
        (n - 1) * s + k - pads[d] - pads[len(kernel) + d]
        for d, (n, s, k) in enumerate(zip(dims[2:], strides, kernel, strict=True))
    ]
    shape = [*dims[:2], *sizes]
    wanted = layer.known(2, "output_shape").tolist() if layer.has(2) else shape
    zeros = layer.constant("zeros", np.zeros(math.prod(shape), layer.input(0).type.dtype.numpy))
    flat = layer.ints("flat", [-1])
    x, where = (layer.emit("Reshape", layer.input(i), flat) for i in (0, 1))
    y = layer.emit("Reshape", layer.emit("ScatterElements", zeros, where, x), layer.ints("shape", shape))
    if wanted == shape:  # the positions count in this shape, whatever shape is asked for
        return [y]
    more = [a - b for a, b in zip(wanted, shape, strict=True)]
    return [layer.emit("Pad", y, layer.ints("pads", [0] * len(shape) + more))]


def _tensor_scatter(layer: OnnxNode) -> Results:
    """Rows of an update written into a cache, from each batch's own position on."""
    cache, update, dims, new = layer.input(0), layer.input(1), layer.dims(0), layer.dims(1)
    axis = layer.attributes.get("axis", -2) % len(dims)
    steps = np.arange(new[axis]).reshape(1, -1)
    start = layer.input(2) if layer.has(2) else layer.ints("start", [0] * dims[0])
    column = layer.emit("Unsqueeze", layer.emit("Cast", start, to="i64"), layer.ints("last", [1]))
    at = layer.emit("Add", column, layer.constant("steps", steps))
    if layer.attributes.get("mode", "linear") == "circular":
        at = layer.emit("Mod", at, layer.ints("extent", [dims[axis]]))
    shape = [1] * len(dims)
    shape[0], shape[axis] = dims[0], new[axis]
    spread = layer.emit("Expand", layer.emit("Reshape", at, layer.ints("rows", shape)), layer.ints("all", new))
    return [layer.emit("ScatterElements", cache, spread, update, axis=axis)]


def _array_feature_extractor(layer: OnnxNode) -> Results:
    flat = layer.emit("Reshape", layer.input(1), layer.ints("flat", [-1]))
    return [layer.emit("Gather", layer.input(0), flat, axis=-1)]


def _binarizer(layer: OnnxNode) -> Results:
    above = layer.emit("Greater", layer.input(0), layer.scalar("threshold", layer.attributes.get("threshold", 0.0)))
    return [layer.emit("Cast", above, to=layer.input(0).type.dtype.value)]


def tf_idf(layer: OnnxNode) -> Results:
    """Every n-gram counted at every place where it can stand, for every gap allowed between its parts."""
    attributes, dims = layer.attributes, layer.dims(0)
    pool = attributes.get("pool_int64s")
    if not pool:
        raise RefusedError("its n-grams are strings", "only integers are supported")
    starts, numbers = attributes["ngram_counts"], attributes["ngram_indexes"]
    least, most, skips = (attributes[k] for k in ("min_gram_length", "max_gram_length", "max_skip_count"))
    batch, length = (dims[0], dims[1]) if len(dims) == 2 else (1, dims[0])
    x = layer.emit("Reshape", layer.input(0), layer.ints("rows", [batch, length]))
    counts: list[Value] = []
    order: list[int] = []
    first = 0
    for n, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams = np.array(pool[begin:end], np.int64).reshape(-1, n)
        rows, first = list(range(first, first + len(grams))), first + len(grams)
        if not len(grams) or not least <= n <= most:
            continue
        order += [numbers[r] for r in rows]
        counts.append(_gram_counts(layer, x, grams, length, skips))
    size = max(numbers) + 1
    if not counts:
        return [layer.constant("nothing", np.zeros((*dims[:-1], size), np.float32))]
    found = counts[0] if len(counts) == 1 else layer.emit("Concat", *counts, axis=1)
    placed = np.zeros((len(order), size), np.float32)
    placed[np.arange(len(order)), order] = 1
    y = layer.emit("MatMul", layer.emit("Cast", found, to="f32"), layer.constant("places", placed))
    weights = attributes.get("weights")
    row = np.ones(size, np.float32) if not weights else np.zeros(size, np.float32)
    if weights:
        row[numbers] = weights
    if attributes["mode"] in ("IDF", "TFIDF"):
        if attributes["mode"] == "IDF":
            y = layer.emit("Cast", layer.emit("Greater", y, layer.constant("zero", np.zeros((), np.float32))), to="f32")
        y = layer.emit("Mul", y, layer.constant("weights", row))
    return [layer.emit("Reshape", y, layer.ints("shape", [*dims[:-1], size]))]


def _gram_counts(layer: OnnxNode, x: Value, grams: np.ndarray, length: int, skips: int) -> Value:
    """[batch, grams]: how often each row of ``grams`` stands in x [batch, length]."""
    n, total = grams.shape[1], None
    for skip in range(skips + 1 if n > 1 else 1):
        places = length - (n - 1) * (skip + 1)
        if places <= 0:
            break
        at = np.arange(places)[:, None] + np.arange(n) * (skip + 1)
        windows = layer.emit("Gather", x, layer.constant("windows", at), axis=1)  # [batch, places, n]
        windows = layer.emit("Unsqueeze", windows, layer.ints("gram", [2]))
        same = layer.emit("Equal", windows, layer.constant("grams", grams.astype(x.type.dtype.numpy)))
        whole = layer.emit("ReduceMin", layer.emit("Cast", same, to="i32"), layer.ints("last", [3]), keepdims=0)
        count = layer.emit("ReduceSum", whole, layer.ints("places", [1]), keepdims=0)
        total = count if total is None else layer.emit("Add", total, count)
    if total is None:
        return layer.constant("none", np.zeros((x.type.dims[0], len(grams)), np.int32))
    return total


def _max_pool(layer: OnnxNode) -> Results | None:
    """With its second output read, the operator that has one."""
    if len(layer.outputs) < 2:
        return None
    return layer.maker.emit_all(layer, "MaxPoolWithIndices", layer.inputs, 2, **layer.attributes)


def _compress(layer: OnnxNode) -> Results:
    axis = layer.attributes.get("axis")
    if axis is None:
        return layer.maker.found(layer, [0])
    return layer.maker.found(layer, [axis % len(layer.dims(0))])


def _unique(layer: OnnxNode) -> Results:
    axis = layer.attributes.get("axis")
    along = 0 if axis is None else axis % len(layer.dims(0))
    return layer.maker.found(layer, [along, 0, None, 0])


COMPOSED: dict[str, Callable[[OnnxNode], Results | None]] = {
    "Adagrad": adagrad,
    "Adam": adam,
    "ArrayFeatureExtractor": _array_feature_extractor,
    "BatchNormalization": _batch_normalization,
    "Bernoulli": bernoulli,
    "Binarizer": _binarizer,
    "Col2Im": _col2im,
    "Compress": _compress,
    "ConvInteger": _conv_integer,
    "DFT": dft,
    "DeformConv": deform_conv,
    "DequantizeLinear": _dequantize,
    "Dropout": _dropout,
    "EyeLike": _eye_like,
    "GRU": gru,
    "GridSample": grid_sample,
    "GlobalLpPool": _global_lp_pool,
    "Hardmax": _hardmax,
    "ImageDecoder": image_decoder,
    "LSTM": lstm,
    "LpNormalization": _lp_normalization,
    "LpPool": _lp_pool,
    "MatMulInteger": _mat_mul_integer,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "MelWeightMatrix": mel_weights,
    "Momentum": momentum,
    "Multinomial": multinomial,
    "NonMaxSuppression": lambda layer: layer.maker.found(layer, [0]),
    "NonZero": lambda layer: layer.maker.found(layer, [1]),
    "QLinearConv": _q_linear_conv,
    "QLinearMatMul": _q_linear_mat_mul,
    "QuantizeLinear": _quantize,
    "RNN": rnn,
    "RandomNormal": random_normal,
    "RandomNormalLike": random_normal,
    "RandomUniform": random_uniform,
    "RandomUniformLike": random_uniform,
    "STFT": stft,
    "TensorScatter": _tensor_scatter,
    "TfIdfVectorizer": tf_idf,
    "TreeEnsemble": tree_ensemble,
    "Trilu": _trilu,
    "Unique": _unique,
}
"""None: the operator stands as it is after all."""
