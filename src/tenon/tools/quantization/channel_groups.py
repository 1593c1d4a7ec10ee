"""Tensors whose channels can be scaled together: the weights on both sides of them take up the factors.

A group reaches from the products that compute a tensor, through operators that commute with a positive factor for each
channel (ReLU, pools, additions of tensors of the same group), to the products that read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.activation import Clip, LeakyRelu, PRelu, Relu
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.move import Transpose
from tenon.network.ops.pointwise import Add
from tenon.network.ops.pool import AveragePool, MaxPool
from tenon.network.ops.quantised_values import bounds
from tenon.network.ops.reduce import GlobalAveragePool, GlobalMaxPool, ReduceMean
from tenon.network.ops.shape import Flatten, Identity, Reshape, Squeeze
from tenon.network.ops.slice_gather import Pad
from tenon.network.ops.traits import is_product
from tenon.network.passes.base import attribute
from tenon.tools.quantization.simulation import channel_axis

_COMMUTE = (AveragePool, GlobalAveragePool, GlobalMaxPool, Identity, LeakyRelu, MaxPool, PRelu, Relu)


@dataclass(frozen=True)
class ChannelPlace:
    """Channels of a tensor lie along ``axis``, each ``repeat`` times in a row."""

    axis: int
    repeat: int = 1


@dataclass
class ChannelGroup:
    """``makers`` compute its tensors, ``readers`` read them as data; ``limited`` are its Clip nodes."""

    channels: int
    makers: list[Node] = field(default_factory=list)
    readers: list[tuple[Node, ChannelPlace]] = field(default_factory=list)
    limited: list[Node] = field(default_factory=list)
    tensors: dict[Value, ChannelPlace] = field(default_factory=dict)


def channel_groups(graph: Graph) -> list[ChannelGroup]:
    """The groups of ``graph`` in the order of their first makers."""
    groups: list[ChannelGroup] = []
    seen: set[Value] = set()
    for node in graph:
        if has_own_weights(node) and node.output not in seen:
            axis = channel_axis(node)
            group = ChannelGroup(node.output.type.dims[axis])
            fits = _grown(graph, group, node.output, ChannelPlace(axis))
            seen |= group.tensors.keys()
            if fits and group.readers:
                groups.append(group)
    return groups


def _grown(graph: Graph, group: ChannelGroup, start: Value, place: ChannelPlace) -> bool:
    """Add all tensors that have the channels of ``start``; false if any of them cannot be scaled."""
    todo, fits = [(start, place)], True
    while todo:
        value, at = todo.pop()
        known = group.tensors.get(value)
        if known is not None:
            fits = fits and known == at
            continue
        group.tensors[value] = at
        if value.producer is None or graph.is_output(value) or value.type.dims[at.axis] != group.channels * at.repeat:
            fits = False
            continue
        before = _before(group, value.producer, at)
        fits = fits and before is not None
        todo += before or []
        for reader in dict.fromkeys(value.uses):
            after = _after(group, reader, value, at)
            fits = fits and after is not None
            todo += after or []
    return fits


def _before(group: ChannelGroup, node: Node, at: ChannelPlace) -> list[tuple[Value, ChannelPlace]] | None:
    """The operands of ``node`` with the channels of its result; None if it does not commute with factors."""
    if has_own_weights(node):
        if node in group.makers:
            return []
        group.makers.append(node)
        return [] if at == ChannelPlace(channel_axis(node)) else None
    if isinstance(node.op, Add):
        alike = all(not v.constant and v.type.dims == node.output.type.dims for v in map(node.input, (0, 1)))
        return [(node.input(i), at) for i in (0, 1)] if alike else None
    data = node.input(0)
    if isinstance(node.op, Flatten | Reshape | Squeeze):
        place = _place_before(data.type.dims, node.output.type.dims, at)
        return None if place is None else [(data, place)]
    if isinstance(node.op, Transpose):
        return [(data, ChannelPlace(attribute(node, "perm")[at.axis], at.repeat))]
    return [(data, at)] if _commutes(node, at) else None


def _after(group: ChannelGroup, node: Node, value: Value, at: ChannelPlace) -> list[tuple[Value, ChannelPlace]] | None:
    """The results of ``node`` with the channels of its operand; None if it does not commute with factors."""
    if any(v is value for v in node.inputs[1:]) and not isinstance(node.op, Add):
        return None
    if has_own_weights(node):
        if not _reads_channels(node, at):
            return None
        group.readers.append((node, at))
        return []
    if isinstance(node.op, Add):
        return [(node.output, at)]
    if isinstance(node.op, Flatten | Reshape | Squeeze):
        place = _place_after(value.type.dims, node.output.type.dims, at)
        return None if place is None else [(node.output, place)]
    if isinstance(node.op, Transpose):
        return [(node.output, ChannelPlace(list(attribute(node, "perm")).index(at.axis), at.repeat))]
    if not _commutes(node, at):
        return None
    if isinstance(node.op, Clip):
        group.limited.append(node)
    return [(node.output, at)]


def has_own_weights(node: Node) -> bool:
    """Whether it has constant weights that nothing else reads."""
    if not is_product(node) or not node.input(1).constant or len(node.input(1).uses) != 1:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and (not bias.constant or len(bias.uses) != 1):
        return False
    if isinstance(node.op, Gemm):
        return bool(attribute(node, "alpha") == attribute(node, "beta") == 1.0) and not attribute(node, "transA")
    if isinstance(node.op, ConvTranspose):
        return bool(attribute(node, "group") == 1)
    return isinstance(node.op, Conv) or node.input(1).type.rank == 2


def _reads_channels(node: Node, at: ChannelPlace) -> bool:
    return at.axis == (1 if isinstance(node.op, Conv | ConvTranspose) else node.input(0).type.rank - 1)


def _commutes(node: Node, at: ChannelPlace) -> bool:
    if isinstance(node.op, Clip):
        limits = bounds(node)
        return limits is not None and limits[0] == 0.0
    if isinstance(node.op, Pad):
        value = node.inputs[2] if len(node.inputs) > 2 else None
        zero = value is None or (value.constant and not value.array.any())
        return node.output.type.dims[at.axis] == node.input(0).type.dims[at.axis] and bool(zero)
    if isinstance(node.op, ReduceMean):
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        rank = node.input(0).type.rank
        kept = axes is not None and axes.constant and at.axis not in {int(a) % rank for a in axes.array.reshape(-1)}
        return kept and node.output.type.rank == rank
    return isinstance(node.op, _COMMUTE)


def _place_after(before: tuple[int, ...], after: tuple[int, ...], at: ChannelPlace) -> ChannelPlace | None:
    """Where channels are after axes that follow theirs were joined to it, or axes of one element left out."""
    if before[: at.axis] != after[: at.axis] or len(after) <= at.axis:
        return None
    rest = 1
    for n in before[at.axis + 1 :]:
        rest *= n
    if len(after) == at.axis + 1 and after[at.axis] == before[at.axis] * rest:
        return ChannelPlace(at.axis, at.repeat * rest)
    same = after[at.axis] == before[at.axis] and rest == 1 and all(n == 1 for n in after[at.axis + 1 :])
    return at if same else None


def _place_before(before: tuple[int, ...], after: tuple[int, ...], at: ChannelPlace) -> ChannelPlace | None:
    """Where channels of the operand are that ``at`` is the place of in the result."""
    places = (ChannelPlace(at.axis), at)
    return next((p for p in places if len(before) > p.axis and _place_after(before, after, p) == at), None)
