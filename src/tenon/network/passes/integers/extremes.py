"""The minimum and the maximum of a quantised tensor and constants: of integers of one grid."""

from __future__ import annotations

from math import isinf

import numpy as np

from tenon.network.graph.graph import Value
from tenon.network.passes.base import Match
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.operands import operand
from tenon.options import Arithmetic


def extreme(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """Rounding preserves order, so that constants are rounded first."""
    node, grid = chain.core, chain.grid
    if len(node.inputs) != 2 or node.input(0).constant or not node.input(1).constant:
        return f"{node.op.name} of two tensors is computed in float"
    x = operand(match, node.input(0))
    if isinstance(x, str):
        return x
    if not x.grid.same(grid) or grid.steps or chain.scaled or not (isinf(chain.low) and isinf(chain.high)):
        return f"{node.op.name} between two quantisations is computed in float"
    steps = np.rint(node.input(1).array.astype(np.float32) / np.float32(grid.scale)) + np.float32(grid.zero)
    limits = np.clip(steps, *grid.range).astype(grid.dtype.numpy)
    return chain.finish(match, match.add(node.op, x.value, match.constant("limits", limits), origin=node.origin))
