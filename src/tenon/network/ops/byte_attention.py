"""Attention of quantised integers as one operator, for machines that compute it without a tensor of all scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tenon.machine.algorithms.attention import keeps_scores_out
from tenon.machine.algorithms.integers import product_tiles
from tenon.machine.kernels import byte_attention as kernels
from tenon.machine.kernels.byte_softmax import in_planes
from tenon.machine.kernels.integer_matmul_words import LEAST, Words
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import ROW_MAJOR, DType, TensorType
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
)
from tenon.network.ops.byte_softmax import ByteSoftmax, softmax_tables
from tenon.network.ops.integer_lookup import Lookup
from tenon.network.ops.integer_matmul import IntegerMatMul, left_steps, right_steps, row_steps
from tenon.network.ops.reach import Operands, Reaches
from tenon.network.ops.requantize import limits

_FAR = 4096.0
"""Steps below all scores: what zero points take off a row changes them by less."""


@register
@dataclass(frozen=True)
class ByteAttention(Operator):
    """``values`` of the ``softmax`` of ``scores``, with the same bits as these operators one after the other.

    Inputs: queries [batch..., L, d], keys [batch..., d, N], values [batch..., N, c], and maybe the table of a Lookup of
    the scores.
    """

    scores: IntegerMatMul = field(default_factory=IntegerMatMul)
    softmax: ByteSoftmax = field(default_factory=ByteSoftmax)
    values: IntegerMatMul = field(default_factory=IntegerMatMul)
    quantised: ClassVar[bool] = True
    internal: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (3, 4)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (shares,) = self.softmax.infer([Value("scores", self.scored([None if v is None else v.type for v in inputs]))])
        return self.values.infer([Value("shares", shares), inputs[2]])

    def scored(self, types: Sequence[TensorType | None]) -> TensorType:
        """The type of all scores."""
        given = [Value("operand", each) for each in types[:2] if each is not None]
        return self.scores.infer(given)[0]

    def reference(self, q: Array, k: Array, v: Array, table: Array | None = None) -> Array:
        scores = self.scores.reference(q, k)
        if table is not None:
            scores = Lookup().reference(scores, table)
        return self.values.reference(self.softmax.reference(scores), v)

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR,) * len(site.inputs), (ROW_MAJOR,))

    def described(self, types: Sequence[TensorType | None], table: Array | None = None) -> kernels.ByteAttention:
        """The kernel's description for inputs of these types, and the ``table`` of scores, if it is known."""
        q, k, v = types[:3]
        assert q is not None
        assert k is not None
        assert v is not None
        scored = self.scored(types)
        (shares,) = self.softmax.infer([Value("scores", scored)])
        (y,) = self.values.infer([Value("shares", shares), Value("values", v)])
        first, second = self.scores.product(q, k, scored), self.values.product(shares, v, y)
        recoded = len(types) > 3
        return kernels.ByteAttention(first, self.softmax.described(scored), second, recoded, self.floor(recoded, table))

    def floor(self, recoded: bool, table: Array | None) -> int | None:
        """The byte that a score far below all others is for, after the table; None where there are bytes below that."""
        low = limits(DType(self.scores.to))[0]
        if self.scores.rounding != "float" or self.scores.low != low or -LEAST * self.scores.factor < _FAR:
            return None
        if not recoded:
            return low
        rising = table is not None and bool((np.diff(table.astype(np.int64)) >= 0).all())
        return int(table[0]) if table is not None and rising else None

    def supported(self, site: Site) -> str:
        table = site.constants[3] if len(site.inputs) > 3 else None
        able = kernels.supported(self.described(site.inputs, table), site.machine)
        return "" if able else "this machine does not compute attention of these bytes in one kernel"

    def lower(self, site: Site) -> list[Step]:
        table = site.constants[3] if len(site.inputs) > 3 else None
        s, machine = self.described(site.inputs, table), site.machine
        first, second = kernels.first_product(s, machine), Words(s.values, machine)
        steps, rows = left_steps(first, Input(0), "")
        packing, keys = right_steps(first, Input(1), "1")
        summing, sums = row_steps(first, rows, "")
        packing_values, values = right_steps(second, Input(2), "2")
        tiles = (product_tiles(first.conv, machine, 1)[0], product_tiles(second.conv, machine, 1)[0])
        # Names of their own: memory of a thread that others overlap is not divided alike among threads.
        shapes = enumerate(kernels.scratch_shapes(s, kernels.blocks_of(s, machine, tiles)))
        room = [Scratch(f"{name}{i}", math.prod(shape), per_thread=True) for i, (name, shape) in shapes]
        tables: list[Arg] = [*softmax_tables(self.softmax, s.keys, planes=in_planes(machine))]
        if table is not None:
            tables.append(Weights(table))
        args: tuple[Arg, ...] = (rows, *keys, *sums, *tables, *values, *room, Output())
        return [*steps, *packing, *summing, *packing_values, Step(kernels.byte_attention(s, machine, tiles), args)]

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return None

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        s = self.described(inputs)
        return sum(each.products * each.size[0] * each.size[1] * each.size[2] for each in (s.scores, s.values))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(3)
        for kind, sizes in (
            ("u8", (2, 3, 37, 8, 70, 20)),
            ("i8", (1, 2, 5, 7, 33, 16)),
            ("u8", (1, 1, 130, 16, 205, 9)),
        ):
            batch, heads, m, deep, n, wide = sizes
            dtype = np.dtype(kind.replace("u8", "uint8").replace("i8", "int8"))
            low, high = (0, 255) if kind == "u8" else (-128, 127)
            middle = (low + high + 1) // 2
            q, k, v = (
                rng.integers(low, high + 1, (batch, heads, *each)).astype(dtype)
                for each in ((m, deep), (deep, n), (n, wide))
            )
            factor = 0.4 / (75.0 * deep**0.5)
            scores = IntegerMatMul("float", (middle + 3, middle - 5, middle), low, high, kind, 0.05, factor)
            softmax = ByteSoftmax(0.05, 1 / 255, low, kind)
            values = IntegerMatMul("float", (low, middle + 7, middle), low, high, kind, 0.02, 1 / 255)
            yield Case(cls(scores, softmax, values), (q, k, v), (), 0, label=f"{kind}_{m}x{n}")
            table = np.sort(rng.integers(low, high + 1, 256)).astype(dtype)
            yield Case(cls(scores, softmax, values), (q, k, v, table), (3,), 0, label=f"{kind}_{m}x{n}_recoded")


def attends(op: ByteAttention, types: Sequence[TensorType | None], machine: Machine) -> bool:
    """Whether a machine computes attention of these types in one kernel, and gains by that."""
    s = op.described(types)
    return kernels.supported(s, machine) and keeps_scores_out(s)
