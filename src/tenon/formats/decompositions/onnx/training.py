"""The optimisers of ONNX: one step of training, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.network.graph.graph import Value

_Update = Callable[["_OptimizerStep", list[Value]], list[Value]]


class _OptimizerStep:
    """One step of one tensor: the learning rate, how many steps came before, and arithmetic."""

    def __init__(self, node: OnnxNode) -> None:
        self.layer = node
        self.rate = node.input(0)
        self.count = node.input(1)

    def attribute(self, name: str) -> float:
        return float(self.layer.attributes.get(name, 0.0))

    def of(self, type: str, a: Value | float, b: Value | float) -> Value:
        values = (self.layer.typed_scalar("number", v) if isinstance(v, float) else v for v in (a, b))
        return self.layer.add(type, *values)

    def first(self, at_first: Value | float, later: Value | float) -> Value:
        """One of two, as this is the very first step or not."""
        a, b = (self.layer.typed_scalar("number", v) if isinstance(v, float) else v for v in (at_first, later))
        zero = self.layer.int_constant("zero", [0])
        return self.layer.add("Where", self.layer.add("Equal", self.count, zero), a, b)

    def regularised(self, x: Value, gradient: Value) -> Value:
        return self.of("Add", gradient, self.of("Mul", x, self.attribute("norm_coefficient")))


def _each(node: OnnxNode, parts: int, update: _Update) -> Sequence[Value]:
    """``parts`` tensors belong to each parameter; the results stand in groups of one kind."""
    count = (len(node.inputs) - 2) // parts
    groups = [[node.input(2 + i + p * count) for p in range(parts)] for i in range(count)]
    step = _OptimizerStep(node)
    results = [update(step, group) for group in groups]
    return [value for kind in zip(*results, strict=True) for value in kind]


def _adagrad(step: _OptimizerStep, given: list[Value]) -> list[Value]:
    x, gradient, squares = given
    layer = step.layer
    decay = step.of("Mul", layer.add("Cast", step.count, to=x.type.dtype.value), step.attribute("decay_factor"))
    rate = step.of("Div", step.rate, step.of("Add", decay, 1.0))
    gradient = step.regularised(x, gradient)
    squares = step.of("Add", squares, step.of("Mul", gradient, gradient))
    size = step.of("Add", layer.add("Sqrt", squares), step.attribute("epsilon"))
    return [step.of("Sub", x, step.of("Div", step.of("Mul", rate, gradient), size)), squares]


def adagrad(node: OnnxNode) -> Sequence[Value]:
    return _each(node, 3, _adagrad)


def _momentum(step: _OptimizerStep, given: list[Value]) -> list[Value]:
    x, gradient, velocity = given
    alpha = step.attribute("alpha")
    beta = step.first(1.0, step.attribute("beta"))
    gradient = step.regularised(x, gradient)
    velocity = step.of("Add", step.of("Mul", velocity, alpha), step.of("Mul", beta, gradient))
    ahead = velocity
    if step.layer.attributes.get("mode") == "nesterov":
        ahead = step.of("Add", gradient, step.of("Mul", velocity, alpha))
    return [step.of("Sub", x, step.of("Mul", step.rate, ahead)), velocity]


def momentum(node: OnnxNode) -> Sequence[Value]:
    return _each(node, 3, _momentum)


def _adam(step: _OptimizerStep, given: list[Value]) -> list[Value]:
    x, gradient, mean, squares = given
    layer, alpha, beta = step.layer, step.attribute("alpha"), step.attribute("beta")
    gradient = step.regularised(x, gradient)
    mean = step.of("Add", step.of("Mul", mean, alpha), step.of("Mul", gradient, 1 - alpha))
    fresh = step.of("Mul", step.of("Mul", gradient, gradient), 1 - beta)
    squares = step.of("Add", step.of("Mul", squares, beta), fresh)
    count = layer.add("Cast", step.count, to=x.type.dtype.value)

    def left(factor: float) -> Value:
        """1 - factor ** count."""
        return step.of("Sub", 1.0, layer.add("Pow", layer.typed_scalar("factor", factor), count))

    corrected = step.of("Div", step.of("Mul", step.rate, layer.add("Sqrt", left(beta))), left(alpha))
    rate = step.first(step.rate, corrected)
    size = step.of("Add", layer.add("Sqrt", squares), step.attribute("epsilon"))
    new = step.of("Sub", x, step.of("Div", step.of("Mul", rate, mean), size))
    after = 1 - step.attribute("norm_coefficient_post")
    return [step.of("Mul", new, after), mean, squares]


def adam(node: OnnxNode) -> Sequence[Value]:
    return _each(node, 4, _adam)
