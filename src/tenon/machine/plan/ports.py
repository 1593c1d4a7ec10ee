"""The inputs and outputs of a program as the imported graph describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenon.machine.plan.program import Program
from tenon.network.graph.graph import Graph


def rename_extents(graph: Graph, names: Sequence[str]) -> None:
    """State the extents of outputs by the names that these have now; ``names`` were those before."""
    new = {before: value.name for before, value in zip(names, graph.outputs, strict=True)}
    graph.extents = {
        new.get(name, name): tuple((axis, new.get(extent, extent)) for axis, extent in extents)
        for name, extents in graph.extents.items()
    }


def with_ports_of(program: Program, given: Graph) -> Program:
    """The program with names and annotations of the imported graph: passes may have replaced output values."""
    holds = {number: name for name, number in given.states.items()}
    named = tuple(
        replace(port, name=v.name, extents=given.extents.get(v.name, ()), string=v.name in given.strings)
        for port, v in zip(program.outputs, given.outputs, strict=True)
    )
    named = tuple(
        replace(port, type=replace(port.type, quant=v.type.quant)) if port.type.dtype is v.type.dtype else port
        for port, v in zip(named, given.outputs, strict=True)
    )
    inputs = tuple(
        replace(
            port,
            extents=given.extents.get(port.name, ()),
            size=given.sizes.get(port.name),
            string=port.name in given.strings,
            state=given.outputs[given.states[port.name]].name if port.name in given.states else "",
        )
        for port in program.inputs
    )
    outputs = tuple(replace(port, state=holds.get(number, "")) for number, port in enumerate(named))
    return replace(program, inputs=inputs, outputs=outputs)
