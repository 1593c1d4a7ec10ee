"""``tenon quantize``: post-training quantisation."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import tenon
from tenon.atomic_write import write
from tenon.cli.console import console, print_json, size, stages, table
from tenon.cli.model_source import Source
from tenon.quantization import Noise, Report

WORST = 5
"""Tensors that are printed."""


def quantize_model(
    source: Source, out: Path, settings: Mapping[str, Any], report: Path | None, *, as_json: bool
) -> None:
    began = perf_counter()
    with stages(f"quantising {source.name}") as progress:
        graph = source.load(progress)
        made = tenon.quantize(graph, step=lambda what, done, total: progress(f"{what} {done}/{total}"), **settings)
        progress("write")
        made.save(out)
    found = _plain(made.report)
    if report is not None:
        write(report, json.dumps(found, indent=2) + "\n", "--report")
    if as_json:
        return print_json(found)
    console.print(f"{out}  {size(out.stat().st_size)} in {perf_counter() - began:.1f} s", markup=False)
    return _print(made.report)


def _plain(report: Report) -> dict[str, Any]:
    """As JSON has it, which has no infinity."""
    found: dict[str, Any] = asdict(report)
    for kind in ("outputs", "tensors"):
        for noise in found[kind]:
            noise["sqnr"] = noise["sqnr"] if math.isfinite(noise["sqnr"]) else None
    return found


def _print(report: Report) -> None:
    console.print(f"scheme {report.scheme}, ranges by {report.method}", markup=False)
    for name, gain in report.repairs.items():
        console.print(f"{name or 'as calibrated'}: {gain:.1f} dB", markup=False)
    if report.agreement is not None:
        console.print(f"same largest output on {100 * report.agreement:.1f} % of {report.samples} samples")
    _table("output", report.outputs)
    _table("worst tensors", sorted(report.tensors, key=lambda noise: noise.sqnr)[:WORST])


def _table(title: str, rows: tuple[Noise, ...] | list[Noise]) -> None:
    shown = table(title, "SQNR, dB", "cosine", "shift of the mean", right=(1, 2, 3))
    for row in rows:
        shown.add_row(row.name, f"{row.sqnr:.1f}", f"{row.cosine:.5f}", f"{row.shift:+.4f}")
    console.print(shown)
