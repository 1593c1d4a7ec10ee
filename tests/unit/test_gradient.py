"""The operator Gradient, compared with finite differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tenon
from evaluate import evaluate
from onnx_models import node
from tenon.errors import UnsupportedError
from tenon.network.graph.graph import Array

DOMAIN = "ai.onnx.preview.training"


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
) -> bytes:
    """A model in f64, for accurate finite differences."""
    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, a.shape) for name, a in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in outputs],
        [onnx.numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


def derive(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    y: str = "y",
) -> dict[str, Array]:
    """The derivatives of the sum of ``y`` by each feed, checked against finite differences."""
    names = [f"by_{name}" for name in feeds]
    wanted = node("Gradient", [*feeds], names, domain=DOMAIN, xs=[*feeds], y=y)
    outputs = evaluate(tenon.load(model([*nodes, wanted], feeds, [y, *names], constants)), feeds)
    plain = tenon.load(model(nodes, feeds, [y], constants))
    for name, array in feeds.items():
        for at in np.ndindex(*array.shape):
            step = np.zeros(array.shape)
            step[at] = 1e-6
            more, less = (evaluate(plain, {**feeds, name: array + s})[y].sum() for s in (step, -step))
            np.testing.assert_allclose(outputs[f"by_{name}"][at], (more - less) / 2e-6, rtol=1e-5, atol=1e-7)
    return outputs


def numbers(*shape: int, seed: int = 0) -> Array:
    """Away from 0, where some functions are not differentiable."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.uniform(0.3, 1.5, shape))


@pytest.mark.parametrize(
    "type",
    [
        "Abs",
        "Cos",
        "Erf",
        "Exp",
        "Identity",
        "Log",
        "Neg",
        "Reciprocal",
        "Relu",
        "Sigmoid",
        "Sin",
        "Softplus",
        "Sqrt",
        "Tanh",
    ],
)
def test_elementwise_functions(type: str) -> None:
    derive([node(type, ["x"], ["y"])], {"x": numbers(2, 3)})


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (4, 1, 3)), ((), (2,))])
@pytest.mark.parametrize("type", ["Add", "Sub", "Mul", "Div", "Pow", "Sum"])
def test_gradients_of_broadcast_operands_are_summed(type: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = numbers(*shapes[0]), numbers(*shapes[1], seed=1)
    derive([node(type, ["a", "b"], ["c"]), node("Mul", ["c", "c"], ["y"])], {"a": a, "b": b})


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((5, 2, 3), (3,)),
    ],
)
def test_products(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = numbers(*shapes[0]), numbers(*shapes[1], seed=1)
    derive([node("MatMul", ["a", "b"], ["c"]), node("Tanh", ["c"], ["y"])], {"a": a, "b": b})


def test_a_small_network() -> None:
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=0.5, beta=2.0),
        node("Relu", ["h"], ["r"]),
        node("Softmax", ["r"], ["s"]),
        node("Transpose", ["s"], ["t"]),
        node("Reshape", ["t", "shape"], ["v"]),
        node("Where", ["chosen", "v", "x0"], ["u"]),
        node("ReduceMean", ["u", "axes"], ["m"], keepdims=0),
        node("ReduceSum", ["u"], ["l"]),
        node("Sub", ["l", "m"], ["d"]),
        node("Mul", ["d", "d"], ["y"]),
    ]
    constants = {"shape": np.array([3, 2]), "axes": np.array([1]), "chosen": np.array([True, False])}
    derive(nodes, {"x": numbers(2, 4), "w": numbers(3, 4), "b": numbers(3), "x0": numbers(2)}, constants)


def test_gradient_at_other_values_and_by_intermediate_tensors() -> None:
    nodes = [
        node("Mul", ["a", "a"], ["h"]),
        node("Mul", ["h", "b"], ["y"]),
        node("Gradient", ["h", "b"], ["by_h", "by_b"], domain=DOMAIN, xs=["h"], zs=["b"], y="y"),
        node("Gradient", ["b", "b"], ["there"], domain=DOMAIN, xs=["a"], zs=["b"], y="y"),
    ]
    feeds = {"a": np.array(3.0), "b": np.array(5.0)}
    outputs = evaluate(tenon.load(model(nodes, feeds, ["by_h", "there"])), feeds)
    assert outputs["by_h"] == 5
    assert outputs["there"] == 2 * 5 * 5  # a is 5 here


def test_second_derivative_and_zero_gradient() -> None:
    nodes = [
        node("Pow", ["x", "three"], ["y"]),
        node("Gradient", ["x"], ["once"], domain=DOMAIN, xs=["x"], y="y"),
        node("Gradient", ["x", "z"], ["twice", "no"], domain=DOMAIN, xs=["x", "z"], y="once"),
    ]
    feeds = {"x": np.array([2.0]), "z": np.array([1.0])}
    outputs = evaluate(tenon.load(model(nodes, feeds, ["once", "twice", "no"], {"three": np.array(3.0)})), feeds)
    assert {name: a.tolist() for name, a in outputs.items()} == {"once": [12], "twice": [12], "no": [0]}


def test_operators_without_a_derivative_are_reported() -> None:
    x = {"x": numbers(2, 3)}
    wanted = node("Gradient", ["x"], ["g"], domain=DOMAIN, xs=["x"], y="y")
    with pytest.raises(UnsupportedError, match=r"the derivatives of CumSum are not known.*those of Abs, Add"):
        tenon.load(model([node("CumSum", ["x", "axis"], ["y"]), wanted], x, ["g"], {"axis": np.array(0)}))
    nodes = [node("Exp", ["w"], ["e"]), node("Mul", ["x", "e"], ["y"])]
    wanted = node("Gradient", ["w"], ["g"], domain=DOMAIN, xs=["w"], y="y")
    with pytest.raises(UnsupportedError, match=r"'w' is an initializer.*make w an input"):
        tenon.load(model([*nodes, wanted], x, ["g"], {"w": numbers(3)}))
