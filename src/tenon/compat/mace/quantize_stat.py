"""``quantize_stat``: the ranges of many runs to one for each tensor, as ``tools/python/quantize/quantize_stat.py`` of
XiaoMi/mace does; its output is a ``quantize_range_file``.

A log has a line ``Tensor range @@<tensor>@@<least>,<greatest>`` for each tensor of each run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tenon.errors import InputError
from tenon.input_file import read_regular
from tenon.tools.quantization.ranges import narrowed_ends

_LINE = re.compile(r".*Tensor range @@(?P<name>.+)@@(?P<low>[^,@]+),(?P<high>[^,@]+)")
_MARK = "Tensor range @@"

Extremes = tuple[list[float], list[float]]
"""The least and the greatest values of a tensor in each run."""


def logged(path: Path) -> dict[str, Extremes]:
    """The extremes of each tensor, in the order of their first lines.  Raises InputError for a damaged line."""
    extremes: dict[str, Extremes] = {}
    for number, line in enumerate(read_regular(path).decode("utf-8", "replace").splitlines(), 1):
        if _MARK not in line:
            continue
        match = _LINE.fullmatch(line.rstrip())
        try:
            if match is None:
                raise ValueError(line)
            pair = float(match["low"]), float(match["high"])
        except ValueError:
            raise InputError(f"{path}:{number}: damaged: a line is 'Tensor range @@tensor@@least,greatest'") from None
        lows, highs = extremes.setdefault(match["name"], ([], []))
        lows.append(pair[0])
        highs.append(pair[1])
    if not extremes:
        raise InputError(f"{path}: there are no lines with '{_MARK}' in it: run the model with --quantize_stat")
    return extremes


def log_line(name: str, low: float, high: float) -> str:
    """A line of such a log."""
    return f"{_MARK}{name}@@{low:f},{high:f}"


def overall(extremes: Extremes, percentile: float = 0, ratio: float | None = None) -> tuple[float, float]:
    """One range for all runs: extremes without ``percentile`` percent of the runs at either end, narrowed while that
    saves ``ratio`` times more of the range than it gives up of the runs (None: not at all).

    Raises ValueError for a tensor that is constant.
    """
    lows, highs = (np.array(each, np.float64) for each in extremes)
    low, high = float(np.percentile(lows, percentile)), float(np.percentile(highs, 100 - percentile))
    if not low < high:
        raise ValueError(f"{low:g} to {high:g}")
    if ratio is None or len(lows) < 2:
        return low, high
    return narrowed_ends(extremes[0], extremes[1], (low, high), ratio)


def range_file(path: Path, percentile: float, ratio: float | None) -> Sequence[str]:
    """The lines of the ``quantize_range_file``.  Raises InputError."""
    lines = []
    for name, extremes in logged(path).items():
        try:
            low, high = overall(extremes, percentile, ratio)
        except ValueError as error:
            raise InputError(f"{path}: the range of '{name}' is {error}: give samples that differ") from None
        lines.append(f"{name}@@{low:f},{high:f}")
    return lines
