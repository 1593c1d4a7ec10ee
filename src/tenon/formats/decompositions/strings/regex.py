"""Regular expressions in RE2's syntax as automata over the bytes of UTF-8.

``compile`` parses a pattern, makes a nondeterministic automaton of it (Thompson's construction) and a deterministic
one of that (sets of states, with the previous character as context for ``^`` and ``\\b``).  As in RE2, classes such as
``\\w`` and the boundary ``\\b`` are those of ASCII, and ``$`` is the end of the text alone unless ``(?m)`` is set.
Source: R. Cox, "Regular Expression Matching: the Virtual Machine Approach" and "... in the Wild".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.formats.decompositions.strings.regex_syntax import (
    Alternatives,
    Assertion,
    Characters,
    Concatenation,
    PatternError,
    Ranges,
    RegexRepeat,
    Tree,
    parse,
)
from tenon.network.graph.graph import Array

MAX_STATES = 2000
"""States that an automaton may have; a table has a row for each."""

_MAX_PARTS = 50_000
"""States of the nondeterministic automaton: repetitions are copies."""

_BEGIN = "begin"
_WORD = "word"
_LINE = "line"
_OTHER = "other"
_END = "end"
"""The context before or after a position: nothing, a byte of a word, an end of line, another byte, nothing."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """``table[state, classes[byte]]`` is the next state; a text that ends in an accepted state matches.

    State 0 is the first.  Byte 0, the padding after the end of a text, has class 0, which keeps every state.
    """

    classes: Array
    table: Array
    accepted: Array

    def matches(self, text: str) -> bool:
        """Whether the full text matches."""
        state = 0
        for byte in text.encode():
            state = int(self.table[state, self.classes[byte]])
        return bool(self.accepted[state])


def compile(pattern: str) -> Automaton:
    """The automaton of a pattern.  Raises PatternError for one that is malformed, not supported or too large."""
    net = _Net()
    first = net.state()
    last = net.build(parse(pattern), first)
    return _Determined(net, first, last).automaton()


# ------------------------------------------------------------------------------- nondeterministic automaton
@dataclass
class _Net:
    """States are numbers; ``steps`` consume a byte of a range, ``free`` are epsilon transitions, ``asserted`` epsilon
    transitions with a condition."""

    steps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    asserted: list[list[tuple[str, int]]] = field(default_factory=list)

    def state(self) -> int:
        if len(self.steps) == _MAX_PARTS:
            raise PatternError("its repetitions are too large")
        self.steps.append([])
        self.free.append([])
        self.asserted.append([])
        return len(self.steps) - 1

    def build(self, tree: Tree, start: int) -> int:
        """Adds a tree after ``start``; returns the state after it."""
        if isinstance(tree, Concatenation):
            for part in tree.parts:
                start = self.build(part, start)
            return start
        if isinstance(tree, RegexRepeat):
            return self.repeat(tree, start)
        end = self.state()
        if isinstance(tree, Alternatives):
            for part in tree.parts:
                self.free[self.build(part, self.branch(start))].append(end)
        elif isinstance(tree, Assertion):
            self.asserted[start].append((tree.kind, end))
        else:
            self.characters(tree, start, end)
        return end

    def branch(self, start: int) -> int:
        new = self.state()
        self.free[start].append(new)
        return new

    def repeat(self, tree: RegexRepeat, start: int) -> int:
        for _ in range(tree.minimum):
            start = self.build(tree.part, start)
        if tree.maximum is None:
            loop = self.branch(start)
            self.free[self.build(tree.part, loop)].append(loop)
            return self.branch(loop)
        end = self.state()
        for _ in range(tree.maximum - tree.minimum):
            self.free[start].append(end)
            start = self.build(tree.part, start)
        self.free[start].append(end)
        return end

    def characters(self, tree: Characters, start: int, end: int) -> None:
        for low, high in tree.ranges:
            for spans in utf8_spans(low, high):
                at = start
                for i, (first, last) in enumerate(spans):
                    to = end if i == len(spans) - 1 else self.state()
                    self.steps[at].append((first, last, to))
                    at = to


def utf8_spans(low: int, high: int) -> Iterable[Ranges]:
    """Sequences of byte ranges that encode the characters from ``low`` to ``high``."""
    for edge in (0x7F, 0x7FF, 0xFFFF):  # the last characters of one, two and three bytes
        if low <= edge < high:
            yield from utf8_spans(low, edge)
            yield from utf8_spans(edge + 1, high)
            return
    if high > 0x7F:
        for bits in (6, 12, 18):  # all that share their first bytes have whole ranges behind them
            mask = (1 << bits) - 1
            if low >> bits == high >> bits:
                break
            if low & mask:
                yield from utf8_spans(low, low | mask)
                yield from utf8_spans((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from utf8_spans(low, (high & ~mask) - 1)
                yield from utf8_spans(high & ~mask, high)
                return
    yield tuple(zip(_utf8(low), _utf8(high), strict=True))


def _utf8(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------------------- deterministic automaton
_Key = tuple[frozenset[int], str]
"""The states that an automaton may be in, before assertions, and what was read last."""


class _Determined:
    """The deterministic automaton of an NFA, by the subset construction."""

    def __init__(self, net: _Net, first: int, last: int) -> None:
        self.net, self.last = net, last
        kinds = {kind for row in net.asserted for kind, _ in row}
        self.word_boundaries, self.lines = bool(kinds & {"word", "inside"}), bool(kinds & {"line_begin", "line_end"})
        self.first: _Key = (frozenset([first]), _BEGIN)
        self.classes, self.samples = self._classes()

    def _classes(self) -> tuple[Array, list[int]]:
        """Equivalence classes of bytes that the NFA distinguishes, and one byte of each."""
        edges = {1, 256}
        for row in self.net.steps:
            for low, high, _ in row:
                edges |= {low, high + 1}
        if self.word_boundaries:
            edges |= {48, 58, 65, 91, 95, 96, 97, 123}
        if self.lines:
            edges |= {10, 11}
        inner = sorted(e for e in edges if 1 <= e <= 256)
        classes = np.searchsorted(inner, np.arange(256), side="right").astype(np.uint8)
        return classes, [0, *inner[:-1]]

    def context(self, byte: int) -> str:
        if self.lines and byte == 10:
            return _LINE
        is_word = self.word_boundaries and (chr(byte).isalnum() or byte == 95) and byte < 128
        return _WORD if is_word else _OTHER

    def closure(self, states: Iterable[int], before: str, behind: str) -> set[int]:
        """The epsilon closure between these two contexts."""
        reached, todo = set[int](), list(states)
        while todo:
            state = todo.pop()
            if state not in reached:
                reached.add(state)
                todo += self.net.free[state]
                todo += [to for kind, to in self.net.asserted[state] if _holds(kind, before, behind)]
        return reached

    def follow(self, key: _Key, byte: int) -> _Key:
        context = self.context(byte)
        states = self.closure(key[0], key[1], context)
        reached = {to for s in states for low, high, to in self.net.steps[s] if low <= byte <= high}
        return frozenset(reached), context if reached else _OTHER

    def automaton(self) -> Automaton:
        numbers, order, rows = {self.first: 0}, [self.first], list[list[int]]()
        for key in order:
            row = [numbers[key]]
            for byte in self.samples[1:]:
                after = self.follow(key, byte)
                if after not in numbers:
                    if len(order) == MAX_STATES:
                        raise PatternError(f"its automaton has more than {MAX_STATES} states")
                    numbers[after] = len(order)
                    order.append(after)
                row.append(numbers[after])
            rows.append(row)
        accepted = [self.last in self.closure(states, before, _END) for states, before in order]
        return Automaton(self.classes, np.array(rows, np.int32), np.array(accepted))


def _holds(kind: str, before: str, behind: str) -> bool:
    if kind == "begin":
        return before == _BEGIN
    if kind == "end":
        return behind == _END
    if kind == "line_begin":
        return before in (_BEGIN, _LINE)
    if kind == "line_end":
        return behind in (_END, _LINE)
    return ((before == _WORD) != (behind == _WORD)) == (kind == "word")


def literal(text: Sequence[int]) -> Automaton:
    """Finds a text's occurrences, from the left and without overlap: the state behind each is the accepted one.

    The automaton of Knuth, Morris and Pratt, restarted after each occurrence.
    """
    length, known = len(text), sorted(set(text))
    classes = np.zeros(256, np.uint8)
    classes[1:] = 1
    for i, byte in enumerate(known):
        classes[byte] = i + 2
    table = np.zeros((length + 1, len(known) + 2), np.int32)
    table[:, 0] = np.arange(length + 1)
    for state in range(length + 1):
        read = list(text[: state % length])
        for i, byte in enumerate(known):
            seen = [*read, byte]
            table[state, i + 2] = next(n for n in range(len(seen), -1, -1) if seen[len(seen) - n :] == list(text[:n]))
    return Automaton(classes, table, np.arange(length + 1) == length)
