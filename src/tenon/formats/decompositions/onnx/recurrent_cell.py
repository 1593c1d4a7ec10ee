"""The cells of recurrent layers of ONNX: the weights and activations of one direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value

_ALPHA = {"LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Elu": 1.0, "ScaledTanh": 1.0, "Affine": 1.0}
_BETA = {"HardSigmoid": 0.5, "ScaledTanh": 1.0, "Affine": 0.0}

_CLIPPED = 2
"""Activations whose operands ``clip`` bounds: those of gates.  As in onnxruntime, the cell state of an LSTM is not
clipped before the third."""


Multiply = Callable[[Value, int, int], Value]
"""f(rows, number of the input that has the weights, direction) -> their product."""


@dataclass
class RecurrentCell:
    """One direction of a recurrent layer.  ``gates`` is how many matrices are stacked in W and R.

    What is made of weights alone is made once, not at each of its steps.
    """

    layer: OnnxNode
    direction: int
    gates: int
    backwards: bool
    activations: list[Callable[[Value], Value]] = field(default_factory=list)
    made: dict[tuple[object, ...], tuple[Value, Value]] = field(default_factory=dict)
    multiply: Multiply | None = None

    def once(self, type: str, x: Value, *bounds: int, **attributes: Any) -> Value:
        """An operator on ``x`` and constants, made anew only where ``x`` is computed at run time."""
        key = (type, id(x), *bounds, *attributes.values())
        if key not in self.made or not x.constant:
            self.made[key] = x, self.layer.add(type, x, *self.numbers(type, bounds), **attributes)
        return self.made[key][1]

    def numbers(self, type: str, bounds: Sequence[int]) -> list[Value]:
        if type == "Gather":
            return [self.layer.constant(np.array(bounds[0], np.int64), "number")]
        return [self.layer.int_constant(name, [n]) for name, n in zip("sea", bounds, strict=False)]

    @property
    def hidden(self) -> int:
        return self.layer.dims_of(2)[2]

    def part(self, i: int) -> Value | None:
        """This direction's part of input ``i``."""
        if not self.layer.has(i):
            return None
        return self.pick(self.layer.input(i), self.direction, 0)

    def pick(self, x: Value, i: int, axis: int) -> Value:
        return self.once("Gather", x, i, axis=axis)

    def cut(self, x: Value, first: int, count: int = 1) -> Value:
        """Gates ``first .. first + count`` of the last axis."""
        size = self.hidden
        return self.once("Slice", x, first * size, (first + count) * size, -1)

    def rows(self, x: Value, first: int, count: int) -> Value:
        """Gates ``first .. first + count`` of the first axis."""
        size = self.hidden
        return self.once("Slice", x, first * size, (first + count) * size, 0)

    def transposed(self, x: Value) -> Value:
        return self.once("Transpose", x, perm=(1, 0))

    def zeros(self, batch: int) -> Value:
        return self.layer.constant(np.zeros((batch, self.hidden), self.layer.input(0).type.dtype.numpy), "zeros")

    def add(self, a: Value, b: Value | None) -> Value:
        return a if b is None else self.layer.add("Add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.layer.add("Mul", a, b)

    def product(self, a: Value, b: Value) -> Value:
        return self.layer.add("MatMul", a, b)

    def by_weights(self, a: Value, i: int) -> Value:
        """The product of rows with all weights of input ``i``."""
        if self.multiply is not None:
            return self.multiply(a, i, self.direction)
        weights = self.part(i)
        assert weights is not None
        return self.product(a, self.transposed(weights))


def _activation(
    node: OnnxNode, name: str, alpha: float | None, beta: float | None, limit: float | None
) -> Callable[[Value], Value]:
    """The function of that name, of numbers clipped to ``limit``."""

    def clipped(x: Value) -> Value:
        if limit is None:
            return x
        return node.add("Clip", x, node.typed_scalar("low", -limit), node.typed_scalar("high", limit))

    a = _ALPHA.get(name, 0.0) if alpha is None else alpha
    b = _BETA.get(name, 0.0) if beta is None else beta
    simple = {"Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"}
    known = {n.lower(): n for n in (*simple, *_ALPHA)}
    name = known.get(name.lower(), name)
    if name in simple:
        return lambda x: node.add(name, clipped(x))
    if name in ("LeakyRelu", "Elu", "ThresholdedRelu"):
        return lambda x: node.add(name, clipped(x), alpha=a)
    if name == "HardSigmoid":
        return lambda x: node.add(name, clipped(x), alpha=a, beta=b)
    if name == "Affine":
        return lambda x: node.add(
            "Add", node.add("Mul", clipped(x), node.typed_scalar("a", a)), node.typed_scalar("b", b)
        )
    if name == "ScaledTanh":
        return lambda x: node.add(
            "Mul", node.add("Tanh", node.add("Mul", clipped(x), node.typed_scalar("b", b))), node.typed_scalar("a", a)
        )
    raise RefusedError(f"the activation {name} is not supported")


def cells(node: OnnxNode, gates: int, defaults: Sequence[str]) -> list[RecurrentCell]:
    direction = node.attributes.get("direction", "forward")
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    names = node.attributes.get("activations") or [*defaults] * len(backwards)
    alphas = list(node.attributes.get("activation_alpha") or ())
    betas = list(node.attributes.get("activation_beta") or ())
    cells = []
    for i, back in enumerate(backwards):
        cell = RecurrentCell(node, i, gates, back)
        for j, name in enumerate(names[i * len(defaults) : (i + 1) * len(defaults)]):
            alpha = alphas.pop(0) if alphas and name in _ALPHA else None
            beta = betas.pop(0) if betas and name in _BETA else None
            limit = node.attributes.get("clip") if j < _CLIPPED else None
            cell.activations.append(_activation(node, name, alpha, beta, limit))
        cells.append(cell)
    return cells
