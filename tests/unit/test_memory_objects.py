"""Operands in several objects of memory, of which kernels read some as images."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest

import tenon
from onnx_models import model, node, random
from tenon.machine.codegen.gpu.memory_objects import FIRST, SECOND, ImageOperands
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.plan.program import Branch, Call, Memory, Place, Program, Region, Repeat

NETWORKS = {
    "residual": [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Add", ["d", "b"], ["e"]),
        node("Conv", ["e", "w"], ["f"], pads=[1, 1, 1, 1]),
        node("Conv", ["f", "w"], ["y"], pads=[1, 1, 1, 1]),
    ],
    "parts of a concatenation": [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["a"], ["b"]),
        node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Concat", ["b", "c"], ["d"], axis=1),
        node("Split", ["d"], ["e", "f"], axis=1, num_outputs=2),
        node("Mul", ["e", "f"], ["g"]),
        node("Conv", ["g", "w"], ["y"], pads=[1, 1, 1, 1]),
    ],
}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_read_was_written_in_the_same_object(name: str, precision: Literal["fp32", "fp16"]) -> None:
    content = model(NETWORKS[name], {"x": [1, 8, 12, 12]}, ["y"], {"w": random(8, 8, 3, 3)}).SerializeToString()
    program = tenon.compile(content, target="opencl", precision=precision, no_tuning=True).program
    operands = ImageOperands([program])
    follow(program, operands)
    chosen = {number for objects in operands.objects[0] for number in objects}
    assert {FIRST, SECOND} <= chosen
    kernels = {call.kernel.params for call in program.calls}
    assert sum(1 for params in kernels if operands.readable[params] - operands.weights[params]) > 2


def test_numbers_that_the_host_reads_are_in_the_first_object() -> None:
    kernel = copied(4)
    places = [Place(Region.ACTIVATIONS, 64 * i, block=i) for i in (1, 2, 3)]
    calls = tuple(Call(kernel, pair, "call", "Copy") for pair in pairwise(places))
    for items, expected in (
        (calls, (FIRST, SECOND)),
        ((calls[0], Branch(places[1], ((calls[1],), ()))), (FIRST, FIRST)),
        ((calls[0], Repeat(places[1], (calls[1],), places[0])), (FIRST, FIRST)),
    ):
        program = Program("numbers", (), (), items, (), Memory(0, 0, 256, 0))
        assert ImageOperands([program]).objects[0][0] == expected


def copied(n: int) -> Kernel:
    """A kernel that copies n floats."""
    k = Builder("copy")
    x, y = k.param("x", n), k.param("y", n, out=True)
    with k.loop("i", n) as i:
        y[i] = x[i]
    return k.done()


def follow(program: Program, operands: ImageOperands) -> None:
    """Check every byte of the activations: the object that it was last written in, and that images are of others than
    what their kernel writes."""
    last = [0] * program.memory.activations
    for call, objects in zip(program.calls, operands.objects[0], strict=True):
        triples = list(zip(call.kernel.params, call.args, objects, strict=True))
        inside = [
            (buffer, range(place.offset, place.offset + buffer_bytes(buffer)), number)
            for buffer, place, number in triples
            if place.region is Region.ACTIVATIONS
        ]
        for buffer, at, number in inside:
            if buffer.space == "const":
                assert {last[i] for i in at} <= {0, number}
        written = {number for buffer, _, number in triples if buffer.space != "const"}
        images = {number for buffer, _, number in triples if buffer in operands.readable[call.kernel.params]}
        assert not images & written
        for buffer, at, number in inside:
            if buffer.space != "const":
                last[at.start : at.stop] = [number] * len(at)
