"""Run the bundles of a deployment: on this machine, on an emulator, or where the caller says; and time them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tenon.errors import TenonError, prefixed
from tenon.machine.targets.host_cpu import runs_here
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.timing import Times, time_runs
from tenon.tools.deployment.base import Deployment
from tenon.tools.deployment.conversion import Progress, chosen_models, compiled, imported, options_of, quantized

Opener = Callable[[Bundle], Engine | RemoteBundle]
"""Where a bundle runs."""


@dataclass(frozen=True)
class ModelTimes:
    """The times of a model on a target, in ms; ``where`` is what ran it, an emulator if ``emulated``."""

    model: str
    target: str
    times: Times
    where: str
    emulated: bool


@contextmanager
def running(bundle: Bundle, open_on: Opener | None = None) -> Iterator[Engine | RemoteBundle]:
    """A bundle ready to run, by default on this machine if it executes the target's code, else on the target's
    emulator."""
    if open_on is not None:
        opened = open_on(bundle)
    else:
        opened = open_bundle(bundle) if runs_here(bundle.target.name) else RemoteBundle(bundle)
    with opened:
        yield opened


def time_deployment(
    deployment: Deployment,
    *,
    models: Sequence[str] = (),
    targets: Sequence[str] = (),
    rounds: int = 20,
    warmup: int = 3,
    open_on: Opener | None = None,
    progress: Progress = lambda stage: None,
) -> list[ModelTimes]:
    """Compile every model for every target and time ``rounds`` runs on random input.  Arguments and errors are those of
    ``validate_deployment``."""
    timings = []
    for model in chosen_models(deployment, models, targets, progress):
        try:
            graph = quantized(model, imported(model, progress), progress)
            for target in targets or model.targets:
                progress(f"{model.name}: run on {target}")
                with running(compiled(model, graph, options_of(model, graph, target)), open_on) as engine:
                    timings.append(_timed(model.name, target, engine, rounds, warmup))
        except TenonError as error:
            raise prefixed(error, model.name) from error
    return timings


def _timed(model: str, target: str, engine: Engine | RemoteBundle, rounds: int, warmup: int) -> ModelTimes:
    if isinstance(engine, RemoteBundle):
        return ModelTimes(model, target, engine.time(rounds, warmup), engine.where, engine.emulated)
    return ModelTimes(model, target, time_runs(engine, rounds, warmup)[1], "this machine", False)
