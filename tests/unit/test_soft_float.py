"""Convolutions of floats on machines that compute these by calls: no tap beside the image is multiplied."""

from __future__ import annotations

import numpy as np
import pytest

from lowered import Ask, make_site, run_lowered
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.machine import Machine
from tenon.network.ops.base import Case
from tenon.network.ops.conv import Conv

MACHINE = Machine(lanes=1, registers=12, block=4, float_unit=False)
LABELS = ("first_layer", "one_in_one_out", "stride_past_pads", "dilated", "same_upper", "narrow_groups", "one_axis")
CASES = {case.label: case for case in Conv.cases()}


def text(case: Case, machine: Machine) -> str:
    return "\n".join(show(step.kernel) for step in case.op.lower(make_site(case.op, case.arrays(), machine, (1, 2))))


@pytest.mark.parametrize("label", LABELS)
def test_taps_beside_the_image_are_left_out(label: str) -> None:
    case = CASES[label]
    arrays = case.arrays()
    assert "if " in text(case, MACHINE)
    assert "if " not in text(case, Machine(lanes=1, registers=12, block=4))
    (expected,) = case.op.evaluate(arrays)
    for ask in (Ask(blocked=True), Ask(blocked=True, surplus=1)):
        (got,) = run_lowered(case.op, arrays, MACHINE, case.constant, ask)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("label", ["pointwise", "valid"])
def test_convolutions_without_padding_have_no_tests(label: str) -> None:
    assert "if " not in text(CASES[label], MACHINE)
