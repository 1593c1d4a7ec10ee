"""ONNX's operators on strings spelled out in operators on their bytes (see ``text``): one function per operator.

A function gets the layer, whose inputs are the tensors of bytes, and which of its inputs are strings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tenon.decompositions.onnx.compose import tf_idf
from tenon.decompositions.onnx.ml import (
    feature_vectorizer,
    imputer,
    linear_classifier,
    linear_regressor,
    normalizer,
    scaler,
)
from tenon.decompositions.onnx.node import OnnxNode, Results, Text
from tenon.decompositions.onnx.trees import tree_classifier, tree_regressor
from tenon.decompositions.strings import regex
from tenon.decompositions.strings.regex_syntax import PatternError
from tenon.decompositions.strings.split import concat, split
from tenon.decompositions.strings.string_cast import cast
from tenon.decompositions.strings.text import (
    alike,
    i32,
    in_accepted,
    same_text,
    states_behind,
    text_constant,
    where,
    width_of,
)
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value
from tenon.ir.strings import encoded


def _equal(layer: OnnxNode, texts: set[int]) -> Results:
    return [same_text(layer, layer.input(0), layer.input(1))]


def _regex_full_match(layer: OnnxNode, texts: set[int]) -> Results:
    try:
        automaton = regex.compile(layer.attributes.get("pattern", ""))
    except PatternError as error:
        raise RefusedError(
            f"its pattern cannot be compiled: {error}", "use RE2's syntax, or a simpler pattern"
        ) from None
    x, shape = layer.input(0), layer.dims(0)[:-1]
    if not math.prod(shape):
        return [layer.constant("nothing", np.zeros(shape, np.bool_))]
    found = in_accepted(layer, states_behind(layer, x, automaton)[-1], automaton)
    return [layer.emit("Squeeze", found, layer.ints("last", [-1]))]


# --------------------------------------------------------------------------------------------------------- cases
def _other_case(c: str, upper: bool) -> str:
    """The other case of a character, where it has as many bytes in UTF-8 and these are at most two."""
    other = c.upper() if upper else c.lower()
    return other if len(other) == 1 and len(other.encode()) == len(c.encode()) <= 2 else c


@lru_cache(maxsize=2)
def _case_tables(upper: bool) -> tuple[Array, Array]:
    """What becomes of a byte: by itself and the low bits of the next; of one that goes on, by the last and itself."""
    first = np.repeat(np.arange(256, dtype=np.uint8), 64)
    second = np.tile(np.arange(128, 192, dtype=np.uint8), 256)
    for code in range(0x800):
        old, new = chr(code).encode(), _other_case(chr(code), upper).encode()
        if len(old) == 1:
            first[code * 64 : code * 64 + 64] = new[0]
        else:
            first[old[0] * 64 + old[1] % 64], second[old[0] * 64 + old[1] % 64] = new
    return first, second


def _recased(layer: OnnxNode, x: Value, upper: bool) -> Value:
    """Strings in one case: characters of one and two bytes (Latin, Greek, Cyrillic, Armenian), of the same length."""
    first, second = (layer.constant("cases", table) for table in _case_tables(upper))
    edge = layer.constant("edge", np.zeros((*x.type.dims[:-1], 1), np.uint8))
    around = layer.emit("Cast", layer.emit("Concat", edge, x, edge, axis=-1), to="i32")
    width = width_of(x)

    def shifted(by: int) -> Value:
        return layer.emit(
            "Slice", around, layer.ints("start", [by]), layer.ints("end", [by + width]), layer.ints("axis", [-1])
        )

    before, here, behind = (shifted(i) for i in range(3))

    def looked_up(table: Value, lead: Value, low: Value) -> Value:
        row = layer.emit("Mul", lead, i32(layer, 64))
        return layer.emit("Gather", table, layer.emit("Add", row, layer.emit("Mod", low, i32(layer, 64))), axis=0)

    goes_on = layer.emit(
        "And",
        layer.emit("GreaterOrEqual", here, i32(layer, 128)),
        layer.emit("Less", here, i32(layer, 192)),
    )
    return where(layer, goes_on, looked_up(second, before, here), looked_up(first, here, behind))


def _normalizer(layer: OnnxNode, texts: set[int]) -> Results:
    x, dims, attributes = layer.input(0), layer.dims(0)[:-1], layer.attributes
    if len(dims) not in (1, 2) or (len(dims) == 2 and dims[0] != 1):
        raise RefusedError(f"strings of shape {list(dims)}; [C] or [1, C] is needed")
    action, words = attributes.get("case_change_action", "NONE"), attributes.get("stopwords") or []
    result = x if action == "NONE" else _recased(layer, x, action == "UPPER")
    if not words or not dims[-1]:
        return [Text(layer.emit("Identity", result))]
    compared = x
    if not attributes.get("is_case_sensitive", 0):
        compared = _recased(layer, x, False)
        words = ["".join(_other_case(c, False) for c in word) for word in words]
    stop = encoded(np.array(words, object))
    flat = layer.emit("Reshape", compared, layer.ints("rows", [dims[-1], 1, width_of(x)]))
    found = layer.emit("Cast", same_text(layer, flat, layer.constant("stop", stop)), to="i32")
    stopped = layer.emit("ReduceMax", found, layer.ints("words", [1]), keepdims=0)
    kept = layer.emit("Equal", stopped, i32(layer, 0))
    rest, count = layer.maker.emit_all(layer, "Compress", [result, kept], 2, axis=len(dims) - 1)
    layer.maker.count(rest, len(dims) - 1, layer.emit("Max", count, layer.constant("one", np.array(1, np.int64))))
    return [Text(rest)]


# ------------------------------------------------------------------------------------------------ labels, n-grams
def _pairs(attributes: dict[str, object]) -> tuple[Array, Array, Array]:
    """(keys, values, default) of a LabelEncoder, of any version.  Raises RefusedError."""
    classes = attributes.get("classes_strings")
    if isinstance(classes, list):
        raise RefusedError("classes_strings of the first version", "convert the model to ai.onnx.ml 2 or newer")
    kinds = {"strings": (object, "_Unused"), "int64s": (np.int64, -1), "floats": (np.float32, -0.0)}

    def column(role: str) -> tuple[Array, str]:
        given = attributes.get(f"{role}_tensor")
        if isinstance(given, np.ndarray):
            return given, "tensor"
        for kind, (dtype, _) in kinds.items():
            if attributes.get(f"{role}_{kind}"):
                return np.array(attributes[f"{role}_{kind}"], dtype), kind
        raise RefusedError(f"it has no {role}")

    (keys, _), (values, kind) = column("keys"), column("values")
    if keys.shape != values.shape or keys.ndim != 1:
        raise RefusedError(f"keys of shape {list(keys.shape)} and values of shape {list(values.shape)}")
    default = attributes.get("default_tensor")
    if not isinstance(default, np.ndarray):
        kind = kind if kind != "tensor" else _kind(values)
        fallback = kinds.get(kind, (None, 0))[1]
        default = np.array([attributes.get(f"default_{kind.removesuffix('s')}", fallback)]).astype(values.dtype)
    return keys, values, default.reshape(1)


def _kind(values: Array) -> str:
    return "strings" if values.dtype == object else "floats" if values.dtype.kind == "f" else "int64s"


def _label_encoder(layer: OnnxNode, texts: set[int]) -> Results:
    """The first key that an element equals picks a value; behind the values stands that of what equals none."""
    keys, values, default = _pairs(layer.attributes)
    x = layer.input(0)
    if (keys.dtype == object) != (0 in texts):
        raise RefusedError("its keys are not of its input's type")
    dims = layer.dims(0)[:-1] if texts else layer.dims(0)
    if not math.prod(dims):
        nothing = np.zeros(dims, values.dtype)
        return [text_constant(layer, "nothing", nothing) if values.dtype == object else layer.constant("none", nothing)]
    at = _place(layer, x, keys)
    table = np.concatenate([values, default])
    if values.dtype == object:
        return [Text(layer.emit("Gather", text_constant(layer, "values", table).bytes, at, axis=0))]
    return [layer.emit("Gather", layer.constant("values", table), at, axis=0)]


def _place(layer: OnnxNode, x: Value, keys: Array) -> Value:
    """Which of the keys each element equals, i64; the number of keys where it is none of them."""
    if keys.dtype == object:
        column = layer.emit("Unsqueeze", x, layer.ints("keys", [-2]))
        same = same_text(layer, column, layer.constant("keys", encoded(keys)))
    else:
        column = layer.emit("Unsqueeze", x, layer.ints("keys", [-1]))
        same = layer.emit("Equal", column, layer.constant("keys", keys.astype(x.type.dtype.numpy)))
        if keys.dtype.kind == "f" and np.isnan(keys).any():
            both = layer.emit("And", layer.emit("IsNaN", column), layer.constant("nan", np.isnan(keys)))
            same = layer.emit("Or", same, both)
    every = layer.constant("none", np.ones((*same.type.dims[:-1], 1), np.bool_))
    found = layer.emit("Cast", layer.emit("Concat", same, every, axis=-1), to="i32")
    return layer.emit("ArgMax", found, axis=-1, keepdims=0)


def _one_hot(layer: OnnxNode, texts: set[int]) -> Results:
    """f32 of which category each element is; one of no category is all zeros."""
    x, words, numbers = layer.input(0), layer.attributes.get("cats_strings"), layer.attributes.get("cats_int64s")
    if texts and words:
        column = layer.emit("Unsqueeze", x, layer.ints("categories", [-2]))
        same = same_text(layer, column, layer.constant("categories", encoded(np.array(words, object))))
    elif numbers and not texts:
        column = layer.emit("Unsqueeze", layer.emit("Cast", x, to="i64"), layer.ints("last", [-1]))
        same = layer.emit("Equal", column, layer.ints("categories", numbers))
    else:
        raise RefusedError("its categories are not of its input's type")
    return [layer.emit("Cast", same, to="f32")]


def _tf_idf(layer: OnnxNode, texts: set[int]) -> Results:
    """As of integers: those that say which string of the pool each string is."""
    pool = layer.attributes.pop("pool_strings", None)
    if not pool or not math.prod(layer.dims(0)[:-1]):
        raise RefusedError("its n-grams are not strings, or its input is empty")
    words = sorted(set(pool))
    layer.set_input(0, _place(layer, layer.input(0), np.array(words, object)))
    layer.attributes["pool_int64s"] = [words.index(word) for word in pool]
    return tf_idf(layer)


# ------------------------------------------------------------------------------------------------ moving strings
def _axis(layer: OnnxNode, rank: int) -> int:
    axis = int(layer.attributes.get("axis", 0))
    if not -rank <= axis < rank:
        raise RefusedError(f"axis {axis} of strings with {rank} dimensions")
    return axis % rank


def _rank(layer: OnnxNode, i: int = 0) -> int:
    return len(layer.dims(i)) - 1


def _moved(layer: OnnxNode, *inputs: Value, **attributes: object) -> Results:
    return [Text(layer.emit(layer.type, *inputs, **attributes))]


def _joined(layer: OnnxNode, texts: set[int]) -> Results:
    values = alike(layer, [layer.input(i) for i in range(len(layer.inputs))])
    return _moved(layer, *values, axis=_axis(layer, _rank(layer)))


def _gather(layer: OnnxNode, texts: set[int]) -> Results:
    return _moved(layer, layer.input(0), layer.input(1), axis=_axis(layer, _rank(layer)))


def _known_axes(layer: OnnxNode, i: int, rank: int) -> Value:
    return layer.ints("axes", [int(a) % rank for a in layer.known(i, "the axes")])


def _squeeze(layer: OnnxNode, texts: set[int]) -> Results:
    rank = _rank(layer)
    if layer.has(1):
        return _moved(layer, layer.input(0), _known_axes(layer, 1, rank))
    return _moved(layer, layer.input(0), layer.ints("axes", [i for i, n in enumerate(layer.dims(0)[:-1]) if n == 1]))


def _unsqueeze(layer: OnnxNode, texts: set[int]) -> Results:
    return _moved(layer, layer.input(0), _known_axes(layer, 1, _rank(layer) + layer.input(1).type.size))


def _reshape(layer: OnnxNode, texts: set[int]) -> Results:
    dims = layer.dims(0)
    if layer.type == "Flatten":
        axis = layer.attributes.get("axis", 1)
        axis = axis + len(dims) - 1 if axis < 0 else axis
        wanted = [math.prod(dims[:axis]), math.prod(dims[axis:-1])]
    else:
        wanted = [int(n) for n in layer.known(1, "the shape")]
        if not layer.attributes.get("allowzero", 0):
            wanted = [n or dims[i] for i, n in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = math.prod(dims[:-1]) // rest if rest else 0
    return [Text(layer.emit("Reshape", layer.input(0), layer.ints("shape", [*wanted, dims[-1]])))]


def _transpose(layer: OnnxNode, texts: set[int]) -> Results:
    rank = _rank(layer)
    perm = layer.attributes.get("perm") or list(range(rank))[::-1]
    return _moved(layer, layer.input(0), perm=[*perm, rank])


def _slice(layer: OnnxNode, texts: set[int]) -> Results:
    rank = _rank(layer)
    axes = _known_axes(layer, 3, rank) if layer.has(3) else layer.ints("axes", range(layer.input(1).type.size))
    more = [layer.input(4)] if layer.has(4) else []
    return _moved(layer, layer.input(0), layer.input(1), layer.input(2), axes, *more)


def _expand(layer: OnnxNode, texts: set[int]) -> Results:
    shape = np.broadcast_shapes(layer.dims(0)[:-1], tuple(int(n) for n in layer.known(1, "the shape")))
    return _moved(layer, layer.input(0), layer.ints("shape", [*shape, layer.dims(0)[-1]]))


def _chosen(layer: OnnxNode, texts: set[int]) -> Results:
    condition = layer.emit("Unsqueeze", layer.input(0), layer.ints("last", [-1]))
    return _moved(layer, condition, *alike(layer, [layer.input(1), layer.input(2)]))


def _shape(layer: OnnxNode, texts: set[int]) -> Results:
    dims = layer.dims(0)[:-1]
    if layer.type == "Size":
        return [layer.constant("size", np.array(math.prod(dims), np.int64))]
    ends = slice(layer.attributes.get("start", 0), layer.attributes.get("end"))
    return [layer.ints("shape", dims[ends])]


STRINGS: dict[str, Callable[[OnnxNode, set[int]], Results]] = {
    "Cast": cast,
    "Concat": _joined,
    "Equal": _equal,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "FeatureVectorizer": feature_vectorizer,
    "Identity": lambda layer, texts: _moved(layer, layer.input(0)),
    "Imputer": imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": _one_hot,
    "RegexFullMatch": _regex_full_match,
    "Reshape": _reshape,
    "Scaler": scaler,
    "Shape": _shape,
    "Size": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "StringConcat": concat,
    "StringNormalizer": _normalizer,
    "StringSplit": split,
    "TfIdfVectorizer": _tf_idf,
    "Transpose": _transpose,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsembleRegressor": tree_regressor,
    "Unsqueeze": _unsqueeze,
    "Where": _chosen,
}
"""What can be done with strings, and the operators of ai.onnx.ml, which may give strings for numbers."""

MAKES_STRINGS = frozenset({
    "FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer",
    "OneHotEncoder", "Scaler", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
})  # fmt: skip
"""Operators that stand here whatever they read."""
