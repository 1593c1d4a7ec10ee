"""Sums in integers of a Conv, a ConvTranspose or a product of matrices by constant weights, and how they become
elements of its result."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tenon.network.graph.graph import Array, Node
from tenon.network.graph.types import DType
from tenon.network.ops.conv import ConvTranspose
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.quantised_values import integers_of
from tenon.network.ops.requantize import Factors, added_factors, largest_added, largest_sums
from tenon.network.passes.base import Match, attribute
from tenon.network.passes.integers.arithmetic import overflows, product_factors
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.operands import BYTES, Operand, QuantisedWeights, bias, operand, weights
from tenon.network.passes.integers.transposed import Spread, by_output
from tenon.options import Arithmetic


@dataclass(frozen=True)
class ProductSums:
    """The integers x times ``weights``, output channels first, with the zero point ``w_zero``, plus ``bias``.

    ``scales`` are those of the weights, per channel or one for all.  ``wide``: TFLite's sums have 64 bits.
    """

    x: Operand
    weights: Array
    w_zero: int
    scales: Array
    bias: Array | None
    wide: bool

    @property
    def units(self) -> Array:
        """The scales of the sums."""
        return units_of(self.x, self.scales)

    def largest(self) -> Array:
        """The largest magnitude of the sums of each channel."""
        return largest_sums(self.weights, self.w_zero, self.x.grid.range, self.x.grid.zero, self.bias)

    def spread(self, spread: Spread) -> ProductSums:
        """The sums of the convolution that stands for a transposed one."""
        repeated = None if self.bias is None else np.repeat(self.bias, spread.count)
        return replace(self, weights=spread.weights(self.weights, self.w_zero), bias=repeated)


def units_of(x: Operand, scales: Array) -> Array:
    """The scales of sums of products of x and weights with these scales."""
    units: Array = np.float32(x.grid.scale) * scales
    return units


def sums_of(match: Match, chain: FloatChain) -> ProductSums | str:
    """The sums of the product that begins ``chain``, or the reason why they are not computed in integers."""
    node = chain.core
    matrix, turned = is_matrix(node), isinstance(node.op, Gemm) and bool(attribute(node, "transB"))
    given = weights(node.input(1), 0 if turned or not (matrix or isinstance(node.op, ConvTranspose)) else 1)
    if isinstance(given, str):
        return given
    x = operand(match, node.input(0))
    if isinstance(x, str):
        return x
    if why := _steps_differ(chain, given, x):
        return why
    data = _by_output(node, given.data if turned or not matrix else given.data.T)
    if isinstance(node.op, ConvTranspose) and given.scales.size > 1 and attribute(node, "group") > 1:
        return "its weights have scales along another axis than output channels"
    stored = bias(node.inputs[2] if len(node.inputs) > 2 else None, units_of(x, given.scales), steps=given.steps)
    if isinstance(stored, str):
        return stored
    if x.grid.dtype is DType.U16:
        return "products of unsigned integers of 16 bits are computed in float"
    wide = x.grid.dtype is DType.I16 and (stored is None or _in_64_bits(node))
    every = None if stored is None else np.broadcast_to(stored, len(data)).copy()
    return ProductSums(x, data, given.zero, given.scales, every, wide)


def is_matrix(node: Node) -> bool:
    return isinstance(node.op, Gemm | MatMul)


def _steps_differ(chain: FloatChain, given: QuantisedWeights, x: Operand) -> str:
    """A message where some of the operands count steps and others are real numbers."""
    if chain.scaled and not (given.steps and x.grid.steps and chain.grid.steps):
        return "a factor stands between its sums and their quantisation"
    if (given.steps or x.grid.steps) and not chain.scaled:
        return "its sums are not scaled"
    return ""


def _by_output(node: Node, data: Array) -> Array:
    return by_output(data, attribute(node, "group")) if isinstance(node.op, ConvTranspose) else data


def _in_64_bits(node: Node) -> bool:
    """Whether the bias of a product was stored in 64 bits: then TFLite's sums have as many."""
    known = None if len(node.inputs) < 3 or node.inputs[2] is None else integers_of(node.inputs[2])
    return known is not None and known.data.dtype == np.int64


@dataclass(frozen=True)
class Rescaling:
    """How sums become elements: by ``factors``.  ``added`` are the factors and the shift of what is added to the sums;
    with ``in_64_bits`` the sums do not fit 32 bits."""

    factors: Factors
    added: tuple[Array, int] | None
    in_64_bits: bool

    def spread(self, spread: Spread) -> Rescaling:
        """The rescaling of the convolution that stands for a transposed one."""
        known = self.factors
        shifts = None if known.shifts is None else spread.spread(known.shifts)
        return replace(self, factors=replace(known, values=spread.spread(known.values), shifts=shifts))


def rescaling_of(
    sums: ProductSums, chain: FloatChain, arithmetic: Arithmetic, other: Operand | None
) -> Rescaling | str:
    """The rescaling of sums that ``other`` is added to, or the reason why there is none."""
    scale, matrix = chain.grid.scale, is_matrix(chain.core)
    factors = product_factors(arithmetic, sums.x.grid.scale, sums.scales, scale, gemm=matrix, wide=sums.wide)
    if isinstance(factors, str):
        return factors
    largest, added = sums.largest(), None
    if other is not None:
        added = added_factors(other.grid.scale / sums.units.astype(np.float64))
        if added is None or sums.x.grid.dtype not in BYTES or chain.slope != 1:
            return "what is added to its sums is computed in float"
        largest = largest + largest_added(other.grid.zero, other.grid.range, *added)
    why = overflows(largest, factors)
    if why and not _fits_64_bits(sums, factors):
        return why
    if why and chain.slope != 1:
        return "a LeakyRelu of sums of 64 bits is computed in float"
    return Rescaling(factors, added, bool(why))


def _fits_64_bits(sums: ProductSums, factors: Factors) -> bool:
    """Whether there is a kernel of sums of 64 bits for the product."""
    plain = not sums.w_zero and sums.weights.dtype == np.int8
    return sums.wide and factors.rounding in ("reduced", "single") and plain
