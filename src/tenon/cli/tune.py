"""``tenon tune``: measure the candidate algorithms of each layer and store the times in the tuning table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tenon.cli.console import console, print_json, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, weighted
from tenon.options import Options
from tenon.pipeline import tune
from tenon.tools.tune.search import LayerTimes


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
    chosen = Options.from_environment(**given)
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
    if as_json:
        return print_json({"table": str(chosen.tuning), "models": {n: _summary(f) for n, f in results.items()}})
    for name, layers in results.items():
        summary = _summary(layers)
        console.print(
            f"{name}: {len(layers)} layers, {summary['milliseconds']:.2f} ms tuned; the estimate alone is "
            f"{100 * (summary['excess'] - 1):.1f} % above",
            markup=False,
        )
        rows = table("layer", "best", "us", "estimate's choice", "us", right=(2, 4))
        worst = sorted(layers, key=lambda f: -f.excess)[:10]
        for f in worst:
            best = min(f.seconds, key=f.seconds.__getitem__)
            rows.add_row(
                _short(f.layer), best, f"{1e6 * f.best:.0f}", f.estimated, f"{1e6 * f.seconds[f.estimated]:.0f}"
            )
        console.print(rows, markup=False)
    return console.print(f"kept in {chosen.tuning}", markup=False)


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
            {"layer": f.layer, "count": f.count, "estimated": f.estimated, "seconds": f.seconds} for f in layers
        ],
    }


def _short(layer: str) -> str:
    """The operator and the shapes of its input and result."""
    head, _, result = layer.partition(" -> ")
    name, _, types = head.partition("](")[0].partition("(f32")
    return f"{name.split('(')[0]} f32{types.split(',  ')[0].split('], ')[0]}] -> {result}"
