"""A model with an operator of a plug-in that is written in C, and what it computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from real import ROOT

PLUGIN = ROOT / "examples" / "soft_threshold.py"
X = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32) * 2
EXPECTED = np.maximum(np.abs(X) - np.float32(0.25), np.float32(0)) * np.sign(X) + X


def save_model(path: Path) -> Path:
    """y = SoftThreshold(x) + x, f32 of 3 x 7, as an ONNX model."""
    nodes = [
        helper.make_node("SoftThreshold", ["x"], ["a"], domain="own", limit=0.25),
        helper.make_node("Add", ["a", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 7]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), path)
    return path
