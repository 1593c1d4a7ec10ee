"""Basic blocks and loops of the functions in an assembly file of clang's for Arm's T32 instruction set (Thumb).

Loops are natural loops: a back edge leads to a block that dominates it (Aho, Lam, Sethi, Ullman: Compilers, 9.6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

_PAIRS = (("eq", "ne"), ("hs", "lo"), ("mi", "pl"), ("vs", "vc"), ("hi", "ls"), ("ge", "lt"), ("gt", "le"))
INVERSE = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
"""Conditions, each with the one that holds where it does not."""
RETURN = -1
"""The target of an edge that leaves the function."""

_LABEL = re.compile(r"^([A-Za-z_.$][\w.$]*|\d+):$")
_INSTRUCTION = re.compile(r"^\t([a-z][a-z0-9_.]*)(?:\t(.*))?$")
_OPERANDS = re.compile(r"\[[^\]]*\]!?|\{[^}]*\}|[^,\s][^,]*")
_WORD = re.compile(r"^\t\.long\t(-?\w+)$")
_ALIGN = re.compile(r"^\t\.p2align\t(\d+)")
_ALIAS = re.compile(r"^([\w.$]+) = ([\w.$]+)$", re.MULTILINE)
_TABLE = re.compile(r"\.LBB\w+")


class UnboundedError(Exception):
    """Control flow of which no bound is known, and why."""


@dataclass(frozen=True)
class AssemblyInstruction:
    """``name`` is the mnemonic without width and condition, ``data`` what follows its first dot (a data type)."""

    name: str
    data: str
    condition: str
    operands: tuple[str, ...]


@dataclass
class BasicBlock:
    """Instructions without a branch but the last.  ``edges`` are (condition, number of the block): the last one,
    without condition, is taken where no other is; a condition "" is always true."""

    labels: list[str] = field(default_factory=list)
    code: list[AssemblyInstruction] = field(default_factory=list)
    edges: list[tuple[str, int]] = field(default_factory=list)


@dataclass(eq=False)
class NaturalLoop:
    """A natural loop: its header, its blocks (those of loops inside, too) and the loop around it."""

    header: int
    blocks: set[int]
    parent: NaturalLoop | None = None


@dataclass
class AssemblyFunction:
    """The blocks of a function, the first one its beginning, and the words of its constant pool by label."""

    name: str
    blocks: list[BasicBlock]
    words: Mapping[str, int]

    @cached_property
    def order(self) -> dict[int, int]:
        """Blocks that are reached, in reverse postorder: number to position."""
        done: list[int] = []
        seen = {0}
        waiting: list[tuple[int, Iterator[int]]] = [(0, self._next(0))]
        while waiting:
            block, targets = waiting[-1]
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    waiting.append((target, self._next(target)))
                    break
            else:
                done.append(block)
                waiting.pop()
        return {block: i for i, block in enumerate(reversed(done))}

    def _next(self, block: int) -> Iterator[int]:
        return (target for _, target in self.blocks[block].edges if target != RETURN)

    @cached_property
    def dominators(self) -> dict[int, int]:
        """The immediate dominator of each block but the first (Cooper, Harvey, Kennedy: A Simple, Fast Dominance
        Algorithm)."""
        sources: dict[int, list[int]] = {block: [] for block in self.order}
        for block in self.order:
            for target in self._next(block):
                sources[target].append(block)
        nearest = {0: 0}
        changed = True
        while changed:
            changed = False
            for block in list(self.order)[1:]:
                known = [source for source in sources[block] if source in nearest]
                best = known[0]
                for source in known[1:]:
                    best = self._common(nearest, best, source)
                if nearest.get(block) != best:
                    nearest[block], changed = best, True
        return nearest

    def _common(self, nearest: Mapping[int, int], a: int, b: int) -> int:
        while a != b:
            while self.order[a] > self.order[b]:
                a = nearest[a]
            while self.order[b] > self.order[a]:
                b = nearest[b]
        return a

    def dominates(self, above: int, block: int) -> bool:
        """Whether every way to ``block`` leads through ``above``."""
        while block not in (above, 0):
            block = self.dominators[block]
        return block == above

    @cached_property
    def loops(self) -> dict[int, NaturalLoop]:
        """The innermost loop around each block.  Raises UnboundedError for a cycle with two entries."""
        by_header: dict[int, NaturalLoop] = {}
        sources: dict[int, list[int]] = {block: [] for block in self.order}
        for block, i in self.order.items():
            for target in self._next(block):
                sources[target].append(block)
                if self.order[target] <= i:
                    if not self.dominates(target, block):
                        raise UnboundedError(f"a cycle of {self.name} has two entries")
                    by_header.setdefault(target, NaturalLoop(target, {target})).blocks.add(block)
        for loop in by_header.values():
            waiting = list(loop.blocks - {loop.header})
            while waiting:
                fresh = set(sources[waiting.pop()]) - loop.blocks
                loop.blocks |= fresh
                waiting += fresh
        inner: dict[int, NaturalLoop] = {}
        for loop in sorted(by_header.values(), key=lambda one: -len(one.blocks)):
            loop.parent = inner.get(loop.header)
            inner |= dict.fromkeys(loop.blocks, loop)
        return inner


def functions(text: str) -> dict[str, AssemblyFunction]:
    """The functions of an assembly file."""
    bodies: dict[str, list[str]] = {}
    lines: list[str] = []
    kinds = set(re.findall(r"^\t\.type\t([\w.$]+),%function$", text, re.MULTILINE))
    for raw in text.splitlines():
        line = re.split(r"\s*@", raw)[0].rstrip()
        if (label := _LABEL.match(line)) and label[1] in kinds:
            lines = bodies[label[1]] = []
        elif line.startswith("\t.size\t"):
            lines = []
        elif line:
            lines.append(line)
    made = {name: _function(name, lines) for name, lines in bodies.items()}
    return made | {name: made[same] for name, same in _ALIAS.findall(text) if same in made}


def _function(name: str, lines: Sequence[str]) -> AssemblyFunction:
    """The blocks of a function."""
    blocks, words = [BasicBlock(), BasicBlock()], dict[str, int]()  # nothing leads back to the first one
    tables: dict[str, set[str]] = {}
    ahead: list[str] = []  # conditions of the instructions after an "it"
    label = ""
    for line in lines:
        if match := _LABEL.match(line):
            label = match[1]
            if not label.startswith((".Lfunc", ".LCPI", ".LJTI")):
                if blocks[-1].code:
                    blocks.append(BasicBlock())
                blocks[-1].labels.append(label)
        elif word := _WORD.match(line):
            with_label = words.setdefault(label, 0)
            if not with_label and re.fullmatch(r"-?\d+", word[1]):
                words[label] = int(word[1])
        elif align := _ALIGN.match(line):  # bytes that are filled with instructions, two or four at a time
            blocks[-1].code += [AssemblyInstruction("nop", "", "", ())] * ((1 << int(align[1]) >> 1) - 1)
        elif line.startswith(("\t.byte", "\t.short", "\t.long")):
            tables.setdefault(label, set()).update(_TABLE.findall(line.split("-")[0]))
        elif match := _INSTRUCTION.match(line):
            one = _instruction(match[1], match[2] or "", ahead)
            blocks[-1].code.append(one)
            if is_branch(one):
                blocks.append(BasicBlock())
    if not blocks[-1].code:
        blocks.pop()
    made = AssemblyFunction(name, blocks, words)
    _connect(made, set().union(*tables.values()) if tables else set())
    return made


def _instruction(mnemonic: str, operands: str, ahead: list[str]) -> AssemblyInstruction:
    name, _, data = mnemonic.partition(".")
    condition = ahead.pop(0) if ahead else ""
    if condition and name.endswith(condition):
        name = name.removesuffix(condition)
    elif re.fullmatch(r"it[te]*", name):
        same = operands.strip()
        ahead += [same if letter != "e" else INVERSE[same] for letter in name[1:]]
    elif name[0] == "b" and name[1:] in INVERSE:
        name, condition = "b", name[1:]
    elif name == "le" and "," not in operands:  # without a counter
        name = "b"
    kept = ".".join(part for part in data.split(".") if part not in ("w", "n"))
    return AssemblyInstruction(name, kept, condition, tuple(o.strip() for o in _OPERANDS.findall(operands)))


def is_branch(one: AssemblyInstruction) -> bool:
    """Whether an instruction may continue elsewhere; calls come back."""
    if one.name in ("b", "bx", "cbz", "cbnz", "tbb", "tbh", "le", "letp", "wls", "wlstp"):
        return True
    if one.name in ("pop", "ldm", "ldmia"):
        return "pc" in one.operands[-1]
    return one.name in ("mov", "ldr", "add") and one.operands[0] == "pc"


def _connect(function: AssemblyFunction, tables: AbstractSet[str]) -> None:
    """Fill in the edges."""
    numbers = {label: i for i, block in enumerate(function.blocks) for label in block.labels}
    for i, block in enumerate(function.blocks):
        last = block.code[-1] if block.code else None
        following = i + 1 if i + 1 < len(function.blocks) else RETURN
        if last is None or not is_branch(last):
            block.edges = [("", following)]
        elif tables and (last.name in ("tbb", "tbh") or last.operands[0] == "pc"):
            block.edges = [("?", numbers[label]) for label in sorted(tables)]
        else:
            target = _target(function, numbers, last, i)
            condition = {"cbz": "eq", "cbnz": "ne", "le": "loop", "letp": "loop", "wls": "eq", "wlstp": "eq"}.get(
                last.name, last.condition
            )
            block.edges = [(condition, target)] + ([("", following)] if condition else [])


def _target(function: AssemblyFunction, numbers: Mapping[str, int], last: AssemblyInstruction, i: int) -> int:
    """The block that a branch leads to."""
    label = last.operands[-1]
    if last.name in ("bx", "pop", "ldm", "ldmia"):
        return RETURN
    if last.name in ("mov", "ldr", "add", "tbb", "tbh"):
        raise UnboundedError(f"{function.name} branches to a computed address")
    if local := re.fullmatch(r"(\d+)([bf])", label):
        near = [
            n for n, block in enumerate(function.blocks) if local[1] in block.labels and (n <= i) == (local[2] == "b")
        ]
        return max(near) if local[2] == "b" else min(near)
    return numbers.get(label, RETURN)  # a tail call
