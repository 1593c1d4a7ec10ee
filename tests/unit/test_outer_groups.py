"""Products by weights in blocks by outer products (SME, SME2): bits, proofs, and the choice."""

from __future__ import annotations

import pytest

from block_kernels import assert_bits_of_the_reference, assert_rows_are_left_out, assert_second_check_accepts
from tenon.machine.algorithms.block_products import by_outer_products
from tenon.machine.isa import assembly
from tenon.machine.isa.sme_groups import OuterGroups
from tenon.machine.kernels import outer_groups
from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.targets import find

TARGETS = ("aarch64-sme", "aarch64-sme2")
CASES = {
    "q8_0": (37, 35, 96),
    "q4_0": (32, 32, 64),
    "q4_1": (16, 48, 32),
    "q5_0": (17, 16, 32),
    "q5_1": (18, 20, 64),
    "q4_k": (19, 18, 512),
    "q5_k": (16, 20, 256),
    "q6_k": (33, 16, 256),
    "q3_k": (20, 19, 256),
    "q2_k": (34, 18, 512),
    "n4_32": (16, 33, 64),
    "n8_128": (20, 16, 128),
}
"""Rows, outputs and columns: tiles that are not full, of rows and of outputs."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_reference(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where groups are unpacked a block at a time."""
    for groups in (256, FORMATS[name].span // 32):
        monkeypatch.setattr(outer_groups, "_GROUPS", groups)
        outer_groups.outer_groups.cache_clear()
        assert_bits_of_the_reference(name, CASES[name], find(target).machine, "outer_groups")
    outer_groups.outer_groups.cache_clear()


@pytest.mark.parametrize("target", TARGETS)
def test_the_second_check_accepts_what_is_proved(target: str) -> None:
    assert_second_check_accepts("q5_1", (18, 36, 64), find(target).machine)


def test_rows_that_are_not_needed_are_left_out() -> None:
    assert_rows_are_left_out(find("aarch64-sme").machine)


def test_outer_products_are_chosen_by_rows() -> None:
    """Formats with zero points, and machines without the unit, have none."""
    machine = find("aarch64-sme").machine
    chosen = [by_outer_products(BlockProduct("q4_0", rows, 2048, 2048), machine) for rows in (1, 4, 16, 64)]
    assert chosen == [False, False, True, True]
    assert not by_outer_products(BlockProduct("n4_64_zeros", 64, 2048, 2048), machine)
    assert not by_outer_products(BlockProduct("q4_0", 64, 2048, 2048), find("aarch64-i8mm").machine)


@pytest.mark.parametrize("name", ["outer_groups", "outer_multi_groups"])
def test_results_are_moved_and_scaled_once_for_each_row(name: str) -> None:
    """The fewest instructions on sums for the arithmetic: a conversion, two products and an addition for each row, of
    which SME2 converts and adds four at a time."""
    text = assembly(name)
    assert text is not None
    numbers = OuterGroups(16, 16, 4, 1, 0, 0, 64).numbers
    lines = [line.strip().strip('"').removesuffix("\\n") for line in text.text("w", "x", ["d", "q", "y"], numbers)]
    loop = lines[lines.index("1:") : lines.index("b.ne 1b")]
    counted = {first: sum(line.split()[0] == first for line in loop) for first in ("smopa", "scvtf", "fmul", "fadd")}
    assert counted == {"smopa": 8, "fmul": 32, **dict.fromkeys(("scvtf", "fadd"), 4 if "multi" in name else 16)}
