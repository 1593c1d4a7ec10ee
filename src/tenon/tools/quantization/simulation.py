"""The quantised network in floats, whose grids and biases are inputs: it is compiled once to try many of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import F32, DType, TensorType
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.passes.base import make
from tenon.tools.quantization.copies import twins
from tenon.tools.quantization.insertion import WeightedLayer, insert
from tenon.tools.quantization.loss import Loss, is_classifier, loss_of, relative_entropy
from tenon.tools.quantization.placement import Placement
from tenon.tools.quantization.probes import Probes, scores
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import QuantParams, Scheme

CLEARLY = 1.25
"""Factor of the best noise after as many samples from which the rest is not measured."""


class Simulation:
    """``shifts`` are added to the sums of each product, one number for each channel; ``set_grid`` changes a grid.
    ``by_noise``: the loss is the noise alone, which it always is unless the network is a classifier.

    Rounding and saturation are those of integers; sums are those of f32.
    """

    def __init__(
        self,
        graph: Graph,
        placed: Placement,
        made: Sequence[WeightedLayer],
        grids: Mapping[Value, QuantParams],
        scheme: Scheme,
        threads: int,
    ) -> None:
        copy, there, again, theirs, values = twins(graph, placed, list(made), grids)
        dequantised = insert(copy, there, again, theirs, scheme)
        self._feeds: dict[str, Array] = {}
        self._names: dict[Value, tuple[str, str]] = {}
        for i, value in enumerate(placed.tensors):
            self._names[value] = _with_grid_inputs(copy, dequantised[values[value]], i, grids[value].dtype)
            self.set_grid(value, grids[value])
        self.shifts: list[Array] = []
        self._sums = [self._with_shift(copy, each, i) for i, each in enumerate(again)]
        self._ends = [dequantised.get(values[v], values[v]) for v in scores(graph)]
        moved = {id(each.node.output): added for each, added in zip(again, self._sums, strict=True)}
        self._ends = [moved.get(id(v), v) for v in self._ends]
        self.by_noise = not is_classifier(graph)
        self._graph, self._threads = copy, threads
        self._axes = [channel_axis(each.node) for each in made]
        self._probes = Probes(copy, self._ends, threads=threads)
        self._means: ChannelMeans | None = None

    def _with_shift(self, graph: Graph, each: WeightedLayer, i: int) -> Value:
        y, axis = each.node.output, channel_axis(each.node)
        shape = tuple(each.channels if j == axis else 1 for j in range(y.type.rank))
        self.shifts.append(np.zeros(shape, np.float32))
        shift, readers = graph.add_input(f"shift_{i}", TensorType(F32, shape)), list(y.uses)
        before = min(readers, key=graph.position) if readers else None
        added = graph.add(make("Add"), [y, shift], [f"{y.name}_shifted"], before=before)
        for reader in dict.fromkeys(readers):
            graph.rewire(reader, tuple(added.output if v is y else v for v in reader.inputs))
        return added.output

    def set_grid(self, value: Value, grid: QuantParams) -> None:
        scale, zero = self._names[value]
        self._feeds[scale], self._feeds[zero] = grid.scale.reshape(()), grid.zero.reshape(())

    def set_grids(self, grids: Mapping[Value, QuantParams]) -> None:
        for value, grid in grids.items():
            self.set_grid(value, grid)

    def reset_shifts(self) -> None:
        self.shifts = [np.zeros_like(shift) for shift in self.shifts]

    def _more(self) -> dict[str, Array]:
        return self._feeds | {f"shift_{i}": shift for i, shift in enumerate(self.shifts)}

    def means(self, samples: Sequence[Sample]) -> list[Array]:
        """The mean of each channel over samples and positions, for each layer with weights."""
        if self._means is None:
            self._means = ChannelMeans(self._graph, self._sums, self._axes, self._threads)
        return self._means.over(samples, self._more())

    def outputs(self, samples: Sequence[Sample]) -> list[list[Array]]:
        """The arrays of the outputs on each sample."""
        return [[values[v].copy() for v in self._ends] for values in self._probes.run(samples, self._more())]

    def noise(
        self, samples: Sequence[Sample], expected: Sequence[Sequence[Array]], best: Sequence[Loss] = ()
    ) -> list[Loss]:
        """The loss after each sample; ``expected`` are the arrays of the outputs in floats.  It ends early, with
        infinity, where it is clearly more than ``best`` so far."""
        noise, divergence, changed, path = np.zeros(len(self._ends)), 0.0, 0, list[Loss]()
        signal = np.array(
            [sum(float((each[i].astype(np.float64) ** 2).sum()) for each in expected) for i in range(len(noise))]
        )
        for number, (values, wanted) in enumerate(zip(self._probes.run(samples, self._more()), expected, strict=True)):
            for i, (value, array) in enumerate(zip(self._ends, wanted, strict=True)):
                noise[i] += float(((values[value].astype(np.float64) - array) ** 2).sum())
            first = values[self._ends[0]]
            changed += int(first.argmax() != wanted[0].argmax())
            divergence += 0.0 if self.by_noise else relative_entropy(wanted[0], first)
            mean = None if self.by_noise else divergence / len(expected)
            path.append(loss_of(float((noise / np.maximum(signal, 1e-30)).max()), mean)._replace(changed=changed))
            if best and number >= 1 and path[-1].total > CLEARLY * best[number].total:
                return [*path, Loss(np.inf, np.inf)]
        return path

    def close(self) -> None:
        self._probes.close()
        if self._means is not None:
            self._means.close()


class ChannelMeans:
    """The means of channels of tensors of ``graph``, whose channels lie along ``axes``, computed in compiled code."""

    def __init__(self, graph: Graph, tensors: Sequence[Value], axes: Sequence[int], threads: int) -> None:
        copy = graph.copy()
        twin = {
            old: new for a, b in zip(graph, copy, strict=True) for old, new in zip(a.outputs, b.outputs, strict=True)
        }
        self._asked: list[Value] = []
        for i, (value, axis) in enumerate(zip(tensors, axes, strict=True)):
            others = [j for j in range(value.type.rank) if j != axis % value.type.rank]
            along = copy.constant(f"axes_{i}", np.array(others, np.int64))
            self._asked.append(copy.add(make("ReduceMean"), [twin[value], along], [f"means_{i}"]).output)
        self._probes = Probes(copy, self._asked, threads=threads)

    def over(self, samples: Sequence[Sample], more: Mapping[str, Array] | None = None) -> list[Array]:
        """The mean over samples of each channel, in f64."""
        totals = [np.zeros(value.type.size) for value in self._asked]
        for values in self._probes.run(samples, more):
            for total, value in zip(totals, self._asked, strict=True):
                total += values[value].reshape(-1)
        return [total / len(samples) for total in totals]

    def close(self) -> None:
        self._probes.close()


def channel_axis(node: Node) -> int:
    """The channel axis of a layer's output."""
    return node.output.type.rank - 1 if isinstance(node.op, Gemm | MatMul) else 1


def _with_grid_inputs(graph: Graph, dequantised: Value, i: int, dtype: DType) -> tuple[str, str]:
    """Let a QuantizeLinear and its DequantizeLinear read scale and zero point from inputs; returns their names."""
    again = dequantised.producer
    assert again is not None
    stored = again.input(0).producer
    assert stored is not None
    scale = graph.add_input(f"scale_{i}", TensorType(F32, ()))
    zero = graph.add_input(f"zero_point_{i}", TensorType(dtype, ()))
    for node in (stored, again):
        graph.rewire(node, (node.input(0), scale, zero))
    return scale.name, zero.name
