"""Products of tiles by the tensor cores of Hopper GPUs, as instructions of a group of four warps that run beside them.

``wgmma_f16_n64`` (and for bf16, and for other numbers of columns) adds to 64 x 64 sums in f32 the products of 64 rows
by 64 columns, 16 products at a time. Rows and columns lie in shared memory in groups of eight elements: eight rows of a
group one after the other, then the next eight. Warp ``w`` has the rows from 16 * w on; of these, thread ``4 * g + t``
has the sums of the rows g and g + 8 and of the columns 8 * j + 2 * t and 8 * j + 2 * t + 1. Operands: where the rows
and the columns begin, and the sums; numbers: 16 bytes from one group of eight elements to the next, of rows and of
columns, and how many times 16 products there are. The sums are there after ``wgmma_sums_n64``, whose operands are the
same registers. ``wgmma_copies`` stands between the wait for copies to shared memory and the barrier before such
products, which see memory in another way.

``wgmma_i8_n64`` and ``wgmma_u8_n64`` (rows without a sign) add products of bytes to sums in i32, 32 at a time: groups
are four words of four bytes, and the sums are there after ``wgmma_whole_sums_n64``. Source: the PTX ISA,
"wgmma.mma_async", "Matrix Descriptor Format" and "Async proxy".
"""

from __future__ import annotations

from tenon.machine.isa.base import ProductUnit
from tenon.network.graph.dtype import DType

COLUMNS = (32, 64, 128, 256)
"""The numbers of columns that there are instructions for."""

WGMMA_F16 = ProductUnit("wgmma_f16", DType.F16, DType.F16, DType.F32, (64, 8, 16))
WGMMA_BF16 = ProductUnit("wgmma_bf16", DType.BF16, DType.BF16, DType.F32, (64, 8, 16))
WGMMA_I8 = ProductUnit("wgmma_i8", DType.I8, DType.I8, DType.I32, (64, 8, 32))
WGMMA_U8 = ProductUnit("wgmma_u8", DType.U8, DType.I8, DType.I32, (64, 8, 32))

_PRODUCTS = """\
static __device__ __forceinline__ uint64_t {name}_place(const {element} *from, int step) {{
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(from);
  return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)step << 16 | (uint64_t)8 << 32;
}}
static __device__ __forceinline__ void {name}(const {element} *rows, const {element} *columns, {sums},
                                              int row_step, int column_step, int count) {{
  const uint64_t a = {name}_place(rows, row_step), b = {name}_place(columns, column_step);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < count; i++) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{last}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.m64n{n}{types} {{{registers}}}, "
                 "%{a}, %{b}, p{signs};\\n}}"
                 : {outputs}
                 : "l"(a + 2 * i * row_step), "l"(b + 2 * i * column_step), "r"(1));
  }}
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}"""

_SUMS = """\
static __device__ __forceinline__ void {name}({sums}) {{
  asm volatile("wgmma.wait_group.sync.aligned 0;" : {outputs} :: "memory");
}}"""

_COPIES = """\
static __device__ __forceinline__ void wgmma_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}"""


_KINDS = {
    "wgmma_f16": ("uint16_t", "float", "k16.f32.f16.f16", ", 1, 1, 0, 0"),
    "wgmma_bf16": ("uint16_t", "float", "k16.f32.bf16.bf16", ", 1, 1, 0, 0"),
    "wgmma_i8": ("int32_t", "int32_t", "k32.s32.s8.s8", ""),
    "wgmma_u8": ("int32_t", "int32_t", "k32.s32.u8.s8", ""),
}
"""The types of what is multiplied and of sums in C, those of the instruction, and factors and orders of operands, which
products of bytes do not have."""


def _functions(n: int) -> dict[str, str]:
    """The functions for so many columns."""
    names, made = [f"c{i}" for i in range(n // 2)], dict[str, str]()
    for kind, (element, total, types, signs) in _KINDS.items():
        register = "f" if total == "float" else "r"
        words = {
            "n": str(n),
            "element": element,
            "types": types,
            "signs": signs,
            "sums": ", ".join(f"{total} &{c}" for c in names),
            "outputs": ", ".join(f'"+{register}"({c})' for c in names),
            "registers": ", ".join(f"%{i}" for i in range(n // 2)),
            "a": str(n // 2),
            "b": str(n // 2 + 1),
            "last": str(n // 2 + 2),
        }
        for name, text in ((f"{kind}_n{n}", _PRODUCTS), (f"{sums_after(kind)}_n{n}", _SUMS)):
            made[name] = text.format(name=name, **words)
    return made


def sums_after(operation: str) -> str:
    """The instruction after which the sums of a unit's products are there, without its number of columns."""
    return "wgmma_sums" if _KINDS[operation][1] == "float" else "wgmma_whole_sums"


DEVICE_INSTRUCTIONS = {
    "cuda": {
        **{name: text for n in COLUMNS for name, text in _functions(n).items()},
        "wgmma_copies": _COPIES,
    }
}
