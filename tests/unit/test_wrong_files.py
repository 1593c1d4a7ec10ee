"""Errors about files that are not what they should be, and about options, say what is there and what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
import tenon.cli
from command_line import run_main
from onnx_models import model, node
from real import DIGITS
from tenon.errors import FormatError, ModelError
from tenon.formats.wire.file_kinds import no_model, told_kind

MODEL = str(DIGITS / "digits.onnx")
PICTURE = str(DIGITS / "seven.pgm")
OTHERS = {
    b"\xff\xd8\xff\xe0": "a JPEG image",
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"RIFF\0\0\0\0WAVE": "a sound file",
    b"\x7fELF\2\1": "a program or library",
    b"\x93NUMPY\1\0": "an array",
    b"  <!DOCTYPE html><html>": "a web page",
    b"version https://git-lfs.github.com/spec/v1": "a pointer of Git LFS",
    b"\x1f\x8b\x08\0": "compressed by gzip",
    b"": "empty",
}
ENDINGS = (".onnx", ".tflite", ".pb", ".caffemodel", ".h5", ".keras", ".tmfile", ".param", ".pt2", ".mge", ".bin")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(MODEL, "digits.onnx")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run_main(tenon.cli.main, list(words)) == 2
    message = capsys.readouterr().err
    assert "<" not in message.replace("<!", ""), "a Python object in a message"
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("content", OTHERS)
def test_what_is_given_as_a_model(content: bytes, ending: str) -> None:
    Path("model" + ending).write_bytes(content)
    with pytest.raises(FormatError, match=f"^model{ending}: not a model: it is {OTHERS[content]}.*: ."):
        tenon.load("model" + ending)


def test_models_are_none_of_these() -> None:
    for path in DIGITS.glob("*.onnx"):
        assert no_model(path.read_bytes()[:4096]) is None


def test_text_called_onnx() -> None:
    Path("model.onnx").write_text("no model\n")
    with pytest.raises(FormatError, match="not a readable ONNX model; it is text"):
        tenon.load("model.onnx")


def test_what_is_given_as_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.png").write_text("no image\n")
    Path("noise.png").write_bytes(bytes(range(128, 256)))
    np.save("x.npy", np.zeros(3))
    assert "text.png: not an image: it is text; give a JPEG" in said(capsys, "run", "digits.onnx", "text.png")
    assert "noise.png: not an image: its format is none" in said(capsys, "run", "digits.onnx", "noise.png")
    assert "digits.onnx: not an image: it is an ONNX model" in said(capsys, "run", "digits.onnx", "digits.onnx")
    assert "x.npy: not an image: it is an array of NumPy" in said(capsys, "run", "digits.onnx", "x.npy")


def test_what_is_given_as_an_array(capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (8, 8)).save("x.png")
    message = said(capsys, "run", "digits.onnx", "--input", "image=x.png")
    assert message == "tenon: x.png: not a .npy file of numbers (it is a PNG image): numpy.save writes one\n"


def test_labels_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("labels.bin").write_bytes(b"cat\ndog\xff\n")
    message = said(capsys, "run", "digits.onnx", PICTURE, "--labels", "labels.bin")
    assert message == "tenon: --labels labels.bin: byte 7 is not UTF-8: give a text file\n"


def test_kinds_of_text() -> None:
    assert told_kind("模型".encode()[:5]) == "it is text"  # cut within a character
    assert told_kind(b"GGUF\x03\0\0\0\x10\x01\0\0") == "it is a GGUF model"
    assert told_kind(b"\xff\xfe\0\0\0\0\0\0\0") == ""


def test_a_wrong_shape_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, "inspect", "digits.onnx", "--shape", "image=1,1,9,9")
    first, problem = message.splitlines()
    assert first.startswith(
        "tenon: digits.onnx: the shape image=1,1,9,9 does not fit the model, whose own is image f32[1,1,8,8]; "
        "leave out --shape, or correct it: "
    )
    assert "logits (Gemm)" in problem
    with pytest.raises(ModelError, match="the shape image=1,3,8,8 does not fit"):
        tenon.compile("digits.onnx", shapes={"image": (1, 3, 8, 8)})
    assert "img" in said(capsys, "inspect", "digits.onnx", "--shape", "img=1,1,8,8")


def test_a_broken_model_does_not_blame_the_shape() -> None:
    broken = model([node("Relu", ["absent"], ["y"])], {"x": [1, 4]}, ["y"]).SerializeToString()
    with pytest.raises(ModelError) as raised:
        tenon.load(broken, shapes={"x": (2, 4)})
    assert "does not fit the model" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compile", "digits.onnx"], "missing option '-o' / '--out' / '--output': see 'tenon compile -h'"),
        (["frobnicate"], "no such command 'frobnicate': see 'tenon -h'"),
        (["run"], "missing argument 'model': see 'tenon run -h'"),
        (["run", "digits.onnx", "--bogus"], "no such option: --bogus"),
        (["run", "digits.onnx", "--threads", "0"], "invalid value for '--threads': "),
        (["run", "digits.onnx", "--threads", "many"], "see 'tenon run -h'"),
    ],
)
def test_wrong_command_lines(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *words)
    assert text.startswith("tenon: ")
    assert message in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("metric", ["top1", "auc"])
def test_ground_truth_of_another_form(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("samples.npy", np.zeros((2, 1, 8, 8), np.float32))
    Path("truth.txt").write_text("cat\ndog\n")
    words = ["evaluate", "digits.onnx", "--data", "samples.npy", "--ground-truth", "truth.txt", "--metric", metric]
    assert "the ground truth of sample 0, 'cat', does not fit the metric: " in said(capsys, *words)


def test_names_of_files_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    message = said(capsys, "optimize", "digits.onnx", "-o", "net.xyz")
    assert message == "tenon: net.xyz: give a name that ends in .onnx, .tflite, .tmfile, or a folder\n"
    assert "--table .: cannot be written" in said(capsys, "tune", "digits.onnx", "--table", ".")
