"""The OpenCL backend: kernels in OpenCL C, which the driver compiles."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.gpu.backend import DeviceBackend
from tenon.machine.codegen.gpu.embedded import quoted_text
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.opencl.dialect import OpenCLC


def embedded(text: str, groups: Sequence[int] = ()) -> str:
    """The kernels in C, and whether they can read weights (1) or activations, too (2), from images."""
    images = 2 if "#define TENSOR_IMAGE" in text else int("#define WEIGHT_IMAGE" in text)
    return f"{quoted_text(text, groups)}\nenum {{ DEVICE_IMAGES = {images} }}; /* 1: of weights, 2: of activations */"


LANGUAGE = DeviceLanguage(
    name="opencl",
    suffix=".cl",
    title="OpenCL C",
    dialect=OpenCLC,
    kernel="__kernel void",
    region="__global uchar *",
    constant_region="__global const uchar *",
    item="(int)get_global_id(0)",
    block="(int)(get_global_id(0) / {size})",
    thread="(int)get_local_id(0)",
    shared="__local {type} {name}[{size}] __attribute__((aligned(16)));",
    bounds="__attribute__((reqd_work_group_size({size}, 1, 1))) ",
    aligned="{address}",
    host=(
        "device_text.c",
        "opencl_api.c",
        "opencl_hints.c",
        "opencl_device.c",
        "opencl_images.c",
        "opencl_programs.c",
        "device_groups.c",
        "opencl_queue.c",
        "opencl_runs.c",
    ),
    reads="opencl_reads.c",
    embedded=embedded,
)
BACKEND: Backend = DeviceBackend(LANGUAGE)
