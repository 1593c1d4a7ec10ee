"""Products of two matrices of quantised integers that are both computed at run time, requantised or as sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, cast
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.integer_wide import from_wide_sum
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.requantize import Requantize
from tenon.network.graph.types import I32, I64, DType


@dataclass(frozen=True)
class IntegerMatMul:
    """``size`` is (M, K, N); ``batch`` has for each outer axis its extent and the steps of both operands, in matrices.

    ``zeros`` are subtracted from the operands, of ``dtypes``, and so is a number known at run time only from those that
    are ``dynamic``; ``factors`` is one number of a type for each row of ``requantize``.  ``epilogue`` is applied to
    results before they are stored, of type ``to``; its ``operands`` are images of one row that has all rows of all
    matrices as columns.
    """

    size: tuple[int, int, int]
    batch: tuple[tuple[int, int, int], ...]
    zeros: tuple[int, int]
    dtypes: tuple[DType, DType]
    requantize: Requantize
    factors: tuple[tuple[float | int, DType], ...]
    to: DType
    dynamic: tuple[bool, bool] = (False, False)
    operands: tuple[Image, ...] = ()
    epilogue: Epilogue = identity

    @property
    def matrices(self) -> tuple[int, int]:
        """How many matrices each operand has."""
        left, right = (1 + sum((extent - 1) * steps[side] for extent, *steps in self.batch) for side in (0, 1))
        return left, right

    @property
    def products(self) -> int:
        """How many matrices the result has."""
        return math.prod(extent for extent, _, _ in self.batch)

    @property
    def wide(self) -> bool:
        """Whether sums take 64 bits."""
        return DType.I16 in self.dtypes


@dataclass(frozen=True, eq=False)
class Results:
    """Results of the sums: the operands of the epilogue, and y [rows of all matrices, N]."""

    s: IntegerMatMul
    operands: list[Tensor]
    y: Tensor

    @classmethod
    def of(cls, k: Builder, s: IntegerMatMul) -> Results:
        """Declares the parameters."""
        operands = [k.param("r", *image.shape, dtype=image.dtype) for image in s.operands]
        return cls(s, operands, k.param("y", s.products * s.size[0], s.size[2], dtype=s.to, out=True))

    def store(self, row: Index, column: Index, lanes: int, total: Expr) -> None:
        """Requantise ``lanes`` sums, apply the epilogue and store them; ``column`` counts elements."""
        s = self.s
        value = requantised(s, total)
        read = [
            broadcast(tensor.vec(image.lanes(lanes))[image.at(0, column, 0, row, lanes)], lanes)
            for image, tensor in zip(s.operands, self.operands, strict=True)
        ]
        self.y.vec(lanes)[row, column // lanes] = s.epilogue(value, *read)


def requantised(s: IntegerMatMul, total: Expr) -> Expr:
    """Sums as elements of the result, before the epilogue."""
    factors = [Const(value, Type(dtype)) for value, dtype in s.factors]
    return from_wide_sum(s.requantize, total, factors) if s.wide else s.requantize(total, factors)


def zero_points(k: Builder, dynamic: Sequence[bool]) -> list[Tensor | None]:
    """Declares a parameter i32 [1] for each zero point that is known at run time."""
    return [k.param("z", 1, dtype=I32) if each else None for each in dynamic]


@contextmanager
def batches(k: Builder, s: IntegerMatMul, *inner: int) -> Iterator[tuple[tuple[Index, Index, Index], Sequence[str]]]:
    """Loops over the outer axes: the matrix of each operand and of the result, and the kinds of the ``inner`` loops."""
    kinds, _ = deal(*(extent for extent, _, _ in s.batch), *inner)
    with ExitStack() as stack:
        a = b = y = index(0)
        for (extent, step_a, step_b), kind in zip(s.batch, kinds, strict=False):
            i = stack.enter_context(k.loop("i", extent, kind=kind))
            a, b, y = a + i * step_a, b + i * step_b, y * extent + i
        yield (a, b, y), kinds[len(s.batch) :]


@lru_cache(maxsize=256)
def integer_matmul(s: IntegerMatMul, machine: Machine) -> Kernel:
    """Parameters: a [matrices, M, K], b [matrices, K, N], dynamic zero points, operands, y."""
    m, deep, n = s.size
    k = Builder(f"integer_matmul_{m}x{deep}x{n}", f"[{m}, {deep}] times [{deep}, {n}], in integers")
    a = k.param("a", s.matrices[0], m, deep, dtype=s.dtypes[0])
    b = k.param("b", s.matrices[1], deep, n, dtype=s.dtypes[1])
    zeros = zero_points(k, s.dynamic)
    results = Results.of(k, s)
    sums = I64 if s.wide else I32
    with batches(k, s, m) as (at, (kind,)), k.loop("r", m, kind=kind) as row:
        for start, count, lanes in lane_segments(n, 1 if s.wide else machine.lanes):
            with k.loop("j", count) as j:
                col = j + start // lanes
                total = k.local("t", 1, dtype=sums, lanes=lanes)
                total[0] = 0
                with k.loop("d", deep) as d:
                    left = _centred(a[at[0], row, d], s.zeros[0], zeros[0])
                    right = _centred(b.vec(lanes)[at[1], d, col], s.zeros[1], zeros[1])
                    total[0] = total[0] + cast(broadcast(left, lanes) * right, sums)
                results.store(at[2] * m + row, col * lanes, lanes, total[0])
    return k.done()


def _centred(x: Expr, known: int, zero: Tensor | None) -> Expr:
    """Integers less their zero point, in i32."""
    less = cast(x, I32) - known
    return less if zero is None else less - zero[0]
