"""The rules of a valid graph.

``verify`` runs after every pass in tests.  A rule is a generator of (location, description) pairs; a violation is a bug
in Tenon, an InternalError naming the rule and the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import isfinite

from tenon.errors import InternalError, ShapeError
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.writer import is_known

Breach = tuple[object, str]
Rule = Callable[[Graph], Iterator[Breach]]


def defined_before_use(graph: Graph) -> Iterator[Breach]:
    """Every input is a graph input, a constant, or the output of an earlier node."""
    defined = {id(v) for v in graph.inputs}
    for node in graph:
        for v in node.inputs:
            if v is not None and not v.constant and id(v) not in defined:
                yield node.origin, f"{node} reads '{v.name}' before it is made"
        defined.update(id(v) for v in node.outputs)
    for v in graph.outputs:
        if not v.constant and id(v) not in defined:
            yield f"output '{v.name}'", "nothing makes it"


def links_agree(graph: Graph) -> Iterator[Breach]:
    """Producers know their outputs, and values know exactly the nodes that read them."""
    reads: dict[int, Counter[int]] = {}
    for node in graph:
        for v in node.outputs:
            if v.producer is not node:
                yield node.origin, f"'{v.name}' does not name {node} as its producer"
            if v.constant:
                yield node.origin, f"'{v.name}' is computed, yet holds data"
        for read in node.inputs:
            if read is not None:
                reads.setdefault(id(read), Counter())[id(node)] += 1
    for v in graph.values():
        if Counter(id(node) for node in v.uses) != reads.get(id(v), Counter()):
            yield f"value '{v.name}'", "its list of readers differs from the nodes that read it"


def arity_fits(graph: Graph) -> Iterator[Breach]:
    """Nodes have as many inputs as their operator allows, and at least one output."""
    for node in graph:
        least, most = node.op.arity
        if not least <= len(node.inputs) <= most:
            yield node.origin, f"{node.op} takes {least} to {most} inputs, not {len(node.inputs)}"
        if not node.outputs:
            yield node.origin, f"{node.op} has no output"


def names_unique(graph: Graph) -> Iterator[Breach]:
    """No two values share a name, and none is nameless."""
    for name, count in Counter(v.name for v in graph.values()).items():
        if count > 1 or not name:
            yield f"value '{name}'", f"{count} values have this name"


def constants_hold_their_type(graph: Graph) -> Iterator[Breach]:
    """A constant's data has the element type and the shape of its type."""
    for v in graph.constants():
        if v.array.dtype != v.type.dtype.numpy or v.array.shape not in (v.type.dims, v.type.physical):
            yield f"constant '{v.name}'", f"{v.array.dtype}{list(v.array.shape)} is not {v.type}"


def types_follow(graph: Graph) -> Iterator[Breach]:
    """Types are bound, and those of outputs are what the operator's rule gives."""
    for v in graph.inputs:
        if not is_known(v):
            yield f"input '{v.name}'", "its type is not bound"
    for node in graph:
        if not all(v is None or is_known(v) for v in (*node.inputs, *node.outputs)):
            yield node.origin, f"{node} has values without a bound type"
            continue
        try:
            expected = node.infer()
        except ShapeError as error:
            yield node.origin, f"{node} does not fit its inputs: {error}"
            continue
        if len(expected) < len(node.outputs):
            yield node.origin, f"{node} has {len(node.outputs)} outputs, its rule gives {len(expected)}"
        for v, type in zip(node.outputs, expected, strict=False):
            if (v.type.dtype, v.type.shape) != (type.dtype, type.shape):
                yield node.origin, f"'{v.name}' is {v.type}, the rule of {node.op} gives {type}"


def extents_are_held(graph: Graph) -> Iterator[Breach]:
    """Extents of inputs and outputs are in inputs and outputs that are i64 of rank 0, and sizes are such inputs.

    Passes may replace values of outputs by others of other names, which are not checked.
    """
    types = {v.name: v.type for v in (*graph.inputs, *graph.outputs) if is_known(v)}
    wrong = {name for name, type in types.items() if (type.dtype, type.dims) != (DType.I64, ())}
    for name, extents in graph.extents.items():
        for axis, count in extents:
            if count in wrong or (name in types and not 0 <= axis < types[name].rank):
                yield f"'{name}'", f"axis {axis} has its extent in '{count}'"
    inputs = {v.name for v in graph.inputs}
    for name, size in graph.sizes.items():
        if name not in inputs or name in wrong or size.problem:
            yield f"'{name}'", f"it is a size of {size}"


def states_fit(graph: Graph) -> Iterator[Breach]:
    """A state is an input and an output of one type, and no output is the next content of two."""
    types = {v.name: v.type for v in graph.inputs}
    for name, number in graph.states.items():
        after = graph.outputs[number].type if number < len(graph.outputs) else None
        before = types.get(name)
        if before is None or after is None or (before.dtype, before.dims) != (after.dtype, after.dims):
            yield f"'{name}'", f"it is {before} and the output that it holds after a run {after}"
    if len(set(graph.states.values())) < len(graph.states):
        yield f"graph '{graph.name}'", "two states are the same output"


def quantisation_is_possible(graph: Graph) -> Iterator[Breach]:
    """Scales of computed tensors are positive, zero points fit the element type, and both fit the axis."""
    for node in graph:
        for v in node.outputs:
            if v.typed and v.type.quant is not None and (why := impossible_quantisation(v.type)):
                yield node.origin, f"'{v.name}' is {v.type}: {why}"


def impossible_quantisation(type: TensorType) -> str:
    """The fault of the quantisation of a type that has one; empty if there is none."""
    quant = type.quant
    assert quant is not None
    if not quant.scale or not all(isfinite(s) and s > 0 for s in quant.scale):
        return "its scales are not positive numbers"
    if len(quant.zero_point) not in (1, len(quant.scale)):
        return "it has another number of zero points than of scales"
    if quant.axis is None and len(quant.scale) > 1:
        return "it has several scales and no axis"
    if quant.axis is not None and not 0 <= quant.axis < type.rank:
        return f"it has no axis {quant.axis}"
    if quant.axis is not None and len(quant.scale) not in (1, type.shape[quant.axis]):
        return f"it has {len(quant.scale)} scales along axis {quant.axis}"
    if type.dtype.is_float:
        return ""
    bits = 8 * type.dtype.bytes
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type.dtype.is_signed else (0, (1 << bits) - 1)
    return "" if all(low <= z <= high for z in quant.zero_point) else "its zero points do not fit its element type"


def quantisation_agrees(graph: Graph) -> Iterator[Breach]:
    """Operators on quantised integers subtract the zero points that their operands have, and give the quantisation
    that their attributes state."""
    for node in graph:
        for v, zero in zip(node.inputs, node.op.zero_points(), strict=False):
            quant = None if v is None or zero is None else v.type.quant
            if v is not None and quant is not None and not quant.steps and quant.scalar and quant.zero_point[0] != zero:
                yield node.origin, f"{node} subtracts {zero}, and '{v.name}' is {v.type}"
        for v, type in zip(node.outputs, node.infer(), strict=False):
            if type.quant is not None and v.type.quant is not None and v.type.quant != type.quant:
                yield node.origin, f"'{v.name}' is {v.type}, the rule of {node.op} gives {type}"


def bodies_are_whole(graph: Graph) -> Iterator[Breach]:
    """The bodies of a node are valid graphs, which share no value with the graph that the node is in."""
    own = {id(v) for v in graph.values()} if any(node.bodies for node in graph) else set()
    for node in graph:
        for body in node.bodies:
            for v in body.values():
                if id(v) in own:
                    yield node.origin, f"'{v.name}' is in {node} and in its body"
            for breach in _breaches(body, STRUCTURE):
                yield node.origin, f"in a body of {node}: {breach.removeprefix('  - ')}"


def types_follow_in_bodies(graph: Graph) -> Iterator[Breach]:
    """``types_follow``, and the rules of quantisation, in bodies."""
    for node in graph:
        for body in node.bodies:
            for breach in _breaches(body, TYPES) or _breaches(body, QUANTISATION):
                yield node.origin, f"in a body of {node}: {breach.removeprefix('  - ')}"


STRUCTURE: tuple[Rule, ...] = (
    defined_before_use,
    links_agree,
    arity_fits,
    names_unique,
    constants_hold_their_type,
    bodies_are_whole,
)

TYPES: tuple[Rule, ...] = (types_follow, types_follow_in_bodies, extents_are_held, states_fit)

QUANTISATION: tuple[Rule, ...] = (quantisation_is_possible, quantisation_agrees)


def verify(graph: Graph, after: str = "", *, typed: bool = True) -> None:
    """Raise InternalError if a rule is broken; ``typed`` also checks types, which an unbound graph lacks."""
    breaches = _breaches(graph, STRUCTURE) or (_breaches(graph, TYPES) if typed else [])
    if typed and not breaches:
        breaches = _breaches(graph, QUANTISATION)
    if breaches:
        late = f" after '{after}'" if after else ""
        more = [f"  ... and {len(breaches) - 10} more"] if len(breaches) > 10 else []
        raise InternalError("\n".join([f"illegal graph '{graph.name}'{late}", *breaches[:10], *more]))


def _breaches(graph: Graph, rules: tuple[Rule, ...]) -> list[str]:
    return [f"  - {rule.__name__}: {where}: {what}" for rule in rules for where, what in rule(graph)]
