"""Products of tiles by the tensor cores of Hopper GPUs, as instructions of a group of four warps that run beside them.

``wgmma_f16_n64`` (and for bf16, and for other numbers of columns) adds to 64 x 64 sums in f32 the products of 64 rows
by 64 columns, 16 products at a time. Rows and columns lie in shared memory in groups of eight elements: eight rows of a
group one after the other, then the next eight. Warp ``w`` has the rows from 16 * w on; of these, thread ``4 * g + t``
has the sums of the rows g and g + 8 and of the columns 8 * j + 2 * t and 8 * j + 2 * t + 1. Operands: where the rows
and the columns begin, and the sums; numbers: 16 bytes from one group of eight elements to the next, of rows and of
columns, and how many times 16 products there are. The sums are there after ``wgmma_sums_n64``, whose operands are the
same registers. ``wgmma_copies`` stands between the wait for copies to shared memory and the barrier before such
products, which see memory in another way. Source: the PTX ISA, "wgmma.mma_async", "Matrix Descriptor Format" and "Async
proxy".
"""

from __future__ import annotations

from tenon.machine.isa.base import ProductUnit
from tenon.network.graph.dtype import DType

COLUMNS = (32, 64, 128, 256)
"""The numbers of columns that there are instructions for."""

WGMMA_F16 = ProductUnit("wgmma_f16", DType.F16, DType.F16, DType.F32, (64, 8, 16))
WGMMA_BF16 = ProductUnit("wgmma_bf16", DType.BF16, DType.BF16, DType.F32, (64, 8, 16))

_PRODUCTS = """\
static __device__ __forceinline__ uint64_t {name}_place(const uint16_t *from, int step) {{
  const uint32_t at = (uint32_t)__cvta_generic_to_shared(from);
  return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)step << 16 | (uint64_t)8 << 32;
}}
static __device__ __forceinline__ void {name}(const uint16_t *rows, const uint16_t *columns, {sums},
                                              int row_step, int column_step, int count) {{
  const uint64_t a = {name}_place(rows, row_step), b = {name}_place(columns, column_step);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < count; i++) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{last}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{registers}}}, "
                 "%{a}, %{b}, p, 1, 1, 0, 0;\\n}}"
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


def _functions(n: int) -> dict[str, str]:
    """The functions for so many columns."""
    names = [f"c{i}" for i in range(n // 2)]
    words = {
        "n": str(n),
        "sums": ", ".join(f"float &{c}" for c in names),
        "outputs": ", ".join(f'"+f"({c})' for c in names),
        "registers": ", ".join(f"%{i}" for i in range(n // 2)),
        "a": str(n // 2),
        "b": str(n // 2 + 1),
        "last": str(n // 2 + 2),
    }
    products = {
        name: _PRODUCTS.format(name=name, kind=kind, **words)
        for kind in ("f16", "bf16")
        for name in (f"wgmma_{kind}_n{n}",)
    }
    return {**products, f"wgmma_sums_n{n}": _SUMS.format(name=f"wgmma_sums_n{n}", **words)}


DEVICE_INSTRUCTIONS = {
    "cuda": {
        **{name: text for n in COLUMNS for name, text in _functions(n).items()},
        "wgmma_copies": _COPIES,
    }
}
