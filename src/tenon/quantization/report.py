"""What quantisation costs: noise of the outputs and of each tensor, and how often the largest output stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.ir.graph import Array, Graph, Value
from tenon.quantization.probes import Probes
from tenon.quantization.samples import Sample


@dataclass(frozen=True)
class Noise:
    """A tensor in the quantised graph, compared with the float graph on the same samples.

    ``sqnr`` is the signal-to-quantisation-noise ratio in dB, ``cosine`` the cosine similarity, ``shift`` the mean of
    the difference over the standard deviation in float.
    """

    name: str
    sqnr: float
    cosine: float
    shift: float


@dataclass(frozen=True)
class Report:
    """``outputs`` and ``tensors`` by noise; ``agreement`` is the share of samples whose largest output is the same, or
    None if the first output is no vector.

    ``methods`` has the SQNR in dB of each method that was tried, ``repairs`` that without ("") and with each repair.
    """

    scheme: str
    method: str
    samples: int
    outputs: tuple[Noise, ...]
    tensors: tuple[Noise, ...]
    agreement: float | None
    methods: dict[str, float]
    repairs: dict[str, float]


class _Sums:
    """Running sums of a signal and its noise."""

    def __init__(self) -> None:
        self.signal = self.noise = self.product = self.got = self.difference = self.total = 0.0
        self.count = 0

    def add(self, got: Array, expected: Array) -> None:
        a, b = got.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
        d = a - b
        self.signal += float(b @ b)
        self.noise += float(d @ d)
        self.product += float(a @ b)
        self.got += float(a @ a)
        self.difference += float(d.sum())
        self.total += float(b.sum())
        self.count += a.size

    @property
    def sqnr(self) -> float:
        if not self.noise:
            return float("inf")
        return 10 * float(np.log10(self.signal / self.noise)) if self.signal else float("-inf")

    def noise_of(self, name: str) -> Noise:
        lengths = (self.got * self.signal) ** 0.5
        variance = max(self.signal / self.count - (self.total / self.count) ** 2, 0.0)
        shift = self.difference / self.count / variance**0.5 if variance else 0.0
        return Noise(name, self.sqnr, self.product / lengths if lengths else 1.0, shift)


_NORMALISED = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})


def scores(graph: Graph) -> list[Value]:
    """The outputs; of a softmax or a sigmoid, what it reads: its noise does not depend on how certain the answer is."""
    nodes = [value.producer for value in graph.outputs]
    return [
        node.input(0) if node is not None and node.op.name in _NORMALISED else value
        for node, value in zip(nodes, graph.outputs, strict=True)
    ]


def worst_output(
    graph: Graph, quantised: Graph, values: Mapping[Value, Value], samples: Sequence[Sample], threads: int
) -> float:
    """The least SQNR in dB of the outputs; ``values`` maps those of ``graph`` to those of ``quantised``."""
    sums, _ = _compared(graph, quantised, values, scores(graph), samples, threads)
    return min(each.sqnr for each in sums)


def measured(
    graph: Graph, quantised: Graph, values: Mapping[Value, Value], tensors: Sequence[Value], samples: Sequence[Sample],
    threads: int,
) -> tuple[tuple[Noise, ...], float | None]:  # fmt: skip
    """The noise of the outputs, then of ``tensors``, and the share of samples with the same largest output."""
    asked = [*scores(graph), *tensors]
    sums, same = _compared(graph, quantised, values, asked, samples, threads)
    names = [v.name for v in (*graph.outputs, *tensors)]
    first = graph.outputs[0].type
    vector = 1 < first.size == first.dims[-1]
    return tuple(each.noise_of(name) for name, each in zip(names, sums, strict=True)), same if vector else None


def _compared(
    graph: Graph, quantised: Graph, values: Mapping[Value, Value], asked: Sequence[Value], samples: Sequence[Sample],
    threads: int,
) -> tuple[list[_Sums], float]:  # fmt: skip
    sums, same = [_Sums() for _ in asked], 0
    theirs = [values[v] for v in asked]
    expected, got = Probes(graph, asked, threads=threads), Probes(quantised, theirs, "onnx", threads)
    try:
        for a, b in zip(expected.run(samples), got.run(samples), strict=True):
            for each, x, y in zip(sums, asked, theirs, strict=True):
                each.add(b[y], a[x])
            same += int(a[asked[0]].argmax()) == int(b[theirs[0]].argmax())
    finally:
        expected.close()
        got.close()
    return sums, same / len(samples)
