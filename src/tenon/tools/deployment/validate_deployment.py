"""Validation of all models of a deployment file, each on its own inputs, against its framework or recorded outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tenon.errors import InputError, TenonError, prefixed
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.ops.traits import is_quantised
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device import RemoteBundle
from tenon.tools.deployment.base import DeployedModel, Deployment, ModelPort
from tenon.tools.deployment.conversion import (
    Progress,
    axes_of_model,
    chosen_models,
    compiled,
    imported,
    options_of,
    quantized,
)
from tenon.tools.deployment.evaluation import Accuracy, evaluate
from tenon.tools.deployment.files import ADDRESSES
from tenon.tools.deployment.layers import CompiledLayers
from tenon.tools.deployment.limits import LIMITS, ResourceLimits, kind_of
from tenon.tools.deployment.running import Opener, running
from tenon.tools.deployment.validate import Validation, own_runtime, validate
from tenon.tools.peers import PEERS
from tenon.tools.quantization.comparison import BundleNetwork, GraphInterface, translated
from tenon.tools.quantization.samples import Sample, load_array, random_array

SAMPLES = 1
"""Random samples of inputs without data, as MACE's validation takes."""


@dataclass(frozen=True)
class ModelValidation:
    """A model on a target: how its outputs compare, or, in ``skipped``, why they were not compared; ``accuracy`` has
    the results of scripts by their names."""

    model: str
    target: str
    validation: Validation | None
    skipped: str = ""
    accuracy: Mapping[str, Accuracy] | None = None


def validate_deployment(
    deployment: Deployment,
    *,
    models: Sequence[str] = (),
    targets: Sequence[str] = (),
    threshold: float | None = None,
    min_sqnr: float | None = None,
    max_error: float | None = None,
    layers: bool = False,
    seed: int = 0,
    open_on: Opener | None = None,
    device: str = "",
    progress: Progress = lambda stage: None,
) -> list[ModelValidation]:
    """Compile every model for every target, run it, and compare it with its source framework or recorded outputs.

    Inputs are the ``data`` of the deployment's inputs, or random numbers in their ``range``.  ``models`` selects some,
    ``targets`` replaces those of the file, ``threshold`` the least cosine similarities that it gives; ``min_sqnr``
    (dB) and ``max_error`` are the other limits (``limits.Limits``).  ``open_on`` runs a bundle (by default this
    machine, or the target's emulator), on ``device``, which thresholds may name, too.  With ``layers`` each model is
    compiled a second time to compare its layers (``layers.CompiledLayers``).  A
    model whose framework is not installed is skipped.  Raises InputError that lists all files that cannot be had, and
    ModelError as ``tenon.compile`` does.
    """
    chosen = chosen_models(deployment, models, targets, progress)
    validations: list[ModelValidation] = []
    for model in chosen:
        try:
            graph = imported(model, progress)
            deployed = quantized(model, graph, progress)
            given, reason = _samples(model, graph, seed), _no_reference(model)
            for target in targets or model.targets:
                progress(f"{model.name}: validate on {target}")
                # the framework computes no detections
                options = replace(options_of(model, deployed, target), head={})
                allowed = _limits(model, deployed, options.precision, threshold, device, target)
                allowed = allowed.changed(None, min_sqnr, max_error)
                bundle = compiled(model, deployed, options)
                with running(bundle, open_on) as engine:
                    run = _Deployed(model, graph, engine)
                    inside = CompiledLayers(deployed, options, open_on) if layers else None
                    made = None if reason else _compared(model, graph, run, given, allowed, inside)
                    accuracy = {Path(s).name: evaluate(engine, metric=s) for s in model.accuracy}
                validations.append(ModelValidation(model.name, target, made, reason, accuracy or None))
        except TenonError as error:
            raise prefixed(error, model.name) from error
    return validations


def _compared(
    model: DeployedModel,
    graph: Graph,
    run: _Deployed,
    given: Sequence[Sample],
    allowed: ResourceLimits,
    layers: CompiledLayers | None,
) -> Validation:
    recorded = _recorded(model, graph)
    if recorded is not None:
        return validate(
            graph, run, given, expected=recorded, limits=allowed, samples=len(given), layers=layers, real_outputs=True
        )
    return validate(
        graph,
        run,
        given,
        against=f"{_runtime(model)}:{model.source.file}",
        weights=model.source.weights,
        limits=allowed,
        samples=len(given),
        layers=layers,
        real_outputs=True,
    )


class _Deployed:
    """The bundle, fed in the model's own order of axes; outputs as real numbers."""

    def __init__(self, model: DeployedModel, graph: Graph, engine: Engine | RemoteBundle) -> None:
        self._network, self._graph = BundleNetwork(engine), GraphInterface(graph)
        ports = {port.name: port for port in (*model.inputs, *model.outputs)}
        self._axes = {
            value.name: axes_of_model(ports[value.name], value) if value.name in ports and value.type.rank == 4 else ()
            for value in (*graph.inputs, *graph.outputs)
        }

    def __call__(self, sample: Sample) -> dict[str, Array]:
        turned = {
            name: array.transpose(np.argsort(self._axes[name])) if self._axes[name] else array
            for name, array in sample.items()
        }
        outputs = self._network.run(translated(turned, self._graph, self._network))
        return {
            name: (array.transpose(self._axes[name]) if self._axes[name] else array).copy()
            for name, array in outputs.items()
        }


# ------------------------------------------------------------------------------------------ what a deployment says
def _limits(model: DeployedModel, graph: Graph, precision: str, cosine: float | None, *names: str) -> ResourceLimits:
    """The limits of the kind of network, with the cosine similarity ``cosine``, that of the first of the names that has
    one in the file, or that of the kind."""
    quantised = model.quantize is not None or is_quantised(graph)
    usual = "quantized" if quantised else "cpu"
    stated = (float(model.thresholds[name]) for name in (*names, usual) if name in model.thresholds)
    return LIMITS[kind_of(quantised, precision)].changed(next(stated, None) if cosine is None else cosine)


def _runtime(model: DeployedModel) -> str:
    return own_runtime(model.source.file, model.source.weights)


def _no_reference(model: DeployedModel) -> str:
    """Why there is nothing to compare with; "" if there is something."""
    if any(port.data for port in model.outputs):
        return ""
    if model.source.file.lower().startswith(ADDRESSES):
        return "the model is at an address: give a file, or recorded outputs"
    try:
        name = _runtime(model)
    except InputError as error:
        return str(error)
    return "" if PEERS[name].installed else f"{name} is not installed: pip install {PEERS[name].package}"


def _samples(model: DeployedModel, graph: Graph, seed: int) -> list[Sample]:
    """Every file of an input's data is a sample."""
    ports = {port.name: port for port in model.inputs}
    count = max((len(port.data) for port in model.inputs), default=0) or SAMPLES
    rng = np.random.default_rng(seed)
    columns = {v.name: _column(v, ports.get(v.name, ModelPort(v.name)), count, rng) for v in graph.inputs}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _column(value: Value, port: ModelPort, count: int, rng: np.random.Generator) -> list[Array]:
    if port.data:
        if len(port.data) != count:
            raise InputError(f"input '{port.name}' has {len(port.data)} files of data, another input {count}")
        return [_fitted(file, port, value).astype(value.type.dtype.numpy) for file in port.data]
    return [random_array(value.type, rng, port.range) for _ in range(count)]


def _fitted(file: str, port: ModelPort, value: Value) -> Array:
    """The array of a file in the model's order of axes."""
    array, dims = load_array(file), value.type.dims
    axes = axes_of_model(port, value) if len(dims) == 4 else ()
    stored = tuple(dims[axis] for axis in np.argsort(axes)) if axes else dims
    if array.size != value.type.size:
        raise InputError(f"{file}: it has {array.size} elements, but '{port.name}' has the shape {list(stored)}")
    shaped = array.reshape(stored)
    return shaped.transpose(axes) if axes else shaped


def _recorded(model: DeployedModel, graph: Graph) -> dict[str, Array] | None:
    ports = {port.name: port for port in model.outputs if port.data}
    if not ports:
        return None
    if missing := [value.name for value in graph.outputs if value.name not in ports]:
        raise InputError(f"output '{missing[0]}' has no recorded data, but another output has")
    return {v.name: np.stack([_fitted(f, ports[v.name], v) for f in ports[v.name].data]) for v in graph.outputs}
