"""Layers of other types than the scheme's integers, so that a quantised network meets a contract, at the least
estimated cost: float, fp16, or activations of 16-bit integers.

The contract is a least SQNR of the outputs or a most drop of a metric.  Layers are ordered by the noise at the outputs
that each saves over what it costs in float (in networks too large to measure that, by the noise of its own sums); the
shortest prefix that meets the contract in float is found by bisection, and layers of it that are not needed after all
return to 8 bits.  Of the rest, all and then one by one become fp16 or
16-bit integers where the contract is met so at less cost: time by the target's cost model, or bytes of weights where
the time is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType
from tenon.network.ops.quantised_values import integers_of
from tenon.network.ops.traits import is_product
from tenon.pipeline import inspect
from tenon.tools.metrics.base import Evaluation
from tenon.tools.metrics.classification import TopK
from tenon.tools.quantization.default_scheme import estimate_options, estimated_times
from tenon.tools.quantization.half_precision import in_fp16, layer_name
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.moments import moments
from tenon.tools.quantization.output_noise import OutputNoise, by_groups, output_noise, weight_noise
from tenon.tools.quantization.probes import Probes, scores
from tenon.tools.quantization.recipe import ROUNDING, Recipe, Request, inserted, recipe
from tenon.tools.quantization.report import Point, Sums
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import bits_of

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


TYPES = ("int16", "fp16", "float")
"""Types of layers besides the scheme's integers: with activations of 16-bit integers, in fp16, or in float."""

SAME_TIME = 0.01
"""Share of the time up to which two mixtures take the same time: the estimate is not more exact."""


@dataclass(frozen=True)
class LayerTypes:
    """The names of the layers that are not in the scheme's integers, by type."""

    floats: tuple[str, ...] = ()
    fp16: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    @classmethod
    def alike(cls, kind: str, names: Sequence[str]) -> LayerTypes:
        """All ``names`` of one of ``TYPES``."""
        return cls(**{_FIELDS[kind]: tuple(names)})

    def changed(self, name: str, kind: str) -> LayerTypes:
        """With one layer of another of ``TYPES``."""
        left = {field: tuple(n for n in getattr(self, field) if n != name) for field in _FIELDS.values()}
        return LayerTypes(**{**left, _FIELDS[kind]: (*left[_FIELDS[kind]], name)})

    def same_as(self, point: Point) -> bool:
        """Whether a point is of these layers."""
        return all(set(getattr(self, field)) == set(getattr(point, field)) for field in _FIELDS.values())


_FIELDS = {"int16": "wide", "fp16": "fp16", "float": "floats"}
"""Fields of LayerTypes, Point and Report, by type."""


@dataclass
class Mixture:
    """``layers`` are those of other types, ``points`` everything that was tried."""

    recipe: Recipe
    layers: LayerTypes = LayerTypes()
    points: list[Point] = field(default_factory=list)


def mixed(
    graph: Graph,
    samples: Sequence[Sample],
    request: Request,
    contract: Contract,
    target: str = "host",
    types: Sequence[str] = TYPES,
    fp16: Sequence[str] = (),
) -> Mixture:
    """The cheapest mixture of the scheme's integers and ``types`` found that meets the contract on ``samples``.

    Layers of ``fp16`` are in fp16 in all of them; ``request`` excludes them.  Raises InputError that names the noisiest
    layers if only a network in float would meet it, or none of ``types``.
    """
    if unknown := sorted(set(types) - set(TYPES)):
        raise InputError(f"there is no type '{unknown[0]}' of layers: choose of {', '.join(TYPES)}")
    return _MixtureSearch(graph, samples, request, contract, target, types or TYPES, fp16).run()


class _MixtureSearch:
    def __init__(
        self,
        graph: Graph,
        samples: Sequence[Sample],
        request: Request,
        contract: Contract,
        target: str,
        types: Sequence[str],
        fp16: Sequence[str],
    ) -> None:
        self.graph, self.samples, self.request, self.contract, self.target = graph, samples, request, contract, target
        self.types, self.fp16, self.quick = types, fp16, request
        self.points: list[Point] = []
        self.at_outputs: OutputNoise | None = None
        self.of_sums: dict[str, float] = {}
        self.cost: dict[str, float] = {}
        self.known: dict[tuple[frozenset[str], frozenset[str]], Recipe] = {}
        self.reference = _run(graph, "float", samples, request.threads)

    def run(self) -> Mixture:
        uniform = recipe(self.graph, self.samples, self.request)
        if self.contract.met_by(self._tried(uniform, LayerTypes())):
            return Mixture(uniform, LayerTypes(), self.points)
        self._measure(uniform)
        self.quick = self._quick(uniform)
        layers = self._mixture()
        final = self._recipe(self.request, layers)
        if not self.contract.met_by(self._tried(final, layers)):  # what it chose was best on a part of the samples
            final = self._recipe(self.quick, layers)
            self._tried(final, layers)
        return Mixture(final, layers, self.points)

    def _quick(self, uniform: Recipe) -> Request:
        """A request for a recipe in less time, with what serves the network in the scheme's integers, ``uniform``.

        The fewer layers are in 8 bits, the less equalisation and narrower ranges help: where they do now, the network
        without them is tried as well.
        """
        equalised = any("equalisation" in name for name in uniform.applied)
        plain = self.request.methods[0]
        return replace(
            self.request,
            methods=tuple(dict.fromkeys((plain, uniform.method))),
            rounding=next((name for name in uniform.applied if name in ROUNDING), "nearest"),
            range_search=False,
            equalisation=self.request.equalisation if equalised else False,
        )

    def _mixture(self) -> LayerTypes:
        """The layers of each type.  Raises InputError if no mixture meets the contract."""
        exact = next((kind for kind in ("float", "fp16") if kind in self.types), None)
        if exact is None:
            return LayerTypes.alike("int16", self._least("int16"))
        try:
            names = self._least(exact)
        except InputError as refusal:  # products in 16 bits are nearly as good, and other operators stay in 8
            if "int16" not in self.types:
                raise
            try:
                return LayerTypes.alike("int16", self._least("int16"))
            except InputError:
                raise refusal from None
        return self._cheapest(exact, names)

    def _least(self, kind: str) -> list[str]:
        """As few layers of this type as meet the contract.  Raises InputError if none do.

        Recipes are searched in full where quick ones do not meet it with any layers.
        """
        try:
            return self._needed(kind, self._shortest(kind))
        except InputError:
            if self.quick is self.request or not self._met_in_full(kind):
                raise
        self.quick, self.known = self.request, {}
        return self._needed(kind, self._shortest(kind))

    def _met_in_full(self, kind: str) -> bool:
        """Whether the best recipe meets the contract with all layers of this type that a mixture may have."""
        order = self._order(kind)
        layers = LayerTypes.alike(kind, order if kind == "int16" else order[:-1])
        return self.contract.met_by(self._tried(self._recipe(self.request, layers), layers))

    def _recipe(self, request: Request, layers: LayerTypes) -> Recipe:
        """The recipe with these layers in other types; recipes of a quick search are cached, as a float layer may
        become fp16."""
        floats = (*layers.floats, *layers.fp16)
        key = frozenset(floats), frozenset(layers.wide)
        if request is self.quick and key in self.known:
            return self.known[key]
        more = replace(request, exclude=(*request.exclude, *floats), wide=(*request.wide, *layers.wide))
        result = recipe(self.graph, self.samples, more)
        if request is self.quick:
            self.known[key] = result
        return result

    def _attempt(self, layers: LayerTypes) -> Point:
        return self._tried(self._recipe(self.quick, layers), layers)

    def _shortest(self, kind: str) -> list[str]:
        """The shortest prefix of layers in their order that meets the contract, all of this type; or all layers but one
        or a few, where only the whole order does.  Raises InputError if none does."""
        order = self._order(kind)
        few, many, alone = 0, len(order), kind == "int16"

        def meets(count: int) -> bool:
            return self.contract.met_by(self._attempt(LayerTypes.alike(kind, order[:count])))

        while many - few > 1:
            middle = (few + many) // 2
            few, many = (few, middle) if meets(middle) else (middle, many)
        if many == len(order) and not alone and len(some := self._needed(kind, order)) < many:
            return some
        if many == len(order) and not (alone and meets(many)):
            needs = "cannot be met with 16 bits" if alone else f"needs all layers in {kind}"
            raise InputError(
                f"{self.graph.source or self.graph.name}: {self.contract} {needs}: the best mixture "
                f"has {max(p.sqnr for p in self.points):.1f} dB, and the noisiest layers are "
                f"{', '.join(order[:NAMED])}; ask for less, or for other types (--scheme)"
            )
        return list(order[:many])

    def _needed(self, kind: str, names: list[str]) -> list[str]:
        """Without layers that meet the contract in the scheme's integers after all."""
        for name in names[::-1][1 : RETURNED + 1]:
            rest = [other for other in names if other != name]
            if self.contract.met_by(self._attempt(LayerTypes.alike(kind, rest))):
                names = rest
        return names

    def _cheapest(self, kind: str, names: Sequence[str]) -> LayerTypes:
        """The layers of ``names`` of the types that meet the contract at the least cost: all alike, then one by one."""
        layers = LayerTypes.alike(kind, names)
        best = next((p for p in self.points if layers.same_as(p)), None) or self._attempt(layers)
        others = [other for other in TYPES if other in self.types and other != kind]
        trials = [LayerTypes.alike(other, names) for other in others]
        for trial in trials:
            layers, best = self._better(trial, layers, best)
        if layers in trials or len(names) < 2:
            return layers
        for name in names[::-1][:RETURNED]:
            for other in others:
                layers, best = self._better(layers.changed(name, other), layers, best)
        return layers

    def _better(self, trial: LayerTypes, layers: LayerTypes, best: Point) -> tuple[LayerTypes, Point]:
        point = self._attempt(trial)
        return (trial, point) if self.contract.met_by(point) and cheaper(point, best) else (layers, best)

    def _measure(self, uniform: Recipe) -> None:
        """Measure what the order of layers depends on: their noise, and what it costs to avoid it."""
        self.at_outputs = output_noise(uniform, self.samples, self.request)
        if self.at_outputs is None:
            self.of_sums = _noise_of_layers(uniform, self.samples, self.request)
        names = {layer_name(each.node) for each in uniform.products}
        integers, floats = self._times(self._inserted(uniform, LayerTypes())), self._times(self.graph)
        cost = {
            name: max(floats.get(name, 0.0) - integers.get(name, 0.0), 1e-3 * floats.get(name, 1.0), 1e-9)
            for name in names
        }
        typical = float(np.median(list(cost.values())))
        self.cost = {name: max(each, 0.1 * typical) for name, each in cost.items()}

    def _order(self, kind: str) -> list[str]:
        """Layers by what their noise costs to avoid, the best to be of another type first."""
        if self.at_outputs is not None:
            return self.at_outputs.order(self.cost, kind)
        return sorted(self.of_sums, key=lambda name: -self.of_sums[name] / self.cost[name])

    def _inserted(self, candidate: Recipe, layers: LayerTypes) -> Graph:
        made, _ = inserted(candidate, self.request.scheme)
        in_fp16(made, (*self.fp16, *layers.fp16))
        return made

    def _times(self, graph: Graph) -> dict[str, float]:
        return estimated_times(graph, self.target)

    def _tried(self, candidate: Recipe, layers: LayerTypes) -> Point:
        made = self._inserted(candidate, layers)
        got = _run(made, "onnx", self.samples, self.request.threads)
        sums = [Sums() for _ in scores(self.graph)]
        for mine, theirs in zip(got, self.reference, strict=True):
            for each, a, b in zip(sums, mine.scores, theirs.scores, strict=True):
                each.add(a, b)
        drop = self._drop(got)
        description, _ = inspect(made, estimate_options(made, self.target))
        point = Point(
            layers.floats,
            min(each.sqnr for each in sums),
            drop,
            sum(self._times(made).values()),
            description.weights or 0,
            description.peak_ram or 0,
            mean_bits(made),
            layers.wide,
            layers.fp16,
        )
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


def mean_bits(graph: Graph) -> float:
    """The mean number of bits of the weights of convolutions and matrix products, as a file of ``graph`` stores
    them."""
    sizes: dict[Value, tuple[int, int]] = {}
    for node in graph:
        if is_product(node):
            value = node.input(1)
            stored = integers_of(value)
            dtype = value.type.dtype if stored is None else DType.of(stored.data.dtype)
            sizes[value] = value.type.size, bits_of(dtype)
    return sum(size * bits for size, bits in sizes.values()) / max(sum(size for size, _ in sizes.values()), 1)


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


def cheaper(one: Point, other: Point) -> bool:
    """By estimated time; by bytes of weights where that is the same."""
    if abs(one.time - other.time) > SAME_TIME * other.time:
        return one.time < other.time
    return one.weights < other.weights


def _noise_of_layers(uniform: Recipe, samples: Sequence[Sample], request: Request) -> dict[str, float]:
    """The noise-to-signal ratio of each layer's sums that rounding of its weights and of its input causes."""
    known = moments(uniform.graph, uniform.products, samples[:16], threads=request.threads, step=request.step)
    noise: dict[str, float] = {}
    for each in uniform.products:
        name = layer_name(each.node)
        second = known[each.node].second if each.node in known else None
        noise[name] = noise.get(name, 0.0) + (0.0 if second is None else _noise(each, second))
    return noise


def _noise(each: WeightedLayer, moment: Array) -> float:
    parts = by_groups(each, moment, wrong=False)
    signal, noise = float((np.matmul(parts, moment) * parts).sum()), weight_noise(each, moment)
    step = float(each.x.scale.reshape(())) ** 2 / 12
    return (noise + step * float((parts**2).sum())) / max(signal, 1e-30)
