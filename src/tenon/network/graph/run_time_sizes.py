"""The extents and integers of a graph under construction that only a run knows.

A ``RunTimeSizes`` belongs to a ``Writer``.  It has, for tensors, the extents of axes, and for small tensors of integers
an expression for each element: the shape arithmetic of exporters, of which no node is made.  Such a tensor is
*symbolic*: a value without a producer, for which nodes are made where something needs its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from tenon.errors import ShapeError
from tenon.network.graph.graph import Array, Graph, Operation, Origin, Value
from tenon.network.graph.size_range import Size, SizeRange
from tenon.network.graph.sizes import Expression, Extreme, FloorQuotient, Number, UndecidedError, expression, symbol
from tenon.network.graph.types import BOOL, F32, I32, I64, TensorType
from tenon.network.graph.value_bounds import ANY

MOST_FOLLOWED = 32
"""The most elements of a tensor of integers computed at run time that are followed one by one."""

MOST_CONSTANTS = 1 << 12
"""The most elements of a constant that are operands of expressions."""

FINEST = 1 << 10
"""The largest denominator of a factor: floats compute with such fractions exactly."""

EXACT_FLOAT = 1 << 24
"""The first integer beyond which f32 does not have them all."""

Make = Callable[..., Operation]


@dataclass(frozen=True)
class RowsInARow:
    """The content of a tensor: the rows of ``source`` (of these extents), each filled up with zeros to ``pitch``
    elements, one row behind the other after ``before`` zeros, and zeros behind the last.

    They are the tensor's last axis, or where there is a ``width`` the last two, in rows of that many elements.
    """

    source: Value
    extents: tuple[Expression, ...]
    pitch: Expression
    before: Expression
    width: Expression | None = None
    flat: bool = False


class NodeAdder(Protocol):
    """The writer of a graph, as its sizes need it."""

    @property
    def graph(self) -> Graph: ...

    def fresh(self, stem: str) -> str: ...

    def stem(self, name: str) -> str: ...

    def constant(self, stem: str, data: Array) -> Value: ...

    def add(
        self, op: Operation, inputs: Sequence[Value | None], names: Sequence[str], origin: Origin
    ) -> tuple[Value, ...]: ...

    def plain(
        self, op: Operation, inputs: Sequence[Value | None], names: Sequence[str], origin: Origin
    ) -> tuple[Value, ...]: ...


class RunTimeSizes:
    """The known facts of sizes at run time, and the nodes that compute them."""

    def __init__(self, writer: NodeAdder) -> None:
        self.writer = writer
        self.extents: dict[Value, dict[int, Expression]] = {}
        """Axes of tensors whose extents only a run knows."""
        self.elements: dict[Value, Array] = {}
        """Elements of tensors of integers, as expressions."""
        self.symbolic: set[Value] = set()
        """Tensors that no node computes yet."""
        self.numbers: dict[Expression, Value] = {}
        """i64 scalars of the graph, by what they hold."""
        self.ports: dict[Expression, Value] = {}
        """The inputs of the graph among them."""
        self.filled: dict[Value, dict[int, float]] = {}
        """The numbers that tensors hold beyond their extents along an axis, where these are known."""
        self.rows: dict[Value, RowsInARow] = {}
        """Tensors of which is known that they are rows of another one."""
        self.ranges: dict[str, SizeRange] = {}
        """The ranges of inputs that are sizes."""
        self.held: set[Value] = set()
        """Values that nothing computes, which stand for states and slices in the bodies under construction."""
        self.growing: set[str] = set()
        """First outputs of loops whose states change their extents."""
        self.enabled = True
        """Whether what is added takes its place by the rules of operators."""
        self.counting = False
        """Whether what operators such as NonZero give ends at its extent, and not at that of its buffer."""
        self._chosen_sizes: dict[str, tuple[Expression, Size]] = {}
        self._fixed: dict[str, str] = {}
        self._sums: dict[Expression, Value] = {}
        self._steps: dict[Expression, tuple[Expression, Size]] = {}
        self._parts: dict[Expression, tuple[Value, int]] = {}
        self._bounded: dict[Expression, tuple[Value, int]] = {}
        self._equals: dict[Expression, tuple[Expression, ...]] = {}
        self._unified: dict[Expression, Expression] = {}
        self._made: dict[Value, Value] = {}
        self._make: Make | None = None

    def open(self, value: Value) -> Value:
        """An input of the graph: its dimensions that every run chooses become inputs of their own."""
        if not value.typed or not any(isinstance(d, Size) for d in value.type.shape):
            return value
        type, own = value.type, {}
        for axis, size in enumerate(type.shape):
            if isinstance(size, Size):
                own[axis] = self._chosen(size)
        dims = tuple(d.most if isinstance(d, Size) else d for d in type.shape)
        value.type = replace(type, shape=dims)
        names = {axis: self._chosen_port(size) for axis, size in enumerate(type.shape) if isinstance(size, Size)}
        self.writer.graph.extents[value.name] = tuple(sorted(names.items()))
        if own := {axis: extent for axis, extent in own.items() if not extent.known}:
            self.extents[value] = own
        return value

    def _chosen_port(self, size: Size) -> str:
        """The name of the input that holds a size, which has an input even if it has one value only: entry points of
        one network for other ranges have the same inputs."""
        extent, _ = self._chosen_sizes[size.name]
        if extent in self._sums:
            return self._sums[extent].name
        return self._fixed[size.name] if extent.known else self.ports[extent].name

    def _chosen(self, size: Size) -> Expression:
        """A size as an expression, of which there is an input of the graph."""
        if size.name in self._chosen_sizes:
            extent, known = self._chosen_sizes[size.name]
            if known != size:
                raise ShapeError(f"size '{size.name}' is {known.range} and {size.range}")
            return extent
        steps = (size.most - size.least) // size.step
        count = symbol(size.name, 0, steps, step=size.step, offset=size.least)
        extent = count * size.step + size.least if size.step > 1 else symbol(size.name, size.least, size.most)
        value = self.writer.graph.add_input(self.writer.fresh(size.name), TensorType(I64, ()))
        if size.parts:
            extent = expression(0)
            for part in size.parts:
                extent = extent + (self._chosen(part) if isinstance(part, Size) else part)
            self._sums[extent] = value
            names = (self._chosen_port(part) if isinstance(part, Size) else part for part in size.parts)
            self.writer.graph.size_sums[value.name] = tuple(names)
        elif size.least == size.most:
            extent, self._fixed[size.name] = expression(size.least), value.name
        else:
            self.ports[extent] = value
        self.ranges[value.name] = size.range
        if size.step > 1 and not size.parts and not extent.known:
            self._steps[count] = extent, size
        self._chosen_sizes[size.name] = extent, size
        return extent

    def use(self, op: Operation) -> None:
        """Take operators for shape arithmetic from where ``op`` is from."""
        self._make = op.other

    def operator(self, name: str, **attributes: Any) -> Operation:
        """An operator by its name; one must have been added."""
        assert self._make is not None
        return self._make(name, **attributes)

    # --------------------------------------------------------------------------------------- reading
    def concern(self, values: Sequence[Value | None]) -> bool:
        """Whether one of some values is symbolic or has extents that only a run knows."""
        return self.enabled and any(v in self.extents or v in self.symbolic for v in values if v is not None)

    def of(self, value: Value) -> list[Expression]:
        """The extents of all axes of a tensor."""
        own = self.extents.get(value, {})
        return [own.get(axis, expression(n)) for axis, n in enumerate(value.type.dims)]

    def elements_of(self, value: Value | None) -> Array | None:
        """The elements of a small tensor as expressions (as bools for a tensor of bools); None if it is no such one."""
        if value is None:
            return None
        if value not in self.elements:
            elements = self._followed(value)
            if elements is None:
                return None
            self.elements[value] = elements
        return self.elements[value]

    def _followed(self, value: Value) -> Array | None:
        if value in self.extents or not (value.typed and value.type.bound):
            return None
        if value.data is not None:
            return constant_elements(value.data)
        if value.type.dtype not in (I64, I32) or value.type.size > MOST_FOLLOWED:
            return None
        if self.writer.stem(value.name) in self.writer.graph.limits:
            return self._limited(value)
        node = value.producer
        if node is not None and node in self.writer.graph and len(node.outputs) == 1 and not node.bodies:
            inputs = [self.elements_of(v) for v in node.inputs]
            if all(v is None or e is not None for v, e in zip(node.inputs, inputs, strict=True)):
                try:
                    results = node.op.symbolic(inputs, [v.type for v in node.outputs])
                except UndecidedError:
                    results = None
                if results is not None and not any(map(_loose, results[0].reshape(-1))):
                    return results[0]
        if ANY in self.writer.graph.limits and value.type.size == 1:
            return self._limited(value)
        return self._symbols(value, -math.inf, math.inf)

    def _limited(self, value: Value) -> Array:
        name, limits = self.writer.stem(value.name), self.writer.graph.limits
        stated = name if name in limits else ANY
        most = limits[stated]
        self.writer.graph.limited.add(stated)
        if self._make is None or value.type.size != 1:
            return self._symbols(value, 0, most)
        number = symbol(name, 0, most)
        self._bounded[number] = value, most
        self.number(number, Origin(self.writer.graph.source, value.name))
        elements = np.empty(value.type.dims, object)
        elements.reshape(-1)[0] = number
        return elements

    def _symbols(self, value: Value, least: float, most: float) -> Array:
        elements = np.empty(value.type.size, object)
        stem = self.writer.stem(value.name)
        for i in range(value.type.size):
            name = stem if value.type.size == 1 else f"{stem}[{i}]"
            elements[i] = symbol(name, least, most)
            self._parts[elements[i]] = value, i
        return elements.reshape(value.type.dims)

    # --------------------------------------------------------------------------------------- stating
    def symbolic_value(self, name: str, type: TensorType, elements: Array) -> Value:
        """A value of these elements: a constant where they are known."""
        flat = elements.reshape(-1)
        if all(not isinstance(e, Expression) or e.known for e in flat):
            numbers = [float(e.constant) if isinstance(e, Expression) else e for e in flat]
            if not type.dtype.is_float:
                numbers = [e.number if isinstance(e, Expression) else e for e in flat]
            return self.writer.graph.constant(name, np.array(numbers, type.dtype.numpy).reshape(type.dims))
        value = Value(name, type)
        self.elements[value] = elements
        self.symbolic.add(value)
        return value

    def state(self, value: Value, given: Sequence[Number]) -> Value:
        """``value``, of which these are the extents; its buffer must hold the largest."""
        own, extents = {}, [expression(e) for e in given]
        for axis, (extent, n) in enumerate(zip(extents, value.type.dims, strict=True)):
            if extent.known and extent.number == n:
                continue
            if extent.most > n:
                raise UndecidedError(f"an extent of {extent}, at most {extent.most}, in a buffer of {n}")
            own[axis] = extent
        if own:
            self.extents[value] = own
        return value

    def count(self, value: Value, axis: int, number: Value) -> None:
        """Say that ``number``, an i64 scalar computed by the graph, is the extent of ``value`` along an axis."""
        known = [e for e, held in self.numbers.items() if held is number]
        most = value.type.dims[axis] if value.typed else math.inf
        extent = known[0] if known else symbol(number.name, 0, most)
        self.numbers[extent] = number
        self.extents.setdefault(value, {})[axis] = extent

    def unified(self, extents: Sequence[Expression], origin: Origin) -> Expression:
        """The extent that several have that are equal; a run in which they are not ends where this one is needed."""
        parts = tuple(dict.fromkeys(self._unified.get(e, e) for e in extents))
        if len(parts) == 1:
            return parts[0]
        extent = symbol(str(parts[0]), max(e.least for e in parts), min(e.most for e in parts))
        self._equals[extent] = parts
        self.number(extent, origin)
        self._unified |= dict.fromkeys((*extents, *parts), extent)
        return extent

    # --------------------------------------------------------------------------------------- numbers
    @contextmanager
    def inside(self) -> Iterator[None]:
        """A context manager around the import of a body: numbers that its nodes compute are not used outside of it."""
        before = dict(self.numbers), dict(self._made), set(self.held), dict(self._unified)
        try:
            yield
        finally:
            self.numbers, self._made, self.held, self._unified = before

    def _alive(self, value: Value | None) -> bool:
        if value is None:
            return False
        return value.constant or value.producer is None or value.producer in self.writer.graph

    def _part(self, extent: Expression) -> tuple[Value, int] | None:
        """The tensor that holds a number, and its place there; None where no node can read it here."""
        value, i = self._parts.get(extent, (None, 0))
        return (value, i) if value is not None and self._readable(value) else None

    def _readable(self, value: Value) -> bool:
        """Whether a node that is added now can read a tensor."""
        own = value.constant or value.producer is not None or value in self.held or value in self.writer.graph.inputs
        return own and self._alive(value)

    def number(self, extent: Expression, origin: Origin) -> Value:
        """The i64 scalar that holds ``extent`` at run time."""
        if extent in self.ports:
            return self._checked(extent, origin)
        if extent.known:
            return self.writer.constant("number", np.array(extent.number, np.int64))
        held = self.numbers.get(extent)
        if held is None or not self._alive(held):
            part = self._part(extent)
            held = self._computed(extent, origin) if part is None else self._scalar(*part, origin)
            if extent in self._sums:
                held = self._equal(held, self._sums[extent], origin)
            self.numbers[extent] = held
        return held

    def _equal(self, number: Value, port: Value, origin: Origin) -> Value:
        """``number``; a run in which an input of the graph holds another one ends."""
        difference = self._add("Sub", [port, number], origin)
        none = self._add("Bounded", [difference], origin, least=0, most=0)
        return self._add("Add", [number, none], origin)

    def _checked(self, extent: Expression, origin: Origin) -> Value:
        """An input that is a size, held within its range."""
        held = self.numbers.get(extent)
        if held is None or not self._alive(held):
            port = self.ports[extent]
            least, most, step = self.ranges[port.name]
            held = self.numbers[extent] = self._add("Bounded", [port], origin, least=least, most=most, step=step)
        return held

    def _add(self, type: str, inputs: Sequence[Value], origin: Origin, **attributes: Any) -> Value:
        assert self._make is not None
        return self.writer.add(self._make(type, **attributes), inputs, [f"{origin.layer}_size"], origin)[0]

    def _integers(self, *numbers: int) -> Value:
        return self.writer.constant("numbers", np.array(numbers, np.int64))

    def _scalar(self, value: Value, i: int, origin: Origin) -> Value:
        """One element of a tensor of integers, as an i64 scalar."""
        if value.type.rank != 1 and value.type.dims:
            value = self._add("Reshape", [value, self._integers(-1)], origin)
        if value.type.rank:
            index = self.writer.constant("index", np.array(i, np.int64))
            value = self._add("Gather", [value, index], origin, axis=0)
        return value if value.type.dtype is I64 else self._add("Cast", [value], origin, to="i64")

    def _computed(self, extent: Expression, origin: Origin) -> Value:
        scale = math.lcm(*(f.denominator for _, f in extent.terms))
        if scale > 1:
            whole = self.number(extent * scale, origin)
            return self._add("Div", [whole, self.number(expression(scale), origin)], origin)
        total: Value | None = None
        for monomial, factor in sorted(extent.terms, key=lambda term: (not term[0], str(sorted(map(str, term[0]))))):
            part = self._product(monomial, int(factor), origin)
            if total is None:
                total = part
            elif not monomial and factor < 0:
                total = self._add("Sub", [total, self.number(expression(-factor), origin)], origin)
            else:
                total = self._add("Add", [total, part], origin)
        assert total is not None
        return total

    def _product(self, monomial: Any, factor: int, origin: Origin) -> Value:
        parts = [self._atom(atom, origin) for atom, power in sorted(monomial, key=str) for _ in range(power)]
        if factor != 1 or not parts:
            parts.append(self.number(expression(factor), origin))
        product = parts[0]
        for part in parts[1:]:
            product = self._add("Mul", [product, part], origin)
        return product

    def _atom(self, atom: Any, origin: Origin) -> Value:
        alone = Expression(frozenset({(frozenset({(atom, 1)}), Fraction(1))}))
        held = self.numbers.get(alone)
        if held is not None and self._alive(held):
            return held
        if alone in self.ports:
            return self._checked(alone, origin)
        if alone in self._bounded and self._readable(self._bounded[alone][0]):
            limited, most = self._bounded[alone]
            value = self._add("Bounded", [self._scalar(limited, 0, origin)], origin, most=most)
        elif alone in self._equals:
            value, *others = (self.number(part, origin) for part in self._equals[alone])
            for other in others:
                value = self._equal(value, other, origin)
        elif alone in self._steps:
            extent, size = self._steps[alone]
            above = self._add("Sub", [self.number(extent, origin), self.number(expression(size.least), origin)], origin)
            value = self._add("Div", [above, self.number(expression(size.step), origin)], origin)
        elif (part := self._part(alone)) is not None:
            value = self._scalar(*part, origin)
        elif isinstance(atom, FloorQuotient):
            n, d = self.number(atom.numerator, origin), self.number(atom.divisor, origin)
            if atom.numerator.least < 0:
                n = self._add("Sub", [n, self._add("Mod", [n, d], origin)], origin)
            value = self._add("Div", [n, d], origin)
        elif isinstance(atom, Extreme):
            parts = [self.number(part, origin) for part in sorted(atom.parts, key=str)]
            value = self._add("Max" if atom.greatest else "Min", parts, origin)
        else:
            raise UndecidedError(f"{atom} is computed in a part of the model that may not run")
        self.numbers[alone] = value
        return value

    def made(self, value: Value, origin: Origin) -> Value:
        """A value that the graph computes: ``value``, or nodes that join the numbers of a symbolic one."""
        if value not in self.symbolic:
            return value
        held = self._made.get(value)
        if held is None or not self._alive(held):
            held = self._made[value] = self._joined(value, origin)
        return held

    def _joined(self, value: Value, origin: Origin) -> Value:
        elements, type = self.elements[value], value.type
        flat = list(elements.reshape(-1))
        scale = math.lcm(1, *(f.denominator for e in flat for _, f in e.terms))
        parts = [self.number(e * scale, origin) for e in flat]
        if type.rank == 0:
            joined = parts[0]
        else:
            columns = [self._add("Reshape", [part, self._integers(1)], origin) for part in parts]
            joined = columns[0] if len(columns) == 1 else self._add("Concat", columns, origin, axis=0)
            if type.rank > 1:
                joined = self._add("Reshape", [joined, self._integers(*type.dims)], origin)
        if type.dtype is not I64:
            joined = self._add("Cast", [joined], origin, to=type.dtype.value)
        if scale > 1:
            factor = self.writer.constant("scale", np.array(1 / scale, type.dtype.numpy))
            joined = self._add("Mul", [joined, factor], origin)
        return joined

    def buffer(self, value: Value, origin: Origin, most: int) -> Value:
        """The first ``most`` places along axis 0 of the buffer of a tensor, as a tensor of known extents."""
        name = self.writer.fresh(f"{value.name}_buffer")
        if value.type.dims[0] == most:
            return self.writer.plain(self.operator("Identity"), [value], [name], origin)[0]
        given = [value, self._integers(0), self._integers(most), self._integers(0)]
        return self.writer.plain(self.operator("Slice"), given, [name], origin)[0]

    # -------------------------------------------------------------------------------------- delivery
    def deliver(self, origin: Origin) -> None:
        """Let the outputs of the graph be computed, and give the extents of outputs beside them.  Sizes come behind the
        other inputs."""
        graph = self.writer.graph
        graph.inputs.sort(key=lambda value: value.name in self.ranges)
        for i, value in enumerate(graph.outputs):
            if value in self.symbolic:
                graph.outputs[i] = made = self.made(value, origin)
                if not graph_names(graph, made):
                    made.name = value.name
        for value in list(graph.outputs):
            for axis, extent in sorted(self.extents.get(value, {}).items()):
                name = self._port(value, extent, origin)
                kept = [(a, n) for a, n in graph.extents.get(value.name, ()) if a != axis]
                graph.extents[value.name] = tuple(sorted([*kept, (axis, name)]))

    def _port(self, value: Value, extent: Expression, origin: Origin) -> str:
        """The input or output of the graph that holds an extent of an output, made where there is none."""
        if extent in self.ports:
            return self.ports[extent].name
        graph, number = self.writer.graph, self.number(extent, origin)
        if number.constant or number in graph.inputs:
            number = self._add("Identity", [number], origin) if number in graph.inputs else number
        if not graph.is_output(number):
            number.name = self.writer.fresh(f"{value.name}.extent")
            graph.outputs.append(number)
        return number.name


def graph_names(graph: Graph, value: Value) -> bool:
    """Whether an input or another output of the graph is that value, whose name is then given."""
    return value in graph.inputs or sum(v is value for v in graph.outputs) > 1


def _loose(element: object) -> bool:
    """Whether an expression depends on several numbers without bounds, so that it is better known by its own name."""
    return isinstance(element, Expression) and sum(s.most == math.inf for s in element.symbols) > 1


def constant_elements(data: Array) -> Array | None:
    """The elements of a constant as expressions; None where they are too many or no exact numbers."""
    if data.size > MOST_CONSTANTS or data.dtype.kind not in "iubf":
        return None
    if data.dtype.kind == "b":
        return data.astype(object)
    elements = np.empty(data.size, object)
    for i, number in enumerate(data.reshape(-1).tolist()):
        if isinstance(number, float) and (not math.isfinite(number) or Fraction(number).denominator > FINEST):
            return None
        elements[i] = expression(Fraction(number))
    return elements.reshape(data.shape)


def exact_in_floats(elements: Array) -> bool:
    """Whether f32 holds all numbers that expressions can be, exactly."""
    return all(
        e.least > -EXACT_FLOAT and e.most < EXACT_FLOAT and all(f.denominator <= FINEST for _, f in e.terms)
        for e in elements.reshape(-1)
        if isinstance(e, Expression)
    )


__all__ = ["BOOL", "F32", "RunTimeSizes", "ShapeError", "constant_elements", "exact_in_floats"]
