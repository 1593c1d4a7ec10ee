"""Products by weights in blocks by outer products (SME, SME2): bits, proofs, and the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from block_kernels import assert_bits_of_the_reference, assert_rows_are_left_out, assert_second_check_accepts
from tenon.machine.algorithms.block_products import by_outer_products
from tenon.machine.isa import assembly
from tenon.machine.isa.sme_groups import OuterGroups
from tenon.machine.isa.stream_rows import StreamRow
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels import outer_groups
from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.kernels.stream_rows import stream_row
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
    """Bits are the same where groups are unpacked a block at a time."""
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
    """Formats with zero points, and machines without the unit, have none; the plainest, which the unit unpacks, have
    them from two rows on."""
    machine = find("aarch64-sme").machine
    chosen = {
        name: [by_outer_products(BlockProduct(name, rows, 2048, 2048), machine) for rows in (1, 2, 4, 16, 64)]
        for name in ("q4_0", "q4_k")
    }
    assert chosen == {"q4_0": [False, True, True, True, True], "q4_k": [False, False, False, True, True]}
    assert not by_outer_products(BlockProduct("n4_64_zeros", 64, 2048, 2048), machine)
    assert not by_outer_products(BlockProduct("q4_0", 64, 2048, 2048), find("aarch64-i8mm").machine)


@pytest.mark.parametrize(
    ("target", "instruction"), [("aarch64-sme", "stream_row"), ("aarch64-sme2", "stream_multi_row")]
)
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "iq4_nl"])
def test_one_row_is_multiplied_by_long_vectors(name: str, target: str, instruction: str) -> None:
    """With the bits of the reference, also of panels that are not full; formats of larger blocks stay with NEON."""
    machine = find(target).machine
    for outputs in (150, 64, 7):
        assert_bits_of_the_reference(name, (1, outputs, 96), machine, "stream_row")
    assert f'instruction "{instruction}"' in show(stream_row(BlockProduct(name, 1, 96, 150), machine))
    assert_bits_of_the_reference("q4_k", (1, 20, 256), machine, "block_product")


def test_the_second_check_accepts_one_row() -> None:
    assert_second_check_accepts("q4_0", (1, 86, 64), find("aarch64-sme2").machine)


def test_tiles_of_one_row_are_shared_by_threads() -> None:
    """As evenly as panels can be, of which an instruction has four at most."""
    machine = find("aarch64-sme").machine
    for threads, panels in ((1, 4), (4, 2)):
        shown = show(stream_row(BlockProduct("q4_0", 1, 64, 128), replace(machine, threads=threads)))
        assert f"; {panels}, 16, 2, 4)" in shown


@pytest.mark.parametrize(("instruction", "dots"), [("stream_row", 64), ("stream_multi_row", 16)])
def test_codes_of_four_panels_take_the_fewest_products(instruction: str, dots: int) -> None:
    """Eight words of each of two groups by four panels, of which SME2 multiplies all by one instruction."""
    text = assembly(instruction)
    assert text is not None
    lines = text.text("w", "x", ["d", "q", "y"], StreamRow(4, 16, 4, 4).numbers)
    assert sum(line.strip().startswith('"sdot') for line in lines) == dots
    assert sum("ld1w" in line for line in lines) == (8 if "multi" in instruction else 32)


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
