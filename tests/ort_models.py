"""Files of ONNX Runtime, written by it from models of ONNX, and models with what such files have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnx_models import classifier, gated, model, node, random


def ort_file(model: onnx.ModelProto, path: Path, *, optimised: bool = False) -> bytes:
    """The file that ONNX Runtime writes at ``path``; skips the test where it is not installed.

    ``optimised``: by what is for every processor, which writes operators of com.microsoft.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED if optimised else levels.ORT_DISABLE_ALL
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return path.read_bytes()


HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
BRANCHES = """g (float[4,5] x, bool c) => (float[4,5] y) {
    two = Constant <value_float = 2.0> ()
    y = If (c) <then_branch = t () => (float[4,5] r) { e = Exp(x) r = Mul(e, two) },
                else_branch = e () => (float[4,5] r) {
                    r = If (c) <then_branch = i () => (float[4,5] q) { q = Neg(x) },
                                else_branch = j () => (float[4,5] q) { q = Tanh(x) }> }>
}"""
LOOP = """g (float[4] x) => (float[4] y, float[3,4] all) {
    count = Constant <value_int = 3> ()
    go = Constant <value = bool {1}> ()
    y, all = Loop (count, go, x) <
        body = b (int64 i, bool more, float[4] v) => (bool again, float[4] next, float[4] each) {
            again = Identity(more) next = Add(v, x) each = Relu(next) }>
}"""


def parsed(text: str) -> onnx.ModelProto:
    made: onnx.ModelProto = onnx.parser.parse_model(HEAD + text)
    return made


def scaled_product() -> onnx.ModelProto:
    """A product of integers whose scales are known at run time, then a GELU: ONNX Runtime fuses both."""
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "w": rng.integers(0, 256, (16, 8)).astype(np.uint8),
        "wz": np.array(120, np.uint8),
        "ws": np.array(0.01, np.float32),
        "bias": random(8),
        "half": np.array(0.5, np.float32),
        "one": np.array(1, np.float32),
        "root": np.array(2**0.5, np.float32),
    }
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["s", "ws"], ["sw"]),
        node("Mul", ["f", "sw"], ["p"]),
        node("Add", ["p", "bias"], ["b"]),
        node("Div", ["b", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["e1"]),
        node("Mul", ["b", "e1"], ["m"]),
        node("Mul", ["m", "half"], ["y"]),
    ]
    return model(nodes, {"x": (3, 16)}, ["y"], weights, 17)


MODELS = {
    "classifier": classifier(),
    "gated": gated(),
    "branches": parsed(BRANCHES),
    "loop": parsed(LOOP),
    "integers": scaled_product(),
}
