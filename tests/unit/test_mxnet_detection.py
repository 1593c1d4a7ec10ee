"""MXNet's detection operators compared with loops that follow their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate
from small_models import Node, mxnet_parameters, mxnet_symbol
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.preprocessing import Heads
from tenon.network.passes.detection_outputs import find_heads

RNG = np.random.default_rng(3)


def load(type: str, options: dict[str, str], **inputs: Array) -> Graph:
    nodes: list[Node] = [("null", name, {}, ()) for name in inputs]
    nodes.append((type, "y", options, tuple(range(len(inputs)))))
    shapes = {name: data.shape for name, data in inputs.items()}
    return importers.load(mxnet_symbol(*nodes), shapes, weights=mxnet_parameters())


def run(type: str, options: dict[str, str], **inputs: Array) -> Array:
    graph = load(type, options, **inputs)
    (output,) = evaluate(graph, {v.name: inputs[v.name] for v in graph.inputs}).values()
    return output


def random(*dims: int) -> Array:
    return RNG.normal(size=dims).astype(np.float32)


def test_prior_boxes() -> None:
    output = run(
        "_contrib_MultiBoxPrior", {"sizes": "(0.2, 0.3)", "ratios": "[1, 4]", "clip": "True"}, x=random(1, 5, 2, 4)
    )
    assert output.shape == (1, 2 * 4 * 3, 4)
    sizes = np.array([[0.1, 0.2], [0.15, 0.3], [0.2, 0.1]])
    middle = np.array([0.875, 0.75])
    expected = np.hstack([middle - sizes / 2, middle + sizes / 2]).clip(0, 1)
    np.testing.assert_allclose(output.reshape(2, 4, 3, 4)[1, 3], expected, rtol=1e-5)


def overlap(a: Array, b: Array) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    return float(sides.prod() / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - sides.prod()))


def expected_rows(probabilities: Array, moves: Array, anchors: Array, least: float, limit: float) -> list[list[float]]:
    rows = []
    for i, anchor in enumerate(anchors):
        kind, size = probabilities[1:, i].argmax(), anchor[2:] - anchor[:2]
        score = probabilities[1 + kind, i]
        middle = (anchor[2:] + anchor[:2]) / 2 + moves[i, :2] * 0.1 * size
        half = np.exp(moves[i, 2:] * 0.2) * size / 2
        if score >= least:
            rows.append([float(kind), score, *(middle - half).clip(0, 1), *(middle + half).clip(0, 1)])
    kept: list[list[float]] = []
    for row in sorted(rows, key=lambda r: -r[1]):
        if all(row[0] != other[0] or overlap(np.array(row[2:]), np.array(other[2:])) <= limit for other in kept):
            kept.append(row)
    return kept


def test_multibox_detection() -> None:
    count = 30
    low = RNG.uniform(0.1, 0.5, (count, 2))
    anchors = np.concatenate([low, low + RNG.uniform(0.2, 0.4, (count, 2))], 1).astype(np.float32)
    powers = np.exp(2 * random(1, 4, count))
    probabilities = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    moves = 0.3 * random(1, count * 4)
    options = {"threshold": "0.3", "nms_threshold": "0.45"}
    inputs = {"cls": probabilities, "loc": moves, "anchors": anchors[None]}
    output = run("_contrib_MultiBoxDetection", options, **inputs)
    expected = expected_rows(probabilities[0], moves.reshape(count, 4), anchors, 0.3, 0.45)
    assert output.shape == (1, count, 6)
    assert 5 < len(expected) < count
    np.testing.assert_allclose(output[0, : len(expected)], expected, atol=1e-5)
    assert (output[0, len(expected) :] == -1).all()
    graph = load("_contrib_MultiBoxDetection", options, **inputs)
    assert find_heads(graph) == Heads("rows", ("y",), pixels=False)


REGIONS = np.array([[0, 0, 0, 8, 6], [0, 4, 2, 20, 14]], np.float32)


def test_roi_pooling() -> None:
    x = random(1, 2, 8, 12)
    output = run("ROIPooling", {"pooled_size": "(2, 3)", "spatial_scale": "0.5"}, x=x, rois=REGIONS)
    assert output.shape == (2, 2, 2, 3)
    np.testing.assert_array_equal(output[0, :, 0, 0], x[0, :, :2, :2].max((1, 2)))  # rows 0..3 and columns 0..4


def test_roi_align() -> None:
    """On a linear ramp, each bin has the value at its centre."""
    y, x = np.mgrid[:8, :12].astype(np.float32)
    options = {"pooled_size": "(2, 2)", "spatial_scale": "0.5", "sample_ratio": "2"}
    output = run("_contrib_ROIAlign", options, x=(10 * y + x)[None, None], rois=REGIONS[:1])
    columns, rows = np.array([1.0, 3.0]), np.array([0.75, 2.25])
    np.testing.assert_allclose(output[0, 0], 10 * rows[:, None] + columns, rtol=1e-5)


def test_position_sensitive_roi_pooling() -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1) * np.ones((1, 8, 8, 12), np.float32)
    options = {"pooled_size": "2", "group_size": "2", "output_dim": "2", "spatial_scale": "0.5"}
    outputs = run("_contrib_PSROIPooling", options, x=x, rois=REGIONS)
    np.testing.assert_allclose(outputs[0], np.arange(8).reshape(2, 2, 2))


@pytest.mark.parametrize(
    ("type", "options", "message"),
    [
        ("_contrib_MultiBoxDetection", {"background_id": "2"}, "are not supported"),
        ("_contrib_MultiBoxDetection", {"force_suppress": "True"}, "across classes"),
    ],
)
def test_refusals(type: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        load(type, options, cls=random(1, 3, 5), loc=random(1, 20), anchors=random(1, 5, 4))
