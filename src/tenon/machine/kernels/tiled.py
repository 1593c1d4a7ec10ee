"""Convolution and matrix product in work groups: sums of a tile of positions by output channels.

A block computes ``tile.m`` positions of the output by ``tile.n`` channels, each thread ``tile.rows x tile.cols`` of
them in registers.  In steps of ``tile.k`` products the block copies what it multiplies to shared memory, in two stages:
while it computes on one, each thread has already loaded its part of the next step to registers.  Taps beside the image
are copied as zeros, so that images need no halo.

With ``tile.splits`` the products of a result are shared out to several blocks, whose sums lie in scratch memory until a
second kernel adds them in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Buffer, Expr, Kernel, Load, Type, select, vector4
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.storage_types import NARROW, loaded, stored
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType


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
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 2 * 4 * self.k * (self.m + self.n)


@dataclass(frozen=True)
class Depth:
    """How the products of a result are cut into steps.  A step has ``wide`` neighbouring channels of ``groups`` groups
    of them at one tap (``wide`` 4), or ``groups`` of all pairs of a channel and a tap (``wide`` 1)."""

    wide: int
    groups: int
    chunks: int
    steps: int

    @classmethod
    def of(cls, s: Conv, k: int) -> Depth:
        """For steps of ``k`` products."""
        if wide(s) == 1:
            return cls(1, k, 1, -(-s.taps * s.x.channels // k))
        chunks = -(-_quads(s) // (k // 4))
        return cls(4, k // 4, chunks, chunks * s.taps)


def wide(s: Conv) -> int:
    """Channels that are copied at once: those of a block, four of a row of a matrix, or one."""
    by_fours = s.x.block % 4 == 0 and (s.x.blocks == 1 or s.x.block == 4)
    return 4 if by_fours else 1


def _quads(s: Conv) -> int:
    """Groups of four input channels, those that fill the last block included."""
    return s.x.blocks * s.x.block // 4


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: one group, floats; weights that are operands are matrices."""
    floats = {s.x.dtype, s.y.dtype, s.weights, *(i.dtype for i in s.operands)} <= {F32, *NARROW}
    whole = s.y.block % 4 == 0 or s.y.blocks == 1
    return floats and whole and s.groups == 1 and (s.taps > 0 if s.packed else s.taps == 1)


def batched(s: Conv) -> bool:
    """Whether each image has blocks of its own, because it has weights of its own or comes from another image."""
    return not s.packed or s.batches != ((s.y.n, 1, 1),)


def matrices(s: Conv) -> int:
    """How many products have blocks of their own."""
    return s.y.n if batched(s) else 1


def pack(weights: Array, s: Conv, tile: GroupTile) -> Array:
    """[blocks of channels][steps][k * n] from [channels out, channels in, kh, kw], zeros past the last of each."""
    depth, out = Depth.of(s, tile.k), -(-s.padded // tile.n) * tile.n
    if depth.wide == 1:
        flat = np.zeros((depth.steps * tile.k, out), np.float32)
        flat[: s.taps * s.x.channels, : s.y.channels] = weights.reshape(s.y.channels, -1).T
    else:
        whole = np.zeros((s.taps, depth.chunks * tile.k, out), np.float32)
        whole[:, : s.x.channels, : s.y.channels] = weights.transpose(2, 3, 1, 0).reshape(s.taps, s.x.channels, -1)
        flat = whole.reshape(-1, out)
    split = flat.reshape(depth.steps, tile.k, out // tile.n, tile.n)
    return split.transpose(2, 0, 1, 3).reshape(out // tile.n, depth.steps, -1).astype(s.weights.numpy, order="C")


@dataclass(frozen=True, eq=False)
class _Context:
    """A kernel being built: the numbers of the block and of the thread, and its buffers."""

    k: Builder
    s: Conv
    tile: GroupTile
    depth: Depth
    x: Tensor
    w: Tensor
    across: Index  # block of channels
    down: Index  # block of positions
    part: Index  # of the products
    tx: Index
    ty: Index
    images: tuple[Index, Index, Index] | None  # of y, of x and of the weights, in blocks of their own

    @property
    def thread(self) -> Index:
        return self.ty * (self.tile.m // self.tile.rows) + self.tx

    @property
    def steps(self) -> int:
        return self.depth.steps // self.tile.splits


@lru_cache(maxsize=512)
def tiled(s: Conv, tile: GroupTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), mask when ``clear``, operands, y; with splits
    only x, weights and the sums [splits, channels / 4, positions, 4]."""
    k = Builder(_name(s), _about(s, tile))
    depth = Depth.of(s, tile.k)
    assert depth.steps % tile.splits == 0
    blocks = -(-s.padded // tile.n)
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    own = (s.matrices, s.x.channels, s.y.channels)
    w = k.param("w", *((blocks, depth.steps, tile.k * tile.n) if s.packed else own), dtype=s.weights)
    ends = Ends.params(k, s) if tile.splits == 1 else None
    sums = None if ends else k.param("sums", *sums_shape(s, tile), out=True)
    with (
        _images(k, s) as images,
        k.loop("part", tile.splits, kind="block") as part,
        k.loop("across", blocks, kind="block") as across,
        k.loop("down", -(-positions(s) // tile.m), kind="block") as down,
    ):
        xs = k.local("xs", 2, depth.groups, tile.m, depth.wide, space="shared")
        ws = k.local("ws", 2, tile.k * tile.n, space="shared")
        with (
            k.loop("ty", tile.n // tile.cols, kind="thread") as ty,
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
        ):
            p = _Context(k, s, tile, depth, x, w, across, down, part, tx, ty, images)
            acc = _products(p, xs, ws)
            _results(p, acc, ends, sums)
    return k.done()


@contextmanager
def _images(k: Builder, s: Conv) -> Iterator[tuple[Index, Index, Index] | None]:
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


# ------------------------------------------------------------------------------------------------ products
def _products(p: _Context, xs: Tensor, ws: Tensor) -> Tensor:
    """The sums of a thread's results."""
    k, tile = p.k, p.tile
    acc = k.local("a", tile.rows, tile.cols)
    with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols) as j:
        acc[i, j] = 0.0
    copies = [_Copy.of_image(p, xs), _Copy.of_weights(p, ws)]
    first = p.part * p.steps
    for copy in copies:
        copy.load(first)
    with k.loop("s", p.steps) as s:
        stage = s % 2
        for copy in copies:
            copy.store(stage)
        k.barrier()
        with k.when(p.steps - 2 - s):
            for copy in copies:
                copy.load(first + s + 1)
        _multiply(p, acc, xs, ws, stage)
    return acc


def _multiply(p: _Context, acc: Tensor, xs: Tensor, ws: Tensor, stage: Index) -> None:
    """Add the products of one step."""
    k, tile, wide = p.k, p.tile, p.depth.wide
    apart = tile.m // tile.rows  # neighbouring threads have neighbouring positions
    with k.loop("g", p.depth.groups) as g, k.unroll("c", wide) as c:
        ws_at = [k.let("w", ws[stage, (g * wide + c) * tile.n + _channel(p, j)]) for j in range(tile.cols)]
        for i in range(tile.rows):
            value = k.let("v", xs[stage, g, p.tx + apart * i, c])
            for j, weight in enumerate(ws_at):
                acc[i, j] = acc[i, j] + value * weight


def _channel(p: _Context, j: int) -> Index:
    """The number in the block of a thread's channel: neighbouring threads have neighbouring groups of four."""
    return p.ty * 4 + j % 4 + j // 4 * (4 * (p.tile.n // p.tile.cols))


Part = tuple[tuple[Index, ...], Buffer, tuple[Index, ...]]
"""Facts that are negative where a part is zeros, and where its first element lies otherwise."""


@dataclass(frozen=True, eq=False)
class _Copy:
    """The elements that a block copies to shared memory in a step, in ``parts`` of ``lanes`` elements; those of a
    thread are in registers between.  Parts of f32 are copied at once, those of 16 bits are single elements that become
    f32."""

    p: _Context
    shared: Tensor
    registers: Tensor
    parts: int
    lanes: int
    image: bool

    @property
    def narrow(self) -> bool:
        """Whether what is copied has 16 bits."""
        return (self.p.x if self.image else self.p.w).buffer.type.dtype in NARROW

    @classmethod
    def of_image(cls, p: _Context, xs: Tensor) -> _Copy:
        wide, parts = p.depth.wide, p.depth.groups * p.tile.m
        return cls(p, xs, _registers(p, "px", parts, wide, p.s.x.dtype), parts, wide, True)

    @classmethod
    def of_weights(cls, p: _Context, ws: Tensor) -> _Copy:
        lanes = 4 if p.s.packed or p.s.y.channels % 4 == 0 else 1
        parts = p.tile.k * p.tile.n // lanes
        return cls(p, ws, _registers(p, "pw", parts, lanes, p.s.weights), parts, lanes, False)

    @contextmanager
    def every(self) -> Iterator[tuple[Index, Index]]:
        """A thread's parts: (number of its own, number)."""
        k, threads = self.p.k, self.p.tile.threads
        with k.unroll("e", -(-self.parts // threads)) as e:
            part = self.p.thread + e * threads
            with k.when(*([self.parts - 1 - part] if self.parts % threads else [])):
                yield e, part

    def load(self, step: Index) -> None:
        """From memory to registers."""
        with self.every() as (e, part):
            facts, buffer, at = self.of_x(step, part) if self.image else self.of_w(step, part)
            if self.narrow:
                self.load_narrow(e, facts, buffer, at)
            else:
                self.registers[e] = guarded(facts, Load(buffer, at, Type(F32, self.lanes)), 0.0)

    def load_narrow(self, e: Index, facts: tuple[Index, ...], buffer: Buffer, at: tuple[Index, ...]) -> None:
        k = self.p.k
        if facts:
            with k.unroll("c", self.lanes) as c:
                self.registers[e * self.lanes + c] = 0.0
        with k.when(*facts), k.unroll("c", self.lanes) as c:
            self.registers[e * self.lanes + c] = loaded(Load(buffer, (*at[:-1], at[-1] + c), buffer.type))

    def store(self, stage: Index) -> None:
        """From registers to shared memory."""
        k, m = self.p.k, self.p.tile.m
        with self.every() as (e, part):
            at = (stage, part // m, part % m, Index()) if self.image else (stage, part * self.lanes)
            if self.narrow:
                with k.unroll("c", self.lanes) as c:
                    k.store(self.shared.buffer, (*at[:-1], at[-1] + c), self.registers[e * self.lanes + c])
            else:
                k.store(self.shared.buffer, at, self.registers[e])

    def of_w(self, step: Index, part: Index) -> Part:
        """``lanes`` weights of a channel of the image."""
        p, lanes = self.p, self.lanes
        if p.images is None or p.s.packed:
            return (), p.w.buffer, (p.across, step, part * lanes)
        row, col = (
            step * p.tile.k + part // (p.tile.n // lanes),
            p.across * p.tile.n + part % (p.tile.n // lanes) * lanes,
        )
        depth, width = p.s.x.channels, p.s.y.channels
        facts = [depth - 1 - row] * (depth % p.tile.k > 0) + [width - 1 - col] * (width % p.tile.n > 0)
        return tuple(facts), p.w.buffer, (p.images[2], row, col)

    def of_x(self, step: Index, part: Index) -> Part:
        """``lanes`` channels of the image at one position, or zeros beside it."""
        s, depth, m = self.p.s, self.p.depth, self.p.tile.m
        group, at = part // m, self.p.down * m + part % m
        if depth.wide == 1:
            number = step * depth.groups + group
            channel, ky, kx = number // s.taps, number // s.kernel[1] % s.kernel[0], number % s.kernel[1]
            inside = [] if s.taps * s.x.channels % depth.groups == 0 else [s.taps * s.x.channels - 1 - number]
            block, lane = (channel, Index()) if s.x.block == 1 else (channel // s.x.block, channel % s.x.block)
        else:
            # ptxas miscompiles the quotient of a product's two steps: (s + 1) % 2 where s is known to be 0.
            tap, chunk = (Index(), step) if s.taps == 1 else (step // depth.chunks, step % depth.chunks)
            quad = chunk * depth.groups + group
            ky, kx = tap // s.kernel[1], tap % s.kernel[1]
            inside = [] if depth.chunks * depth.groups == _quads(s) else [_quads(s) - 1 - quad]
            block, lane = (quad, Index()) if s.x.block == 4 else (Index(), quad * 4)
        image, row, col, within = place(s, at, m)
        image = self.p.images[1] if self.p.images else image
        row = row * s.stride[0] + ky * s.dilation[0] - s.top
        col = col * s.stride[1] + kx * s.dilation[1] - s.left
        facts = [*within, *inside, *_beside(s, 0, row), *_beside(s, 1, col)]
        where = image, block, row + s.x.top, col + s.x.left, lane
        return tuple(facts), self.p.x.buffer, where


def _registers(p: _Context, name: str, parts: int, lanes: int, dtype: DType) -> Tensor:
    """Registers for a thread's share of a copy, set to zero where it may have none."""
    count = -(-parts // p.tile.threads)
    registers = p.k.local(name, count * lanes) if dtype in NARROW else p.k.local(name, count, lanes=lanes)
    if parts % p.tile.threads:
        with p.k.unroll("e", registers.buffer.shape[0].const) as e:
            registers[e] = 0.0
    return registers


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


def _beside(s: Conv, axis: int, at: Index) -> list[Index]:
    """Facts that are negative where a tap lies before or past the image along an axis."""
    before, past = s.border(axis)
    size = (s.x.h, s.x.w)[axis]
    return [at] * (before > 0) + [size - 1 - at] * past


# ------------------------------------------------------------------------------------------------- results
@dataclass(frozen=True, eq=False)
class Ends:
    """The parameters that turn sums into results."""

    bias: Tensor | None
    mask: Tensor | None
    operands: Sequence[Tensor]
    y: Tensor

    @classmethod
    def params(cls, k: Builder, s: Conv) -> Ends:
        bias = k.param("b", s.padded) if s.bias else None
        mask = k.param("m", s.padded, dtype=I32) if s.clear else None
        operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
        return cls(bias, mask, operands, k.param("y", *s.y.shape, dtype=s.y.dtype, out=True))

    def result(self, s: Conv, at: tuple[Index, Index, Index], channel: Index, value: Expr) -> Expr:
        """The result of a sum, for a channel at (image, row, column) of the output."""
        if self.bias is not None:
            value = value + self.bias[channel]
        extra = [
            loaded(t[i.at(at[0], channel, at[1], at[2], 1)]) for i, t in zip(s.operands, self.operands, strict=True)
        ]
        value = s.epilogue(value, *extra)
        return value if self.mask is None else select(self.mask[channel], value, 0.0)


def _results(p: _Context, acc: Tensor, ends: Ends | None, sums: Tensor | None) -> None:
    """Store a thread's results, or its sums."""
    k, s, tile = p.k, p.s, p.tile
    apart = tile.m // tile.rows
    with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols // 4) as j:
        at = p.down * tile.m + p.tx + i * apart
        quad = p.across * (tile.n // 4) + p.ty + j * (tile.n // tile.cols)
        image, row, col, within = place(s, at, tile.m)
        image = p.images[0] if p.images else image
        with k.when(*within, *_past(s, quad, tile.n)):
            values = [acc[i, j * 4 + c] for c in range(4)]
            if sums is not None:
                sums.vec(4)[p.part, quad, at, 0] = vector4(*values)
            elif ends is not None:
                _store(p.k, s, ends, (image, row, col), quad, values)


def _past(s: Conv, quad: Index, n: int) -> list[Index]:
    """Facts that are negative past the last channels, where blocks of ``n`` have any."""
    quads = -(-s.padded // 4)
    return [quads - 1 - quad] if 4 * quads % n else []


def _store(k: Builder, s: Conv, ends: Ends, at: tuple[Index, Index, Index], quad: Index, sums: Sequence[Expr]) -> None:
    """Four channels of a position; single ones where the last four are not all there."""
    image, row, col = at
    where = image, row * s.y_step[0] + s.y_start[0], col * s.y_step[1] + s.y_start[1]
    if s.padded % 4 == 0:
        values = [stored(ends.result(s, where, quad * 4 + c, v), s.y.dtype) for c, v in enumerate(sums)]
        block, lane = (quad, Index()) if s.y.block == 4 else (Index(), quad * 4)
        place_of = where[0], block, where[1] + s.y.top, where[2] + s.y.left, lane
        if s.y.dtype is F32:
            k.store(ends.y.buffer, place_of, vector4(*values))
        else:
            for c, value in enumerate(values):
                k.store(ends.y.buffer, (*place_of[:-1], lane + c), value)
        return
    for c, value in enumerate(sums):
        channel = quad * 4 + c
        with k.when(s.padded - 1 - channel):
            y = where[0], Index(), where[1] + s.y.top, where[2] + s.y.left, channel
            ends.y[y] = stored(ends.result(s, where, channel, value), s.y.dtype)


@lru_cache(maxsize=512)
def joined_parts(s: Conv, tile: GroupTile) -> Kernel:
    """The results of sums in parts, added in the order of the parts.  Parameters: the sums, bias (padded), mask when
    ``clear``, operands, y."""
    k = Builder(f"{_name(s)}_sum", f"Sums of {tile.splits} parts each, and what follows the convolution")
    splits, quads, count, _ = sums_shape(s, tile)
    sums = k.param("sums", splits, quads, count, 4)
    ends = Ends.params(k, s)
    with (
        k.loop("q", quads, kind="parallel") as q,
        k.loop("p", count, kind="parallel") as at,
        k.loop("c", 4, kind="parallel") as c,
    ):
        channel = q * 4 + c
        with k.when(*([] if s.padded % 4 == 0 else [s.padded - 1 - channel])):
            value = sums[0, q, at, c]
            for part in range(1, splits):
                value = value + sums[part, q, at, c]
            image, row, col, _ = place(s, at, 1)
            where = image, row * s.y_step[0] + s.y_start[0], col * s.y_step[1] + s.y_start[1]
            result = stored(ends.result(s, where, channel, value), s.y.dtype)
            block, lane = (q, c) if s.y.block == 4 else (Index(), channel)
            ends.y[where[0], block, where[1] + s.y.top, where[2] + s.y.left, lane] = result
    return k.done()


def _name(s: Conv) -> str:
    if s.x.h == s.y.h == 1 and s.x.block == s.x.channels:
        return f"matmul_{s.y.w}x{s.x.channels}x{s.y.channels}"
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"conv{size}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}"


def _about(s: Conv, tile: GroupTile) -> str:
    parts = f", products in {tile.splits} parts" if tile.splits > 1 else ""
    held = f"{tile.m} positions x {tile.n} channels of a block, {tile.rows} x {tile.cols} of a thread"
    return f"{described(s)}; {held}{parts}"
