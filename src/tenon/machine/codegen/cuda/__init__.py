"""The CUDA backend: kernels in CUDA C, compiled to PTX ahead of time."""

from __future__ import annotations

from tenon.machine.codegen.backend import Backend
from tenon.machine.codegen.cuda.dialect import CudaC
from tenon.machine.codegen.cuda.nvrtc import ptx
from tenon.machine.codegen.gpu.backend import LOOPS, SPACES, DeviceBackend
from tenon.machine.codegen.gpu.embedded import quoted_text
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.kernel_ir.spaces import SHARED

LANGUAGE = DeviceLanguage(
    name="cuda",
    suffix=".cu",
    title="CUDA C",
    dialect=CudaC,
    kernel='extern "C" __global__ void',
    region="unsigned char *",
    constant_region="const unsigned char *",
    item="(int)(blockIdx.x * blockDim.x + threadIdx.x)",
    block="(int)blockIdx.x",
    thread="(int)threadIdx.x",
    shared="__shared__ __align__(16) {type} {name}[{size}];",
    stated="extern __shared__ __align__(128) unsigned char shared_memory[];",
    declared=SHARED.bytes,
    bounds="__launch_bounds__({size}) ",
    clusters="__cluster_dims__({size}, 1, 1) ",
    waits='asm volatile("griddepcontrol.wait;" ::: "memory");',
    aligned="__builtin_assume_aligned({address}, 16)",
    host=("device_text.c", "cuda_api.c", "cuda_device.c", "device_groups.c", "cuda_queue.c", "cuda_streams.c"),
    reads="cuda_reads.c",
    streams=True,
    graphs=True,
    embedded=lambda text, _: quoted_text(ptx(text)),
)
BACKEND: Backend = DeviceBackend(LANGUAGE, spaces=SPACES | {"cluster"}, loops=LOOPS | {"cluster"})
