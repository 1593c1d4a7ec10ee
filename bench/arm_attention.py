#!/usr/bin/env python3
"""Instructions of attention in f32 on Arm, counted by QEMU: for a multiply-add of its two products.

    python bench/arm_attention.py [--target NAME ...] [--size HEADS:QUERIES:CHANNELS ...] [--functions]

There are as many keys as queries.  Transposition of the keys, scaling and softmax are included.  Counts need a QEMU
with plug-ins.
"""

from __future__ import annotations

import argparse
import sys
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

TARGETS = ("aarch64-dotprod", "aarch64-sme")
SIZES = ("4:64:64", "4:256:64", "2:512:64")


def network(heads: int, queries: int, channels: int) -> bytes:
    """Queries, keys and values [1, heads, queries, channels], as exporters write attention."""
    shape = [1, heads, queries, channels]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkvy"]
    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    scale = numpy_helper.from_array(np.float32(channels**-0.5), "scale")
    made = helper.make_graph(nodes, "attention", values[:3], values[3:], [scale])
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", nargs="+", default=TARGETS)
    parser.add_argument("--size", nargs="+", default=SIZES, metavar="HEADS:QUERIES:CHANNELS")
    parser.add_argument("--functions", action="store_true")
    given = parser.parse_args()
    for text in given.size:
        heads, queries, channels = map(int, text.split(":"))
        for target in given.target:
            made, row = tenon.compile(network(heads, queries, channels), target=target), find(target)
            bundle = Bundle.of(made.program, resolved(Options(target=target), row))
            inputs = {name: np.zeros((1, heads, queries, channels), np.float32) for name in "qkv"}
            counted = count(bundle, [inputs, inputs])  # the first run asks what the machine has
            products = 2 * heads * queries**2 * channels
            print(f"{heads} x {queries} x {channels} {target}: {counted.instructions[1] / products:.4f}", flush=True)
            for function, n in sorted(counted.functions.items(), key=lambda each: -each[1]) if given.functions else ():
                print(f"    {function} {n}")


if __name__ == "__main__":
    main()
