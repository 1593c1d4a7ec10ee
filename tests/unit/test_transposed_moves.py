"""Transposed copies: tiles of four by four words or of sixteen by sixteen bytes in registers, where vectors can be
shuffled, and the same elements everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compiled import Library
from lowered import make_site, run_lowered
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.helium import DOT16
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.ops.move import Transpose

SHAPES = [(19, 37), (16, 16), (33, 48), (8, 4), (9, 5), (64, 7), (3, 18, 21), (2, 5, 6, 33)]
MACHINES = {
    "lanes4": Machine(lanes=4, block=4),
    "lanes8": Machine(lanes=8, block=8),
    "lanes16": Machine(lanes=16, block=16),
    "scalar": Machine(lanes=1),
    "pairs": Machine(lanes=4, products=(DOT2_I16, DOT16)),
}


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    """Any bits, NaN with payloads among them."""
    rng = np.random.default_rng(1)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, size).astype(np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int8", "int16", "int64"])
def test_compiled(dtype: str, tmp_path: Path) -> None:
    library = Library()
    cases = [
        (Transpose(tuple(reversed(range(len(s))))), [numbers(s, dtype)], m) for s in SHAPES for m in MACHINES.values()
    ]
    for op, arrays, machine in cases:
        for step in op.lower(make_site(op, arrays, machine, ())):
            library.add(step.kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    for op, (x,), machine in cases:
        expected = np.ascontiguousarray(x.T)
        for got in (run_lowered(op, [x], machine, ()), run_lowered(op, [x], machine, (), execute=library)):
            np.testing.assert_array_equal(got[0].view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int8", "int16"])
@pytest.mark.parametrize("name", MACHINES)
def test_vectors_are_shuffled(name: str, dtype: str) -> None:
    """Vectors of words of 32 bits and of bytes are shuffled by instructions."""
    op, arrays = Transpose((1, 0)), [numbers((24, 40), dtype)]
    (step,) = op.lower(make_site(op, arrays, MACHINES[name], ()))
    assert ("interleave4" in show(step.kernel)) == (name.startswith("lanes") and dtype.endswith("int8"))
    assert ("low_words" in show(step.kernel)) == (name.startswith("lanes") and dtype != "int16")
