"""Binding of symbolic dimensions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tenon.errors import InputError, ShapeError
from tenon.network.graph.fixed import ANY_RANK as ANY_RANK
from tenon.network.graph.fixed import Values, arrays, bindings, check_names, data_for
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.size_range import Dimension, Size, read_shapes, sum_of
from tenon.network.graph.types import Dim, TensorType
from tenon.network.graph.writer import Writer

Shapes = Mapping[str, int | Size | Sequence[int | Size]]
"""Bindings: an input's name to its shape, or a dimension's name to its extent; a ``Size`` is an extent that every run
chooses."""

GivenShapes = Mapping[str, Dimension | Sequence[Dimension]]
"""Bindings by the user, in which a dimension may be text, such as "L:1..256"."""


def bind(graph: Graph, shapes: GivenShapes | None = None) -> Graph:
    """A typed copy of ``graph`` with every dimension bound and constants folded.

    An open batch dimension is 1 if it is all that nothing binds; ``assumed`` of the copy says so.
    Raises ShapeError listing every dimension that is still unbound, or every node whose inputs do not fit.
    """
    types = bind_types({v.name: v.type for v in graph.inputs}, _with_widths(graph, read_shapes(shapes)))
    batches = open_batches(types)
    types = bind_types(types, dict.fromkeys(batches.values(), 1))
    unbound = [
        f"  - {name}: {type} ({remedy(name, type, name in graph.strings)})"
        for name, type in types.items()
        if any(isinstance(d, str) for d in type.shape)
    ]
    if unbound:
        raise ShapeError("\n".join([f"{graph.source or graph.name}: dimensions without a value", *unbound]))
    bound = _rewritten(graph, types, {})
    bound.assumed |= batches
    return bound


def with_open_batches(graph: Graph) -> Graph:
    """The graph with its open batches bound to 1; the graph itself if these are not all that is open."""
    return bind(graph) if open_batches({v.name: v.type for v in graph.inputs}) else graph


def open_batches(types: Mapping[str, TensorType]) -> dict[str, str]:
    """The names of the batch dimensions of inputs, if these are all dimensions that are not bound; else nothing.

    That is a first dimension that is no other one's too, and whose name says nothing else.
    """
    batches = {}
    for name, type in types.items():
        opened = {axis: dim for axis, dim in enumerate(type.shape) if isinstance(dim, str)}
        if opened and (list(opened) != [0] or not _is_batch(name, opened[0], type)):
            return {}
        batches.update({name: opened[0]} if opened else {})
    return batches


_OTHER_NAME = re.compile(
    "seq|len|time|frame|token|past|cache|step|word|char|point|box|num|count|width|height|row|col|size"
)
"""Names of dimensions that are no batch."""


def _is_batch(name: str, dim: str, type: TensorType) -> bool:
    if "batch" in dim.lower():
        return True
    unnamed = dim == f"{name}_dim_0"
    return dim != ANY_RANK and type.rank > 1 and (unnamed or not _OTHER_NAME.search(dim.lower()))


def fix(graph: Graph, values: Values | None) -> Graph:
    """A copy of ``graph`` with inputs replaced by constants; the graph itself without values.

    Raises InputError for unknown names and values that do not fit, ShapeError like ``bind``.
    """
    if not values:
        return graph
    given = arrays(values)
    check_names(given, [v.name for v in graph.inputs], graph.source or graph.name)
    types = {v.name: v.type for v in graph.inputs}
    return _rewritten(graph, bind_types(types, bindings(given, types)), given)


def _rewritten(graph: Graph, types: Mapping[str, TensorType], given: Mapping[str, Array]) -> Graph:
    """The graph with inputs of these types; those in ``given`` become constants."""
    copy = Graph(graph.name, graph.source, graph.incomplete)
    twin: dict[Value, Value] = {}
    for v in graph.inputs:
        if v.name in given:
            twin[v] = Value(v.name, types[v.name], data_for(v.name, given[v.name], types[v.name]))
        else:
            twin[v] = copy.add_input(v.name, types[v.name])
    constants = graph.constants()
    twin.update({v: v.twin() for v in constants})
    copy.limits, copy.limited = dict(graph.limits), set(graph.limited)
    writer = Writer(copy, sum(v.array.nbytes for v in constants))
    for v in twin:
        writer.names.fresh(v.name)
    writer.sizes.enabled = not all(v.type.bound for v in graph.inputs)
    for v in copy.inputs[:]:
        writer.sizes.open(v)
    for node in graph:
        inputs = [None if v is None else twin[v] for v in node.inputs]
        bodies = [body.copy() for body in node.bodies]
        outputs = writer.add(node.op, inputs, [v.name for v in node.outputs], node.origin, bodies)
        twin.update(zip(node.outputs, outputs, strict=True))
    copy.outputs = [twin[v] for v in graph.outputs]
    extents, limited, sums = copy.extents, copy.limited, copy.size_sums
    copy.describe_like(graph)
    copy.extents |= extents
    copy.size_sums |= sums
    copy.limited |= limited
    copy.fixed |= set(given)
    copy.sizes |= writer.sizes.ranges
    writer.finish()
    writer.sizes.deliver(Origin(copy.source))
    return copy


def _with_widths(graph: Graph, shapes: Shapes) -> Shapes:
    """The shapes, with the width appended for string inputs.  Raises InputError for another width than the graph's."""
    widened = dict(shapes)
    for value in graph.inputs:
        if value.name in graph.strings:
            width, given = value.type.shape[-1], widened.get(value.name)
            if widened.pop(f"{value.name}.width", width) != width:
                raise InputError(f"'{value.name}' was read with {width} bytes to a string: give its width to load")
            if given is not None and not isinstance(given, int | Size) and isinstance(width, int):
                widened[value.name] = (*given, width)
    return widened


def remedy(name: str, type: TensorType, string: bool = False) -> str:
    """The command-line option that binds the dimensions of an input (of strings, without the width)."""
    type = replace(type, shape=type.shape[:-1]) if string else type
    names = [d for d in type.shape if isinstance(d, str) and d != ANY_RANK]
    example = ",".join(str(d) if isinstance(d, int) else "N" for d in type.shape)
    alternative = f", or --shape {names[0]}=N for the dimension alone" if len(names) == 1 else ""
    return f"bind it with --shape {name}={example if names else 'N,N,...'}{alternative}"


def bind_types(types: Mapping[str, TensorType], shapes: Shapes) -> dict[str, TensorType]:
    """The inputs' types with ``shapes`` applied.

    A shape given for an input takes precedence over the model's and binds its named dimensions everywhere.  Raises
    InputError for an unknown name and ShapeError for contradictory values.
    """
    dimensions: dict[str, int | Size] = {}
    known = {d for t in types.values() for d in t.shape if isinstance(d, str) and d != ANY_RANK}

    def settle(name: Dim, extent: int | Size, why: str) -> None:
        if isinstance(name, str) and dimensions.setdefault(name, extent) != extent:
            raise ShapeError(f"dimension '{name}' is bound to {dimensions[name]} and, by {why}, to {extent}")

    whole: dict[str, tuple[int | Size, ...]] = {}
    for name, given in shapes.items():
        if isinstance(given, int | Size) and name not in known and name in types:
            given = (given,)  # of an input of one dimension: its name is no dimension's
        if isinstance(given, int | Size):
            if name not in known:
                raise InputError(f"no dimension is called '{name}'; the model has {_listed(known)}")
            settle(name, _extent(name, given), "its own name")
            continue
        if name not in types:
            raise InputError(f"no input is called '{name}'; the model has {_listed(types)}")
        whole[name] = tuple(_extent(name, n) for n in given)
        shape = types[name].shape
        if shape == (ANY_RANK,):
            continue
        if len(shape) != len(given):
            raise ShapeError(f"input '{name}' has {len(shape)} dimensions ({types[name]}), not {len(given)}")
        for dim, extent in zip(shape, whole[name], strict=True):
            settle(dim, extent, f"the shape of '{name}'")
    sums = ((dim, sum_of(dim, dimensions)) for dim in known - dimensions.keys())
    dimensions |= {dim: total for dim, total in sums if total is not None}
    return {
        name: replace(
            type, shape=whole[name] if name in whole else tuple(dimensions.get(str(d), d) for d in type.shape)
        )
        for name, type in types.items()
    }


def _extent(name: str, extent: int | Size) -> int | Size:
    if isinstance(extent, Size):
        return extent
    if isinstance(extent, bool) or int(extent) != extent or not 0 <= extent < 2**31:
        raise InputError(f"--shape {name}: {extent!r} is not a possible extent")
    return int(extent)


def check_alike(graphs: Sequence[Graph]) -> None:
    """Raises InputError if the graphs of a bundle's bindings have other inputs or outputs than the first one."""
    first = graphs[0]
    for number, graph in enumerate(graphs[1:], 2):
        for what, ports, own in (("inputs", first.inputs, graph.inputs), ("outputs", first.outputs, graph.outputs)):
            names, others = ({v.name for v in each} for each in (ports, own))
            if names != others and len(ports) != len(own):
                raise InputError(
                    f"binding {number} has other {what} than the first one ({_listed(names ^ others)}): a size of one "
                    "value is an input like one with a range, as in L:1..1"
                )


def _listed(names: Mapping[str, object] | set[str]) -> str:
    return ", ".join(f"'{n}'" for n in sorted(names)) or "none"
