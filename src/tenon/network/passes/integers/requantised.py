"""Layers that only move integers, from a tensor of one quantisation to one of another."""

from __future__ import annotations

from tenon.errors import Problem
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.activation import Clip, Relu
from tenon.network.ops.base import Operator
from tenon.network.ops.move import Concat
from tenon.network.ops.pointwise import Max, Min
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.network.ops.slice_gather import Pad
from tenon.network.ops.traits import selects
from tenon.network.passes.integers.operands import TensorGrid, grid_of


def requantised_moves(graph: Graph) -> list[Problem]:
    """Layers whose integers are requantised here, and moved as they are by TFLite's kernels, which ignore that scales
    differ; a node of its own that quantises (ONNX's QuantizeLinear) is none.  Empty but for imported graphs."""
    problems = []
    for node in graph:
        grid = grid_of(node) if isinstance(node.op, QuantizeLinear) else ""
        if not isinstance(grid, TensorGrid):
            continue
        given = [g for g in _sources(node.input(0), node) if not g.same(grid)]
        if given:
            why = f"from {_words(given[0])} to {_words(grid)}: TFLite's kernels move the integers as they are"
            problems.append(Problem(str(node.origin), why))
    return problems


def _sources(value: Value, quantize: Node, moved: bool = False) -> list[TensorGrid]:
    """The quantisations that movement within the layer of ``quantize``, and its fused activation, starts from."""
    node = value.producer
    if node is None:
        return []
    if isinstance(node.op, DequantizeLinear):
        grid = grid_of(node)
        return [grid] if moved and isinstance(grid, TensorGrid) else []
    fused = isinstance(node.op, Clip | Relu)
    if node.origin.layer != quantize.origin.layer or not (fused or _moves(node)):
        return []
    data = node.inputs if isinstance(node.op, Max | Min) else node.inputs[:1]
    return [grid for v in data if v is not None for grid in _sources(v, quantize, moved or not fused)]


def _moves(node: Node) -> bool:
    """Whether results are elements of the first operand; CONCATENATION rescales in TFLite, too."""
    moves = isinstance(node.op, Operator) and node.op.moves and not isinstance(node.op, Concat)
    return moves or selects(node) or isinstance(node.op, Max | Min | Pad)


def _words(grid: TensorGrid) -> str:
    return f"scale {grid.scale:.6g}, zero point {grid.zero}"
