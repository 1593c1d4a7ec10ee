"""Validation of a compiled network against the framework that its model comes from, or against recorded outputs."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenon.engine.compare import cosine_similarity, relative_error, signal_to_noise
from tenon.errors import InputError, guarded
from tenon.input_file import open_regular
from tenon.ir.graph import Array, Graph
from tenon.quantization.comparison import compare, opened
from tenon.quantization.peers import PEERS
from tenon.quantization.report import Noise
from tenon.quantization.samples import Data, Sample, read_samples

THRESHOLD = 0.999
"""Least cosine similarity of floats, as MACE's for a CPU."""

QUANTIZED_THRESHOLD = 0.98
"""Least cosine similarity of a quantised model, as MACE's."""

Run = Callable[[Sample], Mapping[str, Array]]


@dataclass(frozen=True)
class OutputCheck:
    """An output over all samples: the least cosine similarity, SQNR in dB, and the largest error relative to the
    largest magnitude; ``passed`` is whether the cosine similarity reaches ``threshold`` in every sample."""

    name: str
    cosine: float
    sqnr: float
    error: float
    threshold: float

    @property
    def passed(self) -> bool:
        return self.cosine >= self.threshold


@dataclass(frozen=True)
class Validation:
    """``outputs`` as computed, compared with ``against``; ``first_wrong`` is the first layer below the threshold, where
    layers were compared and one is."""

    against: str
    samples: int
    outputs: tuple[OutputCheck, ...]
    layers: tuple[Noise, ...] = ()
    first_wrong: Noise | None = None

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
    threshold: float | None = None,
    layers: bool = False,
    preprocess: Mapping[str, Any] | None = None,
) -> Validation:
    """Compare the outputs of ``run`` with those of the source framework, or with recorded ones.

    ``graph`` is the model as imported, whose inputs samples of ``data`` (as for ``quantize``) must fit.  ``against`` is
    a runtime that is installed and the model in it, "onnxruntime:FILE" or "litert:FILE"; ``expected`` an .npz file, or
    arrays, with the outputs by name, for several samples along a first axis.  With ``layers``, which needs ``against``,
    the tensors of the imported model are compared, too.  ``threshold`` is the least cosine similarity: 0.999, or 0.98
    for a quantised model.  Raises InputError for references that do not fit.
    """
    if (against is None) == (expected is None):
        raise InputError("name one reference: a runtime with --against, or recorded outputs with --expected")
    if layers and against is None:
        raise InputError("--layers needs a runtime that shows its tensors: --against onnxruntime or litert")
    least = threshold if threshold is not None else QUANTIZED_THRESHOLD if _quantised(graph) else THRESHOLD
    given = read_samples(graph, data, samples, seed, preprocess)
    got = [run(sample) for sample in given]
    names = [value.name for value in graph.outputs]
    wanted = _recorded(expected, names, len(given), got) if expected is not None else _asked(str(against), graph, given)
    checks = tuple(_check(name, [g[name] for g in got], [w[name] for w in wanted], least) for name in names)
    label = str(against) if against is not None else "recorded outputs"
    if not layers:
        return Validation(label, len(given), checks)
    found = compare(str(against), graph, given, samples=len(given), layers=True).tensors
    wrong = next((noise for noise in found if not noise.cosine >= least), None)
    return Validation(label, len(given), checks, found, wrong)


def reference(against: str, file: str) -> str:
    """The name of a reference: the model's own file in this runtime.  Raises InputError for another runtime."""
    runtime, colon, other = against.partition(":")
    if runtime not in PEERS:
        raise InputError(f"--against {against}: choose one of {', '.join(PEERS)}, or give --expected")
    return f"{runtime}:{other if colon else file}"


def _quantised(graph: Graph) -> bool:
    return any(node.op.name in ("QuantizeLinear", "DequantizeLinear") for node in graph)


def _check(name: str, got: Sequence[Array], wanted: Sequence[Array], threshold: float) -> OutputCheck:
    pairs = list(zip(got, wanted, strict=True))
    for mine, theirs in pairs:
        if mine.size != theirs.size:
            raise InputError(f"output '{name}' has the shape {list(mine.shape)}, the reference's {list(theirs.shape)}")
    same = [(mine.reshape(theirs.shape), theirs) for mine, theirs in pairs]
    return OutputCheck(
        name,
        min(cosine_similarity(mine, theirs) for mine, theirs in same),
        signal_to_noise(np.stack([mine for mine, _ in same]), np.stack([theirs for _, theirs in same])),
        max(relative_error(mine, theirs) for mine, theirs in same),
        threshold,
    )


def _asked(against: str, graph: Graph, given: Sequence[Sample]) -> list[dict[str, Array]]:
    """The outputs of another runtime, by the names that they have here: outputs belong together in their order."""
    network = opened(against)
    try:
        inputs, outputs = [name for name, *_ in network.inputs], list(network.outputs)
        if len(inputs) != len(graph.inputs) or len(outputs) != len(graph.outputs):
            raise InputError(f"{against}: it has {len(inputs)} inputs and {len(outputs)} outputs, the model others")
        kinds = {name: kind for name, kind, _ in network.inputs}
        made = []
        for sample in given:
            feeds = {
                name: np.ascontiguousarray(sample[value.name].reshape(kinds[name].dims))
                for name, value in zip(inputs, graph.inputs, strict=True)
            }
            answer = network.run(feeds)
            made.append({v.name: answer[name] for name, v in zip(outputs, graph.outputs, strict=True)})
        return made
    finally:
        network.close()


def _recorded(
    expected: str | os.PathLike[str] | Mapping[str, Array],
    names: Sequence[str],
    count: int,
    got: Sequence[Mapping[str, Array]],
) -> list[dict[str, Array]]:
    arrays = expected if isinstance(expected, Mapping) else _archive(expected)
    where = "the recorded outputs" if isinstance(expected, Mapping) else os.fspath(expected)
    if missing := [name for name in names if name not in arrays]:
        raise InputError(f"{where}: there is no output '{missing[0]}': it has {', '.join(arrays)}")
    for name in names:
        size = got[0][name].size
        if arrays[name].size != count * size:
            shape = list(arrays[name].shape)
            raise InputError(f"{where}: '{name}' is {shape}, but {count} sample(s) of {size} elements are compared")
    return [{n: arrays[n].reshape(count, *got[0][n].shape)[at] for n in names} for at in range(count)]


def _archive(path: str | os.PathLike[str]) -> dict[str, Array]:
    try:
        with open_regular(path) as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it has one array without a name")
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{Path(path)}: not an .npz file with arrays: {error}") from None
