"""Arithmetic in f16: multiply-adds, sums of bounded length, what is narrowed on which target."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from compiled import Library
from interpret import interpret
from lowered import Ask, make_site, run_site
from onnx_models import model, node, random
from tenon.machine.isa.fp16 import FMA
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, fma_f16, op
from tenon.machine.kernels.machine import Machine, in_halves
from tenon.machine.kernels.rows import LONGEST_F16
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.base import Case, Site
from tenon.network.ops.conv import Conv
from tenon.network.ops.matmul import Gemm, MatMul

F16 = DType.F16
ROW = "aarch64-fp16"
MACHINES = {
    "blocks of 8": in_halves(Machine(lanes=4, registers=32, block=4, products=(FMA,))),
    "blocks of 16": in_halves(Machine(lanes=8, registers=16, block=8, products=(FMA,))),
    "blocks of 4": Machine(lanes=4, registers=32, block=4, products=(FMA,)),
}
CASES = {
    f"{case.op.name}_{case.label}": case
    for kind in (Conv, Gemm, MatMul)
    for case in kind.cases()
    if case.dtypes[:2] == (F16, F16)
}


def site_of(case: Case, machine: Machine) -> Site:
    return make_site(case.op, case.arrays(), machine, case.constant, Ask(blocked=True, surplus=1))


def multiply_adds(n: int, lanes: int, by_one: bool) -> Kernel:
    """Products by vectors, or by one number of each vector."""
    k = Builder(f"fma_{lanes}_{int(by_one)}")
    acc, a, b = (k.param(name, n, dtype=F16) for name in ("c", "a", "b"))
    y = k.param("y", n, dtype=F16, out=True)
    with k.loop("i", n // lanes) as i:
        factor = b[i * lanes] if by_one else b.vec(lanes)[i]
        y.vec(lanes)[i] = fma_f16(acc.vec(lanes)[i], a.vec(lanes)[i], factor)
    return k.done()


def multiply_adds_by_lane(n: int, lane: int) -> Kernel:
    """Products by that element of each vector of eight."""
    k = Builder(f"fma_lane{lane}")
    acc, a, b = (k.param(name, n, dtype=F16).vec(8) for name in ("c", "a", "b"))
    y = k.param("y", n, dtype=F16, out=True).vec(8)
    with k.loop("i", n // 8) as i:
        y[i] = op(f"fma_f16_lane{lane}", acc[i], a[i], b[i])
    return k.done()


def operands(n: int) -> list[Array]:
    """Numbers of all magnitudes, and sums that end in the middle between two numbers of f16 but for a little."""
    rng = np.random.default_rng(0)
    acc, a, b = (rng.integers(0, 1 << 16, n).astype(np.uint16).view(np.float16) for _ in range(3))
    half = n // 2
    acc[:half] = rng.integers(1024, 2048, half) * np.exp2(rng.integers(-10, 5, half))
    a[:half] = np.copysign(acc[:half] * 2.0**-11, rng.standard_normal(half)) * rng.choice([1, 1.001], half)
    b[:half] = rng.choice([0.5, 1.0, 1.001, 0.25], half)
    return [acc, a, b]


@pytest.mark.parametrize("compiler", ["gcc", "zig"])
def test_portable_multiply_adds_round_once(compiler: str, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if compiler == "gcc" and gcc is None:
        pytest.skip("gcc is not installed")
    clang = [*zig(tmp_path).command, "-target", "x86_64-linux-gnu", "-fno-sanitize=undefined", "-O1"]
    n, library = 1 << 15, Library()
    kernels = [multiply_adds(n, lanes, by_one) for lanes in (1, 4, 8) for by_one in (False, True)]
    kernels += [multiply_adds_by_lane(n, lane) for lane in range(8)]
    for kernel in kernels:
        library.add(kernel)
    library.build(tmp_path, [gcc, "-O1"] if compiler == "gcc" and gcc else clang)
    for kernel in kernels:
        given = operands(n)
        results, expected = np.zeros(n, np.float16), np.zeros(n, np.float16)
        library(kernel, [*given, results])
        interpret(kernel, [*given, expected])
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(results), nan)
        np.testing.assert_array_equal(results.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


def test_the_interpreter_rounds_multiply_adds_once() -> None:
    one, tiny = np.float16(1), np.float16(2.0**-11)
    y = np.zeros(2, np.float16)
    acc, a, b = np.array([one, one]), np.array([tiny, tiny]), np.array([one, one + np.float16(2.0**-10)])
    interpret(multiply_adds(2, 2, by_one=False), [acc, a, b, y])
    assert y.tolist() == [1.0, 1.0 + 2.0**-10]  # half of the last digit, and a little more, which two roundings lose


# --------------------------------------------------------------------------------------------- kernels
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_products_in_f16_agree_with_the_reference(name: str, machine: str) -> None:
    case, site = CASES[name], site_of(CASES[name], MACHINES[machine])
    (got,) = run_site(case.op, site, case.arrays())
    (expected,) = (array.astype(np.float64) for array in case.op.evaluate(case.arrays()))
    assert got.dtype == np.float16
    # The bound is of errors over the RMS of an output channel.
    assert np.abs(got - expected).max() <= case.op.error(site) * np.sqrt((expected**2).mean()) * 1.5
    wide = machine == "blocks of 4" and isinstance(case.op, Conv)
    kernels = [step.kernel for step in case.op.lower(site)]
    assert ("fma_f16" in str(kernels)) != wide, "products are in f16 where vectors of them fill blocks"


@pytest.mark.parametrize("terms", [LONGEST_F16, 4096, 4099])
def test_long_sums_are_added_in_f32(terms: int) -> None:
    """A sum of ones in f16 would end at 2048."""
    ones = [np.ones((1, terms), np.float16), np.ones((terms, 9), np.float16)]
    site = make_site(Gemm(), ones, MACHINES["blocks of 8"], (1,), Ask())
    (got,) = run_site(Gemm(), site, ones)
    assert got.tolist() == [[np.float16(terms)] * 9]


def test_the_estimate_of_errors_grows_with_the_length_of_sums() -> None:
    def error(terms: int, half: bool) -> float:
        arrays = [random(1, terms).astype(np.float16), random(terms, 16).astype(np.float16)]
        return Gemm().error(
            make_site(Gemm(), arrays, Machine(lanes=4, block=8, products=(FMA,) if half else ()), (1,), Ask())
        )

    assert error(8, half=False) == pytest.approx(error(512, half=False), rel=0.2)
    assert error(8, half=False) < error(8, half=True) < error(128, half=True)
    assert error(128, half=True) == pytest.approx(error(4096, half=True), rel=0.05)


# ------------------------------------------------------------------------------------------ whole graphs
def kinds(target: str, precision: str) -> set[str]:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Conv", ["b", "v"], ["y"])]
    weights = {"w": random(16, 12, 1, 1), "v": random(8, 16, 1, 1)}
    file = model(nodes, {"x": [1, 12, 5, 5]}, ["y"], weights).SerializeToString()
    bundle = tenon.compile(file, target=target, precision=precision)  # type: ignore[call-overload]
    return {word for call in bundle.program.calls for word in ("fma_f16", "f16") if word in str(call.kernel)}


@pytest.mark.parametrize("target", [ROW, "cortex-a76", "raspberry-pi-5", "aarch64-i8mm"])
def test_targets_with_f16_arithmetic_use_it_when_asked(target: str) -> None:
    assert kinds(target, "fp16") == {"fma_f16", "f16"}
    assert kinds(target, "fp32") == set()


def test_other_targets_only_store_weights() -> None:
    assert kinds("aarch64", "fp16") == {"f16"}
    assert not find("aarch64-dotprod").machine.has("fma_f16")


def test_layers_left_in_f32_are_listed_with_the_reason() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"]),
        node("Erf", ["c"], ["d"]),
        node("Conv", ["d", "u"], ["e"]),
        node("Reshape", ["e", "s"], ["f"]),
        node("Softmax", ["f"], ["y"], axis=1),
    ]
    for each, name in zip(nodes, ("first", "relu", "second", "erf", "third", "flat", "classes"), strict=True):
        each.name = name
    constants = {
        "w": random(64, 64, 3, 3),
        "v": random(16, 64, 1, 1),
        "u": random(8, 16, 1, 1),
        "s": np.array([1, 8 * 14 * 14]),
    }
    file = model(nodes, {"x": [1, 64, 14, 14]}, ["y"], constants).SerializeToString()

    def left(target: str, **options: Any) -> dict[str, str]:
        return dict(tenon.inspect(file, target=target, no_tuning=True, **options)[0].left_in_float)

    softmax = {"classes (Softmax)": "Softmax has no kernel in f16"}
    assert left(ROW, precision="fp16") == {**softmax, "first (Conv)": "winograd is faster, and computes in f32"}
    assert left(ROW, precision="fp16", winograd=0) == softmax
    assert left(ROW) == {}
    assert left("aarch64", precision="fp16") == {
        "all layers": "aarch64 has no arithmetic in f16, which weights are stored in"
    }


def test_fp16_is_not_an_option_of_strict_code() -> None:
    nodes, weights = [node("Conv", ["x", "w"], ["y"])], {"w": random(16, 12, 1, 1)}
    file = model(nodes, {"x": [1, 12, 5, 5]}, ["y"], weights).SerializeToString()
    bundle = tenon.compile(file, target=ROW, precision="fp16", c99="strict")
    assert not any("fma_f16" in str(call.kernel) for call in bundle.program.calls)
