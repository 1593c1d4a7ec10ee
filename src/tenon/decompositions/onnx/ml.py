"""Classical machine learning of ONNX (the domain ai.onnx.ml): scalers, encoders and linear models.

What the standard leaves open (which sign a binary score has, what is done to zero norms) is as onnxruntime does it.
A function gets the layer and which of its inputs are strings.
"""

from __future__ import annotations

import math

import numpy as np

from tenon.decompositions.onnx.node import Entry, OnnxNode, Results, Text
from tenon.decompositions.strings.text import text_constant
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value
from tenon.ir.types import DType


def floats(layer: OnnxNode, i: int = 0) -> Value:
    """An input as f32."""
    x = layer.input(i)
    return x if x.type.dtype is DType.F32 else layer.emit("Cast", x, to="f32")


def f32(layer: OnnxNode, stem: str, values: object) -> Value:
    return layer.constant(stem, np.asarray(values, np.float32))


def transformed(layer: OnnxNode, scores: Value) -> Value:
    """Scores after ``post_transform``.  Raises RefusedError for the rare ones."""
    name = layer.attributes.get("post_transform", "NONE")
    if name not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise RefusedError(f"post_transform={name} is not supported", "NONE, LOGISTIC and SOFTMAX are")
    if name == "NONE":
        return scores
    return layer.emit("Sigmoid", scores) if name == "LOGISTIC" else layer.emit("Softmax", scores, axis=-1)


def of_two(layer: OnnxNode, score: Value, *, probability: bool) -> Value:
    """[rows, 2]: the score of the second class and what follows for the first, transformed.  Raises RefusedError."""
    if layer.attributes.get("post_transform", "NONE") == "NONE" and probability:
        return layer.emit("Concat", layer.emit("Sub", f32(layer, "one", 1), score), score, axis=1)
    if layer.attributes.get("post_transform", "NONE") == "SOFTMAX":
        raise RefusedError("post_transform=SOFTMAX of a single score is not supported", "NONE and LOGISTIC are")
    return transformed(layer, layer.emit("Concat", layer.emit("Neg", score), score, axis=1))


def labels(layer: OnnxNode, chosen: Value, ints: str, strings: str) -> Entry:
    """The class of each number.  Raises RefusedError if the classes have no names."""
    words, numbers = layer.attributes.get(strings), layer.attributes.get(ints)
    if words:
        table = text_constant(layer, "classes", np.array(words, object)).bytes
        return Text(layer.emit("Gather", table, chosen, axis=0))
    if not numbers:
        raise RefusedError("it names no classes")
    return layer.emit("Gather", layer.constant("classes", np.array(numbers, np.int64)), chosen, axis=0)


def exceeds(layer: OnnxNode, score: Value, limit: float) -> Value:
    """Of scores [rows, 1], 1 for each above a limit, else 0, i64 [rows]."""
    above = layer.emit("Cast", layer.emit("Greater", score, f32(layer, "limit", limit)), to="i64")
    return layer.emit("Squeeze", above, layer.ints("last", [1]))


# ------------------------------------------------------------------------------------------------ preparation
def scaler(layer: OnnxNode, texts: set[int]) -> Results:
    offset, scale = (f32(layer, name, layer.attributes[name]) for name in ("offset", "scale"))
    return [layer.emit("Mul", layer.emit("Sub", floats(layer), offset), scale)]


def normalizer(layer: OnnxNode, texts: set[int]) -> Results:
    kinds = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    x, norm = floats(layer), layer.attributes.get("norm", "MAX")
    if norm not in kinds:
        raise RefusedError(f"norm={norm} is not supported")
    size = layer.emit(kinds[norm], x, layer.ints("last", [-1]), keepdims=1)
    none = layer.emit("Equal", size, f32(layer, "zero", 0))
    return [layer.emit("Div", x, layer.emit("Where", none, f32(layer, "one", 1), size))]


def imputer(layer: OnnxNode, texts: set[int]) -> Results:
    """Values that stand for missing ones, replaced column by column."""
    x, a = layer.input(0), layer.attributes
    kind = "float" if x.type.dtype.is_float else "int64"
    values, missing = a.get(f"imputed_value_{kind}s"), a.get(f"replaced_value_{kind}", 0)
    if not values:
        raise RefusedError(f"it has no imputed_value_{kind}s")
    if kind == "float" and math.isnan(missing):
        gone = layer.emit("IsNaN", x)
    else:
        gone = layer.emit("Equal", x, layer.scalar("missing", missing))
    return [layer.emit("Where", gone, layer.constant("values", np.array(values, x.type.dtype.numpy)), x)]


def feature_vectorizer(layer: OnnxNode, texts: set[int]) -> Results:
    """Columns side by side, each input cut or filled with zeros to its stated number of them."""
    parts: list[Value] = []
    for i, wanted in enumerate(layer.attributes.get("inputdimensions") or [layer.dims(0)[-1]]):
        x, rows = floats(layer, i), layer.dims(i)[0]
        x = layer.emit("Reshape", x, layer.ints("rows", [rows, -1]))
        width = x.type.dims[1]
        if width > wanted:
            ends = [layer.ints(stem, [n]) for stem, n in (("start", 0), ("end", wanted), ("axis", 1))]
            x = layer.emit("Slice", x, *ends)
        elif width < wanted:
            x = layer.emit("Pad", x, layer.ints("pads", [0, 0, 0, wanted - width]))
        parts.append(x)
    return [layer.emit("Concat", *parts, axis=1)]


# ---------------------------------------------------------------------------------------------- linear models
def _scores(layer: OnnxNode, rows: int | None = None) -> Value:
    """[N, rows]: products with the coefficients, plus the intercepts."""
    x = floats(layer)
    x = layer.emit("Reshape", x, layer.ints("row", [1, -1])) if x.type.rank == 1 else x
    table: Array = np.array(layer.attributes["coefficients"], np.float32).reshape(rows or -1, x.type.dims[-1]).T
    scores = layer.emit("MatMul", x, layer.constant("coefficients", np.ascontiguousarray(table)))
    intercepts = layer.attributes.get("intercepts")
    return layer.emit("Add", scores, f32(layer, "intercepts", intercepts)) if intercepts else scores


def linear_regressor(layer: OnnxNode, texts: set[int]) -> Results:
    return [transformed(layer, _scores(layer, layer.attributes.get("targets", 1)))]


def linear_classifier(layer: OnnxNode, texts: set[int]) -> Results:
    """(classes, scores).  One row of coefficients for two classes scores the second."""
    scores, a = _scores(layer), layer.attributes
    count, names = len(a.get("classlabels_strings") or a.get("classlabels_ints") or ()), "classlabels"
    if scores.type.dims[1] == 1 and count == 2:
        chosen, answer = exceeds(layer, scores, 0), of_two(layer, scores, probability=True)
    elif scores.type.dims[1] == count:
        chosen, answer = layer.emit("ArgMax", scores, axis=1, keepdims=0), transformed(layer, scores)
    else:
        raise RefusedError(f"{scores.type.dims[1]} scores for {count} classes")
    return [labels(layer, chosen, f"{names}_ints", f"{names}_strings"), answer]
