"""A function of 8-bit integers as a table of 256 results."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.ir.build import Builder
from tenon.ir.loops import Kernel, cast, select
from tenon.ir.types import I32, DType
from tenon.kernels.image import Box, collapse
from tenon.kernels.parallel import deal

CODES = 256
"""Entries of a table."""


@dataclass(frozen=True)
class Lookup:
    """``output = table[input - lowest]``; where the i32 ``mask`` is zero the output is zero."""

    input: Box
    output: Box
    lowest: int
    mask: Box | None = None


@lru_cache(maxsize=256)
def lookup(s: Lookup) -> Kernel:
    """Parameters: x, the table, the mask if there is one, y."""
    source, out, *masks = collapse([s.input, s.output, *([s.mask] if s.mask else [])])
    k = Builder(f"lookup_{'x'.join(map(str, out.size))}", "Element by element by a table of 256 results")
    x = k.param("x", *source.shape, dtype=source.dtype)
    table = k.param("t", CODES, dtype=out.dtype)
    m = k.param("m", *masks[0].shape, dtype=I32) if masks else None
    y = k.param("y", *out.shape, dtype=out.dtype, out=True)
    with ExitStack() as stack:
        kinds, inside = deal(*out.size[:-1])
        loops = [("i", n, kind) for n, kind in zip(out.size[:-1], kinds, strict=True)]
        at = tuple(
            stack.enter_context(k.loop(name, n, kind=kind)) for name, n, kind in [*loops, ("j", out.size[-1], inside)]
        )
        code = stack.enter_context(k.bind("code", cast(x[source.spread(at)], I32) - s.lowest, CODES))
        value = table[code]
        if m is not None:
            kept = select(m[masks[0].spread(at)], cast(value, I32), 0)
            value = cast(kept, out.dtype)
        y[out.spread(at)] = value
    return k.done()


def lowest(dtype: DType) -> int:
    """The integer that the first entry of a table is for."""
    return -128 if dtype.is_signed else 0
