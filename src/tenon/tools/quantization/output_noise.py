"""How much each tensor of integers, and the weights of each layer, add to the noise at the outputs.

One tensor at a time is rounded to its grid in a network whose other activations have 16 bits.  Noise of independent
causes adds up, so what is left without some of them follows from these measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType
from tenon.tools.quantization.candidates import Recipe, Request, grids
from tenon.tools.quantization.half_precision import layer_name
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.moments import moments
from tenon.tools.quantization.placement import addends, placement, rounded_result
from tenon.tools.quantization.range_search import MACS, expected_scores, network_macs
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import SCHEMES, QuantParams
from tenon.tools.quantization.simulation import Simulation

SAMPLES = 8
"""Most samples that are measured."""


@dataclass(frozen=True)
class OutputNoise:
    """Noise power over signal power at the outputs: ``tensors`` has it for each tensor with quantisation parameters of
    its own, ``weights`` for the weights of each layer.  ``read[layer]``: tensors that become 16-bit when the layer
    does."""

    tensors: Mapping[Value, float]
    weights: Mapping[str, float]
    read: Mapping[str, frozenset[Value]]

    def order(self, cost: Mapping[str, float], kind: str) -> list[str]:
        """Layers by the noise at the outputs that each saves over its cost, the best first.

        Of ``kind`` "int16", one layer is enough for a tensor to have 16 bits: from the first layer on, each saves the
        noise of tensors that no layer before it has.  Of others, a tensor is exact only where all its layers are: from
        the last one back, each saves the noise of its weights, and of tensors that no layer after it has.
        """
        left, ordered, done, wide = list(self.read), list[str](), set[Value](), kind == "int16"

        def saved(name: str) -> float:
            weights = 0.0 if wide else self.weights.get(name, 0.0)
            return (weights + sum(self.tensors[v] for v in self.read[name] - done)) / cost[name]

        while left:
            name = (max if wide else min)(left, key=saved)
            ordered.append(name)
            left.remove(name)
            done |= self.read[name]
        return ordered if wide else ordered[::-1]


def output_noise(recipe: Recipe, samples: Sequence[Sample], request: Request) -> OutputNoise | None:
    """Noise at the outputs, measured on a few samples; None where the network is too large for it."""
    placed, threads = recipe.placed, request.threads
    own = [v for v in placed.tensors if v not in placed.parts and v not in placed.wide]
    count = min(SAMPLES, len(samples), int(MACS / max(network_macs(recipe.graph), 1) / (len(own) + 1)))
    if not count:
        return None
    few = samples[:count]
    expected = expected_scores(recipe.graph, few, threads)
    coarse = grids(placed, recipe.ranges, request.scheme)
    fine = grids(placed, recipe.ranges, SCHEMES["int16x8"])
    simulation = Simulation(recipe.graph, placed, recipe.products, fine, request.scheme, threads)
    simulation.by_noise = True
    try:
        least, otherwise = simulation.noise(few, expected)[-1].noise, simulation.outputs(few)
        tensors = dict[Value, float]()
        for number, end in enumerate(own):
            request.step("noise of tensors", number, len(own))
            group = [end, *(part for part in placed.parts if placed.end(part) is end)]
            step = coarse[end]
            rounded = QuantParams(step.scale, step.zero.astype(np.int16), DType.I16)
            simulation.set_grids(dict.fromkeys(group, rounded))
            tensors[end] = simulation.noise(few, otherwise)[-1].noise
            simulation.set_grids({value: fine[value] for value in group})
    finally:
        simulation.close()
    weights = _of_weights(recipe, samples, request, tensors, coarse)
    share = least / max(sum(weights.values()), 1e-30)
    weights = {name: noise * share for name, noise in weights.items()}
    return OutputNoise(tensors, weights, _read(recipe, request, tensors))


def _read(recipe: Recipe, request: Request, tensors: Iterable[Value]) -> dict[str, frozenset[Value]]:
    known, result = frozenset(tensors), dict[str, frozenset[Value]]()
    for each in recipe.products:
        name = layer_name(each.node)
        if name not in result:
            wide = placement(recipe.graph, request.exclude, (*request.wide, name), request.separate).wide
            result[name] = known & wide
    return result


def _of_weights(
    recipe: Recipe,
    samples: Sequence[Sample],
    request: Request,
    tensors: Mapping[Value, float],
    coarse: Mapping[Value, QuantParams],
) -> dict[str, float]:
    """Relative output noise caused by each layer's rounded weights, estimated from the noise of its result's
    quantisation.  It is known up to a common factor only, because weight noise is the same at all positions and means
    do not reduce it."""
    known = moments(recipe.graph, recipe.products, samples[:16], threads=request.threads, step=request.step)
    added, result = addends(recipe.graph, request.exclude, request.wide, request.separate), dict[str, float]()
    for each in recipe.products:
        second = known[each.node].second if each.node in known else None
        end = recipe.placed.end(rounded_result(recipe.graph, each.node, request.separate, added))
        if second is None or end not in tensors:
            continue
        positions = each.node.output.type.size / each.channels
        rounding = float(coarse[end].scale.reshape(())) ** 2 / 12 * end.type.size
        share = weight_noise(each, second) * positions / max(rounding, 1e-30)
        name = layer_name(each.node)
        result[name] = result.get(name, 0.0) + tensors[end] * share
    return result


def weight_noise(each: WeightedLayer, moment: Array) -> float:
    """The power of the noise that rounded weights add to the sums of a position, all channels together."""
    return float((np.matmul(wrong := by_groups(each, moment, wrong=True), moment) * wrong).sum())


def by_groups(each: WeightedLayer, moment: Array, *, wrong: bool) -> Array:
    """The weights [groups, channels, columns] as ``moment`` [groups, columns, columns] reads them, or how far their
    integers are from them."""
    data, groups = each.node.input(1).array.astype(np.float64), len(moment)
    rows = np.moveaxis(each.stored_weights() - data if wrong else data, each.axis, 0)
    return rows.reshape(groups, data.shape[each.axis] // groups, -1)
