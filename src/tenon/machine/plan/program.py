"""The result of planning: a tree of kernel calls, loops and branches over operands in three memory regions.

A run executes the items of a program in order.  Loops and branches nest; every call stands once in the tree, however
often it runs.  Checks of sizes may end a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from tenon.atomic_write import Content
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.needed import CutShort
from tenon.machine.kernel_ir.spaces import SHARED, Launch, MemorySpace
from tenon.network.graph.dtype import swapped
from tenon.network.graph.graph import Array
from tenon.network.graph.size_range import Extents, SizeRange
from tenon.network.graph.types import Quant, TensorType
from tenon.network.passes.weight_format import StoredWeights

ALIGNMENT = 64
"""Bytes.  Every region, and every tensor in it, starts at a multiple of this."""


class Region(StrEnum):
    """The three memory regions that the caller of a bundle supplies."""

    CONSTANT = "constantWeight"
    MUTABLE = "mutableWeight"
    ACTIVATIONS = "activations"


@dataclass(frozen=True)
class Advance:
    """A place lies ``step`` bytes further in each iteration of a loop around its call, of which there are at most
    ``count``.  ``depth`` says which loop: 0 is the outermost."""

    depth: int
    step: int
    count: int

    @property
    def furthest(self) -> int:
        """Bytes from the place in the first iteration to that in the last one."""
        return self.step * (self.count - 1)


@dataclass(frozen=True)
class Place:
    """A byte offset in a region.  With several ``copies``, one per thread, they are ``stride`` bytes apart.

    The offset is that in the first iteration of all loops around the call; ``advances`` say how it moves.  ``block`` is
    the number of the block of the arena that a place of the activations lies in; 0 for all others.
    """

    region: Region
    offset: int
    stride: int = 0
    copies: int = 1
    advances: tuple[Advance, ...] = ()
    block: int = field(default=0, compare=False)

    @property
    def lowest(self) -> int:
        """The lowest offset in any iteration, in bytes."""
        return self.offset + sum(min(0, advance.furthest) for advance in self.advances)

    @property
    def highest(self) -> int:
        """The highest offset of any copy in any iteration, in bytes."""
        further = sum(max(0, advance.furthest) for advance in self.advances)
        return self.offset + self.stride * (self.copies - 1) + further


@dataclass(frozen=True)
class Port:
    """A graph input or output: row-major, in the mutable region.

    ``extents`` lists the axes whose extents only a run knows, each with the input or output (an i64 of rank 0) that
    holds its extent; the buffer has the largest extents.  ``size`` is the range of an input that holds such an extent.
    A ``string`` is bytes along the last axis
    (see ``graph.strings``).  ``initial`` is what an input holds in the first run, where the model states it: one number
    for all elements, or every element.  ``state`` of an input is the output that it holds after a run, in the same
    memory, and of an output that input; empty for all others.
    """

    name: str
    type: TensorType
    offset: int
    extents: Extents = ()
    size: SizeRange | None = None
    string: bool = False
    initial: tuple[float, ...] = ()
    state: str = ""

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

    ``clears`` says that it only zeroes the halo of an image that a later call of the node fills.  ``cut`` says
    what of its results it leaves out.
    """

    kernel: Kernel
    args: tuple[Place, ...]
    layer: str
    op: str
    macs: int = 0
    facts: Facts = Facts()
    clears: bool = False
    cut: CutShort | None = None


@dataclass(frozen=True)
class Carried:
    """``bytes`` at ``place`` that an iteration reads as the one before left them, the first one as the calls before the
    loop did."""

    place: Place
    bytes: int


LARGEST_COUNT = 2**31 - 1
"""The most iterations of a loop: they are counted in 32 bits."""

TOO_MANY_ITERATIONS = 1
"""The status of an entry point where a loop would run more often than its limit.  Its outputs are then not valid."""


@dataclass(frozen=True)
class Repeat:
    """A loop: ``body`` runs ``count`` times, one iteration after the other.

    ``count`` is a number or the place of an i64, which is read before every iteration, so that a body that lowers it
    ends the loop; where it exceeds ``limit``, the run ends with the status ``TOO_MANY_ITERATIONS``.  An entry point
    that runs phase by phase keeps the number of finished iterations (i32) at ``counter``, in the activations.
    """

    count: int | Place
    body: tuple[Item, ...]
    counter: Place
    carried: tuple[Carried, ...] = ()
    limit: int = LARGEST_COUNT

    @property
    def most(self) -> int:
        """The most iterations that it makes."""
        return self.count if isinstance(self.count, int) else self.limit


@dataclass(frozen=True)
class Branch:
    """A choice: of ``bodies`` that one runs whose number is the byte at ``condition``, or the last one where that is
    larger."""

    condition: Place
    bodies: tuple[tuple[Item, ...], ...]


SIZE_OUT_OF_RANGE = 2
"""The status of an entry point where a size is not in the range that was compiled for.  Its outputs are then not
valid."""


@dataclass(frozen=True)
class SizeCheck:
    """The end of a run, with the status ``SIZE_OUT_OF_RANGE``, where the i64 at ``place`` is not in ``range``; what
    depends on the number comes later.  ``name`` is that of the value, for messages."""

    place: Place
    range: SizeRange
    name: str = ""


Item: TypeAlias = Call | Repeat | Branch | SizeCheck
"""A node of the tree of a program."""


def walk(items: Iterable[Item], times: int = 1) -> Iterator[tuple[Call, int]]:
    """Every call once, in order, with how often it runs if every loop around it runs ``count`` times, where that is a
    number, and every branch is taken."""
    for item in items:
        match item:
            case Call():
                yield item, times
            case Repeat():
                yield from walk(item.body, times * item.count if isinstance(item.count, int) else times)
            case Branch():
                for body in item.bodies:
                    yield from walk(body, times)


def repeats(items: Iterable[Item]) -> Iterator[Repeat]:
    """Every loop of a tree, the outer ones first."""
    for item in items:
        match item:
            case Repeat():
                yield item
                yield from repeats(item.body)
            case Branch():
                for body in item.bodies:
                    yield from repeats(body)


def checks(items: Iterable[Item]) -> Iterator[SizeCheck]:
    """Every check of a size of a tree, in order."""
    for item in items:
        match item:
            case SizeCheck():
                yield item
            case Repeat():
                yield from checks(item.body)
            case Branch():
                for body in item.bodies:
                    yield from checks(body)


def mapped(
    items: Iterable[Item],
    function: Callable[[Call], Call | None],
    check: Callable[[SizeCheck], SizeCheck] = lambda each: each,
) -> tuple[Item, ...]:
    """The same tree with every call replaced by what ``function`` returns, or left out where that is None, and every
    check of a size by what ``check`` returns."""

    def item(each: Item) -> Item | None:
        match each:
            case Repeat():
                return replace(each, body=mapped(each.body, function, check))
            case Branch():
                return replace(each, bodies=tuple(mapped(body, function, check) for body in each.bodies))
            case SizeCheck():
                return check(each)
        return function(each)

    return tuple(made for each in items if (made := item(each)) is not None)


@dataclass(frozen=True, eq=False)
class StoredConstant:
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
    """A network ready for code generation; ``items`` is the tree of its kernel calls.

    ``threads`` is the most that may run it.  ``error`` is the largest of any layer, over the RMS of
    an output channel, of its algorithm and of rounding to 16 bits (see ``ops.base.Operator.error``).
    ``largest`` is the layer at which the most bytes of activations are alive.  ``assumed`` are the names of inputs
    whose batch is 1 because nothing bound it, and of that dimension.  ``launch`` and ``spaces`` are what its machine
    offers to kernels that are launches of work groups.  ``stored`` says in which types weights are stored, where they
    were asked for in fewer bits.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    items: tuple[Item, ...]
    constants: tuple[StoredConstant, ...]
    memory: Memory
    threads: int = 1
    error: float = 0.0
    largest: str = ""
    patches: Patches | None = None
    assumed: tuple[tuple[str, str], ...] = ()
    launch: Launch | None = None
    spaces: tuple[MemorySpace, ...] = (SHARED,)
    stored: StoredWeights | None = None

    def __repr__(self) -> str:
        return f"Program('{self.name}', {len(self.calls)} calls)"

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """Every kernel call of the tree once, in order."""
        return tuple(call for call, _ in walk(self.items))

    @cached_property
    def times(self) -> tuple[int, ...]:
        """How often a run makes each of ``calls``."""
        return tuple(times for _, times in walk(self.items))

    @cached_property
    def limited(self) -> bool:
        """Whether a run may fail because a loop would make too many iterations."""
        return any(isinstance(loop.count, Place) for loop in repeats(self.items))

    @cached_property
    def checks(self) -> tuple[SizeCheck, ...]:
        """Every check of a size, in order."""
        return tuple(checks(self.items))

    @property
    def has_states(self) -> bool:
        """Whether inputs hold outputs of the run before."""
        return any(port.state for port in self.inputs)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of a run."""
        return sum(call.macs * times for call, times in walk(self.items))

    def weights(self, byte_order: Literal["little", "big"] = "little") -> bytes:
        """The bytes of the constant region, for a machine of that byte order."""
        return b"".join(self.weight_pieces(byte_order))

    def weight_pieces(self, byte_order: Literal["little", "big"] = "little") -> Iterator[Content]:
        """The same in pieces, one behind the other."""
        end = 0
        for constant in sorted(self.constants, key=lambda c: c.offset):
            data = constant.data if byte_order == sys.byteorder else swapped(constant.data)
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            yield bytes(constant.offset - end)
            yield raw.data
            end = constant.offset + raw.size
        yield bytes(self.memory.constant - end)
