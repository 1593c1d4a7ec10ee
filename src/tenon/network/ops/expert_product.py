"""Products of rows by matrices that a run chooses for each of them: the experts of a mixture.

Neither operator is ONNX's.  Rows of ``experts`` [..., choices] are the matrices that a row chose; only these are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.block_formats import FORMATS, GROUP
from tenon.machine.kernels.block_sums import packing
from tenon.machine.kernels.expert_items import expert_items, float_lanes
from tenon.machine.kernels.expert_product import ExpertProduct, expert_order, expert_product
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
from tenon.network.ops.block_product import block_arithmetic, blocks_of, constant_only, quantised_case
from tenon.network.ops.reach import Operands, Reach, Reaches

_STORED = (F32, DType.F16, DType.BF16)
"""Types of weights in floats."""


def _checked(name: str, x: TensorType, experts: TensorType, count: TensorType | None) -> None:
    """Raises ShapeError where rows of activations and experts do not fit each other."""
    if experts.dtype not in (I32, I64) or experts.rank < 2:
        raise ShapeError(f"{name}: experts are i32 or i64 [..., choices], not {experts}")
    if x.dims[:-1] not in (experts.dims, experts.dims[:-1]):
        raise ShapeError(f"{name}: {x} has not a row for each row of experts {experts}, or one for each choice")
    if count is not None and count != TensorType(I64, ()):
        raise ShapeError(f"{name}: the number of rows must be an i64, not {count}")


def _row_reach(outputs: Sequence[TensorType], axis: int, operands: int) -> Reaches | None:
    """The first positions of an axis of rows need those of activations and experts: all operands but the last two."""
    if axis >= outputs[0].rank - 2:
        return None
    return (*[Reach(axis)] * (operands - 2), None, None)


def _steps(s: ExpertProduct, site: Site, activations: Sequence[Arg], weights: Sequence[Arg]) -> list[Step]:
    """The steps of a product; the experts are the input behind the activations, and their count the one behind it."""
    place, dtype = len(activations), site.input(len(activations)).dtype
    choices = site.input(place).dims[-1]
    if site.machine.launch is not None:
        return [Step(expert_items(s, dtype, site.machine), (*activations, Input(place), *weights, Output()))]
    if s.pairs == choices:
        kernel = expert_product(s, dtype, site.machine, in_order=False)
        return [Step(kernel, (*activations, Input(place), *weights, Output()))]
    order, starts = Scratch("order", 4 * s.pairs), Scratch("starts", 4 * (s.experts + 1))
    counted = site.has(place + 1)
    sort = expert_order(s.pairs // choices, choices, s.experts, dtype, counted_tokens=counted)
    count = [Input(place + 1)] if counted else []
    kernel = expert_product(s, dtype, site.machine, in_order=True)
    return [
        Step(sort, (Input(place), *count, order, starts)),
        Step(kernel, (*activations, order, starts, *weights, Output())),
    ]


def _filled(data: Array, lanes: int) -> Array:
    """Matrices [experts, outputs, n] whose rows fill panels of ``lanes``, [rows, n]: with zeros behind them."""
    if data.shape[1] % lanes:
        more = -data.shape[1] % lanes
        data = np.concatenate([data, np.zeros((len(data), more, data.shape[2]), data.dtype)], axis=1)
    return data.reshape(-1, data.shape[2])


def _clipped(experts: Array, count: int) -> Array:
    return np.asarray(np.clip(experts.reshape(-1), 0, count - 1))


class _ExpertProducts(Operator):
    """Products of rows by matrices that they chose, which are the last input."""

    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return _row_reach(outputs, axis, len(inputs))

    def layouts(self, site: Site) -> Layouts:
        return Layouts((*[ROW_MAJOR] * (len(site.inputs) - 1), None), (ROW_MAJOR,))

    def supported(self, site: Site) -> str:
        return constant_only(site, len(site.inputs) - 1)

    def cost(self, site: Site) -> Cost:
        return Cost(weights=site.input(len(site.inputs) - 1).size)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return outputs[0].size * inputs[0].dims[-1]


@register
@dataclass(frozen=True)
class ExpertBlockMatMul(_ExpertProducts):
    """Inputs: the three results of BlockQuantize for x [..., n] or [..., choices, n], experts i32 or i64 [...,
    choices], how many rows of these there are in fact, an i64 (optional), and weights u8 [experts, outputs, bytes] in
    blocks of ``format``.  Each row of x, or the row of each choice, times the transpose of the matrix chosen, f32
    [..., choices, outputs], by the arithmetic of BlockMatMul.  Numbers of experts that do not exist count as the
    nearest that does.
    """

    format: str = "q8_0"
    arity: ClassVar[tuple[int, int]] = (6, 6)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, scales, sums, experts, *count, weights = typed([v for v in inputs if v is not None])
        if weights.rank != 3:
            raise ShapeError(f"{self.name}: weights are matrices [experts, outputs, bytes], not {weights}")
        _, columns = blocks_of(self.name, self.format, TensorType(weights.dtype, weights.dims[1:]))
        _checked(self.name, x, experts, count[0] if count else None)
        *rows, n = x.dims
        if n != columns or (scales.dims, sums.dims) != ((*rows, n // GROUP), (*rows, n // GROUP * 2)):
            raise ShapeError(f"{self.name}: {x} does not fit weights of {columns} columns")
        return (TensorType(F32, (*experts.dims, weights.dims[1])),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same([*node.extents(3), node.type(5).dims[1]])

    def reference(
        self, x: Array, scales: Array, sums: Array, experts: Array, count: Array | None, weights: Array
    ) -> Array:
        chosen = _clipped(experts, len(weights))
        parts = [a.reshape(-1, a.shape[-1]) for a in (x, scales, sums)]
        shared = len(chosen) // len(parts[0])
        y = np.zeros((len(chosen), weights.shape[1]), np.float32)
        for expert in np.unique(chosen):
            pairs = np.flatnonzero(chosen == expert)
            rows = [part[pairs // shared] for part in parts]
            y[pairs] = block_arithmetic(FORMATS[self.format], rows[0], rows[1], rows[2], weights[expert])
        return y.reshape(*experts.shape, -1)

    def lower(self, site: Site) -> list[Step]:
        if not site.output.size:
            return []
        (count, outputs, _), n, data = site.input(5).dims, site.input(0).dims[-1], site.constants[5]
        assert data is not None, "``supported`` was not asked"
        pairs = site.output.size // outputs
        s = ExpertProduct(pairs, pairs * n // site.input(0).size, count, n, outputs, self.format)
        p = packing(self.format, site.machine)
        weights = [Weights(part) for part in p.pack(_filled(data, p.lanes))]
        return _steps(s, site, [Input(i) for i in range(3)], weights)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(3)
        for name, tokens, experts, outputs, own in (
            ("q4_0", 1, 5, 35, False),
            ("q8_0", 9, 3, 18, False),
            ("q6_k", 7, 4, 33, True),
            ("q4_k", 1, 3, 16, True),
        ):
            f, chosen = FORMATS[name], rng.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[None, :, :2]
            *x, weights = quantised_case(2 * tokens, f.span * 2, experts * outputs, f)
            rows = (1, tokens, 2) if own else (1, tokens)
            operands = [a[: 2 * tokens if own else tokens].reshape(*rows, -1) for a in x]
            count = np.array(tokens) if tokens > 1 else None
            arrays = (*operands, chosen, count, weights.reshape(experts, outputs, -1))
            yield Case(cls(name), arrays, (5,), 0.0, label=f"{name}_{tokens}")


@register
@dataclass(frozen=True)
class ExpertMatMul(_ExpertProducts):
    """Inputs: x f32 [..., n] or [..., choices, n], experts i32 or i64 [..., choices], how many rows of these there are
    in fact, an i64 (optional), and weights f32, f16 or bf16 [experts, outputs, n].  Each row of x, or the row of each
    choice, times the transpose of the matrix chosen, f32 [..., choices, outputs]; all arithmetic is in f32.  Numbers of
    experts that do not exist count as the nearest that does.
    """

    arity: ClassVar[tuple[int, int]] = (4, 4)
    widens: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, experts, *count, weights = typed([v for v in inputs if v is not None])
        _checked(self.name, x, experts, count[0] if count else None)
        if weights.rank != 3 or weights.dtype not in _STORED or x.dtype is not F32 or x.dims[-1] != weights.dims[2]:
            raise ShapeError(f"{self.name}: {x} does not fit weights {weights}")
        return (TensorType(F32, (*experts.dims, weights.dims[1])),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same([*node.extents(1), node.type(3).dims[1]])

    def reference(self, x: Array, experts: Array, count: Array | None, weights: Array) -> Array:
        chosen, rows = _clipped(experts, len(weights)), x.reshape(-1, x.shape[-1])
        shared = len(chosen) // len(rows)
        y = np.zeros((len(chosen), weights.shape[1]), np.float32)
        for expert in np.unique(chosen):
            wide = weights[expert].astype(np.float32)
            for pair in np.flatnonzero(chosen == expert):  # one by one: how BLAS rounds depends on the number of rows
                y[pair] = wide @ rows[pair // shared]
        return y.reshape(*experts.shape, -1)

    def lower(self, site: Site) -> list[Step]:
        if not site.output.size:
            return []
        (count, outputs, n), data = site.input(3).dims, site.constants[3]
        assert data is not None, "``supported`` was not asked"
        pairs = site.output.size // outputs
        s = ExpertProduct(pairs, pairs * n // site.input(0).size, count, n, outputs, dtype=site.input(3).dtype)
        return _steps(s, site, [Input(0)], [Weights(_panels(data, float_lanes(site.machine)))])

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(4)
        for dtype, tokens, own in ((F32, 1, False), (DType.BF16, 9, False), (DType.F16, 5, True), (F32, 6, True)):
            chosen = rng.permuted(np.tile(np.arange(4), (tokens, 1)), axis=1)[None, :, :2]
            x = (1, tokens, 2, 20) if own else (1, tokens, 20)
            weights = rng.normal(size=(4, 35, 20)).astype(np.float32).astype(dtype.numpy)
            yield Case(cls(), (x, chosen, np.array(tokens), weights), (3,), label=f"{dtype}_{tokens}")


def _panels(data: Array, lanes: int) -> Array:
    """Matrices [experts, outputs, n] as panels of rows, [experts * panels, n, lanes]."""
    rows = _filled(data, lanes)
    return np.ascontiguousarray(np.moveaxis(rows.reshape(-1, lanes, rows.shape[1]), 1, 2))
