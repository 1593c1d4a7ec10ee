"""Integer convolutions by 16-bit pair products: bit-identical to the reference for all borders, strides and channel
counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import Library
from integer_products import CASES, operands, operator
from loop_operations import OPERATIONS
from lowered import Ask, make_site, run_lowered
from tenon.machine.codegen.c.dialect import C
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, op
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels import integer_pairs
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType
from tenon.network.ops.base import Weights
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.quantize import QuantizeLinear

MACHINE = Machine(lanes=1, registers=28, block=4, products=(DOT2_I16,))


def kernels(op: IntegerConv | IntegerGemm, arrays: list[Array]) -> list[Kernel]:
    return [step.kernel for step in op.lower(make_site(op, arrays, MACHINE, (1, 2, 3, 4)))]


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str) -> None:
    x, w, more = CASES[name]
    conv, arrays = operator(more), operands(x, w)
    (kernel,) = kernels(conv, arrays)
    assert kernel.name.startswith("integer_pairs")
    (expected,) = conv.evaluate(arrays)
    assert len(np.unique(expected)) > 4
    for ask in (
        Ask(),
        Ask(surplus=1),
        *(Ask(overwrite=i) for i in conv.in_place(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)))),
    ):
        (got,) = run_lowered(conv, arrays, MACHINE, (1, 2, 3, 4), ask)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("n", "k", "m"), [(1, 36, 7), (1, 8, 12), (3, 8, 5), (9, 12, 1)])
def test_matrix_products(n: int, k: int, m: int) -> None:
    arrays = operands((n, k), (max(m, 2), k))
    if m == 1:
        arrays = [arrays[0], *(a[:1] for a in arrays[1:])]
    product = IntegerGemm("double", -3, zero=4, scale=0.25)
    assert kernels(product, arrays)[0].name.startswith("integer_pairs")
    (got,) = run_lowered(product, arrays, MACHINE, (1, 2, 3, 4))
    np.testing.assert_array_equal(got, product.evaluate(arrays)[0])


def test_portable_c_matches_the_interpreter(tmp_path: Path) -> None:
    library = Library()
    for x, w, more in CASES.values():
        for kernel in kernels(operator(more), operands(x, w)):
            library.add(kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    for name, (x, w, more) in CASES.items():
        conv, arrays = operator(more), operands(x, w)
        (got,) = run_lowered(conv, arrays, MACHINE, (1, 2, 3, 4), execute=library)
        np.testing.assert_array_equal(got, conv.evaluate(arrays)[0], err_msg=name)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"multiplier": 1 << 29}, "a multiplier below 2**30 does not wrap around"),
        ({"shift": 1}, "a shift to the left"),
        ({"bias": 2**31 - 1000}, "a sum that half of what is dropped cannot be added to"),
    ],
)
def test_other_requantisation_uses_other_kernels(change: dict[str, int], why: str) -> None:
    x, w, more = CASES["1x1"]
    conv, arrays = operator(more), operands(x, w)
    arrays[4][1] = -2  # all other channels are alike
    arrays[1][2] = 0
    arrays[1][2, 0] = 1  # sums differ from the bias by less than 1000
    places = {"bias": 2, "multiplier": 3, "shift": 4}
    for name, value in change.items():
        arrays[places[name]][2] = value
    assert not any(kernel.name.startswith("integer_pairs") for kernel in kernels(conv, arrays)), why
    (got,) = run_lowered(conv, arrays, MACHINE, (1, 2, 3, 4))
    np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


def test_weights_are_packed_when_lowered_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts and the sharing of memory ask whether pairs are multiplied, several times each."""
    packed: list[Array] = []

    def counted(real: Callable[..., Array]) -> Callable[..., Array]:
        def pack(*args: Any) -> Array:
            packed.append(real(*args))
            return packed[-1]

        return pack

    for name in ("pack", "pack_depthwise"):
        monkeypatch.setattr(integer_pairs, name, counted(getattr(integer_pairs, name)))
    for name in ("1x1", "depthwise"):
        x, w, more = CASES[name]
        conv, arrays = operator(more), operands(x, w)
        site = make_site(conv, arrays, MACHINE, (1, 2, 3, 4))
        packed.clear()
        conv.layouts(site)
        assert conv.in_place(site) == ((0,) if name == "depthwise" else ())
        assert not packed
        conv.lower(site)
        assert len(packed) == 1


ARITY = {
    "dot2_i16": 3,
    "even_bytes": 1,
    "odd_bytes": 1,
    "pair_i16": 2,
    "mulh_add": 3,
    "saturate_i8": 1,
    "add_i16x2": 2,
    "sub_i16x2": 2,
}


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", ARITY)
def test_primitives_in_portable_c(name: str, lanes: int, tmp_path: Path) -> None:
    """For extreme and random operands, in scalars and vectors."""
    rng = np.random.default_rng(5)
    extremes = np.array([0, -1, 1, 2**31 - 1, -(2**31), 127, 128, -128, -129, 0x7FFF8000, -0x7FFF8000, 300], np.int32)
    words = [
        np.concatenate([rng.permutation(extremes), rng.integers(-(2**31), 2**31, 20)]).astype(np.int32)
        for _ in range(ARITY[name])
    ]
    if name == "dot2_i16":  # both products are (-2**15)**2: their sum wraps around
        words[1][:4], words[2][:4] = -(2**31) + 2**15, -(2**31) + 2**15
    k = Builder("k")
    given = [k.param("a", 32, dtype=I32).vec(lanes) for _ in words]
    y = k.param("y", 32, dtype=I32, out=True).vec(lanes)
    with k.loop("i", 32 // lanes) as i:
        y[i] = op(name, *(a[i] for a in given))
    kernel, library, out = k.done(), Library(), np.zeros(32, np.int32)
    library.add(kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    library(kernel, [*words, out])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, OPERATIONS[name](*words))


def assembly(kernel: Kernel) -> int:
    """How many pieces of assembly the C of a kernel has, besides single instructions; none hides what it reads."""
    unit = C()
    unit.kernel(kernel)
    text = unit.text()
    assert not re.search(r"[^.\w](\w+) = \1;", text)
    return text.count("__asm__ volatile(")


def test_tile_has_an_assembly_form() -> None:
    for name, tiles in (("1x1", 1), ("1x1_long", 1), ("3x3", 1), ("depthwise", 0)):
        x, w, more = CASES[name]
        (kernel,) = kernels(operator(more), operands(x, w))
        assert assembly(kernel) == tiles, name


def test_vector_product_has_an_assembly_form() -> None:
    for n, channels, tiles in ((1, 8, 1), (1, 4, 1), (1, 6, 1), (1, 2, 0)):  # of four channels; the rest is less
        (kernel,) = kernels(IntegerGemm("double", -3, zero=4, scale=0.25), operands((n, 36), (channels, 36)))
        assert assembly(kernel) == tiles, channels


# ------------------------------------------------------------------------------------------- rounding of floats
ODD = np.array(
    [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        127.5,
        -128.5,
        0.49999997,
        8388609,
        -8388611,
        3e9,
        -3e9,
        1e30,
        -1e30,
        np.inf,
        -np.inf,
        2147483520,
        -2147483648,
        0,
        -0.0,
    ],
    np.float32,
)


@pytest.mark.parametrize("name", ["nearest_add", "nearest_away_add"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_nearest_integers_in_portable_c(lanes: int, name: str, tmp_path: Path) -> None:
    """Ties, numbers beyond i32 and sums beyond i32, which saturate where halves are rounded to even."""
    rng = np.random.default_rng(6)
    x = np.concatenate([ODD, ODD, rng.uniform(-300, 300, 40)]).astype(np.float32)
    far = 2**31 if name == "nearest_add" else 2**15
    zero = np.concatenate([np.full(20, -far), np.full(20, far - 1), rng.integers(-128, 128, 40)]).astype(np.int32)
    k = Builder("k")
    a, b = k.param("a", 80, dtype=F32).vec(lanes), k.param("b", 80, dtype=I32).vec(lanes)
    y = k.param("y", 80, dtype=I32, out=True).vec(lanes)
    with k.loop("i", 80 // lanes) as i:
        y[i] = op(name, a[i], b[i])
    kernel, library, out = k.done(), Library(), np.zeros(80, np.int32)
    library.add(kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    library(kernel, [x, zero, out])
    np.testing.assert_array_equal(out, OPERATIONS[name](x, zero))


def test_halves_are_rounded_away_from_zero() -> None:
    """By the formula of the instructions, beside all halves, quarters and their neighbours, and large numbers."""
    x = np.concatenate([np.arange(-70000, 70000) / 4, np.arange(-(2**28), 2**28, 12345, dtype=np.float64)])
    x = x.astype(np.float32)
    x = np.concatenate([np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))])
    x = x[np.abs(x) < 2**28]
    expected = np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)
    np.testing.assert_array_equal(OPERATIONS["nearest_away_add"](x, np.zeros(len(x), np.int32)), expected)


@pytest.mark.parametrize(("ties", "name"), [("even", "nearest_add"), ("away", "nearest_away_add")])
@pytest.mark.parametrize("to", [DType.I8, DType.U8, DType.I16])
def test_floats_are_quantised_by_integers(to: DType, ties: str, name: str) -> None:
    """The kernel rounds once, by ``nearest_add`` or ``nearest_away_add``, and gives what the reference gives."""
    quantize = QuantizeLinear(to.value, ties=ties)
    x = np.concatenate([ODD, 0.75 * ODD, np.linspace(-200, 200, 77, dtype=np.float32)])
    for zero in (None, np.array(-100 if to.is_signed else 100, to.numpy)):
        inputs = (x, np.array(0.75, np.float32), zero)[: 2 if zero is None else 3]
        (got,) = run_lowered(quantize, inputs, MACHINE, (1, 2)[: len(inputs) - 1])
        np.testing.assert_array_equal(got, quantize.evaluate(inputs)[0])
        site = make_site(quantize, inputs, MACHINE, (1, 2)[: len(inputs) - 1])
        assert name in show(quantize.lower(site)[0].kernel)


def test_depthwise_weights_take_one_byte_each() -> None:
    x, w, more = CASES["depthwise"]
    conv, arrays = operator(more), operands(x, w)
    (step,) = conv.lower(make_site(conv, arrays, MACHINE, (1, 2, 3, 4)))
    sizes = [arg.data.nbytes for arg in step.args if isinstance(arg, Weights)]
    assert sizes == [math.prod(w), 4 * w[0], 12 * w[0]]  # weights, bias, factors
