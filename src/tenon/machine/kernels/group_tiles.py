"""Tiles of a convolution or matrix product in work groups: sizes, steps along the products, positions of results.

The elements of an image are f32, floats of 16 bits, or words of four bytes (``in_words``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.image import Image
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, Layout


@dataclass(frozen=True)
class GroupTile:
    """``m`` positions by ``n`` channels of a block, ``rows x cols`` of a thread, ``k`` products in a step; the products
    of a result in ``splits`` parts.  ``cols`` is a multiple of 4."""

    m: int
    n: int
    k: int
    rows: int
    cols: int
    splits: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.m // self.rows * (self.n // self.cols)

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.rows * self.cols

    @property
    def loads(self) -> float:
        """Loads of shared memory of a thread in a step, four elements each."""
        return self.k * (self.rows + self.cols) / 4

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 2 * 4 * self.k * (self.m + self.n)


@dataclass(frozen=True)
class Depth:
    """How the products of a result are cut into steps.  A step has ``groups`` groups of ``wide`` neighbouring elements
    of a position, all of one tap in ``chunks`` steps, or those of ``together`` taps, each with equally many groups; or,
    where ``flat``, of all pairs of an element and a tap."""

    wide: int
    groups: int
    chunks: int
    steps: int
    flat: bool
    together: int = 1

    @property
    def each(self) -> int:
        """Groups of a tap in a step."""
        return self.groups // self.together

    @classmethod
    def of(cls, s: Conv, k: int) -> Depth:
        """For steps of ``k`` products."""
        lanes, units = wide(s), _units(s)
        groups = k // lanes
        together = _together(units, groups, s.taps) if lanes > 1 or (s.x.dtype is I32 and units > 1) else 1
        if together > 1:
            return cls(lanes, groups, 1, -(-s.taps // together), flat=False, together=together)
        if lanes == 1 and not (s.x.dtype is I32 and (units % k == 0 or units >= 2 * k)):
            return cls(1, k, 1, -(-s.taps * s.x.channels // k), flat=True)
        chunks = -(-units // groups)
        return cls(lanes, groups, chunks, chunks * s.taps, flat=False)


def _together(units: int, groups: int, taps: int) -> int:
    """Taps of a step of so many groups, where a position has ``units`` of them: as many as leave no group without a
    tap."""
    most = groups // units if units < groups else 1
    return max(each for each in range(1, most + 1) if groups % each == 0) if taps > 1 else 1


def wide(s: Conv) -> int:
    """Elements that are copied at once: those of a block, four of a row of a matrix, two words, or one."""
    by_fours = s.x.block % 4 == 0 and (s.x.blocks == 1 or s.x.block == 4)
    return 4 if by_fours else 2 if s.two_columns else 1


def _units(s: Conv) -> int:
    """Groups of ``wide`` elements of a position, those that fill the last block included."""
    return s.x.blocks * s.x.block // wide(s)


def in_words(s: Conv) -> Conv:
    """The same of words of four neighbouring channels, of an image of bytes in blocks of whole words; its weights are
    words as well."""
    i = s.x
    x = Image(i.n, i.blocks * i.block // 4, i.h, i.w, i.block // 4, i.top, i.bottom, i.left, i.right, I32)
    return replace(s, x=x, weights=I32)


def in_pairs(s: Conv) -> Conv:
    """The same of pairs of neighbouring columns, which are copied at once, where a position is one word and taps begin
    at even columns of what lies in memory."""
    x = s.x
    beside = any(before or past for before, past in map(s.border, (0, 1)))
    even = not any(n % 2 for n in (s.stride[1], s.kernel[1], x.left, x.left + x.w + x.right))
    if x.dtype is not I32 or x.blocks * x.block > 1 or s.taps == 1 or s.dilation[1] > 1 or beside or not even:
        return s
    columns = x.w // 2
    right = (x.left + x.w + x.right) // 2 - x.left // 2 - columns
    pairs = replace(x, channels=2, block=2, w=columns, left=x.left // 2, right=right)
    kernel, stride = ((rows, across // 2) for rows, across in (s.kernel, s.stride))
    return replace(s, x=pairs, kernel=kernel, stride=stride, two_columns=True)


def is_narrow(s: Conv) -> bool:
    """Whether positions of the image of a layer of several taps are one group of four elements, as in first layers:
    its halo lies in memory."""
    return s.x.blocks == 1 and s.x.block == 4 and s.groups == 1 and s.taps > 1


def in_rows_of_taps(s: Conv) -> Conv:
    """The same with columns of zero weights behind the kernel, up to a power of two, where a position is one group of
    four elements and few are added: threads then find a tap's row and column without a division.  What lies beside the
    image is part of it where it has a halo."""
    width = 1 << (s.kernel[1] - 1).bit_length()
    if not is_narrow(s):
        return s
    s = replace(s, kernel=(s.kernel[0], width)) if 3 * width <= 4 * s.kernel[1] else s
    x, sides = s.x, [around(s, axis) for axis in (0, 1)]
    has = (x.top, x.bottom), (x.left, x.right)
    if any(have < need for pair, needs in zip(has, sides, strict=True) for have, need in zip(pair, needs, strict=True)):
        return s
    (top, bottom), (left, right) = sides
    rows, cols = x.h + top + bottom, x.w + left + right
    whole = replace(
        x,
        h=rows,
        w=cols,
        top=x.top - top,
        bottom=x.bottom - bottom,
        left=x.left - left,
        right=x.right - right,
    )
    return replace(s, x=whole, top=0, left=0)


def around(s: Conv, axis: int) -> tuple[int, int]:
    """How many rows, or columns, taps read before the image and past its end."""
    before, size = ((s.top, s.x.h), (s.left, s.x.w))[axis]
    last = (s.extent[axis] - 1) * s.stride[axis] + (s.kernel[axis] - 1) * s.dilation[axis]
    return before, max(0, last - before - size + 1)


def with_halo(s: Conv, layout: Layout) -> Layout:
    """The layout of a narrow image of two axes, ``layout``, with all that taps read of it, and columns of a multiple of
    four, so that four are stored at once."""
    (top, bottom), (left, right) = (around(in_rows_of_taps(s), axis) for axis in (0, 1))
    sides = ((top, bottom), (left, right + -(left + s.x.w + right) % 4))
    return replace(layout, halo=sides[2 - len(layout.halo) :])


def divides(s: Conv, depth: Depth) -> bool:
    """Whether each element that is copied has a tap of its own, whose row and column a thread finds by divisions."""
    return depth.flat and bool(s.kernel[1] & (s.kernel[1] - 1))


def batched(s: Conv) -> bool:
    """Whether each image has blocks of its own, because it has weights of its own or comes from another image."""
    return not s.packed or s.batches != ((s.y.n, 1, 1),)


def matrices(s: Conv) -> int:
    """How many products have blocks of their own."""
    return s.y.n if batched(s) else 1


def pack(weights: Array, s: Conv, tile: GroupTile, fill: int = 0) -> Array:
    """[blocks of channels][steps][k * n] from [channels out, elements in, kh, kw], ``fill`` past the last of each, and
    in columns that ``in_rows_of_taps`` adds; of pairs of columns (``in_pairs``) from those of the layer."""
    pairs = s.x.channels // weights.shape[1]
    more = pairs * s.kernel[1] - weights.shape[3]
    weights = np.pad(weights, ((0, 0), (0, 0), (0, 0), (0, more)), constant_values=fill)
    out, _, rows, _ = weights.shape
    weights = np.moveaxis(weights.reshape(out, -1, rows, s.kernel[1], pairs), 4, 1).reshape(out, -1, *s.kernel)
    depth, out = Depth.of(s, tile.k), -(-s.padded // tile.n) * tile.n
    if depth.flat:
        flat = np.full((depth.steps * tile.k, out), fill, weights.dtype)
        flat[: s.taps * s.x.channels, : s.y.channels] = weights.reshape(s.y.channels, -1).T
    else:
        taps, each = depth.steps // depth.chunks * depth.together, depth.chunks * tile.k // depth.together
        whole = np.full((taps, each, out), fill, weights.dtype)
        ordered = weights.transpose(2, 3, 1, 0).reshape(s.taps, s.x.channels, -1)
        whole[: s.taps, : s.x.channels, : s.y.channels] = ordered
        flat = whole.reshape(-1, out)
    split = flat.reshape(depth.steps, tile.k, out // tile.n, tile.n)
    return split.transpose(2, 0, 1, 3).reshape(out // tile.n, depth.steps, -1).astype(s.weights.numpy, order="C")


@contextmanager
def image_blocks(k: Builder, s: Conv) -> Iterator[tuple[Index, Index, Index] | None]:
    """Loops over blocks of images of y, x and weights; None where positions of all images are one row."""
    if not batched(s):
        yield None
        return
    with ExitStack() as stack:
        y = x = w = Index()
        for extent, x_step, w_step in s.batches:
            i = stack.enter_context(k.loop("n", extent, kind="block"))
            y, x, w = y * extent + i, x + i * x_step, w + i * w_step
        yield y, x, w


def positions(s: Conv) -> int:
    """Positions of the output that blocks are cut from: of one image, or of all."""
    return (1 if batched(s) else s.y.n) * s.extent[0] * s.extent[1]


def sums_shape(s: Conv, tile: GroupTile) -> tuple[int, int, int, int]:
    """The sums of a product in parts."""
    return tile.splits, -(-s.padded // 4), positions(s), 4


def place(s: Conv, at: Index, m: int) -> tuple[Index, Index, Index, list[Index]]:
    """The image, row and column of a position, and what is negative past the last one, where blocks of ``m`` reach
    there."""
    (height, width), total, several = s.extent, positions(s), s.y.n > 1 and not batched(s)
    within = [total - 1 - at] if total % m else []
    line = at // width
    image = line // height if several else Index()
    row = (line % height if several else line) if height > 1 else Index()
    col = at % width if height > 1 or several else at
    return image, row, col, within


def stored_at(s: Conv, at: tuple[Index, Index, Index]) -> tuple[Index, Index, Index]:
    """The image, row and column of y, without halos, of a position of the output."""
    image, row, col = at
    return image, row * s.y_step[0] + s.y_start[0], col * s.y_step[1] + s.y_start[1]


def quad_of(s: Conv, at: tuple[Index, Index, Index], quad: Index) -> tuple[Index, ...]:
    """Where the first of four channels of a position of y lies."""
    block, lane = (quad, Index()) if s.y.block == 4 else (Index(), quad * 4)
    return at[0], block, at[1] + s.y.top, at[2] + s.y.left, lane


def quad_in(image: Image, at: tuple[Index, Index, Index], quad: Index) -> tuple[Index, ...]:
    """Where the vector of four channels of an operand lies, whose axes of one element are broadcast."""
    block, four = (quad, Index()) if image.block == 4 else (Index(), quad)
    n, row, col = (a if extent > 1 else Index() for a, extent in zip(at, (image.n, image.h, image.w), strict=True))
    return n, block, row + image.top, col + image.left, four


def past_quads(s: Conv, quad: Index, n: int) -> list[Index]:
    """Facts that are negative past the last channels, where blocks of ``n`` have any."""
    quads = -(-s.padded // 4)
    return [quads - 1 - quad] if 4 * quads % n else []


def name_of(s: Conv) -> str:
    """The name of a kernel."""
    if s.x.h == s.y.h == 1 and s.x.block == s.x.channels:
        return f"matmul_{s.y.w}x{s.x.channels}x{s.y.channels}"
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"conv{size}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}"


def about(s: Conv, tile: GroupTile, owner: str = "thread") -> str:
    """A description of a kernel, its layer and its tile; ``owner`` has its rows and columns."""
    parts = f", products in {tile.splits} parts" if tile.splits > 1 else ""
    held = f"{tile.m} positions x {tile.n} channels of a block, {tile.rows} x {tile.cols} of a {owner}"
    return f"{described(s)}; {held}{parts}"
