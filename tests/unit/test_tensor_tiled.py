"""Convolutions of f16 by tiles of a matrix unit: results, proofs, and what the instruction of a warp is given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from check_kernels import check
from interpret import interpret
from lowered import MACHINES
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.matrix_tiled import MatrixTiled
from tenon.machine.algorithms.registry import candidates
from tenon.machine.algorithms.tensor_tiled import TensorTiled
from tenon.machine.codegen.backend import find
from tenon.machine.codegen.vulkan.matrices import MatrixGlsl
from tenon.machine.isa.tensor_cores import MMA_F16
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import BLOCKS, Instruction, Kernel, Stmt
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels import matrix_tiled
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import sums_shape
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.matrix_tiled import MatrixTile
from tenon.machine.kernels.tensor_tiled import WarpTile, pack, tensor_tiled
from tenon.machine.kernels.tiled import joined_parts
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find as find_target
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType
from tenon.network.ops.conv import Conv as Operator

GPU = replace(
    MACHINES["lanes1"], products=(MMA_F16,), launch=Launch(), spaces=(SHARED,), threads=4096, own_memory=False
)


def convolution(
    channels: tuple[int, int], size: tuple[int, int], kernel: int, stride: int = 1, n: int = 1, y: DType = DType.F16
) -> Conv:
    h, w = ((extent + 2 * (kernel // 2) - kernel) // stride + 1 for extent in size)
    x = Image(n, channels[0], *size, 4, dtype=DType.F16)
    image = Image(n, channels[1], h, w, 4, dtype=y)
    sides = {"kernel": (kernel, kernel), "stride": (stride, stride), "top": kernel // 2, "left": kernel // 2}
    return Conv(x, image, **sides, weights=DType.F16).flattened()  # type: ignore[arg-type]


CASES = {
    "pointwise": (convolution((16, 24), (5, 6), 1), WarpTile(32, 16, 16, 16, 16)),
    "3x3": (convolution((8, 12), (3, 4), 3, n=2, y=F32), WarpTile(32, 16, 16, 16, 16)),
    "parts": (convolution((16, 12), (3, 4), 3, 2), WarpTile(32, 16, 16, 32, 16, 3)),
    "pointwise, matrices": (convolution((16, 24), (5, 6), 1), MatrixTile(32, 16, 16, 16, 16)),
    "3x3, matrices": (convolution((8, 12), (3, 4), 3, n=2, y=F32), MatrixTile(32, 32, 16, 32, 32)),
    "parts, matrices": (convolution((16, 12), (3, 4), 3, 2), MatrixTile(32, 16, 16, 32, 16, 3)),
}


def generated(s: Conv, tile: WarpTile) -> Kernel:
    """By instructions of a warp, or by cooperative matrices."""
    return matrix_tiled.matrix_tiled(s, tile) if isinstance(tile, MatrixTile) else tensor_tiled(s, tile)


def packed(weights: Array, s: Conv, tile: WarpTile) -> Array:
    return (matrix_tiled.pack(weights, s, tile) if isinstance(tile, MatrixTile) else pack(weights, s, tile)).reshape(-1)


def blocked(image: Image, values: Array) -> Array:
    n, c, h, w = values.shape
    whole = np.zeros((n, image.blocks * image.block, h, w), np.float32)
    whole[:, :c] = values
    lying = whole.reshape(n, -1, image.block, h, w).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(lying).astype(image.dtype.numpy).reshape(-1)


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    s, tile = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((s.x.n, s.x.channels, s.x.h, s.x.w)).astype(np.float16).astype(np.float32)
    shape = (s.y.channels, s.x.channels, *s.kernel)
    weights = (rng.standard_normal(shape) / 16).astype(np.float16).astype(np.float32)
    bias = np.zeros(s.padded, np.float32)
    bias[: s.y.channels] = rng.standard_normal(s.y.channels)
    expected = Operator(pads=(s.top, s.left) * 2, strides=s.stride).reference(x, weights, bias[: s.y.channels])
    kernel, y = generated(s, tile), np.zeros(math.prod(s.y.shape), s.y.dtype.numpy)
    operands = [blocked(s.x, x), packed(weights, s, tile)]
    if tile.splits == 1:
        interpret(kernel, [*operands, bias, y])
    else:
        sums = np.full(math.prod(sums_shape(s, tile)), np.nan, np.float32)
        interpret(kernel, [*operands, sums])
        interpret(joined_parts(s, tile), [sums, bias, y])
    np.testing.assert_allclose(y.astype(np.float32), blocked(replace(s.y, dtype=F32), expected), rtol=1e-3, atol=1e-5)
    groups = work_groups(kernel)
    assert groups is not None
    assert (groups.size, groups.shared_bytes) == (tile.threads, tile.shared)
    assert prove(kernel) > 0


def test_the_second_check_accepts_what_is_proved() -> None:
    """It evaluates every iteration, so that it is for a small kernel."""
    assert check(show(generated(*CASES["pointwise"]))) > 0
    assert check(show(generated(*CASES["pointwise, matrices"]))) > 0


def instructions(body: tuple[Stmt, ...]) -> Iterator[Instruction]:
    for s in body:
        if isinstance(s, Instruction):
            yield s
        elif isinstance(s, BLOCKS):
            yield from instructions(s.body)


def value(i: Index, named: Mapping[str, int]) -> int:
    """An index where the loops have these values, and all others are in their first iteration."""
    total = i.const
    for atom, factor in i.terms:
        (variable,) = atom.vars
        total += factor * named.get(variable.name, 0)
    return total


def test_operands_are_the_fragments_of_the_instruction() -> None:
    """The layout of m16n8k8 as the PTX ISA has it: of the registers of thread 4 * g + t, A has the rows g and g + 8 and
    the columns 2 * t and 2 * t + 1, B these rows of column g, C and D these rows of A and columns 2 * t and 2 * t + 1.
    """
    kernel = tensor_tiled(*CASES["pointwise"])
    instruction = next(instructions(kernel.body))
    rng = np.random.default_rng(0)
    memory = {b: rng.integers(-8, 8, [e.const for e in b.shape]) for b, _ in instruction.operands[:3]}
    a, b, wanted = np.zeros((16, 8)), np.zeros((8, 8)), np.zeros((16, 8))
    for g in range(8):
        for t in range(4):
            at = {"g": g, "t": t}
            low, high, column = (
                memory[buffer][*(value(i, at) for i in index[:-1])][value(index[-1], at) :][:2]
                for buffer, index in instruction.operands[:3]
            )
            a[g, 2 * t : 2 * t + 2], a[g + 8, 2 * t : 2 * t + 2], b[2 * t : 2 * t + 2, g] = low, high, column
    product = a @ b
    (xs, x_at), _, (ws, w_at), *_ = instruction.operands
    first = {"g": 0, "t": 0}
    rows = memory[xs][value(x_at[0], first)][:16, :8]
    columns = memory[ws][value(w_at[0], first)][:8, :8]
    np.testing.assert_array_equal(product, rows @ columns.T)  # what the body adds, by its rows and columns
    for g in range(8):
        for t in range(4):
            for c in range(4):  # the loads of the body
                wanted[g + c // 2 * 8, 2 * t + c % 2] = rows[g + c // 2 * 8] @ columns[2 * t + c % 2]
    np.testing.assert_array_equal(product, wanted)


def test_only_languages_that_have_it_print_the_instruction() -> None:
    kernel = tensor_tiled(*CASES["pointwise"])
    assert find("cuda").kernel(kernel).count("mma_f16(") == 3  # its function, and two calls
    for name in ("opencl", "vulkan"):
        assert "mma" not in find(name).kernel(kernel)


def test_the_machine_decides() -> None:
    s = convolution((64, 64), (56, 56), 3)
    assert isinstance(candidates((s,), GPU, Limits())[0], TensorTiled)
    assert not TensorTiled.applies((s,), replace(GPU, products=()))
    assert not TensorTiled.applies((replace(s, weights=F32),), GPU)
    tiles = [each.tile for each in TensorTiled.candidates((s,), GPU, Limits(), 10000)]
    assert max(tile.threads for tile in tiles) <= 256
    assert all(tile.shared <= SHARED.bytes for tile in tiles)


def test_cooperative_matrices_are_chosen_where_the_machine_has_them() -> None:
    s, machine = convolution((64, 64), (28, 28), 3), find_target("vulkan-matrix").machine
    assert isinstance(candidates((s,), machine, Limits())[0], MatrixTiled)
    assert not MatrixTiled.applies((s,), GPU)
    assert not MatrixTiled.applies((replace(s, weights=F32),), machine)


def test_sums_of_matrices_are_touched_by_their_instructions_alone() -> None:
    """No thread knows which elements of a cooperative matrix it has."""
    kernel = generated(*CASES["pointwise, matrices"])
    whole = MatrixGlsl()
    whole.kernel(kernel)
    assert re.findall(r"coopMat\w+NV", whole.listing([])) == [
        f"coopMat{n}NV" for n in ("Load", "Load", "MulAdd", "Store")
    ]
    with pytest.raises(TypeError, match="a is read outside of the instructions of matrices"):
        whole.kernel(replace(kernel, body=without_stores(kernel.body)))


def without_stores(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """With what the instruction means in its place."""
    return tuple(
        each
        for s in body
        for each in (
            s.body
            if isinstance(s, Instruction) and s.name == "matrix_store"
            else (replace(s, body=without_stores(s.body)),)
            if isinstance(s, BLOCKS)
            else (s,)
        )
    )
