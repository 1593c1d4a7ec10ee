"""``tenon validate``: a compiled model beside its source framework or recorded outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenon.cli.console import console, print_json, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import Source, open_engine_or_device
from tenon.cli.noise_table import print_noise, without_infinity
from tenon.deployment.validate import Validation, reference, validate
from tenon.engine.device import Device
from tenon.errors import InputError
from tenon.ir.graph import Array
from tenon.quantization.samples import Sample

WORST = 10
"""Layers that are printed."""


def validate_model(
    source: Source,
    options: Mapping[str, Any],
    data: str,
    against: str | None,
    expected: Path | None,
    settings: Mapping[str, Any],
    where: DeviceChoice = HERE,
    *,
    as_json: bool,
) -> None:
    """Print the comparison.  Raises InputError if an output is below the threshold."""
    if source.bundle:
        raise InputError(f"{source.model}: give the model; bundles are compared by 'tenon compare'")
    graph = source.load()
    known = None if against is None else reference(against, source.model)
    with where.connected(options) as (runner, chosen), open_engine_or_device(source, chosen, runner=runner) as engine:

        def run(sample: Sample) -> Mapping[str, Array]:
            return engine.run([sample])[0] if isinstance(engine, Device) else engine.run(sample)

        found = validate(
            graph,
            run,
            data,
            against=known,
            expected=expected,
            **settings,
        )
    if as_json:
        print_json({**without_infinity(found), "passed": found.passed})
    else:
        _print(found)
    if not found.passed:
        wrong = next(check for check in found.outputs if not check.passed)
        first = f"; the first layer that differs is '{found.first_wrong.name}'" if found.first_wrong else ""
        raise InputError(
            f"{source.model}: output '{wrong.name}' differs from {found.against}: cosine similarity "
            f"{wrong.cosine:.6f}, at least {wrong.threshold} is required{first}"
        )


def _print(found: Validation) -> None:
    shown = table("output", "cosine", "SQNR, dB", "largest error", "", right=(1, 2, 3))
    for check in found.outputs:
        verdict = "passed" if check.passed else f"below {check.threshold}"
        shown.add_row(check.name, f"{check.cosine:.6f}", f"{check.sqnr:.1f}", f"{check.error:.2e}", verdict)
    console.print(shown)
    console.print(f"{found.samples} sample(s), against {found.against}", markup=False, soft_wrap=True)
    if found.layers:
        print_noise("worst layers", sorted(found.layers, key=lambda noise: noise.sqnr)[:WORST])
