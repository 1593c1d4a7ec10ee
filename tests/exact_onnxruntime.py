"""ONNX Runtime with exact sums of 8-bit products.

Its kernels for AVX2 without VNNI add pairs of products in 16 bits, which saturate, unless it is told not to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def session(model: Path | bytes) -> Any:
    """An ``onnxruntime.InferenceSession``; skips the test where it is not installed."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
