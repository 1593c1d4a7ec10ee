"""The machine parameters that kernel generators depend on: widths and counts, never a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tenon.machine.isa.base import ProductUnit, TableUnit
from tenon.machine.kernel_ir.spaces import Launch, MemorySpace
from tenon.network.graph.types import DType


@dataclass(frozen=True)
class Machine:
    """``lanes`` f32 elements make a vector; ``registers`` vectors fit the register file.

    ``block`` is how many channels lie side by side in a blocked layout: a multiple of ``lanes``.
    """

    lanes: int = 1
    registers: int = 16
    block: int = 4
    folds_broadcast: bool = False  # a multiply-add can take one lane from memory and spread it
    fused: bool = False  # few registers, but none for a product of f32 that the same instruction adds
    by_lane: bool = False  # a multiply-add of floats can take one lane of a vector
    prefetch: bool = False
    cut_short: bool = False  # kernels may compute only the first positions of their results (kernel_ir.clip)
    unroll: int = 4  # input channels per step of the inner loop
    chains: int = 8  # independent multiply-adds that hide the latency of one
    products: tuple[ProductUnit, ...] = ()  # besides multiply-adds of f32; of equal types the best first
    stores: frozenset[DType] = frozenset()  # 16-bit types of images whose products it adds in f32, which saves time
    table: TableUnit | None = None  # by which it looks up many bytes at once
    instruction: float = 1.0  # multiply-adds of f32 in the time of one, of integers whose cost is counted in them
    nearest: bool = False  # it rounds floats to the nearest integers by one instruction, and packs these saturated
    float_unit: bool = True  # else floats are computed by calls: no tap beside an image is multiplied
    threads: int = 1  # that algorithms are chosen for
    bf16_tiles: bool = False  # many rows are multiplied by weights in blocks, and by caches, in bf16 by tiles
    own_memory: bool = True  # a thread can have memory of its own for intermediate results
    stream: float = 5.0  # bytes of weights that arrive in the time of one multiply-add of a vector
    sums: float = 1.0  # time to add up images in the second cache, as a multiple of what an AMD Zen 5 takes
    memory: float | None = None  # the same from main memory, of weights that no cache keeps; None: as many
    launch: Launch | None = None  # of kernels in work groups, if it runs any
    spaces: tuple[MemorySpace, ...] = ()  # besides registers, the stack and the parameters of kernels

    def space(self, name: str) -> MemorySpace | None:
        """The memory space of that name, if it has it."""
        return next((space for space in self.spaces if space.name == name), None)

    def prefetching(self, tiles: int) -> int:
        """How many of ``tiles`` tiles prefetch the weights of the next group together: all, or the first ones where
        the others may not run."""
        return min(tiles, 2) if self.cut_short else tiles

    @cached_property
    def fours(self) -> Mapping[DType, ProductUnit]:
        """Units for products of bytes by i8, four at a time, by the type of the first factor; the best first."""
        units = [unit for unit in self.products if unit.shape == (1, 1, 4) and unit.weights is DType.I8]
        return {unit.x: unit for unit in units}

    @property
    def narrow_fours(self) -> bool:
        """Whether it multiplies bytes four at a time only where no weight is -128."""
        return any(unit.narrow for unit in self.fours.values())

    def unit(self, operation: str) -> ProductUnit | None:
        """The unit for that operation, if it has it."""
        return next((unit for unit in self.products if unit.operation == operation), None)

    def has(self, operation: str) -> bool:
        """Whether it has a unit for that operation."""
        return self.unit(operation) is not None

    def multiplies(self, dtype: DType, inputs: int = 1) -> ProductUnit | None:
        """The unit for products of two numbers of a type, so many at a time, if it has one."""
        fitting = (unit for unit in self.products if unit.x is unit.weights is dtype)
        return next((unit for unit in fitting if unit.shape == (1, 1, inputs)), None)

    def tiles(self, dtype: DType) -> ProductUnit | None:
        """The unit for products of images of a type in tiles of registers, if it has one."""
        return next((unit for unit in self.products if unit.x is dtype and unit.operation.startswith("tile_")), None)

    def blocks(self, dtype: DType) -> ProductUnit | None:
        """The unit for products of blocks of two positions of images of a type by two channels, if it has one."""
        return next((unit for unit in self.products if unit.x is dtype and unit.shape[:2] == (2, 2)), None)

    def outer(self, dtype: DType) -> ProductUnit | None:
        """The unit for outer products of images of a type and weights, if it has one."""
        return next((unit for unit in self.products if unit.x is dtype and unit.operation.startswith("outer_")), None)

    def wants_blocks(self, dtype: DType) -> bool:
        """Whether a unit for products of images of a type wants blocks of channels of its own."""
        return self.widest_block(dtype) > 0

    def widest_block(self, dtype: DType) -> int:
        """Channels of the widest blocks of images of a type that a unit wants, 0 if none wants any: 64 bytes of tiles,
        16 of outer products, 8 of products of blocks."""
        units = (self.tiles(dtype), 64), (self.outer(dtype), 16), (self.blocks(dtype), 8)
        return next((size // dtype.bytes for unit, size in units if unit is not None), 0)

    @property
    def rounds_in_integers(self) -> bool:
        """Whether sums times factors in f32 are computed faster in fixed point (``requantize.even_factors``): without
        an FPU, and where vectors are of integers only."""
        return not self.float_unit or self.has("dot16")

    def lanes_of(self, *dtypes: DType) -> int:
        """Elements of a vector that fits the registers in the widest of these types; f32 at least, in which narrower
        types are computed."""
        return max(1, self.lanes * 4 // max(4, *(dtype.bytes for dtype in dtypes)))


def for_precision(machine: Machine, precision: str) -> Machine:
    """``machine`` with the blocks for a precision: those of fp16 have vectors of f16, or both have rows of tiles, of
    which those of bf16 also multiply weights in blocks and caches."""
    halves = machine.multiplies(DType.F16) or machine.tiles(DType.F16)
    units = {"fp16": halves, "bf16": machine.tiles(DType.BF16)}
    if units.get(precision) is None:
        return machine
    return replace(in_halves(machine), bf16_tiles=precision == "bf16")


def in_halves(machine: Machine) -> Machine:
    """``machine`` with blocks that vectors of f16 fit in."""
    return replace(machine, block=max(machine.block, 2 * machine.lanes))


def with_product(machine: Machine, unit: ProductUnit) -> Machine:
    """``machine`` with ``unit`` in place of its own for that operation."""
    others = tuple(each for each in machine.products if each.operation != unit.operation)
    return replace(machine, products=(*others, unit))
