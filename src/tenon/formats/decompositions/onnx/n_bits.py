"""MatMulNBits of com.microsoft with its weights kept in blocks, multiplied by activations in 8 bits."""

from __future__ import annotations

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.machine.kernels.block_formats import FORMATS, n_bits_name
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32


def _format(node: OnnxNode) -> str:
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes["block_size"])
    return n_bits_name(bits, block, zeros=node.has(3))


def in_blocks(node: OnnxNode) -> bool:
    """Whether a node's weights have a format of ``kernels.block_formats``, without an order of groups or zero points of
    another type than bytes."""
    whole = int(node.attributes["K"]) % int(node.attributes["block_size"]) == 0
    plain = node.input(0).typed and node.input(0).type.dtype is F32 and not node.has(4)
    bytes_only = not node.has(3) or node.constant_input(3, "the zero points").dtype == np.uint8
    return whole and plain and bytes_only and _format(node) in FORMATS


def block_product(node: OnnxNode) -> Value:
    """x times the transpose of the weights."""
    format = FORMATS[_format(node)]
    n, blocks = int(node.attributes["N"]), int(node.attributes["K"]) // format.span
    rows = np.zeros((n, blocks, format.nbytes), np.uint8)
    scales = node.constant_input(2, "the scales").astype("<f4").reshape(n, blocks, 1)
    rows[..., :4] = scales.view(np.uint8)
    if node.has(3):
        rows[..., 4] = _zero_points(node.constant_input(3, "the zero points"), format.bits, n, blocks)
    rows[..., 8:] = node.constant_input(1, "the weights").reshape(n, blocks, -1)
    weights = node.constant(rows.reshape(n, -1), "weights")
    quantised = node.adds("BlockQuantize", 3, node.input(0))
    return node.add("BlockMatMul", *quantised, weights, format=format.name)


def _zero_points(stored: Array, bits: int, rows: int, blocks: int) -> Array:
    """Zero points [rows, blocks], of 4 bits two to a byte, the first in the low half."""
    if bits == 8:
        return stored.reshape(rows, blocks)
    lines = stored.reshape(rows, -1)
    return np.stack([lines & 15, lines >> 4], axis=-1).reshape(rows, -1)[:, :blocks]
