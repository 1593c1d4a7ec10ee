"""Weights of matrix products in blocks of 4 or 8 bits, multiplied as integers.

The formats are those of language models' files (``kernels.block_formats``): 32 consecutive weights of an output channel
share a scale of f16.  Activations are rounded to bytes at run time, 32 of them with a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tenon.errors import InputError
from tenon.machine.kernels.block_formats import FORMATS, dequantised
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import F32
from tenon.network.graph.writer import Names
from tenon.network.ops.expert_product import ExpertMatMul
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.slice_gather import Gather
from tenon.network.passes.base import Log, Pass, make, substitute
from tenon.network.passes.validate import random_inputs
from tenon.network.passes.weight_format import StoredWeights, check_one_size

BLOCK_FORMATS = ("q8_0", "q4_0")
"""The formats that weights are rounded to."""

_BLOCK = 32
_SHARES = np.linspace(0.8, 1.15, 15)
"""Factors for the scale of a block's greatest weight that are tried, of 4 bits."""


def rounded_blocks(weights: Array, format: str) -> Array:
    """Rows of f32 [rows, columns] in blocks, u8 [rows, bytes]; ``columns`` is a multiple of 32.

    Of 8 bits, the greatest magnitude of a block is 127.  Of 4 bits, the greatest weight is -8 times the scale, or a
    little more or less: of the scales that are tried, the one with the least squared error.
    """
    blocks = np.asarray(weights, np.float32).reshape(len(weights), -1, _BLOCK)
    if format == "q8_0":
        scale = _halves(np.abs(blocks).max(-1, keepdims=True) / 127)
        stored: Array = _codes(blocks, scale, -127, 127).astype(np.int8).view(np.uint8)
    else:
        scale = _least_error(blocks)
        codes = (_codes(blocks, scale, -8, 7) + 8).astype(np.uint8)
        stored = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([scale.astype("<f2").view(np.uint8), stored], -1).reshape(len(weights), -1)


def _halves(scale: Array) -> Array:
    """Scales as f16 holds them."""
    return np.asarray(scale.astype(np.float16).astype(np.float32))


def _codes(blocks: Array, scale: Array, least: int, most: int) -> Array:
    """The nearest integers, 0 where the scale is 0."""
    divisor = np.where(scale == 0, np.float32(1), scale)
    return np.asarray(np.clip(np.rint(blocks / divisor), least, most))


def _least_error(blocks: Array) -> Array:
    """The scale of every block with the least squared error, [rows, blocks, 1]."""
    place = np.abs(blocks).argmax(-1)[..., None]
    usual = np.take_along_axis(blocks, place, -1) / -8
    best, least = np.zeros_like(usual), np.full(usual.shape, np.inf)
    for share in _SHARES:
        scale = _halves(usual * np.float32(share))
        error = ((_codes(blocks, scale, -8, 7) * scale - blocks) ** 2).sum(-1, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best


def block_weights(format: str, max_error: float = math.inf, report: StoredWeights | None = None) -> Pass:
    """A pass that gives products by constant matrices, and embeddings, weights in blocks.

    Matrices are of f32, bf16 or f16 with a multiple of 32 inputs.  ``report`` gets how many there are, and, where
    ``max_error`` is a limit, the measured error of the outputs.  Raises InputError for a larger one.
    """

    def run(graph: Graph, log: Log) -> int:
        check_one_size(graph, max_error)
        before = graph.copy() if max_error < math.inf else None
        writer = _BlockWriter(graph, format, log)
        for node in graph:
            writer.change(node)
        graph.prune()
        error = None if before is None else _error(before, graph)
        if error is not None and error > max_error:
            raise InputError(
                f"{graph.source or graph.name}: weights in {format} change the outputs by {error:.2g} of their RMS, "
                f"above max_weight_error={max_error:g}: give a larger limit (--max-weight-error), or another format"
            )
        if report is not None and writer.count:
            report.layers[format] = report.layers.get(format, 0) + writer.count
            report.bytes[format] = report.bytes.get(format, 0) + writer.nbytes
            report.error = error if report.error is None else max(report.error, error or 0.0)
        return writer.count

    return Pass("weights in blocks", run, level=0, ensures="matrices of a multiple of 32 inputs are in blocks")


def _error(before: Graph, after: Graph) -> float:
    """The largest difference of an output on random inputs, over its RMS."""
    inputs = random_inputs(before)
    right, results = (list(evaluate(graph, inputs).values()) for graph in (before, after))
    floats = [(a, b) for a, b in zip(right, results, strict=True) if np.issubdtype(a.dtype, np.floating)]
    return max((math.sqrt(_power(a - b) / (_power(a) or 1.0)) for a, b in floats), default=0.0)


def _power(array: Array) -> float:
    return float(np.square(array.astype(np.float64)).mean()) if array.size else 0.0


@dataclass(eq=False)
class _BlockWriter:
    """Replaces nodes of a graph one after the other."""

    graph: Graph
    format: str
    log: Log
    count: int = 0
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.names = Names(self.graph)
        self.quantised: dict[Value, tuple[Value, ...]] = {}

    def change(self, node: Node) -> None:
        """Replace a product or an embedding."""
        if isinstance(node.op, Gather) and node.op.axis == 0 and _is_matrix(node.input(0)):
            table = node.input(0).array
            if table.shape[1] % _BLOCK == 0 and node.input(1).type.dtype.value in ("i64", "i32"):
                rows = self._rounded(node, table)
                self._replace(node, self._add(node, "BlockGather", (node.input(1), rows), format=self.format))
        elif isinstance(node.op, MatMul | Gemm) and _is_matrix(node.input(1)) and node.input(0).type.dtype is F32:
            self._product(node)
        elif isinstance(node.op, ExpertMatMul) and node.input(3).data is not None:
            self._experts(node)

    def _product(self, node: Node) -> None:
        weights, op = node.input(1).array, node.op
        turned = isinstance(op, Gemm) and op.transB
        rows = weights if turned else weights.T
        plain = isinstance(op, MatMul) or (isinstance(op, Gemm) and (op.alpha, op.beta, op.transA) == (1.0, 1.0, 0))
        if rows.shape[1] % _BLOCK or not plain or not node.input(0).type.rank:
            return
        parts = self._parts(node)
        y = self._add(node, "BlockMatMul", (*parts, self._rounded(node, rows)), format=self.format)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            y = self._add(node, "Add", (y, node.input(2)))
        self._replace(node, y)

    def _experts(self, node: Node) -> None:
        """Replace a product by matrices that a run chooses."""
        weights = node.input(3).array
        if weights.shape[2] % _BLOCK or not weights.size:
            return
        rounded = self._rounded(node, weights.reshape(-1, weights.shape[2]), *weights.shape[:2])
        operands = (*self._parts(node), *node.inputs[1:3], rounded)
        self._replace(node, self._add(node, "ExpertBlockMatMul", operands, format=self.format))

    def _parts(self, node: Node) -> tuple[Value, ...]:
        """The first operand in bytes, their scales and sums."""
        x = node.input(0)
        if x not in self.quantised:
            names = [self.names.fresh(f"{x.name}_{part}") for part in ("bytes", "scales", "sums")]
            self.quantised[x] = self.graph.add(make("BlockQuantize"), [x], names, node.origin, before=node).outputs
        return self.quantised[x]

    def _rounded(self, node: Node, rows: Array, *dims: int) -> Value:
        """The constant of rows in blocks; the rows have the shape ``dims``, if any is given."""
        data = rows.astype(np.float32)
        stored = rounded_blocks(data, self.format)
        error = dequantised(FORMATS[self.format], stored) - data
        signal, noise = float(np.square(data).sum()), float(np.square(error).sum())
        sqnr = 10 * np.log10(signal / noise) if noise and signal else float("inf")
        self.log(f"weights in blocks: {node.origin.layer or node.output.name} in {self.format}, {sqnr:.1f} dB")
        self.count, self.nbytes = self.count + 1, self.nbytes + stored.nbytes
        return self.graph.constant(
            self.names.fresh(f"{node.output.name}_blocks"), stored.reshape(*dims, stored.shape[-1]) if dims else stored
        )

    def _add(self, node: Node, type: str, inputs: tuple[Value | None, ...], **attributes: str) -> Value:
        name = self.names.fresh(f"{node.output.name}_{type.lower()}")
        return self.graph.add(make(type, **attributes), inputs, [name], node.origin, before=node).output

    def _replace(self, node: Node, value: Value) -> None:
        substitute(self.graph, node.output, value, fresh=True)
        self.graph.remove(node)


def _is_matrix(value: Value) -> bool:
    """Whether a value is a constant matrix of floats, which are not integers in fact."""
    if value.data is None or value.data.ndim != 2 or value.stored is not None or not value.data.size:
        return False
    return value.type.dtype.value in ("f32", "f16", "bf16")
