"""Two of {model, bundle, model in another runtime} on the same samples, at the outputs and layer by layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError, guarded
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.targets.registry import rows
from tenon.network.graph.bind import with_open_batches
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.size_range import Extents
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.network.ops.requantize import limits
from tenon.pipeline import load
from tenon.runtime.bundle.container import is_container
from tenon.runtime.bundle.manifest import BundleTensor, Manifest, size_ranges
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.device import RemoteBundle
from tenon.tools.peers import PEERS, peer
from tenon.tools.peers.base import Interface, Network, Scale, order_of, real
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.report import Noise, Sums, standard_error
from tenon.tools.quantization.samples import Data, Sample, given_inputs, read_samples

MANIFEST = "manifest.json"

Given = str | os.PathLike[str] | Graph | Engine | RemoteBundle
"""A network: a model, a bundle, a runtime and its file, or what runs a bundle already."""


@dataclass(frozen=True)
class Comparison:
    """``outputs`` and ``tensors`` of the second network, with the first for the signal.

    ``agreement`` is the share of samples whose largest output is the same, with its standard error; None if the first
    output is no vector.  ``unmatched`` are tensors of the first network that the second has no tensor of the same name
    and size for.
    """

    samples: int
    outputs: tuple[Noise, ...]
    tensors: tuple[Noise, ...]
    agreement: float | None
    agreement_error: float | None
    unmatched: tuple[str, ...] = ()


@guarded
def compare(
    first: Given,
    second: Given,
    data: Data,
    *,
    samples: int = 32,
    seed: int = 0,
    layers: bool = False,
    preprocess: Mapping[str, Any] | None = None,
    arithmetic: str | None = None,
    threads: int = 1,
) -> Comparison:
    """Run two networks on ``samples`` samples of ``data`` (as for ``quantize``) and compare what they compute.

    Each is a model, a graph, the folder of a bundle, an engine or device, or "onnxruntime:FILE" or "litert:FILE", which
    runs the file in that runtime if it is installed, or "opencl:FILE", which compiles a model for that target (by
    default this machine's processor).  Inputs and outputs belong together in their order.  Integers with
    a scale count as the real numbers that they stand for, and inputs are quantised where one network takes integers and
    the other floats.  With ``layers``, tensors of the same name are compared too.  Raises ModelError, and InputError
    for networks whose inputs or outputs do not match.
    """
    with ExitStack() as stack:
        a = opened(first, arithmetic, threads)
        stack.callback(a.close)
        b = opened(second, arithmetic, threads, like=a)
        stack.callback(b.close)
        check_alike(a, b)
        given = read_samples(input_graph(a), data, samples, seed, preprocess)
        names, unmatched = matched(a, b) if layers else ({}, ())
        a.ask(list(names))
        b.ask(list(names.values()))
        return _compared(a, b, given, names, unmatched)


def _compared(
    a: Network, b: Network, given: Sequence[Sample], names: Mapping[str, str], unmatched: tuple[str, ...]
) -> Comparison:
    pairs = [*outputs_like(a, b), *names.items()]
    sums, same, vector = [Sums() for _ in pairs], 0, True
    for sample in given:
        expected, got = a.run(sample), b.run(translated(sample, a, b))
        for each, (mine, theirs) in zip(sums, pairs, strict=True):
            each.add(got[theirs], expected[mine])
        answers = expected[pairs[0][0]], got[pairs[0][1]]
        vector = 1 < answers[0].size == answers[0].shape[-1]
        same += int(answers[0].argmax()) == int(answers[1].argmax())
    noise = tuple(each.noise_of(mine) for each, (mine, _) in zip(sums, pairs, strict=True))
    count = len(a.outputs)
    share = same / len(given) if vector else None
    error = None if share is None else standard_error(share, len(given))
    return Comparison(len(given), noise[:count], noise[count:], share, error, unmatched)


def opened(
    network: Given,
    arithmetic: str | None = None,
    threads: int = 1,
    like: Interface | None = None,
    weights: str | None = None,
) -> Network:
    """The network, ready to run.  ``close`` leaves an engine or device that was given open.  ``like`` has the inputs
    and outputs for runtimes that do not tell theirs, ``weights`` is the second file of a runtime's model."""
    if isinstance(network, Graph):
        return _CompiledGraph(network, arithmetic, threads)
    if isinstance(network, Engine | RemoteBundle):
        return BundleNetwork(network)
    text = os.fspath(network)
    runtime, colon, file = text.partition(":")
    if colon and runtime in PEERS:
        return peer(runtime, file, weights, like)
    if colon and is_target(runtime):
        return _CompiledGraph(with_open_batches(load(file, weights=weights)), arithmetic, threads, runtime)
    if not is_model(text):
        return BundleNetwork(open_bundle(text, threads=threads), owned=True)
    return _CompiledGraph(with_open_batches(load(text)), arithmetic, threads)


def is_target(name: str) -> bool:
    """Whether a network's prefix names a target that its model is compiled for."""
    return name == "host" or name in rows()


def is_model(text: str) -> bool:
    """Whether a network given as text is a model that Tenon compiles: no bundle, and none in another runtime."""
    runtime, colon, _ = text.partition(":")
    return not (colon and runtime in PEERS) and not (Path(text) / MANIFEST).is_file() and not is_container(text)


def input_graph(network: Network) -> Graph:
    """A graph with the inputs of a network, and how images become these, to read samples for."""
    if isinstance(network, _CompiledGraph):
        return network.graph
    if isinstance(network, BundleNetwork):
        return interface_graph(network.engine.manifest)
    graph = Graph("inputs")
    for name, kind, _ in network.inputs:
        graph.add_input(name, kind)
    return graph


def interface_graph(manifest: Manifest) -> Graph:
    """A graph without nodes: inputs and outputs of a bundle with their scales, and how images become inputs."""
    graph = Graph(manifest.name)
    for tensor in manifest.inputs:
        graph.add_input(tensor.name, _type_of(tensor))
    graph.outputs = [Value(tensor.name, _type_of(tensor)) for tensor in manifest.outputs]
    graph.preprocessing = dict(manifest.preprocessing)
    graph.strings = {tensor.name for tensor in (*manifest.inputs, *manifest.outputs) if tensor.string}
    graph.sizes = size_ranges(manifest.inputs)
    graph.extents = {t.name: t.extents for t in (*manifest.inputs, *manifest.outputs) if t.extents}
    return graph


def _type_of(tensor: BundleTensor) -> TensorType:
    known = _known(tensor)
    quant = None if known is None else Quant((known[0],), (int(known[1]),))
    return TensorType(DType(tensor.dtype), tensor.shape, quant=quant)


def check_alike(a: Interface, b: Interface) -> None:
    """Raises InputError unless inputs and outputs, in their order, are as many and inputs of the same sizes."""
    for what, mine, theirs in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        if len(mine) != len(theirs):
            raise InputError(f"the first network has {len(mine)} {what}, the second {len(theirs)}: cut one of them")
    for (name, kind, _), (other, theirs_kind, _) in zip(a.inputs, _inputs_like(a, b), strict=True):
        if kind.size != theirs_kind.size:
            raise InputError(f"input '{name}' is {kind}, but '{other}' of the second network {theirs_kind}")


def refuse_sizes(graph: Graph) -> None:
    """Raise InputError for a network with sizes that every run chooses: what its tensors inside hold beyond these is
    not defined."""
    if graph.sizes:
        raise InputError(
            f"layers are compared for fixed shapes only, and runs choose {', '.join(graph.sizes)}: give numbers with "
            "--shape"
        )


def matched(a: Network, b: Network) -> tuple[dict[str, str], tuple[str, ...]]:
    """Tensors inside of both, by name and size."""
    for network in (a, b):
        refuse_sizes(input_graph(network))
    mine, theirs = a.tensors(), b.tensors()
    for side, known in (("first", mine), ("second", theirs)):
        if not known:
            raise InputError(f"the {side} network shows its outputs only: leave out --layers")
    pairs: dict[str, str] = {}
    for name, size in mine.items():
        other = next((n for n in (f"{name}_dequantized", name) if theirs.get(n) == size), None)
        if other is None and theirs.get(name.removesuffix("_dequantized")) == size:
            other = name.removesuffix("_dequantized")
        if other is not None and name not in a.outputs:
            pairs[name] = other
    return pairs, tuple(n for n in mine if n not in pairs and n not in a.outputs)


def _inputs_like(a: Interface, b: Interface) -> list[tuple[str, TensorType, Scale | None]]:
    """The inputs of ``b`` in the order of those of ``a``."""
    order = order_of([name for name, *_ in a.inputs], [name for name, *_ in b.inputs])
    return [b.inputs[i] for i in order]


def outputs_like(a: Interface, b: Interface) -> list[tuple[str, str]]:
    """The names of the outputs of ``a``, and of those of ``b`` that belong to them."""
    return [(name, b.outputs[i]) for name, i in zip(a.outputs, order_of(a.outputs, b.outputs), strict=True)]


def translated(sample: Sample, a: Interface, b: Interface) -> Sample:
    """The sample of ``a`` as ``b`` takes it: other names and shapes, integers for real numbers."""
    feeds = {}
    for (name, _, scale), (other, kind, theirs) in zip(a.inputs, _inputs_like(a, b), strict=True):
        array = sample[name]
        if scale != theirs:
            real = array.astype(np.float64) if scale is None else (array.astype(np.float64) - scale[1]) * scale[0]
            array = real if theirs is None else np.clip(np.rint(real / theirs[0]) + theirs[1], *limits(kind.dtype))
        array = array.reshape(kind.dims) if array.size == kind.size else array  # a run may choose its shape
        feeds[other] = np.ascontiguousarray(array.astype(kind.dtype.numpy))
    return feeds


def scale_of(value: Value) -> Scale | None:
    """Scale and zero point of a tensor of integers; None for real numbers, and integers without a scale."""
    quant = value.type.quant
    integers = value.type.dtype.numpy.kind in "iu"
    return (quant.scale[0], quant.zero_point[0]) if quant is not None and quant.scalar and integers else None


class GraphInterface:
    """The inputs and outputs of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs = [(v.name, v.type, scale_of(v)) for v in given_inputs(graph)]
        self.outputs = stated_outputs([v.name for v in graph.outputs], graph.extents)


class _CompiledGraph(GraphInterface):
    """A graph, compiled for a target that runs on this machine."""

    def __init__(self, graph: Graph, arithmetic: str | None, threads: int, target: str = "host") -> None:
        super().__init__(graph)
        if not runs_here(find(target).name):
            raise InputError(f"{target}: its code does not run in this process, in which networks are compared")
        self._arithmetic, self._threads, self._target = arithmetic or "onnx", threads, target
        self._asked: list[Value] = []
        self._probes: Probes | None = None

    def _inside(self) -> Iterator[Value]:
        outputs = {id(v) for v in self.graph.outputs}
        for node in self.graph:
            if not isinstance(node.op, QuantizeLinear | DequantizeLinear) or not node.input(0).constant:
                yield from (v for v in node.outputs if id(v) not in outputs and v.type.dtype is DType.F32)

    def tensors(self) -> dict[str, int]:
        return {v.name: v.type.size for v in self._inside()}

    def ask(self, names: Sequence[str]) -> None:
        wanted = set(names)
        self._asked = [v for v in self._inside() if v.name in wanted]

    def run(self, sample: Sample) -> dict[str, Array]:
        if self._probes is None:
            self._probes = Probes(
                self.graph, [*self.graph.outputs, *self._asked], self._arithmetic, self._threads, self._target
            )
        values = next(iter(self._probes.run([sample])))
        return {v.name: real(array, scale_of(v)) for v, array in values.items()}

    def close(self) -> None:
        if self._probes is not None:
            self._probes.close()


class BundleNetwork:
    """A bundle in ``engine``, which shows its outputs only; ``close`` closes the engine if it is ``owned``."""

    def __init__(self, engine: Engine | RemoteBundle, *, owned: bool = False) -> None:
        self.engine, self._owned = engine, owned
        manifest = engine.manifest
        self.inputs = [(t.name, TensorType(DType(t.dtype), t.shape), _known(t)) for t in manifest.shown_inputs]
        self.outputs = stated_outputs([t.name for t in manifest.outputs], {t.name: t.extents for t in manifest.outputs})
        self._scales = {t.name: _known(t) for t in manifest.outputs}

    def tensors(self) -> dict[str, int]:
        return {}

    def ask(self, names: Sequence[str]) -> None:
        assert not names

    def run(self, sample: Sample) -> dict[str, Array]:
        return self.real(
            self.engine.run([sample])[0] if isinstance(self.engine, RemoteBundle) else self.engine.run(sample)
        )

    def real(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The real numbers that the outputs of a run represent."""
        return {name: real(array, self._scales[name]) for name, array in outputs.items()}

    def close(self) -> None:
        if self._owned and isinstance(self.engine, Engine):
            self.engine.close()


def stated_outputs(outputs: Sequence[str], extents: Mapping[str, Extents]) -> list[str]:
    """The outputs that a model has, without those that an import adds to hold extents of others."""
    added = {size for name, own in extents.items() for _, size in own if size == f"{name}.extent"}
    return [name for name in outputs if name not in added]


def _known(tensor: BundleTensor) -> Scale | None:
    integers = DType(tensor.dtype).numpy.kind in "iu"
    return (tensor.scale, tensor.zero_point or 0) if tensor.scale is not None and integers else None
