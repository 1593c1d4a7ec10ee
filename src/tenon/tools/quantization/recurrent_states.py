"""Values that LSTM and GRU cells compute between their products, and that these read: 16 bits, as in TFLite's LSTM."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.activation import HardSigmoid, Sigmoid, Tanh
from tenon.network.ops.pointwise import Add, Mul, Sub
from tenon.network.ops.traits import is_product
from tenon.tools.quantization.placement import root, rounded_result

_SIGMOIDS = (HardSigmoid, Sigmoid)
_PAIRS = (Add, Mul, Sub)
GATES_RANGE = (2.0**-12 - 8, 8 - 2.0**-12)
"""Range of the arguments of sigmoid and tanh: TFLite's, with the scale 2**-12, so that all gates have the same tables.
Beyond it both are less than a step of 8 bits from their limits."""


def is_of_gates(value: Value) -> bool:
    """Whether only sigmoids and tanhs read a tensor."""
    readers = _readers(value)
    return bool(readers) and all(isinstance(node.op, Sigmoid | Tanh) for node in readers)


def recurrent_states(graph: Graph) -> set[str]:
    """LSTM cell states, the gate products added to them and gate pre-activations, except tensors that a weighted
    operator reads; by name.

    Every step rounds them, and the errors of all steps add up.  Gates themselves keep 8 bits.
    """
    search = _GateSearch(graph)
    for node in graph:
        parts = [_gated(v) for v in node.inputs if v is not None] if isinstance(node.op, Add) else []
        if len(parts) == 2 and all(parts):
            search.state(node, [part for part in parts if part is not None])
    return {value.name for value in search.states}


class _GateSearch:
    """From the sums of products of gates back to the products with weights."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.read = {root(node.input(0)) for node in graph if is_product(node)}
        self.states, self.passed = set[Value](), set[Value]()

    def state(self, node: Node, parts: list[Node]) -> None:
        """A new state, and the gate that an LSTM's output is multiplied by."""
        self.take(node)
        for part in parts:
            self.take(part)
            for value in part.inputs:
                self.factor(value)
        ends = [reader.output for reader in _readers(rounded_result(self.graph, node)) if isinstance(reader.op, Tanh)]
        for reader in (reader for end in ends for reader in _readers(end) if isinstance(reader.op, Mul)):
            for value in reader.inputs:
                self.factor(value)

    def take(self, node: Node) -> None:
        if (result := rounded_result(self.graph, node)) not in self.read:
            self.states.add(result)

    def factor(self, value: Value | None) -> None:
        """An operand of a product with a gate: a gate, 1 less a gate, a tanh, or the state before."""
        node = None if value is None else root(value).producer
        if node is None or not isinstance(node.op, (*_SIGMOIDS, Tanh, Sub, Mul)):
            return
        if isinstance(node.op, Sub) and _gate_of(node.output) is None:
            return
        if isinstance(node.op, Mul):
            if _gated(node.output) is not None:  # the first state: there is none before it
                self.take(node)
                for each in node.inputs:
                    self.factor(each)
        elif isinstance(node.op, Sub):
            self.factor(node.input(1))
        else:
            self.argument(node.input(0))

    def argument(self, value: Value | None) -> None:
        """Visit the argument of a gate: sums of products with weights, which other gates may multiply."""
        node = None if value is None else root(value).producer
        if node is None or value is None or root(value) in self.passed or root(value) in self.read:
            return
        self.passed.add(root(value))
        if is_product(node):
            self.take(node)
            before = root(node.input(0)).producer
            for each in before.inputs if before is not None and isinstance(before.op, Mul) else ():
                if each is not None and _gate_of(each) is not None:
                    self.factor(each)
        elif isinstance(node.op, _PAIRS):
            self.take(node)
            for each in node.inputs:
                if each is not None and _gate_of(each) is not None:
                    self.factor(each)
                else:
                    self.argument(each)


def _readers(value: Value) -> list[Node]:
    """The nodes that read a value, directly or through data movement."""
    readers = []
    for node in value.uses:
        moves = root(node.output) is not node.output and root(node.output) is root(value)
        readers += _readers(node.output) if moves else [node]
    return readers


def _gated(value: Value) -> Node | None:
    """The Mul of a gate that computes ``value``."""
    node = root(value).producer
    gated = node is not None and isinstance(node.op, Mul) and any(_gate_of(v) for v in node.inputs if v is not None)
    return node if gated else None


def _gate_of(value: Value) -> Node | None:
    """The sigmoid that ``value`` is, or is 1 less."""
    node = root(value).producer
    if node is not None and isinstance(node.op, Sub) and node.input(0).constant:
        node = root(node.input(1)).producer
    return node if node is not None and isinstance(node.op, _SIGMOIDS) else None
