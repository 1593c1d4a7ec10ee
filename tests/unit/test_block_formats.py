"""Weights in blocks, element by element as ggml defines them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tenon.machine.kernels.block_formats import FORMATS, dequantised
from tenon.network.graph.graph import Array

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block, "<f2", 1, at)[0])


def q2_k(block: bytes, j: int) -> float:
    """scales[16], qs[64], d, dmin."""
    code = block[16 + j // 128 * 32 + j % 32] >> 2 * (j % 128 // 32) & 3
    fine = block[j // 16]
    return half(block, 80) * (fine & 15) * code - half(block, 82) * (fine >> 4)


def q3_k(block: bytes, j: int) -> float:
    """hmask[32], qs[64], scales[12], d."""
    low = block[32 + j // 128 * 32 + j % 32] >> 2 * (j % 128 // 32) & 3
    high = block[j % 32] >> (j // 32) & 1
    part = j // 16
    fine = block[96 + part % 8] >> 4 * (part // 8) & 15 | (block[104 + part % 4] >> 2 * (part // 4) & 3) << 4
    return half(block, 108) * (fine - 32) * ((low | high << 2) - 4)


def iq4_nl(block: bytes, j: int) -> float:
    """d, qs[16]."""
    return half(block, 0) * TABLE[block[2 + j % 16] >> 4 * (j // 16) & 15]


def iq4_xs(block: bytes, j: int) -> float:
    """d, scales_h, scales_l[4], qs[128]."""
    part = j // 32
    high = int.from_bytes(block[2:4], "little") >> 2 * part & 3
    fine = block[4 + part // 2] >> 4 * (part % 2) & 15 | high << 4
    code = block[8 + part * 16 + j % 16] >> 4 * (j % 32 // 16) & 15
    return half(block, 0) * (fine - 32) * TABLE[code]


def q4_0(block: bytes, j: int) -> float:
    """d, qs[16]."""
    return half(block, 0) * ((block[2 + j % 16] >> 4 * (j // 16) & 15) - 8)


def q6_k(block: bytes, j: int) -> float:
    """ql[128], qh[64], scales[16], d."""
    n, r = divmod(j, 128)
    low = block[n * 64 + r % 64] >> 4 * (r // 64) & 15
    high = block[128 + n * 32 + r % 32] >> 2 * (r // 32) & 3
    return half(block, 208) * np.int8(np.uint8(block[192 + j // 16])).item() * ((low | high << 4) - 32)


@pytest.mark.parametrize(
    ("name", "element", "scales"),
    [
        ("q4_0", q4_0, [0]),
        ("q6_k", q6_k, [208]),
        ("q2_k", q2_k, [80, 82]),
        ("q3_k", q3_k, [108]),
        ("iq4_nl", iq4_nl, [0]),
        ("iq4_xs", iq4_xs, [0]),
    ],
)
def test_elements_are_those_of_the_definition(
    name: str, element: Callable[[bytes, int], float], scales: list[int]
) -> None:
    format = FORMATS[name]
    data: Array = np.random.default_rng(3).integers(0, 256, (2, 2 * format.nbytes), np.uint8)
    for start in (block + scale for block in (0, format.nbytes) for scale in scales):
        data[:, start : start + 2] = np.array([0.37, -1.5], "<f2").view(np.uint8).reshape(2, 2)
    got = dequantised(format, data)
    assert got.shape == (2, 2 * format.span)
    for row, blocks in enumerate(data):
        for number in range(2):
            block = blocks[number * format.nbytes : (number + 1) * format.nbytes].tobytes()
            right = [element(block, j) for j in range(format.span)]
            np.testing.assert_allclose(got[row, number * format.span :][: format.span], right, rtol=1e-6)
