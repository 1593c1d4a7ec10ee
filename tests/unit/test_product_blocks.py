"""Products of blocks of two positions by two channels (I8MM and BF16): of integers bit-identical to the reference, of
bf16 to direct sums, and used where they take fewer instructions.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library, assembled
from integer_products import Shape
from interpret import interpret
from loop_operations import OPERATIONS
from lowered import make_site, run_site, settle
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.product_blocks import ProductBlocks
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, op
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels.conv import Conv as DenseConv
from tenon.machine.kernels.conv import OutputTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.product_blocks import pack, product_blocks, supported
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType
from tenon.network.ops.base import Case, Site
from tenon.network.ops.conv import Conv as Operator
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.requantize import quantized_multipliers

MACHINE = find("aarch64-i8mm").machine
BLOCKS = registry.parse("product-blocks positions=8 vecs=3")
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1x1": ((1, 16, 3, 8), (8, 16, 1, 1), {}),
    "odd_blocks": ((1, 12, 4, 4), (16, 12, 1, 1), {}),
    "partial_channels": ((2, 10, 5, 6), (7, 10, 3, 3), {"pads": (1, 1, 1, 1)}),
    "rows_apart": ((1, 8, 6, 11), (12, 8, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 1)}),
    "dilated": ((1, 8, 7, 9), (4, 8, 3, 2), {"pads": (2, 1, 2, 1), "dilations": (2, 2)}),
    "narrow": ((1, 8, 5, 3), (8, 8, 3, 1), {"pads": (1, 0, 1, 0)}),
    "1d": ((1, 6, 13), (4, 6, 3), {"pads": (1, 1)}),
    "stride": ((1, 20, 7, 9), (20, 20, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "one_position": ((1, 24, 1, 1), (64, 24, 1, 1), {}),
}


def operands(x: Shape, w: Shape, dtype: type[np.integer[Any]]) -> list[Array]:
    rng, kind = np.random.default_rng(3), np.iinfo(dtype)
    data = rng.integers(kind.min, kind.max + 1, x).astype(dtype)
    weights = rng.integers(-128, 128, w).astype(np.int8)
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 60)
    return [data, weights, rng.integers(-9000, 9000, w[0]).astype(np.int32), *quantized_multipliers(real.tolist())]


def prepared(name: str, dtype: type[np.integer[Any]]) -> tuple[IntegerConv, Site, list[Array]]:
    x, w, more = CASES[name]
    arrays, least = operands(x, w, dtype), int(np.iinfo(dtype).min)
    bounds: dict[str, Any] = {
        "low": least,
        "high": least + 255,
        "zero": least + 120,
        "to": DType.of(arrays[0].dtype).value,
    }
    conv = IntegerConv("double", least + 131, scale=0.5, **bounds, **more)
    site = replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)), algorithm=BLOCKS)
    return conv, settle(conv, site), arrays


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, dtype: type[np.integer[Any]]) -> None:
    conv, site, arrays = prepared(name, dtype)
    (step,) = conv.lower(site)
    assert step.kernel.name.startswith("integer_blocks")
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 20
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, expected)


def test_weights_with_a_zero_point_take_another_kernel() -> None:
    """The other kernel reads images in the machine's own blocks; a choice of products of blocks ends in it, too."""
    conv, site, arrays = prepared("1x1", np.int8)
    shifted = replace(conv, w_zero=100)
    (step,) = shifted.lower(site)
    assert step.kernel.name.startswith("integer_conv")
    (got,) = run_site(shifted, site, arrays)
    np.testing.assert_array_equal(got, shifted.evaluate(arrays)[0])
    blocks = {}
    for each in (conv, shifted):
        here = make_site(each, arrays, MACHINE, (1, 2, 3, 4))
        assert any(isinstance(one, ProductBlocks) for one in each.candidates(here)) == (each is conv)
        blocks[each.w_zero] = here.input(0).layout.block
    assert blocks == {0: 8, 100: MACHINE.block}


def test_depthwise_convolutions_store_the_blocks_that_are_read_next() -> None:
    for channels, able in ((24, True), (20, False)):
        depthwise = IntegerConv("double", 0, group=channels, scale=0.5)
        site = make_site(depthwise, operands((1, channels, 4, 4), (channels, 1, 3, 3), np.int8), MACHINE, (1, 2, 3, 4))
        assert depthwise.any_block(site, None) == able


def chosen(x: Shape, w: Shape, more: dict[str, Any]) -> str:
    conv, arrays = IntegerConv("double", 3, scale=0.5, **more), operands(x, w, np.int8)
    problem = conv.problem(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)))
    assert problem is not None
    return registry.candidates((problem,), MACHINE, Limits())[0].name


def test_it_is_chosen_where_rows_are_long() -> None:
    same = {"pads": (1, 1, 1, 1)}
    assert chosen((1, 64, 16, 16), (64, 64, 3, 3), same) == "product-blocks"
    assert chosen((1, 64, 7, 7), (128, 64, 1, 1), {}) == "product-blocks"
    assert chosen((1, 64, 32, 1), (64, 64, 3, 1), {"pads": (1, 0, 1, 0)}) == "integer"  # one position a row
    assert chosen((1, 3, 32, 32), (16, 3, 3, 3), same) == "integer"  # half of every block is empty
    assert chosen((1, 64, 16, 16), (64, 64, 3, 3), {"strides": (2, 2)}) == "product-blocks"
    assert chosen((1, 4, 32, 32), (16, 4, 3, 3), same) == "integer"


def bf16_image(channels: int, h: int, w: int, halo: int = 0) -> Image:
    return Image(1, channels, h, w, 4, halo, halo, halo, halo, dtype=DType.BF16)


MATRIX = (Image(1, 20, 1, 5, 20, dtype=DType.BF16), Image(1, 12, 1, 5, 12, dtype=DType.BF16))
BF16_CASES = {
    "3x3": DenseConv(bf16_image(10, 3, 11, 1), bf16_image(19, 3, 11), (3, 3), top=1, left=1, weights=DType.BF16),
    "stride": DenseConv(bf16_image(8, 3, 9, 1), bf16_image(8, 2, 5), (3, 3), (2, 2), top=1, left=1, weights=DType.BF16),
    "narrow": DenseConv(bf16_image(8, 3, 1), bf16_image(4, 3, 1), bias=False, weights=DType.BF16),
    "matrix": DenseConv(*MATRIX, weights=DType.BF16),
}


@pytest.mark.parametrize("name", BF16_CASES)
def test_products_of_bf16_are_those_of_direct_sums(name: str) -> None:
    """To the bit, since both add the pairs of inputs in the same order; and near sums in f64."""
    c, rng = BF16_CASES[name], np.random.default_rng(1)
    machine = find("aarch64-bf16").machine
    assert supported(c, machine)
    x = rng.standard_normal(c.x.shape).astype(np.float32)
    x.reshape(*c.x.shape[:2], -1, c.x.block)[:, -1, :, c.x.channels - (c.x.blocks - 1) * c.x.block :] = 0
    weights = rng.standard_normal((c.y.channels, c.x.channels, *c.kernel)).astype(DType.BF16.numpy)
    words = x.astype(DType.BF16.numpy).view(np.int32).reshape(-1)
    bias = [rng.standard_normal(c.padded).astype(np.float32)] if c.bias else []
    results = []
    for tile in (OutputTile(1, 8, 2), OutputTile(1, 4, 3)):
        blocks, direct = (np.zeros(math.prod(c.y.shape), np.uint16) for _ in "yy")
        packed = [each.reshape(-1) for each in pack(weights, c, tile)]
        kernel = product_blocks(c, machine, tile)
        assert prove(kernel) > 0
        interpret(kernel, [words, *packed, *bias, blocks])
        packed = [each.reshape(-1) for each in dense.pack(weights, c, machine, tile.vecs)]
        interpret(dense.conv(c, machine, tile), [words, *packed, *bias, direct])
        np.testing.assert_array_equal(blocks, direct)
        results.append(blocks)
    np.testing.assert_array_equal(results[0], results[1])
    sums = dense.conv(replace(c, x=replace(c.x, dtype=F32), weights=F32), Machine(lanes=4), OutputTile(1, 1, 1))
    packed = dense.pack(weights.astype(np.float32), replace(c, weights=F32), Machine(lanes=4), 1)
    plain = np.zeros(math.prod(c.y.shape), np.uint16)
    exact = words.view(DType.BF16.numpy).astype(np.float32)
    interpret(sums, [exact, *(each.reshape(-1) for each in packed), *bias, plain])
    np.testing.assert_allclose(
        results[0].view(DType.BF16.numpy).astype(float),
        plain.view(DType.BF16.numpy).astype(float),
        rtol=0.01,
        atol=1e-5,
    )


def operator_cases() -> Iterator[Case]:
    """The cases of convolutions and matrix products: of floats, with operands of bf16, and of integers."""
    for case in Operator.cases():
        if all(a is None or a.ndim < 5 for a in case.arrays()[:1]):
            yield replace(case, inputs=tuple(case.arrays()), label=f"float_{case.label}")
    for case in itertools.chain(IntegerConv.cases(), IntegerGemm.cases()):
        yield replace(case, inputs=tuple(case.arrays()), label=f"{type(case.op).__name__}_{case.label}")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.label, marks=() if i % 16 == 3 else pytest.mark.slow)
        for i, case in enumerate(operator_cases())
    ],
)
def test_operator_cases(case: Case) -> None:
    """With halos that are wider than needed."""
    floats, arrays = case.label.startswith("float_"), case.arrays()
    if floats:
        arrays = [a.astype(DType.BF16.numpy) if i < 2 and a is not None else a for i, a in enumerate(arrays)]
    site = make_site(case.op, arrays, find("aarch64-bf16").machine, case.constant)
    for algorithm in case.op.candidates(site):
        if isinstance(algorithm, ProductBlocks):
            (result,) = run_site(case.op, settle(case.op, replace(site, algorithm=algorithm), surplus=1), arrays)
            (expected,) = case.op.evaluate(arrays)
            atol = 2e-2 * float(np.abs(expected.astype(np.float32)).max()) if floats else 0
            np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=0, atol=atol)


def test_matrices_are_multiplied_in_blocks() -> None:
    """The matrices are of integers, with rows of whole registers and of half a register more."""
    rng = np.random.default_rng(2)
    for inputs in (48, 40):
        arrays: list[Array] = [rng.integers(-128, 128, (5, inputs)).astype(np.int8)]
        arrays += [rng.integers(-127, 128, (12, inputs)).astype(np.int8), rng.integers(-9, 9, 12).astype(np.int32)]
        gemm = IntegerGemm("double", 3, 1, -128, 127, scale=0.5)
        arrays += quantized_multipliers([0.01] * 12)
        site = make_site(gemm, arrays, MACHINE, (1, 2, 3, 4))
        algorithm = next(each for each in gemm.candidates(site) if isinstance(each, ProductBlocks))
        (step,) = gemm.lower(replace(site, algorithm=algorithm))
        assert step.kernel.name.startswith("integer_blocks")
        (result,) = run_site(gemm, replace(site, algorithm=algorithm), arrays)
        np.testing.assert_array_equal(result, gemm.evaluate(arrays)[0])


NAMES = {
    "mmla": 3,
    "mmla_signed": 3,
    "low_words": 2,
    "high_words": 2,
    "low_halves": 2,
    "high_halves": 2,
    "outer_halves": 2,
    "even_words": 2,
    "odd_words": 2,
}


def kernel(name: str) -> Kernel:
    k = Builder(name)
    given = [k.param(p, 64, dtype=I32).vec(4) for p in "abc"[: NAMES[name]]]
    y = k.param("y", 64, dtype=I32, out=True).vec(4)
    with k.loop("i", 16) as i:
        y[i] = op(name, *(a[i] for a in given))
    return k.done()


def test_primitives_in_portable_c(tmp_path: Path) -> None:
    """For random and extreme bytes; sums wrap around."""
    library = Library()
    for name in NAMES:
        library.add(kernel(name))
    library.build(tmp_path, ("gcc", "-O2"))
    rng = np.random.default_rng(0)
    for name, arity in NAMES.items():
        given = [rng.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in range(arity)]
        given[-1][:8] = given[-2][:8] = -0x7F7F7F80
        got, expected = np.zeros(64, np.int32), np.zeros(64, np.int32)
        library(kernel(name), [*given, got])
        interpret(kernel(name), [*given, expected])
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_a_block_is_the_product_of_matrices() -> None:
    a, b = np.arange(-8, 8, dtype=np.int8), np.arange(3, 19, dtype=np.int8)
    acc = np.array([1, 2, 3, 4], np.int32)
    got = OPERATIONS["mmla_signed"](acc, a.view(np.int32), b.view(np.int32))
    expected = acc.reshape(2, 2) + a.reshape(2, 8).astype(np.int32) @ b.reshape(2, 8).T.astype(np.int32)
    np.testing.assert_array_equal(got.reshape(2, 2), expected)


@pytest.mark.parametrize(("name", "instruction"), [("mmla", "usmmla"), ("mmla_signed", "smmla")])
def test_instructions(name: str, instruction: str, tmp_path: Path) -> None:
    row = find("aarch64-i8mm")
    command = [*zig(tmp_path).command, "-target", row.triple, f"-mcpu={row.cpu}"]
    assert re.search(rf"\b{instruction}\s", assembled(kernel(name), command, tmp_path))
