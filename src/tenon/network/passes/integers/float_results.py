"""Functions of 8-bit integers whose results stay in float, by tables: the same bits on every machine."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import F32
from tenon.network.ops.base import Operator
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.pointwise import Mul
from tenon.network.passes.base import Match, Result, Rule, attribute, make
from tenon.network.passes.integers.operands import BYTES, Operand, TensorGrid, operand
from tenon.network.passes.integers.pointwise import applied, only_variable, reals
from tenon.network.passes.patterns import IsOp


def float_result_rules() -> list[Rule]:
    """Rules to apply after those for results that are quantised again."""
    return [
        Rule("integers: softmax in float", IsOp("Softmax|LogSoftmax"), _softmax),
        Rule("integers: functions in float", IsOp("*", where=lambda op: isinstance(op, Pointwise)), _function),
        Rule("integers: products along axes", IsOp("ReduceProd"), _wide_product),
    ]


def _wide_product(match: Match) -> Result:
    """Products of quantised numbers in f64: rows overflow f32, and whether a zero comes before they do depends on the
    order."""
    node = match.root
    if node.output.type.dtype is not F32 or isinstance(operand(match, node.input(0)), str):
        return None
    wide = match.add(make("Cast", to="f64"), node.input(0))
    return match.add(make("Cast", to="f32"), match.add(node.op, wide, *node.inputs[1:], origin=node.origin))


def scores(softmax: Node) -> tuple[Value, float]:
    """The operand of a softmax, and the positive factor in between (TFLite's beta)."""
    value = softmax.input(0)
    node = value.producer
    if node is not None and isinstance(node.op, Mul) and node.input(1).constant and node.input(1).type.size == 1:
        factor = float(node.input(1).array.reshape(()))
        if 0 < factor < np.inf:
            return node.input(0), factor
    return value, 1.0


def integer_scores(match: Match, softmax: Node) -> tuple[Operand, float] | None:
    """The 8-bit integers that a softmax in f32, or its logarithm, is of, and what they are multiplied by; None if it
    is of other numbers."""
    value, factor = scores(softmax)
    x = _bytes(match, value) if softmax.output.type.dtype is F32 else None
    if x is None or not 0 < np.float32(x.grid.scale) * np.float32(factor) < np.inf:
        return None
    return x, x.grid.scale * factor


def _bytes(match: Match, value: Value) -> Operand | None:
    """The 8-bit integers that ``value`` stands for."""
    x = None if value.constant or value.type.dtype is not F32 else operand(match, value)
    return None if x is None or isinstance(x, str) or x.grid.dtype not in BYTES or x.grid.steps else x


def _softmax(match: Match) -> Result:
    scores = integer_scores(match, match.root)
    if scores is None:
        return None
    x, scale = scores
    return match.add(make(f"Lookup{match.root.op.name}", axis=attribute(match.root, "axis"), scale=scale), x.value)


def _function(match: Match) -> Result:
    """Functions of one tensor, of which at least one rounds, that no arithmetic on floats follows (which would be
    computed together with them): Sigmoid at the end."""
    value, steps = match.root.output, list[Node]()
    if not _is_last(match.graph, value):
        return None
    while value.producer is not None and (at := only_variable(value.producer)) is not None:
        steps.append(value.producer)
        value = value.producer.input(at)
    if all(isinstance(node.op, Operator) and node.op.exact() for node in steps):
        return None
    x = _bytes(match, value)
    if x is None or x.value.type.dims != match.root.output.type.dims:
        return None
    return match.add("Lookup", x.value, match.constant("table", _results(x.grid, steps[::-1])))


def _is_last(graph: Graph, value: Value) -> bool:
    readers = [node.op for node in value.uses]
    exact = all(isinstance(op, Operator) and op.exact() and not isinstance(op, Pointwise) for op in readers)
    return exact and (bool(readers) or graph.is_output(value))


def _results(grid: TensorGrid, steps: list[Node]) -> Array:
    """f32 [256]: the functions of the numbers of ``grid``, in ascending order; in f64 and rounded once, so that
    NumPy's functions give the same bits wherever they run."""
    real = applied(reals(grid).astype(np.float64), steps)
    with np.errstate(over="ignore"):
        return real.astype(np.float32)
