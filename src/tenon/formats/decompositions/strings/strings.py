"""ONNX's operators on strings as operators on their bytes (see ``text``): one function per operator.

A function gets the node, whose inputs are the tensors of bytes, and which of its inputs are strings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from tenon.formats.decompositions.onnx.compose import tf_idf
from tenon.formats.decompositions.onnx.ml import (
    feature_vectorizer,
    imputer,
    linear_classifier,
    linear_regressor,
    normalizer,
    scaler,
)
from tenon.formats.decompositions.onnx.node import OnnxNode, Results, StringTensor
from tenon.formats.decompositions.onnx.trees import tree_classifier, tree_regressor
from tenon.formats.decompositions.strings import regex
from tenon.formats.decompositions.strings.regex_syntax import PatternError
from tenon.formats.decompositions.strings.split import concat, split
from tenon.formats.decompositions.strings.string_cast import cast
from tenon.formats.decompositions.strings.text import (
    i32,
    in_accepted,
    same_text,
    same_width,
    states_after,
    text_constant,
    where,
    width_of,
)
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.strings import encoded


def _equal(node: OnnxNode, texts: set[int]) -> Results:
    return [same_text(node, node.input(0), node.input(1))]


def _regex_full_match(node: OnnxNode, texts: set[int]) -> Results:
    try:
        automaton = regex.compile(node.attributes.get("pattern", ""))
    except PatternError as error:
        raise RefusedError(
            f"its pattern cannot be compiled: {error}", "use RE2's syntax, or a simpler pattern"
        ) from None
    x, shape = node.input(0), node.dims_of(0)[:-1]
    if not math.prod(shape):
        return [node.constant(np.zeros(shape, np.bool_), "nothing")]
    accepted = in_accepted(node, states_after(node, x, automaton)[-1], automaton)
    return [node.add("Squeeze", accepted, node.int_constant("last", [-1]))]


# --------------------------------------------------------------------------------------------------------- cases
def _other_case(c: str, upper: bool) -> str:
    """The other case of a character, where it has as many bytes in UTF-8 and these are at most two."""
    other = c.upper() if upper else c.lower()
    return other if len(other) == 1 and len(other.encode()) == len(c.encode()) <= 2 else c


@lru_cache(maxsize=2)
def _case_tables(upper: bool) -> tuple[Array, Array]:
    """Tables of case conversion: of a leading byte by itself and the low bits of the next, of a continuation byte by
    the previous one and itself."""
    first = np.repeat(np.arange(256, dtype=np.uint8), 64)
    second = np.tile(np.arange(128, 192, dtype=np.uint8), 256)
    for code in range(0x800):
        old, new = chr(code).encode(), _other_case(chr(code), upper).encode()
        if len(old) == 1:
            first[code * 64 : code * 64 + 64] = new[0]
        else:
            first[old[0] * 64 + old[1] % 64], second[old[0] * 64 + old[1] % 64] = new
    return first, second


def _recased(node: OnnxNode, x: Value, upper: bool) -> Value:
    """Strings in one case: characters of one and two bytes (Latin, Greek, Cyrillic, Armenian), of the same length."""
    first, second = (node.constant(table, "cases") for table in _case_tables(upper))
    edge = node.constant(np.zeros((*x.type.dims[:-1], 1), np.uint8), "edge")
    around = node.add("Cast", node.add("Concat", edge, x, edge, axis=-1), to="i32")
    width = width_of(x)

    def shifted(by: int) -> Value:
        return node.add(
            "Slice",
            around,
            node.int_constant("start", [by]),
            node.int_constant("end", [by + width]),
            node.int_constant("axis", [-1]),
        )

    before, here, behind = (shifted(i) for i in range(3))

    def looked_up(table: Value, lead: Value, low: Value) -> Value:
        row = node.add("Mul", lead, i32(node, 64))
        return node.add("Gather", table, node.add("Add", row, node.add("Mod", low, i32(node, 64))), axis=0)

    goes_on = node.add(
        "And",
        node.add("GreaterOrEqual", here, i32(node, 128)),
        node.add("Less", here, i32(node, 192)),
    )
    return where(node, goes_on, looked_up(second, before, here), looked_up(first, here, behind))


def _normalizer(node: OnnxNode, texts: set[int]) -> Results:
    x, dims, attributes = node.input(0), node.dims_of(0)[:-1], node.attributes
    if len(dims) not in (1, 2) or (len(dims) == 2 and dims[0] != 1):
        raise RefusedError(f"strings of shape {list(dims)}; [C] or [1, C] is needed")
    action, stop_strings = attributes.get("case_change_action", "NONE"), attributes.get("stopwords") or []
    result = x if action == "NONE" else _recased(node, x, action == "UPPER")
    if not stop_strings or not dims[-1]:
        return [StringTensor(node.add("Identity", result))]
    compared = x
    if not attributes.get("is_case_sensitive", 0):
        compared = _recased(node, x, False)
        stop_strings = ["".join(_other_case(c, False) for c in string) for string in stop_strings]
    stop = encoded(np.array(stop_strings, object))
    flat = node.add("Reshape", compared, node.int_constant("rows", [dims[-1], 1, width_of(x)]))
    is_stop = node.add("Cast", same_text(node, flat, node.constant(stop, "stop")), to="i32")
    stopped = node.add("ReduceMax", is_stop, node.int_constant("words", [1]), keepdims=0)
    kept = node.add("Equal", stopped, i32(node, 0))
    rest, count = node.adds("Compress", 2, result, kept, axis=len(dims) - 1)
    node.builder.set_extent(rest, len(dims) - 1, node.add("Max", count, node.constant(np.array(1, np.int64), "one")))
    return [StringTensor(rest)]


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


def _label_encoder(node: OnnxNode, texts: set[int]) -> Results:
    """The value of the first key that an element equals; the last value is the default."""
    keys, values, default = _pairs(node.attributes)
    x = node.input(0)
    if (keys.dtype == object) != (0 in texts):
        raise RefusedError("its keys are not of its input's type")
    dims = node.dims_of(0)[:-1] if texts else node.dims_of(0)
    if not math.prod(dims):
        nothing = np.zeros(dims, values.dtype)
        return [text_constant(node, "nothing", nothing) if values.dtype == object else node.constant(nothing, "none")]
    at = _key_index(node, x, keys)
    table = np.concatenate([values, default])
    if values.dtype == object:
        return [StringTensor(node.add("Gather", text_constant(node, "values", table).bytes, at, axis=0))]
    return [node.add("Gather", node.constant(table, "values"), at, axis=0)]


def _key_index(node: OnnxNode, x: Value, keys: Array) -> Value:
    """The index of the key that each element equals, i64; the number of keys where it is none of them."""
    if keys.dtype == object:
        column = node.add("Unsqueeze", x, node.int_constant("keys", [-2]))
        same = same_text(node, column, node.constant(encoded(keys), "keys"))
    else:
        column = node.add("Unsqueeze", x, node.int_constant("keys", [-1]))
        same = node.add("Equal", column, node.constant(keys.astype(x.type.dtype.numpy), "keys"))
        if keys.dtype.kind == "f" and np.isnan(keys).any():
            both = node.add("And", node.add("IsNaN", column), node.constant(np.isnan(keys), "nan"))
            same = node.add("Or", same, both)
    every = node.constant(np.ones((*same.type.dims[:-1], 1), np.bool_), "none")
    matches = node.add("Cast", node.add("Concat", same, every, axis=-1), to="i32")
    return node.add("ArgMax", matches, axis=-1, keepdims=0)


def _one_hot(node: OnnxNode, texts: set[int]) -> Results:
    """f32 of which category each element is; one of no category is all zeros."""
    x = node.input(0)
    stop_strings = node.attributes.get("cats_strings")
    numbers = node.attributes.get("cats_int64s")
    if texts and stop_strings:
        column = node.add("Unsqueeze", x, node.int_constant("categories", [-2]))
        same = same_text(node, column, node.constant(encoded(np.array(stop_strings, object)), "categories"))
    elif numbers and not texts:
        column = node.add("Unsqueeze", node.add("Cast", x, to="i64"), node.int_constant("last", [-1]))
        same = node.add("Equal", column, node.int_constant("categories", numbers))
    else:
        raise RefusedError("its categories are not of its input's type")
    return [node.add("Cast", same, to="f32")]


def _tf_idf(node: OnnxNode, texts: set[int]) -> Results:
    """As of integers: those that say which string of the pool each string is."""
    pool = node.attributes.pop("pool_strings", None)
    if not pool or not math.prod(node.dims_of(0)[:-1]):
        raise RefusedError("its n-grams are not strings, or its input is empty")
    stop_strings = sorted(set(pool))
    node.set_input(0, _key_index(node, node.input(0), np.array(stop_strings, object)))
    node.attributes["pool_int64s"] = [stop_strings.index(string) for string in pool]
    return tf_idf(node)


# ------------------------------------------------------------------------------------------------ moving strings
def _axis(node: OnnxNode, rank: int) -> int:
    axis = int(node.attributes.get("axis", 0))
    if not -rank <= axis < rank:
        raise RefusedError(f"axis {axis} of strings with {rank} dimensions")
    return axis % rank


def _rank(node: OnnxNode, i: int = 0) -> int:
    return len(node.dims_of(i)) - 1


def _moved(node: OnnxNode, *inputs: Value, **attributes: object) -> Results:
    return [StringTensor(node.add(node.type, *inputs, **attributes))]


def _joined(node: OnnxNode, texts: set[int]) -> Results:
    values = same_width(node, [node.input(i) for i in range(len(node.inputs))])
    return _moved(node, *values, axis=_axis(node, _rank(node)))


def _gather(node: OnnxNode, texts: set[int]) -> Results:
    return _moved(node, node.input(0), node.input(1), axis=_axis(node, _rank(node)))


def _known_axes(node: OnnxNode, i: int, rank: int) -> Value:
    return node.int_constant("axes", [int(a) % rank for a in node.constant_input(i, "the axes")])


def _squeeze(node: OnnxNode, texts: set[int]) -> Results:
    rank = _rank(node)
    if node.has(1):
        return _moved(node, node.input(0), _known_axes(node, 1, rank))
    return _moved(
        node, node.input(0), node.int_constant("axes", [i for i, n in enumerate(node.dims_of(0)[:-1]) if n == 1])
    )


def _unsqueeze(node: OnnxNode, texts: set[int]) -> Results:
    return _moved(node, node.input(0), _known_axes(node, 1, _rank(node) + node.input(1).type.size))


def _reshape(node: OnnxNode, texts: set[int]) -> Results:
    dims = node.dims_of(0)
    if node.type == "Flatten":
        axis = node.attributes.get("axis", 1)
        axis = axis + len(dims) - 1 if axis < 0 else axis
        wanted = [math.prod(dims[:axis]), math.prod(dims[axis:-1])]
    else:
        wanted = [int(n) for n in node.constant_input(1, "the shape")]
        if not node.attributes.get("allowzero", 0):
            wanted = [n or dims[i] for i, n in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = math.prod(dims[:-1]) // rest if rest else 0
    return [StringTensor(node.add("Reshape", node.input(0), node.int_constant("shape", [*wanted, dims[-1]])))]


def _transpose(node: OnnxNode, texts: set[int]) -> Results:
    rank = _rank(node)
    perm = node.attributes.get("perm") or list(range(rank))[::-1]
    return _moved(node, node.input(0), perm=[*perm, rank])


def _slice(node: OnnxNode, texts: set[int]) -> Results:
    rank = _rank(node)
    axes = _known_axes(node, 3, rank) if node.has(3) else node.int_constant("axes", range(node.input(1).type.size))
    more = [node.input(4)] if node.has(4) else []
    return _moved(node, node.input(0), node.input(1), node.input(2), axes, *more)


def _expand(node: OnnxNode, texts: set[int]) -> Results:
    shape = np.broadcast_shapes(node.dims_of(0)[:-1], tuple(int(n) for n in node.constant_input(1, "the shape")))
    return _moved(node, node.input(0), node.int_constant("shape", [*shape, node.dims_of(0)[-1]]))


def _chosen(node: OnnxNode, texts: set[int]) -> Results:
    condition = node.add("Unsqueeze", node.input(0), node.int_constant("last", [-1]))
    return _moved(node, condition, *same_width(node, [node.input(1), node.input(2)]))


def _shape(node: OnnxNode, texts: set[int]) -> Results:
    dims = node.dims_of(0)[:-1]
    if node.type == "Size":
        return [node.constant(np.array(math.prod(dims), np.int64), "size")]
    ends = slice(node.attributes.get("start", 0), node.attributes.get("end"))
    return [node.int_constant("shape", dims[ends])]


STRINGS: dict[str, Callable[[OnnxNode, set[int]], Results]] = {
    "Cast": cast,
    "Concat": _joined,
    "Equal": _equal,
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "FeatureVectorizer": feature_vectorizer,
    "Identity": lambda node, texts: _moved(node, node.input(0)),
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
"""The operators on strings, and those of ai.onnx.ml, which may give strings for numbers."""

MAKES_STRINGS = frozenset(
    {
        "FeatureVectorizer",
        "Imputer",
        "LabelEncoder",
        "LinearClassifier",
        "LinearRegressor",
        "Normalizer",
        "OneHotEncoder",
        "Scaler",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    }
)
"""Operators that are handled here whatever types they read."""
