"""The int8 SVDF compared with loops in TFLite Micro's arithmetic and, if installed, with LiteRT."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.ops.requantize import quantized_multiplier
from tenon.runtime.engine.device import RemoteBundle
from tflite_models import Model

STEPS = 14


@dataclass(frozen=True)
class Svdf:
    """A layer with random weights.  ``reach``: the largest tap; ``coarse``: a factor of the scale of the state."""

    batch: int = 1
    size: int = 12
    rank: int = 2
    units: int = 5
    memory: int = 7
    state: str = "i16"
    reach: int = 3000
    coarse: float = 1.0
    zero: int = -9

    def weights(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(self.size)
        count, kind = self.rank * self.units, np.int16 if self.state == "i16" else np.int8
        features = rng.integers(-127, 128, (count, self.size)).astype(np.int8)
        filters = rng.integers(-self.reach, self.reach + 1, (count, self.memory)).astype(kind)
        return features, filters, rng.integers(-3000, 3000, self.units).astype(np.int32)

    def scales(self) -> tuple[float, float, float, float, float]:
        """The scales of the input, features, filters, state and output, as f32."""
        state = 0.0005 if self.state == "i16" else 0.06
        return tuple(float(np.float32(s)) for s in (0.03, 0.01, 0.5 / self.reach, state * self.coarse, 0.07))  # type: ignore[return-value]

    def bytes(self) -> bytes:
        model, (features, filters, bias) = Model(), self.weights()
        x_scale, features_scale, filters_scale, state_scale, y_scale = self.scales()
        x = model.tensor("x", (self.batch, self.size), "i8", scale=[x_scale], zero=[self.zero])
        w = model.constant("features", features, scale=[features_scale])
        t = model.constant("filters", filters, scale=[filters_scale])
        b = model.constant("bias", bias, scale=[float(np.float32(state_scale) * np.float32(filters_scale))])
        s = model.tensor("state", (self.batch, filters.size), self.state, scale=[state_scale], zero=[0])
        model.tensors[s] = {**model.tensors[s], 5: ("bool", True)}  # is_variable
        y = model.tensor("y", (self.batch, self.units), "i8", scale=[y_scale], zero=[4])
        model.add("SVDF", [x, w, t, b, s], [y], rank=self.rank, activation=1)
        return model.bytes([x], [y])

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng(3)
        return [rng.integers(-128, 128, (self.batch, self.size)).astype(np.int8) for _ in range(STEPS)]

    def expected(self) -> list[Array]:
        features, filters, bias = (a.astype(np.int64) for a in self.weights())
        x_scale, features_scale, filters_scale, state_scale, y_scale = map(np.float32, self.scales())
        first, second = float(x_scale * features_scale / state_scale), float(state_scale * filters_scale / y_scale)
        info = np.iinfo(self.state.replace("i", "int"))
        state, outputs = np.zeros((self.batch, *filters.shape), np.int64), []
        for x in self.inputs():
            fresh = np.clip(times((x.astype(np.int64) - self.zero) @ features.T, first), info.min, info.max)
            state = np.concatenate([state[:, :, 1:], fresh[:, :, None]], 2)
            sums = (state * filters).reshape(self.batch, self.units, -1).sum(-1) + bias
            outputs.append(np.clip(times(sums, second) + 4, -128, 127).astype(np.int8))
        return outputs


def times(x: Array, factor: float) -> Array:
    """Times a multiplier of 31 bits, rounded twice, one number at a time in Python's integers."""
    multiplier, shift = quantized_multiplier(factor)
    left, right = max(shift, 0), max(-shift, 0)

    def one(n: int) -> int:
        high = ((n << left) * multiplier + (1 << 30)) >> 31
        size = (abs(high) + ((1 << right) >> 1)) >> right
        return size if high >= 0 else -size

    return np.array([one(int(n)) for n in x.reshape(-1)], np.int64).reshape(x.shape)


CASES = {
    "plain": Svdf(),
    "batch": Svdf(batch=2, rank=1, units=3),
    "no memory": Svdf(memory=1),
    "one unit": Svdf(units=1),
    "8-bit state": Svdf(state="i8", reach=127),
    "saturated state": Svdf(coarse=0.02),
    "input at its end": Svdf(zero=-128),
    "coarse state": Svdf(coarse=4, zero=127),
}


def outputs(case: Svdf) -> list[Array]:
    graph = importers.load(case.bytes())
    (state,) = (v for v in graph.inputs if v.name != "x")
    assert state.type.dtype == case.state
    kept, results = np.zeros(state.type.dims, state.type.dtype.numpy), []
    for x in case.inputs():
        answers = evaluate(graph, {"x": x, state.name: kept})
        kept = answers[f"{state.name}_out"]
        results.append(answers["y"])
    return results


@pytest.mark.parametrize("name", CASES)
def test_results_match_bit_for_bit(name: str) -> None:
    np.testing.assert_array_equal(outputs(CASES[name]), CASES[name].expected())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.state == "i16"])
def test_results_match_litert(name: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    case = CASES[name]
    resolver = interpreter.OpResolverType.BUILTIN_REF
    net = interpreter.Interpreter(model_content=case.bytes(), experimental_op_resolver_type=resolver)
    net.allocate_tensors()
    for x, expected in zip(case.inputs(), case.expected(), strict=True):
        net.set_tensor(net.get_input_details()[0]["index"], x)
        net.invoke()
        np.testing.assert_array_equal(net.get_tensor(net.get_output_details()[0]["index"]), expected)


def test_compiled_steps_match() -> None:
    """A sum of filter taps may need more than 32 bits: the state is any i16 numbers."""
    case = Svdf(reach=32767)
    bundle = tenon.compile(case.bytes(), name="svdf", no_tuning=True)
    assert bundle.answer  # every operator is one of integers
    graph, rng = importers.load(case.bytes()), np.random.default_rng(8)
    state = next(v for v in graph.inputs if v.name != "x")
    feeds = [
        {"x": x, state.name: rng.integers(-(1 << 15), 1 << 15, state.type.dims).astype(np.int16)} for x in case.inputs()
    ]
    for given, result in zip(feeds, RemoteBundle(bundle).run(feeds), strict=True):
        for output, array in evaluate(graph, given).items():
            np.testing.assert_array_equal(result[output], array)


def test_floats_stay_floats() -> None:
    """A state with a zero point has no kernel of integers here: the layer is computed in float."""
    model = Model()
    x, y = (model.tensor(name, dims, "i8", scale=[0.1], zero=[0]) for name, dims in (("x", (1, 3)), ("y", (1, 2))))
    w = model.constant("w", np.ones((2, 3), np.int8), scale=[0.1])
    t = model.constant("t", np.ones((2, 4), np.int8), scale=[0.1])
    s = model.tensor("state", (1, 8), "i8", scale=[0.1], zero=[3])
    model.add("SVDF", [x, w, t, -1, s], [y], rank=1, activation=0)
    graph = importers.load(model.bytes([x], [y]))
    assert {str(v.type.dtype) for v in graph.inputs if v.name != "x"} == {"f32"}
