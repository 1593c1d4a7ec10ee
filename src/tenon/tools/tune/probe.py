"""The relative time of bf16 dot-product instructions, measured once per processor model."""

from __future__ import annotations

import math
from dataclasses import replace

from tenon.errors import TenonError
from tenon.machine.isa.bf16 import DOT2
from tenon.machine.kernels.machine import with_product
from tenon.machine.targets import Target
from tenon.machine.targets.host_cpu import model
from tenon.machine.toolchain.cache import Cache, key
from tenon.options import Options

_VERSION = "1"
"""Version of the timed kernel."""


def probed(target: Target, options: Options) -> Target:
    """The target with a measured time of products of pairs of bf16; unchanged if it cannot be measured."""
    figure = _figure(target, options)
    return (
        target if figure is None else replace(target, machine=with_product(target.machine, replace(DOT2, time=figure)))
    )


def _figure(target: Target, options: Options) -> float | None:
    cache, name = Cache(options.cache), key(["dot2", _VERSION, model(), target.name])
    if kept := cache.get(name):
        return float(kept)
    try:
        figure = rounded(measured(target))
    except (TenonError, OSError):
        return None
    cache.put(name, str(figure).encode())
    return figure


def measured(target: Target) -> float:
    """The time of a bf16 dot-product instruction relative to a multiply-add (throughput)."""
    from tenon.runtime.engine.peak import pairs_time

    return pairs_time(target)


def rounded(ratio: float) -> float:
    """The nearest power of two, at least 1, so that repeated measurements lead to the same decisions."""
    return 2.0 ** max(0, round(math.log2(ratio)))
