"""What a deployment file asks for, whichever form it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Files = tuple[str, ...]
"""Paths or http(s) addresses."""


@dataclass(frozen=True)
class Port:
    """An input or output, by the model's name for it.  What is None or empty is as the model has it.

    ``shape`` is in the order of axes that ``format`` names; ``data`` are .npy files to validate with.
    """

    name: str
    shape: tuple[int, ...] | None = None
    type: str | None = None
    format: Literal["NHWC", "NCHW", "NONE"] | None = None
    range: tuple[float, float] | None = None
    data: Files = ()


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: a path or an http(s) address, and the SHA-256 that each file must have."""

    file: str
    sha256: str | None = None
    weights: str | None = None
    weights_sha256: str | None = None


@dataclass(frozen=True)
class DeployedModel:
    """One network to compile: a model, or a part of it, for some targets.

    ``options`` are fields of ``Options``; ``quantize`` are keyword arguments of ``tenon.quantize`` or None for a model
    that stays as it is; ``thresholds`` the least cosine similarity by kind of network ("cpu", "quantized") or by
    target; ``accuracy`` are scripts of MACE's; ``notes`` say which keys have no effect, and why.
    """

    name: str
    source: ModelSource
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    targets: tuple[str, ...] = ("host",)
    options: Mapping[str, Any] = field(default_factory=dict)
    quantize: Mapping[str, Any] | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    accuracy: Files = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deployment:
    """A deployment file: its path, the name of the whole, and the models in its order."""

    path: Path
    name: str
    models: tuple[DeployedModel, ...]
