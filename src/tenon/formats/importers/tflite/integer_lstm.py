"""LSTM of integers: what its arithmetics share, and which of them apply to a layer.

Sums and memory have 16 bits, states 8 or 16.  LiteRT and TFLite Micro compute it differently (``litert_lstm``,
``micro_lstm``); a layer that both support becomes both, and an ArithmeticChoice of their results.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from tenon.formats.decompositions.integer_arithmetic import Integers
from tenon.formats.decompositions.loops import FEWEST_STEPS, scan
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite.content import TfliteTensor
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import SUMS, largest_sums, limits, quantized_multipliers

ARGUMENT_BITS = 12
"""Fraction bits of a gate's argument."""


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


@dataclass
class IntegerLstm(ABC):
    """One layer in one arithmetic: its operands, and its steps."""

    layer: TfliteNode
    cell: LstmCell
    activations: ClassVar[tuple[DType, ...]]
    """The types of inputs and states that the arithmetic is defined for."""
    optional: ClassVar[tuple[str, ...]]
    """Operands of the cell that need not be absent."""

    def __post_init__(self) -> None:
        self.builder, self.gates = self.layer.builder, self.cell.gates(self.layer)

    @classmethod
    def applies(cls, node: TfliteNode, cell: LstmCell) -> bool:
        """Whether the operands are those of the kernel of integers."""
        if not cell.states or node.integer("activation") != 4 or not node.has(0):
            return False
        h, c = cell.states
        dtype, gates = node.importer.content.tensors[node.index(0)].dtype, cell.gates(node)
        weights = [k for gate in gates for k in (cell.w[gate], cell.r[gate])]
        absent = [
            k for name in ("peepholes", "projection", "norms") if name not in cls.optional for k in getattr(cell, name)
        ]
        whole = all(_is_a(node, k, dtype) for k in (0, h)) and _is_a(node, c, DType.I16)
        whole = whole and all(_is_a(node, k, DType.I8) for k in weights) and dtype in cls.activations
        return whole and not any(k >= 0 and node.has(k) for k in absent) and cls.takes(gates)

    @classmethod
    def takes(cls, gates: range) -> bool:
        """Whether the arithmetic has cells with these gates."""
        return True

    @abstractmethod
    def factor(self, a: float, b: float, unit: float) -> float:
        """The factor that brings products of integers of the scales a and b to units of a result."""

    @abstractmethod
    def sums(self, own: Integers, h: Integers) -> Integers:
        """The arguments i16 [batch, gates * cells] of the gates, of those of the input and the state before."""

    @abstractmethod
    def step(self, sums: dict[int, Integers], c: Integers) -> tuple[Integers, Integers]:
        """State and memory, as they are stored, after a step."""

    # ------------------------------------------------------------------------------------- operands
    def tensor(self, k: int) -> TfliteTensor:
        return self.layer.importer.content.tensors[self.layer.index(k)]

    def scale(self, k: int) -> float:
        return scale_of(self.tensor(k))

    @property
    def h(self) -> TfliteTensor:
        return self.tensor(self.cell.states[0])

    @property
    def power(self) -> int:
        """The scale of the memory is two to this power.  Raises RefusedError if it is none, or too large or small."""
        scale = self.scale(self.cell.states[1])
        power = round(math.log2(scale))
        if 2.0**power != scale or not -15 <= power <= -9:
            raise RefusedError(f"the scale of its memory, {scale}, is no power of two from 2**-15 to 2**-9")
        return power

    def numbers(self, k: int) -> Array:
        """A constant operand as it is stored.  Raises RefusedError."""
        tensor = self.tensor(k)
        if tensor.data is None or tensor.broken:
            raise RefusedError(f"input {k} must be a constant")
        return tensor.data.astype(np.int64)

    def clip(self) -> int:
        """The largest magnitude of the memory, or 0."""
        limit = self.layer.number("cell_clip")
        return min(int(limit / 2.0**self.power), 32767) if limit > 0 else 0

    # ------------------------------------------------------------------------------------- products
    def product(
        self,
        x: Value,
        x_zero: int,
        numbers: Sequence[int],
        factors: Sequence[float],
        to: tuple[DType, int],
        bias: Sequence[int] = (),
    ) -> Integers:
        """The products of rows of integers with several stacked matrices of 8 bits, and their biases, times a factor
        for each matrix, as elements of a type with a zero point.

        Sums of 8-bit numbers are rounded doubly, those of 16-bit numbers by factors of 15 bits.
        """
        (dtype, zero), (low, high) = to, limits(to[0])
        weights = np.concatenate([self.numbers(k) for k in numbers])
        given = [self.numbers(k) for k in bias if self.layer.has(k)]
        added = np.concatenate(given) if given else np.zeros(len(weights), np.int64)
        repeated = [f for f, k in zip(factors, numbers, strict=True) for _ in range(self.tensor(k).shape[0])]
        multipliers, shifts = quantized_multipliers(repeated)
        kind = self.builder.type(x).dtype
        largest = largest_sums(weights, 0, limits(kind), x_zero, added) << np.maximum(shifts, 0).astype(np.int64)
        wide = largest.max(initial=0) > SUMS
        if wide and kind is not DType.I16:
            raise RefusedError("its sums could be too large for 32 bits")
        rounding = "reduced" if kind is DType.I16 else "double"
        common = {"rounding": rounding, "x_zero": x_zero, "zero": zero, "low": low, "high": high, "to": dtype.value}
        if not wide:
            constants = self._constants(weights.astype(np.int8), added.astype(np.int32), multipliers, shifts)
            return Integers(self.builder, self.builder.add("IntegerGemm", x, *constants, **common))
        constants = self._constants(weights.astype(np.int8)[..., None], added, multipliers, shifts)
        rows = self.builder.reshape(x, (-1, weights.shape[1], 1))
        y = self.builder.add("IntegerWideConv", rows, *constants, **common)
        return Integers(self.builder, self.builder.reshape(y, (-1, len(weights))))

    def _constants(self, *data: Array) -> list[Value]:
        names = ("weights", "bias", "multipliers", "shifts")
        return [self.builder.constant(array, name) for name, array in zip(names, data, strict=True)]

    # ------------------------------------------------------------------------------------------ steps
    def own(self, rows: Value) -> Integers:
        """The part of the gates' arguments that follows from the inputs: i16 [rows, gates * cells]."""
        w, bias = ([kind[k] for k in self.gates] for kind in (self.cell.w, self.cell.bias))
        factors = [
            self.factor(self.scale(k), self.scale(0), self.unit(gate)) for k, gate in zip(w, self.gates, strict=True)
        ]
        return self.product(rows, zero_of(self.tensor(0)), w, factors, (DType.I16, 0), bias)

    def unit(self, gate: int) -> float:
        """The scale of a gate's sums."""
        return 2.0**-ARGUMENT_BITS

    def again(self, h: Integers, to: DType) -> Integers:
        """The part of the gates' arguments that follows from the state before."""
        r = [self.cell.r[k] for k in self.gates]
        factors = [
            self.factor(self.scale(k), scale_of(self.h), self.unit(gate)) for k, gate in zip(r, self.gates, strict=True)
        ]
        return self.product(h.value, zero_of(self.h), r, factors, (to, 0))

    def start(self, k: int, shape: tuple[int, ...], given: Value | None) -> Integers:
        """A state as it is stored: of what is kept between runs, or zeros."""
        tensor = self.tensor(k)
        if given is not None:
            return Integers(self.builder, given)
        zeros = np.full(shape, zero_of(tensor), tensor.dtype.numpy)
        return Integers(self.builder, self.builder.constant(zeros, "zeros"))

    def run(self, x: Value, states: tuple[Value, Value] | None) -> tuple[Value, Value, Value]:
        """``x`` [time, batch, numbers] or [batch, numbers] as it is stored.

        Returns the outputs [time, batch, numbers], the last state and the memory, all as they are stored.
        """
        builder = self.builder
        dims = builder.dims(x)
        length, batch = (dims[0] if len(dims) == 3 else 1), dims[-2]
        own = self.own(builder.reshape(x, (-1, dims[-1]))).reshape(length, batch, -1)
        size, width = self.tensor(self.cell.r[-1]).shape
        kept = states or (None, None)
        start = [self.start(k, (batch, n), v) for k, n, v in zip(self.cell.states, (width, size), kept, strict=True)]
        return self._looped(own, start) if length >= FEWEST_STEPS else self._unrolled(own, start)

    def _unrolled(self, own: Integers, start: Sequence[Integers]) -> tuple[Value, Value, Value]:
        """All steps, by nodes for each of them."""
        (h, c), outputs = start, []
        for part in own.parts(0):
            h, c = self._next(part, h, c)
            outputs.append(h.value)
        return self.builder.pack(outputs, 0), h.value, c.value

    def _looped(self, own: Integers, start: Sequence[Integers]) -> tuple[Value, Value, Value]:
        """The same by one node that repeats a step."""

        def iteration(slices: Sequence[Value], states: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
            part, h, c = (Integers(self.builder, v) for v in (*slices, *states))
            h, c = self._next(part, h, c)
            return [h.value, c.value], [h.value]

        name = f"{self.layer.builder.origin.layer or 'recurrent'}_{type(self).__name__}"
        (h, c), (outputs,) = scan(self.builder, [own.value], [v.value for v in start], iteration, name=name)
        return outputs, h, c

    def _next(self, own: Integers, h: Integers, c: Integers) -> tuple[Integers, Integers]:
        """State and memory after a step, of the part of its gates' arguments that follows from the inputs."""
        builder, count = self.builder, len(self.gates)
        gates = self.sums(own, h).value
        size = builder.dims(gates)[1] // count
        parts = builder.split(gates, [size] * count, 1) if count > 1 else [gates]
        return self.step({k: Integers(builder, v) for k, v in zip(self.gates, parts, strict=True)}, c)


def scale_of(tensor: TfliteTensor) -> float:
    assert tensor.quant is not None
    return tensor.quant.scale[0]


def zero_of(tensor: TfliteTensor) -> int:
    assert tensor.quant is not None
    return tensor.quant.zero_point[0]


def _is_a(node: TfliteNode, k: int, dtype: DType) -> bool:
    """Whether there is an operand of a type with one scale."""
    tensor = node.importer.content.tensors[node.index(k)] if node.has(k) else None
    return tensor is not None and tensor.dtype is dtype and tensor.quant is not None and len(tensor.quant.scale) == 1
