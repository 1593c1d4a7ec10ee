"""A tensor that is added to the sums of an integer convolution before they are rounded: every kind of kernel has the
bits of the reference, and a quantised network that asks for it is computed so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiled import Library
from evaluate import evaluate
from integer_products import ADDED, with_added
from lowered import Ask, make_site, run_lowered, run_site
from tenon.errors import ShapeError
from tenon.formats import importers
from tenon.machine.algorithms import registry
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.helium import DOT16
from tenon.machine.isa.thumb import MUL
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import added_factors
from tenon.network.passes.integers import to_integers
from tenon.options import Arithmetic

MACHINES = {
    "integer_pairs": Machine(lanes=1, registers=28, block=4, products=(DOT2_I16,)),
    "integer_dots": Machine(lanes=4, registers=8, block=4, products=(DOT2_I16, DOT16)),
    "integer_scalar": Machine(lanes=1, registers=12, block=4, products=(MUL,)),
}
CONSTANT = (1, 2, 3, 4, 6)
LARGE = ("1x1", "3x3", "3x3_stride", "plane", "depthwise")


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in ADDED])
def test_kernels_without_vectors(name: str, kind: str) -> None:
    (conv, arrays), machine = with_added(name), MACHINES[kind]
    site = make_site(conv, arrays, machine, CONSTANT)
    (step,) = conv.lower(site)
    assert step.kernel.name.startswith(kind)
    (expected,) = conv.evaluate(arrays)
    assert np.mean((expected > -128) & (expected < 127)) > 0.2
    assert len(np.unique(expected)) > 20
    assert conv.in_place(site) == ((0, 5) if name == "depthwise" else (5,))
    for ask in (Ask(), Ask(surplus=1), *(Ask(overwrite=i) for i in conv.in_place(site))):
        (got,) = run_lowered(conv, arrays, machine, CONSTANT, ask)
        np.testing.assert_array_equal(got, expected)


def test_winograd() -> None:
    conv, arrays = with_added("3x3_even")
    machine = MACHINES["integer_pairs"]
    site = replace(make_site(conv, arrays, machine, CONSTANT), algorithm=registry.parse("pairs-winograd"))
    (step,) = conv.lower(site)
    assert step.kernel.name.startswith("integer_winograd")
    (got,) = run_site(conv, site, arrays)
    np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


def test_portable_c_matches_the_reference(tmp_path: Path) -> None:
    """All cases, by kernels that take no vectors."""
    library = Library()
    cases = [(*with_added(name), machine) for name in ADDED for machine in MACHINES.values()]
    for conv, arrays, machine in cases:
        (step,) = conv.lower(make_site(conv, arrays, machine, CONSTANT))
        library.add(step.kernel)
    library.build(tmp_path, ("gcc", "-O2"))
    for conv, arrays, machine in cases:
        (got,) = run_lowered(conv, arrays, machine, CONSTANT, execute=library)
        np.testing.assert_array_equal(got, conv.evaluate(arrays)[0])


def test_factors() -> None:
    """255 steps times a factor fit 32 bits, and the greatest factors have most bits."""
    factors_and_shift = added_factors(np.array([3.7, 800.0]))
    assert factors_and_shift is not None
    factors, shift = factors_and_shift
    assert 1 << 21 <= factors[1] <= 1 << 22
    np.testing.assert_allclose(factors / 2.0**shift, [3.7, 800.0], atol=2.0**-shift)
    assert added_factors(np.array([2.0**22])) is None


def test_operands_that_do_not_fit() -> None:
    conv, arrays = with_added("1x1")
    values = [None if a is None else Value("v", TensorType(DType.of(a.dtype), a.shape)) for a in arrays]
    with pytest.raises(ShapeError, match="cannot be added to sums"):
        conv.infer([*values[:5], Value("r", TensorType(DType.I8, (1, 8, 1, 5))), values[6]])
    with pytest.raises(ShapeError, match="cannot be added to sums"):
        conv.infer(values[:6])
    with pytest.raises(ShapeError, match="do not fit 8 channels"):
        conv.infer([*values[:6], Value("g", TensorType(DType.I32, (3,)))])
    with pytest.raises(ShapeError, match="a shift by 31 bits"):
        replace(conv, added_shift=31).infer(values)


# ------------------------------------------------------------------------------------------------ networks
def residual(dtype: type[np.integer[Any]] = np.int8, factor: float = 0.07, clip: bool = True) -> bytes:
    """A quantised convolution and another quantised tensor, added in floats, and integers of the sum."""
    rng = np.random.default_rng(8)
    zero = np.array(5 if np.dtype(dtype).kind == "i" else 131, dtype)
    constants: dict[str, Any] = {
        "xs": np.float32(0.05),
        "xz": np.int8(-4),
        "w": rng.integers(-127, 128, (5, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.002, 0.02, 5).astype(np.float32),
        "b": rng.integers(-900, 900, 5).astype(np.int32),
        "rs": np.float32(factor),
        "rz": zero,
        "ys": np.float32(0.1),
        "yz": np.int8(-60),
        "low": np.float32(-3),
        "high": np.float32(15),
    }
    constants["bs"] = np.float32(0.05) * constants["ws"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
        helper.make_node("DequantizeLinear", ["r", "rs", "rz"], ["rf"]),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["c"], pads=[1] * 4),
        helper.make_node("Add", ["rf", "c"], ["s"]),
        *([helper.make_node("Clip", ["s", "low", "high"], ["l"])] if clip else []),
        helper.make_node("QuantizeLinear", ["l" if clip else "s", "ys", "yz"], ["y"]),
    ]
    kinds = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8, np.int16: TensorProto.INT16}
    made = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.INT8, [1, 3, 6, 7]),
            helper.make_tensor_value_info("r", kinds[dtype], [1, 5, 6, 7]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT8, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return bytes(helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())


def converted(data: bytes, arithmetic: Arithmetic) -> tuple[Graph, list[str]]:
    graph = importers.load(data)
    left = to_integers(graph, arithmetic)
    graph.prune()
    return graph, [str(each) for each in left]


ARITHMETICS: tuple[Arithmetic, ...] = ("onnx", "tflm", "litert")


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("clip", [True, False])
def test_a_convolution_is_rounded_once_with_what_is_added(
    clip: bool, dtype: type[np.integer[Any]], arithmetic: Arithmetic
) -> None:
    """Half a step, and the rounding of what is added to whole sums, at most."""
    graph, left = converted(residual(dtype, clip=clip), arithmetic)
    assert not left
    (node,) = graph
    assert isinstance(node.op, IntegerConv)
    floats = importers.load(residual(dtype, clip=clip))
    floats.outputs = [floats.outputs[0].producer.input(0)]  # type: ignore[union-attr]
    floats.prune()
    rng, kind = np.random.default_rng(9), np.iinfo(dtype)
    feeds = {
        "x": rng.integers(-128, 128, (1, 3, 6, 7)).astype(np.int8),
        "r": rng.integers(kind.min, kind.max + 1, (1, 5, 6, 7)).astype(dtype),
    }
    (got,), (real,) = evaluate(graph, feeds).values(), evaluate(floats, feeds).values()
    exact = np.clip(real.astype(np.float64) / np.float32(0.1), -128 + 60, 127 + 60)
    assert np.ptp(exact) > 150
    assert np.abs(got.astype(int) + 60 - exact).max() <= 0.5 + 0.02  # a sum is 0.01 of a step at most


@pytest.mark.parametrize("data", [residual(np.int16), residual(factor=1e6)])
def test_what_cannot_be_added_to_sums_stays_in_float(data: bytes) -> None:
    """Operands of 16 bits, and of a step of more than 2**22 sums, stay in float."""
    graph, left = converted(data, "onnx")
    assert left
    assert "IntegerConv" not in {node.op.name for node in graph}
