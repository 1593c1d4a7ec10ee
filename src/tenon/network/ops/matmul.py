"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms import rounding
from tenon.machine.algorithms.base import Algorithm, Stage
from tenon.machine.algorithms.registry import best, of_product, packed_alike
from tenon.machine.kernel_ir.loops import Expr
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.move import Piece, along, move, whole
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.types import F32, DType, TensorType, tensor
from tenon.network.ops.base import (
    ROUNDED,
    Arg,
    Case,
    Cost,
    Input,
    Operator,
    Scratch,
    Site,
    Step,
    broadcast_shapes,
    register,
    typed,
    widened,
)
from tenon.network.ops.reach import Absorbed, Operands, Reach, Reaches, broadcast_reach
from tenon.network.ops.window import Ints

Batch = tuple[tuple[int, int, int], ...]


# ------------------------------------------------------------------------------- what products share
def operand_image(operand: TensorType, output: Ints) -> Image | None:
    """An operand that broadcasts to a matrix product [batch..., M, N], as the image that its kernel reads.

    None where no image can express it: a batch that is only partly broadcast.
    """
    if operand.rank > len(output) or operand.dtype not in (F32, DType.BF16, DType.F16) or len(output) < 2:
        return None
    dims = (1,) * (len(output) - operand.rank) + operand.dims
    *batch, m, n = dims
    if not all(a in (1, b) for a, b in zip(dims, output, strict=True)):
        return None
    if math.prod(batch) != 1 and tuple(batch) != output[:-2]:
        return None
    return Image(math.prod(batch), n, 1, m, n, dtype=operand.dtype)


@dataclass(frozen=True, eq=False)
class MatrixProduct:
    """[batch..., M, K] x [batch..., K, N]: a constant matrix of ``weights`` is packed, a ``right`` is read
    row-major.  ``batch`` is as in ``kernels.conv.Conv``; ``operands`` are the epilogue's."""

    size: tuple[int, int, int]
    left: Arg
    right: Arg | None = None
    weights: Array | None = None
    bias: Array | None = None
    batch: Batch = ((1, 1, 1),)
    epilogue: Epilogue = identity
    operands: tuple[tuple[Arg, Image], ...] = ()

    def problem(self, site: Site) -> Conv:
        """The product as the convolution that computes it."""
        m, k, n = self.size
        count = math.prod(extent for extent, _, _ in self.batch)
        lefts = 1 + sum((extent - 1) * step for extent, step, _ in self.batch)
        images = tuple(image for _, image in self.operands)
        x = site.input(0).dtype if self.left == Input(0) else F32
        return Conv(
            Image(lefts, k, 1, m, k, dtype=x),
            Image(count, n, 1, m, n, dtype=site.output.dtype),
            bias=self.bias is not None,
            operands=images,
            epilogue=self.epilogue,
            packed=self.weights is not None,
            batch=self.batch,
            weights=site.input(1).dtype if self.weights is not None or self.right == Input(1) else F32,
        )

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return of_product((self.problem(site),), site.machine)

    def algorithm(self, site: Site) -> Algorithm:
        """The algorithm chosen, or the best by estimate."""
        return site.algorithm or best((self.problem(site),), site.machine)

    def cost(self, site: Site) -> Cost:
        s = self.problem(site)
        weights = 0 if self.weights is None else self.weights.size * s.weights.bytes
        return replace(self.algorithm(site).cost((s,), site.machine), weights=weights)

    def error(self, site: Site) -> float:
        """The error of rounding to 16 bits."""
        x, y = site.input(0).dtype, site.output.dtype
        if self.weights is None or {x, y, DType.of(self.weights.dtype)} == {F32}:
            return 0.0
        return rounding.direct(self.weights.T, x, y, halves=self.problem(site).halves(site.machine))

    def lower(self, site: Site) -> list[Step]:
        s = self.problem(site)
        weights = None if self.weights is None else np.ascontiguousarray(self.weights.T)[:, :, None, None]
        stage = Stage(s, weights, self.bias, tuple(arg for arg, _ in self.operands), self.left, self.right)
        return self.algorithm(site).lower((s,), (stage,), site.machine)


def product_packed_alike(site: Site, product: MatrixProduct, other: Site, there: MatrixProduct) -> Algorithm | None:
    """An algorithm for ``product`` with the same packed weights as ``there``."""
    if product.weights is None or there.weights is None:
        return None
    return packed_alike((product.problem(site),), site.machine, there.algorithm(other))


def site_operands(site: Site) -> tuple[tuple[Arg, Image], ...]:
    """The operands of the site's epilogue."""
    operands: list[tuple[Arg, Image]] = []
    for i in site.extras:
        image = operand_image(site.input(i), site.output.dims)
        assert image is not None, "``fuses`` was not asked"
        operands.append((Input(i), image))
    return tuple(operands)


def transposed(site: Site, arg: Arg, rows: int, cols: int, name: str) -> tuple[Step, Arg]:
    """A kernel that transposes a [rows, cols] matrix, and the scratch memory of its result."""
    x, y = tensor(F32, rows, cols), tensor(F32, cols, rows)
    piece = Piece(y.dims, whole(2), (along(1), along(0)))
    scratch = Scratch(name, y.nbytes)
    return Step(move("turn", x, y, (piece,), site.machine), (arg, scratch)), scratch


def only_floats(site: Site) -> str:
    """Why a product cannot be compiled; f32 is supported, and 16 bits or f32 by weights stored in 16 bits."""
    dtypes = {site.input(0).dtype, site.output.dtype}
    if site.constants[1] is None:
        dtypes.add(site.input(1).dtype)
        machine, alike = site.machine, site.input(0).dtype is site.input(1).dtype
        in_tiles = alike and machine.tiles(site.input(0).dtype) is not None  # whose sums are stored in any type
        if in_tiles or (machine.launch is not None and len(dtypes) == 1):
            dtypes -= {DType.BF16, DType.F16}
    elif site.constants[1].ndim == 2:
        dtypes -= {DType.BF16, DType.F16}
    return "" if dtypes <= {F32} else f"element type {', '.join(sorted(dtypes))}: only f32 is compiled"


def stored(weights: Array, scale: float) -> Array:
    """``scale * weights``, in the type that they are stored in."""
    return weights if scale == 1.0 else (weights.astype(np.float32) * np.float32(scale)).astype(weights.dtype)


@dataclass(frozen=True)
class Scaled:
    """alpha * result + beta * addend (where there is one), then another epilogue."""

    alpha: float
    beta: float
    adds: bool
    then: Epilogue

    def __call__(self, result: Expr, *operands: Expr) -> Expr:
        if self.alpha != 1.0:
            result = result * self.alpha
        if self.adds:
            addend, *operands = operands  # type: ignore[assignment]
            result = result + (addend if self.beta == 1.0 else addend * self.beta)
        return self.then(result, *operands)


IN_FLOATS = frozenset({F32, DType.BF16, DType.F16})
"""The types of results that epilogues are applied to, in f32."""


def contracted(node: SizedNode, left: int, right: int) -> None:
    """Let two operands be summed over an axis of each whose extent a run may decide."""
    node.common_exactly([(0, left), (1, right)])
    for i, axis in ((0, left), (1, right)):
        node.with_masked(i, [axis], 0.0)


# ------------------------------------------------------------------------------------------ operators
@register
@dataclass(frozen=True)
class Gemm(Operator):
    """alpha * A' B' + beta * C over matrices, A' and B' transposed where the attributes say so."""

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815
    transB: int = 0  # noqa: N815
    arity: ClassVar[tuple[int, int]] = (2, 3)
    fusable: ClassVar[bool] = True
    bilinear: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    @property
    def fused_types(self) -> frozenset[DType]:
        return IN_FLOATS

    def size(self, a: TensorType, b: TensorType) -> tuple[int, int, int]:
        """(M, K, N).  Raises ShapeError if the matrices do not fit."""
        if a.rank != 2 or b.rank != 2:
            raise ShapeError(f"Gemm: {list(a.dims)} and {list(b.dims)} are not two matrices")
        m, k = a.dims[::-1] if self.transA else a.dims
        rows, n = b.dims[::-1] if self.transB else b.dims
        if k != rows:
            raise ShapeError(f"Gemm: {list(a.dims)} and {list(b.dims)} disagree on the axis they share ({k}, {rows})")
        return m, k, n

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        a, b, *c = typed(inputs)
        m, _, n = self.size(a, b)
        if c and broadcast_shapes("Gemm", (tensor(F32, m, n), c[0])) != (m, n):
            raise ShapeError(f"Gemm: C {list(c[0].dims)} does not broadcast to [{m}, {n}]")
        return (TensorType(a.dtype, (m, n)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        inner, other = (0 if self.transA else 1), (1 if self.transB else 0)
        contracted(node, inner, other)
        extents = [node.extents(0)[1 - inner], node.extents(1)[1 - other]]
        for i, axis in ((0, -2), (1, -1)):
            if node.has(2) and node.type(2).rank >= -axis and node.type(2).dims[axis] > 1:
                extents[i] = node.common_exactly([(i, 1 - (inner, other)[i]), (2, axis)])
                n = node.type(i).dims[1 - (inner, other)[i]]
                if node.type(2).dims[axis] != n:
                    raise SizeRefusedError("its operands have buffers of different extents")
        return node.same(extents)

    def reference(self, a: Array, b: Array, c: Array | None = None) -> Array:
        narrow, (a, b, c) = a.dtype, widened(a, b, c)  # type: ignore[assignment]
        product = (a.T if self.transA else a) @ (b.T if self.transB else b)
        scaled: Array = product * np.asarray(self.alpha, a.dtype)
        return (scaled if c is None else scaled + c * np.asarray(self.beta, a.dtype)).astype(narrow)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        added = broadcast_reach(inputs[2:], outputs[0], axis)
        return (None, Reach(1 - self.transB), *added) if axis else (Reach(self.transA), None, *added)

    def supported(self, site: Site) -> str:
        return only_floats(site)

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        return operand_image(operand, output.dims) is not None

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return self.product(site)[1].candidates(site) if site.machine.launch is not None else ()

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        return product_packed_alike(site, self.product(site)[1], other, self.product(other)[1])

    def cost(self, site: Site) -> Cost:
        return self.product(site)[1].cost(site)

    def error(self, site: Site) -> float:
        return self.product(site)[1].error(site)

    def lower(self, site: Site) -> list[Step]:
        steps, product = self.product(site)
        return [*steps, *product.lower(site)]

    def product(self, site: Site) -> tuple[list[Step], MatrixProduct]:
        """The steps before the product, and the product."""
        m, k, n = self.size(site.input(0), site.input(1))
        steps: list[Step] = []
        left: Arg = Input(0)
        right: Arg = Input(1)
        weights = site.constants[1]
        alpha = self.alpha
        if self.transA:
            step, left = transposed(site, left, k, m, "left")
            steps.append(step)
        if weights is not None:
            weights = stored(weights.T if self.transB else weights, alpha)
            alpha = 1.0
        elif self.transB:
            step, right = transposed(site, right, n, k, "right")
            steps.append(step)
        has_c = len(site.inputs) > 2 and site.has(2) and 2 not in site.extras
        bias = self.columns(site, n) if has_c and alpha == 1.0 else None
        adds = has_c and bias is None
        operands = site_operands(site)
        if adds:
            image = operand_image(site.input(2), (m, n))
            assert image is not None
            operands = ((Input(2), image), *operands)
        scaled = adds or alpha != 1.0
        product = MatrixProduct(
            (m, k, n),
            left,
            right,
            weights,
            bias,
            operands=operands,
            epilogue=Scaled(alpha, self.beta, adds, site.epilogue) if scaled else site.epilogue,
        )
        return steps, product

    def columns(self, site: Site, n: int) -> Array | None:
        """beta * C where that is a constant for each column."""
        c = site.constants[2]
        if c is None or (c.ndim == 2 and c.shape[0] != 1):
            return None
        return np.broadcast_to(c.reshape(-1) * np.float32(self.beta), (n,)).astype(np.float32)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        a, b = inputs[:2]
        assert a is not None
        assert b is not None
        return math.prod(self.size(a, b))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 20), (20, 10), (10,)), (1, 2), label="one_row")
        yield Case(cls(transB=1), ((3, 7), (37, 7), (37,)), (1, 2), label="many_columns")
        yield Case(cls(alpha=0.5, beta=2.0), ((5, 6), (6, 3), (1,)), (1, 2), label="scaled_weights")
        yield Case(cls(alpha=0.5, beta=2.0, transA=1, transB=1), ((6, 5), (19, 6), (5, 1)), label="all_variable")
        yield Case(cls(alpha=2.0), ((5, 6), (6, 19), (19,)), (2,), label="variable_matrix")
        yield Case(cls(beta=0.5), ((33, 6), (6, 5), (33, 5)), (1, 2), label="full_addend")
        yield Case(cls(), ((4, 3), (3, 6)), label="no_addend")
        yield Case(cls(), ((4, 3), (3, 6), ()), (1,), label="scalar_addend")
        bf16 = (DType.BF16, DType.BF16)
        yield Case(cls(transB=1), ((5, 38), (37, 38), (37,)), (1, 2), ROUNDED, label="bf16", dtypes=bf16)
        f16 = (DType.F16, DType.F16)
        yield Case(cls(), ((5, 139), (139, 37), (37,)), (1, 2), ROUNDED, label="f16", dtypes=f16)
        stored = (F32, DType.F16)
        yield Case(cls(alpha=0.5), ((1, 20), (20, 35)), (1,), 2.0**-11, label="f16_weights", dtypes=stored)
        integers = np.random.default_rng(0).integers(-127, 128, (37, 20), np.int8)
        yield Case(cls(transB=1), ((2, 20), integers, (37,)), (1, 2), label="i8_weights")


@register
@dataclass(frozen=True)
class MatMul(Operator):
    """The matrix product of NumPy: a vector is a row on the left, a column on the right; other axes are batches."""

    arity: ClassVar[tuple[int, int]] = (2, 2)
    fusable: ClassVar[bool] = True
    bilinear: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    @property
    def fused_types(self) -> frozenset[DType]:
        return IN_FLOATS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        a, b = typed(inputs)
        left, right = _matrices(a.dims, b.dims)
        if not a.rank or not b.rank or left[-1] != right[-2]:
            raise ShapeError(f"MatMul: {list(a.dims)} and {list(b.dims)} do not fit")
        batch = broadcast_shapes("MatMul", (tensor(F32, *left[:-2]), tensor(F32, *right[:-2])))
        ends = (*left[-2:-1][: a.rank - 1], *right[-1:][: b.rank - 1])
        return (TensorType(a.dtype, (*batch, *ends)),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        a, b = node.type(0).rank, node.type(1).rank
        contracted(node, a - 1, max(0, b - 2))
        left, right = node.extents(0), node.extents(1)
        batches = node.broadcast([0, 1], skipped=2)
        return node.same([*batches, *left[-2:-1], *right[-1:][: b - 1]])

    def reference(self, a: Array, b: Array) -> Array:
        left, right = widened(a, b)
        return np.asarray(np.matmul(np.asarray(left), np.asarray(right))).astype(a.dtype)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        a, b = inputs[0], inputs[1]
        assert a is not None
        assert b is not None
        batch, rows, cols = broadcast_reach((a, b), outputs[0], axis), Reach(a.type.rank - 2), Reach(b.type.rank - 1)
        if min(a.type.rank, b.type.rank) < 2:
            return None
        return {0: (rows, None), 1: (None, cols)}.get(axis - outputs[0].rank + 2, batch)

    def absorbs(self, inputs: Operands) -> tuple[Absorbed, ...]:
        a, b = inputs[0], inputs[1]
        assert a is not None
        assert b is not None
        return Absorbed(0, a.type.rank - 1), Absorbed(1, max(0, b.type.rank - 2))

    def supported(self, site: Site) -> str:
        return only_floats(site)

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        matrices = all(t is not None and t.rank >= 2 for t in inputs[:2])
        return matrices and operand_image(operand, output.dims) is not None

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return self.product(site).candidates(site) if site.machine.launch is not None else ()

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        return product_packed_alike(site, self.product(site), other, self.product(other))

    def cost(self, site: Site) -> Cost:
        return self.product(site).cost(site)

    def error(self, site: Site) -> float:
        return self.product(site).error(site)

    def lower(self, site: Site) -> list[Step]:
        return self.product(site).lower(site)

    def product(self, site: Site) -> MatrixProduct:
        left, right = _matrices(site.input(0).dims, site.input(1).dims)
        (m, k), n = left[-2:], right[-1]
        batch = _batch(left[:-2], right[:-2])
        shared = all(extent == 1 or step == 0 for extent, _, step in batch)
        operands = site_operands(site)
        count = math.prod(extent for extent, _, _ in batch)
        if shared and all(_follows_rows(image, count, m) for _, image in operands):
            m, batch = m * count, ((1, 1, 1),)
            operands = tuple((arg, replace(i, n=1, w=i.n * i.w)) for arg, i in operands)
        weights = site.constants[1]
        packed = weights.reshape(k, n) if weights is not None and shared else None
        epilogue = site.epilogue
        return MatrixProduct((m, k, n), Input(0), Input(1), packed, batch=batch, epilogue=epilogue, operands=operands)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return outputs[0].size * inputs[0].dims[-1]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((5, 7), (7, 18)), (1,), label="weights")
        bf16 = (DType.BF16, DType.BF16)
        yield Case(cls(), ((2, 5, 8), (8, 18)), (1,), ROUNDED, label="bf16", dtypes=bf16)
        yield Case(cls(), ((2, 5, 7), (7, 18)), (1,), ROUNDED, label="f16", dtypes=(DType.F16, DType.F16))
        yield Case(cls(), ((5, 7), (7, 18)), (1,), label="bf16_weights", dtypes=(F32, DType.BF16))
        yield Case(cls(), ((2, 3, 7), (7, 5)), (1,), label="rows_of_batches")
        yield Case(cls(), ((2, 3, 7), (7, 5)), label="one_matrix")
        yield Case(cls(), ((2, 3, 4, 6), (2, 3, 6, 19)), label="batches")
        yield Case(cls(), ((2, 1, 4, 6), (3, 6, 2)), label="crossed_batches")
        yield Case(cls(), ((4, 6), (3, 6, 5)), label="left_for_all")
        yield Case(cls(), ((3, 1, 6), (3, 6, 5)), (1,), label="constant_batches")
        yield Case(cls(), ((7,), (7, 3)), label="row")
        yield Case(cls(), ((3, 7), (7,)), (1,), label="column")
        yield Case(cls(), ((7,), (7,)), label="scalar")
        yield Case(cls(), ((7,), (2, 7, 3)), label="row_for_all")


def _follows_rows(image: Image, count: int, m: int) -> bool:
    """Whether the rows of all ``count`` matrices of the operand can be read as one matrix."""
    return image.n * image.w in (1, count * m)


def _matrices(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Vectors as matrices."""
    return ((1, *a) if len(a) == 1 else a), ((*b, 1) if len(b) == 1 else b)


def _batch(left: Ints, right: Ints) -> Batch:
    """(extent, step on the left, step on the right) of each batch axis; axes contiguous on both sides are merged."""
    rank = max(len(left), len(right))
    left, right = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    axes: list[tuple[int, int, int]] = []
    for i in range(rank):
        extent = max(left[i], right[i])
        a = math.prod(left[i + 1 :]) if left[i] > 1 else 0
        b = math.prod(right[i + 1 :]) if right[i] > 1 else 0
        if extent == 1:
            continue
        if axes and axes[-1][1] == a * extent and axes[-1][2] == b * extent:
            axes[-1] = (axes[-1][0] * extent, a, b)
        else:
            axes.append((extent, a, b))
    return tuple(axes) or ((1, 1, 1),)
