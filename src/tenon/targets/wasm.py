"""WebAssembly with 128-bit SIMD."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target
from tenon.targets.runner import Wasmtime

TARGETS = (
    Target(
        "wasm32",
        Machine(lanes=4, registers=16),
        "wasm32-freestanding",
        "generic+simd128",
        about="WebAssembly with SIMD",
        object="wasm",
        pointer=4,
        freestanding=True,
        runner=Wasmtime(),
    ),
)
