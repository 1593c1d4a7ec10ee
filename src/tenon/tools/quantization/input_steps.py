"""Inputs that are integers of 8 bits themselves, times a step: with a grid of the same steps they have no noise.

Pixels are such inputs, and features that were quantised when they were made.  A range as it is observed gives another
step where samples do not have the least and the greatest integer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32
from tenon.tools.quantization.ranges import Range
from tenon.tools.quantization.samples import Sample

LEVELS = 256
"""Levels of 8 bits."""

FEWEST = 32
"""Different values that an input has at least; of fewer, the step could be a coincidence."""

EXACT = 1e-3
"""Distance of values from whole steps, in steps, up to which they are rounding."""


def step_ranges(graph: Graph, samples: Sequence[Sample], *, symmetric: bool) -> dict[str, Range]:
    """By the names of inputs in f32 whose values are whole steps, the range whose 8-bit grid has these steps.

    ``symmetric``: the grid is to have as many steps below zero as above.
    """
    ranges: dict[str, Range] = {}
    for value in graph.inputs:
        if value.type.dtype is F32 and (span := _range([s[value.name] for s in samples], symmetric)) is not None:
            ranges[value.name] = span
    return ranges


def _range(arrays: Sequence[Array], symmetric: bool) -> Range | None:
    values = np.zeros(0, np.float32)
    for array in arrays:
        values = np.union1d(values, array)
        if len(values) > LEVELS:
            return None
    if len(values) < FEWEST:
        return None
    least = float(np.diff(values.astype(np.float64)).min())
    width = float(values[-1]) - float(values[0])
    step = width / np.rint(width / least)
    whole = np.rint(values / step)
    if np.abs(values / step - whole).max() > EXACT:
        return None
    low, high = min(int(whole[0]), 0), max(int(whole[-1]), 0)
    if symmetric:
        most = LEVELS // 2 - 1
        return (-most * step, most * step) if max(-low, high) <= most else None
    spare = LEVELS - 1 - (high - low)
    if spare < 0:
        return None
    if low < 0 and _rarer_below(arrays, float(values[0]), float(values[-1])):
        return (low - spare) * step, high * step
    return low * step, (high + spare) * step


def _rarer_below(arrays: Sequence[Array], low: float, high: float) -> bool:
    """Whether the least value is rarer than the greatest: other samples then exceed it rather than the other, which
    values were limited to."""
    return sum(int((a == low).sum()) for a in arrays) < sum(int((a == high).sum()) for a in arrays)
