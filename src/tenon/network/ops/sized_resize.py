"""The rule of Resize, where extents are known only at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression, expression, quotient, same

FINEST_SCALE = 1 << 12
"""The largest denominator of a scale whose results have an expression for their extent."""

ROUNDED = {"floor": "Floor", "ceil": "Ceil"}


@dataclass(frozen=True)
class ResizedAxis:
    """An axis before and after, and the scale, None where it is that of the extents and differs between runs."""

    axis: int
    before: Expression
    after: Expression
    scale: Fraction | None

    @property
    def fixed(self) -> bool:
        """Whether both extents are known."""
        return self.before.known and self.after.known


def resized(node: SizedNode, axes: Sequence[int], how: Any) -> Value:
    """A Resize of some ``axes`` with the attributes ``how``."""
    part = how.coordinate_transformation_mode == "tf_crop_and_resize"
    if part or how.antialias or how.exclude_outside or how.keep_aspect_ratio_policy != "stretch":
        raise SizeRefusedError("Resize with a part of the image, antialias, exclude_outside or an aspect ratio")
    plan = _axes(node, axes)
    value, extents = node.input(0), node.extents(0)
    for each in plan:
        if each.fixed or same(each.before, each.after):
            continue
        value = _along(node, value, each, how)
        extents[each.axis] = each.after
        value = node.state(value, extents)
    rest = [each for each in plan if each.fixed and each.before != each.after]
    if rest:
        sizes = list(value.type.dims)
        for each in rest:
            sizes[each.axis] = each.after.number
        extents = [next((r.after for r in rest if r.axis == i), e) for i, e in enumerate(extents)]
        attributes = {
            name: getattr(how, name)
            for name in ("coordinate_transformation_mode", "cubic_coeff_a", "mode", "nearest_mode")
        }
        value = node.state(node.whole("Resize", value, None, None, node.ints(*sizes), **attributes), extents)
    return value


def _axes(node: SizedNode, axes: Sequence[int]) -> list[ResizedAxis]:
    extents = node.extents(0)
    if node.has(2) and (node.input(2).data is None or node.input(2).type.size):
        data = node.input(2).data
        if data is None:
            raise SizeRefusedError("its scales are computed at run time", "export the model with sizes in their place")
        return [_scaled(axis, extents[axis], float(scale)) for axis, scale in zip(axes, data.tolist(), strict=True)]
    sizes = node.numbers(3, "the sizes")
    return [_sized(axis, extents[axis], after) for axis, after in zip(axes, sizes, strict=True)]


def _scaled(axis: int, before: Expression, scale: float) -> ResizedAxis:
    exact = Fraction(scale).limit_denominator(FINEST_SCALE)
    if before.known:
        after = expression(int(np.floor(np.float32(before.number) * np.float32(scale))))
    elif np.float32(exact) != np.float32(scale):
        raise SizeRefusedError(f"a scale of {scale:g} gives no exact extent")
    else:
        after = quotient(before * exact, 1)
    return ResizedAxis(axis, before, after, exact)


def _sized(axis: int, before: Expression, after: Expression) -> ResizedAxis:
    ratio = None
    if before.most > 0 and max(before.most, after.most) != float("inf"):
        ratio = Fraction(int(after.most), int(before.most))
        ratio = ratio if same(after, before * ratio) else None
    return ResizedAxis(axis, before, after, ratio)


def _along(node: SizedNode, value: Value, each: ResizedAxis, how: Any) -> Value:
    """The buffer resampled along one axis."""
    place = _places(node, each, how.coordinate_transformation_mode)
    last = node.whole("Cast", node.number(each.before - 1), to="f32")
    if how.mode == "nearest":
        return _gathered(node, value, each.axis, _rounded(node, place, how.nearest_mode), last)
    if value.type.dtype.value != "f32":
        raise SizeRefusedError(f"Resize of mode {how.mode} of {value.type.dtype}")
    below = node.whole("Floor", place)
    shape = [1] * value.type.rank
    shape[each.axis] = place.type.size
    weight = node.whole("Reshape", node.whole("Sub", place, below), node.ints(*shape))
    weights = _linear(node, weight) if how.mode == "linear" else _cubic(node, weight, how.cubic_coeff_a)
    total: Value | None = None
    for step, factor in weights.items():
        at = node.whole("Add", below, _number(node, float(step)))
        part = node.whole("Mul", _gathered(node, value, each.axis, at, last), factor)
        total = part if total is None else node.whole("Add", total, part)
    assert total is not None
    return total


def _linear(node: SizedNode, t: Value) -> dict[int, Value]:
    """The weights of the neighbours below and above, at the fraction t between them."""
    return {0: node.whole("Sub", _number(node, 1.0), t), 1: t}


def _cubic(node: SizedNode, t: Value, a: float) -> dict[int, Value]:
    """Keys' weights of four neighbours, at the fraction t between the second and the third."""

    def polynomial(x: Value, *factors: float) -> Value:
        total = _number(node, factors[0])
        for factor in factors[1:]:
            total = node.whole("Add", node.whole("Mul", total, x), _number(node, factor))
        return total

    rest = node.whole("Sub", _number(node, 1.0), t)
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    farther = [node.whole("Add", x, _number(node, 1.0)) for x in (t, rest)]
    return {
        -1: polynomial(farther[0], *far),
        0: polynomial(t, *near),
        1: polynomial(rest, *near),
        2: polynomial(farther[1], *far),
    }


def _number(node: SizedNode, number: float) -> Value:
    return node.constant(np.array(number, np.float32))


def _places(node: SizedNode, each: ResizedAxis, mode: str) -> Value:
    """The coordinate in the operand of every place of the result, f32."""
    count = node.largest(each.after)
    steps = node.constant(np.arange(count, dtype=np.float32))
    before = node.whole("Cast", node.number(each.before), to="f32")
    after = node.whole("Cast", node.number(each.after), to="f32")
    half, one = _number(node, 0.5), _number(node, 1.0)
    if mode == "align_corners":
        last = node.whole("Max", node.whole("Sub", after, one), one)
        return node.whole("Div", node.whole("Mul", steps, node.whole("Sub", before, one)), last)
    scale = node.whole("Div", after, before) if each.scale is None else _number(node, float(each.scale))
    if mode == "asymmetric":
        return node.whole("Div", steps, scale)
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise SizeRefusedError(f"Resize with {mode} along an axis whose extent is known only at run time")
    place = node.whole("Sub", node.whole("Div", node.whole("Add", steps, half), scale), half)
    if mode == "pytorch_half_pixel" and each.after.least <= 1:
        place = node.whole("Where", node.whole("Greater", after, one), place, _number(node, 0.0))
    return place


def _rounded(node: SizedNode, place: Value, mode: str) -> Value:
    if mode in ROUNDED:
        return node.whole(ROUNDED[mode], place)
    half = _number(node, 0.5)
    if mode == "round_prefer_floor":
        return node.whole("Ceil", node.whole("Sub", place, half))
    return node.whole("Floor", node.whole("Add", place, half))


def _gathered(node: SizedNode, value: Value, axis: int, place: Value, last: Value) -> Value:
    """The places of a buffer nearest to ``place``, whole numbers in f32, from 0 to ``last``."""
    within = node.whole("Max", node.whole("Min", place, last), _number(node, 0.0))
    return node.gathered(value, axis, node.whole("Cast", within, to="i64"))
