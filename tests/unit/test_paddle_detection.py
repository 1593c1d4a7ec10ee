"""Paddle's detection post-processing compared with loops that follow its definitions."""

from __future__ import annotations

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from small_models import Option, paddle, paddle_operator, paddle_tensor
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.preprocessing import Heads
from tenon.network.passes.detection_outputs import find_heads

RNG = np.random.default_rng(8)
ANCHORS = [10, 14, 23, 27]
CLASSES, H, W, STRIDE = 3, 3, 4, 8
SIZE = np.array([[48, 80]], np.float32)
BOXES: dict[str, Option] = {"anchors": ANCHORS, "class_num": CLASSES, "downsample_ratio": STRIDE, "conf_thresh": 0.45}
KEPT: dict[str, Option] = {"score_threshold": 0.2, "nms_threshold": 0.3, "background_label": -1}


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def yolo(x: Array, *, scale: float = 1.0, clip: bool = True, share: float | None = None) -> tuple[Array, Array]:
    """Boxes and scores, in the order of anchors, then rows; ``share`` is the weight of the predicted IoU."""
    height, width = SIZE[0]
    count = len(ANCHORS) // 2
    maps = x[0, count if share is not None else 0 :].reshape(count, 5 + CLASSES, H, W)
    boxes, scores = np.zeros((count * H * W, 4), np.float32), np.zeros((count * H * W, CLASSES), np.float32)
    for row, (a, i, j) in enumerate(np.ndindex(count, H, W)):
        numbers = maps[a, :, i, j]
        sure = sigmoid(numbers[4])
        if share is not None:
            sure = sure ** (1 - share) * sigmoid(x[0, a, i, j]) ** share
        if sure < 0.45:
            continue
        middle = (np.array([j, i]) + sigmoid(numbers[:2]) * scale - 0.5 * (scale - 1)) * [width / W, height / H]
        half = np.exp(numbers[2:4]) * ANCHORS[2 * a : 2 * a + 2] * [width / W, height / H] / STRIDE / 2
        low, high = middle - half, middle + half
        if clip:
            low, high = np.maximum(low, 0), np.minimum(high, [width - 1, height - 1])
        boxes[row], scores[row] = [*low, *high], sure * sigmoid(numbers[5:])
    return boxes, scores


def nms(boxes: Array, scores: Array, extra: float, top: int, keep: int) -> Array:
    """Rows ordered by class; ``extra`` is 1 for pixel coordinates, where sides are one longer than differences of
    corners.
    """
    rows: list[list[float]] = []
    for c in range(scores.shape[1]):
        order = [p for p in np.argsort(-scores[:, c], kind="stable") if scores[p, c] > 0.2][:top]
        mine: list[int] = []
        for p in order:
            a = boxes[p]
            for q in mine:
                b = boxes[q]
                inside = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + extra, 0).prod()
                areas = [(box[2:] - box[:2] + extra).prod() for box in (a, b)]
                if inside / (sum(areas) - inside) > 0.3:
                    break
            else:
                mine.append(p)
        rows += [[c, scores[p, c], *boxes[p]] for p in mine]
    best = sorted(sorted(range(len(rows)), key=lambda i: -rows[i][1])[:keep])
    return np.array([rows[i] for i in best], np.float32)


def load(*operators: bytes, channels: int = 2 * (5 + CLASSES)) -> Graph:
    program = paddle(*operators, shape=(1, channels, H, W), parameters={"size": (1, 2)})
    return importers.load(program, weights=paddle_tensor(SIZE))


def decoded(slot: str, x: Array, **options: Option) -> Array:
    read: dict[str, str | list[str]] = {"X": "x", "ImgSize": "size"}
    graph = load(paddle_operator("yolo_box", read, {slot: "y"}, **{**BOXES, **options}), channels=x.shape[1])
    (output,) = evaluate(graph, {"x": x}).values()
    return output


def random_map(channels: int = 2 * (5 + CLASSES)) -> Array:
    return RNG.normal(0, 1, (1, channels, H, W)).astype(np.float32)


def test_yolo_box() -> None:
    x, aware = random_map(), random_map(2 * (6 + CLASSES))
    for slot, i in (("Boxes", 0), ("Scores", 1)):
        np.testing.assert_allclose(decoded(slot, x)[0], yolo(x)[i], atol=1e-4)
        outputs = decoded(slot, x, scale_x_y=1.05, clip_bbox=0)
        np.testing.assert_allclose(outputs[0], yolo(x, scale=1.05, clip=False)[i], atol=1e-4)
        outputs = decoded(slot, aware, iou_aware=1, iou_aware_factor=0.4)
        np.testing.assert_allclose(outputs[0], yolo(aware, share=0.4)[i], atol=1e-4)
    assert (yolo(x)[1] == 0).any()


def detector(slot: str, options: dict[str, Option]) -> Graph:
    """YOLO's boxes, scores with the classes first, NMS, and the copy that programs return."""
    return load(
        paddle_operator("yolo_box", {"X": "x", "ImgSize": "size"}, {"Boxes": "b", "Scores": "s"}, **BOXES),
        paddle_operator("transpose2", {"X": "s"}, {"Out": "t"}, axis=[0, 2, 1]),
        paddle_operator("multiclass_nms3", {"BBoxes": "b", "Scores": "t"}, {slot: "r"}, **{**KEPT, **options}),
        paddle_operator("scale", {"X": "r"}, {"Out": "y"}, scale=1.0),
    )


@pytest.mark.parametrize(("normalized", "top", "keep"), [(1, -1, -1), (0, 9, 5)])
def test_multiclass_nms(normalized: int, top: int, keep: int) -> None:
    x = random_map()
    every = 2 * H * W
    limits = (every if top < 0 else top, every * CLASSES if keep < 0 else keep)
    expected = nms(*yolo(x), float(not normalized), *limits)
    options: dict[str, Option] = {"normalized": normalized, "nms_top_k": top, "keep_top_k": keep}
    graph = detector("Out", options)
    assert find_heads(graph) == Heads("rows", ("y",), pixels=True)
    with tenon.open(tenon.compile(graph)) as engine:
        compiled = engine.run({"x": x})["y"]
    for output in (compiled, evaluate(graph, {"x": x})["y"]):
        assert 3 < len(expected) <= len(output)
        np.testing.assert_allclose(output[: len(expected)], expected, rtol=1e-5, atol=1e-4)
        assert (output[len(expected) :] == -1).all()
    (count,) = evaluate(detector("NmsRoisNum", options), {"x": x}).values()
    assert count.tolist() == [len(expected)]


def test_unsupported_forms_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match=r"2 anchors of 9 numbers from \[1, 16, 3, 4\]"):
        decoded("Boxes", random_map(), class_num=4)
    with pytest.raises(UnsupportedError, match="one image, whose classes share its boxes"):
        load(paddle_operator("multiclass_nms", {"BBoxes": "x", "Scores": "x"}, {"Out": "y"}, **KEPT))
    detector("Out", {})
    with pytest.raises(UnsupportedError, match=r"\(multiclass_nms3\).*: its output Index is not supported"):
        detector("Index", {})
