"""Classical machine learning of ONNX (the domain ai.onnx.ml): scalers, encoders and linear models.

What the standard leaves open (which sign a binary score has, what is done to zero norms) is as onnxruntime does it.
A function gets the layer and which of its inputs are strings.
"""

from __future__ import annotations

import math

import numpy as np

from tenon.decompositions.onnx.node import Entry, OnnxNode, Results, StringTensor
from tenon.decompositions.strings.text import text_constant
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value
from tenon.ir.types import DType


def floats(node: OnnxNode, i: int = 0) -> Value:
    """An input as f32."""
    x = node.input(i)
    return x if x.type.dtype is DType.F32 else node.emit("Cast", x, to="f32")


def f32(node: OnnxNode, stem: str, values: object) -> Value:
    return node.constant(stem, np.asarray(values, np.float32))


def transformed(node: OnnxNode, scores: Value) -> Value:
    """Scores after ``post_transform``.  Raises RefusedError for the rare ones."""
    name = node.attributes.get("post_transform", "NONE")
    if name not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise RefusedError(f"post_transform={name} is not supported", "NONE, LOGISTIC and SOFTMAX are")
    if name == "NONE":
        return scores
    return node.emit("Sigmoid", scores) if name == "LOGISTIC" else node.emit("Softmax", scores, axis=-1)


def of_two(node: OnnxNode, score: Value, *, probability: bool) -> Value:
    """[rows, 2]: the score of the second class and what follows for the first, transformed.  Raises RefusedError."""
    if node.attributes.get("post_transform", "NONE") == "NONE" and probability:
        return node.emit("Concat", node.emit("Sub", f32(node, "one", 1), score), score, axis=1)
    if node.attributes.get("post_transform", "NONE") == "SOFTMAX":
        raise RefusedError("post_transform=SOFTMAX of a single score is not supported", "NONE and LOGISTIC are")
    return transformed(node, node.emit("Concat", node.emit("Neg", score), score, axis=1))


def labels(node: OnnxNode, chosen: Value, ints: str, strings: str) -> Entry:
    """The class of each number.  Raises RefusedError if the classes have no names."""
    words, numbers = node.attributes.get(strings), node.attributes.get(ints)
    if words:
        table = text_constant(node, "classes", np.array(words, object)).bytes
        return StringTensor(node.emit("Gather", table, chosen, axis=0))
    if not numbers:
        raise RefusedError("it names no classes")
    return node.emit("Gather", node.constant("classes", np.array(numbers, np.int64)), chosen, axis=0)


def exceeds(node: OnnxNode, score: Value, limit: float) -> Value:
    """Of scores [rows, 1], 1 for each above a limit, else 0, i64 [rows]."""
    above = node.emit("Cast", node.emit("Greater", score, f32(node, "limit", limit)), to="i64")
    return node.emit("Squeeze", above, node.ints("last", [1]))


# ------------------------------------------------------------------------------------------------ preparation
def scaler(node: OnnxNode, texts: set[int]) -> Results:
    offset, scale = (f32(node, name, node.attributes[name]) for name in ("offset", "scale"))
    return [node.emit("Mul", node.emit("Sub", floats(node), offset), scale)]


def normalizer(node: OnnxNode, texts: set[int]) -> Results:
    kinds = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    x, norm = floats(node), node.attributes.get("norm", "MAX")
    if norm not in kinds:
        raise RefusedError(f"norm={norm} is not supported")
    size = node.emit(kinds[norm], x, node.ints("last", [-1]), keepdims=1)
    none = node.emit("Equal", size, f32(node, "zero", 0))
    return [node.emit("Div", x, node.emit("Where", none, f32(node, "one", 1), size))]


def imputer(node: OnnxNode, texts: set[int]) -> Results:
    """Values that stand for missing ones, replaced column by column."""
    x, a = node.input(0), node.attributes
    kind = "float" if x.type.dtype.is_float else "int64"
    values, missing = a.get(f"imputed_value_{kind}s"), a.get(f"replaced_value_{kind}", 0)
    if not values:
        raise RefusedError(f"it has no imputed_value_{kind}s")
    if kind == "float" and math.isnan(missing):
        gone = node.emit("IsNaN", x)
    else:
        gone = node.emit("Equal", x, node.scalar("missing", missing))
    return [node.emit("Where", gone, node.constant("values", np.array(values, x.type.dtype.numpy)), x)]


def feature_vectorizer(node: OnnxNode, texts: set[int]) -> Results:
    """Columns side by side, each input cut or filled with zeros to its stated number of them."""
    parts: list[Value] = []
    for i, wanted in enumerate(node.attributes.get("inputdimensions") or [node.dims(0)[-1]]):
        x, rows = floats(node, i), node.dims(i)[0]
        x = node.emit("Reshape", x, node.ints("rows", [rows, -1]))
        width = x.type.dims[1]
        if width > wanted:
            ends = [node.ints(stem, [n]) for stem, n in (("start", 0), ("end", wanted), ("axis", 1))]
            x = node.emit("Slice", x, *ends)
        elif width < wanted:
            x = node.emit("Pad", x, node.ints("pads", [0, 0, 0, wanted - width]))
        parts.append(x)
    return [node.emit("Concat", *parts, axis=1)]


# ---------------------------------------------------------------------------------------------- linear models
def _scores(node: OnnxNode, rows: int | None = None) -> Value:
    """[N, rows]: products with the coefficients, plus the intercepts."""
    x = floats(node)
    x = node.emit("Reshape", x, node.ints("row", [1, -1])) if x.type.rank == 1 else x
    table: Array = np.array(node.attributes["coefficients"], np.float32).reshape(rows or -1, x.type.dims[-1]).T
    scores = node.emit("MatMul", x, node.constant("coefficients", np.ascontiguousarray(table)))
    intercepts = node.attributes.get("intercepts")
    return node.emit("Add", scores, f32(node, "intercepts", intercepts)) if intercepts else scores


def linear_regressor(node: OnnxNode, texts: set[int]) -> Results:
    return [transformed(node, _scores(node, node.attributes.get("targets", 1)))]


def linear_classifier(node: OnnxNode, texts: set[int]) -> Results:
    """(classes, scores).  One row of coefficients for two classes scores the second."""
    scores, a = _scores(node), node.attributes
    count, names = len(a.get("classlabels_strings") or a.get("classlabels_ints") or ()), "classlabels"
    if scores.type.dims[1] == 1 and count == 2:
        chosen, answer = exceeds(node, scores, 0), of_two(node, scores, probability=True)
    elif scores.type.dims[1] == count:
        chosen, answer = node.emit("ArgMax", scores, axis=1, keepdims=0), transformed(node, scores)
    else:
        raise RefusedError(f"{scores.type.dims[1]} scores for {count} classes")
    return [labels(node, chosen, f"{names}_ints", f"{names}_strings"), answer]
