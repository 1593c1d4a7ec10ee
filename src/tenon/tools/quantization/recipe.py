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
from tenon.tools.quantization.insertion import Product, insert
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
"""What is tried for "auto": AdaRound takes ten times as long and was not better."""

EQUALISATIONS = (("equalisation", 1.0), ("half equalisation", 0.5))
"""Exponents of the factors of channels that are tried."""

WIDER = (1.1, 1.25, 1.5)
"""Factors by which all ranges are widened: other samples have greater extremes."""

CORRECTED = 128
"""Most samples that means of channels are measured on."""


def recipe(graph: Graph, samples: Sequence[Sample], request: Request) -> Recipe:
    """The best recipe for ``graph``, which is in floats and is not changed."""
    return _Search(graph, samples, request).run()


class _Search(Candidates):
    def __init__(self, graph: Graph, samples: Sequence[Sample], request: Request) -> None:
        super().__init__(graph, samples, request)
        self.base: dict[Value, Range] = {}

    def run(self) -> Recipe:
        request = self.request
        found = self._calibrated(self.graph)
        simulation = self._simulated(found)
        try:
            best = self._with_room(found, simulation, self._first(found, simulation))
            best = self._judged(found, simulation, best)
            if request.equalisation is not False:
                found, simulation, best = self._rewritten("head scales", with_head_scales, found, simulation, best)
                found, simulation, best = self._equalised(found, simulation, best)
                found, simulation, best = self._rewritten("bias absorption", absorbed, found, simulation, best)
            best = self._best_method(found, simulation, best)
            if request.rounding != "nearest" and found.products:
                found, simulation, best = self._rounded(found, simulation, best)
            best = self._judged(found, simulation, best)
            if request.range_search:
                self._searched(found, simulation, best)
            self._settled(found)
            simulation = self._finished(found, simulation)
        finally:
            simulation.close()
        return found

    # ------------------------------------------------------------------------------------------ steps
    def _first(self, found: Recipe, simulation: Simulation) -> Quality:
        best = self._quality(found, simulation)
        found.repairs[""] = best.sqnr
        if self.corrects and found.products:
            corrected = self._tried(found, simulation)
            found.repairs["bias correction"], found.without["bias correction"] = corrected.sqnr, best.sqnr
            if corrected < best:
                self.corrects = False
                simulation.reset_shifts()
            best = max(best, corrected)
        return best

    def _with_room(self, found: Recipe, simulation: Simulation, best: Quality) -> Quality:
        """Wider ranges of outputs: noise of other samples that saturate there would hide all that is tried later."""
        start, chosen = found.ranges, ends(found.graph, found.placed)
        for share in WIDER if self.request.range_search else ():
            kept = found.ranges
            found.ranges = {
                v: (low * share, high * share) if v in chosen else (low, high) for v, (low, high) in start.items()
            }
            quality = self._quality(found, simulation)
            found.methods[f"outputs x {share}"] = quality.sqnr
            if quality > best:
                best, self.room = quality, share
            else:
                found.ranges = kept
        return best

    def _equalised(self, found: Recipe, simulation: Simulation, best: Quality) -> tuple[Recipe, Simulation, Quality]:
        """Channels of activations fully or half way to the same range: the nearer, the more of them can saturate."""
        request, source, threads = self.request, found.graph, self.request.threads
        names, per_channel, silent = list(found.applied), request.scheme.per_channel, 0
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
            found.repairs[name], found.without[name] = quality.sqnr, best.sqnr
            if quality <= best and (taken or not request.equalisation):
                again.close()
                continue
            simulation.close()
            self._follow(other, found, [*names, name])
            found, simulation, best, taken = other, again, quality, True
        return found, simulation, best

    def _rewritten(
        self, name: str, rewrite: Rewrite, found: Recipe, simulation: Simulation, best: Quality
    ) -> tuple[Recipe, Simulation, Quality]:
        """The same of another network with the same results, if it has less noise."""
        graph, count = rewrite(found.graph, self.fitted, self.request.threads)
        if not count:
            return found, simulation, best
        other = self._calibrated(graph)
        again = self._simulated(other)
        quality = self._tried(other, again)
        found.repairs[name], found.without[name] = quality.sqnr, best.sqnr
        if quality <= best:
            again.close()
            return found, simulation, best
        simulation.close()
        self._follow(other, found, [*found.applied, name])
        return other, again, quality

    @staticmethod
    def _follow(other: Recipe, found: Recipe, applied: list[str]) -> None:
        """Let ``other`` have what was measured up to ``found``."""
        other.methods, other.repairs, other.without, other.applied = (
            found.methods,
            found.repairs,
            found.without,
            applied,
        )

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
        for name in AUTO_ROUNDING if request.rounding == "auto" else (request.rounding,):
            if name == RECONSTRUCTION and request.rounding == "auto" and not any(map(reconstructs, found.products)):
                continue
            other = Recipe(found.graph, found.placed, found.ranges, self._products(found), found.method)
            self._by(name, other, self.fitted)
            again = self._simulated(other)
            quality = self._tried(other, again)
            found.repairs[name], found.without[name] = quality.sqnr, best.sqnr
            if quality <= best and request.rounding == "auto":
                again.close()
                continue
            simulation.close()
            simulation, best, found.products, found.shifts = again, quality, other.products, other.shifts
            found.applied = [*(each for each in found.applied if each not in ROUNDING), name]
        return found, simulation, best

    def _by(self, name: str, found: Recipe, samples: Sequence[Sample]) -> None:
        """Round the products, which are the nearest yet, in the way of that name."""
        request, sums = self.request, name == RECONSTRUCTION
        others = [i for i, each in enumerate(found.products) if not (sums and reconstructs(each))]
        if others:
            known = self._moments(found, second=True) if samples is self.fitted else self._all_moments(found)
            start = [self._narrowed(found.products[i], known) for i in others]
            made = rounded(start, known, "gptq" if sums else name, step=request.step, centred=self.corrects)
            for i, each in zip(others, made, strict=True):
                found.products[i] = each
        if sums:
            found.products, found.shifts = reconstructed(
                found.graph, found.placed, found.products, self._grids(found), request.scheme, samples,
                centred=request.bias_correction, threads=request.threads, step=request.step,
            )  # fmt: skip

    def _narrowed(self, each: Product, known: Mapping[Node, Moments]) -> Product:
        second = known[each.node].second if each.node in known else None
        return each if second is None else narrowed(each, second)

    def _searched(self, found: Recipe, simulation: Simulation, best: Quality) -> None:
        """Wider ranges of all tensors, then narrower and wider ones of each: on other samples than gave the ranges,
        because only these saturate.  Inputs, which are often integers of 8 bits themselves, keep their steps."""
        self.base = dict(found.ranges)
        fixed, start = ends(found.graph, found.placed) | {*found.graph.inputs}, found.ranges
        for share in WIDER:
            wider = {v: (low * share, high * share) for v, (low, high) in start.items() if v not in fixed}
            kept, found.ranges = found.ranges, {**start, **wider}
            quality = self._quality(found, simulation)
            found.methods[f"ranges x {share}"] = quality.sqnr
            if quality > best:
                best = quality
            else:
                found.ranges = kept
        if len(self.unseen) < 4:
            return
        kept, before = found.ranges, self._quality(found, simulation, slice(1, None, 2))
        found.ranges = searched(
            found.graph, found.placed, found.ranges, simulation, self.request.scheme, self.unseen[::2],
            expected=self.expected[::2], step=self.request.step, fixed=self._of_steps(found.graph),
        )  # fmt: skip
        quality = self._quality(found, simulation, slice(1, None, 2))
        found.methods["range search"], found.without["range search"] = quality.sqnr, before.sqnr
        if quality > before:
            found.applied.append("range search")
        else:
            found.ranges = kept

    def _settled(self, found: Recipe) -> None:
        """Ranges of the same kind, from all samples."""
        base = self.base or found.ranges
        seen = self._observed(found.graph, found.placed, [found.method], self.samples)
        ranges = {}
        for value, each in seen.items():
            whole, part, chosen = METHODS[found.method](each), base[value], found.ranges[value]
            ranges[value] = _end(whole[0], part[0], chosen[0]), _end(whole[1], part[1], chosen[1])
        if self.room > 1:  # other samples exceed the extremes of all of them, too
            for value in ends(found.graph, found.placed):
                (low, high), whole = found.ranges[value], METHODS[found.method](seen[value])
                ranges[value] = min(low, whole[0] * WIDER[0]), max(high, whole[1] * WIDER[0])
        ranges.update(self._of_steps(found.graph))
        if self.request.joined:
            ranges.update(joined_ranges(found.placed, ranges))
        found.ranges = ranges

    def _finished(self, found: Recipe, simulation: Simulation) -> Simulation:
        """Weights for the ranges that were chosen, rounded by all samples, and biases for both."""
        found.products = self._products(found)
        for name in set(found.applied) & set(ROUNDING):
            self._by(name, found, self.samples)
        simulation.close()
        simulation = self._simulated(found)
        self._shift(found, simulation)
        if self.request.bias_correction and found.products:
            self._corrected(found, simulation)
        return simulation

    def _corrected(self, found: Recipe, simulation: Simulation) -> None:
        threads, many = self.request.threads, self.samples[:CORRECTED]
        plain = self._quality(found, simulation)
        predicted = list(simulation.shifts)
        correct(found.graph, found.products, simulation, many, threads=threads, step=self.request.step)
        measured = self._quality(found, simulation)
        name = "bias correction, measured"
        found.repairs[name], found.without[name] = measured.sqnr, plain.sqnr
        if measured < plain:
            simulation.shifts = predicted
            if not self.corrects and found.shifts is None:
                return
        else:
            found.applied.append(name)
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
