"""Non-maximum suppression of TensorFlow and TFLite compared with loops."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tensorflow_models import const, graph, node, placeholder
from tflite_models import Model

RNG = np.random.default_rng(2)
LOW = RNG.uniform(0, 0.7, (20, 2))
BOXES = np.concatenate([LOW, LOW + RNG.uniform(0.1, 0.4, (20, 2))], 1).astype(np.float32)
SCORES = RNG.uniform(0, 1, (20, 3)).astype(np.float32)


def overlap(a: Array, b: Array) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    return float(sides.prod() / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - sides.prod()))


def kept(scores: Array, most: int, limit: float, least: float) -> list[int]:
    chosen: list[int] = []
    for i in np.argsort(-scores):
        if len(chosen) < most and scores[i] > least and all(overlap(BOXES[i], BOXES[j]) <= limit for j in chosen):
            chosen.append(int(i))
    return chosen


def limits(most: int, *floats: float) -> list[bytes]:
    return [const("most", np.array(most), "i32"), *(const(f"f{i}", np.array(f)) for i, f in enumerate(floats))]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("most", [5, 18])
def test_tensorflow(version: int, most: int) -> None:
    floats = [0.3, 0.25, 0.0][: version - 2]
    names = ["most", *(f"f{i}" for i in range(len(floats)))]
    op = node("s", f"NonMaxSuppressionV{version}", "boxes", "scores", *names, pad_to_max_output_size=True)
    outputs = ["s", "s:1", "s:2"][: version - 2]
    data = graph(placeholder("boxes", 20, 4), placeholder("scores", 20), *limits(most, *floats), op)
    results = list(evaluate(importers.load(data, outputs=outputs), {"boxes": BOXES, "scores": SCORES[:, 0]}).values())
    expected = kept(SCORES[:, 0], most, 0.3, 0.25)
    assert 4 < len(expected) <= most
    np.testing.assert_array_equal(results[0], expected + [0] * (most - len(expected)))
    if version == 5:
        np.testing.assert_array_equal(results[1], [*SCORES[expected, 0], *[0] * (most - len(expected))])
    assert results[-1] == len(expected)
    assert results[0].dtype == results[-1].dtype == np.int32


def test_data_dependent_output_length() -> None:
    op = node("s", "NonMaxSuppressionV4", "boxes", "scores", "most", "f0", "f1")
    data = graph(placeholder("boxes", 20, 4), placeholder("scores", 20), *limits(5, 0.3, 0.25), op)
    with pytest.raises(UnsupportedError, match="pad_to_max_output_size"):
        importers.load(data)


@pytest.mark.parametrize(("total", "least"), [(8, 0.3), (40, 0.6)])
def test_combined_nms(total: int, least: float) -> None:
    """At most four boxes of each of three classes; the other rows are zeros."""
    parts = limits(4, 0.3, least), const("total", np.array(total), "i32")
    op = node("s", "CombinedNonMaxSuppression", "boxes", "scores", "most", "total", "f0", "f1")
    data = graph(placeholder("boxes", 1, 20, 1, 4), placeholder("scores", 1, 20, 3), *parts[0], parts[1], op)
    model = importers.load(data, outputs=["s", "s:1", "s:2", "s:3"])
    boxes, scores, kinds, count = evaluate(model, {"boxes": BOXES[None, :, None], "scores": SCORES[None]}).values()
    rows = [(SCORES[i, c], c, i) for c in range(3) for i in kept(SCORES[:, c], 4, 0.3, least)]
    expected = sorted(rows, reverse=True)[:total]
    n = len(expected)
    assert count.tolist() == [n]
    np.testing.assert_array_equal(scores[0], [*(s for s, _, _ in expected), *[0] * (total - n)])
    np.testing.assert_array_equal(kinds[0, :n], [c for _, c, _ in expected])
    np.testing.assert_allclose(boxes[0, :n], BOXES[[i for _, _, i in expected]].clip(0, 1))
    assert boxes.shape == (1, total, 4)
    assert not boxes[0, n:].any()


def test_tflite() -> None:
    model = Model()
    boxes, scores = model.tensor("boxes", (20, 4)), model.tensor("scores", (20,))
    settings = {"overlap": 0.3, "least": 0.25, "sigma": 0.0}
    given = [model.constant("most", np.array(6, np.int32))]
    given += [model.constant(name, np.array(value, np.float32)) for name, value in settings.items()]
    outs = [model.tensor("numbers", (6,), "i32"), model.tensor("kept", (6,)), model.tensor("count", (), "i32")]
    model.add("NON_MAX_SUPPRESSION_V5", [boxes, scores, *given], outs)
    loaded = importers.load(model.bytes([boxes, scores], outs))
    outputs = evaluate(loaded, {"boxes": BOXES, "scores": SCORES[:, 1]})
    expected = kept(SCORES[:, 1], 6, 0.3, 0.25)
    np.testing.assert_array_equal(outputs["numbers"], expected + [0] * (6 - len(expected)))
    assert outputs["count"] == len(expected)
