"""Answers decoded from outputs: every kind of head on outputs with a known answer, and how a head is chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import tenon
from installed import succeeds
from installed import tenon as command
from onnx_models import model, node
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, real_values
from tenon.runtime.answers.choice import head_for
from tenon.runtime.answers.description import described_head, renamed_outputs, written_head
from tenon.runtime.answers.heads.regions import areas
from tenon.runtime.answers.registry import heads
from tenon.runtime.answers.skeletons import SKELETONS, find_edges
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.runtime.engine.image import InputImage

WIDE, HIGH = 400, 200
"""The size of the image, of which the input shows everything."""


def tensor(name: str, shape: Sequence[int], **more: Any) -> BundleTensor:
    return BundleTensor(name, "float32", tuple(shape), 0, 4, **more)


def image(height: int, width: int) -> InputImage:
    return InputImage(np.zeros((1, 3, height, width)), (WIDE, HIGH), (0.0, 0.0, WIDE, HIGH), (height, width))


def answer_of(
    text: str, outputs: Mapping[str, Array], size: tuple[int, int] = (64, 64), labels: Sequence[str] = (), **more: Any
) -> Answer:
    kind, *fields = text.split()
    shapes = [tensor(name, array.shape) for name, array in outputs.items()]
    head = described_head({"kind": kind, **dict(f.split("=") for f in fields)}, shapes)
    inputs = more.pop("inputs", {})
    return head.answer(Run(inputs, outputs, image(*size), labels, **more))


def recognised(outputs: Mapping[str, Sequence[int]], inputs: Sequence[int] = (1, 3, 64, 64), labels: int = 0) -> str:
    """The kind that is chosen for these shapes."""
    ports = tuple(tensor(name, shape) for name, shape in outputs.items())
    manifest = SimpleNamespace(inputs=(tensor("x", inputs),), outputs=ports, decoding={})
    head = head_for(cast(Manifest, manifest), labels)
    return "" if head is None else head.kind


# ------------------------------------------------------------------------------------------------ each kind
def test_classes_are_sorted_by_score() -> None:
    answer = answer_of("classes activation=softmax", {"y": np.log([[0.1, 0.7, 0.2]])}, labels=["a", "b", "c"])
    assert answer.rows == (("b", "0.700"), ("c", "0.200"), ("a", "0.100"))
    assert answer_of("classes", {"y": np.array([[3.0, 1, 2]])}, top=1).rows == (("0", "3.000"),)
    assert answer_of("classes activation=sigmoid", {"y": np.array([[0.0, 800.0, -800.0]])}).rows[0] == ("1", "1.000")


def test_points_in_pixels_and_relative_to_the_input() -> None:
    pixels = {"y": np.array([[32.0, 16, 64, 64]]), "sure": np.array([[4.0]])}
    answer = answer_of("points outputs=y presence=sure", pixels)
    assert [(p["x"], p["y"]) for p in answer.data["points"]] == [(200, 50), (400, 200)]
    assert answer.summary == "2 of 2 points, score 0.982"
    relative = answer_of("points outputs=y", {"y": np.array([[0.5, 0.25, 1, 1]])})
    assert [(p["x"], p["y"]) for p in relative.data["points"]] == [(200, 50), (400, 200)]


def test_points_that_are_not_visible_are_left_out() -> None:
    rows = np.array([[0.5, 0.5, 9.0], [0.1, 0.1, -9.0], [0.2, 0.2, 9.0]])
    answer = answer_of("points values=3 visibility=2 points=2", {"y": rows.reshape(1, -1)}, labels=["nose", "ear"])
    assert answer.rows == (("nose", "1.000", "200", "100"),)
    absent = {"y": np.array([[0.5, 0.5]]), "sure": np.array([[0.2]])}
    assert answer_of("points outputs=y presence=sure", absent).summary == "0 of 1 points, score 0.200"


def test_heatmaps_have_their_maximum_at_the_point() -> None:
    maps = np.zeros((1, 2, 16, 16))
    maps[0, 0, 4, 8], maps[0, 0, 4, 9], maps[0, 1, 12, 3] = 0.9, 0.5, 0.3
    (first, second) = answer_of("heatmaps", {"y": maps}).data["points"]
    assert (first["x"], first["y"], first["score"]) == (WIDE * 8.75 / 16, HIGH * 4.5 / 16, 0.9)
    assert (second["x"], second["y"]) == (WIDE * 3.5 / 16, HIGH * 12.5 / 16)
    last = answer_of("heatmaps axes=nhwc", {"y": maps.transpose(0, 2, 3, 1)})
    assert last.data["points"][0] == first
    assert last.summary == "1 of 2 points"


def test_the_share_of_each_class_in_a_mask() -> None:
    maps = np.zeros((1, 3, 2, 4))
    maps[0, 2, 0], maps[0, 1, 1, 0] = 5, 5
    answer = answer_of("mask", {"y": maps}, labels=["none", "cat", "dog"])
    assert answer.rows == (("dog", "50.0%"), ("none", "37.5%"), ("cat", "12.5%"))
    one = answer_of("mask axes=nhwc", {"y": np.array([0.9, 0.1, 0.6, 0.4]).reshape(1, 2, 2, 1)}, threshold=0.6)
    assert one.rows == (("background", "50.0%"), ("foreground", "50.0%"))
    numbers = answer_of("mask", {"y": np.array([[[2, 2], [2, 0]]])})
    assert numbers.rows == (("2", "75.0%"), ("0", "25.0%"))


def test_text_without_blanks_and_repetitions() -> None:
    steps = [1, 1, 0, 1, 2, 2, 3, 0]
    scores = np.eye(4)[steps][None]
    assert answer_of("text", {"y": scores}, labels=["a", "b"]).data["text"] == "aab "
    assert answer_of("text", {"y": scores}, labels=["a", "b", "c"]).data["text"] == "aabc"
    last = answer_of("text blank=-1", {"y": np.eye(4)[[0, 3, 0, 1]][:, None]}, labels=["x", "y", "z"])
    assert (last.data["text"], last.data["score"]) == ("xxy", 1.0)
    with pytest.raises(InputError, match=r"4 classes need 3 characters in --labels .* there are 1"):
        answer_of("text", {"y": scores}, labels=["a"])


def test_a_reconstruction_is_judged_by_its_error() -> None:
    inputs, outputs = {"x": np.array([[1.0, 2, 3]])}, {"y": np.array([[1.0, 2, 6]])}
    assert answer_of("reconstruction", outputs, inputs=inputs).data == {"error": 3.0}
    assert answer_of("reconstruction limit=2", outputs, inputs=inputs).summary.startswith("anomaly")
    assert answer_of("reconstruction", outputs, inputs=inputs, threshold=4.0).summary.startswith("normal")
    with pytest.raises(InputError, match="0 inputs have as many values"):
        answer_of("reconstruction", outputs)


def test_vectors_are_compared_by_their_angle() -> None:
    here, there = {"y": np.array([[3.0, 4.0]])}, {"y": np.array([[8.0, 6.0]])}
    assert answer_of("embedding", here).data["vector"] == [0.6, 0.8]
    assert answer_of("embedding", here, match=there).summary == "similarity 0.960"
    assert answer_of("embedding limit=0.5", here, match=there).summary.startswith("the same: similarity 0.960")
    assert answer_of("embedding", here, match=there, threshold=0.97).data["same"] is False
    with pytest.raises(InputError, match="the vector is zero"):
        answer_of("embedding", {"y": np.zeros((1, 2))})


def test_a_picture_in_grey_takes_the_colours_of_the_image() -> None:
    answer = answer_of("picture colour=luma", {"y": np.full((1, 1, 8, 16), 0.5)}, (4, 8))
    assert answer.draw is not None
    red = answer.draw(Image.new("RGB", (WIDE, HIGH), (255, 0, 0)))
    assert red.size == (16, 8)
    r, g, b = (int(v) for v in np.asarray(red)[4, 8])
    assert r > 2 * max(g, b)
    own = answer_of("picture axes=nhwc", {"y": np.full((1, 8, 16, 3), 200.0)})
    assert own.draw is not None
    assert np.asarray(own.draw(Image.new("RGB", (8, 8)))).min() == 200


def test_boxes_and_points_from_anchors() -> None:
    """64 x 64: maps of 8 x 8 cells with two anchors and of 4 x 4 with six."""
    boxes, scores = np.zeros((1, 128 + 96, 6)), np.full((1, 128 + 96, 1), -9.0)
    at = 2 * (8 * 3 + 5)  # row 3, column 5 of the first map: centre (44, 28)
    boxes[0, at] = [4, 0, 16, 8, -4, 2]
    scores[0, at] = 3
    answer = answer_of("anchors strides=8,16 per_cell=2,6", {"boxes": boxes, "scores": scores})
    (detection,) = answer.data["detections"]
    x, y = WIDE / 64, HIGH / 64
    np.testing.assert_allclose(detection["box"], (40 * x, 24 * y, 56 * x, 32 * y))
    np.testing.assert_allclose(detection["points"], [[40 * x, 30 * y]])
    assert answer.rows[0][1] == "0.953"
    assert answer_of("anchors", {"b": boxes, "s": scores}).data["detections"] == answer.data["detections"]
    with pytest.raises(InputError, match="make 64 anchors, and the output has 224"):
        answer_of("anchors strides=8 per_cell=1", {"boxes": boxes, "scores": scores})


@pytest.mark.parametrize(("version", "half"), [(3, (5.0, 8.0)), (5, (5.0, 8.0))])
def test_boxes_from_the_maps_of_yolo(version: int, half: tuple[float, float]) -> None:
    """All sizes are zero: exp(0) and (2 sigmoid(0))^2 are 1, so that the box has the anchor's size."""
    maps = {f"y{s}": np.full((1, 64 // s, 64 // s, 18), -20.0) for s in (8, 16, 32)}
    cell = maps["y16"].reshape(1, 4, 4, 3, 6)
    cell[0, 1, 2, 0] = [0, 0, 0, 0, 9, 9]  # the first of its anchors: 10 x 16
    text = f"grid version={version} anchors=1,1,1,1,1,1,10,16,1,1,1,1,1,1,1,1,1,1"
    (detection,) = answer_of(text, maps).data["detections"]
    x, y = WIDE / 64, HIGH / 64
    expected = ((40 - half[0]) * x, (24 - half[1]) * y, (40 + half[0]) * x, (24 + half[1]) * y)
    np.testing.assert_allclose(detection["box"], expected, rtol=1e-6)
    first = {name: array.transpose(0, 3, 1, 2) for name, array in maps.items()}
    assert answer_of(text, first).data["detections"] == [detection]


def test_regions_of_a_map_are_boxes() -> None:
    scores = np.zeros((1, 1, 40, 80))
    scores[0, 0, 10:14, 20:40] = 0.9
    scores[0, 0, 30, 60:62] = 0.9  # smaller than 3 pixels
    (detection,) = answer_of("regions", {"y": scores}, (40, 80)).data["detections"]
    more = 1.6 * 80 / 48
    x, y = WIDE / 80, HIGH / 40
    np.testing.assert_allclose(detection["box"], ((20 - more) * x, (10 - more) * y, (40 + more) * x, (14 + more) * y))


def test_areas_that_touch_are_one() -> None:
    """A ring, and a diagonal, against a flood fill."""
    rng = np.random.default_rng(0)
    for density in (0.2, 0.45, 0.7):
        scores = (rng.random((20, 30)) < density).astype(float)
        assert sorted(box for box, _ in areas(scores, 0.5)) == sorted(_flooded(scores > 0.5))


def _flooded(mask: Array) -> list[tuple[int, int, int, int]]:
    left, boxes = {(int(y), int(x)) for y, x in np.argwhere(mask)}, []
    while left:
        todo, group = [left.pop()], []
        while todo:
            y, x = todo.pop()
            group.append((y, x))
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            todo += near
        ys, xs = zip(*group, strict=True)
        boxes.append((min(xs), min(ys), max(xs) + 1, max(ys) + 1))
    return boxes


def test_quantised_outputs_are_real_numbers() -> None:
    quantised = tensor("y", (1, 2), scale=0.5, zero_point=-10)
    assert real_values({"y": np.array([[-10, 6]], np.int8)}, [quantised])["y"].tolist() == [[0.0, 8.0]]
    assert real_values({"y": np.array([1.5])}, [tensor("y", (1,))])["y"].tolist() == [1.5]


# ------------------------------------------------------------------------------------------------ the choice
@pytest.mark.parametrize(
    ("outputs", "labels", "kind"),
    [
        ({"y": (1, 10)}, 10, "classes"),
        ({"y": (1, 10)}, 0, ""),
        ({"y": (1, 10)}, 9, ""),
        ({"y": (1, 17, 16, 16)}, 0, "heatmaps"),
        ({"y": (1, 16, 16, 17)}, 0, "heatmaps"),
        ({"y": (1, 64, 64, 1)}, 0, "mask"),
        ({"y": (1, 21, 64, 64)}, 21, "mask"),
        ({"y": (1, 21, 64, 64)}, 0, ""),
        ({"y": (1, 3, 128, 128)}, 0, "picture"),
        ({"y": (1, 3, 128, 192)}, 0, ""),
        ({"y": (1, 40, 12)}, 11, "text"),
        ({"y": (1, 40, 12)}, 10, "text"),
        ({"y": (1, 40, 12)}, 12, ""),
        ({"b": (1, 224, 16), "s": (1, 224, 1)}, 0, "anchors"),
        ({"b": (1, 225, 16), "s": (1, 225, 1)}, 0, ""),
        ({"y": (1, 1404), "f": (1, 1)}, 0, "points"),
        ({"y": (1, 1404)}, 0, ""),
        ({"a": (1, 18, 8, 8), "b": (1, 18, 4, 4), "c": (1, 18, 2, 2)}, 0, "grid"),
        ({"a": (1, 18, 8, 8), "b": (1, 18, 4, 4), "c": (1, 18, 1, 1)}, 0, ""),
        ({}, 0, ""),
    ],
)
def test_heads_recognised_by_shapes(outputs: dict[str, tuple[int, ...]], labels: int, kind: str) -> None:
    assert recognised(outputs, labels=labels) == kind
    assert recognised(outputs, inputs=(1, 7), labels=labels) == ""


def test_a_grey_network_of_the_same_size_is_no_mask() -> None:
    assert recognised({"y": (1, 1, 64, 64)}, inputs=(1, 1, 64, 64)) == ""
    assert recognised({"y": (1, 1, 192, 192)}, inputs=(1, 1, 64, 64)) == "picture"


@pytest.mark.parametrize("kind", sorted(heads()))
def test_descriptions_survive_being_written(kind: str) -> None:
    """As text in a manifest, with the names of the outputs filled in."""
    outputs = [
        tensor("a,b", (1, 4, 8)),
        tensor("m", (1, 18, 8, 8)),
        tensor("n", (1, 1, 8, 8)),
        tensor("b", (1, 224, 16)),
        tensor("s", (1, 224, 1)),
    ]
    outputs = [t._replace(name=t.name.replace(",", "_")) for t in outputs]
    outputs += [tensor("v", (1, 6))]
    head = described_head({"kind": kind}, outputs)
    text = written_head(head)
    assert described_head(json.loads(json.dumps(text)), outputs) == head
    assert head.about
    assert {f.name for f in dataclasses.fields(head)} >= {"outputs"}
    other = renamed_outputs(text, {name: f"{name}_renamed" for name in head.outputs})
    assert other["outputs"] == ",".join(f"{name}_renamed" for name in head.outputs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("points outputs=z", "no output is called 'z'"),
        ("points presence=z", "no output is called 'z'"),
        ("points colour=red", "colour"),
        ("classes activation=tanh", "activation must be one of"),
        ("points values=1", "values must be 2 or more"),
        ("points values=x", "values must be a whole number"),
        ("anchors", "boxes and points .* the model has y float32"),
        ("regions grow=-1", "grow must be 0 or more"),
        ("grid anchors=1,a", "anchors.1 must be a number"),
        ("points values=4", "6 numbers are no points of 4 values"),
        ("mask", "the classes of pixels"),
        ("grid", "one map|no map|need"),
        ("picture", "an image"),
    ],
)
def test_descriptions_that_do_not_fit(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        answer_of(text, {"y": np.zeros((1, 6))})


def test_a_head_of_pixels_needs_an_image() -> None:
    head = described_head({"kind": "points"}, [tensor("y", (1, 6))])
    with pytest.raises(InputError, match="--head points: give an image"):
        head.answer(Run({}, {"y": np.zeros((1, 6))}))


def test_lines_of_skeletons() -> None:
    assert find_edges("0-1-2/3-4", 5) == ((0, 1), (1, 2), (3, 4))
    counts = {"coco": 17, "openpose": 18, "mpii": 16, "body33": 33, "hand21": 21, "none": 0}
    assert counts.keys() == SKELETONS.keys()
    for name, count in counts.items():
        edges = find_edges(name, count)
        assert len(set(map(frozenset, edges))) == len(edges)
        if name not in ("none",):
            with pytest.raises(InputError, match="there are only"):
                find_edges(name, max(map(max, edges)))
    with pytest.raises(InputError, match="edges=x: write chains"):
        find_edges("x", 9)


def test_heads_are_found_by_scanning() -> None:
    from tenon.runtime.answers import heads as package

    modules = {path.stem for path in Path(package.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules == set(heads())
    assert all(issubclass(kind, Head) and kind.__doc__ for kind in heads().values())


# ------------------------------------------------------------------------------------------------ the command
def network(shape: Sequence[int], values: Array) -> bytes:
    """A network with a constant output, computed from an image so that nothing is folded."""
    nodes = [
        node("ReduceMean", ["image"], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["nothing"]),
        node("Add", ["nothing", "values"], ["y"]),
    ]
    constants = {"zero": np.zeros(1, np.float32), "values": values.astype(np.float32)}
    return bytes(model(nodes, {"image": list(shape)}, ["y"], constants).SerializeToString())


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.new("RGB", (80, 40), (200, 200, 200)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_a_head_is_recorded_in_the_bundle(tmp_path: Path, photo: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(network((1, 3, 8, 8), np.array([[0.25, 0.5, 0.75, 0.5]])))
    (tmp_path / "names.txt").write_text("left\nright\n")
    described = ("--head", "points edges=0-1")
    succeeds("compile", "net.onnx", "-o", "out", *described, "--labels", "names.txt", cwd=tmp_path)
    shown = succeeds("run", "out", photo, "--draw", "drawn.png", cwd=tmp_path)
    assert [line.split() for line in shown.splitlines()[:3]] == [
        ["point", "score", "x", "y"],
        ["left", "1.000", "20", "20"],
        ["right", "1.000", "60", "20"],
    ]
    assert "2 of 2 points" in shown
    with Image.open(tmp_path / "drawn.png") as drawn:
        pixels = np.asarray(drawn)
    assert tuple(pixels[20, 40]) != (200, 200, 200)  # the line between them
    assert tuple(pixels[5, 40]) == (200, 200, 200)
    assert succeeds("run", "net.onnx", photo, *described, "--labels", "names.txt", cwd=tmp_path).startswith("point ")


def test_json_has_the_answer(tmp_path: Path, photo: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(network((1, 3, 8, 8), np.array([[0.1, 0.9]])))
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    shown = json.loads(succeeds("run", "net.onnx", photo, "--labels", "names.txt", "--json", cwd=tmp_path))
    assert shown["classes"][0] == {"class": 1, "label": "dog", "score": pytest.approx(0.9)}
    assert shown["top"]["y"][0]["label"] == "dog"


def test_an_image_to_compare_with(tmp_path: Path) -> None:
    """The mean colour of an image as its vector."""
    made = model([node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)], {"x": [1, 3, 8, 8]}, ["y"], {}, opset=13)
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    for name, colour in (("red", (250, 0, 0)), ("dark", (120, 0, 0)), ("blue", (0, 0, 250))):
        Image.new("RGB", (16, 16), colour).save(tmp_path / f"{name}.png")
    run = ("run", "net.onnx", "red.png", "--threshold", "0.5", "--match")
    assert "the same: similarity 1.000" in succeeds(*run, "dark.png", cwd=tmp_path)
    assert "different: similarity 0.000" in succeeds(*run, "blue.png", cwd=tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    done = command("run", "net.onnx", "--input", "x.npy", "--match", "red.png", cwd=tmp_path)
    assert (done.returncode, "--match: no effect" in done.stderr) == (2, True)


def test_a_part_of_an_image(tmp_path: Path) -> None:
    """--crop: the network sees this part, and its answer is in pixels of the whole image."""
    (tmp_path / "net.onnx").write_bytes(network((1, 3, 8, 8), np.array([[0.5, 0.5]])))
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[10:30, 40:60] = 255
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    run = ("run", "net.onnx", "photo.png", "--head", "points", "--json")
    (point,) = json.loads(succeeds(*run, "--crop", "40,10,60,30", cwd=tmp_path))["points"]
    assert (point["x"], point["y"]) == (50, 20)
    for wrong in ("1,2,3", "30,10,20,40", "a,b,c,d"):
        done = command(*run, "--crop", wrong, cwd=tmp_path)
        assert (done.returncode, "--crop" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_the_network_sees_the_part(tmp_path: Path) -> None:
    from tenon.images import read_image

    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[10:30, 40:60] = 255
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    part = read_image(tmp_path / "photo.png", (1, 3, 8, 8), crop=(40, 10, 60, 30))
    assert part.pixels.min() == 255
    assert (part.size, part.view) == ((80, 40), (40, 10, 60, 30))
    outside = read_image(tmp_path / "photo.png", (1, 3, 8, 8), crop=(-20, 10, 0, 30))
    assert outside.pixels.max() == 0


def test_kinds_of_both_sorts_are_told(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(network((1, 3, 8, 8), np.array([[0.5, 0.5]])))
    with pytest.raises(InputError, match="kind must be one of"):
        tenon.compile(tmp_path / "net.onnx", head={"kind": "nothing"})
    bundle = tenon.compile(tmp_path / "net.onnx", head={"kind": "points", "values": 2}, obfuscate="all")
    assert bundle.decoding["outputs"] == bundle.interface.outputs[0].name != "y"
