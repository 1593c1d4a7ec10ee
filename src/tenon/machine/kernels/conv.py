"""Convolution and matrix product: one register-tiled micro-kernel generator.

A tile of ``rows x cols`` output positions times ``vecs`` vectors of output channels stays in registers while the
kernel walks input channels and taps; every step multiplies one broadcast input element by a packed vector of
weights.  Geometry is only (row, column, channel block), so the same generator serves any kernel, stride,
dilation and group, the first layer (input blocks of one channel), fully connected layers (one position) and
matrix products (``Image`` of one row whose block is the whole row of the matrix).

Structure after Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions on SIMD
Architectures" (2018): blocked layouts, packed weights, no im2col.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, bitcast, broadcast, fma_f16, op
from tenon.machine.kernels import lane_products
from tenon.machine.kernels.ahead import Ahead, unrolled
from tenon.machine.kernels.bands import BandTile, bands_of, tiles_of_bands
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal, parts_of_groups
from tenon.machine.kernels.rows import LONGEST_PRODUCT, in_blocks, in_f16_blocks
from tenon.machine.kernels.storage_types import as_f32, loaded
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

_KEPT = 256 << 10
"""Bytes of weights or images that stay in the cache of a processor while others are read."""

_LARGE = 1 << 20
"""Bytes of an image that do not stay there."""


@dataclass(frozen=True)
class Conv:
    """The convolution to compute.  ``top`` and ``left`` are the padding; the halo of ``x`` must cover it.

    Output position (r, c) lies at row ``r * y_step[0] + y_start[0]`` of ``y`` (columns likewise), over
    ``positions`` rows and columns; by default every position of ``y``.  ``packed`` says whether weights come
    packed by ``pack`` or as row-major matrices [batch, channels in, channels out].  A kernel of no taps (0, 0)
    takes no weights: bias and epilogue alone.

    ``batch`` has one (extent, step of x, step of w) per batch axis of a matrix product, outermost first, a step
    counting whole matrices; by default x advances with y, and so do weights that are not packed.

    ``weights`` is the type that packed weights are stored in, i8 for integers that sums of floats are made of (see
    ``passes.precision``).  Everything is computed in f32, but for images and
    weights of 16 bits on a machine that multiplies these: pairs of bf16 (see ``pairs``), whose sums are f32, and f16
    (see ``halves``), of which up to ``rows.LONGEST_F16`` products are added in f16, and the sums of more in f32.
    """

    x: Image
    y: Image
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    top: int = 0
    left: int = 0
    groups: int = 1
    bias: bool = True
    operands: tuple[Image, ...] = ()
    epilogue: Epilogue = identity
    clear: bool = False  # the epilogue maps 0 to nonzero: padding lanes past the last channel must be masked
    y_start: tuple[int, int] = (0, 0)
    y_step: tuple[int, int] = (1, 1)
    positions: tuple[int, int] | None = None
    packed: bool = True
    batch: tuple[tuple[int, int, int], ...] = ()
    weights: DType = F32
    paired: bool = False  # of integers that are multiplied by pairs of 16 bits (``kernels.integer_pairs``)
    two_columns: bool = False  # a position of x is two columns of words, copied at once (``group_tiles.in_pairs``)
    image_scale: float = 0.0  # x lies in memory as planes of f32, and is quantised by this scale when it is read

    @property
    def extent(self) -> tuple[int, int]:
        return self.positions or (self.y.h, self.y.w)

    @property
    def batches(self) -> tuple[tuple[int, int, int], ...]:
        return self.batch or ((self.y.n, 1, 1),)

    @property
    def matrices(self) -> int:
        """How many weight matrices there are when they are not packed."""
        return 1 + sum((extent - 1) * step for extent, _, step in self.batches)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def depthwise(self) -> bool:
        """Every output channel depends on the input channel of the same index only."""
        return self.groups == self.x.channels == self.y.channels and self.x.block == self.y.block

    def pairs(self, machine: Machine) -> str:
        """The source of bf16 pairs: neighbouring "channels", for blocks of one the "taps" of a row; "" if none."""
        bf16 = self.x.dtype is DType.BF16 and self.weights is DType.BF16 and self.taps > 0
        if not (machine.multiplies(DType.BF16, 2) and bf16 and self.packed):
            return ""
        if self.x.block == 1:
            return "taps" if self.dilation[1] == 1 else ""
        return "channels" if self.x.block % 2 == 0 else ""

    def halves(self, machine: Machine) -> bool:
        """Whether products are computed in vectors of f16; their results fill whole blocks of ``y``, or are rows."""
        f16 = self.x.dtype is DType.F16 and self.weights is DType.F16 and self.taps > 0
        whole = self.y.block % (2 * machine.lanes) == 0 or self.y.block == self.y.channels
        return f16 and whole and machine.multiplies(DType.F16) is not None and self.packed

    def lanes(self, machine: Machine) -> int:
        """The output channels that a vector has."""
        return (2 if self.halves(machine) else 1) * machine.lanes

    def border(self, axis: int) -> tuple[int, bool]:
        """The padding before rows or columns, and whether a tap reaches past their end."""
        before, size = ((self.top, self.x.h), (self.left, self.x.w))[axis]
        last = (self.extent[axis] - 1) * self.stride[axis] + (self.kernel[axis] - 1) * self.dilation[axis]
        return before, last - before >= size

    def clipped(self, machine: Machine) -> bool:
        """Whether taps beside the image are left out, of tiles of one position, instead of multiplying zeros."""
        plain = self.y_step == (1, 1) and self.positions is None and not self.pairs(machine)
        return not machine.float_unit and plain and any(before > 0 or past for before, past in map(self.border, (0, 1)))

    def row(self, machine: Machine) -> int:
        """Steps along a row of the kernel: its taps, or pairs of them."""
        return -(-self.kernel[1] // 2) if self.pairs(machine) == "taps" else self.kernel[1]

    @property
    def padded(self) -> int:
        """Output channels, including the padding of the last block."""
        return self.y.blocks * self.y.block

    def flattened(self) -> Conv:
        """The same convolution with height and width flattened into one row, where it is pointwise in both."""
        simple = self.kernel == self.stride == self.y_step == (1, 1) and self.positions is None
        same = (self.x.h, self.x.w) == (self.y.h, self.y.w) and not (self.top or self.left)
        flat = all((i.h, i.w) in ((self.y.h, self.y.w), (1, 1)) for i in self.operands)
        dense = all(i.dense for i in (self.x, self.y, *self.operands))
        if self.y.h == 1 or not (simple and same and flat and dense):
            return self
        operands = tuple(i.flat() for i in self.operands)
        return Conv(
            self.x.flat(),
            self.y.flat(),
            groups=self.groups,
            bias=self.bias,
            operands=operands,
            epilogue=self.epilogue,
            clear=self.clear,
            packed=self.packed,
            batch=self.batch,
            weights=self.weights,
            paired=self.paired,
        )


@dataclass(frozen=True)
class OutputTile:
    """``rows x cols`` positions by ``vecs`` vectors of output channels, accumulated in registers."""

    rows: int
    cols: int
    vecs: int


@dataclass(frozen=True)
class GroupRun:
    """Consecutive groups of output channels computed by the same loop.

    Iteration ``o`` computes ``vecs * lanes`` channels from ``start + o * vecs * lanes`` and reads input blocks
    ``first + o * step .. + blocks``.
    """

    start: int
    iterations: int
    vecs: int
    lanes: int
    first: int
    step: int
    blocks: int

    @property
    def width(self) -> int:
        return self.vecs * self.lanes


def runs(s: Conv, machine: Machine, vecs: int) -> list[GroupRun]:
    """Cut the output channels into runs.  A group reads only the input blocks that its channels need."""
    lanes = s.lanes(machine)
    out_channels = s.padded if s.y.block % lanes == 0 else s.y.channels
    per_out, per_in = s.y.channels // s.groups, s.x.channels // s.groups
    cut: list[GroupRun] = []
    start = 0
    while start < out_channels:
        while start + lanes > out_channels:
            lanes //= 2
        wide = min(vecs, (out_channels - start) // lanes)
        last = min(start + wide * lanes, s.y.channels) - 1
        high = ((last // per_out + 1) * per_in - 1) // s.x.block
        low = min(start // per_out * per_in // s.x.block, high)
        cut.append(GroupRun(start, 1, wide, lanes, low, 0, high - low + 1))
        start += wide * lanes
    return _merged(cut)


def _merged(listed: list[GroupRun]) -> list[GroupRun]:
    out: list[GroupRun] = []
    for r in listed:
        if out:
            p = out[-1]
            alike = (p.vecs, p.lanes, p.blocks) == (r.vecs, r.lanes, r.blocks)
            step = r.first - (p.first + p.step * (p.iterations - 1))
            if alike and (p.iterations == 1 or step == p.step) and step >= 0:
                out[-1] = GroupRun(p.start, p.iterations + 1, p.vecs, p.lanes, p.first, step, p.blocks)
                continue
        out.append(r)
    return out


def pack(weights: Array, s: Conv, machine: Machine, vecs: int) -> list[Array]:
    """One array per run, [iterations][input blocks][kh][kw][block][vecs * lanes], zeros outside of a channel's group.

    ``weights`` is [channels out, channels in / groups, kh, kw].  Pairs of bf16 are packed into 32-bit words:
    [...][block / 2][vecs * lanes], or [kh][kw / 2, rounded up][1][vecs * lanes].
    """
    per_out, per_in = s.y.channels // s.groups, s.x.channels // s.groups
    kh, kw = s.kernel
    packed: list[Array] = []
    for r in runs(s, machine, vecs) if s.taps else ():
        out = np.zeros((r.iterations, r.blocks * s.x.block, kh, kw, r.width), weights.dtype)
        for iteration in range(r.iterations):
            base = (r.first + iteration * r.step) * s.x.block
            first = r.start + iteration * r.width
            last = min(first + r.width, s.y.channels)
            for group in range(first // per_out, -(-last // per_out)):
                a, b = max(first, group * per_out), min(last, (group + 1) * per_out)
                at = group * per_in - base
                if a < b:
                    out[iteration, at : at + per_in, :, :, a - first : b - first] = np.moveaxis(weights[a:b], 0, -1)
        shape = (r.iterations, r.blocks, s.x.block, kh, kw, r.width)
        packed.append(out.reshape(shape).transpose(0, 1, 3, 4, 2, 5).astype(s.weights.numpy, order="C"))
    if s.pairs(machine) == "taps":
        return [_words(p[..., 0, :])[..., None, :] for p in packed]
    return [_words(p) for p in packed] if s.pairs(machine) else packed


def _words(weights: Array) -> Array:
    """[..., count, n] of bf16 as [..., count / 2, n] words of two neighbours; an odd count is padded with zeros."""
    *outer, count, n = weights.shape
    even = np.zeros((*outer, count + count % 2, n), weights.dtype)
    even[..., :count, :] = weights
    pairs = np.swapaxes(even.reshape(*outer, -1, 2, n), -1, -2)
    return np.ascontiguousarray(pairs).view(np.int32)[..., 0]


def tiles(
    k: Builder,
    iterations: int,
    extent: tuple[int, int],
    tile: OutputTile,
    threads: int = 1,
    images: int = 1,
) -> Iterator[tuple[Index, Index, Index, Index, int, int]]:
    """Loops over output-channel groups, ``images`` and a tiling of ``extent``, tails included: (o, image, top, left,
    height, width).

    Groups are distributed over threads; where there are few, images, rows and columns of tiles are too.  Groups are
    outermost, so that a thread streams its weights once.
    """
    rows = segments(extent[0], tile.rows)
    counts = iterations, images, sum(count for _, count, _ in rows)
    (outer, several, middle), inside = deal(*counts, threads=threads)
    with k.loop("o", iterations, kind=outer) as o, k.loop("n", images, kind=several) as n:
        for top, count, height in rows:
            with k.loop("i", count, kind=middle) as i:
                for left, across, width in segments(extent[1], tile.cols):
                    with k.loop("j", across, kind=inside) as j:
                        yield o, n, i * height + top, j * width + left, height, width


def images_inside(s: Conv) -> int:
    """How many images a group of output channels is computed for, one after another: where weights would have left the
    cache before the next image, as many of them as stay there themselves."""
    weights = s.weights.bytes * s.padded * s.taps * s.x.channels // s.groups
    if not s.packed or s.batch or weights <= _KEPT:
        return 1
    image = s.x.dtype.bytes * math.prod(s.x.shape[1:])
    return max(n for n in range(1, s.y.n + 1) if s.y.n % n == 0 and (n == 1 or n * image <= _KEPT))


@dataclass(frozen=True, eq=False)
class _ConvContext:
    """Data that all tiles of a kernel share: shapes, machine and buffers."""

    k: Builder
    s: Conv
    machine: Machine
    x: Tensor
    bias: Tensor | None
    mask: Tensor | None
    operands: list[Tensor]
    y: Tensor

    @property
    def pairs(self) -> str:
        return self.s.pairs(self.machine)

    @property
    def halves(self) -> bool:
        return self.s.halves(self.machine)


@dataclass(frozen=True, eq=False)
class _ConvTile(BandTile):
    """One tile with its run and weights; ``n``, ``xn`` and ``wn`` are batch indices of y, x and weights."""

    run: GroupRun
    w: Tensor | None
    n: Index
    xn: Index
    wn: Index

    @property
    def channel(self) -> Index:
        return self.o * self.run.width + self.run.start


@lru_cache(maxsize=512)
def conv(s: Conv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x, the packed weights of each run (or the one matrix), bias (padded), mask when ``clear``,
    operands, y."""
    k = Builder(_name(s), _about(s, tile))
    cut = runs(s, machine, tile.vecs)
    pairs = s.pairs(machine)
    x = _input(k, s, pairs)
    ws = _weights(k, s, cut, pairs)
    b = k.param("b", s.padded) if s.bias else None
    m = k.param("m", s.padded, dtype=I32) if s.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    context = _ConvContext(k, s, machine, x, b, m, operands, y)
    images = images_inside(s)
    with ExitStack() as stack:
        n = xn = wn = Index()
        for extent, x_step, w_step in ((s.y.n // images, images, 0),) if images > 1 else s.batches:
            i = stack.enter_context(k.loop("n", extent))
            n, xn, wn = n * extent + i, xn + i * x_step, wn + i * w_step
        for r, w in zip(cut, ws, strict=True):
            for place in _tiles(k, s, r, machine, tile, images):
                t = _ConvTile(**vars(place), run=r, w=w, n=n * images + place.image, xn=xn + place.image, wn=wn)
                with k.outline(f"{t.height}x{t.width}x{r.vecs}v{r.lanes}", shown_tile(t.height, t.width, r)):
                    _micro(context, t)
    return k.done()


def _tiles(k: Builder, s: Conv, r: GroupRun, machine: Machine, tile: OutputTile, images: int) -> Iterator[BandTile]:
    """The tiles of a run: group by group of output channels, or by bands of positions."""
    image = math.prod(s.x.shape) * s.x.dtype.bytes
    weights = s.taps * r.blocks * s.x.block * r.width * r.iterations * s.weights.bytes
    if (parts := _parts(s, r, machine, image, weights)) < r.iterations:
        groups, bands = (parts, r.iterations // parts), bands_of(image, -(-machine.threads // parts), _KEPT)
        yield from tiles_of_bands(k, groups, s.extent, (tile.rows, tile.cols), machine.threads, images, bands)
        return
    across = -(-s.extent[1] // tile.cols)
    of = across * -(-s.extent[0] // tile.rows)
    for o, i, top, left, height, width in tiles(k, r.iterations, s.extent, tile, machine.threads, images):
        yield BandTile(o, i, top, left, height, width, top // tile.rows * across + left // tile.cols, of)


def _parts(s: Conv, r: GroupRun, machine: Machine, image: int, weights: int) -> int:
    """How threads share the groups of a run: those of one group of channels read all of the image.  Groups that share a
    block of the result are shared first: of a part of these, races are not disproved.  One thread has all groups of
    bands of an image that would leave its cache otherwise."""
    if s.groups > 1 or not s.taps or (s.y.blocks > 1 and r.width % s.y.block):
        return r.iterations
    if machine.threads == 1 and s.packed and image >= _LARGE and weights <= _KEPT:
        return 1
    return parts_of_groups(r.iterations, image, weights, machine.threads, machine.stream)


def _input(k: Builder, s: Conv, pairs: str) -> Tensor:
    """The parameter x: as words of two channels, as rows read at any pair of neighbours, or unchanged."""
    if pairs == "channels":
        return k.param("x", *s.x.shape[:-1], s.x.block // 2, dtype=DType.B2)
    return k.param("x", *(s.x.shape[:-1] if pairs else s.x.shape), dtype=s.x.dtype)


def _weights(k: Builder, s: Conv, cut: list[GroupRun], pairs: str) -> list[Tensor | None]:
    if not s.taps:
        return [None] * len(cut)
    if not s.packed:
        return [k.param("w", s.matrices, s.x.channels, s.y.channels, dtype=s.weights)] * len(cut)
    block = s.x.block // 2 if pairs == "channels" else s.x.block
    row, dtype = (-(-s.kernel[1] // 2) if pairs == "taps" else s.kernel[1]), DType.B2 if pairs else s.weights
    return [k.param("w", r.iterations, r.blocks, s.kernel[0], row, block, r.width, dtype=dtype) for r in cut]


def _micro(p: _ConvContext, t: _ConvTile) -> None:
    """One tile: bias into the accumulators, multiply-add over channels and taps, epilogue, store."""
    k, s, r = p.k, p.s, t.run
    acc = k.local("a", t.height, t.width, r.vecs, lanes=r.lanes)
    with k.unroll("p", t.height) as row, k.unroll("q", t.width) as col, k.unroll("t", r.vecs) as v:
        acc[row, col, v] = 0.0 if p.bias is None or p.halves else p.bias.vec(r.lanes)[t.channel // r.lanes + v]

    across = s.row(p.machine)
    for start, blocks, channels in _depths(s, r) if s.taps else ():
        deep = -(-channels // 2) if p.pairs == "channels" else channels
        together = _together(p, t, deep)
        most = r.lanes if together else p.machine.unroll
        unroll = next(u for u in range(min(most, deep), 0, -1) if deep % u == 0)
        rounds = deep // unroll
        loops = [("c", blocks), ("ky", s.kernel[0]), ("kx", across), ("ci", rounds)]
        for (c, ky, kx, ci), sums in _blocks(p, loops, acc, unroll):
            round = (((c + start) * s.kernel[0] + ky) * across + kx) * rounds + ci
            ahead = _ahead(p, t, r.blocks * s.kernel[0] * across * rounds)
            with k.when(*_inside(p, t, ky, kx)):
                if together:
                    lane_products.ask(ahead, round, unroll * r.width)
                    _step(p, t, sums, (c + start, ky, kx, ci), together=True)
                    continue
                with unrolled(k, unroll, round, r.width, ahead) as u:
                    _step(p, t, sums, (c + start, ky, kx, ci * unroll + u))

    with k.unroll("p", t.height) as row, k.unroll("q", t.width) as col, k.unroll("t", r.vecs) as v:
        # Sums of f16 would have to make room for a bias that is loaded before.
        added = None if p.bias is None or not p.halves else p.bias.vec(r.lanes)[t.channel // r.lanes + v]
        _finish(p, t, v, row, col, acc[row, col, v] if added is None else acc[row, col, v] + added)


def _together(p: _ConvContext, t: _ConvTile, deep: int) -> bool:
    """Whether multiply-adds take lanes of vectors, of which a step takes all."""
    plain = p.halves or (p.s.x.dtype is F32 and not p.pairs)
    return plain and lane_products.applies(p.machine, p.s.x.block, deep, t.run.lanes, t.height * t.width)


def _blocks(
    p: _ConvContext, loops: Sequence[tuple[str, int]], acc: Tensor, each: int
) -> Iterator[tuple[list[Index], Tensor]]:
    """The loops over channels and taps, and the registers that products are added to."""
    if p.halves:
        yield from in_f16_blocks(p.k, loops, acc, each)
        return
    for at, (sums,) in in_blocks(p.k, loops, [acc], each, LONGEST_PRODUCT):
        yield at, sums


def _inside(p: _ConvContext, t: _ConvTile, ky: Index, kx: Index) -> list[Index]:
    """Expressions that are negative where a tap of a single position lies beside the image."""
    s = p.s
    if not s.clipped(p.machine) or (t.height, t.width) != (1, 1):
        return []
    facts = list[Index]()
    for axis, (at, tap, size) in enumerate(((t.top, ky, s.x.h), (t.left, kx, s.x.w))):
        before, past = s.border(axis)
        place = at * s.stride[axis] + tap * s.dilation[axis] - before
        facts += [place] * (before > 0) + [size - 1 - place] * past
    return facts


def _ahead(p: _ConvContext, t: _ConvTile, rounds: int) -> Ahead | None:
    """Prefetch the next group's weights, where enough tiles reuse them."""
    if t.w is None or not p.machine.prefetch or not p.s.packed or t.height * t.width < 6:
        return None
    return Ahead(t.w, (t.o + 1, 0, 0, 0, 0), t.turn, p.machine.prefetching(t.of), rounds)


def _step(
    p: _ConvContext, t: _ConvTile, acc: Tensor, at: tuple[Index, Index, Index, Index], *, together: bool = False
) -> None:
    """Multiply-add one input channel through one tap into the whole tile; ``together``: those of a vector, of which
    ``at`` has the number."""
    k, s, r = p.k, p.s, t.run
    c, ky, kx, ch = at
    assert t.w is not None
    w = t.w.vec(r.lanes)

    def place(v: int, ch: Index) -> tuple[IndexLike, ...]:
        if s.packed:
            return t.o, c, ky, kx, ch, v
        return t.wn, c * s.x.block + ch, t.channel // r.lanes + v

    def value(i: Index, j: Index) -> Expr:
        row = (t.top + i) * s.stride[0] + ky * s.dilation[0] + (s.x.top - s.top)
        col = (t.left + j) * s.stride[1] + kx * (2 if p.pairs == "taps" else s.dilation[1]) + (s.x.left - s.left)
        block = c + t.o * r.step + r.first
        if p.pairs == "taps":  # an odd number of taps reads one column more, whose weight is zero
            return bitcast(Load(p.x.buffer, tuple(map(index, (t.xn, block, row, col))), Type(DType.BF16, 2)), DType.B2)
        x = p.x.vec(r.lanes) if together else p.x
        return arithmetic(x[t.xn, block, row, col, ch])

    def weights(ch: Index) -> list[Expr]:
        return [k.let(f"w{v}", wide(w[place(v, ch)])) for v in range(r.vecs)]

    arithmetic, wide = (_unchanged, _unchanged) if p.halves else (loaded, as_f32)
    if together:
        own = [partial(weights, ch * r.lanes + u) for u in range(r.lanes)]
        lane_products.multiply_add(k, acc, (t.height, t.width), own, value)
        return
    multiply_add(k, p.machine, acc, (t.height, t.width), r.lanes, weights(ch), value)


def _unchanged(x: Expr) -> Expr:
    return x


def multiply_add(
    k: Builder,
    machine: Machine,
    acc: Tensor,
    size: tuple[int, int],
    lanes: int,
    weights: Sequence[Expr],
    value: Callable[[Index, Index], Expr],
) -> None:
    """acc[i, j, v] += value(i, j) * weights[v] over a tile of ``size`` positions; ``value`` is one lane, an f32, a
    pair of bf16 or an f16."""
    pairs = machine.multiplies(DType.BF16, 2)
    products: dict[DType, Callable[[Expr, Expr, Expr], Expr]] = {DType.F16: fma_f16}
    if pairs is not None:
        products[DType.B2] = partial(op, pairs.operation)
    product = products.get(weights[0].type.dtype)
    with k.unroll("p", size[0]) as i, k.unroll("q", size[1]) as j:
        v = value(i, j)
        if len(weights) > 1:
            v = k.let("v", v if v.type.dtype is DType.F16 else broadcast(v, lanes))
        for t, w in enumerate(weights):
            acc[i, j, t] = acc[i, j, t] + v * w if product is None else product(acc[i, j, t], w, v)


def _finish(p: _ConvContext, t: _ConvTile, v: Index, i: Index, j: Index, value: Expr) -> None:
    """Epilogue and store of one vector."""
    s, lanes = p.s, t.run.lanes
    channel = t.channel + v * lanes
    row = (t.top + i) * s.y_step[0] + s.y_start[0]
    col = (t.left + j) * s.y_step[1] + s.y_start[1]
    mask = None if p.mask is None else p.mask.vec(lanes)[t.channel // lanes + v]
    finish(s, p.y, p.operands, (t.n, channel, row, col), lanes, value, mask)


def _depths(s: Conv, r: GroupRun) -> list[tuple[int, int, int]]:
    """(first block, blocks, channels of each): the last block may be only partly filled."""
    rest = s.x.channels % s.x.block
    last = r.first + r.step * (r.iterations - 1) + r.blocks == s.x.blocks
    if not rest or not last or r.step:
        return [(0, r.blocks, s.x.block)]
    whole = [(0, r.blocks - 1, s.x.block)] if r.blocks > 1 else []
    return [*whole, (r.blocks - 1, 1, rest)]


def _name(s: Conv) -> str:
    if s.x.h == s.y.h == 1 and s.x.block == s.x.channels:
        return f"matmul_{s.y.w}x{s.x.channels}x{s.y.channels}"
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"conv{size}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}"


def _about(s: Conv, tile: OutputTile) -> str:
    """The kernel's comment in generated code."""
    held = f"register tile {tile.rows} x {tile.cols} positions x {tile.vecs} vector{'s' * (tile.vecs > 1)} of channels"
    if s.x.h == s.y.h == 1 and s.x.block == s.x.channels:
        return f"Matrix product [{s.y.w} x {s.x.channels}] * [{s.x.channels} x {s.y.channels}] plus bias; {held}"
    return f"{described(s)}; {held}"


def described(s: Conv) -> str:
    """A convolution's attributes, for comments in generated code."""
    step = "" if max(s.stride) == 1 else f", stride {'x'.join(map(str, s.stride))}"
    spread = "" if max(s.dilation) == 1 else f", dilation {'x'.join(map(str, s.dilation))}"
    parts = "" if s.groups == 1 else f", {s.groups} groups"
    return f"Convolution {'x'.join(map(str, s.kernel))}{step}{spread}{parts}, {s.x.shown} to {s.y.shown}"


def shown_tile(height: int, width: int, r: GroupRun) -> str:
    channels = f"{r.vecs} x {r.lanes}" if r.lanes > 1 else f"{r.vecs}"
    return f"a tile of {height} x {width} positions by {channels} output channels"
