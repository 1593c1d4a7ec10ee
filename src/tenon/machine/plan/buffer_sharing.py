"""Values that share memory: views of a value, parts of a concatenation, results written over an operand.

Every value either has storage of its own or lies in another's at an offset.  A group of values that share
storage lives from the first time that one of them is written to the last time that one of them is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.network.graph.graph import Graph, Node, Value


@dataclass
class Storage:
    """``inside[v]`` is (the value in whose memory v is stored, byte offset); ``placed[node]`` are the inputs that are
    already stored in the memory of the node's output; ``silent`` nodes run no code."""

    inside: dict[Value, tuple[Value, int]] = field(default_factory=dict)
    placed: dict[Node, frozenset[int]] = field(default_factory=dict)
    silent: set[Node] = field(default_factory=set)
    kept: set[Value] = field(default_factory=set)  # written over an operand, whose halo is already zero

    def root(self, value: Value) -> tuple[Value, int]:
        """The value that owns the memory, and the offset in it; long ways there are walked once."""
        path, offset = list[Value](), 0
        while value in self.inside:
            path.append(value)
            value, _ = self.inside[value]
        for inner in reversed(path):
            offset += self.inside[inner][1]
            self.inside[inner] = value, offset
        return value, offset


def share(graph: Graph, setting: Setting, *, in_place: bool = True) -> Storage:
    """Decide all sharing, for the graph's present order of nodes."""
    return _Sharing(graph, setting).run(in_place)


class _Sharing:
    def __init__(self, graph: Graph, setting: Setting) -> None:
        self.graph = graph
        self.setting = setting
        self.storage = Storage()
        self.members: dict[Value, list[Value]] = {}
        self.step = {node: i for i, node in enumerate(graph)}
        self.fed = {*graph.inputs, *graph.constants()}
        self.out = set(graph.outputs)

    def run(self, in_place: bool) -> Storage:
        for node in self.graph:
            self.views(node)
        if in_place:
            for node in self.graph:
                self.overwrite(node)
        return self.storage

    def group(self, root: Value) -> list[Value]:
        return self.members.setdefault(root, [root])

    def join(self, value: Value, home: Value, offset: int) -> None:
        root, _ = self.storage.root(home)
        members = self.members.pop(value, [value])
        self.group(root).extend(members)
        self.storage.inside[value] = home, offset

    def may_join(self, value: Value, home: Value, offset: int) -> bool:
        """Whether ``value``, which owns its memory, can be stored in ``home`` from ``offset`` on."""
        if value in self.storage.inside or value in self.fed:
            return False
        root, base = self.storage.root(home)
        if root is value:
            return False
        outputs = [v for v in (*self.group(value), *self.group(root)) if v in self.out]
        if not outputs:
            return True
        # A graph output has a buffer of its own, which it shares only as a whole, and with no other output.
        whole = base + offset == 0 and value.type.nbytes == root.type.nbytes
        inside_output = outputs == [root] and value not in self.out
        return len(outputs) == 1 and root not in self.fed and (whole or inside_output)

    def views(self, node: Node) -> None:
        aliases = operator(node).alias(site(node, self.setting))
        placed, shown = set(), set()
        for alias in aliases:
            source, result = node.input(alias.input), node.outputs[alias.output]
            if alias.inside == "input":
                if self.may_join(result, source, alias.offset):
                    self.join(result, source, alias.offset)
                    if alias.written:  # the node runs, and finds the input in place
                        placed.add(alias.input)
                        self.storage.kept.add(result)
                    else:
                        shown.add(alias.output)
            elif self.may_join(source, result, alias.offset):
                self.join(source, result, alias.offset)
                placed.add(alias.input)
        if shown and len(shown) < len(node.outputs):
            for i in shown:  # the node runs after all, and writes every output
                self.leave(node.outputs[i])
            shown = set()
        self.storage.placed[node] = frozenset(placed)
        inputs = {i for i, v in enumerate(node.inputs) if v is not None}
        if shown or (placed and placed == inputs and not node.bodies):
            self.storage.silent.add(node)

    def leave(self, value: Value) -> None:
        root, _ = self.storage.root(value)
        self.members[root].remove(value)
        del self.storage.inside[value]

    def overwrite(self, node: Node) -> None:
        if node in self.storage.silent:
            return
        result = node.output
        free = operator(node).in_place(site(node, self.setting))
        for i in free:
            operand = node.inputs[i]
            if operand is None or operand.constant or operand.type.layout != result.type.layout:
                continue
            if any(v is operand and j not in free for j, v in enumerate(node.inputs)):
                continue  # read twice, once by an operand that cannot be overwritten
            same = operand.type.nbytes == result.type.nbytes and operand.type.dtype is result.type.dtype
            if same and self.dies(operand, node) and self.may_join(result, operand, 0):
                self.join(result, operand, 0)
                self.storage.kept.add(result)
                self.storage.placed[node] |= {i}
                self.forget_dead(result, node)
                return

    def forget_dead(self, value: Value, node: Node) -> None:
        """Leave only those members in the group of ``value`` that later nodes have to respect."""
        root, _ = self.storage.root(value)
        now = self.step[node]
        self.members[root] = [v for v in self.group(root) if v is root or v is value or self.matters(v, now)]

    def matters(self, value: Value, now: int) -> bool:
        """Whether a value is an output, or is written or read after step ``now``."""
        steps = [*(self.step[user] for user in value.uses)]
        steps += [] if value.producer is None else [self.step[value.producer]]
        return value in self.out or any(step > now for step in steps)

    def dies(self, operand: Value, node: Node) -> bool:
        """Whether this node is the last to read anything stored in the memory of ``operand``."""
        root, start = self.storage.root(operand)
        if root in self.fed:
            return False
        end = start + operand.type.nbytes
        for other in self.group(root):
            _, at = self.storage.root(other)
            if at >= end or at + other.type.nbytes <= start:
                continue
            if other is not operand and other in self.out:
                return False
            if operand in self.out or any(self.step[user] > self.step[node] for user in other.uses):
                return False
            if any(user is node and v is not operand for user in other.uses for v in user.inputs if v is other):
                return False
            if other.producer is not None and self.step[other.producer] > self.step[node]:
                return False  # a part of a concatenation that later nodes complete
        return True
