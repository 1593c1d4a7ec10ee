#!/usr/bin/env python3
"""Instructions of quantised kernels by compiler: a table in Markdown of compilers x kernels.

    python bench/compilers.py [--targets ...] [--compilers ...]

Layers of u8 with scales in f32: a dense 1x1 and a 3x3 convolution, a depthwise one, a matrix product.  Where an
emulator runs the target, a cell has the instructions of one run; for x86, whose vectors of 512 bits no emulator here
has, the instructions in the kernels' code (by objdump), of which loops that are unrolled have more: what a compiler
makes element by element shows in both.  Compilers are zig and what is installed of the others that make code for the
target.  Results of all compilers are compared to the bit where the target can be run.  Where a compiler runs more than
1.25 times the instructions of zig, or its code has twice as many, there is an exclamation mark, and the exit status
is 1.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.errors import ToolchainError
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import fits
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.instruction_count import count, missing

COMPILERS = ("zig", "gcc", "clang", "aarch64-linux-gnu-gcc")
TARGETS = (
    "x86-64", "x86-64-avx2", "x86-64-avx512", "x86-64-avx512-vnni", "aarch64", "aarch64-dotprod", "aarch64-i8mm",
)  # fmt: skip
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 64, 14, 14), (128, 64, 1, 1), {}),
    "3x3": ((1, 32, 14, 14), (64, 32, 3, 3), {"pads": [1] * 4}),
    "depthwise": ((1, 64, 14, 14), (64, 1, 3, 3), {"pads": [1] * 4, "group": 64}),
    "matrix": ((1, 512), (256, 512), {}),
}
MOST, MOST_IN_CODE = 1.25, 2.0
Array = np.ndarray[Any, np.dtype[Any]]


def layer(name: str) -> bytes:
    """A model of one quantised layer."""
    x, w, attributes = LAYERS[name]
    rng, node = np.random.default_rng(0), helper.make_node
    product = ("Conv", {}) if len(x) == 4 else ("Gemm", {"transB": 1})
    constants = {
        "w": rng.integers(-127, 128, w).astype(np.int8), "ws": np.full(w[0], 0.005, np.float32),
        "wz": np.zeros(w[0], np.int8), "xs": np.array(0.02, np.float32), "xz": np.array(128, np.uint8),
        "ys": np.array(0.1, np.float32), "yz": np.array(100, np.uint8),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        node(product[0], ["xf", "wf"], ["s"], **product[1], **attributes),
        node("QuantizeLinear", ["s", "ys", "yz"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.UINT8, d) for n, d in (("x", x), ("y", None))]
    initial = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "layer", infos[:1], infos[1:], initial)
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def in_code(bundle: Bundle) -> int:
    """The instructions in the code of an object."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.o"
        path.write_bytes(bundle.object)
        command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return len(re.findall(r"^\s+[0-9a-f]+:\t(?!nop|data16|xchg\s+%ax,%ax)", text, re.MULTILINE))


def measured(bundle: Bundle) -> tuple[int, Array | None]:
    """Instructions, and the result where the target can be run."""
    (x,) = bundle.program.inputs
    feeds = {x.name: np.random.default_rng(1).integers(0, 256, x.type.dims).astype(np.uint8)}
    if not missing(bundle.target):
        counted = count(bundle, [feeds])
        return counted.instructions[0], next(iter(counted.outputs[0].values()))
    host = bundle.target.host
    if host is None or not fits(host):
        return in_code(bundle), None
    with tenon.open(bundle) as engine:
        return in_code(bundle), next(iter(engine.run(feeds).values())).copy()


def row(name: str, target: str, compilers: list[str]) -> bool:
    """Prints a row; whether all compilers are within the bound and give the same bits."""
    cells, results, first, fits_bound = [name, target], list[Array](), 0, True
    most = MOST_IN_CODE if missing(find(target)) else MOST
    for compiler in compilers:
        chosen = None if compiler == "zig" else compiler
        try:
            bundle = tenon.compile(
                layer(name), target=target, compiler=chosen, no_tuning=True, arithmetic="onnx", name="layer"
            )
            instructions, result = measured(bundle)
        except ToolchainError:
            cells.append("")
            continue
        first = first or instructions
        within = instructions <= most * first
        fits_bound &= within
        cells.append(f"{instructions:,} ({instructions / first:.2f}{'' if within else '!'})")
        results += [] if result is None else [result]
    equal = all(np.array_equal(results[0], other) for other in results)
    print("| " + " | ".join([*cells, "yes" if equal and results else "no" if results else ""]) + " |", flush=True)
    return equal and fits_bound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, separated by commas")
    parser.add_argument("--compilers", default=",".join(COMPILERS), help="names, separated by commas")
    options = parser.parse_args()
    compilers = [c for c in options.compilers.split(",") if c == "zig" or shutil.which(c)]
    print(f"| layer | target | {' | '.join(compilers)} | equal |\n|---|---|{'--:|' * len(compilers)}---|")
    targets = [find(name).name for name in options.targets.split(",")]
    fine = [row(name, target, compilers) for target in targets for name in LAYERS]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
