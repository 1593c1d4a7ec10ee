"""``tenon optimize``: write an optimised model file."""

from __future__ import annotations

from pathlib import Path

from tenon.cli.console import console, print_json, size, stages
from tenon.cli.model_source import ModelArgument
from tenon.pipeline import rewrite


def rewrite_model(
    source: ModelArgument, out: Path | None, config: Path | None, *, without_weights: bool, verify: bool, as_json: bool
) -> None:
    with stages(f"optimising {source.name}"):
        files, log = rewrite(
            source.model,
            out,
            weights=source.weights,
            shapes=source.shapes,
            values=source.values,
            max=source.limits,
            inputs=source.inputs,
            outputs=source.outputs,
            config=config,
            without_weights=without_weights,
            verify=verify,
        )
    if as_json:
        return print_json({"files": [str(path) for path in files], "log": log})
    for line in log:
        console.print(line, markup=False)
    for path in files:
        console.print(f"{path}  {size(path.stat().st_size)}", markup=False, soft_wrap=True)
    return None
