"""Integer convolutions by products of pairs of 16 bits: bit-identical to the reference, and used where x86 has no
products of bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from integer_products import Shape
from lowered import Ask, make_site, run_site
from tenon.machine.algorithms import registry
from tenon.machine.kernel_ir.text import show
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.base import Site
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import quantized_multipliers

MACHINE = find("x86-64-avx2").machine
WIDENED = registry.parse("integer-widened rows=1 cols=3 vecs=2")
INNER = registry.parse("integer-inner-products rows=1 cols=3 vecs=2")
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1x1": ((1, 16, 3, 8), (24, 16, 1, 1), {}),
    "odd_blocks": ((1, 12, 4, 4), (16, 12, 1, 1), {}),
    "partial_channels": ((2, 10, 5, 6), (7, 10, 3, 3), {"pads": (1, 1, 1, 1)}),
    "three_blocks": ((1, 20, 5, 4), (16, 20, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "skipped_pixels": ((2, 24, 5, 6), (9, 24, 1, 1), {"strides": (2, 3)}),
    "first": ((1, 3, 6, 7), (16, 3, 3, 3), {"pads": (0, 0, 1, 1), "strides": (2, 2)}),
    "first_7x7": ((2, 3, 9, 11), (16, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    "first_of_five": ((1, 5, 6, 7), (9, 5, 3, 3), {"pads": (2, 1, 2, 1), "dilations": (2, 1)}),
    "first_dilated": ((1, 3, 6, 9), (8, 3, 3, 3), {"pads": (1, 2, 1, 2), "dilations": (1, 2)}),
    "groups": ((1, 32, 3, 4), (32, 16, 3, 1), {"group": 2, "dilations": (2, 1), "pads": (2, 0, 2, 0)}),
    "1d": ((1, 6, 13), (4, 6, 3), {"pads": (1, 1)}),
}


ROWS = ("first", "first_7x7", "first_of_five")
"""The cases whose pairs are elements that the taps of a row read."""


def prepared(name: str, dtype: type[np.integer[Any]], **more: Any) -> tuple[IntegerConv, Site, list[Array]]:
    """The operator, where it is lowered and its operands, those at the ends of their ranges included: the first and the
    second output channel have the largest sums of weights and inputs that there are."""
    x, w, options = CASES[name]
    rng, kind = np.random.default_rng(3), np.iinfo(dtype)
    data = rng.integers(kind.min, kind.max + 1, x).astype(dtype)
    weights = rng.integers(-128, 128, w).astype(np.int8)
    data.flat[: data.size // 2] = rng.choice([kind.min, kind.max], data.size // 2)
    weights[0], weights[1] = -128, 127
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 90)
    bias = rng.integers(-9000, 9000, w[0]).astype(np.int32)
    arrays: list[Array] = [data, weights, bias, *quantized_multipliers(real.tolist())]
    bounds: dict[str, Any] = {
        "low": kind.min,
        "high": kind.max,
        "zero": kind.min + 120,
        "to": DType.of(data.dtype).value,
    }
    conv = IntegerConv("double", int(kind.min) + 131, scale=0.5, **bounds, **options, **more)
    surplus = Ask(surplus=int(name == "partial_channels"))
    return conv, replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4), surplus), algorithm=WIDENED), arrays


@pytest.mark.parametrize("w_zero", [0, 23])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, dtype: type[np.integer[Any]], w_zero: int) -> None:
    conv, site, arrays = prepared(name, dtype, w_zero=w_zero)
    widening, product = conv.lower(site)
    assert widening.kernel.name.startswith("widened_rows" if name in ROWS else "widened")
    assert "madd_i16" in show(product.kernel)
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 20
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("w_zero", [0, 23])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", [name for name in CASES if name not in (*ROWS, "first_dilated", "groups", "1d")])
def test_inner_products(name: str, dtype: type[np.integer[Any]], w_zero: int) -> None:
    conv, site, arrays = prepared(name, dtype, w_zero=w_zero)
    site = replace(site, algorithm=INNER)
    *_, product = conv.lower(site)
    assert product.kernel.name.startswith("integer_inner")
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 20
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, expected)


def test_rows_of_three_channels_take_fewer_products() -> None:
    """Seven taps of three channels are 11 pairs, of pixels of four lanes 14."""
    conv, site, _ = prepared("first_7x7", np.uint8)
    _, product = conv.lower(site)
    assert "(const x: i16[2, 15, 52], const w: i8[1, 1, 7, 1, 11, 32]," in show(product.kernel)


def test_parts_of_a_few_output_channels_share_out_positions() -> None:
    conv = IntegerConv("double", 0, scale=0.5, low=-128, high=127, zero=0, to="i8")
    rng = np.random.default_rng(1)
    arrays: list[Array] = [rng.integers(-128, 128, (1, 16, 10, 18)).astype(np.int8)]
    arrays += [rng.integers(-128, 128, (16, 16, 1, 1)).astype(np.int8), np.zeros(16, np.int32)]
    arrays += quantized_multipliers([0.01] * 16)
    site = replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)), algorithm=INNER)
    assert "parallel part < 3" in show(conv.lower(site)[-1].kernel)
    (got,), (expected,) = run_site(conv, site, arrays), conv.evaluate(arrays)
    np.testing.assert_array_equal(got, expected)


def fastest(channels: int, size: int) -> str:
    shapes = (1, channels, size, size), (channels, channels, 1, 1)
    arrays: list[Array] = [np.zeros(shapes[0], np.int8), np.ones(shapes[1], np.int8), np.zeros(channels, np.int32)]
    conv = IntegerConv("double", 0, scale=0.5, low=-128, high=127, zero=0, to="i8")
    site = make_site(conv, [*arrays, *quantized_multipliers([0.5] * channels)], MACHINE, (1, 2, 3, 4))
    return conv.candidates(site)[0].name


def test_estimates() -> None:
    assert fastest(64, 14) == INNER.name
    assert fastest(64, 1) == WIDENED.name  # weights are used once
    assert fastest(8, 14) == WIDENED.name  # a single block


def test_machines_with_products_of_bytes_do_not_use_it() -> None:
    conv, _, arrays = prepared("1x1", np.int8)
    for target in ("x86-64-avx512-vnni", "aarch64-dotprod"):
        site = make_site(conv, arrays, find(target).machine, (1, 2, 3, 4))
        assert all(each.name != WIDENED.name for each in conv.candidates(site))
