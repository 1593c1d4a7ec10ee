"""QuantizeLinear of an image that one convolution reads, in the same launch: the image is read once, and its integers
are not in memory."""

from __future__ import annotations

from dataclasses import fields

from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Node
from tenon.network.graph.types import F32
from tenon.network.ops.base import Site
from tenon.network.ops.image_conv import IntegerImageConv
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_product import ADDED
from tenon.network.ops.quantize import QuantizeLinear
from tenon.network.passes.base import Match, Result, Rule
from tenon.network.passes.integers.operands import grid_of
from tenon.network.passes.patterns import IsOp


def quantised_images(machine: Machine) -> list[Rule]:
    """The rule for a machine with a kernel for such convolutions; none for processors."""

    def join_quantised_image(match: Match) -> Result:
        """IntegerConv(QuantizeLinear(x)) is one operator"""
        node, integers = match.root, match.root.input(0)
        if type(node.op) is not IntegerConv or integers.producer is None or not match.sole(integers):
            return None
        numbers = _numbers(integers.producer)
        if numbers is None or len(node.inputs) > ADDED or numbers[1] != node.op.x_zero:
            return None
        source, inputs = integers.producer, (integers.producer.input(0), *node.inputs[1:])
        own = {field.name: getattr(node.op, field.name) for field in fields(node.op)}
        op = IntegerImageConv(**own, image_scale=numbers[0], image=integers.type.dtype.value)
        types = tuple(None if v is None else v.type for v in inputs)
        constants = tuple(None if v is None else v.data for v in inputs)
        if why := op.supported(Site(types, (node.output.type,), constants, machine)):
            return why
        return match.add(op, *inputs, origin=source.origin)

    return [Rule("join_quantised_image", IsOp("IntegerConv"), join_quantised_image)] * (machine.launch is not None)


def _numbers(node: Node) -> tuple[float, int] | None:
    """The scale and the zero point of a QuantizeLinear of f32 that rounds halves to even, by one known number each."""
    if type(node.op) is not QuantizeLinear or node.op.ties != "even":
        return None
    if any(node.input(i).type.dtype is not F32 for i in (0, 1)):
        return None
    grid = grid_of(node)
    return None if isinstance(grid, str) else (1.0 if grid.steps else grid.scale, grid.zero)
