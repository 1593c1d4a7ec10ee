"""Lower bounds of a network's time on a machine: its multiplies, its bytes and its launches.

Multiplies run at the measured peak of the machine, times what an instruction for narrower numbers multiplies at once.
Activations arrive at the rate at which the machine reads an array of a kernel's operands, weights at that of an array
of all that a run touches, since a run reads each weight once.  Launches are those of a device's kernels, or the
barriers at which threads meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tenon.machine.codegen.threads import Sharing, barriers, firsts
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.loops import Buffer, Instruction, Kernel
from tenon.machine.kernel_ir.walk import operations, statements
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.kernels.machine import Machine
from tenon.machine.plan.program import Call, Place, Program, Region, walk
from tenon.machine.proofs.count import count

_MATRIX_UNIT = {2: 16.0, 1: 32.0}
"""Products that the matrix units of a GPU add in the time of one fp32 multiply-add of the same number of threads, by
the bytes of an element: those of compute capability 9.0, by its data sheet; older ones have half as many."""

_SMALL_MAP = 64
"""Positions of an image too small to hide what a kernel does besides multiplying."""

_FEW_CHANNELS = 4
"""Input channels of a first layer, at most."""

_WASTED = 1.15
"""Executed over needed products, from which padding of tiles is named as a reason."""


@dataclass(frozen=True)
class MachineRates:
    """``macs``: fp32 multiply-adds per second of all threads.  ``bandwidth`` gives bytes per second for the number of
    bytes that are read again and again.  ``launch`` is seconds of a barrier of all threads, or of a kernel's launch on
    a device."""

    macs: float
    bandwidth: Callable[[int], float]
    launch: float = 0.0


@dataclass(frozen=True)
class Work:
    """Requirements of a layer: ``products``, the fewest that the layer or its algorithm has; ``executed``, with those
    of tiles' padding; how many products run in the time of an fp32 multiply-add (``rate``); bytes of weights and of
    activations; and barriers or launches."""

    products: int = 0
    executed: int = 0
    rate: float = 1.0
    weights: int = 0
    activations: int = 0
    launches: int = 0


@dataclass(frozen=True)
class LowerBound:
    """Milliseconds that multiplies, bytes and launches take at least.  Multiplies and bytes overlap; of the bytes,
    ``weights`` are the milliseconds of the weights."""

    multiplies: float
    bytes: float
    launches: float
    weights: float = 0.0

    @property
    def time(self) -> float:
        return max(self.multiplies, self.bytes) + self.launches

    @property
    def bound(self) -> str:
        """The part that takes longest: "multiplies", "bytes" or "launches"."""
        named = {"multiplies": self.multiplies, "bytes": self.bytes, "launches": self.launches}
        return max(named, key=lambda name: named[name])


def floor(work: Work, resident: int, rates: MachineRates) -> LowerBound:
    """The floor of a layer; ``resident`` bytes are touched by a run of the whole network."""
    multiplies = work.products / (rates.macs * work.rate)
    weights = work.weights / rates.bandwidth(resident) if work.weights else 0.0
    activations = work.activations / rates.bandwidth(work.activations) if work.activations else 0.0
    ms = 1e3
    return LowerBound(ms * multiplies, ms * (weights + activations), ms * work.launches * rates.launch, ms * weights)


def network_floor(floors: Iterable[LowerBound]) -> tuple[float, LowerBound]:
    """Milliseconds of all layers one after the other, and the sums of each part."""
    listed = list(floors)
    parts = zip(*((f.multiplies, f.bytes, f.launches, f.weights) for f in listed), strict=True)
    return sum(f.time for f in listed), LowerBound(*map(sum, parts))


# ------------------------------------------------------------------------------------------ what layers need
def resident_bytes(program: Program) -> int:
    """Bytes that a run touches: weights, inputs, outputs and activations."""
    memory = program.memory
    return memory.constant + memory.mutable + memory.activations


def layer_work(calls: Sequence[Call], meets: Sequence[bool], machine: Machine) -> Work:
    """Requirements of the calls of a layer; ``meets`` says which of them begin with a barrier or a launch."""
    needed = sum(call.macs for call in calls)
    each = [(count(call.kernel).macs, _rate(call.kernel, machine)) for call in calls] if needed else []
    executed = sum(products for products, _ in each)
    touched = [(place.region, buffer_bytes(b)) for call in calls for b, place in _operands(call)]
    return Work(
        min(needed, executed) if executed else needed,
        executed,
        executed / sum(products / rate for products, rate in each) if executed else 1.0,
        sum(size for region, size in touched if region is Region.CONSTANT),
        sum(size for region, size in touched if region is not Region.CONSTANT),
        sum(meets),
    )


def meetings(program: Program, *, on_device: bool) -> list[bool]:
    """For every call: whether it begins with a launch, or with a barrier of the program's threads."""
    calls = [call for call, _ in walk(program.items)]
    if on_device:
        return [True] * len(calls)
    if program.threads == 1:
        return [False] * len(calls)
    sharing = Sharing(program.threads)
    return list(barriers([sharing.part(call) for call in calls], firsts(program.items)))


def _operands(call: Call) -> Iterable[tuple[Buffer, Place]]:
    return zip(call.kernel.params, call.args, strict=True)


def _rate(kernel: Kernel, machine: Machine) -> float:
    """Products of a kernel in the time of an fp32 multiply-add, by the fastest unit that it uses; f32 otherwise."""
    named = operations(kernel).keys() | {s.name for s in statements(kernel.body) if isinstance(s, Instruction)}
    if "dot4_lane0" in named:
        named |= {"dot4_signed"}  # of which it is a form
    return max((_unit_rate(unit, machine) for unit in machine.products if unit.operation in named), default=1.0)


def _unit_rate(unit: ProductUnit, machine: Machine) -> float:
    if machine.launch is not None and unit.shape[0] > 1:
        return _MATRIX_UNIT.get(unit.x.bytes, 1.0)
    products = math.prod(unit.shape) / unit.time
    halves = 2.0 if unit.sums.bytes == 2 else 1.0  # twice as many lanes in a vector
    return halves * products if unit.shape[0] == 1 else products / machine.lanes


# ------------------------------------------------------------------------------------------------- reasons
@dataclass(frozen=True)
class LayerShape:
    """The facts of a layer that reasons follow from: the operator, the names of its kernels, the shapes of its output
    and of its weights, and the number of groups."""

    op: str
    kernels: tuple[str, ...]
    output: tuple[int, ...]
    filter: tuple[int, ...]
    group: int = 1


def reason(shape: LayerShape, work: Work, least: LowerBound, milliseconds: float) -> str:
    """Why a layer takes longer than its floor, in words; the likeliest reasons first."""
    reasons = []
    if not work.products:
        moved = all(name.startswith(("move", "reorder", "copy", "transpose", "halo")) for name in shape.kernels)
        reasons.append("moves elements to another layout" if moved else "element by element: functions and moves")
    if least.bound == "launches":
        reasons.append("a launch or barrier takes longer than the work")
    if least.weights > max(least.multiplies, least.bytes - least.weights):
        reasons.append("weights from memory")
    inputs = shape.filter[1] if len(shape.filter) > 1 else 0
    if work.products and shape.group > 1 and inputs == 1:
        reasons.append("depthwise: few products for each loaded element")
    elif work.products and 0 < inputs <= _FEW_CHANNELS:
        reasons.append("first layer: few input channels")
    if work.products and work.executed > _WASTED * work.products:
        reasons.append(f"tiles larger than the result: {work.executed / work.products - 1:.0%} more products")
    if work.products and len(shape.output) > 2 and math.prod(shape.output[2:]) < _SMALL_MAP:
        reasons.append("small map")
    if any(name.startswith("winograd") for name in shape.kernels):
        reasons.append("Winograd: transforms besides the products")
    if not reasons:
        share = least.time / milliseconds if milliseconds else 1.0
        reasons.append("near its floor" if share > 0.75 else f"loads and stores beside the {least.bound}")
    return "; ".join(reasons)
