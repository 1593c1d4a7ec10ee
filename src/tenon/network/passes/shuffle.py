"""Fusion of channel shuffles with the concatenation before and the slices after them, so that every channel is moved
once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tenon.network.graph.graph import Node, Value
from tenon.network.ops.move import Concat, Split
from tenon.network.ops.shuffle import ChannelShuffle
from tenon.network.ops.slice_gather import Slice
from tenon.network.passes.base import Match, Result, rule, rules
from tenon.network.passes.patterns import IsOp


@rule(IsOp("ChannelShuffle"))
def shuffle_of_concat(match: Match) -> Result:
    """ChannelShuffle (Concat (a, b)) moves the channels of a and b"""
    node = match.root
    x, op = node.input(0), node.op
    joined = x.producer
    if joined is None or not isinstance(joined.op, Concat) or not isinstance(op, ChannelShuffle) or op.parts:
        return None
    groups = [v for v in joined.inputs if v is not None]
    along_channels = joined.op.axis % x.type.rank == 1
    alike = len(groups) == op.groups > 1 and all(v.type == groups[0].type for v in groups)
    return match.add(op, *groups) if along_channels and alike and match.sole(x) else None


@rule(IsOp("Slice|Split"))
def cut_of_shuffle(match: Match) -> Result:
    """Slice (ChannelShuffle (x)) is a part that the shuffle makes"""
    node = match.root
    shuffle = node.input(0).producer
    if shuffle is None or not isinstance(shuffle.op, ChannelShuffle) or shuffle.op.parts:
        return None
    whole = shuffle.output
    cuts_of_readers = [_channels(reader) for reader in whole.uses]
    if match.graph.is_output(whole) or not all(cuts_of_readers):
        return None
    cuts = _channels(node)
    bounds = sorted({0, whole.type.dims[1], *(end for cuts in cuts_of_readers for cut in cuts for end in cut)})
    parts = tuple(b - a for a, b in pairwise(bounds))
    if len(parts) != max(2, len(cuts)):
        return "other readers slice it differently: some channels would be moved twice"
    made = match.add_all(replace(shuffle.op, parts=parts), *shuffle.inputs, count=len(parts))
    return [made[bounds.index(start)] for start, _ in cuts]


def _channels(node: Node) -> list[tuple[int, int]]:
    """The channel ranges of the outputs of a Slice or Split; none if it slices other axes."""
    x = node.input(0)
    if isinstance(node.op, Split) and node.op.axis % x.type.rank == 1:
        return _following(node.outputs)
    if not isinstance(node.op, Slice) or any(v is not None and not v.constant for v in node.inputs[1:]):
        return []
    cuts = node.op.slices(x.type.dims, [None if v is None else v.data for v in node.inputs[1:]])
    ranges = [range(n)[cut] for n, cut in zip(x.type.dims, cuts, strict=True)]
    others = all(r == range(n) for i, (r, n) in enumerate(zip(ranges, x.type.dims, strict=True)) if i != 1)
    one = ranges[1]
    return [(one.start, one.stop)] if others and one.step == 1 and len(one) else []


def _following(outputs: tuple[Value, ...]) -> list[tuple[int, int]]:
    ranges, start = [], 0
    for value in outputs:
        ranges.append((start, start + value.type.dims[1]))
        start += value.type.dims[1]
    return ranges


SHUFFLE = rules(
    "join channel shuffles with what is around them",
    shuffle_of_concat,
    cut_of_shuffle,
    level=2,
    ensures="channels are not moved more than once to be concatenated, shuffled or sliced",
)
