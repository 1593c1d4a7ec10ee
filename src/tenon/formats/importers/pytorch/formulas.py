"""ATen's operators above the core ones that are short formulas of others, in programs that were not decomposed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.pytorch.arithmetic import moments
from tenon.formats.importers.pytorch.node import PytorchNode
from tenon.network.graph.graph import Value

_END = 2**31 - 1


# ----------------------------------------------------------------------------------------------- elements
def with_product(op: str) -> Callable[[PytorchNode], Value]:
    """addcmul and addcdiv: a tensor plus a multiple of the product or quotient of two."""

    def import_node(node: PytorchNode) -> Value:
        term = node.add(op, node.operand("tensor1"), node.operand("tensor2"))
        factor = node.get("value", 1)
        term = term if factor == 1 else node.add("Mul", term, node.full(factor))
        return node.add("Add", node.cast(node.x), term)

    return import_node


def lerp(node: PytorchNode) -> Value:
    gap = node.add("Sub", node.operand("end"), node.cast(node.x))
    return node.add("Add", node.cast(node.x), node.add("Mul", node.operand("weight"), gap))


def square(node: PytorchNode) -> Value:
    return node.square(node.cast(node.x))


def log_sigmoid(node: PytorchNode) -> Value:
    return node.add("Neg", node.add("Softplus", node.add("Neg", node.cast(node.x))))


def glu(node: PytorchNode) -> Value:
    a, b = node.equal_parts(node.x, node.dim("dim", -1), 2)
    return node.add("Mul", a, node.add("Sigmoid", b))


def shrink(*, soft: bool) -> Callable[[PytorchNode], Value]:
    """Zero up to a limit; beyond it the element, less the limit if ``soft``."""

    def import_node(node: PytorchNode) -> Value:
        limit, x, size = node.full(node.number("lambd", 0.5)), node.x, node.add("Abs", node.x)
        if soft:
            return node.add("Mul", node.add("Sign", x), node.add("Relu", node.add("Sub", size, limit)))
        return node.add("Where", node.add("Greater", size, limit), x, node.full(0))

    return import_node


def threshold(node: PytorchNode) -> Value:
    above = node.add("Greater", node.x, node.full(node.get("threshold", 0)))
    return node.add("Where", above, node.x, node.full(node.get("value", 0)))


def log_add_exp(node: PytorchNode) -> Value:
    x, y = node.operand("self"), node.operand("other")
    away = node.add("Neg", node.add("Abs", node.add("Sub", x, y)))
    return node.add("Add", node.add("Max", x, y), node.add("Log", node.add("Add", node.add("Exp", away), node.full(1))))


def nan_to_num(node: PytorchNode) -> Value:
    limits, x = np.finfo(node.numpy), node.x
    for name, usual in (("posinf", float(limits.max)), ("neginf", float(limits.min))):
        number = node.full(node.get(name, usual))
        infinite = node.add("IsInf", x, **{f"detect_{'negative' if name == 'posinf' else 'positive'}": 0})
        x = node.add("Where", infinite, number, x)
    return node.add("Where", node.add("IsNaN", x), node.full(node.get("nan", 0.0)), x)


def is_finite(node: PytorchNode) -> Value:
    return node.add("Not", node.add("Or", node.add("IsNaN", node.x), node.add("IsInf", node.x)))


def scaled(factor: float) -> Callable[[PytorchNode], Value]:
    return lambda node: node.add("Mul", node.cast(node.x), node.full(factor))


def fraction(node: PytorchNode) -> Value:
    whole = node.add("Mul", node.add("Sign", node.x), node.add("Floor", node.add("Abs", node.x)))
    return node.add("Sub", node.x, whole)


# ---------------------------------------------------------------------------------------------- reductions
def deviation(node: PytorchNode) -> Value | Sequence[Value]:
    variance, mean = moments(node)
    root = node.add("Sqrt", variance)
    return [root, mean] if node.name == "std_mean" else root


def count_nonzero(node: PytorchNode) -> Value:
    zero = np.zeros((), node.builder.type(node.x).dtype.numpy)
    used = node.add("Not", node.add("Equal", node.x, zero))
    return node.add("ReduceSum", node.add("Cast", used, to="i64"), node.ints(*node.axes()), keepdims=0)


def cosine_similarity(node: PytorchNode) -> Value:
    x, y = node.attributes["x1"], node.attributes["x2"]
    rank = max(node.builder.rank(v) for v in (x, y))
    axis, least = node.ints(node.axis(node.integer("dim", 1), rank)), node.full(node.number("eps", 1e-8))
    lengths = [node.add("Max", node.add("ReduceL2", v, axis, keepdims=1), least) for v in (x, y)]
    units = [node.add("Div", v, length) for v, length in zip((x, y), lengths, strict=True)]
    return node.add("ReduceSum", node.add("Mul", *units), axis, keepdims=0)


def pairwise_distance(node: PytorchNode) -> Value:
    if node.number("p", 2) not in (1, 2):
        raise RefusedError(f"a distance of order {node.number('p', 2)} is not supported", "1 and 2 are")
    gap = node.add("Sub", node.attributes["x1"], node.attributes["x2"])
    gap = node.add("Add", gap, node.full(node.number("eps", 1e-6)))
    kind = "ReduceL2" if node.number("p", 2) == 2 else "ReduceL1"
    return node.add(kind, gap, node.ints(-1), keepdims=int(node.flag("keepdim")))


def inner(node: PytorchNode) -> Value:
    """Sums of products over the last axes of both."""
    x, y = node.operand("self"), node.operand("other")
    ranks = [node.builder.rank(v) for v in (x, y)]
    if 0 in ranks:
        return node.add("Mul", x, y)
    if ranks[1] > 1:
        rows = node.reshape(y, -1, node.builder.dims(y)[-1])
        y = node.add("Transpose", rows, perm=(1, 0))
    return node.reshape(node.add("MatMul", x, y), *node.shape) if node.shape else node.add("MatMul", x, y)


# ------------------------------------------------------------------------------------------------- movement
def turned(node: PytorchNode) -> Value:
    """The axes in the reverse order (numpy_T), or the last two swapped (mT)."""
    order = list(range(node.x_rank))
    order = order[::-1] if node.name == "numpy_T" else [*order[:-2], *order[:-3:-1]]
    return node.add("Transpose", node.x, perm=order)


def swapped_axes(node: PytorchNode) -> Value:
    names = ("axis0", "axis1") if "axis0" in node.attributes else ("dim0", "dim1")
    a, b = (node.dim(name) for name in names)
    order = list(range(node.x_rank))
    order[a], order[b] = b, a
    return node.add("Transpose", node.x, perm=order)


def moved_axes(node: PytorchNode) -> Value:
    rank = node.x_rank
    pairs = zip(node.integers("destination"), node.integers("source"), strict=True)
    places = {node.axis(to, rank): node.axis(of, rank) for to, of in pairs}
    rest = iter([i for i in range(rank) if i not in places.values()])
    return node.add("Transpose", node.x, perm=[places[i] if i in places else next(rest) for i in range(rank)])


def narrowed(node: PytorchNode) -> Value:
    start, dim = node.integer("start"), node.dim()
    start = start + node.dims[dim] if start < 0 else start
    return node.slice(node.x, [start], [start + node.integer("length")], [dim])


def tiled(node: PytorchNode) -> Value:
    times = node.integers("dims")
    rank = max(len(times), node.x_rank)
    x = node.reshape(node.x, *(1,) * (rank - node.x_rank), *node.dims)
    return node.add("Tile", x, node.ints(*(1,) * (rank - len(times)), *times))


def repeated(node: PytorchNode) -> Value:
    """Every element several times, one after the other."""
    times = node.get("repeats")
    if not isinstance(times, int):
        raise RefusedError("numbers of repetitions that are a tensor are not supported")
    flat = node.get("dim") is None
    x = node.reshape(node.x, -1) if flat else node.x
    axis = 0 if flat else node.dim()
    at = np.repeat(np.arange(node.builder.dims(x)[axis]), times)
    return node.add("Gather", x, node.constant(at, "repeated"), axis=axis)


def stacked(axis: int, rank: int) -> Callable[[PytorchNode], Value]:
    """hstack and its like: tensors of at least ``rank`` axes joined along one; vectors become rows or columns."""

    def import_node(node: PytorchNode) -> Value:
        parts = []
        for value in map(node.cast, node.get("tensors")):
            dims = list(node.builder.dims(value)) or [1]
            if len(dims) < rank:
                dims = [*dims, 1] if node.name == "column_stack" else [1, *dims]
            parts.append(node.reshape(value, *dims))
        along = min(axis, node.builder.rank(parts[0]) - 1)
        return node.add("Concat", *parts, axis=along) if len(parts) > 1 else parts[0]

    return import_node


def mesh(node: PytorchNode) -> list[Value]:
    """Vectors spread over the grid of all of them, row by row (ij) or column by column (xy)."""
    vectors = [node.reshape(v, -1) for v in node.get("tensors")]
    sizes = [node.builder.dims(v)[0] for v in vectors]
    order = list(range(len(vectors)))
    if node.text("indexing", "ij") == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = [sizes[i] for i in order]
    spread = []
    for i, vector in enumerate(vectors):
        place = order.index(i)
        column = node.reshape(vector, *(-1 if k == place else 1 for k in range(len(order))))
        spread.append(node.add("Expand", column, node.ints(*shape)))
    return spread


def one_hot(node: PytorchNode) -> Value:
    count = node.integer("num_classes", -1)
    if count < 1:
        raise RefusedError("its number of classes depends on data", "give num_classes")
    classes = node.constant(np.arange(count, dtype=np.int64), "classes")
    index = node.add("Unsqueeze", node.add("Cast", node.x, to="i64"), node.ints(-1))
    return node.add("Cast", node.add("Equal", index, classes), to="i64")


def differences(node: PytorchNode) -> Value:
    if node.integer("n", 1) != 1 or node.get("prepend") is not None or node.get("append") is not None:
        raise RefusedError("differences of a higher order, or of joined tensors, are not supported")
    dim = node.dim("dim", -1)
    after = node.slice(node.x, [1], [_END], [dim])
    return node.add("Sub", after, node.slice(node.x, [0], [node.dims[dim] - 1], [dim]))


FORMULAS: dict[str, Callable[[PytorchNode], Value | Sequence[Value]]] = {
    "addcdiv": with_product("Div"),
    "addcmul": with_product("Mul"),
    "broadcast_to": lambda node: node.add("Expand", node.x, node.ints(*node.shape)),
    "column_stack": stacked(1, 2),
    "cosine_similarity": cosine_similarity,
    "count_nonzero": count_nonzero,
    "deg2rad": scaled(math.pi / 180),
    "diff": differences,
    "expand_as": lambda node: node.add("Expand", node.x, node.ints(*node.shape)),
    "frac": fraction,
    "glu": glu,
    "hardshrink": shrink(soft=False),
    "hstack": stacked(1, 1),
    "inner": inner,
    "isfinite": is_finite,
    "lerp": lerp,
    "log_sigmoid": log_sigmoid,
    "logaddexp": log_add_exp,
    "mT": turned,
    "meshgrid": mesh,
    "movedim": moved_axes,
    "moveaxis": moved_axes,
    "nan_to_num": nan_to_num,
    "narrow": narrowed,
    "numpy_T": turned,
    "one_hot": one_hot,
    "pairwise_distance": pairwise_distance,
    "rad2deg": scaled(180 / math.pi),
    "repeat_interleave": repeated,
    "softshrink": shrink(soft=True),
    "square": square,
    "std": deviation,
    "std_mean": deviation,
    "swapaxes": swapped_axes,
    "swapdims": swapped_axes,
    "threshold": threshold,
    "tile": tiled,
    "vdot": lambda node: node.add("MatMul", node.x, node.get("other")),
    "view_as": lambda node: node.reshape(node.x, *node.shape),
    "vstack": stacked(0, 2),
}
