"""A program within a budget of RAM: inputs, outputs, activations and scratch, without the stack.

If the best order of execution alone does not fit, a prefix of the network is computed in patches (``passes.patches``).
Of all prefixes and heights of patches whose program fits, the one with the fewest additional multiply-accumulates is
taken.  Whether it fits is known after planning, which takes a while; a lower bound, from the sizes of operands and
results, spares most candidates that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tenon.errors import InputError
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting, operator
from tenon.machine.plan.program import Patches, Program
from tenon.machine.plan.weights import Weighed
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.patch import Span
from tenon.network.passes.patches import Prefix, patched, prefixes

Progress = Callable[[str], None]


def plan_within(
    graph: Graph, setting: Setting, name: str, weights: Weighed, budget: int, progress: Progress = lambda stage: None
) -> Program:
    """The program of ``graph``, which is not changed, with at most ``budget`` bytes of RAM.

    Raises InputError, naming the layer that does not fit and the least budget that suffices; UnsupportedError as
    ``plan``.
    """
    whole = plan(graph.copy(), setting, name, try_orders=True)
    if whole.memory.peak <= budget:
        return plan(graph.copy(), setting, name, weights, try_orders=True)
    search = _RamSearch(graph, setting, budget, progress, whole)
    chosen = search.run()
    if chosen is None:
        raise InputError(_refusal(graph, budget, search.least))
    made = plan(chosen.graph(graph), setting, name, weights, try_orders=True)
    return replace(made, patches=chosen.described())


def _refusal(graph: Graph, budget: int, least: Program) -> str:
    memory = least.memory
    ports = f"{memory.mutable} of them for inputs and outputs"
    if memory.mutable >= budget:
        remedy = "inputs and outputs alone exceed it: give them narrower types or smaller shapes (data_types, shapes)"
    else:
        remedy = "allow that much, or use a smaller input"
    return (
        f"{graph.source or graph.name}: needs at least {memory.peak} bytes of RAM ({ports}), at layer {least.largest}; "
        f"the budget is {budget}: {remedy}"
    )


@dataclass(frozen=True)
class _Candidate:
    """A prefix in patches of ``rows`` rows."""

    prefix: Prefix
    rows: int
    extra_macs: int
    bound: int

    def graph(self, graph: Graph) -> Graph:
        return patched(graph, len(self.prefix.nodes), self.rows)

    def described(self) -> Patches:
        prefix, last = self.prefix, self.prefix.last
        name = last.origin.layer or last.output.name
        return Patches(len(list(prefix.spans(self.rows))), self.rows, len(prefix.nodes), name, self.extra_macs)


class _RamSearch:
    """``least`` is the program with the least RAM of all that were planned."""

    def __init__(self, graph: Graph, setting: Setting, budget: int, progress: Progress, whole: Program) -> None:
        self.graph, self.setting, self.budget, self.progress = graph, setting, budget, progress
        self.least, self.ports = whole, whole.memory.mutable
        self.planned = 0

    def run(self) -> _Candidate | None:
        """The best candidate that fits."""
        best: _Candidate | None = None
        groups = [self.candidates(prefix) for prefix in prefixes(self.graph)]
        for group in sorted(groups, key=lambda group: min((c.extra_macs for c in self.possible(group)), default=0)):
            possible = [c for c in self.possible(group) if best is None or c.extra_macs < best.extra_macs]
            best = self.first_that_fits(possible) or best
        if best is None:
            self.find_least([c for group in groups for c in group])
        return best

    def possible(self, group: Sequence[_Candidate]) -> list[_Candidate]:
        return [c for c in group if c.bound <= self.budget]

    def first_that_fits(self, group: Sequence[_Candidate]) -> _Candidate | None:
        """The first candidate of one prefix that fits, from high patches to low ones: lower patches take less
        memory."""
        if not group or not self.fits(group[-1]):
            return None
        return group[bisect_left(group, True, 0, len(group) - 1, key=self.fits)]

    def find_least(self, group: Sequence[_Candidate]) -> None:
        """Plan every candidate that may need less than those planned until now."""
        for candidate in sorted(group, key=lambda c: c.bound):
            if candidate.bound >= self.least.memory.peak:
                return
            self.fits(candidate)

    def fits(self, candidate: _Candidate) -> bool:
        self.planned += 1
        self.progress(f"plan in patches, candidate {self.planned}")
        program = plan(candidate.graph(self.graph), self.setting, "", try_orders=True)
        if program.memory.peak < self.least.memory.peak:
            self.least = program
        return program.memory.peak <= self.budget

    def candidates(self, prefix: Prefix) -> list[_Candidate]:
        """Patches of every height, the highest first."""
        rest = self.graph.nodes[len(prefix.nodes) :]
        tail = max((self.bytes_at(node) for node in rest), default=0)
        heights = sorted({-(-prefix.extent // count) for count in range(2, prefix.extent + 1)}, reverse=True)
        tried = (self.candidate(prefix, rows, tail) for rows in heights)
        return [c for c in tried if c is not None]

    def candidate(self, prefix: Prefix, rows: int, tail: int) -> _Candidate | None:
        macs, most = 0.0, tail
        result = 0 if self.graph.is_output(prefix.last.output) else prefix.last.output.type.nbytes
        for number, span in enumerate(prefix.spans(rows)):
            patches = prefix.patches(span)
            if patches is None:
                return None
            for node, (here, patch) in patches.items():
                macs += _macs(node) * _share(node.output, here)
                most = max(most, (result if number else 0) + self.bytes_at(node, here, patch.reads))
        extra = round(macs) - sum(map(_macs, prefix.nodes))
        return _Candidate(prefix, rows, extra, most + self.ports)

    def bytes_at(self, node: Node, span: Span | None = None, reads: Sequence[Span | None] = ()) -> int:
        """The least bytes of operands and results of a node, or of a patch of it, beside inputs and outputs."""
        outputs = [_bytes(v, span) for v in node.outputs if not self.graph.is_output(v)]
        spans = reads or (None,) * len(node.inputs)
        read = {v: _bytes(v, s) for v, s in zip(node.inputs, spans, strict=True) if v is not None and v.producer}
        inputs = [size for v, size in read.items() if not self.graph.is_output(v)]
        if operator(node).moves:  # a view, or a concatenation in place
            return max(sum(inputs), sum(outputs))
        shared = max((size for size in inputs if size in outputs), default=0)  # perhaps in place
        return sum(inputs) + sum(outputs) - shared


def _share(value: Value, span: Span | None) -> float:
    return 1.0 if span is None else span.length / value.type.dims[span.axis]


def _bytes(value: Value, span: Span | None) -> int:
    return round(value.type.nbytes * _share(value, span))


def _macs(node: Node) -> int:
    types = [None if v is None else v.type for v in node.inputs]
    return operator(node).macs(types, [v.type for v in node.outputs])
