"""Products by weights in blocks, and attention over a cache, in work groups."""

from __future__ import annotations

import numpy as np
import pytest

from lowered import make_site, run_lowered
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.ops.base import Case
from tenon.network.ops.block_product import BlockGather, BlockMatMul, quantised_case
from tenon.network.ops.cached_attention import CachedAttention

CASES = {
    "q8_0": (1, 35, 96),
    "q4_0": (5, 32, 64),
    "q4_k": (1, 18, 512),
    "q6_k": (3, 16, 256),
    "q2_k": (2, 18, 512),
    "q5_0": (8, 40, 320),
    "q5_1": (16, 33, 32),
    "n4_64_zeros": (2, 16, 128),
}
"""Rows, outputs and columns."""


@pytest.mark.parametrize("target", ["cuda", "opencl"])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_processors(name: str, target: str) -> None:
    """Each thread of an output has some of the groups, of which one adds up what they give in order."""
    rows, outputs, columns = CASES[name]
    op, arrays, machine = BlockMatMul(name), quantised_case(rows, columns, outputs, FORMATS[name]), find(target).machine
    (step,) = op.lower(make_site(op, arrays, machine, (3,)))
    launch = work_groups(step.kernel)
    assert launch is not None
    assert launch.size <= (machine.launch.group if machine.launch else 0)
    assert prove(step.kernel, spaces=machine.spaces) > 0
    np.testing.assert_array_equal(run_lowered(op, arrays, machine, (3,))[0], op.evaluate(arrays)[0])


@pytest.mark.parametrize("case", list(BlockGather.cases()), ids=lambda case: case.label)
def test_rows_of_panels_are_read(case: Case) -> None:
    arrays = case.arrays()
    (got,) = run_lowered(case.op, arrays, find("cuda").machine, case.constant)
    np.testing.assert_array_equal(got, case.op.evaluate(arrays)[0])


@pytest.mark.parametrize("case", list(CachedAttention.cases()), ids=lambda case: case.label)
def test_attention_over_a_cache(case: Case) -> None:
    arrays = case.arrays()
    (got,) = run_lowered(case.op, arrays, find("cuda").machine, case.constant)
    np.testing.assert_allclose(got, case.op.evaluate(arrays)[0], atol=2e-6)
