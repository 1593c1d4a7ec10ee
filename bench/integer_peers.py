"""Other runtimes that compute quantised networks, each optional: what is not installed is skipped with the reason.

A peer takes the QDQ model that ``integers.py`` made, or its own form of the same network beside it: NAME_nncf.xml of
OpenVINO's quantiser, and NAME.tflite, which Tenon exports of NAME_i8.onnx (the same scales, zero points and weights)
for LiteRT.  A model that is a .tflite file itself is for LiteRT only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

import tenon
from tenon.formats.exporters.save import save

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter

Run = Callable[[], object]
Feeds = Mapping[str, np.ndarray]
Peer = Callable[[Path, Feeds, int], Run]


class SkippedError(Exception):
    """Why a peer does not take part."""


def by_onnxruntime(model: Path, feeds: Feeds, threads: int) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def by_openvino(model: Path, feeds: Feeds, threads: int) -> Run:
    try:
        import openvino
    except ImportError:
        raise SkippedError("openvino is not installed") from None
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(str(model), "CPU", settings).create_infer_request()
    request.infer(dict(enumerate(feeds.values())))
    return request.infer  # of the arrays that it has


def by_nncf(model: Path, feeds: Feeds, threads: int) -> Run:
    """OpenVINO on what its own quantiser makes of the network in f32."""
    name = model.stem.rpartition("_")[0]
    made = model.with_name(f"{name}_nncf.xml")
    if not made.exists():
        _quantise_by_nncf(model.with_name(f"{name}.onnx"), made, feeds)
    return by_openvino(made, feeds, threads)


def _quantise_by_nncf(floats: Path, made: Path, feeds: Feeds) -> None:
    try:
        import nncf
        import openvino
    except ImportError:
        raise SkippedError("nncf or openvino is not installed") from None
    rng = np.random.default_rng(0)
    shape = next(iter(feeds.values())).shape
    data = [rng.uniform(-2, 2, shape).astype(np.float32) for _ in range(3)]
    model = openvino.Core().read_model(str(floats))
    preset, images = nncf.QuantizationPreset.MIXED, nncf.Dataset(data)
    quantised = nncf.quantize(model, images, preset=preset, subset_size=len(data))
    openvino.save_model(quantised, str(made), compress_to_fp16=False)


def by_litert(model: Path, feeds: Feeds, threads: int) -> Run:
    try:
        import ai_edge_litert.interpreter  # noqa: F401
    except ImportError:
        raise SkippedError("ai-edge-litert is not installed") from None
    made = model if model.suffix == ".tflite" else model.with_name(f"{model.stem.rpartition('_')[0]}.tflite")
    if not made.exists():
        signed = made.with_name(f"{made.stem}_i8.onnx")
        if not signed.exists():
            raise SkippedError(
                f"there is no {signed.name}, of which {made.name} is made; run once with --activations i8"
            )
        try:
            save(tenon.load(signed), made)
        except tenon.TenonError as refusal:
            raise SkippedError(f"not exported as TFLite: {refusal}") from None
    return litert(made, feeds, threads).invoke


def litert(model: Path, feeds: Feeds, threads: int) -> Interpreter:
    """LiteRT as it is installed, with XNNPACK, and its inputs set if the model is a .tflite file of its own."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(model), num_threads=threads)
    interpreter.allocate_tensors()
    for detail, given in zip(interpreter.get_input_details(), feeds.values(), strict=True):
        if given.dtype == detail["dtype"] and given.shape == tuple(detail["shape"]):
            interpreter.set_tensor(detail["index"], given)
    return interpreter


PEERS: dict[str, Peer] = {
    "onnxruntime": by_onnxruntime, "openvino": by_openvino, "openvino nncf": by_nncf, "litert": by_litert,
}  # fmt: skip


def opened(model: Path, feeds: Feeds, threads: int) -> Iterator[tuple[str, Run | str]]:
    """Every peer, ready to run, or why it is skipped."""
    for name, peer in PEERS.items():
        if model.suffix == ".tflite" and name != "litert":
            continue
        try:
            run = peer(model, feeds, threads)
            run()
            yield name, run
        except SkippedError as reason:
            yield name, str(reason)
