"""Small networks whose extents a run decides, beside ONNX Runtime: as graphs and as C, at several sizes."""

from __future__ import annotations

import numpy as np

import sized_networks
from sized_models import check
from tenon.network.graph.size_range import Size


def test_encoder() -> None:
    rng = np.random.default_rng(5)
    runs = []
    for n in (1, 5, 32):
        mask = (np.arange(n) < max(1, n - 2)).astype(np.int64).reshape(1, -1)
        runs.append(({"ids": rng.integers(0, 50, (1, n)), "mask": mask}, {"L": n}))
    graph = check(sized_networks.encoder(), {"L": Size("L", 1, 32)}, runs)
    assert not {"Shape", "Where", "Concat"} & {node.op.name for node in graph}  # nothing is left of shape arithmetic


def test_detector() -> None:
    rng = np.random.default_rng(5)
    runs = [
        ({"x": rng.uniform(-spread, spread, (1, 3, h, w)).astype(np.float32)}, {"H": h, "W": w})
        for h, w, spread in ((32, 32, 2), (96, 64, 0.5), (64, 96, 4))
    ]
    check(sized_networks.detector(), {"H": Size("H", 32, 96, 32), "W": Size("W", 32, 96, 32)}, runs)


def test_cascade() -> None:
    rng = np.random.default_rng(5)
    runs = [({"x": rng.uniform(-k, k, (1, 3, 26, 22)).astype(np.float32)}, {}) for k in (0.2, 1, 4)]
    check(sized_networks.cascade(), {}, runs)
