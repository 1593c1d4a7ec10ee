"""Extents of the states of a loop that only a run knows: those that stay, and those that change in each iteration.

A state whose extent changes has a buffer of the largest one, and its extent is a state of its own.  How large that
becomes follows from the number of iterations and from what an iteration does to it, or is what the user says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Origin, Value
from tenon.network.graph.sizes import Bound, Expression, replaced, same
from tenon.network.graph.sizes import symbol as extent_symbol
from tenon.network.graph.types import I64, TensorType
from tenon.network.graph.writer import Writer
from tenon.network.ops.size_check import Bounded
from tenon.network.ops.slice_gather import Pad, Slice

MOST_TRIPS = 4096
"""The most iterations that are followed to find the largest extent of a state."""

STABLE_TRIPS = 64
"""Iterations after which extents that do not depend on the number of iterations have become as large as they can."""

LARGEST_EXTENT = 2**31 - 1

MOST_ROUNDS = 16
"""How often the body of a loop is imported at most, with other largest extents of its states."""


class StatesChangedError(Exception):
    """The body has to be imported again, for states whose largest extents are others."""


class UnboundedStateError(RefusedError):
    """How large a state becomes is not known."""


@dataclass
class ChangingExtent:
    """The extent of a state along an axis, which iterations change.

    ``first`` is that before the first iteration, ``symbol`` stands for it in the body, ``held`` for the i64 that holds
    it there; ``following`` is the next one.
    """

    first: Expression
    least: int
    most: int
    limit: int | None
    symbol: Expression
    held: Value
    following: Expression


def fitted(writer: Writer, value: Value, dims: Sequence[int], origin: Origin) -> Value:
    """``value`` in a buffer of other extents, which hold its true ones."""
    if tuple(dims) == value.type.dims:
        return value
    extents, made = writer.sizes.of(value), value
    less = [axis for axis, (n, own) in enumerate(zip(dims, value.type.dims, strict=True)) if n < own]
    if less:
        ends = [dims[axis] for axis in less]
        given = [writer.constant(f"{value.name}_places", np.array(a, np.int64)) for a in ([0] * len(less), ends, less)]
        (made,) = writer.plain(Slice(), [made, *given], [writer.fresh(f"{value.name}_part")], origin)
    after = [n - own for n, own in zip(dims, made.type.dims, strict=True)]
    if any(after):
        pads = writer.constant(f"{value.name}_pads", np.array([0] * len(after) + after, np.int64))
        (made,) = writer.plain(Pad(), [made, pads], [writer.fresh(f"{value.name}_padded")], origin)
    for axis, extent in enumerate(extents):
        if not (extent.known and extent.number == dims[axis]):
            writer.sizes.extents.setdefault(made, {})[axis] = extent
    return made


@dataclass
class StateExtents:
    """The extents of the states of one loop, over the rounds in which its body is imported."""

    writer: Writer
    origin: Origin
    states: Sequence[Value]
    changing: dict[tuple[int, int], ChangingExtent] = field(default_factory=dict)
    """By state and axis."""

    def firsts(self) -> list[Value]:
        """The states before the first iteration, in buffers with room for the largest extents."""
        return [fitted(self.writer, value, self.dims(i, value), self.origin) for i, value in enumerate(self.states)]

    def first_numbers(self) -> list[Value]:
        """The extents that change before the first iteration, i64 scalars, in the order of ``changing``."""
        return [self._held_within(change, change.first) for change in self.changing.values()]

    def _held_within(self, change: ChangingExtent, extent: Expression) -> Value:
        """The i64 scalar of an extent; a run in which it is larger than the user says ends."""
        number = self.writer.sizes.number(extent, self.origin)
        if change.limit is None or extent.most <= change.limit:
            return number
        name = self.writer.fresh(f"{self.origin.layer}_extent")
        return self.writer.plain(Bounded(0, change.limit), [number], [name], self.origin)[0]

    def dims(self, i: int, value: Value) -> list[int]:
        """The extents of the buffer of a state."""
        own = ((axis, self.changing.get((i, axis))) for axis in range(value.type.rank))
        return [value.type.dims[axis] if change is None else change.most for axis, change in own]

    def open(self, kept: Sequence[Value]) -> None:
        """Let the values that stand for states in the body have their extents."""
        sizes = self.writer.sizes
        for (i, axis), change in self.changing.items():
            name = self.writer.names.stem(self.states[i].name)
            change.symbol = extent_symbol(name, change.least, change.most)
            change.held = Value(self.writer.fresh(f"{name}_extent"), TensorType(I64, ()))
            sizes.extents.setdefault(kept[i], {})[axis] = change.symbol
            sizes.numbers[change.symbol] = change.held
            sizes.held.add(change.held)

    def closed(self, kept: Sequence[Value], following: Sequence[Value], trips: int) -> list[Value]:
        """The next states in buffers like those of the present ones.

        Raises StatesChangedError where other extents change or become larger, UnboundedStateError where there is no
        largest one.
        """
        self._find(kept, following)
        for (i, axis), change in self.changing.items():
            change.following = self.writer.sizes.of(following[i])[axis]
        self._bound(trips)
        return [fitted(self.writer, v, held.type.dims, self.origin) for v, held in zip(following, kept, strict=True)]

    def numbers(self) -> list[Value]:
        """The next extents, i64 scalars, in the order of ``changing``."""
        return [self._held_within(change, change.following) for change in self.changing.values()]

    def _find(self, kept: Sequence[Value], following: Sequence[Value]) -> None:
        """Note the extents that an iteration changes."""
        sizes, before = self.writer.sizes, len(self.changing)
        for i, (held, after) in enumerate(zip(kept, following, strict=True)):
            first = self.states[i].type
            if (first.dtype, first.rank) != (after.type.dtype, after.type.rank):
                raise RefusedError(f"a state of its loop is {first} first and then {after.type}")
            for axis, (a, b) in enumerate(zip(sizes.of(held), sizes.of(after), strict=True)):
                if (i, axis) not in self.changing and not same(a, b):
                    self.changing[i, axis] = self._change(i, axis, b)
        if len(self.changing) > before:
            raise StatesChangedError

    def _change(self, i: int, axis: int, following: Expression) -> ChangingExtent:
        graph, value = self.writer.graph, self.states[i]
        first, name = self.writer.sizes.of(value)[axis], self.writer.names.stem(value.name)
        limit = graph.limits.get(name)
        if limit is not None:
            graph.limited.add(name)
        least = max(0, int(min(first.least, following.least)))
        most = int(max(first.most, min(following.most, first.most + 1), 1)) if limit is None else limit
        return ChangingExtent(first, least, most, limit, first, value, following)

    def _bound(self, trips: int) -> None:
        """Compare the largest extents with what becomes of the first ones in so many iterations."""
        most, stable = self._after(trips)
        larger = False
        for key, change in self.changing.items():
            lowest = min(change.first.least, change.following.least)
            if lowest < change.least:
                change.least, larger = 0, True
            if change.limit is not None:
                continue
            if (stable and most[key] > LARGEST_EXTENT) or (not stable and change.most >= MOST_TRIPS):
                self._refuse(key)
            wanted = int(most[key]) if stable else 8 * change.most
            if wanted > change.most or (stable and wanted < change.most):
                change.most, larger = max(wanted, 1), True
        if larger:
            raise StatesChangedError

    def _after(self, trips: int) -> tuple[dict[tuple[int, int], Bound], bool]:
        """The largest extents after so many iterations; whether further ones would not make them larger."""
        most = {key: self._alone(change, trips) for key, change in self.changing.items()}
        known = {key: n for key, n in most.items() if n is not None}
        if len(known) == len(most):
            return known, True
        now = {key: known.get(key, change.first.most) for key, change in self.changing.items()}
        for _ in range(min(trips, MOST_TRIPS if trips < LARGEST_EXTENT else STABLE_TRIPS)):
            following = {key: known.get(key, max(now[key], n)) for key, n in self._next(now).items()}
            if following == now:
                return now, True
            now = following
            if any(n > LARGEST_EXTENT for n in now.values()):
                break
        return now, trips <= MOST_TRIPS and max(now.values()) <= LARGEST_EXTENT

    def _alone(self, change: ChangingExtent, trips: int) -> Bound | None:
        """The largest extent after so many iterations where the user says it, or where each adds a known number."""
        growth = change.following - change.symbol
        if change.limit is not None:
            return change.limit
        if not growth.known or (growth.number > 0 and trips >= LARGEST_EXTENT):
            return None
        return change.first.most + trips * max(0, growth.number)

    def _next(self, now: Mapping[tuple[int, int], Bound]) -> dict[tuple[int, int], Bound]:
        """The largest extents after an iteration before which they are at most ``now``."""
        numbers = {
            symbol: extent_symbol(str(symbol), min(change.least, now[key]), now[key])
            for key, change in self.changing.items()
            for symbol in change.symbol.symbols
        }
        return {key: replaced(change.following, numbers).most for key, change in self.changing.items()}

    def _refuse(self, key: tuple[int, int]) -> None:
        name = self.writer.names.stem(self.states[key[0]].name)
        raise UnboundedStateError(
            f"its state '{name}' changes its extent along axis {key[1]}, and how large it becomes is not known",
            f"say how large it can be: --max {name}=N",
        )

    def finals(self, last: Sequence[Value], numbers: Sequence[Value], trips: Expression | None) -> list[Value]:
        """The last states with their extents: ``numbers`` hold those that changed, unless these follow from the number
        of iterations, ``trips``."""
        sizes, results = self.writer.sizes, list(last)
        for (i, axis), change, number in zip(self.changing, self.changing.values(), numbers, strict=True):
            growth = change.following - change.symbol
            if trips is None or not growth.known:
                sizes.count(results[i], axis, number)
                continue
            extent = change.first + trips * growth
            if extent.known:
                dims = [extent.number if a == axis else n for a, n in enumerate(results[i].type.dims)]
                before = dict(sizes.extents.get(results[i], {}))
                results[i] = fitted(self.writer, results[i], dims, self.origin)
                sizes.extents[results[i]] = {a: e for a, e in before.items() if a != axis}
            else:
                sizes.extents.setdefault(results[i], {})[axis] = extent
        for i, value in enumerate(self.states):
            for axis, extent in sizes.extents.get(value, {}).items():
                if (i, axis) not in self.changing:
                    sizes.extents.setdefault(results[i], {})[axis] = extent
        return results
