"""ONNX Runtime with exact sums of 8-bit products.

Its kernels for AVX2 without VNNI add pairs of products in 16 bits, which saturate, unless it is told not to.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper


def session(model: Path | bytes) -> Any:
    """An ``onnxruntime.InferenceSession``; skips the test where it is not installed."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    if saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


SATURATING = "ONNX Runtime's sums of 8-bit products saturate on this processor"
"""Why a test cannot compare with kernels that know no exact sums."""


@cache
def saturates() -> bool:
    """Whether its kernels for products of u8 and i8 saturate here, unless they are told not to."""
    onnxruntime = pytest.importorskip("onnxruntime")
    rows = {"a": (TensorProto.UINT8, [8, 8]), "b": (TensorProto.INT8, [8, 8])}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"])],
        "products",
        [helper.make_tensor_value_info(name, *each) for name, each in rows.items()],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [8, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (sums,) = plain.run(None, {"a": np.full((8, 8), 255, np.uint8), "b": np.full((8, 8), 127, np.int8)})
    return bool((sums != 8 * 255 * 127).any())
