"""Layers that stay in float so that a quantised network meets a contract, at the least estimated cost.

The contract is a least SQNR of the outputs or a most drop of a metric.  Layers are ordered by the noise that each adds
to its own sums over what it costs in float; the shortest prefix that meets the contract is found by bisection, and
layers of it that are not needed after all return to integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.ir.graph import Array, Graph, Node
from tenon.metrics.base import Evaluation
from tenon.metrics.classification import TopK
from tenon.options import Options
from tenon.pipeline import find_target, inspect
from tenon.plan.lowering_context import Setting, operator, site
from tenon.quantization.insertion import Product
from tenon.quantization.moments import moments
from tenon.quantization.probes import Probes, scores
from tenon.quantization.recipe import Recipe, Request, inserted, recipe
from tenon.quantization.report import Point, Sums
from tenon.quantization.samples import Sample

SAME_CLASS = Evaluation(TopK)
"""The share of samples whose largest output is that of the float network."""

RETURNED = 6
"""Most layers that are tried in integers again."""

NAMED = 5
"""Layers that a refusal names."""


@dataclass(frozen=True)
class Contract:
    """``min_sqnr`` in dB; ``max_drop`` in hundredths of the result of ``metric``, by default ``SAME_CLASS``.  None: no
    such condition.  ``truths`` and ``numbers`` are those of the samples."""

    min_sqnr: float | None = None
    max_drop: float | None = None
    metric: Evaluation | None = None
    truths: Sequence[Any] | None = None
    numbers: Sequence[int] | None = None

    @property
    def asked(self) -> bool:
        """Whether there is any condition."""
        return self.min_sqnr is not None or self.max_drop is not None

    def met_by(self, point: Point) -> bool:
        enough = self.min_sqnr is None or point.sqnr >= self.min_sqnr
        return enough and (self.max_drop is None or point.drop <= self.max_drop)

    def __str__(self) -> str:
        parts = [] if self.min_sqnr is None else [f"an SQNR of {self.min_sqnr:g} dB"]
        return " and ".join(parts + ([] if self.max_drop is None else [f"a drop of {self.max_drop:g} points"]))


@dataclass
class Mixture:
    """``floats`` are the layers that stay in float, ``points`` everything that was tried."""

    found: Recipe
    floats: tuple[str, ...]
    points: list[Point] = field(default_factory=list)


def mixed(
    graph: Graph, samples: Sequence[Sample], request: Request, contract: Contract, target: str = "host"
) -> Mixture:
    """The cheapest mixture found that meets the contract on ``samples``.

    Raises InputError that names the noisiest layers if only a network in float would meet it.
    """
    return _Search(graph, samples, request, contract, target).run()


class _Search:
    def __init__(
        self, graph: Graph, samples: Sequence[Sample], request: Request, contract: Contract, target: str
    ) -> None:
        self.graph, self.samples, self.request, self.contract, self.target = graph, samples, request, contract, target
        self.points: list[Point] = []
        self.reference = _run(graph, "float", samples, request.threads)

    def run(self) -> Mixture:
        found = recipe(self.graph, self.samples, self.request)
        start = self._tried(found, ())
        if self.contract.met_by(start):
            return Mixture(found, (), self.points)
        order = self._order(found)
        quick = replace(
            self.request, methods=(found.method,), rounding="nearest", range_search=False,
            equalisation=any("equalisation" in name for name in found.applied),
        )  # fmt: skip

        def meets(floats: Sequence[str]) -> bool:
            made = recipe(self.graph, self.samples, replace(quick, exclude=(*self.request.exclude, *floats)))
            return self.contract.met_by(self._tried(made, tuple(floats)))

        few, many = 0, len(order)
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if meets(order[:middle]) else (middle, many)
        if many == len(order):
            raise InputError(
                f"{self.graph.source or self.graph.name}: {self.contract} needs all layers in float: the best mixture "
                f"has {max(p.sqnr for p in self.points):.1f} dB, and the noisiest layers are "
                f"{', '.join(order[:NAMED])}; ask for less, or for other types (--scheme)"
            )
        floats = order[:many]
        for name in floats[::-1][1 : RETURNED + 1]:
            if meets([other for other in floats if other != name]):
                floats.remove(name)
        final = recipe(self.graph, self.samples, replace(self.request, exclude=(*self.request.exclude, *floats)))
        self._tried(final, tuple(floats))
        return Mixture(final, tuple(floats), self.points)

    def _order(self, found: Recipe) -> list[str]:
        """Layers by what their noise costs to avoid, the best to leave in float first."""
        noise = _noise_of_layers(found, self.samples, self.request)
        integers, floats = self._times(inserted(found, self.request.scheme)[0]), self._times(self.graph)
        cost = {
            name: max(floats.get(name, 0.0) - integers.get(name, 0.0), 1e-3 * floats.get(name, 1.0), 1e-9)
            for name in noise
        }
        typical = float(np.median(list(cost.values())))
        return sorted(noise, key=lambda name: -noise[name] / max(cost[name], 0.1 * typical))

    def _times(self, graph: Graph) -> dict[str, float]:
        """Estimated time of each layer on the target."""
        options = Options.from_environment(target=self.target, name="estimate")
        _, planned = inspect(graph, options)
        setting = Setting(find_target(options).machine)
        found: dict[str, float] = {}
        for node in planned or ():
            name = layer_name(node)
            found[name] = found.get(name, 0.0) + operator(node).cost(site(node, setting)).time
        return found

    def _tried(self, found: Recipe, floats: tuple[str, ...]) -> Point:
        made = inserted(found, self.request.scheme)[0]
        got = _run(made, "onnx", self.samples, self.request.threads)
        sums = [Sums() for _ in scores(self.graph)]
        for mine, theirs in zip(got, self.reference, strict=True):
            for each, a, b in zip(sums, mine.scores, theirs.scores, strict=True):
                each.add(a, b)
        drop = self._drop(got)
        options = Options.from_environment(target=self.target, name="estimate")
        description, _ = inspect(made, options)
        held = [v.array for v in made.constants() if v.array.dtype.kind in "fiu"]
        stored = sum(a.nbytes for a in held) / max(sum(a.size for a in held), 1)
        point = Point(
            floats, min(each.sqnr for each in sums), drop, sum(self._times(made).values()), description.weights or 0,
            description.peak_ram or 0, 8 * stored,
        )  # fmt: skip
        self.points.append(point)
        return point

    def _drop(self, got: Sequence[_Answer]) -> float:
        """By how many hundredths the metric is worse than in float."""
        contract = self.contract
        if contract.metric is None:
            truths = [each.scores[0].argmax() for each in self.reference]
            results = [SAME_CLASS.score(({"": each.scores[0]} for each in a), truths) for a in (self.reference, got)]
            return SAME_CLASS.drop(*results)
        results = [
            contract.metric.score((each.outputs for each in a), contract.truths, contract.numbers)
            for a in (self.reference, got)
        ]
        return contract.metric.drop(*results)


@dataclass(frozen=True)
class _Answer:
    scores: list[Array]
    outputs: dict[str, Array]


def _run(graph: Graph, arithmetic: str, samples: Sequence[Sample], threads: int) -> list[_Answer]:
    ends = scores(graph)
    probes = Probes(graph, [*ends, *graph.outputs], arithmetic, threads)
    try:
        return [
            _Answer([values[v].copy() for v in ends], {v.name: values[v].copy() for v in graph.outputs})
            for values in probes.run(samples)
        ]
    finally:
        probes.close()


def layer_name(node: Node) -> str:
    """That --exclude takes."""
    return str(node.origin.layer) or node.output.name


def _noise_of_layers(found: Recipe, samples: Sequence[Sample], request: Request) -> dict[str, float]:
    """Of each layer, the power of the noise that rounding of weights and of data adds to its sums, over that of the
    sums."""
    known = moments(found.graph, found.products, samples[:16], threads=request.threads, step=request.step)
    noise: dict[str, float] = {}
    for each in found.products:
        name = layer_name(each.node)
        second = known[each.node].second if each.node in known else None
        noise[name] = noise.get(name, 0.0) + (0.0 if second is None else _noise(each, second))
    return noise


def _noise(each: Product, moment: Array) -> float:
    data, groups = each.node.input(1).array.astype(np.float64), len(moment)
    parts, wrong = (
        np.moveaxis(a, each.axis, 0).reshape(groups, data.shape[each.axis] // groups, -1)
        for a in (data, each.stored_weights() - data)
    )
    signal, noise = (float((np.matmul(a, moment) * a).sum()) for a in (parts, wrong))
    step = float(each.x.scale.reshape(())) ** 2 / 12
    return (noise + step * float((parts**2).sum())) / max(signal, 1e-30)
