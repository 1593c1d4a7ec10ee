"""The relative times of instructions that add products, measured once per processor model."""

from __future__ import annotations

import math
from dataclasses import replace

from tenon.errors import TenonError
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernels.machine import with_product
from tenon.machine.targets import Target
from tenon.machine.targets.host_cpu import model
from tenon.machine.toolchain.cache import Cache, key
from tenon.network.graph.types import DType
from tenon.options import Options

_VERSION = "2"
"""Version of the timed kernels."""

_REFUSED = 4.0
"""Products of tiles that take longer than so many times what is known of the unit are computed by vectors: the system
refuses the registers."""


def probed(target: Target, options: Options) -> Target:
    """The target with measured times of products of pairs of bf16 and of tiles; unchanged if they cannot be measured.

    All tiles take the time of those of bf16: they are products by one unit of the processor.  Neighbours on the same
    core slow it down for seconds, so that a time of up to ``_REFUSED`` times the target's own is taken for that."""
    tile, machine = target.machine.tiles(DType.BF16), target.machine
    for measures in (target.machine.unit("dot2"), tile):
        figure = None if measures is None else _figure(target, measures, options)
        if measures is None or figure is None or (measures is tile and figure <= _REFUSED * tile.time):
            continue
        for unit in target.machine.products:
            alike = unit.operation == measures.operation
            if alike or (measures is tile and target.machine.tiles(unit.x) is unit):
                machine = with_product(machine, replace(unit, time=figure))
    return target if machine is target.machine else replace(target, machine=machine)


def _figure(target: Target, unit: ProductUnit, options: Options) -> float | None:
    cache, name = Cache(options.cache), key([unit.operation, _VERSION, model(), target.name])
    if kept := cache.get(name):
        return float(kept)
    try:
        figure = rounded(measured(target, unit))
    except (TenonError, OSError):
        return None
    cache.put(name, str(figure).encode())
    return figure


def measured(target: Target, unit: ProductUnit) -> float:
    """The time of a product relative to a multiply-add (throughput)."""
    from tenon.runtime.engine.peak import pairs_time, tiles_time

    return pairs_time(target) if unit.operation == "dot2" else tiles_time(target, unit)


def rounded(ratio: float) -> float:
    """The nearest power of two, at least 1, so that repeated measurements lead to the same decisions."""
    return 2.0 ** max(0, round(math.log2(ratio)))
