"""Mutated TensorFlow graphs and SavedModels: the importer raises ModelError only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from damage import COUNT, survive
from real import shared
from tenon.formats import importers
from tenon.network.graph.graph import Graph
from tensorflow_models import const, graph, node, placeholder, saved_model


def test_frozen_graph() -> None:
    data = graph(
        placeholder("x", 1, 8, 8, 2),
        const("w", np.ones((3, 3, 2, 4))),
        const("axes", [1, 2], "i32"),
        node("c", "Conv2D", "x", "w", strides=[1, 2, 2, 1], padding="SAME", data_format="NHWC"),
        node("r", "Relu6", "c"),
        node("m", "Mean", "r", "axes", keep_dims=False),
        node("y", "Softmax", "m"),
    )
    assert survive("graph", data, importers.load) > COUNT // 20


def test_graph_with_a_loop() -> None:
    data = shared("models/tensorflow_pb/kws_LSTM/LSTM_S.pb").read_bytes()
    assert survive("lstm", data, lambda damaged: importers.load(damaged), max(5, COUNT // 100)) > 0


def test_variables_of_a_saved_model(tmp_path: Path) -> None:
    nodes = placeholder("x", -1, 2), node("w", "VariableV2"), node("y", "MatMul", "x", "w")
    folder = saved_model(tmp_path / "net", graph(*nodes), {"y": "y"}, {"w": np.ones((2, 3), np.float32)})
    index = folder / "variables/variables.index"

    def load(data: bytes) -> Graph:
        index.write_bytes(data)
        return importers.load(folder)

    assert survive("index", index.read_bytes(), load) > COUNT // 20
