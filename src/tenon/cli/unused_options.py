"""Options that would have no effect are errors: a repeated one, of which only the last would count, and one that does
not apply to what the command works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tenon.errors import InputError

NAMES = {
    "optimize": "-O",
    "begin": "--from",
    "limits": "--max",
    "end": "--to",
    "inputs": "--from",
    "outputs": "--to",
    "bindings": "--shape",
    "values": "--value",
    "data_formats": "--data-format",
    "data_types": "--data-type",
    "ranges": "--range",
    "states": "--state",
}
"""Names on the command line of the fields that are called otherwise."""


def option_name(field: str) -> str:
    """The name on the command line of a field of an option group or of ``Source``."""
    return NAMES.get(field, f"--{field.replace('_', '-')}")


def refuse(options: Mapping[str, Any], why: str, allowed: Iterable[str] = ()) -> None:
    """Raises InputError that names every option that is set, by the fields of option groups, except ``allowed``."""
    unset: tuple[object, ...] = (None, False, (), {}, [], "", ({},))
    given = [
        name
        for name, value in options.items()
        if name not in allowed and not any(value is u or value == u for u in unset)
    ]
    if given:
        listed = ", ".join(sorted(option_name(name) for name in given))
        raise InputError(f"{listed}: no effect: {why}")
