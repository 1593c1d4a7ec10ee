"""Float models that are to be quantised: their graph, the scheme for it, and what is known of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from tenon.errors import InputError, ModelError
from tenon.network.graph.bind import with_open_batches
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import DType
from tenon.network.ops.traits import is_quantised
from tenon.network.ops.unroll import decided_at_run_time, unrolled
from tenon.network.passes.integers.splits import slice_splits
from tenon.pipeline import Model, load
from tenon.tools.quantization.concatenated_inputs import separate_inputs
from tenon.tools.quantization.default_scheme import AUTO, default_scheme
from tenon.tools.quantization.known_ranges import Ranges
from tenon.tools.quantization.known_ranges import read as read_known
from tenon.tools.quantization.placement import rounded_with_readers, summed
from tenon.tools.quantization.ranges import Range
from tenon.tools.quantization.recurrent_states import recurrent_states
from tenon.tools.quantization.scheme import Scheme, named_scheme
from tenon.tools.quantization.tensor_names import optimized_names, renamed
from tenon.tools.quantization.trained import take_out


@dataclass(frozen=True)
class FloatModel:
    """A float graph and how its tensors are to be quantised.

    ``reason`` says why the scheme was chosen.  ``ranges`` are known by the names of tensors; those of ``trained`` come
    from fake quantisation in the model.  Results of products in ``separate`` get a grid of their own, ``states`` of
    recurrent cells 16 bits.
    """

    graph: Graph
    scheme: Scheme
    reason: str
    ranges: Mapping[str, Range]
    trained: Collection[str]
    separate: Collection[str]
    states: Collection[str]

    def quantised_already(self) -> ModelError:
        return _quantised_already(self.graph)

    def check_layers(self, names: Sequence[str]) -> None:
        """Raises InputError for a name that no layer and no tensor has."""
        if unknown := sorted(
            set(names) - {n for node in self.graph for n in (str(node.origin.layer), node.output.name)}
        ):
            raise InputError(
                f"exclude, int16, fp16: there is no layer '{unknown[0]}': 'tenon inspect --layers' lists them"
            )


def float_model(
    model: Model | Graph, scheme: str, target: str, ranges: Ranges | None, *, separate_activations: bool
) -> FloatModel:
    """The model with normalisations folded.

    The scheme "auto" is what suits ``target``, where no ranges come with the model.  With ``separate_activations``
    results of products are rounded before the LeakyRelu or Add that reads them, too.  Raises ModelError, and InputError
    for an unknown scheme and bad ranges.
    """
    if scheme != AUTO:
        named_scheme(scheme)
    graph, trained, names = _graph_and_ranges(model)
    scheme, reason = default_scheme(graph, "host" if trained else target) if scheme == AUTO else (scheme, "")
    kind = named_scheme(scheme)
    if not separate_activations:
        slice_splits(graph)
    separate = rounded_with_readers(graph) if separate_activations else _separate(graph, kind)
    known = {} if kind.weights_only else renamed(read_known(ranges, kind), names) | trained
    states = set() if separate_activations else _states(graph, kind, known) - set(trained)
    return FloatModel(graph, kind, reason, known, trained.keys(), separate, states)


def float_graph(model: Model | Graph) -> Graph:
    """The graph with normalisations folded, of ONNX's own operators.  Raises ModelError if it is quantised already."""
    graph, trained, _ = _graph_and_ranges(model)
    if trained:
        raise _quantised_already(graph)
    return graph


def _graph_and_ranges(model: Model | Graph) -> tuple[Graph, dict[str, Range], dict[str, str]]:
    """The graph in floats, the ranges that a quantised one brings along, and what its tensors are called in it."""
    read = model.copy() if isinstance(model, Graph) else load(model)
    given = with_open_batches(unrolled(read, keep=decided_at_run_time))  # those stay in floats
    if given.incomplete:
        raise ModelError(f"{given.source or given.name}: cannot be quantised: {given.incomplete}")
    if not all(v.type.bound for v in given.inputs):
        raise ModelError(f"{given.source or given.name}: bind the shapes of its inputs first (--shape)")
    if given.sizes:
        remedy = "give numbers with --shape"
        if given.text is not None:
            remedy = "its weights can be stored in 8 or 4 bits (tenon compile --weight-format q8_0 or q4_0)"
        raise ModelError(
            f"{given.source or given.name}: sizes that every run chooses ({', '.join(given.sizes)}) cannot be "
            f"quantised yet: {remedy}"
        )
    trained = take_out(given) if is_quantised(given) else {}
    names = optimized_names(given)
    return given, renamed(trained, names), names


def _quantised_already(graph: Graph) -> ModelError:
    return ModelError(f"{graph.source or graph.name}: is quantised already")


def _separate(graph: Graph, scheme: Scheme) -> set[str]:
    """The results that get a grid in any case: 16 bits are not added to sums of 32."""
    return set() if scheme.activations.bytes == 1 else summed(graph)


def _states(graph: Graph, scheme: Scheme, known: Container[str]) -> set[str]:
    """The tensors that take 16 bits where the others take 8, when inputs of gates have grids of their own unless their
    range is ``known``."""
    if scheme.activations is not DType.I8 or scheme.power_of_two:
        return set()
    separate_inputs(graph, recurrent_states(graph), known)
    return recurrent_states(graph)
