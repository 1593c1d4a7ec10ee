"""DIV, L2_NORMALIZATION, LOG_SOFTMAX and SOFTMAX of integers, and functions and long sums of 16 bits: the answers
of LiteRT's reference kernels and of TFLite Micro, recorded as digests, and compared with the runtimes where they are
installed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import quantised_operators
import tenon
from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.integer_div import IntegerDiv
from tenon.network.ops.requantize import quantized_multiplier
from tenon.network.passes.integers import to_integers
from tflite_models import Model

Grid = tuple[float, int]
assert "DIV" in quantised_operators.SINGLES  # importing it completes what other readers need of these operators


@dataclass(frozen=True)
class Operator:
    """An operator on rows of random integers."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    grids: tuple[Grid, ...]
    result: Grid
    flat: bool = False
    weights: int = 0
    activation: int = 0
    to: str = ""
    beta: float = 1.0

    def bytes(self) -> bytes:
        model = Model()
        inputs = [
            model.tensor(f"x{i}", self.shape, self.dtype, scale=[g[0]], zero=[g[1]]) for i, g in enumerate(self.grids)
        ]
        operands, shape = list(inputs), self.shape
        if self.weights:
            rng, scale = np.random.default_rng(5), 0.01
            data = rng.integers(-127, 128, (self.weights, self.shape[1])).astype(np.int8)
            data[0] = 127
            bias = rng.integers(-(1 << 32), 1 << 32, self.weights)
            sums = float(np.float32(scale) * np.float32(self.grids[0][0]))
            operands += [model.constant("w", data, scale=[scale]), model.constant("b", bias, scale=[sums])]
            shape = (self.shape[0], self.weights)
        if self.type == "EQUAL":
            y = model.tensor("y", shape, "bool")
        else:
            y = model.tensor("y", shape, self.to or self.dtype, scale=[self.result[0]], zero=[self.result[1]])
        options: dict[str, float] = (
            {"activation": self.activation} if self.type in ("DIV", "FULLY_CONNECTED", "L2_NORMALIZATION") else {}
        )
        options |= {"beta": self.beta} if self.type == "SOFTMAX" else {}
        model.add(self.type, operands, [y], **options)
        return model.bytes(inputs, [y])

    def feeds(self) -> list[Array]:
        rng, kind = np.random.default_rng(3), DType(self.dtype).numpy
        info: Any = np.iinfo(kind)
        feeds = [rng.integers(info.min, info.max + 1, self.shape).astype(kind) for _ in self.grids]
        if self.flat:
            feeds[0][:-1] = self.grids[0][1]
            feeds[0][0, 0] += 1
        if self.type == "EQUAL":
            feeds[1] = (feeds[0] * (self.grids[0][0] / self.grids[1][0])).astype(kind)
        if self.type == "NEG":
            feeds[0] = np.maximum(feeds[0], -info.max).astype(kind)
        if self.type == "DIV":
            feeds[1] = np.where(feeds[1] == self.grids[1][1], feeds[1] ^ 1, feeds[1]).astype(kind)
        if self.weights:
            feeds[0][0] = info.max
        return feeds

    def ours(self, arithmetic: Any) -> Array:
        graph = importers.load(self.bytes())
        assert not to_integers(graph, arithmetic)  # nothing stays in float
        assert not any(v.type.dtype.is_float for node in graph for v in node.outputs)
        names = [v.name for v in graph.inputs]
        (y,) = evaluate(graph, dict(zip(names, self.feeds(), strict=True))).values()
        return y


EIGHT, MIDDLE = (0.03, -9), {"i8": (1 / 128, 0), "u8": (1 / 128, 128)}
FINE = (2.0**-16, -(1 << 15))
OPERATORS: dict[str, Operator] = {
    "length i8": Operator("L2_NORMALIZATION", "i8", (5, 17), (EIGHT,), MIDDLE["i8"]),
    "length i8, long": Operator("L2_NORMALIZATION", "i8", (2, 700), (EIGHT,), MIDDLE["i8"]),
    "length i8, flat": Operator("L2_NORMALIZATION", "i8", (3, 9), (EIGHT,), MIDDLE["i8"], flat=True),
    "length i8, one": Operator("L2_NORMALIZATION", "i8", (40, 1), (EIGHT,), MIDDLE["i8"]),
    "length i8, image": Operator("L2_NORMALIZATION", "i8", (1, 3, 4, 6), (EIGHT,), MIDDLE["i8"]),
    "length u8": Operator("L2_NORMALIZATION", "u8", (5, 17), ((0.03, 140),), MIDDLE["u8"]),
    "length u8, flat": Operator("L2_NORMALIZATION", "u8", (3, 9), ((0.03, 140),), MIDDLE["u8"], flat=True),
    "log softmax": Operator("LOG_SOFTMAX", "i8", (5, 17), ((0.07, 3),), (1 / 16, 127)),
    "log softmax, coarse": Operator("LOG_SOFTMAX", "i8", (5, 10), ((0.9, -4),), (1 / 16, 127)),
    "log softmax, fine": Operator("LOG_SOFTMAX", "i8", (2, 1001), ((0.004, 0),), (1 / 16, 127)),
    "log softmax, one": Operator("LOG_SOFTMAX", "i8", (3, 1), ((0.1, 0),), (1 / 16, 127)),
    "softmax i8 to i16": Operator("SOFTMAX", "i8", (5, 17), ((0.07, 3),), FINE, to="i16"),
    "softmax i8 to i16, coarse": Operator("SOFTMAX", "i8", (5, 10), ((0.9, -4),), FINE, to="i16", beta=0.5),
    "softmax i8 to i16, fine": Operator("SOFTMAX", "i8", (2, 1001), ((0.004, 0),), FINE, to="i16"),
    "softmax i8 to i16, one": Operator("SOFTMAX", "i8", (3, 1), ((0.1, 0),), FINE, to="i16"),
    "softmax i8 to i16, image": Operator("SOFTMAX", "i8", (1, 3, 4, 6), ((0.05, -9),), FINE, to="i16", beta=2.0),
    "softmax u8 to i16": Operator("SOFTMAX", "u8", (5, 17), ((0.07, 140),), FINE, to="i16"),
    "quotient i8": Operator("DIV", "i8", (4, 90), ((0.05, 3), (0.04, -20)), (0.02, 11)),
    "quotient i8, clipped": Operator("DIV", "i8", (4, 90), ((0.05, 3), (0.04, -20)), (0.02, 11), activation=1),
    "quotient u8": Operator("DIV", "u8", (4, 90), ((0.05, 113), (0.04, 5)), (0.017, 100)),
    "quotient i16": Operator("DIV", "i16", (4, 90), ((0.001, 0), (0.0004, 0)), (0.003, 0)),
    "exp i16": Operator("EXP", "i16", (4, 900), ((0.0001, 0),), (0.0008, 0)),
    "log i16": Operator("LOG", "i16", (4, 900), ((0.0001, 0),), (0.0002, 0)),
    "negative i16": Operator("NEG", "i16", (4, 90), ((0.0001, 0),), (0.0001, 0)),
    "equal i16": Operator("EQUAL", "i16", (4, 900), ((0.0005, 0), (0.0006, 0)), (1.0, 0)),
    "long sums": Operator("FULLY_CONNECTED", "i16", (9, 900), ((0.0003, 0),), (0.9, 0), weights=17),
}

RECORDED = {
    "length i8": ("5bd286117663a52e", "5bd286117663a52e"),
    "length i8, long": ("e4312a8c79694618", "e4312a8c79694618"),
    "length i8, flat": ("73f65a3918dd68d8", "73f65a3918dd68d8"),
    "length i8, one": ("60817a5c21c1a91c", "60817a5c21c1a91c"),
    "length i8, image": ("3736f55efb263b58", "3736f55efb263b58"),
    "length u8": ("76ff264d41f637a5", ""),
    "length u8, flat": ("44d276a2a8e0781b", ""),
    "log softmax": ("ed8bcb22bf4d2fbe", "ed8bcb22bf4d2fbe"),
    "log softmax, coarse": ("6ad432b786da9ce0", "6ad432b786da9ce0"),
    "log softmax, fine": ("3fe36153bf606940", "3fe36153bf606940"),
    "log softmax, one": ("4977021028c4a74c", "4977021028c4a74c"),
    "softmax i8 to i16": ("0d3c1e8c7a7535f6", "0d3c1e8c7a7535f6"),
    "softmax i8 to i16, coarse": ("f15fabf1346d825b", "f15fabf1346d825b"),
    "softmax i8 to i16, fine": ("a70e06cc7df58514", "a70e06cc7df58514"),
    "softmax i8 to i16, one": ("d305ff048ea27ecd", "d305ff048ea27ecd"),
    "softmax i8 to i16, image": ("b1bf1af59eb5e7d6", "b1bf1af59eb5e7d6"),
    "softmax u8 to i16": ("0d3c1e8c7a7535f6", ""),
    "quotient i8": ("4df832c300706819", "4df832c300706819"),
    "quotient i8, clipped": ("fcf570128ba478a6", "fcf570128ba478a6"),
    "quotient u8": ("efa7bc8da2dcc45a", ""),
    "quotient i16": ("55e4c644c9f53cf3", ""),
    "exp i16": ("b6b5399de46a557f", ""),
    "log i16": ("9a9ee00e396f83c1", ""),
    "negative i16": ("29c45c4464b2418f", ""),
    "equal i16": ("b1a88090dcb9db2a", ""),
    "long sums": ("df93379886a48af5", "090761cd4ddb27c2"),
}
"""Digests of the answers of LiteRT 2.3's reference kernels and of TFLite Micro of October 2026; none where they have no
such kernel."""


def digest(y: Array) -> str:
    return hashlib.sha256(y.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("arithmetic", ["litert", "tflm"])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_those_recorded(name: str, arithmetic: Any) -> None:
    case = OPERATORS[name]
    recorded = RECORDED[name][arithmetic == "tflm"]
    if not recorded:
        pytest.skip("TFLite Micro has no such kernel")
    assert recorded == digest(case.ours(arithmetic))


@pytest.mark.parametrize("name", [n for n in OPERATORS if n.endswith(("8", "sums", "softmax", "to i16"))])
def test_compiled_results_are_those_of_the_references(name: str) -> None:
    case = OPERATORS[name]
    bundle = tenon.compile(case.bytes(), name="net", arithmetic="litert")
    assert bundle.answer  # nothing of it is computed in floats
    feeds = {f"x{i}": x for i, x in enumerate(case.feeds())}
    np.testing.assert_array_equal(tenon.open(bundle).run(feeds)["y"], case.ours("litert"))


def litert(case: Operator) -> Array:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    resolver = interpreter.OpResolverType.BUILTIN_REF
    net = interpreter.Interpreter(model_content=case.bytes(), experimental_op_resolver_type=resolver)
    net.allocate_tensors()
    for detail, given in zip(net.get_input_details(), case.feeds(), strict=True):
        net.set_tensor(detail["index"], given)
    net.invoke()
    return np.asarray(net.get_tensor(net.get_output_details()[0]["index"]))


def tflm(case: Operator) -> Array:
    runtime = pytest.importorskip("tflite_micro", reason="TFLite Micro's interpreter is not installed").runtime
    net = runtime.Interpreter.from_bytes(case.bytes(), arena_size=1 << 20)
    for i, given in enumerate(case.feeds()):
        net.set_input(given, i)
    net.invoke()
    return np.asarray(net.get_output(0))


@pytest.mark.parametrize("name", OPERATORS)
def test_results_match_litert(name: str) -> None:
    case = OPERATORS[name]
    np.testing.assert_array_equal(case.ours("litert"), litert(case))


@pytest.mark.parametrize("name", OPERATORS)
def test_results_match_tflite_micro(name: str) -> None:
    case = OPERATORS[name]
    if not RECORDED[name][1]:
        pytest.skip("TFLite Micro has no such kernel")
    np.testing.assert_array_equal(case.ours("tflm"), tflm(case))


def test_divisors_of_zero_count_as_one() -> None:
    op = IntegerDiv("double", (3, 5, 7), factor=quantized_multiplier(2.0))
    a, zero, one = np.arange(-128, 128, dtype=np.int8), np.full(256, 5, np.int8), np.full(256, 6, np.int8)
    np.testing.assert_array_equal(op.reference(a, zero), op.reference(a, one))
