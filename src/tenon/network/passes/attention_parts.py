"""The parts of attention in a graph: queries, keys, values, scale, masks and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Operation, Value
from tenon.network.graph.types import F32, DType, TensorType
from tenon.network.graph.writer import Names
from tenon.network.ops.comparison import Where
from tenon.network.ops.convert import Cast
from tenon.network.ops.head_attention import HeadAttention
from tenon.network.ops.mask import Mask
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.move import Expand, Transpose
from tenon.network.ops.pointwise import Add, Div, Mul
from tenon.network.ops.shape import Reshape

FLOATS = (F32, DType.F16, DType.BF16)
"""The types of attention."""

_LOWEST = float(np.finfo(np.float32).min)

HIDDEN = -1e9
"""Added to a score, a number up to this hides the key: its exponential is 0 unless scores are as large."""


@dataclass(frozen=True)
class AttentionParts:
    """The inputs and attributes of the operator; ``keys`` are [..., N, d] after ``turn`` (None: as they are).

    A ``column`` is a single query that lies in its operand as a column.  ``mask`` is [..., L, N] as in the graph.
    """

    queries: Value
    keys: Value
    turn: tuple[int, ...] | None = None
    column: bool = False
    values: Value | None = None
    mask: Value | None = None
    length: Value | None = None
    past: int = 0
    op: HeadAttention = field(default_factory=HeadAttention)

    def ends_as(self, node: Node) -> bool:
        """Whether a Mask sets to zero what belongs to keys past the last."""
        op, rank = node.op, node.output.type.rank
        assert isinstance(op, Mask)
        return op.value == 0 and op.axis % rank == rank - 1 and node.input(1) is self.length

    def with_values(self, values: Value) -> AttentionParts:
        """The same with values, without their Mask where the number of keys says the same, and without the copies of
        keys and values that several heads share."""
        values = self._unmasked(values)
        keys, shared = (_before_copies(v) for v in (self.keys, values))
        if (
            self.turn is None
            and keys is not None
            and shared is not None
            and keys.type.dims[:-1] == shared.type.dims[:-1]
        ):
            return replace(self, keys=keys, values=self._unmasked(shared))
        return replace(self, values=values)

    def _unmasked(self, values: Value) -> Value:
        maker = values.producer
        if maker is None or not isinstance(maker.op, Mask) or maker.input(1) is not self.length:
            return values
        return maker.input(0) if maker.op.axis % values.type.rank == values.type.rank - 2 else values

    @property
    def types(self) -> list[TensorType | None]:
        """The types of the operator's inputs."""
        q, k = self.queries.type, self.keys.type
        q = _with_dims(q, (*q.dims[:-2], q.dims[-1], q.dims[-2])) if self.column else q
        k = k if self.turn is None else _with_dims(k, tuple(k.dims[i] for i in self.turn))
        m = self.mask
        mask = None if m is None else _with_dims(m.type, _turned(m.type.dims))
        number = TensorType(DType.I64, ())
        assert self.values is not None
        counts = [number if self.length is not None else None, number if self.past else None]
        return [q, k, self.values.type, mask, *counts]

    @property
    def fit(self) -> bool:
        """Whether queries, keys and values are of as many heads, and the mask spreads over whole batches."""
        q, k, v, mask = self.types[:4]
        assert q is not None
        assert k is not None
        assert v is not None
        alike = q.rank == k.rank == v.rank >= 2 and q.dims[-1] == k.dims[-1] and k.dims[:-1] == v.dims[:-1]
        heads, shared = (t.dims[-3] if t.rank > 2 else 1 for t in (q, k))
        if (
            not alike
            or q.dims[:-3] != k.dims[:-3]
            or heads % max(1, shared)
            or q.dtype is not k.dtype
            or q.dtype is not v.dtype
        ):
            return False
        whole = (*q.dims[:-2], k.dims[-2], q.dims[-2])
        return mask is None or _spreads(mask, whole, q.dtype)

    def inputs(self, graph: Graph, before: Node) -> list[Value | None]:
        """The inputs, with new nodes in front of ``before`` where they lie otherwise."""
        names = Names(graph)

        def add(op: Operation, *inputs: Value) -> Value:
            return graph.add(
                op, inputs, [names.fresh(f"{before.output.name}_part")], before.origin, before=before
            ).output

        def shaped(x: Value, dims: Sequence[int]) -> Value:
            return add(Reshape(), x, graph.constant(names.fresh(f"{x.name}_dims"), np.array(dims, np.int64)))

        q, mask_type = self.types[0], self.types[3]
        assert q is not None
        queries = shaped(self.queries, q.dims) if self.column else self.queries
        keys = self.keys if self.turn is None else add(Transpose(self.turn), self.keys)
        mask = self.mask
        if mask is not None and mask_type is not None:
            dims = mask.type.dims
            moves = mask.type.rank > 1 and min(dims[-2:]) > 1
            mask = add(Transpose(_swap(len(dims))), mask) if moves else shaped(mask, mask_type.dims)
        past = graph.constant(names.fresh("past"), np.array(self.past, np.int64)) if self.past else None
        inputs = [queries, keys, self.values, mask, self.length, past]
        while inputs[-1] is None:
            inputs.pop()
        return inputs


def _before_copies(value: Value) -> Value | None:
    """The tensor [..., shared, N, d] of which each head is repeated for several neighbouring ones."""
    joined = value.producer
    copies = joined.input(0).producer if joined is not None and isinstance(joined.op, Reshape) else None
    apart = copies.input(0).producer if copies is not None and isinstance(copies.op, Expand) else None
    if copies is None or apart is None or not isinstance(apart.op, Reshape):
        return None
    single, many = apart.input(0), copies.output.type.dims
    *outer, shared, keys, depth = single.type.dims if single.type.rank > 2 else (0, 0, 0)
    group = many[-3] if len(many) > 3 else 0
    repeats = many == (*outer, shared, group, keys, depth) and apart.output.type.dims == (
        *outer,
        shared,
        1,
        keys,
        depth,
    )
    return single if repeats and value.type.dims == (*outer, shared * group, keys, depth) else None


def _with_dims(type: TensorType, dims: Sequence[int]) -> TensorType:
    return TensorType(type.dtype, tuple(dims))


def _swap(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _turned(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of a mask with its keys before the queries."""
    dims = (1,) * (2 - len(dims)) + dims
    return (*dims[:-2], dims[-1], dims[-2])


def _spreads(mask: TensorType, whole: tuple[int, ...], dtype: DType) -> bool:
    """Whether a mask broadcasts to all scores, along all axes of the batch or none."""
    if mask.dtype not in (dtype, DType.BOOL) or mask.rank > len(whole):
        return False
    dims = (1,) * (len(whole) - mask.rank) + mask.dims
    batch = dims[:-3]
    fits = all(a in (1, b) for a, b in zip(dims, whole, strict=True))
    return fits and (batch == whole[:-3] or all(n == 1 for n in batch))


def sole_producer(graph: Graph, value: Value) -> Node | None:
    """The node that makes a value, if it is read once and is no output."""
    return value.producer if len(list(value.uses)) == 1 and not graph.is_output(value) else None


def _score_producer(graph: Graph, value: Value) -> Node | None:
    """The same of scores, before casts between types of floats: one operator does not round them."""
    node = sole_producer(graph, value)
    while node is not None and isinstance(node.op, Cast) and node.input(0).type.dtype in FLOATS:
        node = sole_producer(graph, node.input(0)) if node.output.type.dtype in FLOATS else None
    return node


def parts_of(graph: Graph, scores: Value) -> AttentionParts | None:
    """The parts of what a softmax is taken of: masks around a scaled product; None for anything else."""
    node = _score_producer(graph, scores)
    if node is None:
        return None
    if isinstance(node.op, Mask):
        return _counted(graph, node)
    if isinstance(node.op, Where):
        return _chosen(graph, node)
    if isinstance(node.op, Add):
        return _added(graph, node)
    return _scaled(graph, node)


def _counted(graph: Graph, node: Node) -> AttentionParts | None:
    """A Mask that hides the keys from a number on."""
    assert isinstance(node.op, Mask)
    rank = node.output.type.rank
    parts = parts_of(graph, node.input(0))
    hides = node.op.axis % rank == rank - 1 and node.op.value <= _LOWEST
    if parts is None or not hides or parts.length not in (None, node.input(1)):
        return None
    return replace(parts, length=node.input(1))


def _chosen(graph: Graph, node: Node) -> AttentionParts | None:
    """Scores where a mask is true, and one number where it is false."""
    condition, fill = node.input(0), _number(node.input(2))
    parts = parts_of(graph, node.input(1)) if fill is not None else None
    if parts is None or fill is None or parts.mask is not None or condition.type.rank > node.output.type.rank:
        return None
    return _causal(replace(parts, mask=condition, op=replace(parts.op, fill=fill)))


def _added(graph: Graph, node: Node) -> AttentionParts | None:
    """Scores with a mask added."""
    for i in range(2):
        scores, mask = node.input(i), node.input(1 - i)
        same = scores.type.dims == node.output.type.dims
        parts = parts_of(graph, scores) if same and mask.producer is not scores.producer else None
        if parts is not None and parts.mask is None:
            return _causal(replace(parts, mask=mask))
    return None


def _scaled(graph: Graph, node: Node | None) -> AttentionParts | None:
    """A product, perhaps multiplied by a number."""
    scale = 1.0
    if node is not None and isinstance(node.op, (Mul, Div)):
        number = _number(node.input(1))
        if number is None or (isinstance(node.op, Div) and not number):
            return None
        scale = number if isinstance(node.op, Mul) else 1 / number
        node = _score_producer(graph, node.input(0))
    if node is not None and isinstance(node.op, Reshape):
        return _column(graph, node, scale)
    if node is None or not isinstance(node.op, MatMul):
        return None
    op, (queries, turned) = HeadAttention(scale), (node.input(0), node.input(1))
    rank = turned.type.rank
    if rank < 2 or queries.type.rank != rank:
        return None
    maker = turned.producer
    if maker is None or not isinstance(maker.op, Transpose):
        return AttentionParts(queries, turned, _swap(rank), op=op)
    order = maker.op.order(rank)
    turn = tuple(order[i] for i in _swap(rank))
    return AttentionParts(queries, maker.input(0), None if turn == tuple(range(rank)) else turn, op=op)


def _column(graph: Graph, node: Node, scale: float) -> AttentionParts | None:
    """Keys times a single query as a column (``passes.row_products``), in the shape of a row."""
    product = sole_producer(graph, node.input(0))
    if product is None or not isinstance(product.op, MatMul):
        return None
    keys, column, dims = product.input(0), product.input(1), product.output.type.dims
    same = keys.type.rank == column.type.rank and node.output.type.dims == (*dims[:-2], dims[-1], dims[-2])
    if not same or column.type.dims[-1] != 1:
        return None
    return AttentionParts(column, keys, column=True, op=HeadAttention(scale))


def _number(value: Value) -> float | None:
    """The number that a constant of one element is."""
    if value.data is None or value.data.size != 1:
        return None
    return float(value.array.astype("float32").reshape(-1)[0])


# ------------------------------------------------------------------------------------------ causal masks
def _causal(parts: AttentionParts) -> AttentionParts:
    """The same with a constant mask as attributes, where it hides the keys behind each query, or also those that lie a
    window before it."""
    seen = _kept(parts)
    if seen is None:
        return parts
    ends = seen.shape[1] - seen[:, ::-1].argmax(1) - 1
    rows, keys = np.arange(seen.shape[0]), np.arange(seen.shape[1])
    past, window = int(ends[0]), int(seen.sum(1).max())
    upper = keys <= rows[:, None] + past
    window = 0 if (seen == upper).all() else window
    if window and not (seen == (upper & (keys > rows[:, None] + past - window))).all():
        return parts
    if (ends != np.minimum(rows + past, seen.shape[1] - 1)).any():
        return parts
    return replace(parts, mask=None, past=past, op=replace(parts.op, causal=True, window=window, fill=-np.inf))


def _kept(parts: AttentionParts) -> Array | None:
    """The keys [L, N] that a constant mask shows to each query, of which each sees some; None for another mask."""
    mask, op = parts.mask, parts.op
    if mask is None or mask.data is None or mask.type.rank < 2 or mask.type.size != np.prod(mask.type.dims[-2:]):
        return None
    array = mask.array.reshape(mask.type.dims[-2:])
    if array.dtype == bool:
        return array if op.fill <= HIDDEN and array.any(1).all() else None
    if mask.type.dtype not in FLOATS:
        return None
    array = array.astype(F32.numpy)
    if not (array <= HIDDEN).any():
        return None
    seen = array == 0
    whole = (seen | (array <= HIDDEN)).all() and seen.any(1).all()
    return seen if whole else None
