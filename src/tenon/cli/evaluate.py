"""``tenon evaluate``: accuracy on samples whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon.cli.console import console, print_json, stages, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, Threads, compiled, open_engine_or_device
from tenon.cli.noise_table import without_infinity
from tenon.errors import InputError
from tenon.tools.deployment.evaluation import Accuracy, evaluate


def evaluate_model(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    settings: Mapping[str, Any],
    where: DeviceChoice = HERE,
    *,
    as_json: bool,
) -> None:
    """Print the results, as a table or JSON."""
    if settings.get("cluster") is not None:
        if where != HERE:
            raise InputError("--cluster and --device exclude each other: a device runs one program at a time")
        with stages(f"evaluating {source.name}") as progress:
            bundle = compiled(source, options, progress)
            accuracy = evaluate(bundle, step=lambda done: progress(f"sample {done}"), **settings)
        return _print(accuracy, as_json=as_json)
    with (
        where.connected(options) as (runner, chosen),
        open_engine_or_device(source, chosen, threads, runner=runner) as engine,
        stages(f"evaluating {source.name}") as progress,
    ):
        accuracy = evaluate(engine, step=lambda done: progress(f"sample {done}"), **settings)
    return _print(accuracy, as_json=as_json)


def _print(accuracy: Accuracy, *, as_json: bool) -> None:
    if as_json:
        return print_json(without_infinity(accuracy))
    shown = table("metric", "%", "standard error", right=(1, 2))
    for name, value in accuracy.results.items():
        error = f"{100 * accuracy.errors[name]:.2f}" if name in accuracy.errors else ""
        shown.add_row(name, f"{100 * value:.2f}", error)
    console.print(shown)
    console.print(f"{accuracy.samples} sample(s)", markup=False)
    return None
