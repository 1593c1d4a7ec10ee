"""``tenon compare``: what two networks compute on the same samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenon.atomic_write import write
from tenon.cli.console import console, print_json
from tenon.cli.noise_page import agreement_text, decibels, page
from tenon.cli.noise_table import print_noise, without_infinity
from tenon.cli.unused_options import refuse
from tenon.tools.quantization.comparison import Comparison, compare, is_model

WORST = 10
"""Layers that are printed."""


def compare_networks(
    first: str, second: str, data: str, settings: Mapping[str, Any], report: Path | None, *, as_json: bool
) -> None:
    """Print the comparison, as tables or JSON, and write it to ``report``."""
    if not (is_model(first) or is_model(second)):
        refuse({"arithmetic": settings["arithmetic"]}, "neither is a model that is compiled here")
    comparison = compare(first, second, data, **settings)
    plain = without_infinity(comparison)
    if report is not None:
        text = (
            _page(first, second, comparison, plain) if report.suffix == ".html" else json.dumps(plain, indent=2) + "\n"
        )
        write(report, text, "--report")
    if as_json:
        return print_json(plain)
    if comparison.agreement is not None:
        console.print(
            agreement_text(comparison.agreement, comparison.agreement_error, comparison.samples), markup=False
        )
    print_noise("output", comparison.outputs)
    if comparison.tensors:
        print_noise("worst tensors", sorted(comparison.tensors, key=lambda noise: noise.sqnr)[:WORST])
    if comparison.unmatched:
        console.print(f"{len(comparison.unmatched)} tensors of the first have none of the same name in the second")
    return None


def _page(first: str, second: str, comparison: Comparison, plain: Mapping[str, Any]) -> str:
    names = [text if len(text) <= 60 else "..." + text[-57:] for text in (first, second)]
    cards = [(decibels(min(each.sqnr for each in comparison.outputs)), "SQNR of the outputs")]
    if comparison.agreement is not None:
        cards.append((f"{100 * comparison.agreement:.1f} %", "same largest output"))
    return page(
        f"{names[1]} beside {names[0]}",
        f"{comparison.samples} samples",
        cards,
        {"Outputs": comparison.outputs, "Tensors": comparison.tensors},
        data=plain,
    )
