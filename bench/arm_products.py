#!/usr/bin/env python3
"""Instructions of matrix products on Arm, ours beside KleidiAI's and XNNPACK's, counted by QEMU.

    python bench/arm_products.py [--kleidiai FOLDER] [--xnnpack FOLDER] [--size ROWS:INPUTS:COLUMNS ...]
                                 [--kind NAME ...] [--rows] [--both] [--stride N] [--functions]

Ours are 1x1 convolutions of images with ROWS positions, compiled for the target of the kind: "product" has the kernel,
bias and clamping (of bytes also requantisation) included, and "all" what reorders the images at the network's edges,
too, which a network does once.  With --stride they read every Nth position of an image with N times as many.  With
--rows they are products of matrices in rows, as KleidiAI's; SME's put these rows
side by side, which "product" includes.  With --both the right matrix is an input, too, as in attention: KleidiAI
packs that as well, which is not counted.  KleidiAI (a clone of github.com/ARM-software/kleidiai) multiplies matrices in
rows: "product" has its kernel, and "all" also the packing of the left matrix, which each product needs but those of one
row ("sme-row-f32" and others, for --rows --size 1:...).  Its int8
kernels by I8MM make f32 of f32.  Of weights in blocks of four bits both make f32 of f32: "all" includes the rounding of
the left matrix to bytes.  XNNPACK's microkernels (of a clone of github.com/google/XNNPACK) are those that it
chooses for a core that it does not know; they read rows as they are, so that there is one figure.  With SME it calls
KleidiAI's.  Every figure is instructions for a multiply-add.  SME's counts are for vectors of 512
bits.

Counts need a QEMU with plug-ins.  Before 9.0 it computes SME's products of bytes wrongly, but counts them rightly.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import tenon
from tenon.compilation import resolved
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import zig
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.instruction_count import count, plugin

SIZES = ("64:64:96", "64:256:256", "196:256:256", "49:512:512")
EDGES = ("reorder", "cast", "halo", "quantize", "dequantize", "block_quantize")
_CPU = "generic+v8_2a+dotprod+fullfp16+i8mm+bf16+sve2+sme"
_EMULATOR = ("-cpu", "max,sve512=on,sme512=on,sve-default-vector-length=64,sme-default-vector-length=64")


@dataclass(frozen=True)
class Microkernel:
    """XNNPACK's file and function, which multiplies so many rows by a panel of columns, and the bytes of elements."""

    file: str
    function: str
    rows: int
    panel: int
    bytes: int


@dataclass(frozen=True)
class Kind:
    """Our target and precision; KleidiAI's folder, kernel and packing with the bytes of elements; XNNPACK's kernel."""

    target: str
    precision: str
    folder: str = ""
    kernel: str = ""
    packing: str = ""
    bytes: tuple[int, int] = (4, 4)
    flags: tuple[str, ...] = ()
    microkernel: Microkernel | None = None


def _blocks(target: str, left: str, rest: str, packing: str) -> Kind:
    """Products by weights of four bits in blocks of 32."""
    kernel = f"matmul_clamp_f32_qsi8d32p{left}_qsi4c32p{rest}"
    folder = "matmul_clamp_f32_qsi8d32p_qsi4c32p"
    return Kind(target, "q4_0", folder, kernel, packing, flags=("-DBLOCKS=32",))


_F32 = Microkernel(
    "f32-gemm/gen/f32-gemm-6x8-minmax-asm-aarch64-neonfma-ld128.S",
    "xnn_f32_gemm_minmax_ukernel_6x8__asm_aarch64_neonfma_ld128",
    6,
    8,
    4,
)
_F16 = Microkernel(
    "f16-gemm/gen/f16-gemm-6x16-minmax-asm-aarch64-neonfp16arith-ld64.S",
    "xnn_f16_gemm_minmax_ukernel_6x16__asm_aarch64_neonfp16arith_ld64",
    6,
    16,
    2,
)
_DOTS = Microkernel(
    "qs8-qc8w-gemm/gen/qs8-qc8w-gemm-4x16c4-minmax-fp32-asm-aarch64-neondot-ld128.S",
    "xnn_qs8_qc8w_gemm_minmax_fp32_ukernel_4x16c4__asm_aarch64_neondot_ld128",
    4,
    16,
    1,
)
_BLOCKS = Microkernel(
    "qs8-qc8w-gemm/gen/qs8-qc8w-gemm-4x16c8-minmax-fp32-neoni8mm.c",
    "xnn_qs8_qc8w_gemm_minmax_fp32_ukernel_4x16c8__neoni8mm",
    4,
    16,
    1,
)

KINDS = {
    "f32": Kind("aarch64-dotprod", "fp32", microkernel=_F32),
    "f16": Kind("aarch64-fp16", "fp16", microkernel=_F16),
    "dotprod-int8": Kind("aarch64-dotprod", "int8", microkernel=_DOTS),
    "sve128-f32": Kind("aarch64-sve128", "fp32"),
    "sve128-int8": Kind("aarch64-sve128", "int8"),
    "sve256-int8": Kind("aarch64-sve256", "int8"),
    "int8": Kind(
        "aarch64-i8mm",
        "int8",
        "matmul_clamp_f32_qai8dxp_qsi8cxp",
        "matmul_clamp_f32_qai8dxp4x8_qsi8cxp4x8_16x4_neon_i8mm",
        "lhs_quant_pack_qai8dxp_f32",
        microkernel=_BLOCKS,
    ),
    "bf16": Kind(
        "aarch64-bf16",
        "bf16",
        "matmul_clamp_f32_bf16p_bf16p",
        "matmul_clamp_f32_bf16p8x4_bf16p12x4b_8x12_neon_mmla",
        "lhs_quant_pack_bf16p8x4_f32_neon",
    ),
    "sme-f32": Kind(
        "aarch64-sme",
        "fp32",
        "matmul_clamp_f32_f32p_f32p",
        "matmul_clamp_f32_f32p2vlx1_f32p2vlx1b_2vlx2vl_sme_mopa",
        "lhs_pack_f32p2vlx1_f32_sme",
    ),
    "sme-bf16": Kind(
        "aarch64-sme",
        "bf16",
        "matmul_clamp_fp32_bf16p_bf16p",
        "matmul_clamp_f32_bf16p2vlx2_bf16p2vlx2_2vlx2vl_sme_mopa",
        "lhs_pack_bf16p2vlx2_f32_sme",
    ),
    "sme-int8": Kind(
        "aarch64-sme",
        "int8",
        "matmul_clamp_qai8_qai8p_qsi8cxp",
        "matmul_clamp_qai8_qai8p2vlx4_qsi8cxp2vlx4sb_2vlx2vl_sme_mopa",
        "lhs_pack_x8p2vlx4_x8_sme",
        (1, 1),
        ("-DREQUANTIZED",),
    ),
    "sme2-f32": Kind(
        "aarch64-sme2",
        "fp32",
        "matmul_clamp_f32_f32p_f32p",
        "matmul_clamp_f32_f32p2vlx1_f32p2vlx1biasf32_sme2_mopa",
        "lhs_pack_f32p2vlx1_f32_sme",
    ),
    "sme2-bf16": Kind(
        "aarch64-sme2",
        "bf16",
        "matmul_clamp_fp32_bf16p_bf16p",
        "matmul_clamp_f32_bf16p2vlx2_bf16p2vlx2_2vlx2vl_sme2_mopa",
        "lhs_pack_bf16p2vlx2_f32_sme",
    ),
    "sme2-int8": Kind(
        "aarch64-sme2",
        "int8",
        "matmul_clamp_qai8_qai8p_qsi8cxp",
        "matmul_clamp_qai8_qai8p2vlx4_qsi8cxpsb2vlx4_2vlx2vl_sme2_mopa",
        "lhs_pack_x8p2vlx4_x8_sme",
        (1, 1),
        ("-DREQUANTIZED",),
    ),
    "sme-row-f32": Kind(
        "aarch64-sme", "fp32", "matmul_clamp_f32_f32_f32p", "matmul_clamp_f32_f32_f32p2vlx1b_1x8vl_sme_mla"
    ),
    "sme2-row-f32": Kind(
        "aarch64-sme2", "fp32", "matmul_clamp_f32_f32_f32p", "matmul_clamp_f32_f32_f32p2vlx1b_1x16vl_sme2_mla"
    ),
    "sme2-row-int8": Kind(
        "aarch64-sme2",
        "int8",
        "matmul_clamp_qai8_qai8_qsi8cxp",
        "matmul_clamp_qai8_qai8_qsi8cxp2vlx4sb_1x16vl_sme2_dot",
        bytes=(1, 1),
        flags=("-DREQUANTIZED",),
    ),
    "dotprod-q4_0": _blocks("aarch64-dotprod", "4x4", "4x4_16x4_neon_dotprod", "lhs_quant_pack_qsi8d32p_f32"),
    "row-q4_0": _blocks("aarch64-dotprod", "1x4", "4x4_1x4_neon_dotprod", "lhs_quant_pack_qsi8d32p_f32"),
    "i8mm-q4_0": _blocks("aarch64-i8mm", "4x8", "4x8_16x4_neon_i8mm", "lhs_quant_pack_qsi8d32p_f32"),
    "sme-q4_0": _blocks("aarch64-sme", "1vlx4", "4vlx4_1vlx4vl_sme_mopa", "lhs_quant_pack_qsi8d32p_f32_neon"),
    "sme2-q4_0": _blocks("aarch64-sme2", "1vlx4", "4vlx4_1vlx4vl_sme2_mopa", "lhs_quant_pack_qsi8d32p_f32_neon"),
}


def network(rows: int, inputs: int, columns: int, quantised: bool, stride: int = 1) -> bytes:
    """A 1x1 convolution with a bias, of an image of one row, of which it reads every ``stride``-th position."""
    rng = np.random.default_rng(0)
    weights, bias = rng.standard_normal((columns, inputs, 1, 1)), rng.standard_normal(columns)
    if not quantised:
        tensors = {"w": weights.astype(np.float32), "b": bias.astype(np.float32)}
        node, kind = helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=[1, stride]), TensorProto.FLOAT
    else:
        scales = {f"{name}s": np.float32(scale) for name, scale in (("x", 0.02), ("w", 0.01), ("y", 0.1))}
        zeros = {f"{name}z": np.int8(0) for name in "xwy"}
        narrow = np.clip(weights * 40, -127, 127).astype(np.int8)
        tensors = {"w": narrow, "b": (bias * 900).astype(np.int32), **scales, **zeros}
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
        node, kind = helper.make_node("QLinearConv", names, ["y"], strides=[1, stride]), TensorProto.INT8
    return _model(node, tensors, kind, ([1, inputs, 1, rows * stride], [1, columns, 1, rows]))


def matrices(rows: int, inputs: int, columns: int, quantised: bool) -> bytes:
    """A matrix product, of floats with a bias."""
    rng = np.random.default_rng(0)
    weights, bias = rng.standard_normal((inputs, columns)), rng.standard_normal(columns)
    if not quantised:
        tensors = {"w": weights.astype(np.float32), "b": bias.astype(np.float32)}
        node, kind = helper.make_node("Gemm", ["x", "w", "b"], ["y"]), TensorProto.FLOAT
    else:
        scales = {f"{name}s": np.float32(scale) for name, scale in (("x", 0.02), ("w", 0.01), ("y", 0.1))}
        zeros = {f"{name}z": np.int8(0) for name in "xwy"}
        tensors = {"w": np.clip(weights * 40, -127, 127).astype(np.int8), **scales, **zeros}
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
        node, kind = helper.make_node("QLinearMatMul", names, ["y"]), TensorProto.INT8
    return _model(node, tensors, kind, ([rows, inputs], [rows, columns]))


def factors(rows: int, inputs: int, columns: int, quantised: bool) -> bytes:
    """A product of two matrices that are inputs."""
    shapes = {"x": [rows, inputs], "w": [inputs, columns], "y": [rows, columns]}
    kind = TensorProto.INT8 if quantised else TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    node, tensors = helper.make_node("MatMul", ["x", "w"], ["y"]), dict[str, object]()
    if quantised:
        tensors = {f"{name}s": np.float32(scale) for name, scale in (("x", 0.02), ("w", 0.01), ("y", 0.1))}
        tensors |= {f"{name}z": np.int8(0) for name in "xwy"}
        node = helper.make_node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    made = helper.make_graph([node], "product", values[:2], values[2:], constants)
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def _model(node: object, tensors: Mapping[str, object], kind: int, shapes: tuple[list[int], list[int]]) -> bytes:
    made = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", kind, shapes[0])],
        [helper.make_tensor_value_info("y", kind, shapes[1])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def ours(
    kind: Kind, size: tuple[int, int, int], in_rows: bool, stride: int, both: bool
) -> tuple[int, int, Mapping[str, int]]:
    """Instructions of the product and of all, and those of each function."""
    rows, inputs, columns = size
    quantised, blocks = kind.precision == "int8", kind.precision == "q4_0"
    in_rows = in_rows or blocks or both
    precision = "fp32" if quantised or blocks else kind.precision
    given = matrices(*size, quantised) if in_rows else network(*size, quantised, stride)
    if both:
        given = factors(*size, quantised)
    kept = {"weight_format": "q4_0"} if blocks else {}
    made = tenon.compile(given, target=kind.target, precision=precision, **kept)
    row = find(kind.target)
    row = replace(row, flags=(*row.flags, "-DTENON_UNCHECKED_OUTER_PRODUCTS"))
    bundle = Bundle.of(made.program, resolved(Options(target=kind.target, precision=precision), row))
    x = np.zeros((rows, inputs) if in_rows else (1, inputs, 1, rows * stride), np.int8 if quantised else np.float32)
    values = {"x": x} | ({"w": np.zeros((inputs, columns), x.dtype)} if both else {})
    counted = count(bundle, [values, values])  # the first run asks what the machine has
    edges = sum(n for name, n in counted.functions.items() if name.startswith(EDGES))
    return counted.instructions[1] - edges, counted.instructions[1], counted.functions


def compiled(program: Path, arguments: Sequence[str | Path]) -> Path:
    """A program for Linux on 64-bit Arm, of C and assembly."""
    zig_cc = zig(Options.from_environment().cache).command
    flags = ("-target", "aarch64-linux-musl", f"-mcpu={_CPU}", "-O2", "-fno-sanitize=undefined")
    subprocess.run([*zig_cc, *flags, *map(str, arguments), "-o", str(program)], check=True)
    return program


def kleidiai(kind: Kind, source: Path, folder: Path) -> Path:
    """KleidiAI's product of a kind as a program."""
    names = [f"{kind.folder}/kai_{kind.kernel}", *([f"pack/kai_{kind.packing}"] if kind.packing else [])]
    paths = [source / "kai/ukernels/matmul" / name for name in names]
    files = [Path(f"{path}{end}") for path in paths for end in (".c", "_asm.S")]
    headers = [f'-D{name}="{path}.h"' for name, path in zip(("HEADER", "PACK_HEADER"), paths, strict=False)]
    headers += [f"-DPACK={kind.packing}"] if kind.packing else []
    sizes = [f"-D{name}={n}" for name, n in zip(("INPUT", "OUTPUT"), kind.bytes, strict=True)]
    defined = [f"-I{source}", f"-DKERNEL={kind.kernel}", *headers, *sizes, *kind.flags]
    own = [Path(__file__).with_name("kleidiai_product.c"), *(file for file in files if file.exists())]
    return compiled(folder / kind.kernel, [*defined, *own, source / "kai/kai_common_sme_asm.S"])


def xnnpack(kernel: Microkernel, source: Path, folder: Path) -> Path:
    """A product by a microkernel of XNNPACK as a program."""
    # XNNPACK's public header includes that of a thread pool, which no microkernel calls.
    (folder / "pthreadpool.h").write_text("typedef struct pthreadpool *pthreadpool_t;\n")
    numbers = {"HEIGHT": kernel.rows, "PANEL": kernel.panel, "INPUT": kernel.bytes, "OUTPUT": kernel.bytes}
    defined = [f"-DKERNEL={kernel.function}", *(f"-D{name}={n}" for name, n in numbers.items())]
    included = [f"-I{path}" for path in (source, source / "include", folder)]
    own = Path(__file__).with_name("xnnpack_product.c")
    return compiled(folder / kernel.function, [*defined, *included, own, source / "src" / kernel.file])


def theirs(program: Path, folder: Path, size: tuple[int, int, int]) -> tuple[int, int]:
    """Instructions of the product, and of it and of the packing ahead of it."""
    library, counts = folder / "libinstruction_count.so", folder / "counts.txt"
    if not library.exists():
        library.write_bytes(plugin(zig(Options.from_environment().cache)))
    watched = f"{library},enter=step,caller=main,out={counts}"
    subprocess.run(["qemu-aarch64", "-plugin", watched, *_EMULATOR, program, *map(str, size)], check=True)
    packing, product = (int(line.split()[1]) for line in counts.read_text().splitlines() if line.startswith("run"))
    return product, packing + product


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kleidiai", type=Path, metavar="FOLDER")
    parser.add_argument("--xnnpack", type=Path, metavar="FOLDER")
    parser.add_argument("--size", action="append", metavar="ROWS:INPUTS:COLUMNS")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--both", action="store_true")
    parser.add_argument("--stride", type=int, default=1, metavar="N")
    parser.add_argument("--functions", action="store_true")
    options = parser.parse_args()
    heads = f"{'ours: product':>14} {'all':>7} {'KleidiAI: product':>18} {'all':>7} {'XNNPACK':>8}"
    print(f"{'kind':12} {'rows x inputs x columns':24} {heads}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in options.kind or KINDS:
            kind = KINDS[name]
            made = kleidiai(kind, options.kleidiai.resolve(), folder) if options.kleidiai and kind.kernel else None
            micro = kind.microkernel
            second = xnnpack(micro, options.xnnpack.resolve(), folder) if options.xnnpack and micro else None
            for text in options.size or SIZES:
                rows, inputs, columns = map(int, text.split(":"))
                size = rows, inputs, columns
                *own, functions = ours(kind, size, options.rows, options.stride, options.both)
                others = [*(theirs(made, folder, size) if made else (None, None))]
                others.append(theirs(second, folder, size)[0] if second else None)
                figures = ["-" if n is None else f"{n / (rows * inputs * columns):.4f}" for n in (*own, *others)]
                shown = f"{rows} x {inputs} x {columns}"
                widths = (14, 7, 18, 7, 8)
                line = " ".join(f"{figure:>{width}}" for figure, width in zip(figures, widths, strict=True))
                print(f"{name:12} {shown:24} {line}", flush=True)
                for function, n in sorted(functions.items(), key=lambda each: -each[1]) if options.functions else ():
                    print(f"          {function} {n}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
