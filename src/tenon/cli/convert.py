"""``tenon convert``: the models of a deployment file to bundles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from tenon.cli.console import console, note, print_json, size, stages, table
from tenon.tools.deployment import Converted, Deployment, convert, read_deployment
from tenon.tools.deployment.conversion import check as check_deployment


def convert_deployment(
    config: Path, out: Path, models: Sequence[str], targets: Sequence[str], *, check: bool, as_json: bool
) -> None:
    began = perf_counter()
    deployment = read_deployment(config)
    with stages(f"converting {config.name}") as progress:
        if check:
            check_deployment(deployment, models=models, targets=targets, progress=progress)
            made = []
        else:
            made = convert(deployment, out, models=models, targets=targets, progress=progress)
    if as_json:
        return print_json(_plain(deployment, made))
    for model in deployment.models:
        for each in model.notes:
            note(f"{model.name}: {each}")
    if check:
        console.print(f"{config}: {len(deployment.models)} model(s), no problems", markup=False, soft_wrap=True)
        return None
    shown = table("model", "target", "weights", "peak RAM", "bundle", right=(2, 3))
    for row in made:
        memory = row.manifest.memory
        shown.add_row(row.model.name, row.target, size(memory.constant), size(memory.peak), f"{row.folder}/")
    console.print(shown)
    console.print(f"{len(made)} bundle(s) in {perf_counter() - began:.1f} s")
    return None


def _plain(deployment: Deployment, made: Sequence[Converted]) -> dict[str, Any]:
    bundles = [
        {"model": row.model.name, "target": row.target, "folder": str(row.folder), "manifest": row.manifest.json()}
        for row in made
    ]
    models = [asdict(model) for model in deployment.models]
    return {"name": deployment.name, "models": models, "bundles": bundles}
