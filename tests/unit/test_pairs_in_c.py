"""The C of quantised ONNX convolutions for processors that multiply pairs of 16 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tenon


def test_sums_are_saturated_as_integers(tmp_path: Path) -> None:
    """Rounding to an integer and adding the zero point give one, also where instructions saturate it."""
    rng = np.random.default_rng(4)
    scales = {"s": np.float32(0.05), "t": np.float32(0.01), "u": np.float32(0.2)}
    weights = {"w": rng.integers(-128, 128, (16, 16, 1, 1)).astype(np.int8), "z": np.array(0, np.int8)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "t", "z"], ["v"]),
        helper.make_node("Conv", ["d", "v"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "u", "z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.INT8, [1, 16, 2, 2]) for n in "xy"]
    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in (scales | weights).items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    bundle = tenon.compile(made.SerializeToString(), target="cortex-m4", name="net")
    bundle.save(tmp_path)
    text = (tmp_path / "net.c").read_text()
    assert "saturate_i8_i32" in text
    assert "saturate_i8_f32" not in text
