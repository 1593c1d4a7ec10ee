"""Integer convolutions by products of blocks of 2x8 bytes (I8MM): bit-identical to the reference, and used where they
take fewer instructions.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library, assembled
from integer_products import Shape
from interpret import interpret
from loop_operations import OPERATIONS
from lowered import make_site, run_site
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, op
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import zig
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType
from tenon.network.ops.base import Site
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import quantized_multipliers

MACHINE = find("aarch64-i8mm").machine
BLOCKS = registry.parse("integer-blocks")
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1x1": ((1, 16, 3, 8), (8, 16, 1, 1), {}),
    "odd_blocks": ((1, 12, 4, 4), (16, 12, 1, 1), {}),
    "partial_channels": ((2, 10, 5, 6), (7, 10, 3, 3), {"pads": (1, 1, 1, 1)}),
    "rows_apart": ((1, 8, 6, 11), (12, 8, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 1)}),
    "dilated": ((1, 8, 7, 9), (4, 8, 3, 2), {"pads": (2, 1, 2, 1), "dilations": (2, 2)}),
    "narrow": ((1, 8, 5, 3), (8, 8, 3, 1), {"pads": (1, 0, 1, 0)}),
    "1d": ((1, 6, 13), (4, 6, 3), {"pads": (1, 1)}),
}


def operands(x: Shape, w: Shape, dtype: type[np.integer[Any]]) -> list[Array]:
    rng, kind = np.random.default_rng(3), np.iinfo(dtype)
    data = rng.integers(kind.min, kind.max + 1, x).astype(dtype)
    weights = rng.integers(-128, 128, w).astype(np.int8)
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 60)
    return [data, weights, rng.integers(-9000, 9000, w[0]).astype(np.int32), *quantized_multipliers(real.tolist())]


def prepared(name: str, dtype: type[np.integer[Any]]) -> tuple[IntegerConv, Site, list[Array]]:
    x, w, more = CASES[name]
    arrays, least = operands(x, w, dtype), int(np.iinfo(dtype).min)
    bounds: dict[str, Any] = {
        "low": least,
        "high": least + 255,
        "zero": least + 120,
        "to": DType.of(arrays[0].dtype).value,
    }
    conv = IntegerConv("double", least + 131, scale=0.5, **bounds, **more)
    return conv, replace(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)), algorithm=BLOCKS), arrays


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, dtype: type[np.integer[Any]]) -> None:
    conv, site, arrays = prepared(name, dtype)
    (step,) = conv.lower(site)
    assert step.kernel.name.startswith("integer_blocks")
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 20
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, expected)


def test_weights_with_a_zero_point_take_another_kernel() -> None:
    conv, site, arrays = prepared("1x1", np.int8)
    shifted = replace(conv, w_zero=100)
    (step,) = shifted.lower(site)
    assert step.kernel.name.startswith("integer_conv")
    (got,) = run_site(shifted, site, arrays)
    np.testing.assert_array_equal(got, shifted.evaluate(arrays)[0])


def chosen(x: Shape, w: Shape, more: dict[str, Any]) -> str:
    conv, arrays = IntegerConv("double", 3, scale=0.5, **more), operands(x, w, np.int8)
    problem = conv.problem(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)))
    assert problem is not None
    return registry.candidates((problem,), MACHINE, Limits())[0].name


def test_it_is_chosen_where_rows_are_long() -> None:
    same = {"pads": (1, 1, 1, 1)}
    assert chosen((1, 64, 16, 16), (64, 64, 3, 3), same) == "integer-blocks"
    assert chosen((1, 64, 7, 7), (128, 64, 1, 1), {}) == "integer-blocks"
    assert chosen((1, 64, 32, 1), (64, 64, 3, 1), {"pads": (1, 0, 1, 0)}) == "integer"  # one position a row
    assert chosen((1, 3, 32, 32), (16, 3, 3, 3), same) == "integer"  # half of every block is empty
    assert chosen((1, 64, 16, 16), (64, 64, 3, 3), {"strides": (2, 2)}) == "integer"


NAMES = {"mmla": 3, "mmla_signed": 3, "low_words": 2, "high_words": 2, "low_halves": 2, "high_halves": 2}


def kernel(name: str) -> Kernel:
    k = Builder(name)
    given = [k.param(p, 64, dtype=I32).vec(4) for p in "abc"[: NAMES[name]]]
    y = k.param("y", 64, dtype=I32, out=True).vec(4)
    with k.loop("i", 16) as i:
        y[i] = op(name, *(a[i] for a in given))
    return k.done()


def test_primitives_in_portable_c(tmp_path: Path) -> None:
    """For random and extreme bytes; sums wrap around."""
    library = Library()
    for name in NAMES:
        library.add(kernel(name))
    library.build(tmp_path, ("gcc", "-O2"))
    rng = np.random.default_rng(0)
    for name, arity in NAMES.items():
        given = [rng.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in range(arity)]
        given[-1][:8] = given[-2][:8] = -0x7F7F7F80
        got, expected = np.zeros(64, np.int32), np.zeros(64, np.int32)
        library(kernel(name), [*given, got])
        interpret(kernel(name), [*given, expected])
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_a_block_is_the_product_of_matrices() -> None:
    a, b = np.arange(-8, 8, dtype=np.int8), np.arange(3, 19, dtype=np.int8)
    acc = np.array([1, 2, 3, 4], np.int32)
    got = OPERATIONS["mmla_signed"](acc, a.view(np.int32), b.view(np.int32))
    expected = acc.reshape(2, 2) + a.reshape(2, 8).astype(np.int32) @ b.reshape(2, 8).T.astype(np.int32)
    np.testing.assert_array_equal(got.reshape(2, 2), expected)


@pytest.mark.parametrize(("name", "instruction"), [("mmla", "usmmla"), ("mmla_signed", "smmla")])
def test_instructions(name: str, instruction: str, tmp_path: Path) -> None:
    row = find("aarch64-i8mm")
    command = [*zig(tmp_path).command, "-target", row.triple, f"-mcpu={row.cpu}"]
    assert re.search(rf"\b{instruction}\s", assembled(kernel(name), command, tmp_path))
