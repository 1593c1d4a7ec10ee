"""Validation of a compiled network against the framework that its model comes from, or against recorded outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import InputError, guarded
from tenon.formats.importers import find, format_name
from tenon.network.graph.graph import Array, Graph
from tenon.network.ops import registry
from tenon.network.ops.quantize import Quantisation
from tenon.network.ops.traits import is_quantised
from tenon.runtime.bundle.manifest import Manifest
from tenon.runtime.engine.compare import cosine_similarity, relative_error, signal_to_noise
from tenon.tools.deployment.layers import CompiledLayers, LayerComparison, compare_layers
from tenon.tools.deployment.limits import LIMITS, ResourceLimits, kind_of
from tenon.tools.peers import PEERS, runtime_for
from tenon.tools.peers.base import real
from tenon.tools.quantization.comparison import (
    GraphInterface,
    check_alike,
    is_target,
    opened,
    outputs_like,
    scale_of,
    stated_outputs,
    translated,
)
from tenon.tools.quantization.samples import Data, Sample, load_archive, read_samples

Run = Callable[[Sample], Mapping[str, Array]]


@dataclass(frozen=True)
class OutputCheck:
    """An output over all samples: the least cosine similarity, SQNR in dB, and the largest error relative to the
    largest magnitude, which have to be within ``limits``.

    ``differing`` is the number of ``elements`` that are not the same, of integers without a scale, truth values and
    strings, none of which may differ; None for real numbers.  ``pixel_error`` is the share of rows along the last axis
    whose largest element is another one, as MACE's pixel accuracy counts the right ones; None for an output whose rows
    have one element.
    """

    name: str
    cosine: float
    sqnr: float
    error: float
    limits: ResourceLimits
    pixel_error: float | None = None
    differing: int | None = None
    elements: int = 0

    @property
    def passed(self) -> bool:
        return not self.failure

    @property
    def failure(self) -> str:
        """Why it is not accepted; "" if it is."""
        return self._judgement[1]

    @property
    def verdict(self) -> str:
        """ "passed", or the limit that is exceeded."""
        return self._judgement[0]

    @property
    def _judgement(self) -> tuple[str, str]:
        allowed = self.limits
        if self.differing is not None:
            text = f"{self.differing} of {self.elements} differ"
            return ("passed", "") if not self.differing else (text, f"{text}, which have to be the same")
        if not self.cosine >= allowed.cosine:  # also NaN
            text = f"cosine similarity {self.cosine:.6f}, at least {allowed.cosine} is required"
            return f"below {allowed.cosine}", text
        if not self.sqnr >= allowed.sqnr:
            text = f"SQNR {self.sqnr:.1f} dB, at least {allowed.sqnr:.1f} dB are required"
            return f"below {allowed.sqnr:.1f} dB", text
        if not self.error <= allowed.error:
            text = f"largest error {self.error:.2e} of the largest magnitude, at most {allowed.error} is allowed"
            return f"error above {allowed.error}", text
        return "passed", ""


@dataclass(frozen=True)
class Validation:
    """``outputs`` as computed, compared with ``against``, and ``inside`` the layers, where these were compared."""

    against: str
    samples: int
    outputs: tuple[OutputCheck, ...]
    inside: LayerComparison | None = None

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.outputs)


@guarded
def validate(
    graph: Graph,
    run: Run,
    data: Data,
    *,
    against: str | None = None,
    expected: str | os.PathLike[str] | Mapping[str, Array] | None = None,
    samples: int = 8,
    seed: int = 0,
    limits: ResourceLimits | None = None,
    layers: CompiledLayers | None = None,
    preprocess: Mapping[str, Any] | None = None,
    weights: str | None = None,
    real_outputs: bool = False,
) -> Validation:
    """Compare the outputs of ``run`` with those of the source framework, or with recorded ones.

    ``graph`` is the model as imported, whose inputs samples of ``data`` (as for ``quantize``) must fit.  ``against`` is
    a runtime that is installed (of ``peers.PEERS``), or a target that runs here, and the model in it,
    "onnxruntime:FILE" or "host:FILE" (``weights`` is its second file, if that does not lie beside it); ``expected`` an
    .npz file, or arrays, with the outputs by name, for several samples along a first axis.  Quantised outputs are
    compared as the real numbers that they stand for (with ``real_outputs``, ``run`` gives these); recorded ones may be
    integers or real.  With ``layers`` these are compared, too (``layers.compare_layers``), with those of ``against``
    where it shows them, else with the references of the operators; they are closed.  ``limits`` say by how much real
    numbers may differ (by default those of ``LIMITS`` for floats of 32 bits, or for a quantised model); integers, truth
    values and strings have to be the same.  Raises InputError for references that do not fit.
    """
    if (against is None) == (expected is None):
        raise InputError("name one reference: a runtime with --against, or recorded outputs with --expected")
    limits = limits or LIMITS[kind_of(is_quantised(graph), None)]
    given = read_samples(graph, data, samples, seed, preprocess)
    stated = stated_outputs([value.name for value in graph.outputs], graph.extents)
    scales = {v.name: None if real_outputs else scale_of(v) for v in graph.outputs if v.name in stated}
    got = [{name: real(outputs[name], scale) for name, scale in scales.items()} for outputs in map(run, given)]
    if against is None:
        assert expected is not None
        wanted = _recorded(expected, graph, len(given), got)
    else:
        wanted = _asked(against, graph, given, weights)
    checks = tuple(_check(name, [g[name] for g in got], [w[name] for w in wanted], limits) for name in scales)
    inside = None if layers is None else compare_layers(layers, graph, against, weights, given, limits.cosine)
    return Validation(against or "recorded outputs", len(given), checks, inside)


def reference(against: str, file: str) -> str:
    """The name of a reference: the model's own file in this runtime, or compiled for this target.  Raises InputError
    for another one."""
    runtime, colon, other = against.partition(":")
    if runtime not in PEERS and not is_target(runtime):
        raise InputError(f"--against {against}: choose one of {', '.join(PEERS)}, or a target, or give --expected")
    return f"{runtime}:{other if colon else file}"


def own_runtime(file: str, weights: str | None = None) -> str:
    """The runtime that a model's format belongs to (of ``PEERS``).  Raises InputError if there is none, and as
    ``tenon.load`` does."""
    _, importer = find(file, weights=weights)
    return runtime_for(format_name(importer))


def is_quantised_bundle(manifest: Manifest) -> bool:
    """Whether a compiled network has operators on integers with scales."""
    operators = registry()
    kinds = (operators.get(step.op.partition("+")[0]) for step in manifest.nodes)  # without what is fused after it
    return any(kind is not None and (kind.quantised or issubclass(kind, Quantisation)) for kind in kinds)


def _check(name: str, got: Sequence[Array], wanted: Sequence[Array], limits: ResourceLimits) -> OutputCheck:
    pairs = list(zip(got, wanted, strict=True))
    for mine, theirs in pairs:
        if mine.size != theirs.size:
            raise InputError(f"output '{name}' has the shape {list(mine.shape)}, the reference's {list(theirs.shape)}")
    same = [(mine.reshape(theirs.shape), theirs) for mine, theirs in pairs]
    exact = got[0].dtype.kind not in "fcV"  # V: bf16
    differing = sum(int(np.count_nonzero(mine != theirs)) for mine, theirs in same) if exact else None
    elements = sum(mine.size for mine, _ in same)
    if got[0].dtype.kind in "OUS":
        return OutputCheck(name, math.nan, math.nan, math.nan, limits, None, differing, elements)
    error = max(relative_error(mine, theirs) for mine, theirs in same)
    finite = [_finite(mine, theirs) for mine, theirs in same]
    return OutputCheck(
        name,
        min(cosine_similarity(mine, theirs) for mine, theirs in finite),
        signal_to_noise(*(np.concatenate(side) for side in zip(*finite, strict=True))),
        error,
        limits,
        pixel_error(same),
        differing,
        elements,
    )


def _finite(got: Array, wanted: Array) -> tuple[Array, Array]:
    """The elements that are finite in both, or differ in being so, for which ``relative_error`` is infinite."""
    a, b = got.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    kept = np.isfinite(a) & np.isfinite(b)
    return a[kept], b[kept]


def pixel_error(pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """The share of rows along the last axis whose largest element is another one (see ``OutputCheck``)."""
    last = pairs[0][0].shape[-1:]
    if not last or last[0] < 2 or not pairs[0][0].size:
        return None
    return float(np.mean(np.concatenate([(a.argmax(-1) != b.argmax(-1)).reshape(-1) for a, b in pairs])))


def _asked(against: str, graph: Graph, given: Sequence[Sample], weights: str | None) -> list[dict[str, Array]]:
    """The outputs of another runtime, by the names that they have here (outputs belong together in their order)."""
    mine = GraphInterface(graph)
    network = opened(against, like=mine, weights=weights)
    try:
        check_alike(mine, network)
        answers = (network.run(translated(sample, mine, network)) for sample in given)
        pairs = outputs_like(mine, network)
        return [{name: answer[other].copy() for name, other in pairs} for answer in answers]
    finally:
        network.close()


def _recorded(
    expected: str | os.PathLike[str] | Mapping[str, Array],
    graph: Graph,
    count: int,
    got: Sequence[Mapping[str, Array]],
) -> list[dict[str, Array]]:
    arrays = expected if isinstance(expected, Mapping) else load_archive(expected)
    where = "the recorded outputs" if isinstance(expected, Mapping) else os.fspath(expected)
    by_output: dict[str, Array] = {}
    for value in graph.outputs:
        name, size = value.name, got[0][value.name].size
        if name not in arrays:
            raise InputError(f"{where}: there is no output '{name}': it has {', '.join(arrays)}")
        array = arrays[name]
        if array.size != count * size:
            shape = list(array.shape)
            raise InputError(f"{where}: '{name}' is {shape}, but {count} sample(s) of {size} elements are compared")
        plain = real(array, scale_of(value)) if array.dtype.kind in "iu" else array
        by_output[name] = plain.reshape(count, *got[0][name].shape)
    return [{name: array[at] for name, array in by_output.items()} for at in range(count)]
