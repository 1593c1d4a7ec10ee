"""Sums and products of functions of one 8-bit tensor (x * Sigmoid(x)), and functions of functions, as one table."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType
from tenon.network.ops.integer_lookup import Lookup
from tenon.network.ops.requantize import limits
from tenon.network.passes.base import Match, Result, Rule, make
from tenon.network.passes.patterns import IsOp


def same_operand_rules() -> list[Rule]:
    """Rules to apply after all functions of one 8-bit tensor are tables."""
    return [Rule("integers: one operand", IsOp("IntegerAdd|IntegerMul|Lookup"), _tabulated)]


def _tabulated(match: Match) -> Result:
    node = match.root
    operands = [v for v in node.inputs if v is not None and not v.constant]
    if not isinstance(node.op, Lookup) and any(v is not None and v.constant and v.type.size > 1 for v in node.inputs):
        return None  # a constant per channel
    sources = {id(source): source for source in map(_source, operands)}
    if len(sources) != 1:
        return None
    (source,) = sources.values()
    eight_bits = {source.type.dtype, node.output.type.dtype} <= {DType.I8, DType.U8}
    if operands == [source] or not eight_bits or source.type.dims != node.output.type.dims:
        return None
    (codes,) = node.op.evaluate([None if v is None else _codes(v, source) for v in node.inputs])
    assert codes is not None
    quant = node.output.type.quant
    scale, zero = (quant.scale[0], quant.zero_point[0]) if quant else (0.0, 0)
    return match.add(make("Lookup", scale=scale, zero=zero), source, match.constant("table", codes.reshape(-1)))


def _source(value: Value) -> Value:
    """The value that a value is an elementwise function of."""
    node = value.producer
    return node.input(0) if node is not None and isinstance(node.op, Lookup) else value


def _codes(value: Value, source: Value) -> Array:
    """A value for every integer that ``source`` may be, in ascending order; a constant as it is."""
    if value.constant:
        return value.array
    low, high = limits(source.type.dtype)
    codes = np.arange(low, high + 1).astype(source.type.dtype.numpy)
    if value is source or value.producer is None:
        return codes
    (result,) = value.producer.op.evaluate([codes, value.producer.input(1).array])
    assert result is not None
    return np.asarray(result)
