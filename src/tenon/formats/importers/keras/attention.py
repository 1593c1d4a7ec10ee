"""Keras's layers of attention and the products that they are made of.

Source: the documentation of keras.layers.
"""

from __future__ import annotations

import math
import string

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.keras.importer import KerasLayer, LayerFunction
from tenon.network.graph.graph import Array, Value


def _product(layer: KerasLayer, equation: str, *values: Value) -> Value:
    return layer.builder.add("Einsum", *values, equation=equation)


def _sources(layer: KerasLayer) -> tuple[Value, Value, Value]:
    """Query, value, and key where it is given."""
    if not 2 <= len(layer.inputs) <= 3 or layer.get("return_attention_scores"):
        raise RefusedError("it takes a query, a value and perhaps a key; masks and scores as results are not supported")
    query, value, *key = layer.inputs
    return query, value, key[0] if key else value


def _unseen(layer: KerasLayer, scores: Value) -> Value:
    """Causal masking: keys after a query are masked, where the call asks for it."""
    if not layer.get("use_causal_mask"):
        return scores
    dims = layer.builder.dims(scores)[-2:]
    return layer.builder.add(
        "Add", scores, layer.builder.constant(np.where(np.tri(dims[0], dims[1]), 0, -1e9).astype(np.float32), "mask")
    )


def _projection(layer: KerasLayer, *names: str) -> list[Array]:
    """The kernel of a dense layer within, and its bias."""
    roles = ("kernel", "bias") if layer.get("use_bias", True) else ("kernel",)
    problem = RefusedError("the file has no weights of it")
    for name in names:
        try:
            return layer.weights.part(name).arrays(roles)
        except RefusedError as error:
            problem = error
    raise problem


def _multi_head(layer: KerasLayer) -> Outputs:
    """Kernels [features, heads, n], the last one [heads, n, features]."""
    query, value, key = _sources(layer)
    if layer.get("attention_axes") not in (None, 1, [1]) or layer.rank != 3:
        raise RefusedError("attention over other axes than the second of three is not supported")
    builder = layer.builder
    outputs = []
    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        kernel, *bias = _projection(layer, name)
        y = _product(layer, "btd,dhn->bhtn", x, builder.constant(kernel, "kernel"))
        outputs.append(
            builder.add("Add", y, builder.constant(b[:, None], "bias"))
            if (b := bias[0] if bias else None) is not None
            else y
        )
    q, k, v = outputs
    q = builder.add("Mul", q, builder.scalar(1 / math.sqrt(builder.dims(q)[3])))
    shares = builder.add("Softmax", _unseen(layer, _product(layer, "bhqn,bhkn->bhqk", q, k)), axis=3)
    kernel, *bias = _projection(layer, "attention_output", "output")
    if kernel.ndim != 3:
        raise RefusedError("a result of other than three axes is not supported")
    y = _product(layer, "bhqk,bhkn,hnd->bqd", shares, v, builder.constant(kernel, "kernel"))
    return builder.add("Add", y, builder.constant(bias[0], "bias")) if bias else y


def _attention(layer: KerasLayer) -> Outputs:
    """Luong's, by products, or by a single weighted sum."""
    query, value, key = _sources(layer)
    mode, roles = layer.get("score_mode", "dot"), ["scale"] if layer.get("use_scale", False) else []
    if mode not in ("dot", "concat"):
        raise RefusedError(f"score_mode={mode} is not supported")
    roles += ["concat_score_weight"] if mode == "concat" else []
    weights = dict(zip(roles, layer.arrays(*roles) if roles else [], strict=True))

    def scaled(x: Value, role: str) -> Value:
        return layer.builder.add("Mul", x, layer.builder.constant(weights[role], role)) if role in weights else x

    if mode == "dot":
        scores = scaled(_product(layer, "bqd,bkd->bqk", query, key), "scale")
    else:
        bent = layer.builder.add("Tanh", scaled(_pairs(layer, query, key), "scale"))
        scores = scaled(layer.builder.reduce("Sum", bent, [3], False), "concat_score_weight")
    return _product(layer, "bqk,bkd->bqd", layer.builder.add("Softmax", _unseen(layer, scores), axis=2), value)


def _pairs(layer: KerasLayer, query: Value, key: Value) -> Value:
    """The sum of each query with each key."""
    builder, (n, q, width), (_, k, _) = layer.builder, layer.builder.dims(query), layer.builder.dims(key)
    return builder.add("Add", builder.reshape(query, (n, q, 1, width)), builder.reshape(key, (n, 1, k, width)))


def _additive(layer: KerasLayer) -> Outputs:
    """Bahdanau's, by sums."""
    query, value, key = _sources(layer)
    builder = layer.builder
    both = builder.add("Tanh", _pairs(layer, query, key))
    scale = layer.arrays("scale")[0] if layer.get("use_scale", True) else np.ones(builder.dims(key)[2], np.float32)
    scores = _product(layer, "bqkd,d->bqk", both, builder.constant(scale, "scale"))
    return _product(layer, "bqk,bkd->bqd", builder.add("Softmax", _unseen(layer, scores), axis=2), value)


def einsum_dense(layer: KerasLayer) -> Value:
    """The product and the bias; the activation is not included."""
    bias_axes, equation = layer.get("bias_axes"), str(layer.get("equation", ""))
    kernel, *bias = layer.arrays("kernel", "bias") if bias_axes else layer.arrays("kernel")
    y = _product(layer, equation, layer.x, layer.builder.constant(kernel, "kernel"))
    return layer.builder.add("Add", y, layer.builder.constant(bias[0], "bias")) if bias else y


def _dot(layer: KerasLayer) -> Outputs:
    """Over one axis of each, element by element of the batch."""
    if len(layer.inputs) != 2:
        raise RefusedError(f"it has {len(layer.inputs)} inputs instead of 2")
    given = layer.get("axes", -1)
    pair = list(given) if isinstance(given, list) else [given, given]
    texts, letters = [], iter(string.ascii_lowercase[2:])
    values = list(layer.inputs)
    for i, (x, axis) in enumerate(zip(values, pair, strict=True)):
        rank = layer.builder.type(x).rank
        if layer.get("normalize", False):
            values[i] = unit(layer, x, [int(axis)])
        texts.append("".join("a" if n == 0 else "b" if n == int(axis) % rank else next(letters) for n in range(rank)))
    free = "a" + "".join(c for text in texts for c in text if c not in "ab")
    y = _product(layer, f"{texts[0]},{texts[1]}->{free}", *values)
    return layer.builder.reshape(y, (-1, 1)) if free == "a" else y


def unit(layer: KerasLayer, x: Value, axes: list[int]) -> Value:
    """Divided by its length along some axes."""
    builder = layer.builder
    total = builder.add("ReduceSumSquare", x, builder.ints(*axes), keepdims=1)
    return builder.add("Div", x, builder.add("Sqrt", builder.add("Max", total, builder.scalar(1e-12))))


ATTENTION: dict[str, LayerFunction] = {
    "AdditiveAttention": _additive,
    "Attention": _attention,
    "Dot": _dot,
    "MultiHeadAttention": _multi_head,
}
