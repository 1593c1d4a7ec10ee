"""GPUs and other devices of x86-64 machines (docs/reference/gpu.md)."""

from dataclasses import replace

from tenon.machine.isa.base import ProductUnit
from tenon.machine.isa.byte_products import DOT4, DOT4_SIGNED
from tenon.machine.isa.cooperative_matrices import MATRIX_F16
from tenon.machine.isa.tensor_cores import MMA_BF16_K16, MMA_F16, MMA_F16_K16, MMA_I8_K32, MMA_U8_K32
from tenon.machine.isa.warpgroups import WGMMA_BF16, WGMMA_F16, WGMMA_I8, WGMMA_U8
from tenon.machine.kernel_ir.spaces import SHARED, Launch, MemorySpace
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Target
from tenon.network.graph.types import DType

_SINGLE, _DOT4 = 12.0, 2.0
"""The time of four products of bytes that are taken out of their words one by one, and of an instruction for them."""

_NVIDIA = Launch(group=1024, units=132, resident=2048)
_SHARED = MemorySpace("shared", 99 << 10)
"""The shared memory of a block on every GPU of compute capability 8.0 and newer, if the host asks for it."""
_AMPERE = (MMA_F16_K16, MMA_BF16_K16, MMA_I8_K32, MMA_U8_K32)
"""Units for products of NVIDIA GPUs of compute capability 8.0."""


def _machine(launch: Launch, shared: MemorySpace, dot4: float, *more: ProductUnit) -> Machine:
    """``dot4`` is the time of four products of bytes; ``more`` are other units for products."""
    return Machine(
        lanes=1,
        registers=16,
        block=4,
        products=(*(replace(unit, time=dot4) for unit in (DOT4, DOT4_SIGNED)), *more),
        stores=frozenset({DType.F16, DType.BF16}),
        threads=4096,
        own_memory=False,
        launch=launch,
        spaces=(shared,),
    )


def _device(
    name: str,
    about: str,
    launch: Launch,
    shared: MemorySpace,
    dot4: float = _SINGLE,
    *more: ProductUnit,
    backend: str = "",
) -> Target:
    return Target(
        name,
        _machine(launch, shared, dot4, *more),
        "x86_64-linux-gnu",
        "x86_64",
        about=about,
        gcc=("-march=x86-64",),
        backend=backend or name,
        host=Host("x86-64", tuned=True),  # chosen by name only
        thread_pool=False,
        group=Group.DESKTOP,
        tier=2,
    )


TARGETS = (
    # 32 KiB is the least that OpenCL 1.2 asks of a device; Vulkan asks for half of it, but GPUs have as much.
    _device("opencl", "OpenCL 1.2 device of an x86-64 machine", Launch(group=256), MemorySpace("shared", 32 << 10)),
    _device("vulkan", "Vulkan 1.0 device of an x86-64 machine", Launch(group=256), MemorySpace("shared", 32 << 10)),
    _device(
        "vulkan-matrix",
        "Vulkan device with cooperative matrices (NVIDIA GPU, Turing or newer) of an x86-64 machine",
        Launch(group=256),
        MemorySpace("shared", 32 << 10),
        _SINGLE,
        MATRIX_F16,
        backend="vulkan",
    ),
    _device(
        "cuda",
        "CUDA device (NVIDIA GPU, Ampere or newer) of an x86-64 machine",
        replace(_NVIDIA, copies=True),
        _SHARED,
        _DOT4,
        *_AMPERE,
    ),
    _device(
        "cuda-sm75",
        "CUDA device (NVIDIA GPU, Turing or newer) of an x86-64 machine",
        _NVIDIA,
        SHARED,
        _DOT4,
        MMA_F16,
        backend="cuda",
    ),
    _device(
        "cuda-sm90",
        "CUDA device (NVIDIA GPU, Hopper or newer) of an x86-64 machine: blocks in clusters",
        replace(_NVIDIA, copies=True, cluster=8, early=True),
        _SHARED,
        _DOT4,
        *_AMPERE,
        backend="cuda",
    ),
    _device(
        "cuda-sm90a",
        "CUDA device (NVIDIA Hopper GPU) of an x86-64 machine: tensor cores that work beside the threads of four warps",
        replace(_NVIDIA, copies=True, cluster=8, early=True),
        MemorySpace("shared", 227 << 10),
        _DOT4,
        *_AMPERE,
        WGMMA_F16,
        WGMMA_BF16,
        WGMMA_I8,
        WGMMA_U8,
        backend="cuda",
    ),
    # The least that WebGPU asks of an adapter.
    Target(
        "webgpu",
        _machine(Launch(group=256), MemorySpace("shared", 16 << 10), _SINGLE),
        "",
        "",
        about="WebGPU device of a browser: a JavaScript module with kernels in WGSL",
        backend="webgpu",
        object="none",
        thread_pool=False,
        group=Group.BROWSER,
        tier=2,
    ),
)
