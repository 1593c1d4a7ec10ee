"""Products of two matrices of quantised integers, both computed at run time.

Sources: the TensorFlow Lite quantization specification (BATCH_MATMUL); ONNX's QLinearMatMul.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms.integer_tiled import product_tile
from tenon.machine.algorithms.integers import product_tiles
from tenon.machine.algorithms.outer_words import tile_of as outer_tile
from tenon.machine.kernels import integer_matmul as kernels
from tenon.machine.kernels import integer_matmul_tiled as in_groups
from tenon.machine.kernels import integer_matmul_words as by_words
from tenon.machine.kernels.group_tiles import GroupTile
from tenon.machine.kernels.integer_conv import flips as flips_of
from tenon.machine.kernels.outer_matrices import panel_bytes
from tenon.machine.kernels.outer_words import column_sums, of_one, outer_fours, outer_words
from tenon.machine.kernels.requantize import Requantize, Rounding
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, ROW_MAJOR, DType, Quant, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
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
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.integer_gemm import row_image
from tenon.network.ops.integer_product import ACTIVATIONS, SUMMED
from tenon.network.ops.reach import Operands, Reach, Reaches, broadcast_reach
from tenon.network.ops.requantize import Factors, clamped, quantized_multiplier, row_type


@register
@dataclass(frozen=True)
class IntegerMatMul(Operator):
    """Matrices a [batch..., M, K] times b [batch..., K, N], batches broadcast.

    The sum of (a - ``zeros[0]``) * (b - ``zeros[1]``) times ``fixed``, a fixed-point factor, or ``factor`` in f32 with
    the rounding "float", plus ``zeros[2]``, is clamped between ``low`` and ``high``.  ``scale`` is that of the result.

    With the rounding "none" the result is the sums, in i32.  The third and the fourth input, where they are given, are
    integers of i32 that are subtracted from a and b, too: zero points that are known at run time.
    """

    rounding: Rounding = "double"
    zeros: tuple[int, int, int] = (0, 0, 0)
    low: int = -128
    high: int = 127
    to: str = "i8"
    scale: float = 1.0
    factor: float = 1.0
    fixed: Fixed = (0, 0)
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (2, 4)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    fusable: ClassVar[bool] = True

    @property
    def fused_types(self) -> frozenset[DType]:
        return SUMMED

    @property
    def takes_epilogue(self) -> bool:
        return self.rounding == "none"

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        return row_image(operand, output.dims) is not None

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        a, b, *zeros = typed(inputs)
        if any(t.dtype not in ACTIVATIONS for t in (a, b)):
            raise ShapeError(f"{self.name}: {a} and {b} are not quantised integers")
        if any(t.dtype is not I32 or t.size != 1 for t in zeros) or (zeros and self.rounding != "none"):
            raise ShapeError(f"{self.name}: {', '.join(map(str, zeros))} are not zero points of i32, each one number")
        if a.rank < 2 or b.rank < 2 or a.dims[-1] != b.dims[-2]:
            raise ShapeError(f"{self.name}: {list(a.dims)} and {list(b.dims)} are not two matrices that fit")
        try:
            batch = np.broadcast_shapes(a.dims[:-2], b.dims[:-2])
        except ValueError:
            raise ShapeError(f"{self.name}: batches of {list(a.dims)} and {list(b.dims)} do not broadcast") from None
        dims = (*map(int, batch), a.dims[-2], b.dims[-1])
        if self.rounding == "none":
            return (TensorType(I32, dims),)
        return (TensorType(DType(self.to), dims, quant=Quant((self.scale,), (self.zeros[2],))),)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        a, b = inputs[0], inputs[1]
        assert a is not None
        assert b is not None
        batch, rows, cols = broadcast_reach((a, b), outputs[0], axis), Reach(a.type.rank - 2), Reach(b.type.rank - 1)
        read = {0: (rows, None), 1: (None, cols)}.get(axis - outputs[0].rank + 2, batch)
        return (*read, *(None for _ in inputs[2:]))

    def zero_points(self) -> tuple[int, int]:
        return self.zeros[:2]

    def factors(self) -> Factors:
        return Factors.single(self.rounding, self.factor, self.fixed)

    def reference(self, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
        left, right = (
            x.astype(np.int64) - known - (0 if zero is None else int(zero.reshape(())))
            for x, known, zero in zip((a, b), self.zeros, (a_zero, b_zero), strict=False)
        )
        if self.rounding == "none":
            sums: Array = (left @ right).astype(np.int32)
            return sums
        return clamped(self.factors().apply(left @ right) + self.zeros[2], self.low, self.high, DType(self.to))

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR,) * len(site.inputs), (ROW_MAJOR,))

    def product(self, a: TensorType, b: TensorType, y: TensorType) -> kernels.IntegerMatMul:
        """The product of operands of these types, requantised."""
        size, batch = _extents(a, b, y)
        known = self.factors()
        factors = tuple((row[0].item(), row_type(self.rounding, name)) for name, row in known.rows().items())
        stage = known.kernel(self.zeros[2], self.low, self.high, DType(self.to))
        return kernels.IntegerMatMul(size, batch, self.zeros[:2], (a.dtype, b.dtype), stage, factors, y.dtype)

    def described(self, site: Site) -> kernels.IntegerMatMul:
        """The product, and what its sums become."""
        a, b, y = site.input(0), site.input(1), site.output
        if self.rounding != "none":
            return self.product(a, b, y)
        size, batch = _extents(a, b, y)
        images = (row_image(site.input(i), y.dims) for i in site.extras)
        return kernels.IntegerMatMul(
            size,
            batch,
            self.zeros[:2],
            (a.dtype, b.dtype),
            Requantize("none", 0, 0, 0, I32, ()),
            (),
            y.dtype,
            (_dynamic(site, 2), _dynamic(site, 3)),
            tuple(i for i in images if i is not None),
            site.epilogue,
        )

    def lower(self, site: Site) -> list[Step]:
        s = self.described(site)
        zeros = [Input(2 + i) for i, dynamic in enumerate(s.dynamic) if dynamic]
        rest: tuple[Arg, ...] = (*map(Input, site.extras), Output())
        if not by_words.applies(s, site.machine):
            return [Step(kernels.integer_matmul(s, site.machine), (Input(0), Input(1), *zeros, *rest))]
        words = by_words.Words(s, site.machine)
        tile = product_tile(in_groups.in_words(words), site.machine)
        return _by_words(words, zeros, rest) if tile is None else _in_groups(words, tile, zeros, rest)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return outputs[0].size * inputs[0].dims[-1]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(12)
        for a, b in (((1, 3, 5), (1, 5, 7)), ((2, 1, 3, 8), (4, 8, 19)), ((6, 4), (3, 4, 1)), ((2, 3, 1), (1, 17))):
            for rounding in ("double", "single", "float"):
                left, right = (rng.integers(-128, 128, dims).astype(np.int8) for dims in (a, b))
                op = cls(rounding, (3, -7, 11), factor=0.004, fixed=quantized_multiplier(0.004))
                yield Case(op, (left, right), (), 0, label=f"{len(a)}{len(b)}x{b[-1]}_{rounding}")
        u8 = rng.integers(0, 256, (2, 5, 6)).astype(np.uint8)
        op = cls("double", (131, 7, 120), 0, 255, "u8", fixed=quantized_multiplier(0.003))
        yield Case(op, (u8, np.swapaxes(u8, 1, 2).copy()), (), 0, label="u8")
        i16 = rng.integers(-(1 << 15), 1 << 15, (2, 5, 6)).astype(np.int16)
        op = cls("reduced", (0, 0, 0), -(1 << 15), (1 << 15) - 1, "i16", fixed=quantized_multiplier(1e-5))
        yield Case(op, (i16, np.swapaxes(i16, 1, 2).copy()), (), 0, label="i16")
        i8, fixed = rng.integers(-128, 128, (6, 7)).astype(np.int8), quantized_multiplier(3e-3)
        for op in (
            cls("reduced", low=-32768, high=32767, to="i16", fixed=fixed),
            cls("single", low=-32768, high=32767, to="i16", fixed=fixed),
        ):
            yield Case(op, (i16[0], i8), (), 0, label=f"i16_i8_{op.rounding}")
        yield from _sums(cls, rng)


def _sums(cls: Callable[..., IntegerMatMul], rng: np.random.Generator) -> Iterable[Case]:
    """Sums as results, of all types of bytes, with zero points known when compiling, at run time, in part, or 0."""
    dtypes: tuple[type[np.integer[Any]], ...] = (np.int8, np.uint8)
    sizes = ((2, 5, 8, 19), (1, 3, 7, 33), (1, 1, 6, 5), (3, 9, 3, 1), (1, 7, 70, 36))
    for i, (size, left, right) in enumerate(itertools.product(sizes, dtypes, dtypes)):
        n, m, deep, wide = size
        a = rng.integers(*_ends(left), (n, m, deep)).astype(left)
        b = rng.integers(*_ends(right), (n, deep, wide)).astype(right)
        p, q = (np.array([rng.integers(*_ends(dtype))], np.int32) for dtype in (left, right))
        known = (int(p[0]), int(q[0]), 0)
        label = f"sums_{m}x{deep}x{wide}_{np.dtype(left).name}_{np.dtype(right).name}"
        operands, zeros = (((p, q), (0, 0, 0)), ((p, None), (0, 3, 0)), ((None, q), (0, 0, 0)), ((), known))[i % 4]
        yield Case(cls("none", zeros, to="i32"), (a, b, *operands), (), 0, label=label)
        yield Case(cls("none", to="i32"), (a, b), (), 0, label=f"{label}_no_zeros")


def _ends(dtype: type[np.integer[Any]]) -> tuple[int, int]:
    kind = np.iinfo(dtype)
    return kind.min, kind.max + 1


def _dynamic(site: Site, i: int) -> bool:
    """Whether an operand is a zero point: those of an epilogue come after the operator's own."""
    return site.has(i) and i not in site.extras


def _in_groups(p: by_words.Words, tile: GroupTile, zeros: Sequence[Input], rest: Sequence[Arg]) -> list[Step]:
    """Pack, sum up what zero points need, and multiply in work groups."""
    left, right = p.s.dynamic
    rows: Arg = Scratch("rows", 4 * math.prod(p.rows)) if p.ragged else Input(0)
    words = Scratch("words", 4 * p.s.matrices[1] * p.deep * p.s.size[2])
    steps = [Step(in_groups.pack_rows(p), (Input(0), rows))] if p.ragged else []
    steps.append(Step(in_groups.pack_words(p), (Input(1), words)))
    more: list[Arg] = []
    if p.offsets[0]:
        more.append(Scratch("columns", 4 * p.s.matrices[1] * p.s.size[2]))
        steps.append(Step(in_groups.column_sums(p), (words, *zeros, more[-1])))
    if p.offsets[1]:
        more.append(Scratch("sums", 4 * math.prod(p.rows[:2])))
        steps.append(Step(by_words.row_sums(p), (rows, *(zeros[left:] if right else ()), more[-1])))
    return [*steps, Step(in_groups.product(p, tile), (rows, words, *more, *rest))]


def _by_words(p: by_words.Words, zeros: Sequence[Input], rest: Sequence[Arg]) -> list[Step]:
    """Pack, sum up what zero points need, multiply."""
    blocks = outer_tile(p, p.machine)
    p = replace(p, in_rows=blocks is not None)
    steps, rows = left_steps(p, Input(0), "")
    packing, right = right_steps(p, Input(1), "", zeros)
    steps += packing
    summing, sums = row_steps(p, rows, "", zeros)
    if blocks is not None:
        panels = [Scratch(f"panel{i}", size, per_thread=True) for i, size in enumerate(panel_bytes(of_one(p), blocks))]
        return [*steps, *summing, Step(outer_words(p, p.machine, blocks), (rows, *right, *sums, *panels, *rest))]
    (tile,) = product_tiles(p.conv, p.machine, 1)
    return [*steps, *summing, Step(by_words.product(p, tile), (rows, *right, *sums, *rest))]


def left_steps(p: by_words.Words, given: Arg, name: str) -> tuple[list[Step], Arg]:
    """Left matrices in words, copied where their rows are not whole words."""
    if not p.ragged:
        return [], given
    rows = Scratch(f"rows{name}", 4 * math.prod(p.rows))
    return [Step(by_words.pack_rows(p), (given, rows))], rows


def right_steps(p: by_words.Words, given: Arg, name: str, zeros: Sequence[Input] = ()) -> tuple[list[Step], list[Arg]]:
    """Right matrices in panels, and the arguments of ``kernels.integer_matmul_words.right_params``."""
    panels = Scratch(f"panels{name}", 4 * math.prod(p.panels))
    columns = [Scratch(f"columns{name}", 4 * math.prod(p.panels) // p.deep)] if p.offsets[0] else []
    read = zeros if p.offsets[0] else ()
    if p.in_rows:
        packing = [Step(outer_fours(p), (given, panels))]
        return [*packing, *(Step(column_sums(p), (panels, *read, each)) for each in columns)], [panels, *columns]
    flips = [Weights(flips_of(p.machine))] if p.shifts[0] else []
    return [Step(by_words.pack_panels(p), (given, *read, panels, *columns))], [panels, *flips, *columns]


def row_steps(p: by_words.Words, rows: Arg, name: str, zeros: Sequence[Input] = ()) -> tuple[list[Step], list[Arg]]:
    """The amounts that right zero points lower sums of rows by, where they do."""
    if not p.offsets[1]:
        return [], []
    sums = Scratch(f"sums{name}", 4 * math.prod(p.rows[:2]))
    read = zeros[p.s.dynamic[0] :] if p.s.dynamic[1] else ()
    return [Step(by_words.row_sums(p), (rows, *read, sums))], [sums]


def _extents(
    a: TensorType, b: TensorType, y: TensorType
) -> tuple[tuple[int, int, int], tuple[tuple[int, int, int], ...]]:
    """Rows, depth and columns of a product, and its outer loops."""
    return (y.dims[-2], a.dims[-1], y.dims[-1]), _batch(a.dims[:-2], b.dims[:-2], y.dims[:-2])


def _batch(a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """For each outer axis of the result its extent and the steps of both operands, zero where they are broadcast."""

    def steps(dims: tuple[int, ...]) -> list[int]:
        full = (1,) * (len(y) - len(dims)) + dims
        return [0 if n == 1 else math.prod(full[i + 1 :]) for i, n in enumerate(full)]

    return tuple(zip(y, steps(a), steps(b), strict=True))
