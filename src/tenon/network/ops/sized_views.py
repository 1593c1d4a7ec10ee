"""The rules of operators that give elements in another shape, where extents are known only at run time.

A buffer has the largest extents, so the elements of a matrix of 3 of 8 columns do not follow each other.  Axes whose
product is the same before and after are a group; where the true elements of a group begin at its start before and
after, the buffer stays as it is, else its elements are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression, UndecidedError, exact, expression, same
from tenon.network.ops.sized_skews import note_shape


def product(extents: Sequence[Expression]) -> Expression:
    """The number of elements of a tensor."""
    total = expression(1)
    for extent in extents:
        total = total * extent
    return total


@dataclass(frozen=True)
class AxisGroup:
    """Adjoining axes before and after: their extents, and those of the buffer before."""

    before: Sequence[Expression]
    buffer: Sequence[int]
    after: Sequence[Expression]

    @property
    def fixed(self) -> bool:
        """Whether all extents are known."""
        return all(e.known for e in (*self.before, *self.after))

    def targets(self) -> tuple[int, ...] | None:
        """The extents of the buffer after, if its elements stay where they are; None if they do not."""
        if self.fixed and [int(e.number) for e in self.before] == list(self.buffer):
            return tuple(e.number for e in self.after)
        after = [e for e in self.after if not _is_one(e)]
        before = [(e, n) for e, n in zip(self.before, self.buffer, strict=True) if not (_is_one(e) and n == 1)]
        if any(not e.known or e.number != n for e, n in before[1:]) or not all(e.known for e in after[1:]):
            return None
        rest, size = math.prod(e.number for e in after[1:]), math.prod(self.buffer)
        if not rest or size % rest or not after:
            return None
        first = after[0]
        return tuple(1 if _is_one(e) else size // rest if e is first else e.number for e in self.after)

    def places(self, node: SizedNode, targets: Sequence[int]) -> Value:
        """For every place of the buffer after, in order, the place of its element in the buffer before."""
        flat: Value = self._numbered(node, targets)
        total: Value | None = None
        stride = 1
        for i in reversed(range(len(self.before))):
            extent, step = self.before[i], stride
            stride *= self.buffer[i]
            if _is_one(extent):
                continue
            index = flat
            if i:
                divisor = node.whole("Max", node.number(extent), node.number(1))
                index, flat = node.whole("Mod", flat, divisor), node.whole("Div", flat, divisor)
            if step > 1:
                index = node.whole("Mul", index, node.number(step))
            total = index if total is None else node.whole("Add", total, index)
        return node.ints(*[0] * math.prod(targets)) if total is None else total

    def _numbered(self, node: SizedNode, targets: Sequence[int]) -> Value:
        """The number of every element of the buffer after, counted in the true tensor."""
        indices = np.indices(tuple(targets)).reshape(len(targets), -1)
        total: Value | None = None
        for i, index in enumerate(indices):
            stride = product(self.after[i + 1 :])
            part = node.constant(index.astype(np.int64))
            if not (stride.known and stride.number == 1):
                part = node.whole("Mul", part, node.number(stride))
            total = part if total is None else node.whole("Add", total, part)
        assert total is not None
        return total


def groups(before: Sequence[Expression], buffer: Sequence[int], after: Sequence[Expression]) -> list[AxisGroup]:
    """The smallest groups of axes."""
    result, i, j = [], 0, 0
    for a, b in _boundaries(before, after):
        result.append(AxisGroup(before[i:a], buffer[i:a], after[j:b]))
        i, j = a, b
    return result


def _boundaries(before: Sequence[Expression], after: Sequence[Expression]) -> list[tuple[int, int]]:
    """The numbers of axes before and after at which groups end."""
    left = [product(before[:a]) for a in range(len(before) + 1)]
    right = [product(after[:b]) for b in range(len(after) + 1)]
    ends, i, j = [], 0, 0
    while (i, j) != (len(before), len(after)):
        pairs = [
            (a, b)
            for a in range(i, len(before) + 1)
            for b in range(j, len(after) + 1)
            if (a, b) != (i, j) and same(left[a], right[b])
        ]
        if not pairs:
            raise SizeRefusedError(f"elements of shape {_shown(before)} do not fit into {_shown(after)} in every run")
        proper = [p for p in pairs if p[0] > i and p[1] > j] or pairs
        i, j = min(proper, key=sum)
        ends.append((i, j))
    return ends


def _shown(extents: Sequence[Expression]) -> str:
    return f"[{', '.join(map(str, extents))}]"


def _is_one(extent: Expression) -> bool:
    return extent.known and extent.constant == 1


def target(source: Sequence[Expression], wanted: Sequence[Expression], *, copies: bool) -> list[Expression]:
    """The extents that a Reshape asks for: -1 is inferred, and with ``copies`` a 0 copies an axis."""
    result = [
        source[i] if copies and e.known and not e.constant and i < len(source) else e for i, e in enumerate(wanted)
    ]
    open_axes = [i for i, e in enumerate(result) if e.known and e.constant == -1]
    if len(open_axes) == 1:
        (axis,) = open_axes
        others, own = [e for i, e in enumerate(result) if i != axis], list(source)
        for extent in list(others):
            twin = next((e for e in own if same(e, extent)), None)
            if twin is not None:
                own.remove(twin)
                others.remove(extent)
        result[axis] = _quotient(product(own), product(others))
    return result


def _quotient(size: Expression, rest: Expression) -> Expression:
    if rest.known and not rest.constant:
        return expression(0)
    try:
        return exact(size, rest)
    except UndecidedError:
        raise SizeRefusedError(f"{size} elements do not fill rows of {rest} in every run") from None


def reshaped(node: SizedNode, after: Sequence[Expression]) -> Value:
    """The first operand in another shape."""
    value, before = node.input(0), node.extents(0)
    if not before or not after:
        return node.state(node.whole("Reshape", value, node.ints(*[1] * len(after))), after)
    parts = groups(before, value.type.dims, after)
    done, rest = list[int](), list(value.type.dims)
    for part in parts:
        rest = rest[len(part.before) :]
        targets = part.targets()
        if targets is None:
            targets = tuple(node.largest(e) for e in part.after)
            flat = math.prod(done), math.prod(part.buffer), math.prod(rest)
            value = node.whole("Reshape", value, node.ints(*flat))
            value = node.gathered(value, 1, part.places(node, targets))
        done += targets
    if not done or math.prod(done) == 0:
        raise SizeRefusedError("a tensor that never has elements")
    result = node.state(node.whole("Reshape", value, node.ints(*done)), after)
    note_shape(node, result, after)
    return result
