"""The cost model that algorithms share: time in multiply-adds of a vector of f32."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels import lane_products, word_products
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import EXCHANGED, deal
from tenon.machine.kernels.storage_types import NARROW
from tenon.network.graph.types import DType


# ------------------------------------------------------------------------------------------------- inner loops
@dataclass(frozen=True)
class Arithmetic:
    """Time of a step of the inner loop in multiply-adds of f32: of a product of vectors, and of widening a vector of
    weights and a broadcast value before.  A product takes ``operands`` vectors of weights, and as many values;
    ``lanes``: what a machine of which a product may take one lane of a vector can take them of (``F32``, ``F16``, and
    bytes by ``word_products``)."""

    product: float = 1.0
    weight: float = 0.0
    value: float = 0.0
    operands: int = 1
    lanes: str = ""

    @property
    def plain(self) -> bool:
        """Whether products are of f32, none of which is widened before."""
        return replace(self, lanes="") == IN_F32


IN_F32 = Arithmetic()
_BY_F32, _BY_F16 = "f32", "f16"

_WIDENED = 1.0
"""Two instructions; one runs on a port that the multiplies leave idle."""


_WIDENED_BYTE = 1.5
"""Widening i8 to f32 takes one more conversion, between integers and floats."""


def pair_time(machine: Machine) -> float:
    """Time of a product of pairs of bf16."""
    unit = machine.multiplies(DType.BF16, 2)
    assert unit is not None
    return unit.time


def arithmetic(s: Conv, machine: Machine) -> Arithmetic:
    """The arithmetic of the inner loop of direct sums, besides loads."""
    if s.pairs(machine):
        return Arithmetic(pair_time(machine))
    if s.halves(machine):
        return Arithmetic(lanes=_BY_F16)
    weight = _WIDENED_BYTE if s.weights is DType.I8 else _WIDENED * (s.weights in NARROW)
    narrow = s.x.dtype in NARROW
    return Arithmetic(1.0, weight, _WIDENED * narrow, lanes="" if narrow else _BY_F32)


def steps(s: Conv, machine: Machine) -> int:
    """Steps of the inner loop of direct sums for one position: taps and channels, or pairs of them."""
    channels = -(-(s.x.channels // s.groups) // (2 if s.pairs(machine) == "channels" else 1))
    return max(1, s.kernel[0] * s.row(machine) * channels)


def step_time(positions: int, vecs: int, machine: Machine, a: Arithmetic = IN_F32) -> float:
    """Time of one step of the inner loop: ``positions * vecs`` multiply-adds, ``vecs`` weight loads and
    ``positions`` broadcasts, which a machine may fold into the multiply-add."""
    words = a.lanes in (word_products.POSITIONS, word_products.CHANNELS)
    values = word_products.loads(positions, a.lanes) if words else positions
    loads: float = a.operands * (vecs + values)
    if not machine.folds_broadcast:
        loads *= 1.1
    # More than two weights at a time leave the compiler less room; measured 2 % a vector.
    widened = a.operands * (vecs * a.weight + positions * a.value)
    adds = positions * vecs * (1 + 0.02 * max(0, vecs - 2)) * a.product + widened
    waits = max(adds, machine.chains)
    if machine.fused and a.plain:
        # With hardly more sums than hide the latency, not every multiply-add is issued when it could be: 8 take 9.1 to
        # 9.4 of the time of one among many, 10 take 10.6, 12 take 12.1.
        waits = (adds**5 + machine.chains**5) ** 0.2
    return max(waits, loads) + 0.04 * loads


def fits(positions: int, vecs: int, machine: Machine, a: Arithmetic = IN_F32) -> bool:
    """Do accumulators, weights and a broadcast value for each operand stay in registers, with one to spare, and one for
    a product that is not added by the same instruction?"""
    folded = machine.folds_broadcast and vecs == a.operands == 1
    free = machine.registers - (1 if machine.fused and a.plain else 2)
    return positions * vecs + a.operands * (vecs + (not folded)) <= free


def fits_by_lane(positions: int, vecs: int, machine: Machine, a: Arithmetic) -> bool:
    """The same where a product takes a lane of a vector, if there are such products in this arithmetic."""
    if a.lanes in (_BY_F32, _BY_F16):
        return not machine.by_lane or lane_products.fits(machine, positions, vecs, half=a.lanes == _BY_F16)
    return not a.lanes or word_products.fits(machine, positions, vecs, a.lanes)


# ------------------------------------------------------------------------------------------ memory and threads
def barrier(threads: int) -> float:
    """Time until so many threads have met, in multiply-adds of a vector: 0.14 to 0.35 us for two, 1.3 for sixteen."""
    return 1000.0 + 450.0 * threads if threads > 1 else 0.0


def overlapped(compute: float, memory: float) -> float:
    """Arithmetic and memory traffic at the same time: the longer, and some of the shorter that shows."""
    return max(compute, memory) + 0.3 * min(compute, memory)


def work_items(*extents: int, inside: int = 1, threads: int = 1) -> int:
    """The work items of nested loops by ``kernels.parallel.deal``; the loops inside all of them have ``inside``
    iterations in all."""
    kinds, last = deal(*extents, threads=threads)
    items = math.prod(n for n, kind in zip(extents, kinds, strict=True) if kind == "parallel")
    return max(1, items * (inside if last == "parallel" else 1))


def slowest(items: int, threads: int) -> float:
    """The share of all work that is done when the thread that has the most of ``items`` equal ones is done."""
    return -(-items // threads) / items if threads > 1 else 1.0


def streamed(threads: int) -> float:
    """How many times as much of main memory several threads get as one: about four processors' worth."""
    return float(min(threads, 4))


def gathered(image: int, weights: float, threads: int, stream: float, parts: float, again: float = 0.0) -> float:
    """The time in which several threads get what they read: ``image`` bytes in all, of those that other processors
    made, and ``weights``, of which each thread reads ``parts`` first and as many as ``again`` from a nearer cache."""
    own = weights * (max(parts, 1 / threads) + again) / stream
    return max(own, weights / (stream * streamed(threads))) + image / threads * (1 - 1 / threads) / EXCHANGED


# ---------------------------------------------------------------------------------------------------- devices
DEVICE_CYCLES = 20.0
"""Cycles of a device in the unit of ``Cost.time``: those between two multiply-adds of one thread of a direct sum."""

DEVICE_BYTES = 24
"""Bytes of memory that reach a unit of a device in a cycle."""

DEVICE_LATENCY, DEVICE_BARRIER, DEVICE_ENDS, DEVICE_LAUNCH = 600, 40, 1200, 2000
"""Cycles until memory answers, of a barrier, of what follows the sums, and of one more launch."""

DEVICE_REGISTERS = 64 << 10
"""Registers of a unit of a device."""


def fitting(launch: Launch, threads: int, registers: int) -> int:
    """Blocks of so many threads, with as many registers each, that a unit of a device can run at the same time."""
    return min(launch.resident // threads, DEVICE_REGISTERS // (threads * registers))


def waves(launch: Launch, blocks: int, most: int) -> list[int]:
    """Blocks that run at the same time, at ``most`` so many, on the unit of a device that has the most of ``blocks``:
    one number for each time."""
    each = -(-blocks // launch.units)
    together = max(1, min(each, most))
    full, rest = divmod(each, together)
    return [together] * full + [rest] * (rest > 0)


@dataclass(frozen=True)
class ComputedImage:
    """Cycles in which a block computes the image of a step, where it does not copy it: ``issued`` of the unit, and
    ``alone`` until it is there, which blocks beside it may use."""

    issued: float
    alone: float


COPIED = ComputedImage(0.0, 0.0)
