"""A node that reads tensors whose extents only a run knows, while its operator's rule says what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from tenon.network.graph.graph import Array, Graph, Operation, Origin, Value
from tenon.network.graph.run_time_sizes import NodeAdder, RunTimeSizes
from tenon.network.graph.sizes import Expression, Number, UndecidedError, expression, same
from tenon.network.graph.types import TensorType

FIX = "give the input a fixed shape with --shape, or cut the model before it with --to"
"""The remedy for an operator that cannot take sizes of a run."""


class SizeRefusedError(Exception):
    """An operator cannot take what it reads, as extents of it are known only at run time."""

    def __init__(self, what: str, remedy: str = FIX) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class UnboundedSizeError(SizeRefusedError):
    """An extent of a result has no largest number."""

    def __init__(self, extent: Expression) -> None:
        names = sorted(str(s) for s in extent.symbols if s.most == math.inf)
        shown = ", ".join(f"'{name}'" for name in names)
        super().__init__(
            f"an extent of its result depends on {shown}, computed at run time, and has no largest number",
            f"say how large it can be: --max {names[0] if names else 'NAME'}=N",
        )


class SizedWriter(NodeAdder, Protocol):
    """The writer of a graph, as the rules of operators need it."""

    @property
    def sizes(self) -> RunTimeSizes: ...

    def plain(
        self,
        op: Operation,
        inputs: Sequence[Value | None],
        names: Sequence[str],
        origin: Origin,
        bodies: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """Add a node that computes with buffers as they are."""


@dataclass
class SizedNode:
    """The operator, operands and names of results of a node to be added.

    The methods that return values add nodes to the graph; buffers have the largest extents.
    """

    writer: SizedWriter
    op: Operation
    inputs: list[Value | None]
    names: Sequence[str]
    origin: Origin
    bodies: Sequence[Graph] = field(default=())

    @property
    def sizes(self) -> RunTimeSizes:
        """The sizes that are known in the graph."""
        return self.writer.sizes

    # --------------------------------------------------------------------------------------- operands
    def has(self, i: int) -> bool:
        """Whether an operand is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int) -> Value:
        """An operand.  Raises SizeRefusedError if it is missing."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise SizeRefusedError(f"its input {i} is missing", "")
        return value

    def type(self, i: int) -> TensorType:
        """The type of an operand, with its largest extents."""
        return self.input(i).type

    def extents(self, i: int) -> list[Expression]:
        """The extents of an operand."""
        return self.sizes.of(self.input(i))

    def changing(self, i: int) -> list[int]:
        """The axes of an operand whose extents only a run knows."""
        return sorted(self.sizes.extents.get(self.input(i), {})) if self.has(i) else []

    def fixed(self, *operands: int) -> bool:
        """Whether all extents of some operands are known."""
        return not any(self.changing(i) for i in operands)

    def elements(self, i: int, what: str) -> Array:
        """The elements of an operand as expressions.  Raises SizeRefusedError if they have none."""
        elements = self.sizes.elements_of(self.input(i))
        if elements is None:
            raise SizeRefusedError(f"{what} ('{self.input(i).name}') is computed at run time; it must be known")
        return elements

    def integers(self, i: int, what: str) -> list[int]:
        """The elements of an operand, which must be known when compiling."""
        try:
            return [e.number for e in self.elements(i, what).reshape(-1)]
        except UndecidedError:
            raise SizeRefusedError(f"{what} ('{self.input(i).name}') is known only at run time") from None

    def numbers(self, i: int, what: str) -> list[Expression]:
        """The elements of an operand."""
        return list(self.elements(i, what).reshape(-1))

    # ---------------------------------------------------------------------------------------- results
    def made(self, i: int) -> Value:
        """An operand that the graph computes."""
        return self.sizes.made(self.input(i), self.origin)

    def add(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """The first result of another node, by the rule of its operator."""
        return self.writer.add(self.op.other(type, **attributes), inputs, [f"{self.names[0]}_part"], self.origin)[0]

    def whole(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """The first result of another node, which computes with buffers as they are."""
        name = self.writer.fresh(f"{self.names[0]}_part")
        return self.writer.plain(self.op.other(type, **attributes), inputs, [name], self.origin)[0]

    def state(self, value: Value, extents: Sequence[Number]) -> Value:
        """``value``, cut to the largest extents that it can have, with these extents."""
        wanted = [expression(e) for e in extents]
        for axis, extent in enumerate(wanted):
            if extent.most < value.type.dims[axis]:
                value = self.cut(value, axis, int(extent.most))
        return self.sizes.state(value, wanted)

    def same(self, *extents: Sequence[Number], inputs: Sequence[Value | None] | None = None) -> tuple[Value, ...]:
        """The operator itself, on buffers as they are; its results have these extents."""
        given = self.inputs if inputs is None else inputs
        made = self.writer.plain(self.op, given, self.names, self.origin, self.bodies)
        if not extents or not all(v.typed for v in made):  # a problem that was reported
            return made
        results = list(made)
        for i, (value, wanted) in enumerate(zip(made, extents, strict=False)):
            results[i] = self.state(value, wanted)
            if results[i] is not value:  # a part of it takes its name
                results[i].name, value.name = value.name, self.writer.fresh(f"{self.names[0]}_part")
        return tuple(results)

    def counted(self, extents: Mapping[int, Mapping[int, Expression]] = MappingProxyType({})) -> Sequence[Value]:
        """The operator itself, whose last result is an extent of the others; these have further ``extents``."""
        made = self.same()
        if all(v.typed for v in made):
            for i, (value, axis) in enumerate(zip(made, self.op.counted_axes(self.inputs), strict=False)):
                own = {a: e for a, e in extents.get(i, {}).items() if not e.known}
                if own:
                    self.sizes.extents[value] = own
                if axis is not None:
                    self.sizes.count(value, axis, made[-1])
        return made

    def symbolic(self, elements: Array, type: TensorType) -> Value:
        """A result whose elements are expressions."""
        return self.sizes.symbolic_value(self.names[0], type, elements)

    def number(self, extent: Number) -> Value:
        """The i64 scalar that holds a number at run time."""
        return self.sizes.number(expression(extent), self.origin)

    def constant(self, data: Array) -> Value:
        """A new constant."""
        return self.writer.constant(f"{self.names[0]}_constant", data)

    def ints(self, *numbers: int) -> Value:
        """A constant of rank 1, i64."""
        return self.constant(np.array(numbers, np.int64))

    def largest(self, extent: Number) -> int:
        """The largest number that an extent can be.  Raises SizeRefusedError where none is known."""
        most = expression(extent).most
        if most == math.inf:
            raise UnboundedSizeError(expression(extent))
        return max(0, int(most))

    # ------------------------------------------------------------------------------------------ tools
    def cut(self, value: Value, axis: int, n: int) -> Value:
        """The first ``n`` places of a buffer along an axis."""
        return self.whole("Slice", value, self.ints(0), self.ints(n), self.ints(axis))

    def masked(self, value: Value, axes: Iterable[int], fill: Any) -> Value:
        """``value`` with ``fill`` beyond its extents along some axes."""
        known = self.sizes.filled.get(value, {})
        extents, result = self.sizes.of(value), value
        for axis in axes:
            if axis not in self.sizes.extents.get(value, {}) or known.get(axis) == fill:
                continue
            result = self.whole("Mask", result, self.number(extents[axis]), axis=axis, value=fill)
        if result is not value:
            self.sizes.extents[result] = dict(self.sizes.extents[value])
            self.sizes.filled[result] = dict.fromkeys(axes, fill)
        return result

    def with_masked(self, i: int, axes: Iterable[int], fill: Any) -> None:
        """Replace an operand by itself with ``fill`` beyond its extents along some axes."""
        self.inputs[i] = self.masked(self.input(i), list(axes), fill)

    def gathered(self, value: Value, axis: int, indices: Value) -> Value:
        """The places of a buffer along an axis at ``indices``, i64 of rank 1, held within the buffer."""
        last = value.type.dims[axis] - 1
        within = self.whole("Max", self.whole("Min", indices, self.ints(last)), self.ints(0))
        return self.whole("Gather", value, within, axis=axis)

    def broadcast(self, operands: Sequence[int], skipped: int = 0) -> list[Expression]:
        """The extents of what operands broadcast to, without the ``skipped`` last axes; their buffers are cut to fit.

        Raises SizeRefusedError.
        """
        shapes = [self.extents(i)[: max(0, self.type(i).rank - skipped)] for i in operands]
        rank = max(map(len, shapes))
        padded = [[expression(1)] * (rank - len(shape)) + shape for shape in shapes]
        result = [self.common([shape[axis] for shape in padded]) for axis in range(rank)]
        for axis in range(skipped + 1, skipped + rank + 1):
            own = [i for i in operands if self.type(i).rank >= axis and not _is_one(self.extents(i)[-axis])]
            least = min((self.type(i).dims[-axis] for i in own), default=1)
            for i in own:
                if self.type(i).dims[-axis] > least:
                    extents = self.extents(i)
                    extents[-axis] = result[skipped - axis]
                    self.inputs[i] = self.sizes.state(self.cut(self.input(i), len(extents) - axis, least), extents)
        return result

    def common_exactly(self, places: Sequence[tuple[int, int]]) -> Expression:
        """The extent that operands have along axes of theirs, (operand, axis); they all have this one then, and their
        buffers are cut to the shortest.  Raises SizeRefusedError."""
        extent = self.unified([self.extents(i)[axis] for i, axis in places])
        least = min(self.type(i).dims[axis] for i, axis in places)
        for i, axis in places:
            value, extents = self.input(i), self.extents(i)
            axis %= len(extents)
            if value.type.dims[axis] == least and extents[axis] == extent:
                continue
            alias = self.whole("Identity", value) if value.type.dims[axis] == least else self.cut(value, axis, least)
            self.inputs[i] = self.sizes.state(alias, [*extents[:axis], extent, *extents[axis + 1 :]])
        return extent

    def unified(self, extents: Sequence[Expression]) -> Expression:
        """The extent that all of some axes have: a run in which they differ ends.  Raises SizeRefusedError where they
        never are equal, or where one is a number."""
        if all(same(extents[0], e) for e in extents[1:]):
            return next((e for e in extents if e.known), extents[0])
        low, high = max(e.least for e in extents), min(e.most for e in extents)
        if low > high or any(e.known for e in extents):
            raise _differing(extents)
        return self.sizes.unified(extents, self.origin)

    def common(self, extents: Sequence[Expression]) -> Expression:
        """The extent of an axis along which tensors of these extents broadcast.  Raises SizeRefusedError."""
        rest = [e for e in extents if not _is_one(e)]
        return self.unified(rest) if rest else expression(1)

    def common_along(self, places: Sequence[tuple[int, int]]) -> Expression:
        """As ``common``, of operands along axes of theirs, which have this extent then."""
        rest = [(i, axis) for i, axis in places if not _is_one(self.extents(i)[axis])]
        return self.common_exactly(rest) if rest else expression(1)


def _differing(extents: Sequence[Expression]) -> SizeRefusedError:
    shown = " and ".join(dict.fromkeys(map(str, extents)))
    return SizeRefusedError(
        f"it reads extents of {shown}, which may differ in a run",
        "bind dimensions that are always equal to one name with --shape, or one of them to a number",
    )


def _is_one(extent: Expression) -> bool:
    return extent.known and extent.constant == 1
