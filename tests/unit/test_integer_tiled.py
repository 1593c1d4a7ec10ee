"""Convolutions and products of bytes in work groups: exact results, proofs, and what is chosen."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from check_kernels import check
from interpret import interpret
from lowered import MACHINES, Ask, run_lowered
from operator_cases import LOWERED
from tenon.machine.algorithms import integer_staged, integer_tiled, registry, tiled
from tenon.machine.algorithms.integer_depthwise_items import IntegerDepthwiseItems
from tenon.machine.algorithms.integer_tiled import IntegerTiled, IntegerVector
from tenon.machine.codegen.backend import find
from tenon.machine.codegen.threads import Sharing
from tenon.machine.isa.byte_products import DOT4, DOT4_SIGNED
from tenon.machine.isa.tensor_cores import MMA_I8_K32, MMA_U8_K32
from tenon.machine.isa.warpgroups import WGMMA_I8, WGMMA_U8
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels import integer_staged as kernels
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import (
    Depth,
    GroupTile,
    in_pairs,
    in_rows_of_taps,
    in_words,
    sums_shape,
    with_halo,
)
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.integer_staged import WordTile
from tenon.machine.kernels.integer_warpgroups import WordGroupTile, integer_warpgroups, pack
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.plan.program import Call, Place, Region
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, Layout

GPU = replace(
    MACHINES["lanes1"], products=(DOT4, DOT4_SIGNED), launch=Launch(), spaces=(SHARED,), threads=4096, own_memory=False
)


@pytest.fixture(autouse=True)
def groups_always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work groups are chosen even where single items take less time."""
    monkeypatch.setattr(integer_tiled, "DEVICE_CYCLES", 1e9)
    monkeypatch.setattr(integer_staged, "DEVICE_CYCLES", 1e12)
    registry._sorted.cache_clear()
    yield
    registry._sorted.cache_clear()


def conv(channels: int) -> Conv:
    image = Image(1, channels, 14, 14, 4, dtype=DType.I8)
    return Conv(image, image, (3, 3), top=1, left=1, weights=DType.I8)


def run(name: str, machine: Machine = GPU, *, blocked: bool = True) -> list[Kernel]:
    """The kernels of an operator case, which are proved and give exactly what its reference does."""
    operator, _, label = name.partition("::")
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == (operator, label))
    kernels: list[Kernel] = []

    def execute(kernel: Kernel, arrays: list[Array]) -> None:
        assert prove(kernel) > 0
        kernels.append(kernel)
        interpret(kernel, arrays)

    for got, expected in zip(
        run_lowered(case.op, case.arrays(), machine, case.constant, Ask(blocked=blocked, surplus=1), execute),
        case.op.evaluate(case.arrays()),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)
    return kernels


@pytest.mark.parametrize(
    "name",
    [
        "IntegerConv::3x3_double",
        "IntegerConv::first_float",
        "IntegerConv::1x1_single",
        "IntegerConv::1x1_double_plus",  # another tensor is added to the sums
        "IntegerConv::u8_double",
        "IntegerConv::3x3_i4",
        "IntegerConv::first_sums_i8_1",  # a zero point that is known at run time
        "IntegerConv::3x3_sums_i8_97",  # weights whose zero point is taken off the sums
        "IntegerConv::1d_float",
        "IntegerGemm::5x8x16_double",
        "IntegerGemm::16x16x2_float",
        "IntegerGemm::images",
        "IntegerMatMul::23x1_double",  # batches that are broadcast
        "IntegerMatMul::sums_5x8x19_int8_int8",  # two zero points that are known at run time
        "IntegerMatMul::sums_3x7x33_uint8_uint8",
        "IntegerAveragePool::global",  # a block for the channels of a plane
        "IntegerAveragePool::mean",
    ],
)
def test_results_are_exact(name: str) -> None:
    assert any(work_groups(kernel) is not None for kernel in run(name))


UNITS = (DOT4, DOT4_SIGNED, MMA_I8_K32, MMA_U8_K32)
TENSOR = replace(GPU, products=UNITS, launch=Launch(copies=True))


@pytest.mark.parametrize(
    "name",
    [
        "1x1_double",
        "1x1_double_plus",
        "3x3_even_double",  # taps beside the image are the zero point
        "1x1_sums_u8_0",
    ],
)
def test_results_of_a_matrix_unit_are_exact(name: str) -> None:
    kernels = run(f"IntegerConv::{name}", TENSOR)
    assert any(kernel.name.startswith("integer_tensor") for kernel in kernels)
    text = find("cuda").kernel(next(kernel for kernel in kernels if kernel.name.startswith("integer_tensor")))
    assert ("mma_u8_k32" if "u8" in name else "mma_i8_k32") in text
    if name.startswith("3x3"):
        assert re.search(r"if \(.*\) copy_4\(.*\); else .* = -?\d+;", text), (
            "copies beside the image are not asynchronous"
        )


@pytest.mark.parametrize(
    "name",
    [
        "1x1_double",
        "1x1_double_plus",
        "3x3_double",
        "3x3_even_double",  # taps beside the image are the zero point
        "1x1_sums_u8_0",
        "first_float",
    ],
)
def test_results_of_groups_of_warps_are_exact(name: str) -> None:
    kernels = run(f"IntegerConv::{name}", replace(TENSOR, products=(DOT4, DOT4_SIGNED, WGMMA_I8, WGMMA_U8)))
    (kernel,) = (kernel for kernel in kernels if kernel.name.startswith("integer_warpgroups"))
    text = find("cuda").kernel(kernel)
    assert ("wgmma_u8_n" if "u8" in name else "wgmma_i8_n") in text
    assert "wgmma_whole_sums_n" in text


WORD_GROUPS = {
    "several taps of a step": (20, 3, WordGroupTile(64, 32, 16, 16, 32, 1, 3)),
    "words of one channel group": (3, 3, WordGroupTile(64, 64, 16, 16, 64, 1, 2)),
    "parts": (72, 1, WordGroupTile(64, 32, 8, 16, 32, 3, 2)),
    "two groups of warps": (24, 1, WordGroupTile(128, 32, 8, 16, 32, 1, 2)),
}


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
@pytest.mark.parametrize("name", WORD_GROUPS)
def test_sums_of_groups_of_warps(name: str, dtype: DType) -> None:
    """In parts, of two images whose positions do not fill the last block, with a zero point beside them."""
    channels, kernel, tile = WORD_GROUPS[name]
    own = Image(2, channels, 7, 9, 4, dtype=dtype)
    s = Conv(own, Image(2, 28, 7, 9, 4, dtype=DType.I32), (kernel, kernel), top=kernel // 2, left=kernel // 2)
    zero = 5 if dtype is DType.U8 else -3
    described = IntegerConv(
        replace(s, weights=DType.I8).flattened(),
        Requantize("none", 0, 0, 0, DType.I32, ()),
        (),
        (),
        narrow=True,
        fill=zero,
    )
    rng = np.random.default_rng(0)
    low, high = (0, 256) if dtype is DType.U8 else (-128, 128)
    x = rng.integers(low, high, (2, channels, 7, 9)).astype(dtype.numpy)
    weights = rng.integers(-128, 128, (28, channels, kernel, kernel)).astype(np.int8)
    made = integer_warpgroups(described, tile)
    assert prove(made) > 0
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), *[(kernel // 2,) * 2] * 2), constant_values=zero)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.int64))
    whole = np.zeros((2, -(-channels // 4) * 4, 7, 9), dtype.numpy)
    whole[:, :channels] = x
    words = np.ascontiguousarray(np.moveaxis(whole.reshape(2, -1, 4, 7, 9), 2, -1)).view(np.int32).reshape(-1)
    packed = pack(weights, described, tile).reshape(-1)
    if tile.splits > 1:
        sums = np.zeros(math.prod(sums_shape(in_words(described.conv), tile)), np.int32)
        interpret(made, [words, packed, sums])
        shape = sums_shape(in_words(described.conv), tile)
        got = sums.reshape(shape).sum(axis=0).transpose(0, 2, 1).reshape(28, 2, 7, 9).transpose(1, 0, 2, 3)
    else:
        y = np.zeros(math.prod(described.conv.y.shape), np.int32)
        interpret(made, [words, packed, np.zeros(28, np.int32), y])
        got = np.moveaxis(y.reshape(2, 7, 7, 9, 4), -1, 2).reshape(2, 28, 7, 9)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("tile", [WordTile(32, 16, 16, 16, 16, 1, 3), WordGroupTile(64, 32, 8, 16, 32, 1, 3)])
@pytest.mark.parametrize("kernel", [3, 7])
def test_pairs_of_columns_are_copied_at_once(kernel: int, tile: WordTile | WordGroupTile) -> None:
    """First layers of stride 2, whose halo lies in memory."""
    pad, sums = kernel // 2, Requantize("none", 0, 0, 0, DType.I32, ())
    x, y = Image(2, 3, 9, 12, 4, dtype=DType.I8), Image(2, 28, 5, 6, 4, dtype=DType.I32)
    layer = Conv(x, y, (kernel, kernel), (2, 2), top=pad, left=pad, weights=DType.I8)
    (top, bottom), (left, right) = with_halo(layer, Layout(4, ((0, 0), (0, 0)))).halo
    around = replace(x, top=top, bottom=bottom, left=left, right=right)
    s = IntegerConv(in_rows_of_taps(replace(layer, x=around)), sums, (), (), narrow=True, fill=-3)
    assert in_pairs(in_words(s.conv)).x.block == 2
    rng = np.random.default_rng(0)
    image = rng.integers(-128, 128, (2, 3, 9, 12)).astype(np.int8)
    weights = rng.integers(-128, 128, (28, 3, kernel, kernel)).astype(np.int8)
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-3)
    words = np.zeros((2, *padded.shape[2:], 4), np.int8)
    words[..., :3] = np.moveaxis(padded, 1, -1)
    if isinstance(tile, WordTile):
        made, packed = kernels.integer_staged(s, tile), kernels.pack(weights, s, tile)
    else:
        made, packed = integer_warpgroups(s, tile), pack(weights, s, tile)
    assert prove(made) > 0
    assert "copy_8(" in find("cuda").kernel(made)
    result = np.zeros(math.prod(s.conv.y.shape), np.int32)
    interpret(made, [words.reshape(-1).view(np.int32), packed.reshape(-1), np.zeros(28, np.int32), result])
    windows = np.lib.stride_tricks.sliding_window_view(padded.astype(np.int64), (kernel, kernel), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows[:, :, ::2, ::2], weights.astype(np.int64))[:, :, :5, :6]
    np.testing.assert_array_equal(np.moveaxis(result.reshape(2, 7, 5, 6, 4), -1, 2).reshape(2, 28, 5, 6), expected)


@pytest.mark.parametrize("name", ["u8", "i8"])
def test_images_of_few_channels_are_quantised_to_words(name: str) -> None:
    (kernel,) = run(f"QuantizeLinear::{name}_image", blocked=False)
    assert [extent.const for extent in kernel.params[-1].shape] == [2, 1, 7, 8]
    assert "rounded to words" in kernel.about


@pytest.mark.parametrize("name", ["integers", "unsigned"])
def test_maxima_of_bytes_are_stored_as_words(name: str) -> None:
    (kernel,) = run(f"MaxPool::{name}")
    assert {parameter.type.dtype for parameter in kernel.params} == {DType.I32}


def test_weights_with_a_zero_point_take_no_matrix_unit() -> None:
    assert not any(k.name.startswith("integer_tensor") for k in run("IntegerConv::3x3_sums_i8_97", TENSOR))


@pytest.mark.parametrize("name", ["first_sums_i8_1", "1x1_double_plus", "depthwise_partial_float"])
def test_the_second_check_accepts_what_is_proved(name: str) -> None:
    """It evaluates every iteration, so that it is for small kernels."""
    assert all(check(show(kernel)) > 0 for kernel in run(f"IntegerConv::{name}"))


@pytest.mark.parametrize("name", ["depthwise_double", "depthwise_partial_float", "depthwise_dilated_single"])
def test_depthwise_by_items(name: str) -> None:
    kernels = run(f"IntegerConv::{name}")
    assert any(kernel.about.endswith("of four channels in an item, in integers") for kernel in kernels)


def tile_of(monkeypatch: pytest.MonkeyPatch, tile: GroupTile) -> None:
    monkeypatch.setattr(tiled, "ranked", lambda *_: [tile])


@pytest.mark.parametrize(("name", "k"), [("IntegerConv::3x3_even_double", 9), ("IntegerConv::3x3_sums_i8_97", 6)])
def test_products_in_parts(name: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the products of a result are added by a second kernel."""
    tile_of(monkeypatch, GroupTile(16, 16, k, 2, 4, 3))
    kernels = run(name)
    assert [kernel.about.partition(", requantised")[0] for kernel in kernels[-1:]] == ["Sums of 3 parts each"]


def test_steps_of_words() -> None:
    """All words of a step are of one tap where there are many channels, else of several, or of all pairs."""
    s = in_words(conv(64))
    assert Depth.of(s, 8) == Depth(1, 8, 2, 18, flat=False)
    assert Depth.of(s, 32) == Depth(1, 32, 1, 5, flat=False, together=2)
    assert Depth.of(in_words(conv(48)), 32) == Depth(1, 32, 1, 5, flat=False, together=2)  # 24 words of 32
    few = in_words(conv(4))
    assert Depth.of(few, 8) == Depth(1, 8, 1, 2, flat=True)


def test_four_results_are_stored_as_a_word() -> None:
    (kernel,) = (k for k in run("IntegerConv::1x1_double") if work_groups(k) is not None)
    assert kernel.params[-1].type.dtype.bytes == 4


def test_what_is_added_may_be_overwritten() -> None:
    """Results of a residual block are stored where the other tensor was."""
    (kernel,) = (k for k in run("IntegerConv::1x1_double_plus") if work_groups(k) is not None)
    places = [Place(Region.ACTIVATIONS, 4096 * i) for i in range(len(kernel.params))]
    places[-1] = places[-2]
    call = Call(kernel, tuple(places), "call", "IntegerConv")
    assert Sharing(1, grid=True, launch=GPU.launch, spaces=GPU.spaces).part(call).slices is None


def test_the_machine_decides() -> None:
    problem = (conv(64),)
    single = replace(GPU, launch=None)
    for kind in (IntegerTiled, IntegerVector, IntegerDepthwiseItems):
        assert not kind.applies(problem, single)
    assert IntegerTiled.applies(problem, GPU)
    assert not IntegerTiled.applies(problem, replace(GPU, products=()))
