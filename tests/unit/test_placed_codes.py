"""Codes of weights as numbers in f32 by their place in a word."""

from __future__ import annotations

import numpy as np
import pytest

from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.kernels.block_packing import BlockPacking
from tenon.machine.kernels.placed_codes import CodePlace, code_places, least_place


@pytest.mark.parametrize(("width", "bits"), [(4, 11), (8, 11), (4, 17)])
def test_products_by_placed_codes_are_exact(width: int, bits: int) -> None:
    """For every code, and scales with all bits set and at random, both products and their difference are exact."""
    rng = np.random.default_rng(0)
    numbers = np.append(rng.integers(1 << bits - 1, 1 << bits, 50), (1 << bits) - 1)
    scales = np.concatenate([numbers * 2.0**-16, numbers * -(2.0**-24), [0.0]])
    placed = code_places(width, bits)
    assert [each.start for each in placed] == list(range(0, 32, width))
    for at in placed:
        assert bits <= at.place <= 23 - width
        codes = np.arange(1 << width)
        words = ((127 + 23 - at.place << 23) | codes << at.place).astype(np.int32)
        values = words.view(np.float32)
        np.testing.assert_array_equal(values, at.one + codes)
        for offset in (0, 1 << width - 1):
            first = values[:, None] * scales.astype(np.float32)
            second = np.float32(at.one + offset) * scales.astype(np.float32)
            np.testing.assert_array_equal(first, (at.one + codes)[:, None] * scales)
            np.testing.assert_array_equal(second, (at.one + offset) * scales)
            np.testing.assert_array_equal(first - second, (codes - offset)[:, None] * scales)


def test_codes_of_a_word_share_shifts() -> None:
    assert code_places(4, 11)[:5] == [CodePlace(0, 11), CodePlace(4, 11), CodePlace(8, 11), *map(_moved, (12, 16))]
    shifts = [len({each.shift for each in code_places(*sizes)}) for sizes in ((4, 11), (8, 11), (4, 17))]
    assert shifts == [3, 4, 8]


def _moved(start: int) -> CodePlace:
    return CodePlace(start, -1)


@pytest.mark.parametrize(
    ("format", "place"),
    [("q4_0", 11), ("q8_0", 11), ("q4_1", 11), ("q4_k", 17), ("q6_k", 0), ("q2_k", 0), ("q5_k", 0), ("n4_64_zeros", 0)],
)
def test_formats_whose_codes_are_placed(format: str, place: int) -> None:
    assert least_place(BlockPacking(FORMATS[format], 16, signed=False)) == place
