"""Products of two matrices of bytes that are both computed at run time, in work groups.

As in ``integer_matmul_words`` four rows of a right matrix are packed to a row of words, and what zero points take off
sums is computed before; the words are multiplied by tiles in shared memory (``integer_tiled``).
"""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Const, Kernel, Type
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import group_context, in_steps
from tenon.machine.kernels.group_tiles import GroupTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import ONES
from tenon.machine.kernels.integer_matmul import Results, zero_points
from tenon.machine.kernels.integer_matmul_words import Words, word_of_rows
from tenon.machine.kernels.integer_tiled import multiply
from tenon.network.graph.types import I32


def in_words(p: Words) -> Conv:
    """The products as convolutions of rows of words by matrices of words."""
    m, _, n = p.s.size
    x = Image(p.s.matrices[0], p.deep, 1, m, p.deep, dtype=I32)
    y = Image(p.s.products, n, 1, m, n, dtype=p.s.to)
    return Conv(x, y, bias=False, packed=False, batch=p.s.batch or ((1, 0, 0),), weights=I32)


@lru_cache(maxsize=256)
def pack_words(p: Words) -> Kernel:
    """Parameters: b [matrices, K, N], i32 [matrices, K / 4, N]: words of four rows."""
    (_, length, n), matrices = p.s.size, p.s.matrices[1]
    k = Builder(f"words_{length}x{n}", f"[{length}, {n}] in words of four rows")
    b = k.param("b", matrices, length, n, dtype=p.s.dtypes[1])
    words = k.param("w", matrices, p.deep, n, dtype=I32, out=True)
    with k.loop("i", matrices, kind="parallel") as i:
        for first, count, rows in ((0, length // 4, 4), (length // 4, int(p.ragged), length % 4)):
            if count:
                with k.loop("d", count, kind="parallel") as d, k.loop("j", n, kind="parallel") as j:
                    row = d + first
                    words[i, row, j] = word_of_rows([b[i, row * 4 + r, j] for r in range(rows)], p.shifts[1])
    return k.done()


@lru_cache(maxsize=256)
def pack_rows(p: Words) -> Kernel:
    """Parameters: a [matrices * M, K], i32 [matrices * M, K / 4, rounded up]: its rows in words, zeros past the last
    byte."""
    rows, length = p.s.matrices[0] * p.s.size[0], p.s.size[1]
    k = Builder(f"rows_{p.s.size[0]}x{length}", f"{rows} rows of {length} bytes in whole words")
    a = k.param("a", rows, length, dtype=p.s.dtypes[0])
    words = k.param("w", rows, p.deep, dtype=I32, out=True)
    with k.loop("i", rows, kind="parallel") as i:
        for first, count, bytes in ((0, length // 4, 4), (length // 4, int(p.ragged), length % 4)):
            if count:
                with k.loop("d", count, kind="parallel") as d:
                    word = d + first
                    words[i, word] = word_of_rows([a[i, word * 4 + byte] for byte in range(bytes)], 0)
    return k.done()


@lru_cache(maxsize=256)
def column_sums(p: Words) -> Kernel:
    """Parameters: the right matrices in words, dynamic zero points, i32 [matrices, N]: what every sum of a column has
    less for left zero points."""
    (_, length, n), matrices = p.s.size, p.s.matrices[1]
    k = Builder(f"column_sums_{length}x{n}", f"sums of {n} columns of {length} bytes")
    words = k.param("w", matrices, p.deep, n, dtype=I32)
    zeros = zero_points(k, p.s.dynamic)
    sums = k.param("c", matrices, n, dtype=I32, out=True)
    with k.loop("i", matrices, kind="parallel") as i, k.loop("j", n, kind="parallel") as j:
        total = k.local("s", 1, dtype=I32)
        total[0] = 0
        with k.loop("d", p.deep) as d:
            total[0] = p.multiply_add(total[0], Const(ONES, Type(I32)), words[i, d, j])
        centred = total[0] - p.whole(1, zeros[1]) * length
        sums[i, j] = centred * (Const(0, Type(I32)) - p.whole(0, zeros[0]))
    return k.done()


@lru_cache(maxsize=256)
def product(p: Words, tile: GroupTile) -> Kernel:
    """Parameters: the left and the right matrices in words, sums of columns and of rows where they are needed,
    operands, y."""
    s, c, (m, length, n) = p.s, in_words(p), p.s.size
    about = f"[{m}, {length}] times [{length}, {n}], in integers; {tile.m} x {tile.n} of a block"
    k = Builder(f"integer_matmul_{m}x{length}x{n}", about)
    a = k.param("a", *c.x.shape, dtype=I32)
    b = k.param("b", s.matrices[1], p.deep, n, dtype=I32)
    columns = k.param("c", s.matrices[1], n, dtype=I32) if p.offsets[0] else None
    sums = k.param("s", *p.rows[:2], dtype=I32) if p.offsets[1] else None
    results = Results.of(k, s)
    with group_context(k, c, tile, a, b) as g:
        acc = k.local("a", tile.rows, tile.cols, dtype=I32)
        with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols) as j:
            acc[i, j] = 0
        operation = p.machine.fours[p.multiplied].operation
        in_steps(g, lambda stage: multiply(g, acc, None, stage, operation))
        assert g.images is not None
        y, left, right = g.images
        with k.unroll("i", tile.rows) as i, k.unroll("q", tile.cols // 4) as q, k.unroll("j", 4) as j:
            (_, (_, _, row), within), column = g.at(i), g.quad(q) * 4 + j
            with k.when(*within, *([n - 1 - column] if n % tile.n else [])):
                total = acc[i, q * 4 + j]
                total = total if columns is None else total + columns[right, column]
                total = total if sums is None else total + sums[left, row]
                results.store(y * m + row, column, 1, total)
    return k.done()
