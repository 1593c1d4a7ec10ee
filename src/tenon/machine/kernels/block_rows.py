"""Rows of weights in blocks as floats, by index: the embeddings of tokens, read as products want them to lie."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, op
from tenon.machine.kernels.block_formats import FORMATS, GROUP
from tenon.machine.kernels.block_sums import layer_packing
from tenon.machine.kernels.indexing import bind_position
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType


@lru_cache(maxsize=256)
def block_rows(format: str, rows: int, columns: int, count: int, index_dtype: DType, machine: Machine) -> Kernel:
    """y[i] = row ``indices[i]`` of ``rows``, each product and sum rounded to f32.  Parameters: indices [count], the
    arrays of ``BlockPacking.pack``, y f32 [count, columns]."""
    f, p = FORMATS[format], layer_packing(format, machine)
    groups, panels, lanes = columns // GROUP, p.panels(rows), p.lanes
    k = Builder(f"block_rows_{format}_{count}x{columns}", f"{count} of {rows} rows of weights in blocks ({format})")
    indices = k.param("indices", count, dtype=index_dtype)
    codes = k.param("w", panels, groups, p.stored_words, lanes * 4, dtype=DType.U8)
    fine_type = DType.I8 if f.signed_fine else DType.U8
    scale = k.param("d", panels, columns // f.span, lanes, dtype=F32 if f.wide else DType.F16)
    zero = k.param("z", panels, columns // f.span, lanes, dtype=p.zero_type) if f.zeros else None
    shift = k.param("m", panels, columns // f.span, lanes, dtype=DType.F16) if f.shifts else None
    fine = k.param("f", panels, columns // f.fine, lanes, dtype=fine_type) if f.fine else None
    fine_shift = k.param("n", panels, columns // f.fine, lanes, dtype=fine_type) if f.fine_shifts else None
    y = k.param("y", count, columns, out=True)

    def element(part: Tensor, panel: Index, at: Index, lane: Index) -> Expr:
        return cast(part[panel, at, lane], F32)

    with k.loop("i", count, kind="parallel") as i, bind_position(k, indices[i], rows) as row:
        panel, lane = row // lanes, row % lanes
        with k.loop("g", groups) as g:
            block = g // (f.span // GROUP)
            for word in range(8):
                with k.loop("b", 4) as byte:
                    code = _code(codes, (panel, g), f.bits, word, lane * 4 + byte)
                    value = cast(code - p.offset, F32)
                    if p.times > 1:
                        value = cast(op("xor", code, 8) - 8, F32)
                    if p.signed and f.bits == 8:
                        value = cast(cast(cast(code, DType.I8), I32), F32)
                    if zero is not None:
                        value = value - element(zero, panel, block, lane)  # integers, which are exact
                    if fine is not None:
                        part = g if f.fine == GROUP else g * 2 + word // 4
                        value = value * element(fine, panel, part, lane)  # integers, which are exact
                    value = op("mul_rounded", value, element(scale, panel, block, lane))
                    if shift is not None and fine_shift is not None:
                        less = element(fine_shift, panel, g if f.fine == GROUP else g * 2 + word // 4, lane)
                        value = value - op("mul_rounded", less, element(shift, panel, block, lane))
                    elif shift is not None:
                        value = value + element(shift, panel, block, lane)
                    y[i, g * GROUP + word * 4 + byte] = value
    return k.done()


def _code(codes: Tensor, at: tuple[Index, Index], bits: int, word: int, place: Index) -> Expr:
    """The code of a byte of a word of a group, in i32."""

    def stored(number: int) -> Expr:
        return cast(codes[(*at, number, place)], I32)

    if bits == 8:
        return stored(word)
    if bits == 2:
        return op("and", stored(word // 4) >> (word % 4 * 2), 3)
    code = op("and", stored(word // 2) >> (word % 2 * 4), 15)
    if bits == 4:
        return code
    width = bits - 4
    further = stored(4 + word // (8 // width)) >> (word % (8 // width) * width)
    return op("or", code, op("and", further, (1 << width) - 1) << 4)
