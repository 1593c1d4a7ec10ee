"""One function per runtime: from a prepared model to a call that takes an array and returns all outputs.

Every function imports what it needs itself, so a runtime that is not installed fails alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[Array], list[Array]]


def tenon(model: Path, threads: int) -> Call:
    """The folder of a bundle."""
    import tenon as package

    if threads > 1 and "threads" not in inspect.signature(package.open).parameters:
        raise RuntimeError("tenon.open takes no threads yet")
    engine = package.open(model, **({"threads": threads} if threads > 1 else {}))
    (name,) = engine.inputs

    def run(x: Array) -> list[Array]:
        return list(engine.run({name: x}, copy=False).values())

    return run


def onnxruntime(model: Path, threads: int, *, optimise: bool = True) -> Call:
    import onnxruntime as package

    options = package.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    if not optimise:
        options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = package.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})


def reference(model: Path, threads: int) -> Call:
    """The reference: onnxruntime without optimisations."""
    return onnxruntime(model, threads, optimise=False)


def openvino(model: Path, threads: int, *, precision: str | None = "f32") -> Call:
    import openvino as package

    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False
    }  # fmt: skip
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    compiled = package.Core().compile_model(str(model), "CPU", settings)
    request, count = compiled.create_infer_request(), len(compiled.outputs)

    def run(x: Array) -> list[Array]:
        request.infer([x], share_inputs=True, share_outputs=True)
        return [request.get_output_tensor(i).data for i in range(count)]

    return run


def openvino_default(model: Path, threads: int) -> Call:
    """With default settings: bf16 if the processor supports it."""
    return openvino(model, threads, precision=None)


def ncnn(model: Path, threads: int) -> Call:
    """A folder with the files converted by pnnx."""
    import ncnn as package

    net = package.Net()
    net.opt.num_threads, net.opt.use_vulkan_compute, net.opt.lightmode = threads, False, True
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "bf16_packed"):
        if hasattr(net.opt, f"use_{name}"):
            setattr(net.opt, f"use_{name}", False)
    blobs, workspace = package.UnlockedPoolAllocator(), package.PoolAllocator()
    net.opt.blob_allocator, net.opt.workspace_allocator = blobs, workspace
    if net.load_param(str(model / "model.ncnn.param")) or net.load_model(str(model / "model.ncnn.bin")):
        raise RuntimeError("ncnn refuses what pnnx made")
    names = net.output_names()

    def run(x: Array) -> list[Array]:
        extractor = net.create_extractor()
        extractor.input("in0", package.Mat(x[0]))
        return [np.array(extractor.extract(name)[1], copy=False) for name in names]

    run.kept = (net, blobs, workspace)  # type: ignore[attr-defined]  # the net refers to its allocators
    return run


def litert(model: Path, threads: int) -> Call:
    """A .tflite file with an NHWC input."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(model), num_threads=threads)
    interpreter.allocate_tensors()
    given = interpreter.get_input_details()[0]["index"]
    results = [detail["index"] for detail in interpreter.get_output_details()]
    turned: dict[int, Array] = {}

    def run(x: Array) -> list[Array]:
        if id(x) not in turned:
            turned[id(x)] = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        interpreter.set_tensor(given, turned[id(x)])
        interpreter.invoke()
        return [interpreter.get_tensor(i) for i in results]

    return run


def none(model: Path, threads: int) -> Call:
    """Bare Python and NumPy."""
    return lambda x: [x]


CONTENDERS: dict[str, Callable[[Path, int], Call]] = {
    "tenon": tenon,
    "tenon-bf16": tenon,
    "tenon-int8": tenon,
    "tenon-small": tenon,
    "onnxruntime": onnxruntime,
    "onnxruntime-int8": onnxruntime,
    "openvino": openvino,
    "openvino-default": openvino_default,
    "openvino-int8": openvino_default,
    "ncnn": ncnn,
    "litert": litert,
    "reference": reference,
    "none": none,
}


@dataclass(frozen=True)
class Precision:
    """Our contender, and its peers in the same precision."""

    ours: str
    peers: tuple[str, ...]


PRECISIONS = {
    "fp32": Precision("tenon", ("onnxruntime", "openvino", "ncnn", "litert")),
    "bf16": Precision("tenon-bf16", ("openvino-default",)),
    "int8": Precision("tenon-int8", ("onnxruntime-int8", "openvino-int8")),
}
"""OpenVINO as it comes computes in bf16 where the processor has its products.  The quantised networks are one QDQ
model, which every contender reads."""
OURS = {"tenon-small", *(each.ours for each in PRECISIONS.values())}
PEERS = ("onnxruntime", "openvino", "ncnn", "litert")
"""Runtimes by name; each takes part in the precisions that have it."""
EXACT = {"tenon", "tenon-small", *PRECISIONS["fp32"].peers}
"""Runtimes whose answers are checked; those of reduced precision are only shown."""


def runtimes(precisions: Sequence[str], peers: Sequence[str]) -> list[str]:
    """The contenders in these precisions: ours, and those of the peers' that are named."""
    listed = []
    for precision in precisions:
        of = PRECISIONS[precision]
        listed += [of.ours, *(name for name in of.peers if name.split("-")[0] in peers)]
    return listed
