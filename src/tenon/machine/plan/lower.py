"""From a planned graph to a program: kernels, their arguments, and the placement of every buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tenon.errors import InternalError, Problem, UnsupportedError
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.needed import CutShort
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.kernels.halo import halo
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.zeros import zeros
from tenon.machine.plan.arena import Block, bound, fullest, place
from tenon.machine.plan.buffer_sharing import share
from tenon.machine.plan.clip import clip
from tenon.machine.plan.demand import clip_nodes, output_extents
from tenon.machine.plan.layouts import assign_layouts
from tenon.machine.plan.loops import (
    copy_next_states,
    place_states,
    prepare_loops,
    states_of,
    states_of_body,
    unchanged_states,
    with_bodies,
)
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.machine.plan.masked_operands import read_masked
from tenon.machine.plan.masked_outputs import fill_outputs
from tenon.machine.plan.node_info import facts
from tenon.machine.plan.order import orders, schedule
from tenon.machine.plan.program import (
    ALIGNMENT,
    Advance,
    Branch,
    Call,
    Carried,
    Item,
    Memory,
    Place,
    Port,
    Program,
    Region,
    Repeat,
    SizeCheck,
)
from tenon.machine.plan.turned_rows import read_turned
from tenon.machine.plan.weights import Weighed, aligned
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import LARGEST_BUFFER, TensorType
from tenon.network.ops.base import Arg, Input, Output, Scratch, Step, Weights
from tenon.network.ops.branch import If
from tenon.network.ops.clipped import Clipped
from tenon.network.ops.scan import Scan
from tenon.network.ops.size_check import Bounded


def plan(
    graph: Graph, setting: Setting, name: str, weights: Weighed | None = None, *, try_orders: bool = False
) -> Program:
    """Lay out, order, place and lower ``graph``, which is changed.

    Several programs may share ``weights``: each has those that were placed before it and its own.  With ``try_orders``
    the order of execution is that with the shortest arena, not the one with the fewest bytes alive before sharing.
    Raises UnsupportedError listing every node that cannot be compiled.
    """
    check(graph, setting)
    prepare_loops(graph)
    fill_outputs(graph)
    for part in with_bodies(graph):
        read_masked(part)
        read_turned(part)
    _lay_out(graph, setting)
    if try_orders:
        _reorder_by_arena(graph, setting)
    program = _Lowering(graph, setting, weights or Weighed()).program(name)
    every = (node for part in with_bodies(graph) for node in part)
    return replace(program, error=max((operator(n).error(site(n, setting)) for n in every), default=0.0))


def _lay_out(graph: Graph, setting: Setting) -> None:
    """The layouts of all values, how far they are needed, and the order of execution."""
    outputs = {id(part): output_extents(part) for part in with_bodies(graph)}
    unchanged = unchanged_states(graph)
    for part in with_bodies(graph):
        needed = outputs[id(part)]
        if setting.machine.launch is None:
            clip_nodes(part, needed)
        assign_layouts(part, setting, unchanged.get(id(part), frozenset()))
        check_sizes(part)
        if setting.machine.launch is None:
            clip_nodes(part, needed, setting)  # and conversions of layouts
        schedule(part, setting.threads)
    for part in with_bodies(graph):
        copy_next_states(part, setting)


def _reorder_by_arena(graph: Graph, setting: Setting) -> None:
    """Keep the order of which the placed arena is shortest."""
    candidates, lengths = orders(graph), list[int]()
    for order in candidates if len(candidates) > 1 else []:
        graph.reorder(order)
        lengths.append(_Lowering(graph, setting, Weighed()).program("").memory.activations)
    if lengths:
        graph.reorder(candidates[lengths.index(min(lengths))])


def check(graph: Graph, setting: Setting) -> None:
    """Raise UnsupportedError naming every node whose operator does not support it and every tensor too large."""
    check_sizes(graph)
    problems = []
    for node in (node for part in with_bodies(graph) for node in part):
        if why := operator(node).supported(site(node, setting)):
            shapes = ", ".join("-" if v is None else str(v.type) for v in node.inputs)
            problems.append(Problem(f"{node.origin} [{node.op.name}({shapes})]", why))
    if problems:
        raise UnsupportedError(graph.source or graph.name, problems)


def check_sizes(graph: Graph) -> None:
    """Raise UnsupportedError naming every tensor that generated code could not address."""
    problems = [
        Problem(
            str(value.producer.origin) if value.producer else f"'{value.name}'",
            f"{value.type} takes {value.type.nbytes} bytes; a tensor must have less than {LARGEST_BUFFER}",
            "use a smaller shape",
        )
        for value in dict.fromkeys((*graph.inputs, *graph.values()))
        if not value.type.addressable
    ]
    if problems:
        raise UnsupportedError(graph.source or graph.name, problems)


_LARGE = 1 << 18
"""Bytes of weights that are placed as soon as a node is lowered."""


@dataclass(frozen=True)
class _Lowered:
    """A kernel and its arguments; ``clears`` when it only zeroes a halo.  ``cut`` is as in ``Call``."""

    kernel: Kernel
    args: tuple[Arg | Place, ...]
    clears: bool
    cut: CutShort | None = None


_Owner = Value | tuple[Node, str]
"""The owner of a block of the arena: a value, or the scratch memory of a node under a name."""


class _Lowering:
    """A graph with its memory: the whole one, or a body of a node inside of ``loops``."""

    def __init__(
        self, graph: Graph, setting: Setting, weights: Weighed, places: dict[Value, Place] | None = None, depth: int = 0
    ) -> None:
        self.graph = graph
        self.setting = setting
        self.storage = share(graph, setting)
        self.constants = weights
        self.places: dict[Value, Place] = {} if places is None else places
        self.depth = depth
        self.mutable = 0
        self.given: set[Value] = set()  # the memory of a body's inputs and outputs, which the graph around it has
        self.span: dict[Node, tuple[int, int]] = {}  # the numbers of the nodes that run while a node does
        self.lowered: dict[Node, list[_Lowered]] = {}
        self.bodies: dict[Node, list[_Lowering]] = {}

    def program(self, name: str) -> Program:
        initial = self.graph.initial
        self.place_own_states()
        inputs = [replace(self.port(v), initial=initial.get(v.name, ())) for v in self.graph.inputs]
        outputs = [self.port(v) for v in self.graph.outputs]
        running = self.prepare()
        blocks, owners = self.blocks()
        offsets, length = place(blocks)
        scratch: dict[tuple[Node, str], Place] = {}
        for number, (owner, offset) in enumerate(zip(owners, offsets, strict=True), 1):
            home = Place(Region.ACTIVATIONS, offset, block=number)
            if isinstance(owner, Value):
                self.places[owner] = home
            else:
                scratch[owner] = home
        items = tuple(self.items(scratch))
        memory = Memory(self.constants.size, self.mutable, length, bound(blocks))
        largest = running[fullest(blocks)] if blocks else None
        return Program(
            name,
            tuple(inputs),
            tuple(outputs),
            items,
            tuple(self.constants.constants),
            memory,
            self.setting.threads,
            largest=f"{largest.origin.layer or largest.output.name} ({largest.op.name})" if largest else "",
            assumed=tuple(self.graph.assumed.items()),
            launch=self.setting.machine.launch,
            spaces=self.setting.machine.spaces,
        )

    def place_own_states(self) -> None:
        """Place what the graph keeps from run to run: at the beginning of the mutable region, so that programs with the
        same states have them at the same places."""
        states = states_of(self.graph)
        place_states(self.graph, states, self.storage, self.setting)
        for state, number in states:
            self.port(state)
            following = self.graph.outputs[number]
            if following is not state:
                self.places[self.storage.root(following)[0]] = self.places[state]

    def prepare(self, first: int = 0) -> list[Node]:
        """Lower all nodes and number them from ``first`` on.  Returns them by number; a node with bodies stands before
        each of them and behind it."""
        running: list[Node] = []
        for node in self.graph:
            start = first + len(running)
            running.append(node)
            if node.bodies:
                inside = self.bodies[node] = [self.lowering(node, body) for body in node.bodies]
                for inner in inside:
                    running += [*inner.prepare(first + len(running)), node]
                self.lowered[node] = self.cleared_rows(node)
            elif node not in self.storage.silent:
                self.lowered[node] = self.steps(node)
            self.span[node] = start, first + len(running) - 1
        return running

    def lowering(self, node: Node, body: Graph) -> _Lowering:
        """The lowering of a body of a node."""
        depth = self.depth + isinstance(node.op, Scan)
        inner = _Lowering(body, self.setting, self.constants, self.places, depth)
        inner.given = {inner.storage.root(v)[0] for v in (*body.inputs, *body.outputs)}
        if isinstance(node.op, Scan):
            place_states(body, states_of_body(node, node.op), inner.storage, self.setting)
        return inner

    def items(self, scratch: Mapping[tuple[Node, str], Place]) -> Iterator[Item]:
        """The calls, loops, branches and checks of all nodes; the checks of sizes of inputs come first."""
        early = {n: n.op for n in self.graph if isinstance(n.op, Bounded) and n.input(0) in self.graph.inputs}
        yield from dict.fromkeys((*self.input_checks(), *(self.size_check(node, op) for node, op in early.items())))
        for node in self.graph:
            if isinstance(node.op, Scan):
                yield from self.calls(node, self.lowered[node], scratch)
                yield self.repeat(node, node.op, scratch)
            elif isinstance(node.op, If):
                yield self.branch(node, scratch)
            elif node in self.lowered:
                yield from self.calls(node, self.lowered[node], scratch)
            if isinstance(node.op, Bounded) and node not in early:
                yield self.size_check(node, node.op)

    def repeat(self, node: Node, op: Scan, scratch: Mapping[tuple[Node, str], Place]) -> Repeat:
        """A loop.  Its states lie where the node's outputs do, which are copied there before it."""
        (body,), (inner,) = node.bodies, self.bodies[node]
        pairs = zip(node.inputs, node.outputs[: op.states], strict=False)
        if any(v is None or self.storage.root(v)[0] is not self.storage.root(w)[0] for v, w in pairs):
            raise InternalError(f"{node.origin}: a state of the loop has no place of its own")
        states = [self.place(v) for v in node.outputs[: op.states]]
        slices = [self.slice(op, v, inside) for v, inside in self.sliced(node, op)]
        alike = [self.place(node.input(i)) for i in range(op.states + op.slices, len(node.inputs))]
        cut, results = slices[: op.slices], slices[op.slices :]
        inner.places.update(zip(body.inputs, (*states, *cut, *alike), strict=True))
        for value, home in zip(body.outputs, (*states, *results), strict=True):
            inner.places[inner.storage.root(value)[0]] = home
        carried = (Carried(p, v.type.nbytes) for p, v in zip(states, node.outputs, strict=False))
        items, counter = tuple(inner.items(scratch)), scratch[node, "counter"]
        if op.counted:
            return Repeat(states[0], items, counter, tuple(carried), op.count)
        return Repeat(op.count, items, counter, tuple(carried))

    def input_checks(self) -> list[SizeCheck]:
        """The checks of the sizes that are inputs, whether anything reads them or not."""
        sizes = self.graph.sizes
        return [SizeCheck(self.place(v), sizes[v.name], v.name) for v in self.graph.inputs if v.name in sizes]

    def size_check(self, node: Node, op: Bounded) -> SizeCheck:
        """The check of a size, which is read where the node's input lies."""
        return SizeCheck(self.place(node.input(0)), op.range, node.input(0).name)

    def cleared_rows(self, node: Node) -> list[_Lowered]:
        """Kernels that zero the stacked results of a loop that may end early."""
        if not isinstance(node.op, Scan) or not node.op.counted:
            return []
        rows = enumerate(node.outputs[node.op.states :], node.op.states)
        return [_Lowered(zeros(v.type.dtype, v.type.size), (Output(i),), False) for i, v in rows if v.type.size]

    def branch(self, node: Node, scratch: Mapping[tuple[Node, str], Place]) -> Branch:
        """A choice.  Each body writes its outputs where the node's outputs lie."""
        given = [self.place(node.input(i)) for i in range(len(node.inputs))]
        results = [self.place(v) for v in node.outputs]
        for body, inner in zip(node.bodies, self.bodies[node], strict=True):
            inner.places.update(zip(body.inputs, given[1:], strict=True))
            for value, home in zip(body.outputs, results, strict=True):
                inner.places[inner.storage.root(value)[0]] = home
        holds, fails = (tuple(inner.items(scratch)) for inner in self.bodies[node])
        return Branch(given[0], (fails, holds))

    def sliced(self, node: Node, op: Scan) -> Iterator[tuple[Value, Value]]:
        """The operands and results that are cut into slices, and what is a slice of each in the body."""
        (body,), i = node.bodies, op.states
        operands = [node.input(i + j) for j in range(op.slices)]
        yield from zip(operands, body.inputs[i : i + op.slices], strict=True)
        yield from zip(node.outputs[i:], body.outputs[i:], strict=True)

    def slice(self, op: Scan, whole: Value, inside: Value) -> Place:
        home, step = self.place(whole), inside.type.nbytes
        first, step = ((op.count - 1) * step, -step) if op.reverse else (0, step)
        return replace(home, offset=home.offset + first, advances=(*home.advances, Advance(self.depth, step, op.count)))

    def port(self, value: Value) -> Port:
        """Placement in the mutable region of a graph input or output, and of the values that share its memory."""
        root, offset = self.storage.root(value)
        if root not in self.places:
            self.places[root] = Place(Region.MUTABLE, self.mutable)
            self.mutable = aligned(self.mutable + root.type.nbytes)
        return Port(value.name, value.type, self.places[root].offset + offset)

    def place(self, value: Value) -> Place:
        if value.data is not None:
            return Place(Region.CONSTANT, self.constants.offset(value.type.layout.pack(value.data)))
        root, offset = self.storage.root(value)
        if root.data is not None:
            return Place(Region.CONSTANT, self.place(root).offset + offset)
        home = self.places[root]
        return replace(home, offset=home.offset + offset)

    def steps(self, node: Node) -> list[_Lowered]:
        here = site(node, self.setting, self.storage.placed[node])
        lowered, filled = operator(node).lower(here), operator(node).fills_halo(here)
        clears = [
            Step(halo(Image.of(v.type), self.setting.machine, v.type.layout.fill), (Output(i),))
            for i, v in enumerate(node.outputs)
            if has_halo(v.type) and v not in self.storage.kept and not filled
        ]
        return [
            self.with_large_placed(self.clipped(node, step, clears=i < len(clears)))
            for i, step in enumerate([*clears, *lowered])
        ]

    def with_large_placed(self, step: _Lowered) -> _Lowered:
        """The step with its large weights placed, so that those of all nodes are not in memory at once."""
        places = {
            i: Place(Region.CONSTANT, self.constants.offset(arg.data))
            for i, arg in enumerate(step.args)
            if isinstance(arg, Weights) and arg.data.nbytes >= _LARGE
        }
        return replace(step, args=tuple(places.get(i, arg) for i, arg in enumerate(step.args))) if places else step

    def clipped(self, node: Node, step: Step, *, clears: bool) -> _Lowered:
        """The step without what is not needed of the node's results."""
        if not isinstance(node.op, Clipped):
            return _Lowered(step.kernel, tuple(step.args), clears)
        operands = [node.output.type if v is None else v.type for v in node.inputs]
        types, narrow = [v.type for v in node.outputs], self.setting.machine.lanes > 1
        kernel, args, cut = clip(node.op, operands, types, step.kernel, step.args, narrow=narrow)
        return _Lowered(kernel, args, clears, cut)

    def blocks(self) -> tuple[list[Block], list[_Owner]]:
        """Lifetimes of all blocks in the arena.  What lives outside of a loop that uses it lives in all of the loop."""
        lives: dict[Value, tuple[int, int]] = {}
        for value in self.graph.values():
            root, _ = self.storage.root(value)
            if value.producer is None or root in self.places or root in self.given or root.data is not None:
                continue
            spans = [self.span[node] for node in (value.producer, *value.uses)]
            first, last = spans[0][0], max(end for _, end in spans)
            a, b = lives.get(root, (first, last))
            lives[root] = min(a, first), max(b, last)
        blocks = [Block(aligned(v.type.nbytes), *life) for v, life in lives.items()]
        owners: list[_Owner] = list(lives)
        for node, lowerings in self.bodies.items():
            if isinstance(node.op, Scan):
                blocks.append(Block(ALIGNMENT, *self.span[node]))
                owners.append((node, "counter"))
            for inner in lowerings:
                more, inside = inner.blocks()
                blocks += more
                owners += inside
        for node, steps in self.lowered.items():
            scratch: dict[str, int] = {}
            for s in steps:
                for arg in s.args:
                    if isinstance(arg, Scratch):
                        size = aligned(arg.nbytes) * self.copies(arg, s.kernel)
                        scratch[arg.name] = max(scratch.get(arg.name, 0), size)
            for name, nbytes in scratch.items():
                blocks.append(Block(nbytes, *self.span[node]))
                owners.append((node, name))
        return blocks, owners

    def calls(self, node: Node, steps: list[_Lowered], scratch: Mapping[tuple[Node, str], Place]) -> list[Call]:
        op = operator(node)
        types = [None if v is None else v.type for v in node.inputs]
        macs = op.macs(types, [v.type for v in node.outputs])
        layer = node.origin.layer or node.output.name
        main = max((i for i, s in enumerate(steps) if not s.clears), default=-1)
        known = facts(node)
        return [
            Call(
                s.kernel,
                tuple(self.argument(node, s.kernel, a, scratch) for a in s.args),
                layer,
                op.name,
                macs if i == main else 0,
                known,
                s.clears,
                s.cut,
            )
            for i, s in enumerate(steps)
        ]

    def copies(self, scratch: Scratch, kernel: Kernel) -> int:
        """The number of threads that need a copy of such memory at once: at most the number of work items."""
        if not scratch.per_thread:
            return 1
        shared = linearise(kernel)
        return min(self.setting.threads, shared.length if shared else 1)

    def argument(
        self, node: Node, kernel: Kernel, arg: Arg | Place, scratch: Mapping[tuple[Node, str], Place]
    ) -> Place:
        if isinstance(arg, Place):
            return arg
        if isinstance(arg, Input):
            return self.place(node.input(arg.i))
        if isinstance(arg, Output):
            return self.place(node.outputs[arg.i])
        if isinstance(arg, Weights):
            return Place(Region.CONSTANT, self.constants.offset(arg.data))
        home = scratch[node, arg.name]
        copies = self.copies(arg, kernel)
        return replace(home, stride=aligned(arg.nbytes), copies=copies) if copies > 1 else home


def has_halo(type: TensorType) -> bool:
    return any(before or after for before, after in type.layout.halo)
