"""LSTM of 8-bit integers as all of LiteRT's kernels compute it (the reference ones, the optimised ones, and those
beneath XNNPACK).

Products are multiplied by fixed-point numbers of 31 bits and rounded twice, sigmoid and tanh are those of gemmlowp,
here read from tables.  Sources: tensorflow/lite/kernels/lstm_eval.cc (8x8_16), lstm.cc
(PopulateQuantizedLstmParams8x8_16) and internal/reference/portable_tensor_utils.cc.  With a projection these kernels
apply peepholes to as many cells as there are outputs; here all cells have theirs.
"""

from __future__ import annotations

import numpy as np

from tenon.formats.decompositions.fixed_point import divided, limited, scaled
from tenon.formats.decompositions.integer_arithmetic import Integers
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite.fixed_point import sigmoid_table, tanh_table
from tenon.formats.importers.tflite.integer_lstm import ARGUMENT_BITS, IntegerLstm, scale_of, zero_of
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, I64, DType
from tenon.network.ops.requantize import quantized_multiplier

GUARD = 10000
"""Times the scale of a normalisation's weights: its least variance."""


class LitertLstm(IntegerLstm):
    """An LSTM of LiteRT, also with a coupled input gate, peepholes, a projection and normalised gates."""

    activations = (DType.I8,)
    optional = ("peepholes", "projection", "norms")

    def factor(self, a: float, b: float, unit: float) -> float:
        return float(np.float32(a) * np.float32(b) / np.float32(unit))

    @property
    def normalized(self) -> bool:
        return any(self.layer.has(k) for k in self.cell.norms)

    def unit(self, gate: int) -> float:
        return scale_of(self.layer.intermediate(gate)) if self.normalized else super().unit(gate)

    def own(self, rows: Value) -> Integers:
        if not self.normalized:
            return super().own(rows)
        w = [self.cell.w[k] for k in self.gates]
        factors = [self.factor(self.scale(k), self.scale(0), self.unit(g)) for k, g in zip(w, self.gates, strict=True)]
        return self.product(rows, zero_of(self.tensor(0)), w, factors, (DType.I16, 0))

    def sums(self, own: Integers, h: Integers) -> Integers:
        return limited(self.again(h, I32).to(I64) + own.to(I64)).to(DType.I16)

    # ------------------------------------------------------------------------------------------ gates
    def table(self, name: str, data: Array) -> Integers:
        """The same constant for all layers."""
        tables = self.layer.importer.tables
        if name not in tables:
            tables[name] = self.builder.constant(data, name)
        return Integers(self.builder, tables[name])

    def sigmoid(self, x: Integers) -> Integers:
        return _looked_up(self.table("sigmoid", sigmoid_table()), x)

    def tanh(self, x: Integers, bits: int) -> Integers:
        return _looked_up(self.table(f"tanh_{bits}", tanh_table(bits)), x)

    def gate(self, sums: dict[int, Integers], k: int, seen: Integers | None = None) -> Integers:
        """A gate's argument in i64 steps, with its peephole, normalised where the layer is."""
        x, peepholes = sums[k].to(I64), self.cell.peepholes
        if seen is not None and peepholes and self.layer.has(peepholes[k]):
            factor = float(np.float32(2.0**self.power * self.scale(peepholes[k]) / self.unit(k)))
            x = limited(x + scaled(seen * self.numbers(peepholes[k]), [factor]))
        return self.normalize(x, k) if self.normalized else x

    def normalize(self, x: Integers, k: int) -> Integers:
        """A gate's sums less their mean, over their standard deviation."""
        norm, bias = self.cell.norms[k], self.cell.bias[k]
        if not (self.layer.has(norm) and self.layer.has(bias)):
            raise RefusedError("it normalises some of its gates only, or has no bias for one")
        scale = self.scale(norm)
        multiplier, shift = quantized_multiplier(scale)
        weights = self.builder.constant(self.numbers(norm).astype(np.int16), "weights")
        added = self.builder.constant(self.numbers(bias).astype(np.int32), "bias")
        y = self.builder.add(
            "IntegerLayerNormalization",
            x.to(DType.I16).value,
            weights,
            added,
            factor=(multiplier, shift + ARGUMENT_BITS),
            limit=max(1, int(np.float32(GUARD) * np.float32(scale))),
        )
        return Integers(self.builder, y).to(I64)

    def step(self, sums: dict[int, Integers], c: Integers) -> tuple[Integers, Integers]:
        seen = c.to(I64)
        forget = self.sigmoid(self.gate(sums, 1, seen))
        new = self.tanh(self.gate(sums, 2), 3)
        enter = self.sigmoid(self.gate(sums, 0, seen)) if 0 in sums else -forget + 32767
        kept = limited(divided(forget * seen, np.array(15)))
        added = limited(divided(enter * new, np.array(30 + self.power)))
        seen = limited(kept + added)
        if most := self.clip():
            seen = seen.minimum(most).maximum(-most)
        out = self.sigmoid(self.gate(sums, 3, seen)) * self.tanh(seen, 15 + self.power)
        return self.projected(out), seen.to(DType.I16)

    def projected(self, out: Integers) -> Integers:
        """The state of products of 2**-30: rounded to its own grid, or to that in between and projected."""
        zero, plain = zero_of(self.h), not self.cell.projection or not self.layer.has(self.cell.projection[0])
        between = self.h if plain else self.layer.intermediate(4)
        factor = float(np.float32(2.0**-30 / scale_of(between)))
        hidden = limited(scaled(out, [factor]) + zero_of(between), 8).to(DType.I8)
        if plain:
            return hidden
        weights, bias = self.cell.projection
        factors = [self.factor(self.scale(weights), scale_of(between), scale_of(self.h))]
        state = self.product(hidden.value, zero_of(between), [weights], factors, (DType.I8, zero), [bias])
        if self.layer.number("proj_clip") > 0:
            limit = min(int(self.layer.number("proj_clip") / scale_of(self.h)), 127)
            state = state.minimum(limit).maximum(-limit)
        return state


def _looked_up(table: Integers, x: Integers) -> Integers:
    return table.take(x + 32768).to(I64)
