"""Products of tiles by the tensor cores of NVIDIA GPUs, as instructions of a warp.

``mma_f16`` adds to 16 x 8 sums in f32 the products of 16 rows of eight f16 by eight columns of eight.  Thread ``4 * g +
t`` of the 32 has the sums of the rows g and g + 8 and of the columns 2 * t and 2 * t + 1.  Operands: where the elements
2 * t and 2 * t + 1 of the rows g and g + 8 and of column g lie, and the four sums (Turing or newer).

``mma_f16_k16`` and ``mma_bf16_k16`` add 16 products, ``mma_i8_k32`` and ``mma_u8_k32`` (rows without a sign) 32 of
bytes to sums in i32, on Ampere or newer.  Thread ``4 * g + t`` is given eight bytes of the rows g and g + 8 and of
column g, from byte 8 * t on.  The instruction has four of these bytes in a second half of the products; rows and
columns are cut alike, so that the sums are of the same products.  Source: the PTX ISA, "Matrix Fragments for
mma.m16n8k8", "m16n8k16" and "m16n8k32".

Attention keeps both factors of its products in registers (``kernels.flash_attention``), of T = 1 or 2 tiles of 16 rows;
of "_f16" there are all for "_bf16", too, and names end in "_twice" for two tiles.  A thread has of a tile of 16 x 16
two vectors of four: of the rows g and g + 8 the columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.

``tile_f16`` loads them from rows in shared memory; its operand is where element 8 * (lane / 16) of row lane % 16 lies.
``scores_f16`` adds the products of T tiles by the rows of a matrix in shared memory to T x 16 x 8 * n sums.  Operands:
where element 8 * (lane / 8 % 2) of row 8 * (lane / 16) + lane % 8 lies, the same 16 rows further, the vectors of all
tiles, and for each 16 columns of the sums those of all tiles.  ``values_f16`` rounds sums to 16 bits and adds their
products by the columns of a matrix of 16 rows to other sums.  Operands: where element 8 * (lane / 16) of row lane % 16
lies, the sums of a tile's 16 columns, and for each 16 columns of the results those of all tiles.

``rescaled_16`` multiplies sums by the factor of their row, which is 1 for most.  Operands: the factors of a thread's
rows, the sums as before.  ``power_of_two_16`` replaces a register by two to its power, with an error that is less than
rounding to f16, and ``greater_16`` the first by the second where that is greater, or where the first is NaN.
"""

from __future__ import annotations

from tenon.machine.isa.base import ProductUnit
from tenon.network.graph.dtype import DType

MMA_F16 = ProductUnit("mma_f16", DType.F16, DType.F16, DType.F32, (16, 8, 8))
MMA_F16_K16 = ProductUnit("mma_f16_k16", DType.F16, DType.F16, DType.F32, (16, 8, 16))
MMA_BF16_K16 = ProductUnit("mma_bf16_k16", DType.BF16, DType.BF16, DType.F32, (16, 8, 16))
MMA_I8_K32 = ProductUnit("mma_i8_k32", DType.I8, DType.I8, DType.I32, (16, 8, 32))
MMA_U8_K32 = ProductUnit("mma_u8_k32", DType.U8, DType.I8, DType.I32, (16, 8, 32))

_CUDA = """\
static __device__ __forceinline__ void mma_f16(const uint16_t *low, const uint16_t *high, const uint16_t *column,
                                               float &c0, float &c1, float &c2, float &c3) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(*(const uint32_t *)low), "r"(*(const uint32_t *)high), "r"(*(const uint32_t *)column));
}"""

_WORDS = """\
static __device__ __forceinline__ void {name}(const {element} *low, const {element} *high, const {column} *column,
                                              {sum} &c0, {sum} &c1, {sum} &c2, {sum} &c3) {{
  const uint2 a = *(const uint2 *)low, b = *(const uint2 *)high, w = *(const uint2 *)column;
  asm volatile("mma.sync.aligned.{shape}.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
               "{{%0, %1, %2, %3}};"
               : "+{register}"(c0), "+{register}"(c1), "+{register}"(c2), "+{register}"(c3)
               : "r"(a.x), "r"(b.x), "r"(a.y), "r"(b.y), "r"(w.x), "r"(w.y));
}}"""


_TILE = """\
static __device__ __forceinline__ void {name}(const uint16_t *row, ushort4 &low, ushort4 &high) {{
  uint2 &a = (uint2 &)low, &b = (uint2 &)high;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(a.x), "=r"(b.x), "=r"(a.y), "=r"(b.y) : "r"((unsigned)__cvta_generic_to_shared(row)));
}}"""

_ROWS = """\
template <typename... More>
static __device__ __forceinline__ void {name}_columns(const uint16_t *row, int step, {tiles}, {sums}, More &...more) {{
  uint32_t w0, w1, w2, w3;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3) : "r"((unsigned)__cvta_generic_to_shared(row)));
{products}
  if constexpr (sizeof...(more) > 0) {name}_columns(row + step, step, {given}, more...);
}}
"""
"""A function that multiplies tiles in registers by 16 columns after the other."""

_PRODUCT = """\
  asm("mma.sync.aligned.m16n8k16.row.col.{types} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
      "{{%0, %1, %2, %3}};"
      : "+f"({c[0]}), "+f"({c[1]}), "+f"({c[2]}), "+f"({c[3]})
      : "r"({a}.x), "r"({b}.x), "r"({a}.y), "r"({b}.y), "r"(w{low}), "r"(w{high}));"""

_SCORES = """\
template <typename... Sums>
static __device__ __forceinline__ void {name}(const uint16_t *row, const uint16_t *next, {vectors}, Sums &...sums) {{
  {name}_columns(row, (int)(next - row), {words}, sums...);
}}"""

_VALUES = """\
static __device__ __forceinline__ uint32_t {name}_pair(float low, float high) {{
  uint32_t r;
  asm("cvt.rn.{type}x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}}
template <typename... Sums>
static __device__ __forceinline__ void {name}(const uint16_t *row, {shares}, Sums &...sums) {{
  {name}_columns(row, 16, {words}, sums...);
}}"""

_POWER = """\
static __device__ __forceinline__ void power_of_two_16(float &x) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
}"""

_RESCALED = """\
template <typename... More>
static __device__ __forceinline__ void {name}_columns({factors}, {sums}, More &...more) {{
  {products}
  if constexpr (sizeof...(more) > 0) {name}_columns({given}, more...);
}}
template <typename... Sums>
static __device__ __forceinline__ void {name}({factors}, Sums &...sums) {{
  if (__any_sync(0xffffffffu, {test})) {name}_columns({given}, sums...);
}}"""

_GREATER = """\
static __device__ __forceinline__ void greater_16(float &x, const float &y) {
  x = fmaxf(x, y);
}"""


def _in_registers(name: str, types: str, tiles: int, *, turned: bool) -> str:
    """The function of products of tiles in registers by 16 columns after the other."""
    count, sums = range(tiles), [[[f"c{i}{j}{c}" for c in range(4)] for j in range(2)] for i in range(tiles)]
    products = [
        _PRODUCT.format(types=types, c=sums[i][j], a=f"a{i}", b=f"b{i}", low=2 * j, high=2 * j + 1)
        for j in range(2)
        for i in count
    ]
    return _ROWS.format(
        name=name,
        turned=".trans" * turned,
        tiles=", ".join(f"uint2 a{i}, uint2 b{i}" for i in count),
        sums=", ".join(f"float &{c}" for tile in sums for half in tile for c in half),
        products="\n".join(products),
        given=", ".join(f"a{i}, b{i}" for i in count),
    )


def _rescaled(tiles: int) -> dict[str, str]:
    """The function that multiplies the sums of a thread's rows."""
    name, factors = "rescaled_16" + "_twice" * (tiles == 2), [f"f{i}" for i in range(2 * tiles)]
    sums = [(i, j, c) for i in range(tiles) for j in range(2) for c in range(4)]
    text = _RESCALED.format(
        name=name,
        factors=", ".join(f"const float &{f}" for f in factors),
        sums=", ".join(f"float &c{i}{j}{c}" for i, j, c in sums),
        products=" ".join(f"c{i}{j}{c} *= f{2 * i + c // 2};" for i, j, c in sums),
        given=", ".join(factors),
        test=" || ".join(f"{f} != 1.0f" for f in factors),
    )
    return {name: text}


def _attention(kind: str, tiles: int) -> dict[str, str]:
    """The functions of attention of floats of a kind of 16 bits."""
    types, end = f"f32.{kind}.{kind}.f32", "_twice" * (tiles == 2)
    scores, values = f"scores_{kind}{end}", f"values_{kind}{end}"
    vectors = ", ".join(f"const ushort4 &a{i}, const ushort4 &b{i}" for i in range(tiles))
    words = ", ".join(f"(const uint2 &)a{i}, (const uint2 &)b{i}" for i in range(tiles))
    shares = ", ".join(f"float &p{i}{c}" for i in range(tiles) for c in range(8))
    pair = "make_uint2({name}_pair(p{i}{x}, p{i}{y}), {name}_pair(p{i}{z}, p{i}{w}))".format
    rows = [(i, 4 * half) for i in range(tiles) for half in range(2)]
    pairs = (pair(name=values, i=i, x=first, y=first + 1, z=first + 2, w=first + 3) for i, first in rows)
    return {
        scores: _in_registers(scores, types, tiles, turned=False)
        + _SCORES.format(name=scores, vectors=vectors, words=words),
        values: _in_registers(values, types, tiles, turned=True)
        + _VALUES.format(name=values, type=kind, shares=shares, words=", ".join(pairs)),
    }


def _of_words(name: str, element: str, column: str, total: str, shape: str, types: str) -> str:
    """The function of an instruction whose operands are eight bytes of each row and column."""
    register = "f" if total == "float" else "r"
    words = {"name": name, "element": element, "column": column, "sum": total, "register": register}
    return _WORDS.format(**words, shape=shape, types=types)


DEVICE_INSTRUCTIONS = {
    "cuda": {
        "mma_f16": _CUDA,
        "mma_f16_k16": _of_words("mma_f16_k16", "uint16_t", "uint16_t", "float", "m16n8k16", "f32.f16.f16.f32"),
        "mma_bf16_k16": _of_words("mma_bf16_k16", "uint16_t", "uint16_t", "float", "m16n8k16", "f32.bf16.bf16.f32"),
        "mma_i8_k32": _of_words("mma_i8_k32", "int32_t", "int32_t", "int32_t", "m16n8k32", "s32.s8.s8.s32"),
        "mma_u8_k32": _of_words("mma_u8_k32", "int32_t", "int32_t", "int32_t", "m16n8k32", "s32.u8.s8.s32"),
        **{f"tile_{kind}": _TILE.format(name=f"tile_{kind}") for kind in ("f16", "bf16")},
        **{name: text for kind in ("f16", "bf16") for n in (1, 2) for name, text in _attention(kind, n).items()},
        **_rescaled(1),
        **_rescaled(2),
        "power_of_two_16": _POWER,
        "greater_16": _GREATER,
    }
}
