#!/usr/bin/env python3
"""Instructions of products by weights in blocks, counted by QEMU or wasmtime: for a multiply-add, of several rows and
of one.

    python bench/block_instructions.py [--target aarch64-i8mm ...] [--format q4_0 q8_0] [--size ROWS:INPUTS:OUTPUTS]

Counts of processors need a QEMU with plug-ins.  The kernel alone is counted, without the rounding of activations; of
WebAssembly, with it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import tenon
from tenon.compilation import resolved
from tenon.machine.targets import find
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.instruction_count import count

TARGETS = ("aarch64", "aarch64-dotprod", "aarch64-i8mm", "aarch64-sme")
KERNELS = ("block_product", "stream_row", "outer_groups", "outer_rows", "block_totals")
SIZES = ("64:512:512", "1:512:512")


def network(rows: int, inputs: int, outputs: int) -> bytes:
    """A matrix product."""
    weights = np.random.default_rng(0).standard_normal((inputs, outputs)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, outputs])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(made.SerializeToString())


def compiled(model: bytes, target: str, form: str) -> Bundle:
    """The product with weights of a format, without a check of SME's products of bytes, which QEMU 7.2 gets wrong."""
    made = tenon.compile(model, target=target, weight_format=form)
    row = find(target)
    row = replace(row, flags=(*row.flags, "-DTENON_UNCHECKED_OUTER_PRODUCTS"))
    return Bundle.of(made.program, resolved(Options(target=target), row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=TARGETS)
    parser.add_argument("--format", nargs="+", default=("q4_0", "q8_0"))
    parser.add_argument("--size", nargs="+", default=SIZES, metavar="ROWS:INPUTS:OUTPUTS")
    given = parser.parse_args()
    for text in given.size:
        rows, inputs, outputs = map(int, text.split(":"))
        for form in given.format:
            figures = []
            for target in given.target:
                bundle = compiled(network(rows, inputs, outputs), target, form)
                x = np.zeros((rows, inputs), np.float32)
                counted = count(bundle, [{"x": x}])
                kernels = sum(n for name, n in counted.functions.items() if name.startswith(KERNELS))
                own = kernels if counted.functions else counted.instructions[0]
                figures.append(f"{target} {own / (rows * inputs * outputs):.4f}")
            print(f"{rows} x {inputs} x {outputs} {form}: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
