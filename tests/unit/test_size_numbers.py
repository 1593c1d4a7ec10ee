"""Extents that only a run knows, in the importers' arithmetic: a model of another format at several sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tenon
from sized_models import assert_alike, by_references
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.size_number import SizeNumber
from tenon.network.graph.size_range import Size
from tenon.network.graph.sizes import below, expression, quotient, replaced, symbol
from tflite_models import Model


def test_arithmetic() -> None:
    steps = symbol("h", 0, 6)
    n = SizeNumber(steps * 32 + 64)
    half = -(-n // 2)
    assert half * 2 == n
    assert (half - 1) * 2 + 3 - n == 1  # padding of a window of 3 with a stride of 2
    assert n % 32 == 0
    elements: Any = math.prod((2, n, 3))
    assert elements // 6 == n
    assert n > 63
    assert n >= 64
    assert not n < 64
    assert n != 63
    assert bool(n)
    assert max(0, n - n) == 0
    assert str(n) == "32*h + 64"


@pytest.mark.parametrize(
    "use", [int, lambda n: n == 96, lambda n: n < 96, lambda n: np.zeros(n), lambda n: n / 2, range]
)
def test_what_differs_between_runs_is_refused(use: object) -> None:
    n = SizeNumber(symbol("h", 0, 6) * 32 + 64)
    with pytest.raises(RefusedError, match="known only at run time"):
        use(n)  # type: ignore[operator]


def test_steps_are_shown_as_the_sizes_that_users_know() -> None:
    """H in 64..512:32 is 32 * h + 64 for an h in 0..14."""
    h = symbol("H", 0, 14, step=32, offset=64)
    size = 32 * h + 64
    shown = [str(e) for e in (size, quotient(size, 2) + 3, quotient(size + 31, 64), size * size - 64 * size, h)]
    assert shown == ["H", "3 + H/2", "floor((H)/(64))", "-64*H + H^2", "-2 + H/32"]
    assert replaced(size, {s: expression(1) for s in h.symbols}) == expression(96)


@pytest.mark.parametrize("step", [2, 3, 384])
def test_rounding_up_has_close_bounds(step: int) -> None:
    """n/step rounded up is -floor(-n/step), the extent of a Slice with steps, and floor((n + step - 1)/step)."""
    n = symbol("n", 1024, 480000)
    up = -quotient(-n, step)
    assert up.bounds == (-(-1024 // step), -(-480000 // step))
    assert (up - quotient(n + step - 1, step)).bounds[0] >= -1
    fewer = quotient(quotient(n - 127, 64) - 6, step // 64) if step == 384 else quotient(n, step)
    assert not below(up, fewer)
    values = [up.evaluate(dict.fromkeys(n.symbols, number)) for number in range(1024, 1024 + 2 * step)]
    assert values == [-(-number // step) for number in range(1024, 1024 + 2 * step)]


def test_tflite() -> None:
    """Padding that the importer computes from extents, channels last."""
    rng = np.random.default_rng(3)
    model = Model()
    x = model.tensor("x", (1, 8, 8, 3))
    weights = model.constant("weights", rng.normal(size=(4, 3, 3, 3)).astype(np.float32))
    bias = model.constant("bias", rng.normal(size=4).astype(np.float32))
    narrow = model.tensor("narrow", (1, 4, 4, 4))
    strides = {"padding": 0, "stride_w": 2, "stride_h": 2}
    model.add("CONV_2D", [x, weights, bias], [narrow], **strides, dilation_w=1, dilation_h=1)
    pooled = model.tensor("pooled", (1, 2, 2, 4))
    model.add("AVERAGE_POOL_2D", [narrow], [pooled], **strides, filter_w=3, filter_h=3)
    y = model.tensor("y", (1, 4))
    model.add("MEAN", [pooled, model.constant("axes", np.array([1, 2], np.int32))], [y], keep_dims=False)
    data = model.bytes([x], [y, pooled])
    graph = tenon.load(data, shapes={"x": (1, Size("H", 8, 24, 8), Size("W", 8, 16, 4), 3)})
    for h, w in ((8, 8), (24, 12), (16, 16)):
        image = rng.uniform(-1, 1, (1, h, w, 3)).astype(np.float32)
        fixed = tenon.load(data, shapes={"x": image.shape})
        wanted = by_references(fixed, {"x": image}, {})
        assert_alike(by_references(graph, {"x": image}, {"H": h, "W": w}), wanted)
