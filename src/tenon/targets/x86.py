"""x86-64: SSE2, AVX2 with FMA, AVX-512, and AVX-512 with products of bf16."""

from tenon.kernels.machine import Machine
from tenon.targets.base import Target

_LINUX = "x86_64-linux-gnu"

# A product of pairs of bf16 takes four multiply-adds of f32 on Xeons with AMX and one on Zen 4: whoever compiles for a
# processor that is not known gets what loses nowhere.  "host" is measured (``tune.probe``).
TARGETS = (
    Target("x86-64", Machine(lanes=4, registers=16, block=4, prefetch=True), _LINUX, "x86_64"),
    Target("x86-64-avx2", Machine(lanes=8, registers=16, block=8, prefetch=True), _LINUX, "x86_64_v3"),
    Target(
        "x86-64-avx512",
        Machine(lanes=16, registers=32, block=16, folds_broadcast=True, prefetch=True),
        _LINUX,
        "x86_64_v4",
        ("-mprefer-vector-width=512",),
    ),
    Target(
        "x86-64-avx512-bf16",
        Machine(lanes=16, registers=32, block=16, folds_broadcast=True, prefetch=True, dot2=4.0),
        _LINUX,
        "x86_64_v4+avx512bf16",
        ("-mprefer-vector-width=512",),
    ),
)
