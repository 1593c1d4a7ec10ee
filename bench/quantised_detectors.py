#!/usr/bin/env python3
"""Boxes of quantised detectors beside those in floats.

    python bench/quantised_detectors.py [DETECTOR ...] [--held-out] [--scheme NAME] [--threads N]

Needs the folder `shared/` beside the project.  Detectors are quantised by the default recipe with its photos, and find
objects in the same photos, through compiled integer code in the arithmetic ``onnx``; with ``--held-out``, half of the
photos calibrate and the others are measured, and the other way round.  A line for each photo in which the float network
finds something: the objects in floats and in integers, and the least and the mean intersection over union of each box
in floats with the best one in integers of the same class.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tenon

SHARED = Path(__file__).resolve().parents[2] / "shared" / "models"

DETECTORS: dict[str, tuple[str, float, Mapping[str, Any]]] = {
    "RFB-320": ("onnx/version-RFB-320/version-RFB-320.onnx", 0.7, {"mean": 127.0, "scale": 1 / 128}),
    "yolo-fastest": ("darknet/yolo-fastest-1.1", 0.5, {}),
}
"""File, least score of an object, and preprocessing."""


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    wide, high = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    common = max(wide, 0.0) * max(high, 0.0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return common / max(areas - common, 1e-30)


def measure(name: str, calibration: Sequence[Path], tests: Sequence[Path], options: argparse.Namespace) -> None:
    file, threshold, preprocess = DETECTORS[name]
    model = tenon.load(SHARED / file)
    with tempfile.TemporaryDirectory() as folder:
        for path in calibration:
            (Path(folder) / path.name).symlink_to(path)
        began = perf_counter()
        made = tenon.quantize(
            model, folder, preprocess=preprocess, scheme=options.scheme, threads=options.threads, int16=options.int16,
            min_sqnr=options.min_sqnr, mixed_types=options.mixed_types,
        )  # fmt: skip
        taken = perf_counter() - began
    report = made.report
    noise = ", ".join(f"{each.name} {each.sqnr:.1f} dB" for each in report.outputs)
    print(f"{name} {options.scheme}: {noise}; {', '.join(report.applied)}; {taken:.0f} s")
    others = {"int16": report.wide, "fp16": report.fp16, "float": report.floats}
    if any(others.values()):
        print("; ".join(f"{len(names)} layers in {kind}: {' '.join(names)}" for kind, names in others.items() if names))
    print(f"tried: {', '.join(f'{n} {v:.1f}' for n, v in (report.repairs | report.methods).items())} dB")
    settings = {"preprocess": preprocess} if preprocess else {}
    engines = [tenon.open(tenon.compile(graph, arithmetic="onnx", **settings)) for graph in (model, made.graph)]
    print("| photo | floats | integers | least IoU | mean IoU | before NMS | most of scores |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for path in tests:
        floats, integers = (tenon.detect(engine, path, threshold=threshold) for engine in engines)
        if not floats and not integers:
            continue
        # A score just below the threshold is no other box.
        near = tenon.detect(engines[1], path, threshold=0.5 * threshold)
        every = tenon.detect(engines[1], path, threshold=0.5 * threshold, overlap=1.0)
        (shares, scores), (kept, _) = (_best(floats, others) for others in (near, every))
        print(
            f"| {path.name} | {len(floats)} | {len(integers)} | {min(shares):.3f} | {np.mean(shares):.3f} "
            f"| {min(kept):.3f} | {max(scores):.3f} |", flush=True,
        )  # fmt: skip
    for engine in engines:
        engine.close()


def _best(floats: Sequence[tenon.Detection], others: Sequence[tenon.Detection]) -> tuple[list[float], list[float]]:
    """For each of ``floats``, the greatest overlap with one of ``others`` of its class, and how far their scores are
    from each other."""
    same = [[(overlap(a.box, b.box), abs(a.score - b.score)) for b in others if a.kind == b.kind] for a in floats]
    best = [max(each, default=(0.0, a.score)) for each, a in zip(same, floats, strict=True)] or [(np.nan, np.nan)]
    return [share for share, _ in best], [score for _, score in best]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("detectors", nargs="*", choices=[*DETECTORS, []], help="default: all")
    parser.add_argument("--held-out", action="store_true", help="measure on photos that are not calibrated with")
    parser.add_argument("--scheme", default="int8")
    parser.add_argument("--int16", nargs="*", default=(), help="layers of 16-bit activations")
    parser.add_argument("--min-sqnr", type=float, help="of the outputs, in dB: as many layers are of other types")
    parser.add_argument("--mixed-types", nargs="+", default=("int16",), help="what these layers may be")
    parser.add_argument("--threads", type=int, default=2, help="of the calibration")
    options = parser.parse_args()
    photos = sorted(p for p in (SHARED / "images").iterdir() if p.suffix in (".jpg", ".bmp", ".png"))
    for name in options.detectors or DETECTORS:
        if options.held_out:
            measure(name, photos[::2], photos[1::2], options)
            measure(name, photos[1::2], photos[::2], options)
        else:
            measure(name, photos, photos, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
