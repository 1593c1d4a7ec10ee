"""What planning ends in: kernels to call, in order, at fixed places in three memory regions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tenon.ir.graph import Array
from tenon.ir.loops import Kernel
from tenon.ir.types import Quant, TensorType

ALIGNMENT = 64
"""Bytes.  Every region, and every tensor in it, starts at a multiple of this."""


class Region(StrEnum):
    """The three memory regions that the caller of a bundle supplies."""

    CONSTANT = "constantWeight"
    MUTABLE = "mutableWeight"
    ACTIVATIONS = "activations"


@dataclass(frozen=True)
class Place:
    """A byte offset in a region.  Threads have ``copies`` of what lies there, each ``stride`` bytes further on."""

    region: Region
    offset: int
    stride: int = 0
    copies: int = 1

    @property
    def beyond(self) -> int:
        """How many bytes the last copy lies behind the first."""
        return self.stride * (self.copies - 1)


@dataclass(frozen=True)
class Port:
    """A graph input or output: row-major, in the mutable region.

    ``extent`` is set for an output whose extent along one axis depends on data: that axis, and the output (i64) that
    holds the true extent; the buffer has the largest that is possible.  A ``string`` is bytes along the last axis
    (see ``ir.strings``).
    """

    name: str
    type: TensorType
    offset: int
    extent: tuple[int, str] | None = None
    string: bool = False

    @property
    def quant(self) -> Quant | None:
        """What its integers stand for, if that is known and one scale holds for all."""
        quant = self.type.quant
        return quant if quant is not None and quant.scalar and not self.type.dtype.is_float else None


@dataclass(frozen=True)
class Facts:
    """What a node computes, for tables of people: shapes and attributes as the model has them (empty where it has
    none), and the bytes of all that it reads and writes."""

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

    ``clears`` says that it only zeroes the halo of what a later call of the node fills.
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


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A network ready to be printed: everything is decided but the text.

    ``threads`` is the most that may run it together.  ``error`` is the largest of any layer, over the RMS of
    an output channel, of its algorithm and of numbers kept in 16 bits (see ``ops.base.Operator.error``).
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    calls: tuple[Call, ...]
    constants: tuple[Constant, ...]
    memory: Memory
    threads: int = 1
    error: float = 0.0

    def __repr__(self) -> str:
        return f"Program('{self.name}', {len(self.calls)} calls)"

    def weights(self) -> bytes:
        """The bytes of the constant region."""
        parts: list[bytes | memoryview] = []
        end = 0
        for constant in sorted(self.constants, key=lambda c: c.offset):
            raw = np.ascontiguousarray(constant.data).reshape(-1).view(np.uint8)
            parts += [bytes(constant.offset - end), raw.data]
            end = constant.offset + raw.size
        return b"".join([*parts, bytes(self.memory.constant - end)])
