"""Noise of tensors as tables for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tenon.cli.console import console, table
from tenon.tools.quantization import Noise


def print_noise(title: str, rows: Sequence[Noise]) -> None:
    """A table of tensors."""
    shown = table(title, "SQNR, dB", "cosine", "shift of the mean", "saturated", right=(1, 2, 3, 4))
    for row in rows:
        shown.add_row(
            row.name, f"{row.sqnr:.1f}", f"{row.cosine:.5f}", f"{row.shift:+.4f}", f"{100 * row.saturated:.3f} %"
        )
    console.print(shown)


def without_infinity(report: Any) -> dict[str, Any]:
    """A dataclass as JSON has it: numbers that are not finite become null."""
    values: dict[str, Any] = _finite(asdict(report))
    return values


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
