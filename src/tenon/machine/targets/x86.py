"""x86-64: SSE2, AVX2 with FMA, AVX-512, and AVX-512 with products of bf16."""

from dataclasses import replace

from tenon.machine.isa.amx import TILE_BF16, TILE_F16, TILE_I8, TILE_U8
from tenon.machine.isa.bf16 import DOT2
from tenon.machine.isa.byte_products import DOT4, DOT4_SIGNED, DOT8_SMALL
from tenon.machine.isa.byte_tables import LOOKUP4
from tenon.machine.isa.short_products import MADD_I16
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Group, Host, Product, Target

_LINUX = "x86_64-linux-gnu"
_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"}
_VNNI = (DOT4,)
_PAIRS = (*(replace(unit, time=2.2, widening=1.8) for unit in (DOT4, DOT4_SIGNED)), MADD_I16)
_VNNI_BF16 = (DOT4, replace(DOT2, time=4.0))
_WIDE = ("-mprefer-vector-width=512",)
_VECTORS_OF_16 = Machine(
    lanes=16, registers=32, block=16, folds_broadcast=True, prefetch=True, nearest=True, table=LOOKUP4
)
"""A processor with AVX-512, but for its products."""

# Xeons with AMX write to the second cache more slowly than others: sums take 1.6 times what they take elsewhere.
# A product of pairs of bf16 takes four multiply-adds of f32 on Xeons with AMX and one on Zen 4: to compile for a
# processor that is not known gets what loses nowhere.  "host" is measured (``tune.probe``).
SSE2 = Target(
    "x86-64",
    Machine(lanes=4, registers=16, block=4, prefetch=True, products=_PAIRS, memory=1.75),
    _LINUX,
    "x86_64",
    about="Any x86-64 (SSE2)",
    gcc=("-march=x86-64",),
    host=Host("x86-64"),
    group=Group.DESKTOP,
)
AVX2 = Target(
    "x86-64-avx2",
    Machine(
        lanes=8,
        registers=16,
        block=8,
        fused=True,
        prefetch=True,
        nearest=True,
        products=(*_PAIRS, DOT8_SMALL),
        memory=1.75,
    ),
    _LINUX,
    "x86_64_v3",
    about="x86-64 with AVX2 and FMA",
    gcc=("-march=x86-64-v3",),
    host=Host("x86-64", _AVX2),
    group=Group.DESKTOP,
)
TARGETS = (
    SSE2,
    AVX2,
    Target(
        "x86-64-avx2-vnni",
        replace(AVX2.machine, products=_VNNI),
        _LINUX,
        "x86_64_v3+avxvnni",
        about="x86-64 with AVX2 and its integer dot product (AVX-VNNI)",
        gcc=("-march=x86-64-v3", "-mavxvnni"),
        host=Host("x86-64", _AVX2 | {"avx_vnni"}),
        group=Group.DESKTOP,
    ),
    Target(
        "x86-64-avx512",
        replace(_VECTORS_OF_16, products=(*_PAIRS, DOT8_SMALL)),
        _LINUX,
        "x86_64_v4",
        _WIDE,
        about="x86-64 with AVX-512",
        gcc=("-march=x86-64-v4",),
        host=Host("x86-64", _AVX512),
        group=Group.DESKTOP,
    ),
    Target(
        "x86-64-avx512-vnni",
        replace(_VECTORS_OF_16, products=_VNNI),
        _LINUX,
        "x86_64_v4+avx512vnni",
        _WIDE,
        about="x86-64 with AVX-512 and its integer dot product (VNNI)",
        gcc=("-march=x86-64-v4", "-mavx512vnni"),
        host=Host("x86-64", _AVX512 | {"avx512_vnni"}),
        group=Group.DESKTOP,
    ),
    Target(
        "x86-64-avx512-vbmi",
        replace(_VECTORS_OF_16, products=_VNNI),
        _LINUX,
        "x86_64_v4+avx512vnni+avx512vbmi",
        _WIDE,
        about="x86-64 with AVX-512, its integer dot product (VNNI) and permutations of bytes (VBMI)",
        gcc=("-march=x86-64-v4", "-mavx512vnni", "-mavx512vbmi"),
        host=Host("x86-64", _AVX512 | {"avx512_vnni", "avx512vbmi"}),
        group=Group.DESKTOP,
    ),
    Target(
        "x86-64-avx512-bf16",
        replace(_VECTORS_OF_16, products=_VNNI_BF16),
        _LINUX,
        "x86_64_v4+avx512bf16+avx512vnni+avx512vbmi",
        _WIDE,
        about="x86-64 with AVX-512, VNNI, VBMI and products of bf16",
        gcc=("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi"),
        host=Host("x86-64", _AVX512 | {"avx512_bf16", "avx512_vnni", "avx512vbmi"}),
        group=Group.DESKTOP,
    ),
    Target(
        "x86-64-amx",
        replace(_VECTORS_OF_16, products=(DOT4, TILE_BF16, TILE_I8, TILE_U8), sums=1.6),
        _LINUX,
        "x86_64_v4+avx512bf16+avx512vnni+avx512vbmi+amx_tile+amx_bf16+amx_int8",
        _WIDE,
        about="x86-64 with AVX-512 and AMX (Xeon of the fourth generation and later)",
        gcc=(
            "-march=x86-64-v4",
            "-mavx512bf16",
            "-mavx512vnni",
            "-mavx512vbmi",
            "-mamx-tile",
            "-mamx-bf16",
            "-mamx-int8",
        ),
        host=Host("x86-64", _AVX512 | {"avx512_bf16", "avx512_vnni", "avx512vbmi", "amx_tile", "amx_bf16", "amx_int8"}),
        group=Group.DESKTOP,
    ),
    Target(
        "x86-64-amx-fp16",
        replace(_VECTORS_OF_16, products=(DOT4, TILE_BF16, TILE_F16, TILE_I8, TILE_U8), sums=1.6),
        _LINUX,
        "x86_64_v4+avx512bf16+avx512vnni+avx512vbmi+amx_tile+amx_bf16+amx_int8+amx_fp16",
        _WIDE,
        about="x86-64 with AVX-512 and AMX, also of fp16 (Xeon 6 with P-cores)",
        gcc=(
            "-march=x86-64-v4",
            "-mavx512bf16",
            "-mavx512vnni",
            "-mavx512vbmi",
            "-mamx-tile",
            "-mamx-bf16",
            "-mamx-int8",
            "-mamx-fp16",
        ),
        host=Host(
            "x86-64",
            _AVX512 | {"avx512_bf16", "avx512_vnni", "avx512vbmi", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"},
        ),
        group=Group.DESKTOP,
    ),
)

PRODUCTS = (
    Product("linux-x86_64", "x86-64-avx2", "Linux on x86-64 of 2013 and later (AVX2)", Group.DESKTOP),
    Product("intel-n100", "x86-64-avx2-vnni", "Intel N100 (Alder Lake-N)", Group.BOARD),
)
