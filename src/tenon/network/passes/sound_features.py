"""Features of sound compiled into a graph: its input takes samples instead of rows of features.

The graph computes what ``SoundFeatures.rows`` defines.  A loop makes one row of features from each window, so that the
memory of one window suffices; the Fourier transform of L = M N points is computed as matrix products with M and N rows
(Cooley and Tukey, An Algorithm for the Machine Calculation of Complex Fourier Series, 1965), whose tables are small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph, Node, Origin, Value
from tenon.network.graph.outline import outline
from tenon.network.graph.sound_features import SoundFeatures, cosines
from tenon.network.graph.types import F32, DType, Quant, TensorType
from tenon.network.graph.writer import Names
from tenon.network.ops.scan import Scan

FEATURES = "SoundFeatures"
"""The type of the loop over windows, and of the layers in its body."""


def compile_features_in(graph: Graph, features: SoundFeatures) -> Graph:
    """A copy of the graph whose only input takes i16 samples of sound [count] in place of features.

    Samples are PCM, -32768 to 32767; ``count`` follows from the number of rows that the input takes.  The shapes must
    be bound.  Raises InputError unless exactly one input takes whole rows of features.
    """
    if len(graph.inputs) != 1:
        listed = ", ".join(f"{v.name} {v.type}" for v in graph.inputs)
        raise InputError(f"features of sound can be compiled in for one input; the model has {listed}")
    if features.centre:
        raise InputError("features centre=true cannot be compiled in: give half a window of silence around the sound")
    new = graph.copy()
    (old,) = new.inputs
    rows, rest = divmod(old.type.size, features.width)
    if rest or not rows:
        raise InputError(
            f"rows of {features.width} features do not fill the input {old.name} {old.type}: give count=, bands= or "
            "another kind"
        )
    given = Value(old.name, TensorType(DType.I16, (features.samples(rows),), quant=Quant((1 / 32768,), (0,))))
    old.name = Names(new).fresh(f"{given.name}_features")
    steps = _Steps(new, given.name)
    x = _rows(steps, given, features, rows)
    x = steps.add("Reshape", x, np.array(old.type.dims, np.int64))
    if not old.type.dtype.is_float:
        x = _quantised(steps, x, old)
    elif old.type.dtype is not F32:
        x = steps.add("Cast", x, to=str(old.type.dtype))
    new.inputs[0] = given
    new.replace(old, x)
    new.preprocessing = {}
    return new


def _quantised(steps: _Steps, x: Value, old: Value) -> Value:
    """The features as the integers that a quantised input takes."""
    quant = old.type.quant
    scale = np.array(quant.scale[0] if quant else 1, np.float32)
    zero = np.array(quant.zero_point[0] if quant else 0, old.type.dtype.numpy)
    x = steps.add("QuantizeLinear", x, scale, zero, to=str(old.type.dtype))
    x.type = replace(x.type, quant=quant)  # which operators of TFLite read their scales from
    return x


def _rows(steps: _Steps, given: Value, features: SoundFeatures, rows: int) -> Value:
    """f32 [rows, width]: one iteration of a loop for each window, which carries the samples that windows share."""
    shared = max(0, features.window - features.step)
    first = steps.add("Slice", given, *_range(0, shared)) if shared else None
    count = rows * features.step
    later = steps.add("Slice", given, *_range(shared, shared + count))
    later = steps.add("Reshape", later, np.array([rows, features.step], np.int64))
    gain = _gain(steps, given) if features.peak else None
    held = [v for v in (first,) if v is not None]
    states = [Value(steps.fresh("state"), v.type) for v in held]
    block = Value(steps.fresh("block"), TensorType(DType.I16, (features.step,)))
    steps.begin()
    window = steps.add("Concat", states[0], block, axis=0) if states else block
    row = _row(steps, window, features, gain)
    after = [steps.add("Slice", window, *_range(features.step, features.step + shared))] if states else []
    return steps.loop(Scan(rows, len(states), 1), [*held, later], [*states, block], [*after, row])


def _gain(steps: _Steps, given: Value) -> Value:
    """f32 [1]: what scales the largest sample to 1."""
    most = steps.add("Cast", steps.add("ReduceMax", given, np.array([0], np.int64), keepdims=1), to=str(F32))
    least = np.array([1e-9 * 32768], np.float32)
    return steps.add("Div", np.array([32768], np.float32), steps.add("Max", most, least))


def _row(steps: _Steps, window: Value, features: SoundFeatures, gain: Value | None) -> Value:
    """f32 [width]: the features of a window of i16 samples [window or more]."""
    x = window
    if x.type.size > features.window:
        x = steps.add("Slice", x, *_range(0, features.window))
    x = steps.add("Mul", steps.add("Cast", x, to=str(F32)), (features.hann() / 32768).astype(np.float32))
    if gain is not None:
        x = steps.add("Mul", x, gain)
    real, imaginary, bins = _spectrum(steps, x, features)
    power = steps.add("Add", steps.add("Mul", real, real), steps.add("Mul", imaginary, imaginary))
    if features.power != 2:
        power = steps.add("Sqrt", power)
    if features.power not in (1, 2):
        power = steps.add("Pow", power, np.array(features.power, np.float32))
    bands = features.weights()
    weights = np.concatenate([bands, np.zeros((1, features.bands))])[np.minimum(bins, len(bands))]
    power = steps.add("Reshape", power, np.array([1, bins.size], np.int64))
    sums = steps.add("MatMul", power, weights.astype(np.float32))
    y = steps.add("Log", steps.add("Add", sums, np.array(features.offset, np.float32)))
    if features.kind == "mfcc":
        y = steps.add("MatMul", y, (cosines(features.bands)[:, : features.count] * features.scale).astype(np.float32))
    elif features.scale != 1:
        y = steps.add("Mul", y, np.array(features.scale, np.float32))
    if features.mean:
        y = steps.add("Sub", y, np.array(features.mean * features.scale, np.float32))
    return steps.add("Reshape", y, np.array([features.width], np.int64))


def _spectrum(steps: _Steps, x: Value, features: SoundFeatures) -> tuple[Value, Value, Array]:
    """Real and imaginary parts, f32 [M, K], of the transform of x, zero-padded, and the number of each element's bin.

    With n = N n1 + n2 and k = k1 + M k2, X[k] is the sum over n2 of W_N^(n2 k2) W_L^(n2 k1) times the sum over n1 of
    W_M^(n1 k1) x[n].  Only the first K values of k2 are computed, up to the highest frequency of the bands.
    """
    length = features.length
    m = 1 << (length.bit_length() - 1) // 2
    n = length // m
    highest = min(length // 2, int(features.high * length / features.rate) + 1)
    count = highest // m + 1
    pads = np.array([0, length - features.window], np.int64)
    x = steps.add("Pad", x, pads, np.array(0, np.float32)) if pads.any() else x
    x = steps.add("Reshape", x, np.array([m, n], np.int64))
    first = _roots(m, np.arange(m), np.arange(m))
    columns = steps.add("MatMul", np.concatenate([first.real, first.imag]).astype(np.float32), x)  # [2 M, N]
    real = steps.add("Slice", columns, *_range(0, m))
    imaginary = steps.add("Slice", columns, *_range(m, 2 * m))
    real, imaginary = steps.product(real, imaginary, _roots(length, np.arange(m), np.arange(n)), "Mul")
    real, imaginary = steps.product(real, imaginary, _roots(n, np.arange(n), np.arange(count)), "MatMul")
    return real, imaginary, (np.arange(m)[:, None] + m * np.arange(count)).reshape(-1)


def _roots(order: int, rows: Array, columns: Array) -> Array:
    """exp(-2 pi i row column / order)."""
    return np.asarray(np.exp(-2j * np.pi / order * (np.outer(rows, columns) % order)))


def _range(begin: int, end: int) -> tuple[Array, Array, Array]:
    """The operands of a Slice along axis 0."""
    return np.array([begin], np.int64), np.array([end], np.int64), np.array([0], np.int64)


class _Steps:
    """Nodes inserted before all others of a graph, in the order in which they are added."""

    def __init__(self, graph: Graph, stem: str) -> None:
        self.graph, self.stem, self.names = graph, stem, Names(graph)
        self.first: Node | None = next(iter(graph), None)
        self.body: list[Node] | None = None

    def fresh(self, name: str) -> str:
        return self.names.fresh(f"{self.stem}_{name}")

    def add(self, type: str, *inputs: Value | Array, **attributes: Any) -> Value:
        """The output of an operator on values and constants."""
        name = self.fresh(type.lower())
        values = [v if isinstance(v, Value) else self.graph.constant(self.names.fresh(f"{name}_of"), v) for v in inputs]
        operator = ops.registry()[type](**attributes)
        origin = Origin(layer=name, type=type if self.body is None else FEATURES)
        node = self.graph.add(operator, values, [name], origin, before=self.first)
        if self.body is not None:
            self.body.append(node)
        return node.output

    def product(self, real: Value, imaginary: Value, table: Array, type: str) -> tuple[Value, Value]:
        """The product of complex numbers and a table of such."""
        re, im = table.real.astype(np.float32), table.imag.astype(np.float32)
        return (
            self.add("Sub", self.add(type, real, re), self.add(type, imaginary, im)),
            self.add("Add", self.add(type, real, im), self.add(type, imaginary, re)),
        )

    def begin(self) -> None:
        """Collect what is added from here on for a loop."""
        self.body = []

    def loop(self, op: Scan, given: list[Value], inner: list[Value], results: list[Value]) -> Value:
        """The last output of a loop whose body is what was added since ``begin``, for ``inner`` and ``results``."""
        assert self.body is not None
        body, outside = outline(self.graph, self.body, inner, results, self.fresh("window"))
        self.body = None
        names = [self.fresh("rows") for _ in results]
        origin = Origin(layer=f"{self.stem}_features", type=FEATURES)
        node = self.graph.add(op, [*given, *outside], names, origin, before=self.first, bodies=[body])
        return node.outputs[-1]
