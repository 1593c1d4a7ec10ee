"""Candidates of a search for a recipe: calibrated networks with ranges and repairs, and their noise at the outputs.

Half of the samples give ranges and repairs, the other half judges them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.errors import ModelError
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.tools.cluster import WorkerPool
from tenon.tools.quantization.calibration import Step, observed
from tenon.tools.quantization.input_steps import step_ranges
from tenon.tools.quantization.insertion import WeightedLayer, products
from tenon.tools.quantization.loss import Loss, Quality, quality_of
from tenon.tools.quantization.moments import Moments, mean_shift, moments
from tenon.tools.quantization.placement import Placement, placement, root
from tenon.tools.quantization.probes import scores
from tenon.tools.quantization.range_search import expected_scores
from tenon.tools.quantization.ranges import HISTOGRAMS, METHODS, Observed, Range, usual_range
from tenon.tools.quantization.recurrent_states import GATES_RANGE, is_of_gates
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import QuantParams, Scheme
from tenon.tools.quantization.simulation import Simulation

AUTO = ("min-max", "percentile", "mse")
"""Methods that ``auto`` chooses from."""


@dataclass(frozen=True)
class Request:
    """A recipe to make; ``equalisation`` None: if it helps.  ``wide`` are layers of 16-bit activations, ``separate``
    results of products that get a grid before a LeakyRelu; ``joined``: a concatenation and its parts have one grid;
    ``states`` are tensors of 16 bits in recurrent cells."""

    scheme: Scheme
    methods: Sequence[str] = AUTO
    equalisation: bool | None = None
    rounding: str = "auto"
    bias_correction: bool = True
    range_search: bool = True
    exclude: Sequence[str] = ()
    wide: Sequence[str] = ()
    threads: int = 1
    step: Step = lambda stage, done, total: None
    pool: WorkerPool | None = None
    separate: Collection[str] = ()
    joined: bool = False
    states: Collection[str] = ()


@dataclass
class Recipe:
    """``graph`` is equivalent to the float graph, and its ``placed`` tensors get ``grids``, its weights ``products``.

    ``shifts`` are what biases have to add to the sums of products, an array of channels each, where that was measured
    together with the weights.  ``methods`` and ``repairs`` have the SQNR of the outputs in dB with everything that
    was tried, ``without`` the SQNR before each of these, ``applied`` the names of the corrections in the recipe.
    """

    graph: Graph
    placed: Placement
    ranges: Mapping[Value, Range]
    products: list[WeightedLayer]
    method: str
    methods: dict[str, float] = field(default_factory=dict)
    repairs: dict[str, float] = field(default_factory=dict)
    without: dict[str, float] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)
    shifts: Sequence[Array] | None = None


class Candidates:
    """Makes candidates of ``graph``, which is in floats and is not changed, and measures them."""

    def __init__(self, graph: Graph, samples: Sequence[Sample], request: Request) -> None:
        self.graph, self.samples, self.request = graph, samples, request
        self.fitted, self.unseen = samples[::2], samples[1::2] or samples
        self.corrects = request.bias_correction  # by predicted shifts, unless they make it worse
        self.known: dict[tuple[Graph, bool], dict[Node, Moments]] = {}
        self.expected = expected_scores(graph, self.unseen, request.threads)
        self.by_noise = False  # alone, also of classifiers
        self.room = 1.0  # factor of the ranges of outputs
        self.steps = step_ranges(graph, samples, symmetric=request.scheme.symmetric)

    def _calibrated(self, graph: Graph) -> Recipe:
        """Without repairs, with ranges by the first method."""
        request = self.request
        placed = placement(
            graph, request.exclude, request.wide, request.separate, joined=request.joined, states=request.states
        )
        if not placed.tensors:
            raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
        method = request.methods[0]
        ranges = self._ranges(graph, placed, [method])[method]
        recipe = Recipe(graph, placed, ranges, [], method)
        recipe.products = self._products(recipe)
        return recipe

    def _ranges(self, graph: Graph, placed: Placement, methods: Sequence[str]) -> dict[str, dict[Value, Range]]:
        seen = self._observed(graph, placed, methods, self.fitted)
        by_method = {name: {v: METHODS[name](each) for v, each in seen.items()} for name in methods}
        for ranges in by_method.values():
            for value in ends(graph, placed):
                low, high = ranges[value]
                ranges[value] = low * self.room, high * self.room
            ranges.update(self._of_steps(graph))
            if self.request.joined:
                ranges.update(joined_ranges(placed, ranges))
        return by_method

    def _of_steps(self, graph: Graph) -> dict[Value, Range]:
        """The ranges of inputs that are integers of 8 bits themselves."""
        return {v: self.steps[v.name] for v in graph.inputs if v.name in self.steps}

    def _observed(
        self, graph: Graph, placed: Placement, methods: Sequence[str], samples: Sequence[Sample]
    ) -> dict[Value, Observed]:
        histograms, threads, step = bool(HISTOGRAMS & set(methods)), self.request.threads, self.request.step
        return observed(
            graph, placed.tensors, samples, histograms=histograms, threads=threads, step=step, pool=self.request.pool
        )

    def _grids(self, recipe: Recipe) -> dict[Value, QuantParams]:
        return grids(recipe.placed, recipe.ranges, self.request.scheme)

    def _products(self, recipe: Recipe) -> list[WeightedLayer]:
        return products(recipe.placed, self._grids(recipe), self.request.scheme)

    def _simulated(self, recipe: Recipe) -> Simulation:
        given, scheme, threads = self._grids(recipe), self.request.scheme, self.request.threads
        simulation = Simulation(recipe.graph, recipe.placed, recipe.products, given, scheme, threads)
        simulation.by_noise |= self.by_noise
        return simulation

    def _moments(self, recipe: Recipe, *, second: bool = False) -> dict[Node, Moments]:
        if (recipe.graph, True) in self.known:
            second = True
        if (recipe.graph, second) not in self.known:
            self.known[recipe.graph, second] = moments(
                recipe.graph,
                recipe.products,
                self.fitted,
                threads=self.request.threads,
                step=self.request.step,
                second=second,
            )
        return self.known[recipe.graph, second]

    def _all_moments(self, recipe: Recipe) -> dict[Node, Moments]:
        """From all samples."""
        known = self.known[recipe.graph, True] = moments(
            recipe.graph, recipe.products, self.samples, threads=self.request.threads, step=self.request.step
        )
        return known

    def _shift(self, recipe: Recipe, simulation: Simulation) -> None:
        """Make up for the shifts of means that weights cause, as they are known or else predicted: at once for all
        layers."""
        if recipe.shifts is not None:
            pairs = zip(simulation.shifts, recipe.shifts, strict=True)
            simulation.shifts = [known.reshape(each.shape).astype(np.float32) for each, known in pairs]
        elif self.corrects:
            known = self._moments(recipe)
            for i, each in enumerate(recipe.products):
                if each.node in known and each.takes_bias:
                    shift = mean_shift(each, known[each.node])
                    simulation.shifts[i] = -shift.reshape(simulation.shifts[i].shape).astype(np.float32)

    def _tried(self, recipe: Recipe, simulation: Simulation) -> Quality:
        self._shift(recipe, simulation)
        return self._quality(recipe, simulation)

    def _quality(self, recipe: Recipe, simulation: Simulation, part: slice = slice(None)) -> Quality:
        """The quality of the outputs on held-out samples, or on a part of them."""
        return quality_of(self._loss(recipe, simulation, part))

    def _loss(self, recipe: Recipe, simulation: Simulation, part: slice = slice(None)) -> Loss:
        simulation.set_grids(self._grids(recipe))
        return simulation.noise(self.unseen[part], self.expected[part])[-1]

    def _judged(self, recipe: Recipe, simulation: Simulation, best: Quality) -> Quality:
        """From here on by the noise alone, if all answers are those in floats: no candidate can have more of them."""
        if not simulation.by_noise and not self._loss(recipe, simulation).changed:
            self.by_noise = simulation.by_noise = True
            return Quality(best.sqnr, best.sqnr)
        return best


def ends(graph: Graph, placed: Placement) -> set[Value]:
    """The tensors whose grids the outputs have."""
    known = set(placed.tensors)
    return {placed.end(root(v)) for v in scores(graph) if root(v) in known}


def joined_ranges(placed: Placement, ranges: Mapping[Value, Range]) -> dict[Value, Range]:
    """The ranges of the tensors whose quantisation parameters others share: the smallest that contain the ranges of all
    of these."""
    joined = {end: ranges[end] for end in map(placed.end, placed.parts)}
    for part in placed.parts:
        if part in ranges:
            end = placed.end(part)
            joined[end] = min(ranges[part][0], joined[end][0]), max(ranges[part][1], joined[end][1])
    return joined


def grids(placed: Placement, ranges: Mapping[Value, Range], scheme: Scheme) -> dict[Value, QuantParams]:
    """Quantisation parameters of every tensor.  Parts of a concatenation share the result's; results of bounded
    functions and the inputs of gates in recurrent cells use a fixed range."""

    def range_of(end: Value) -> Range:
        usual = GATES_RANGE if end in placed.states and is_of_gates(end) else usual_range(end)
        return usual or ranges[end]

    ends = {value: placed.end(value) for value in placed.tensors}
    return {value: placed.scheme_of(end, scheme).activation_grid(*range_of(end)) for value, end in ends.items()}
