"""Small detectors."""

from __future__ import annotations

import numpy as np

import onnx_models


def bright_areas() -> bytes:
    """A detector that finds bright areas: a box in every cell of an 8 x 8 grid, and a score per class."""
    axis = (np.arange(8) + 0.5) / 8
    y, x = (a.reshape(-1, 1) for a in np.meshgrid(axis, axis, indexing="ij"))
    boxes = np.concatenate([x - 0.1, y - 0.1, x + 0.1, y + 0.1], axis=1).astype(np.float32)[None]
    mean = np.zeros((2, 3, 4, 4), np.float32)
    mean[0, 0], mean[1, 2] = 1 / 16, 1 / 16
    nodes = [
        onnx_models.node("Conv", ["x", "w"], ["a"], strides=[4, 4]),
        onnx_models.node("Reshape", ["a", "shape"], ["b"]),
        onnx_models.node("Transpose", ["b"], ["scores"], perm=[0, 2, 1]),
        onnx_models.node("ReduceMean", ["b"], ["c"], keepdims=1),
        onnx_models.node("Mul", ["c", "zero"], ["d"]),
        onnx_models.node("Add", ["d", "grid"], ["boxes"]),
    ]
    constants = {"w": mean, "shape": np.array([1, 2, 64]), "zero": np.zeros(1, np.float32), "grid": boxes}
    made = onnx_models.model(nodes, {"x": (1, 3, 32, 32)}, ["boxes", "scores"], constants)
    return bytes(made.SerializeToString())
