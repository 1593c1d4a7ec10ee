"""``tenon evaluate`` and the same metrics in contracts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from command_line import run_main
from networks_to_quantise import images, separable
from onnx_models import model, node
from tenon.cli import main
from tenon.errors import InputError
from tenon.runtime.engine.device import RemoteBundle
from tenon.tools.metrics import Evaluation
from tenon.tools.metrics.classification import TopK

SAMPLES = np.random.default_rng(0).uniform(0.1, 1, (6, 1, 4)).astype(np.float32)
CLASSES = SAMPLES.reshape(6, 4).argmax(1)


def network(folder: Path) -> Path:
    """The largest number is the class."""
    path = folder / "net.onnx"
    path.write_bytes(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]).SerializeToString())
    return path


def test_share_of_right_classes(tmp_path: Path) -> None:
    truths = [*CLASSES[:5], (CLASSES[5] + 1) % 4]
    evaluation = tenon.evaluate(network(tmp_path), SAMPLES, ground_truth=truths)
    assert evaluation.samples == 6
    assert evaluation.results == pytest.approx({"top1": 5 / 6})
    assert evaluation.errors["top1"] == pytest.approx((5 / 36 / 6) ** 0.5)
    bundle = tenon.compile(network(tmp_path))
    with tenon.open(bundle) as engine:
        assert tenon.evaluate(engine, SAMPLES, ground_truth=truths).results == evaluation.results
        assert engine.run({"x": SAMPLES[0]})  # is left open


def test_a_device_is_evaluated(tmp_path: Path) -> None:
    with RemoteBundle(tenon.compile(network(tmp_path), target="wasm32")) as device:
        evaluation = tenon.evaluate(device, SAMPLES, ground_truth=CLASSES, samples=2)
    assert (evaluation.samples, evaluation.results["top1"]) == (2, 1)


def test_chosen_samples_keep_their_truth(tmp_path: Path) -> None:
    """Samples that the seed chooses are compared with the truth of these, by number and by file name."""
    np.savez(tmp_path / "data.npz", x=SAMPLES, y=CLASSES)
    for seed in range(3):
        evaluation = tenon.evaluate(network(tmp_path), tmp_path / "data.npz", samples=3, seed=seed)
        assert (evaluation.samples, evaluation.results["top1"]) == (3, 1)
    (tmp_path / "folder").mkdir()
    for name, sample in zip("fbdace", SAMPLES, strict=True):
        np.save(tmp_path / "folder" / f"{name}.npy", sample)
    (tmp_path / "truth.txt").write_text("".join(f"{n}.npy {c}\n" for n, c in zip("fbdace", CLASSES, strict=True)))
    evaluation = tenon.evaluate(network(tmp_path), tmp_path / "folder", ground_truth=tmp_path / "truth.txt", samples=4)
    assert (evaluation.samples, evaluation.results["top1"]) == (4, 1)


def test_a_contract_scores_chosen_samples_by_their_numbers(tmp_path: Path) -> None:
    """The number that a metric is called with is that in the file, of samples chosen at random, too."""
    data = np.concatenate(images(24))
    np.save(tmp_path / "x.npy", data)
    seen = []

    def score(outputs: Any, number: int) -> float:
        seen.append(number)
        return 1.0

    quick: dict[str, Any] = {"method": "min-max", "range_search": False, "rounding": "nearest", "equalisation": False}
    tenon.quantize(separable(), tmp_path / "x.npy", samples=4, seed=1, max_drop=1, metric=score, **quick)
    assert len(set(seen)) == 4
    assert max(seen) > 3
    truths = [int(np.argmax(next(iter(each.values())))) for each in _answers(separable(), data)]
    made = tenon.quantize(separable(), data, samples=8, max_drop=100, metric="top1", ground_truth=truths, **quick)
    assert 0 <= made.report.points[0].drop <= 100
    with pytest.raises(InputError, match="ground truth"):
        tenon.quantize(separable(), data, samples=4, max_drop=1, metric="top1", **quick)
    with pytest.raises(InputError, match="boxes are read from bundles"):
        tenon.quantize(separable(), data, samples=4, max_drop=1, metric="map", **quick)


def _answers(graph: tenon.Graph, data: np.ndarray) -> list[dict[str, np.ndarray]]:
    with tenon.open(tenon.compile(graph)) as engine:
        return [{n: a.copy() for n, a in engine.run({"x": each[None]}).items()} for each in data]


def test_a_plug_in_brings_its_data(tmp_path: Path) -> None:
    """Raw samples become inputs by its preprocessing, outputs become predictions by its postprocessing."""
    made = Evaluation(
        TopK,
        postprocess=lambda outputs, number: 3 - int(outputs["y"].argmax()),
        dataset=lambda: ((f"{i}", 3 - int(CLASSES[i])) for i in range(6)),
        preprocess=lambda name: {"x": SAMPLES[int(name)]},
    )
    assert tenon.evaluate(network(tmp_path), metric=made).results == {"top1": 1}
    assert tenon.evaluate(network(tmp_path), metric=made, samples=2).samples == 2


SCRIPT = """
import numpy as np


class AccuracyValidator(object):
    def __init__(self, **kwargs):
        self.right = 0
        self.data = np.load({data!r})

    def sample_size(self):
        return len(self.data)

    def batch_size(self):
        return {batch}

    def preprocess(self, sample_idx_start, sample_idx_end, **kwargs):
        return {{"x": [self.data[i].tolist() for i in range(sample_idx_start, sample_idx_end)]}}

    def postprocess(self, sample_idx_start, sample_idx_end, output_map, **kwargs):
        answers = np.array(output_map["y"]).reshape((sample_idx_end - sample_idx_start, -1)).argmax(-1)
        expected = self.data[sample_idx_start:sample_idx_end].reshape(len(answers), -1).argmax(-1)
        self.right += int((answers == expected).sum())

    def result(self):
        print("Top 1 accuracy: %f" % (self.right / self.sample_size()))
        return {returned}
"""


@pytest.mark.parametrize(
    ("batch", "returned", "results"),
    [(1, "None", {}), (4, "self.right / 6", {"result": 1}), (9, "{'a': 0.5}", {"a": 0.5})],
)
def test_scripts_of_mace(
    batch: int, returned: str, results: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "data.npy", SAMPLES)
    script = tmp_path / "accuracy.py"
    script.write_text(SCRIPT.format(data=str(tmp_path / "data.npy"), batch=batch, returned=returned))
    evaluation = tenon.evaluate(network(tmp_path), metric=str(script))
    assert (evaluation.samples, evaluation.results) == (6, results)
    assert capsys.readouterr().out == "Top 1 accuracy: 1.000000\n"


def test_scripts_that_do_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    for text, words in (
        ("x = 1", "has no class AccuracyValidator"),
        ("import nothing_of_that_name", r"No module named 'nothing_of_that_name' \(a\.py, line 1\)"),
        ("class AccuracyValidator:\n    pass\n", "no method 'sample_size'"),
    ):
        script.write_text(text)
        with pytest.raises(InputError, match=words):
            tenon.evaluate(network(tmp_path), metric=str(script))


PLUG_IN = """
from tenon.tools.metrics import Evaluation


class Count:
    lower_is_better = False

    def __init__(self):
        {init}

    def add(self, prediction, truth):
        {add}

    def results(self):
        return {results}


def data():
    {data}
    yield [[1.0, 2.0, 3.0, 4.0]], 3


def score(outputs, number):
    return {score}


made = Evaluation(Count, dataset=data, preprocess=lambda sample: {sample})
"""
USUAL = {"init": "pass", "add": "pass", "results": "{'right': 1.0}", "data": "pass", "score": "1.0", "sample": "sample"}


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        (
            "made",
            {"init": "self.missing"},
            "AttributeError: 'Count' object has no attribute 'missing' (plug.py, line 9)",
        ),
        ("made", {"add": "1 / 0"}, "ZeroDivisionError: division by zero (plug.py, line 12)"),
        ("made", {"add": "exit(1)"}, "SystemExit: 1 (plug.py, line 12)"),
        ("made", {"results": "{}['right']"}, "KeyError: 'right' (plug.py, line 15)"),
        ("made", {"results": "'all'"}, "results() returned 'all', not numbers by name"),
        ("made", {"results": "{'right': 'all'}"}, "result 'right' is 'all', not a number"),
        ("made", {"data": "open('/nowhere')"}, "No such file or directory: '/nowhere' (plug.py, line 19)"),
        ("made", {"sample": "sample.shape"}, "'list' object has no attribute 'shape' (plug.py, line 27)"),
        ("made", {"sample": "("}, "SyntaxError: '(' was never closed (plug.py, line 27)"),
        ("made", {"sample": "1)\n1 / 0\n(1"}, "ZeroDivisionError: division by zero (plug.py, line 28)"),
        ("score", {"score": "outputs['z']"}, "KeyError: 'z' (plug.py, line 24)"),
        ("score", {"score": "None"}, "the score of sample 0 is None, not a number"),
    ],
)
def test_errors_in_plug_ins_name_the_line(
    what: str, code: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plug = tmp_path / "plug.py"
    plug.write_text(PLUG_IN.format(**{**USUAL, **code}))
    np.save(tmp_path / "x.npy", SAMPLES)
    data = ["--data", str(tmp_path / "x.npy")] if what == "score" else []
    assert run_main(main, ["evaluate", str(network(tmp_path)), "--metric", f"{plug}:{what}", *data]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"tenon: --metric {plug}:{what}: ")
    assert words in said


def test_errors_in_plug_ins_of_contracts(tmp_path: Path) -> None:
    """The score of a contract, and a function that gives samples."""
    plug = tmp_path / "plug.py"
    plug.write_text("def score(outputs, number):\n    return outputs[0]\n")
    quick: dict[str, Any] = {"method": "min-max", "range_search": False, "rounding": "nearest", "equalisation": False}
    with pytest.raises(InputError, match=r"KeyError: 0 \(plug\.py, line 2\)"):
        tenon.quantize(separable(), images(2), max_drop=1, metric=f"{plug}:score", **quick)


def test_errors_in_functions_that_give_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "samples_of_test.py").write_text("def some():\n    yield [[1, 2, 3, 4]]\n    yield missing\n")
    file = network(tmp_path)
    with pytest.raises(InputError, match=r"samples_of_test:some: NameError: .* \(samples_of_test\.py, line 3\)"):
        tenon.evaluate(file, "samples_of_test:some", ground_truth=[3, 3])
    with pytest.raises(InputError, match="has no attribute 'none'"):
        tenon.evaluate(file, "samples_of_test:none", ground_truth=[3])
    with pytest.raises(InputError, match="No module named 'nothing_of_that_name'"):
        tenon.evaluate(file, "nothing_of_that_name:none", ground_truth=[3])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("return len(self.data)", "return self.count", r"no attribute 'count' \(accuracy\.py, line 11\)"),
        ("self.right = 0", "self.right = int('')", r"ValueError: .* \(accuracy\.py, line 7\)"),
        ("self.right += ", "self.wrong += ", r"no attribute 'wrong' \(accuracy\.py, line 22\)"),
        ("return None", "return 'good'", "result 'result' is 'good', not a number"),
        ("self.data[i].tolist()", "'a'", "the script's 'x' is no array of f32"),
        ('return {"x": [self', "return [[self", r"accuracy\.py: SyntaxError"),
    ],
)
def test_errors_in_scripts_of_mace(old: str, new: str, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", SAMPLES)
    script = tmp_path / "accuracy.py"
    text = SCRIPT.format(data=str(tmp_path / "data.npy"), batch=1, returned="None")
    assert old in text
    script.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=words):
        tenon.evaluate(network(tmp_path), metric=str(script))


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    file = network(tmp_path)
    with pytest.raises(InputError, match="there are no samples: give --data"):
        tenon.evaluate(file, ground_truth=[1])
    with pytest.raises(InputError, match="give --ground-truth"):
        tenon.evaluate(file, SAMPLES)
    with pytest.raises(InputError, match="nothing for sample 2: it has 2 rows"):
        tenon.evaluate(file, SAMPLES, ground_truth=CLASSES[:2])
    with pytest.raises(InputError, match="boxes are measured of bundles"):
        tenon.evaluate(file, SAMPLES, ground_truth=CLASSES, metric="map")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", x=SAMPLES, y=CLASSES)
    words = ["evaluate", str(network(tmp_path)), "--data", str(tmp_path / "data.npz")]
    assert run_main(main, [*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["results"]) == (6, {"top1": 1.0})
    assert run_main(main, [*words, "--metric", "nothing"]) == 2
    assert "there is no such metric: give one of top1, top5, auc, map, wer" in " ".join(capsys.readouterr().err.split())
