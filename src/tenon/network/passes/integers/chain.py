"""The chain of nodes from an operator's float result to the QuantizeLinear that stores it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from tenon.network.graph.graph import Node, Value
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.mask import Mask
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.pointwise import Mul
from tenon.network.ops.quantised_values import bounds, slope
from tenon.network.ops.slice_gather import Pad
from tenon.network.passes.base import Match
from tenon.network.passes.integers.operands import TensorGrid, below_all, can_move, grid_of, moved


@dataclass(frozen=True)
class FloatChain:
    """From ``core``, whose result has no other reader, through ``moves`` (in order) and bounds to a grid.

    ``low`` and ``high`` bound the result, in units of the QuantizeLinear's input; ``scaled`` is true if a constant
    factor is among the nodes.  Negative results are multiplied by ``slope``, the LeakyRelu's before the bounds.
    """

    core: Node
    moves: tuple[Node, ...]
    low: float
    high: float
    scaled: bool
    grid: TensorGrid
    slope: float = 1.0

    def bounds(self, *, away: bool) -> tuple[int, int]:
        """``low`` and ``high`` as integers of the grid, ties rounded away from zero or to even."""
        least, most = self.grid.range
        step = 1.0 if self.grid.steps else self.grid.scale

        def on_grid(bound: float) -> int:
            steps = float(np.float32(bound) / np.float32(step))
            whole = np.sign(steps) * np.floor(abs(steps) + 0.5) if away else np.rint(steps)
            return int(np.clip(whole + self.grid.zero, least, most))

        low = least if self.low == -inf else on_grid(self.low)
        return low, max(low, most if self.high == inf else on_grid(self.high))

    def finish(self, match: Match, value: Value) -> Value:
        """The integers of the core, after the same data movement as its result."""
        value.type = replace(value.type, quant=self.grid.quant)
        for node in self.moves:
            value = moved(match, node, value, self.grid)
        return value


def chain(match: Match, core: tuple[type[Operator], ...] = ()) -> FloatChain | str:
    """The chain from the matched QuantizeLinear back to the operator that computes its input, at the latest to one
    of one of the classes ``core``."""
    grid = grid_of(match.root)
    if isinstance(grid, str):
        return grid
    value, moves, low, high, scaled = match.root.input(0), list[Node](), -inf, inf, False
    leak = 1.0
    while True:
        node = value.producer
        if node is None:
            return ""  # where floats become integers first
        if not match.sole(value):
            return f"the float result of {node.op.name} is read by others too"
        limits, negative_slope = bounds(node), slope(node)
        if isinstance(node.op, core):
            return FloatChain(node, tuple(reversed(moves)), low, high, scaled, grid, leak)
        if leak != 1 and (limits is not None or _factor(node) is not None):
            return "its result is clipped or scaled before a LeakyRelu"
        if limits is not None and scaled:
            return "its result is clipped before it is scaled"
        if limits is not None:
            low, high = min(max(low, limits[0]), high), max(min(high, limits[1]), low)
        elif _factor(node) is not None and not scaled:
            scaled = True
        elif negative_slope is not None and leak == 1 and not scaled and _has_weights(node.input(0)):
            leak = negative_slope
        elif (can_move(node) and not isinstance(node.op, Mask | Pad)) or below_all(node, moves):
            moves.append(node)
        else:
            return FloatChain(node, tuple(reversed(moves)), low, high, scaled, grid, leak)
        following = node.input(0) if limits is not None or _factor(node) is None else _factor(node)
        assert following is not None
        value = following


def _has_weights(value: Value) -> bool:
    """Whether a product by constant weights computes ``value``, its elements moved at most."""
    while value.producer is not None and can_move(value.producer) and not isinstance(value.producer.op, Mask | Pad):
        value = value.producer.input(0)
    node = value.producer
    return node is not None and isinstance(node.op, Conv | ConvTranspose | Gemm | MatMul)


def _factor(node: Node) -> Value | None:
    """The operand that a Mul by a constant multiplies."""
    if not isinstance(node.op, Mul):
        return None
    a, b = node.input(0), node.input(1)
    return a if b.constant and not a.constant else b if a.constant and not b.constant else None
