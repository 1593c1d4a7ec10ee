"""Runs the lowered kernels of one operator in the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from interpret import interpret
from loop_operations import numpy_type
from tenon.machine.isa.byte_products import DOT4, DOT4_NARROW, DOT4_SIGNED
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.tensor_cores import MMA_I8_K32, MMA_U8_K32
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import Arg, Input, Layouts, Operator, Output, Scratch, Site, Weights
from tenon.network.ops.elementwise import BLOCKED

MACHINES = {
    "lanes16": Machine(lanes=16, registers=32, block=16, folds_broadcast=True, prefetch=True, products=(DOT4,)),
    "lanes8": Machine(lanes=8, registers=16, block=8, prefetch=True, products=(DOT4_SIGNED,)),
    "lanes4": Machine(lanes=4, registers=16, block=4, products=(DOT4_NARROW,)),
    "lanes1": Machine(lanes=1, registers=16, block=4, products=(DOT2_I16,)),
}
"""The vector widths that every operator is tested with."""
GPU = replace(
    MACHINES["lanes1"],
    products=(DOT4, DOT4_SIGNED, MMA_I8_K32, MMA_U8_K32),
    launch=Launch(copies=True),
    spaces=(SHARED,),
    threads=4096,
    own_memory=False,
)
"""A device with shared memory, asynchronous copies and tensor cores for bytes."""

_Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


Execute = Callable[[Kernel, list[Array]], object]
"""Runs a kernel on flat arrays, one per parameter."""


class NotLoweredError(Exception):
    """The operator declines to lower this node; the message has the reason."""


@dataclass(frozen=True)
class Ask:
    """Layouts and memory of the operands. ``blocked``: images (f32, rank 3 or 4, not constant) have the machine's
    blocked layout, as after a convolution. ``surplus``: every halo is wider than requested. ``alias``: all aliases that
    the operator supports are used. ``overwrite``: the output is computed in place of this input.
    """

    blocked: bool = False
    surplus: int = 0
    alias: bool = False
    overwrite: int | None = None


def make_site(
    op: Operator,
    arrays: Sequence[Array | None],
    machine: Machine,
    constant: Sequence[int] = (),
    ask: Ask = Ask(),
) -> Site:
    """The ``Site`` at which a planner would lower ``op``. Raises NotLoweredError if the operator declines it."""
    values = [
        None if a is None else Value(f"x{i}", TensorType(DType.of(a.dtype), a.shape), a if i in constant else None)
        for i, a in enumerate(arrays)
    ]
    types = [None if v is None else v.type for v in values]
    if ask.blocked:
        types = [None if t is None else _initial_layout(t, i in constant, machine) for i, t in enumerate(types)]
    constants = tuple(a if i in constant else None for i, a in enumerate(arrays))
    site = Site(tuple(types), tuple(op.infer(values)), constants, machine)
    if why := op.supported(site):
        raise NotLoweredError(why)
    return settle(op, site, ask.surplus)


def _initial_layout(type: TensorType, constant: bool, machine: Machine) -> TensorType:
    if constant or type.dtype not in BLOCKED or type.rank not in (3, 4):
        return type
    return type.with_layout(Layout(machine.block, ((0, 0),) * (type.rank - 2)))


def settle(op: Operator, site: Site, surplus: int = 0) -> Site:
    """The site with the layouts that the operator requests, halos widened by ``surplus``."""
    wanted: Layouts = op.layouts(site)

    def placed(type: TensorType | None, layout: Layout | None) -> TensorType | None:
        return None if type is None else type.with_layout(_widened(layout or ROW_MAJOR, type.rank, surplus))

    inputs = tuple(placed(t, w) for t, w in zip(site.inputs, wanted.inputs, strict=True))
    outputs = tuple(
        t.with_layout(_widened(w, t.rank, surplus)) for t, w in zip(site.outputs, wanted.outputs, strict=True)
    )
    return replace(site, inputs=inputs, outputs=outputs)


def _widened(layout: Layout, rank: int, surplus: int) -> Layout:
    """Asymmetric, so that kernels that confuse sides or axes fail."""
    if not surplus or (layout.block == 1 and not layout.halo):
        return layout
    wide = tuple((a + surplus * (1 + i % 2), b + surplus * (2 - i % 2)) for i, (a, b) in enumerate(layout.halos(rank)))
    return Layout(layout.block, wide, layout.fill)


def run_lowered(
    op: Operator,
    arrays: Sequence[Array | None],
    machine: Machine,
    constant: Sequence[int] = (),
    ask: Ask = Ask(),
    execute: Execute = interpret,
) -> list[Array]:
    """The results of the lowered kernels of ``op`` on ``arrays``. Raises NotLoweredError if the operator declines,
    KernelError if a kernel does something undefined, and AssertionError if an output's halo or padding is not zero
    afterwards.
    """
    site = make_site(op, arrays, machine, constant, ask)
    return run_site(op, site, arrays, ask, execute)


def run_site(
    op: Operator, site: Site, arrays: Sequence[Array | None], ask: Ask = Ask(), execute: Execute = interpret
) -> list[Array]:
    """``run_lowered`` for a site whose layouts are settled."""
    inputs = [None if a is None else packed(site.input(i), a) for i, a in enumerate(arrays)]
    outputs = [fresh(t) for t in site.outputs]
    runs = True
    if ask.alias:
        aliases = op.alias(site)
        for a in aliases:
            if a.inside == "input":
                outputs[a.output] = _part(inputs[a.input], a.offset, site.outputs[a.output].nbytes)
            else:
                whole, part = outputs[a.output], inputs[a.input]
                assert part is not None
                whole[a.offset : a.offset + len(part)] = part
                inputs[a.input] = whole[a.offset : a.offset + len(part)]
        placed = frozenset(a.input for a in aliases if a.inside == "output" or a.written)
        site = replace(site, placed=placed)
        runs = {a.output for a in aliases if a.inside == "input" and not a.written} != set(range(len(outputs)))
    if ask.overwrite is not None:
        outputs[0] = _part(inputs[ask.overwrite], 0, site.output.nbytes)
        site = replace(site, placed=frozenset({ask.overwrite}))
    if runs:
        run_steps(op, site, inputs, outputs, execute)
    return [_result(t, data) for t, data in zip(site.outputs, outputs, strict=True)]


def run_steps(
    op: Operator, site: Site, inputs: list[_Bytes | None], outputs: list[_Bytes], execute: Execute = interpret
) -> None:
    """Run the kernels of ``op`` on the bytes of operands and results."""
    scratch: dict[str, _Bytes] = {}

    def memory(arg: Arg) -> _Bytes:
        match arg:
            case Input():
                array = inputs[arg.i]
                assert array is not None, f"input {arg.i} is absent"
                return array
            case Output():
                return outputs[arg.i]
            case Weights():
                return np.ascontiguousarray(arg.data).reshape(-1).view(np.uint8)
            case Scratch():
                fresh = np.full(arg.nbytes, 0xFF, np.uint8)  # as floats: NaN
                return scratch.setdefault(arg.name, fresh)

    for step in op.lower(site):
        views = []
        for buffer, arg in zip(step.kernel.params, step.args, strict=True):
            data = memory(arg)
            if isinstance(arg, Scratch):
                data = data[: math.prod(i.const for i in buffer.shape) * buffer.type.bytes]
            views.append(data.view(numpy_type(buffer.type.dtype)))
        execute(step.kernel, views)


def packed(type: TensorType, data: Array) -> _Bytes:
    """A copy of an array in the layout of a type."""
    copy: _Bytes = type.layout.pack(data).reshape(-1).view(np.uint8).copy()
    return copy


def fresh(type: TensorType) -> _Bytes:
    """Memory before the producer runs: the halo is zero, everything else is NaN."""
    dims, layout = type.dims, type.layout
    whole = dims if layout.in_order else (dims[0], -(-dims[1] // type.block) * type.block, *dims[2:])
    mask = layout.pack(np.ones(whole, bool)).reshape(-1)
    garbage: _Bytes = np.repeat(mask, type.dtype.bytes).astype(np.uint8) * np.uint8(0xFF)
    return garbage


def _part(data: _Bytes | None, offset: int, nbytes: int) -> _Bytes:
    assert data is not None
    assert offset + nbytes <= len(data), "an alias must lie inside the memory that it shares"
    return data[offset : offset + nbytes]


def _result(type: TensorType, data: _Bytes) -> Array:
    if type.dtype is DType.BOOL:
        assert data.max(initial=0) <= 1, "a bool must be 0 or 1"
    physical = data.view(type.dtype.numpy).reshape(type.physical)
    logical = type.layout.unpack(physical, type.dims)
    again = type.layout.pack(logical).reshape(physical.shape)
    stored = type.dtype.carrier is not type.dtype  # NumPy cannot compare storage formats
    clean = again.tobytes() == physical.tobytes() if stored else np.array_equal(again, physical, equal_nan=True)
    assert clean, f"halo or padding of {type} is not zero"
    return np.array(logical)
