"""Products by weights in blocks by tiles in registers and by blocks of two by two: bits, proofs, and the choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tenon
from block_kernels import assert_bits_of_the_reference, assert_rows_are_left_out, assert_second_check_accepts
from gguf_models import DecoderFile
from lowered import make_site, run_lowered
from tenon.machine.algorithms.block_products import in_tiles
from tenon.machine.isa.amx import TileBlock
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.kernels import block_tiles
from tenon.machine.kernels.block_formats import FORMATS
from tenon.machine.kernels.block_product import tile_of
from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find, host_cpu
from tenon.network.ops.block_product import BlockMatMul, quantised_case

ROW = find("x86-64-amx")
MACHINE = ROW.machine
CASES = {
    "q8_0": (37, 35, 96),
    "q4_0": (32, 32, 288),
    "q4_1": (16, 16, 32),
    "q5_0": (17, 16, 224),
    "q5_1": (18, 20, 64),
    "q4_k": (19, 18, 512),
    "q5_k": (16, 20, 256),
    "q6_k": (33, 16, 256),
    "q2_k": (34, 18, 512),
    "n4_32": (16, 16, 64),
    "n8_128": (20, 16, 128),
}
"""Rows, outputs and columns: tiles that are not full, of rows and of outputs."""


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are the same where groups are unpacked a block at a time, and rows are summed 32 at a time."""
    assert_bits_of_the_reference(name, CASES[name], MACHINE, "block_tiles")
    monkeypatch.setattr(block_tiles, "_GROUPS", FORMATS[name].span // 32)
    monkeypatch.setattr(block_tiles, "_MOST", 32)
    block_tiles.block_tiles.cache_clear()
    assert_bits_of_the_reference(name, CASES[name], MACHINE, "block_tiles")
    block_tiles.block_tiles.cache_clear()


def test_the_second_check_accepts_what_is_proved() -> None:
    assert_second_check_accepts("q5_1", (18, 18, 64), MACHINE)


def test_rows_that_are_not_needed_are_left_out() -> None:
    assert_rows_are_left_out(MACHINE)


def test_rows_are_split_where_there_are_few_panels() -> None:
    """With more threads than panels, parts of the rows are work items; bits are the same."""
    machine = replace(MACHINE, threads=16)
    op, arrays = BlockMatMul("q4_0"), quantised_case(64, 64, 128, FORMATS["q4_0"])
    sizes = BlockProduct("q4_0", 64, 64, 128)
    assert [block_tiles.part_of(sizes, threads) for threads in (1, 2, 16)] == [256, 64, 32]
    assert block_tiles.part_of(replace(sizes, outputs=2048), 16) == 64
    step = op.lower(make_site(op, arrays, machine, (3,)))[-1]
    prove(step.kernel)
    items = linearise(step.kernel)
    assert items is not None
    assert items.length == 8 * 2
    np.testing.assert_array_equal(run_lowered(op, arrays, machine, (3,))[0], op.evaluate(arrays)[0])


def test_numbers_of_an_instruction_say_the_block() -> None:
    """Steps that have sums of their own set registers alike."""
    apiece = TileBlock(16, 1, 1, 8, 32, loops=((3, 512), (1, 32)), apiece=True)
    passing = TileBlock(16, 2, 2, 16, 64, loops=((4, 1024),), passing=True)
    for block in (TileBlock(16, 2, 2, 16, 64, 8192, 3, ((4, 1024),)), apiece, passing):
        assert TileBlock.of(block.numbers) == block
        assert TileBlock.of(block.shape).shapes == block.shapes
    assert [len(block.shapes) for block in (apiece, passing)] == [6, 6]


@pytest.mark.parametrize("target", ["x86-64-amx", "x86-64-avx512-vnni", "x86-64-avx512", "x86-64-avx2", "aarch64-i8mm"])
@pytest.mark.parametrize("format", ["q4_0", "q8_0", "q4_k"])
def test_one_row_is_multiplied_by_vectors(target: str, format: str) -> None:
    """The product is by vectors also where a panel has as many rows as one of SME's long vectors."""
    op, arrays = BlockMatMul(format), quantised_case(1, 256, 32, FORMATS[format])
    (step,) = op.lower(make_site(op, arrays, find(target).machine, (3,)))
    assert step.kernel.name.startswith("block_product")


def test_tiles_are_chosen_by_rows() -> None:
    def chosen(rows: int, format: str = "q4_0") -> bool:
        return in_tiles(BlockProduct(format, rows, 2048, 2048), MACHINE)

    assert [chosen(rows) for rows in (1, 4, 16, 64)] == [False, False, True, True]
    assert not chosen(64, "n4_64_zeros")
    assert not in_tiles(BlockProduct("q4_0", 64, 2048, 2048), find("x86-64-avx512-vnni").machine)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "q6_k", "q2_k", "n4_32", "n4_64_zeros"])
@pytest.mark.parametrize(
    ("target", "product"),
    [("aarch64-i8mm", "mmla_signed("), ("aarch64-dotprod", "dot4_lane3("), ("aarch64", "dot4_narrow(")],
)
def test_products_of_arm(target: str, product: str, name: str) -> None:
    """Tiles of an even number of rows are of blocks of two by two, where the last three rows are a tile of the other
    kind; by words of vectors; and of bytes where none may be -128."""
    machine = find(target).machine
    op, arrays = BlockMatMul(name), quantised_case(7, 256, 35, FORMATS[name])
    (step,) = op.lower(make_site(op, arrays, machine, (3,)))
    prove(step.kernel)
    assert product in show(step.kernel)
    np.testing.assert_array_equal(run_lowered(op, arrays, machine, (3,))[0], op.evaluate(arrays)[0])


def test_many_threads_share_small_products() -> None:
    """Products of one row take tiles of fewer panels where that shortens the work of the thread that has the most;
    those of several rows are shared tile by tile of rows, too."""
    machine = replace(find("x86-64-avx512-vnni").machine, threads=16)
    assert [tile_of(BlockProduct("q4_0", 1, 64, n), machine) for n in (576, 1536)] == [(1, 1), (1, 2)]
    assert tile_of(BlockProduct("q6_k", 16, 256, 96), machine) == (5, 1)
    op, arrays = BlockMatMul("q4_0"), quantised_case(16, 64, 96, FORMATS["q4_0"])
    (step,) = op.lower(make_site(op, arrays, machine, (3,)))
    prove(step.kernel)
    items = linearise(step.kernel)
    assert items is not None
    assert items.length == 3 * 4
    np.testing.assert_array_equal(run_lowered(op, arrays, machine, (3,))[0], op.evaluate(arrays)[0])


NEEDED = ROW.host.features - {"amx_tile", "amx_bf16", "amx_int8"} if ROW.host else frozenset()


@pytest.mark.skipif(not host_cpu.flags() >= NEEDED, reason="this processor lacks the vectors of the target")
def test_a_decoder_has_the_same_bits_in_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bodies of the instructions on a processor without tiles, by these on one that has them."""
    monkeypatch.setattr(host_cpu, "flags", lambda: NEEDED | {"amx_tile", "amx_bf16", "amx_int8"})
    file = DecoderFile("llama").file()
    words = np.arange(40, dtype=np.int64)[None] % 32
    logits = []
    for target in ("x86-64-amx", "x86-64-avx512-vnni"):
        bundle = tenon.compile(file, target=target, context=128, weight_format="q4_0")
        own = [[call.kernel.name for call in each.calls] for each in (bundle.program, *bundle.more)]
        tiles = [any(name.startswith("block_tiles") for name in names) for names in own]  # of one token, and of many
        assert tiles == [False, target == "x86-64-amx"]
        with tenon.open(bundle) as engine:
            logits.append(engine.run({"tokens": words})["logits"])
    np.testing.assert_array_equal(logits[0], logits[1])
