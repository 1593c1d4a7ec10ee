"""Tengine's operators that move elements, resize or sample images."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.decompositions.caffe_family import cut
from tenon.decompositions.layers import affine_grid, sampled
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.tengine.context import Context
from tenon.ir.graph import Value

TRANSFORMER = "sampler transformer shape_size shape:I"
"""Parameters of a SpatialTransformer."""


def reshape(c: Context) -> Value:
    """MXNet's codes: 0 keeps an axis, -1 takes the rest, -2 all that follow, -3 joins two, -4 splits one."""
    dims, wanted = c.dims(), [int(n) for n in c.p["shape"]]
    shape: list[int] = []
    at = i = 0
    while i < len(wanted):
        n = wanted[i]
        if n == 0:
            if c.p["is_mxnet"] or c.p["is_onnx"]:
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
    if c.p["reverse"]:
        shape.reverse()
    return c.reshape(c.x, *shape) if shape else c.x


def flatten(c: Context) -> Value:
    dims, axis = c.dims(), c.along()
    end = c.p["end_axis"]
    last = (end + len(dims) if end < 0 else end) + 1
    if not axis < last <= len(dims):
        last = len(dims)
    return c.reshape(c.x, *dims[:axis], math.prod(dims[axis:last]), *dims[last:])


def concat(c: Context) -> Value:
    return c.add("Concat", *c.inputs, axis=c.along())


def permute(c: Context) -> Value:
    order = [c.p[f"order{i}"] for i in range(4)][: len(c.dims())]
    return c.add("Transpose", c.x, perm=order)


def transpose(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=[int(n) for n in c.p["shape"]])


def swap_axis(c: Context) -> Value:
    order = list(range(len(c.dims())))
    a, b = c.along("dim_0"), c.along("dim_1")
    order[a], order[b] = b, a
    return c.add("Transpose", c.x, perm=order)


def slice(c: Context) -> Made:
    p, dims = c.p, c.dims()
    if p["iscaffe"]:
        return cut(c, c.x, c.along(), [int(n) for n in p["points"]], len(c.node.outputs))
    if p["ismxnet"] or p["isonnx"]:
        step, end = max(1, p["step"]), p["end"]
        end = dims[c.along()] if end == 0 and p["isonnx"] else end
        return c.slice(c.x, [p["begin"]], [end], [p["axis"]], [step])
    begins, sizes = [int(n) for n in p["begins"]], [int(n) for n in p["sizes"]]
    return c.slice(c.x, begins, [b + s for b, s in zip(begins, sizes, strict=True)], range(len(begins)))


def strided_slice(c: Context) -> Value:
    axes = "nchw"[: len(c.dims())]
    begin, end, step = ([c.p[f"{what}_{a}"] for a in axes] for what in ("begin", "end", "stride"))
    ends = [e or n for e, n in zip(end, c.dims(), strict=True)]
    return c.slice(c.x, begin, ends, range(len(axes)), [s or 1 for s in step])


def split(c: Context) -> Made:
    """Without sizes, copies (Caffe's Split) or equal parts."""
    count, sizes = len(c.node.outputs), [int(n) for n in c.p["sizes"]]
    if c.p["flags"] & 0xFF and not sizes:
        return [c.x] * count
    axis = c.along()
    return c.split(c.x, axis, sizes) if sizes else c.equal_parts(c.x, axis, count)


def pad(c: Context) -> Value:
    axes, mode = "nchw"[: len(c.dims())], c.p["mode"]
    if mode not in (0, 1, 2):
        raise RefusedError(f"mode {mode} is not supported")
    pads = [c.p[f"pad_{a}_{end}"] for end in (0, 1) for a in axes]
    value = c.p["value"] if mode == 0 else None
    return c.add("Pad", c.x, c.ints(*(max(0, n) for n in pads)), value, mode=("constant", "edge", "reflect")[mode])


def crop(c: Context) -> Value:
    """To the size of the second input, or to one of its own (MXNet with one input), from an offset or the middle."""
    p, (h, w) = c.p, c.dims()[2:]
    high, wide = (p["crop_h"], p["crop_w"]) if p["flag"] == 1 and len(c.inputs) < 2 else c.dims(1)[2:]
    middle = p["flag"] == 1 and p["center_crop"] & 0xFF
    top, left = ((h - high) // 2, (w - wide) // 2) if middle else (p["offset_h"], p["offset_w"])
    return c.slice(c.x, [top, left], [top + high, left + wide], [2, 3])


def upsample(c: Context) -> Value:
    return _resized(c, c.p["scale"], c.p["scale"], "nearest", "asymmetric")


def resize(c: Context) -> Value:
    """By factors of width and height."""
    return _resized(c, c.p["scale_y"], c.p["scale_x"], *_RESIZES[2 if c.p["type"] else 1])


_RESIZES = {1: ("nearest", "asymmetric"), 2: ("linear", "half_pixel"), 3: ("cubic", "half_pixel"),
            4: ("linear", "align_corners")}  # fmt: skip


def interp(c: Context) -> Value:
    p = c.p
    if p["resize_type"] not in _RESIZES:
        raise RefusedError(f"resize_type {p['resize_type']} is not supported")
    mode, centre = _RESIZES[p["resize_type"]]
    if p["output_height"] and p["output_width"]:
        h, w = c.dims()[2:]
        return _resized(c, p["output_height"] / h, p["output_width"] / w, mode, centre)
    return _resized(c, p["height_scale"], p["width_scale"], mode, centre)


def _resized(c: Context, high: float, wide: float, mode: str, centre: str) -> Value:
    h, w = c.dims()[2:]
    if not (0 < high < 1024 and 0 < wide < 1024):
        raise RefusedError(f"factors of {high:g} and {wide:g} are impossible")
    height, width = max(1, int(h * high + 1e-4)), max(1, int(w * wide + 1e-4))
    return c.resized(c.x, height, width, mode, centre)


def squeeze(c: Context) -> Value:
    rank = len(c.dims())
    axes = [a for a in (c.p[f"dim_{i}"] for i in range(4)) if -rank <= a < rank and a != -2]
    return c.add("Squeeze", c.x, c.ints(*axes)) if axes else c.add("Squeeze", c.x)


def gather(c: Context) -> Value:
    return c.add("Gather", c.x, c.add("Cast", c.inputs[1], to="i64"), axis=c.p["axis"])


def expand(c: Context) -> Value:
    """Or a product of matrices, which has no parameters: old versions number the two the other way round."""
    if not c.node.at:
        return c.add("MatMul", *c.inputs)
    return c.add("Expand", c.x, c.ints(*(int(n) for n in c.p["shape"])))


def tile(c: Context) -> Value:
    """Times along the last axes, from the file or from a constant."""
    times = [int(n) for n in c.p["times"]] or c.numbers(1)
    rank = max(len(times), len(c.dims()))
    x = c.reshape(c.x, *(1,) * (rank - len(c.dims())), *c.dims())
    return c.add("Tile", x, c.ints(*(1,) * (rank - len(times)), *times))


def reverse(c: Context) -> Value:
    (axis,) = c.numbers(1)
    n = c.dims()[c.axis(axis, len(c.dims()))]
    return c.slice(c.x, [n - 1], [-n - 1], [axis], [-1])


def sparse_to_dense(c: Context) -> Value:
    """Inputs: places [n] or [n, rank], the shape, and a value for each place or for all."""
    shape, places = c.numbers(1), c.dims()
    if any(d < 1 for d in shape) or math.prod(shape) > 1 << 24:
        raise RefusedError(f"the shape {shape} is impossible")
    at = c.add("Cast", c.reshape(c.x, -1, places[-1] if len(places) > 1 else 1), to="i64")
    values = c.add("Expand", c.reshape(c.input(2), -1), c.ints(c.builder.dims(at)[0]))
    dense = np.full(shape, c.p["default"], c.builder.type(values).dtype.numpy)
    return c.add("ScatterND", dense, at, values)


def blocks(move: Callable[..., Value]) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        p = c.p
        return move(c, c.x, (p["high"], p["wide"]), (p["top"], p["left"], p["bottom"], p["right"]))

    return made


def spatial_transformer(c: Context) -> Value:
    p, size = c.p, [int(n) for n in c.p["shape"]]
    if p["sampler"] != 1 or p["transformer"] != 0 or len(size) != 2:
        raise RefusedError("only affine transformations with linear sampling are supported")
    grid = affine_grid(c, c.input(1), (size[0], size[1]))
    return sampled(c, c.x, grid, "linear", "zeros", corners=True)
