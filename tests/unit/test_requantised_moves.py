"""Quantised layers that only move integers: which of them requantise, and the digest of networks of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tenon
from command_line import run_main
from evaluate import evaluate
from tenon.cli import main
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.passes.integers import to_integers
from tenon.network.passes.integers.requantised import requantised_moves
from tflite_models import Model

Grid = tuple[float, int]
FIRST, SECOND = (0.5, -7), (0.25, 20)
POOL = {"padding": 0, "stride_w": 1, "stride_h": 1, "filter_w": 3, "filter_h": 3, "activation": 0}
X = np.random.default_rng(8).integers(-128, 128, (1, 4, 6, 8)).astype(np.int8)
MOVES: dict[str, tuple[list[Array], tuple[int, ...], dict[str, Any]]] = {
    "TRANSPOSE": ([np.array([0, 3, 1, 2], np.int32)], (1, 8, 4, 6), {}),
    "MAX_POOL_2D": ([], X.shape, POOL),
    "GATHER": ([np.array([3, 0], np.int32)], (1, 2, 6, 8), {"axis": 1}),
    "RESHAPE": ([np.array([4, 48], np.int32)], (4, 48), {"shape": (4, 48)}),
    "SLICE": ([np.array([0, 1, 0, 0], np.int32), np.array([1, 2, 6, 8], np.int32)], (1, 2, 6, 8), {}),
    "PAD": ([np.array([[0, 0], [1, 0], [0, 2], [0, 0]], np.int32)], (1, 5, 8, 8), {}),
    "SPACE_TO_DEPTH": ([], (1, 2, 3, 32), {"block_size": 2}),
    "REDUCE_MAX": ([np.array([1], np.int32)], (1, 6, 8), {}),
    "TILE": ([np.array([1, 2, 1, 1], np.int32)], (1, 8, 6, 8), {}),
}


def file(type: str, result: Grid) -> bytes:
    operands, shape, options = MOVES.get(type, ([], X.shape, {}))
    model = Model()
    x = model.tensor("x", X.shape, "i8", scale=[FIRST[0]], zero=[FIRST[1]])
    y = model.tensor("y", shape, "i8", scale=[result[0]], zero=[result[1]])
    model.add(type, [x, *(model.constant(f"c{i}", a) for i, a in enumerate(operands))], [y], **options)
    return model.bytes([x], [y])


@pytest.mark.parametrize("type", MOVES)
def test_a_move_to_another_scale_is_listed(type: str) -> None:
    (problem,) = requantised_moves(importers.load(file(type, SECOND)))
    assert type in problem.where
    assert problem.what.startswith("from scale 0.5, zero point -7 to scale 0.25, zero point 20: ")
    assert requantised_moves(importers.load(file(type, FIRST))) == []


def test_what_requantises_in_tflite_too_is_not_listed() -> None:
    for type in ("QUANTIZE", "RELU"):
        assert requantised_moves(importers.load(file(type, SECOND))) == []


def test_the_integers_are_those_of_the_result_s_scale() -> None:
    graph = importers.load(file("TRANSPOSE", SECOND))
    to_integers(graph, "litert")
    (y,) = evaluate(graph, {"x": X}).values()
    real = (X.transpose(0, 3, 1, 2).astype(float) + 7) * 0.5
    np.testing.assert_array_equal(y, np.clip(real / 0.25 + 20, -128, 127))


def test_inspect_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(file("TRANSPOSE", SECOND))
    ((where, why),) = tenon.inspect(path)[0].requantised
    assert where == "y (TRANSPOSE)"
    assert "zero point 20" in why
    assert run_main(main, ["inspect", str(path)]) == 0
    assert "requantised by moving" in " ".join(capsys.readouterr().out.split())
    path.write_bytes(file("TRANSPOSE", FIRST))
    assert run_main(main, ["inspect", str(path)]) == 0
    assert "requantised" not in capsys.readouterr().out


@pytest.mark.parametrize("type", MOVES)
def test_networks_that_only_move_integers_have_a_digest(type: str) -> None:
    for grid in (FIRST, SECOND):
        assert len(tenon.compile(file(type, grid), name="net").answer) == 64


def test_integers_moved_between_floats_have_a_digest() -> None:
    grid = ["scale", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *grid], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
        helper.make_node("DequantizeLinear", ["t", *grid], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", [3, 4]), ("y", [4, 3]))]
    constants = [
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]),
        helper.make_tensor("zero", TensorProto.INT8, [], [3]),
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert tenon.compile(made.SerializeToString(), name="net").answer


def test_verify_states_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(file("SPACE_TO_DEPTH", FIRST))
    assert run_main(main, ["verify", str(path)]) == 0
    assert "not stated" not in capsys.readouterr().out
