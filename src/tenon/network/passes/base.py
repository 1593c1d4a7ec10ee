"""Passes: rewrites as data, and the one engine that applies them.

A rule is a pattern and a function.  The function gets a ``Match``, adds nodes through it and returns what takes
the place of the matched node's output, or a string with the reason why it declines, or None if it does not apply.
The engine inserts the replacement, removes dead nodes, and repeats until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tenon.errors import InternalError, TenonError
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph, Node, Operation, Origin, Value
from tenon.network.graph.verify import verify as check
from tenon.network.graph.writer import Names
from tenon.network.passes.patterns import Bound, IsOp, find, sole_reader

Log = Callable[[str], None]
Passed = Callable[[str, Graph, int], None]
"""Called after a pass with its name, the graph, and the number of changes."""

Result = Value | Sequence[Value | None] | str | None

MOST_SWEEPS = 200
"""Sweeps after which rules that still apply are assumed not to terminate."""


def silent(_: str) -> None:
    """A log that drops everything."""


def unseen(name: str, graph: Graph, changes: int) -> None:
    """Does nothing after a pass."""


class Match:
    """A match of a pattern, and the methods to build its replacement."""

    def __init__(self, graph: Graph, root: Node, bound: Bound, names: Names) -> None:
        self.graph, self.root, self.bound, self.names = graph, root, bound, names
        self.made: list[Node] = []
        self.fresh: set[int] = set()

    def value(self, name: str) -> Value:
        return self.bound.values[name]

    def node(self, name: str) -> Node:
        return self.bound.nodes[name]

    def add(self, op: Operation | str, *inputs: Value | None, origin: Origin | None = None) -> Value:
        """The output of a new node, placed before the matched one; its origin is the matched node's unless given."""
        op = make(op) if isinstance(op, str) else op
        name = self.names.fresh(f"{self.root.output.name}_{op.name.lower()}")
        node = self.graph.add(op, inputs, [name], origin or self.root.origin, before=self.root)
        self.made.append(node)
        self.fresh.add(id(node.output))
        return node.output

    def add_all(self, op: Operation, *inputs: Value | None, count: int) -> tuple[Value, ...]:
        """The first ``count`` outputs of a new node."""
        names = [self.names.fresh(f"{self.root.output.name}_{op.name.lower()}") for _ in range(count)]
        node = self.graph.add(op, inputs, names, self.root.origin, before=self.root)
        self.made.append(node)
        self.fresh.update(id(v) for v in node.outputs)
        return node.outputs

    def constant(self, stem: str, data: Array) -> Value:
        value = self.graph.constant(self.names.fresh(stem), data)
        self.fresh.add(id(value))
        return value

    def sole(self, value: Value) -> bool:
        """Whether one node alone reads the value."""
        return sole_reader(value, self.graph)


@dataclass(frozen=True)
class Rule:
    """``rewrite`` is tried wherever ``pattern`` matches."""

    name: str
    pattern: IsOp
    rewrite: Callable[[Match], Result]


def rule(pattern: IsOp) -> Callable[[Callable[[Match], Result]], Rule]:
    """Decorator: a function becomes the rule of its name."""
    return lambda rewrite: Rule(rewrite.__name__, pattern, rewrite)


Gone = Callable[[Operation], bool]
"""True for operators that must not remain."""


def _none(op: Operation) -> bool:
    return False


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline.

    ``level`` is the least level of optimisation at which it runs; ``ensures`` describes what holds after it, and
    ``leaves`` is true for operators that must not remain (checked when verifying).
    """

    name: str
    run: Callable[[Graph, Log], int]
    level: int
    ensures: str
    leaves: Gone = _none
    rules: tuple[Rule, ...] = ()


def rules(name: str, *listed: Rule, level: int, ensures: str, leaves: Gone = _none) -> Pass:
    """A pass that applies rules until none applies."""
    return Pass(name, lambda graph, log: apply(graph, listed, log), level, ensures, leaves, listed)


def run(graph: Graph, step: Pass, log: Log = silent, *, verify: bool = False) -> int:
    """Run one pass; returns the number of changes.  Raises InternalError naming the pass if it breaks a rule."""
    changes = step.run(graph, log)
    if changes:
        log(f"{step.name}: {changes} change{'s' if changes > 1 else ''}")
    if verify:
        check(graph, step.name)
        left = [node for node in graph if step.leaves(node.op)]
        if left:
            raise InternalError(f"pass '{step.name}' left {left[0].op} at {left[0].origin}")
    return changes


def make(name: str, **attributes: Any) -> Operation:
    """An operator by its name.  Raises InternalError if there is none."""
    operator = ops.lookup(name)
    if operator is None:
        raise InternalError(f"a pass wants to make a '{name}', which is not an operator")
    return operator(**attributes)


def attribute(node: Node, name: str) -> Any:
    """An attribute of a node whose operator is known by its name only."""
    return getattr(node.op, name)


# ------------------------------------------------------------------------------------------- the engine
def apply(graph: Graph, listed: Sequence[Rule], log: Log = silent) -> int:
    """Apply rules to every node until nothing changes; returns the number of changes."""
    table: dict[str, list[Rule]] = {}
    names = Names(graph)
    count = 0
    for _ in range(MOST_SWEEPS):
        changes = 0
        for node in graph:
            if node in graph:
                name = node.op.name
                if name not in table:
                    table[name] = _rules_for(name, listed)
                changes += _visit(graph, node, table[name], names, log)
        count += changes
        if not changes:
            return count
    raise InternalError(f"rules {', '.join(r.name for r in listed)} do not come to an end")


def _rules_for(name: str, listed: Sequence[Rule]) -> list[Rule]:
    """The rules to try on an operator of that name: those for it or for a trait, then those for any."""
    general = [one for one in listed if "*" in one.pattern.ops and one.pattern.where is None]
    return [*(one for one in listed if one not in general and {name, "*"} & one.pattern.ops), *general]


def _visit(graph: Graph, node: Node, listed: Sequence[Rule], names: Names, log: Log) -> bool:
    for one in listed:
        bound = find(one.pattern, node, graph)
        if bound is None:
            continue
        match = Match(graph, node, bound, names)
        try:
            result = one.rewrite(match)
        except (TenonError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InternalError(f"rule '{one.name}' failed on {node} at {node.origin}: {error!r}") from error
        done = not isinstance(result, str) and result is not None and _put(match, result)
        if isinstance(result, str):
            log(f"{one.name} declines {node.origin}: {result}")
        for made in reversed(match.made):
            drop_dead(graph, made)
        if done:
            return True
    return False


def _put(match: Match, result: Value | Sequence[Value | None]) -> bool:
    values = (result,) if isinstance(result, Value) else result
    origin, changed = match.root.origin, False
    for old, new in zip(match.root.outputs, values, strict=False):
        if new is not None and match.graph.used(old):
            if (old.type.dtype, old.type.shape) != (new.type.dtype, new.type.shape):
                raise InternalError(f"{old} at {origin} would be replaced by {new}")
            changed |= substitute(match.graph, old, new, fresh=id(new) in match.fresh)
    drop_dead(match.graph, match.root)
    return changed


def substitute(graph: Graph, old: Value, new: Value, *, fresh: bool = False) -> bool:
    """Let everything read ``new`` instead of ``old``; the names of graph outputs stay.  False if nothing changed.

    Where ``new`` cannot take the name of an output, because it is an input or another output, the output stays
    with ``old``.
    """
    returned = graph.is_output(old)
    if returned and new.constant and not fresh:
        new, fresh = Value(old.name, new.type, new.data), True
    named = new in graph.inputs or graph.is_output(new)
    if returned and named and not fresh:
        readers = list(dict.fromkeys(old.uses))
        for node in readers:
            graph.rewire(node, tuple(new if v is old else v for v in node.inputs))
        return bool(readers)
    graph.replace(old, new)
    if returned or fresh:
        old.name, new.name = new.name, old.name
    return True


def drop_dead(graph: Graph, node: Node) -> None:
    """Remove a node that nothing reads, and then whatever only it read."""
    todo = [node]
    while todo:
        node = todo.pop()
        if node in graph and not any(graph.used(v) for v in node.outputs):
            producers = [v.producer for v in node.inputs if v is not None and v.producer is not None]
            graph.remove(node)
            todo += producers
