"""The graph: nodes that apply operations to values.

Values are objects, not names; a name is only for messages.  A node's inputs are read-only and change through
five mutators of the graph (add, insert, replace, remove, inline), which keep definition-use links right.
Iteration uses a snapshot, so a pass may modify the graph while it iterates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tenon.errors import ShapeError
from tenon.network.graph.device_placement import DevicePlacement
from tenon.network.graph.notebook import html_table, tensor_rows, tensors
from tenon.network.graph.ordering import Order
from tenon.network.graph.preprocessing import Heads, Preprocessing
from tenon.network.graph.size_range import Extents, SizeRange
from tenon.network.graph.text_model import TextModel
from tenon.network.graph.types import ROW_MAJOR, DType, Layout, TensorType

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Origin:
    """The origin of a node, for messages: model file, layer name and layer type."""

    file: str = ""
    layer: str = ""
    type: str = ""

    def __str__(self) -> str:
        return f"{self.layer or '(unnamed)'}{f' ({self.type})' if self.type else ''}"


class Operation(Protocol):
    """The interface of operators to the graph; implemented by ``ops.base.Operator``."""

    @property
    def name(self) -> str: ...

    @property
    def arity(self) -> tuple[int, int]: ...

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]: ...

    def infer_with(self, inputs: Sequence[Value | None], bodies: Sequence[Graph]) -> tuple[TensorType, ...]: ...

    def evaluate(self, inputs: Sequence[Array | None]) -> tuple[Array, ...]: ...

    def evaluate_with(self, inputs: Sequence[Array | None], bodies: Sequence[Graph]) -> tuple[Array, ...]: ...

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int: ...

    def zero_points(self) -> Sequence[int | None]: ...

    def reads_shapes_only(self) -> bool: ...

    def dequantised_from(self, inputs: Sequence[Value | None], dims: tuple[int, ...]) -> Stored | None: ...

    def other(self, name: str, **attributes: Any) -> Operation: ...

    def counted_axes(self, inputs: Sequence[Value | None]) -> Sequence[int | None]: ...

    def symbolic(self, inputs: Sequence[Array | None], types: Sequence[TensorType]) -> tuple[Array, ...] | None: ...

    def at_run_time(self, node: Any) -> Sequence[Value]: ...  # of a ``sized_node.SizedNode``


@dataclass(frozen=True, eq=False)
class Stored:
    """Integers that constant floats were dequantised from; f32 scales and zero points broadcast to them."""

    data: Array
    scale: Array
    zero: Array

    def transposed(self, perm: Sequence[int]) -> Stored | None:
        """None where a scale per channel does not have as many axes."""
        if any(a.size > 1 and a.ndim != self.data.ndim for a in (self.scale, self.zero)):
            return None
        turned = (a.transpose(perm) if a.size > 1 else a for a in (self.scale, self.zero))
        return Stored(self.data.transpose(perm), *turned)

    def reshaped(self, dims: tuple[int, ...]) -> Stored | None:
        """None where there is a scale per channel."""
        return (
            Stored(self.data.reshape(dims), self.scale, self.zero) if self.scale.size == self.zero.size == 1 else None
        )


class Value:
    """A tensor: a graph input, a constant (``data`` is set) or an output of ``producer``.

    ``stored`` are the integers of a constant of floats that comes from a DequantizeLinear.
    """

    __slots__ = ("_type", "data", "name", "producer", "stored", "uses")

    def __init__(self, name: str, type: TensorType | None = None, data: Array | None = None) -> None:
        self.name = name
        self._type = type
        self.data = data
        self.stored: Stored | None = None
        self.producer: Node | None = None
        self.uses: list[Node] = []  # a node that reads the value twice is listed twice

    @property
    def type(self) -> TensorType:
        """The element type, shape and layout.  Raises ShapeError while they are not inferred yet."""
        if self._type is None:
            raise ShapeError(f"the type of '{self.name}' is not known yet: bind the model's input shapes first")
        return self._type

    @type.setter
    def type(self, type: TensorType) -> None:
        self._type = type

    @property
    def typed(self) -> bool:
        """Whether type and shape are known."""
        return self._type is not None

    @property
    def constant(self) -> bool:
        """Whether the value is a constant."""
        return self.data is not None

    @property
    def array(self) -> Array:
        """The data of a constant.  Raises ValueError for anything else."""
        if self.data is None:
            raise ValueError(f"'{self.name}' is not a constant")
        return self.data

    def twin(self) -> Value:
        """A detached copy: the same name, type and data, without producer and uses."""
        value = Value(self.name, self._type, self.data)
        value.stored = self.stored
        return value

    def __repr__(self) -> str:
        return f"%{self.name}: {self._type}"


class Node:
    """One application of an operation.  Change ``inputs`` through the graph only.

    An operation may run graphs of its own, ``bodies``: what a loop repeats.  A body shares no value with the graph that
    the node is in: what it reads from there is an input of the node and of the body, and what the node gives comes from
    the body's outputs.  A walk over a graph visits such a node as one node and does not enter its
    bodies, and a pass that says nothing about them leaves them as they are.
    """

    __slots__ = ("_inputs", "bodies", "op", "origin", "outputs")

    def __init__(
        self,
        op: Operation,
        inputs: tuple[Value | None, ...],
        outputs: tuple[Value, ...],
        origin: Origin,
        bodies: tuple[Graph, ...] = (),
    ) -> None:
        self.op = op
        self.bodies = bodies
        self._inputs = inputs
        self.outputs = outputs
        self.origin = origin

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        return self._inputs

    @property
    def output(self) -> Value:
        """The first output."""
        return self.outputs[0]

    def input(self, i: int) -> Value:
        """Input ``i``, which must be there."""
        value = self._inputs[i]
        if value is None:
            raise ValueError(f"input {i} of {self.origin} is absent")
        return value

    def infer(self) -> tuple[TensorType, ...]:
        """The types of the outputs by the operation's rule.  Raises ShapeError when the inputs do not fit."""
        return self.op.infer_with(self._inputs, self.bodies) if self.bodies else self.op.infer(self._inputs)

    def evaluate(self, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
        """The outputs by the operation's reference, for inputs of these arrays."""
        return self.op.evaluate_with(arrays, self.bodies) if self.bodies else self.op.evaluate(arrays)

    def __repr__(self) -> str:
        return f"{', '.join(v.name for v in self.outputs)} = {self.op}"


class Graph:
    """Inputs, outputs and nodes in an order in which they can run.

    ``incomplete`` is the reason why the graph can be inspected but not compiled: its weights are missing.
    """

    def __init__(self, name: str, source: str = "", incomplete: str = "") -> None:
        self.name = name
        self.source = source
        self.incomplete = incomplete
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.extents: dict[str, Extents] = {}  # input or output -> its axes whose extents only a run knows
        self.sizes: dict[str, SizeRange] = {}  # inputs that hold such an extent (i64 of rank 0), and their ranges
        self.limits: dict[str, int] = {}  # the largest numbers that values can be in any run, as the user says
        self.limited: set[str] = set()  # the names among these that anything depends on
        self.preprocessing: dict[str, Preprocessing] = {}  # preprocessing of inputs, if the model states it
        self.labels: tuple[str, ...] = ()  # names of the classes, if the model states them
        self.heads: Heads | None = None  # format of detection outputs, if the model states it
        self.text: TextModel | None = None  # tokens, tokenizer and chat template of a language model
        self.default_sizes = False  # whether sizes known at run time have the importer's ranges, not the user's
        self.strings: set[str] = set()  # inputs and outputs whose last axis holds the bytes of strings (graph.strings)
        self.fixed: set[str] = set()  # inputs of the model that were replaced by constants (graph.fixed)
        self.assumed: dict[str, str] = {}  # inputs whose batch was bound to 1 as nothing else did, and its name
        self.initial: dict[
            str, tuple[float, ...]
        ] = {}  # what inputs hold in the first run: one number, or all elements
        self.size_sums: dict[str, tuple[int | str, ...]] = {}  # sizes that are sums, and what is added
        self.states: dict[str, int] = {}  # inputs, and the number of the output that each holds after a run
        self.placement: DevicePlacement | None = None  # which devices run which nodes, if there are several
        self.on_replace: Callable[[Value, Value], None] | None = None  # is told what takes the place of a value
        self._nodes: Order[Node] = Order()

    def __repr__(self) -> str:
        inputs, outputs = (tensors((v.name, v._type or "?") for v in values) for values in (self.inputs, self.outputs))
        return f"Graph('{self.name}', {len(self)} nodes: {inputs} -> {outputs})"

    def _repr_html_(self) -> str:
        inputs, outputs = ([(v.name, v._type or "?") for v in values] for values in (self.inputs, self.outputs))
        kinds = Counter(node.op.name for node in self).most_common()
        return html_table(f"Graph {self.name}", tensor_rows(inputs, outputs), ("", "name", "type")) + html_table(
            f"{len(self)} nodes", [(kind, str(n)) for kind, n in kinds], ("operator", "count")
        )

    # ------------------------------------------------------------------------------------- reading
    @property
    def nodes(self) -> list[Node]:
        """The nodes in their order, as a new list."""
        return list(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes))

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def position(self, node: Node) -> int:
        """A number that increases with the position of a node; valid until a node is added."""
        return self._nodes.position(node)

    def is_output(self, value: Value) -> bool:
        """Whether a value is an output of the graph."""
        return any(v is value for v in self.outputs)

    def used(self, value: Value) -> bool:
        """Whether a node reads the value, or the graph gives it as an output."""
        return bool(value.uses) or self.is_output(value)

    def constants(self) -> list[Value]:
        """Every constant that a node reads or the graph returns, in order of first use."""
        by_id = {id(v): v for node in self for v in node.inputs if v is not None and v.constant}
        by_id.update({id(v): v for v in self.outputs if v.constant})
        return list(by_id.values())

    def values(self) -> list[Value]:
        """Inputs, constants and results, each once."""
        results = [v for node in self for v in node.outputs]
        return list({id(v): v for v in [*self.inputs, *self.constants(), *results, *self.outputs]}.values())

    # ------------------------------------------------------------------------------------- making
    def add_input(self, name: str, type: TensorType) -> Value:
        """A new input of the graph."""
        value = Value(name, type)
        self.inputs.append(value)
        return value

    def constant(self, name: str, data: Array, layout: Layout = ROW_MAJOR) -> Value:
        """A new constant; it belongs to the graph as soon as a node reads it."""
        data = np.asarray(data)
        return Value(name, TensorType(DType.of(data.dtype), data.shape, layout), data)

    # ------------------------------------------------------------------------------------ mutators
    def add(
        self,
        op: Operation,
        inputs: Sequence[Value | None],
        names: Sequence[str],
        origin: Origin = Origin(),
        *,
        infer: bool = True,
        before: Node | None = None,
        bodies: Sequence[Graph] = (),
    ) -> Node:
        """Append a node (or insert it before another) with fresh outputs, typed by its rule when ``infer``."""
        node = Node(op, tuple(inputs), tuple(Value(name) for name in names), origin, tuple(bodies))
        for value in node.outputs:
            value.producer = node
        for used in node.inputs:
            if used is not None:
                used.uses.append(node)
        if infer:
            self.infer(node)
        if before is None:
            self._nodes.append(node)
        else:
            self._nodes.insert(node, before)
        return node

    def infer(self, node: Node) -> None:
        """Set the types of a node's outputs by its operator's rule."""
        for value, type in zip(node.outputs, node.infer(), strict=False):
            value.type = type

    def replace(self, old: Value, new: Value) -> None:
        """Replace ``old`` by ``new`` in all readers and in the graph's outputs."""
        if old is new:
            return
        if self.on_replace is not None:
            self.on_replace(old, new)
        for node in dict.fromkeys(old.uses):
            self.rewire(node, tuple(new if v is old else v for v in node.inputs))
        for i, value in enumerate(self.outputs):
            if value is old:
                self.outputs[i] = new

    def rewire(self, node: Node, inputs: Sequence[Value | None]) -> None:
        """Set the inputs of a node."""
        for value in node.inputs:
            if value is not None:
                value.uses.remove(node)
        node._inputs = tuple(inputs)
        for value in node.inputs:
            if value is not None:
                value.uses.append(node)

    def remove(self, node: Node) -> None:
        """Remove a node.  Raises ValueError while one of its outputs is used."""
        for value in node.outputs:
            if self.used(value):
                raise ValueError(f"cannot remove {node}: '{value.name}' is used")
        self.rewire(node, ())
        self._nodes.remove(node)

    def inline(self, node: Node | None, body: Graph, arguments: Sequence[Value]) -> list[Value]:
        """Insert a copy of ``body`` before ``node``, or behind all nodes, reading ``arguments``; returns the copies of
        its outputs."""
        copy: dict[int, Value] = {id(a): b for a, b in zip(body.inputs, arguments, strict=True)}
        for inner in body:
            inputs = [None if v is None else copy.get(id(v), v) for v in inner.inputs]
            names, bodies = [v.name for v in inner.outputs], [inside.copy() for inside in inner.bodies]
            new = self.add(inner.op, inputs, names, inner.origin, before=node, bodies=bodies)
            copy.update({id(a): b for a, b in zip(inner.outputs, new.outputs, strict=True)})
        return [copy.get(id(v), v) for v in body.outputs]

    def copy(self) -> Graph:
        """A copy of the graph in new nodes and values, bodies included; the data of constants is shared, never
        copied."""
        new = Graph(self.name, self.source, self.incomplete)
        twin: dict[Value, Value] = {}

        def of(value: Value) -> Value:
            if value not in twin:
                twin[value] = value.twin()
            return twin[value]

        new.inputs = [of(v) for v in self.inputs]
        for node in self:
            inputs = [None if v is None else of(v) for v in node.inputs]
            names, bodies = [v.name for v in node.outputs], [body.copy() for body in node.bodies]
            new_node = new.add(node.op, inputs, names, node.origin, infer=False, bodies=bodies)
            for old, value in zip(node.outputs, new_node.outputs, strict=True):
                value._type = old._type
                twin[old] = value
        new.outputs = [of(v) for v in self.outputs]
        new.describe_like(self)
        return new

    def describe_like(self, other: Graph) -> None:
        """Copy the annotations (extents, sizes, limits, preprocessing, heads, ...) of another graph."""
        self.extents, self.preprocessing, self.heads = dict(other.extents), dict(other.preprocessing), other.heads
        self.size_sums, self.default_sizes = dict(other.size_sums), other.default_sizes
        self.sizes, self.limits, self.limited = dict(other.sizes), dict(other.limits), set(other.limited)
        self.labels, self.text = other.labels, other.text
        self.strings, self.fixed, self.initial = set(other.strings), set(other.fixed), dict(other.initial)
        self.assumed, self.states, self.placement = dict(other.assumed), dict(other.states), other.placement

    def reorder(self, nodes: Iterable[Node]) -> None:
        """Run the same nodes in another order."""
        order = dict.fromkeys(nodes)
        if order.keys() != set(self._nodes):
            raise ValueError("reorder() must keep every node")
        self._nodes = Order(order)

    def prune(self) -> int:
        """Remove nodes that nothing reads; returns how many."""
        count = 0
        for node in reversed(self.nodes):
            if not any(self.used(v) for v in node.outputs):
                self.remove(node)
                count += 1
        return count
