"""Empty axes and tensors that are too large: operators give the reference's result or a clear error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import tenon
from lowered import NotLoweredError, run_lowered
from onnx_models import model, node
from tenon.errors import InternalError, ModelError, TenonError
from tenon.machine.kernels.machine import Machine
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops import registry
from tenon.network.ops.base import Case
from tenon.network.ops.fused import Fused
from tenon.network.passes import optimize

MACHINE = Machine(lanes=8, registers=16, block=8)


def with_empty_axes(case: Case) -> Iterator[Case]:
    """Variants of the case: all axes of one extent empty, for each extent, and each axis of each operand empty."""
    shapes = [(i, s) for i, s in enumerate(case.inputs) if isinstance(s, tuple)]
    for extent in sorted({n for _, s in shapes for n in s}):
        yield replace(
            case,
            inputs=tuple(tuple(0 if n == extent else n for n in s) if isinstance(s, tuple) else s for s in case.inputs),
        )
    for i, shape in shapes:
        for axis in range(len(shape)):
            less = (*shape[:axis], 0, *shape[axis + 1 :])
            yield replace(case, inputs=(*case.inputs[:i], less, *case.inputs[i + 1 :]))


def planned(case: Case, arrays: Sequence[Array | None], level: int) -> bool:
    """Whether the operator is still in the graph when it is planned. Raises TenonError."""
    graph, values = Graph("made"), list[Value | None]()
    for i, array in enumerate(arrays):
        if array is None:
            values.append(None)
        elif i in case.constant:
            values.append(graph.constant(f"c{i}", np.asarray(array)))
        else:
            values.append(graph.add_input(f"x{i}", TensorType(DType.of(array.dtype), array.shape)))
    names = [f"y{i}" for i in range(len(case.op.infer(values)))]
    graph.outputs = list(graph.add(case.op, values, names, Origin("", "y0", case.op.name)).outputs)
    optimize(graph, level=level)
    plan(graph, Setting(MACHINE), "made")
    return any(node.op == case.op for node in graph)


@pytest.mark.parametrize("name", sorted(n for n, cls in registry().items() if not cls.internal or cls is Fused))
def test_empty_axes(name: str) -> None:
    """Every variant gives the reference's result or a TenonError."""
    for case in (each for own in registry()[name].cases() for each in with_empty_axes(own)):
        arrays = case.arrays()
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # means of empty arrays
            try:
                planned(case, arrays, 2)
                kept = planned(case, arrays, 0)
                wanted = case.op.evaluate(arrays)
            except InternalError:
                raise
            except TenonError:
                continue
            if kept and any(a.size for a in wanted):
                try:
                    actual = run_lowered(case.op, arrays, MACHINE, case.constant)
                except NotLoweredError:
                    continue
                for a, b in zip(actual, wanted, strict=True):
                    np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), atol=1e-4, err_msg=f"{case}")


def compiled(nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, Array], **options: Any) -> Any:
    made = model(nodes, {"x": shape}, ["y"], weights).SerializeToString()
    return tenon.open(tenon.compile(made, **options))


NOTHING = [
    ("MatMul", ["x", "w"], (2, 0), {"w": np.zeros((0, 3), np.float32)}, {}, np.zeros((2, 3))),
    (
        "Gemm",
        ["x", "w", "b"],
        (2, 0),
        {"w": np.zeros((0, 3), np.float32), "b": np.ones(3, np.float32)},
        {"beta": 2.0},
        np.full((2, 3), 2),
    ),
    ("ReduceMean", ["x", "a"], (2, 0), {"a": np.array([1])}, {}, np.full((2, 1), np.nan)),
    ("ReduceMax", ["x", "a"], (2, 0), {"a": np.array([1])}, {}, np.full((2, 1), -np.inf)),
    ("ReduceMin", ["x", "a"], (2, 0), {"a": np.array([1])}, {}, np.full((2, 1), np.inf)),
    ("GlobalAveragePool", ["x"], (1, 2, 0, 3), {}, {}, np.full((1, 2, 1, 1), np.nan)),
    (
        "Resize",
        ["x", "", "s"],
        (1, 3, 1, 4),
        {"s": np.array([1, 1, 0.5, 2], np.float32)},
        {"mode": "linear"},
        np.zeros((1, 3, 0, 8)),
    ),
    (
        "Resize",
        ["x", "", "s"],
        (1, 3, 1, 4),
        {"s": np.array([1, 1, 0, 1], np.float32)},
        {"mode": "cubic"},
        np.zeros((1, 3, 0, 4)),
    ),
]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(("name", "operands", "shape", "weights", "attributes", "wanted"), NOTHING)
def test_reductions_over_no_elements(
    name: str,
    operands: list[str],
    shape: tuple[int, ...],
    weights: dict[str, Array],
    attributes: dict[str, Any],
    wanted: Array,
    level: int,
) -> None:
    engine = compiled([node(name, operands, ["y"], **attributes)], shape, weights, optimize=level)
    np.testing.assert_array_equal(engine.run(np.ones(shape, np.float32))["y"], wanted.astype(np.float32))


LARGE = [
    ("Relu", ["x"], (1, 2**31), {}, {}),
    ("Relu", ["x"], (1, 2**29), {}, {}),
    ("Expand", ["x", "s"], (1, 1), {"s": np.array([2**16, 2**15])}, {}),
    ("MatMul", ["x", "w"], (2**16, 1), {"w": np.ones((1, 2**13), np.float32)}, {}),
    ("Conv", ["x", "w"], (1, 1, 2**14, 2**14), {"w": np.ones((4, 1, 3, 3), np.float32)}, {"pads": [1, 1, 1, 1]}),
    ("Tile", ["x", "s"], (4, 4), {"s": np.array([2**30, 2**30])}, {}),
]


@pytest.mark.parametrize(("name", "operands", "shape", "weights", "attributes"), LARGE)
def test_tensors_beyond_the_size_limit(
    name: str, operands: list[str], shape: tuple[int, ...], weights: dict[str, Array], attributes: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=r"must have less than 2147483648|the output's shape would be"):
        compiled([node(name, operands, ["y"], **attributes)], shape, weights)
