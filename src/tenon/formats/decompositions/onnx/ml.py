"""Classical machine learning of ONNX (the domain ai.onnx.ml): scalers, encoders and linear models.

Where the standard is silent (the sign of a binary score, zero norms), results are onnxruntime's.
A function gets the node and which of its inputs are strings.
"""

from __future__ import annotations

import math

import numpy as np

from tenon.formats.decompositions.onnx.node import Entry, OnnxNode, Results, StringTensor
from tenon.formats.decompositions.strings.text import text_constant
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType


def floats(node: OnnxNode, i: int = 0) -> Value:
    """An input cast to f32."""
    x = node.input(i)
    return x if x.type.dtype is DType.F32 else node.add("Cast", x, to="f32")


def f32(node: OnnxNode, stem: str, values: object) -> Value:
    return node.constant(np.asarray(values, np.float32), stem)


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""Values of ``post_transform``, in the order of TreeEnsemble's numbers."""

_NEAR_ZERO = 1e-7


def transformed(node: OnnxNode, scores: Value, name: str = "") -> Value:
    """Scores after ``post_transform``, or the one named.  Raises RefusedError for what is not in the standard."""
    name = name or str(node.attributes.get("post_transform", "NONE"))
    if name not in TRANSFORMS:
        raise RefusedError(f"post_transform={name} is not supported", f"supported are {', '.join(TRANSFORMS)}")
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return node.add("Sigmoid", scores)
    if name == "PROBIT":
        return _probit(node, scores)
    return node.add("Softmax", scores, axis=-1) if name == "SOFTMAX" else _softmax_zero(node, scores)


def _like(node: OnnxNode, value: Value, stem: str, number: float) -> Value:
    return node.constant(np.array(number, value.type.dtype.numpy), stem)


def _softmax_zero(node: OnnxNode, scores: Value) -> Value:
    """A softmax among the scores that are not zero; zeros stay."""
    last = node.int_constant("last", [-1])
    used = node.add("Greater", node.add("Abs", scores), _like(node, scores, "near", _NEAR_ZERO))
    exps = node.add("Exp", node.add("Sub", scores, node.add("ReduceMax", scores, last, keepdims=1)))
    exps = node.add("Where", used, exps, _like(node, scores, "zero", 0))
    total = node.add("ReduceSum", exps, last, keepdims=1)
    none = node.add("Equal", total, _like(node, scores, "zero", 0))
    return node.add("Div", exps, node.add("Where", none, _like(node, scores, "one", 1), total))


def _probit(node: OnnxNode, scores: Value) -> Value:
    """The square root of 2 times the inverse error function of 2 x - 1, by the approximation of ONNX Runtime
    (Winitzki's)."""

    def number(value: float) -> Value:
        return _like(node, scores, "number", value)

    x = node.add("Sub", node.add("Mul", scores, number(2)), number(1))
    log = node.add("Log", node.add("Mul", node.add("Sub", number(1), x), node.add("Add", number(1), x)))
    v = node.add("Add", node.add("Mul", log, number(0.5)), number(2 / (3.14159 * 0.147)))
    root = node.add("Sqrt", node.add("Sub", node.add("Mul", v, v), node.add("Mul", log, number(1 / 0.147))))
    size = node.add("Sqrt", node.add("Sub", root, v))
    sign = node.add("Where", node.add("Less", x, number(0)), number(-math.sqrt(2)), number(math.sqrt(2)))
    return node.add("Mul", size, sign)


def of_two(node: OnnxNode, score: Value, *, probability: bool) -> Value:
    """[rows, 2]: the score of the second class and what follows for the first, transformed.  Raises RefusedError."""
    if node.attributes.get("post_transform", "NONE") == "NONE" and probability:
        return node.add("Concat", node.add("Sub", f32(node, "one", 1), score), score, axis=1)
    if node.attributes.get("post_transform", "NONE") == "SOFTMAX":
        raise RefusedError("post_transform=SOFTMAX of a single score is not supported", "NONE and LOGISTIC are")
    return transformed(node, node.add("Concat", node.add("Neg", score), score, axis=1))


def labels(node: OnnxNode, chosen: Value, ints: str, strings: str) -> Entry:
    """The class of each number.  Raises RefusedError if the classes have no names."""
    class_names, numbers = node.attributes.get(strings), node.attributes.get(ints)
    if class_names:
        table = text_constant(node, "classes", np.array(class_names, object)).bytes
        return StringTensor(node.add("Gather", table, chosen, axis=0))
    if not numbers:
        raise RefusedError("it names no classes")
    return node.add("Gather", node.constant(np.array(numbers, np.int64), "classes"), chosen, axis=0)


def exceeds(node: OnnxNode, score: Value, limit: float) -> Value:
    """1 for each score [rows, 1] above a limit, else 0: i64 [rows]."""
    above = node.add("Cast", node.add("Greater", score, f32(node, "limit", limit)), to="i64")
    return node.add("Squeeze", above, node.int_constant("last", [1]))


# ------------------------------------------------------------------------------------------------ preparation
def scaler(node: OnnxNode, texts: set[int]) -> Results:
    offset, scale = (f32(node, name, node.attributes[name]) for name in ("offset", "scale"))
    return [node.add("Mul", node.add("Sub", floats(node), offset), scale)]


def normalizer(node: OnnxNode, texts: set[int]) -> Results:
    kinds = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    x, norm = floats(node), node.attributes.get("norm", "MAX")
    if norm not in kinds:
        raise RefusedError(f"norm={norm} is not supported")
    size = node.add(kinds[norm], x, node.int_constant("last", [-1]), keepdims=1)
    none = node.add("Equal", size, f32(node, "zero", 0))
    return [node.add("Div", x, node.add("Where", none, f32(node, "one", 1), size))]


def imputer(node: OnnxNode, texts: set[int]) -> Results:
    """Missing values replaced column by column."""
    x, a = node.input(0), node.attributes
    kind = "float" if x.type.dtype.is_float else "int64"
    values, missing = a.get(f"imputed_value_{kind}s"), a.get(f"replaced_value_{kind}", 0)
    if not values:
        raise RefusedError(f"it has no imputed_value_{kind}s")
    if kind == "float" and math.isnan(missing):
        is_missing = node.add("IsNaN", x)
    else:
        is_missing = node.add("Equal", x, node.typed_scalar("missing", missing))
    return [node.add("Where", is_missing, node.constant(np.array(values, x.type.dtype.numpy), "values"), x)]


def feature_vectorizer(node: OnnxNode, texts: set[int]) -> Results:
    """Columns side by side, each input cut or filled with zeros to its stated number of them."""
    parts: list[Value] = []
    for i, wanted in enumerate(node.attributes.get("inputdimensions") or [node.dims_of(0)[-1]]):
        x, rows = floats(node, i), node.dims_of(i)[0]
        x = node.add("Reshape", x, node.int_constant("rows", [rows, -1]))
        width = x.type.dims[1]
        if width > wanted:
            ends = [node.int_constant(stem, [n]) for stem, n in (("start", 0), ("end", wanted), ("axis", 1))]
            x = node.add("Slice", x, *ends)
        elif width < wanted:
            x = node.add("Pad", x, node.int_constant("pads", [0, 0, 0, wanted - width]))
        parts.append(x)
    return [node.add("Concat", *parts, axis=1)]


# ---------------------------------------------------------------------------------------------- linear models
def _scores(node: OnnxNode, rows: int | None = None) -> Value:
    """[N, rows]: products with the coefficients, plus the intercepts."""
    x = floats(node)
    x = node.add("Reshape", x, node.int_constant("row", [1, -1])) if x.type.rank == 1 else x
    table: Array = np.array(node.attributes["coefficients"], np.float32).reshape(rows or -1, x.type.dims[-1]).T
    scores = node.add("MatMul", x, node.constant(np.ascontiguousarray(table), "coefficients"))
    intercepts = node.attributes.get("intercepts")
    return node.add("Add", scores, f32(node, "intercepts", intercepts)) if intercepts else scores


def linear_regressor(node: OnnxNode, texts: set[int]) -> Results:
    return [transformed(node, _scores(node, node.attributes.get("targets", 1)))]


def linear_classifier(node: OnnxNode, texts: set[int]) -> Results:
    """(classes, scores).  One row of coefficients for two classes scores the second."""
    scores, a = _scores(node), node.attributes
    count, names = len(a.get("classlabels_strings") or a.get("classlabels_ints") or ()), "classlabels"
    if scores.type.dims[1] == 1 and count == 2:
        chosen, answer = exceeds(node, scores, 0), of_two(node, scores, probability=True)
    elif scores.type.dims[1] == count:
        chosen, answer = node.add("ArgMax", scores, axis=1, keepdims=0), transformed(node, scores)
    else:
        raise RefusedError(f"{scores.type.dims[1]} scores for {count} classes")
    return [labels(node, chosen, f"{names}_ints", f"{names}_strings"), answer]
