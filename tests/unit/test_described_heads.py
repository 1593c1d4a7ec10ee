"""Detection outputs described by the user: raw SSD boxes, and outputs whose shapes are ambiguous."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tenon
from installed import environment, succeeds
from installed import tenon as command
from onnx_models import model, node
from real import DIGITS, ROOT, shared
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.engine.detect import why_none

SIZE = (24, 40)  # height, width
STRIDES, SIZES = (8, 16), ((10.0, 14.0), (20.0,))
HEAD = {"kind": "ssd", "strides": STRIDES, "sizes": SIZES, "variances": (0.1, 0.2)}
COUNT = 3 * 5 * 2 + 2 * 3 * 1
RFB = "ssd strides=8,16,32,64 sizes=10/16/24,32/48,64/96,128/192/256 variances=0.1,0.2"


def raw(boxes: str = "boxes", scores: str = "scores") -> tuple[bytes, Array, Array]:
    """A network with constant offsets and scores as outputs, and these constants."""
    rng = np.random.default_rng(0)
    offsets = rng.normal(size=(1, COUNT, 4)).astype(np.float32)
    sure = rng.dirichlet((1, 1, 1), size=(1, COUNT)).astype(np.float32)
    nodes = [
        node("ReduceMean", ["image"], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["nothing"]),
        node("Add", ["nothing", "offsets"], [boxes]),
        node("Add", ["nothing", "sure"], [scores]),
    ]
    constants = {"zero": np.zeros(1, np.float32), "offsets": offsets, "sure": sure}
    made = model(nodes, {"image": [1, 3, *SIZE]}, [boxes, scores], constants)
    return made.SerializeToString(), offsets[0], sure[0]


def decoded(offsets: Array) -> Array:
    """By the formula of the paper, box by box."""
    output, n = [], 0
    for stride, sizes in zip(STRIDES, SIZES, strict=True):
        for row in range(-(-SIZE[0] // stride)):
            for column in range(-(-SIZE[1] // stride)):
                for size in sizes:
                    w, h = size / SIZE[1], size / SIZE[0]
                    x = (column + 0.5) * stride / SIZE[1] + 0.1 * w * offsets[n, 0]
                    y = (row + 0.5) * stride / SIZE[0] + 0.1 * h * offsets[n, 1]
                    w, h = w * np.exp(0.2 * offsets[n, 2]), h * np.exp(0.2 * offsets[n, 3])
                    output.append((x - w / 2, y - h / 2, x + w / 2, y + h / 2))
                    n += 1
    assert n == COUNT
    return np.array(output)


def test_offsets_are_decoded_to_boxes() -> None:
    data, offsets, sure = raw()
    with tenon.open(tenon.compile(data, head=HEAD)) as engine:
        out = engine.run(np.zeros((1, 3, *SIZE), np.float32))
        heads = engine.manifest.heads
    assert heads is not None
    assert (heads.kind, heads.outputs) == ("boxes", ("boxes", "scores"))
    np.testing.assert_allclose(out["boxes"][0], decoded(offsets), atol=1e-5)
    np.testing.assert_allclose(out["scores"][0], sure, atol=1e-6)


def test_priors_from_a_file_with_logits(tmp_path: Path) -> None:
    data, offsets, sure = raw("loc", "conf")
    x = decoded(np.zeros((COUNT, 4)))
    np.save(tmp_path / "p.npy", np.concatenate([(x[:, :2] + x[:, 2:]) / 2, x[:, 2:] - x[:, :2]], 1))
    head = {"kind": "ssd", "priors": tmp_path / "p.npy", "activation": "softmax", "boxes": "loc", "scores": "conf"}
    with tenon.open(tenon.compile(data, head=head)) as engine:
        out = engine.run(np.zeros((1, 3, *SIZE), np.float32))
    np.testing.assert_allclose(out["loc"][0], decoded(offsets), atol=1e-5)
    np.testing.assert_allclose(out["conf"][0], np.exp(sure) / np.exp(sure).sum(1, keepdims=True), atol=1e-6)


def test_outputs_can_be_named_if_shapes_are_ambiguous() -> None:
    data, _, _ = raw()
    bundle = tenon.compile(data, head={"kind": "boxes", "outputs": ("boxes", "scores"), "corners": "cxcywh"})
    assert bundle.heads is not None
    assert (bundle.heads.outputs, bundle.heads.corners) == (("boxes", "scores"), "cxcywh")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({"kind": "sdd"}, "kind"),
        ({"kind": "ssd"}, "strides=8,16"),
        ({**HEAD, "strides": (8,)}, "for each stride some sizes"),
        ({**HEAD, "strides": (8, 8)}, "make 45 boxes.* has 36"),
        ({**HEAD, "boxes": "absent"}, "no output is called 'absent'"),
        ({**HEAD, "colour": 1}, "colour"),
        ({**HEAD, "variances": (1,)}, "variances"),
        ({"kind": "ssd", "priors": "absent.npy"}, "absent.npy"),
        ({"kind": "boxes", "outputs": ("boxes",)}, "name 2 of the outputs"),
        ({**HEAD, "strides": (0, 8)}, "strides"),
        ({"kind": "rows", "outputs": ("nothing",)}, "name 1 of the outputs"),
        ({**HEAD, "scores": "boxes"}, "Name them with"),
    ],
)
def test_invalid_descriptions(head: dict[str, Any], words: str) -> None:
    data, _, _ = raw()
    with pytest.raises(InputError, match=words):
        tenon.compile(data, head=head)


def test_reason_for_missing_detections() -> None:
    nodes = [node("Conv", ["image", "w"], ["y"])]
    data = model(nodes, {"image": [1, 3, 8, 8]}, ["y"], {"w": np.ones((2, 3, 3, 3), np.float32)}).SerializeToString()
    with tenon.open(tenon.compile(data)) as engine:
        assert "none of y [1, 2, 6, 6] has the shape" in why_none(engine)
        assert "--head" in why_none(engine)


# ------------------------------------------------------------------------------------------- real networks
@pytest.fixture
def faces() -> Path:
    return shared("models/images/rfb_faces_test.jpg")


SCALED = ("--mean", "127", "--scale", "1/128", "--threshold", "0.7")
FILES = [
    ("caffe/RFB-320/RFB-320.prototxt", ()),
    ("ncnn/version-RFB-320/RFB-320.param", ("--shape", "input=1,3,240,320")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "more"), FILES)
def test_networks_without_decoding_report_it(file: str, more: tuple[str, ...], faces: Path) -> None:
    path = shared(f"models/{file}")
    done = command("run", path, faces, *SCALED[:4], *more)
    assert done.returncode == 0
    assert "'boxes' and 'scores' look like boxes and scores, but nothing" in " ".join(done.stderr.split())
    assert "--head" in done.stderr
    limited = command("run", path, faces, *SCALED, *more)
    assert (limited.returncode, "--threshold: no effect" in limited.stderr) == (2, True)
    drawn = command("run", path, faces, *SCALED, *more, "--draw", "never.png")
    assert (drawn.returncode, "--head" in drawn.stderr, "Traceback" in drawn.stderr) == (2, True, False)
    output = succeeds("run", path, faces, *SCALED, *more, "--head", RFB)
    rows = [line.split() for line in output.splitlines() if line.startswith("1 ")]
    assert len(rows) == 5
    assert np.abs(np.array(rows[0][2:], float) - (742, 261, 837, 365)).max() < 3
    assert "5 found" in output


def test_description_is_stored_in_the_bundle(faces: Path, tmp_path: Path) -> None:
    path = shared("models/caffe/RFB-320/RFB-320.prototxt")
    succeeds("compile", path, "-o", "out", *SCALED[:4], "--head", RFB, cwd=tmp_path)
    assert "5 found" in succeeds("run", "out", faces, "--threshold", "0.7", cwd=tmp_path)
    done = command("run", "out", faces, "--head", RFB, cwd=tmp_path)
    assert (done.returncode, "compile the model again" in done.stderr) == (2, True)


# ------------------------------------------------------------------------------------------- the example
def example(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "examples" / "faces" / "detect.py"), *map(str, arguments)]
    return subprocess.run(program, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("file", ["onnx/version-RFB-320/version-RFB-320.onnx", *(file for file, _ in FILES)])
def test_example_detects_faces_with_every_export(file: str, faces: Path, tmp_path: Path) -> None:
    done = example(shared(f"models/{file}"), faces, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 faces drawn" in done.stdout
    assert (tmp_path / "faces.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.onnx", "photo.png"), "absent.onnx"),
        ((DIGITS / "digits.onnx", "photo.png"), "boxes"),
        (("good.onnx", "absent.png"), "absent.png"),
        (("good.onnx", "raw.onnx"), "raw.onnx"),
        (("good.onnx", "photo.png", "--out", "photo.none"), "photo.none"),
    ],
)
def test_example_error_messages(arguments: tuple[str | Path, ...], words: str, tmp_path: Path) -> None:
    (tmp_path / "raw.onnx").write_bytes(raw()[0])
    rng = np.random.default_rng(0)
    numbers = {"w": rng.normal(size=(4420, 3)).astype(np.float32)}
    nodes = [
        node("GlobalAveragePool", ["input"], ["m"]),
        node("Flatten", ["m"], ["f"]),
        node("Sigmoid", ["f"], ["q"]),
        node("Gemm", ["q", "w"], ["g"], transB=1),
        node("Sigmoid", ["g"], ["s"]),
        node("Reshape", ["s", "to"], ["c"]),
        node("Concat", ["c", "c"], ["scores"], axis=2),
        node("Concat", ["scores", "scores"], ["boxes"], axis=2),
    ]
    made = model(
        nodes, {"input": [1, 3, 240, 320]}, ["scores", "boxes"], {**numbers, "to": np.array([1, 4420, 1], np.int64)}
    )
    (tmp_path / "good.onnx").write_bytes(made.SerializeToString())
    Image.new("RGB", (64, 48), (90, 60, 30)).save(tmp_path / "photo.png")
    done = example(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.startswith("detect.py: "), "Traceback" in done.stderr) == (2, True, False)
    assert words in done.stderr
