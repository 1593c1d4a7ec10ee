"""Products of two matrices of bytes that a run computes: by outer products where that is estimated to be faster."""

from __future__ import annotations

from dataclasses import replace

from tenon.machine.algorithms.integers import FINISH
from tenon.machine.algorithms.outer_matrices import product_time, ranked
from tenon.machine.kernels.integer_matmul_words import Words
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_products import OuterTiles
from tenon.machine.kernels.outer_words import of_one, supported

_BYTES = 4
"""Products of bytes that one operation of vectors adds up."""


def tile_of(p: Words, machine: Machine) -> OuterTiles | None:
    """The blocks of outer products; None: by vectors."""
    if not supported(p, machine):
        return None
    one, single = of_one(p), replace(machine, threads=1)
    best = ranked(one, single)[0]
    by_vectors = one.y.w * one.y.channels / machine.lanes * (one.x.channels / _BYTES + FINISH)
    return best if product_time(one, single, best) < by_vectors else None
