"""``tenon evaluate`` on real samples: every metric beside a second computation of it, or known answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tenon
from real import shared
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keywords() -> tuple[tenon.Bundle, Path, Array, Array]:
    """A keyword network of integers, the file of samples, their classes, and the outputs for them."""
    data = shared("quant/kws01.npz")
    bundle = tenon.compile(shared("models/tflite_int8/mlperf_tiny/kws_ref_model.tflite"))
    with np.load(data, allow_pickle=True) as arrays, tenon.open(bundle) as engine:
        (name,) = engine.inputs
        scores = [next(iter(engine.run({name: x[None]}).values())).ravel().copy() for x in arrays["x"]]
        return bundle, data, arrays["y"].astype(int), np.array(scores, np.float64)


def test_area_under_the_curve_of_keywords(keywords: tuple[tenon.Bundle, Path, Array, Array]) -> None:
    """The mean over classes of the share of pairs of a positive and a negative sample that are in order."""
    bundle, data, truth, scores = keywords
    areas = []
    for kind in np.unique(truth):
        right, wrong = scores[truth == kind, kind], scores[truth != kind, kind]
        difference = right[:, None] - wrong[None]
        areas.append(np.mean((difference > 0) + 0.5 * (difference == 0)))
    evaluation = tenon.evaluate(bundle, data, metric="auc")
    assert evaluation.samples == len(truth) == 502
    assert evaluation.results["auc"] == pytest.approx(np.mean(areas), abs=1e-9)
    assert evaluation.results["auc"] > 0.98


WORDS = """
import numpy as np
from tenon.tools.metrics import Evaluation
from tenon.tools.metrics.text import WordErrorRate

LABELS = {labels}


def recognised(outputs, number):
    return LABELS[int(next(iter(outputs.values())).argmax())]


words = Evaluation(WordErrorRate, postprocess=recognised)
"""


def test_word_error_rate_of_keywords(keywords: tuple[tenon.Bundle, Path, Array, Array], tmp_path: Path) -> None:
    """With one spoken word a sample, it is the share of samples that are recognised wrongly."""
    bundle, data, truth, scores = keywords
    with np.load(data, allow_pickle=True) as arrays:
        labels = [str(label) for label in arrays["labels"]]
        np.save(tmp_path / "x.npy", arrays["x"])
    (tmp_path / "words.py").write_text(WORDS.format(labels=labels))
    (tmp_path / "spoken.txt").write_text("".join(f"{labels[kind]}\n" for kind in truth))
    evaluation = tenon.evaluate(
        bundle, tmp_path / "x.npy", metric=f"{tmp_path}/words.py:words", ground_truth=tmp_path / "spoken.txt"
    )
    assert evaluation.results["wer"] == pytest.approx(np.mean(scores.argmax(1) != truth))
    assert 0.05 < evaluation.results["wer"] < 0.15


def test_average_precision_of_yolo(tmp_path: Path) -> None:
    """Darknet's photo, whose car and dog are where the model's authors say; boxes elsewhere are no matches."""
    bundle = tenon.compile(shared("models/darknet/yolo-fastest-1.1"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").write_bytes(shared("models/images/darknet_dog.jpg").read_bytes())
    boxes = [(2, (454, 76, 684, 179)), (16, (122, 220, 364, 514))]
    for moved, right in ((0, True), (300, False)):
        truth = [[kind, [left + moved, top, end + moved, bottom]] for kind, (left, top, end, bottom) in boxes]
        (tmp_path / "truth.json").write_text(json.dumps({"dog.jpg": truth}))
        evaluation = tenon.evaluate(bundle, tmp_path / "photos", metric="map", ground_truth=tmp_path / "truth.json")
        assert evaluation.results["map50"] == pytest.approx(1 if right else 0)
        assert 0.5 < evaluation.results["map50-95"] <= 1 or not right
