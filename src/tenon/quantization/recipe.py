"""The ranges and repairs that serve a network best, compared on samples that nothing was fitted to.

Each step keeps what it tries only if the outputs have less noise with it.  Biases are corrected before anything is
compared, because shifted means hide the rest of the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tenon.cluster import Pool
from tenon.errors import InputError, ModelError
from tenon.ir.graph import Graph, Node, Value
from tenon.ops.requantize import limits
from tenon.quantization.bias_absorption import absorbed
from tenon.quantization.bias_correction import correct
from tenon.quantization.calibration import Step, observed
from tenon.quantization.copies import twins
from tenon.quantization.equalisation import equalised, silenced
from tenon.quantization.insertion import Product, insert, products
from tenon.quantization.loss import Quality, quality_of
from tenon.quantization.moments import Moments, mean_shift, moments
from tenon.quantization.placement import Placement, placement, root
from tenon.quantization.probes import scores
from tenon.quantization.range_search import expected_scores, searched
from tenon.quantization.ranges import HISTOGRAMS, METHODS, Observed, Range, usual_range
from tenon.quantization.rounding import ROUNDINGS, narrowed, rounded
from tenon.quantization.samples import Sample
from tenon.quantization.scheme import Grid, Scheme
from tenon.quantization.simulation import Simulation

AUTO = ("min-max", "percentile", "mse")
"""Methods that ``auto`` chooses from."""

ROUNDING = ("auto", "nearest", *ROUNDINGS)
"""How weights are rounded; ``auto`` takes the better of "nearest" and "gptq"."""

AUTO_ROUNDING = ("gptq",)
"""What is tried for "auto": AdaRound takes ten times as long and was not better."""

EQUALISATIONS = (("equalisation", 1.0), ("half equalisation", 0.5))
"""Exponents of the factors of channels that are tried."""

WIDER = (1.1, 1.25, 1.5)
"""Factors by which all ranges are widened: other samples have greater extremes."""

CORRECTED = 128
"""Most samples that means of channels are measured on."""

FEW_BITS = 4
"""Of weights up to which smaller scales are tried."""


@dataclass(frozen=True)
class Request:
    """What is asked for; ``equalisation`` None: if it helps.  ``wide`` are layers of 16-bit activations."""

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
    pool: Pool | None = None


@dataclass
class Recipe:
    """``graph`` is equivalent to the float graph, and its ``placed`` tensors get ``grids``, its weights ``products``.

    ``methods`` and ``repairs`` have the SQNR of the outputs in dB of everything that was tried, ``applied`` what is
    part of the recipe.
    """

    graph: Graph
    placed: Placement
    ranges: Mapping[Value, Range]
    products: list[Product]
    method: str
    methods: dict[str, float] = field(default_factory=dict)
    repairs: dict[str, float] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)


def recipe(graph: Graph, samples: Sequence[Sample], request: Request) -> Recipe:
    """The best recipe for ``graph``, which is in floats and is not changed."""
    return _Search(graph, samples, request).run()


class _Search:
    def __init__(self, graph: Graph, samples: Sequence[Sample], request: Request) -> None:
        self.graph, self.samples, self.request = graph, samples, request
        self.fitted, self.unseen = samples[::2], samples[1::2] or samples
        self.base: dict[Value, Range] = {}
        self.corrects = request.bias_correction  # by predicted shifts, unless they make it worse
        self.known: dict[tuple[Graph, bool], dict[Node, Moments]] = {}
        self.expected = expected_scores(graph, self.unseen, request.threads)

    def run(self) -> Recipe:
        request = self.request
        found = self._calibrated(self.graph)
        simulation = self._simulated(found)
        try:
            best = self._first(found, simulation)
            if request.equalisation is not False:
                found, simulation, best = self._equalised(found, simulation, best)
                found, simulation, best = self._absorbed(found, simulation, best)
            best = self._best_method(found, simulation, best)
            if request.rounding != "nearest" and found.products:
                found, simulation, best = self._rounded(found, simulation, best)
            if request.range_search:
                self._searched(found, simulation, best)
            self._settled(found)
            simulation = self._finished(found, simulation)
        finally:
            simulation.close()
        return found

    # ------------------------------------------------------------------------------------------ parts
    def _calibrated(self, graph: Graph) -> Recipe:
        """Without repairs, with ranges by the first method."""
        request = self.request
        placed = placement(graph, request.exclude, request.wide)
        if not placed.tensors:
            raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
        method = request.methods[0]
        ranges = self._ranges(graph, placed, [method])[method]
        found = Recipe(graph, placed, ranges, [], method)
        found.products = self._products(found)
        return found

    def _ranges(self, graph: Graph, placed: Placement, methods: Sequence[str]) -> dict[str, dict[Value, Range]]:
        seen = self._observed(graph, placed, methods, self.fitted)
        return {name: {v: METHODS[name](each) for v, each in seen.items()} for name in methods}

    def _observed(
        self, graph: Graph, placed: Placement, methods: Sequence[str], samples: Sequence[Sample]
    ) -> dict[Value, Observed]:
        histograms, threads, step = bool(HISTOGRAMS & set(methods)), self.request.threads, self.request.step
        return observed(
            graph, placed.tensors, samples, histograms=histograms, threads=threads, step=step, pool=self.request.pool
        )

    def _grids(self, found: Recipe) -> dict[Value, Grid]:
        return grids(found.placed, found.ranges, self.request.scheme)

    def _products(self, found: Recipe) -> list[Product]:
        return products(found.placed, self._grids(found), self.request.scheme)

    def _simulated(self, found: Recipe) -> Simulation:
        given = self._grids(found)
        return Simulation(found.graph, found.placed, found.products, given, self.request.scheme, self.request.threads)

    def _moments(self, found: Recipe, *, second: bool = False) -> dict[Node, Moments]:
        if (found.graph, True) in self.known:
            second = True
        if (found.graph, second) not in self.known:
            self.known[found.graph, second] = moments(
                found.graph, found.products, self.fitted, threads=self.request.threads, step=self.request.step,
                second=second,
            )  # fmt: skip
        return self.known[found.graph, second]

    def _all_moments(self, found: Recipe) -> dict[Node, Moments]:
        """From all samples."""
        known = self.known[found.graph, True] = moments(
            found.graph, found.products, self.samples, threads=self.request.threads, step=self.request.step
        )
        return known

    def _shift(self, found: Recipe, simulation: Simulation) -> None:
        """Make up for the shifts of means that weights cause, as they are predicted: at once for all layers."""
        if self.corrects:
            known = self._moments(found)
            for i, each in enumerate(found.products):
                if each.node in known and each.takes_bias:
                    shift = mean_shift(each, known[each.node])
                    simulation.shifts[i] = -shift.reshape(simulation.shifts[i].shape).astype(np.float32)

    def _tried(self, found: Recipe, simulation: Simulation) -> Quality:
        self._shift(found, simulation)
        return self._quality(found, simulation)

    def _quality(self, found: Recipe, simulation: Simulation, part: slice = slice(None)) -> Quality:
        """That of the outputs on samples that nothing was fitted to, or a part of them."""
        simulation.set_grids(self._grids(found))
        return quality_of(simulation.noise(self.unseen[part], self.expected[part])[-1])

    # ------------------------------------------------------------------------------------------ steps
    def _first(self, found: Recipe, simulation: Simulation) -> Quality:
        best = self._quality(found, simulation)
        found.repairs[""] = best.sqnr
        if self.corrects and found.products:
            corrected = self._tried(found, simulation)
            found.repairs["bias correction"] = corrected.sqnr
            if corrected < best:
                self.corrects = False
                simulation.reset_shifts()
            best = max(best, corrected)
        return best

    def _equalised(self, found: Recipe, simulation: Simulation, best: Quality) -> tuple[Recipe, Simulation, Quality]:
        """Channels of activations fully or half way to the same range: the nearer, the more of them can saturate."""
        request, source, threads = self.request, found.graph, self.request.threads
        names, per_channel = list[str](), request.scheme.per_channel
        if not per_channel:
            source, count = silenced(source, self.fitted, threads)
            names += ["constant channels"] * bool(count)
        taken = False
        for name, strength in EQUALISATIONS if per_channel else EQUALISATIONS[:1]:
            graph, count = equalised(source, self.fitted, per_channel=per_channel, threads=threads, strength=strength)
            if not (count or names):
                break
            other = self._calibrated(graph)
            again = self._simulated(other)
            quality = self._tried(other, again)
            found.repairs[name] = quality.sqnr
            if quality <= best and (taken or not request.equalisation):
                again.close()
                continue
            simulation.close()
            other.repairs, other.applied = found.repairs, [*names, name]
            found, simulation, best, taken = other, again, quality, True
        return found, simulation, best

    def _absorbed(self, found: Recipe, simulation: Simulation, best: Quality) -> tuple[Recipe, Simulation, Quality]:
        """Offsets of channels in the biases of the layers that read them."""
        graph, count = absorbed(found.graph, self.fitted, self.request.threads)
        if not count:
            return found, simulation, best
        other = self._calibrated(graph)
        again = self._simulated(other)
        quality = self._tried(other, again)
        found.repairs["bias absorption"] = quality.sqnr
        if quality <= best:
            again.close()
            return found, simulation, best
        simulation.close()
        other.repairs, other.applied = found.repairs, [*found.applied, "bias absorption"]
        return other, again, quality

    def _best_method(self, found: Recipe, simulation: Simulation, best: Quality) -> Quality:
        found.methods[found.method] = best.sqnr
        others = [name for name in self.request.methods if name != found.method]
        for name, ranges in (self._ranges(found.graph, found.placed, others) if others else {}).items():
            kept, found.ranges = found.ranges, ranges
            quality = self._quality(found, simulation)
            found.methods[name] = quality.sqnr
            if quality > best:
                best, found.method = quality, name
            else:
                found.ranges = kept
        return best

    def _rounded(self, found: Recipe, simulation: Simulation, best: Quality) -> tuple[Recipe, Simulation, Quality]:
        request = self.request
        known = self._moments(found, second=True)
        start = self._products(found)
        if _bits(start[0]) <= FEW_BITS:
            start = [self._narrowed(each, known) for each in start]
        for name in AUTO_ROUNDING if request.rounding == "auto" else (request.rounding,):
            made = rounded(start, known, name, step=request.step)
            other = Recipe(found.graph, found.placed, found.ranges, made, found.method)
            again = self._simulated(other)
            quality = self._tried(other, again)
            found.repairs[name] = quality.sqnr
            if quality <= best and request.rounding == "auto":
                again.close()
                continue
            simulation.close()
            simulation, best, found.products = again, quality, made
            found.applied = [*(each for each in found.applied if each not in ROUNDINGS), name]
        return found, simulation, best

    def _narrowed(self, each: Product, known: Mapping[Node, Moments]) -> Product:
        second = known[each.node].second if each.node in known else None
        return each if second is None else narrowed(each, second)

    def _searched(self, found: Recipe, simulation: Simulation, best: Quality) -> None:
        """Wider ranges of all tensors, then narrower and wider ones of each: on other samples than gave the ranges,
        because only these saturate.  Inputs, which are often integers of 8 bits themselves, keep their steps."""
        self.base = dict(found.ranges)
        ends = self._ends(found)
        for name, chosen in (("outputs", ends), ("ranges", found.ranges.keys() - ends - {*found.graph.inputs})):
            start = found.ranges
            for share in WIDER:
                wider = {v: (low * share, high * share) for v, (low, high) in start.items() if v in chosen}
                kept, found.ranges = found.ranges, {**start, **wider}
                quality = self._quality(found, simulation)
                found.methods[f"{name} x {share}"] = quality.sqnr
                if quality > best:
                    best = quality
                else:
                    found.ranges = kept
        if len(self.unseen) < 4:
            return
        kept, before = found.ranges, self._quality(found, simulation, slice(1, None, 2))
        found.ranges = searched(
            found.graph, found.placed, found.ranges, simulation, self.request.scheme, self.unseen[::2],
            expected=self.expected[::2], step=self.request.step,
        )  # fmt: skip
        quality = self._quality(found, simulation, slice(1, None, 2))
        found.methods["range search"] = quality.sqnr
        if quality > before:
            found.applied.append("range search")
        else:
            found.ranges = kept

    def _ends(self, found: Recipe) -> set[Value]:
        """The tensors whose grids the outputs have."""
        return {found.placed.end(root(v)) for v in scores(found.graph) if root(v) in found.ranges}

    def _settled(self, found: Recipe) -> None:
        """Ranges of the same kind, from all samples."""
        base = self.base or found.ranges
        seen = self._observed(found.graph, found.placed, [found.method], self.samples)
        ranges = {}
        for value, each in seen.items():
            whole, part, chosen = METHODS[found.method](each), base[value], found.ranges[value]
            ranges[value] = _end(whole[0], part[0], chosen[0]), _end(whole[1], part[1], chosen[1])
        for value in self._ends(found):  # other samples exceed the extremes of all of them, too
            if any(abs(c) > abs(p) for c, p in zip(found.ranges[value], base[value], strict=True)):
                whole, settled = METHODS[found.method](seen[value]), ranges[value]
                ranges[value] = min(settled[0], whole[0] * WIDER[0]), max(settled[1], whole[1] * WIDER[0])
        found.ranges = ranges

    def _finished(self, found: Recipe, simulation: Simulation) -> Simulation:
        """Weights for the ranges that were chosen, rounded by all samples, and biases for both."""
        found.products = self._products(found)
        if rounding := set(found.applied) & ROUNDINGS.keys():
            known = self._all_moments(found)
            start = found.products
            if _bits(start[0]) <= FEW_BITS:
                start = [self._narrowed(each, known) for each in start]
            found.products = rounded(start, known, rounding.pop(), step=self.request.step)
        simulation.close()
        simulation = self._simulated(found)
        if self.request.bias_correction and found.products:
            self._corrected(found, simulation)
        return simulation

    def _corrected(self, found: Recipe, simulation: Simulation) -> None:
        threads, many = self.request.threads, self.samples[:CORRECTED]
        self._shift(found, simulation)
        plain = self._quality(found, simulation)
        predicted = list(simulation.shifts)
        correct(found.graph, found.products, simulation, many, threads=threads, step=self.request.step)
        measured = self._quality(found, simulation)
        found.repairs["bias correction, measured"] = measured.sqnr
        if measured < plain:
            simulation.shifts = predicted
            if not self.corrects:
                return
        found.products = [
            replace(each, bias=each.bias + shift.reshape(-1).astype(np.float64))
            for each, shift in zip(found.products, simulation.shifts, strict=True)
        ]
        found.applied.append("bias correction")


def _end(whole: float, part: float, chosen: float) -> float:
    """An end of a range, observed as ``whole`` on all samples and as ``part`` on those that ``chosen`` is based on."""
    if not part:
        return whole
    share = chosen / part
    return chosen if share >= 1 and abs(chosen) >= abs(whole) else whole * min(share, 1.0)


def _bits(each: Product) -> int:
    least, most = limits(each.w.dtype)
    return (most - least).bit_length()


def grids(placed: Placement, ranges: Mapping[Value, Range], scheme: Scheme) -> dict[Value, Grid]:
    """Of all tensors; parts of a concatenation have its own, results of functions with a usual range that one."""
    ends = {value: placed.end(value) for value in placed.tensors}
    return {
        value: placed.scheme_of(end, scheme).activation_grid(*(usual_range(end) or ranges[end]))
        for value, end in ends.items()
    }


def inserted(found: Recipe, scheme: Scheme) -> tuple[Graph, dict[Value, Value]]:
    """The quantised graph, and its values by those of the float graph."""
    given = grids(found.placed, found.ranges, scheme)
    copy, placed, again, theirs, values = twins(found.graph, found.placed, found.products, given)
    dequantised = insert(copy, placed, again, theirs, scheme)
    return copy, {old: dequantised.get(new, new) for old, new in values.items()}


def checked(rounding: str, method: str) -> None:
    """Raises InputError for an unknown name."""
    if method != "auto" and method not in METHODS:
        raise InputError(f"there is no method '{method}': choose auto or one of {', '.join(METHODS)}")
    if rounding not in ROUNDING:
        raise InputError(f"there is no rounding '{rounding}': choose one of {', '.join(ROUNDING)}")
