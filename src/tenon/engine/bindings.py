"""The shapes that a bundle is there for: one entry point each, over the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tenon.bundle.manifest import Binding
from tenon.engine.io import Given, strings, views
from tenon.engine.thread_pool import Team
from tenon.errors import InputError
from tenon.ir.dtype import Array


class Bound:
    """A binding in an engine's memory: its inputs and outputs as arrays, and who runs it."""

    def __init__(
        self, binding: Binding, mutable: Array, library: ctypes.CDLL, threads: int, processors: frozenset[int]
    ) -> None:
        """``mutable`` is the region, of which the binding uses the beginning."""
        self.binding, self.region = binding, mutable
        self.inputs = views(mutable, binding.inputs)
        self.outputs = views(mutable, binding.outputs)
        self.strings = strings(binding.inputs)
        self.team = Team(library, binding.entry, binding.phases, threads, processors)

    def fits(self, given: Given) -> bool:
        """Whether these are the shapes of all inputs."""
        return all(
            given[name][0].shape == (array.shape[:-1] if name in self.strings else array.shape)
            for name, array in self.inputs.items()
        )

    def __str__(self) -> str:
        return ", ".join(f"{name}[{','.join(map(str, array.shape))}]" for name, array in self.inputs.items())


def fitting(every: Sequence[Bound], given: Given) -> int:
    """The number of the binding that takes arrays of these shapes.  Raises InputError if there are several bindings
    and none does; a single one is left to say itself what does not fit."""
    if len(every) == 1:
        return 0
    found = next((i for i, bound in enumerate(every) if bound.fits(given)), None)
    if found is None:
        shapes = ", ".join(f"{name}{list(array.shape)}" for name, (array, _) in given.items())
        listed = "; ".join(map(str, every))
        raise InputError(
            f"no binding takes {shapes}: this bundle was compiled for {listed}: compile it with one more --shape"
        )
    return found
