"""WebAssembly: with 128-bit SIMD, with relaxed SIMD, and scalar."""

from dataclasses import replace

from tenon.machine.isa.byte_products import DOT4, DOT4_SIGNED, DOT8_SMALL
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Product, Target
from tenon.machine.targets.runner import Wasmtime

_SIMD = Target(
    "wasm32",
    Machine(lanes=4, registers=16, products=(replace(DOT4_SIGNED, time=1.4), replace(DOT4, time=1.4))),
    "wasm32-freestanding",
    "generic+simd128",
    about="WebAssembly with SIMD",
    object="wasm",
    pointer=4,
    freestanding=True,
    runner=Wasmtime(),
    group=Group.BROWSER,
)

TARGETS = (
    _SIMD,
    replace(
        _SIMD,
        name="wasm32-relaxed",
        machine=replace(_SIMD.machine, products=(*_SIMD.machine.products, DOT8_SMALL)),
        cpu="generic+simd128+relaxed_simd",
        about="WebAssembly with relaxed SIMD: language models of 4 to 6 bits multiply four bytes at a time",
        tier=2,
    ),
    replace(
        _SIMD,
        name="wasm32-scalar",
        machine=Machine(lanes=1, registers=16),
        cpu="generic",
        about="WebAssembly without SIMD",
        tier=2,
    ),
)

PRODUCTS = (Product("browser", "wasm32", "Chrome 91, Firefox 89, Safari 16.4 and later, Node.js 16", Group.BROWSER),)
