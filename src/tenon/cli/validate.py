"""``tenon validate``: a compiled model, or a bundle, beside its source framework or recorded outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tenon.cli.console import console, note, print_json, stages, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, note_device, open_engine_or_device
from tenon.cli.noise_table import print_noise, without_infinity
from tenon.errors import InputError
from tenon.network.graph.bind import with_open_batches
from tenon.network.graph.graph import Array
from tenon.network.ops.traits import is_quantised
from tenon.options import Options
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device import RemoteBundle, ResidentNetwork
from tenon.tools.deployment import ModelValidation, read_deployment, validate_deployment
from tenon.tools.deployment.layers import DIFFERS, CompiledLayers, LayerComparison
from tenon.tools.deployment.limits import LIMITS, kind_of
from tenon.tools.deployment.validate import (
    OutputCheck,
    Validation,
    is_quantised_bundle,
    own_runtime,
    reference,
    validate,
)
from tenon.tools.quantization.comparison import interface_graph
from tenon.tools.quantization.samples import Sample, random_samples

WORST = 10
"""Layers that are printed."""


def validate_model(
    source: ModelArgument,
    options: Mapping[str, Any],
    data: str | None,
    against: str | None,
    expected: Path | None,
    settings: Mapping[str, Any],
    limits: tuple[float | None, float | None, float | None],
    where: DeviceChoice = HERE,
    *,
    as_json: bool,
) -> None:
    """Print the comparison, with the model's own framework where no reference is named; ``limits`` replace the usual
    ones (``Limits.changed``).  Raises InputError if an output is beyond one."""
    if data is None and expected is not None:
        raise InputError("--data is missing: recorded outputs are those of samples that are given")
    if source.bundle:
        _check_bundle_reference(source, against, layers=settings["layers"])
    graph = None if source.bundle else with_open_batches(source.load())
    if against is None and expected is None and not source.bundle:
        against = own_runtime(source.model, source.weights)
    known = None if against is None else reference(against, source.model)
    with where.connected(options) as (runner, chosen), open_engine_or_device(source, chosen, runner=runner) as engine:

        def run(sample: Sample) -> Mapping[str, Array]:
            return engine.run([sample])[0] if isinstance(engine, RemoteBundle) else engine.run(sample)

        quantised = is_quantised_bundle(engine.manifest) if graph is None else is_quantised(graph)
        if graph is None:
            precision = str(engine.manifest.options.get("precision"))
        else:
            precision = Options.from_environment(precision=chosen.get("precision")).precision
        if settings["layers"] and isinstance(runner, ResidentNetwork):
            raise InputError(f"--layers: no effect: {runner.name} has one network in its firmware")

        def inside() -> CompiledLayers | None:
            open_on = None if runner is None else partial(RemoteBundle, runner=runner)
            return None if graph is None else CompiledLayers(graph, Options.from_environment(**chosen), open_on)

        network = graph or interface_graph(engine.manifest)
        if data is None:
            note(f"{settings['samples']} samples of random numbers are compared (--data gives others)")
        compared = partial(
            validate,
            network,
            run,
            random_samples(network, settings["samples"], settings["seed"]) if data is None else data,
            against=known,
            expected=expected,
            limits=LIMITS[kind_of(quantised, precision)].changed(*limits),
        )
        validation = compared(**{**settings, "layers": inside() if settings["layers"] else None})
        if isinstance(engine, Engine):
            note_device(engine)
            if engine.on_device and not validation.passed and validation.inside is None and known is not None:
                validation = compared(**{**settings, "layers": inside()})
    if as_json:
        print_json({**without_infinity(validation), "passed": validation.passed})
    else:
        _print(validation)
    if not validation.passed:
        raise InputError(f"{source.model}: {_difference(validation)}")


def _check_bundle_reference(source: ModelArgument, against: str | None, *, layers: bool) -> None:
    """A bundle does not know its model's file.  Raises InputError if that, or its layers, would be needed."""
    if against is not None and ":" not in against:
        raise InputError(f"{source.model} is a bundle: name the model's file, too: --against {against}:FILE")
    if layers:
        raise InputError(f"{source.model}: a bundle shows its outputs only: give the model, or leave out --layers")


def validate_config(
    config: Path, settings: Mapping[str, Any], target: str | None, where: DeviceChoice = HERE, *, as_json: bool
) -> None:
    """Validate the models of a deployment file.  Raises InputError if one differs, and if none could be compared."""
    deployment = read_deployment(config)
    with where.connected({"target": target}) as (runner, chosen), stages(f"validating {config.name}") as progress:
        validations = validate_deployment(
            deployment,
            **settings,
            targets=[chosen["target"]] if chosen["target"] else [],
            device=where.name or "",
            open_on=None if runner is None else partial(RemoteBundle, runner=runner),
            progress=progress,
        )
    if as_json:
        print_json({"models": [without_infinity(each) for each in validations]})
    else:
        print_validations(validations)
    check_validations(str(config), validations)


def print_validations(validations: Sequence[ModelValidation]) -> None:
    """One table of all outputs, then what was skipped, and accuracies."""
    shown = table("model", "target", "output", "cosine", "SQNR, dB", "largest error", "", right=(3, 4, 5))
    for each in validations:
        for check in each.validation.outputs if each.validation else ():
            shown.add_row(each.model, each.target, check.name, *_figures(check))
    if any(each.validation for each in validations):
        console.print(shown)
    for each in validations:
        if each.validation is not None and each.validation.inside is not None:
            console.print(f"{each.model} on {each.target}:", markup=False)
            print_layers(each.validation.inside)
        if each.skipped:
            note(f"{each.model} on {each.target} was not compared: {each.skipped}")
        for script, accuracy in (each.accuracy or {}).items():
            results = ", ".join(f"{name} {100 * value:.2f} %" for name, value in accuracy.results.items())
            console.print(f"{each.model} on {each.target}, {script}: {results or 'done'}", markup=False, soft_wrap=True)


def check_validations(where: str, validations: Sequence[ModelValidation]) -> None:
    """Raises InputError if a model differs, and if nothing was compared."""
    if not any(each.validation or each.accuracy for each in validations):
        raise InputError(
            f"{where}: nothing was compared: {validations[0].skipped if validations else 'there are no models'}"
        )
    for each in validations:
        if each.validation is not None and not each.validation.passed:
            raise InputError(f"{where}: {each.model} on {each.target}: {_difference(each.validation)}")


def _figures(check: OutputCheck) -> tuple[str, str, str, str]:
    return f"{check.cosine:.6f}", f"{check.sqnr:.1f}", f"{check.error:.2e}", check.verdict


def _difference(validation: Validation) -> str:
    wrong = next(check for check in validation.outputs if not check.passed)
    first = ""
    if validation.inside is not None:
        wrong_layer = validation.inside.first_wrong
        first = "; compiled with its layers as outputs, it does not differ"
        if wrong_layer is not None:
            first = f"; the first layer that differs is '{wrong_layer.name}'"
    return f"output '{wrong.name}' differs from {validation.against}: {wrong.failure}{first}"


def _print(validation: Validation) -> None:
    shown = table("output", "cosine", "SQNR, dB", "largest error", "pixel error", "", right=(1, 2, 3, 4))
    for check in validation.outputs:
        *figures, verdict = _figures(check)
        pixels = "-" if check.pixel_error is None else f"{100 * check.pixel_error:.2f} %"
        shown.add_row(check.name, *figures, pixels, verdict)
    console.print(shown)
    console.print(f"{validation.samples} sample(s), against {validation.against}", markup=False, soft_wrap=True)
    if validation.inside is not None:
        print_layers(validation.inside)


def print_layers(comparison: LayerComparison) -> None:
    """The worst layers, and the first wrong one with excerpts of both tensors."""
    print_noise("worst layers", sorted(comparison.layers, key=lambda noise: noise.sqnr)[:WORST])
    console.print(f"{len(comparison.layers)} layer(s), against {comparison.against}", markup=False, soft_wrap=True)
    if comparison.divergence is None:
        return
    d = comparison.divergence
    shown = table("", "minimum", "maximum", "mean", "deviation", "elements from there on", right=(1, 2, 3, 4))
    for name, each in (("computed", d.got), ("expected", d.wanted)):
        statistics = (each.minimum, each.maximum, each.mean, each.deviation)
        shown.add_row(name, *(f"{n:.4g}" for n in statistics), " ".join(f"{n:.5g}" for n in each.elements))
    console.print(
        f"the first layer that differs is '{d.layer}', {list(d.shape)}: in sample {d.sample}, from {list(d.index)} on, "
        f"in {d.differing} of {d.size} elements by more than {100 * DIFFERS:.0f} % of the largest",
        markup=False,
        soft_wrap=True,
    )
    console.print(shown)
