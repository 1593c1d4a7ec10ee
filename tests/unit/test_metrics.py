"""Metrics beside figures worked out by hand, or by another definition of the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tenon.errors import FormatError, InputError
from tenon.tools.metrics import METRICS, Evaluation, Metric, read_evaluation
from tenon.tools.metrics.classification import AreaUnderCurve, TopK
from tenon.tools.metrics.detection import MeanAveragePrecision, overlap
from tenon.tools.metrics.text import WordErrorRate, ctc_labels, edit_distance
from tenon.tools.quantization.ground_truth import read_truth, truth_in_archive


def test_top_k_counts_equal_scores_in_the_order_of_classes() -> None:
    metric = TopK(1, 2)
    for scores, truth in (([0.1, 0.9, 0.5], 1), ([0.1, 0.9, 0.5], 2), ([0.3, 0.3, 0.3], 0), ([0.3, 0.3, 0.3], 2)):
        metric.add(np.array(scores), truth)
    assert metric.results() == {"top1": 0.5, "top2": 0.75}
    metric.add(1, 1)
    assert metric.results()["top1"] == 0.6
    with pytest.raises(InputError, match="true class 3 is none of the 3 classes"):
        metric.add(np.zeros(3), 3)


def test_area_under_curve_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    truths, scores = rng.integers(0, 2, 40), rng.integers(0, 9, 40) / 8
    metric = AreaUnderCurve()
    for score, truth in zip(scores, truths, strict=True):
        metric.add([1 - score, score], truth)
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[truths == 1] for n in scores[truths == 0]]
    assert metric.results()["auc"] == pytest.approx(np.mean(pairs))


def test_area_under_curve_of_classes_against_the_rest() -> None:
    metric = AreaUnderCurve()
    for truth, scores in ((0, [0.9, 0.05, 0.05]), (1, [0.8, 0.1, 0.1]), (0, [0.1, 0.7, 0.2])):
        metric.add(scores, truth)
    assert metric.results()["auc"] == pytest.approx((0.5 + 0.5) / 2)
    alone = AreaUnderCurve()
    alone.add(0.5, 1)
    with pytest.raises(InputError, match="positive and negative"):
        alone.results()


def test_average_precision() -> None:
    """Two true boxes: found first and third by score, a false one between; precision 1 up to a recall of one half, then
    2/3."""
    metric = MeanAveragePrecision()
    box, other, far = (0, 0, 10, 10), (20, 20, 30, 30), (50, 50, 60, 60)
    metric.add([(1, 0.9, box), (1, 0.8, far), (1, 0.7, other)], [(1, box), (1, other)])
    precision = metric.results()["map50"]
    assert precision == pytest.approx((51 * 1 + 50 * 2 / 3) / 101)
    metric.add([(2, 0.9, (0, 0, 10, 8)), (2, 0.5, box)], {"classes": [2], "boxes": [box]})
    assert metric.results()["map50"] == pytest.approx((precision + 1) / 2)
    expected = (
        10 * precision + 7 + 3 * 0.5
    ) / 20  # the first overlaps by 0.8: up to there it is right, then the second is
    assert metric.results()["map50-95"] == pytest.approx(expected)


def test_a_box_counts_once_and_only_in_its_image() -> None:
    metric = MeanAveragePrecision()
    metric.add([(0, 0.9, (0, 0, 4, 4)), (0, 0.8, (0, 0, 4, 4))], [(0, (0, 0, 4, 4))])
    assert metric.results()["map50"] == 1
    metric.add([], [(0, (0, 0, 4, 4))])
    assert metric.results()["map50"] == pytest.approx(51 / 101)
    assert overlap((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 2, 2), (2, 0, 3, 2)) == 0


def test_word_error_rate() -> None:
    metric = WordErrorRate()
    metric.add("the quick fox", "the quick brown fox")
    metric.add(np.array(["a b"]), "a b")
    metric.add([1, 2, 4], [1, 2, 3])
    assert metric.results() == {"wer": 2 / 9, "ser": 2 / 3}
    assert edit_distance("kitten", "sitting") == 3
    scores = np.eye(3)[[1, 1, 0, 1, 2, 2, 0]]
    assert ctc_labels(scores) == [1, 1, 2]
    assert ctc_labels(scores, blank=2) == [1, 0, 1, 0]


def test_a_drop_is_positive_where_the_metric_is_worse() -> None:
    assert METRICS["top1"].drop({"top1": 0.9}, {"top1": 0.85}) == pytest.approx(5)
    assert METRICS["wer"].drop({"wer": 0.1}, {"wer": 0.25}) == pytest.approx(15)


def test_plug_ins(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from tenon.tools.metrics import Evaluation\nfrom tenon.tools.metrics.classification import TopK\n"
        "whole = Evaluation(lambda: TopK(3))\n"
        "def made():\n    return whole\n"
        "def score(outputs, number):\n    return number\n"
        "other = 7\n"
    )
    assert read_evaluation(f"{file}:whole").metric().results() == {"top3": 0}
    assert read_evaluation(f"{file}:made").metric().results() == {"top3": 0}
    outputs = {"y": np.zeros(2)}
    assert read_evaluation(f"{file}:score").score([outputs] * 3, None, [1, 4, 7]) == {"score": 4}
    for name, words in (("other", "neither an Evaluation"), ("absent", "absent"), ("", "no such metric")):
        with pytest.raises(InputError, match=words):
            read_evaluation(f"{file}:{name}")
    with pytest.raises(InputError, match="no such file"):
        read_evaluation(f"{tmp_path}/none.py:x")
    with pytest.raises(InputError, match="give one of top1"):
        read_evaluation("top7")


def test_what_is_known_of_samples(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([3, 1]))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)), y=np.array([3, 1]))
    (tmp_path / "a.json").write_text('{"cat.png": 3, "dog": [[1, [0, 0, 1, 1]]]}')
    (tmp_path / "list.json").write_text("[3, 1]")
    (tmp_path / "a.txt").write_text("3\n1\n")
    (tmp_path / "names.txt").write_text("cat.png 3\ndog.png 1\n")
    (tmp_path / "texts.txt").write_text("cat.wav\tone two\ndog.wav\tthree\n")
    (tmp_path / "bad.json").write_text("{")
    for name in ("a.npy", "a.npz", "list.json", "a.txt"):
        assert read_truth(tmp_path / name) == {0: 3, 1: 1}, name
    assert read_truth(tmp_path / "a.json")["cat.png"] == 3
    assert read_truth(tmp_path / "names.txt") == {"cat.png": 3, "dog.png": 1}
    assert read_truth(tmp_path / "texts.txt") == {"cat.wav": "one two", "dog.wav": "three"}
    assert truth_in_archive(tmp_path / "a.npz") == {0: 3, 1: 1}
    assert truth_in_archive(tmp_path / "a.npy") is None
    with pytest.raises(FormatError, match="not JSON"):
        read_truth(tmp_path / "bad.json")


def test_a_metric_of_truths_needs_them() -> None:
    def made() -> Metric:
        return TopK(1)

    with pytest.raises(InputError, match="ground truth"):
        Evaluation(made).score([{"y": np.zeros(2)}], None)
