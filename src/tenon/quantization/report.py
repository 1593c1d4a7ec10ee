"""What quantisation costs: noise of the outputs and of each tensor, and how often the largest output stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.ir.graph import Array, Graph, Value
from tenon.quantization.placement import Placement
from tenon.quantization.probes import Probes
from tenon.quantization.samples import Sample


@dataclass(frozen=True)
class Noise:
    """A tensor in the quantised graph, compared with the float graph on the same samples.

    ``sqnr`` is the signal-to-quantisation-noise ratio in dB, ``cosine`` the cosine similarity, ``shift`` the mean of the
    difference over the standard deviation in float.
    """

    name: str
    sqnr: float
    cosine: float
    shift: float


@dataclass(frozen=True)
class Report:
    """``outputs`` and ``tensors`` by noise; ``agreement`` is the share of samples whose largest output is the same.

    ``methods`` has the SQNR in dB of each method that was tried, ``repairs`` that without ("") and with each repair.
    """

    scheme: str
    method: str
    samples: int
    outputs: tuple[Noise, ...]
    tensors: tuple[Noise, ...]
    agreement: float
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


def scores(graph: Graph) -> list[Value]:
    """The outputs; of a softmax, what it reads."""
    found = []
    for value in graph.outputs:
        node = value.producer
        if node is not None and node.op.name == "DequantizeLinear" and node.input(0).producer is not None:
            before = node.input(0).producer.input(0).producer  # type: ignore[union-attr]
            node = before if before is not None and before.op.name in _NORMALISED else node
        found.append(node.input(0) if node is not None and node.op.name in _NORMALISED else value)
    return found


_NORMALISED = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})


def logits(graph: Graph, quantised: Graph, samples: Sequence[Sample], threads: int) -> dict[str, float]:
    """The SQNR in dB of each output."""
    sums, _ = _compared(graph, quantised, scores(graph), scores(quantised), samples, threads)
    return {v.name: each.sqnr for v, each in zip(graph.outputs, sums, strict=True)}


def measured(
    graph: Graph, quantised: Graph, placed: Placement, samples: Sequence[Sample], scheme: str, method: str,
    methods: dict[str, float], repairs: dict[str, float], threads: int,
) -> Report:  # fmt: skip
    """Compare a float graph with what it was quantised to."""
    ends = scores(graph)
    pairs = {}
    for value in placed.tensors:
        pairs[value] = value.name
    twin = {v.name.removesuffix("_float"): v for node in quantised for v in node.outputs}
    twin.update({v.name: v for v in quantised.inputs})
    by_name = {
        name.removesuffix("_dequantized"): v for name, v in twin.items() if name.endswith("_dequantized")
    } | {v.name: v for v in quantised.outputs}
    inner = [v for v in placed.tensors if v.name in by_name]
    sums, same = _compared(
        graph, quantised, [*ends, *inner], [*scores(quantised), *(by_name[v.name] for v in inner)], samples, threads
    )
    outputs = tuple(each.noise_of(v.name) for v, each in zip(graph.outputs, sums, strict=False))
    tensors = tuple(each.noise_of(v.name) for v, each in zip(inner, sums[len(ends) :], strict=True))
    return Report(scheme, method, len(samples), outputs, tensors, same, methods, repairs)


def _compared(
    graph: Graph, quantised: Graph, floats: Sequence[Value], integers: Sequence[Value], samples: Sequence[Sample],
    threads: int,
) -> tuple[list[_Sums], float]:  # fmt: skip
    sums, same = [_Sums() for _ in floats], 0
    expected, got = Probes(graph, floats, threads=threads), Probes(quantised, integers, "onnx", threads)
    try:
        for a, b in zip(expected.run(samples), got.run(samples), strict=True):
            for each, x, y in zip(sums, floats, integers, strict=True):
                each.add(b[y], a[x])
            same += int(a[floats[0]].argmax()) == int(b[integers[0]].argmax())
    finally:
        expected.close()
        got.close()
    return sums, same / len(samples)
