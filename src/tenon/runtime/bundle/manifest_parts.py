"""The parts of a manifest that a program and its target say."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType

from tenon.atomic_write import Content
from tenon.machine.plan.program import ALIGNMENT, Memory, Port, Program
from tenon.machine.targets import Target
from tenon.runtime.bundle.checksum import checksum
from tenon.runtime.bundle.manifest import (
    Binding,
    BundleTensor,
    CallRecord,
    FileRecord,
    MadeFor,
    MemoryUse,
)


def made_for(target: Target) -> MadeFor:
    """The target as a manifest names it."""
    return MadeFor(
        name=target.name,
        triple=target.triple,
        cpu=target.cpu,
        pointer=target.pointer,
        object=target.object,
        byte_order=target.byte_order,
    )


def memory_use(memory: Memory, stack: int | None) -> MemoryUse:
    """The memory of a program in bytes; ``stack`` is None where no bound is known."""
    return MemoryUse(
        constant=memory.constant,
        mutable=memory.mutable,
        activations=memory.activations,
        bound=memory.bound,
        peak=memory.peak,
        alignment=ALIGNMENT,
        stack=stack,
    )


def steps(program: Program, instructions: Sequence[int | None] | None) -> tuple[CallRecord, ...]:
    """The kernel calls of a program, with the most ``instructions`` of each, where these are known; a call in a loop is
    one step, whose multiply-accumulates and bytes are those of all iterations."""
    return tuple(
        CallRecord(
            layer=call.layer,
            op=call.op,
            kernel=call.kernel.name,
            macs=call.macs * times,
            instructions=most,
            **asdict(replace(call.facts, bytes=call.facts.bytes * times)),
        )
        for call, times, most in zip(
            program.calls, program.times, instructions or (None,) * len(program.calls), strict=True
        )
    )


def binding(program: Program) -> Binding:
    """A program as one binding of a bundle."""
    return Binding(
        entry=program.name,
        inputs=tuple(map(tensor, program.inputs)),
        outputs=tuple(map(tensor, program.outputs)),
        mutable=program.memory.mutable,
        activations=program.memory.activations,
    )


def tensor(port: Port, ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> BundleTensor:
    """An input or output; ``ranges`` are those of inputs by name, "" for all others."""
    quant = port.quant
    return BundleTensor(
        name=port.name,
        dtype=str(port.type.dtype),
        shape=port.type.dims,
        offset=port.offset,
        bytes=port.type.nbytes,
        extents=port.extents,
        size=port.size,
        string=port.string,
        range=ranges.get(port.name, ranges.get("")),
        scale=quant.scale[0] if quant else None,
        zero_point=quant.zero_point[0] if quant else None,
        initial=port.initial or None,
        state=port.state,
    )


def file_record(content: Content) -> FileRecord:
    """Length and digests of a file."""
    return FileRecord(len(content), hashlib.sha256(content).hexdigest(), checksum(content))
