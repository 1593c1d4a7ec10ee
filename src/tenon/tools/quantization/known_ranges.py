"""Quantisation by ranges that are known: given in a file or by hand, or brought along by a model; what is missing is
calibrated."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from os import PathLike

from tenon.errors import InputError, ModelError
from tenon.network.graph.graph import Graph, Value
from tenon.tools.quantization.calibration import observed
from tenon.tools.quantization.candidates import Recipe, Request, grids, joined_ranges
from tenon.tools.quantization.insertion import products
from tenon.tools.quantization.placement import Placement, placement
from tenon.tools.quantization.range_files import read_ranges
from tenon.tools.quantization.ranges import HISTOGRAMS, METHODS, Range, usual_range
from tenon.tools.quantization.samples import Sample, SampleSource, finite
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
    graph: Graph, ranges: Mapping[str, Range], request: Request, source: SampleSource | None
) -> tuple[Recipe, list[Sample]]:
    """The recipe for ``graph`` of these ranges, and by the first method of ``request`` where they have none; and the
    samples.

    ``request.joined`` gives a concatenation and all that it joins one range, the least that has all of theirs, as
    MACE's key change_concat_ranges does: integers are moved, none is requantised.

    Raises ModelError, and InputError for a tensor without a range where there are no samples.
    """
    separate = {*ranges, *request.separate}
    placed = placement(graph, request.exclude, request.wide, separate, joined=request.joined, states=request.states)
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    given = known(graph, placed, ranges)
    left = missing(graph, ranges, request.exclude, request.separate)
    if left and source is None:
        raise InputError(
            f"there is no range for tensor '{left[0].name}' and {len(left) - 1} others: give samples (--data) "
            "or all ranges (--ranges)"
        )
    calibration = [] if source is None else finite(each.sample for each in source.numbered(graph))
    if left:
        given |= _calibrated(graph, left, calibration, request)
    if request.joined:
        given |= joined_ranges(placed, given)
    made = products(placed, grids(placed, given, request.scheme), request.scheme)
    return Recipe(graph, placed, given, made, "known ranges"), calibration


def _calibrated(
    graph: Graph, values: Sequence[Value], samples: Sequence[Sample], request: Request
) -> dict[Value, Range]:
    """The ranges of ``values`` that the samples give."""
    method = request.methods[0]
    histograms = method in HISTOGRAMS
    seen = observed(graph, values, samples, histograms=histograms, threads=request.threads, step=request.step)
    return {value: METHODS[method](each) for value, each in seen.items()}
