"""The lines that MACE's ``validate.py`` prints of a validation, which scripts read."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.cli.console import note
from tenon.tools.deployment.validate import OutputCheck
from tenon.tools.deployment.validate_deployment import ModelValidation

_MARGIN = 10
"""Blanks on either side of a text between lines of stars."""

_NOISE = 1e-15
"""Added to the power of the noise."""


def print_validations(validations: Sequence[ModelValidation]) -> None:
    """Two parts for each output: its figures, and whether it passed; on standard error what was skipped."""
    for each in validations:
        for check in each.validation.outputs if each.validation else ():
            print(figures(check))
            print(block(f"Similarity Test {'Passed' if check.passed else 'Failed'}"))
        if each.skipped:
            note(f"{each.model} on {each.target} was not compared: {each.skipped}")
        for script, accuracy in (each.accuracy or {}).items():
            results = ", ".join(f"{name} {100 * value:.2f} %" for name, value in accuracy.results.items())
            print(f"{each.model} on {each.target}, {script}: {results or 'done'}")


def figures(check: OutputCheck) -> str:
    """The line of an output; its signal-to-noise ratio is one of powers, not in decibels."""
    ratio = 1 / (10 ** (-check.sqnr / 10) + _NOISE)
    accuracy = 1.0 if check.pixel_error is None else 1 - check.pixel_error
    return (
        f"{check.name} MACE VS training platform similarity: {float(check.cosine)} , sqnr: {float(ratio)} , "
        f"pixel_accuracy: {float(accuracy)}"
    )


def block(text: str) -> str:
    """A text between lines of stars."""
    stars = "*" * (len(text) + 2 * _MARGIN)
    return f"{stars}\n{text.center(len(stars))}\n{stars}\n"
