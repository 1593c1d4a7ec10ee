"""Comparisons of quantised tensors, and the index of the largest or the smallest element.

Source: ComparisonWithScaling of tensorflow/lite/kernels/internal/reference/comparisons.h.
"""

from __future__ import annotations

from functools import partial

from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType
from tenon.network.ops.comparison import Equal
from tenon.network.ops.requantize import limits, quantized_multiplier
from tenon.network.passes.base import Match, Result, Rule, make
from tenon.network.passes.integers.operands import Operand, operand
from tenon.network.passes.patterns import IsOp
from tenon.options import Arithmetic

COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
HEADROOM = 8
"""Bits that operands are shifted up by before they are scaled."""


def comparison_rules(arithmetic: Arithmetic) -> list[Rule]:
    compare = partial(_compared, arithmetic=arithmetic)
    return [
        *(Rule(f"integers: {name}", IsOp(name), compare) for name in COMPARISONS),
        *(Rule(f"integers: {name}", IsOp(name), _extreme) for name in ("ArgMax", "ArgMin")),
    ]


def _compared(match: Match, *, arithmetic: Arithmetic) -> Result:
    a, b = operand(match, match.root.input(0)), operand(match, match.root.input(1))
    if isinstance(a, str) or isinstance(b, str) or a.grid.steps or b.grid.steps:
        return None
    alike = a.grid.same(b.grid)
    # of 16 bits, LiteRT scales to compare for equality only, and TFLite Micro has no kernel
    wide = a.grid.dtype is b.grid.dtype is DType.I16 and arithmetic == "litert" and isinstance(match.root.op, Equal)
    if arithmetic == "onnx" or (a.grid.dtype is DType.I16 and not wide):
        return match.add(match.root.op, a.value, b.value) if alike else None
    if {a.grid.dtype, b.grid.dtype} - {DType.I8, DType.U8, DType.I16} or max(a.grid.scale, b.grid.scale) >= 1:
        return None
    return match.add(match.root.op, *(_scaled(match, each) for each in (a, b)))


def _scaled(match: Match, x: Operand) -> Value:
    """x in 256ths of a unit, as TFLite's kernels round it: neighbours may become equal."""
    low, high = limits(DType.I32)
    factor = quantized_multiplier(x.grid.scale)
    op = make(
        "IntegerRescale",
        zeros=(x.grid.zero, 0),
        above=factor,
        below=factor,
        headroom=HEADROOM,
        low=low,
        high=high,
        to=DType.I32.value,
        scale=1 / (1 << HEADROOM),
    )
    return match.add(op, x.value)


def _extreme(match: Match) -> Result:
    """A positive scale preserves the order."""
    x = operand(match, match.root.input(0))
    return None if isinstance(x, str) or match.root.input(0).constant else match.add(match.root.op, x.value)
