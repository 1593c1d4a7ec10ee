"""``tenon tune``: measure the candidate algorithms of each layer and store the times in the tuning table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tenon.cli.console import console, duration, print_json, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, check_can_run, weighted
from tenon.cli.text_table import shortened
from tenon.cli.work_groups import check_groups, tune_groups
from tenon.machine.targets import find
from tenon.options import Options
from tenon.pipeline import tune
from tenon.tools.tune.search import LayerTimes

WORST = 10
"""Layers that are printed: those where the estimate is most wrong."""

_NAME = 24
"""Columns of the name of a layer."""


def tune_models(
    sources: Sequence[ModelArgument],
    options: Mapping[str, Any],
    threads: int,
    where: DeviceChoice = HERE,
    cluster: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Measure every model; an interrupt keeps the times measured so far."""
    runner, given = where.runner(options)
    groups = given.pop("gpu_parameters", None)
    chosen = Options.from_environment(**given)
    if runner is None:
        check_can_run(find(chosen.target))
    if groups is not None:
        check_groups(chosen, runner, groups)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results: dict[str, list[LayerTimes]] = {}
    with Progress(*columns, console=Console(stderr=True)) as shown:
        for source in sources:
            task = shown.add_task(source.name, total=None)

            def show(done: int, total: int, layer: str, task: Any = task) -> None:
                shown.update(task, completed=done, total=total)

            times = tune(
                weighted(source.load()), chosen, threads=threads, progress=show, cluster=cluster, runner=runner
            )
            results[source.name] = list(times)
            if groups is not None:
                tune_groups(weighted(source.load()), chosen, groups)
    if as_json:
        return print_json({"table": str(chosen.tuning), "models": {n: _summary(f) for n, f in results.items()}})
    for name, layers in results.items():
        if not layers:
            console.print(f"{name}: no layer has several algorithms to choose from", markup=False)
            continue
        summary = _summary(layers)
        best, estimated = summary["milliseconds"], summary["milliseconds"] * summary["excess"]
        console.print(
            f"{name}: {len(layers)} layers take {duration(best)}, {duration(estimated)} as estimated", markup=False
        )
        console.print(_table(sorted(layers, key=lambda layer: -layer.excess)[:WORST]), markup=False)
    if not any(results.values()) and groups is None:
        return None
    also = f", work groups in {groups}" if groups is not None else ""
    return console.print(f"kept in {chosen.tuning}{also}", markup=False, soft_wrap=True)


def _summary(layers: Sequence[LayerTimes]) -> dict[str, Any]:
    """``excess`` is the time of the estimate's choices over that of the best ones, for the whole model."""
    best = sum(f.count * f.best for f in layers)
    estimated = sum(f.count * f.seconds[f.estimated] for f in layers)
    mean = math.exp(sum(math.log(f.excess) for f in layers) / max(1, len(layers)))
    return {
        "milliseconds": 1e3 * best,
        "excess": estimated / best if best else 1.0,
        "mean_excess": mean,
        "layers": [
            {
                "layer": f.layer,
                "name": f.name,
                "op": f.op,
                "count": f.count,
                "estimated": f.estimated,
                "seconds": f.seconds,
            }
            for f in layers
        ],
    }


def _table(layers: Sequence[LayerTimes]) -> Table:
    """Layers by their names in the model; "x 3" behind that of the first of three equal ones."""
    rows = table("layer", "operator", "fastest", "us", "by estimate", "us", right=(3, 5))
    names = shortened([layer.name for layer in layers], _NAME)
    for layer, name in zip(layers, names, strict=True):
        best = min(layer.seconds, key=layer.seconds.__getitem__)
        estimated = "the same" if layer.estimated == best else layer.estimated
        rows.add_row(
            name + (f" x {layer.count}" if layer.count > 1 else ""),
            layer.op,
            best,
            f"{1e6 * layer.best:.0f}",
            estimated,
            f"{1e6 * layer.seconds[layer.estimated]:.0f}",
        )
    return rows
