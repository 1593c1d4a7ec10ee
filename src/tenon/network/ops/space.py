"""DepthToSpace and SpaceToDepth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.move import AffineIndex, Piece, along, move
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.sizes import exact
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Case, Input, Layouts, Operator, Output, Site, Step, register, typed
from tenon.network.ops.move import kept
from tenon.network.ops.reach import Operands, Reach, Reaches, alike


@register
@dataclass(frozen=True)
class DepthToSpace(Operator):
    """[N, b * b * C, H, W] to [N, C, H * b, W * b].  ``mode`` DCR: the position in a square is the outer part of the
    channel index, CRD: the inner part."""

    blocksize: int = 1
    mode: str = "DCR"
    rearranges: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        b = self.blocksize
        if x.rank != 4 or b < 1 or x.dims[1] % (b * b):
            raise ShapeError(f"DepthToSpace: {list(x.dims)} has no channels for squares of {b} x {b}")
        n, c, h, w = x.dims
        return (TensorType(x.dtype, (n, c // (b * b), h * b, w * b)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        n, c, h, w = node.extents(0)
        b = self.blocksize
        return node.same([n, exact(c, b * b), h * b, w * b])

    def reference(self, x: Array) -> Array:
        n, c, h, w = x.shape
        b, per = self.blocksize, c // self.blocksize**2
        if self.mode == "DCR":
            split = x.reshape(n, b, b, per, h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            split = x.reshape(n, per, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return split.reshape(n, per, h * b, w * b)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        if axis == 1:
            return None
        return alike(inputs, 0) if axis == 0 else (Reach(axis, 1, 0, self.blocksize),)

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        per = y.dims[1]
        inner, outer = (1, per) if self.mode == "DCR" else (self.blocksize**2, 1)
        piece = _squares(x.dims, per, self.blocksize, inner, outer, deep=0)
        return [Step(move("depth_to_space", x, y, (piece,), site.machine), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(2), ((2, 12, 2, 3),), label="dcr")
        yield Case(cls(2, "CRD"), ((1, 20, 2, 3),), label="crd")
        yield Case(cls(2), ((1, 64, 2, 1),), label="whole_blocks")
        yield Case(cls(3, "CRD"), ((1, 9, 2, 2),), label="one_channel")


@register
@dataclass(frozen=True)
class SpaceToDepth(Operator):
    """[N, C, H * b, W * b] to [N, b * b * C, H, W]: the position in a square is the outer part of the channel index."""

    blocksize: int = 1
    rearranges: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        b = self.blocksize
        if x.rank != 4 or b < 1 or x.dims[2] % b or x.dims[3] % b:
            raise ShapeError(f"SpaceToDepth: {list(x.dims)} cannot be cut into squares of {b} x {b}")
        n, c, h, w = x.dims
        return (TensorType(x.dtype, (n, c * b * b, h // b, w // b)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        n, c, h, w = node.extents(0)
        b = self.blocksize
        return node.same([n, c * (b * b), exact(h, b), exact(w, b)])

    def reference(self, x: Array) -> Array:
        n, c, h, w = x.shape
        b = self.blocksize
        split = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
        return np.ascontiguousarray(split).reshape(n, c * b * b, h // b, w // b)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        if axis == 1:
            return None
        return alike(inputs, 0) if axis == 0 else (Reach(axis, self.blocksize),)

    def layouts(self, site: Site) -> Layouts:
        return kept(site)

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        piece = _squares(y.dims, x.dims[1], self.blocksize, 1, x.dims[1], deep=1)
        return [Step(move("space_to_depth", x, y, (piece,), site.machine), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(2), ((2, 3, 4, 6),), label="image")
        yield Case(cls(2), ((1, 16, 2, 4),), label="whole_blocks")
        yield Case(cls(3), ((1, 5, 3, 6),), label="threes")


def _squares(deep_dims: tuple[int, ...], per: int, b: int, inner: int, outer: int, *, deep: int) -> Piece:
    """Loops (n, c, h, i, w, j): channel (i * b + j) * outer + c * inner of the deep side is pixel (h * b + i,
    w * b + j) of channel c of the wide one.  The target is the deep side when ``deep``."""
    n, _, h, w = deep_dims
    channel = AffineIndex(0, tuple((loop, k) for loop, k in ((1, inner), (3, b * outer), (5, outer))))
    depth = (along(0), channel, along(2), along(4))
    wide = (along(0), along(1), AffineIndex(0, ((2, b), (3, 1))), AffineIndex(0, ((4, b), (5, 1))))
    extents = (n, per, h, b, w, b)
    return Piece(extents, depth, wide) if deep else Piece(extents, wide, depth)
