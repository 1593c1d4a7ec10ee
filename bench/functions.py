#!/usr/bin/env python3
"""Time elementary functions beside onnxruntime: python bench/functions.py [NAME ...] [--elements N] [--target T]
                    [--repeat 200]

Sigmoid, Swish, Gelu, Tanh, Exp over N elements, and Softmax over rows of 197, one thread, interleaved, processor time:
nanoseconds an element (the least of all runs), and onnxruntime's over Tenon's.  By default once for as many elements as
stay near the processor, and once for more.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import thread_time_ns

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tenon

ROW = 197
FUNCTIONS: dict[str, list[tuple[str, list[str], str]]] = {
    "Sigmoid": [("Sigmoid", ["x"], "y")],
    "Swish": [("Sigmoid", ["x"], "s"), ("Mul", ["x", "s"], "y")],
    "Gelu": [("Gelu", ["x"], "y")],
    "Tanh": [("Tanh", ["x"], "y")],
    "Exp": [("Exp", ["x"], "y")],
    "Softmax": [("Softmax", ["x"], "y")],
}


def network(name: str, rows: int) -> onnx.ModelProto:
    nodes = [helper.make_node(op, inputs, [output]) for op, inputs, output in FUNCTIONS[name]]
    values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [rows, ROW]) for v in ("x", "y")]
    graph = helper.make_graph(nodes, name, values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def compare(name: str, rows: int, target: str | None, repeat: int) -> None:
    model, x = network(name, rows), np.random.default_rng(0).uniform(-8, 8, (rows, ROW)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_shape_and_type(x.shape, np.float32, "cpu"))
    with tempfile.TemporaryDirectory() as folder, tenon.open(_saved(model, Path(folder), target)) as engine:
        engine.run({"x": x})
        times: list[list[int]] = [[], []]
        for _ in range(repeat):
            for own, run in ((0, lambda: engine.run(copy=False)), (1, lambda: session.run_with_iobinding(binding))):
                began = thread_time_ns()
                run()
                times[own].append(thread_time_ns() - began)
    ours, theirs = (min(own) / x.size for own in times)
    print(f"{name:8} {x.size:8} elements: {ours:.3f} ns, onnxruntime {theirs:.3f} ns, {theirs / ours:.2f}", flush=True)


def _saved(model: onnx.ModelProto, folder: Path, target: str | None) -> Path:
    onnx.save(model, folder / "model.onnx")
    return Path(tenon.compile(folder / "model.onnx", target=target).save(folder / "bundle"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *FUNCTIONS])
    parser.add_argument("--elements", type=int, nargs="*", default=[100_000, 2_000_000])
    parser.add_argument("--target")
    parser.add_argument("--repeat", type=int, default=200)
    given = parser.parse_args()
    for name in given.names or FUNCTIONS:
        for elements in given.elements:
            compare(name, max(1, elements // ROW), given.target, given.repeat)


if __name__ == "__main__":
    main()
