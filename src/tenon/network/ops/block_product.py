"""Weights in blocks (``kernels.block_formats``): products of activations in bytes with them, and rows as floats.

The weights are a constant of u8 [outputs, bytes of a row], as files hold them.  None of these operators is ONNX's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms.block_products import by_outer_products, in_stream, in_tiles
from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernels.block_formats import FORMATS, GROUP, BlockFormat, block_parts, dequantised
from tenon.machine.kernels.block_items import block_items
from tenon.machine.kernels.block_product import block_product
from tenon.machine.kernels.block_quantize import LEAST, block_quantize
from tenon.machine.kernels.block_rows import block_rows
from tenon.machine.kernels.block_sums import BlockProduct, layer_packing
from tenon.machine.kernels.block_tiles import block_left, block_tiles, block_totals, left_words, total_parts
from tenon.machine.kernels.outer_groups import outer_groups, outer_rows, row_tiles, turned_words
from tenon.machine.kernels.stream_rows import stream_row
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import F32, I32, I64, ROW_MAJOR, DType, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
    Cost,
    ErrorBound,
    Input,
    Layouts,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    Weights,
    register,
    typed,
)
from tenon.network.ops.reach import Operands, Reach, Reaches


def packed(site: Site, number: int, format: str) -> list[Arg]:
    """The arrays of constant ``number``, as kernels read them."""
    data = site.constants[number]
    assert data is not None, "``supported`` was not asked"
    return [Weights(part) for part in layer_packing(format, site.machine).pack(data)]


def blocks_of(name: str, format: str, weights: TensorType) -> tuple[BlockFormat, int]:
    """The format of weights, and the elements of a row.  Raises ShapeError."""
    if format not in FORMATS:
        raise ShapeError(f"{name}: there is no format of blocks called '{format}'")
    if weights.dtype is not DType.U8 or weights.rank != 2:
        raise ShapeError(f"{name}: weights in blocks are rows of bytes, not {weights}")
    try:
        return FORMATS[format], FORMATS[format].columns(weights.dims[1])
    except ValueError as error:
        raise ShapeError(f"{name}: {error}") from None


def constant_only(site: Site, number: int) -> str:
    """Why weights in blocks cannot be compiled."""
    return "" if site.constants[number] is not None else "weights in blocks must be constant"


@register
@dataclass(frozen=True)
class BlockQuantize(Operator):
    """x f32 [..., n], n a multiple of 32, in bytes.  Results: i8 [..., n], f32 [..., n / 32] and i32 [..., n / 16].

    The scale of 32 elements is their largest magnitude over 127 (0 if that is below 2**-126), elements are multiplied
    by its reciprocal and rounded, halves to even; the last result has the sums of 16 bytes each.
    """

    arity: ClassVar[tuple[int, int]] = (1, 1)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.dtype is not F32 or not x.rank or x.dims[-1] % GROUP:
            raise ShapeError(f"BlockQuantize: {x} is not f32 with rows of a multiple of {GROUP} elements")
        *rows, n = x.dims
        shapes = ((DType.I8, n), (F32, n // GROUP), (I32, n // GROUP * 2))
        return tuple(TensorType(dtype, (*rows, width)) for dtype, width in shapes)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        *rows, n = node.extents(0)
        return node.same([*rows, n], [*rows, n.number // GROUP], [*rows, n.number // GROUP * 2])

    def reference(self, x: Array) -> tuple[Array, ...]:
        groups = x.reshape(*x.shape[:-1], -1, GROUP)
        scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float32)
        small = scale < np.float32(LEAST)
        scale = np.where(small, np.float32(0), scale)
        inverse = np.where(small, np.float32(0), np.float32(1) / np.where(small, np.float32(1), scale))
        codes = np.rint(groups * inverse[..., None]).astype(np.int8)
        sums = codes.reshape(*x.shape[:-1], -1, GROUP // 2).sum(-1, dtype=np.int32)
        return codes.reshape(x.shape), scale, sums

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (Reach(axis),) if axis < outputs[output].rank - 1 else None

    def lower(self, site: Site) -> list[Step]:
        *rows, n = site.input(0).dims
        if not site.input(0).size:
            return []
        kernel = block_quantize(math.prod(rows), n, site.machine)
        return [Step(kernel, (Input(0), *map(Output, range(3))))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 64),), label="rows")
        yield Case(cls(), ((2, 800),), label="groups")
        yield Case(cls(), (np.zeros((1, 1, 32), np.float32),), label="zeros")


@register
@dataclass(frozen=True)
class BlockMatMul(Operator):
    """Inputs: the three results of BlockQuantize for x [..., n], and weights in blocks of ``format``.  x times the
    transpose of the weights, f32 [..., outputs], by the arithmetic of ``kernels.block_product``."""

    format: str = "q8_0"
    arity: ClassVar[tuple[int, int]] = (4, 4)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, scales, sums, weights = typed(inputs)
        _, columns = blocks_of(self.name, self.format, weights)
        *rows, n = x.dims
        wanted = ((*rows, n // GROUP), (*rows, n // GROUP * 2))
        if n != columns or (scales.dims, sums.dims) != wanted:
            raise ShapeError(
                f"BlockMatMul: {list(x.dims)} with scales {list(scales.dims)} and sums {list(sums.dims)} does not fit "
                f"weights of {columns} columns"
            )
        return (TensorType(F32, (*rows, weights.dims[0])),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same([*node.extents(0)[:-1], node.type(3).dims[0]])

    def reference(self, x: Array, scales: Array, sums: Array, weights: Array) -> Array:
        rows = x.reshape(-1, x.shape[-1])
        flat_scales, flat_sums = (a.reshape(len(rows), -1) for a in (scales, sums))
        y = block_arithmetic(FORMATS[self.format], rows, flat_scales, flat_sums, weights)
        return y.reshape(*x.shape[:-1], len(weights))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        own = Reach(axis)
        return (own, own, own, None) if axis < outputs[0].rank - 1 else None

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, ROW_MAJOR, ROW_MAJOR, None), (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        return constant_only(site, 3)

    def product(self, site: Site) -> BlockProduct:
        """The sizes of the kernel."""
        *rows, n = site.input(0).dims
        return BlockProduct(self.format, math.prod(rows), n, site.output.dims[-1])

    def cost(self, site: Site) -> Cost:
        return Cost(weights=site.input(3).size)

    def lower(self, site: Site) -> list[Step]:
        if not site.output.size:
            return []
        s, weights = self.product(site), packed(site, 3, self.format)
        if in_tiles(s, site.machine):
            return self._in_tiles(s, weights, site)
        if by_outer_products(s, site.machine):
            return self._by_outer_products(s, weights, site)
        kernel = block_product if site.machine.launch is None else block_items
        if in_stream(s, site.machine):
            kernel = stream_row
        return [Step(kernel(s, site.machine), (Input(0), Input(1), Input(2), *weights, Output()))]

    def _in_tiles(self, s: BlockProduct, weights: Sequence[Arg], site: Site) -> list[Step]:
        left, totals = Scratch("left", 4 * left_words(s)), list[Arg]()
        steps = [Step(block_left(s), (Input(0), left))]
        if s.weights.shifts:
            totals.append(Scratch("totals", 4 * s.rows * total_parts(s)))
            steps.append(Step(block_totals(s), (Input(2), totals[0])))
        args = (left, Input(1), *totals, *weights, Output())
        return [*steps, Step(block_tiles(s, site.machine), args)]

    def _by_outer_products(self, s: BlockProduct, weights: Sequence[Arg], site: Site) -> list[Step]:
        steps, args = list[Step](), list[Arg]()

        def turn(name: str, source: Arg, words: int, dtype: DType = F32) -> None:
            """The rows of a matrix side by side."""
            args.append(Scratch(name, 4 * row_tiles(s) * turned_words(words) * SIDE))
            steps.append(Step(outer_rows(s, words, dtype), (source, args[-1])))

        turn("left", Input(0), s.columns // 4, DType.Q8)
        turn("scales", Input(1), s.groups)
        if s.weights.shifts:
            totals = Scratch("totals", 4 * s.rows * total_parts(s))
            steps.append(Step(block_totals(s), (Input(2), totals)))
            turn("sums", totals, total_parts(s))
        return [*steps, Step(outer_groups(s, site.machine), (*args, *weights, Output()))]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return outputs[0].size * inputs[0].dims[-1]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for number, (name, format) in enumerate(_tested().items()):
            rows, outputs = ((1, 35), (5, 16), (3, 18))[number % 3]
            arrays = quantised_case(rows, max(64, format.span), outputs, format)
            yield Case(cls(name), arrays, (3,), 0.0, label=name)
        yield Case(cls("q4_0"), quantised_case(9, 96, 70, FORMATS["q4_0"]), (3,), 0.0, label="tiles")


@register
@dataclass(frozen=True)
class BlockGather(Operator):
    """Inputs: indices, weights in blocks of ``format`` [rows, bytes].  Rows by index, f32 [..., columns]."""

    format: str = "q8_0"
    arity: ClassVar[tuple[int, int]] = (2, 2)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        indices, weights = typed(inputs)
        _, columns = blocks_of(self.name, self.format, weights)
        if indices.dtype not in (I32, I64):
            raise ShapeError(f"BlockGather: indices must be i32 or i64, not {indices}")
        return (TensorType(F32, (*indices.dims, columns)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same([*node.extents(0), FORMATS[self.format].columns(node.type(1).dims[1])])

    def reference(self, indices: Array, weights: Array) -> Array:
        rows = np.clip(np.where(indices < 0, indices + len(weights), indices), 0, len(weights) - 1)
        return dequantised(FORMATS[self.format], weights[rows.reshape(-1)]).reshape(*indices.shape, -1)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (Reach(axis), None) if axis < outputs[0].rank - 1 else None

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, None), (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        return constant_only(site, 1)

    def lower(self, site: Site) -> list[Step]:
        indices, columns = site.input(0), site.output.dims[-1]
        if not site.output.size:
            return []
        rows = site.input(1).dims[0]
        kernel = block_rows(self.format, rows, columns, indices.size, indices.dtype, site.machine)
        return [Step(kernel, (Input(0), *packed(site, 1, self.format), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for name, format in _tested().items():
            weights = random_blocks(19, max(64, format.span), format)
            yield Case(cls(name), (np.array([[3, 18, 0]]), weights), (1,), 0.0, label=name)


def block_arithmetic(f: BlockFormat, x: Array, scales: Array, sums: Array, weights: Array) -> Array:
    """x i8 [rows, n] times the transpose of the weights, by the arithmetic named "blocks"."""
    parts = block_parts(f, weights)
    codes = parts.codes.astype(np.int32) - f.offset
    if parts.zero is not None:
        codes = codes - np.repeat(parts.zero.astype(np.int32), f.span, axis=1)
    result = np.zeros((len(x), len(weights)), np.float32)
    width = f.fine if f.fine else GROUP
    for group in range(x.shape[1] // GROUP):
        total = np.zeros(result.shape, np.int32)
        for start in range(group * GROUP, (group + 1) * GROUP, width):
            dots = x[:, start : start + width].astype(np.int32) @ codes[:, start : start + width].T
            total += dots if parts.fine is None else dots * parts.fine[:, start // width].astype(np.int32)
        block = group * GROUP // f.span
        term = total.astype(np.float32) * parts.scale[:, block].astype(np.float32)
        whole = sums[:, 2 * group] + sums[:, 2 * group + 1]
        if parts.shift is not None and parts.fine_shift is not None:
            own, less = parts.fine_shift.astype(np.int32), np.zeros(result.shape, np.int32)
            for start in range(group * GROUP, (group + 1) * GROUP, width):
                totals = x[:, start : start + width].sum(1, dtype=np.int32)
                less += totals[:, None] * own[:, start // width]
            term = term - less.astype(np.float32) * parts.shift[:, block].astype(np.float32)
        elif parts.shift is not None:
            term = term + whole[:, None].astype(np.float32) * parts.shift[:, block].astype(np.float32)
        result = result + term * scales[:, group, None]
    return result


def _tested() -> dict[str, BlockFormat]:
    """The formats of test cases: all of ggml, and some with f32 scales."""
    wide = ("n4_32", "n4_64_zeros", "n8_128", "n8_32_zeros")
    return {name: format for name, format in FORMATS.items() if not format.wide or name in wide}


def random_blocks(rows: int, columns: int, f: BlockFormat) -> Array:
    """Random blocks with scales of the magnitude of real ones."""
    rng = np.random.default_rng(rows * columns)
    data = rng.integers(0, 256, (rows, columns // f.span, f.nbytes), np.uint8)
    scales: Sequence[int] = {"q6_k": (208,), "q3_k": (108,), "q2_k": (80, 82)}.get(f.name, (0, 2) if f.shifts else (0,))
    if f.wide:
        floats = rng.uniform(-0.1, 0.1, (rows, columns // f.span, 1)).astype("<f4")
        data[..., :4] = floats.view(np.uint8)
        scales = ()
    for place in scales:
        halves = rng.uniform(-0.1, 0.1, (rows, columns // f.span, 1)).astype("<f2")
        data[..., place : place + 2] = halves.view(np.uint8)
    return data.reshape(rows, -1)


def quantised_case(rows: int, columns: int, outputs: int, f: BlockFormat) -> tuple[Array, ...]:
    """The operands of a BlockMatMul, at random."""
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    return (*BlockQuantize().reference(x), random_blocks(outputs, columns, f))
