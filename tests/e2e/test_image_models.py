"""Real detectors and classifiers on real photos, by the command line and from Python."""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from real import shared
from tenon.cli import main
from tenon.cli.model_source import ModelArgument
from tenon.errors import FormatError

FACES = "models/onnx/version-RFB-320/version-RFB-320.onnx"
SCALED = ("--mean", "127", "--scale", "1/128")
PHOTOS = {"rfb_faces_test.jpg": 5, "rfb_face_13.jpg": 2, "coral_grace_hopper.bmp": 1}


def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> dict[str, object]:
    monkeypatch.setattr(sys, "argv", ["tenon", *map(str, words), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert not end.value.code, printed.err
    report: dict[str, object] = json.loads(printed.out)
    return report


@pytest.mark.parametrize("compiled_in", [False, True])
def test_face_detector_with_recorded_preprocessing(
    compiled_in: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preprocessing options given when compiling are stored in the bundle."""
    options = ["--compile-preprocess", "480x640"] if compiled_in else []
    answer(capsys, monkeypatch, "compile", shared(FACES), "-o", tmp_path / "out", *SCALED, *options)
    drawn = tmp_path / "faces.png"
    for photo, count in PHOTOS.items():
        path = shared(f"models/images/{photo}")
        report = answer(capsys, monkeypatch, "run", tmp_path / "out", path, "--threshold", "0.7", "--draw", drawn)
        detections = report["detections"]
        assert isinstance(detections, list)
        assert len(detections) == count
        if photo == "rfb_faces_test.jpg":
            np.testing.assert_allclose(detections[0]["box"], [742, 261, 837, 365], atol=2)
        with Image.open(path) as before, Image.open(drawn) as after:
            assert after.size == before.size


def test_darknet_detector_uses_preprocessing_of_the_cfg(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale of images is stated in the .cfg file."""
    model, photo = shared("models/darknet/yolo-fastest-1.1"), shared("models/images/darknet_dog.jpg")
    labels = shared("models/darknet/coco.names")
    detections = answer(capsys, monkeypatch, "run", model, photo, "--labels", labels)["detections"]
    assert isinstance(detections, list)
    assert [(t["label"], round(t["score"], 2)) for t in detections] == [("car", 0.9), ("dog", 0.65), ("bicycle", 0.53)]
    np.testing.assert_allclose(detections[1]["box"], [122, 220, 364, 514], atol=4)


def test_integer_image_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer inputs take pixels without scaling."""
    model = shared("models/tflite_int8/coral_mobilenet/mobilenet_v1_0.25_128_quant.tflite")
    photo = shared("models/images/coral_cat.bmp")
    top = answer(capsys, monkeypatch, "run", model, photo, "--sampling", "nearest", "--top", "1")["top"]
    assert isinstance(top, dict)
    assert next(iter(top.values()))[0]["index"] in (282, 283, 286)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves the folder of the face detector."""

    class QuietHandler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keep the test run quiet."""

    folder = str(shared(FACES).parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_model_is_downloaded(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloaded into the cache, with progress messages, and run from the cache without the server."""
    monkeypatch.setenv("TENON_CACHE", str(tmp_path / "cache"))
    address, photo = f"{server}/{Path(FACES).name}", shared("models/images/rfb_face_13.jpg")
    messages: list[str] = []
    ModelArgument(address).fetch(messages.append)
    assert messages[-1].endswith("(100 %)")
    assert [p.name.split("-", 1)[1] for p in (tmp_path / "cache" / "models").iterdir()] == [Path(FACES).name]
    monkeypatch.setattr("urllib.request.urlopen", None)  # nothing is fetched again
    detections = answer(capsys, monkeypatch, "run", address, photo, *SCALED, "--threshold", "0.7")["detections"]
    assert isinstance(detections, list)
    assert len(detections) == 2


def test_downloaded_model_with_wrong_checksum(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names both checksums, and nothing is left in the cache."""
    monkeypatch.setenv("TENON_CACHE", str(tmp_path / "cache"))
    address = f"{server}/{Path(FACES).name}"
    expected = hashlib.sha256(shared(FACES).read_bytes()).hexdigest()
    with pytest.raises(FormatError, match=f"{expected}, expected {'1' * 64}"):
        ModelArgument(address, sha256="1" * 64).fetch(lambda stage: None)
    assert not list((tmp_path / "cache").rglob("*"))
    ModelArgument(address, sha256=expected.upper()).fetch(lambda stage: None)


def test_from_python(tmp_path: Path) -> None:
    bundle = tenon.compile(shared(FACES), preprocess={"mean": 127, "scale": 1 / 128, "fit": "letterbox"})
    with tenon.open(bundle) as engine:
        detections = tenon.detect(engine, shared("models/images/coral_grace_hopper.bmp"), threshold=0.7)
    assert len(detections) == 1
    left, top, right, bottom = detections[0].box
    assert 150 < left < 220 < 300 < right < 400
    assert 80 < top < 150 < 280 < bottom < 380
