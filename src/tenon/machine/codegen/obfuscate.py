"""Programs without the names of their model: those of layers, tensors, operators and kernels become numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import Call, Facts, Port, Program, SizeCheck, mapped

Obfuscate = Literal["layers", "all"]
"""Whose names: those of layers and of the tensors between them, or those of inputs and outputs, too."""


def port_names(program: Program, scope: Obfuscate) -> dict[str, str]:
    """New names of inputs and outputs by the old ones."""
    if scope == "layers":
        return {port.name: port.name for port in (*program.inputs, *program.outputs)}
    outputs = {port.name: f"out{i}" for i, port in enumerate(program.outputs, 1)}
    return {**outputs, **{port.name: f"in{i}" for i, port in enumerate(program.inputs, 1)}}


def _check(check: SizeCheck, names: Mapping[str, str]) -> SizeCheck:
    return replace(check, name=names.get(check.name, ""))


def obfuscated(programs: Sequence[Program], scope: Obfuscate) -> list[Program]:
    """The programs of a bundle's bindings.  What a kernel call computes is left out of its description, except its
    multiply-accumulates and bytes; the code is the same."""
    layers, kernels = dict[str, str](), dict[Kernel, Kernel]()

    def layer(name: str) -> str:
        return layers.setdefault(name, f"l{len(layers) + 1}")

    def call(each: Call) -> Call:
        kernel = kernels.get(each.kernel) or replace(each.kernel, name=f"k{len(kernels) + 1}", about="")
        kernels[each.kernel] = kernel
        return replace(each, kernel=kernel, layer=layer(each.layer), op="op", facts=Facts(bytes=each.facts.bytes))

    def port(each: Port, names: dict[str, str]) -> Port:
        extents = tuple((axis, names[name]) for axis, name in each.extents)
        return replace(each, name=names[each.name], extents=extents, state=names.get(each.state, ""))

    made = []
    for program in programs:
        names = port_names(program, scope)
        inputs, outputs = (tuple(port(each, names) for each in ports) for ports in (program.inputs, program.outputs))
        items = mapped(program.items, call, partial(_check, names=names))
        patches = program.patches and replace(program.patches, last=layer(program.patches.last))
        made.append(replace(program, inputs=inputs, outputs=outputs, items=items, largest="", patches=patches))
    return made
