"""ONNX's Gradient: the reverse mode of differentiation, written out as nodes behind those that it differentiates.

The nodes between ``xs`` and ``y`` are walked backwards.  Each passes the derivative by its output on to its inputs by
a rule of its operator, and where several nodes read a value, what they pass on is added up.  A derivative by what was
broadcast is summed over what it was broadcast to.  As is usual, the derivative of a ``y`` of several elements is that
of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.onnx.node import Entry
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.onnx.node_context import SubgraphNode, reads
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.writer import is_known

DOMAIN = "ai.onnx.preview.training"


@dataclass
class Passed:
    """A node in the backward pass: its inputs, its output and the derivative with respect to it."""

    call: SubgraphNode
    node: Node
    inputs: Sequence[Value | None]
    y: Value
    g: Value

    def x(self, i: int = 0) -> Value:
        value = self.inputs[i]
        assert value is not None
        return value

    def emit(self, type: str, *inputs: Value, **attributes: object) -> Value:
        return self.call.emit(type, inputs, **attributes)

    def number(self, value: float) -> Value:
        return self.call.constant(np.array(value, self.y.type.dtype.numpy))

    def ints(self, values: Sequence[int]) -> Value:
        return self.call.constant(np.array(values, np.int64))

    def attribute(self, name: str) -> object:
        return getattr(self.node.op, name)


Rule = Callable[[Passed], Sequence[Value | None]]


# ---------------------------------------------------------------------------------------- element by element
def _add(p: Passed) -> Sequence[Value]:
    return [p.g] * len(p.inputs)


def _sub(p: Passed) -> Sequence[Value]:
    return [p.g, p.emit("Neg", p.g)]


def _mul(p: Passed) -> Sequence[Value]:
    return [p.emit("Mul", p.g, p.x(1)), p.emit("Mul", p.g, p.x(0))]


def _div(p: Passed) -> Sequence[Value]:
    over = p.emit("Div", p.g, p.x(1))
    return [over, p.emit("Neg", p.emit("Mul", over, p.y))]


def _pow(p: Passed) -> Sequence[Value | None]:
    less = p.emit("Sub", p.x(1), p.call.constant(np.array(1, p.x(1).type.dtype.numpy)))
    slope = p.emit("Mul", p.emit("Cast", p.x(1), to=p.y.type.dtype.value), p.emit("Pow", p.x(0), less))
    by_exponent = None if p.x(1).constant else p.emit("Mul", p.g, p.emit("Mul", p.y, p.emit("Log", p.x(0))))
    return [p.emit("Mul", p.g, slope), by_exponent]


def _where(p: Passed) -> Sequence[Value | None]:
    zero = p.number(0)
    return [None, p.emit("Where", p.x(0), p.g, zero), p.emit("Where", p.x(0), zero, p.g)]


def _times(slope: Callable[[Passed], Value]) -> Rule:
    """A function of one element, by its slope."""
    return lambda p: [p.emit("Mul", p.g, slope(p))]


def _positive(p: Passed) -> Sequence[Value]:
    return [p.emit("Where", p.emit("Greater", p.x(), p.number(0)), p.g, p.number(0))]


def _less_square(p: Passed) -> Value:
    return p.emit("Sub", p.number(1), p.emit("Mul", p.y, p.y))


def _erf(p: Passed) -> Value:
    bell = p.emit("Exp", p.emit("Neg", p.emit("Mul", p.x(), p.x())))
    return p.emit("Mul", bell, p.number(2 / np.sqrt(np.pi)))


# --------------------------------------------------------------------------------------- products and sums
def _transposed(p: Passed, x: Value) -> Value:
    rank = x.type.rank
    return p.emit("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _mat_mul(p: Passed) -> Sequence[Value]:
    """As matrices: a vector is one row on the left, one column on the right."""
    a, b, g = p.x(0), p.x(1), p.g
    rows, columns = a.type.rank > 1, b.type.rank > 1
    if not rows:
        a, g = p.emit("Unsqueeze", a, p.ints([0])), p.emit("Unsqueeze", g, p.ints([-2 if columns else 0]))
    if not columns:
        b, g = p.emit("Unsqueeze", b, p.ints([1])), p.emit("Unsqueeze", g, p.ints([-1]))
    derivatives = p.emit("MatMul", g, _transposed(p, b)), p.emit("MatMul", _transposed(p, a), g)
    return [
        p.emit("Reshape", _summed(p, by, matrix.type.dims), p.ints(x.type.dims))
        for by, matrix, x in zip(derivatives, (a, b), (p.x(0), p.x(1)), strict=True)
    ]


def _gemm(p: Passed) -> Sequence[Value]:
    alpha, beta = (p.number(float(str(p.attribute(name)))) for name in ("alpha", "beta"))
    transposed = [bool(p.attribute(name)) for name in ("transA", "transB")]
    a, b = (_transposed(p, p.x(i)) if transposed[i] else p.x(i) for i in (0, 1))
    g = p.emit("Mul", p.g, alpha)
    by_a, by_b = p.emit("MatMul", g, _transposed(p, b)), p.emit("MatMul", _transposed(p, a), g)
    derivatives = [_transposed(p, by) if turn else by for by, turn in zip((by_a, by_b), transposed, strict=True)]
    return [*derivatives, p.emit("Mul", p.g, beta)][: len(p.inputs)]


def _spread(p: Passed) -> tuple[Value, int]:
    """The gradient that a sum passes on to every element, and how many elements there are to a sum."""
    x = p.x()
    given = p.inputs[1] if len(p.inputs) > 1 else None
    axes = [int(a) % x.type.rank for a in given.array] if given is not None and given.array.size else []
    if not axes and p.attribute("noop_with_empty_axes"):
        return p.g, 1
    axes = axes or list(range(x.type.rank))
    kept = [1 if i in axes else n for i, n in enumerate(x.type.dims)]
    whole = p.emit("Expand", p.emit("Reshape", p.g, p.ints(kept)), p.ints(x.type.dims))
    return whole, int(np.prod([x.type.dims[a] for a in axes]))


def _reduce_mean(p: Passed) -> Sequence[Value]:
    whole, count = _spread(p)
    return [p.emit("Div", whole, p.number(count))]


def _softmax(p: Passed) -> Sequence[Value]:
    axis = p.ints([int(str(p.attribute("axis")))])
    total = p.emit("ReduceSum", p.emit("Mul", p.g, p.y), axis, keepdims=1)
    return [p.emit("Mul", p.y, p.emit("Sub", p.g, total))]


def _reshaped(p: Passed) -> Sequence[Value]:
    return [p.emit("Reshape", p.g, p.ints(p.x().type.dims))]


def _transpose(p: Passed) -> Sequence[Value]:
    perm = p.attribute("perm") or tuple(range(p.x().type.rank))[::-1]
    assert isinstance(perm, tuple)
    return [p.emit("Transpose", p.g, perm=tuple(int(i) for i in np.argsort(perm)))]


RULES: Mapping[str, Rule] = {
    "Abs": _times(lambda p: p.emit("Sign", p.x())),
    "Add": _add,
    "Cast": lambda p: [p.emit("Cast", p.g, to=p.x().type.dtype.value)],
    "Cos": _times(lambda p: p.emit("Neg", p.emit("Sin", p.x()))),
    "Div": _div,
    "Erf": _times(_erf),
    "Exp": _times(lambda p: p.y),
    "Expand": _add,
    "Flatten": _reshaped,
    "Gemm": _gemm,
    "Identity": _add,
    "Log": lambda p: [p.emit("Div", p.g, p.x())],
    "MatMul": _mat_mul,
    "Mul": _mul,
    "Neg": lambda p: [p.emit("Neg", p.g)],
    "Pow": _pow,
    "Reciprocal": _times(lambda p: p.emit("Neg", p.emit("Mul", p.y, p.y))),
    "ReduceMean": _reduce_mean,
    "ReduceSum": lambda p: [_spread(p)[0]],
    "Relu": _positive,
    "Reshape": _reshaped,
    "Sigmoid": _times(lambda p: p.emit("Mul", p.y, p.emit("Sub", p.number(1), p.y))),
    "Sin": _times(lambda p: p.emit("Cos", p.x())),
    "Softmax": _softmax,
    "Softplus": _times(lambda p: p.emit("Sigmoid", p.x())),
    "Sqrt": lambda p: [p.emit("Div", p.g, p.emit("Mul", p.y, p.number(2)))],
    "Squeeze": _reshaped,
    "Sub": _sub,
    "Sum": _add,
    "Tanh": _times(_less_square),
    "Transpose": _transpose,
    "Unsqueeze": _reshaped,
    "Where": _where,
}
"""Functions that pass derivatives on."""


# -------------------------------------------------------------------------------------------- backward pass
def _summed(p: Passed, g: Value, dims: tuple[int, ...]) -> Value:
    """A derivative summed over what its value was broadcast to."""
    if g.type.dims == dims:
        return g
    more = g.type.rank - len(dims)
    axes = [i for i, n in enumerate(g.type.dims) if i < more or (n != 1 and dims[i - more] == 1)]
    return p.emit("Reshape", p.emit("ReduceSum", g, p.ints(axes), keepdims=1), p.ints(dims))


def _between(graph: Graph, roots: set[Value], xs: set[Value], y: Value) -> list[Node]:
    """The nodes that ``y`` is made by from ``xs``, last first; what makes ``roots`` is none of them."""
    reached, needed = {*xs}, {y}
    ahead, nodes = list[Node](), list[Node]()
    for node in graph:
        if any(v in reached for v in node.inputs) and not any(v in roots for v in node.outputs):
            ahead.append(node)
            reached.update(node.outputs)
    for node in reversed(ahead):
        if any(v in needed for v in node.outputs):
            nodes.append(node)
            needed.update(v for v in node.inputs if v is not None)
    return nodes


def gradient(call: SubgraphNode) -> list[Entry]:
    """The derivatives of ``y`` by each of ``xs``, at the values that the inputs have.  Raises RefusedError."""
    if call.node.domain != DOMAIN:
        raise RefusedError(f"the operator Gradient of the domain '{call.node.domain}' is not supported")
    names, fixed = call.attribute("xs", []), call.attribute("zs", [])
    y, *values = (_known(call, name) for name in (call.attribute("y", ""), *names, *fixed))
    xs = values[: len(names)]
    _check_folded(call, names, str(call.attribute("y")))
    nodes = _between(call.importer.graph, {*values}, {*xs}, y)
    without = sorted({n.op.name for n in nodes if n.op.name not in RULES or len(n.outputs) > 1})
    if without:
        known = f"supported are those of {', '.join(RULES)}"
        raise RefusedError(f"the derivatives of {', '.join(without)} are not known", known)
    at = _evaluated(call, nodes[::-1], {v: call.value(i) for i, v in enumerate(values)})
    return list(_derivatives(call, nodes, at, y, xs))


def _derivatives(
    call: SubgraphNode, nodes: Sequence[Node], at: Mapping[Value, Value], y: Value, xs: Sequence[Value]
) -> Sequence[Value]:
    ones = call.constant(np.ones(y.type.dims, y.type.dtype.numpy))
    derivatives: dict[Value, Value] = {y: ones}
    wanted = {*xs, *(v for node in nodes for v in node.outputs)}
    for node in nodes:
        inputs = [None if v is None else at.get(v, v) for v in node.inputs]
        passed = Passed(call, node, inputs, at.get(node.output, node.output), derivatives[node.output])
        for value, g in zip(node.inputs, RULES[node.op.name](passed), strict=False):
            if value in wanted and g is not None and value.type.dtype.is_float:
                g = _summed(passed, g, value.type.dims)
                derivatives[value] = passed.emit("Add", derivatives[value], g) if value in derivatives else g
    zeros = {x: call.constant(np.zeros(x.type.dims, x.type.dtype.numpy)) for x in xs if x not in derivatives}
    return [derivatives.get(x) or zeros[x] for x in xs]


def _known(call: SubgraphNode, name: str) -> Value:
    value = call.scope.get(name)
    if not isinstance(value, Value) or not is_known(value):
        raise RefusedError(f"'{name}' is no tensor of a known shape", "bind the model's shapes with --shape")
    return value


def _evaluated(call: SubgraphNode, nodes: Sequence[Node], at: Mapping[Value, Value]) -> Mapping[Value, Value]:
    """The values of the nodes for these values of what they begin with: their own, where those are the model's."""
    if all(value is given for value, given in at.items()):
        return at
    known = dict(at)
    for node in nodes:
        inputs = [None if v is None else known.get(v, v) for v in node.inputs]
        names = [f"{call.origin.layer}_{v.name}" for v in node.outputs]
        known.update(zip(node.outputs, call.importer.writer.add(node.op, inputs, names, call.origin), strict=True))
    return known


def _check_folded(call: SubgraphNode, names: Sequence[str], y: str) -> None:
    """Raises RefusedError if an initializer has gone into a constant, through which no derivative can be followed."""
    for name in names:
        value = call.scope[name]
        if not isinstance(value, Value) or not value.constant:
            continue
        reached = {name}
        for node in call.importer.proto.node:
            if node.op_type != "Gradient" and reached & {*reads(node)}:
                reached |= {*node.output}
        outputs = [call.scope.get(n) for n in reached - {name}]
        if any(isinstance(v, Value) and v.constant and v.type.dtype.is_float for v in outputs):
            raise RefusedError(
                f"'{name}' is an initializer, and what is made of it is constant", f"make {name} an input"
            )
