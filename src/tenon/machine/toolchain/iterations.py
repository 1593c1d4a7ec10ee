"""Branches of an abstract execution (``toolchain.registers``), and how many iterations of a loop they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tenon.machine.toolchain.control_flow import INVERSE, AssemblyFunction
from tenon.machine.toolchain.registers import Flags, Registers, Value

_MASK = 0xFFFFFFFF
_HOLDS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "loop": lambda a, b: a > b,
    "done": lambda a, b: a <= b,
    "lo": lambda a, b: a & _MASK < b & _MASK,
    "hs": lambda a, b: a & _MASK >= b & _MASK,
    "hi": lambda a, b: a & _MASK > b & _MASK,
    "ls": lambda a, b: a & _MASK <= b & _MASK,
    "mi": lambda a, b: a - b < 0,
    "pl": lambda a, b: a - b >= 0,
}
OTHERWISE = {**INVERSE, "loop": "done", "?": "?"}
_EQUALITY = frozenset({"eq", "ne", "mi", "pl"})


@dataclass
class Edge:
    """A way out of a block: the most instructions up to its end, the registers there, and what decided."""

    source: int
    target: int
    cost: int
    state: Registers
    condition: str = ""
    flags: Flags | None = None


@dataclass(frozen=True)
class Undecided:
    """A branch of which both ways counted: its block, what it compares, and the symbols that decide."""

    block: int
    flags: Flags | None
    roots: frozenset[int]


@dataclass
class CountedLoop:
    """A loop: the edges that leave it, after how many iterations, and the branches of which both ways count: whether
    they are ``decidable`` iteration by iteration, and what they compare."""

    edges: list[Edge]
    iterations: int
    decidable: bool
    undecided: list[Undecided]


class Iterations:
    """Values of a loop's registers after n iterations."""

    def __init__(self, before: Registers, symbols: Mapping[int, str | Value], end: Registers) -> None:
        self._symbols = before.symbols
        self._begin = {symbol: before.values[name] for symbol, name in symbols.items()}
        self._step: dict[int, int] = {}
        self._later: dict[int, Value] = {}  # what is the same after every iteration but not before the first
        for symbol, name in symbols.items():
            value = end.values.get(name, (-1, 0))
            if value[0] == symbol:
                self._step[symbol] = value[1]
            elif 0 <= value[0] < min(symbols):  # a symbol from before the loop, or none
                self._later[symbol] = value

    def counted(
        self, function: AssemblyFunction, header: int, edges: list[Edge], undecided: list[Undecided]
    ) -> CountedLoop | None:
        """The edges that leave, after as many iterations as there are; None: that is not known."""
        again = [edge for edge in edges if edge.target == header]
        tests = {
            edge.source: n
            for edge in edges
            if edge.target != header
            and edge.condition
            and function.loops[edge.source].header == header
            and all(function.dominates(edge.source, a.source) for a in again)
            and (n := self._first(edge)) is not None
        }
        if not tests:
            return None
        iterations = min(tests.values())
        left = [edge for edge in edges if edge.target != header]
        for edge in left:
            edge.cost += iterations * max(edge.cost for edge in again)
            self._at(edge.state, iterations)
        others = [other for one in undecided if one.block not in tests and (other := self._outside(one))]
        decidable = any(not one.roots or self._distance(one.flags, 0) is not None for one in others)
        return CountedLoop(left, iterations, decidable, others)

    def _outside(self, one: Undecided) -> Undecided | None:
        """The same branch with the symbols of the code around the loop; None: it depends on data."""
        roots = self._symbols.roots(*(self._begin.get(symbol, (symbol, 0)) for symbol in one.roots))
        return None if roots is None else replace(one, roots=roots)

    def _first(self, edge: Edge) -> int | None:
        """How many iterations end otherwise before one ends with this edge."""
        if edge.flags is None or edge.condition not in _HOLDS:
            return None
        if edge.flags.equality and edge.condition not in _EQUALITY:
            return None
        first, second = self._distance(edge.flags, 0), self._distance(edge.flags, 1)
        if first is None or second is None:
            return None
        step = second - first
        near = 1 if not step or edge.condition == "ne" else max(1, -first // step - 1)
        return next((n for n in (0, *range(near, near + 4 if step else near)) if self._holds(edge, n)), None)

    def _holds(self, edge: Edge, n: int) -> bool:
        """Whether an edge is taken in iteration ``n``."""
        assert edge.flags
        a, b = self._after(edge.flags.a, n), self._after(edge.flags.b, n)
        return bool(a and b and decided(edge.condition, Flags(a, b, edge.flags.equality)))

    def _distance(self, flags: Flags | None, n: int) -> int | None:
        """``a - b`` of a comparison in iteration ``n``."""
        if flags is None:
            return None
        a, b = self._after(flags.a, n), self._after(flags.b, n)
        return a[1] - b[1] if a and b and a[0] == b[0] else None

    def _after(self, value: Value, n: int) -> Value | None:
        """A value of the loop's body in iteration ``n``."""
        symbol, offset = value
        if symbol in self._step:
            start = self._begin[symbol]
            return start[0], start[1] + self._step[symbol] * n + offset
        if symbol in self._later:
            entering = self._later[symbol] if n else self._begin[symbol]
            return entering[0], entering[1] + offset
        return None if symbol in self._begin else value

    def _at(self, state: Registers, n: int) -> None:
        """Registers as they are in iteration ``n``."""
        for name, value in state.values.items():
            state.values[name] = self._after(value, n) or self._symbols.data()
        state.flags = None


def _signed(condition: str) -> Callable[[int, int], bool]:
    """A condition on a distance: addresses and counters do not wrap around."""
    return _HOLDS[{"lo": "lt", "hs": "ge", "hi": "gt", "ls": "le"}.get(condition, condition)]


def decided(condition: str, flags: Flags | None) -> bool | None:
    """Whether a condition holds, if that is known."""
    if flags is None or condition not in _HOLDS or (flags.equality and condition not in _EQUALITY):
        return None
    a, b = flags.a, flags.b
    if a[0] != b[0]:
        return None
    return _signed(condition)(a[1] - b[1], 0) if a[0] else _HOLDS[condition](a[1], b[1])
