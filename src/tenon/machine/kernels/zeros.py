"""Zeros in a whole tensor."""

from __future__ import annotations

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.network.graph.dtype import DType


def zeros(dtype: DType, count: int) -> Kernel:
    """A kernel that stores ``count`` zeros of a type."""
    k = Builder(f"zeros_{count}_{dtype}", f"zeros in {count} elements")
    out = k.param("y", count, dtype=dtype, out=True)
    with k.loop("i", count, kind="parallel") as i:
        out[i] = 0.0 if dtype.is_float or dtype.is_small_float else 0
    return k.done()
