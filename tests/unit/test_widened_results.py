"""Epilogues of requantised bytes compute with the values that the bytes are made of."""

from __future__ import annotations

import pytest

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Op, cast, op
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.kernels.widened_results import WidenedResult
from tenon.network.graph.types import F32, I32, DType


def names(e: Expr) -> list[str]:
    return [e.name, *(name for a in e.args for name in names(a))] if isinstance(e, Op) else []


def made(lanes: int, rounding: str = "float") -> WidenedResult | None:
    """The result of a requantisation with the zero point 7."""
    k = Builder("k")
    total, factor = k.param("x", 8, dtype=I32).vec(lanes)[0], k.param("f", 8, dtype=F32 if rounding == "float" else I32)
    rows = ("factor",) if rounding == "float" else ("multiplier",)
    known = Requantize(rounding, 7, -128, 127, DType.I8, rows)  # type: ignore[arg-type]
    return WidenedResult.of(k, known(total, [factor.vec(lanes)[0]]), 7)


@pytest.mark.parametrize(("zero", "expected"), [(7, ["mul", "sub"]), (6, ["mul", "cast", "sub", "add", "bitcast"])])
def test_floats_are_those_before_rounding(zero: int, expected: list[str]) -> None:
    result = made(8)
    assert result is not None
    value = result.through(lambda x: op("mul", cast(cast(x, I32) - zero, F32), 0.5))
    assert [name for name in names(value) if name != "broadcast"] == expected


def test_integers_are_those_before_narrowing() -> None:
    result = made(8, "double")
    assert result is not None
    assert result.through(lambda x: cast(x, I32) + 1).args[0] is result.wide  # type: ignore[attr-defined]


def test_bytes_stay_where_they_are_asked_for() -> None:
    result = made(8)
    assert result is not None
    assert result.through(lambda x: op("min", x, x)).args == (result.narrow, result.narrow)  # type: ignore[attr-defined]


def test_scalars_are_as_they_were() -> None:
    assert made(1) is None
