"""Weights of u8 whose zero point does not fit i8 beside them: multiplied four at a time, and exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tenon
from integer_products import Shape
from lowered import MACHINES, Ask, make_site, run_site
from on_targets import assert_stated_digest
from tenon.machine.isa.byte_products import DOT4_SIGNED
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.integer_depthwise import halves
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_product import IntegerProduct
from tenon.network.ops.requantize import quantized_multipliers
from tflite_models import Model

BYTES = {name: machine for name, machine in MACHINES.items() if machine.fours} | {
    "lanes16_i8": replace(MACHINES["lanes16"], products=(DOT4_SIGNED,)),
    "lanes4": replace(MACHINES["lanes4"], products=(DOT4_SIGNED,)),
}
SHAPES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1x1": ((1, 16, 3, 7), (24, 16, 1, 1), {}),
    "1x1_partial": ((2, 22, 2, 3), (20, 22, 1, 1), {}),
    "1x1_stride": ((1, 32, 5, 6), (16, 32, 1, 1), {"strides": (2, 2)}),
    "first": ((1, 3, 6, 7), (16, 3, 3, 3), {"pads": (0, 0, 1, 1), "strides": (2, 2)}),
    "3x3": ((1, 18, 2, 3), (8, 18, 3, 3), {"pads": (1, 1, 1, 1)}),
    "groups": ((1, 32, 3, 4), (32, 16, 3, 1), {"group": 2, "dilations": (2, 1), "pads": (2, 0, 2, 0)}),
    "depthwise": ((1, 16, 2, 13), (16, 1, 3, 3), {"group": 16, "pads": (1, 1, 1, 1)}),
    "depthwise_partial": ((1, 21, 5, 9), (21, 1, 3, 3), {"group": 21, "pads": (0, 0, 1, 1), "strides": (2, 2)}),
    "depthwise_5x5": ((1, 16, 2, 5), (16, 1, 5, 5), {"group": 16, "pads": (2, 2, 2, 2)}),
    "row": ((1, 100), (20, 100), {}),
    "rows": ((5, 12), (7, 12), {}),
}


def prepared(name: str, zeros: tuple[int, int], extreme: str = "") -> tuple[IntegerProduct, list[Array]]:
    """The operator and its operands, of zero points of x and of the weights.  Weights are from 1 to 255; ``extreme``
    "high" makes all operands 255, "low" those of x 255 and the weights 0."""
    x, w, more = SHAPES[name]
    rng = np.random.default_rng(7)
    data, weights = rng.integers(0, 256, x).astype(np.uint8), rng.integers(1, 256, w).astype(np.uint8)
    weights.flat[:2] = 1, 255
    if extreme:
        data[...], weights[...] = 255, 255 if extreme == "high" else 0
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 120)
    kind = IntegerConv if len(x) > 2 else IntegerGemm
    op = kind("double", *zeros, zero=120, low=0, high=255, to="u8", scale=0.5, **more)
    return op, [data, weights, rng.integers(-9000, 9000, w[0]).astype(np.int32), *quantized_multipliers(real.tolist())]


def check(op: IntegerProduct, arrays: list[Array], machine: Machine, surplus: int = 0) -> str:
    """The text of the kernel, whose results are those of the reference."""
    site = make_site(op, arrays, machine, (1, 2, 3, 4), Ask(surplus=surplus))
    (step,) = op.lower(site)
    (got,) = run_site(op, site, arrays)
    np.testing.assert_array_equal(got, op.evaluate(arrays)[0])
    return show(step.kernel)


@pytest.mark.parametrize("machine", BYTES)
@pytest.mark.parametrize("name", SHAPES)
def test_bytes_are_multiplied_four_at_a_time(name: str, machine: str) -> None:
    op, arrays = prepared(name, (131, 151))
    assert len(np.unique(op.evaluate(arrays)[0])) > 12
    text = check(op, arrays, BYTES[machine], int(name in ("3x3", "depthwise")))
    assert "dot4" in text


@pytest.mark.parametrize("extreme", ["high", "low"])
@pytest.mark.parametrize("zeros", [(0, 0), (255, 0), (0, 255), (131, 128)])
@pytest.mark.parametrize("name", ["1x1", "depthwise"])
def test_largest_and_least_operands(name: str, zeros: tuple[int, int], extreme: str) -> None:
    op, arrays = prepared(name, zeros, extreme)
    check(op, arrays, BYTES["lanes16"])


def test_machines_without_instructions_for_products_of_bytes_multiply_one_by_one() -> None:
    for name in ("1x1", "depthwise"):
        assert "dot4" not in check(*prepared(name, (131, 151)), MACHINES["lanes4"])


def test_halves() -> None:
    wide = np.arange(-255, 255)
    first, second = halves(wide) or (wide, wide)
    assert first.dtype == second.dtype == np.int8
    np.testing.assert_array_equal(first.astype(int) + second, wide)
    assert halves(np.array([255])) is None


def net() -> bytes:
    """A convolution of an image, a depthwise one, one of 1x1 and a fully connected layer of u8 with zero points."""
    rng, model = np.random.default_rng(3), Model()

    def product(x: int, shape: Shape, to: Shape, kind: str, **options: int) -> int:
        w = model.constant("w", rng.integers(1, 256, shape).astype(np.uint8), scale=[0.01], zero=[151])
        bias = rng.integers(-900, 900, to[-1]).astype(np.int32)
        b = model.constant("b", bias, scale=[0.0005])
        y = model.tensor(kind, to, "u8", scale=[0.05 * np.prod(shape[1:]) ** 0.5], zero=[110])
        model.add(kind, [x, w, b], [y], activation=0, **options)
        return y

    x = first = model.tensor("x", (1, 8, 8, 3), "u8", scale=[0.05], zero=[128])
    same = {"padding": 0, "stride_w": 1, "stride_h": 1}
    x = product(x, (16, 3, 3, 3), (1, 4, 4, 16), "CONV_2D", padding=0, stride_w=2, stride_h=2)
    x = product(x, (1, 3, 3, 16), (1, 4, 4, 16), "DEPTHWISE_CONV_2D", depth_multiplier=1, **same)
    x = product(x, (24, 1, 1, 16), (1, 4, 4, 24), "CONV_2D", **same)
    x = product(x, (10, 384), (1, 10), "FULLY_CONNECTED")
    return model.bytes([first], [x])


@pytest.mark.parametrize("target", ["host", "x86-64", "aarch64-dotprod"])
def test_compiled_networks_give_the_stated_digest(target: str) -> None:
    bundle = tenon.compile(net(), target=target, arithmetic="litert", name="net")
    assert_stated_digest(bundle)
