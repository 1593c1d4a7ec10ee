"""Maxima of bytes on devices, four channels as one word: the loop of all windows computes those at the edges, too."""

from __future__ import annotations

import numpy as np
import pytest

from interpret import interpret
from lowered import GPU, Ask, run_lowered
from tenon.machine.kernel_ir.loops import Kernel, Store
from tenon.machine.kernel_ir.walk import statements
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array
from tenon.network.ops.pool import MaxPool

ONE_LOOP = {
    "padded": (MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (14, 14)),
    "odd": (MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (13, 10)),
    "whole": (MaxPool(kernel_shape=(3, 3), strides=(2, 2)), (13, 13)),
    "neighbours": (MaxPool(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), (6, 7)),
    "apart": (MaxPool(kernel_shape=(2, 2), strides=(2, 2)), (8, 8)),
    "past the end": (MaxPool(kernel_shape=(3, 3), strides=(2, 2), pads=(0, 0, 1, 1)), (14, 14)),
    "one column": (MaxPool(kernel_shape=(2, 3), strides=(1, 2), pads=(0, 1, 0, 0)), (5, 2)),
}
SEVERAL = {
    "dilated": (MaxPool(kernel_shape=(3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)), (9, 9)),
    "cut on both sides": (MaxPool(kernel_shape=(5, 5), pads=(2, 2, 2, 2)), (3, 9)),
}


@pytest.mark.parametrize("name", [*ONE_LOOP, *SEVERAL])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_windows_at_the_edges(name: str, dtype: type[np.integer]) -> None:
    """Nothing beside the image is a maximum, also where all elements are the least ones; a halo is not read."""
    op, size = {**ONE_LOOP, **SEVERAL}[name]
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    stores: list[int] = []

    def execute(kernel: Kernel, operands: list[Array]) -> None:
        assert prove(kernel) > 0
        interpret(kernel, operands)
        stores.append(
            sum(isinstance(each, Store) and each.buffer is kernel.params[-1] for each in statements(kernel.body))
        )

    for x in (
        np.random.default_rng(0).integers(least, most + 1, (2, 7, *size)).astype(dtype),
        np.full((1, 4, *size), least, dtype),
    ):
        (got,) = run_lowered(op, [x], GPU, (), Ask(blocked=True, surplus=1), execute)
        np.testing.assert_array_equal(got, op.evaluate([x])[0])
    assert (set(stores) == {1}) == (name in ONE_LOOP)
