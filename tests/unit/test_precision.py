"""16-bit precision: what the passes narrow, and bf16 pair kernels in the interpreter and in C."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library
from evaluate import difference, evaluate, random_inputs
from interpret import interpret
from lowered import MACHINES, Ask, make_site, run_site, settle
from onnx_models import model, node, random
from tenon.errors import InputError
from tenon.formats import importers
from tenon.machine.algorithms.direct import Direct
from tenon.machine.algorithms.winograd import Winograd
from tenon.machine.isa.bf16 import DOT2
from tenon.machine.kernels.conv import OutputTile
from tenon.machine.kernels.machine import Machine, in_halves, with_product
from tenon.machine.kernels.winograd import WinogradBlocking
from tenon.machine.plan.arithmetic import quickest
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import runs_here
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, DType
from tenon.network.ops.base import ROUNDED, Case, Site
from tenon.network.ops.conv import Conv
from tenon.network.passes.precision import precision
from tenon.options import Options

BF16, F16 = DType.BF16, DType.F16
PAIRS = {name: with_product(machine, replace(DOT2, time=1.0)) for name, machine in MACHINES.items()}
CASES = {f"{case.op.name}_{case.label}": case for case in Conv.cases() if case.dtypes[:1] == (BF16,)}
SQUARE = Case(Conv(pads=(1, 1, 1, 1)), ((1, 18, 5, 6), (17, 18, 3, 3), (17,)), (1, 2), dtypes=(BF16, BF16))


# --------------------------------------------------------------------------------------------- kernels
def site_of(case: Case, machine: Machine) -> Site:
    return make_site(case.op, case.arrays(), machine, case.constant, Ask(blocked=True, surplus=1))


def close(got: Array, expected: Array, tolerance: float) -> None:
    wide, exact = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(wide, exact, rtol=0, atol=tolerance * float(np.abs(exact).max()))


@pytest.mark.parametrize("machine", PAIRS)
@pytest.mark.parametrize("name", CASES)
def test_bf16_pair_convolutions_agree_with_the_reference(name: str, machine: str) -> None:
    case = CASES[name]
    site = site_of(case, PAIRS[machine])
    (got,) = run_site(case.op, site, case.arrays())
    (expected,) = case.op.evaluate(case.arrays())
    assert got.dtype == expected.dtype == BF16.numpy
    close(got, expected, case.tolerance)


@pytest.mark.parametrize("machine", ["lanes16", "lanes8", "lanes4"])
def test_every_algorithm_on_bf16(machine: str) -> None:
    """Winograd on bf16 pairs also rounds its transforms to bf16: an error of 1.7e-2 of the RMS as measured, less of the
    maximum.
    """
    site = site_of(SQUARE, PAIRS[machine])
    (expected,) = SQUARE.op.evaluate(SQUARE.arrays())
    pairs = Winograd(WinogradBlocking(2, 4, 3, 1, pairs=True))
    for algorithm in (Direct(OutputTile(1, 5, 2)), pairs, Winograd(WinogradBlocking(4, 3, 2, 2))):
        chosen = settle(SQUARE.op, replace(site, algorithm=algorithm), 1)
        (got,) = run_site(SQUARE.op, chosen, SQUARE.arrays())
        close(got, expected, 1.7e-2 if algorithm is pairs else ROUNDED)


def test_winograd_uses_pairs_for_small_tiles_only() -> None:
    algorithms = SQUARE.op.candidates(site_of(SQUARE, PAIRS["lanes16"]))
    blockings = [each.blocking for each in algorithms if isinstance(each, Winograd)]
    assert blockings
    assert all(b.pairs == (b.m == 2) for b in blockings)
    alone = replace(SQUARE, dtypes=(F32, BF16))  # weights stored in bf16 to save memory are not widened to f32
    stored = alone.op.candidates(site_of(alone, MACHINES["lanes16"]))
    assert all(each.blocking.m == 2 for each in stored if isinstance(each, Winograd))


def test_kernels_read_32_bit_words_on_machines_with_dot2() -> None:
    by_two, by_one = (SQUARE.op.lower(site_of(SQUARE, machines["lanes16"])) for machines in (PAIRS, MACHINES))
    assert DType.B2 in {p.type.dtype for p in by_two[0].kernel.params}
    assert DType.B2 not in {p.type.dtype for p in by_one[0].kernel.params}


@pytest.mark.parametrize("flags", ["-march=native -mno-avx512bf16", "-march=x86-64-v4 -mavx512bf16"])
def test_c_matches_the_interpreter(flags: str, tmp_path: Path) -> None:
    """Bit for bit, also with native instructions, since no operand is subnormal."""
    gcc = shutil.which("gcc")
    if gcc is None or (flags and not runs_here("x86-64-avx512-bf16")):
        pytest.skip("gcc is not installed" if gcc is None else "this processor has no products of bf16")
    library = Library()
    machines = list(PAIRS.values())[:3]
    sites = [(SQUARE, site_of(SQUARE, machine)) for machine in machines]
    sites += [(case, site_of(case, machines[i % 3])) for i, case in enumerate(CASES.values())]
    for case, site in sites:
        for step in case.op.lower(site):
            library.add(step.kernel)
    library.build(tmp_path, [gcc, "-O1", "-ffp-contract=off", *flags.split()])
    for case, site in sites:
        (native,), (oracle,) = (run_site(case.op, site, case.arrays(), execute=e) for e in (library, interpret))
        assert native.tobytes() == oracle.tobytes(), f"{case.label} of {site.machine.lanes} lanes"


# ---------------------------------------------------------------------------------------------- passes
def graph_of(nodes: Sequence[Any], weights: Mapping[str, Array], outputs: Sequence[str] = ("y",)) -> Graph:
    return importers.load(model(nodes, {"x": [1, 3, 8, 8]}, outputs, weights).SerializeToString())


def separable() -> Graph:
    """First layer, depthwise and pointwise convolutions, a residual, an output layer with sigmoid."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["d"], pads=[1, 1, 1, 1], group=16),
        node("MaxPool", ["d"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w2"], ["c2"]),
        node("Add", ["c2", "p"], ["a"]),
        node("Conv", ["a", "w3"], ["c3"]),
        node("Sigmoid", ["c3"], ["y"]),
    ]
    shapes = {"w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "w2": (16, 16, 1, 1), "w3": (4, 16, 1, 1)}
    sized = {
        name: random(*shape, seed=i) / np.sqrt(np.prod(shape[1:])) for i, (name, shape) in enumerate(shapes.items())
    }
    return graph_of(nodes, {name: data.astype(np.float32) for name, data in sized.items()})


def test_only_activations_between_convolutions_are_narrowed() -> None:
    graph = passes.optimize(separable(), verify=True, narrow=precision("bf16", arithmetic=True))
    types = {node.op.name: node.output.type.dtype for node in graph}
    assert types.pop("Conv+Cast+Sigmoid") is F32
    assert set(types.values()) == {BF16}
    assert "Conv+Add" in types
    assert graph.outputs[0].name == "y"
    weights = {v.name.split(":")[0]: v.type.dtype for v in graph.constants()}
    assert weights == {"w0": BF16, "b0": F32, "w1": F32, "w2": BF16, "w3": BF16}


@pytest.mark.parametrize(("name", "dtype"), [("bf16", BF16), ("fp16", F16)])
def test_padding_between_convolutions_is_narrowed(name: str, dtype: DType) -> None:
    """Zeros before a maximum cannot be the pooling's own padding, which counts for nothing."""
    nodes = [
        node("Conv", ["x", "w0"], ["c"]),
        node("LeakyRelu", ["c"], ["r"], alpha=0.1),
        node("Pad", ["r", "pads"], ["e"]),
        node("MaxPool", ["e"], ["p"], kernel_shape=[2, 2]),
        node("Conv", ["p", "w1"], ["y"]),
    ]
    weights = {"w0": random(16, 3, 1, 1), "w1": random(4, 16, 1, 1), "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1])}
    graph = graph_of(nodes, weights)
    x = random_inputs(graph)
    (expected,) = evaluate(graph, x).values()
    narrow = passes.optimize(graph, verify=True, narrow=precision(name, arithmetic=True))
    types = {n.op.name: n.output.type.dtype for n in narrow}
    assert types["Pad"] is types["MaxPool"] is dtype
    assert "Cast" not in {n.op.name for n in narrow if n.input(0).type.dtype is not F32}
    (y,) = evaluate(narrow, x).values()
    close(y, expected, 0.02)


def test_activations_are_f16_where_the_target_computes_in_it() -> None:
    graph = passes.optimize(separable(), verify=True, narrow=precision("fp16", arithmetic=True))
    types = {n.op.name: n.output.type.dtype for n in graph}
    assert types.pop("Conv+Cast+Sigmoid") is F32
    assert set(types.values()) == {F16}
    weights = {v.name.split(":")[0]: v.type.dtype for v in graph.constants()}
    assert weights == {"w0": F16, "b0": F32, "w1": F16, "w2": F16, "w3": F16}  # w1: of a depthwise convolution


def test_weights_scaled_into_the_range_of_f16_are_multiplied_in_f16() -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["a"]), node("Relu", ["a"], ["c"]), node("Conv", ["c", "v"], ["y"])]
    weights = random(8, 3, 1, 1) * np.float32(0.1)
    weights[5] *= np.float32(1e-9)
    graph = graph_of(nodes, {"w": weights, "b": random(8), "v": random(4, 8, 1, 1)})
    inputs = random_inputs(graph)
    (before,) = evaluate(graph, inputs).values()
    layer = Setting(in_halves(find("aarch64-fp16").machine))
    arithmetic_of = partial(quickest, setting=layer, dtype=F16)
    passes.optimize(graph, verify=True, narrow=precision("fp16", arithmetic=True, arithmetic_of=arithmetic_of))
    assert [n.inputs[0].type.dtype for n in graph if "Conv" in n.op.name] == [F16, F16]  # type: ignore[union-attr]
    (after,) = evaluate(graph, inputs).values()
    assert difference(after, before) < 4 * 2.0**-11


@pytest.mark.parametrize(("scale", "dtype"), [(0.5, F16), (1e-6, F32), (1e6, F32)])
def test_constants_out_of_the_range_of_f16_are_multiplied_in_f32(scale: float, dtype: DType) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Mul", ["a", "s"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("Conv", ["c", "v"], ["y"]),
    ]
    constants = {"w": random(8, 3, 1, 1), "s": np.full((1, 8, 1, 1), scale, np.float32), "v": random(4, 8, 1, 1)}
    graph = passes.optimize(graph_of(nodes, constants), level=1, narrow=precision("fp16", arithmetic=True), fuse=False)
    (product,) = [n for n in graph if n.op.name == "Mul"]
    assert product.output.type.dtype is dtype


@pytest.mark.parametrize(("name", "dtype", "tolerance"), [("bf16", BF16, 2.0**-8), ("fp16", F16, 2.0**-11)])
def test_stored_weights_change_nothing_else(name: str, dtype: DType, tolerance: float) -> None:
    graph = separable()
    inputs = random_inputs(graph)
    before = evaluate(graph, inputs)["y"]
    passes.optimize(graph, verify=True, narrow=precision(name, arithmetic=False))
    assert {v.type.dtype for v in graph.values() if not v.constant} == {F32}
    assert {v.type.dtype for v in graph.constants() if v.type.rank == 4 and v.type.shape[1] != 1} == {dtype}
    assert difference(evaluate(graph, inputs)["y"], before) < tolerance


def test_error_of_narrow_activations() -> None:
    """Five roundings of activations and three of weights, each with a relative error of 2**-9."""
    graph = separable()
    inputs = random_inputs(graph)
    before = evaluate(graph, inputs)["y"]
    passes.optimize(graph, verify=True, narrow=precision("bf16", arithmetic=True))
    assert difference(evaluate(graph, inputs)["y"], before) < 8 * 2.0**-9


def test_fp32_changes_nothing() -> None:
    assert precision("fp32", arithmetic=True) == []


@pytest.mark.parametrize("scale", [1e-7, 1e6])
def test_weights_out_of_fp16_range_are_scaled_by_powers_of_two(scale: float) -> None:
    weights = random(4, 3, 1, 1) * np.float32(scale)
    weights[1, :, 0, 0] = 1.0, 0.5, 0.0  # in range without scaling
    graph = graph_of([node("Conv", ["x", "w", "b"], ["y"])], {"w": weights, "b": random(4) * np.float32(scale)})
    inputs = random_inputs(graph)
    before = evaluate(graph, inputs)["y"]
    passes.optimize(graph, verify=True, narrow=precision("fp16", arithmetic=False))
    assert [n.op.name for n in graph] == ["Conv+Mul+Add"]
    (scales,) = [v.array for v in graph.constants() if "scale" in v.name]
    assert np.frexp(scales)[0].reshape(-1).tolist() == [0.5] * 4
    assert scales.reshape(-1)[1] == 1
    after = evaluate(graph, inputs)["y"]
    np.testing.assert_allclose(after, before, rtol=0, atol=2.0**-11 * 3 * float(np.abs(before[:, 0]).max()))


def test_weights_with_nan_or_infinity_are_not_scaled() -> None:
    weights = random(4, 3, 1, 1)
    weights[0, 0] = np.inf
    graph = graph_of([node("Conv", ["x", "w"], ["y"])], {"w": weights})
    said: list[str] = []
    passes.optimize(graph, log=said.append, narrow=precision("fp16", arithmetic=False))
    assert {v.type.dtype for v in graph.constants()} == {F32}
    assert any("infinite" in line for line in said)


# --------------------------------------------------------------------------------------------- choices
def test_only_bf16_selects_a_target_with_dot2() -> None:
    assert not find("host").machine.has("dot2")
    assert find("host", bf16=True).machine.has("dot2") == runs_here("x86-64-avx512-bf16")
    assert find("x86-64-avx2", bf16=True).name == "x86-64-avx2"


def test_precision_is_an_option() -> None:
    assert Options().precision == "fp32"
    assert Options.from_environment({"TENON_PRECISION": "bf16"}).precision == "bf16"
    with pytest.raises(InputError, match="precision"):
        Options.from_environment({"TENON_PRECISION": "int4"})
