"""A Paddle program as the importer walks over it, whichever file it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

DTYPES = {0: "?", 1: "<i2", 2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8", 20: "<u1", 21: "<i1"}
"""NumPy's names of the elements that have these numbers in Paddle's files."""


@dataclass(frozen=True)
class PaddleOperation:
    """An operator: names of tensors by slot, and attributes.

    A slot of inputs ``NAME=`` holds constants that are read as the attribute NAME.
    """

    type: str
    inputs: dict[str, Sequence[str]]
    outputs: dict[str, Sequence[str]]
    attributes: dict[str, object]

    @property
    def made(self) -> list[str]:
        return [name for names in self.outputs.values() for name in names]


@dataclass(frozen=True)
class PaddleVariable:
    """A parameter or an input; ``dtype`` is a number of ``DTYPES``, an unknown extent is -1."""

    name: str
    dtype: int
    dims: tuple[int, ...]


@dataclass
class PaddleProgram:
    parameters: list[PaddleVariable] = field(default_factory=list)
    inputs: list[PaddleVariable] = field(default_factory=list)
    operations: list[PaddleOperation] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    blocks: list[list[PaddleOperation]] = field(default_factory=list)
    """The operators of all blocks, by their numbers; those of the first are ``operations``, too."""
