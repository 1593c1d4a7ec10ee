"""The operators of a model and their cost, for ``inspect`` and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.lowering_context import operator
from tenon.machine.plan.program import Patches, Program
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.scan import Scan
from tenon.network.passes.states import suggested
from tenon.network.passes.weight_format import StoredWeights


@dataclass(frozen=True)
class TensorSummary:
    """A graph input or output."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    state: str = ""
    """The other end of a state: the output that an input holds in the next run, or the input that an output becomes."""


@dataclass(frozen=True)
class LayerSummary:
    """A node: its name in the model's file, its operator, its result and its multiply-accumulates."""

    name: str
    op: str
    output: str
    macs: int


@dataclass(frozen=True)
class Description:
    """Counts are of the graph as given; ``compiled`` counts the operators that are left to compile.  Bytes, and
    ``compiled``, are None where the graph was not planned."""

    name: str
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    operators: dict[str, int]
    parameters: int
    parameter_bytes: int
    macs: int
    layers: tuple[LayerSummary, ...]
    peak_ram: int | None = None
    arena: int | None = None
    arena_bound: int | None = None
    weights: int | None = None
    largest: str = ""
    """The layer at which the most bytes of activations are alive."""
    patches: Patches | None = None
    compiled: dict[str, int] | None = None
    arithmetic: str = "float"
    left_in_float: tuple[tuple[str, str], ...] = ()
    """Layers of a quantised model that are not computed in integers, and with a precision of 16 bits those that are
    computed in f32; and why."""
    requantised: tuple[tuple[str, str], ...] = ()
    """Layers that only move integers, to a tensor of another scale or zero point, and both quantisations."""
    speed_up: Mapping[int, float] | None = None
    """How many times as fast as with one thread the network is predicted to be, by the number of threads."""
    stored: StoredWeights | None = None
    """In which types weights are stored, where fewer bits were asked for."""
    possible_states: tuple[tuple[str, str], ...] = ()
    """Inputs that may be states, by their names, and the outputs that would follow them."""


def _shape(graph: Graph, value: Value) -> tuple[int | str, ...]:
    """The shape of an input or output, with the names of extents that only a run knows and, of inputs, their ranges."""
    if not value.typed:
        return ()
    shape = [d if isinstance(d, int) else str(d) for d in value.type.shape]
    for axis, name in graph.extents.get(value.name, ()):
        shape[axis] = f"{name}:{graph.sizes[name]}" if name in graph.sizes and value in graph.inputs else name
    return tuple(shape)


def describe(graph: Graph, program: Program | None = None) -> Description:
    """Describe a graph, and its memory if the program compiled from it is given.

    A graph with unbound dimensions has no multiply-accumulates yet: they count as 0.
    """
    layers = tuple(_layer(node) for node in graph)
    constants = list({id(v.data): v.array for part in with_bodies(graph) for v in part.constants()}.values())
    memory = program.memory if program else None
    inputs, outputs = _ports(graph)
    return Description(
        name=graph.name,
        inputs=inputs,
        outputs=outputs,
        operators=operators(graph),
        parameters=sum(a.size for a in constants),
        parameter_bytes=sum(a.nbytes for a in constants),
        macs=sum(layer.macs for layer in layers),
        layers=layers,
        peak_ram=memory.peak if memory else None,
        arena=memory.activations if memory else None,
        arena_bound=memory.bound if memory else None,
        weights=memory.constant if memory else None,
        largest=program.largest if program else "",
        patches=program.patches if program else None,
        stored=program.stored if program else None,
        possible_states=_possible_states(inputs, outputs),
    )


def _ports(graph: Graph) -> tuple[tuple[TensorSummary, ...], tuple[TensorSummary, ...]]:
    """The inputs, without the sizes that are extents of others, and the outputs, whose types may not be known yet."""
    following = {name: graph.outputs[number].name for name, number in graph.states.items()}
    other = {**following, **{after: before for before, after in following.items()}}

    def summary(value: Value) -> TensorSummary:
        dtype = str(value.type.dtype) if value.typed else "?"
        return TensorSummary(value.name, dtype, _shape(graph, value), other.get(value.name, ""))

    held = {name for value in graph.inputs for _, name in graph.extents.get(value.name, ())}
    inputs = (value for value in graph.inputs if value.name not in held or value.name not in graph.sizes)
    return tuple(map(summary, inputs)), tuple(map(summary, graph.outputs))


def _possible_states(
    inputs: tuple[TensorSummary, ...], outputs: tuple[TensorSummary, ...]
) -> tuple[tuple[str, str], ...]:
    """Inputs that may be states and are not, and the outputs that would follow them."""
    types = ({t.name: (t.dtype, t.shape) for t in ports if not t.state} for ports in (inputs, outputs))
    return tuple(suggested(*types).items())


def operators(graph: Graph) -> dict[str, int]:
    """How many of each operator, the most frequent first; those of a loop count once."""
    return dict(Counter(node.op.name for part in with_bodies(graph) for node in part).most_common())


def _layer(node: Node) -> LayerSummary:
    known = all(v.typed for v in node.outputs) and all(v is None or v.typed for v in node.inputs)
    output = str(node.output.type) if known else "?"
    return LayerSummary(node.origin.layer or node.output.name, node.op.name, output, _macs(node) if known else 0)


def _macs(node: Node) -> int:
    """Multiply-accumulates of a run, those of a loop in all of its iterations and of a choice in all branches."""
    if node.bodies:
        times = node.op.count if isinstance(node.op, Scan) else 1
        return times * sum(_macs(inner) for body in node.bodies for inner in body)
    types = [None if v is None else v.type for v in node.inputs]
    return operator(node).macs(types, [v.type for v in node.outputs])
