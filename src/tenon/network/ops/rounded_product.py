"""Products of several rows by weights in blocks, both rounded to bf16, by tiles in registers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.block_formats import FORMATS, GROUP, dequantised
from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.kernels.block_tiles import ROWS
from tenon.machine.kernels.block_tiles_bf16 import block_tiles_bf16, gated_scratch, gated_tiles_bf16, gates, supported
from tenon.machine.kernels.norm import Rows, normalize_rows
from tenon.machine.kernels.rounded_rows import rounded_rows, rounded_shape
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, ROW_MAJOR, DType, TensorType
from tenon.network.ops.activation import Swish
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
from tenon.network.ops.block_product import blocks_of, constant_only, packed, random_blocks
from tenon.network.ops.elementwise import Apply, Chain, Pointwise
from tenon.network.ops.normalize import RMSNormalization
from tenon.network.ops.pointwise import Mul
from tenon.network.ops.reach import Operands, Reach, Reaches


def only_axis(rows: Sequence[int]) -> int | None:
    """The axis of the rows of a tensor; None if there are several."""
    long = [axis for axis, n in enumerate(rows) if n != 1]
    return long[0] if len(long) == 1 else None


@register
@dataclass(frozen=True)
class RoundRows(Operator):
    """x f32 [..., n], n a multiple of 32, in bf16 as tiles read it: [rows / 16, n / 32, 16, 32], the last tile filled
    with zeros.  Tenon's own, not ONNX's."""

    arity: ClassVar[tuple[int, int]] = (1, 1)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.dtype is not F32 or x.rank < 2 or x.dims[-1] % GROUP:
            raise ShapeError(f"RoundRows: {x} is not f32 with rows of a multiple of {GROUP} elements")
        return (TensorType(DType.BF16, rounded_shape(math.prod(x.dims[:-1]), x.dims[-1])),)

    def reference(self, x: Array) -> Array:
        rows = x.reshape(-1, x.shape[-1])
        whole = np.zeros((-(-len(rows) // ROWS) * ROWS, rows.shape[1]), DType.BF16.numpy)
        whole[: len(rows)] = rows.astype(whole.dtype)
        return np.ascontiguousarray(whole.reshape(-1, ROWS, rows.shape[1] // GROUP, GROUP).transpose(0, 2, 1, 3))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        # One row of the last tile suffices: of those behind it, products make rows that nothing reads.
        own = None if inputs[0] is None else only_axis(inputs[0].type.dims[:-1])
        return None if axis or own is None else (Reach(own, ROWS, 1 - ROWS),)

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR,), (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        return "" if site.machine.tiles(DType.BF16) is not None else "it needs tiles of bf16"

    def lower(self, site: Site) -> list[Step]:
        *rows, n = site.input(0).dims
        return [Step(rounded_rows(math.prod(rows), n), (Input(0), Output()))] if site.input(0).size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 33, 64),), label="rows")


@register
@dataclass(frozen=True)
class RoundedMatMul(Operator):
    """Inputs: the result of RoundRows for x [*``rows``, n], weights in blocks of ``format``, maybe what the product is
    added to.  x times the transpose of the weights, which are rounded to bf16, too, f32 [*``rows``, outputs], by the
    arithmetic of ``kernels.block_tiles_bf16``.  Tenon's own, not ONNX's."""

    format: str = "q8_0"
    rows: tuple[int, ...] = (1,)
    arity: ClassVar[tuple[int, int]] = (2, 3)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, weights, *before = typed(inputs)
        _, columns = blocks_of(self.name, self.format, weights)
        wanted = TensorType(DType.BF16, rounded_shape(math.prod(self.rows), columns))
        result = TensorType(F32, (*self.rows, weights.dims[0]))
        if x != wanted or before not in ([], [result]):
            raise ShapeError(f"{self.name}: {x} does not fit {list(self.rows)} rows of {columns} elements")
        return (result,)

    def reference(self, x: Array, weights: Array, before: Array | None = None) -> Array:
        tiles, groups, *_ = x.shape
        rows = x.astype(np.float32).transpose(0, 2, 1, 3).reshape(tiles * ROWS, groups * GROUP)
        exact = dequantised(FORMATS[self.format], weights).astype(np.float32)
        rounded = ((exact.view(np.int32) + 0x8000) & -0x10000).view(np.float32)  # halves away from zero
        y = (rows[: math.prod(self.rows)] @ rounded.T).reshape(*self.rows, len(weights)).astype(np.float32)
        return y if before is None else before + y

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        own = (Reach(0, divisor=ROWS), None, Reach(axis))
        return own[: len(inputs)] if axis == only_axis(self.rows) else None

    def in_place(self, site: Site) -> tuple[int, ...]:
        return tuple(range(2, len(site.inputs)))

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, None, ROW_MAJOR)[: len(site.inputs)], (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        if not supported(self.product(site), site.machine):
            return "it needs tiles of bf16"
        return constant_only(site, 1)

    def product(self, site: Site) -> BlockProduct:
        """The sizes of the kernel."""
        columns = site.input(0).dims[1] * GROUP
        return BlockProduct(self.format, math.prod(self.rows), columns, site.input(1).dims[0])

    def cost(self, site: Site) -> Cost:
        return Cost(weights=site.input(1).size)

    def lower(self, site: Site) -> list[Step]:
        if not site.output.size:
            return []
        before = [Input(i) for i in range(2, len(site.inputs))]
        kernel = block_tiles_bf16(self.product(site), site.machine, added=bool(before))
        return [Step(kernel, (Input(0), *packed(site, 1, self.format), *before, Output()))]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return outputs[0].size * inputs[0].dims[1] * GROUP

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.random.default_rng(0).normal(size=(1, 35, 64)).astype(np.float32)
        weights = random_blocks(18, 64, FORMATS["q4_0"])
        yield Case(cls("q4_0", (1, 35)), (RoundRows().reference(x), weights), (1,), 1e-4, label="q4_0")


@register
@dataclass(frozen=True)
class RoundedGate(Operator):
    """Inputs: the result of RoundRows for x [rows, n], rows a multiple of 16, and two matrices of weights in blocks of
    ``format``, whose products by x are those of RoundedMatMul.  ``activation`` of the first times the second, in bf16
    as RoundRows has it: [rows / 16, outputs / 32, 16, 32].  Tenon's own, not ONNX's."""

    format: str = "q8_0"
    activation: Pointwise = field(default_factory=Swish)
    arity: ClassVar[tuple[int, int]] = (3, 3)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, weights, other = typed(inputs)
        (_, columns), outputs = blocks_of(self.name, self.format, weights), weights.dims[0]
        if weights != other or x.rank != 4 or x.dims[1] * GROUP != columns or outputs % GROUP:
            raise ShapeError(f"{self.name}: {x} does not fit weights {weights}")
        return (TensorType(DType.BF16, rounded_shape(x.dims[0] * ROWS, outputs)),)

    def reference(self, x: Array, gate: Array, up: Array) -> Array:
        rows = (1, x.shape[0] * ROWS)
        one, other = (RoundedMatMul(self.format, rows).reference(x, weights) for weights in (gate, up))
        return RoundRows().reference(np.asarray(self.activation.reference(one) * other, np.float32))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (Reach(0), None, None) if axis == 0 else None

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, None, None), (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        if not supported(self.product(site), site.machine) or not gates(self.product(site)):
            return "it needs tiles of bf16"
        return constant_only(site, 1) or constant_only(site, 2)

    def product(self, site: Site) -> BlockProduct:
        """The sizes of each product."""
        tiles, groups, *_ = site.input(0).dims
        return BlockProduct(self.format, tiles * ROWS, groups * GROUP, site.input(1).dims[0])

    def cost(self, site: Site) -> Cost:
        return Cost(weights=site.input(1).size + site.input(2).size)

    def lower(self, site: Site) -> list[Step]:
        if not site.output.size:
            return []
        function = Chain((0, 1), (Apply(self.activation, (0,)), Apply(Mul(), (2, 1))))
        kernel = gated_tiles_bf16(self.product(site), site.machine, function)
        weights = (*packed(site, 1, self.format), *packed(site, 2, self.format))
        shapes = gated_scratch(self.product(site), site.machine)
        room = [Scratch("sums", 4 * math.prod(shape), True) for shape in shapes]
        return [Step(kernel, (Input(0), *weights, *room, Output()))]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return 2 * outputs[0].size * inputs[0].dims[1] * GROUP

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.random.default_rng(0).normal(size=(1, 48, 64)).astype(np.float32)
        weights = [random_blocks(32, 64, FORMATS["q4_0"]) for _ in range(2)]
        yield Case(cls("q4_0"), (RoundRows().reference(x), *weights), (1, 2), 2e-2, label="q4_0")


@register
@dataclass(frozen=True)
class RoundedNormalization(Operator):
    """RMSNormalization of the last axis of x f32 [..., n], n a multiple of 32, with a scale [n]; its result in bf16 as
    RoundRows has it, of a multiple of 16 rows.  Tenon's own, not ONNX's."""

    epsilon: float = 1e-5
    arity: ClassVar[tuple[int, int]] = (2, 2)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, weights = typed(inputs)
        (result,) = RoundRows().infer(inputs[:1])
        if math.prod(x.dims[:-1]) % ROWS or weights.dims != x.dims[-1:]:
            raise ShapeError(f"{self.name}: {x} does not fit weights {weights}")
        return (result,)

    def reference(self, x: Array, scale: Array) -> Array:
        return RoundRows().reference(RMSNormalization(-1, self.epsilon).reference(x, scale))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        own = RoundRows().reach(inputs[:1], outputs, axis)
        return None if own is None else (*own, None)

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, ROW_MAJOR), (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        return RoundRows().supported(site)

    def lower(self, site: Site) -> list[Step]:
        *rows, n = site.input(0).dims
        spec = Rows(math.prod(rows), 1, n, self.epsilon, True, False, centred=False, packed=True)
        data = site.constants[1]
        scale: Arg = Input(1) if data is None else Weights(np.ascontiguousarray(data))
        return [Step(normalize_rows(spec, site.machine), (Input(0), scale, Output()))] if site.output.size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 32, 96), (96,)), (1,), 1e-2, label="rows")
