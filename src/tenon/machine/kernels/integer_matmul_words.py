"""Products of two matrices of bytes that are both computed at run time, four products at a time.

The right matrices are packed first: four rows are one row of words, a panel for each vector of columns.  Tiles of rows
by vectors of columns are then summed in registers, as in ``kernels.integer_conv``.  With zero points p and q, the sum
of (a - p) * (b - q) is that of a * b, less p times the sum of a column of (b - q), less q times the sum of a row of a:
both are computed once, in passes before, so that zero points may be known at run time only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import add

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, cast, op, reduce_lanes
from tenon.machine.kernels.conv import Conv, GroupRun, OutputTile, runs, tiles
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import FLIP, ONES, word_segments
from tenon.machine.kernels.integer_matmul import IntegerMatMul, Results, batches, zero_points
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import I32, DType

_BYTES = (DType.I8, DType.U8)

LEAST = -(1 << 30)
"""The sum of a column that is not there, before what zero points take off rows."""


def applies(s: IntegerMatMul, machine: Machine) -> bool:
    """Whether the machine multiplies any bytes four at a time, and more than one row shares what is packed."""
    plain = all(dtype in _BYTES for dtype in s.dtypes)
    return plain and bool(machine.fours) and not machine.narrow_fours and s.size[0] > 1


@dataclass(frozen=True)
class Words:
    """The product ``s`` on a machine: which bytes it multiplies, and the sizes of what is packed.

    ``filled``: the columns up to a whole vector are computed, too, of which no sum is more than ``LEAST``.
    ``in_rows``: there is one panel of all columns, which are whole vectors.
    """

    s: IntegerMatMul
    machine: Machine
    filled: bool = False
    in_rows: bool = False

    @property
    def conv(self) -> Conv:
        """One of the products as a convolution of one row of positions, for the choice of tiles."""
        (m, deep, _), n = self.s.size, self.columns
        return Conv(Image(1, deep, 1, m, deep, dtype=self.s.dtypes[0]), Image(1, n, 1, m, n, dtype=self.s.to))

    @property
    def columns(self) -> int:
        """Columns that are computed."""
        return self.panels[1] * self.panels[3] if self.filled else self.s.size[2]

    @property
    def deep(self) -> int:
        """Words of a row."""
        return -(-self.s.size[1] // 4)

    @property
    def ragged(self) -> bool:
        """Whether the last word of a row is not whole, so that rows are copied."""
        return self.s.size[1] % 4 != 0

    @property
    def rows(self) -> tuple[int, int, int]:
        """The left matrices in words."""
        return self.s.matrices[0], self.s.size[0], self.deep

    @property
    def panels(self) -> tuple[int, int, int, int]:
        """The right matrices in words."""
        lanes = self.s.size[2] if self.in_rows else self.machine.lanes
        return self.s.matrices[1], -(-self.s.size[2] // lanes), self.deep, lanes

    @property
    def multiplied(self) -> DType:
        """The type of left bytes as ``Machine.fours`` takes them; right ones are i8."""
        own = self.s.dtypes[0]
        return own if own in self.machine.fours else next(iter(self.machine.fours))

    @property
    def shifts(self) -> tuple[int, int]:
        """Offsets added to left and to right bytes before they are multiplied."""
        left = 0 if self.s.dtypes[0] is self.multiplied else 128 if self.multiplied is DType.U8 else -128
        return left, -128 if self.s.dtypes[1] is DType.U8 else 0

    @property
    def zeros(self) -> tuple[int, int]:
        """The known parts of the zero points of shifted bytes."""
        (p, q), (left, right) = self.s.zeros, self.shifts
        return p + left, q + right

    @property
    def offsets(self) -> tuple[bool, bool]:
        """Whether sums of columns and sums of rows are needed: where the zero point of the other side is not 0."""
        by_column, by_row = (known != 0 or dynamic for known, dynamic in zip(self.zeros, self.s.dynamic, strict=True))
        return by_column, by_row

    def multiply_add(self, acc: Expr, left: Expr, right: Expr) -> Expr:
        return op(self.machine.fours[self.multiplied].operation, acc, left, right)

    def flipped(self, x: Expr) -> Expr:
        """Left words as they are multiplied."""
        return op("xor", x, Const(FLIP, Type(x.type.dtype))) if self.shifts[0] else x

    def whole(self, side: int, zero: Tensor | None) -> Expr:
        """The zero point of shifted bytes, in i32."""
        known = Const(self.zeros[side], Type(I32))
        return known if zero is None else zero[0] + known


@lru_cache(maxsize=256)
def pack_rows(p: Words) -> Kernel:
    """Parameters: a [matrices, M, K], its rows in whole words, the last one filled with what counts as zero."""
    (matrices, m, deep), length, dtype = p.rows, p.s.size[1], p.s.dtypes[0]
    k = Builder(f"rows_{m}x{length}", f"{m} rows of {length} bytes in whole words")
    a = k.param("a", matrices * m, length, dtype=dtype)
    words = k.param("w", matrices * m, 4 * deep, dtype=dtype, out=True)
    (kind,), _ = deal(matrices * m)
    with k.loop("i", matrices * m, kind=kind) as i:
        for start, count, lanes in lane_segments(length, 4 * p.machine.lanes):
            with k.loop("j", count) as j:
                words.vec(lanes)[i, j + start // lanes] = a.vec(lanes)[i, j + start // lanes]
        for byte in range(length, 4 * deep):
            words[i, byte] = Const(-p.shifts[0], Type(dtype))
    return k.done()


@lru_cache(maxsize=256)
def pack_panels(p: Words) -> Kernel:
    """Parameters: b [matrices, K, N], dynamic zero points, its panels of words, and i32 [matrices, panels, lanes] if
    left zero points are not 0: what every sum of a column has less for them."""
    (matrices, panels, deep, wide), (_, length, n) = p.panels, p.s.size
    k = Builder(f"panels_{length}x{n}", f"[{length}, {n}] in words of four rows, and sums of columns")
    b = k.param("b", matrices, length, n, dtype=p.s.dtypes[1])
    zeros = zero_points(k, p.s.dynamic if p.offsets[0] else ())
    words = k.param("w", matrices, panels, deep, wide, dtype=I32, out=True)
    sums = k.param("c", matrices, panels, wide, dtype=I32, out=True) if p.offsets[0] else None
    segments = word_segments(n, wide)
    (outer, inner), _ = deal(matrices, max(count for _, count, _ in segments))
    with k.loop("i", matrices, kind=outer) as i:
        for start, count, lanes in segments:
            with k.loop("j", count, kind=inner) as j:
                _panel(k, p, b, (words, sums), zeros, (i, j + start // lanes), lanes)
        if p.columns > n:
            with k.loop("j", p.columns - n, kind=inner) as j:
                with k.loop("d", deep) as d:
                    words[i, panels - 1, d, j + n % wide] = Const(0, Type(I32))
                if sums is not None:
                    sums[i, panels - 1, j + n % wide] = Const(LEAST, Type(I32))
    return k.done()


def _panel(
    k: Builder,
    p: Words,
    b: Tensor,
    out: tuple[Tensor, Tensor | None],
    zeros: Sequence[Tensor | None],
    at: tuple[Index, Index],
    lanes: int,
) -> None:
    """Pack ``lanes`` columns; ``at`` is the matrix and the vector of columns."""
    (matrix, col), (words, sums), length, wide = at, out, p.s.size[1], p.panels[-1]
    panel, place = col * lanes // wide, col * lanes % wide // lanes
    total = k.local("s", 1, dtype=I32, lanes=lanes)
    total[0] = 0

    def word(row: Index | int, rows: int) -> None:
        made = k.let("word", word_of_rows([b.vec(lanes)[matrix, row * 4 + i, col] for i in range(rows)], p.shifts[1]))
        words.vec(lanes)[matrix, panel, row, place] = made
        if sums is not None:
            total[0] = p.multiply_add(total[0], broadcast(Const(ONES, Type(I32)), lanes), made)

    with k.loop("d", length // 4) as d:
        word(d, 4)
    if p.ragged:
        word(length // 4, length % 4)
    if sums is not None:
        known = p.whole(1, zeros[1])
        sums.vec(lanes)[matrix, panel, place] = (total[0] - known * length) * (
            Const(0, Type(I32)) - p.whole(0, zeros[0])
        )


def word_of_rows(rows: Sequence[Expr], shift: int) -> Expr:
    """Vectors of bytes, one from each row, as words; bytes of rows that are not there are 0."""
    made: Expr | None = None
    for i, row in enumerate(rows):
        byte = cast(row, I32)
        byte = byte if i == 3 else op("and", byte, 255)
        byte = byte << (8 * i)
        made = byte if made is None else op("or", made, byte)
    assert made is not None
    flips = sum(128 << (8 * i) for i in range(len(rows)))
    return op("xor", made, flips - (1 << 32) if flips >> 31 else flips) if shift else made


@lru_cache(maxsize=256)
def row_sums(p: Words) -> Kernel:
    """Parameters: the left matrices in words, the right zero point if it is dynamic, i32 [matrices, M]: what every sum
    of a row has less for right zero points."""
    matrices, m, deep = p.rows
    k = Builder(f"row_sums_{m}x{4 * deep}", f"sums of {m} rows of {4 * deep} bytes")
    a = k.param("a", matrices * m, deep, dtype=DType.Q8)
    (zero,) = zero_points(k, p.s.dynamic[1:])
    sums = k.param("r", matrices * m, dtype=I32, out=True)
    (kind,), _ = deal(matrices * m)
    with k.loop("i", matrices * m, kind=kind) as i:

        def words(at: Index, lanes: int) -> Expr:
            return a.vec(lanes)[i, at // lanes]

        sums[i] = less_of_row(k, p, words, zero)
    return k.done()


def less_of_row(k: Builder, p: Words, words: Callable[[Index, int], Expr], zero: Tensor | None) -> Expr:
    """The amount by which right zero points lower every sum of a row, whose ``words(at, lanes)`` are given."""
    total = k.local("s", 1, dtype=I32)
    total[0] = 0
    for start, count, lanes in word_segments(p.deep, p.machine.lanes):
        acc = k.local("a", 1, dtype=I32, lanes=lanes)
        acc[0] = 0
        with k.loop("d", count) as d:
            left = p.flipped(words(d * lanes + start, lanes))
            acc[0] = p.multiply_add(acc[0], left, broadcast(Const(ONES, Type(I32)), lanes))
        total[0] = total[0] + reduce_lanes("add", acc[0])
    return total[0] * (Const(0, Type(I32)) - p.whole(1, zero))


@dataclass(frozen=True, eq=False)
class ProductRows:
    """The operands and results that all tiles of a product share.

    ``word(row, number)`` is one of the left matrix, ``panels`` are those of the right one; zero points add ``columns``
    and ``less(row)`` to sums, which ``store(row, column in elements, lanes, sums)`` takes.
    """

    k: Builder
    p: Words
    word: Callable[[Index, Index], Expr]
    panels: Tensor
    flips: Tensor | None
    columns: Tensor | None
    less: Callable[[Index], Expr] | None
    store: Callable[[Index, Index, int, Expr], None]


@lru_cache(maxsize=256)
def product(p: Words, tile: OutputTile) -> Kernel:
    """Parameters: the left matrices in words, the panels, ``integer_conv.flips`` where left bytes are shifted, sums of
    columns and of rows where they are needed, operands, y."""
    s, (m, deep, n) = p.s, p.s.size
    k = Builder(f"integer_matmul_{m}x{deep}x{n}", f"[{m}, {deep}] times [{deep}, {n}], in integers")
    a = k.param("a", *p.rows, dtype=DType.Q8)
    b, flips, columns = right_params(k, p)
    sums = k.param("s", *p.rows[:2], dtype=I32) if p.offsets[1] else None
    results = Results.of(k, s)
    with batches(k, s) as (at, _):

        def word(row: Index, number: Index) -> Expr:
            return a[at[0], row, number]

        def less(row: Index) -> Expr:
            assert sums is not None
            return sums[at[0], row]

        def store(row: Index, column: Index, lanes: int, total: Expr) -> None:
            results.store(at[2] * m + row, column, lanes, total)

        rows = ProductRows(k, p, word, b, flips, columns, None if sums is None else less, store)
        for r in runs(p.conv, p.machine, tile.vecs):
            for o, _image, _top, left, _height, width in tiles(k, r.iterations, (1, m), tile, p.machine.threads):
                with k.outline(f"{width}x{r.vecs}v{r.lanes}", f"{width} rows by {r.width} columns"):
                    product_tile(rows, r, at[1], (o * r.width + r.start, left), width)
    return k.done()


def right_params(k: Builder, p: Words) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Declares the panels of the right matrices, ``integer_conv.flips`` where left bytes are shifted, and sums of
    columns where they are needed."""
    b = k.param("b", *p.panels, dtype=I32)
    flips = k.param("f", p.machine.lanes, dtype=DType.Q8) if p.shifts[0] else None
    return b, flips, k.param("c", p.panels[0], p.panels[1], p.panels[3], dtype=I32) if p.offsets[0] else None


def product_tile(t: ProductRows, r: GroupRun, matrix: Index, place: tuple[Index, Index], height: int) -> None:
    """Sums of ``height`` rows by a run of columns of a right ``matrix``; ``place`` is the first column, in elements,
    and the first row."""
    k, p, (first, top), wide = t.k, t.p, place, t.p.panels[-1]
    acc = k.local("a", height, r.vecs, dtype=I32, lanes=r.lanes)

    def column(v: Index | int) -> tuple[Index, Index]:
        col = first + v * r.lanes
        return col // wide, col % wide // r.lanes

    with k.unroll("q", height) as i:
        less = None if t.less is None else k.let("z", broadcast(t.less(top + i), r.lanes))
        with k.unroll("t", r.vecs) as v:
            panel, lane = column(v)
            start = None if t.columns is None else t.columns.vec(r.lanes)[matrix, panel, lane]
            terms = [term for term in (start, less) if term is not None]
            acc[i, v] = reduce(add, terms) if terms else 0
    flip = None if t.flips is None else k.let("flip", t.flips.vec(r.lanes)[0])
    unroll = next(u for u in range(min(p.machine.unroll, p.deep), 0, -1) if p.deep % u == 0)
    with k.loop("d", p.deep // unroll) as outer, k.unroll("u", unroll) as u:
        d = outer * unroll + u
        places = [column(v) for v in range(r.vecs)]
        right = [
            k.let(f"w{v}", t.panels.vec(r.lanes)[matrix, panel, d, lane]) for v, (panel, lane) in enumerate(places)
        ]
        with k.unroll("q", height) as i:
            word = broadcast(t.word(top + i, d), r.lanes)
            left = k.let("v", word if flip is None else op("xor", word, flip))
            for vec, each in enumerate(right):
                acc[i, vec] = p.multiply_add(acc[i, vec], left, each)
    with k.unroll("q", height) as i, k.unroll("t", r.vecs) as v:
        t.store(top + i, first + v * r.lanes, r.lanes, acc[i, v])
