"""Tengine's operators that move elements, resize or sample images."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions.caffe_family import cut
from tenon.formats.decompositions.layers import affine_grid, sampled
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tengine.node import TengineNode
from tenon.network.graph.graph import Value

TRANSFORMER = "sampler transformer shape_size shape:I"
"""Parameters of a SpatialTransformer."""


def reshape(node: TengineNode) -> Value:
    """Codes of MXNet: 0 keeps an axis, -1 is inferred, -2 all that follow, -3 joins two, -4 splits one."""
    dims, wanted = node.dims, [int(n) for n in node.attributes["shape"]]
    shape: list[int] = []
    at = i = 0
    while i < len(wanted):
        n = wanted[i]
        if n == 0:
            if node.attributes["is_mxnet"] or node.attributes["is_onnx"]:
                shape.append(dims[at] if at < len(dims) else 1)
            elif i == 0:
                shape.append(dims[0])
            at += 1
        elif n == -2:
            shape += dims[at:]
            at = len(dims)
        elif n == -3:
            shape.append(math.prod(dims[at : at + 2]))
            at += 2
        elif n == -4:
            shape += [1 if v == -1 and k == 0 else v for k, v in enumerate(wanted[i + 1 : i + 3])]
            at, i = at + 1, i + 2
        else:
            shape.append(n)
            at += 1
        i += 1
    if node.attributes["reverse"]:
        shape.reverse()
    return node.reshape(node.x, *shape) if shape else node.x


def flatten(node: TengineNode) -> Value:
    dims, axis = node.dims, node.along()
    end = node.attributes["end_axis"]
    last = (end + len(dims) if end < 0 else end) + 1
    if not axis < last <= len(dims):
        last = len(dims)
    return node.reshape(node.x, *dims[:axis], math.prod(dims[axis:last]), *dims[last:])


def concat(node: TengineNode) -> Value:
    return node.add("Concat", *node.inputs, axis=node.along())


def permute(node: TengineNode) -> Value:
    order = [node.attributes[f"order{i}"] for i in range(4)][: len(node.dims)]
    return node.add("Transpose", node.x, perm=order)


def transpose(node: TengineNode) -> Value:
    return node.add("Transpose", node.x, perm=[int(n) for n in node.attributes["shape"]])


def swap_axis(node: TengineNode) -> Value:
    order = list(range(len(node.dims)))
    a, b = node.along("dim_0"), node.along("dim_1")
    order[a], order[b] = b, a
    return node.add("Transpose", node.x, perm=order)


def slice(node: TengineNode) -> Outputs:
    p, dims = node.attributes, node.dims
    if p["iscaffe"]:
        return cut(node, node.x, node.along(), [int(n) for n in p["points"]], len(node.record.outputs))
    if p["ismxnet"] or p["isonnx"]:
        step, end = max(1, p["step"]), p["end"]
        end = dims[node.along()] if end == 0 and p["isonnx"] else end
        return node.slice(node.x, [p["begin"]], [end], [p["axis"]], [step])
    begins, sizes = [int(n) for n in p["begins"]], [int(n) for n in p["sizes"]]
    return node.slice(node.x, begins, [b + s for b, s in zip(begins, sizes, strict=True)], range(len(begins)))


def strided_slice(node: TengineNode) -> Value:
    axes = "nchw"[: len(node.dims)]
    begin, end, step = ([node.attributes[f"{what}_{a}"] for a in axes] for what in ("begin", "end", "stride"))
    ends = [e or n for e, n in zip(end, node.dims, strict=True)]
    return node.slice(node.x, begin, ends, range(len(axes)), [s or 1 for s in step])


def split(node: TengineNode) -> Outputs:
    """Without sizes: copies (Caffe's Split), else equal parts."""
    count, sizes = len(node.record.outputs), [int(n) for n in node.attributes["sizes"]]
    if node.attributes["flags"] & 0xFF and not sizes:
        return [node.x] * count
    axis = node.along()
    return node.split(node.x, axis, sizes) if sizes else node.equal_parts(node.x, axis, count)


def pad(node: TengineNode) -> Value:
    axes, mode = "nchw"[: len(node.dims)], node.attributes["mode"]
    if mode not in (0, 1, 2):
        raise RefusedError(f"mode {mode} is not supported")
    pads = [node.attributes[f"pad_{a}_{end}"] for end in (0, 1) for a in axes]
    value = node.attributes["value"] if mode == 0 else None
    return node.add(
        "Pad", node.x, node.ints(*(max(0, n) for n in pads)), value, mode=("constant", "edge", "reflect")[mode]
    )


def crop(node: TengineNode) -> Value:
    """To the size of the second input, or to one of its own (MXNet with one input), from an offset or the middle."""
    p, (h, w) = node.attributes, node.dims[2:]
    high, wide = (p["crop_h"], p["crop_w"]) if p["flag"] == 1 and len(node.inputs) < 2 else node.dims_of(1)[2:]
    middle = p["flag"] == 1 and p["center_crop"] & 0xFF
    top, left = ((h - high) // 2, (w - wide) // 2) if middle else (p["offset_h"], p["offset_w"])
    return node.slice(node.x, [top, left], [top + high, left + wide], [2, 3])


def upsample(node: TengineNode) -> Value:
    return _resized(node, node.attributes["scale"], node.attributes["scale"], "nearest", "asymmetric")


def resize(node: TengineNode) -> Value:
    """By factors of width and height."""
    return _resized(
        node, node.attributes["scale_y"], node.attributes["scale_x"], *_RESIZES[2 if node.attributes["type"] else 1]
    )


_RESIZES = {
    1: ("nearest", "asymmetric"),
    2: ("linear", "half_pixel"),
    3: ("cubic", "half_pixel"),
    4: ("linear", "align_corners"),
}


def interp(node: TengineNode) -> Value:
    p = node.attributes
    if p["resize_type"] not in _RESIZES:
        raise RefusedError(f"resize_type {p['resize_type']} is not supported")
    mode, centre = _RESIZES[p["resize_type"]]
    if p["output_height"] and p["output_width"]:
        h, w = node.dims[2:]
        return _resized(node, p["output_height"] / h, p["output_width"] / w, mode, centre)
    return _resized(node, p["height_scale"], p["width_scale"], mode, centre)


def _resized(node: TengineNode, high: float, wide: float, mode: str, centre: str) -> Value:
    h, w = node.dims[2:]
    if not (0 < high < 1024 and 0 < wide < 1024):
        raise RefusedError(f"factors of {high:g} and {wide:g} are impossible")
    height, width = max(1, int(h * high + 1e-4)), max(1, int(w * wide + 1e-4))
    return node.resize(node.x, height, width, mode, centre)


def squeeze(node: TengineNode) -> Value:
    rank = len(node.dims)
    axes = [a for a in (node.attributes[f"dim_{i}"] for i in range(4)) if -rank <= a < rank and a != -2]
    return node.add("Squeeze", node.x, node.ints(*axes)) if axes else node.add("Squeeze", node.x)


def gather(node: TengineNode) -> Value:
    return node.add("Gather", node.x, node.add("Cast", node.inputs[1], to="i64"), axis=node.attributes["axis"])


def expand(node: TengineNode) -> Value:
    """Or a product of matrices, which has no parameters: old versions number the two in the opposite order."""
    if not node.record.at:
        return node.add("MatMul", *node.inputs)
    return node.add("Expand", node.x, node.ints(*(int(n) for n in node.attributes["shape"])))


def tile(node: TengineNode) -> Value:
    """Times along the last axes, from the file or from a constant."""
    times = [int(n) for n in node.attributes["times"]] or node.constant_integers(1)
    rank = max(len(times), len(node.dims))
    x = node.reshape(node.x, *(1,) * (rank - len(node.dims)), *node.dims)
    return node.add("Tile", x, node.ints(*(1,) * (rank - len(times)), *times))


def reverse(node: TengineNode) -> Value:
    (axis,) = node.constant_integers(1)
    n = node.dims[node.axis(axis, len(node.dims))]
    return node.slice(node.x, [n - 1], [-n - 1], [axis], [-1])


def sparse_to_dense(node: TengineNode) -> Value:
    """Inputs: indices [n] or [n, rank], the shape, and a value for each index or for all."""
    shape, indices = node.constant_integers(1), node.dims
    if any(d < 1 for d in shape) or math.prod(shape) > 1 << 24:
        raise RefusedError(f"the shape {shape} is impossible")
    at = node.add("Cast", node.reshape(node.x, -1, indices[-1] if len(indices) > 1 else 1), to="i64")
    values = node.add("Expand", node.reshape(node.input(2), -1), node.ints(node.builder.dims(at)[0]))
    dense = np.full(shape, node.attributes["default"], node.builder.type(values).dtype.numpy)
    return node.add("ScatterND", dense, at, values)


def blocks(move: Callable[..., Value]) -> Callable[[TengineNode], Value]:
    def import_node(node: TengineNode) -> Value:
        p = node.attributes
        return move(node, node.x, (p["high"], p["wide"]), (p["top"], p["left"], p["bottom"], p["right"]))

    return import_node


def spatial_transformer(node: TengineNode) -> Value:
    p, size = node.attributes, [int(n) for n in node.attributes["shape"]]
    if p["sampler"] != 1 or p["transformer"] != 0 or len(size) != 2:
        raise RefusedError("only affine transformations with linear sampling are supported")
    grid = affine_grid(node, node.input(1), (size[0], size[1]))
    return sampled(node, node.x, grid, "linear", "zeros", corners=True)
