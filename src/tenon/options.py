"""Every choice a user can make about a compilation: one frozen, validated value.

Environment variables are read here and nowhere else:

    TENON_TARGET    TENON_NAME    TENON_OPTIMIZE    TENON_EMIT (comma-separated)    TENON_VERIFY (0 or 1)
    TENON_PROFILE   0 or 1    TENON_THREADS    TENON_PRECISION
    TENON_CC        the C compiler to use instead of zig
    TENON_TUNING    the table of measured layers; else tuning.sqlite in the cache
    TENON_CACHE     where compiled objects are kept; else XDG_CACHE_HOME/tenon, else ~/.cache/tenon
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenon.errors import InputError

Emit = Literal["c", "header", "object", "weights", "library", "manifest", "exe"]
"""A part of a bundle on disk."""

EMIT: tuple[Emit, ...] = get_args(Emit)
"""Every part, in the order they are made."""

Precision = Literal["fp32", "bf16", "fp16"]
"""How exact numbers are in memory."""

THREADS = 8
"""The most threads that a bundle supports unless the user says otherwise."""

_VARIABLES = {
    "target": "TENON_TARGET",
    "precision": "TENON_PRECISION",
    "name": "TENON_NAME",
    "optimize": "TENON_OPTIMIZE",
    "emit": "TENON_EMIT",
    "verify": "TENON_VERIFY",
    "profile": "TENON_PROFILE",
    "threads": "TENON_THREADS",
    "compiler": "TENON_CC",
    "cache": "TENON_CACHE",
    "tuning": "TENON_TUNING",
}


def default_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where compiled objects are kept unless the user says otherwise."""
    home = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(home) / "tenon"


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a program that we start."""
    return {**os.environ, **changes}


class Options(BaseModel):
    """How to compile.  Unknown or invalid options raise InputError that lists every one of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = "host"
    """A target's name; "host" is the best one for this machine."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=64)
    """The entry point and the first part of every file name; None takes the model's file name."""

    optimize: int = Field(default=2, ge=0, le=2)
    """0 keeps the graph as imported, 1 cleans it up, 2 also folds and fuses."""

    precision: Precision = "fp32"
    """fp16 and bf16 store the weights of convolutions and matrix products in 16 bits; with bf16, a target that
    multiplies pairs of bf16 also computes convolutions in them.  Sums are f32 always."""

    winograd: Literal[0, 2, 4] = 4
    """The largest tile of Winograd's convolution: larger is faster and less exact, 0 turns it off."""

    strassen: Literal[0, 1, 2] = 2
    """How often Strassen's algorithm may halve a product of matrices, 0 for never."""

    max_winograd_error: float | None = Field(default=None, ge=0)
    """The largest error over the RMS of a layer's output that Winograd's algorithm may add."""

    max_weights: int | None = Field(default=None, ge=0)
    """The most bytes that all weights may take as packed; fast algorithms make them grow."""

    emit: tuple[Emit, ...] = ()
    """What a saved bundle holds; () is everything the target can have but the executable."""

    verify: bool = False
    """Check the graph after every pass."""

    profile: bool = False
    """Add a second entry point that reads a clock before the first kernel call and after each."""

    threads: int | None = Field(default=None, ge=1, le=256)
    """The most threads that the bundle can be run with; None is 8, or 1 where there is no operating system."""

    compiler: str | None = None
    """A gcc or clang, by name or path; None is the zig that comes with Tenon."""

    cache: Path = Field(default_factory=default_cache)
    """Compiled objects are kept here; it can be deleted at any time."""

    tuning: Path = Field(default_factory=lambda: default_cache() / "tuning.sqlite")
    """What ``tenon tune`` measured; used where it knows a layer."""

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise InputError(_explain(error)) from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Options:
        """Options from TENON_* variables; ``overrides`` that are not None win."""
        known = os.environ if environment is None else environment
        values: dict[str, Any] = {
            field: known[variable] for field, variable in _VARIABLES.items() if known.get(variable)
        }
        if "emit" in values:
            values["emit"] = tuple(part.strip() for part in values["emit"].split(","))
        values.setdefault("cache", default_cache(known))
        values.setdefault("tuning", Path(values["cache"]) / "tuning.sqlite")
        values.update({field: value for field, value in overrides.items() if value is not None})
        return cls(**values)


def _explain(error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False):
        field = str(item["loc"][0]) if item["loc"] else "options"
        if item["type"] == "extra_forbidden":
            problems.append(f"no option '{field}'; options: {', '.join(Options.model_fields)}")
        else:
            problems.append(f"option {field}={item['input']!r}: {item['msg']}")
    return "\n".join(problems)
