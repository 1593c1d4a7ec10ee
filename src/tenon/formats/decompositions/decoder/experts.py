"""Layers of experts: each token takes a few of many gated layers, and maybe one that all take.

Source: Fedus et al. 2022 (Switch Transformers) for routing by a softmax, Jiang et al. 2024 (Mixtral) for the softmax
over the experts that a token takes.
"""

from __future__ import annotations

import numpy as np

from tenon.formats.decompositions.decoder.layers import DecoderLayers
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value


class ExpertLayers(DecoderLayers):
    """Layers of a decoder, of which those with a router have experts in place of gated layers."""

    def gated(self, i: int, y: Value, prefix: str = "") -> Value:
        routed = not prefix and self.weights.weight(f"{i}.router") is not None
        return self.mixture(i, y) if routed else super().gated(i, y, prefix)

    def mixture(self, i: int, x: Value) -> Value:
        """The results of the experts that the tokens [1, length, hidden] of layer ``i`` take, weighted and added up."""
        b = self.builder
        factors, chosen = self._chosen(i, x)
        joined = self.weights.weight(f"{i}.gate_up_experts")
        if joined is None:
            parts = [self.weight(f"{i}.{name}_experts") for name in ("gate", "up")]
        else:
            parts = joined.rows([joined.shape[1] // 2] * 2)
        biases = [self.weights.bias(f"{i}.{name}_experts") for name in ("gate", "up", "down")]
        parts.append(self.weight(f"{i}.down_experts"))
        experts = self.weight(f"{i}.router").shape[0]
        if any(len(part.shape) != 3 or part.shape[0] != experts for part in parts):
            shapes = ", ".join(str(list(part.shape)) for part in parts)
            raise RefusedError(
                f"has weights {shapes} for {experts} experts", "the file is incomplete: load all of its parts"
            )
        both = [self._by_experts(x, chosen, part, bias) for part, bias in zip(parts[:2], biases[:2], strict=True)]
        y = self._by_experts(self.gate(*both), chosen, parts[2], biases[2])
        y = b.add("ReduceSum", b.add("Mul", y, b.add("Unsqueeze", factors, b.ints(-1))), b.ints(2), keepdims=0)
        if all(self.weights.weight(f"{i}.shared_{name}") is None for name in ("up", "gate_up")):
            return y
        shared = self.gated(i, x, "shared_")
        router = self.weights.weight(f"{i}.shared_router")
        if router is not None:
            row = Weight(router.data.reshape(1, -1), router.format)
            shared = b.add("Mul", shared, b.add("Sigmoid", self.product(x, row)))
        return b.add("Add", y, shared)

    def _chosen(self, i: int, x: Value) -> tuple[Value, Value]:
        """The factors f32 and the numbers i64 of the experts that tokens take, [1, length, chosen]."""
        b, settings = self.builder, self.config.mixture
        experts = self.weight(f"{i}.router").shape[0]
        if settings is None or not 0 < settings.chosen <= experts:
            taken = 0 if settings is None else settings.chosen
            raise RefusedError(f"takes {taken} of {experts} experts", "the settings do not belong to these weights")
        scores, count = self.linear(x, f"{i}.router"), b.ints(settings.chosen)
        if not settings.normalised:
            factors, chosen = b.adds("TopK", 2, b.add("Softmax", scores, axis=-1), count)
            return factors, chosen
        greatest, chosen = b.adds("TopK", 2, scores, count)
        return b.add("Softmax", greatest, axis=-1), chosen

    def _by_experts(self, x: Value, chosen: Value, weight: Weight, bias: Weight | None) -> Value:
        """Rows [1, length, n] or [1, length, chosen, n] by the matrices of experts, [1, length, chosen, outputs]."""
        b = self.builder
        if b.dims(x)[-1] != weight.shape[2]:
            raise RefusedError(f"multiplies {b.dims(x)[-1]} numbers by experts of {list(weight.shape)}")
        operands = (chosen, self.number(self.length), b.constant(weight.data, "weights"))
        if weight.format:
            y = b.add("ExpertBlockMatMul", *self.quantised(x), *operands, format=weight.format)
        else:
            y = b.add("ExpertMatMul", x, *operands)
        if bias is None:
            return y
        table = b.constant(np.ascontiguousarray(bias.data, np.float32), "bias")
        return b.add("Add", y, b.add("Gather", table, chosen, axis=0))
