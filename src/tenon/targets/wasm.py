"""WebAssembly with 128-bit SIMD."""

from tenon.ir.types import DType
from tenon.kernels.machine import Machine
from tenon.targets.base import Target
from tenon.targets.runner import Wasmtime

TARGETS = (
    Target(
        "wasm32",
        Machine(lanes=4, registers=16, dot4=(DType.I8, DType.U8)),
        "wasm32-freestanding",
        "generic+simd128",
        about="WebAssembly with SIMD",
        object="wasm",
        pointer=4,
        freestanding=True,
        runner=Wasmtime(),
    ),
)
