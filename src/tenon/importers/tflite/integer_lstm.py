"""LSTM of 8-bit integers, exact to the last integer: sums, gates of 16 bits, a memory of 16 bits, states of 8 bits.

All of LiteRT's kernels agree on this arithmetic (the reference ones, the optimised ones, and those beneath XNNPACK):
products are multiplied by fixed-point numbers of 31 bits and rounded twice, sigmoid and tanh are those of gemmlowp,
here read from tables.  Source: tensorflow/lite/kernels/lstm_eval.cc (8x8_16) and internal/portable_tensor_utils.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tenon.decompositions.integer_arithmetic import Integers
from tenon.graph_builder.errors import RefusedError
from tenon.importers.tflite.fixed_point import sigmoid_table, tanh_table
from tenon.importers.tflite.importer import TfliteNode, TfliteTensor
from tenon.ir.graph import Array, Value
from tenon.ir.types import DType
from tenon.ops.requantize import SUMS, largest_sums, limits, quantized_multipliers

_STEPS = 4096
"""Steps of a gate's argument in one."""


class LstmCell(Protocol):
    """Where the operands stand; each of the lists is of input, forget, cell and output gate."""

    @property
    def w(self) -> Sequence[int]: ...
    @property
    def r(self) -> Sequence[int]: ...
    @property
    def peepholes(self) -> Sequence[int]: ...
    @property
    def bias(self) -> Sequence[int]: ...
    @property
    def projection(self) -> Sequence[int]: ...
    @property
    def norms(self) -> Sequence[int]: ...
    @property
    def states(self) -> Sequence[int]: ...

    def gates(self, node: TfliteNode) -> range: ...


def applies(node: TfliteNode, cell: LstmCell) -> bool:
    """Whether the operands are those of LiteRT's kernel of 8-bit integers, without a normalisation of its gates."""
    tensors = node.importer.content.tensors

    def is_a(k: int, dtype: DType) -> bool:
        unary = tensors[node.index(k)] if node.has(k) else None
        return unary is not None and unary.dtype is dtype and unary.quant is not None and len(unary.quant.scale) == 1

    weights = [k for gate in cell.gates(node) for k in (cell.w[gate], cell.r[gate])]
    h, c = cell.states or (-1, -1)
    whole = h >= 0 and all(is_a(k, DType.I8) for k in (0, *weights, h)) and is_a(c, DType.I16)
    return whole and node.integer("activation") == 4 and not any(node.has(k) for k in cell.norms)


def scaled(x: Integers, factors: Sequence[float]) -> Integers:
    """Integers of 64 bits times real numbers, one for all or one for each of the last axis, as fixed-point arithmetic
    rounds: the product's upper half with ties up, then the rest with ties away from zero."""
    pairs = [math.frexp(factor) for factor in factors]
    digits = np.array([round(part * (1 << 31)) for part, _ in pairs], np.int64)
    shifts = np.array([power for _, power in pairs], np.int64)
    left, right = np.maximum(shifts, 0), np.maximum(-shifts, 0)
    x = x * (1 << left) if left.any() else x
    return divided(((x * digits) + (1 << 30)) >> np.full(1, 31), right)


def divided(x: Integers, bits: Array) -> Integers:
    """Over a power of two, ties rounded away from zero."""
    if not bits.any():
        return x
    half = np.where(bits > 0, 1 << np.maximum(bits - 1, 0), 0)
    below = x.below(0).to(x.dtype) * (bits > 0).astype(np.int64)
    return (x + half - below) >> bits


def _limited(x: Integers, bits: int = 16) -> Integers:
    return x.minimum((1 << (bits - 1)) - 1).maximum(-(1 << (bits - 1)))


@dataclass
class IntegerLstm:
    """One layer: its operands, and its steps over integers of 64 bits."""

    layer: TfliteNode
    cell: LstmCell

    def __post_init__(self) -> None:
        self.builder, self.gates = self.layer.builder, self.cell.gates(self.layer)
        self.h, self.c = (self.tensor(k) for k in self.cell.states)
        self.power = round(math.log2(_scale(self.c)))
        if 2.0**self.power != _scale(self.c) or not -15 <= self.power <= -9:
            raise RefusedError(f"the scale of its memory, {_scale(self.c)}, is no power of two from 2**-15 to 2**-9")
        self.sigmoid, self.tanh = self.table("sigmoid", sigmoid_table()), self.table("tanh_3", tanh_table(3))
        self.squashed = self.table(f"tanh_{15 + self.power}", tanh_table(15 + self.power))

    def tensor(self, k: int) -> TfliteTensor:
        return self.layer.importer.content.tensors[self.layer.index(k)]

    def numbers(self, k: int) -> Array:
        """A constant operand as it is stored.  Raises RefusedError."""
        tensor = self.tensor(k)
        if tensor.data is None or tensor.broken:
            raise RefusedError(f"input {k} must be a constant")
        return tensor.data.astype(np.int64)

    def table(self, name: str, data: Array) -> Integers:
        """The same constant for all layers."""
        tables = self.layer.importer.tables
        if name not in tables:
            tables[name] = self.builder.constant(data, name)
        return Integers(self.builder, tables[name])

    def looked_up(self, table: Integers, x: Integers) -> Integers:
        return table.take(x + 32768).to(DType.I64)

    def product(
        self,
        x: Value,
        x_zero: int,
        numbers: Sequence[int],
        scale: float,
        to: tuple[DType, int],
        bias: Sequence[int] = (),
    ) -> Integers:
        """The products of rows of 8-bit integers with several stacked matrices, and their biases, times ``scale`` and
        the scale of each matrix, as elements of a type with a zero point."""
        (dtype, zero), (low, high) = to, limits(to[0])
        weights = np.concatenate([self.numbers(k) for k in numbers])
        given = [self.numbers(k) for k in bias if self.layer.has(k)]
        added = np.concatenate(given) if given else np.zeros(len(weights), np.int64)
        factors = [scale * _scale(self.tensor(k)) for k in numbers for _ in range(self.tensor(k).shape[0])]
        multipliers, shifts = quantized_multipliers(factors)
        largest = largest_sums(weights, 0, limits(DType.I8), x_zero, added) << np.maximum(shifts, 0).astype(np.int64)
        if largest.max(initial=0) > SUMS:
            raise RefusedError("its sums could be too large for 32 bits")
        data: tuple[Array, ...] = (weights.astype(np.int8), added.astype(np.int32), multipliers, shifts)
        names = zip(("weights", "bias", "multipliers", "shifts"), data, strict=True)
        constants = (self.builder.constant(array, name) for name, array in names)
        result = self.builder.add(
            "IntegerGemm", x, *constants, x_zero=x_zero, zero=zero, low=low, high=high, to=dtype.value
        )
        return Integers(self.builder, result)

    def gate(self, sums: dict[int, Integers], k: int, seen: Integers | None = None) -> Integers:
        """A gate's sum in steps, with its peephole."""
        peephole = self.cell.peepholes[k] if self.cell.peepholes and seen is not None else -1
        if seen is None or peephole < 0 or not self.layer.has(peephole):
            return sums[k]
        factor = 2.0**self.power * _scale(self.tensor(peephole)) * _STEPS
        return _limited(sums[k] + scaled(seen * self.numbers(peephole), [factor]))

    def step(self, sums: dict[int, Integers], c: Integers) -> tuple[Integers, Integers]:
        """The state as steps from its zero point, and the memory."""
        forget = self.looked_up(self.sigmoid, self.gate(sums, 1, c))
        new = self.looked_up(self.tanh, self.gate(sums, 2))
        enter = self.looked_up(self.sigmoid, self.gate(sums, 0, c)) if 0 in sums else -forget + 32767
        kept, added = (
            _limited(divided(a * b, np.array(n)))
            for a, b, n in (
                (forget, c, 15),
                (enter, new, 30 + self.power),
            )
        )
        c = _limited(kept + added)
        if self.layer.number("cell_clip") > 0:
            limit = min(int(self.layer.number("cell_clip") / 2.0**self.power), 32767)
            c = c.minimum(limit).maximum(-limit)
        out = self.looked_up(self.sigmoid, self.gate(sums, 3, c)) * self.looked_up(self.squashed, c)
        return self.projected(out), c

    def projected(self, out: Integers) -> Integers:
        """The state of products of 2**-30: rounded to its own grid, or to that in between and projected."""
        zero = _zero(self.h)
        if not self.cell.projection or not self.layer.has(self.cell.projection[0]):
            return _limited(scaled(out, [2.0**-30 / _scale(self.h)]) + zero, 8) - zero
        between = self.layer.intermediate(4)
        hidden = _limited(scaled(out, [2.0**-30 / _scale(between)]) + _zero(between), 8) - _zero(between)
        weights, bias = self.cell.projection
        factor = _scale(between) / _scale(self.h)
        stored = (hidden + _zero(between)).to(DType.I8).value
        state = self.product(stored, _zero(between), [weights], factor, (DType.I8, zero), [bias]).to(DType.I64)
        if self.layer.number("proj_clip") > 0:
            limit = min(int(self.layer.number("proj_clip") / _scale(self.h)), 127)
            state = state.minimum(limit).maximum(-limit)
        return state - zero

    def start(self, k: int, shape: tuple[int, ...], given: Value | None) -> Integers:
        """A state as steps from its zero point: of what is kept between runs, or zeros."""
        if given is None:
            return Integers(self.builder, self.builder.constant(np.zeros(shape, np.int64), "zeros"))
        unary = self.tensor(k)
        scale, zero = self.layer.importer.grid(unary)
        stored = self.builder.add("QuantizeLinear", given, scale, zero, to=unary.dtype.value)
        return Integers(self.builder, stored).to(DType.I64) - _zero(unary)

    def real(self, k: int, x: Integers) -> Value:
        """A state as the numbers that it stands for."""
        return self.builder.add("Mul", x.to(DType.F32).value, self.builder.scalar(_scale(self.tensor(k))))

    def run(self, x: Value, states: tuple[Value, Value] | None) -> tuple[Value, Value, Value]:
        """``x`` [time, batch, numbers] or [batch, numbers] is stored in 8 bits.

        Returns what is stored of the outputs [time, batch, numbers], and the last state and memory in f32.
        """
        builder, cell = self.builder, self.cell
        dims = builder.dims(x)
        length, batch = (dims[0] if len(dims) == 3 else 1), dims[-2]
        w, r = ([kind[k] for k in self.gates] for kind in (cell.w, cell.r))
        size, width = self.tensor(r[0]).shape
        rows, given, zero = builder.reshape(x, (-1, dims[-1])), self.tensor(0), _zero(self.h)
        bias = [cell.bias[k] for k in self.gates]
        first = self.product(rows, _zero(given), w, _scale(given) * _STEPS, (DType.I16, 0), bias)
        own = first.to(DType.I64).reshape(length, batch, -1).parts(0)
        kept = states or (None, None)
        h, c = (self.start(k, (batch, n), v) for k, n, v in zip(cell.states, (width, size), kept, strict=True))
        outputs = []
        for t in range(length):
            before = (h + zero).to(DType.I8).value
            again = self.product(before, zero, r, _scale(self.h) * _STEPS, (DType.I32, 0))
            gates = _limited(again.to(DType.I64) + own[t])
            parts = builder.split(gates.value, [size] * len(w), 1) if len(w) > 1 else [gates.value]
            h, c = self.step({k: Integers(builder, v) for k, v in zip(self.gates, parts, strict=True)}, c)
            outputs.append((h + _zero(self.h)).to(DType.I8).value)
        return builder.pack(outputs, 0), self.real(cell.states[0], h), self.real(cell.states[1], c)


def _scale(tensor: TfliteTensor) -> float:
    assert tensor.quant is not None
    return tensor.quant.scale[0]


def _zero(tensor: TfliteTensor) -> int:
    assert tensor.quant is not None
    return tensor.quant.zero_point[0]
