"""A program of ATen calls, however it was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenon.network.graph.graph import Array

Shape = Sequence[int | str]


@dataclass(frozen=True)
class ProgramRef:
    """A tensor among the arguments of a call."""

    name: str


@dataclass(frozen=True)
class PytorchCall:
    """One operator: ``conv2d`` of ATen, ``space.name`` of others.  ``arguments`` are by name, or by number where they
    have none; ``results`` has a name for each result that is read
    and "" for the others; ``shape`` and ``kind`` are those of the first."""

    operator: str
    name: str
    arguments: Mapping[str, Any]
    results: Sequence[str]
    shape: Shape
    kind: str


@dataclass(frozen=True)
class PytorchGraph:
    """A graph among the arguments of a call: names of its inputs, its calls, and what it gives."""

    inputs: Sequence[str]
    calls: Sequence[PytorchCall]
    outputs: Sequence[Any]


@dataclass
class PytorchProgram:
    """Inputs with their shapes and element types, constants by name, calls in an order in which they can run."""

    name: str
    inputs: dict[str, tuple[Shape, str]] = field(default_factory=dict)
    constants: dict[str, Callable[[], Array]] = field(default_factory=dict)
    calls: list[PytorchCall] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Buffers, which are among the constants, and the result that each holds after a run."""
    remedy: str = ""
    """A remedy if an operator is not known."""


def operator_name(target: str) -> str:
    """``conv2d`` of ``torch.ops.aten.conv2d.default``, ``space.name`` of those of other spaces."""
    path = target.removeprefix("torch.ops.").split(".")
    path = path[:-1] if len(path) > 2 else path
    return ".".join(path).removeprefix("aten.")
