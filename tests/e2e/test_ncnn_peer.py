"""Single layers against ncnn itself, over most options of most layers; skipped where ncnn is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import difference, evaluate
from ncnn_layers import CASES, RNG, Row, outputs, param
from tenon import frontends
from tenon.ir.graph import Array

ncnn: Any = pytest.importorskip("ncnn", reason="ncnn is not installed")


def theirs(param: Path, x: Array, tops: int) -> list[Array]:
    net = ncnn.Net()
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
        setattr(net.opt, option, False)
    assert net.load_param(str(param)) == 0
    assert net.load_model(str(param.with_suffix(".bin"))) == 0
    extractor = net.create_extractor()
    extractor.input("data", ncnn.Mat(x).clone())
    return [np.array(extractor.extract(f"out{i}")[1]) for i in range(tops)]


@pytest.mark.parametrize("row", CASES, ids=lambda row: f"{row[0]} {row[1]}")
def test_like_ncnn(row: Row, tmp_path: Path) -> None:
    kind, _, shape, weights = row
    path = tmp_path / "net.param"
    path.write_bytes(param(row))
    path.with_suffix(".bin").write_bytes(weights)
    x = RNG.uniform(0.1 if kind in ("UnaryOp", "Reduction") else -1, 1, shape).astype(np.float32)
    found = evaluate(frontends.load(path), {"data": x[None]})
    for ours, expected in zip(found.values(), theirs(path, x, outputs(row)), strict=True):
        assert ours.shape == (1, *expected.shape)
        assert difference(ours[0], expected) < 1e-5
