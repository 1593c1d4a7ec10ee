"""Sums of very many numbers: added in blocks, so that their errors do not grow with the length of the whole."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
import pytest

import tenon
from onnx_models import model, node
from tenon.ir.graph import Array

N = 1 << 20
TENTH = float(np.float32(0.1))


def one_axis(name: str, **attributes: Any) -> onnx.NodeProto:
    return node(name, ["x"], ["y"], **attributes)


SUMS = [
    ([one_axis("ReduceSum", keepdims=0)], (N,), {}, TENTH * N),
    ([one_axis("ReduceSum", keepdims=0)], (N + 5000,), {}, TENTH * (N + 5000)),
    ([one_axis("ReduceMean", keepdims=0)], (4, N // 4), {}, TENTH),
    ([one_axis("ReduceL1", keepdims=0)], (N,), {}, TENTH * N),
    ([one_axis("ReduceL2", keepdims=0)], (N,), {}, np.sqrt(TENTH**2 * N)),
    ([one_axis("ReduceSumSquare", keepdims=0)], (N,), {}, TENTH**2 * N),
    ([one_axis("GlobalAveragePool")], (1, 1, 2048, N // 2048), {}, TENTH),
    ([one_axis("GlobalAveragePool")], (1, 16, 512, 512), {}, TENTH),
    ([node("MatMul", ["x", "w"], ["y"])], (1, N), {"w": np.ones((N, 1), np.float32)}, TENTH * N),
    ([node("MatMul", ["x", "w"], ["y"])], (3, N // 4), {"w": np.ones((N // 4, 5), np.float32)}, TENTH * N / 4),
]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(("nodes", "shape", "weights", "wanted"), SUMS)
def test_long_sums(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, Array], wanted: float, level: Literal[0, 2]
) -> None:
    """Equal numbers are the worst case, since every addition is off in the same direction: within 1e-4."""
    made = model(nodes, {"x": shape}, ["y"], weights, opset=17).SerializeToString()
    found = tenon.open(tenon.compile(made, optimize=level)).run(np.full(shape, 0.1, np.float32))["y"]
    assert np.abs(found.astype(np.float64) / wanted - 1).max() < 1e-4
