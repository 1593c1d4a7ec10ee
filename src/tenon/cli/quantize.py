"""``tenon quantize``: post-training quantisation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import tenon
from tenon.atomic_write import write
from tenon.cli.console import console, print_json, size, stages
from tenon.cli.model_source import Source
from tenon.cli.noise_page import agreement_text, decibels, page
from tenon.cli.noise_table import print_noise, without_infinity
from tenon.errors import InputError
from tenon.quantization import Report

WORST = 5
"""Tensors that are printed."""


def quantize_model(
    source: Source, out: Path, settings: Mapping[str, Any], report: Path | None, pareto: Path | None,
    ranges: tuple[Path, str] | None = None, *, as_json: bool,
) -> None:  # fmt: skip
    """Quantise, save, and write and print the report; ``ranges`` are a file for those of tensors, and its format."""
    if pareto is not None and settings["min_sqnr"] is None and settings["max_drop"] is None:
        raise InputError("--pareto shows what a search tried: give --min-sqnr or --max-drop too")
    began = perf_counter()
    with stages(f"quantising {source.name}") as progress:
        graph = source.load(progress)
        made = tenon.quantize(graph, step=lambda what, done, total: progress(f"{what} {done}/{total}"), **settings)
        progress("write")
        made.save(out)
        if ranges is not None:
            made.save_ranges(*ranges)
    found = without_infinity(made.report)
    if report is not None:
        text = (
            _page(source.name, made.report, found) if report.suffix == ".html" else json.dumps(found, indent=2) + "\n"
        )
        write(report, text, "--report")
    if pareto is not None:
        from tenon.cli.pareto_page import pareto_page

        write(pareto, pareto_page(source.name, made.report, _command(source, out, settings)), "--pareto")
    if as_json:
        return print_json(found)
    console.print(f"{out}  {size(out.stat().st_size)} in {perf_counter() - began:.1f} s", markup=False)
    return _print(made.report)


def _command(source: Source, out: Path, settings: Mapping[str, Any]) -> str:
    """The command without a contract: layers to leave in float follow."""
    words = ["tenon", "quantize", source.model, "--data", str(settings["data"]), "-o", str(out)]
    for name in ("samples", "seed", "scheme", "method", "rounding"):
        words += [f"--{name}", str(settings[name])]
    for option in ("exclude", "int16", "fp16"):
        for name in settings[option]:
            words += [f"--{option}", name]
    return shlex.join(words)


def _print(report: Report) -> None:
    console.print(f"scheme {report.scheme}, ranges by {report.method}", markup=False)
    for name, gain in (report.repairs | report.methods).items():
        kept = "  (kept)" if name in (*report.applied, report.method) else ""
        console.print(f"{name or 'as calibrated'}: {gain:.1f} dB{kept}", markup=False)
    if report.wide:
        console.print(f"in 16 bits: {', '.join(report.wide)}", markup=False)
    if report.fp16:
        console.print(f"in fp16 (compile with --precision fp16): {', '.join(report.fp16)}", markup=False)
    if report.floats:
        console.print(f"in float: {', '.join(report.floats)}", markup=False)
    if report.agreement is not None:
        console.print(agreement_text(report.agreement, report.agreement_error, report.samples), markup=False)
    print_noise("output", report.outputs)
    print_noise("worst tensors", sorted(report.tensors, key=lambda noise: noise.sqnr)[:WORST])


def _page(name: str, report: Report, data: Mapping[str, Any]) -> str:
    cards = [
        (
            decibels(min((each.sqnr for each in report.outputs), default=float("nan"))),
            "SQNR of the outputs before softmax",
        ),
        (report.scheme, "scheme"),
        (report.method, "ranges of activations"),
        (", ".join(report.applied) or "none", "repairs"),
    ]
    if report.agreement is not None and report.agreement_error is not None:
        share = f"{100 * report.agreement:.1f} +- {100 * report.agreement_error:.1f} %"
        cards.insert(1, (share, "same largest output as in float"))
    return page(
        f"{name}: quantisation", f"{report.samples} samples; in float: {', '.join(report.floats) or 'no product'}; "
        f"in 16 bits: {', '.join(report.wide) or 'no product'}; in fp16: {', '.join(report.fp16) or 'no product'}",
        cards, {"Outputs": report.outputs, "Tensors": report.tensors}, report.weights,
        report.repairs | report.methods, data,
    )  # fmt: skip
