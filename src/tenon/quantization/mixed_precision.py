"""Layers that stay in float, or get activations of 16 bits, so that a quantised network meets a contract, at the least
estimated cost.

The contract is a least SQNR of the outputs or a most drop of a metric.  Layers are ordered by the noise that each adds
to its own sums over what it costs in float; the shortest prefix that meets the contract is found by bisection, and
layers of it that are not needed after all return to 8 bits.  Of the rest, those get 16 bits that meet the contract so
in less estimated time than in float.
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


TYPES = ("int16", "float")
"""What layers may be besides the scheme's integers: with activations of 16 bits, or in float."""


@dataclass
class Mixture:
    """``floats`` are the layers that stay in float, ``wide`` those of 16 bits, ``points`` everything that was tried."""

    found: Recipe
    floats: tuple[str, ...]
    wide: tuple[str, ...] = ()
    points: list[Point] = field(default_factory=list)


def mixed(
    graph: Graph, samples: Sequence[Sample], request: Request, contract: Contract, target: str = "host",
    types: Sequence[str] = TYPES,
) -> Mixture:  # fmt: skip
    """The cheapest mixture of the scheme's integers and ``types`` found that meets the contract on ``samples``.

    Raises InputError that names the noisiest layers if only a network in float would meet it, or none of ``types``.
    """
    if unknown := sorted(set(types) - set(TYPES)):
        raise InputError(f"there is no type '{unknown[0]}' of layers: choose of {', '.join(TYPES)}")
    return _Search(graph, samples, request, contract, target, types or TYPES).run()


class _Search:
    def __init__(
        self, graph: Graph, samples: Sequence[Sample], request: Request, contract: Contract, target: str,
        types: Sequence[str],
    ) -> None:  # fmt: skip
        self.graph, self.samples, self.request, self.contract, self.target = graph, samples, request, contract, target
        self.types, self.quick = types, request
        self.points: list[Point] = []
        self.reference = _run(graph, "float", samples, request.threads)

    def run(self) -> Mixture:
        found = recipe(self.graph, self.samples, self.request)
        if self.contract.met_by(self._tried(found)):
            return Mixture(found, (), points=self.points)
        order = self._order(found)
        self.quick = replace(
            self.request, methods=(found.method,), rounding="nearest", range_search=False,
            equalisation=any("equalisation" in name for name in found.applied),
        )  # fmt: skip
        floats, wide = self._mixture(order)
        final = self._recipe(self.request, floats, wide)
        self._tried(final, floats, wide)
        return Mixture(final, tuple(floats), tuple(wide), self.points)

    def _mixture(self, order: Sequence[str]) -> tuple[list[str], list[str]]:
        """The layers in float and those of 16 bits.  Raises InputError if there is none."""
        if "float" not in self.types:
            return [], self._shortest(order, wide=True)
        try:
            floats = self._in_float(order)
        except InputError as refusal:  # products in 16 bits are nearly as good, and other operators stay in 8
            if "int16" not in self.types:
                raise
            try:
                return [], self._shortest(order, wide=True)
            except InputError:
                raise refusal from None
        return self._in_16_bits(floats) if "int16" in self.types else (floats, [])

    def _recipe(self, request: Request, floats: Sequence[str], wide: Sequence[str]) -> Recipe:
        more = replace(request, exclude=(*request.exclude, *floats), wide=(*request.wide, *wide))
        return recipe(self.graph, self.samples, more)

    def _attempt(self, floats: Sequence[str], wide: Sequence[str] = ()) -> Point:
        return self._tried(self._recipe(self.quick, floats, wide), floats, wide)

    def _shortest(self, order: Sequence[str], *, wide: bool) -> list[str]:
        """The shortest prefix that meets the contract in 16 bits, or in float.  Raises InputError if none does."""
        few, many = 0, len(order)

        def meets(count: int) -> bool:
            layers = order[:count]
            return self.contract.met_by(self._attempt((), layers) if wide else self._attempt(layers))

        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if meets(middle) else (middle, many)
        if many == len(order) and not (wide and meets(many)):
            needs = "cannot be met with 16 bits" if wide else "needs all layers in float"
            raise InputError(
                f"{self.graph.source or self.graph.name}: {self.contract} {needs}: the best mixture "
                f"has {max(p.sqnr for p in self.points):.1f} dB, and the noisiest layers are "
                f"{', '.join(order[:NAMED])}; ask for less, or for other types (--scheme)"
            )
        return list(order[:many])

    def _in_float(self, order: Sequence[str]) -> list[str]:
        """Without layers that are not needed after all."""
        floats = self._shortest(order, wide=False)
        for name in floats[::-1][1 : RETURNED + 1]:
            if self.contract.met_by(self._attempt([other for other in floats if other != name])):
                floats.remove(name)
        return floats

    def _in_16_bits(self, floats: list[str]) -> tuple[list[str], list[str]]:
        """Layers that meet the contract in 16 bits, too, and take less time so: all of them, else one by one."""
        time = next(p.time for p in self.points if p.floats == tuple(floats) and not p.wide)
        point = self._attempt((), floats)
        if self.contract.met_by(point) and point.time < time:
            return [], floats
        wide: list[str] = []
        for name in floats[::-1][:RETURNED] if len(floats) > 1 else ():
            rest = [other for other in floats if other not in (*wide, name)]
            point = self._attempt(rest, [*wide, name])
            if self.contract.met_by(point) and point.time < time:
                wide, time = [*wide, name], point.time
        return [name for name in floats if name not in wide], wide

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

    def _tried(self, found: Recipe, floats: Sequence[str] = (), wide: Sequence[str] = ()) -> Point:
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
            tuple(floats), min(each.sqnr for each in sums), drop, sum(self._times(made).values()),
            description.weights or 0, description.peak_ram or 0, 8 * stored, tuple(wide),
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
