"""A bound of the instructions that a function executes, from its assembly for Arm's T32 instruction set.

Of the two ways of a branch that depends on data, the longer one counts.  Iterations of a loop are counted by what it
compares: its registers are executed with symbols (``toolchain.registers``), and a difference that moves by a constant
from iteration to iteration says when the loop ends (as in scalar evolution: Bachmann, Wang, Zima, "Chains of
Recurrences", 1994).  A loop whose registers move otherwise is executed iteration by iteration.

Instructions are counted as an emulator counts them: one for each, also for those that a condition skips.  They are not
cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from tenon.machine.toolchain.control_flow import (
    RETURN,
    AssemblyFunction,
    AssemblyInstruction,
    NaturalLoop,
    UnboundedError,
)
from tenon.machine.toolchain.iterations import OTHERWISE, CountedLoop, Edge, Iterations, Undecided, decided
from tenon.machine.toolchain.registers import Registers, Symbols, Value, plus

_ITERATIONS = 1 << 13
"""Most iterations that are executed one by one."""
_BLOCKS = 1 << 17
"""Most blocks that are executed in all."""
_DETAIL = 1 << 15
"""Most blocks that are executed before loops are no longer executed iteration by iteration for a closer bound."""
_OPEN = 8
"""Iterations in which no exit of a loop is decided, after which none is expected to be."""


@dataclass(frozen=True)
class InstructionBound:
    """Instructions of a function; of the functions that it calls by itself, in order: (name, instructions)."""

    instructions: int
    calls: tuple[tuple[str, int], ...]


_PARAMETERS = ("r0", "r1", "r2", "r3")


class InstructionBounds:
    """Bounds for the functions of a program.  ``library`` are the most instructions of functions defined elsewhere.

    ``most`` are the most iterations of loops of a function that run as often as data says: the number at ``n`` is that
    of any loop with ``n`` such loops nested in it, the last one that of those with more.  Compilers unroll and join
    iterations, they do not make more of them.
    """

    def __init__(
        self,
        functions: Mapping[str, AssemblyFunction],
        library: Mapping[str, int],
        most: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self._functions, self._library, self.most = functions, library, most
        self._done: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[int, set[frozenset[str]]]] = {}
        self._changes: dict[str, tuple[dict[int, set[int]], dict[int, set[str]]]] = {}
        self._running: list[str] = []
        self._symbols = Symbols()
        self.blocks = 0  # executed so far

    def bound(self, name: str) -> InstructionBound:
        """The bound of a call of ``name``.  Raises UnboundedError, with the reason, where there is none."""
        calls: list[tuple[str, int]] = []
        cost = _Run(self, self._functions[name], calls).cost(Registers(self._functions[name].words, self._symbols))
        return InstructionBound(cost, tuple(calls))

    def called(self, name: str, state: Registers) -> tuple[int, list[frozenset[int]]]:
        """The bound of a call with the constants that ``state`` has in registers and on the stack, and the symbols that
        would decide its branches, for each of them."""
        if name not in self._functions:
            if name not in self._library:
                raise UnboundedError(f"how many instructions {name} takes is not known")
            return self._library[name], []
        if name in self._running:
            raise UnboundedError(f"{name} calls itself")
        begin, known = self._arguments(name, state)
        if (name, known) not in self._done:
            self._running.append(name)
            try:
                run = _Run(self, self._functions[name], [])
                parameters = {begin.read(r)[0]: r for r in _PARAMETERS if begin.read(r)[0]}
                self._done[name, known] = run.cost(begin), run.undecided_by(parameters)
            finally:
                self._running.pop()
        cost, undecided = self._done[name, known]
        origins = (self._symbols.roots(*map(state.read, registers)) for registers in undecided)
        return cost, [roots for roots in origins if roots is not None]

    def _arguments(self, name: str, state: Registers) -> tuple[Registers, tuple[tuple[str, int], ...]]:
        """The registers at the beginning of a called function, and the constants among them by name."""
        begin, stack, known = (
            Registers(self._functions[name].words, self._symbols),
            state.read("sp"),
            list[tuple[str, int]](),
        )
        for register in _PARAMETERS:
            if not (value := state.read(register))[0]:
                begin.values[register] = value
                known.append((register, value[1]))
        for i in range(16):
            value = state.values.get(plus(stack, 4 * i), stack)
            if not value[0]:
                begin.values[plus(begin.read("sp"), 4 * i)] = value
                known.append((f"stack {i}", value[1]))
        return begin, tuple(known)

    def changes(self, function: AssemblyFunction) -> tuple[dict[int, set[int]], dict[int, set[str]]]:
        """Changes by loops, by header: words of the stack that were noticed so far, by address, and registers."""
        if function.name not in self._changes:
            loops = {loop.header: loop for loop in function.loops.values()}
            registers = {header: _written(function, loop) for header, loop in loops.items()}
            self._changes[function.name] = {header: set() for header in loops}, registers
        return self._changes[function.name]

    def step(self) -> None:
        """Another block is executed."""
        self.blocks += 1
        if self.blocks > _BLOCKS:
            raise UnboundedError("its loops depend on too many values")


def _split(code: Sequence[AssemblyInstruction]) -> tuple[Sequence[AssemblyInstruction], Sequence[AssemblyInstruction]]:
    """The code before a conditional branch, and, where the branch returns, what has a condition directly before it."""
    first = len(code) - 1
    while code[-1].name in ("pop", "bx", "ldm", "ldmia") and first and code[first - 1].condition:
        first -= 1
    return code[:first], code[first:-1]


def _written(function: AssemblyFunction, loop: NaturalLoop) -> set[str]:
    """The registers that a loop may change."""
    changed: set[str] = set()
    for one in (one for number in loop.blocks for one in function.blocks[number].code):
        state = Registers(function.words, Symbols())
        before = dict(state.values)
        if one.name in ("bl", "blx"):
            state.called()
        elif one.name in ("le", "letp", "wls", "wlstp"):
            changed.add("lr")
        else:
            state.execute(one)
        changed |= {k for k, v in state.values.items() if isinstance(k, str) and before.get(k) != v}
    return changed


class _LoopBody(NamedTuple):
    """The ways out of a loop's body, the symbols that stand for what it changes, and the registers at its end."""

    edges: list[Edge]
    symbols: dict[int, str | Value]
    state: Registers


class _Run:
    """The execution of one function."""

    def __init__(self, program: InstructionBounds, function: AssemblyFunction, calls: list[tuple[str, int]]) -> None:
        self._program, self._function, self._calls = program, function, calls
        self._inner = function.loops
        self._order = list(function.order)
        self._words, self._changed = program.changes(function)
        self._undecided: list[Undecided] = []
        self._nested = 0  # loops within one another that run as often as data says

    def cost(self, state: Registers) -> int:
        """The most instructions from the beginning to any return."""
        returns = self._region(None, 0, state)
        if not returns:
            raise UnboundedError(f"{self._function.name} does not return")
        return max(edge.cost for edge in returns)

    def undecided_by(self, parameters: Mapping[int, str]) -> set[frozenset[str]]:
        """The ``parameters``, by symbol, that decide branches of which both ways counted."""
        every = {one.roots for one in self._undecided}
        return {frozenset(map(parameters.__getitem__, roots)) for roots in every if roots <= parameters.keys()}

    # -------------------------------------------------------------------------------------- regions
    def _region(self, loop: NaturalLoop | None, first: int, state: Registers) -> list[Edge]:
        """The ways out of a loop's body (those to its header among them), or of the function."""
        arrived: dict[int, tuple[int, Registers]] = {first: (0, state)}
        left: list[Edge] = []
        for block in self._order:
            if block not in arrived:
                continue
            cost, begin = arrived.pop(block)
            inside = self._inner.get(block)
            edges = self._block(block, begin) if inside is loop or block == first else self._loop(inside, begin)
            for edge in edges:
                edge.cost += cost
                stays = edge.target != RETURN and edge.target != first and (loop is None or edge.target in loop.blocks)
                if not stays:
                    left.append(edge)
                elif edge.target in arrived:
                    most, other = arrived[edge.target]
                    other.merge(edge.state)
                    arrived[edge.target] = max(most, edge.cost), other
                else:
                    arrived[edge.target] = edge.cost, edge.state
        return left

    def _block(self, number: int, state: Registers) -> list[Edge]:
        """The ways out of a block; where its condition is known, one."""
        self._program.step()
        block = self._function.blocks[number]
        branches = len(block.edges) > 1
        plain, guarded = _split(block.code) if branches else (block.code, [])
        cost = len(block.code)
        for one in plain:
            if one.name in ("dlstp", "wlstp"):
                state.elements = one.data
            if one.name in ("bl", "blx"):
                cost += self._call(number, one, state)
            else:
                state.execute(one)
        last = block.code[-1] if block.code else None
        if last and last.name == "b" and block.edges[0][1] == RETURN:
            cost += self._call(number, last, state)
        if not branches or last is None or block.edges[0][0] == "?":
            return [Edge(number, target, cost, state.copy()) for _, target in block.edges]
        (condition, target), (_, following) = block.edges
        flags = state.branch_flags(last)
        taken = state.copy()
        for one in guarded:
            (taken if one.condition == condition else state).execute(replace(one, condition=""))
        known = decided(condition, flags)
        if known is None and flags is not None and (roots := state.symbols.roots(flags.a, flags.b)) is not None:
            self._undecided.append(Undecided(number, flags, roots))
        both = ((condition, target, True, taken), (OTHERWISE[condition], following, False, state))
        return [Edge(number, to, cost, s, c, flags) for c, to, way, s in both if known in (None, way)]

    def _call(self, block: int, one: AssemblyInstruction, state: Registers) -> int:
        name = one.operands[0]
        cost, undecided = self._program.called(name, state)
        self._undecided += [Undecided(block, None, roots) for roots in undecided]
        self._calls.append((name, cost))
        state.called()
        return cost

    # ---------------------------------------------------------------------------------------- loops
    def _loop(self, loop: NaturalLoop | None, state: Registers) -> list[Edge]:
        """The ways out of a loop, with what all of its iterations cost."""
        assert loop is not None
        calls, undecided, blocks = len(self._calls), len(self._undecided), self._program.blocks
        counted: CountedLoop | None = None
        with suppress(UnboundedError):
            counted = self._counted(loop, state)
        del self._calls[calls:], self._undecided[undecided:]
        each = self._program.blocks - blocks
        if counted is None:
            return self._uncounted(loop, state)
        if counted.decidable and self._program.blocks + counted.iterations * each < _DETAIL:
            with suppress(UnboundedError):
                return self._executed(loop, state)
            del self._undecided[undecided:]
        self._undecided += counted.undecided
        return counted.edges

    def _uncounted(self, loop: NaturalLoop, state: Registers) -> list[Edge]:
        """A loop iteration by iteration; where data decides how often it runs, as often as it can."""
        most = self._program.most.get(self._function.name)
        if most is None:
            return self._executed(loop, state)
        calls, undecided = len(self._calls), len(self._undecided)
        with suppress(UnboundedError):
            return self._executed(loop, state.copy())
        del self._calls[calls:], self._undecided[undecided:]
        outer, self._nested = self._nested, 0
        one = self._iteration(loop, state)
        times, self._nested = most[min(self._nested, len(most) - 1)], max(outer, self._nested + 1)
        if one is None or one.state.read("sp") != state.read("sp"):
            raise UnboundedError(f"the loop of {self._function.name} whose iterations data decides moves the stack")
        each = max(edge.cost for edge in one.edges if edge.target == loop.header)
        left = [edge for edge in one.edges if edge.target != loop.header]
        for edge in left:
            edge.cost += times * each
            for name in one.symbols.values():
                edge.state.forget(name)
            edge.state.flags = None
        return left

    def _executed(self, loop: NaturalLoop, state: Registers) -> list[Edge]:
        """A loop iteration by iteration."""
        done, left, exits, open_ = 0, list[Edge](), self._exits(loop), 0
        for _ in range(_ITERATIONS):
            edges = self._region(loop, loop.header, state.copy())
            again = [edge for edge in edges if edge.target == loop.header]
            for edge in edges:
                edge.cost += done
            left += [edge for edge in edges if edge.target != loop.header]
            if not again:
                return left
            open_ = open_ + 1 if len(edges) - len(again) >= exits else 0
            if open_ == _OPEN:
                break
            done = max(edge.cost for edge in again)
            state = again[0].state
            for edge in again[1:]:
                state.merge(edge.state)
        labels = self._function.blocks[loop.header].labels
        raise UnboundedError(f"how often the loop at {', '.join(labels)} of {self._function.name} runs is not known")

    def _exits(self, loop: NaturalLoop) -> int:
        """How many edges leave a loop."""
        targets = (target for block in loop.blocks for _, target in self._function.blocks[block].edges)
        return sum(target not in loop.blocks for target in targets)

    def _counted(self, loop: NaturalLoop, state: Registers) -> CountedLoop | None:
        """A loop of which all iterations are alike; None: the iterations of this one are not known."""
        mark = len(self._undecided)
        one = self._iteration(loop, state)
        if one is None or one.state.read("sp") != state.read("sp"):
            return None
        iterations = Iterations(state, one.symbols, one.state)
        return iterations.counted(self._function, loop.header, one.edges, self._undecided[mark:])

    def _iteration(self, loop: NaturalLoop, state: Registers) -> _LoopBody | None:
        """One iteration, whichever it is: what changes begins with symbols.  None for a loop that never repeats."""
        words, mark = self._words[loop.header], len(self._undecided)
        base = state.read("sp")
        while True:
            begin, symbols = state.copy(), dict[int, str | Value]()
            begin.flags = None
            for name in (*self._changed[loop.header], *(plus(base, word) for word in words)):
                if name in begin.values and name != "sp":
                    fresh = begin.values[name] = state.symbols.root()
                    symbols[fresh[0]] = name
            before = dict(begin.values)
            del self._undecided[mark:]
            edges = self._region(loop, loop.header, begin.copy())
            again = [edge for edge in edges if edge.target == loop.header]
            if not again:
                return None
            end = again[0].state
            for edge in again[1:]:
                end.merge(edge.state)
            stale = {
                name[1] - base[1]
                for name, value in before.items()
                if not isinstance(name, str) and name[0] == base[0] and end.values.get(name) != value
            } - words
            if not stale:
                return _LoopBody(edges, symbols, end)
            words |= stale
