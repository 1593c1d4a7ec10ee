"""Products of constant weights with whole images, which kernels read in the layout that they have."""

from __future__ import annotations

import math

from tenon.network.ops.shape import Reshape
from tenon.network.passes.base import Match, Result, rule, rules
from tenon.network.passes.patterns import IsOp


@rule(IsOp("IntegerGemm"))
def image_into_product(match: Match) -> Result:
    """The rows of a product of integers are images as they are, without a Reshape that would copy their blocks"""
    node = match.root
    rows = node.input(0).producer
    if rows is None or not isinstance(rows.op, Reshape) or not match.sole(node.input(0)):
        return None
    x = rows.input(0)
    dims = x.type.dims
    if not 3 <= len(dims) <= 4 or dims[0] != node.input(0).type.dims[0] or math.prod(dims[2:]) == 1:
        return None
    return match.add(node.op, x, *node.inputs[1:])


IMAGE_PRODUCTS = rules(
    "products of images",
    image_into_product,
    level=2,
    ensures="no Reshape of an image precedes a product of integers",
)
"""After the pass that moves transposes, which recognises a product by its Reshape."""
