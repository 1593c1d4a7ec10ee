"""The cost of a quantisation: noise of the outputs, of each tensor and of weights, and how often the answer stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.ops.requantize import limits
from tenon.tools.quantization.candidates import Recipe, grids
from tenon.tools.quantization.half_precision import layer_name
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.probes import Probes, scores
from tenon.tools.quantization.recurrent_states import is_of_gates
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import QuantParams, Scheme, bits_of


@dataclass(frozen=True)
class Noise:
    """A tensor in the quantised graph, compared with the float graph on the same samples.

    ``sqnr`` is the signal-to-quantisation-noise ratio in dB, ``cosine`` the cosine similarity, ``shift`` the mean of
    the difference over the standard deviation in float, ``saturated`` the share of elements in float beyond the range
    of the integers.
    """

    name: str
    sqnr: float
    cosine: float
    shift: float
    saturated: float = 0.0


@dataclass(frozen=True)
class WeightNoise:
    """The weights of a layer: their SQNR in dB, their bits, and how many scales they have."""

    layer: str
    sqnr: float
    bits: int
    scales: int


@dataclass(frozen=True)
class Point:
    """A mixture that was tried: the layers in float, SQNR in dB, drop of the metric in hundredths, estimated time in
    multiply-adds of a vector, bytes of weights and of RAM on the target, the mean bits of a weight, the layers with
    activations of 16-bit integers, and those in fp16."""

    floats: tuple[str, ...]
    sqnr: float
    drop: float
    time: float
    weights: int
    ram: int
    bits: float
    wide: tuple[str, ...] = ()
    fp16: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """``outputs``, ``tensors`` and ``weights`` by noise.  ``agreement`` is the share of samples whose largest output is
    the same, or None if the first output is no vector; ``agreement_error`` is its standard error.

    ``scheme_reason`` says why the scheme was chosen, "" if it was asked for.  ``methods`` has the SQNR in dB of each
    method that was tried, ``repairs`` that without ("") and with each repair, on samples that nothing was fitted to,
    and ``without`` that before each repair; ``applied`` are the repairs that were kept.  Of a search for a contract,
    ``floats`` are the layers in float, ``wide`` those of 16-bit integers, ``fp16`` those in fp16 and ``points`` the
    mixtures that were tried.
    """

    scheme: str
    method: str
    samples: int
    outputs: tuple[Noise, ...]
    tensors: tuple[Noise, ...]
    weights: tuple[WeightNoise, ...]
    agreement: float | None
    agreement_error: float | None
    methods: dict[str, float]
    repairs: dict[str, float]
    applied: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    wide: tuple[str, ...] = ()
    fp16: tuple[str, ...] = ()
    scheme_reason: str = ""
    without: dict[str, float] = field(default_factory=dict)


class Sums:
    """Running sums of a signal and its noise; values below ``low`` or above ``high`` are saturated, which is noise
    unless they are ``alike_beyond``."""

    def __init__(self, low: float = -np.inf, high: float = np.inf, *, alike_beyond: bool = False) -> None:
        self.signal = self.noise = self.product = self.got = self.difference = self.total = 0.0
        self.count = self.beyond = 0
        self.low, self.high, self.alike_beyond = low, high, alike_beyond

    def add(self, got: Array, expected: Array) -> None:
        """Add results, and those that are expected for the same sample."""
        a, b = got.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
        self.beyond += int(((b < self.low) | (b > self.high)).sum())
        if self.alike_beyond:
            b = b.clip(self.low, self.high)
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
        """In dB."""
        if not self.noise:
            return float("inf")
        return 10 * float(np.log10(self.signal / self.noise)) if self.signal else float("-inf")

    def noise_of(self, name: str) -> Noise:
        lengths = (self.got * self.signal) ** 0.5
        count = max(self.count, 1)
        variance = max(self.signal / count - (self.total / count) ** 2, 0.0)
        shift = self.difference / count / variance**0.5 if variance else 0.0
        return Noise(name, self.sqnr, self.product / lengths if lengths else 1.0, shift, self.beyond / count)


def reported(
    graph: Graph,
    recipe: Recipe,
    quantised: Graph,
    values: Mapping[Value, Value],
    samples: Sequence[Sample],
    scheme: Scheme,
    threads: int,
) -> Report:
    """The report on ``quantised``, whose ``values`` belong to those of the recipe's graph."""
    given = grids(recipe.placed, recipe.ranges, scheme)
    tensors, ends = recipe.placed.tensors, scores(recipe.graph)
    gates = {v for v in recipe.placed.states if is_of_gates(v)}
    sums = [Sums() for _ in ends] + [Sums(*_span(given[v]), alike_beyond=v in gates) for v in tensors]
    same = 0
    wanted, floats = Probes(graph, scores(graph), threads=threads), Probes(recipe.graph, tensors, threads=threads)
    theirs = [values[v] for v in (*ends, *tensors)]
    integers = Probes(quantised, theirs, "onnx", threads)
    try:
        runs = zip(wanted.run(samples), floats.run(samples), integers.run(samples), strict=True)
        for outputs, inner, got in runs:
            expected = [*(outputs[v] for v in scores(graph)), *(inner[v] for v in tensors)]
            for each, x, y in zip(sums, expected, theirs, strict=True):
                each.add(got[y], x)
            same += int(expected[0].argmax()) == int(got[theirs[0]].argmax())
    finally:
        for probes in (wanted, floats, integers):
            probes.close()
    names = [v.name for v in (*graph.outputs, *tensors)]
    noise = tuple(each.noise_of(name) for name, each in zip(names, sums, strict=True))
    first, share = graph.outputs[0].type, same / len(samples)
    vector = 1 < first.size == first.dims[-1]
    return Report(
        scheme.name,
        recipe.method,
        len(samples),
        noise[: len(ends)],
        noise[len(ends) :],
        tuple(weight_noise(each) for each in recipe.products),
        share if vector else None,
        standard_error(share, len(samples)) if vector else None,
        recipe.methods,
        recipe.repairs,
        tuple(recipe.applied),
        without=recipe.without,
    )


def standard_error(share: float, count: int) -> float:
    """The standard error of a share of ``count`` samples; for shares of 0 and 1, with one sample more or less
    (Laplace's estimate)."""
    likely = (share * count + 1) / (count + 2) if share in (0.0, 1.0) else share
    return float((likely * (1 - likely) / count) ** 0.5)


def weight_noise(each: WeightedLayer) -> WeightNoise:
    """The noise of the integers of a product's weights."""
    sums = Sums()
    sums.add(each.stored_weights(), each.node.input(1).array)
    return WeightNoise(layer_name(each.node), sums.sqnr, bits_of(each.w.dtype), each.w.scale.size)


def _span(grid: QuantParams) -> tuple[float, float]:
    """The real numbers that are not saturated."""
    least, most = limits(grid.dtype)
    scale, zero = float(grid.scale.reshape(())), float(grid.zero.reshape(()))
    return (least - zero - 0.5) * scale, (most - zero + 0.5) * scale
