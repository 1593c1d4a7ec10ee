"""The elementary functions keep the error bounds that their docstrings state."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tenon
from interpret import interpret
from on_targets import HOSTS
from onnx_models import model, node
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr
from tenon.machine.kernels import math as tenon_math
from tenon.machine.targets.host_cpu import runs_here
from tenon.network.graph.graph import Array


def compute(function: Callable[..., Expr], *arguments: Array) -> Array:
    """The function over whole arrays: as many lanes as elements."""
    n = len(arguments[0])
    k = Builder("k")
    inputs = [k.param("x", n).vec(n)[0] for _ in arguments]
    k.param("y", n, out=True).vec(n)[0] = function(*inputs)
    out: Array = np.zeros(n, np.float32)
    interpret(k.done(), [*map(np.ascontiguousarray, arguments), out])
    return out


def ulps(got: Array, true: Array) -> float:
    """The largest error in units in the last place of the true result; infinities must match."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = true.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    return float((np.abs(got[finite].astype(np.float64) - true[finite]) / unit).max())


def linear(low: float, high: float, n: int = 200_001) -> Array:
    return np.unique(np.linspace(low, high, n).astype(np.float32))


def geometric(low: float, high: float, n: int = 200_001) -> Array:
    return np.unique(np.exp(np.linspace(math.log(low), math.log(high), n)).astype(np.float32))


def both_signs(x: Array) -> Array:
    return np.concatenate([-x[::-1], x])


ALL = both_signs(np.concatenate([geometric(1e-30, 1.0), linear(0, 100)]))
SWEEPS: dict[str, tuple[Array, Callable[[Array], Array], float]] = {
    "exp": (linear(-110, 95), np.exp, 1),
    # Horner's rule without fused multiply-adds; the form of "exp" takes two operations more
    "exp_of_negative": (linear(-86.98, 0), np.exp, 1.2),
    "exp2_of_negative": (linear(-126, 0), np.exp2, 2),
    "log": (np.concatenate([geometric(1e-44, 3e38), linear(0.5, 2)]), np.log, 1),
    "log1p": (geometric(1e-30, 1.0), np.log1p, 2),
    "sigmoid": (ALL[ALL > -86.98], lambda x: 1 / (1 + np.exp(-x)), 3),
    "softplus": (ALL, lambda x: np.logaddexp(0, x), 2),
    "tanh": (ALL, np.tanh, 6),
    "erf": (ALL[::8], lambda x: np.array([math.erf(v) for v in x]), 7),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_error_bound(name: str) -> None:
    x, truth, bound = SWEEPS[name]
    with np.errstate(over="ignore"):
        true = truth(x.astype(np.float64))
    assert ulps(compute(getattr(tenon_math, name), x), true) <= bound


def test_exp_of_negative_numbers_has_no_subnormal_results() -> None:
    x = np.array([-math.inf, -1e9, -104, -88, -87, -86.98, math.nan], np.float32)
    y = compute(tenon_math.exp_of_negative, x)
    np.testing.assert_array_equal(y[:5], 0)
    assert y[5] > 1.17549435e-38
    assert np.isnan(y[6])


def test_powers_of_two_have_no_subnormal_results() -> None:
    x = np.array([-math.inf, -1e38, -126.1, -126, -1, 0, math.nan], np.float32)
    np.testing.assert_array_equal(compute(tenon_math.exp2_of_negative, x), [0, 0, 0, 2.0**-126, 0.5, 1, math.nan])


def test_sigmoid_has_no_subnormal_results() -> None:
    x = np.array([-math.inf, -1000, -88, -86.98, 88, math.inf, math.nan], np.float32)
    y = compute(tenon_math.sigmoid, x)
    np.testing.assert_array_equal(y[:3], 0)
    assert 1.17549435e-38 < y[3] < 1.7e-38
    np.testing.assert_array_equal(y[4:], [1, 1, math.nan])


def test_swish_of_great_negative_numbers_is_nothing() -> None:
    x = np.array([-1e38, -1e9, -88], np.float32)
    np.testing.assert_array_equal(compute(lambda v: v * tenon_math.sigmoid(v), x), 0)


@pytest.mark.parametrize("name", ["tanh", "erf", "sigmoid"])
def test_bounded_functions_stay_in_bounds(name: str) -> None:
    assert np.abs(compute(getattr(tenon_math, name), linear(-1000, 1000))).max() <= 1


def test_pow_error_bound() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-87, 88, 300_000)).astype(np.float32)
    y = (rng.uniform(-125, 127, x.size) / np.log2(x.astype(np.float64))).astype(np.float32)
    near = rng.uniform(0.5, 2, 300_000).astype(np.float32)
    wide = rng.uniform(-120, 120, near.size).astype(np.float32)
    for base, exponent in ((x, y), (near, wide)):
        true = np.power(base.astype(np.float64), exponent.astype(np.float64))
        kept = (true > 1.2e-38) & (true < 3.3e38)
        assert ulps(compute(tenon_math.pow, base[kept], exponent[kept]), true[kept]) <= 2


def test_pow_of_special_values() -> None:
    bases = np.array([0, 1, -1, 2, -2, 0.5, -0.5, np.inf, 3e-45, 1e38, -8], np.float32)
    exponents = np.array([0, 1, -1, 2, 3, -3, 0.5, -0.5, np.inf, -np.inf, 127, 1e30, 1 / 3], np.float32)
    x, y = (a.ravel() for a in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    np.testing.assert_allclose(compute(tenon_math.pow, x, y), expected, rtol=1e-6, atol=1e-44)


def test_special_values() -> None:
    x = np.array([0, -1, np.inf], np.float32)
    np.testing.assert_array_equal(compute(tenon_math.log, x), np.array([-np.inf, np.nan, np.inf], np.float32))
    x = np.array([-np.inf, 0, np.inf], np.float32)
    np.testing.assert_array_equal(compute(tenon_math.exp, x), np.array([0, 1, np.inf], np.float32))


def test_circular_functions_of_large_numbers() -> None:
    """Over the range stated by Sin."""
    x = both_signs(geometric(1, 1e14))
    wide = x.astype(np.float64)
    bound = 1e-7 + 1.2e-16 * np.abs(wide)
    assert (np.abs(compute(tenon_math.sin, x) - np.sin(wide)) < bound).all()
    assert (np.abs(compute(tenon_math.cos, x) - np.cos(wide)) < bound).all()
    far = np.geomspace(1e14, 3e38, 500).astype(np.float32)
    for function in (tenon_math.sin, tenon_math.cos):
        assert np.isfinite(compute(function, far)).all()


def tangent_error(got: Array, x: Array) -> Array:
    """The distance of x from the nearest number whose tangent is within a relative 1e-7 of ``got``."""
    true = np.tan(x.astype(np.float64))
    angle = np.arctan(got.astype(np.float64)) - np.arctan(true)
    angle -= np.pi * np.round(angle / np.pi)
    beyond: Array = np.maximum(0, np.abs(angle) - 1e-7 * np.abs(true) / (1 + true * true))
    return beyond


def test_tangent() -> None:
    """Within the bound stated by Tan, also next to its poles."""
    poles = (np.arange(1, 600_000, 6) * (np.pi / 2)).astype(np.float32)
    near = np.concatenate([both_signs(geometric(1e-30, 1e6)), poles, np.nextafter(poles, np.float32(0)), -poles])
    true = np.tan(near.astype(np.float64))
    assert np.abs(true).max() > 1e7
    assert (np.abs(compute(tenon_math.tan, near) - true) <= 1e-7 * np.abs(true)).all()
    x = both_signs(geometric(1e6, 1e14))
    assert (tangent_error(compute(tenon_math.tan, x), x) <= 1.2e-16 * np.abs(x.astype(np.float64))).all()
    assert np.isfinite(compute(tenon_math.tan, both_signs(geometric(1e14, 3e38, 500)))).all()


@pytest.mark.parametrize("target", HOSTS)
def test_compiled_circular_functions_of_large_numbers(target: str) -> None:
    """Within the bound stated by Sin and Tan: with fused multiply-adds 1e-7 up to 1e14."""
    if not runs_here(target):
        pytest.skip(f"{target} does not run on this machine")
    x = both_signs(geometric(1, 1e14, 100_000))
    wide = x.astype(np.float64)
    bound = 1e-7 if target != "x86-64" else 1e-7 + 1.2e-16 * np.abs(wide)
    names = ("Sin", "Cos", "Tan")
    graph = model([node(name, ["x"], [name]) for name in names], {"x": x.shape}, names)
    with tenon.open(tenon.compile(graph.SerializeToString(), target=target)) as engine:
        actual = engine.run(x)
    for name, true in (("Sin", np.sin), ("Cos", np.cos)):
        assert (np.abs(actual[name] - true(wide)) <= bound).all(), name
    assert (tangent_error(actual["Tan"], x) <= (bound if target == "x86-64" else 1e-7)).all()


def test_erf_of_the_smallest_numbers() -> None:
    """Within the bound stated by Erf: the result is 2 / sqrt(pi) times the operand."""
    for low, high, bound in ((1e-30, 1e-37, 1e-6), (1e-37, 1.2e-38, 4e-6), (1.0e-38, 1e-40, 1e-3)):
        x = np.geomspace(low, high, 500).astype(np.float32)
        wanted = x.astype(np.float64) * 2 / np.sqrt(np.pi)
        assert np.abs(compute(tenon_math.erf, x) / wanted - 1).max() < bound
