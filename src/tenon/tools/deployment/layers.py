"""Layers of a compiled network beside those of another runtime, or of the operators' references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.base import Operator
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.bundle import Bundle
from tenon.tools.deployment.running import Opener, running
from tenon.tools.peers.base import Network, real
from tenon.tools.quantization.comparison import (
    BundleNetwork,
    GraphInterface,
    matched,
    opened,
    outputs_like,
    refuse_sizes,
    scale_of,
    translated,
)
from tenon.tools.quantization.probes import exposing
from tenon.tools.quantization.report import Noise, Sums
from tenon.tools.quantization.samples import Sample

REFERENCES = "the references of the operators"

DIFFERS = 0.01
"""Difference from which an element counts as another one, over the tensor's largest magnitude: above the rounding of
quantised layers, whose steps are 1/255 of their range."""

SHOWN = 8
"""Elements of an excerpt."""


@dataclass(frozen=True)
class Excerpt:
    """Elements of a tensor from the first that differs on, and the finite elements' minimum, maximum, mean and standard
    deviation."""

    elements: tuple[float, ...]
    minimum: float
    maximum: float
    mean: float
    deviation: float


@dataclass(frozen=True)
class Divergence:
    """A layer's result in the sample in which it differs most: ``index`` is the first element that differs (by more
    than 1 % of the largest magnitude; if none does, the one that differs most), ``differing`` of ``size`` elements
    do."""

    layer: str
    sample: int
    shape: tuple[int, ...]
    index: tuple[int, ...]
    differing: int
    size: int
    got: Excerpt
    wanted: Excerpt


@dataclass(frozen=True)
class LayerComparison:
    """``layers`` in the order in which they are computed; ``first_wrong`` is the first below the threshold."""

    against: str
    layers: tuple[Noise, ...]
    first_wrong: Noise | None
    divergence: Divergence | None


class _Inside(GraphInterface):
    """A network whose tensors ``values`` can be asked for by name; ``computed`` are the outputs that are numbers, of a
    size that does not depend on data."""

    def __init__(self, graph: Graph, values: Iterable[tuple[str, Value]]) -> None:
        super().__init__(graph)
        outputs = {id(v) for v in graph.outputs}
        self._values = {name: v for name, v in values if id(v) not in outputs}
        self.computed = {
            v.name: v
            for v in graph.outputs
            if v.producer is not None and v.name not in graph.strings and v.name not in graph.extents
        }
        self._asked: list[str] = []

    def tensors(self) -> dict[str, int]:
        return {name: v.type.size for name, v in self._values.items()}

    def ask(self, names: Sequence[str]) -> None:
        self._asked = list(names)

    def _exposing(self) -> tuple[Graph, dict[str, str]]:
        """The graph whose outputs are its own and the tensors asked for, and which of its outputs each is."""
        wanted = {**self.computed, **{name: self._values[name] for name in self._asked}}
        graph, names = exposing(self.graph, list({id(v): v for v in wanted.values()}.values()))
        return graph, {name: names[id(v)] for name, v in wanted.items()}


class CompiledLayers(_Inside):
    """``graph`` compiled a second time with ``options``, for the same target and where ``open_on`` runs it, with the
    results of its layers as outputs.

    A layer ends where the compiler's fusion ends, so that its kernel is that of the network, and of a quantised network
    where integers are stored; in a network that fuses to one kernel, every operator is a layer.  Arrays are those of
    the imported model: no conversion of inputs and outputs is part of it.  Raises ModelError as ``tenon.compile`` does.
    """

    def __init__(self, graph: Graph, options: Options, open_on: Opener | None = None) -> None:
        results = [v for v in _results(graph) if not graph.is_output(v)] or _reals(graph)
        super().__init__(graph, ((name, v) for v in results for name in _names(v)))
        # Conversions at inputs and outputs would change tensors that are compared; a budget of memory cannot hold all
        # layers at the same time, and names are needed.
        self._options = replace(
            options,
            data_formats={},
            data_types={},
            head={},
            preprocess={},
            compile_preprocess=None,
            features={},
            ram=None,
            obfuscate=None,
        )
        self._open_on = open_on
        self._network: BundleNetwork | None = None
        self._outputs: dict[str, str] = {}
        self._stack = ExitStack()

    def run(self, sample: Sample) -> dict[str, Array]:
        """The outputs and the tensors that were asked for, as real numbers."""
        if self._network is None:
            graph, self._outputs = self._exposing()
            bundle: Bundle = compile(graph, self._options)
            self._network = BundleNetwork(self._stack.enter_context(running(bundle, self._open_on)))
        outputs = self._network.run(translated(sample, self, self._network))
        return {name: outputs[output] for name, output in self._outputs.items()}

    def close(self) -> None:
        self._stack.close()


class ReferenceLayers(_Inside):
    """``graph`` computed by the references of its operators, which show every tensor of real numbers."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, ((v.name, v) for v in _reals(graph)))
        self._scales = {v.name: scale_of(v) for v in graph.outputs}
        self._exposed: tuple[Graph, dict[str, str]] | None = None

    def run(self, sample: Sample) -> dict[str, Array]:
        """The outputs and the tensors that were asked for, as real numbers."""
        if self._exposed is None:
            self._exposed = self._exposing()
        graph, outputs = self._exposed
        values = evaluate(graph, sample)
        return {name: real(values[output], self._scales.get(name)) for name, output in outputs.items()}

    def close(self) -> None:
        pass


def compare_layers(
    mine: CompiledLayers, graph: Graph, against: str | None, weights: str | None, given: Sequence[Sample], least: float
) -> LayerComparison:
    """Compare the layers of a compiled network, the outputs last, with those of ``against`` (as for ``validate``), or,
    where that is None, shows no tensors inside or none with the name of a layer, with the references of the operators
    of ``graph``, the imported model that ``given`` samples are for.

    A layer is wrong if its cosine similarity is below ``least``, or the power of its noise over that of the signal
    above the 2 (1 - ``least``) which vectors of the same length then have: another scale is wrong, too.
    """
    refuse_sizes(graph)
    with ExitStack() as stack:
        stack.callback(mine.close)
        theirs, names, name = _reference(mine, graph, against, weights)
        stack.callback(theirs.close)
        theirs.ask(list(names.values()))
        mine.ask(list(names))
        names |= {own: other for own, other in outputs_like(mine, theirs) if own in mine.computed}
        interface = GraphInterface(graph)

        def both(number: int) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
            sample = given[number]
            return mine.run(translated(sample, interface, mine)), theirs.run(translated(sample, interface, theirs))

        sums, worst = {layer: Sums() for layer in names}, dict.fromkeys(names, (-np.inf, 0))
        for number in range(len(given)):
            got, wanted = both(number)
            for layer, other in names.items():
                sums[layer].add(got[layer], wanted[other])
                worst[layer] = max(worst[layer], (_noise(got[layer], wanted[other]), -number))
        layers = tuple(each.noise_of(layer) for layer, each in sums.items())
        wrong = next((noise for noise in layers if _is_wrong(noise, least)), None)
        if wrong is None:
            return LayerComparison(name, layers, None, None)
        number = -worst[wrong.name][1]
        got, wanted = both(number)
        divergence = diverging(wrong.name, number, got[wrong.name], wanted[names[wrong.name]])
        return LayerComparison(name, layers, wrong, divergence)


def _reference(
    mine: CompiledLayers, graph: Graph, against: str | None, weights: str | None
) -> tuple[Network, dict[str, str], str]:
    """The network to compare with, the names of its tensors by those of layers in their order, and its name."""
    if against is not None:
        network = opened(against, like=GraphInterface(graph), weights=weights)
        if names := _pairs(mine, network):
            return network, names, against
        network.close()
    references = ReferenceLayers(graph)
    return references, _pairs(mine, references), REFERENCES


def _pairs(mine: CompiledLayers, theirs: Network) -> dict[str, str]:
    if not mine.tensors() or not theirs.tensors():
        return {}
    partners = {own: other for other, own in matched(theirs, mine)[0].items()}
    return {name: partners[name] for name in mine.tensors() if name in partners}


def _noise(got: Array, wanted: Array) -> float:
    """The power of the noise over that of the signal; infinite where one is not finite."""
    a, b = got.astype(np.float64).reshape(-1), wanted.astype(np.float64).reshape(-1)
    noise, signal = float(np.sum((a - b) ** 2)), float(np.sum(b**2))
    share = noise / signal if signal else np.inf if noise else 0.0
    return share if share == share else np.inf


def _is_wrong(noise: Noise, least: float) -> bool:
    return not (noise.cosine >= least and 10 ** (-noise.sqnr / 10) <= 2 * (1 - least))


def diverging(layer: str, sample: int, got: Array, wanted: Array) -> Divergence:
    """Where two results of a layer, of the same size, differ."""
    shape = got.shape
    a, b = got.astype(np.float64).reshape(-1), wanted.astype(np.float64).reshape(-1)
    largest = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # of equal infinities
        distance = np.where(same, 0.0, np.abs(a - b))
    differs = ~(distance <= DIFFERS * largest)
    first = int(np.argmax(differs) if differs.any() else np.argmax(distance))
    index = tuple(int(i) for i in np.unravel_index(first, shape))
    return Divergence(layer, sample, shape, index, int(differs.sum()), a.size, _excerpt(a, first), _excerpt(b, first))


def _excerpt(flat: Array, first: int) -> Excerpt:
    finite = flat[np.isfinite(flat)]
    shown = tuple(float(each) for each in flat[first : first + SHOWN])
    if not finite.size:
        return Excerpt(shown, np.nan, np.nan, np.nan, np.nan)
    statistics: tuple[Callable[[Array], Array], ...] = (np.min, np.max, np.mean, np.std)
    return Excerpt(shown, *(float(each(finite)) for each in statistics))


# ------------------------------------------------------------------------------------------ where layers end
def _reals(graph: Graph) -> list[Value]:
    return [v for node in graph for v in node.outputs if v.type.dtype is DType.F32]


def _results(graph: Graph) -> Iterable[Value]:
    """Tensors of real numbers that compiled code stores: those that the next operator is not fused into, and of
    quantised layers those that their integers stand for."""
    for node in graph:
        constant = all(v is None or v.constant for v in node.inputs)
        for value in node.outputs if not constant else ():
            if value.type.dtype is DType.F32 and (
                isinstance(node.op, DequantizeLinear) or not _read_in_place(graph, value)
            ):
                yield value


def _names(value: Value) -> list[str]:
    """A tensor's name, and that of the integers that it is made of: runtimes show one or the other."""
    made = value.producer
    quantised = made is not None and isinstance(made.op, DequantizeLinear)
    return [value.name, made.input(0).name] if made is not None and quantised else [value.name]


def _read_in_place(graph: Graph, value: Value) -> bool:
    """Whether only an operator that is fused into its producer reads a tensor, perhaps after others that move data."""
    uses = set(value.uses)
    if len(uses) != 1 or graph.is_output(value):
        return False
    (node,) = uses
    if isinstance(node.op, QuantizeLinear):
        return True
    if isinstance(node.op, Pointwise):
        return value.producer is _last(graph, node)
    moves = isinstance(node.op, Operator) and node.op.moves and len(node.outputs) == 1
    return moves and _read_in_place(graph, node.output)


def _last(graph: Graph, node: Node) -> Node | None:
    """The producer that a pointwise operator is fused into: the latest."""
    producers = [v.producer for v in node.inputs if v is not None and v.producer is not None]
    return max(producers, key=graph.position, default=None)
