"""Tengine's operators for those of a graph: ``LAYERS`` by the graph's, with parameters in the order of the file.

Definitions: tm2_format.h and the reference kernels of OAID/Tengine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions.caffe_family import UNARY
from tenon.formats.exporters.tengine.file import Word
from tenon.formats.exporters.tengine.writer import NotInTengineError, TmfileWriter, weights
from tenon.formats.importers.tengine.layers import pool_pads
from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.activation import Relu
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.pool import AveragePool
from tenon.network.ops.quantised_values import bounds, integers_of
from tenon.network.ops.reduce import GlobalAveragePool
from tenon.network.ops.unroll import unrolled
from tenon.network.ops.window import Axis, Window

Write = Callable[[TmfileWriter, Node], None]

_COUNT_PADDING = 0x10
"""The bit of a pooling's flavour that counts padding in averages."""


def to_tmfile(graph: Graph) -> bytes:
    """The tmfile of a bound graph.  Raises UnsupportedError listing every operator that Tengine has not."""
    return TmfileWriter(unrolled(graph), LAYERS).write()


def _attributes(node: Node) -> Any:
    return node.op


def _image(node: Node) -> tuple[int, ...]:
    dims = node.input(0).type.dims
    if len(dims) != 4:
        raise NotInTengineError(f"Tengine has windows over two axes, and this input is {list(dims)}")
    return dims


def _pads(axes: Sequence[Axis]) -> tuple[int, int, int, int]:
    (top, bottom), (left, right) = ((a.before, a.reach if a.reach > a.after else a.after) for a in axes)
    return top, left, bottom, right


def _constant_weights(node: Node) -> None:
    for value in node.inputs[1:]:
        if value is not None and value.data is None and integers_of(value) is None:
            raise NotInTengineError("its weights are computed at run time")


# ------------------------------------------------------------------------------------------- products
def _conv(w: TmfileWriter, node: Node) -> None:
    op, dims, shape = _attributes(node), _image(node), node.input(1).type.dims
    _constant_weights(node)
    axes = Window(shape[2:], op.strides, op.dilations, op.pads, op.auto_pad).axes("Conv", dims[2:])
    operands = [w.operand(node.input(0)), *weights(w, node, 0, range(4))]
    value, activation = w.activated(node)
    parameters = [
        *shape[2:],
        *(a.stride for a in axes),
        *(a.dilation for a in axes),
        dims[1],
        shape[0],
        op.group,
        activation,
        *_pads(axes),
    ]
    w.add(node, 5, parameters, operands, value)


def _conv_transpose(w: TmfileWriter, node: Node) -> None:
    op, _, shape = _attributes(node), _image(node), node.input(1).type.dims
    _constant_weights(node)
    if op.auto_pad != "NOTSET" or op.output_shape:
        raise NotInTengineError("Tengine has transposed convolutions with explicit pads only")
    pads, extra = op.pads or (0,) * 4, op.output_padding or (0, 0)
    operands = [w.operand(node.input(0)), *weights(w, node, -1, range(4))]
    value, activation = w.activated(node)
    dilations = op.dilations or (1, 1)
    parameters = [
        shape[1] * op.group,
        *shape[2:],
        *(op.strides or (1, 1)),
        pads[1],
        pads[0],
        pads[3],
        pads[2],
        *dilations,
        op.group,
        activation,
        *extra,
    ]
    w.add(node, 6, parameters, operands, value)


def _fully_connected(w: TmfileWriter, node: Node) -> None:
    op, rank = _attributes(node), node.input(0).type.rank
    _constant_weights(node)
    gemm = isinstance(node.op, Gemm)
    if rank != 2 or node.input(1).type.rank != 2 or (gemm and (op.alpha != 1 or op.beta != 1 or op.transA)):
        raise NotInTengineError("Tengine has matrix products of two axes, without alpha, beta and transA")
    turned = gemm and op.transB
    operands = [w.operand(node.input(0)), *weights(w, node, 0 if turned else 1, (0, 1) if turned else (1, 0))]
    w.add(node, 11, [node.output.type.dims[1]], operands)


# ------------------------------------------------------------------------------------------- poolings
def _pool(w: TmfileWriter, node: Node) -> None:
    op, dims, average = _attributes(node), _image(node), isinstance(node.op, AveragePool)
    axes = op.axes(dims)
    if len(node.outputs) > 1 or any(a.dilation != 1 for a in axes):
        raise NotInTengineError("Tengine has no pooling with dilations or indices")
    counted = _COUNT_PADDING if average and op.count_include_pad else 0
    for flavour in (0, 1, 2):
        pads = [a.before + a.after if flavour == 2 else a.before for a in axes]
        given = zip(axes, pads, strict=True)
        if all(_padded(a, pad, flavour) == (a.before, a.reach) for a, pad in given):
            break
    else:
        raise NotInTengineError("Tengine has no pooling with this padding")
    parameters = [
        int(average),
        *(a.kernel for a in axes),
        *(a.stride for a in axes),
        0,
        flavour | counted,
        *pads,
        *pads,
    ]
    w.add(node, 16, parameters, [w.operand(node.input(0))], alike=not average)


def _padded(a: Axis, pad: int, flavour: int) -> tuple[int, int]:
    """Elements that the padding of an axis adds before and after the data, as far as windows reach them."""
    before, after = pool_pads(a.size, a.kernel, a.stride, pad, flavour)
    out = (a.size + before + after - a.kernel) // a.stride + 1
    reach = max(0, (out - 1) * a.stride + a.kernel - before - a.size)
    return (before, reach) if out == a.out else (-1, -1)


def _global_pool(w: TmfileWriter, node: Node) -> None:
    _, _, high, wide = _image(node)
    average = isinstance(node.op, GlobalAveragePool)
    parameters = [int(average), high, wide, 1, 1, 1, 0, 0, 0, 0, 0]
    w.add(node, 16, parameters, [w.operand(node.input(0))], alike=not average)


def _reduced(kind: int) -> Write:
    def write(w: TmfileWriter, node: Node) -> None:
        op, rank = _attributes(node), node.input(0).type.rank
        given = node.inputs[1] if len(node.inputs) > 1 else None
        if rank > 4 or (given is not None and given.data is None):
            raise NotInTengineError("Tengine reduces up to four constant axes")
        axes = [] if given is None else [int(a) % rank for a in given.array.reshape(-1)]
        axes = (axes + [-2] * 4)[:4]
        w.add(node, 45, [*axes, kind, op.keepdims], [w.operand(node.input(0))], alike=kind in (4, 5))

    return write


# ------------------------------------------------------------------------------------------- pointwise
def _eltwise(kind: int) -> Write:
    def write(w: TmfileWriter, node: Node) -> None:
        operands = [w.operand(v) for v in node.inputs if v is not None]
        if len(operands) != 2:
            raise NotInTengineError(f"Tengine has {node.op.name} of two operands only")
        w.add(node, 9, [kind, 0, 0.0, 1.0, 1.0], operands)

    return write


def _unary(type: int, *parameters: Word) -> Write:
    return lambda w, node: w.add(node, type, parameters, [w.operand(node.input(0))])


def _functions() -> dict[str, Write]:
    """Functions of one element that Tengine tells apart by a number."""
    single = {names[0]: kind for kind, names in UNARY.items() if len(names) == 1}
    return {name: _unary(59, kind) for name, kind in single.items()}


def _swish(w: TmfileWriter, node: Node) -> None:
    """The product of x and its sigmoid."""
    x = w.operand(node.input(0))
    if _attributes(node).alpha != 1 or w.network.tensors[x].scales:
        raise NotInTengineError("Tengine has Swish as two operators, in float and without a factor")
    w.add(node, 9, [0, 0, 0.0, 1.0, 1.0], [x, w.intermediate(node, "sigmoid", 37, x)])


def _bounded(w: TmfileWriter, node: Node) -> None:
    limits = bounds(node)
    if limits is None:
        raise NotInTengineError("its bounds are computed at run time")
    low, high = (float(np.clip(n, np.finfo(np.float32).min, np.finfo(np.float32).max)) for n in limits)
    type, parameters = (20, [0.0]) if isinstance(node.op, Relu) else (87, [high, low])
    w.add(node, type, parameters, [w.operand(node.input(0))])


def _leaky(w: TmfileWriter, node: Node) -> None:
    w.add(node, 20, [float(_attributes(node).alpha)], [w.operand(node.input(0))])


def _prelu(w: TmfileWriter, node: Node) -> None:
    slopes = node.input(1)
    if slopes.data is None or slopes.type.size != node.input(0).type.dims[1]:
        raise NotInTengineError("Tengine has PRelu with one constant slope for each channel")
    at = w.constant(f"{node.output.name}_slopes", slopes.array.reshape(-1))
    w.add(node, 17, [], [w.operand(node.input(0)), at])


def _softmax(w: TmfileWriter, node: Node) -> None:
    w.add(node, 28, [_attributes(node).axis % node.input(0).type.rank], [w.operand(node.input(0))])


# ------------------------------------------------------------------------------------ moving elements
def _reshape(w: TmfileWriter, node: Node) -> None:
    w.add(node, 23, [0, 0, node.output.type.dims, 1], [w.operand(node.input(0))], alike=True)


def _transpose(w: TmfileWriter, node: Node) -> None:
    perm = _attributes(node).perm or tuple(reversed(range(node.input(0).type.rank)))
    order: tuple[int, ...] = tuple(perm)
    parameters: list[Word] = [0, *order] if len(order) == 4 else [order]
    w.add(node, 15 if len(perm) == 4 else 77, parameters, [w.operand(node.input(0))], alike=True)


def _concat(w: TmfileWriter, node: Node) -> None:
    axis = _attributes(node).axis % node.output.type.rank
    w.add(node, 3, [axis], [w.operand(v) for v in node.inputs if v is not None])


def _numbers(node: Node, i: int) -> list[int] | None:
    value = node.inputs[i] if len(node.inputs) > i else None
    if value is not None and value.data is None:
        raise NotInTengineError(f"operand {i} is computed at run time")
    return None if value is None else [int(n) for n in value.array.reshape(-1)]


def _slice(w: TmfileWriter, node: Node) -> None:
    dims = node.input(0).type.dims
    starts, ends = _numbers(node, 1) or [], _numbers(node, 2) or []
    chosen = _numbers(node, 3) or list(range(len(starts)))
    steps = _numbers(node, 4) or [1] * len(starts)
    if any(step != 1 for step in steps):
        raise NotInTengineError("Tengine's slices here have no steps")
    begins = [0] * len(dims)
    for a, start, end in zip(chosen, starts, ends, strict=True):
        begins[a % len(dims)] = slice(start, end).indices(dims[a % len(dims)])[0]
    parameters: list[Word] = [0, 0, begins, node.output.type.dims, 0, 0, 0, 0, 0, 0]
    w.add(node, 27, parameters, [w.operand(node.input(0))], alike=True)


def _split(w: TmfileWriter, node: Node) -> None:
    """A slice for each part: parts that nothing reads are not written."""
    dims, begins = node.input(0).type.dims, [0] * node.input(0).type.rank
    axis, x = _attributes(node).axis % len(dims), w.operand(node.input(0))
    for part in node.outputs:
        if part.uses or w.graph.is_output(part):
            w.add(node, 27, [0, 0, tuple(begins), part.type.dims, 0, 0, 0, 0, 0, 0], [x], part, alike=True)
        begins[axis] += part.type.dims[axis]


def _pad(w: TmfileWriter, node: Node) -> None:
    op, rank = _attributes(node), node.input(0).type.rank
    given, chosen, value = _numbers(node, 1) or [], _numbers(node, 3), node.inputs[2] if len(node.inputs) > 2 else None
    mode = {"constant": 0, "edge": 1, "reflect": 2}.get(op.mode)
    if rank > 4 or mode is None or min(given, default=0) < 0 or (value is not None and value.data is None):
        raise NotInTengineError("Tengine has no such padding")
    around = {a % rank: (given[k], given[len(given) // 2 + k]) for k, a in enumerate(chosen or range(rank))}
    pads = [n for a in range(4) for n in around.get(a, (0, 0))]
    number = 0.0 if value is None else float(value.array.reshape(-1)[0])
    w.add(node, 40, [*pads, mode, number], [w.operand(node.input(0))], alike=True)


def _resize(w: TmfileWriter, node: Node) -> None:
    op, dims, out = _attributes(node), _image(node), node.output.type.dims
    modes = {("nearest", "asymmetric"): 1, ("linear", "half_pixel"): 2, ("linear", "align_corners"): 4}
    mode = modes.get((op.mode, op.coordinate_transformation_mode))
    if mode is None or op.antialias or dims[:2] != out[:2]:
        raise NotInTengineError(f"Tengine has no resampling of mode {op.mode} with these coordinates")
    high, wide = (n / m for n, m in zip(out[2:], dims[2:], strict=True))
    w.add(node, 71, [mode, wide, high, out[3], out[2]], [w.operand(node.input(0))], alike=mode == 1)


LAYERS: dict[str, Write] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("Gemm", "MatMul"), _fully_connected),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    "ReduceSum": _reduced(0),
    "ReduceMean": _reduced(1),
    "ReduceMax": _reduced(4),
    "ReduceMin": _reduced(5),
    "Mul": _eltwise(0),
    "Add": _eltwise(2),
    "Sub": _eltwise(4),
    "Max": _eltwise(6),
    "Min": _eltwise(8),
    "Div": _eltwise(10),
    **_functions(),
    "Sigmoid": _unary(37),
    "Tanh": _unary(36),
    "HardSwish": _unary(70, 1.0, 3.0),
    "Mish": _unary(97),
    "Abs": _unary(68),
    "Ceil": _unary(83),
    "Round": _unary(85),
    "Reciprocal": _unary(103),
    "Softplus": _unary(102),
    **dict.fromkeys(("Clip", "Relu"), _bounded),
    "LeakyRelu": _leaky,
    "Swish": _swish,
    "Elu": lambda w, node: w.add(node, 73, [_attributes(node).alpha], [w.operand(node.input(0))]),
    "Selu": lambda w, node: w.add(
        node, 72, [_attributes(node).alpha, _attributes(node).gamma], [w.operand(node.input(0))]
    ),
    "PRelu": _prelu,
    "Softmax": _softmax,
    **dict.fromkeys(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Resize": _resize,
    "DepthToSpace": lambda w, node: w.add(
        node, 80, [_attributes(node).blocksize], [w.operand(node.input(0))], alike=True
    ),
}
