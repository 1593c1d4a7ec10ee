"""Other runtimes with their fastest kernels in one thread, to time beside; ``tenon.tools.peers`` is for comparing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[], object]
Read = Callable[[], list[np.ndarray[Any, Any]]]


def open_peer(runtime: str, file: Path, weights: Path | None, feeds: Arrays, values: Arrays) -> tuple[str, Run, Read]:
    """(name and version, a function that runs the model on the feeds, a function that returns the outputs in order).

    The feeds are in the order of Tenon's inputs; ``values`` are those of inputs that were fixed.  Raises ImportError
    where the runtime is not installed (PackageNotFoundError), and whatever it raises for a model that it refuses.
    """
    package, opened = _RUNTIMES[runtime]
    name = f"{runtime} {version(package)}"
    return name, *opened(file, weights, feeds, values)


def _onnxruntime(file: Path, _: Path | None, feeds: Arrays, values: Arrays) -> tuple[Run, Read]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    types = {"tensor(int64)": np.int64, "tensor(float)": np.float32}
    named = dict(feeds)
    for port in session.get_inputs():
        if port.name in values:
            named[port.name] = np.asarray(values[port.name], types[port.type])

    def read() -> list[Any]:
        return list(session.run(None, named))

    return read, read


def _litert(file: Path, _: Path | None, feeds: Arrays, __: Arrays) -> tuple[Run, Read]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file), num_threads=1)
    for port, array in zip(interpreter.get_input_details(), feeds.values(), strict=True):
        interpreter.resize_tensor_input(port["index"], array.shape)
    interpreter.allocate_tensors()
    for port, array in zip(interpreter.get_input_details(), feeds.values(), strict=True):
        interpreter.set_tensor(port["index"], array)
    outputs = [port["index"] for port in interpreter.get_output_details()]

    def read() -> list[Any]:
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in outputs]

    return interpreter.invoke, read


def _ncnn(file: Path, weights: Path | None, feeds: Arrays, __: Arrays) -> tuple[Run, Read]:
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = 1
    net.load_param(str(file))
    net.load_model(str(weights or file.with_suffix(".bin")))

    def read() -> list[Any]:
        extractor = net.create_extractor()
        for name, array in zip(net.input_names(), feeds.values(), strict=True):
            extractor.input(name, ncnn.Mat(array[0]))
        return [np.array(extractor.extract(name)[1]) for name in net.output_names()]

    return read, read


def _opencv(file: Path, weights: Path | None, feeds: Arrays, __: Arrays) -> tuple[Run, Read]:
    import cv2

    cv2.setNumThreads(1)
    second = weights or next(p for p in sorted(file.parent.iterdir()) if p.suffix in (".weights", ".caffemodel"))
    net = cv2.dnn.readNet(str(second), str(file))
    (image,) = feeds.values()
    names = net.getUnconnectedOutLayersNames()

    def read() -> list[Any]:
        net.setInput(image)
        return list(net.forward(names))

    return read, read


_RUNTIMES: dict[str, tuple[str, Callable[[Path, Path | None, Arrays, Arrays], tuple[Run, Read]]]] = {
    "onnxruntime": ("onnxruntime", _onnxruntime),
    "litert": ("ai-edge-litert", _litert),
    "ncnn": ("ncnn", _ncnn),
    "opencv": ("opencv-python-headless", _opencv),
}
