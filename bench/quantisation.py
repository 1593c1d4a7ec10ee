#!/usr/bin/env python3
"""Post-training quantisation of networks with real data, beside ONNX Runtime's quantiser.

    python bench/quantisation.py [NETWORK ...] [--count N] [--tests N] [--no-peers] [--scheme NAME] [--threads N]

Needs the folder `shared/` beside the project.  Calibrates on N samples and measures on others, all through
compiled code in the arithmetic ``onnx``: the signal-to-quantisation-noise ratio (SQNR) of the outputs before softmax in
dB, the share of samples with the largest output of the float network, and the seconds that quantisation took.  Peers
quantise the ONNX file that `tenon optimize` writes, with the same samples; weights per channel unless the scheme says
otherwise.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from PIL import Image

import tenon
from tenon.exporters.onnx import to_onnx
from tenon.passes import optimize
from tenon.quantization import quantize

SHARED = Path(__file__).resolve().parents[2] / "shared"
Array = np.ndarray[Any, np.dtype[Any]]
Data = Callable[[], tuple[Array, Array]]
"""Samples to calibrate with, and others to measure with."""


def crops(size: int, scale: float, shift: float) -> tuple[Array, Array]:
    """Crops of photos, of every second photo to calibrate with; v * ``scale`` + ``shift`` of 0..255."""
    files = sorted(p for p in (SHARED / "models" / "images").iterdir() if p.suffix in (".jpg", ".bmp", ".png"))
    rng = np.random.default_rng(0)
    found: tuple[list[Array], list[Array]] = ([], [])
    for i, path in enumerate(files):
        with Image.open(path) as file:
            photo = file.convert("RGB")
        side = min(photo.size)
        for _ in range(24):
            edge = int(side * rng.uniform(0.5, 1.0))
            left, top = (int(rng.integers(0, extent - edge + 1)) for extent in photo.size)
            crop = photo.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + edge, top + edge))
            found[i % 2].append(np.asarray(crop, np.float32) * np.float32(scale) + np.float32(shift))
    order = [rng.permutation(len(part)) for part in found]
    first, second = (np.stack(part)[o] for part, o in zip(found, order, strict=True))
    return first, second


def halves(x: Array) -> tuple[Array, Array]:
    order = np.random.default_rng(0).permutation(len(x))
    return x[order[: len(x) // 2]], x[order[len(x) // 2 :]]


def words() -> tuple[Array, Array]:
    with np.load(SHARED / "quant" / "kws01.npz") as file:
        return halves((file["x"].astype(np.float32) - 83) * np.float32(0.5847029089927673))


def small_images() -> tuple[Array, Array]:
    with np.load(SHARED / "quant" / "cifar10-jpeg.npz") as file:
        return halves(file["x"].astype(np.float32))


NETWORKS: dict[str, tuple[str, Data]] = {
    "kws": ("quant/kws_ref_model", words),
    "ic": ("models/keras_h5/mlperf_tiny_ic_resnet8/pretrainedResnet.h5", small_images),
    "ic_large": ("models/tflite_fp32/mlperf_tiny/pretrainedResnet_large_float.tflite", small_images),
    "vww": ("models/keras_h5/mlperf_tiny_vww/vww_96.h5", lambda: crops(96, 1 / 255, 0.0)),
    "mobilenet_v1_0.25": ("quant/mobilenet_v1_0.25_224.h5", lambda: crops(224, 1 / 127.5, -1.0)),
}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, samples: Sequence[Array]) -> None:
        self.left = iter([{name: each} for each in samples])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)


def scored(got: Sequence[Array], expected: Sequence[Array]) -> str:
    a, b = (np.stack(each).reshape(len(each), -1).astype(np.float64) for each in (got, expected))
    sqnr = 10 * np.log10((b**2).sum() / max(((a - b) ** 2).sum(), 1e-30))
    return f"{sqnr:6.1f} dB {100 * (a.argmax(1) == b.argmax(1)).mean():5.1f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="default: all")
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--tests", type=int, default=256)
    parser.add_argument("--scheme", default="int8")
    parser.add_argument("--threads", type=int, default=2, help="of the calibration")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    for name in options.networks or NETWORKS:
        measure(name, options)
    return 0


def measure(name: str, options: argparse.Namespace) -> None:
    where, data = NETWORKS[name]
    first, second = data()
    graph = optimize(tenon.load(SHARED / where), fuse=False)
    end = graph.outputs[0].producer
    if end is not None and end.op.name == "Softmax":  # scores before it say more about the noise
        graph.outputs[0] = end.input(0)
        graph.prune()
    given, dims = graph.inputs[0].name, graph.inputs[0].type.dims
    calibration = [x.reshape(dims) for x in first[: options.count]]
    tests = [x.reshape(dims) for x in second[: options.tests]]
    expected = outputs(graph, tests)
    began = perf_counter()
    made = quantize(graph, calibration, samples=options.count, scheme=options.scheme, threads=options.threads)
    taken = perf_counter() - began
    report = made.report
    label = f"tenon {options.scheme} ({report.method})"
    print(f"{name:18} {label:28} {scored(outputs(made.graph, tests), expected)}  {taken:.0f} s", flush=True)
    print(f"{'':18} tried: {', '.join(f'{n} {v:.1f}' for n, v in (report.methods | report.repairs).items())} dB")
    if options.no_peers:
        return
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(to_onnx(graph).SerializeToString())
        for label, method in (("MinMax", CalibrationMethod.MinMax), ("Percentile", CalibrationMethod.Percentile)):
            quantize_static(
                source, out, Reader(given, calibration), quant_format=QuantFormat.QDQ, calibrate_method=method,
                per_channel="per-tensor" not in options.scheme, activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
            )  # fmt: skip
            session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
            got = [session.run(None, {given: x})[0] for x in tests]
            print(f"{'':18} {f'onnxruntime {label}':28} {scored(got, expected)}", flush=True)


def outputs(graph: tenon.Graph, samples: Sequence[Array]) -> list[Array]:
    with tenon.open(tenon.compile(graph, arithmetic="onnx", name="net")) as engine:
        return [next(iter(engine.run(x).values())) for x in samples]


if __name__ == "__main__":
    raise SystemExit(main())
