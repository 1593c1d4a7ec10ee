"""``libtengine-lite``: the C API of Tengine over libtenon (``runtime/c/tengine``), and the command ``tm_benchmark``."""

from __future__ import annotations

import struct

from tenon.formats.importers.tengine.layers import LAYERS
from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler
from tenon.runtime.sdk.libtenon import ABI, RUNTIME, compile_source, hosted, platform_source
from tenon.runtime.sdk.linking import link_program, link_shared

_ALL = sorted(path.name for path in (RUNTIME / "tengine").iterdir())
SOURCES = tuple(name for name in _ALL if name.endswith(".c") and name != "tm_benchmark.c")
HEADERS = ("tengine/c_api.h", "tengine/defines.h", "tengine_c_api.h", "tengine_cpp_api.h")

_SPELLINGS = {
    "AbsVal": "Absval",
    "Addn": "Add_n",
    "BatchNormalization": "BatchNormalize",
    "BatchToSpaceND": "Batchtospacend",
    "DepthToSpace": "Depthtospace",
    "ELU": "Elu",
    "ExpandDims": "Expanddims",
    "GELU": "Gelu",
    "GRU": "Gru",
    "HardSwish": "Hardswish",
    "LRN": "Lrn",
    "LSTM": "Lstm",
    "MVN": "Mvn",
    "MatMul": "Matmul",
    "RPN": "Rpn",
    "SELU": "Selu",
    "SpaceToBatchND": "Spacetobatchnd",
    "SpaceToDepth": "Spacetodepth",
    "TopKV2": "Topkv2",
}
"""Operators that Tengine's functions spell otherwise than its tmfiles (source/operator/op_name.h)."""

_DEFAULTS = {
    "ArgMax": "keepdims=1",
    "ArgMin": "keepdims=1",
    "BatchNormalization": "eps=1e-5 rescale_factor=1",
    "Clip": "max=3.402823466e38 min=-3.402823466e38",
    "Convolution": "kernel_h=1 kernel_w=1 stride_h=1 stride_w=1 dilation_h=1 dilation_w=1 input_channel=64 "
    "output_channel=64 group=1 activation=-1",
    "Crop": "axis=2",
    "Deconvolution": "num_output=1 kernel_h=1 kernel_w=1 stride_h=1 stride_w=1 dilation_h=1 dilation_w=1 group=1 "
    "activation=-1",
    "DepthToSpace": "block=1",
    "ELU": "alpha=1",
    "Flatten": "axis=1 end_axis=3",
    "FullyConnected": "num_output=1",
    "HardSwish": "alpha=1 beta=3",
    "Interp": "resize_type=1 height_scale=1 width_scale=1",
    "LRN": "alpha=1 beta=0.75 k=1 local_size=5",
    "Pad": "pad_n_0=-1 pad_n_1=-1 pad_c_0=-1 pad_c_1=-1 pad_h_0=-1 pad_h_1=-1 pad_w_0=-1 pad_w_1=-1",
    "Permute": "order1=1 order2=2 order3=3",
    "Pooling": "kernel_h=2 kernel_w=2 stride_h=2 stride_w=2",
    "ReduceL2": "keepdim=1",
    "Reduction": "dim_0=-2 dim_1=-2 dim_2=-2 dim_3=-2",
    "Reorg": "stride=1",
    "Resize": "scale_x=1 scale_y=1",
    "Scale": "axis=1 num_axes=1",
    "Scatter": "axis=-1",
    "SELU": "alpha=1.67326319 lambda=1.05070102",
    "ShuffleChannel": "group=1",
    "Slice": "axis=1 step=1",
    "Softmax": "axis=1",
    "SpaceToDepth": "block=1",
    "Split": "split_dim=1",
    "Squeeze": "dim_0=-2 dim_1=-2 dim_2=-2 dim_3=-2",
    "SwapAxis": "dim_1=1",
    "TopKV2": "k=1",
}
"""Parameters of new nodes that are not 0 (init_op of source/operator/prototype)."""


def library_name(target: Target) -> str:
    """The file name of the shared library."""
    return target.format.library_name("tengine-lite") or ""


def operator_rows() -> str:
    """The operators that can be imported as rows of C: number in tmfiles, name, and parameters with their defaults.

    Of two numbers with one name, nodes are created with the larger one, which comes first.  Defaults are integers:
    those of floats have the same bits, which C reads in every locale.
    """
    rows = []
    for number, (name, fields, _) in sorted(LAYERS.items(), reverse=True):
        defaults = dict(text.split("=") for text in _DEFAULTS.get(name, "").split())
        words = []
        for name_and_kind in fields.split():
            parameter, _, kind = name_and_kind.partition(":")
            value = defaults.get(parameter)
            if value is not None and kind == "f":
                (value,) = struct.unpack("<i", struct.pack("<f", float(value)))
            words.append(name_and_kind if value is None else f"{name_and_kind}={value}")
        rows.append(f'OPERATOR_ROW({number}, "{_SPELLINGS.get(name, name)}", "{" ".join(words)}")\n')
    return "".join(rows)


def tengine_library(compiler: Compiler, target: Target, libtenon: bytes) -> bytes:
    """The shared library, which needs the ``libtenon`` beside it: that library, or what is linked to use it."""
    row = hosted(target)
    own = {name: (RUNTIME / "tengine" / name).read_bytes() for name in _ALL if name.endswith(".h")}
    own["operator_rows.h"] = operator_rows().encode()
    objects = {f"{name[:-2]}.o": compile_source(compiler, row, "tengine", name, ("-I.",), own) for name in SOURCES}
    shared = ("handle.c", "memory_pool.c", platform_source(row))
    objects |= {f"{name[:-2]}.o": compile_source(compiler, row, "libtenon", name) for name in shared}
    names = row.format.shared_library("tenon", ABI)
    beside = names.link if names.import_library else names.file
    return link_shared(compiler, row, objects, library_name(row), "*", {beside: libtenon})


def tm_benchmark(compiler: Compiler, target: Target, library: bytes) -> bytes:
    """The command, which needs libtenon and the ``library`` of ``tengine_library`` in the folder lib beside its own.

    Not for Windows: what is linked to use a DLL is made only for libtenon.
    """
    row = hosted(target)
    program = compile_source(compiler, row, "tengine", "tm_benchmark.c", ("-I.", "-D_POSIX_C_SOURCE=200112L"))
    return link_program(compiler, row, {"tm_benchmark.o": program}, {library_name(row): library})
