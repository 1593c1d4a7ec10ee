"""The OpenCL backend: kernels in OpenCL C, which the driver compiles."""

from __future__ import annotations

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.gpu.backend import DeviceBackend
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.opencl.dialect import OpenCLC

LANGUAGE = DeviceLanguage(
    name="opencl",
    suffix=".cl",
    title="OpenCL C",
    dialect=OpenCLC,
    kernel="__kernel void",
    region="__global uchar *",
    constant_region="__global const uchar *",
    item="(int)get_global_id(0)",
    host="opencl_queue.c",
    embedded=str,
)
BACKEND: Backend = DeviceBackend(LANGUAGE)
