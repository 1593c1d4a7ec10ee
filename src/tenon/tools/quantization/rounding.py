"""Weights rounded by their effect on the sums of a layer, not each to the nearest integer.

What a layer reads on samples is summed up in one matrix, the second moments of the columns that weights multiply: the
squared error of the sums is a quadratic form of it, which both methods reduce.

Sources: "gptq": Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers"
(2022), its algorithm 1 with columns in the order of their moments; "adaround": Nagel et al., "Up or Down? Adaptive
Rounding for Post-Training Quantization" (2020), with the quadratic form for the loss of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tenon.network.graph.graph import Array, Node
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import limits
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.moments import Moments
from tenon.tools.quantization.scheme import QuantParams

DAMPING = 0.01
"""Share of the mean moment that is added to each."""

ITERATIONS = 400
"""Iterations of AdaRound's descent."""

FEW_BITS = 4
"""Bits of weights up to which smaller scales are tried."""

SHARES = np.linspace(1.05, 0.45, 7)
"""Factors for the scale of the greatest weight that are tried."""

SWEEPS = 4
"""Over the columns, at most, when they are improved one at a time."""

TOGETHER = 64
"""Columns whose errors are passed on to all that follow by one product of matrices."""

WORK = 2e11
"""Multiply-accumulates that AdaRound may take for a layer: larger ones keep what they have."""


# ------------------------------------------------------------------------------------------------ rounding
def rounded(
    made: Sequence[WeightedLayer], known: Mapping[Node, Moments], method: str, *, step: Step, centred: bool = False
) -> list[WeightedLayer]:
    """The products with weights rounded by ``method``, one of ``ROUNDINGS``, where moments are known.

    Products of the same weights (of the steps of a recurrent layer) are rounded alike, by the mean of their moments.
    ``centred``: biases will put back the means of sums, so that deviations from the mean alone count.
    """
    sharing: dict[int, list[int]] = {}
    for i, each in enumerate(made):
        sharing.setdefault(id(each.node.input(1)), []).append(i)
    products = list(made)
    for done, group in enumerate(sharing.values()):
        step(f"rounding ({method})", done, len(sharing))
        seconds = [
            m.covariance if centred and made[i].takes_bias else m.second
            for i in group
            if (m := known.get(made[i].node)) is not None and m.second is not None
        ]
        if len(seconds) != len(group):
            continue
        first = _rounded(made[group[0]], np.mean(seconds, axis=0), ROUNDINGS[method])
        for i in group:
            alike = np.array_equal(made[i].w.scale, first.w.scale)
            products[i] = replace(made[i], weights=first.weights) if alike else made[i]
    return products


Rounding = Callable[[Array, Array, tuple[float, float]], Array]
"""Weights [out, columns] in steps and moments [columns, columns] to integers within limits."""


def _rounded(each: WeightedLayer, moment: Array, method: Rounding) -> WeightedLayer:
    data, groups = each.node.input(1).array.astype(np.float64), len(moment)
    rows = np.moveaxis(data, each.axis, 0)
    parts = rows.reshape(groups, rows.shape[0] // groups, -1)
    scale = np.broadcast_to(each.w.scale, (rows.shape[0],)).reshape(groups, -1, 1).astype(np.float64)
    zero = np.broadcast_to(each.w.zero, (rows.shape[0],)).reshape(groups, -1, 1).astype(np.float64)
    least, most = span(each.w)
    whole = np.empty_like(parts)
    for i in range(groups):
        steps = parts[i] / scale[i]
        bounds = (float((least - zero[i]).max()), float((most - zero[i]).min()))
        kept = _damped(moment[i])
        new = method(steps, kept, bounds)
        near = np.clip(np.rint(steps), *bounds)
        better = _loss(new - steps, kept) < _loss(near - steps, kept)
        whole[i] = np.where(better[:, None], new, near)
    stored = np.moveaxis((whole + zero).reshape(rows.shape), 0, each.axis)
    return replace(each, weights=stored.astype(each.weights.dtype))


def span(w: QuantParams) -> tuple[int, int]:
    """The least and the greatest integer of weights: of symmetric ones in i8 without -128, which the nearest integers
    do not have either, and without which targets multiply bytes faster (``ProductUnit.narrow``)."""
    least, most = limits(w.dtype)
    return (-most if w.dtype is DType.I8 and not w.zero.any() else least), most


def _damped(moment: Array) -> Array:
    mean = np.trace(moment, axis1=-2, axis2=-1)[..., None, None] / moment.shape[-1]
    damped: Array = moment / np.maximum(mean, 1e-30) + DAMPING * np.eye(moment.shape[-1])
    return damped


def _loss(difference: Array, moment: Array) -> Array:
    losses: Array = ((difference @ moment) * difference).sum(-1)
    return losses


def gptq(steps: Array, moment: Array, bounds: tuple[float, float]) -> Array:
    """Column by column, each error made up for by the columns that are left; axes before the last two are groups."""
    order = np.argsort(-np.diagonal(moment, axis1=-2, axis2=-1), axis=-1, kind="stable")
    left = np.take_along_axis(steps, order[..., None, :], -1)
    inverse = np.linalg.inv(
        np.take_along_axis(np.take_along_axis(moment, order[..., :, None], -2), order[..., None, :], -1)
    )
    upper = np.linalg.cholesky((inverse + inverse.swapaxes(-1, -2)) / 2).swapaxes(-1, -2)
    rounded, columns = np.empty_like(left), left.shape[-1]
    for start in range(0, columns, TOGETHER):
        end = min(start + TOGETHER, columns)
        errors = np.empty((*left.shape[:-1], end - start))
        for j in range(start, end):
            rounded[..., j] = np.clip(np.rint(left[..., j]), *bounds)
            errors[..., j - start] = (left[..., j] - rounded[..., j]) / upper[..., j, j, None]
            left[..., j + 1 : end] -= errors[..., j - start, None] * upper[..., None, j, j + 1 : end]
        left[..., end:] -= errors @ upper[..., start:end, end:]
    result = np.empty_like(rounded)
    np.put_along_axis(result, order[..., None, :], rounded, -1)
    return result


def descended(whole: Array, steps: Array, moment: Array, bounds: tuple[float, float]) -> Array:
    """Integers near ``steps`` with no more error than ``whole``: one column after the other gets its best integers,
    given those of the others."""
    integers, power = whole.copy(), np.diagonal(moment, axis1=-2, axis2=-1)
    slope = (integers - steps) @ moment
    for _ in range(SWEEPS):
        before = integers.copy()
        for j in range(integers.shape[-1]):
            best = np.clip(np.rint(integers[..., j] - slope[..., j] / power[..., j, None]), *bounds)
            moved = best - integers[..., j]
            where = np.nonzero(moved)
            if len(where[0]):
                integers[..., j] = best
                slope[where] += moved[where][:, None] * moment[(*where[:-1], j)]
        if np.array_equal(before, integers):
            break
    return integers


def fitted(wanted: Array, moment: Array, scale: Array, bounds: tuple[float, float]) -> tuple[Array, Array]:
    """Integers [groups, out, columns] and scales [groups, out, 1], of some smaller ones than ``scale``, for weights
    ``wanted`` and moments [groups, columns, columns]: each row with the scale that gives its sums the least error."""
    kept, (groups, out, columns) = _damped(moment), wanted.shape
    scales = (scale * SHARES).reshape(groups, -1, 1)
    steps = np.repeat(wanted, len(SHARES), axis=1) / scales
    whole = gptq(steps, kept, bounds)
    losses = (_loss(whole - steps, kept) * scales[:, :, 0] ** 2).reshape(groups, out, -1)
    best = losses.argmin(-1)[:, :, None, None]
    chosen = np.take_along_axis(whole.reshape(groups, out, -1, columns), best, 2)[:, :, 0]
    narrow = np.take_along_axis(scales.reshape(groups, out, -1, 1), best, 2)[:, :, 0]
    return descended(chosen, wanted / narrow, kept, bounds), narrow


def adaround(steps: Array, moment: Array, bounds: tuple[float, float]) -> Array:
    """Each weight up or down, by gradient descent (Adam) on a rectified sigmoid that is driven to 0 or 1."""
    if 2.0 * ITERATIONS * len(steps) * moment.size > WORK:
        nearest: Array = np.clip(np.rint(steps), *bounds)
        return nearest
    down, form = np.floor(steps).astype(np.float32), moment.astype(np.float32)
    part = np.clip(steps - down, 0.01, 0.99).astype(np.float32)
    logits = -np.log(1.2 / (part + 0.1) - 1)
    first, second = np.zeros_like(logits), np.zeros_like(logits)
    target = steps.astype(np.float32)
    for i in range(ITERATIONS):
        sigmoid = 1 / (1 + np.exp(-logits))
        soft = np.clip(1.2 * sigmoid - 0.1, 0, 1)
        inside = (soft > 0) & (soft < 1)
        slope = np.where(inside, 1.2 * sigmoid * (1 - sigmoid), 0)
        gradient = 2 * ((down + soft - target) @ form) * slope
        warm = i / ITERATIONS
        if warm > 0.2:
            beta = 20 - 18 * (warm - 0.2) / 0.8
            far = np.abs(2 * soft - 1)
            gradient -= 0.02 * beta * 2 * np.sign(2 * soft - 1) * far ** (beta - 1) * slope
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        logits -= 0.05 * (first / (1 - 0.9 ** (i + 1))) / (np.sqrt(second / (1 - 0.999 ** (i + 1))) + 1e-8)
    up = 1.2 / (1 + np.exp(-logits)) - 0.1 >= 0.5
    chosen: Array = np.clip(down + up, *bounds).astype(np.float64)
    return chosen


def narrowed(each: WeightedLayer, moment: Array) -> WeightedLayer:
    """A product with scales of weights that give the sums the least error, of some smaller ones; one of more than
    ``FEW_BITS`` as it is."""
    if _bits(each) > FEW_BITS:
        return each
    data, groups = each.node.input(1).array.astype(np.float64), len(moment)
    rows = np.moveaxis(data, each.axis, 0).reshape(data.shape[each.axis], -1)
    power = np.repeat(np.diagonal(moment, axis1=1, axis2=2), len(rows) // groups, axis=0)
    scale = np.broadcast_to(each.w.scale, (len(rows),)).astype(np.float64)
    least, most = limits(each.w.dtype)
    shares = np.linspace(1.0, 0.5, 11)
    losses = []
    for share in shares:
        steps = rows / (scale * share)[:, None]
        error = (np.clip(np.rint(steps), least, most) - steps) * (scale * share)[:, None]
        losses.append((error**2 * power).sum(1))
    best = np.argmin(losses, axis=0) if each.w.scale.size > 1 else np.argmin(np.sum(losses, axis=1))
    w = QuantParams((each.w.scale * shares[best]).astype(np.float32), each.w.zero, each.w.dtype)
    return replace(each, w=w, weights=w.quantised(data.astype(np.float32), each.axis if w.scale.size > 1 else None))


def _bits(each: WeightedLayer) -> int:
    least, most = limits(each.w.dtype)
    return (most - least).bit_length()


ROUNDINGS: dict[str, Rounding] = {"gptq": gptq, "adaround": adaround}
"""By name."""
