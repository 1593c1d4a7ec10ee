"""Steps of products in work groups: what a block multiplies is copied to shared memory in two stages.

While a block computes on one stage, each thread has already loaded its part of the next step to registers; or, on a
machine that copies asynchronously, the next steps are on their way to further stages.  Taps beside the image are copied
as one number, so that images need no halo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Buffer, Expr, Load, Type, vector4
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, GroupTile, image_blocks, past_quads, place, positions, stored_at
from tenon.machine.kernels.storage_types import loaded
from tenon.network.graph.types import F32, I32, DType


@dataclass(frozen=True, eq=False)
class GroupContext:
    """A kernel being built: the numbers of the block and of the thread, what it reads and what a block shares.  Taps
    beside the image are ``fill``."""

    k: Builder
    s: Conv
    tile: GroupTile
    depth: Depth
    x: Tensor
    w: Tensor
    xs: Tensor
    ws: Tensor
    fill: int
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

    @property
    def dtype(self) -> DType:
        """The type of what is multiplied."""
        return self.xs.buffer.type.dtype

    def x_place(self, stage: Index, group: Index, position: Index) -> tuple[Index, ...]:
        """Where a group of elements of the image lies in shared memory."""
        return stage, group, position, Index()

    def x_part(self, part: Index) -> tuple[Index, Index]:
        """The group of elements of a step, and the position of the block, that make a part of the image."""
        return part // self.tile.m, part % self.tile.m

    def w_place(self, stage: Index, part: Index, lanes: int) -> tuple[Index, ...]:
        """Where a part of the weights of a step lies in shared memory, of ``lanes`` weights."""
        return stage, part * lanes

    def at(self, i: Index) -> tuple[Index, tuple[Index, Index, Index], list[Index]]:
        """The number of a thread's position, its image, row and column, and what is negative past the last one."""
        number = self.down * self.tile.m + self.tx + i * (self.tile.m // self.tile.rows)
        image, row, col, within = place(self.s, number, self.tile.m)
        return number, (self.images[0] if self.images else image, row, col), within

    def quad(self, j: Index) -> Index:
        """The number of a thread's four channels."""
        return self.across * (self.tile.n // 4) + self.ty + j * (self.tile.n // self.tile.cols)

    def weight(self, row: Index, j: int) -> Index:
        """Where the weight of a thread's channel lies in shared memory: neighbouring threads have neighbouring groups
        of four."""
        return row * self.tile.n + self.ty * 4 + j % 4 + j // 4 * (4 * (self.tile.n // self.tile.cols))


def element(s: Conv) -> DType:
    """The type of what is multiplied: words, or floats of any width as f32."""
    return I32 if s.x.dtype is I32 else F32


@contextmanager
def blocks(
    k: Builder, s: Conv, tile: GroupTile
) -> Iterator[tuple[Index, Index, Index, tuple[Index, Index, Index] | None]]:
    """The loops over blocks of a product by tiles: of channels, of positions, of parts, of images."""
    assert Depth.of(s, tile.k).steps % tile.splits == 0
    with (
        image_blocks(k, s) as images,
        k.loop("part", tile.splits, kind="block") as part,
        k.loop("across", -(-s.padded // tile.n), kind="block") as across,
        k.loop("down", -(-positions(s) // tile.m), kind="block") as down,
    ):
        yield across, down, part, images


@contextmanager
def group_context(k: Builder, s: Conv, tile: GroupTile, x: Tensor, w: Tensor, fill: int = 0) -> Iterator[GroupContext]:
    """The loops over blocks and threads of a product by tiles."""
    depth = Depth.of(s, tile.k)
    with blocks(k, s, tile) as (across, down, part, images):
        xs = k.local("xs", 2, depth.groups, tile.m, depth.wide, dtype=element(s), space="shared")
        ws = k.local("ws", 2, tile.k * tile.n, dtype=element(s), space="shared")
        with (
            k.loop("ty", tile.n // tile.cols, kind="thread") as ty,
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
        ):
            yield GroupContext(k, s, tile, depth, x, w, xs, ws, fill, across, down, part, tx, ty, images)


class StepSource(Protocol):
    """The elements of the image that a block multiplies in a step: those of a thread are in registers between."""

    def load(self, step: Index) -> None:
        """Into registers."""
        ...

    def store(self, stage: Index) -> None:
        """From registers to shared memory."""
        ...


def in_steps(p: GroupContext, multiply: Callable[[Index], None], image: StepSource | None = None) -> None:
    """Copy what is multiplied, step by step; ``multiply`` adds the products of a stage.  ``image`` is where elements of
    the image come from, if not from memory."""
    k = p.k
    copies = [image or _Copy.of_image(p), _Copy.of_weights(p)]
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
        multiply(stage)


def in_stages(p: GroupContext, stages: int, multiply: Callable[[Index], None]) -> None:
    """The same by asynchronous copies, those of ``stages - 1`` steps on their way."""
    k, copies = p.k, copies_of_stages(p)
    issue_first(p, copies, stages)
    with k.loop("s", p.steps) as s:
        k.wait(stages - 2)
        k.barrier()
        issue_next(p, copies, stages, s)
        multiply(s % stages)


def issue_first(p: GroupContext, copies: Sequence[_Copy], stages: int) -> None:
    """Issue the asynchronous copies of the first ``stages - 1`` steps of a block."""
    for step in range(stages - 1):
        for copy in copies if step < p.steps else ():
            copy.issue(p.part * p.steps + step, Index((), step))
        p.k.commit()


def issue_next(p: GroupContext, copies: Sequence[_Copy], stages: int, s: Index) -> None:
    """Issue, in step ``s``, the asynchronous copies of the step ``stages - 1`` after it, if there is one."""
    ahead = s + (stages - 1)
    with p.k.when(p.steps - stages - s):
        for copy in copies:
            copy.issue(p.part * p.steps + ahead, ahead % stages)
    p.k.commit()


def copies_of_stages(p: GroupContext) -> tuple[_Copy, _Copy]:
    """The parts of the image and of the weights that a step copies asynchronously."""
    parts, lanes = p.depth.groups * p.tile.m, 16 // p.s.weights.bytes
    return (
        _Copy(p, p.xs, p.xs, parts, p.depth.wide, True),
        _Copy(p, p.ws, p.ws, p.tile.k * p.tile.n // lanes, lanes, False),
    )


def beside_stages(p: GroupContext, stages: int, multiply: Callable[[Index], None], image: StepSource) -> None:
    """The same of an image that is not copied from memory: only weights are on their way while threads compute."""
    k, lanes = p.k, 16 // p.s.weights.bytes
    weights = _Copy(p, p.ws, p.ws, p.tile.k * p.tile.n // lanes, lanes, False)
    first = p.part * p.steps
    issue_first(p, [weights], stages)
    image.load(first)
    with k.loop("s", p.steps) as s:
        image.store(s % stages)
        k.wait(stages - 2)
        k.barrier()
        issue_next(p, [weights], stages, s)
        with k.when(p.steps - 2 - s):
            image.load(first + s + 1)
        multiply(s % stages)


Store = Callable[[tuple[Index, Index, Index], Index, Sequence[Expr]], None]
"""Stores the results of a position of y, without halos, and of four channels, from their sums."""


def store_results(p: GroupContext, acc: Tensor, into: Store | Tensor) -> None:
    """Store a thread's results four channels of a position at a time, or where products are in parts their sums in a
    tensor."""
    k, s, tile = p.k, p.s, p.tile
    with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols // 4) as j:
        (number, at, within), quad = p.at(i), p.quad(j)
        with k.when(*within, *past_quads(s, quad, tile.n)):
            store_quad(p, into, number, at, quad, [acc[i, j * 4 + c] for c in range(4)])


def store_quad(
    p: GroupContext,
    into: Store | Tensor,
    number: Index,
    at: tuple[Index, Index, Index],
    quad: Index,
    sums: Sequence[Expr],
) -> None:
    """Store four channels of the position ``at``, which has this number among all."""
    if isinstance(into, Tensor):
        into.vec(4)[p.part, quad, number, 0] = vector4(*sums)
    else:
        into(stored_at(p.s, at), quad, sums)


@contextmanager
def own_parts(p: GroupContext, parts: int) -> Iterator[tuple[Index, Index]]:
    """A thread's share of the parts of a copy: (number among its own, number)."""
    k, threads = p.k, p.tile.threads
    with k.unroll("e", -(-parts // threads)) as e:
        part = p.thread + e * threads
        with k.when(*([parts - 1 - part] if parts % threads else [])):
            yield e, part


Part = tuple[tuple[Index, ...], Buffer, tuple[Index, ...], int]
"""Facts that are negative where a part is filled, where its first element lies otherwise, and what fills it."""


@dataclass(frozen=True, eq=False)
class _Copy:
    """The elements that a block copies to shared memory in a step, in ``parts`` of ``lanes`` elements; those of a
    thread are in registers between.  Floats of 16 bits become f32 when they are stored there."""

    p: GroupContext
    shared: Tensor
    registers: Tensor
    parts: int
    lanes: int
    image: bool

    @property
    def dtype(self) -> DType:
        """The type of what is copied."""
        return (self.p.x if self.image else self.p.w).buffer.type.dtype

    def value(self, part: Part) -> Expr:
        """The elements of a part."""
        facts, buffer, at, fill = part
        other = fill if self.p.dtype is I32 else float(fill)
        return guarded(facts, Load(buffer, at, Type(self.dtype, self.lanes)), other)

    @classmethod
    def of_image(cls, p: GroupContext) -> _Copy:
        lanes, parts = p.depth.wide, p.depth.groups * p.tile.m
        return cls(p, p.xs, _registers(p, "px", parts, lanes, p.s.x.dtype), parts, lanes, True)

    @classmethod
    def of_weights(cls, p: GroupContext) -> _Copy:
        lanes = 4 if p.s.packed or p.s.y.channels % 4 == 0 else 1
        parts = p.tile.k * p.tile.n // lanes
        return cls(p, p.ws, _registers(p, "pw", parts, lanes, p.s.weights), parts, lanes, False)

    def load(self, step: Index) -> None:
        """From memory to registers."""
        with own_parts(self.p, self.parts) as (e, part):
            self.registers[e] = self.value(self.of_x(step, part) if self.image else self.of_w(step, part))

    def store(self, stage: Index) -> None:
        """From registers to shared memory."""
        p, k = self.p, self.p.k
        with own_parts(self.p, self.parts) as (e, part):
            value = self.registers[e]
            k.store(
                self.shared.buffer, self.place(stage, part), value if value.type.dtype is p.dtype else loaded(value)
            )

    def issue(self, step: Index, stage: Index) -> None:
        """From memory to shared memory, asynchronously."""
        with own_parts(self.p, self.parts) as (_, part):
            value = self.value(self.of_x(step, part) if self.image else self.of_w(step, part))
            self.p.k.copy(self.shared.buffer, self.place(stage, part), value)

    def place(self, stage: Index, part: Index) -> tuple[Index, ...]:
        """Where a part lies in shared memory."""
        p = self.p
        return p.x_place(stage, *p.x_part(part)) if self.image else p.w_place(stage, part, self.lanes)

    def of_w(self, step: Index, part: Index) -> Part:
        """``lanes`` weights of an element of the image."""
        p, lanes = self.p, self.lanes
        if p.images is None or p.s.packed:
            return (), p.w.buffer, (p.across, step, part * lanes), 0
        row, col = (
            step * p.tile.k + part // (p.tile.n // lanes),
            p.across * p.tile.n + part % (p.tile.n // lanes) * lanes,
        )
        depth, width = p.s.x.channels, p.s.y.channels
        facts = [depth - 1 - row] * (depth % p.tile.k > 0) + [width - 1 - col] * (width % p.tile.n > 0)
        return tuple(facts), p.w.buffer, (p.images[2], row, col), 0

    def of_x(self, step: Index, part: Index) -> Part:
        """``lanes`` elements of the image at one position, or what is beside it."""
        s, m = self.p.s, self.p.tile.m
        group, position = self.p.x_part(part)
        ky, kx, block, lane, inside = self.source(step, group)
        image, row, col, within = place(s, self.p.down * m + position, m)
        image = self.p.images[1] if self.p.images else image
        row = row * s.stride[0] + ky * s.dilation[0] - s.top
        col = col * s.stride[1] + kx * s.dilation[1] - s.left
        beside = *_beside(s, 0, row), *_beside(s, 1, col)
        where = image, block, row + s.x.top, col + s.x.left, lane
        # Past the last position, and past the last tap, whose weights are zeros, any element will do.
        return (*within, *inside, *beside), self.p.x.buffer, where, self.p.fill if beside else 0

    def source(self, step: Index, group: Index) -> tuple[Index, Index, Index, Index, list[Index]]:
        """Row and column of the tap, block and element in it of a group of a step, and what is negative past the
        last."""
        s, depth = self.p.s, self.p.depth
        if depth.flat:
            number = step * depth.groups + group
            unit, ky, kx = number // s.taps, number // s.kernel[1] % s.kernel[0], number % s.kernel[1]
            inside = [] if s.taps * s.x.channels % depth.groups == 0 else [s.taps * s.x.channels - 1 - number]
            block, lane = (unit, Index()) if s.x.block == 1 else (unit // s.x.block, unit % s.x.block)
            return ky, kx, block, lane, inside
        if depth.together > 1:
            tap, unit = step * depth.together + group // depth.each, group % depth.each
            units = s.x.blocks * s.x.block // depth.wide
            inside = [units - 1 - unit] * (depth.each > units)
            inside += [s.taps - 1 - tap] * (depth.steps * depth.together > s.taps)
            block, lane = (unit, Index()) if s.x.block == depth.wide else (Index(), unit * depth.wide)
            return tap // s.kernel[1], tap % s.kernel[1], block, lane, inside
        # ptxas miscompiles the quotient of a product's two steps: (s + 1) % 2 where s is known to be 0.
        tap, chunk = (Index(), step) if s.taps == 1 else (step // depth.chunks, step % depth.chunks)
        unit, units = chunk * depth.groups + group, s.x.blocks * s.x.block // depth.wide
        inside = [] if depth.chunks * depth.groups == units else [units - 1 - unit]
        block, lane = (unit, Index()) if s.x.block == depth.wide else (Index(), unit * depth.wide)
        return tap // s.kernel[1], tap % s.kernel[1], block, lane, inside


def _registers(p: GroupContext, name: str, parts: int, lanes: int, dtype: DType) -> Tensor:
    """Registers for a thread's share of a copy, set to zero where it may have none."""
    count = -(-parts // p.tile.threads)
    registers = p.k.local(name, count, dtype=dtype, lanes=lanes)
    if parts % p.tile.threads:
        with p.k.unroll("e", registers.buffer.shape[0].const) as e:
            registers[e] = 0 if p.dtype is I32 else 0.0
    return registers


def _beside(s: Conv, axis: int, at: Index) -> list[Index]:
    """Facts that are negative where a tap lies before or past the image along an axis."""
    before, past = s.border(axis)
    size = (s.x.h, s.x.w)[axis]
    return [at] * (before > 0) + [size - 1 - at] * past
