"""Writes through views: ``x[:, 2:4] = y`` is a slice and a copy into it, which changes the base tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.pytorch.data_movement import select_scatter, slice_scatter
from tenon.formats.importers.pytorch.node import PytorchNode
from tenon.network.graph.graph import Value

_PUT_BACK = {"slice": slice_scatter, "select": select_scatter}
_RESHAPED = ("view", "unsqueeze", "squeeze", "alias", "detach")
OTHERS = (
    "as_strided",
    "chunk",
    "contiguous",
    "diagonal",
    "expand",
    "flatten",
    "permute",
    "reshape",
    "split",
    "split_with_sizes",
    "t",
    "to",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
)
_REMEDY = "export the result of program.run_decompositions(), in which nothing is written to"


def is_view(operator: str) -> bool:
    """Whether the results of an operator may be views of its first operand."""
    return operator in _PUT_BACK or operator in _RESHAPED or operator in OTHERS


@dataclass(frozen=True)
class _View:
    operator: str
    base: str
    arguments: Mapping[str, Any]


class Views:
    """Views and the tensors that they are of, while the calls of a program are imported in order."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.views: dict[str, _View] = {}
        self.stale: set[str] = set()

    def note(self, operator: str, base: str, arguments: Mapping[str, Any], results: Sequence[str]) -> None:
        """A call that may give views of ``base``."""
        if is_view(operator):
            self.views.update({name: _View(operator, base, arguments) for name in results})

    def check(self, name: str) -> None:
        """Raise RefusedError for a view of a tensor that was written to since."""
        if name in self.stale:
            raise RefusedError(f"reads '{name}', a part of a tensor that was written to since", _REMEDY)

    def write(self, name: str, value: Value) -> None:
        """Make ``value`` the content of ``name`` and of all its base tensors from now on.  Raises RefusedError."""
        chain = {name}
        self.builder[name] = value
        while name in self.views:
            view = self.views[name]
            value = self._whole(view, value)
            name = view.base
            chain.add(name)
            self.builder[name] = value
        self.stale |= {other for other in self.views if other not in chain and self._root(other) == name}

    def _whole(self, view: _View, part: Value) -> Value:
        base = self.builder[view.base]
        type, dims = self.builder.type(base), self.builder.dims(base)
        if view.operator in _RESHAPED:
            return self.builder.add("Reshape", part, self.builder.ints(*dims))
        if view.operator not in _PUT_BACK:
            raise RefusedError(f"writes through '{view.operator}' into '{view.base}'", _REMEDY)
        arguments = {**view.arguments, "self": base, "src": part}
        kind = type.dtype.numpy.name
        return _PUT_BACK[view.operator](PytorchNode(self.builder, view.operator, arguments, (dims, kind)))

    def _root(self, name: str) -> str:
        while name in self.views:
            name = self.views[name].base
        return name
