#!/usr/bin/env python3
"""Times of detection post-processing with the sizes of real detectors: python bench/detections.py [--rounds N]

Scores and boxes are random and the score threshold is 0, so that every anchor is a candidate: the worst case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np

import tenon
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.base import Operator
from tenon.network.ops.data_dependent import NonMaxSuppression
from tenon.network.ops.detection import DetectionOutput, Proposal
from tenon.network.ops.indexing import TopK
from tenon.network.ops.post_process import DetectionPostProcess

Inputs = Mapping[str, Array]
SCALES = (10.0, 10.0, 5.0, 5.0)


def post_process(regular: int, least: float) -> tuple[Operator, Inputs, Inputs]:
    """EfficientDet-Lite0 in TFLite: 19206 anchors, 90 classes, 25 detections."""
    rng, n, classes = np.random.default_rng(0), 19206, 90
    anchors = np.concatenate([rng.uniform(0, 1, (n, 2)), rng.uniform(0.02, 0.3, (n, 2))], 1).astype(np.float32)
    given = {"boxes": rng.normal(size=(1, n, 4)), "scores": rng.uniform(0, 1, (1, n, classes)) ** 8}
    op = DetectionPostProcess(25, classes, 0.5, least, SCALES, regular=regular)
    return op, {name: data.astype(np.float32) for name, data in given.items()}, {"anchors": anchors}


def suppression(boxes: int, classes: int, most: int) -> tuple[Operator, Inputs, Inputs]:
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 1, (1, boxes, 2))
    corners = np.concatenate([low, low + rng.uniform(0.02, 0.2, (1, boxes, 2))], 2)
    given = {"boxes": corners, "scores": rng.uniform(0, 1, (1, classes, boxes))}
    limits = {"most": np.array(most), "overlap": np.array(0.5, np.float32), "least": np.array(0.0, np.float32)}
    return NonMaxSuppression(), {name: data.astype(np.float32) for name, data in given.items()}, limits


def detections() -> tuple[Operator, Inputs, Inputs]:
    rng, n, classes = np.random.default_rng(0), 8732, 21
    low = rng.uniform(0, 0.7, (n, 2))
    corners = np.concatenate([low, low + rng.uniform(0.05, 0.3, (n, 2))], 1)
    priors = np.stack([corners, np.full((n, 4), 0.1)]).reshape(1, 2, -1).astype(np.float32)
    given = {"location": rng.normal(size=(1, n * 4)), "confidence": rng.uniform(0, 1, (1, n * classes))}
    op = DetectionOutput(classes, code_type="center_size", nms_threshold=0.45)
    return op, {name: data.astype(np.float32) for name, data in given.items()}, {"priors": priors}


def proposals() -> tuple[Operator, Inputs, Inputs]:
    rng = np.random.default_rng(0)
    given = {"scores": rng.uniform(0, 1, (1, 18, 38, 50)), "deltas": rng.normal(0, 0.3, (1, 36, 38, 50))}
    sides = np.outer((4, 8, 16), (8, 11, 16)).reshape(-1, 1) * np.array([[-0.5, -0.5, 0.5, 0.5]])
    fixed = {"image": np.array([[600, 800, 1.0]], np.float32), "anchors": sides.astype(np.float32)}
    return Proposal(), {name: data.astype(np.float32) for name, data in given.items()}, fixed


def top(n: int, count: int) -> tuple[Operator, Inputs, Inputs]:
    x = np.random.default_rng(0).normal(size=(1, n)).astype(np.float32)
    return TopK(), {"x": x}, {"k": np.array(count)}


CASES = {
    "DetectionPostProcess, 19206 anchors, 90 classes": lambda: post_process(0, 0.0),
    "the same, score above 0.4": lambda: post_process(0, 0.4),
    "the same, suppression in each class": lambda: post_process(1, 0.0),
    "NonMaxSuppression, 8400 boxes, 80 classes, 100 each": lambda: suppression(8400, 80, 100),
    "NonMaxSuppression, 8400 boxes, 1 class, all": lambda: suppression(8400, 1, 8400),
    "DetectionOutput, 8732 priors, 21 classes": detections,
    "Proposal, 17100 boxes, the best 6000": proposals,
    "TopK, 1000 of 120087": lambda: top(120087, 1000),
    "TopK, all of 20000": lambda: top(20000, 20000),
}


def graph(op: Operator, inputs: Inputs, constants: Inputs) -> Graph:
    result = Graph("detections")
    values = {name: result.add_input(name, tensor(F32, *data.shape)) for name, data in inputs.items()}
    values |= {name: result.constant(name, data) for name, data in constants.items()}
    order = [*inputs, *constants] if not isinstance(op, Proposal) else ["scores", "deltas", "image", "anchors"]
    types = op.infer([values[name] for name in order])
    result.outputs = list(result.add(op, [values[n] for n in order], [f"y{i}" for i in range(len(types))]).outputs)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print("| operator | least of", rounds, "runs, ms |\n|---|---|")
    for title, case in CASES.items():
        op, inputs, constants = case()
        with tenon.open(tenon.compile(graph(op, inputs, constants))) as engine:
            times = []
            for _ in range(rounds):
                began = perf_counter()
                engine.run(dict(inputs))
                times.append(perf_counter() - began)
        print(f"| {title} | {1e3 * min(times):.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
