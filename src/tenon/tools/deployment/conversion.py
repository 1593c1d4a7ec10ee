"""The bundles that a deployment asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from tenon.atomic_write import write
from tenon.compilation import runs_on_gpu
from tenon.errors import InputError, TenonError, prefixed
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.size_range import Size
from tenon.network.passes.io_adapters import data_format
from tenon.options import DataType, Options
from tenon.pipeline import compile, load
from tenon.runtime.bundle import Bundle, read_manifest
from tenon.runtime.bundle.manifest import Manifest
from tenon.runtime.bundle.names import identifier
from tenon.runtime.bundle.packages import engine_factory
from tenon.runtime.bundle.possible_parts import check_parts
from tenon.runtime.plugins.offload import offload_to
from tenon.runtime.plugins.target_device import takes_parts
from tenon.tools.deployment.base import DeployedModel, Deployment, ModelPort
from tenon.tools.deployment.files import fetch_models
from tenon.tools.quantization import quantize

Progress = Callable[[str], None]

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass(frozen=True)
class Converted:
    """A bundle that was made: of which model, for which target, where, and what is in it."""

    model: DeployedModel
    target: str
    folder: Path
    manifest: Manifest


def convert(
    deployment: Deployment,
    out: Path | str,
    *,
    models: Sequence[str] = (),
    targets: Sequence[str] = (),
    progress: Progress = lambda stage: None,
) -> list[Converted]:
    """Make a bundle of every model for every target, in ``out``/MODEL/TARGET.

    ``models`` selects some of the deployment's, ``targets`` replaces the targets that it names.  Raises InputError that
    lists all files that cannot be had before anything is compiled, and ModelError as ``tenon.compile`` does; bundles
    that are complete by then stay.  Several models in code for MACE's API get a common ``out``/mace_engine_factory.h.
    """
    chosen = chosen_models(deployment, models, targets, progress)
    for model in chosen:
        for target in targets or model.targets:
            check_parts(model.options.get("emit", ()), find(target))
    made = []
    for model in chosen:
        try:
            graph = quantized(model, imported(model, progress), progress)
            for target in targets or model.targets:
                progress(f"{model.name}: compile for {target}")
                bundle = compiled(model, graph, options_of(model, graph, target))
                folder = Path(out) / model.name / target
                bundle.save(folder, emit=bundle.parts_with(bundle.compilation.emit))
                made.append(Converted(model, target, folder, read_manifest(folder)))
        except TenonError as error:
            raise prefixed(error, model.name) from error
    in_code = dict.fromkeys(identifier(model.name) for model in chosen if "mace" in model.options.get("emit", ()))
    if len(in_code) > 1:
        write(Path(out) / "mace_engine_factory.h", engine_factory(tuple(in_code)))
    return made


def check(
    deployment: Deployment,
    *,
    models: Sequence[str] = (),
    targets: Sequence[str] = (),
    progress: Progress = lambda stage: None,
) -> None:
    """Import every model without compiling it.  Raises InputError that lists what is wrong with each."""
    problems = []
    for model in chosen_models(deployment, models, targets, progress):
        try:
            imported(model, progress)
        except TenonError as error:
            problems.append(f"{model.name}: {error}")
    if problems:
        raise InputError("\n".join(problems))


def chosen_models(
    deployment: Deployment, models: Sequence[str], targets: Sequence[str], progress: Progress
) -> list[DeployedModel]:
    """The models of these names (or all), with all their files at hand.

    Raises InputError for names that are not known, and one that lists all files that cannot be had.
    """
    if unknown := sorted(set(models) - {model.name for model in deployment.models}):
        names = ", ".join(model.name for model in deployment.models)
        raise InputError(f"{deployment.path}: there is no model '{unknown[0]}': it has {names}")
    chosen = [model for model in deployment.models if not models or model.name in models]
    for name in dict.fromkeys(name for model in chosen for name in targets or model.targets):
        find(name)  # raises InputError for a name that is none
    fetch_models(chosen, progress)
    return chosen


def imported(model: DeployedModel, progress: Progress) -> Graph:
    """The model's graph with the shapes that the deployment gives its inputs."""
    progress(f"{model.name}: import")
    source, inputs, outputs = model.source, _names(model.inputs), _names(model.outputs)
    if model.tensors:  # raises for those that the model does not have
        with placed(model, model.tensors):
            load(source.file, weights=source.weights, inputs=inputs, outputs=model.tensors)
    with placed(model):
        graph = load(source.file, weights=source.weights, inputs=inputs, outputs=outputs)
    if shapes := _shapes(model, graph):
        with placed(model, "shapes"):
            graph = load(source.file, weights=source.weights, inputs=inputs, outputs=outputs, shapes=shapes)
    return graph


@contextmanager
def placed(model: DeployedModel, what: str | Sequence[str] = ()) -> Iterator[None]:
    """A context manager that says of errors where the deployment file has what is wrong: ``what`` of ``PLACES``, or
    names of tensors or none, in which case it is what the error names, else the model."""
    try:
        yield
    except TenonError as error:
        place = what if isinstance(what, str) else _named_by(model, what, str(error))
        if place not in model.places:
            raise
        raise prefixed(error, model.places[place]) from error


def _named_by(model: DeployedModel, tensors: Sequence[str], error: str) -> str:
    """The entry of ``PLACES`` that names the tensor that an error is about."""
    names = {
        "inputs": [port.name for port in model.inputs],
        "outputs": [port.name for port in model.outputs],
        "tensors": tensors,
    }
    if "no tensor is called" not in error:
        return "model"
    return next((place for place, known in names.items() if any(f"'{name}'" in error for name in known)), "model")


def quantized(model: DeployedModel, graph: Graph, progress: Progress) -> Graph:
    """The graph, quantised if the deployment asks for it."""
    if model.quantize is None:
        return graph

    def step(what: str, at: int, total: int) -> None:
        progress(f"{model.name}: {what} {at}/{total}")

    with placed(model, "quantize"):
        return quantize(graph, preprocess=model.options.get("preprocess"), step=step, **model.quantize).graph


def _names(ports: Sequence[ModelPort]) -> tuple[str, ...] | None:
    return tuple(port.name for port in ports) or None


def _shapes(model: DeployedModel, graph: Graph) -> dict[str, tuple[int | Size, ...]]:
    """The shapes of inputs that differ from the model's, in its own order of axes."""
    known = {value.name: value for value in graph.inputs}
    shapes = {}
    for port in model.inputs:
        if port.shape is None or port.name not in known:
            continue
        value = known[port.name]
        perm = axes_of_model(port, value) if len(port.shape) == 4 else ()
        perm = perm or tuple(range(len(port.shape)))
        shape = tuple(port.shape[axis] for axis in perm)
        if shape != value.type.shape:
            shapes[port.name] = shape
    return shapes


def axes_of_model(port: ModelPort, value: Value) -> tuple[int, ...]:
    """The permutation from the order of axes that the deployment names to the model's, () for none."""
    if port.format not in ("NHWC", "NCHW") or port.format == (own := data_format(value)):
        return ()
    return TO_NCHW if own == "NCHW" else TO_NHWC


def options_of(model: DeployedModel, graph: Graph, target: str) -> Options:
    """The options of a compilation for a target."""
    ports = (*model.inputs, *model.outputs)
    images = {v.name for v in (*graph.inputs, *graph.outputs) if v.type.rank == 4}
    settings: dict[str, Any] = {
        "target": target,
        "data_formats": {p.name: p.format for p in ports if p.format not in (None, "NONE") and p.name in images},
        "data_types": {p.name: _type(model, p) for p in ports if p.type is not None},
        "ranges": {p.name: p.range for p in model.inputs if p.range is not None},
        **model.options,
    }
    return Options.from_environment(name=identifier(model.name), **settings)


def compiled(model: DeployedModel, graph: Graph, options: Options) -> Bundle:
    """The bundle, parts of which run on the deployment's devices if it is for this machine.  Options of GPUs are for
    these, and for targets that are GPUs.  Raises ModelError as ``tenon.compile`` does, and InputError for a device that
    cannot be used."""
    chosen = options if runs_on_gpu(find(options.target)) else replace(options, gpu={})
    if not any(takes_parts(device, options.target) for device in model.offload):
        return compile(graph, chosen)
    with placed(model, "offload"):
        return compile(graph, chosen, rewrite=offload_to(model.offload, model.device_of, options.gpu))


def _type(model: DeployedModel, port: ModelPort) -> DataType:
    for known in get_args(DataType):
        if port.type == known:
            return cast(DataType, known)
    with placed(model, "input types" if port in model.inputs else "output types"):
        raise InputError(f"'{port.name}': there is no element type '{port.type}': use {', '.join(get_args(DataType))}")
