"""convert_tool: options, messages, and what it writes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import tenon
from real import DIGITS, SHARED, held_out_digits
from tenon.compat.tengine.convert_tool import convert_tool
from tenon.network.graph.evaluate import evaluate

MODEL = DIGITS / "digits.onnx"


def status(monkeypatch: pytest.MonkeyPatch, *words: object) -> object:
    """The exit status."""
    monkeypatch.setattr(sys, "argv", ["convert_tool", *map(str, words)])
    try:
        convert_tool()
    except SystemExit as end:
        return end.code
    return 0


def test_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "digits.tmfile"
    assert status(monkeypatch, "-f", "onnx", "-m", MODEL, "-o", out) == 0
    printed = capsys.readouterr().err
    assert "---- Tengine Convert Tool ----" in printed
    assert f"Convert model success. {MODEL} -----> {out}" in printed
    image = held_out_digits()[0][0].reshape(1, 1, 8, 8)
    (expected,) = evaluate(tenon.load(MODEL), {"image": image}).values()
    graph = tenon.load(out)
    (result,) = evaluate(graph, {graph.inputs[0].name: image}).values()
    np.testing.assert_allclose(result.ravel(), expected.ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("swapped", [False, True])
def test_two_files_in_either_order(swapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SHARED / "models" / "caffe" / "RFB-320"
    if not folder.is_dir():
        pytest.skip("the collection of real models is not there")
    files = [
        shutil.copy(folder / f"RFB-320.{end}", tmp_path / f"{name}.{end}")
        for name, end in (("a", "prototxt"), ("b", "caffemodel"))
    ]
    structure, weights = reversed(files) if swapped else files
    assert status(monkeypatch, "-f", "caffe", "-p", structure, "-m", weights, "-o", tmp_path / "rfb.tmfile") == 0
    assert [value.type.dims for value in tenon.load(tmp_path / "rfb.tmfile").outputs] == [(1, 4420, 4), (1, 4420, 2)]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 255, "optional arguments"),
        (("-h",), 0, "optional arguments"),
        (("-f", "word"), 255, "Allowed input file format"),
        (("-f", "caffe", "-m", MODEL), 255, "specify the -p option"),
        (("-f", "onnx"), 255, "specify the -m option"),
        (("-f", "onnx", "-m", "no.onnx", "-o", "x.tmfile"), 255, "Model file does not exist: no.onnx"),
        (("-f", "onnx", "-m", MODEL), 255, "specify the -o option"),
        (("-f", "onnx", "-m", MODEL, "-o", "no/x.tmfile"), 255, "dir of output file does not exist: no"),
        (("-f", "onnx", "-m", __file__, "-o", "x.tmfile"), 2, "Convert model failed."),
        (("-f", "onnx", "-m", MODEL, "-o", "x.tmfile", "-s", "image"), 2, "write NAME=DIMS"),
        (("-x",), 255, "option -x not recognized"),
        (("-f", "onnx", "word"), 255, "'word'"),
    ],
)
def test_refusals(
    words: tuple[object, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(monkeypatch, *words) == code
    printed = capsys.readouterr().err
    assert said in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())
