"""Winograd's algorithm in integers by vectors: bit-identical to the reference, also where transforms overflow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from integer_products import Shape
from lowered import make_site, run_site, settle
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import quantized_multipliers

MACHINE = find("x86-64-avx2").machine
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "even": ((1, 16, 4, 6), (16, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "odd": ((1, 16, 5, 7), (8, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "partial_channels": ((2, 10, 6, 5), (7, 10, 3, 3), {"pads": (0, 1, 2, 1)}),
}


def prepared(name: str, dtype: type[np.integer[Any]], **more: Any) -> tuple[IntegerConv, list[Array]]:
    """The operator and its operands: the first output channel has the largest sums that there are."""
    x, w, options = CASES[name]
    rng, kind = np.random.default_rng(3), np.iinfo(dtype)
    data = rng.integers(kind.min, kind.max + 1, x).astype(dtype)
    weights = rng.integers(-128, 128, w).astype(np.int8)
    weights[0], weights[1] = -128, 127
    data[..., :3] = kind.max
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 90)
    bias = rng.integers(-9000, 9000, w[0]).astype(np.int32)
    least, most = int(kind.min), int(kind.max)
    bounds: dict[str, Any] = {"low": least, "high": most, "zero": least + 120, "to": DType.of(data.dtype).value}
    conv = IntegerConv("double", least + 131, scale=0.5, **bounds, **options, **more)
    return conv, [data, weights, bias, *quantized_multipliers(real.tolist())]


@pytest.mark.parametrize("key", ["tiles=7 cols=3 vecs=1", "tiles=64 cols=5 vecs=1"])
@pytest.mark.parametrize("w_zero", [0, 23])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, dtype: type[np.integer[Any]], w_zero: int, key: str) -> None:
    conv, arrays = prepared(name, dtype, w_zero=w_zero)
    site = replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)), algorithm=registry.parse(f"integer-winograd {key}"))
    site = settle(conv, site, int(name == "even"))
    (step,) = conv.lower(site)
    assert step.kernel.name.startswith("integer_winograd")
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 20
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, expected)


def chosen(channels: int, size: int, limits: Limits, stride: int = 1) -> str:
    arrays: list[Array] = [np.zeros((1, channels, size, size), np.int8), np.ones((channels, channels, 3, 3), np.int8)]
    arrays += [np.zeros(channels, np.int32), *quantized_multipliers([0.5] * channels)]
    conv = IntegerConv(
        "double", 0, scale=0.5, low=-128, high=127, zero=0, to="i8", pads=(1,) * 4, strides=(stride,) * 2
    )
    site = replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)), limits=limits)
    return conv.candidates(site)[0].name


def test_it_is_chosen_where_it_is_faster() -> None:
    assert chosen(128, 28, Limits()) == "integer-winograd"
    assert chosen(128, 28, Limits(winograd=0)) == "integer-inner-products"
    assert chosen(128, 28, Limits(integer_winograd=1 << 18)) == "integer-inner-products"
    assert chosen(128, 28, Limits(), stride=2) == "integer-inner-products"
    assert chosen(1024, 7, Limits()) == "integer-inner-products"  # sums would not fit
