"""The content of a deployment file, whichever form it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tenon.errors import InputError
from tenon.network.graph.size_range import Size

PLACES = (
    "model",
    "sha256",
    "weights",
    "weights_sha256",
    "inputs",
    "outputs",
    "tensors",
    "offload",
    "shapes",
    "input types",
    "output types",
    "quantize",
)
"""Keys of ``DeployedModel.places`` beside files."""

Files = tuple[str, ...]
"""Paths or http(s) addresses."""


def name_problem(name: str) -> str:
    """Why a model's name cannot be that of a folder for its bundles; "" if it can."""
    if name in ("", ".", "..") or name != name.strip() or any(c in '/\\:*?"<>|' or not c.isprintable() for c in name):
        return f"the model's name {name!r} is no plain name of a folder, in which its bundles are put"
    return ""


@dataclass(frozen=True)
class ModelPort:
    """An input or output, by the model's name for it.  What is None or empty is as the model has it.

    ``shape`` is in the order of axes that ``format`` names, and may have sizes that every run chooses; ``data`` are
    .npy files to validate with.
    """

    name: str
    shape: tuple[int | Size, ...] | None = None
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
    target; ``accuracy`` are scripts of MACE's; ``notes`` say which keys have no effect, and why.  ``needed`` are
    further files that the deployment names, and ``tensors`` tensors that the model has to have.  ``offload`` are
    devices that run parts of it where the target is this machine, and ``device_of`` assigns layers to them
    (``plugins.offload``).  ``places`` say where the deployment file has what, for messages: ``PLACES``, and files by
    their paths.

    Raises InputError for a name that leads out of the folder of the bundles.
    """

    name: str
    source: ModelSource
    inputs: tuple[ModelPort, ...] = ()
    outputs: tuple[ModelPort, ...] = ()
    targets: tuple[str, ...] = ("host",)
    options: Mapping[str, Any] = field(default_factory=dict)
    quantize: Mapping[str, Any] | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    accuracy: Files = ()
    notes: tuple[str, ...] = ()
    needed: Files = ()
    tensors: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    device_of: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    def at(self, *what: str) -> str:
        """The place of the first of these that the deployment file has, else the model's name."""
        return next((self.places[each] for each in what if each in self.places), self.name)

    def __post_init__(self) -> None:
        if problem := name_problem(self.name):
            raise InputError(problem)


@dataclass(frozen=True)
class Deployment:
    """A deployment file: its path, the name of the whole, and the models in its order."""

    path: Path
    name: str
    models: tuple[DeployedModel, ...]
