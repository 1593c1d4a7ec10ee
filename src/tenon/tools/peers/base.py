"""The interface of a network to its caller, whatever runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.network.graph.types import TensorType

Feeds = Mapping[str, Array]
Scale = tuple[float, int]
"""Scale and zero point of a tensor of integers that stand for real numbers."""


class Interface(Protocol):
    """``inputs`` have names, types and perhaps scales; ``outputs`` are names in order."""

    @property
    def inputs(self) -> Sequence[tuple[str, TensorType, Scale | None]]: ...

    @property
    def outputs(self) -> Sequence[str]: ...


class Network(Interface, Protocol):
    """A network that is compared."""

    def tensors(self) -> dict[str, int]:
        """Names of tensors inside, and their numbers of elements; nothing where they cannot be read."""

    def run(self, sample: Feeds) -> dict[str, Array]:
        """Outputs and the tensors inside that were asked for, as real numbers; the next run may overwrite them."""

    def ask(self, names: Sequence[str]) -> None:
        """Let ``run`` give these tensors too."""

    def close(self) -> None: ...


class OutputsOnly:
    """Part of a network whose tensors inside are not read."""

    def tensors(self) -> dict[str, int]:
        return {}

    def ask(self, names: Sequence[str]) -> None:
        assert not names

    def close(self) -> None:
        pass


def order_of(mine: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """For each of ``mine`` the index of its counterpart: that of the same name if all have one, else in their order."""
    if sorted(mine) == sorted(theirs):
        return [list(theirs).index(name) for name in mine]
    return list(range(len(mine)))


def real(array: Array, scale: Scale | None) -> Array:
    """The real numbers that integers represent."""
    return array if scale is None else (array.astype(np.float32) - scale[1]) * np.float32(scale[0])


def first_module(*names: str) -> Any:
    """The first of these modules that is installed.  Raises InputError if none is."""
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise InputError(f"{names[0].partition('.')[0]} is not installed in this Python: pip install it to compare with it")


def partner(file: str, suffix: str) -> str:
    """The other file of a model: with the same name and this suffix, or the only one in the folder that has it.

    Raises InputError if there is none.
    """
    path = Path(file)
    if path.suffix == suffix:
        return file
    candidates = (
        [path.with_suffix(suffix)] if path.with_suffix(suffix).is_file() else sorted(path.parent.glob(f"*{suffix}"))
    )
    if len(candidates) != 1:
        raise InputError(f"{file}: there is no {path.stem}{suffix} beside it, which the model needs")
    return str(candidates[0])


def same_interface(like: Interface | None, runtime: str, file: str) -> Interface:
    """The inputs and outputs of the model, which some runtimes do not tell."""
    if like is None:
        raise InputError(
            f"{runtime}:{file}: {runtime} does not tell the shapes of inputs: compare it as the second network"
        )
    return like
