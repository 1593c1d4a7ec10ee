"""Bounds of values that the user states: how large numbers that a model computes can be, and ranges of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenon.errors import InputError
from tenon.network.graph.graph import Graph
from tenon.network.graph.size_range import LARGEST_SIZE

ANY = "*"
"""The name of a limit of all numbers that have no bound of their own."""


def checked_limits(limits: Mapping[str, int] | None) -> dict[str, int]:
    """The largest numbers of values by name.  Raises InputError for what is no number of elements."""
    for name, most in (limits or {}).items():
        if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= LARGEST_SIZE:
            raise InputError(f"--max {name}={most}: give a whole number from 0 to {LARGEST_SIZE}")
    return dict(limits or {})


def with_limits(graph: Graph, limits: Mapping[str, int] | None) -> Graph:
    """The graph, in which values of these names are never larger; for graphs with dimensions that are not bound yet.
    Raises InputError for others: their sizes are computed already."""
    if not limits:
        return graph
    if all(v.type.bound for v in graph.inputs):
        raise InputError("max: the shapes of this graph are bound: give max to tenon.load")
    graph = graph.copy()
    graph.limits |= checked_limits(limits)
    return graph


def check_bindings(graphs: Sequence[Graph]) -> None:
    """Raise InputError for limits without effect, and unless the graphs of all bindings have the same inputs: sizes
    that runs choose are some."""
    check_limits(graphs[0])
    first, *others = ({v.name for v in graph.inputs} for graph in graphs)
    if different := sorted(set().union(*(first ^ names for names in others))):
        raise InputError(
            f"--shape: '{different[0]}' is a size that runs choose in some bindings only: give it in all of them, "
            "where it is fixed as a range of one number (L:1..1)"
        )


def check_limits(graph: Graph) -> None:
    """Raise InputError for a limit on which nothing depends: no size is computed from a value of that name."""
    if unused := sorted(graph.limits.keys() - graph.limited):
        raise InputError(
            f"--max {unused[0]}={graph.limits[unused[0]]}: no size of {graph.source or graph.name} depends on a value "
            "of that name: leave it out, or correct the name"
        )


def check_ranges(graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise InputError for a range of what is no input; "" stands for all inputs."""
    names = [value.name for value in graph.inputs]
    if unknown := [name for name in ranges if name and name not in names]:
        raise InputError(
            f"no input is called '{unknown[0]}', which a range is given for; the model has {', '.join(names)}"
        )
