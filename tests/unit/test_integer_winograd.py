"""Winograd's algorithm in integers: bit-identical to the reference, and chosen where it takes fewer instructions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from compiled import Library
from integer_products import Shape, operands, operator
from lowered import Ask, make_site, run_site
from tenon.machine.algorithms import registry
from tenon.machine.codegen.c.dialect import C
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array, Graph, Origin
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Site
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import quantized_multipliers

MACHINE = Machine(lanes=1, registers=28, block=4, products=(DOT2_I16,))
WINOGRAD = registry.parse("pairs-winograd")
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "two_groups": ((1, 8, 4, 16), (4, 8, 3, 3), {"pads": (1, 1, 1, 1)}),
    "inner_groups": ((1, 4, 6, 24), (4, 4, 3, 3), {"pads": (1, 1, 1, 1), "zero": 7}),
    "rest": ((1, 8, 6, 14), (4, 8, 3, 3), {"pads": (1, 1, 1, 1)}),
    "inside": ((1, 4, 8, 12), (8, 4, 3, 3), {"low": -100, "high": 90}),
    "one_tile": ((1, 36, 2, 2), (4, 36, 3, 3), {"pads": (1, 1, 1, 1)}),
    "deep": ((1, 36, 2, 8), (4, 36, 3, 3), {"pads": (1, 1, 1, 1)}),
    "one_side": ((1, 6, 7, 7), (4, 6, 3, 3), {"pads": (0, 0, 1, 1)}),
    "wide_border": ((1, 4, 4, 6), (4, 4, 3, 3), {"pads": (2, 2, 2, 2)}),
    "batch": ((2, 5, 4, 4), (8, 5, 3, 3), {"pads": (1, 1, 1, 1), "zero": -3}),
}


def site_of(conv: IntegerConv, arrays: list[Array], surplus: int = 0) -> Site:
    return replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4), Ask(surplus=surplus)), algorithm=WINOGRAD)


def kernel_of(conv: IntegerConv, arrays: list[Array]) -> Kernel:
    (step,) = conv.lower(site_of(conv, arrays))
    assert step.kernel.name.startswith("integer_winograd")
    return step.kernel


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    x, w, more = CASES[name]
    conv, arrays = operator(more), operands(x, w)
    kernel_of(conv, arrays)
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 4
    for surplus in (0, 1):
        (got,) = run_site(conv, site_of(conv, arrays, surplus), arrays)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("sign", [1, -1])
def test_largest_numbers(sign: int) -> None:
    """Inputs and weights of the largest magnitude, whose products all have one sign, and those whose transforms are
    largest: of alternating signs."""
    shape, (x, w) = (1, 16, 4, 4), ((1, 16, 4, 4), (4, 16, 3, 3))
    conv, arrays = operator({"pads": (1, 1, 1, 1), "zero": 0}), operands(x, w)
    checkered = np.indices(shape)[2:].sum(0) % 2
    arrays[0] = np.where(checkered, 127, -128).astype(np.int8) if sign < 0 else np.full(shape, -128, np.int8)
    arrays[1] = np.where(np.indices(w)[2:].sum(0) % 2, -128, 127).astype(np.int8)
    arrays[1][:2] = -128
    arrays[3:] = quantized_multipliers([2.0**-15] * 4)
    (expected,) = conv.evaluate(arrays)
    (got,) = run_site(conv, site_of(conv, arrays), arrays)
    np.testing.assert_array_equal(got, expected)
    assert np.abs(expected.astype(int)).max() > 60


def test_portable_c(tmp_path: Path) -> None:
    library, cases = Library(), {name: CASES[name] for name in ("inner_groups", "rest", "batch")}
    for x, w, more in cases.values():
        library.add(kernel_of(operator(more), operands(x, w)))
    library.build(tmp_path, ("gcc", "-O2"))
    for name, (x, w, more) in cases.items():
        conv, arrays = operator(more), operands(x, w)
        (got,) = run_site(conv, site_of(conv, arrays), arrays, execute=library)
        np.testing.assert_array_equal(got, conv.evaluate(arrays)[0], err_msg=name)


@pytest.mark.parametrize(("name", "pieces"), [("two_groups", 1), ("rest", 1), ("deep", 1), ("one_tile", 0)])
def test_products_have_an_assembly_form(name: str, pieces: int) -> None:
    """One piece computes all elements: its sums begin with a product."""
    x, w, more = CASES[name]
    unit = C()
    unit.kernel(kernel_of(operator(more), operands(x, w)))
    text = unit.text()
    assert text.count("__asm__ volatile(") == pieces
    assert text.count('"smuad ') == 8 * pieces
    assert ('"bne 2b' in text) == (name == "deep")


@pytest.mark.parametrize(
    ("x", "w", "more"),
    [
        ((1, 8, 5, 6), (4, 8, 3, 3), {"pads": (1, 1, 1, 1)}),  # an odd number of rows
        ((1, 8, 8, 8), (4, 8, 3, 3), {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
        ((1, 8, 8, 8), (4, 8, 1, 1), {}),
        ((1, 1, 8, 8), (4, 1, 3, 3), {"pads": (1, 1, 1, 1)}),  # one channel: pairs are of taps
        ((1, 8, 8, 8), (8, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 8}),
    ],
)
def test_other_convolutions_are_not_offered_it(x: Shape, w: Shape, more: dict[str, Any]) -> None:
    conv, arrays = operator(more), operands(x, w)
    assert WINOGRAD not in conv.candidates(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)))


def test_weights_that_pairs_cannot_multiply_take_another_algorithm() -> None:
    """Layers of the same types share a choice, whatever their weights and factors are."""
    x, w, more = CASES["batch"]
    conv, arrays = operator(more), operands(x, w)
    arrays[3][2] = 1 << 29
    (step,) = conv.lower(site_of(conv, arrays))
    assert step.kernel.name.startswith("integer_conv")
    (got,) = run_site(conv, site_of(conv, arrays), arrays)
    np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


def layers(*channels: int) -> Graph:
    """3x3 convolutions of 16x16 images, each with as many channels as before or as given."""
    graph, rng = Graph("layers"), np.random.default_rng(0)
    value = graph.add_input("x", TensorType(DType.I8, (1, channels[0], 16, 16)))
    for i, (before, after) in enumerate(pairwise(channels)):
        multipliers, shifts = quantized_multipliers([1 / (60 * (9 * before) ** 0.5)])
        weights = rng.integers(-127, 128, (after, before, 3, 3)).astype(np.int8)
        given: list[Array] = [weights, np.zeros(after, np.int32), multipliers, shifts]
        inputs = [value, *(graph.constant(f"c{i}.{j}", data) for j, data in enumerate(given))]
        conv = IntegerConv("double", 3, scale=0.5, pads=(1, 1, 1, 1))
        value = graph.add(conv, inputs, [f"y{i}"], Origin("", f"y{i}", "IntegerConv")).output
    graph.outputs = [value]
    return graph


def used(graph: Graph, **options: Any) -> list[bool]:
    """Whether each convolution of a graph is computed so on a Cortex-M4."""
    program = tenon.compile(graph, target="cortex-m4", no_tuning=True, **options).program
    names = [call.kernel.name for call in program.calls]
    return [name.startswith("integer_winograd") for name in names if name.startswith("integer_")]


def test_microcontrollers_use_it_where_weights_stay_small() -> None:
    graph = layers(16, 32, 64, 64)
    assert used(graph) == [True, False, False]  # 16, 64 and 128 KiB
    assert used(graph, winograd=2) == [True, True, True]
    assert used(graph, winograd=0) == [False, False, False]
    assert used(graph, winograd=2, max_weights=210_000) == [False, True, True]  # the least gain for a byte goes
