"""The result of planning: kernels to call in order, with operands at fixed offsets in three memory regions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from tenon.machine.kernel_ir.loops import Kernel
from tenon.network.graph.dtype import swapped
from tenon.network.graph.graph import Array
from tenon.network.graph.types import Quant, TensorType

ALIGNMENT = 64
"""Bytes.  Every region, and every tensor in it, starts at a multiple of this."""


class Region(StrEnum):
    """The three memory regions that the caller of a bundle supplies."""

    CONSTANT = "constantWeight"
    MUTABLE = "mutableWeight"
    ACTIVATIONS = "activations"


@dataclass(frozen=True)
class Place:
    """A byte offset in a region.  With several ``copies``, one per thread, they are ``stride`` bytes apart."""

    region: Region
    offset: int
    stride: int = 0
    copies: int = 1

    @property
    def beyond(self) -> int:
        """The offset of the last copy from the first, in bytes."""
        return self.stride * (self.copies - 1)


@dataclass(frozen=True)
class Port:
    """A graph input or output: row-major, in the mutable region.

    ``extent`` is set for an output whose extent along one axis depends on data: that axis, and the output (i64) that
    holds the true extent; the buffer has the largest that is possible.  A ``string`` is bytes along the last axis
    (see ``graph.strings``).  ``initial`` is what an input holds in the first run, where the model states it: one number
    for all elements, or every element.
    """

    name: str
    type: TensorType
    offset: int
    extent: tuple[int, str] | None = None
    string: bool = False
    initial: tuple[float, ...] = ()

    @property
    def quant(self) -> Quant | None:
        """The scale and zero point of its integers, if known and per tensor."""
        quant = self.type.quant
        return quant if quant is not None and quant.scalar and not self.type.dtype.is_float else None


@dataclass(frozen=True)
class Facts:
    """Shapes and attributes of a node as in the model (empty where it has none), for tables, and the bytes that it
    reads and writes."""

    output: tuple[int, ...] = ()
    filter: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    bytes: int = 0


@dataclass(frozen=True)
class Call:
    """One kernel call.  ``layer`` and ``op`` say which node of the graph it is part of.

    ``clears`` says that it only zeroes the halo of an image that a later call of the node fills.
    """

    kernel: Kernel
    args: tuple[Place, ...]
    layer: str
    op: str
    macs: int = 0
    facts: Facts = Facts()
    clears: bool = False


@dataclass(frozen=True, eq=False)
class Constant:
    """An array at an offset of the constant region."""

    offset: int
    data: Array


@dataclass(frozen=True)
class Memory:
    """Bytes of each region.  ``bound`` is the least that any placement of the activations could need: the most
    bytes alive at once in this order of execution."""

    constant: int
    mutable: int
    activations: int
    bound: int

    @property
    def peak(self) -> int:
        """Bytes of all writable memory: inputs, outputs and activations, without the stack."""
        return self.mutable + self.activations


@dataclass(frozen=True)
class Patches:
    """The first ``layers`` layers, up to ``last``, are computed in ``number`` patches of ``rows`` rows of its result,
    with ``extra_macs`` more multiply-accumulates than at once."""

    number: int
    rows: int
    layers: int
    last: str
    extra_macs: int


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A network ready for code generation.

    ``threads`` is the most that may run it.  ``error`` is the largest of any layer, over the RMS of
    an output channel, of its algorithm and of rounding to 16 bits (see ``ops.base.Operator.error``).
    ``largest`` is the layer at which the most bytes of activations are alive.  ``assumed`` are the names of inputs
    whose batch is 1 because nothing bound it, and of that dimension.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    calls: tuple[Call, ...]
    constants: tuple[Constant, ...]
    memory: Memory
    threads: int = 1
    error: float = 0.0
    largest: str = ""
    patches: Patches | None = None
    assumed: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Program('{self.name}', {len(self.calls)} calls)"

    def weights(self, byte_order: Literal["little", "big"] = "little") -> bytes:
        """The bytes of the constant region, for a machine of that byte order."""
        parts: list[bytes | memoryview] = []
        end = 0
        for constant in sorted(self.constants, key=lambda c: c.offset):
            data = constant.data if byte_order == sys.byteorder else swapped(constant.data)
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            parts += [bytes(constant.offset - end), raw.data]
            end = constant.offset + raw.size
        return b"".join([*parts, bytes(self.memory.constant - end)])
