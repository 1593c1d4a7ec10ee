"""Attention of any number of keys in work groups, of 16-bit floats and of f32: results, proofs, and what is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from check_kernels import check
from interpret import interpret
from tenon.machine.algorithms.attention import attends, gains
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.flash_attention import FlashTile, flash_attention, tile_of
from tenon.machine.kernels.group_attention import group_attention
from tenon.machine.kernels.head_sizes import HeadSizes, MaskSizes
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.types import F32, DType
from tenon.network.ops.head_attention import HeadAttention

CUDA = find("cuda").machine
LONG = HeadSizes(8, 2048, 2048, 64, 0.125, DType.F16)
SIZES = {
    "one_chunk": (HeadSizes(1, 3, 20, 16, 0.25, DType.F16), FlashTile(2, 1, 32)),
    "causal": (HeadSizes(1, 33, 40, 16, 0.25, DType.F16, causal=True), FlashTile(1, 1, 32)),
    "ahead": (HeadSizes(1, 33, 100, 16, 0.2, DType.F16), FlashTile(1, 2, 32, ahead=True)),
    "shared": (
        HeadSizes(2, 33, 20, 32, 0.2, DType.BF16, merged=True, values=64, group=2, causal=True),
        FlashTile(1, 2, 32),
    ),
    "long": (replace(LONG, keys=2000), FlashTile(8, 1, 64, ahead=True)),
}


@pytest.mark.parametrize(
    "name", ["one_chunk", "causal", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ahead", "shared"))]
)
def test_results(name: str) -> None:
    s, tile = SIZES[name]
    rng = np.random.default_rng(0)
    shared = s.count // s.group
    shapes = (s.count, s.queries, s.depth), (shared, s.keys, s.depth), (shared, s.keys, s.channels)
    arrays = [rng.standard_normal((s.batch, *dims)).astype(s.dtype.numpy) for dims in shapes]
    expected = HeadAttention(s.scale, s.merged, s.causal).reference(*arrays)
    y = np.zeros(s.result, s.dtype.numpy)
    bits = [a.reshape(-1).view(np.uint16 if s.dtype is DType.BF16 else a.dtype) for a in (*arrays, y)]
    interpret(flash_attention(s, tile), bits)
    atol = 2e-3 if s.dtype is DType.F16 else 2e-2
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), atol=atol)


@pytest.mark.parametrize("name", SIZES)
def test_proofs(name: str) -> None:
    assert prove(flash_attention(*SIZES[name]), spaces=CUDA.spaces) > 0


@pytest.mark.parametrize("name", ["causal", "ahead"])
def test_the_second_check_accepts_what_is_proved(name: str) -> None:
    """It evaluates every iteration, so that it is for small kernels."""
    s, tile = SIZES[name]
    assert check(show(flash_attention(replace(s, queries=20), replace(tile, tiles=1)))) > 0


def test_what_is_chosen() -> None:
    assert attends(LONG, CUDA)
    assert tile_of(LONG, CUDA) == FlashTile(8, 1, 64, ahead=True)
    assert tile_of(replace(LONG, queries=1000), CUDA) == FlashTile(4, 1, 64, ahead=True)  # more blocks
    assert tile_of(replace(LONG, queries=100), CUDA) == FlashTile(2, 1, 64, ahead=True)
    assert attends(replace(LONG, causal=True), CUDA)
    assert not attends(replace(LONG, causal=True, window=100), CUDA)
    assert not attends(replace(LONG, scale=-0.1), CUDA)
    assert not attends(replace(LONG, depth=72), CUDA)
    assert not attends(LONG, find("cuda-sm75").machine)
    space = CUDA.space("shared")
    assert space is not None
    for depth, chunk in ((16, 64), (32, 64), (64, 64), (128, 64)):
        s = replace(LONG, depth=depth)
        tile = tile_of(s, CUDA)
        assert tile is not None
        assert tile.chunk == chunk
        assert tile.bytes(s) <= space.bytes


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


def test_factors_are_loaded_and_turned_by_the_matrix_unit() -> None:
    """The exponentials are not stored: they are factors as they lie in registers."""
    text = find_backend("cuda").kernel(flash_attention(LONG, FlashTile(4, 1, 64)))
    assert text.count(" values_f16(") == 1 + 64 // 16
    assert text.count(" scores_f16(") == 1 + 64 // 16
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in text
    assert text.count("ps_") <= 64  # results only
