"""Image preprocessing of inputs: described, or compiled into the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph, Node, Origin, Value
from tenon.network.graph.preprocessing import Preprocessing, letterbox, planes, raw, view
from tenon.network.graph.types import F32, U8, DType, TensorType
from tenon.network.graph.writer import Names


def described(graph: Graph, changes: Mapping[str, Any]) -> dict[str, Preprocessing]:
    """The preprocessing of the graph's image inputs, by name: as stated by the model, with the changes requested by the
    user.  A state holds what a run before gave, so it is no image, whatever its shape.

    For quantised inputs, mean and scale are in units of the stored integers.  The shapes must be bound.  Raises
    InputError for invalid changes, and for changes of unknown inputs.
    """
    by_name = {}
    for value in graph.inputs:
        dtype, shape = value.type.dtype, planes(value.type.dims)
        said = graph.preprocessing.get(value.name)
        takes = dtype is U8 or (value.type.rank == 4 and (dtype.is_float or dtype is DType.I8))
        if shape is None or not takes or value.name in graph.states:
            continue
        if said is None and not {"mean", "scale"} & changes.keys():
            by_name[value.name] = raw(dtype).changed(changes)
            continue
        preprocessing = (said or Preprocessing()).changed(changes)
        quant = value.type.quant
        by_name[value.name] = preprocessing if quant is None or preprocessing.within else preprocessing.quantised(quant)
    if changes and not by_name:
        shapes = ", ".join(f"{v.name} {v.type}" for v in graph.inputs)
        raise InputError(f"preprocessing is for images, and no input takes one: {shapes}")
    return by_name


def compile_in(graph: Graph, changes: Mapping[str, Any], size: tuple[int, int]) -> Graph:
    """A copy of the graph with the image as an input of bytes [height, width, C] of ``size``, in RGB order.

    Crop, resize, scale and the order of channels and axes become operators. Raises InputError unless exactly one input
    takes an image.
    """
    by_input = described(graph, changes)
    if len(by_input) != 1:
        raise InputError(f"preprocessing can be compiled in for one image; {len(by_input)} inputs could take one")
    ((name, preprocessing),) = by_input.items()
    if name in graph.extents:
        raise InputError(
            f"preprocessing is compiled in for one size, and '{name}' has several: give numbers with --shape"
        )
    new = graph.copy()
    old = next(v for v in new.inputs if v.name == name)
    channels, height, width, last = planes(old.type.dims) or (0, 0, 0, False)
    given = Value(name, TensorType(U8, (*size, channels)))
    old.name = Names(new).fresh(f"{name}_scaled")
    steps = _InsertedNodes(new, name)
    x = steps.add("Cast", given, to=str(F32))
    x = steps.add("Transpose", x, perm=(2, 0, 1))
    x = steps.add("Unsqueeze", x, np.array([0], np.int64))
    x = _fitted(steps, x, size, (height, width), preprocessing)
    x = _scaled(steps, x, preprocessing, channels)
    if last:
        x = steps.add("Transpose", x, perm=(0, 2, 3, 1))
    if not old.type.dtype.is_float:
        least, most = (np.array(n, np.float32) for n in ((-128, 127) if old.type.dtype is DType.I8 else (0, 255)))
        x = steps.add("Clip", steps.add("Round", x), least, most)
    if old.type.dtype is not F32:
        x = steps.add("Cast", x, to=str(old.type.dtype))
        x.type = replace(x.type, quant=old.type.quant)  # which operators of TFLite read their scales from
    new.inputs[new.inputs.index(old)] = given
    new.replace(old, x)
    new.preprocessing = {name: preprocessing._replace(within=(height, width))}
    return new


def _fitted(
    steps: _InsertedNodes, x: Value, size: tuple[int, int], to: tuple[int, int], preprocessing: Preprocessing
) -> Value:
    """f32 [1, C, size], fitted to the size of the network's input."""
    if preprocessing.fit == "letterbox":
        left, top, width, height = letterbox(*size, *to)
        x = _resized(steps, x, size, (height, width), preprocessing)
        pads = np.array([0, 0, top, left, 0, 0, to[0] - top - height, to[1] - left - width], np.int64)
        return steps.add("Pad", x, pads, np.array(preprocessing.border, np.float32)) if pads.any() else x
    if preprocessing.fit == "crop":
        first, start, last, end = view(preprocessing, *size, *to)
        rows, columns = (round(start), round(end)), (round(first), round(last))
        begins, ends = np.array([rows[0], columns[0]], np.int64), np.array([rows[1], columns[1]], np.int64)
        if begins.any() or tuple(ends) != size:
            x = steps.add("Slice", x, begins, ends, np.array([2, 3], np.int64))
        size = rows[1] - rows[0], columns[1] - columns[0]
    return _resized(steps, x, size, to, preprocessing)


def _resized(
    steps: _InsertedNodes, x: Value, size: tuple[int, int], to: tuple[int, int], preprocessing: Preprocessing
) -> Value:
    if size == to:
        return x
    sampling = preprocessing.sampling
    if sampling == "lanczos":
        raise InputError("Lanczos interpolation is not compiled in: choose another one (--sampling bicubic)")
    mode = {"nearest": "nearest", "bicubic": "cubic"}.get(sampling, "linear")
    how: dict[str, Any] = {"antialias": int(sampling in ("smooth", "bicubic")), "nearest_mode": "round_prefer_ceil"}
    sizes = np.array([*x.type.dims[:2], *to], np.int64)
    y = steps.add("Resize", x, None, None, sizes, mode=mode, cubic_coeff_a=-0.5, **how)
    return steps.add("Clip", y, np.array(0, np.float32), np.array(255, np.float32)) if mode == "cubic" else y


def _scaled(steps: _InsertedNodes, x: Value, preprocessing: Preprocessing, channels: int) -> Value:
    if preprocessing.channels == "bgr" and channels == 3:
        x = steps.add("Gather", x, np.array([2, 1, 0], np.int64), axis=1)
    mean, scale = (np.array(v, np.float32).reshape(1, -1, 1, 1) for v in (preprocessing.mean, preprocessing.scale))
    wrong = [a.size for a in (mean, scale) if a.size not in (1, channels)]
    if wrong:
        raise InputError(
            f"preprocessing has {wrong[0]} numbers for {channels} channel(s): give one, or one per channel"
        )
    x = steps.add("Sub", x, mean) if mean.any() else x
    return steps.add("Mul", x, scale) if (scale != 1).any() else x


class _InsertedNodes:
    """Nodes inserted before all others of a graph, in the order in which they are added."""

    def __init__(self, graph: Graph, stem: str) -> None:
        self.graph, self.stem, self.names = graph, stem, Names(graph)
        self.first: Node | None = next(iter(graph), None)

    def add(self, type: str, *inputs: Value | Array | None, **attributes: Any) -> Value:
        name = self.names.fresh(f"{self.stem}_{type.lower()}")
        values = [self._value(name, given) for given in inputs]
        operator = ops.registry()[type](**attributes)
        return self.graph.add(operator, values, [name], Origin(layer=name, type=type), before=self.first).output

    def _value(self, name: str, given: Value | Array | None) -> Value | None:
        if given is None or isinstance(given, Value):
            return given
        return self.graph.constant(self.names.fresh(f"{name}_constant"), given)
