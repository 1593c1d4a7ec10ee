"""The kernels of a node of whose results not everything is needed, cut short."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tenon.machine.kernel_ir.clip import clipped, reads_little
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.needed import CutShort, NeededAxis, NeededCount
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Arg, Input, Output, Step
from tenon.network.ops.clipped import Clipped, NeededExtent, NeededPositions


def clip(
    op: Clipped,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    kernel: Kernel,
    args: tuple[Arg, ...],
    *,
    narrow: bool = False,
) -> tuple[Kernel, tuple[Arg, ...], CutShort | None]:
    """The kernel cut short where that is possible, its arguments, and what it is cut short by."""
    first = len(kernel.params)
    needed = tuple(
        axis
        for positions in op.needed
        for param, arg in enumerate(args)
        if arg == Output(positions.output)
        for axis in _axes(positions, outputs[positions.output], param, first)
    )
    absorbed = tuple(
        axis
        for positions in op.absorbed
        for param, arg in enumerate(args)
        if arg == Input(positions.operand)
        for axis in _axes(
            NeededPositions(0, positions.axis, (NeededExtent(positions.extent),)),
            inputs[positions.operand],
            param,
            first,
        )
    )
    numbers = [e.extent for positions in op.needed for e in positions.extents]
    extents = 1 + max((*numbers, *(positions.extent for positions in op.absorbed)), default=-1)
    if not needed and not absorbed:
        return kernel, args, None
    cut, whole = clipped(kernel, needed, extents, absorbed, narrow=narrow)
    if cut is kernel:
        return kernel, args, None
    return cut, (*args, *(Input(op.count + i) for i in range(extents))), CutShort(whole, needed, absorbed, op.spare)


def sums_end(op: Clipped, inputs: Sequence[TensorType], outputs: Sequence[TensorType], steps: Sequence[Step]) -> bool:
    """Whether kernels read no more of operands than ``op.absorbed`` allows, when they are cut short."""
    for step in steps:
        kernel, _, cut = clip(op, inputs, outputs, step.kernel, step.args)
        operands = {positions.operand for positions in op.absorbed}
        if cut is None and any(isinstance(arg, Input) and arg.i in operands for arg in step.args):
            return False
        if cut is not None and not reads_little(kernel, cut):
            return False
    return True


def _axes(positions: NeededPositions, type: TensorType, param: int, first: int) -> Iterator[NeededAxis]:
    """The dimension of a buffer that an axis is, with parameters from ``first`` on holding the extents."""
    physical, axis, layout = type.physical, positions.axis, type.layout
    block = type.block if layout.image and axis == 1 else 1
    if math.prod(physical) == 0 or (layout.image and axis == 1 and block == type.dims[1]):
        return
    start = layout.halos(type.rank)[axis - 2][0] if layout.image and axis >= 2 else 0
    bounds = tuple(NeededCount(first + e.extent, e.factor, e.offset, e.divisor * block) for e in positions.extents)
    count = physical[axis] if axis < 2 else type.dims[axis]
    yield NeededAxis(param, math.prod(physical[axis + 1 :]), physical[axis], start, count, bounds)
