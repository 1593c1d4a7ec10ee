"""Size classes: a network whose sizes a run chooses, as several ones of which each is made for smaller largest sizes.

The code for the largest sizes computes small ones more slowly: its buffers have rows of the largest extents, and its
tiles are chosen for them.  A run takes the first class that all of its sizes fit; classes share weights and memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.bind import GivenShapes
from tenon.network.graph.graph import Graph, Origin, Value
from tenon.network.graph.size_range import Size, SizeRange, read_shapes
from tenon.network.ops.branch import If
from tenon.network.ops.comparison import And, LessOrEqual
from tenon.network.ops.size_check import Bounded
from tenon.network.ops.slice_gather import Pad, Slice


def class_ranges(sizes: Mapping[str, SizeRange], count: int) -> list[dict[str, SizeRange]]:
    """The ranges of ``count`` classes at most, without the last one, which has all sizes; the smallest first.

    The largest sizes of classes are in geometric progression, from the smallest size on, or half of the next class.
    """
    classes: list[dict[str, SizeRange]] = []
    for number in range(count - 1):
        share = (count - 1 - number) / max(1, count - 1)
        ranges = {}
        for name, r in sizes.items():
            least = max(r.least, 1, r.most / 2 ** (count - 1))
            ranges[name] = SizeRange(r.least, _at_least(r, r.most * (least / max(r.most, 1)) ** share), r.step)
        if ranges not in classes and ranges != dict(sizes):
            classes.append(ranges)
    return classes


def shapes_by_class(shapes: GivenShapes | Sequence[GivenShapes] | None, count: int) -> list[list[GivenShapes | None]]:
    """For each binding its shapes and, after them, those of its smaller size classes.  Raises InputError for an empty
    list, and where no dimension has a range of several sizes."""
    if shapes is None or isinstance(shapes, Mapping):
        return [[shapes, *smaller_shapes(shapes, count)]]
    if not shapes:
        raise InputError("shapes=[] leaves nothing to compile: give shapes, or None for those of the model")
    return [[each, *smaller_shapes(each, count)] for each in shapes]


def smaller_shapes(shapes: GivenShapes | None, count: int) -> list[GivenShapes]:
    """Shapes with the ranges of ``class_ranges`` in place of their own; a range of one size is a number.  Raises
    InputError where no dimension has a range of several sizes."""
    if count == 1:
        return []
    read = read_shapes(shapes)
    dimensions = [d for given in read.values() for d in ((given,) if isinstance(given, int | Size) else given)]
    ranges = {d.name: d.range for d in dimensions if isinstance(d, Size)}
    if all(r.least == r.most for r in ranges.values()):
        raise InputError(
            f"size_classes={count} needs a dimension with a range: give one, as in --shape ids=1,L:1..256, or leave it "
            "out (--size-classes)"
        )

    def bound(dimension: int | Size, own: Mapping[str, SizeRange]) -> int | Size:
        if isinstance(dimension, int):
            return dimension
        r = own[dimension.name]
        return r.most if r.least == r.most else Size(dimension.name, *r)

    return [
        {
            name: bound(given, own) if isinstance(given, int | Size) else tuple(bound(d, own) for d in given)
            for name, given in read.items()
        }
        for own in class_ranges(ranges, count)
    ]


def _at_least(r: SizeRange, size: float) -> int:
    """The smallest size of a range that is not below a number."""
    return min(r.most, max(r.least, r.least - int((r.least - size + 1e-6) // r.step) * r.step))


def chosen_by_size(graph: Graph, smaller: Sequence[Graph]) -> Graph:
    """A graph that runs the first of ``smaller`` that the sizes of a run fit, or else ``graph``: the same network with
    other largest sizes.  Raises InputError for a network with states."""
    if not smaller:
        return graph
    if graph.states:
        raise InputError("a network with states has one code for all sizes: leave out size_classes")
    for i, each in enumerate((*smaller, graph)):
        _without_checks_of_inputs(each)
        each.name = f"{graph.name}_class{i}"
    whole = graph
    for each in reversed(smaller):
        whole = _choice(graph, each, whole)
    whole.name, whole.source = graph.name.rpartition("_class")[0], graph.source
    whole.describe_like(graph)
    new = {v.name: own.name for v, own in zip(graph.outputs, whole.outputs, strict=True)}
    whole.extents = {
        new.get(name, name): tuple((axis, new.get(extent, extent)) for axis, extent in extents)
        for name, extents in graph.extents.items()
    }
    return whole


def by_class(graphs: Sequence[Graph], classes: Sequence[Sequence[object]]) -> list[list[Graph]]:
    """The graphs of each binding, which has as many size classes as ``classes`` says."""
    rest = iter(graphs)
    return [[next(rest) for _ in own] for own in classes]


def _choice(largest: Graph, small: Graph, other: Graph) -> Graph:
    """A graph with the inputs and outputs of ``largest`` that runs ``small`` where it fits, and ``other`` else."""
    graph = Graph(other.name, largest.source)
    inputs = {v.name: graph.add_input(v.name, v.type) for v in largest.inputs}
    fits: Value | None = None
    for name, r in largest.sizes.items():
        most = small.sizes[name].most if name in small.sizes else r.least
        limit = graph.constant("most", np.array(most, np.int64))
        here = graph.add(LessOrEqual(), [inputs[name], limit], [f"{name}_fits"]).output
        fits = here if fits is None else graph.add(And(), [fits, here], [f"{name}_too"]).output
    assert fits is not None
    names = [v.name for v in largest.outputs]
    bodies = [_in_larger_tensors(largest, small), _of_all_inputs(largest, other)]
    node = graph.add(If(), [fits, *inputs.values()], names, Origin(largest.source, type="SizeClass"), bodies=bodies)
    graph.outputs = list(node.outputs)
    return graph


def _of_all_inputs(largest: Graph, other: Graph) -> Graph:
    """The graph, with its inputs in the order of those of ``largest``."""
    by_name = {v.name: v for v in other.inputs}
    other.inputs = [by_name[v.name] for v in largest.inputs]
    return other


def _in_larger_tensors(largest: Graph, small: Graph) -> Graph:
    """The graph ``small`` with inputs and outputs of the types of ``largest``, whose first elements it reads and
    writes."""
    by_name, given = {v.name: v for v in small.inputs}, list[Value]()
    first = next(iter(small), None)
    for whole in largest.inputs:
        own = by_name.get(whole.name)
        if own is None or own.type == whole.type:
            given.append(own or Value(whole.name, whole.type))
            continue
        large = Value(whole.name, whole.type)
        axes = [i for i, (a, b) in enumerate(zip(own.type.dims, whole.type.dims, strict=True)) if a != b]
        numbers = [[0] * len(axes), [own.type.dims[i] for i in axes], axes]
        constants = [small.constant("slice", np.array(each, np.int64)) for each in numbers]
        cut = small.add(Slice(), [large, *constants], [f"{whole.name}_part"], Origin(small.source), before=first)
        small.replace(own, cut.output)
        given.append(large)
    small.inputs = given
    extents: dict[str, tuple[tuple[int, str], ...]] = {}
    renamed = {v.name: v.name for v in small.outputs}
    for i, (own, whole) in enumerate(zip(small.outputs, largest.outputs, strict=True)):
        if own.type.dims != whole.type.dims:
            rank = own.type.rank
            after = [b - a for a, b in zip(own.type.dims, whole.type.dims, strict=True)]
            pads = small.constant("pads", np.array([*[0] * rank, *after], np.int64))
            small.outputs[i] = small.add(Pad(), [own, pads], [f"{own.name}_whole"], Origin(small.source)).output
            renamed[own.name] = small.outputs[i].name
    for name, each in small.extents.items():
        extents[renamed.get(name, name)] = tuple((axis, renamed.get(extent, extent)) for axis, extent in each)
    small.extents = extents
    return small


def _without_checks_of_inputs(graph: Graph) -> None:
    """Drop the checks of sizes that are inputs: the graph around checks these."""
    for node in graph:
        if isinstance(node.op, Bounded) and node.input(0) in graph.inputs and not graph.is_output(node.output):
            graph.replace(node.output, node.input(0))
            graph.remove(node)
