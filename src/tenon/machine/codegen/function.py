"""A function being printed, and which of its lines are needed.

Unrolled copies drop whatever their tests exclude, so what other lines computed for it may be left without
a reader. A function is printed whole, then only the lines that its effects need are kept: no compiler has to warn of
an unused variable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenon.machine.kernel_ir.index import Atom, Quotient, Var
from tenon.machine.kernel_ir.loops import Buffer, Ref

Terms = tuple[tuple[Atom, int], ...]


@dataclass(slots=True, eq=False)
class CodeLine:
    """A line of a function, kept if it has a side effect or defines a name that a kept line uses."""

    text: str
    takes: frozenset[object] = frozenset()
    gives: object = None  # None: it has an effect
    cells: tuple[tuple[object, str], ...] = ()  # a declaration of registers: only those that are needed

    def shown(self, needed: set[object]) -> str:
        """The text; empty if what it gives is not needed."""
        if not self.cells:
            return self.text if self.gives is None or self.gives in needed else ""
        names = ", ".join(name for key, name in self.cells if key in needed)
        return f"{self.text} {names};" if names else ""


@dataclass(frozen=True)
class PrintedFunction:
    """A function of a unit.  ``text`` begins with its parameter list; ``calls`` are the functions of the same unit that
    it calls, in the order of their first calls, and ``helpers`` the helper functions that it calls."""

    name: str
    text: str
    comment: str
    calls: tuple[str, ...] = ()
    helpers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Helper:
    """A helper function of a unit, and the helpers that it calls."""

    text: str
    calls: frozenset[str]


class HelperName(str):
    """Among what a line takes: the helper function of that name."""

    __slots__ = ()


def helpers_in(takes: Iterable[object]) -> frozenset[str]:
    """The helper functions among what lines take."""
    return frozenset(str(name) for name in takes if isinstance(name, HelperName))


class Scope:
    """The inside of a loop (or of a function, when ``var`` is None): lines, and the pointers fixed there."""

    def __init__(self, var: Var | None = None) -> None:
        self.var = var
        self.head: list[CodeLine] = []
        self.lines: list[CodeLine] = []
        self.pointers: dict[tuple[Buffer, Terms], tuple[str, int]] = {}
        self.quotients: dict[Quotient, str] = {}


class Function:
    """A function being printed: its open scopes, names given so far, and what it takes from its caller."""

    def __init__(self, outlined: bool) -> None:
        self.outlined = outlined
        self.scopes = [Scope()]
        self.serial: dict[str, int] = {}
        self.vars: dict[Var, str] = {}
        self.pointers: dict[tuple[Buffer, Terms], tuple[str, int]] = {}
        self.arrays: dict[Buffer, str] = {}  # the names of arrays, in a language without pointers
        self.made: dict[Ref | Var | Buffer, object] = {}  # the latest copy of each value, bound variable and array
        self.taken: set[object] = set()  # by the line being printed
        self.needed: set[object] = set()
        self.calls: dict[str, None] = {}  # functions of the unit, in the order of their first calls
        self.depth = 1

    def fresh(self, name: str) -> str:
        n = self.serial[name] = self.serial.get(name, 0) + 1
        return name if n == 1 else f"{name}_{n}"

    def kept(self, lines: list[CodeLine]) -> list[str]:
        """The text of the lines that the function's effects need; ``needed`` is what those give."""
        givers: dict[object, list[CodeLine]] = {}
        for line in lines:
            if line.gives is not None:
                givers.setdefault(line.gives, []).append(line)
        waiting = [line for line in lines if line.gives is None and not line.cells]
        while waiting:
            for key in waiting.pop().takes - self.needed:
                self.needed.add(key)
                waiting += givers.get(key, ())
        return [text for line in lines if (text := line.shown(self.needed))]
