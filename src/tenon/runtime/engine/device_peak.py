"""The measured peak of a device: multiply-adds per second and bytes per second from and to its memory.

Both are measured with kernels in loop IR, printed and launched like those of every network, by the device's clock.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

from tenon.compilation import resolved
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import Call, Memory, Place, Port, Program, Region
from tenon.machine.targets import find
from tenon.network.graph.types import F32, TensorType
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.engine import open_bundle
from tenon.runtime.engine.peak import chain
from tenon.runtime.engine.timing import measure

_CHAINS = 8  # independent multiply-adds of an item
_STEPS = 4  # multiply-adds of each chain per loop iteration
_ITERATIONS = 256
_ITEMS_PER_UNIT = 2048
_COPIED = 64 << 20  # bytes: more than the caches of most devices hold
_ROUNDS = 5
_LAUNCHES = 256
_MOST_UNITS = 1024
_UNKNOWN_UNITS = 256  # as many as large GPUs have: languages such as Vulkan do not tell


@lru_cache(maxsize=32)
def copy_bandwidth(target: str, nbytes: int) -> float:
    """Bytes read and written per second by a copy, of ``nbytes`` in all: from the caches of a device, where these hold
    them.  Sizes are rounded up to a power of two between 1 MiB and twice ``_COPIED``."""
    size = min(max(1 << (max(nbytes, 1) - 1).bit_length(), 1 << 20), 2 * _COPIED)
    floats = size // 8
    took = _seconds(_copy(floats), floats, target) - _seconds(_copy(256), 256, target)
    return size / max(took, 1e-9)


@lru_cache(maxsize=4)
def launch_seconds(target: str) -> tuple[float, float]:
    """Seconds of a launch in a row of launches, each of which reads what the one before has written; and what the
    device's clock, read before and after a kernel, adds to its time."""
    times = []
    for calls in (1, 1 + _LAUNCHES):
        program = chain(calls, 1024, 1)
        with open_bundle(Bundle.of(program, resolved(Options.from_environment(threads=1), find(target)))) as engine:
            engine.run(copy=False)
            times.append(measure(partial(engine.run, copy=False), 4 * _ROUNDS).min / 1e3)
            timed = min(int(engine.device_times()[-1]) for _ in range(_ROUNDS)) / 1e9
    launch = max(0.0, times[1] - times[0]) / _LAUNCHES
    return launch, max(0.0, timed - launch)


class DevicePeak(NamedTuple):
    """fp32 multiply-adds per second of the whole device, and bytes read and written per second by a copy in its
    memory."""

    macs: float
    bandwidth: float


@lru_cache(maxsize=4)
def device_peak(target: str, units: int) -> DevicePeak:
    """Measured once per process on the device that ``target`` chooses, with that many compute ``units`` (0: unknown).

    Raises ResourceError if there is none, or if it fails.
    """
    items = min(units or _UNKNOWN_UNITS, _MOST_UNITS) * _ITEMS_PER_UNIT
    macs = items * _CHAINS * _STEPS * _ITERATIONS
    floats = _COPIED // 4
    return DevicePeak(
        macs / _seconds(_multiply_adds(items), items, target), 2 * _COPIED / _seconds(_copy(floats), floats, target)
    )


def _multiply_adds(items: int) -> Kernel:
    """Independent chains x = x * a + b in every item; they tend to 1, so that nothing overflows."""
    k = Builder("peak_multiply_adds")
    given = k.param("given", items)
    out = k.param("out", items, out=True)
    with k.loop("item", items, kind="parallel") as item:
        x = k.local("x", _CHAINS)
        seed = k.let("seed", given[item])
        with k.unroll("i", _CHAINS) as i:
            x[i] = seed
        with k.loop("iteration", _ITERATIONS), k.unroll("step", _STEPS), k.unroll("i", _CHAINS) as i:
            x[i] = x[i] * 0.999 + 0.001
        with k.unroll("i", _CHAINS - 1) as i:
            x[0] = x[0] + x[i + 1]
        out[item] = x[0]
    return k.done()


def _copy(floats: int) -> Kernel:
    """Each item copies four floats at once: otherwise large devices are busy with starting threads."""
    k = Builder("peak_copy")
    given = k.param("given", floats)
    out = k.param("out", floats, out=True)
    with k.loop("item", floats // 4, kind="parallel") as item:
        out.vec(4)[item] = given.vec(4)[item]
    return k.done()


def _seconds(kernel: Kernel, floats: int, target: str) -> float:
    """The shortest time of some launches of a kernel, from one part of the activations to another."""
    size = 4 * floats
    places = (Place(Region.ACTIVATIONS, 0), Place(Region.ACTIVATIONS, size))
    port = Port("out", TensorType(F32, (1,)), 0)
    call = Call(kernel, places, kernel.name, kernel.name)
    program = Program(kernel.name, (), (port,), (call,), (), Memory(0, 64, 2 * size, 0))
    with open_bundle(Bundle.of(program, resolved(Options.from_environment(threads=1), find(target)))) as engine:
        return min(int(engine.device_times()[-1]) for _ in range(_ROUNDS)) / 1e9
