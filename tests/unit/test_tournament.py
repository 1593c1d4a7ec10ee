"""Tournament sort for top-k selection: it is stable, and operators that use it are not quadratic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tenon
from interpret import interpret
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import cast
from tenon.machine.kernels.boxes import DetectionParameters
from tenon.machine.kernels.boxes import suppress as suppress_classes
from tenon.machine.kernels.data_dependent import suppress, unique
from tenon.machine.kernels.indexing import top_k_of_many
from tenon.machine.kernels.post_process import PostProcess, choose
from tenon.machine.kernels.proposals import Proposals, propose
from tenon.machine.kernels.tournament import Better, Tournament, greater, greater_or_nan, leaves, lesser
from tenon.machine.proofs.bounds import prove
from tenon.machine.proofs.count import count
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, I32, DType, tensor
from tenon.network.ops.base import Operator
from tenon.network.ops.data_dependent import NonMaxSuppression
from tenon.network.ops.detection import DetectionOutput, Proposal
from tenon.network.ops.indexing import TopK
from tenon.network.ops.post_process import DetectionPostProcess


def taken(x: Array, better: Better, passes: int = 2) -> list[list[int]]:
    """The indices of all of ``x``, best first, followed by NONE; repeated ``passes`` times in the same memory."""
    n = len(x)
    k = Builder("sorted")
    given = k.param("x", n, dtype=DType.of(x.dtype))
    table = Tournament(k, n, DType.of(x.dtype), better)
    y = k.param("y", passes, n + 1, dtype=I32, out=True)
    with k.loop("pass", passes) as again:
        table.clear()
        with k.loop("i", n) as i:
            table.append(given[i])
        table.play()
        with k.loop("t", n) as t, k.bind("at", table.place(), n) as at:
            y[again, t] = table.place()
            table.drop(at)
        y[again, n] = table.place()
    kernel = k.done()
    prove(kernel)
    out, memory = np.zeros((passes, n + 1), np.int32), 2 * leaves(n)
    poison = np.full(memory, 77, x.dtype), np.full(memory, 5, np.int32), np.full(2, 9, np.int32)
    interpret(kernel, [x, *poison, out.reshape(-1)])
    return out.tolist()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 31])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8])
def test_full_extraction_is_a_stable_sort(n: int, dtype: type) -> None:
    x: Array = np.random.default_rng(n).integers(-4, 4, n).astype(dtype)
    for better, key in ((greater, -x), (lesser, x)):
        assert taken(x, better) == [[*np.argsort(key, kind="stable"), -1]] * 2


def test_order_of_nan() -> None:
    x = np.array([1, np.nan, -np.inf, np.inf, np.nan, -np.inf, 1], np.float32)
    assert taken(x, greater, 1) == [[3, 0, 6, 2, 5, 1, 4, -1]]
    assert taken(x, greater_or_nan, 1) == [[1, 4, 3, 0, 6, 2, 5, -1]]
    assert taken(x, lesser, 1) == [[2, 5, 0, 6, 3, 1, 4, -1]]


def test_masked_elements() -> None:
    k = Builder("some")
    x = k.param("x", 6)
    table = Tournament(k, 6)
    y = k.param("y", 2, dtype=I32, out=True)
    table.clear()
    with k.loop("i", 6) as i:
        table.append(x[i], cast(x[i], I32))
    table.play()
    y[0], y[1] = table.length, table.place()
    out = np.zeros(2, np.int32)
    memory = np.zeros(16, np.float32), np.zeros(16, np.int32), np.zeros(2, np.int32)
    interpret(k.done(), [np.array([0, 1, 0, 3, 1, 0], np.float32), *memory, out])
    assert out.tolist() == [3, 1]


# ------------------------------------------------------------------------------------------ complexity
def post_process(n: int, *, regular: bool) -> PostProcess:
    return PostProcess(n, 4, 0, regular, 20, 20, 1, 0.0, 0.5, (1.0,) * 4)


WORK: dict[str, Callable[[int], object]] = {
    "DetectionPostProcess": lambda n: choose(post_process(n, regular=False)),
    "in each class": lambda n: choose(post_process(n, regular=True)),
    "NonMaxSuppression": lambda n: suppress(1, 3, n, 20, False, True, True),
    "DetectionOutput": lambda n: suppress_classes(
        DetectionParameters(1, n, 3, 1, 0, "corner", False, 0.0, 0.5, 1.0, 40, 20, True)
    ),
    "Proposal": lambda n: propose(Proposals(1, 1, n, 16, n, 20, 0.7, 1.0)),
    "TopK": lambda n: top_k_of_many(1, n, 1, n, True, F32),
    "Unique": lambda n: unique(1, n, 1, True, F32),
    "Unique of columns, as they come": lambda n: unique(2, n, 3, False, I32),
}


@pytest.mark.parametrize("name", WORK)
def test_work_grows_almost_linearly_with_the_length(name: str) -> None:
    short, long = (count(WORK[name](n)).instructions for n in (1000, 4000))  # type: ignore[arg-type]
    assert long < 5.5 * short


# --------------------------------------------------------------------------------------------- results
@dataclass
class Long:
    """An operator on long lists with many equal scores: run-time inputs, followed by constants, in the operator's
    order.
    """

    op: Operator
    given: dict[str, Array]
    fixed: dict[str, Array]
    order: tuple[str, ...]


def scores(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).integers(0, 30, shape) / 30).astype(np.float32)


def corners(n: int) -> Array:
    low = np.random.default_rng(1).integers(0, 40, (n, 2)) / 40
    return np.concatenate([low, low + np.random.default_rng(2).integers(1, 12, (n, 2)) / 40], 1).astype(np.float32)


def detector(**changes: object) -> Long:
    rng, n = np.random.default_rng(3), 700
    anchors = np.concatenate([rng.uniform(0, 1, (n, 2)), rng.uniform(0.05, 0.3, (n, 2))], 1).astype(np.float32)
    given = {"boxes": rng.normal(size=(1, n, 4)).astype(np.float32), "scores": scores(1, n, 5)}
    options = {"max_detections": 60, "num_classes": 4, "iou_threshold": 0.4, "score_threshold": 0.2, **changes}
    op = DetectionPostProcess(scales=(10.0, 10.0, 5.0, 5.0), **options)  # type: ignore[arg-type]
    return Long(op, given, {"anchors": anchors}, ("boxes", "scores", "anchors"))


def suppression(most: int, **limits: float) -> Long:
    given = {"boxes": corners(600)[None], "scores": scores(1, 3, 600)}
    fixed = {"most": np.array(most), **{name: np.array(value, np.float32) for name, value in limits.items()}}
    return Long(NonMaxSuppression(), given, fixed, (*given, *fixed))


def ssd() -> Long:
    n = 500
    priors = np.stack([corners(n), np.full((n, 4), 0.1, np.float32)]).reshape(1, 2, -1)
    location = np.random.default_rng(5).normal(size=(1, n * 4)).astype(np.float32)
    given = {"location": location, "confidence": scores(1, n * 4)}
    op = DetectionOutput(4, code_type="center_size", confidence_threshold=0.3, nms_threshold=0.45, keep_top_k=50)
    return Long(op, given, {"priors": priors}, ("location", "confidence", "priors"))


def proposal() -> Long:
    rng = np.random.default_rng(6)
    given = {
        "scores": scores(1, 6, 14, 15),
        "deltas": rng.normal(0, 0.3, (1, 12, 14, 15)).astype(np.float32),
    }
    anchors = np.array([[0, 0, 15, 15], [-8, 0, 23, 15], [0, -8, 15, 23]], np.float32)
    fixed = {"image": np.array([[224, 240, 1]], np.float32), "anchors": anchors}
    op = Proposal(pre_nms=500, post_nms=80, nms_threshold=0.5, min_size=8.0)
    return Long(op, given, fixed, ("scores", "deltas", "image", "anchors"))


LONG = {
    "fast": detector(),
    "background": detector(num_classes=5, max_classes_per_detection=2),
    "regular": detector(regular=1, detections_per_class=40),
    "full_at_once": detector(max_detections=3, score_threshold=-1.0),
    "nothing": detector(score_threshold=2.0),
    "suppression": suppression(50, overlap=0.3, least=0.4),
    "suppression_of_all": suppression(600, overlap=0.5),
    "suppression_without_limits": suppression(40),
    "ssd": ssd(),
    "proposal": proposal(),
    "top": Long(TopK(), {"x": scores(2, 3000)}, {"k": np.array(500)}, ("x", "k")),
    "least_of_all": Long(TopK(largest=0), {"x": scores(1, 2000)}, {"k": np.array(2000)}, ("x", "k")),
}


@pytest.mark.parametrize("name", LONG)
def test_long_lists_with_equal_scores(name: str) -> None:
    case = LONG[name]
    graph = Graph(name)
    values = {name: graph.add_input(name, tensor(F32, *data.shape)) for name, data in case.given.items()}
    values |= {name: graph.constant(name, data) for name, data in case.fixed.items()}
    inputs = [values[name] for name in case.order]
    outputs = [f"out{i}" for i in range(len(case.op.infer(inputs)))]
    graph.outputs = list(graph.add(case.op, inputs, outputs).outputs)
    expected = case.op.evaluate([{**case.given, **case.fixed}[name] for name in case.order])
    with tenon.open(tenon.compile(graph, name=f"long_{name}")) as engine:
        got = engine.run(case.given)
    for out, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(got[out], right, rtol=0, atol=2e-5 * max(1.0, float(np.abs(right).max())))
