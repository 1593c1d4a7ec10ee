"""Quantisation by ranges that are known: given in a file or by hand, or brought along by a model; what is missing is
calibrated."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import Any

from tenon.errors import InputError, ModelError
from tenon.network.graph.graph import Graph, Value
from tenon.tools.quantization.calibration import Step, observed
from tenon.tools.quantization.candidates import Recipe, grids, joined_ranges
from tenon.tools.quantization.insertion import products
from tenon.tools.quantization.placement import Placement, placement
from tenon.tools.quantization.range_files import read_ranges
from tenon.tools.quantization.ranges import HISTOGRAMS, METHODS, Range, usual_range
from tenon.tools.quantization.samples import Data, Sample, finite, read_samples
from tenon.tools.quantization.scheme import Scheme

Ranges = Mapping[str, Range] | str | PathLike[str]
"""Ranges by the names of tensors, or a file of them."""


def read(ranges: Ranges | None, scheme: Scheme) -> dict[str, Range]:
    """The ranges of a mapping or of a file.  Raises InputError."""
    if ranges is None or isinstance(ranges, Mapping):
        return dict(ranges or {})
    return read_ranges(os.fspath(ranges), scheme)


def known(graph: Graph, placed: Placement, ranges: Mapping[str, Range]) -> dict[Value, Range]:
    """The given ranges of the tensors that are quantised.  Raises InputError if ranges are given but none fits a
    tensor."""
    fitting = {value: ranges[value.name] for value in placed.tensors if value.name in ranges}
    if ranges and not fitting:
        have = ", ".join(f"'{value.name}'" for value in placed.tensors[:3])
        raise InputError(
            f"{graph.source or graph.name}: none of its tensors is called '{next(iter(ranges))}' or as the other "
            f"ranges are: those that need one are {have} and so on (--save-ranges writes all)"
        )
    return fitting


def missing(
    graph: Graph, ranges: Mapping[str, Range], exclude: Sequence[str], separate: Collection[str] = ()
) -> list[Value]:
    """The tensors that get a grid of their own and have no range; what a LeakyRelu reads gets one if it has a range."""
    placed = placement(graph, exclude, separate={*ranges, *separate})
    return [v for v in placed.tensors if v not in placed.parts and v.name not in ranges and usual_range(v) is None]


def quantized_by(
    graph: Graph,
    ranges: Mapping[str, Range],
    scheme: Scheme,
    data: Data | None,
    *,
    method: str,
    samples: int,
    seed: int,
    exclude: Sequence[str],
    wide: Sequence[str],
    preprocess: Mapping[str, Any] | None,
    threads: int,
    step: Step,
    change_concat_ranges: bool = False,
    separate: Collection[str] = (),
    states: Collection[str] = (),
) -> tuple[Recipe, list[Sample]]:
    """The recipe for ``graph`` of these ranges, and by ``method`` where they have none; and the samples of ``data``.

    ``change_concat_ranges`` gives a concatenation and all that it joins one range, the least that has all of theirs, as
    MACE's key of that name does: integers are moved, none is requantised.

    Raises ModelError, and InputError for a tensor without a range where there are no samples.
    """
    placed = placement(graph, exclude, wide, {*ranges, *separate}, joined=change_concat_ranges, states=states)
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    given = known(graph, placed, ranges)
    left = missing(graph, ranges, exclude, separate)
    if left and data is None:
        raise InputError(
            f"there is no range for tensor '{left[0].name}' and {len(left) - 1} others: give samples (--data) "
            "or all ranges (--ranges)"
        )
    calibration = [] if data is None else finite(read_samples(graph, data, samples, seed, preprocess))
    if left:
        seen = observed(graph, left, calibration, histograms=method in HISTOGRAMS, threads=threads, step=step)
        given |= {value: METHODS[method](each) for value, each in seen.items()}
    if change_concat_ranges:
        given |= joined_ranges(placed, given)
    made = products(placed, grids(placed, given, scheme), scheme)
    return Recipe(graph, placed, given, made, "known ranges"), calibration
