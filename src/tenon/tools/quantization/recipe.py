"""The ranges and repairs that serve a network best, compared on samples that nothing was fitted to.

Each step keeps what it tries only if the outputs have less noise with it.  Biases are corrected before anything is
compared, because shifted means hide the rest of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Graph, Node, Value
from tenon.tools.quantization.bias_absorption import absorbed
from tenon.tools.quantization.bias_correction import correct
from tenon.tools.quantization.candidates import AUTO as AUTO
from tenon.tools.quantization.candidates import Candidates, ends, grids, joined_ranges
from tenon.tools.quantization.candidates import Recipe as Recipe
from tenon.tools.quantization.candidates import Request as Request
from tenon.tools.quantization.copies import twins
from tenon.tools.quantization.equalisation import equalised, silenced
from tenon.tools.quantization.head_scales import with_head_scales
from tenon.tools.quantization.insertion import WeightedLayer, insert
from tenon.tools.quantization.loss import Quality
from tenon.tools.quantization.moments import Moments
from tenon.tools.quantization.range_search import searched
from tenon.tools.quantization.ranges import METHODS, Range
from tenon.tools.quantization.reconstruction import reconstructed, reconstructs
from tenon.tools.quantization.rounding import ROUNDINGS, narrowed, rounded
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import Scheme
from tenon.tools.quantization.simulation import Simulation

Rewrite = Callable[[Graph, Sequence[Sample], int], tuple[Graph, int]]
"""A network and samples, computed in so many threads, to an equivalent network and how much was changed."""

RECONSTRUCTION = "reconstruction"

ROUNDING = ("auto", "nearest", *ROUNDINGS, RECONSTRUCTION)
"""How weights are rounded; ``auto`` takes the best of "nearest", "gptq" and, of few bits, "reconstruction"."""

AUTO_ROUNDING = ("gptq", RECONSTRUCTION)
"""Roundings that are tried for "auto": AdaRound takes ten times as long and was not better."""

EQUALISATIONS = (("equalisation", 1.0), ("half equalisation", 0.5))
"""Exponents of the factors of channels that are tried."""

WIDER = (1.1, 1.25, 1.5)
"""Factors by which all ranges are widened: other samples have greater extremes."""

CORRECTED = 128
"""Most samples that means of channels are measured on."""


def recipe(graph: Graph, samples: Sequence[Sample], request: Request) -> Recipe:
    """The best recipe for ``graph``, which is in floats and is not changed."""
    return _RecipeSearch(graph, samples, request).run()


class _RecipeSearch(Candidates):
    def __init__(self, graph: Graph, samples: Sequence[Sample], request: Request) -> None:
        super().__init__(graph, samples, request)
        self.base: dict[Value, Range] = {}

    def run(self) -> Recipe:
        request = self.request
        recipe = self._calibrated(self.graph)
        simulation = self._simulated(recipe)
        try:
            best = self._with_room(recipe, simulation, self._first(recipe, simulation))
            best = self._judged(recipe, simulation, best)
            if request.equalisation is not False:
                recipe, simulation, best = self._rewritten("head scales", with_head_scales, recipe, simulation, best)
                recipe, simulation, best = self._equalised(recipe, simulation, best)
                recipe, simulation, best = self._rewritten("bias absorption", absorbed, recipe, simulation, best)
            best = self._best_method(recipe, simulation, best)
            if request.rounding != "nearest" and recipe.products:
                recipe, simulation, best = self._rounded(recipe, simulation, best)
            best = self._judged(recipe, simulation, best)
            if request.range_search:
                self._searched(recipe, simulation, best)
            self._settled(recipe)
            simulation = self._finished(recipe, simulation)
        finally:
            simulation.close()
        return recipe

    # ------------------------------------------------------------------------------------------ steps
    def _first(self, recipe: Recipe, simulation: Simulation) -> Quality:
        best = self._quality(recipe, simulation)
        recipe.repairs[""] = best.sqnr
        if self.corrects and recipe.products:
            corrected = self._tried(recipe, simulation)
            recipe.repairs["bias correction"], recipe.without["bias correction"] = corrected.sqnr, best.sqnr
            if corrected < best:
                self.corrects = False
                simulation.reset_shifts()
            best = max(best, corrected)
        return best

    def _with_room(self, recipe: Recipe, simulation: Simulation, best: Quality) -> Quality:
        """Wider ranges of outputs: noise of other samples that saturate there would hide all that is tried later."""
        start, chosen = recipe.ranges, ends(recipe.graph, recipe.placed)
        for share in WIDER if self.request.range_search else ():
            kept = recipe.ranges
            recipe.ranges = {
                v: (low * share, high * share) if v in chosen else (low, high) for v, (low, high) in start.items()
            }
            quality = self._quality(recipe, simulation)
            recipe.methods[f"outputs x {share}"] = quality.sqnr
            if quality > best:
                best, self.room = quality, share
            else:
                recipe.ranges = kept
        return best

    def _equalised(self, recipe: Recipe, simulation: Simulation, best: Quality) -> tuple[Recipe, Simulation, Quality]:
        """Channels of activations fully or half way to the same range: the nearer, the more of them can saturate."""
        request, source, threads = self.request, recipe.graph, self.request.threads
        names, per_channel, silent = list(recipe.applied), request.scheme.per_channel, 0
        if not per_channel:
            source, silent = silenced(source, self.fitted, threads)
            names += ["constant channels"] * bool(silent)
        taken = False
        for name, strength in EQUALISATIONS if per_channel else EQUALISATIONS[:1]:
            graph, count = equalised(source, self.fitted, per_channel=per_channel, threads=threads, strength=strength)
            if not (count or silent):
                break
            other = self._calibrated(graph)
            again = self._simulated(other)
            quality = self._tried(other, again)
            recipe.repairs[name], recipe.without[name] = quality.sqnr, best.sqnr
            if quality <= best and (taken or not request.equalisation):
                again.close()
                continue
            simulation.close()
            self._follow(other, recipe, [*names, name])
            recipe, simulation, best, taken = other, again, quality, True
        return recipe, simulation, best

    def _rewritten(
        self, name: str, rewrite: Rewrite, recipe: Recipe, simulation: Simulation, best: Quality
    ) -> tuple[Recipe, Simulation, Quality]:
        """The same of another network with the same results, if it has less noise."""
        graph, count = rewrite(recipe.graph, self.fitted, self.request.threads)
        if not count:
            return recipe, simulation, best
        other = self._calibrated(graph)
        again = self._simulated(other)
        quality = self._tried(other, again)
        recipe.repairs[name], recipe.without[name] = quality.sqnr, best.sqnr
        if quality <= best:
            again.close()
            return recipe, simulation, best
        simulation.close()
        self._follow(other, recipe, [*recipe.applied, name])
        return other, again, quality

    @staticmethod
    def _follow(other: Recipe, measured: Recipe, applied: list[str]) -> None:
        """Let ``other`` have what was measured up to ``measured``."""
        other.methods, other.repairs, other.without, other.applied = (
            measured.methods,
            measured.repairs,
            measured.without,
            applied,
        )

    def _best_method(self, recipe: Recipe, simulation: Simulation, best: Quality) -> Quality:
        recipe.methods[recipe.method] = best.sqnr
        others = [name for name in self.request.methods if name != recipe.method]
        for name, ranges in (self._ranges(recipe.graph, recipe.placed, others) if others else {}).items():
            kept, recipe.ranges = recipe.ranges, ranges
            quality = self._quality(recipe, simulation)
            recipe.methods[name] = quality.sqnr
            if quality > best:
                best, recipe.method = quality, name
            else:
                recipe.ranges = kept
        return best

    def _rounded(self, recipe: Recipe, simulation: Simulation, best: Quality) -> tuple[Recipe, Simulation, Quality]:
        request = self.request
        for name in AUTO_ROUNDING if request.rounding == "auto" else (request.rounding,):
            if name == RECONSTRUCTION and request.rounding == "auto" and not any(map(reconstructs, recipe.products)):
                continue
            other = Recipe(recipe.graph, recipe.placed, recipe.ranges, self._products(recipe), recipe.method)
            self._by(name, other, self.fitted)
            again = self._simulated(other)
            quality = self._tried(other, again)
            recipe.repairs[name], recipe.without[name] = quality.sqnr, best.sqnr
            if quality <= best and request.rounding == "auto":
                again.close()
                continue
            simulation.close()
            simulation, best, recipe.products, recipe.shifts = again, quality, other.products, other.shifts
            recipe.applied = [*(each for each in recipe.applied if each not in ROUNDING), name]
        return recipe, simulation, best

    def _by(self, name: str, recipe: Recipe, samples: Sequence[Sample]) -> None:
        """Round the products, which are the nearest yet, in the way of that name."""
        request, sums = self.request, name == RECONSTRUCTION
        others = [i for i, each in enumerate(recipe.products) if not (sums and reconstructs(each))]
        if others:
            known = self._moments(recipe, second=True) if samples is self.fitted else self._all_moments(recipe)
            start = [self._narrowed(recipe.products[i], known) for i in others]
            made = rounded(start, known, "gptq" if sums else name, step=request.step, centred=self.corrects)
            for i, each in zip(others, made, strict=True):
                recipe.products[i] = each
        if sums:
            recipe.products, recipe.shifts = reconstructed(
                recipe.graph,
                recipe.placed,
                recipe.products,
                self._grids(recipe),
                request.scheme,
                samples,
                centred=request.bias_correction,
                threads=request.threads,
                step=request.step,
            )

    def _narrowed(self, each: WeightedLayer, known: Mapping[Node, Moments]) -> WeightedLayer:
        second = known[each.node].second if each.node in known else None
        return each if second is None else narrowed(each, second)

    def _searched(self, recipe: Recipe, simulation: Simulation, best: Quality) -> None:
        """Search wider ranges of all tensors, then narrower and wider ones of each, on held-out samples: only they can
        saturate.  Inputs, which are often integers of 8 bits themselves, keep their quantised units."""
        self.base = dict(recipe.ranges)
        fixed, start = ends(recipe.graph, recipe.placed) | {*recipe.graph.inputs}, recipe.ranges
        for share in WIDER:
            wider = {v: (low * share, high * share) for v, (low, high) in start.items() if v not in fixed}
            kept, recipe.ranges = recipe.ranges, {**start, **wider}
            quality = self._quality(recipe, simulation)
            recipe.methods[f"ranges x {share}"] = quality.sqnr
            if quality > best:
                best = quality
            else:
                recipe.ranges = kept
        if len(self.unseen) < 4:
            return
        kept, before = recipe.ranges, self._quality(recipe, simulation, slice(1, None, 2))
        recipe.ranges = searched(
            recipe.graph,
            recipe.placed,
            recipe.ranges,
            simulation,
            self.request.scheme,
            self.unseen[::2],
            expected=self.expected[::2],
            step=self.request.step,
            fixed=self._of_steps(recipe.graph),
        )
        quality = self._quality(recipe, simulation, slice(1, None, 2))
        recipe.methods["range search"], recipe.without["range search"] = quality.sqnr, before.sqnr
        if quality > before:
            recipe.applied.append("range search")
        else:
            recipe.ranges = kept

    def _settled(self, recipe: Recipe) -> None:
        """Ranges of the same kind, from all samples."""
        base = self.base or recipe.ranges
        seen = self._observed(recipe.graph, recipe.placed, [recipe.method], self.samples)
        ranges = {}
        for value, each in seen.items():
            whole, part, chosen = METHODS[recipe.method](each), base[value], recipe.ranges[value]
            ranges[value] = _end(whole[0], part[0], chosen[0]), _end(whole[1], part[1], chosen[1])
        if self.room > 1:  # other samples exceed the extremes of all of them, too
            for value in ends(recipe.graph, recipe.placed):
                (low, high), whole = recipe.ranges[value], METHODS[recipe.method](seen[value])
                ranges[value] = min(low, whole[0] * WIDER[0]), max(high, whole[1] * WIDER[0])
        ranges.update(self._of_steps(recipe.graph))
        if self.request.joined:
            ranges.update(joined_ranges(recipe.placed, ranges))
        recipe.ranges = ranges

    def _finished(self, recipe: Recipe, simulation: Simulation) -> Simulation:
        """Weights for the ranges that were chosen, rounded by all samples, and biases for both."""
        recipe.products = self._products(recipe)
        for name in set(recipe.applied) & set(ROUNDING):
            self._by(name, recipe, self.samples)
        simulation.close()
        simulation = self._simulated(recipe)
        self._shift(recipe, simulation)
        if self.request.bias_correction and recipe.products:
            self._corrected(recipe, simulation)
        return simulation

    def _corrected(self, recipe: Recipe, simulation: Simulation) -> None:
        threads, many = self.request.threads, self.samples[:CORRECTED]
        plain = self._quality(recipe, simulation)
        predicted = list(simulation.shifts)
        correct(recipe.graph, recipe.products, simulation, many, threads=threads, step=self.request.step)
        measured = self._quality(recipe, simulation)
        name = "bias correction, measured"
        recipe.repairs[name], recipe.without[name] = measured.sqnr, plain.sqnr
        if measured < plain:
            simulation.shifts = predicted
            if not self.corrects and recipe.shifts is None:
                return
        else:
            recipe.applied.append(name)
        recipe.products = [
            replace(each, bias=each.bias + shift.reshape(-1).astype(np.float64))
            for each, shift in zip(recipe.products, simulation.shifts, strict=True)
        ]
        recipe.applied.append("bias correction")


def _end(whole: float, part: float, chosen: float) -> float:
    """Rescale a range limit from a part of the samples (``part`` observed, ``chosen`` by search) to all (``whole``)."""
    if not part:
        return whole
    share = chosen / part
    return chosen if share >= 1 and abs(chosen) >= abs(whole) else whole * min(share, 1.0)


def inserted(recipe: Recipe, scheme: Scheme) -> tuple[Graph, dict[Value, Value]]:
    """The quantised graph, and its values by those of the float graph."""
    given = grids(recipe.placed, recipe.ranges, scheme)
    copy, placed, again, theirs, values = twins(recipe.graph, recipe.placed, recipe.products, given)
    dequantised = insert(copy, placed, again, theirs, scheme)
    return copy, {old: dequantised.get(new, new) for old, new in values.items()}


def checked(rounding: str, method: str) -> None:
    """Raises InputError for an unknown name."""
    if method != "auto" and method not in METHODS:
        raise InputError(f"there is no method '{method}': choose auto or one of {', '.join(METHODS)}")
    if rounding not in ROUNDING:
        raise InputError(f"there is no rounding '{rounding}': choose one of {', '.join(ROUNDING)}")
