"""The elementary functions of f64 compared with NumPy's, over their whole range and at its ends."""

from __future__ import annotations

import numpy as np
import pytest

from lowered import MACHINES, run_lowered
from tenon.network.ops import registry

_WIDE = np.array([0.0, -0.0, 1e-300, 1e-9, 0.3, 0.5, 1.0, 2.0, 7.5, 30.0, 700.0, np.inf, np.nan])
_EDGE = np.array([0.0, -0.0, 1e-12, 0.1, 0.5, 0.75, 0.999999, 1.0, np.nan])
RANGES = {
    **dict.fromkeys(("Exp", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Erf", "Sigmoid", "Softplus"), _WIDE),
    **dict.fromkeys(("Sin", "Cos", "Tan"), np.append(_WIDE[:-2], 1e5)),
    "Log": _WIDE,
    "Acosh": np.array([1.0, 1.0000001, 1.5, 10.0, 1e200, np.inf]),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), _EDGE),
}


@pytest.mark.parametrize("name", RANGES)
def test_close_to_numpy(name: str) -> None:
    x = np.concatenate([RANGES[name], [] if name in ("Log", "Acosh") else -RANGES[name]])
    op = registry()[name]()
    (got,) = run_lowered(op, [x], MACHINES["lanes8"])
    np.testing.assert_allclose(got, op.evaluate([x])[0], rtol=4e-15, atol=1e-300)


def test_powers() -> None:
    x = np.array([0.0, 2.0, 2.0, -2.0, -2.0, 10.0, 0.5, 3.0, np.inf, -1.5])
    y = np.array([3.0, 0.5, -3.0, 3.0, 2.0, 300.0, 1000.0, 0.0, 2.0, 0.5])
    op = registry()["Pow"]()
    (got,) = run_lowered(op, [x, y], MACHINES["lanes4"])
    np.testing.assert_allclose(got, op.evaluate([x, y])[0], rtol=3e-16)


@pytest.mark.parametrize("decades", [5, 300])
def test_powers_are_within_0_6_ulp(decades: int) -> None:
    rng = np.random.default_rng(1)
    x = 10.0 ** rng.uniform(-decades, decades, 500)
    y = rng.uniform(-1, 1, 500) * 700 / np.abs(np.log(x))
    (got,) = run_lowered(registry()["Pow"](), [x, y], MACHINES["lanes4"])
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert (np.abs(got - exact) / np.spacing(exact.astype(np.float64))).max() < 0.6


def test_whole_powers_are_exact() -> None:
    x, y = (v.reshape(-1) for v in np.meshgrid(np.arange(1.0, 42.0), np.arange(1.0, 10.0)))
    (got,) = run_lowered(registry()["Pow"](), [x, y], MACHINES["lanes8"])
    exact = [int(a) ** int(b) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(got, np.array(exact, np.float64))  # beyond 2**53 rounded once


def test_integers_to_broken_powers_are_truncated() -> None:
    """As the correctly rounded f64 power: 27 to the third of one is 3, 64 less than 4."""
    x, third = np.array([27, 64, 8], np.int32), np.full(3, 1 / 3)
    op = registry()["Pow"]()
    (got,) = run_lowered(op, [x, third], MACHINES["lanes4"])
    assert got.tolist() == op.evaluate([x, third])[0].tolist() == [3, 3, 2]


def test_integer_powers_wrap_around() -> None:
    x = np.array([2, 3, -3, 7, 1, -1, 2, 0], np.int32)
    y = np.array([31, 40, 41, 0, -5, -3, -1, 0], np.int64)
    op = registry()["Pow"]()
    (got,) = run_lowered(op, [x, y], MACHINES["lanes4"])
    inverse = [0, 0, 0, 0, 1, -1, 0, 0]
    wrapped = [pow(int(a), int(b), 1 << 32) if b >= 0 else None for a, b in zip(x, y, strict=True)]
    expected = [np.uint32(v).astype(np.int32) if v is not None else n for v, n in zip(wrapped, inverse, strict=True)]
    np.testing.assert_array_equal(got, np.array(expected, np.int32))
