#!/usr/bin/env python3
"""Instructions of quantised ONNX networks on emulated microcontrollers, beside those in f32: a table in Markdown.

    python bench/quantised_mcu.py [NETWORK ...] [--targets ...] [--functions N]

NETWORKS are made here or lie in examples/ or in the folder `shared/` beside the project; each is quantised with samples
of its own and computed in f32, in the arithmetic ``onnx`` and in ``tflm``.  A row has million instructions of one
inference in each, and how many times those of ``tflm`` and of f32 the ones of ``onnx`` are; where that exceeds 1.25 or
1.00 there is an exclamation mark, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.machine.targets import targets
from tenon.machine.targets.base import Group
from tenon.network.graph.graph import Graph
from tenon.options import Arithmetic
from tenon.runtime.engine.instruction_count import count

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
Array = np.ndarray[Any, np.dtype[Any]]
Made = tuple[Graph, Array]
"""A network, and samples of its input, [N, ...]."""
TARGETS = tuple(t.name for t in targets().values() if t.group is Group.MICROCONTROLLER)
MOST_OF_TFLM, MOST_OF_FLOAT = 1.25, 1.0


def _samples(graph: Graph, count: int = 16) -> Array:
    rng = np.random.default_rng(0)
    dims = (1, *graph.inputs[0].type.dims[1:])
    return rng.uniform(-1, 1, (count, *dims)).astype(np.float32)


def _stored(path: Path, **shapes: Any) -> Made:
    graph = tenon.load(path, **shapes)
    return graph, _samples(graph)


def _of(nodes: list[Any], dims: list[int], constants: dict[str, Array]) -> Made:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", dims), ("y", None))]
    made = helper.make_graph(
        nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(a, n) for n, a in constants.items()]
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    graph = tenon.load(model.SerializeToString())
    return graph, _samples(graph)


def _weights(*dims: int) -> Array:
    rng = np.random.default_rng(sum(dims))
    return (rng.standard_normal(dims) * (2 / np.prod(dims[1:])) ** 0.5).astype(np.float32)


def small() -> Made:
    """Two convolutions, pools and a matrix product."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["ar"]),
        node("MaxPool", ["ar"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w2", "b2"], ["c"], pads=[1] * 4), node("Relu", ["c"], ["cr"]),
        node("GlobalAveragePool", ["cr"], ["g"]), node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"], transB=1),
    ]  # fmt: skip
    constants = {"w1": _weights(16, 3, 3, 3), "w2": _weights(32, 16, 3, 3), "w3": _weights(10, 32)}
    return _of(
        nodes, [1, 3, 24, 24], constants | {f"b{i}": np.zeros(n, np.float32) for i, n in enumerate((16, 32, 10), 1)}
    )


def separable() -> Made:
    """Depthwise and pointwise convolutions with ReLU6, and a residual sum."""
    node = helper.make_node
    nodes, constants, x = [], {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}, "x"
    for i, (ins, outs, stride) in enumerate(((3, 8, 2), (8, 16, 1), (16, 16, 1), (16, 32, 2))):
        constants |= {f"d{i}": _weights(ins, 1, 3, 3), f"p{i}": _weights(outs, ins, 1, 1)}
        nodes += [
            node("Conv", [x, f"d{i}"], [f"a{i}"], pads=[1] * 4, strides=[stride] * 2, group=ins),
            node("Clip", [f"a{i}", "low", "high"], [f"c{i}"]), node("Conv", [f"c{i}", f"p{i}"], [f"e{i}"]),
        ]  # fmt: skip
        nodes += [node("Add", [f"e{i}", x], [f"s{i}"])] if ins == outs else []
        x = nodes[-1].output[0]
    nodes += [node("GlobalAveragePool", [x], ["g"]), node("Softmax", ["g"], ["y"], axis=1)]
    return _of(nodes, [1, 3, 32, 32], constants)


NETWORKS: dict[str, Callable[[], Made]] = {
    "small": small,
    "separable": separable,
    "digits": lambda: _stored(ROOT / "examples" / "digits" / "digits.onnx"),
    "mnist": lambda: _stored(next((SHARED / "models" / "onnx" / "mnist").glob("*.onnx"))),
    "kws": lambda: _stored(SHARED / "quant" / "kws_ref_model"),
}


def counted(graph: Graph, target: str, feed: Array, functions: int, **options: Any) -> int:
    bundle = tenon.compile(graph, target=target, no_tuning=True, **options)
    (x,) = bundle.program.inputs
    found = count(bundle, [{x.name: feed.reshape(x.type.dims)}])
    most = sorted(found.functions.items(), key=lambda item: -item[1])[:functions]
    for name, number in most:
        print(f"    {number:12,} {name}")
    return found.instructions[0]


def row(name: str, target: str, functions: int) -> bool:
    """Prints a row; whether it is within the bounds."""
    graph, samples = NETWORKS[name]()
    small = tenon.quantize(graph, samples, target=target).graph
    kinds: tuple[Arithmetic, ...] = ("onnx", "tflm")
    floats = counted(graph, target, samples[0], functions)
    onnx, tflm = (counted(small, target, samples[0], functions, arithmetic=kind) for kind in kinds)
    fits = onnx <= MOST_OF_TFLM * tflm, onnx <= MOST_OF_FLOAT * floats
    marks = ["" if each else "!" for each in fits]
    cells = [name, target, *(f"{n / 1e6:.3f}" for n in (floats, onnx, tflm)),
             f"{onnx / tflm:.2f}{marks[0]}", f"{onnx / floats:.2f}{marks[1]}"]  # fmt: skip
    print("| " + " | ".join(cells) + " |", flush=True)
    return all(fits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, separated by commas; default: all")
    parser.add_argument("--functions", type=int, default=0, help="list so many functions that execute the most")
    options = parser.parse_args()
    print("| network | target | f32 | onnx | tflm | onnx / tflm | onnx / f32 |\n|---|---|--:|--:|--:|--:|--:|")
    fits = [row(name, target, options.functions) for name in options.networks for target in options.targets.split(",")]
    return 0 if all(fits) else 1


if __name__ == "__main__":
    sys.exit(main())
