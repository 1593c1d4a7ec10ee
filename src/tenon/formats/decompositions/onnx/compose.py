"""ONNX operators decomposed into simpler ones, which the standard does not define as functions: one function per
operator.

A function gets an ``OnnxNode`` and returns the values of its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.onnx.grid_sample import deform_conv, grid_sample
from tenon.formats.decompositions.onnx.image_decoder import image_decoder
from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.decompositions.onnx.quantized_products import (
    conv_integer,
    mat_mul_integer,
    per_axis,
    q_linear_conv,
    q_linear_mat_mul,
)
from tenon.formats.decompositions.onnx.random import bernoulli, multinomial, random_normal, random_uniform
from tenon.formats.decompositions.onnx.recurrent import gru, lstm, rnn
from tenon.formats.decompositions.onnx.signal import dft, mel_weights, stft
from tenon.formats.decompositions.onnx.training import adagrad, adam, momentum
from tenon.formats.decompositions.onnx.trees import tree_ensemble
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType

Results = Sequence[Value | None]


# -------------------------------------------------------------------------------------------- constants
def _trilu(node: OnnxNode) -> Results:
    x = node.input(0)
    rows, cols = node.dims_of(0)[-2:]
    k = int(node.constant_input(1, "k").item()) if node.has(1) else 0
    distance = np.arange(cols) - np.arange(rows)[:, None]
    kept = distance >= k if node.attributes.get("upper", 1) else distance <= k
    mask = node.builder.sized_like(node.constant(kept, "kept"), x)
    return [node.add("Where", mask, x, node.typed_scalar("zero", 0))]


def _eye_like(node: OnnxNode) -> Results:
    rows, cols = node.dims_of(0)
    number = node.attributes.get("dtype")
    dtype = node.input(0).type.dtype if number is None else node.element_type(number)
    return [node.constant(np.eye(rows, cols, node.attributes.get("k", 0)).astype(dtype.numpy), "eye")]


def _hardmax(node: OnnxNode) -> Results:
    """Before opset 13: over all dimensions from ``axis`` on, seen as one."""
    x, axis = node.input(0), node.attributes["axis"] % len(node.dims_of(0))
    if node.opset >= 13:
        return [_one_hot_max(node, x, axis)]
    flat = node.add("Flatten", x, axis=axis)
    return [node.add("Reshape", _one_hot_max(node, flat, 1), node.add("Shape", x), allowzero=1)]


def _one_hot_max(node: OnnxNode, x: Value, axis: int) -> Value:
    """One where the first greatest element along an axis is, zero elsewhere."""
    where = node.add("ArgMax", x, axis=axis, keepdims=0)
    values = node.constant(np.array([0, 1], x.type.dtype.numpy), "values")
    return node.add("OneHot", where, node.add("Shape", x, start=axis, end=axis + 1), values, axis=axis)


# ------------------------------------------------------------------------------------- norms and pooling
def _lp_normalization(node: OnnxNode) -> Results:
    x, axes = node.input(0), node.int_constant("axes", [node.attributes["axis"]])
    norm = node.add("ReduceL1" if node.attributes["p"] == 1 else "ReduceL2", x, axes)
    zero = node.typed_scalar("zero", 0)
    none = node.add("Equal", norm, zero)
    return [
        node.add("Where", none, zero, node.add("Div", x, node.add("Where", none, node.typed_scalar("one", 1), norm)))
    ]


def _power(node: OnnxNode, x: Value, p: int) -> Value:
    size = node.add("Abs", x)
    return size if p == 1 else node.add("Pow", size, node.typed_scalar("p", p))


def _root(node: OnnxNode, total: Value, p: int) -> Value:
    if p == 2:
        return node.add("Sqrt", total)
    return total if p == 1 else node.add("Pow", total, node.typed_scalar("root", 1 / p))


def _lp_pool(node: OnnxNode) -> Results:
    x, p, attributes = node.input(0), node.attributes.pop("p"), node.attributes
    dims, kernel = node.dims_of(0), attributes["kernel_shape"]
    ones = node.constant(np.ones((dims[1], 1, *kernel), x.type.dtype.numpy), "ones")
    if attributes.pop("ceil_mode", 0):
        attributes["pads"] = _ceiled(dims[2:], attributes)
    total = node.add("Conv", _power(node, x, p), ones, group=dims[1], **attributes)
    return [_root(node, total, p)]


def _ceiled(sizes: Sequence[int], attributes: dict[str, object]) -> list[int]:
    """Pads that let the last window stick out."""
    from tenon.network.ops.window import Window

    def given(name: str) -> tuple[int, ...]:
        value = attributes.get(name) or ()
        assert isinstance(value, list | tuple)
        return tuple(value)

    auto = str(attributes.get("auto_pad", "NOTSET"))
    window = Window(given("kernel_shape"), given("strides"), given("dilations"), given("pads"), auto, True)
    axes = window.axes("LpPool", sizes)
    attributes["auto_pad"] = "NOTSET"
    return [*(a.before for a in axes), *(max(a.after, a.reach) for a in axes)]


def _global_lp_pool(node: OnnxNode) -> Results:
    x, p = node.input(0), node.attributes["p"]
    axes = node.int_constant("axes", range(2, len(node.dims_of(0))))
    return [_root(node, node.add("ReduceSum", _power(node, x, p), axes), p)]


def _batch_normalization(node: OnnxNode) -> Results | None:
    """In training mode: normalised by the batch's own statistics, which update the running ones."""
    if not node.attributes.get("training_mode"):
        return None
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    rank = len(node.dims_of(0))
    axes = node.int_constant("axes", [i for i in range(rank) if i != 1])
    shape = node.int_constant("columns", [-1, *(1,) * (rank - 2)])
    own = node.add("ReduceMean", x, axes, keepdims=1)
    centred = node.add("Sub", x, own)
    spread = node.add("ReduceMean", node.add("Mul", centred, centred), axes, keepdims=1)
    epsilon = node.typed_scalar("epsilon", node.attributes["epsilon"])
    deviation = node.add("Sqrt", node.add("Add", spread, epsilon))
    scaled = node.add("Mul", node.add("Div", centred, deviation), node.add("Reshape", scale, shape))
    y = node.add("Add", scaled, node.add("Reshape", bias, shape))
    flat, m = node.int_constant("flat", [-1]), node.attributes["momentum"]

    def running(old: Value, new: Value) -> Value:
        kept = node.add("Mul", old, node.typed_scalar("momentum", m))
        return node.add("Add", kept, node.add("Mul", node.add("Reshape", new, flat), node.typed_scalar("rest", 1 - m)))

    return [y, running(mean, own), running(variance, spread)]


def _dropout(node: OnnxNode) -> Results:
    x = node.input(0)
    training = bool(node.constant_input(2, "training_mode").item()) if node.has(2) else False
    ratio = float(node.constant_input(1, "the ratio").item()) if node.has(1) else node.attributes.get("ratio", 0.5)
    if not training or ratio == 0:
        true = node.constant(np.broadcast_to(np.array(True), node.dims_of(0)), "mask")
        true = node.builder.sized_like(true, node.input(0))
        return [node.add("Identity", x), true]
    seed = node.attributes.get("seed")
    if seed is None:
        raise RefusedError("it is in training mode, and without a seed", "export the model for inference")
    numbers = np.random.RandomState(seed & 0xFFFFFFFF).uniform(0, 1, node.dims_of(0))
    mask = node.constant(numbers >= ratio, "mask")
    kept = node.add("Mul", x, node.typed_scalar("scale", 1 / (1 - ratio)))
    return [node.add("Where", mask, kept, node.typed_scalar("zero", 0)), mask]


# ------------------------------------------------------------------------------------------ quantisation
def _spread(node: OnnxNode, parameter: Value) -> Value:
    """A scale or zero point of QuantizeLinear or DequantizeLinear as broadcasting wants it; blocks are repeated."""
    dims, block = node.dims_of(0), node.attributes.get("block_size", 0)
    axis = node.attributes.get("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    if not block or parameter.type.rank != len(dims):
        return per_axis(node, parameter, len(dims), axis)
    shape = list(parameter.type.dims)
    wider = node.add("Unsqueeze", parameter, node.int_constant("block", [axis + 1]))
    copies = node.add("Expand", wider, node.int_constant("blocks", [*shape[: axis + 1], block, *shape[axis + 1 :]]))
    shape[axis] *= block
    whole = node.add("Reshape", copies, node.int_constant("whole", shape))
    if shape[axis] == dims[axis]:
        return whole
    ends = [node.int_constant(stem, [n]) for stem, n in (("start", 0), ("end", dims[axis]), ("axis", axis))]
    return node.add("Slice", whole, *ends)


def _quantize(node: OnnxNode) -> Results:
    x, number = node.input(0), node.attributes.get("output_dtype", 0)
    zero = _spread(node, node.input(2)) if node.has(2) else None
    to = node.input(2).type.dtype if node.has(2) else node.element_type(number) if number else DType.U8
    scale = _spread(node, node.input(1))
    saturate = node.attributes.get("saturate", 1)
    return [node.add("QuantizeLinear", x, scale, zero, to=to.value, saturate=saturate)]


def _dequantize(node: OnnxNode) -> Results:
    number = node.attributes.get("output_dtype", 0)
    scale = node.input(1)
    to = node.element_type(number) if number else scale.type.dtype
    zero = _spread(node, node.input(2)) if node.has(2) else None
    return [node.add("DequantizeLinear", node.input(0), _spread(node, scale), zero, to=to.value)]


# -------------------------------------------------------------------------------------------- rearranging
def _col2im(node: OnnxNode) -> Results:
    """Columns of blocks summed at their origins (col2im): a transposed convolution with one-hot weights."""
    n, rows, _ = node.dims_of(0)
    image, block = (node.constant_input(i, what).tolist() for i, what in ((1, "image_shape"), (2, "block_shape")))
    rank, size = len(image), math.prod(block)
    strides, dilations = node.attributes.get("strides") or [1] * rank, node.attributes.get("dilations") or [1] * rank
    pads = node.attributes.get("pads") or [0] * (2 * rank)
    counts = [
        (i + pads[d] + pads[rank + d] - dilations[d] * (b - 1) - 1) // strides[d] + 1
        for d, (i, b) in enumerate(zip(image, block, strict=True))
    ]
    channels = rows // size
    x = node.add("Reshape", node.input(0), node.int_constant("shape", [n * channels, size, *counts]))
    weights = np.eye(size).reshape(size, 1, *block).astype(node.input(0).type.dtype.numpy)
    extra = [
        i + pads[d] + pads[rank + d] - (strides[d] * (counts[d] - 1) + dilations[d] * (block[d] - 1) + 1)
        for d, i in enumerate(image)
    ]
    y = node.add(
        "ConvTranspose",
        x,
        node.constant(weights, "weights"),
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
    )
    return [node.add("Reshape", y, node.int_constant("image", [n, channels, *image]))]


def _max_unpool(node: OnnxNode) -> Results:
    """The elements scattered over zeros, to the positions that MaxPool gave."""
    dims = node.dims_of(0)
    kernel = node.attributes["kernel_shape"]
    strides = node.attributes.get("strides") or [1] * len(kernel)
    pads = node.attributes.get("pads") or [0] * (2 * len(kernel))
    sizes = [
        (n - 1) * s + k - pads[d] - pads[len(kernel) + d]
        for d, (n, s, k) in enumerate(zip(dims[2:], strides, kernel, strict=True))
    ]
    shape = [*dims[:2], *sizes]
    wanted = node.constant_input(2, "output_shape").tolist() if node.has(2) else shape
    zeros = node.constant(np.zeros(math.prod(shape), node.input(0).type.dtype.numpy), "zeros")
    flat = node.int_constant("flat", [-1])
    x, where = (node.add("Reshape", node.input(i), flat) for i in (0, 1))
    y = node.add("Reshape", node.add("ScatterElements", zeros, where, x), node.int_constant("shape", shape))
    if wanted == shape:  # the positions count in this shape, whatever shape is asked for
        return [y]
    more = [a - b for a, b in zip(wanted, shape, strict=True)]
    return [node.add("Pad", y, node.int_constant("pads", [0] * len(shape) + more))]


def _tensor_scatter(node: OnnxNode) -> Results:
    """Rows of an update written into a cache, from each batch's own position on."""
    cache = node.input(0)
    update = node.input(1)
    dims = node.dims_of(0)
    new = node.dims_of(1)
    axis = node.attributes.get("axis", -2) % len(dims)
    steps = np.arange(new[axis]).reshape(1, -1)
    start = node.input(2) if node.has(2) else node.int_constant("start", [0] * dims[0])
    column = node.add("Unsqueeze", node.add("Cast", start, to="i64"), node.int_constant("last", [1]))
    at = node.add("Add", column, node.constant(steps, "steps"))
    if node.attributes.get("mode", "linear") == "circular":
        at = node.add("Mod", at, node.int_constant("extent", [dims[axis]]))
    shape = [1] * len(dims)
    shape[0], shape[axis] = dims[0], new[axis]
    spread = node.add(
        "Expand", node.add("Reshape", at, node.int_constant("rows", shape)), node.int_constant("all", new)
    )
    return [node.add("ScatterElements", cache, spread, update, axis=axis)]


def _array_feature_extractor(node: OnnxNode) -> Results:
    flat = node.add("Reshape", node.input(1), node.int_constant("flat", [-1]))
    return [node.add("Gather", node.input(0), flat, axis=-1)]


def _binarizer(node: OnnxNode) -> Results:
    above = node.add("Greater", node.input(0), node.typed_scalar("threshold", node.attributes.get("threshold", 0.0)))
    return [node.add("Cast", above, to=node.input(0).type.dtype.value)]


def tf_idf(node: OnnxNode) -> Results:
    """Every n-gram counted at every place where it can stand, for every gap allowed between its parts."""
    attributes, dims = node.attributes, node.dims_of(0)
    pool = attributes.get("pool_int64s")
    if not pool:
        raise RefusedError("its n-grams are strings", "only integers are supported")
    starts, numbers = attributes["ngram_counts"], attributes["ngram_indexes"]
    least, most, skips = (attributes[k] for k in ("min_gram_length", "max_gram_length", "max_skip_count"))
    batch, length = (dims[0], dims[1]) if len(dims) == 2 else (1, dims[0])
    x = node.add("Reshape", node.input(0), node.int_constant("rows", [batch, length]))
    counts: list[Value] = []
    order: list[int] = []
    first = 0
    for n, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams = np.array(pool[begin:end], np.int64).reshape(-1, n)
        rows, first = list(range(first, first + len(grams))), first + len(grams)
        if not len(grams) or not least <= n <= most:
            continue
        order += [numbers[r] for r in rows]
        counts.append(_gram_counts(node, x, grams, length, skips))
    size = max(numbers) + 1
    if not counts:
        return [node.constant(np.zeros((*dims[:-1], size), np.float32), "nothing")]
    frequencies = counts[0] if len(counts) == 1 else node.add("Concat", *counts, axis=1)
    placed = np.zeros((len(order), size), np.float32)
    placed[np.arange(len(order)), order] = 1
    y = node.add("MatMul", node.add("Cast", frequencies, to="f32"), node.constant(placed, "places"))
    weights = attributes.get("weights")
    row = np.ones(size, np.float32) if not weights else np.zeros(size, np.float32)
    if weights:
        row[numbers] = weights
    if attributes["mode"] in ("IDF", "TFIDF"):
        if attributes["mode"] == "IDF":
            y = node.add("Cast", node.add("Greater", y, node.constant(np.zeros((), np.float32), "zero")), to="f32")
        y = node.add("Mul", y, node.constant(row, "weights"))
    return [node.add("Reshape", y, node.int_constant("shape", [*dims[:-1], size]))]


def _gram_counts(node: OnnxNode, x: Value, grams: np.ndarray, length: int, skips: int) -> Value:
    """[batch, grams]: how often each row of ``grams`` stands in x [batch, length]."""
    n, total = grams.shape[1], None
    for skip in range(skips + 1 if n > 1 else 1):
        positions = length - (n - 1) * (skip + 1)
        if positions <= 0:
            break
        at = np.arange(positions)[:, None] + np.arange(n) * (skip + 1)
        windows = node.add("Gather", x, node.constant(at, "windows"), axis=1)  # [batch, positions, n]
        windows = node.add("Unsqueeze", windows, node.int_constant("gram", [2]))
        same = node.add("Equal", windows, node.constant(grams.astype(x.type.dtype.numpy), "grams"))
        whole = node.add("ReduceMin", node.add("Cast", same, to="i32"), node.int_constant("last", [3]), keepdims=0)
        count = node.add("ReduceSum", whole, node.int_constant("places", [1]), keepdims=0)
        total = count if total is None else node.add("Add", total, count)
    if total is None:
        return node.constant(np.zeros((x.type.dims[0], len(grams)), np.int32), "none")
    return total


def _max_pool(node: OnnxNode) -> Results | None:
    """With its second output read, the operator that has one."""
    if len(node.outputs) < 2:
        return None
    return node.adds("MaxPoolWithIndices", 2, *node.inputs, **node.attributes)


def _compress(node: OnnxNode) -> Results:
    """Compress by a constant condition is a Gather of the slices that it keeps; by a computed one its size depends on
    data."""
    axis, condition = node.attributes.get("axis"), node.input(1)
    known = condition.data
    if node.rank(1) == 1 and condition.type.dtype is DType.BOOL and not condition.type.size:
        known = np.zeros(0, np.bool_)
    if known is not None and known.ndim == 1 and known.dtype == np.bool_:
        kept = node.int_constant("kept", np.flatnonzero(known).tolist())
        x = node.input(0) if axis is not None else node.reshape(node.input(0), -1)
        return [node.add("Gather", x, kept, axis=axis or 0)]
    if axis is None:
        return node.builder.data_dependent(node, [0])
    return node.builder.data_dependent(node, [axis % len(node.dims_of(0))])


def _unique(node: OnnxNode) -> Results:
    axis = node.attributes.get("axis")
    along = 0 if axis is None else axis % len(node.dims_of(0))
    return node.builder.data_dependent(node, [along, 0, None, 0])


COMPOSED: dict[str, Callable[[OnnxNode], Results | None]] = {
    "Adagrad": adagrad,
    "Adam": adam,
    "ArrayFeatureExtractor": _array_feature_extractor,
    "BatchNormalization": _batch_normalization,
    "Bernoulli": bernoulli,
    "Binarizer": _binarizer,
    "Col2Im": _col2im,
    "Compress": _compress,
    "ConvInteger": conv_integer,
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
    "MatMulInteger": mat_mul_integer,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "MelWeightMatrix": mel_weights,
    "Momentum": momentum,
    "Multinomial": multinomial,
    "NonMaxSuppression": lambda node: node.builder.data_dependent(node, [0]),
    "NonZero": lambda node: node.builder.data_dependent(node, [1]),
    "QLinearConv": q_linear_conv,
    "QLinearMatMul": q_linear_mat_mul,
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
"""None: the operator needs no decomposition."""

SIZED = frozenset(
    {
        "ArrayFeatureExtractor",
        "BatchNormalization",
        "Binarizer",
        "Compress",
        "DequantizeLinear",
        "Dropout",
        "GlobalLpPool",
        "GridSample",
        "Hardmax",
        "LpNormalization",
        "MaxPool",
        "NonMaxSuppression",
        "NonZero",
        "QuantizeLinear",
        "RandomNormalLike",
        "RandomUniformLike",
        "Trilu",
        "Unique",
    }
)
"""Operators that read no extents of what they are given, or take extents that are known only at run time."""
