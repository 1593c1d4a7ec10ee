"""The measured peak of a machine: multiply-adds per second, bytes read per second, and what a barrier takes.

Both are measured with kernels in loop IR, compiled like every network, so that percentages of the peak show the
headroom of kernels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tenon.compilation import resolved
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, bitcast, cast, dot2
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tile_blocks import RegisterTiles, TileContext, TileRows, TileRun, end, group
from tenon.machine.plan.program import Call, Memory, Place, Port, Program, Region, StoredConstant
from tenon.machine.targets import Target, find
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.targets.runner import Runner
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType, TensorType
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.engine import open_bundle
from tenon.runtime.engine.timing import measure

_SPARE = 6  # registers that are not accumulators
_CHAINS = 24  # independent multiply-adds: above latency times throughput of all known processors
_STEPS = 4  # multiply-adds of each chain per loop iteration
_ITERATIONS = 20_000
_ROUNDS = 25
_UNROLL = 8
_TILE_STEPS, _TILE_ROUNDS = 16, 1000
_TRAFFIC = 32 << 20  # bytes read per timed run
_MEETINGS = 256  # barriers per timed run
_SHARED = 4096  # items of a kernel that threads share: much smaller ones are run by one thread alone


def peak_macs(target: str = "host", runner: Runner | None = None) -> float:
    """fp32 multiply-adds per second of one thread, on ``runner`` if given."""
    return _peak_here(target) if runner is None else _peak(target, runner)


@lru_cache(maxsize=4)
def _peak_here(target: str) -> float:
    return _peak(target, None)


def _peak(target: str, runner: Runner | None) -> float:
    row = find(target)
    kernel, chains = _multiply_adds(row.machine)
    lanes = row.machine.lanes
    rng = np.random.default_rng(0)
    seeds = rng.uniform(0.5, 1.5, (chains + 2, lanes)).astype(np.float32)
    seeds[0], seeds[1] = 0.999, 0.001  # the chains tend to 1: no overflow, no denormals
    return chains * lanes * _STEPS * _ITERATIONS / _seconds(kernel, seeds, row, runner)


def pairs_time(target: Target) -> float:
    """The time of a bf16 pair product relative to that of an fp32 multiply-add, on a machine that has both. They are
    timed alternately, at the same clock rate.
    """
    lanes = target.machine.lanes
    plain, chains = _multiply_adds(target.machine)
    pairs, _ = _multiply_adds(target.machine, pairs=True)
    seeds = np.full((chains + 2, lanes), 0.5, np.float32)
    times = [(_seconds(plain, seeds, target), _seconds(pairs, seeds, target)) for _ in range(3)]
    return min(t for _, t in times) / min(t for t, _ in times)


def tiles_time(target: Target, unit: ProductUnit) -> float:
    """The time of a product of tiles in registers, with its loads, relative to that of an fp32 multiply-add.  Where the
    system refuses the registers it is that of what kernels compute instead.
    """
    plain, chains = _multiply_adds(target.machine)
    seeds = np.full((chains + 2, target.machine.lanes), 0.5, np.float32)
    tiles = _tile_products(unit)
    ones = np.ones(_TILE_STEPS * 2 * 256, np.int32) * (0x3F803F80 if unit.x is DType.BF16 else 0x01010101)
    times = [(_seconds(plain, seeds, target), _seconds(tiles, ones, target)) for _ in range(3)]
    multiply_add = min(t for t, _ in times) / (chains * _STEPS * _ITERATIONS)
    return min(t for _, t in times) / (4 * _TILE_STEPS * _TILE_ROUNDS) / multiply_add


@lru_cache(maxsize=64)
def read_bandwidth(nbytes: int, target: str = "host", threads: int = 1) -> float:
    """Bytes per second at which ``threads`` threads together repeatedly read an array of about ``nbytes``, each a part.

    A small array comes from the first cache, a large one from memory.  Sizes are rounded up to a power of two.
    """
    row = find(target)
    step = 4 * row.machine.lanes * _UNROLL * threads
    size = min(max(1 << max(0, math.ceil(math.log2(max(nbytes, 1)))), step), 256 << 20)
    iterations, rounds = size // step, max(1, _TRAFFIC // size)
    kernel = _reads(row.machine, iterations, rounds, threads)
    data = np.ones(iterations * step // 4, np.float32)
    return data.nbytes * rounds / _seconds(kernel, data, row, threads=threads)


@lru_cache(maxsize=4)
def barrier_seconds(threads: int, target: str = "host") -> float:
    """Seconds of a barrier of so many threads; 0 for one thread."""
    if threads == 1:
        return 0.0
    alone, together = (_chain_seconds(n, find(target)) for n in (1, threads))
    return max(0.0, together - alone / threads) / _MEETINGS


def _chain_seconds(threads: int, target: Target) -> float:
    program = chain(_MEETINGS, _SHARED, threads)
    with open_bundle(_bundle(program, target, threads), threads=threads) as engine:
        return measure(lambda: engine.run(copy=False), _ROUNDS).min / 1e3


def chain(calls: int, items: int, threads: int) -> Program:
    """A program of ``calls`` kernels of ``items`` work items, each of which reads what the one before has written."""
    k = Builder("one_step")
    given, out = k.param("given", items), k.param("out", items, out=True)
    with k.loop("item", items, kind="parallel") as item:
        out[item] = given[(items - 1) - item] + 1.0
    kernel, size = k.done(), 4 * items
    places = [Place(Region.ACTIVATIONS, i % 2 * size) for i in range(calls + 1)]
    listed = tuple(Call(kernel, (places[i], places[i + 1]), f"step{i}", "Add") for i in range(calls))
    port = Port("out", TensorType(F32, (1,)), 0)
    return Program("chain", (), (port,), listed, (), Memory(0, 64, 2 * size, 2 * size), threads=threads)


def _multiply_adds(machine: Machine, *, pairs: bool = False) -> tuple[Kernel, int]:
    """A kernel of independent chains x = x * a + b, or for ``pairs`` x = x + a . b, and the number of chains."""
    lanes, chains = machine.lanes, min(_CHAINS, machine.registers - _SPARE)
    k = Builder("peak_pairs" if pairs else "peak_multiply_adds")
    given = k.param("given", chains + 2, lanes)
    out = k.param("out", lanes, out=True)
    x = k.local("x", chains, lanes=lanes)
    a, b = k.let("a", given.vec(lanes)[0, 0]), k.let("b", given.vec(lanes)[1, 0])
    with k.unroll("i", chains) as i:
        x[i] = given.vec(lanes)[i + 2, 0]
    with k.loop("iteration", _ITERATIONS), k.unroll("step", _STEPS), k.unroll("i", chains) as i:
        x[i] = dot2(x[i], bitcast(a, DType.B2), bitcast(b, DType.B2)) if pairs else x[i] * a + b
    with k.unroll("i", chains - 1) as i:
        x[0] = x[0] + x[i + 1]
    out.vec(lanes)[0] = x[0]
    return k.done(), chains


def _tile_products(unit: ProductUnit) -> Kernel:
    """A kernel of blocks of 2 x 2 tiles, whose factors are in the first cache; parameters: these and the result."""
    k = Builder("peak_tiles")
    x = k.param("x", _TILE_STEPS // 2, 32, 16, dtype=DType.B2 if unit.x is DType.BF16 else DType.Q8)
    w = k.param("w", 1, _TILE_STEPS, 2, 16, 16, dtype=DType.B2 if unit.x is DType.BF16 else DType.I32)
    out = k.param("out", 16, out=True)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        out.vec(16)[0] = cast(total, F32)

    rows = TileRows(
        words=16,
        apart=64,
        loops=((2, 0), (_TILE_STEPS // 2, 2048)),
        first=lambda row, col: (x, (0, col, 0)),
        word=lambda row, col, turns, q: x[turns[1], col, q],
    )
    p = TileContext(k, RegisterTiles(16, 2, 2), unit, (1, 32), 32, store, ahead=False)
    with k.loop("round", _TILE_ROUNDS):
        group(p, rows, (w, Index()), (Index(), Index(), Index()), TileRun(0, 1, 2))
    end(k)
    return k.done()


def _reads(machine: Machine, iterations: int, rounds: int, threads: int) -> Kernel:
    """A kernel that sums an array ``rounds`` times, a part in each thread."""
    lanes = machine.lanes
    k = Builder("peak_reads")
    given = k.param("given", threads, iterations, _UNROLL * lanes)
    out = k.param("out", threads, lanes, out=True)
    with k.loop("part", threads, kind="parallel") as part:
        x = k.local("x", _UNROLL, lanes=lanes)
        with k.unroll("i", _UNROLL) as i:
            x[i] = given.vec(lanes)[part, 0, i]
        with k.loop("round", rounds), k.loop("iteration", iterations) as t, k.unroll("i", _UNROLL) as i:
            x[i] = x[i] + given.vec(lanes)[part, t, i]
        with k.unroll("i", _UNROLL - 1) as i:
            x[0] = x[0] + x[i + 1]
        out.vec(lanes)[part, 0] = x[0]
    return k.done()


def _bundle(program: Program, target: Target, threads: int = 1) -> Bundle:
    return Bundle.of(program, resolved(Options.from_environment(threads=threads), target))


def _seconds(kernel: Kernel, data: Array, target: Target, runner: Runner | None = None, threads: int = 1) -> float:
    """The shortest time of some runs of a kernel over ``data``, which are the weights of a network of one call, and all
    that it reads."""
    given = [Place(Region.CONSTANT, 0)] * (len(kernel.params) - 1)
    places = (*given, Place(Region.MUTABLE, 0))
    port = Port("out", TensorType(F32, (threads * target.machine.lanes,)), 0)
    call = Call(kernel, places, kernel.name, kernel.name)
    memory = Memory(data.nbytes, 4 * threads * target.machine.lanes, 0, 0)
    program = Program(kernel.name, (), (port,), (call,), (StoredConstant(0, data),), memory, threads=threads)
    bundle = _bundle(program, target, threads)
    if runner is not None or not runs_here(target.name):
        return RemoteBundle(bundle, runner).time(_ROUNDS).min / 1e3
    with open_bundle(bundle, threads=threads) as engine:
        return measure(lambda: engine.run(copy=False), _ROUNDS).min / 1e3
