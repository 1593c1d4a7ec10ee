"""Channels of integer networks that no result depends on are removed, exactly.

Forward, every channel of an image gets a range of integers, by interval arithmetic over the sums of convolutions; a
range of one integer is a constant.  Backward, a reader does not need a channel if its weights for it are zero, or if
the channel is a constant whose contribution becomes part of the bias.  With padding, windows at the border see the
zero point instead of the constant: there the constant must be the zero point.  Operators that compute each channel from
the same one of their inputs lose it from all of them together, or from none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.integer_arithmetic import IntegerBinary
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_lookup import Lookup
from tenon.network.ops.integer_pool import IntegerAveragePool
from tenon.network.ops.integer_product import ACTIVATIONS, IntegerProduct
from tenon.network.ops.pool import MaxPool
from tenon.network.ops.requantize import SUMS, limits
from tenon.network.passes.base import Log, Pass, substitute

WHOLE = 4
"""The number of channels that are left is a multiple of this where it was one before: kernels compute several at once.
"""


@dataclass(frozen=True)
class ChannelRun:
    """The least and the greatest integer of each channel, in i64."""

    low: Array
    high: Array

    @classmethod
    def of(cls, value: Value) -> ChannelRun:
        """All integers of the type."""
        least, most = limits(value.type.dtype)
        return cls(np.full(value.type.dims[1], least, np.int64), np.full(value.type.dims[1], most, np.int64))

    @property
    def constant(self) -> Array:
        """Whether each channel has one integer only."""
        result: Array = self.low == self.high
        return result


def _dense(node: Node) -> bool:
    """Whether every result is a sum over all channels, by constant weights."""
    op = node.op
    if not isinstance(op, IntegerProduct) or any(v is not None and not v.constant for v in node.inputs[1:]):
        return False
    return isinstance(op, IntegerGemm) or (isinstance(op, IntegerConv) and op.group == 1)


def _channelwise(node: Node) -> bool:
    """Whether every channel of the result depends on the same channel of images among the operands only."""
    op = node.op
    if len(node.outputs) != 1:
        return False
    if isinstance(op, IntegerConv):
        constant = all(v is None or v.constant for v in node.inputs[1:])
        return constant and op.group == node.input(0).type.dims[1] == node.output.type.dims[1] > 1
    if isinstance(op, IntegerBinary):
        return all(v is not None and not v.constant and v.type.dims == node.output.type.dims for v in node.inputs)
    return isinstance(op, IntegerAveragePool | MaxPool) or (isinstance(op, Lookup) and node.input(1).constant)


def _images(node: Node) -> list[Value]:
    """The operands whose channels count."""
    return [v for v in node.inputs if v is not None] if isinstance(node.op, IntegerBinary) else [node.input(0)]


# ---------------------------------------------------------------------------------------------- ranges
def ranges(graph: Graph) -> dict[Value, ChannelRun]:
    """The ranges of results of integer operators."""
    known: dict[Value, ChannelRun] = {}
    for node in graph:
        if len(node.outputs) != 1 or node.output.type.dtype not in ACTIVATIONS or node.output.type.rank < 2:
            continue
        if not (_dense(node) or _channelwise(node)):
            continue
        given = [known.get(v) or ChannelRun.of(v) for v in _images(node)]
        if isinstance(node.op, IntegerProduct):
            known[node.output] = _of_product(node, node.op, given[0])
        elif isinstance(node.op, Lookup):
            known[node.output] = _of_table(node, given[0])
        elif isinstance(node.op, IntegerBinary):
            known[node.output] = _of_pair(node, node.op, given)
        else:  # monotonic in each element
            low, high = (_evaluated(node, [bound]) for bound in (given[0].low, given[0].high))
            known[node.output] = ChannelRun(low.min((0, *range(2, low.ndim))), high.max((0, *range(2, high.ndim))))
    return known


def _of_product(node: Node, op: IntegerProduct, x: ChannelRun) -> ChannelRun:
    low, high = x.low, x.high
    if isinstance(op, IntegerConv) and any(op.pads):
        low, high = np.minimum(low, op.x_zero), np.maximum(high, op.x_zero)
    low, high = low - op.x_zero, high - op.x_zero
    weights = _by_channel(node).astype(np.int64) - op.w_zero
    if weights.shape[1] != len(low):  # depthwise
        low, high = low[:, None], high[:, None]
    up, down = np.maximum(weights, 0).sum(2), np.minimum(weights, 0).sum(2)
    bias = 0 if node.inputs[2] is None else node.inputs[2].array.astype(np.int64)
    factors = [v.array for v in node.inputs[3:] if v is not None]

    def stored(ends: tuple[Array, Array]) -> Array:
        sums = (up * ends[0] + down * ends[1]).sum(1) + bias
        return op.stored(sums, factors[0], factors[1] if len(factors) > 1 else None).astype(np.int64)

    return ChannelRun(stored((low, high)), stored((high, low)))


def _by_channel(node: Node) -> Array:
    """Weights [out, in / group, rest]."""
    weights = node.input(1).array
    channels = weights.shape[1] if isinstance(node.op, IntegerConv) else node.input(0).type.dims[1]
    return weights.reshape(len(weights), channels, -1)


def _of_table(node: Node, x: ChannelRun) -> ChannelRun:
    table, least = node.input(1).array.astype(np.int64), limits(node.input(0).type.dtype)[0]
    parts = [table[a - least : b - least + 1] for a, b in zip(x.low, x.high, strict=True)]
    return ChannelRun(np.array([p.min() for p in parts]), np.array([p.max() for p in parts]))


def _of_pair(node: Node, op: IntegerBinary, given: list[ChannelRun]) -> ChannelRun:
    """Known where both operands are constants."""
    both = given[0].constant & given[1].constant
    types = [v.type.dtype.numpy for v in _images(node)]
    operands = [r.low.astype(t) for r, t in zip(given, types, strict=True)]
    result = np.asarray(op.reference(*operands)).astype(np.int64)
    return ChannelRun(np.where(both, result, op.low), np.where(both, result, op.high))


def _evaluated(node: Node, values: list[Array]) -> Array:
    """The result of a node on images of one integer for each channel."""
    arrays = [
        np.broadcast_to(value.reshape(-1, *(1,) * (v.type.rank - 2)).astype(v.type.dtype.numpy), (1, *v.type.dims[1:]))
        for v, value in zip(_images(node), values, strict=True)
    ]
    op: Any = node.op
    result: Array = op.reference(*arrays).astype(np.int64)
    return result


# ----------------------------------------------------------------------------------------- what is removed
def removable(graph: Graph, known: dict[Value, ChannelRun]) -> dict[Value, Array]:
    """The channels of each value that are removed, as a mask; values that keep all of them are left out."""
    gone = {v: np.ones(v.type.dims[1], bool) for v in known if not graph.is_output(v)}
    sums = {(reader, v): _unread(reader, v, known[v]) for v in gone for reader in v.uses if not _channelwise(reader)}
    changed = True
    while changed:
        changed = False
        for v, mask in gone.items():
            kept = mask.copy()
            for reader in v.uses:
                kept &= sums[reader, v] if (reader, v) in sums else gone.get(reader.output, np.zeros_like(kept))
            if v.producer is not None and _channelwise(v.producer):
                for x in _images(v.producer):
                    kept &= gone.get(x, np.zeros_like(kept))
            if (kept != mask).any():
                gone[v], changed = kept, True
    return {v: mask for v, mask in ((v, _rounded(mask)) for v, mask in gone.items()) if mask.any()}


def _unread(reader: Node, v: Value, x: ChannelRun) -> Array:
    """The channels of ``v`` that a reader of all channels can do without."""
    if not _dense(reader) or v is not reader.input(0):
        return np.zeros(v.type.dims[1], bool)
    op = reader.op
    assert isinstance(op, IntegerProduct)
    weights = _by_channel(reader).astype(np.int64) - op.w_zero
    absorbed = x.constant
    if isinstance(op, IntegerConv) and any(op.pads):
        absorbed = absorbed & (x.low == op.x_zero)
    result: Array = absorbed | ~weights.any((0, 2))
    return result if _bias_fits(reader, op, weights, x, result) else np.zeros_like(result)


def _bias_fits(reader: Node, op: IntegerProduct, weights: Array, x: ChannelRun, mask: Array) -> bool:
    total = np.abs(weights).sum(2) @ np.where(mask, np.abs(x.low - op.x_zero), 0)
    bias = 0 if reader.inputs[2] is None else np.abs(reader.inputs[2].array.astype(np.int64))
    return bool((total + bias).max(initial=0) < SUMS)


def _rounded(mask: Array) -> Array:
    """Some channels are kept after all, the first ones, so that at least one is left, or whole blocks are."""
    count, step = len(mask), WHOLE if len(mask) % WHOLE == 0 else 1
    left = max(1, count - int(mask.sum()))
    spare = left + -left % step - (count - int(mask.sum()))
    pruned = mask.copy()
    pruned[np.flatnonzero(mask)[:spare]] = False
    return pruned


# --------------------------------------------------------------------------------------------- rewriting
def remove_channels(graph: Graph, log: Log) -> int:
    """Remove the channels that no result depends on; returns the number of nodes that change."""
    known = ranges(graph)
    gone = removable(graph, known) if known else {}
    names, new, changes = Names(graph), dict[Value, Value](), 0
    for node in list(graph):
        if len(node.outputs) != 1 or not any(v in gone for v in (*node.inputs, node.output)):
            continue
        drop_out = gone.get(node.output)
        op, inputs = _without(graph, names, node, known, gone, new)
        made = graph.add(op, inputs, [names.fresh(node.output.name)], node.origin, before=node).output
        made.type = replace(made.type, quant=node.output.type.quant)
        changes += 1
        if drop_out is None:
            substitute(graph, node.output, made, fresh=True)
        else:
            new[node.output] = made
            log(f"{node.origin}: {int(drop_out.sum())} of {len(drop_out)} channels are removed")
    graph.prune()
    return changes


def _without(
    graph: Graph,
    names: Names,
    node: Node,
    known: dict[Value, ChannelRun],
    gone: dict[Value, Array],
    new: dict[Value, Value],
) -> tuple[Any, list[Value | None]]:
    """The operator and operands of a node without the channels."""
    op: Any = node.op
    inputs = [None if v is None else new.get(v, v) for v in node.inputs]
    if not isinstance(op, IntegerProduct):
        return op, inputs
    x, w = node.input(0), node.input(1)
    weights, bias = _by_channel(node), None if node.inputs[2] is None else node.inputs[2].array
    out = ~gone.get(node.output, np.zeros(len(weights), bool))
    if (lost := gone.get(x)) is not None and _dense(node):
        dims = (-1, int((~lost).sum()), *(w.type.dims[2:] if isinstance(op, IntegerConv) else (weights.shape[2],)))
        apart = (weights[:, lost].astype(np.int64) - op.w_zero).sum(2) @ (known[x].low[lost] - op.x_zero)
        bias = (apart + (0 if bias is None else bias)).astype(np.int32 if bias is None else bias.dtype)
        whole = weights[:, ~lost].reshape(dims)
        whole = whole if isinstance(op, IntegerConv) else whole.reshape(len(weights), -1)
    else:
        whole = w.array
    if isinstance(op, IntegerConv) and op.group > 1:
        op = replace(op, group=int(out.sum()))

    def constant(old: Value | None, data: Array | None) -> Value | None:
        if data is None:
            return None
        value = graph.constant(names.fresh("bias" if old is None else old.name), np.ascontiguousarray(data))
        if old is not None and old.type.quant is not None and old.type.quant.axis is None:
            value.type = replace(value.type, quant=old.type.quant)
        return value

    rows = [v if v is None or len(v.array) < len(out) else constant(v, v.array[out]) for v in node.inputs[3:]]
    return op, [
        inputs[0],
        constant(w, whole[out]),
        constant(node.inputs[2], None if bias is None else bias[out]),
        *rows,
    ]


CHANNELS = Pass(
    "remove channels",
    remove_channels,
    level=2,
    ensures="no channel of an integer network is computed that no result depends on",
)
