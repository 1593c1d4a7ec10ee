"""Assign a layout to every value, and convert where producer and consumer differ.

In order of execution, each operator states the layouts it requires of its inputs, given those they have, and the
layouts of its outputs.  A reader that requires another block size gets a ``Reorder`` (one per value and kind, shared by
all readers).  Halos need no conversion: a value gets the largest that any reader requires, and its producer leaves room
for it.
"""

from __future__ import annotations

from dataclasses import replace

from tenon.errors import InternalError
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.machine.plan.stored_blocks import narrower, reorders
from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.graph.types import ROW_MAJOR, Halo, Layout, LayoutKind
from tenon.network.ops.move import Reorder

_Kind = tuple[LayoutKind, int]  # and the block, which a Reorder changes; halos only grow


def assign_layouts(graph: Graph, setting: Setting, unchanged: frozenset[int] = frozenset()) -> None:
    """Set the layout of every value of ``graph``; its inputs and outputs stay row-major.

    Every output gets a buffer of its own, except those numbered in ``unchanged``, which are inputs and stay there.
    """
    _Assignment(graph, setting).run(unchanged)


def _kind(layout: Layout) -> _Kind:
    return layout.kind, layout.block


def _bare(kind: _Kind, rank: int) -> Layout:
    """The layout of that kind without a halo, for a tensor of that rank."""
    return ROW_MAJOR if kind[0] is LayoutKind.ROW_MAJOR else Layout(kind[1], _zero(rank))


def _zero(rank: int) -> Halo:
    return ((0, 0),) * max(0, rank - 2)


class _Assignment:
    def __init__(self, graph: Graph, setting: Setting) -> None:
        self.graph = graph
        self.setting = setting
        self.converted: dict[tuple[Value, _Kind], Value] = {}
        self.copies: dict[tuple[Value, int], Value] = {}
        self.constants: dict[tuple[Value, Layout], Value] = {}
        self.halos: dict[Value, Halo] = {}
        self.fills: dict[Value, int] = {}

    def run(self, unchanged: frozenset[int]) -> None:
        for node in self.graph:
            self.visit(node)
        for i, value in enumerate(self.graph.outputs):
            if i not in unchanged:
                self.graph.outputs[i] = self.outward(value, i)
        self.leave_out()
        for image, block in narrower(self.graph, self.setting):
            image.type = image.type.with_layout(replace(image.type.layout, block=block))
        self.unify()
        for value in self.graph.values():
            layout = value.type.layout
            if not value.constant and layout.image:
                halo = self.halos.get(value, _zero(value.type.rank))
                value.type = value.type.with_layout(replace(layout, halo=halo, fill=self.fills.get(value, 0)))

    def visit(self, node: Node) -> None:
        want = operator(node).layouts(site(node, self.setting))
        inputs = list(node.inputs)
        for i, layout in enumerate(want.inputs):
            value = inputs[i]
            if value is not None and layout is not None:
                inputs[i] = self.convert(value, layout, node)
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            self.graph.rewire(node, inputs)
        for value, layout in zip(node.outputs, want.outputs, strict=True):
            value.type = value.type.with_layout(_bare(_kind(layout), value.type.rank))

    def convert(self, value: Value, layout: Layout, before: Node | None) -> Value:
        """``value`` in a layout of that kind, with at least that halo."""
        if value.data is not None:
            return self.constant(value, layout)
        kind = _kind(layout)
        if _kind(value.type.layout) != kind:
            value = self.reordered(value, kind, before)
        if layout.image:
            have = self.halos.get(value, _zero(value.type.rank))
            need = layout.halos(value.type.rank)
            if need == _zero(value.type.rank):
                return value
            if self.fills.setdefault(value, layout.fill) != layout.fill:
                value = self.refilled(value, layout.fill, before)
                have = self.halos.get(value, _zero(value.type.rank))
            self.halos[value] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(have, need, strict=True))
        return value

    def constant(self, value: Value, layout: Layout) -> Value:
        if value.type.layout == layout or (value.type.layout.in_order and layout.in_order):
            return value
        if (value, layout) not in self.constants:
            self.constants[value, layout] = self.graph.constant(value.name, value.array, layout)
        return self.constants[value, layout]

    def refilled(self, value: Value, fill: int, before: Node | None) -> Value:
        """A copy for readers whose halo holds another number: convolutions of one tensor with other zero points."""
        if (value, fill) not in self.copies:
            copy = self.copied(value, _kind(value.type.layout), before)
            self.copies[value, fill], self.fills[copy] = copy, fill
        return self.copies[value, fill]

    def reordered(self, value: Value, kind: _Kind, before: Node | None) -> Value:
        if (value, kind) not in self.converted:
            self.converted[value, kind] = self.copied(value, kind, before)
        return self.converted[value, kind]

    def copied(self, value: Value, kind: _Kind, before: Node | None) -> Value:
        layout = _bare(kind, value.type.rank)
        origin = value.producer.origin if value.producer else Origin(self.graph.source, value.name)
        node = self.graph.add(
            Reorder(layout.block, layout.halo),
            [value],
            [f"{value.name}{layout}"],
            replace(origin, type="Reorder"),
            before=before,
        )
        node.output.type = node.output.type.with_layout(layout)
        return node.output

    def outward(self, value: Value, i: int) -> Value:
        """A graph output: row-major and computed, so that it has a buffer of its own."""
        if value.type.layout.image:
            return self.convert(value, ROW_MAJOR, None)
        fed = value.constant or any(v is value for v in self.graph.inputs)
        if fed or any(v is value for v in self.graph.outputs[:i]):
            return self.graph.add(Reorder(), [value], [f"{value.name}_{i}"], Origin(type="Copy")).output
        return value

    def leave_out(self) -> None:
        """The conversions whose result producers can store."""
        for node, image, result in reorders(self.graph, self.setting):
            fills = {self.fills[v] for v in (image, result) if v in self.fills}
            if len(fills) > 1:
                continue
            halos = [self.halos.get(v, _zero(image.type.rank)) for v in (image, result)]
            self.halos[image] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(*halos, strict=True))
            self.fills |= dict.fromkeys((image,), *fills) if fills else {}
            image.type = image.type.with_layout(_bare(_kind(result.type.layout), image.type.rank))
            self.graph.replace(result, image)
            self.graph.remove(node)

    def unify(self) -> None:
        """Values that are adjacent in one buffer (parts of a concatenation or split), or of which one should be written
        over the other, have equal halos.  An operand that is edited is copied where the halos hold other numbers."""
        pairs, edited_pairs, copies = [], set[tuple[Value, Value]](), {id(copy) for copy in self.copies.values()}
        for node in self.graph:
            if id(node.outputs[0]) in copies:
                continue
            for alias in operator(node).alias(site(node, self.setting)):
                a, b = node.input(alias.input), node.outputs[alias.output]
                if _kind(a.type.layout) == _kind(b.type.layout) and a.type.layout.image:
                    pairs.append((a, b))
            edited = node.inputs[0] if operator(node).edits else None
            if edited is not None and edited.type.layout.image and edited.uses == [node]:
                pairs.append((edited, node.output))
                edited_pairs.add(pairs[-1])
        changed = True
        while changed:
            changed = False
            for a, b in pairs:
                ha, hb = (self.halos.get(v, _zero(v.type.rank)) for v in (a, b))
                fills = {self.fills[v] for v in (a, b) if v in self.fills}
                if ha != hb and not (len(fills) > 1 and (a, b) in edited_pairs):
                    both = tuple((max(p, r), max(q, s)) for (p, q), (r, s) in zip(ha, hb, strict=True))
                    self.halos[a] = self.halos[b] = both
                    if len(fills) > 1:
                        raise InternalError(f"halos of {sorted(fills)} meet in {a} and {b}, which share memory")
                    self.fills[a] = self.fills[b] = next(iter(fills))
                    changed = True
