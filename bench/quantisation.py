#!/usr/bin/env python3
"""Post-training quantisation of networks with real data, beside ONNX Runtime's quantiser: a table in Markdown.

    python bench/quantisation.py [NETWORK ...] [--count N] [--tests N] [--no-peers] [--scheme NAME ...] [--threads N]

Needs the folder `shared/` beside the project; the columns of ONNX Runtime need `onnxruntime` and `onnx`.  Calibrates on
N samples and measures on others, all through compiled code in the arithmetic ``onnx``.  A cell has the share of right
answers where labels are known, the signal-to-quantisation-noise ratio (SQNR) of the outputs before softmax in dB, and
the share of samples with the largest output of the float network; the seconds are those that quantisation took.  Peers
quantise the ONNX file that `tenon optimize` writes, with the same samples.  A cell below its target has an exclamation
mark, and the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image

import tenon
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.passes import optimize
from tenon.tools.quantization import quantize

SHARED = Path(__file__).resolve().parents[2] / "shared"
Array = np.ndarray[Any, np.dtype[Any]]
Samples = tuple[Array, Array | None]
"""Samples of a network, [N, ...], and their classes, [N], where these are known."""
Data = Callable[[], tuple[Samples, Samples]]
"""Samples to calibrate with, and others to measure with."""


def crops(size: int, scale: float, shift: float) -> tuple[Samples, Samples]:
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
    return (first, None), (second, None)


def halves(x: Array, y: Array) -> tuple[Samples, Samples]:
    order = np.random.default_rng(0).permutation(len(x))
    first, second = order[: len(x) // 2], order[len(x) // 2 :]
    return (x[first], y[first]), (x[second], y[second])


def words() -> tuple[Samples, Samples]:
    with np.load(SHARED / "quant" / "kws01.npz") as file:
        return halves((file["x"].astype(np.float32) - 83) * np.float32(0.5847029089927673), file["y"])


def words_of_names(step: int) -> tuple[Samples, Samples]:
    """Every ``step``-th frame; classes in the order of the networks of TensorFlow."""
    names = (SHARED / "models" / "tensorflow_pb" / "labels.txt").read_text().split()
    with np.load(SHARED / "quant" / "kws01.npz") as file:
        classes = np.array([names.index(_NAMES.get(str(n), str(n).lower())) for n in file["labels"]])
        x = (file["x"][:, ::step].astype(np.float32) - 83) * np.float32(0.5847029089927673)
        return halves(x, classes[file["y"]])


_NAMES = {"Silence": "_silence_", "Unknown": "_unknown_"}


def small_images() -> tuple[Samples, Samples]:
    with np.load(SHARED / "quant" / "cifar10-jpeg.npz") as file:
        return halves(file["x"].astype(np.float32), file["y"])


NETWORKS: dict[str, tuple[str, Data]] = {
    "kws": ("quant/kws_ref_model", words),
    "ic": ("models/keras_h5/mlperf_tiny_ic_resnet8/pretrainedResnet.h5", small_images),
    "ic_large": ("models/tflite_fp32/mlperf_tiny/pretrainedResnet_large_float.tflite", small_images),
    "vww": ("models/keras_h5/mlperf_tiny_vww/vww_96.h5", lambda: crops(96, 1 / 255, 0.0)),
    "kws_dnn": ("models/tensorflow_pb/kws_DNN/DNN_S.pb", partial(words_of_names, 2)),
    "kws_cnn": ("models/tensorflow_pb/kws_CNN/CNN_S.pb", partial(words_of_names, 1)),
    "kws_ds_cnn": ("models/tensorflow_pb/kws_DS_CNN/DS_CNN_S.pb", partial(words_of_names, 1)),
    "kws_lstm": ("models/tensorflow_pb/kws_LSTM/LSTM_S.pb", partial(words_of_names, 2)),
    "mobilenet_v1_0.25": ("quant/mobilenet_v1_0.25_224.h5", lambda: crops(224, 1 / 127.5, -1.0)),
}

TARGETS: dict[tuple[str, str], tuple[float, float]] = {
    ("kws", "int8"): (35, 0), ("ic", "int8"): (34, 98), ("vww", "int8"): (27, 0),
    ("mobilenet_v1_0.25", "int8"): (21, 91), ("mobilenet_v1_0.25", "int8-per-tensor"): (15, 0),
}  # fmt: skip
"""Least SQNR in dB and share of unchanged answers in %, by network and scheme."""


@dataclass(frozen=True)
class Score:
    """``accuracy`` in %, NaN without labels; ``sqnr`` in dB, ``agreement`` in %."""

    accuracy: float
    sqnr: float
    agreement: float

    @classmethod
    def of(cls, got: Sequence[Array], expected: Sequence[Array], labels: Array | None) -> Score:
        a, b = (np.stack(each).reshape(len(each), -1).astype(np.float64) for each in (got, expected))
        sqnr = 10 * np.log10((b**2).sum() / max(((a - b) ** 2).sum(), 1e-30))
        answers = a.argmax(1)
        accuracy = float("nan") if labels is None else 100 * float((answers == labels).mean())
        return cls(accuracy, float(sqnr), 100 * float((answers == b.argmax(1)).mean()))

    def text(self, target: tuple[float, float] | None) -> str:
        sqnr, agreement = target or (-np.inf, 0.0)
        missed = self.sqnr < sqnr or self.agreement < agreement
        right = "" if np.isnan(self.accuracy) else f"{self.accuracy:.1f} / "
        return f"{right}{self.sqnr:.1f} / {self.agreement:.1f}{' !' if missed else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], help="default: all")
    parser.add_argument("--count", type=int, default=128, help="samples to calibrate with")
    parser.add_argument("--tests", type=int, default=256, help="samples to measure with")
    parser.add_argument("--scheme", nargs="+", default=["int8", "int8-per-tensor"])
    parser.add_argument("--threads", type=int, default=2, help="of the calibration")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    peers = [] if options.no_peers else installed_peers()
    columns = ["network", "float", *(f"tenon {scheme}" for scheme in options.scheme), "seconds", *peers]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    missed = [row for name in options.networks or NETWORKS if "!" in (row := measured(name, options, peers))]
    print(
        "\nright answers in % (where labels are known) / SQNR in dB / same answer as in float in %; ! below the target"
    )
    return int(bool(missed))


def measured(name: str, options: argparse.Namespace, peers: Iterable[str]) -> str:
    """Print the row of a network; returns it."""
    where, data = NETWORKS[name]
    (first, _), (second, labels) = data()
    graph = optimize(tenon.load(SHARED / where), fuse=False)
    end = graph.outputs[0].producer
    if end is not None and end.op.name == "Softmax":  # scores before it say more about the noise
        graph.outputs[0] = end.input(0)
        graph.prune()
    dims = graph.inputs[0].type.dims
    calibration = [x.reshape(dims) for x in first[: options.count]]
    tests = [x.reshape(dims) for x in second[: options.tests]]
    labels = None if labels is None else labels[: options.tests]
    expected = outputs(graph, tests)
    right = Score.of(expected, expected, labels).accuracy
    cells, seconds = ["" if np.isnan(right) else f"{right:.1f}"], []
    for scheme in options.scheme:
        began = perf_counter()
        made = quantize(graph.copy(), calibration, samples=options.count, scheme=scheme, threads=options.threads)
        seconds.append(f"{perf_counter() - began:.0f}")
        score = Score.of(outputs(made.graph, tests), expected, labels)
        cells.append(score.text(TARGETS.get((name, scheme))))
        tried = ", ".join(f"{n} {v:.1f}" for n, v in (made.report.methods | made.report.repairs).items())
        print(f"{name} {scheme}: {made.report.method}; tried: {tried} dB", file=sys.stderr)
    cells.append(", ".join(seconds))
    cells += [by_onnxruntime(graph, calibration, tests, peer, expected, labels).text(None) for peer in peers]
    row = f"| {' | '.join([name, *cells])} |"
    print(row, flush=True)
    return row


def outputs(graph: tenon.Graph, samples: Sequence[Array]) -> list[Array]:
    with tenon.open(tenon.compile(graph, arithmetic="onnx", name="net")) as engine:
        return [next(iter(engine.run(x).values())).copy() for x in samples]


def installed_peers() -> list[str]:
    """The columns of ONNX Runtime: how ranges are found, and of which weights."""
    try:
        import onnxruntime.quantization  # noqa: F401
    except ImportError as error:
        print(f"without peers: {error}", file=sys.stderr)
        return []
    return [f"onnxruntime {m}, per {p}" for p in ("channel", "tensor") for m in ("MinMax", "Percentile")]


def by_onnxruntime(
    graph: tenon.Graph, calibration: Sequence[Array], tests: Sequence[Array], peer: str, expected: Sequence[Array],
    labels: Array | None,
) -> Score:  # fmt: skip
    """The score of a column of ``installed_peers``."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    name, method = graph.inputs[0].name, peer.split()[1].rstrip(",")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # it prints its progress
        source, out = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(to_onnx(graph).SerializeToString())
        quantize_static(
            source, out, Reader(name, calibration), quant_format=QuantFormat.QDQ, activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8, per_channel=peer.endswith("channel"),
            calibrate_method=getattr(CalibrationMethod, method),
        )  # fmt: skip
        session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
        return Score.of([session.run(None, {name: x})[0] for x in tests], expected, labels)


class Reader:
    """Samples as ONNX Runtime's CalibrationDataReader hands them out."""

    def __init__(self, name: str, samples: Sequence[Array]) -> None:
        self.left = iter([{name: each} for each in samples])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> dict[str, Array]:
        return next(self.left)


if __name__ == "__main__":
    raise SystemExit(main())
