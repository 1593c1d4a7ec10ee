"""Convolution and matrix product of bytes in work groups, requantised: tiles as of ``tiled``, of words.

Four neighbouring channels are one word, of activations and of weights, whose products a device adds up at once, and
four neighbouring results are stored as one.  Sums are exact: neither tiles nor parts change a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, cast, op, vector4
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import GroupContext, group_context, in_steps, store_results
from tenon.machine.kernels.group_tiles import (
    Depth,
    GroupTile,
    about,
    in_words,
    name_of,
    place,
    quad_of,
    stored_at,
    sums_shape,
)
from tenon.machine.kernels.integer_conv import ONES, IntegerConv, IntegerEnds
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

BYTES = (DType.I8, DType.U8)


def supported(s: Conv, machine: Machine) -> bool:
    """Whether a layer can be computed so: one group, bytes in blocks of whole words, constant weights."""
    bytes = s.x.dtype in machine.fours and s.weights is DType.I8 and not machine.narrow_fours
    whole = s.x.block % 4 == 0 and (s.y.block == 4 or s.y.blocks == 1)
    return bytes and whole and s.groups == 1 and s.packed and s.taps > 0 and not s.paired


def repeated(byte: int) -> int:
    """A word of four equal bytes."""
    word = (byte & 255) * ONES
    return word - (1 << 32) if word >> 31 else word


def pack(weights: Array, s: IntegerConv, tile: GroupTile) -> Array:
    """``group_tiles.pack`` of words, from bytes [channels out, channels in, kh, kw]; channels past the last one have
    the zero point."""
    return group_tiles.pack(as_words(weights, s), in_words(s.conv), tile, repeated(s.weight_zero))


def as_words(weights: Array, s: IntegerConv) -> Array:
    """i32 [channels out, words, kh, kw] of bytes [channels out, channels in, kh, kw]."""
    image = s.conv.x
    spare = image.blocks * image.block - image.channels
    whole = np.pad(weights, ((0, 0), (0, spare), (0, 0), (0, 0)), constant_values=s.weight_zero).astype(np.int8)
    fours = whole.reshape(len(whole), -1, 4, *whole.shape[2:])
    return np.ascontiguousarray(np.moveaxis(fours, 2, -1)).view(np.int32)[..., 0]


@lru_cache(maxsize=512)
def tiled(s: IntegerConv, tile: GroupTile, machine: Machine) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), rows of factors, mask when ``conv.clear``,
    operands, y; with splits only x, weights and the sums in i32 [splits, channels / 4, positions, 4]."""
    c = in_words(s.conv)
    k = Builder(f"integer_{name_of(s.conv)}", f"{about(s.conv, tile)}, in integers")
    x = k.param("x", *c.x.shape, dtype=I32)
    w = k.param("w", -(-c.padded // tile.n), Depth.of(c, tile.k).steps, tile.k * tile.n, dtype=I32)
    into = (
        k.param("sums", *sums_shape(c, tile), dtype=I32, out=True)
        if tile.splits > 1
        else partial(store, IntegerEnds.params(k, s, y_words=by_words(s.conv)))
    )
    with group_context(k, c, tile, x, w, repeated(s.fill)) as p:
        store_results(p, _products(p, s, machine), into)
    return k.done()


def _products(p: GroupContext, s: IntegerConv, machine: Machine) -> Tensor:
    """The sums of a thread's results; those of weights with a zero point have that times the inputs taken off."""
    k, tile = p.k, p.tile
    acc = k.local("a", tile.rows, tile.cols, dtype=I32)
    inputs = k.local("z", tile.rows, dtype=I32) if s.weight_zero else None
    with k.unroll("i", tile.rows) as i:
        if inputs is not None:
            inputs[i] = 0
        with k.unroll("j", tile.cols) as j:
            acc[i, j] = 0
    in_steps(p, lambda stage: multiply(p, acc, inputs, stage, machine.fours[s.conv.x.dtype].operation))
    if inputs is not None:
        with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols) as j:
            acc[i, j] = acc[i, j] - inputs[i] * s.weight_zero
    return acc


def multiply(p: GroupContext, acc: Tensor, inputs: Tensor | None, stage: Index, product: str) -> None:
    """Add the products of one step."""
    k, tile, wide = p.k, p.tile, p.depth.wide
    apart = tile.m // tile.rows  # neighbouring threads have neighbouring positions
    with k.loop("g", p.depth.groups) as g, k.unroll("c", wide) as c:
        weights = [k.let("w", p.ws[stage, p.weight(g * wide + c, j)]) for j in range(tile.cols)]
        for i in range(tile.rows):
            value = k.let("v", p.xs[stage, g, p.tx + apart * i, c])
            if inputs is not None:
                inputs[i] = op(product, inputs[i], value, Const(ONES, Type(I32)))
            for j, weight in enumerate(weights):
                acc[i, j] = op(product, acc[i, j], value, weight)


def by_words(s: Conv) -> bool:
    """Whether four neighbouring results are bytes of one word."""
    return s.y.dtype in BYTES and s.y.block % 4 == 0


def store(ends: IntegerEnds, at: tuple[Index, Index, Index], quad: Index, sums: Sequence[Expr]) -> None:
    """The results of four channels of a position of y, without halos, from sums without their bias; single ones where
    the last four are not all there."""
    k, s, where = ends.k, ends.s.conv, quad_of(ends.s.conv, at, quad)
    if s.padded % 4:
        for lane, total in enumerate(sums):
            channel = quad * 4 + lane
            with k.when(s.padded - 1 - channel):
                value = ends.result(channel, 1, total + ends.b[channel], ends.extra(at[0], channel, at[1], at[2], 1))
                ends.y[*where[:-1], where[-1] + lane] = value
        return
    extra, values = _operands(ends, at, quad), list[Expr]()
    for lane, total in enumerate(sums):
        channel = quad * 4 + lane
        values.append(k.let("r", ends.result(channel, 1, total + ends.b[channel], extra[lane])))
    if by_words(s):
        ends.y[*where[:-1], Index() if s.y.block == 4 else quad] = word_of(values)
    elif s.y.dtype in (F32, I32):
        k.store(ends.y.buffer, where, vector4(*values))
    else:
        for lane, value in enumerate(values):
            ends.y[*where[:-1], where[-1] + lane] = value


def _operands(ends: IntegerEnds, at: tuple[Index, Index, Index], quad: Index) -> list[list[Expr]]:
    """The elements of the epilogue's operands for each of four channels; whole words are loaded before any is
    stored."""
    k, (n, row, col) = ends.k, at
    each: list[list[Expr]] = [[], [], [], []]
    for image, tensor in zip(ends.s.conv.operands, ends.operands, strict=True):
        whole = tensor.buffer.type.dtype is not image.dtype
        word = k.let("four", tensor[image.place(n, quad * 4, row, col, 4)]) if whole else None
        for lane, listed in enumerate(each):
            if word is None:
                listed.append(tensor[image.at(n, quad * 4 + lane, row, col, 1)])
            else:
                listed.append(cast(byte_of(word, lane, signed=image.dtype is DType.I8), image.dtype))
    return each


def word_of(values: Sequence[Expr]) -> Expr:
    """Four bytes as a word, the first one lowest."""
    first, second, third, last = (cast(value, I32) for value in values)
    low = op("or", first & 255, (second & 255) << 8)
    return op("or", low, op("or", (third & 255) << 16, last << 24))


def byte_of(word: Expr, lane: int, *, signed: bool = True) -> Expr:
    """A byte of a word as a number."""
    if signed:
        return (word << (24 - 8 * lane)) >> 24
    return (word >> (8 * lane)) & 255


@lru_cache(maxsize=512)
def joined_parts(s: IntegerConv, tile: GroupTile) -> Kernel:
    """The results of sums in parts.  Parameters: the sums, bias (padded), rows of factors, mask when ``conv.clear``,
    operands, y."""
    c = s.conv
    k = Builder(f"integer_{name_of(c)}_sum", f"Sums of {tile.splits} parts each, requantised")
    splits, quads, count, _ = sums_shape(c, tile)
    sums = k.param("sums", splits, quads, count, 4, dtype=I32)
    ends = IntegerEnds.params(k, s, y_words=by_words(c))
    with k.loop("q", quads, kind="parallel") as quad, k.loop("p", count, kind="parallel") as at:
        values = []
        for lane in range(4):
            value = sums[0, quad, at, lane]
            for part in range(1, splits):
                value = value + sums[part, quad, at, lane]
            values.append(value)
        image, row, col, _ = place(c, at, 1)
        store(ends, stored_at(c, (image, row, col)), quad, values)
    return k.done()
