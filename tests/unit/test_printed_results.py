"""Commands print what a user asks for first, in the names of the model, and how it came about only with -v."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tenon.cli
from command_line import run_main
from onnx_models import model, node
from real import DIGITS, held_out_digits
from tenon.cli.console import steps
from tenon.tools.tune.search import LayerTimes

MODEL = str(DIGITS / "digits.onnx")


def test_tuning_names_layers_as_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["tune", MODEL, "--table", "tuning.sqlite", "--target", "x86-64"]
    assert run_main(tenon.cli.main, words) == 0
    first, heading, *rows, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"digits.onnx: \d+ layers take [\d.]+ .s, [\d.]+ .s as estimated", first)
    assert heading.split()[:2] == ["layer", "operator"]
    assert {"conv0", "conv2"} >= {row.split()[0] for row in rows if row[0] != " "}
    assert "f32[" not in "".join(rows)
    assert last.startswith("kept in ")


def test_tuning_for_a_gpu_that_is_not_here_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tenon.runtime.engine.device_here.why_no_device", lambda target: "there is no driver")
    assert run_main(tenon.cli.main, ["tune", MODEL, "--target", "cuda"]) == 2
    assert capsys.readouterr().err.strip() == "tenon: --target cuda: there is no driver"


def test_nothing_is_kept_where_there_was_nothing_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relu.onnx").write_bytes(model([node("Relu", ["x"], ["y"])], {"x": (1, 4)}, ["y"]).SerializeToString())
    assert run_main(tenon.cli.main, ["tune", "relu.onnx", "--table", "tuning.sqlite"]) == 0
    assert capsys.readouterr().out == "relu.onnx: no layer has several algorithms to choose from\n"


def test_layers_that_are_equal_are_counted() -> None:
    from tenon.cli.tune import _table

    shown = _table([LayerTimes("key", 3, {"a": 1e-6, "b": 2e-6}, "b", "conv1", "Conv+Relu")])
    assert list(shown.columns[0].cells) == ["conv1 x 3"]
    assert list(shown.columns[4].cells) == ["b"]


def test_quantisation_lists_what_it_tried_only_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.concatenate(held_out_digits()[0][:4]))
    words = ["quantize", MODEL, "--data", str(tmp_path / "x.npy"), "-o", str(tmp_path / "q.onnx")]
    assert run_main(tenon.cli.main, words) == 0
    short = capsys.readouterr().out
    tried = re.search(r"^(\d+) recipes were tried: -v lists them$", short, re.MULTILINE)
    assert tried
    assert "dB without" not in short
    assert run_main(tenon.cli.main, [*words, "-v"]) == 0
    long = capsys.readouterr().out
    assert len(re.findall(r"^[^|\n]+: [\d.]+ dB", long, re.MULTILINE)) == int(tried[1])


def test_steps_are_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with steps("quantising net") as step:
        step("calibrate", 1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with steps("quantising net") as step:
        step("calibrate", 1, 2)
    drawn = capsys.readouterr().err
    assert "quantising net: calibrate" in drawn
    assert "50%" in drawn
