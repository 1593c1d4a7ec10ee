"""Attention of any number of keys in work groups, of 16-bit floats and of f32: results, proofs, and what is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from interpret import interpret
from tenon.machine.algorithms.attention import attends, fills, gains
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.kernels.flash_attention import chunk_of, flash_attention, shared_bytes
from tenon.machine.kernels.group_attention import group_attention
from tenon.machine.kernels.head_sizes import HeadSizes, MaskSizes
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.types import F32, DType
from tenon.network.ops.head_attention import HeadAttention

CUDA = find("cuda").machine
LONG = HeadSizes(8, 2048, 2048, 64, 0.125, DType.F16)
SIZES = {
    "one_chunk": HeadSizes(1, 3, 20, 16, 0.25, DType.F16),
    "chunks": HeadSizes(1, 5, 70, 32, 0.2, DType.F16),
    "shared": HeadSizes(2, 66, 20, 32, 0.2, DType.BF16, merged=True, values=64, group=2),
}


@pytest.mark.parametrize(
    "name", ["one_chunk", *(pytest.param(n, marks=pytest.mark.slow) for n in ("chunks", "shared"))]
)
def test_results(name: str) -> None:
    s = SIZES[name]
    rng = np.random.default_rng(0)
    shared = s.count // s.group
    shapes = (s.count, s.queries, s.depth), (shared, s.keys, s.depth), (shared, s.keys, s.channels)
    arrays = [rng.standard_normal((s.batch, *dims)).astype(s.dtype.numpy) for dims in shapes]
    expected = HeadAttention(s.scale, s.merged).reference(*arrays)
    y = np.zeros(s.result, s.dtype.numpy)
    interpret(
        flash_attention(s), [a.reshape(-1).view(np.uint16 if s.dtype is DType.BF16 else a.dtype) for a in (*arrays, y)]
    )
    atol = 2e-3 if s.dtype is DType.F16 else 2e-2
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), atol=atol)


@pytest.mark.parametrize("s", [*SIZES.values(), replace(LONG, keys=2000)], ids=[*SIZES, "long"])
def test_proofs(s: HeadSizes) -> None:
    assert prove(flash_attention(s)) > 0


def test_what_is_chosen() -> None:
    assert attends(LONG, CUDA)
    assert fills(LONG, CUDA)
    assert not fills(HeadSizes(3, 197, 197, 64, 0.125, DType.F16), CUDA)  # few blocks: the other kernel has more
    assert not attends(replace(LONG, causal=True), CUDA)
    assert not attends(replace(LONG, depth=80), CUDA)
    assert not attends(LONG, find("cuda-sm75").machine)
    for depth, chunk in ((16, 64), (32, 64), (64, 48), (128, 16)):
        s = replace(LONG, depth=depth)
        assert chunk_of(s) == chunk
        assert shared_bytes(s, chunk) <= 48 << 10


GROUPS = {
    "parts": HeadSizes(1, 5, 20, 8, 0.3, values=16),
    "masked": HeadSizes(
        2, 5, 40, 8, 0.3, values=32, group=2, causal=True, window=6, merged=True, mask=MaskSizes(1, 1, 40, 5)
    ),
}


@pytest.mark.parametrize("name", ["parts", pytest.param("masked", marks=pytest.mark.slow)])
def test_results_of_floats(name: str) -> None:
    s, machine = GROUPS[name], find("webgpu").machine
    rng = np.random.default_rng(0)
    shared = s.count // s.group
    shapes = (s.count, s.queries, s.depth), (shared, s.keys, s.depth), (shared, s.keys, s.channels)
    arrays = [rng.standard_normal((s.batch, *dims)).astype(np.float32) for dims in shapes]
    if s.mask is not None:
        arrays.append(rng.standard_normal((1, 1, s.keys, s.queries)).astype(np.float32))
    expected = HeadAttention(s.scale, s.merged, s.causal, s.window).reference(*arrays)
    kernel, y = group_attention(s, machine), np.zeros(s.result, np.float32)
    interpret(kernel, [*arrays, y])
    np.testing.assert_allclose(y, expected, atol=1e-6)
    assert prove(kernel) > 0


def test_what_is_chosen_of_floats() -> None:
    floats = replace(LONG, dtype=F32)
    for name in ("cuda", "opencl", "vulkan", "webgpu"):
        machine = find(name).machine
        assert gains(floats, machine) == (name != "webgpu")  # with half the shared memory
        assert not gains(replace(floats, count=1, queries=64), machine)  # blocks for few units
        assert not gains(replace(floats, depth=128), machine)  # the products have larger tiles
        assert not attends(replace(floats, length=True), machine)
        assert not attends(replace(floats, depth=6), machine)


def test_values_are_turned_by_the_load_of_the_matrix_unit() -> None:
    text = find_backend("cuda").kernel(flash_attention(LONG))
    assert text.count("mma_f16_k16_turned(") == 1 + 64 // 8
    assert "ldmatrix" in text
