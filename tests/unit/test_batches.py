"""Convolutions of several images: weights that leave the cache are read once for images that stay in it, and blocks of
Winograd's algorithm are of several images.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowered import make_site, run_site, settle
from tenon.machine.algorithms import registry
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels import conv as dense
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Operator, Site
from tenon.network.ops.conv import Conv
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import quantized_multipliers

MACHINE = find("x86-64-avx2").machine
RNG = np.random.default_rng(2)


def floats(*, images: int, key: str) -> tuple[Operator, Site, list[Array]]:
    shapes = (images, 8, 4, 4), (32, 8, 3, 3), (32,)
    arrays: list[Array] = [RNG.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    conv = Conv(pads=(1, 1, 1, 1))
    site = replace(make_site(conv, arrays, MACHINE, (1, 2)), algorithm=registry.parse(key))
    return conv, settle(conv, site), arrays


def integers(*, images: int, key: str) -> tuple[Operator, Site, list[Array]]:
    data, weights = (RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((images, 16, 4, 4), (32, 16, 3, 3)))
    arrays: list[Array] = [data, weights, np.zeros(32, np.int32), *quantized_multipliers([0.001] * 32)]
    more: dict[str, Any] = {"low": -128, "high": 127, "zero": 3, "to": "i8", "pads": (1, 1, 1, 1)}
    conv = IntegerConv("double", 5, scale=0.5, **more)
    site = replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)), algorithm=registry.parse(key))
    return conv, settle(conv, site), arrays


@pytest.mark.parametrize("key", ["direct", "integer", "integer-widened", "integer-inner-products"])
def test_weights_are_read_once_for_images_in_the_cache(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_KEPT", 2500 if key == "direct" else 1200)  # two images of 4
    made = floats if key == "direct" else integers
    conv, site, arrays = made(images=4, key=f"{key} rows=1 cols=3 vecs=2")
    *_, product = conv.lower(site)
    text = show(product.kernel)
    assert text.index("n < 2") < text.index("o < 2") < text.index("n2 < 2")
    (got,), (expected,) = run_site(conv, site, arrays), conv.evaluate(arrays)
    np.testing.assert_allclose(got, expected, atol=1e-5 if key == "direct" else 0)


@pytest.mark.parametrize(
    "key", ["winograd m=2 tiles=7 cols=2 vecs=2 pairs=0", "integer-winograd tiles=7 cols=3 vecs=1"]
)
def test_blocks_of_tiles_are_of_several_images(key: str) -> None:
    made = floats if key.startswith("winograd") else integers
    conv, site, arrays = made(images=3, key=key)
    (step,) = conv.lower(site)
    assert "for n" not in show(step.kernel)
    (got,), (expected,) = run_site(conv, site, arrays), conv.evaluate(arrays)
    np.testing.assert_allclose(got, expected, atol=1e-5 if made is floats else 0)


def test_a_layer_of_few_tiles_is_one_block() -> None:
    conv, site, arrays = floats(images=2, key="winograd m=2 tiles=8 cols=2 vecs=2 pairs=0")
    assert len(conv.lower(site)) == 3
    (got,), (expected,) = run_site(conv, site, arrays), conv.evaluate(arrays)
    np.testing.assert_allclose(got, expected, atol=1e-5)
