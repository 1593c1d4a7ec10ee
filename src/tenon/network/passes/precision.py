"""Narrower types in place of f32: 8 or 16 bits for weights only, 16-bit floats for weights and activations.

Weights are stored in 16 bits and widened to f32 when loaded, or as i8 with a scale for each output channel, by which
the sums of the integers are multiplied: the largest weight of a channel is 127 of its steps. The range of f16 ends at
65504, and below 6e-5 it loses precision, so output channels with weights near either limit are stored multiplied by a
power of two, and their sums are divided by it, which is exact. On targets with fast bf16 dot products, activations
between convolutions are bf16 too: a convolution rounds its result once, after bias and activation, and accumulates in
f32. On targets with arithmetic in f16 they are f16, and a convolution accumulates 128 products in f16 at a time and
these sums in f32. Devices have activations in either type and compute in f32: their time is that of what they load and
store. Tensors that no further convolution reads, such as the boxes of a detector, stay f32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tenon.errors import Problem
from tenon.network.graph.graph import Array, Graph, Node, Operation, Origin, Value
from tenon.network.graph.types import F32, DType
from tenon.network.graph.writer import Names
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.convert import Cast
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.head_attention import HeadAttention
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.traits import is_product
from tenon.network.passes.attention import Able, attention
from tenon.network.passes.base import Log, Pass, attribute, drop_dead, make, substitute

STORED = {"fp16": DType.F16, "bf16": DType.BF16}
"""Precision to the element type of weights."""

_INTEGERS = 127
"""The i8 that a channel's largest weight becomes."""

_LEAST, _MOST = 2.0**-10, 2.0**13
"""The range of the largest weight of an output channel for f16 without loss: below it, small weights become subnormal;
above it, sums of nine in Winograd's transform could overflow.
"""

_LEAST_NORMAL, _GREATEST = 2.0**-14, 65504.0
"""The range of f16 in which it has 11 bits."""

ArithmeticOf = Callable[[Node], str]
"""The fastest arithmetic of a product: "narrow", in 16 bits; in f32, weights "stored" in 16; or all "wide", f32."""

ReasonOf = Callable[[Node], str]
"""Why the arithmetic of a product is not "narrow"."""


def always_stored(node: Node) -> str:
    """For targets on which 16-bit storage saves memory but no time."""
    return "stored"


def always_narrow(node: Node) -> str:
    """For targets on which a product of two numbers of 16 bits takes half the time of one of f32."""
    return "narrow"


def no_reason(node: Node) -> str:
    """Where the choice of the arithmetic is not explained."""
    return "it is faster in f32"


def weights(dtype: DType, arithmetic_of: ArithmeticOf = always_stored) -> Pass:
    """A pass that stores large constant weights as ``dtype``, unless ``arithmetic_of`` selects f32 storage for the
    product.
    """
    return Pass(
        f"weights as {dtype}",
        lambda graph, log: _Storing(graph, dtype, log, arithmetic_of).run(),
        level=0,
        ensures="products read their constant weights as that type, where it can hold them",
    )


def activations(
    dtype: DType,
    arithmetic_of: ArithmeticOf = always_narrow,
    reason_of: ReasonOf = no_reason,
    left: list[Problem] | None = None,
    *,
    rows: bool = False,
    joined: Able | None = None,
) -> Pass:
    """A pass that computes products for which that is fastest, and operators read only by these, in ``dtype``.

    ``left`` gets the layers that compute in f32, and why.  ``rows`` are computed in ``dtype`` as well, and products of
    two tensors; else attention in one operator where ``joined`` says so, and what only moves elements for it.
    """
    return Pass(
        f"activations as {dtype}",
        lambda graph, log: _Narrowing(graph, dtype, arithmetic_of, reason_of, left, rows, joined).run(),
        level=0,
        ensures="convolutions read activations of that type",
    )


def precision(
    name: str,
    *,
    arithmetic: bool,
    arithmetic_of: ArithmeticOf = always_narrow,
    reason_of: ReasonOf = no_reason,
    left: list[Problem] | None = None,
    stated: bool = False,
    attends: Able | None = None,
    joined: Able | None = None,
) -> list[Pass]:
    """The passes for a precision.

    ``arithmetic`` is true if the target computes products of images in that type; ``arithmetic_of`` then gives the
    fastest arithmetic for a product with f32 weights, and ``reason_of`` why it is not the narrow one.  ``left`` gets
    the layers that compute in f32 nevertheless, and why.  With ``stated``, only products that the model has in f16
    itself are changed; with ``attends``, operators on rows and products of two tensors, too (``Operator.narrow_rows``),
    and attention is one operator where it says so; with ``joined``, attention that is one operator where that says so.
    """
    if name not in STORED:
        return []
    dtype = STORED[name]
    if not arithmetic:
        return [weights(dtype, _of_stated(always_stored) if stated else always_stored)]
    known: dict[str, tuple[str, str]] = {}
    fastest = _of_stated(arithmetic_of) if stated else arithmetic_of

    def remembered(node: Node) -> tuple[str, str]:
        """Arithmetic and reason for a node with f32 weights, also after these were narrowed; for one that has weights
        scaled."""
        if node.output.name not in known:
            chosen = fastest(node)
            why = "the model has it in f32" if stated and not _stated(node) else reason_of(node)
            known[node.output.name] = chosen, "" if chosen == "narrow" else why
        return known[node.output.name]

    def chosen(node: Node) -> str:
        return remembered(node)[0]

    stored_weights = weights(dtype, chosen)

    def store(graph: Graph, log: Log) -> int:
        known.clear()  # names are those of one graph: a body has others
        return stored_weights.run(graph, log)

    def reason(node: Node) -> str:
        return remembered(node)[1]

    rows = attends is not None and not stated
    passes = [
        replace(stored_weights, run=store),
        activations(dtype, chosen, reason, left, rows=rows, joined=None if stated else joined),
    ]
    passes = [*passes, attention(attends)] if rows and attends else passes
    return [*passes, Pass("casts", _without_casts, level=0, ensures="no output is a cast of what has its type")]


def _without_casts(graph: Graph, log: Log) -> int:
    """Remove the casts of what has their type, now that it is narrow, and which are outputs."""
    removed = 0
    for node in list(graph):
        made = isinstance(node.op, Cast) and node.input(0).producer is not None
        if made and node.input(0).type == node.output.type and not graph.is_output(node.input(0)):
            substitute(graph, node.output, node.input(0))
            graph.remove(node)
            removed += 1
    return removed


def states_f16(graph: Graph) -> bool:
    """Whether a graph, as it was imported, has products of f16."""
    return any(_is_product(node) and node.input(0).type.dtype is DType.F16 for node in graph)


def _of_stated(arithmetic_of: ArithmeticOf) -> ArithmeticOf:
    """f32 for products that the model does not have in f16."""
    return lambda node: arithmetic_of(node) if _stated(node) else "wide"


def _stated(node: Node) -> bool:
    """Whether a product reads what the model rounds to f16."""
    value = node.input(0)
    while value.producer is not None and value.type.dtype is F32:
        op = value.producer.op
        if not (isinstance(op, Cast) or (isinstance(op, Operator) and op.moves)):
            return False
        value = value.producer.input(0)
    return value.type.dtype is DType.F16


class _Storing:
    """Replaces the constant weights of products by narrow ones; shared weights are stored once."""

    def __init__(self, graph: Graph, dtype: DType, log: Log, arithmetic_of: ArithmeticOf) -> None:
        self.graph, self.dtype, self.log, self.arithmetic_of = graph, dtype, log, arithmetic_of
        self.names = Names(graph)
        self.stored: dict[tuple[Value, int], tuple[Value, Array | None]] = {}

    def run(self) -> int:
        return sum(self.store(node) for node in list(self.graph))

    def store(self, node: Node) -> int:
        if not _has_weights(node):
            return 0
        value = node.input(1)
        if self.dtype in (DType.F16, DType.I8) and not np.isfinite(value.array).all():
            self.log(f"weights of {node.origin} stay f32: some are infinite or not a number")
            return 0
        if self.dtype is DType.I8 and isinstance(node.op, Gemm) and node.op.alpha != 1.0:
            return 0  # it would scale the integers
        arithmetic = self.arithmetic_of(node)
        if arithmetic == "wide" or (_depthwise(node) and not (arithmetic == "narrow" and self.multiplies(node))):
            return 0
        groups, axis = _outputs(node)
        if (value, groups) not in self.stored:
            self.stored[value, groups] = self.narrowed(value, groups, axis)
        stored, factors = self.stored[value, groups]
        if factors is None:
            _take(self.graph, node, 1, stored)
            return 1
        if isinstance(node.op, Conv | ConvTranspose) and any(v is not None and v.data is None for v in node.inputs[2:]):
            return 0  # such a bias is not supported either
        self.scale(node, stored, factors)
        return 1

    def multiplies(self, node: Node) -> bool:
        """Whether a depthwise convolution can be computed in the type; pairs of bf16 would need two channels."""
        return self.dtype is DType.F16 and isinstance(node.op, Conv)

    def narrowed(self, value: Value, groups: int, axis: int) -> tuple[Value, Array | None]:
        """The narrowed weights, and the factor of each output channel, or None if all are 1."""
        factors = stored_factors(value.array, self.dtype, groups, axis)
        if factors is None:
            return _constant(self.graph, value, self.dtype), None
        data = narrowed(value.array, self.dtype, factors, groups, axis)
        return self.graph.constant(self.names.fresh(f"{value.name}:{self.dtype}"), data), factors

    def scale(self, node: Node, weights: Value, factors: Array) -> None:
        """The node with ``weights``, its sums multiplied by ``factors`` before the bias is added."""
        graph, old, rank = self.graph, node.output, node.output.type.rank
        images = isinstance(node.op, Conv | ConvTranspose)
        addend = node.inputs[2] if len(node.inputs) > 2 else None
        shape = (1, -1, *(1,) * (rank - 2)) if images else (-1,)

        def add(op: Operation, *inputs: Value) -> Value:
            name = self.names.fresh(f"{old.name}_{op.name.lower()}")
            return graph.add(op, inputs, [name], node.origin, before=node).output

        def number(stem: str, data: Array) -> Value:
            return graph.constant(self.names.fresh(stem), np.ascontiguousarray(data.astype(np.float32)))

        made = add(node.op, node.input(0), weights)
        made = add(make("Mul"), made, number(f"{weights.name}_scale", factors.reshape(shape)))
        if addend is not None:
            beta = 1.0 if images else attribute(node, "beta")
            if images and addend.data is not None:
                addend = number(addend.name, addend.data.reshape(shape))
            elif beta != 1.0:
                addend = add(make("Mul"), addend, number("beta", np.array(beta)))
            made = add(make("Add"), made, addend)
        substitute(graph, old, made, fresh=True)
        drop_dead(graph, node)


def _is_product(node: Node) -> bool:
    """Whether the second operand, if constant, is the weights."""
    return is_product(node)


def _outputs(node: Node) -> tuple[int, int]:
    """The number of groups along the first axis of the weights, and the axis of a group's output channels."""
    if isinstance(node.op, Conv):
        return 1, 0
    if isinstance(node.op, ConvTranspose):
        return node.op.group, 1
    return 1, 0 if isinstance(node.op, Gemm) and node.op.transB else 1


def _has_weights(node: Node) -> bool:
    """Whether it is a product by constant weights in f32 that are packed."""
    value = node.inputs[1] if _is_product(node) and len(node.inputs) > 1 else None
    if value is None or value.data is None or value.type.dtype is not F32 or value.type.rank < 2:
        return False
    matrices = isinstance(node.op, MatMul) and value.type.rank > 2  # such ones are not packed
    return bool(value.type.size) and not matrices


def can_store(node: Node) -> bool:
    """Whether a product can store its weights in any of the narrower types while it computes in f32."""
    if not _has_weights(node) or _depthwise(node) or node.input(0).type.dtype is not F32:
        return False
    images = isinstance(node.op, Conv | ConvTranspose)
    if images and any(v is not None and v.data is None for v in node.inputs[2:]):
        return False
    scaled = isinstance(node.op, Gemm) and node.op.alpha != 1.0
    return not scaled and bool(np.isfinite(node.input(1).array).all())


def stored_factors(weights: Array, dtype: DType, groups: int, axis: int) -> Array | None:
    """By what each output channel's weights are divided to be stored as ``dtype``, f32; None if by nothing."""
    if dtype is DType.I8:
        largest = _largest(weights, groups, axis)
        return np.where(largest > 0, largest / _INTEGERS, 1.0).astype(np.float32)
    return _factors(weights, groups, axis) if dtype is DType.F16 else None


def narrowed(weights: Array, dtype: DType, factors: Array, groups: int, axis: int) -> Array:
    """The weights divided by their channels' factors, as ``dtype``; integers are rounded to nearest, halves to even."""
    per = factors.reshape(groups, *(-1 if i == axis else 1 for i in range(weights.ndim)))
    split = weights.reshape(groups, -1, *weights.shape[1:]) / per
    data: Array = (np.rint(split) if dtype is DType.I8 else split).reshape(weights.shape).astype(dtype.numpy)
    return data


def rounded_weights(node: Node, dtype: DType) -> Array:
    """The numbers, in f32, that the weights of a product stand for after they are stored as ``dtype``."""
    (groups, axis), weights = _outputs(node), node.input(1).array
    factors = stored_factors(weights, dtype, groups, axis)
    if factors is None:
        return weights.astype(dtype.numpy).astype(np.float32)
    per = factors.reshape(groups, *(-1 if i == axis else 1 for i in range(weights.ndim)))
    stored = narrowed(weights, dtype, factors, groups, axis).astype(np.float32)
    return (stored.reshape(groups, -1, *weights.shape[1:]) * per).reshape(weights.shape).astype(np.float32)


def _largest(weights: Array, groups: int, axis: int) -> Array:
    """The largest magnitude of each output channel's weights."""
    split = np.abs(weights).reshape(groups, -1, *weights.shape[1:])
    largest: Array = split.max(axis=tuple(i for i in range(1, split.ndim) if i != axis + 1), initial=0.0).reshape(-1)
    return largest


def _factors(weights: Array, groups: int, axis: int) -> Array | None:
    """Powers of two, divided by which each output channel's weights are at most 2; None if f16 needs no scaling."""
    largest = _largest(weights, groups, axis)
    beyond = (largest > _MOST) | ((largest < _LEAST) & (largest > 0))
    if not beyond.any():
        return None
    exponents = np.maximum(np.frexp(largest)[1] - 1, -126)  # 2**-126 is the least exact divisor in f32
    return np.where(beyond, np.ldexp(np.float32(1), exponents), np.float32(1)).astype(np.float32)


def _computes_f32(node: Node) -> bool:
    """Whether a node computes results in f32, rather than to move elements or to compute with others."""
    moves = isinstance(node.op, Operator) and node.op.moves
    return not moves and any(v.type.dtype is F32 for v in node.outputs)


def _depthwise(node: Node) -> bool:
    """Whether weights are those of a depthwise convolution: so small that storing them in 16 bits saves nothing."""
    return isinstance(node.op, Conv | ConvTranspose) and node.op.group == node.input(0).type.shape[1]


def _constant(graph: Graph, value: Value, dtype: DType) -> Value:
    data: Array = value.array.astype(dtype.numpy)
    return graph.constant(f"{value.name}:{dtype}", data)


def _take(graph: Graph, node: Node, i: int, value: Value) -> None:
    graph.rewire(node, tuple(value if j == i else v for j, v in enumerate(node.inputs)))


class _Narrowing:
    """Finds the nodes that compute in the narrow type, in reverse order, and inserts conversions at the boundaries."""

    def __init__(
        self,
        graph: Graph,
        dtype: DType,
        arithmetic_of: ArithmeticOf,
        reason_of: ReasonOf,
        left: list[Problem] | None,
        rows: bool,
        joined: Able | None,
    ) -> None:
        self.rows, self.joined = rows, joined
        self.graph, self.dtype, self.arithmetic_of, self.reason_of = graph, dtype, arithmetic_of, reason_of
        self.left = left
        self.narrow: set[Node] = set()
        self.cast: dict[tuple[Value, DType], Value] = {}

    def run(self) -> int:
        nodes = list(self.graph)
        obstacles: list[Problem] = []
        for node in reversed(nodes):
            if obstacle := self.obstacle(node):
                if _computes_f32(node):
                    obstacles.append(Problem(str(node.origin), obstacle))
            else:
                self.narrow.add(node)
        if self.left is not None:
            self.left += dict.fromkeys(reversed(obstacles))
        for node in nodes:
            self.rewire(node)
        for i, value in enumerate(self.graph.outputs):
            if value.producer in self.narrow:
                self.graph.outputs[i] = self.as_type(value, F32, None)
        return len(self.narrow)

    def obstacle(self, node: Node) -> str:
        """Why a node is not computed in the narrow type; "" for a product with stored weights, and for a node that can
        be and is read by such nodes only.
        """
        value = node.inputs[0] if node.inputs else None
        if value is None or value.type.dtype is not F32:
            return "its input is not f32"
        op = node.op
        if isinstance(op, HeadAttention):
            return "" if self.attends(node) else f"{op.name} has no kernel in {self.dtype}"
        moved = self.joined is not None and isinstance(op, Operator) and op.moves
        rows = (self.rows or moved) and isinstance(op, Operator) and op.narrow_rows
        if not rows and not 2 <= value.type.rank <= 4:
            return f"its input has {value.type.rank} dimension(s): {self.dtype} is for those of 2 to 4"
        images = rows or (isinstance(op, Operator) and op.narrow_images)
        if images and _is_product(node) and not (_depthwise(node) and node.input(1).type.dtype is F32):
            return self.product_obstacle(node, value)
        if not images and not isinstance(op, Pointwise):
            return f"{op.name} has no kernel in {self.dtype}"
        if not images and not self.pointwise(node):
            return f"it has operands of other types, or constants beyond the range of {self.dtype}"
        if any(self.graph.is_output(v) for v in node.outputs):
            return "its result is an output of the network"
        wide = [user for v in node.outputs for user in v.uses if user not in self.narrow]
        if wide:
            return f"{wide[0].origin} reads its result in f32"
        return "" if any(v.uses for v in node.outputs) else "no layer reads its result"

    def attends(self, node: Node) -> bool:
        """Whether attention in one operator is computed in the narrow type."""
        op = node.op
        assert isinstance(op, HeadAttention)
        sizes = op.heads([None if v is None else v.type for v in node.inputs])
        return self.joined is not None and self.joined(replace(sizes, dtype=self.dtype))

    def product_obstacle(self, node: Node, x: Value) -> str:
        """Why a product is not computed in the narrow type: that takes stored weights, and, of bf16, an even number of
        products in each sum.
        """
        if node.input(1).data is None:
            both = self.rows and isinstance(node.op, MatMul) and min(v.type.rank for v in node.inputs if v) >= 2
            return "" if both else "its weights are not constant"
        if self.arithmetic_of(node) != "narrow":
            return self.reason_of(node)
        if node.input(1).type.dtype is not self.dtype:
            return f"its weights cannot be stored as {self.dtype}"
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if isinstance(node.op, Conv):
            if x.type.rank <= 2:
                return "its input has no spatial dimension"
            return "" if bias is None or bias.constant else "its bias is not constant"
        if isinstance(node.op, Gemm) and node.op.transA:
            return "its first factor is transposed"
        even = self.dtype is DType.F16 or x.type.dims[-1] % 2 == 0
        return "" if even else f"its sums have an odd number of products: {x.type.dims[-1]}"

    def pointwise(self, node: Node) -> bool:
        floats = all(v is None or v.type.dtype is F32 for v in (*node.inputs, *node.outputs))
        return isinstance(node.op, Pointwise) and floats and all(v is None or self.holds(v) for v in node.inputs)

    def holds(self, value: Value) -> bool:
        """Whether the narrow type has the range of a constant."""
        if value.data is None or self.dtype is not DType.F16:
            return True
        sizes = np.abs(value.array[value.array != 0])
        return bool(((sizes >= _LEAST_NORMAL) & (sizes <= _GREATEST)).all())

    def rewire(self, node: Node) -> None:
        inputs = list(node.inputs)
        if isinstance(node.op, Cast) and node not in self.narrow and node.input(0).producer in self.narrow:
            if node.output.type.dtype is self.dtype and not self.graph.is_output(node.output):
                self.graph.replace(node.output, node.input(0))  # what it rounded has that type now
                self.graph.remove(node)
            return
        op = node.op
        weighted = isinstance(op, Operator) and op.narrow_images and _is_product(node)
        weighted = weighted and node.input(1).data is not None
        weighted = weighted or (isinstance(op, Operator) and op.narrow_rows and not op.moves)
        factors = 3 if isinstance(op, HeadAttention) else len(inputs)
        for i, value in enumerate(inputs):
            if value is None or (weighted and i > 0) or (i >= factors and node in self.narrow):
                continue
            if node in self.narrow and value.type.dtype is F32:
                inputs[i] = self.as_type(value, self.dtype, node)
            elif node not in self.narrow and value.producer in self.narrow:
                inputs[i] = self.as_type(value, F32, node)
        if inputs != list(node.inputs):
            self.graph.rewire(node, tuple(inputs))
        if node in self.narrow:
            for value, type in zip(node.outputs, node.infer(), strict=False):  # those that are used
                value.type = type

    def as_type(self, value: Value, dtype: DType, before: Node | None) -> Value:
        if (value, dtype) not in self.cast:
            self.cast[value, dtype] = self.converted(value, dtype, before)
        return self.cast[value, dtype]

    def converted(self, value: Value, dtype: DType, before: Node | None) -> Value:
        if value.data is not None:
            return _constant(self.graph, value, dtype)
        origin = value.producer.origin if value.producer else Origin(self.graph.source, value.name)
        origin = replace(origin, type="Cast")
        if value.producer is not None and isinstance(value.producer.op, Cast):
            source = value.producer.input(0)
            if source.type.dtype is dtype and value.type.dtype is F32:
                return source  # the model rounds it already
        cast = make("Cast", to=dtype.value)
        return self.graph.add(cast, [value], [f"{value.name}:{dtype}"], origin, before=before).output
