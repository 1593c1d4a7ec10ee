"""Depthwise convolution for machines of many threads: a work item for each channel of a tile of positions.

The channels of a block lie side by side and are neighbouring work items, so that neighbouring threads read neighbouring
elements.  Taps beside the image are left out by tests, so that images need no halo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, lanes_of
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.depthwise import DepthwiseTile, reach
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.storage_types import NARROW, loaded, stored
from tenon.machine.kernels.tiled import Ends, store


@lru_cache(maxsize=512)
def depthwise_items(s: Conv, tile: DepthwiseTile) -> Kernel:
    """Parameters: x, weights as ``depthwise.pack_blocks`` returns them for the block of y, bias (padded), mask when
    ``clear``, operands, y.

    ``s.depthwise`` must hold, and blocks of x and y be the same.
    """
    fours = channels_of(s) == FOUR
    owner = "four channels" if fours else "a channel"
    k = Builder(name_of(s), f"Depthwise: {described(s)}; {tile.rows} x {tile.cols} positions of {owner} in an item")
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    w = k.param("w", s.y.blocks, *s.kernel, s.y.block, dtype=s.weights)
    ends = Ends.params(k, s)
    down, across = -(-s.extent[0] // tile.rows), -(-s.extent[1] // tile.cols)
    with (
        k.loop("n", s.y.n, kind="parallel") as n,
        k.loop("b", s.y.blocks, kind="parallel") as b,
        k.loop("i", down, kind="parallel") as i,
        k.loop("j", across, kind="parallel") as j,
        k.loop("c", 1 if fours else s.y.block, kind="parallel") as c,
    ):
        of_channels = _of_four_channels if fours else _of_a_channel
        of_channels(k, s, tile, (x, w, ends), (n, b, c), (i * tile.rows, j * tile.cols))
    return k.done()


_Operands = tuple[Tensor, Tensor, Ends]


def _of_a_channel(
    k: Builder,
    s: Conv,
    tile: DepthwiseTile,
    operands: _Operands,
    place: tuple[Index, Index, Index],
    first: tuple[Index, Index],
) -> None:
    """The results of a tile for one channel."""
    (x, w, ends), (n, b, c), (top, left) = operands, place, first
    acc = k.local("a", tile.rows, tile.cols)
    for p, q in product(range(tile.rows), range(tile.cols)):
        acc[p, q] = 0.0

    def value(row: Index, col: Index) -> Expr:
        facts, at = source(s, tile, (n, b, c), (row, col))
        return guarded(facts, loaded(x[at]), 0.0)

    for (p, q), (ky, kx), v in products(k, s, tile, (top, left), value):
        acc[p, q] = acc[p, q] + v * loaded(w[b, ky, kx, c])
    for p, q in product(range(tile.rows), range(tile.cols)):
        row, col = top + p, left + q
        with k.when(*past_last(s, tile, row, col)):
            at = n, row * s.y_step[0] + s.y_start[0], col * s.y_step[1] + s.y_start[1]
            result = ends.result(s, at, b * s.y.block + c, acc[p, q])
            ends.y[n, b, at[1] + s.y.top, at[2] + s.y.left, c] = stored(result, s.y.dtype)


def channels_of(s: Conv) -> int:
    """The channels of an item: floats of 16 bits are loaded and stored by whole words."""
    narrow = s.x.dtype in NARROW and s.y.dtype in NARROW
    return FOUR if narrow and s.x.block == s.y.block == FOUR else 1


def _of_four_channels(
    k: Builder,
    s: Conv,
    tile: DepthwiseTile,
    operands: _Operands,
    place: tuple[Index, Index, Index],
    first: tuple[Index, Index],
) -> None:
    """The results of a tile for the four channels of a block."""
    (x, w, ends), (n, b, _), (top, left) = operands, place, first
    acc = k.local("a", tile.rows, tile.cols, FOUR)
    for p, q, lane in product(range(tile.rows), range(tile.cols), range(FOUR)):
        acc[p, q, lane] = 0.0

    def value(row: Index, col: Index) -> Expr:
        facts, at = source(s, tile, (n, b, Index()), (row, col))
        return guarded(facts, loaded(Load(x.buffer, at, Type(s.x.dtype, FOUR))), 0.0)

    for (p, q), (ky, kx), v in products(k, s, tile, first, value):
        weights = k.let("w", loaded(Load(w.buffer, (b, ky, kx, Index()), Type(s.weights, FOUR))))
        for lane, (element, weight) in enumerate(zip(lanes_of(k.let("v", v)), lanes_of(weights), strict=True)):
            acc[p, q, lane] = acc[p, q, lane] + element * weight
    for p, q in product(range(tile.rows), range(tile.cols)):
        row, col = top + p, left + q
        with k.when(*past_last(s, tile, row, col)):
            at = n, row * s.y_step[0] + s.y_start[0], col * s.y_step[1] + s.y_start[1]
            store(k, s, ends, at, b, [acc[p, q, lane] for lane in range(FOUR)])


Product = tuple[tuple[int, int], tuple[Index, Index], Expr]
"""The position in its tile that a product is added to, its tap, and the element of the image."""


Elements = Callable[[Index, Index], Expr]
"""The element of the image at a row and column counted from the start of the padding."""


def products(k: Builder, s: Conv, tile: DepthwiseTile, at: tuple[Index, Index], value: Elements) -> Iterator[Product]:
    """The products of a tile whose first position is ``at``."""
    return (_looped if tile.looped else _unrolled)(k, s, tile, at, value)


def _unrolled(k: Builder, s: Conv, tile: DepthwiseTile, at: tuple[Index, Index], value: Elements) -> Iterator[Product]:
    """Each element of a tile's receptive field is loaded once."""
    for (row, down), (col, across) in product(reach(s, 0, tile.rows), reach(s, 1, tile.cols)):
        v = k.let("v", value(at[0] * s.stride[0] + row, at[1] * s.stride[1] + col))
        for (p, ky), (q, kx) in product(down, across):
            yield (p, q), (Index((), ky), Index((), kx)), v


def _looped(k: Builder, s: Conv, tile: DepthwiseTile, at: tuple[Index, Index], value: Elements) -> Iterator[Product]:
    """Loops over taps."""
    with k.loop("ky", s.kernel[0]) as ky, k.loop("kx", s.kernel[1]) as kx:
        for p, q in product(range(tile.rows), range(tile.cols)):
            row = (at[0] + p) * s.stride[0] + ky * s.dilation[0]
            yield (p, q), (ky, kx), value(row, (at[1] + q) * s.stride[1] + kx * s.dilation[1])


def source(
    s: Conv, tile: DepthwiseTile, at: tuple[Index, Index, Index], padded: tuple[Index, Index]
) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    """Facts that are negative beside the image, and where an element lies, at a row and column counted from the start
    of the padding."""
    (n, b, c), (row, col) = at, (padded[0] - s.top, padded[1] - s.left)
    facts = [
        fact
        for axis, (place, size, own) in enumerate(((row, s.x.h, tile.rows), (col, s.x.w, tile.cols)))
        for fact in _beside(s, axis, place, size, own)
    ]
    return tuple(facts), (n, b, row + s.x.top, col + s.x.left, c)


def _beside(s: Conv, axis: int, place: Index, size: int, own: int) -> list[Index]:
    """Facts that are negative before or past the image; tiles of ``own`` positions may reach past the last one."""
    before, past = s.border(axis)
    return [place] * (before > 0) + [size - 1 - place] * (past or s.extent[axis] % own > 0)


def past_last(s: Conv, tile: DepthwiseTile, row: Index, col: Index) -> list[Index]:
    """Facts that are negative past the last position, where tiles reach there."""
    axes = zip(s.extent, (tile.rows, tile.cols), (row, col), strict=True)
    return [extent - 1 - at for extent, own, at in axes if extent % own]


def name_of(s: Conv) -> str:
    """The name of a kernel."""
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"depthwise{size}_{s.y.channels}_{s.y.h}x{s.y.w}"
