"""Weights of few bits that reproduce the float network's sums from what the quantised network gives them.

Layer by layer in their order: what a layer reads is measured in the network that is quantised up to there, and its
weights become the integers whose sums come nearest to those of the float network.  So each layer makes up for the
errors of those before it; one whose result is added to another tensor, for the errors of that one, too.

Sources: Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization" (2020), for sums of the float
network as the goal of layers that read quantised tensors; Hubara et al., "Accurate Post Training Quantization With
Small Calibration Sets" (2021), for weights that leave their neighbourhood; rounding as in ``rounding``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.ops.conv import ConvTranspose
from tenon.network.ops.pointwise import Add
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.copies import twins
from tenon.tools.quantization.insertion import WeightedLayer, insert
from tenon.tools.quantization.moments import COLUMNS, chosen_positions, results_at, rows_at
from tenon.tools.quantization.placement import Placement
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.rounding import FEW_BITS, fitted, span
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import QuantParams, Scheme, bits_of

STAGES = 100
"""Most times that the network is compiled: of larger ones, several layers are measured at once."""

AHEAD = 8
"""Layers whose sums one compiled network of floats has."""

RIDGES = (0.03, 0.3, 3.0)
"""Resistance of weights against moving, in parts of the mean moment; each layer takes the one that fits best to
samples that were left out."""


def reconstructs(each: WeightedLayer) -> bool:
    """Whether the weights of a product are found so: few bits, its own, and not integers from training."""
    w, node = each.node.input(1), each.node
    columns = w.type.size // max(w.type.dims[each.axis], 1)
    return (
        bits_of(each.w.dtype) <= FEW_BITS
        and not isinstance(node.op, ConvTranspose)
        and len(w.uses) == 1
        and w.stored is None
        and columns <= COLUMNS
        and (each.w.scale.size > 1 or each.channels == 1)
    )


def reconstructed(
    graph: Graph,
    placed: Placement,
    made: Sequence[WeightedLayer],
    grids: Mapping[Value, QuantParams],
    scheme: Scheme,
    samples: Sequence[Sample],
    *,
    centred: bool,
    threads: int,
    step: Step,
) -> tuple[list[WeightedLayer], list[Array]]:
    """The products with other weights and scales, and what their biases then have to add, [channels] each.

    ``centred``: biases put back the means of sums; else nothing is to be added.
    """
    order = {node: i for i, node in enumerate(graph)}
    todo = sorted((i for i, each in enumerate(made) if reconstructs(each)), key=lambda i: order[made[i].node])
    fitted, shifts = list(made), [np.zeros(each.channels) for each in made]
    done = set(range(len(made))) - set(todo)
    size = max(1, -(-len(todo) // STAGES))
    for begin in range(0, len(todo), AHEAD * size):
        part = todo[begin : begin + AHEAD * size]
        floats = Probes(graph, [v for i in part for v in _goals(graph, made[i].node)], threads=threads)
        try:
            for at in range(0, len(part), size):
                step("reconstruction", begin + at, len(todo))
                stage, left = part[at : at + size], {made[i].node for i in todo[begin + at :]}
                biased = [replace(fitted[i], bias=fitted[i].bias + shifts[i]) for i in sorted(done)]
                network = _Quantised(graph, placed, biased, left, grids, scheme)
                sums = _measured(network, [made[i].node for i in stage], floats, samples, threads)
                for i in stage:
                    biases = centred and made[i].takes_bias
                    fitted[i], shifts[i] = _fitted(made[i], sums[made[i].node], centred=biases)
                done |= set(stage)
        finally:
            floats.close()
    return fitted, shifts


# ------------------------------------------------------------------------------------------------ what layers read
@dataclass
class _Sums:
    """Means over positions, of [groups, ...]: ``second`` of products of columns, ``cross`` of wanted sums and columns,
    ``first`` of columns, ``goal`` of wanted sums."""

    count: int
    second: Array
    cross: Array
    first: Array
    goal: Array

    @classmethod
    def of(cls, rows: Array, wanted: Array) -> _Sums:
        turned, count = rows.transpose(0, 2, 1), rows.shape[1]
        products = (turned @ rows, wanted @ rows, rows.sum(1, dtype=np.float64), wanted.sum(2, dtype=np.float64))
        return cls(count, *(np.asarray(each, np.float64) / count for each in products))

    def __add__(self, other: _Sums) -> _Sums:
        count = self.count + other.count
        a, b = self.count / count, other.count / count
        return _Sums(
            count,
            a * self.second + b * other.second,
            a * self.cross + b * other.cross,
            a * self.first + b * other.first,
            a * self.goal + b * other.goal,
        )

    def error(self, weights: Array, bias: Array) -> float:
        """The mean squared error of sums with these weights, but for a constant."""
        form = ((weights @ self.second) * weights).sum(-1) - 2 * (weights * self.cross).sum(-1)
        mean = (weights @ self.first[:, :, None])[:, :, 0]
        return float((form + bias * (bias + 2 * mean - 2 * self.goal)).sum())


@dataclass(frozen=True)
class _Quantised:
    """``graph`` with the products that are ``done`` in integers; those that are ``left`` have float weights."""

    graph: Graph
    placed: Placement
    done: list[WeightedLayer]
    left: set[Node]
    grids: Mapping[Value, QuantParams]
    scheme: Scheme


def _measured(
    network: _Quantised, nodes: Sequence[Node], floats: Probes, samples: Sequence[Sample], threads: int
) -> dict[Node, list[_Sums]]:
    """The sums of each layer over the even and over the odd samples; ``floats`` has what ``_goals`` lists for it."""
    graph = network.graph
    copy, there, again, theirs, values = twins(graph, network.placed, network.done, network.grids)
    insert(copy, there, again, theirs, network.scheme)
    near = {node: [_twin(values, node).input(0)] for node in nodes}
    for node in nodes:
        i = _other(graph, node, network.left)
        if i is not None:
            near[node].append(_twin(values, node.output.uses[0]).input(i))
    rounded = Probes(copy, [v for each in near.values() for v in each], threads=threads)
    rng, sums = np.random.default_rng(0), dict[Node, list[_Sums]]()
    try:
        for number, (expected, got) in enumerate(zip(floats.run(samples), rounded.run(samples), strict=True)):
            for node in nodes:
                chosen = chosen_positions(node, rng)
                wanted = results_at(node, expected[node.output], chosen)
                if len(near[node]) > 1:
                    exactly, nearly = _goals(graph, node)[1], near[node][1]
                    wanted = wanted + results_at(node, expected[exactly] - got[nearly], chosen)
                new = _Sums.of(rows_at(node, got[near[node][0]], chosen), wanted)
                halves = sums.setdefault(node, [])
                if number < 2:
                    halves.append(new)
                else:
                    halves[number % 2] += new
    finally:
        rounded.close()
    return sums


def _twin(values: Mapping[Value, Value], node: Node) -> Node:
    twin = values[node.output].producer
    assert twin is not None
    return twin


def _goals(graph: Graph, node: Node) -> list[Value]:
    """The result of a product and what is added to it: the other operand, of the same shape, of the addition that alone
    reads it."""
    y = node.output
    if len(y.uses) != 1 or not isinstance(y.uses[0].op, Add) or graph.is_output(y):
        return [y]
    other = y.uses[0].inputs[1 if y.uses[0].inputs[0] is y else 0]
    if other is None or other is y or other.constant or other.type.dims != y.type.dims:
        return [y]
    return [y, other]


def _other(graph: Graph, node: Node, left: set[Node]) -> int | None:
    """The operand that an addition adds to a product's result (``_goals``), by number, if it is complete before the
    product: if it depends on no layer that is ``left``."""
    y, *others = _goals(graph, node)
    if not others:
        return None
    (other,) = others
    i = 1 if y.uses[0].inputs[0] is y else 0
    todo, seen = [other], set[Node]()
    while todo:
        maker = todo.pop().producer
        if maker is None or maker in seen:
            continue
        if maker in left:
            return None
        seen.add(maker)
        todo += [v for v in maker.inputs if v is not None]
    return i


# ------------------------------------------------------------------------------------------------ weights that fit
def _fitted(each: WeightedLayer, halves: Sequence[_Sums], *, centred: bool) -> tuple[WeightedLayer, Array]:
    """The product and what its bias has to add."""
    data = np.moveaxis(each.node.input(1).array.astype(np.float64), each.axis, 0)
    groups = len(halves[0].second)
    start = data.reshape(groups, len(data) // groups, -1)
    scale = np.broadcast_to(each.w.scale, (len(data),)).reshape(groups, -1, 1).astype(np.float64)
    bias = each.bias.reshape(groups, -1)
    ridge = RIDGES[1]
    if len(halves) == 2:
        tried = [_solved(each, start, scale, bias, halves[0], r, centred) for r in RIDGES]
        ridge = RIDGES[int(np.argmin([halves[1].error(whole * steps, b) for whole, steps, b in tried]))]
    every = halves[0] if len(halves) == 1 else halves[0] + halves[1]
    whole, steps, new = _solved(each, start, scale, bias, every, ridge, centred)
    weights = np.moveaxis(whole.reshape(data.shape), 0, each.axis).astype(each.weights.dtype)
    w = QuantParams(steps.reshape(-1).astype(np.float32), each.w.zero, each.w.dtype)
    return replace(each, w=w, weights=weights), (new - bias).reshape(-1)


def _solved(
    each: WeightedLayer, start: Array, scale: Array, bias: Array, sums: _Sums, ridge: float, centred: bool
) -> tuple[Array, Array, Array]:
    """Integers, scales and biases whose sums are nearest to the wanted ones, near the weights ``start``."""
    second, cross = sums.second, sums.cross
    if centred:
        second = second - sums.first[:, :, None] * sums.first[:, None, :]
        cross = cross - sums.goal[:, :, None] * sums.first[:, None, :]
    else:
        cross = cross - bias[:, :, None] * sums.first[:, None, :]
    mean = np.trace(second, axis1=1, axis2=2)[:, None, None] / second.shape[1]
    resisting = second + np.maximum(ridge * mean, 1e-30) * np.eye(second.shape[1])
    moved = np.linalg.solve(resisting, (cross - start @ second).transpose(0, 2, 1)).transpose(0, 2, 1)
    whole, steps = fitted(start + moved, second, scale, span(each.w))
    if centred:
        bias = sums.goal - ((whole * steps) @ sums.first[:, :, None])[:, :, 0]
    return whole, steps, bias
