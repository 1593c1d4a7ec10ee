"""MegEngine's operators in small dumps, compared with definitions in NumPy."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from definitions import conv2d, conv_transpose2d
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.megengine.load import hashed
from tenon.network.graph.graph import Array
from tflite_models import Fields, flatbuffer

pytestmark = pytest.mark.quick(importer="megengine")

RNG = np.random.default_rng(13)
X = RNG.uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)
W = RNG.uniform(-1, 1, (2, 4, 3, 3)).astype(np.float32)
D = RNG.uniform(-1, 1, (4, 2, 3, 3)).astype(np.float32)
B = RNG.uniform(-1, 1, (1, 2, 1, 1)).astype(np.float32)
V = [RNG.uniform(0.5, 1, (1, 4, 1, 1)).astype(np.float32) for _ in range(4)]
CODES = {"f": 0, "i": 4}
ITEM = np.dtype([("axis", "i1"), ("marks", "?", 4)])
DESC = np.dtype([("method", "<u4"), ("axis", "<i4")])


def tensor(x: Array, name: str = "", *, empty: bool = False) -> Fields:
    return {
        0: name,
        1: np.array(x.shape, np.uint32),
        3: {0: ("i8", CODES[x.dtype.kind])},
        4: ("u32", 0 if empty else x.nbytes),
    }


def dump(type: str, parameters: Fields, x: Array, constants: list[Array], at: int = 0, **more: Any) -> bytes:
    """One operator on an input and constants of a parameter provider; ``at`` is the index of the returned output."""
    stored = [np.asarray(c, np.int32 if np.asarray(c).dtype.kind == "i" else np.float32) for c in constants]
    operators: list[Fields] = [{0: ("u64", hashed("Host2DeviceCopy")), 7: [tensor(x, "data", empty=True)]}]
    if stored:
        operators.append({0: ("u64", hashed("MultipleDeviceTensorHolder")), 7: [tensor(c) for c in stored]})
    order = more.pop("order", range(1 + len(stored)))
    last: dict[int, Any] = {0: ("u64", hashed(type)), 2: parameters, 3: np.array(list(order), np.uint32), 12: "y"}
    if "dtype" in more:
        last[6] = {0: ("i8", more["dtype"])}
    if "policy" in more:
        last[10], last[11] = np.array([55], np.uint8), [{}]
    operators.append(last)
    graph = flatbuffer({3: operators, 4: np.array([1 + len(stored) + at], np.uint64)}, b"mgb1")
    weights = b"".join(c.tobytes() for c in stored)
    return b"MGBS" + bytes(4) + struct.pack("<Q", len(weights)) + weights + struct.pack("<I", len(graph)) + graph


def newer(type: str, parameters: Fields, x: Array, constants: list[Array], outputs: int, **more: Any) -> bytes:
    """The same in the second format, in which tensors contain their data and operators name their outputs."""
    stored = [np.asarray(c, np.int32 if np.asarray(c).dtype.kind == "i" else np.float32) for c in constants]
    held = [{1: tensor(c)[1], 3: tensor(c)[3], 6: np.frombuffer(c.tobytes(), np.uint8)} for c in stored]
    given = {0: "data", 1: tensor(x)[1], 3: tensor(x)[3]}
    ids = np.arange(1 + len(stored) + outputs, dtype=np.uint32)
    operators: list[Fields] = [{1: ("u64", hashed("Host2DeviceCopy")), 8: ids[:1], 11: [given]}]
    if stored:
        holder = {1: ("u64", hashed("MultipleDeviceTensorHolder")), 8: ids[1 : 1 + len(stored)], 11: held}
        operators.append(holder)
    order = np.array(list(more.pop("order", range(1 + len(stored)))), np.uint32)
    last: dict[int, Any] = {1: ("u64", hashed(type)), 2: "y", 4: parameters, 7: order, 8: ids[1 + len(stored) :]}
    if "dtype" in more:
        last[10] = {0: ("i8", more["dtype"])}
    operators.append(last)
    at = len(ids) - 1 if type == "BatchNorm" else 1 + len(stored) + more.get("at", 0)
    graph = flatbuffer({2: operators, 4: [{0: ("u32", at)}]}, b"mge2")
    return struct.pack("<I", len(graph)) + graph


def run(*given: Any, **more: Any) -> Array:
    (output,) = evaluate(importers.load(dump(*given, **more)), {"data": given[2]}).values()
    return output


def bins(x: Array, axis: int, count: int) -> Array:
    n = x.shape[axis]
    return np.stack(
        [x.take(range(i * n // count, -(-(i + 1) * n // count)), axis).mean(axis) for i in range(count)], axis
    )


def items(*rows: tuple[int, list[bool]]) -> Fields:
    return {0: np.array([(axis, marks) for axis, marks in rows], ITEM)}


def u32(**slots: int) -> Fields:
    return {int(name[1:]): ("u32", value) for name, value in slots.items()}


STEP = [True, True, True, False]
PLACE = [False, False, False, True]
FLAT = X.reshape(4, 30)
CASES: list[tuple[str, Fields, Array, list[Any], Array, dict[str, Any]]] = [
    ("ConvBiasForward", u32(s0=1), X, [W, B], np.maximum(conv2d(X, W) + B, 0), {"policy": True}),
    ("Convolution", u32(s3=2, s4=2), X, [W], conv2d(X, W)[:, :, ::2, ::2], {}),
    ("ConvolutionBackwardData", u32(s3=2, s4=2), X, [D], conv_transpose2d(X, D, 2), {"order": [1, 0]}),
    ("AdaptivePooling", u32(s0=1), X, [np.array([4, 3])], bins(bins(X, 2, 4), 3, 3), {}),
    (
        "BatchNorm",
        {0: ("u32", 2), 1: ("u32", 1), 2: ("f64", 0.01)},
        X,
        V,
        (X - V[2]) / np.sqrt(V[3] + np.float32(0.01)) * V[0] + V[1],
        {"at": 4},
    ),
    (
        "BatchNorm",
        {0: ("u32", 2), 1: ("u32", 1), 2: ("f64", 0.01)},
        X,
        V,
        (X - V[2]) / np.sqrt(V[3] + np.float32(0.01)) * V[0] + V[1],
        {"at": 5},
    ),
    (
        "LayerNorm",
        {1: ("f32", 0.01), 2: ("u64", 1)},
        FLAT,
        [np.ones(30), np.zeros(30)],
        (FLAT - FLAT.mean(1, keepdims=True)) / np.sqrt(FLAT.var(1, keepdims=True) + 0.01),
        {},
    ),
    ("AxisAddRemove", {0: np.array([(1, 0), (0, 2)], DESC)}, X, [], X[0][:, :, None], {}),
    (
        "Subtensor",
        items((2, STEP), (1, PLACE)),
        X,
        [np.array([5]), np.array([0]), np.array([-2]), np.array([1])],
        X[:, 1, 5:0:-2],
        {},
    ),
    ("IndexingMultiAxisVec", items((2, PLACE)), X, [np.array([5, 0, 0])], X[:, :, [5, 0, 0]], {}),
    ("IndexingOneHot", {0: ("i32", 1)}, FLAT, [np.array([3, 1, 0, 7])], FLAT[range(4), [3, 1, 0, 7]][:, None], {}),
    ("Split", {0: ("i32", 1)}, X, [np.array([1]), np.array([3])], X[:, 1:], {"at": 1}),
    ("Reshape", {0: ("i32", 1)}, X, [np.array([6, 1])], X.reshape(6, 20), {}),
    ("GetVarShape", {}, X, [], np.array(X.shape), {}),
    ("Broadcast", {}, X, [np.array([2, 4, 6, 5])], np.broadcast_to(X, (2, 4, 6, 5)), {}),
    ("TopK", u32(s0=2), FLAT, [np.array([-3])], np.sort(FLAT, 1)[:, ::-1][:, :3], {}),
    ("TopK", u32(s0=2), FLAT, [np.array([2])], np.argsort(FLAT, 1)[:, :2], {"at": 1}),
    ("Argsort", u32(s0=1), FLAT, [], np.sort(FLAT, 1)[:, ::-1], {}),
    ("Argmax", {0: ("i32", 1)}, FLAT, [], FLAT.argmax(1)[:, None], {}),
    ("Cumsum", {0: ("i32", 1), 1: ("bool", False)}, FLAT, [], FLAT.cumsum(1), {}),
    ("Resize", u32(s0=0, s1=0), X, [np.array([12, 10])], X.repeat(2, 2).repeat(2, 3), {}),
    (
        "Padding",
        {2: ("u32", 1), 10: ("u32", 2), 14: ("f32", 0.5)},
        X,
        [],
        np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=0.5),
        {},
    ),
    (
        "ROIAlign",
        {0: ("u32", 1), 3: ("f32", 0.5), 6: ("u32", 1), 7: ("u32", 1)},
        X,
        [np.array([[0, 1, 2, 2, 3]], np.float32)],
        X[:, :, 2:3, 1:2],
        {},
    ),
    ("TypeCvt", {}, 9 * X, [], (9 * X).astype(np.int32), {"dtype": 4}),
    ("Elemwise", u32(s0=28), X, [V[0]], np.logaddexp(X, V[0]), {}),
    ("Elemwise", u32(s0=17), X, [V[0]], np.floor(X / V[0]), {}),
    ("Elemwise", u32(s0=25), X, [V[0]], (X > 0) * V[0], {}),
]


@pytest.mark.parametrize(
    ("type", "parameters", "x", "constants", "result", "more"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_operators(
    type: str, parameters: Fields, x: Array, constants: list[Any], result: Array, more: dict[str, Any]
) -> None:
    count = {"Split": 2, "TopK": 2, "Argsort": 2, "LayerNorm": 3, "BatchNorm": 6}.get(type, 1)
    for file in (dump(type, parameters, x, constants, **more), newer(type, parameters, x, constants, count, **more)):
        (output,) = evaluate(importers.load(file), {"data": x}).values()
        assert output.shape == result.shape
        np.testing.assert_allclose(output, result, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("type", "parameters", "constants", "reason"),
    [
        ("Reshape", {}, [], "0 inputs|1 inputs"),
        ("ConvBiasForward", u32(s3=3), [W], "format 3"),
        ("BatchNorm", {}, V, "statistics of channels"),
        ("CondTake", {}, [V[0]], "not supported"),
        ("TypeCvt", {}, [], "with a scale"),
        ("TopK", {}, [np.array([3])], "largest or smallest"),
    ],
)
def test_refusals(type: str, parameters: Fields, constants: list[Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        run(type, parameters, X, constants)
