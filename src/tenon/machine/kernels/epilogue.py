"""The end of every kernel on images: applies the epilogue to a vector of the result and stores it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tenon.machine.kernel_ir.build import Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, broadcast, select, vector4
from tenon.machine.kernels.image import Epilogue, Image
from tenon.machine.kernels.storage_types import loaded, stored


class Finish(Protocol):
    """The part of a kernel's parameters that its epilogue needs: the output, the epilogue and its operands."""

    @property
    def y(self) -> Image: ...
    @property
    def operands(self) -> tuple[Image, ...]: ...
    @property
    def epilogue(self) -> Epilogue: ...


def finish(
    s: Finish,
    y: Tensor,
    operands: Sequence[Tensor],
    at: tuple[Index, Index, Index, Index],
    lanes: int,
    value: Expr,
    mask: Expr | None = None,
    into: Index | None = None,
) -> None:
    """Store ``lanes`` channels at (image, channel, row, column); ``into`` is the image of ``y`` where it differs.
    Where ``mask`` is false, zero is stored."""
    image, channel, row, col = at
    extra = [
        broadcast(loaded(tensor.vec(operand.lanes(lanes))[operand.at(image, channel, row, col, lanes)]), lanes)
        for operand, tensor in zip(s.operands, operands, strict=True)
    ]
    value = s.epilogue(value, *extra)
    if mask is not None:
        value = select(mask, value, 0.0)
    y.vec(lanes)[s.y.place(image if into is None else into, channel, row, col, lanes)] = stored(value, s.y.dtype)


def finish_four(
    s: Finish,
    y: Tensor,
    operands: Sequence[Tensor],
    at: tuple[Index, Index, Index, Index],
    values: Sequence[Expr],
    masks: Sequence[Expr] | None = None,
) -> None:
    """The same of four neighbouring channels whose values are scalars, stored at once."""
    image, channel, row, col = at
    results = []
    for lane, value in enumerate(values):
        extra = (
            loaded(tensor[operand.at(image, channel + lane, row, col, 1)])
            for operand, tensor in zip(s.operands, operands, strict=True)
        )
        result = s.epilogue(value, *extra)
        results.append(stored(result if masks is None else select(masks[lane], result, 0.0), s.y.dtype))
    y.vec(4)[s.y.place(image, channel, row, col, 4)] = vector4(*results)
