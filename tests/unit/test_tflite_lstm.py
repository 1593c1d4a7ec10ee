"""LSTM of integers compared with loops in LiteRT's and TFLite Micro's arithmetic and, if installed, with both."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.tflite.fixed_point import sigmoid_table, tanh_table
from tenon.formats.importers.tflite.integer_lstm import IntegerLstm
from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.program import Repeat
from tenon.network.graph.graph import Array, Graph
from tenon.network.ops.integer_functions import IntegerSigmoid
from tenon.network.ops.integer_normalize import inverse_square_root
from tenon.network.ops.scan import Scan
from tenon.network.ops.unroll import unrolled
from tenon.network.passes.integers import to_integers
from tenon.runtime.engine.device import RemoteBundle
from tflite_models import Model

OPTIONS = 71
"""The number of UnidirectionalSequenceLSTMOptions in the schema's union; LSTM's own is 14."""


@dataclass
class Lstm:
    """A layer with random weights. ``power``: the scale of the cell state is 2**power."""

    steps: int = 6
    batch: int = 1
    size: int = 5
    cells: int = 7
    coupled: bool = False
    peepholes: bool = False
    projected: int = 0
    power: int = -11
    clip: float = 0.0
    time_major: bool = True
    reach: float = 1.0
    normalized: bool = False
    bits: int = 8
    type: str = "UNIDIRECTIONAL_SEQUENCE_LSTM"

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.steps + self.cells)
        self.width = self.projected or self.cells
        self.x, self.state = (0.02, -5), (0.0078125, 3)
        if self.bits == 16:
            self.x, self.state = (0.0001, 0), (2.0**-15, 0)
        self.between = (0.0078, 1) if self.projected else self.state
        self.unit = 0.003 if self.normalized else 2.0**-12
        self.weights: dict[str, tuple[Array, float]] = {}
        shapes = {"w": (self.cells, self.size), "r": (self.cells, self.width)}
        for kind, shape in shapes.items():
            for k in range(1 if self.coupled else 0, 4):
                self.store(f"{kind}{k}", rng.uniform(-self.reach, self.reach, shape), np.int8)
        for k in (0, 1, 3) if self.peepholes else ():
            if k or not self.coupled:
                self.store(f"p{k}", rng.uniform(-self.reach, self.reach, self.cells), np.int16)
        for k in range(1 if self.coupled else 0, 4):
            scale = self.x[0] * self.weights[f"w{k}"][1]
            wide = np.int64 if self.bits == 16 else np.int32
            if self.normalized:
                self.store(f"n{k}", rng.uniform(0.2, 1, self.cells), np.int16)
                scale = self.weights[f"n{k}"][1] / 1024
            self.weights[f"b{k}"] = np.round(rng.uniform(-1, 1, self.cells) / scale).astype(wide), scale
        if self.projected:
            self.store("p", rng.uniform(-1, 1, (self.width, self.cells)), np.int8)
            scale = self.weights["p"][1] * self.between[0]
            self.weights["pb"] = np.round(rng.uniform(-0.1, 0.1, self.width) / scale).astype(np.int32), scale
        half = 1 << (self.bits - 1)
        self.kind: Any = np.int8 if self.bits == 8 else np.int16
        self.input = rng.integers(-half, half, self.shape(self.size)).astype(self.kind)

    def store(self, name: str, numbers: Array, kind: Any) -> None:
        scale = float(np.abs(numbers).max() / np.iinfo(kind).max)
        self.weights[name] = np.round(numbers / scale).astype(kind), scale

    def shape(self, last: int) -> tuple[int, ...]:
        if self.type == "LSTM":
            return self.batch, last
        return (self.steps, self.batch, last) if self.time_major else (self.batch, self.steps, last)

    def bytes(self) -> bytes:
        model = Model()

        def grid(name: str, shape: tuple[int, ...], dtype: str, given: tuple[float, int]) -> int:
            return model.tensor(name, shape, dtype, scale=[given[0]], zero=[given[1]])

        small = f"i{self.bits}"
        x = grid("x", self.shape(self.size), small, self.x)
        names = [
            *(f"w{k}" for k in range(4)),
            *(f"r{k}" for k in range(4)),
            "p0",
            "p1",
            "p3",
            *(f"b{k}" for k in range(4)),
            "p",
            "pb",
        ]
        inputs = [x, *(self.constant(model, name) for name in names)]
        h = grid("h", (self.batch, self.width), small, self.state)
        c = grid("c", (self.batch, self.cells), "i16", (2.0**self.power, 0))
        for k in (h, c):
            model.tensors[k] = {**model.tensors[k], 5: ("bool", True)}  # is_variable
        y = grid("y", self.shape(self.width), small, self.state)
        inner = [grid(f"gate{k}", (0,), "i16", (self.unit, 0)) for k in range(4)] + [
            grid("in", (0,), "i8", self.between)
        ]
        options = {"activation": 4, "cell_clip": self.clip}
        if self.type != "LSTM":
            options["time_major"] = self.time_major
        norms = [self.constant(model, f"n{k}") for k in range(4)]
        model.add(self.type, [*inputs, h, c, *norms], [y], **options)
        model.operators[-1] = {
            **model.operators[-1],
            3: ("u8", 14 if self.type == "LSTM" else OPTIONS),
            8: np.array(inner, np.int32),
        }
        return model.bytes([x], [y])

    def constant(self, model: Model, name: str) -> int:
        if name not in self.weights:
            return -1
        data, scale = self.weights[name]
        return model.constant(name, data, scale=[scale])

    # ------------------------------------------------------------------------------------------ the definition
    def expected(self, arithmetic: str = "litert") -> Array:
        """Loops over time steps, in 64-bit integers."""
        x = self.input.astype(np.int64) - self.x[1]
        x = x.reshape(self.steps, self.batch, -1) if self.time_major else x.transpose(1, 0, 2)
        h, c = np.zeros((self.batch, self.width), np.int64), np.zeros((self.batch, self.cells), np.int64)
        results = []
        for row in x:
            h, c = self.step(row, h, c) if arithmetic == "litert" else self.micro_step(row, h, c)
            results.append(h + self.state[1])
        y = np.array(results).astype(self.kind)
        return (y if self.time_major else y.transpose(1, 0, 2)).reshape(self.shape(self.width))

    def gate(self, k: int, x: Array, h: Array, c: Array) -> Array:
        (w, w_scale), (r, r_scale) = self.weights[f"w{k}"], self.weights[f"r{k}"]
        bias = self.weights[f"b{k}"][0]
        own = x @ w.astype(np.int64).T + (0 if self.normalized else bias)
        total = limited(times(own, single(self.x[0], w_scale, self.unit)))
        total = limited(total + times(h @ r.astype(np.int64).T, single(self.state[0], r_scale, self.unit)))
        if f"p{k}" in self.weights:
            peep, scale = self.weights[f"p{k}"]
            total = limited(total + times(c * peep, single(2.0**self.power, scale, self.unit)))
        if self.normalized:
            total = np.array([self.normalize(row, *self.weights[f"n{k}"], bias) for row in total])
        return total + 32768

    def normalize(self, row: Array, weights: Array, scale: float, bias: Array) -> Array:
        """LiteRT's layer normalisation of one row, number by number."""
        values = [int(v) for v in row]
        mean = int(sum(values) * 1024 / len(values))
        variance = int((sum(v * v for v in values) * ((1 << 20) // len(values)) - mean * mean) / (1 << 20))
        guard = max(1, int(np.float32(10000) * np.float32(scale)))
        (multiplier,), (right,) = inverse_square_root(np.array([variance if variance >= 1 else guard]))
        results = []
        for v, w, b in zip(values, weights, bias, strict=True):
            steps = over(np.array([((1024 * v - mean) * int(multiplier) + (1 << 30)) >> 31]), int(right))[0]
            wide = int(steps) * int(w) + int(b)
            results.append(int((wide + (512 if wide > 0 else -512)) / 1024))
        return limited(times(np.array(results), float(np.float32(scale)) * 4096))

    def micro_step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """TFLite Micro's step."""
        gates = []
        for k in range(4):
            (w, w_scale), (r, r_scale) = self.weights[f"w{k}"], self.weights[f"r{k}"]
            own = times(x @ w.astype(np.int64).T + self.weights[f"b{k}"][0], product(self.x[0], w_scale), self.bits)
            again = times(h @ r.astype(np.int64).T, product(self.state[0], r_scale), self.bits)
            total = limited(limited(own) + limited(again)).astype(np.int16)
            gates.append(IntegerSigmoid("tanh" if k == 2 else "sigmoid").reference(total).astype(np.int64))
        enter, forget, new, out = gates
        c = limited(limited(times(forget * c, 2.0**-15)) + limited(times(enter * new, 2.0 ** (-30 - self.power))))
        if self.clip:
            most = int(self.clip / 2.0**self.power)
            c = np.clip(c, -most, most)
        up = self.power + 12
        squash = IntegerSigmoid("tanh", 3 << max(up, 0), max(-up, 0)).reference(c.astype(np.int16)).astype(np.int64)
        half = 1 << (self.bits - 1)
        hidden = times(squash * out, 2.0**-30 / float(np.float32(self.state[0])))
        return np.clip(hidden + self.state[1], -half, half - 1) - self.state[1], c

    def step(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        sigmoid = sigmoid_table().astype(np.int64)
        forget = sigmoid[self.gate(1, x, h, c)]
        enter = 32767 - forget if self.coupled else sigmoid[self.gate(0, x, h, c)]
        new = tanh_table(3)[self.gate(2, x, h, np.zeros_like(c))].astype(np.int64)
        c = limited(limited(over(forget * c, 15)) + limited(over(enter * new, 30 + self.power)))
        if self.clip:
            most = int(self.clip / 2.0**self.power)
            c = np.clip(c, -most, most)
        out = sigmoid[self.gate(3, x, h, c)] * tanh_table(15 + self.power)[c + 32768]
        scale, zero = self.between
        hidden = np.clip(times(out, float(np.float32(2.0**-30 / np.float32(scale)))) + zero, -128, 127) - zero
        if self.projected:
            weights, w_scale = self.weights["p"]
            sums = hidden @ weights.astype(np.int64).T + self.weights["pb"][0]
            factor = single(w_scale, scale, self.state[0])
            hidden = np.clip(times(sums, factor) + self.state[1], -128, 127) - self.state[1]
        return hidden, c


def limited(x: Array) -> Array:
    return np.clip(x, -32768, 32767)


def over(x: Array, bits: int) -> Array:
    """``x / 2**bits``, ties away from zero."""
    return np.array(
        [int(math.copysign((abs(int(n)) + (1 << bits >> 1)) >> bits, int(n))) for n in x.reshape(-1)], np.int64
    ).reshape(x.shape)


def single(a: float, b: float, unit: float) -> float:
    """a * b / unit in f32."""
    return float(np.float32(a) * np.float32(b) / np.float32(unit))


def product(a: float, b: float) -> float:
    """a * b in f32, in steps of a gate's argument."""
    return float(np.float32(a) * np.float32(b)) * 4096


def times(x: Array, factor: float, bits: int = 8) -> Array:
    """Multiply by a 31-bit fixed-point factor: doubling high multiplication, then a rounding shift; or sums of 16-bit
    numbers by one of 15 bits."""
    part, power = math.frexp(factor)
    digits = round(part * (1 << 31))
    if bits == 16:
        short = min((digits + (1 << 15)) >> 16, 32767)
        return (x.astype(np.int64) * short + (1 << (14 - power))) >> (15 - power)
    upper = [((int(n) << max(power, 0)) * digits + (1 << 30)) >> 31 for n in x.reshape(-1)]
    return over(np.array(upper, np.int64).reshape(x.shape), max(-power, 0))


CASES: dict[str, Lstm] = {
    "plain": Lstm(),
    "small weights": Lstm(reach=0.3),
    "large weights": Lstm(reach=3.0),
    "coupled": Lstm(coupled=True),
    "peepholes": Lstm(peepholes=True),
    "coupled peepholes": Lstm(coupled=True, peepholes=True),
    "projected": Lstm(projected=4),
    "clipped": Lstm(clip=0.5),
    "batch": Lstm(batch=3),
    "long": Lstm(steps=30, cells=16, size=10),
    "batch first": Lstm(batch=2, time_major=False),
    "finer memory": Lstm(power=-12),
    "finest memory": Lstm(power=-13, reach=0.3),
    "coarse memory": Lstm(power=-10),
    "many inputs": Lstm(steps=2, size=700),
    "one step": Lstm(steps=1, type="LSTM"),
    "loop": Lstm(steps=40),
    "loop, coupled": Lstm(steps=33, coupled=True, clip=0.5, batch=2, time_major=False),
}


MICRO: dict[str, Lstm] = {
    name: CASES[name]
    for name in (
        "plain",
        "large weights",
        "clipped",
        "batch",
        "long",
        "batch first",
        "finest memory",
        "coarse memory",
        "loop",
    )
} | {
    "16 bits": Lstm(bits=16),
    "16 bits, long": Lstm(bits=16, steps=20, cells=9, size=6),
    "16 bits, batch": Lstm(bits=16, batch=2, time_major=False, power=-12),
    "16 bits, deep": Lstm(bits=16, size=700),
    "16 bits, loop": Lstm(bits=16, steps=40, batch=2),
}
"""Layers that TFLite Micro has a kernel for."""
CASES |= {
    "normalised": Lstm(normalized=True),
    "normalised, long": Lstm(normalized=True, steps=20, cells=16, size=8),
    "normalised, peepholes": Lstm(normalized=True, coupled=True, peepholes=True, batch=2),
    "normalised, projected": Lstm(normalized=True, coupled=True, projected=4, batch=2),
    "normalised, loop": Lstm(normalized=True, steps=40, peepholes=True, projected=4),
}


def zeros(graph: Graph) -> dict[str, Array]:
    """States before the first step: their zero points."""
    return {
        v.name: np.full(v.type.dims, v.type.quant.zero_point[0] if v.type.quant else 0, v.type.dtype.numpy)
        for v in graph.inputs
    }


@pytest.mark.parametrize("name", CASES)
def test_results_match_bit_for_bit(name: str) -> None:
    case = CASES[name]
    graph = importers.load(case.bytes())
    output = evaluate(graph, {**zeros(graph), "x": case.input})["y"]
    assert output.dtype == np.int8
    np.testing.assert_array_equal(output, case.expected())


@pytest.mark.parametrize("name", MICRO)
def test_results_match_in_the_arithmetic_of_tflite_micro(name: str) -> None:
    case = MICRO[name]
    graph = importers.load(case.bytes())
    to_integers(graph, "tflm")
    assert "ArithmeticChoice" not in {node.op.name for node in graph}
    output = evaluate(graph, {"x": case.input})["y"]
    np.testing.assert_array_equal(output, case.expected("tflm"))


def test_arithmetics_differ() -> None:
    case = CASES["long"]
    assert (case.expected() != case.expected("tflm")).any()


@pytest.mark.parametrize("name", MICRO)
def test_results_match_tflite_micro(name: str) -> None:
    runtime = pytest.importorskip("tflite_micro", reason="TFLite Micro's interpreter is not installed").runtime
    case = MICRO[name]
    net = runtime.Interpreter.from_bytes(case.bytes(), arena_size=1 << 22)
    net.set_input(case.input, 0)
    net.invoke()
    np.testing.assert_array_equal(net.get_output(0), case.expected("tflm"))


@pytest.mark.parametrize("name", CASES)
def test_results_match_litert(name: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    case = CASES[name]
    for kind in ("BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "AUTO"):
        resolver = getattr(interpreter.OpResolverType, kind)
        net = interpreter.Interpreter(model_content=case.bytes(), experimental_op_resolver_type=resolver, num_threads=1)
        net.allocate_tensors()
        net.set_tensor(net.get_input_details()[0]["index"], case.input)
        net.invoke()
        np.testing.assert_array_equal(net.get_tensor(net.get_output_details()[0]["index"]), case.expected())


@pytest.mark.parametrize("arithmetic", ["litert", "tflm"])
@pytest.mark.parametrize(
    "name",
    ["plain", "projected", "normalised", "16 bits", "16 bits, deep", "loop", "16 bits, loop", "normalised, loop"],
)
def test_compiled_layers_match_with_weights_of_one_byte(name: str, arithmetic: Any) -> None:
    case = {**CASES, **MICRO}[name]
    of = "tflm" if case.bits == 16 or (arithmetic == "tflm" and name in MICRO) else "litert"
    bundle = tenon.compile(case.bytes(), name="lstm", arithmetic=arithmetic)
    assert bundle.answer  # nothing of it is computed in floats
    graph = importers.load(case.bytes())
    nodes = [node for part in with_bodies(graph) for node in part]
    products = [node for node in nodes if node.op.name in ("IntegerGemm", "IntegerWideConv")]
    assert {node.input(1).type.dtype.value for node in products} == {"i8"}
    assert not {v.type.dtype for node in nodes for v in node.outputs if v.type.dtype.is_float}
    np.testing.assert_array_equal(tenon.open(bundle).run({"x": case.input})["y"], case.expected(of))


@pytest.mark.parametrize("name", ["loop", "loop, coupled", "16 bits, loop", "normalised, loop"])
def test_many_steps_are_a_loop(name: str) -> None:
    """Whose body has as many nodes as a step, and whose code does not grow with the steps."""
    case = {**CASES, **MICRO}[name]
    graph = importers.load(case.bytes())
    loops = [node.op for node in graph if isinstance(node.op, Scan)]
    assert {loop.count for loop in loops} == {case.steps}
    assert not any(isinstance(node.op, Scan) for node in importers.load(replace(case, steps=2).bytes()))
    looped, flat = (tenon.compile(each, name="lstm", target="x86-64", threads=1) for each in (graph, unrolled(graph)))
    assert any(isinstance(item, Repeat) for item in looped.program.items)
    assert 4 * len(looped.source) < len(flat.source)
    assert looped.answer == flat.answer != ""


@pytest.mark.parametrize("name", ["loop", "16 bits, loop"])
@pytest.mark.parametrize("target", ["aarch64", "cortex-m4"])
def test_loops_on_other_machines(name: str, target: str) -> None:
    case = MICRO[name]
    with RemoteBundle(tenon.compile(case.bytes(), name="lstm", target=target, arithmetic="tflm")) as device:
        (answers,) = device.run([{"x": case.input}])
    np.testing.assert_array_equal(answers["y"], case.expected("tflm"))


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize("threads", [1, 3])
def test_loops_by_threads(threads: int) -> None:
    case = CASES["loop"]
    bundle = tenon.compile(case.bytes(), name="lstm", arithmetic="litert", threads=threads, profile=True)
    with tenon.open(bundle, threads=threads) as engine:
        np.testing.assert_array_equal(engine.run({"x": case.input})["y"], case.expected())
        engine.timestamps()
        np.testing.assert_array_equal(engine.outputs["y"], case.expected())


def test_single_steps_match_a_sequence() -> None:
    """States between runs are inputs and outputs in the types that they are stored in."""
    whole = Lstm(steps=5)
    single = Lstm(steps=1, type="LSTM")
    single.weights = whole.weights
    graph = importers.load(single.bytes())
    assert {v.name: v.type.dtype.value for v in graph.inputs} == {"x": "i8", "h": "i8", "c": "i16"}
    assert {v.name: v.type.quant for v in graph.outputs if v.name == "c_out"} == {"c_out": graph.inputs[-1].type.quant}
    state = {name: data for name, data in zeros(graph).items() if name != "x"}
    for row, expected in zip(whole.input, whole.expected(), strict=True):
        outputs = evaluate(graph, {**state, "x": row})
        np.testing.assert_array_equal(outputs["y"], expected)
        state = {name: outputs[f"{name}_out"] for name in state}
    bundle = tenon.compile(single.bytes(), name="lstm")
    assert bundle.answer  # every target gives the same bits
    with tenon.open(bundle) as engine:
        for row, expected in zip(whole.input, whole.expected(), strict=True):
            np.testing.assert_array_equal(engine.run({"x": row})["y"], expected)


def test_tables_approximate_the_functions() -> None:
    """gemmlowp's approximations have errors of up to 12 * 2**-15."""
    numbers = np.arange(-32768, 32768)
    assert np.abs(sigmoid_table() - 32768 / (1 + np.exp(-numbers / 4096))).max() < 7
    for bits in (3, 4, 5):
        assert np.abs(tanh_table(bits) - 32768 * np.tanh(numbers / (1 << (15 - bits)))).max() < 12
    np.testing.assert_array_equal(tanh_table(4)[1:32768], -tanh_table(4)[:32768:-1])


def test_unsupported_forms_are_computed_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    run = IntegerLstm.run

    def noting(self: IntegerLstm, *given: Any) -> Any:
        used.append(1)
        return run(self, *given)

    monkeypatch.setattr(IntegerLstm, "run", noting)
    importers.load(CASES["plain"].bytes())
    assert used
    used.clear()
    case = Lstm()
    case.weights["w1"] = case.weights["w1"][0].astype(np.int16), case.weights["w1"][1]
    importers.load(case.bytes())
    assert not used


def test_cell_scale_must_be_a_power_of_two() -> None:
    case = Lstm()
    case.power = math.log2(0.0003)  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="no power of two"):
        importers.load(case.bytes())
