"""Means of channels that quantisation shifted, put back by the biases.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 4.2, with the
means measured on samples in the quantised network ("empirical bias correction", its appendix D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tenon.ir.graph import Array, Graph, Node, Value
from tenon.ir.types import F32, TensorType
from tenon.passes.base import make
from tenon.quantization.calibration import Step
from tenon.quantization.insertion import Product, insert
from tenon.quantization.placement import Placement
from tenon.quantization.probes import Probes
from tenon.quantization.samples import Sample
from tenon.quantization.scheme import Grid, Scheme

PASSES = 24
"""Most passes over the samples: layers beyond as many are corrected several at a time."""


def corrected(
    graph: Graph, placed: Placement, made: list[Product], grids: Mapping[Value, Grid], scheme: Scheme,
    samples: Sequence[Sample], *, threads: int, step: Step,
) -> list[Product]:  # fmt: skip
    """The products with biases such that each channel has the mean that it has in ``graph``, which is in floats.

    Layers are corrected in their order, because a correction changes what the layers after it read.
    """
    results = [each.node.output for each in made]
    floats = _means(graph, results, samples, {}, threads)
    simulated, sums, places = _with_corrections(graph, placed, made, grids, scheme)
    probes = Probes(simulated, sums, threads=threads)
    shifts = {name: np.zeros(shape, np.float32) for name, shape in places}
    groups = np.array_split(np.arange(len(made)), min(PASSES, len(made)))
    try:
        for number, group in enumerate(groups):
            step("bias correction", number, len(groups))
            means = _averages(probes, samples, shifts)
            for i in group:
                name, shape = places[i]
                shifts[name] = shifts[name] + (floats[results[i]] - means[sums[i]]).reshape(shape).astype(np.float32)
    finally:
        probes.close()
    return [
        replace(each, bias=each.bias + shifts[name].reshape(-1).astype(np.float64))
        for each, (name, _) in zip(made, places, strict=True)
    ]


def channel_axis(value: Value, node: Node) -> int:
    return value.type.rank - 1 if node.op.name in ("Gemm", "MatMul") else 1


def _means(
    graph: Graph, values: Sequence[Value], samples: Sequence[Sample], more: Mapping[str, Array], threads: int
) -> dict[Value, Array]:
    probes = Probes(graph, values, threads=threads)
    try:
        return _averages(probes, samples, more)
    finally:
        probes.close()


def _averages(probes: Probes, samples: Sequence[Sample], more: Mapping[str, Array]) -> dict[Value, Array]:
    """The mean of each channel over samples and positions."""
    totals: dict[Value, Array] = {}
    for values in probes.run(samples, more):
        for value, array in values.items():
            assert value.producer is not None
            core = value.producer if value.producer.op.name != "Add" else _core(value.producer)
            axis = channel_axis(value, core)
            mean = array.astype(np.float64).mean(tuple(i for i in range(array.ndim) if i != axis))
            totals[value] = totals.get(value, 0.0) + mean
    return {value: total / len(samples) for value, total in totals.items()}


def _core(node: Node) -> Node:
    producer = node.input(0).producer
    assert producer is not None
    return producer


def _with_corrections(
    graph: Graph, placed: Placement, made: list[Product], grids: Mapping[Value, Grid], scheme: Scheme
) -> tuple[Graph, list[Value], list[tuple[str, tuple[int, ...]]]]:
    """The quantised graph with an input for each product, which is added to its sums."""
    copy, placed, made, grids, _ = twins(graph, placed, made, grids)
    sums, places = [], []
    insert(copy, placed, made, grids, scheme)
    for i, each in enumerate(made):
        y = each.node.output
        axis = channel_axis(y, each.node)
        shape = tuple(each.channels if j == axis else 1 for j in range(y.type.rank))
        shift = copy.add_input(f"correction_{i}", TensorType(F32, shape))
        readers = list(y.uses)
        added = copy.add(make("Add"), [y, shift], [f"{y.name}_corrected"], before=_first(copy, readers))
        for reader in dict.fromkeys(readers):
            copy.rewire(reader, tuple(added.output if v is y else v for v in reader.inputs))
        copy.outputs = [added.output if v is y else v for v in copy.outputs]
        sums.append(added.output)
        places.append((shift.name, shape))
    return copy, sums, places


def _first(graph: Graph, nodes: Sequence[Node]) -> Node | None:
    return min(nodes, key=graph.position) if nodes else None


def twins(
    graph: Graph, placed: Placement, made: list[Product], grids: Mapping[Value, Grid]
) -> tuple[Graph, Placement, list[Product], dict[Value, Grid], dict[Value, Value]]:
    """A copy of the graph, the same of what refers to it, and the copies of values."""
    copy = graph.copy()
    nodes = dict(zip(graph, copy, strict=True))
    values: dict[Value, Value] = dict(zip(graph.inputs, copy.inputs, strict=True))
    for old, new in nodes.items():
        values.update(zip(old.outputs, new.outputs, strict=True))
    placement = Placement(
        [nodes[n] for n in placed.products], [(nodes[n], i) for n, i in placed.constants],
        [values[v] for v in placed.tensors], {values[a]: values[b] for a, b in placed.parts.items()},
    )  # fmt: skip
    again = [replace(each, node=nodes[each.node]) for each in made]
    return copy, placement, again, {values[v]: grid for v, grid in grids.items()}, values
