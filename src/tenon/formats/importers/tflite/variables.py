"""Resource variables of a TFLite file: what the network keeps from one run to the next.

A variable that the network assigns is a state: an input of the graph, read before the first assignment, and an output,
the content after the last one.  One that only the initialisation (CALL_ONCE) assigns is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite.content import TfliteGraph, TfliteTensor
from tenon.network.graph.graph import Array, Value


@dataclass(frozen=True)
class Handle:
    """A reference to a variable, in a tensor of type RESOURCE."""

    variable: str


@dataclass(frozen=True)
class Complex:
    """The two parts of complex numbers, f32."""

    real: Value
    imaginary: Value

    @property
    def parts(self) -> tuple[Value, Value]:
        return self.real, self.imaginary


Argument = Value | Handle | Complex
"""A value that a tensor can stand for."""


class Variables:
    """The variables of a file, by their names."""

    def __init__(self, graphs: Sequence[TfliteGraph]) -> None:
        self.assigned = set(_assigned(graphs))
        self._taken = {tensor.name for tensor in graphs[0].tensors}
        self.initial: dict[str, Array] = {}
        self.current: dict[str, Value] = {}
        self.states: dict[str, Value] = {}
        """The graph's inputs that hold states."""
        self.starting = False
        """Whether the operators being imported run once, before all others."""
        self.conditional = False
        """Whether a condition that is computed at run time decides about the operators being imported."""
        self._sources: dict[str, tuple[str, TfliteTensor]] = {}

    def read(self, builder: ChannelsLast, name: str, tensor: TfliteTensor) -> Value:
        """The content of a variable, as ``tensor`` reads it."""
        if name in self.current:
            return self.current[name]
        if self.starting or not {name, ANY} & self.assigned:
            data = self.initial.get(name, np.zeros(tensor.shape, tensor.dtype.numpy))
            return builder.quantized(data, name or "variable", tensor.quant)
        if name in self.initial and self.initial[name].shape != tensor.shape:
            raise RefusedError(f"it reads {list(tensor.shape)} where {list(self.initial[name].shape)} is stored")
        port = self._fresh(builder, name or "variable")
        self.states[name] = self.current[name] = builder.input(port, tensor.type)
        if name in self.initial:
            data = self.initial[name].ravel()
            uniform = data.size and (data == data[0]).all()
            builder.graph.initial[port] = tuple((data[:1] if uniform else data).tolist())
        return self.current[name]

    def assign(self, builder: ChannelsLast, name: str, value: Value, tensor: TfliteTensor, source: str) -> None:
        """Keep ``tensor`` in a variable: ``value``, which the builder knows as ``source``."""
        if self.starting:
            if value.data is None:
                raise RefusedError("it initialises a variable by what is computed at run time")
            self.initial[name] = value.data
            return
        if self.conditional:
            self.read(builder, name, tensor)  # what stays if the other branch is taken
        before = self.current.get(name)
        if before is not None and builder.dims(before) != builder.dims(value):
            raise RefusedError(
                f"its variable changes its shape from {list(builder.dims(before))} to {list(builder.dims(value))}"
            )
        self.current[name] = value
        self._sources[name] = source, tensor

    def finish(self, builder: ChannelsLast) -> list[str]:
        """Make what the states hold after a run outputs of the graph; returns their names."""
        for name, state in self.states.items():
            port = state.name
            source, tensor = self._sources.get(name, ("", None))
            with builder.layer(port, "ASSIGN_VARIABLE", f"{port}_out"):
                if source in builder:
                    builder[source]  # the builder records that the output needs it
                value = self.current[name]
                builder.type(value)
                builder[f"{port}_out"] = value = builder.add("Identity", value)
                if tensor is not None and tensor.quant is not None:
                    value.type = replace(value.type, quant=tensor.quant)
        builder.states.update({state.name: f"{state.name}_out" for state in self.states.values()})
        return [f"{state.name}_out" for state in self.states.values()]

    def _fresh(self, builder: ChannelsLast, name: str) -> str:
        """A name for an input that no tensor has."""
        number, fresh = 2, name
        while fresh in self._taken or fresh in builder:
            fresh, number = f"{name}_{number}", number + 1
        return fresh


ANY = "?"
"""Stands for a variable that is assigned through an operand, whichever it is."""


def _assigned(graphs: Sequence[TfliteGraph]) -> Iterator[str]:
    """Variables that are assigned in the main sub-graph, or in one that it calls for every run."""
    for graph in _called(graphs, [0]):
        handles = dict[int, str]()
        for operation in graph.operations:
            if operation.type == "VAR_HANDLE" and operation.outputs:
                handles[operation.outputs[0]] = variable_name(operation.options)
            elif operation.type == "ASSIGN_VARIABLE" and operation.inputs:
                yield handles.get(operation.inputs[0], ANY)


def loop_variables(graphs: Sequence[TfliteGraph], numbers: Sequence[int]) -> dict[str, TfliteTensor] | None:
    """The variables that the sub-graphs of a loop read or assign, with a tensor of the type of each; None where these
    are not known, or where operators keep other states."""
    variables = dict[str, TfliteTensor]()
    for graph in _called(graphs, numbers):
        handles = dict[int, str]()
        for operation in graph.operations:
            match operation.type:
                case "VAR_HANDLE":
                    handles[operation.outputs[0]] = variable_name(operation.options)
                case "READ_VARIABLE" | "ASSIGN_VARIABLE" if operation.inputs[0] not in handles:
                    return None
                case "READ_VARIABLE":
                    variables.setdefault(handles[operation.inputs[0]], graph.tensors[operation.outputs[0]])
                case "ASSIGN_VARIABLE":
                    variables.setdefault(handles[operation.inputs[0]], graph.tensors[operation.inputs[1]])
                case type if type in KEEPING:
                    return None
    return variables


KEEPING = frozenset(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "LSTM", "RNN", "SVDF"))
"""Operators whose results depend on runs before."""


def _called(graphs: Sequence[TfliteGraph], numbers: Sequence[int]) -> Iterator[TfliteGraph]:
    """Some sub-graphs, and those that they call for every run."""
    todo, visited = [*numbers], set[int]()
    while todo:
        number = todo.pop()
        if number in visited or not 0 <= number < len(graphs):
            continue
        visited.add(number)
        yield graphs[number]
        for operation in graphs[number].operations:
            if operation.type in ("IF", "WHILE"):
                todo += [int(n) for n in operation.options.values()]


def variable_name(options: Mapping[str, Any]) -> str:
    """The name of the variable that VAR_HANDLE with these options refers to."""
    return "/".join(str(options[key]) for key in ("container", "shared_name") if options.get(key))
