"""Single layers compared with ncnn, over most options of most layers; skipped if ncnn is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import difference, evaluate
from ncnn_layers import CASES, SCALE, Case, blobs, exact, int8_weights, param, plain, scales
from real import shared
from tenon.formats import importers
from tenon.network.graph.graph import Array

ncnn: Any = pytest.importorskip("ncnn", reason="ncnn is not installed")

ALONE = {
    "ArgMax": "ncnn is built without it",
    "SPP": "ncnn is built without it",
    "Yolov3DetectionOutput": "ncnn's code for x86 and Arm misses a bracket in the product of two sigmoids that its own "
    "definition multiplies",
}
"""Layers that ncnn's Python package does not compute as ncnn defines them."""


def theirs(param: Path, inputs: dict[str, Array], outputs: Sequence[str]) -> list[Array]:
    net = ncnn.Net()
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
        setattr(net.opt, option, False)
    assert net.load_param(str(param)) == 0
    assert net.load_model(str(param.with_suffix(".bin"))) == 0
    extractor = net.create_extractor()
    for name, x in inputs.items():
        extractor.input(name, ncnn.Mat(x).clone())
    return [np.array(extractor.extract(name)[1]) for name in outputs]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.options}")
def test_layers_match_ncnn(case: Case, tmp_path: Path) -> None:
    if case.kind in ALONE:
        pytest.skip(ALONE[case.kind])
    path = tmp_path / "net.param"
    path.write_bytes(param(case))
    path.with_suffix(".bin").write_bytes(case.weights)
    inputs = {f"in{i}": x for i, x in enumerate(blobs(case))}
    actual = evaluate(importers.load(path), {name: x[None].astype(np.float32) for name, x in inputs.items()})
    outputs = [f"out{i}" for i in range(case.tops)]
    for ours, expected in zip(actual.values(), theirs(path, inputs, outputs), strict=True):
        if case.kind.endswith("DetectionOutput"):  # rows past the last detection are uninitialised
            ours = ours[:, : len(expected)]
        assert ours.shape == (1, *expected.shape)
        assert difference(ours[0], expected) < case.close


@pytest.mark.parametrize(("kind", "options", "count"), [("Convolution", "", 576), ("ConvolutionDepthWise", "7=8", 72)])
@pytest.mark.parametrize("form", [1, 2])
def test_8_bit_activations_between_layers(kind: str, options: str, count: int, form: int, tmp_path: Path) -> None:
    """ncnn rounds the activations between the layers to eight bits; Tenon does not."""
    options = f"0=8 1=3 4=1 5=1 6={count} {options} 9=1"
    lines = ["Input x 0 1 in0 0=6 1=4 2=8", f"{kind} a 1 1 in0 mid {options} 8={100 + form}"]
    text = "\n".join(["7767517", "3 3", *lines, f"{kind} b 1 1 mid out0 {options} 8={form}", ""])
    path, between = tmp_path / "net.param", np.array([20], "<f4").tobytes()
    path.write_text(text)
    factors = 1 if "7=8" in options and form == 2 else 8
    first, second = (int8_weights(count) + plain(8) + scales(factors) for _ in range(2))
    path.with_suffix(".bin").write_bytes(first + SCALE + between + second + between)
    x = exact(8, 4, 6)
    (actual,) = evaluate(importers.load(path), {"in0": x[None]}).values()
    assert difference(actual[0], theirs(path, {"in0": x}, ["out0"])[0]) < 0.03


def test_face_detector_matches_ncnn() -> None:
    path = shared("models/ncnn/version-RFB-320/RFB-320.param")
    x = np.random.default_rng(0).uniform(-1, 1, (3, 240, 320)).astype(np.float32)
    actual = evaluate(importers.load(path, {"input": (1, *x.shape)}), {"input": x[None]})
    for name, expected in zip(actual, theirs(path, {"input": x}, list(actual)), strict=True):
        assert difference(actual[name][0], expected) < 1e-5
