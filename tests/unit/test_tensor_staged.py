"""Products of 16-bit floats by a matrix unit, copied in stages: results, proofs, clusters and fragments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from check_kernels import check
from interpret import interpret
from lowered import MACHINES
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.registry import candidates
from tenon.machine.algorithms.tensor_staged import TensorStaged
from tenon.machine.codegen.backend import find
from tenon.machine.isa.tensor_cores import MMA_BF16_K16, MMA_F16_K16
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import BLOCKS, Instruction, Stmt
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import in_rows_of_taps, sums_shape, with_halo
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.tensor_staged import StagedTile, pack, tensor_staged
from tenon.machine.kernels.tensor_warpgroups import WarpgroupTile, tensor_warpgroups
from tenon.machine.kernels.tensor_warpgroups import pack as pack_groups
from tenon.machine.kernels.tiled import joined_parts
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType, Layout
from tenon.network.ops.conv import Conv as Operator

GPU = replace(
    MACHINES["lanes1"],
    products=(MMA_F16_K16, MMA_BF16_K16),
    launch=Launch(copies=True, cluster=8),
    spaces=(SHARED,),
    threads=4096,
    own_memory=False,
)


def convolution(
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: int = 1,
    stride: int = 1,
    n: int = 1,
    y: DType = DType.F16,
    x: DType = DType.F16,
    block: int = 4,
) -> Conv:
    h, w = ((extent + 2 * (kernel // 2) - kernel) // stride + 1 for extent in size)
    image = Image(n, channels[0], *size, block, dtype=x)
    result = Image(n, channels[1], h, w, block if block > 4 else 4, dtype=y)
    sides = {"kernel": (kernel, kernel), "stride": (stride, stride), "top": kernel // 2, "left": kernel // 2}
    return Conv(image, result, **sides, weights=x).flattened()  # type: ignore[arg-type]


CASES = {
    "pointwise": (convolution((32, 24), (5, 6)), StagedTile(32, 16, 16, 16, 16, 1, 3)),
    "3x3": (convolution((16, 12), (3, 4), 3, n=2, y=F32), StagedTile(32, 16, 16, 32, 16, 1, 4)),
    "bf16": (convolution((20, 12), (3, 4), y=DType.BF16, x=DType.BF16), StagedTile(32, 16, 16, 32, 16, 1, 2)),
    "parts": (convolution((16, 12), (3, 4), 3, 2), StagedTile(32, 16, 16, 32, 16, 3, 3)),
    "cluster": (convolution((64, 20), (6, 6)), StagedTile(32, 32, 16, 16, 16, 2, 2, 1)),
    "first_layer": (convolution((3, 16), (9, 9), 3, 2, block=1), StagedTile(32, 16, 16, 32, 16, 1, 2)),
    "taps_of_a_block": (convolution((4, 16), (9, 9), 7, 2), StagedTile(32, 16, 32, 32, 16, 1, 3)),
    "rows_of_taps": (in_rows_of_taps(convolution((4, 16), (9, 8), 7, 2)), StagedTile(32, 16, 32, 32, 16, 1, 3)),
    "groups_of_rows_of_taps": (in_rows_of_taps(convolution((4, 24), (7, 9), 3, 2)), WarpgroupTile(64, 32, 16, 16, 32)),
    "groups_of_taps": (convolution((4, 24), (8, 9), 5, 2), WarpgroupTile(64, 32, 32, 16, 32, 1, 3)),
    "rows": (
        replace(convolution((40, 24), (1, 35), block=40), y=Image(1, 24, 1, 35, 24)),
        StagedTile(32, 16, 16, 16, 16),
    ),
    "groups": (convolution((16, 28), (6, 9), 3, n=2), WarpgroupTile(64, 32, 16, 16, 32, 1, 3)),
    "groups_of_parts": (convolution((40, 24), (9, 10), 1, 2), WarpgroupTile(128, 32, 16, 16, 32, 3, 2)),
    "groups_of_rows": (
        replace(convolution((40, 24), (1, 35), block=40), y=Image(1, 24, 1, 35, 24)),
        WarpgroupTile(64, 32, 32, 16, 32, 1, 2),
    ),
}


def haloed(s: Conv) -> Conv:
    """The layer with all that its taps read of the image in memory, as first layers have it."""
    (top, bottom), (left, right) = with_halo(s, Layout(4, ((0, 0), (0, 0)))).halo
    return in_rows_of_taps(replace(s, x=replace(s.x, top=top, bottom=bottom, left=left, right=right)))


CASES["rows_of_taps_in_memory"] = haloed(convolution((4, 16), (9, 8), 7, 2)), StagedTile(32, 16, 32, 32, 16, 1, 3)
CASES["groups_in_memory"] = haloed(convolution((4, 24), (7, 9), 3, 2)), WarpgroupTile(64, 32, 16, 16, 32)


def test_halos_in_memory_are_part_of_the_image() -> None:
    s = haloed(convolution((4, 8), (9, 9), 7, 2))
    assert (s.top, s.left, s.kernel) == (0, 0, (7, 8))
    assert not any(before or past for before, past in map(s.border, (0, 1)))
    assert s.x.shape[3] % 4 == 0
    assert haloed(convolution((8, 8), (9, 9), 3)).top == 1


def stored(image: Image, values: Array) -> Array:
    values = np.pad(values, ((0, 0), (0, 0), (image.top, image.bottom), (image.left, image.right)))
    n, c, h, w = values.shape
    whole = np.zeros((n, image.blocks * image.block, h, w), np.float32)
    whole[:, :c] = values
    lying = whole.reshape(n, -1, image.block, h, w).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(lying).astype(image.dtype.numpy).reshape(-1)


def bits(array: Array) -> Array:
    """The array as kernels take it: bf16 are bits."""
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint16)


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    s, tile = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((s.x.n, s.x.channels, s.x.h, s.x.w)).astype(s.x.dtype.numpy).astype(np.float32)
    shape = (s.y.channels, s.x.channels, s.kernel[0], s.kernel[0])
    weights = (rng.standard_normal(shape) / 16).astype(s.weights.numpy).astype(np.float32)
    bias = np.zeros(s.padded, np.float32)
    bias[: s.y.channels] = rng.standard_normal(s.y.channels)
    expected = Operator(pads=(s.top, s.left) * 2, strides=s.stride).reference(x, weights, bias[: s.y.channels])
    expected = expected[:, :, : s.y.h, : s.y.w]
    if isinstance(tile, WarpgroupTile):
        kernel, packed = tensor_warpgroups(s, tile), pack_groups(weights, s, tile)
    else:
        kernel, packed = tensor_staged(s, tile), pack(weights, s, tile)
    y = np.zeros(math.prod(s.y.shape), s.y.dtype.numpy)
    operands = [bits(stored(s.x, x)), bits(packed.reshape(-1))]
    apart = tile.splits > 1 and not tile.cluster
    if apart:
        sums = np.full(math.prod(sums_shape(s, tile)), np.nan, np.float32)
        interpret(kernel, [*operands, sums])
        interpret(joined_parts(s, tile), [sums, bias, bits(y)])
    else:
        interpret(kernel, [*operands, bias, bits(y)])
    result, tolerance = y.astype(np.float32), 1e-2 if s.x.dtype is DType.BF16 else 1e-3
    np.testing.assert_allclose(result, stored(replace(s.y, dtype=F32), expected), rtol=tolerance, atol=1e-5)
    groups = work_groups(kernel)
    assert groups is not None
    assert (groups.size, groups.cluster_size) == (tile.threads, tile.splits if tile.cluster else 1)
    assert groups.shared_bytes <= tile.shared
    assert prove(kernel) > 0


def test_the_second_check_accepts_what_is_proved() -> None:
    """It evaluates every iteration, so that it is for a small kernel."""
    assert check(show(tensor_staged(convolution((32, 12), (3, 4)), StagedTile(32, 16, 16, 32, 16, 1, 2)))) > 0


def test_rows_of_taps() -> None:
    """Kernels of images of one group get columns of zeros up to a power of two, where few are added."""
    for kernel, columns in ((7, 8), (3, 4), (5, 5), (4, 4), (1, 1)):
        assert in_rows_of_taps(convolution((4, 8), (9, 9), kernel)).kernel == (kernel, columns)
    assert in_rows_of_taps(convolution((8, 8), (9, 9), 7)).kernel == (7, 7)


def instructions(body: tuple[Stmt, ...]) -> Iterator[Instruction]:
    for s in body:
        if isinstance(s, Instruction):
            yield s
        elif isinstance(s, BLOCKS):
            yield from instructions(s.body)


def value(i: Index, named: dict[str, int]) -> int:
    """An index where the loops have these values, and all others are in their first iteration."""
    total = i.const
    for atom, factor in i.terms:
        (variable,) = atom.vars
        total += factor * named.get(variable.name, 0)
    return total


def test_operands_are_the_fragments_of_the_instruction() -> None:
    """The layout of m16n8k16 as the PTX ISA has it: of the registers of thread 4 * g + t, A has in the rows g and g + 8
    the columns 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9, B these rows of column g.  It is given words of four
    neighbouring products, so that its sums are of the same products in another order.
    """
    kernel = tensor_staged(*CASES["pointwise"])
    instruction = next(instructions(kernel.body))
    rng = np.random.default_rng(0)
    memory = {b: rng.integers(-8, 8, [e.const for e in b.shape]) for b, _ in instruction.operands[:3]}
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    for g in range(8):
        for t in range(4):
            columns = [2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9]
            low, high, column = (
                memory[buffer][*(value(i, {"g": g, "t": t}) for i in index[:-1])][value(index[-1], {"g": g, "t": t}) :][
                    :4
                ]
                for buffer, index in instruction.operands[:3]
            )
            a[g, columns], a[g + 8, columns], b[columns, g] = low, high, column
    (xs, _), _, (ws, _), *_ = instruction.operands
    rows = memory[xs][0, :4, :16].transpose(1, 0, 2).reshape(16, 16)  # what the body adds, by its rows and columns
    np.testing.assert_array_equal(a @ b, rows @ memory[ws][0, : 8 * 16].reshape(8, 16).T)


def test_languages_print_the_instruction_or_its_meaning() -> None:
    kernel = tensor_staged(*CASES["pointwise"])
    text = find("cuda").kernel(kernel)
    assert text.count("mma_f16_k16(") == 3  # its function, and two calls
    assert "cp.async" in text
    for name in ("opencl", "vulkan"):
        assert "mma" not in find(name).kernel(kernel)


def test_the_machine_decides() -> None:
    s = convolution((64, 64), (56, 56), 3)
    assert isinstance(candidates((s,), GPU, Limits())[0], TensorStaged)
    assert not TensorStaged.applies((s,), replace(GPU, launch=Launch()))
    assert not TensorStaged.applies((s,), replace(GPU, products=(MMA_BF16_K16,)))
    assert not TensorStaged.applies((replace(s, weights=F32),), GPU)
    tiles = [each.tile for each in TensorStaged.candidates((s,), GPU, Limits(), 10000)]
    assert max(tile.threads for tile in tiles) <= 256
    assert all(tile.shared <= SHARED.bytes for tile in tiles)
    assert {tile.cluster for tile in tiles if isinstance(tile, StagedTile)} == {0, 1}
    numbers = TensorStaged.candidates((s,), GPU, Limits(), 1)[0].numbers
    assert TensorStaged.of_numbers(numbers).numbers == numbers
