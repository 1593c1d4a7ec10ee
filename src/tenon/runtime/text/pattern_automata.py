"""Regular expressions as automata over classes of characters.

An automaton gives the match that a backtracking matcher finds first: its states are lists of places in the expression,
the preferred one first, and a place behind a match that is not preferred to it is dropped (R. Cox, "Regular expression
matching: the virtual machine approach", 2009).  What follows a place that looks ahead is decided with the next
character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tenon.errors import Problem, UnsupportedError
from tenon.network.graph.dtype import Array
from tenon.runtime.text.pattern_parser import Behind, Consecutive, ManyTimes, Node, OneOf, Take, parse_pattern

ACCEPT = 0x8000
"""In an entry: the match ends in front of the character."""
DEAD = 0x7FFF
"""In an entry, instead of a state: nothing longer matches."""
_MAX_STATES = 4000


class _Instruction(NamedTuple):
    """``take`` a character of a set and go on; ``ahead`` of one, go on; ``split``: at both places, the first one
    preferred; ``match``."""

    kind: str
    set: int = 0
    first: int = 0
    second: int = 0
    end: bool = False


@dataclass(frozen=True)
class Automata:
    """Automata over the same ``count`` classes: ``classes`` u8[code points] of each character, numbered from 0, and
    one more for the end of the text; ``tables`` u16[states, count + 1] of each."""

    classes: Array
    tables: tuple[Array, ...]
    count: int


def automata(patterns: Sequence[str]) -> Automata:
    """The automata of some regular expressions.  Raises UnsupportedError for what they cannot have."""
    sets = list[Array]()
    programs = [_program(parse_pattern(pattern), sets) for pattern in patterns]
    keys = np.zeros(0x110000, np.uint64)
    if len(sets) > 64:
        raise _too_large()
    for number, characters in enumerate(sets):
        keys |= characters.astype(np.uint64) << np.uint64(number)
    kinds, classes = np.unique(keys, return_inverse=True)
    if len(kinds) > 255:
        raise _too_large()
    members = [[bool(int(kind) >> number & 1) for number in range(len(sets))] for kind in kinds]
    tables = tuple(_table(program, members) for program in programs)
    return Automata(classes.astype(np.uint8), tables, len(kinds))


def _too_large() -> UnsupportedError:
    return UnsupportedError("tokenizer", [Problem("tokenizer", "its regular expressions are too large for tables")])


def _program(tree: Node, sets: list[Array]) -> list[_Instruction]:
    program = list[_Instruction]()

    def number(characters: Array) -> int:
        for i, other in enumerate(sets):
            if np.array_equal(other, characters):
                return i
        sets.append(characters)
        return len(sets) - 1

    def emit(node: Node) -> None:
        match node:
            case Take(characters):
                program.append(_Instruction("take", number(characters)))
            case Behind(characters, end):
                program.append(_Instruction("ahead", number(characters), end=end))
            case Consecutive(parts):
                for part in parts:
                    emit(part)
            case OneOf(parts):
                choose(parts)
            case ManyTimes(part, least, most):
                repeat(part, least, most)

    def choose(parts: Sequence[Node]) -> None:
        ends = []
        for part in parts[:-1]:
            at = len(program)
            program.append(_Instruction("split"))
            emit(part)
            ends.append(len(program))
            program.append(_Instruction("split"))
            program[at] = _Instruction("split", first=at + 1, second=len(program))
        emit(parts[-1])
        for end in ends:
            program[end] = _Instruction("split", first=len(program), second=len(program))

    def repeat(part: Node, least: int, most: int | None) -> None:
        for _ in range(least):
            emit(part)
        starts = []
        for _ in range(0 if most is None else most - least):
            starts.append(len(program))
            program.append(_Instruction("split"))
            emit(part)
        if most is None:
            at = len(program)
            program.append(_Instruction("split"))
            emit(part)
            program.append(_Instruction("split", first=at, second=at))
            starts.append(at)
        for at in starts:
            program[at] = _Instruction("split", first=at + 1, second=len(program))

    emit(tree)
    return [*program, _Instruction("match")]


def _table(program: Sequence[_Instruction], members: Sequence[Sequence[bool]]) -> Array:
    """The table of an automaton; ``members`` says which sets each class of characters is in."""
    states: dict[tuple[int, ...], int] = {(0,): 0}
    rows = list[list[int]]()
    for state in _growing(states):
        row = []
        for inside in [*members, None]:
            following, accepted = _step(program, state, inside)
            number = states.setdefault(following, len(states)) if following else DEAD
            row.append(number | (ACCEPT if accepted else 0))
        rows.append(row)
        if len(states) > _MAX_STATES:
            raise _too_large()
    return np.array(rows, np.uint16)


def _growing(states: dict[tuple[int, ...], int]) -> Iterator[tuple[int, ...]]:
    """The keys of a dict, also those that are added meanwhile."""
    at = 0
    while at < len(states):
        yield list(states)[at]
        at += 1


def _step(
    program: Sequence[_Instruction], state: Sequence[int], inside: Sequence[bool] | None
) -> tuple[tuple[int, ...], bool]:
    """The places behind a character in the sets ``inside`` (None: the end), and whether a match ends in front of it."""
    following, seen = dict[int, None](), set[int]()
    todo = list(reversed(state))
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        instruction = program[at]
        if instruction.kind == "match":
            return tuple(following), True
        if instruction.kind == "split":
            todo += [instruction.second, instruction.first]
        elif instruction.kind == "ahead":
            if instruction.end if inside is None else inside[instruction.set]:
                todo.append(at + 1)
        elif inside is not None and inside[instruction.set]:
            following[at + 1] = None
    return tuple(following), False
