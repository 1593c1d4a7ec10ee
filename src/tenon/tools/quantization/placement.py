"""The operators of a float graph that are computed in integers, and the tensors that get a grid for that."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import F32
from tenon.network.ops.conv import Conv
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.move import Concat
from tenon.network.ops.pointwise import Add, Min, Mul, Sub
from tenon.network.ops.pool import AveragePool
from tenon.network.ops.quantised_values import bounds, slope
from tenon.network.ops.quantize import QuantizeLinear
from tenon.network.ops.reduce import GlobalAveragePool, ReduceMean
from tenon.network.ops.softmax import LogSoftmax, Softmax
from tenon.network.ops.traits import is_product
from tenon.network.passes.base import attribute
from tenon.network.passes.integers.operands import can_move
from tenon.tools.quantization.scheme import SCHEMES, Scheme
from tenon.tools.quantization.square_roots import roots_of_squares

OUTER_SHARE = 0.02
"""Most of all weights that a product before or after all others has to count as one of few weights."""

MOST_KEYS = 512
"""Most keys of attention in 8 bits.  Shares of many keys are small, and few steps of the greatest one: random queries
and keys give results with 26 dB or more up to 512 keys, with 20 dB of 2,048."""

_PAIRS = (Add, Mul, Sub)
_AVERAGES = (AveragePool, GlobalAveragePool, ReduceMean)


@dataclass
class Placement:
    """``products`` have weights to quantise; ``constants`` are other constant operands; ``tensors`` get grids, of
    which those in ``parts`` take that of the concatenation that they are parts of, or of what limits them; those in
    ``wide`` take 16 bits, with a scale that is a power of two if they are in ``states``.  ``added`` has the tensor that
    is added to the result of a convolution before it is rounded.  ``outer`` are products before or after all others,
    with few of the network's weights."""

    products: list[Node] = field(default_factory=list)
    constants: list[tuple[Node, int]] = field(default_factory=list)
    tensors: list[Value] = field(default_factory=list)
    parts: dict[Value, Value] = field(default_factory=dict)
    wide: set[Value] = field(default_factory=set)
    states: set[Value] = field(default_factory=set)
    added: dict[Value, Value] = field(default_factory=dict)
    outer: set[Node] = field(default_factory=set)

    def end(self, value: Value) -> Value:
        """The tensor whose grid ``value`` has, or itself."""
        while value in self.parts:
            value = self.parts[value]
        return value

    def scheme_of(self, value: Value, scheme: Scheme) -> Scheme:
        """The scheme that a tensor's quantisation parameters follow."""
        own = SCHEMES["int16x8"] if self.end(value) in self.wide else scheme
        return replace(own, power_of_two=True) if value in self.states else own


def placement(
    graph: Graph,
    exclude: Collection[str] = (),
    wide: Collection[str] = (),
    separate: Collection[str] = (),
    everywhere: bool = False,
    joined: bool = False,
    states: Collection[str] = (),
) -> Placement:
    """``exclude`` names layers that stay in float, ``wide`` those whose operand and result take 16 bits; ``states``
    names results that do (``recurrent_states``).

    A product and the LeakyRelu that reads it are rounded once, to the grid of the LeakyRelu's result, and so are a
    convolution and the Add that reads it (``addends``); results of products that ``separate`` names get a grid before
    it, too (``rounded_with_readers`` lists these).  Arithmetic after the last product stays in float: it decodes boxes,
    say, whose ends 8 bits are too coarse for; so do roots of squares (``roots_of_squares``) none of whose tensors
    ``separate`` names.  With ``everywhere`` every tensor of floats that is computed gets a grid, outputs too.  With
    ``joined`` all that a concatenation joins has its grid, not only what nothing else reads.
    """
    placed, needed = Placement(), before_products(graph)
    if not everywhere:
        exclude = {*exclude, *(node.output.name for node in roots_of_squares(graph, separate))}
    added = {} if everywhere else addends(graph, exclude, {*wide, *states}, separate)
    tensors: dict[Value, None] = {}
    for node in graph:
        if str(node.origin.layer) in exclude or node.output.name in exclude:
            continue
        supported = _supported(node, states)
        if not (everywhere and _computes_floats(node)) and not (
            supported and (node in needed or is_always_integer(node))
        ):
            continue
        operands = _operands(node) if supported else _variable_floats(node)
        roots = [root(v) for v in operands if not v.constant and v not in added]
        result = rounded_result(graph, node, separate, added)
        if _is_activation(node) and node.output in tensors:
            continue  # part of the operator before it
        others = [v for v in node.outputs[1:] if everywhere and v.type.dtype is F32]
        tensors.update(dict.fromkeys((*roots, result, *others)))
        if not supported:
            continue
        if is_product(node) and not is_of_attention(node):
            placed.products.append(node)
        if isinstance(node.op, _PAIRS):
            placed.constants += [(node, i) for i in (0, 1) if node.input(i).constant]
        if isinstance(node.op, Concat) or _limits_channels(node):
            alone = [r for r in roots if len(r.uses) == 1 and not graph.is_output(r) and roots.count(r) == 1]
            placed.parts.update(dict.fromkeys(alone, result))
            for end in map(placed.end, roots if joined and isinstance(node.op, Concat) else ()):
                if end is not result:
                    placed.parts[end] = result
    placed.tensors = list(tensors)
    placed.added = {v: root(next(a for a in _operands(node) if a is not v)) for v, node in added.items()}
    for node in placed.products:
        if _is_named(node, wide):
            placed.wide |= {placed.end(root(node.input(0))), placed.end(rounded_result(graph, node, separate))}
    placed.states = {v for v in placed.tensors if v.name in states}
    placed.wide |= placed.states
    placed.outer = _outer(graph, placed.products, needed)
    return placed


def _outer(graph: Graph, products: Sequence[Node], needed: Container[Node]) -> set[Node]:
    """The products that no other comes before, or that no other comes after, and whose weights are few."""
    after = set[Node]()
    for node in graph:
        before = [v.producer for v in node.inputs if v is not None and v.producer is not None]
        if any(each in after or is_product(each) for each in before):
            after.add(node)
    few = OUTER_SHARE * sum(node.input(1).type.size for node in products)
    return {n for n in products if (n not in after or n not in needed) and n.input(1).type.size <= few}


def _is_named(node: Node, names: Container[str]) -> bool:
    return str(node.origin.layer) in names or node.output.name in names


def addends(
    graph: Graph, exclude: Container[str] = (), wide: Container[str] = (), separate: Container[str] = ()
) -> dict[Value, Node]:
    """The results of convolutions that only an Add reads, which is computed in integers, with the Add: sums of 32 bits
    are what another tensor of 8 bits is added to.  Where both operands are such results, it is the later one.

    Results that ``separate`` names are left out; ``exclude`` and ``wide`` are as for ``placement``.
    """
    needed, additions = before_products(graph), dict[Value, Node]()
    in_16_bits = set[Value]()
    for node in graph:
        if is_product(node) and _is_named(node, wide):
            in_16_bits |= {root(node.input(0)), rounded_result(graph, node, separate)}
    for node in graph:
        if not isinstance(node.op, Add) or node not in needed or _is_named(node, exclude) or not _supported(node):
            continue
        pair = [node.input(0), node.input(1)]
        if any(v.constant or v.type.dims != node.output.type.dims or root(v) in in_16_bits for v in pair):
            continue
        sums = [v for v in pair if _is_sum(graph, v, exclude, wide) and v.name not in separate]
        sums = [v for v in sums if v.producer is not None and root(v.producer.input(0)) not in in_16_bits]
        if sums and pair[0] is not pair[1]:
            additions[max(sums, key=lambda v: graph.position(v.producer) if v.producer is not None else 0)] = node
    return additions


def _is_sum(graph: Graph, value: Value, exclude: Container[str], wide: Container[str]) -> bool:
    """Whether a convolution of images in 8 bits computes it for one reader."""
    node = value.producer
    if node is None or not isinstance(node.op, Conv) or len(value.uses) > 1 or graph.is_output(value):
        return False
    image = 3 <= value.type.rank <= 4 and _supported(node)
    return image and not _is_named(node, exclude) and not _is_named(node, wide)


def summed(graph: Graph) -> set[str]:
    """The names of the results of convolutions that can be rounded once with the Add that reads them: of an Add of two,
    both, because with a grid for one the other is rounded so."""
    names = set[str]()
    while added := addends(graph, separate=names):
        names |= {value.name for value in added}
    return names


def rounded_with_readers(graph: Graph) -> set[str]:
    """The names of the results of products that can be rounded once with what reads them."""
    products = (node for node in graph if is_product(node))
    sloped = {node.output.name for node in products if rounded_result(graph, node) is not last(graph, node)}
    return sloped | summed(graph)


def before_products(graph: Graph) -> set[Node]:
    """The nodes whose results a product depends on."""
    nodes: set[Node] = set()
    for node in reversed(graph.nodes):
        readers = [reader for value in node.outputs for reader in value.uses]
        if any(reader in nodes or is_product(reader) for reader in readers):
            nodes.add(node)
    return nodes


def root(value: Value) -> Value:
    """The tensor whose elements ``value`` has, moved or chosen: it has the same grid."""
    while value.producer is not None and can_move(value.producer) and value is value.producer.output:
        value = value.producer.input(0)
    return value


def last(graph: Graph, node: Node) -> Value:
    """The result of ``node`` after bounds that nothing else comes before."""
    return _after_bounds(graph, node.output)


def rounded_result(
    graph: Graph, node: Node, separate: Container[str] = (), added: Mapping[Value, Node] | None = None
) -> Value:
    """The result of ``node`` that is rounded to integers: after bounds and, of a product, a LeakyRelu before them,
    unless ``separate`` names what it reads, or an Add of ``added`` (``addends``)."""
    value = node.output
    if added is not None and value in added:
        return _after_bounds(graph, added[value].output)
    sole = len(value.uses) == 1 and not graph.is_output(value)
    if is_product(node) and sole and slope(value.uses[0]) is not None and value.name not in separate:
        value = value.uses[0].output
    return _after_bounds(graph, value)


def _after_bounds(graph: Graph, value: Value) -> Value:
    while len(value.uses) == 1 and not graph.is_output(value) and bounds(value.uses[0]) is not None:
        value = value.uses[0].output
    return value


def rounded_with_others(graph: Graph) -> list[str]:
    """The layers of a quantised graph whose products are rounded once with a LeakyRelu or an Add."""
    layers = []
    for node in graph:
        after = node.input(0).producer if isinstance(node.op, QuantizeLinear) else None
        while after is not None and bounds(after) is not None:
            after = after.input(0).producer
        if after is None or (slope(after) is None and not isinstance(after.op, Add)):
            continue
        for value in after.inputs:
            before = None if value is None else value.producer
            if before is not None and is_product(before):
                layers.append(str(before.origin.layer) or before.output.name)
    return layers


def _is_activation(node: Node) -> bool:
    return bounds(node) is not None or slope(node) is not None


def is_always_integer(node: Node) -> bool:
    """Whether an operator is computed in integers wherever it is; others only before products."""
    return is_product(node) or isinstance(node.op, _AVERAGES)


def _operands(node: Node) -> Sequence[Value]:
    """Inputs that get a grid."""
    if is_of_attention(node):
        return [node.input(0), node.input(1)]
    if is_product(node):
        return [node.input(0)]
    if isinstance(node.op, _PAIRS):
        return [node.input(0), node.input(1)]
    if isinstance(node.op, Concat):
        return [v for v in node.inputs if v is not None]
    if isinstance(node.op, Pointwise) and bounds(node) is None:
        return [v for v in node.inputs if v is not None and not v.constant]
    return [node.input(0)]


def _supported(node: Node, states: Container[str] = ()) -> bool:
    op, data = node.op, [v for v in node.inputs if v is not None]
    if any(v.type.dtype is not F32 for v in (*_floats(node, data), node.output)):
        return False
    if is_product(node):
        return has_constant_weights(node) or is_of_attention(node)
    if isinstance(op, _PAIRS):
        if any(isinstance(reader.op, Softmax) for reader in node.output.uses):
            return False  # of scores, whose masks are numbers too large for a grid
        numbers = any(v.type.rank == 0 for v in data)
        return not all(v.constant for v in data) and (not numbers or node.output.name in states)
    if isinstance(op, Concat):
        return not any(v.constant for v in data)
    if _limits_channels(node):
        return True
    if isinstance(op, AveragePool):
        return attribute(node, "auto_pad") in ("NOTSET", "VALID")
    if isinstance(op, ReduceMean):
        return len(data) > 1 and data[1].constant and data[0].type.rank >= 3
    if isinstance(op, _AVERAGES) or bounds(node) is not None:
        return True
    variable = [v for v in data if not v.constant]
    scalars = all(v.type.size == 1 for v in data if v.constant)
    return isinstance(op, Pointwise) and not op.converts and len(variable) == 1 and scalars


def _computes_floats(node: Node) -> bool:
    """Whether its result is of new floats that depend on other floats."""
    return node.output.type.dtype is F32 and not can_move(node) and bool(_variable_floats(node))


def _variable_floats(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and not v.constant and v.type.dtype is F32]


def _limits_channels(node: Node) -> bool:
    """Whether it is the minimum of a tensor and constant limits, which are compared as integers of one grid."""
    return isinstance(node.op, Min) and [v.constant for v in node.inputs if v is not None] == [False, True]


def _floats(node: Node, data: Sequence[Value]) -> Sequence[Value]:
    return data[:1] if isinstance(node.op, ReduceMean) else data


def is_of_attention(node: Node) -> bool:
    """Whether it is one of the two products of attention: of queries and keys, with at most a factor before the
    softmax, or of what the softmax gives and values."""
    if not isinstance(node.op, MatMul) or any(v is None or v.constant for v in node.inputs):
        return False
    last = node.input(0).producer
    if last is not None and isinstance(last.op, Softmax):
        return _scores_of(last) is not None
    value = node.output
    while len(value.uses) == 1 and _is_scaled(value.uses[0]):
        value = value.uses[0].output
    return len(value.uses) == 1 and _scores_of(value.uses[0]) is node


def _scores_of(softmax: Node) -> Node | None:
    """The product whose result, times a factor at most, a softmax is of, along its last axis."""
    rank = softmax.output.type.rank
    if not isinstance(softmax.op, Softmax) or softmax.op.axis % rank != rank - 1 or isinstance(softmax.op, LogSoftmax):
        return None
    if softmax.output.type.dims[-1] > MOST_KEYS:
        return None
    node = softmax.input(0).producer
    if node is not None and _is_scaled(node):
        node = node.input(0).producer
    alone = node is not None and isinstance(node.op, MatMul) and not any(v is None or v.constant for v in node.inputs)
    return node if alone and len(softmax.output.uses) == 1 else None


def _is_scaled(node: Node) -> bool:
    """Whether it multiplies by a positive number."""
    return (
        isinstance(node.op, Mul)
        and node.input(1).constant
        and node.input(1).type.size == 1
        and bool(node.input(1).array.reshape(()) > 0)
    )


def has_constant_weights(node: Node) -> bool:
    """Whether a product multiplies by constant weights, and adds a constant bias if it has one."""
    w = node.input(1)
    if not w.constant or node.input(0).constant:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and not bias.constant:
        return False
    if isinstance(node.op, Gemm):
        plain = attribute(node, "alpha") == 1.0 and attribute(node, "beta") == 1.0 and not attribute(node, "transA")
        return bool(plain) and w.type.rank == 2
    return not isinstance(node.op, MatMul) or w.type.rank == 2
