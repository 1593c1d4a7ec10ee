"""Attention in one launch, rows in 16 bits, and the pass that joins what attention is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from check_kernels import check
from decoder_models import decoder
from evaluate import evaluate
from interpret import interpret
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.attention import attention, padded, shared_bytes, supported
from tenon.machine.kernels.group_rows import softmax_groups
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.norm import Rows, normalize_rows
from tenon.machine.plan.arithmetic import attends
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, DType
from tenon.network.ops.head_attention import HeadAttention
from tenon.network.passes.attention import attention as attention_pass
from tenon.network.passes.first import first_passes
from tenon.network.passes.precision import precision

CUDA = find("cuda").machine


def bits(array: Array) -> Array:
    """The array as kernels take it: bf16 are bits."""
    return array.reshape(-1) if array.dtype.isbuiltin == 1 else array.reshape(-1).view(np.uint16)


@pytest.mark.parametrize(
    ("s", "tolerance"),
    [
        (HeadSizes(2, 3, 20, 32, 0.25, DType.F16), 2e-3),
        (HeadSizes(1, 5, 17, 64, 0.125, DType.BF16, merged=True), 2e-2),
        (HeadSizes(1, 16, 32, 32, 1.0, DType.F16, merged=True), 2e-3),
    ],
    ids=["f16", "bf16_four_warps", "whole_tiles"],
)
def test_results(s: HeadSizes, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    shapes = [(s.count, rows, s.depth) for rows in (s.queries, s.keys, s.keys)]
    q, k, v = (rng.standard_normal(shape).astype(s.dtype.numpy) for shape in shapes)
    expected = HeadAttention(s.scale, s.merged).reference(q, k, v)
    y = np.zeros(expected.shape, s.dtype.numpy)
    kernel = attention(s)
    interpret(kernel, [*map(bits, (q, k, v)), bits(y)])
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), atol=tolerance)
    assert prove(kernel) > 0


def test_the_second_check_accepts_what_is_proved() -> None:
    assert check(show(attention(HeadSizes(1, 3, 20, 32, 0.5, DType.F16)))) > 0


def test_the_machine_decides() -> None:
    s = HeadSizes(3, 197, 197, 64, 0.125, DType.F16)
    assert supported(s, CUDA)
    assert shared_bytes(s) <= 48 << 10
    assert not supported(HeadSizes(3, 900, 900, 64, 0.125, DType.F16), CUDA)  # keys that do not fit
    assert not supported(HeadSizes(3, 16, 16, 24, 0.125, DType.F16), CUDA)
    assert not supported(HeadSizes(3, 16, 16, 32, 0.125, F32), CUDA)
    assert attends(CUDA, DType.F16)
    for name in ("opencl", "vulkan", "host"):
        assert attends(find(name).machine, DType.F16) is None
    text = find_backend("cuda").kernel(attention(s))
    assert text.count("mma_f16_k16(") == 1 + padded(s) // 4 // 8 + 64 // 4 // 8


def block() -> Graph:
    """A block of a transformer with three heads, as exporters write it, and a layer behind it."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "scale": np.ones(96, np.float32),
        "qkv": rng.standard_normal((96, 288)).astype(np.float32) / 10,
        "out": rng.standard_normal((96, 96)).astype(np.float32) / 10,
        "last": rng.standard_normal((96, 8)).astype(np.float32) / 10,
        "heads": np.array([1, 9, 3, 3, 32]),
        "rows": np.array([1, 9, 96]),
        "first": np.array([0]),
        "root": np.array(0.17, np.float32),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "qkv"], ["m"]),
        helper.make_node("Reshape", ["m", "heads"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], perm=[2, 0, 3, 1, 4]),
        helper.make_node("Split", ["t"], ["q0", "k0", "v0"], axis=0, num_outputs=3),
        *(helper.make_node("Squeeze", [f"{name}0", "first"], [name]) for name in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "root"], ["s1"]),
        helper.make_node("Softmax", ["s1"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a"]),
        helper.make_node("Transpose", ["a"], ["at"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["at", "rows"], ["ar"]),
        helper.make_node("MatMul", ["ar", "out"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "scale"], ["l"], axis=-1),
        helper.make_node("MatMul", ["l", "last"], ["y"]),
    ]
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)]
        for name, dims in (("x", (1, 9, 96)), ("y", None))
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "block", ports[0], ports[1], constants)
    return tenon.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def test_attention_is_one_operator_between_layers_in_16_bits() -> None:
    graph = block()
    x = np.random.default_rng(1).standard_normal((1, 9, 96)).astype(np.float32)
    (before,) = evaluate(graph, {"x": x}).values()
    narrow = precision("fp16", arithmetic=True, attends=attends(CUDA, DType.F16))
    passes.optimize(graph, verify=True, narrow=narrow)
    operators = [node.op.name for node in graph]
    assert "HeadAttention" in operators
    assert "Softmax" not in operators
    assert operators.count("Transpose") == 1  # of queries, keys and values together
    assert [name for name in operators if "Cast" in name] == ["Cast", "MatMul+Cast"]  # of the input and the output
    assert all(node.output.type.dtype is DType.F16 for node in graph if "Normal" in node.op.name)
    (after,) = evaluate(graph, {"x": x}).values()
    np.testing.assert_allclose(after, before, atol=4e-3 * np.abs(before).max())


def test_products_that_are_no_attention_stay() -> None:
    """Sizes that do not fit, another axis, and products that others read as well."""
    for able in (lambda heads: False, None):
        graph = block()
        passes.optimize(graph, verify=True, narrow=precision("fp16", arithmetic=True, attends=able))
        assert "HeadAttention" not in [node.op.name for node in graph]


# ------------------------------------------------------------------------------------------------ forms
HEADS, QUERIES, KEYS, DEPTH = 2, 5, 7, 4
CAUSAL = np.tril(np.ones((QUERIES, KEYS), bool), 2)


def node(kind: str, inputs: str, output: str = "s") -> Any:
    return helper.make_node(kind, inputs.split(), [output])


def copied(name: str) -> list[Any]:
    """Nodes that repeat the only head of keys or values for all heads."""
    return [
        node("Unsqueeze", f"{name} two", f"{name}1"),
        node("Expand", f"{name}1 many", f"{name}2"),
        node("Reshape", f"{name}2 all", f"{name}3"),
    ]


COPIES = {
    "two": np.array([2]),
    "many": np.array([1, 1, HEADS, KEYS, DEPTH]),
    "all": np.array([1, HEADS, KEYS, DEPTH]),
}


def attention_of(*scores: Any, keys: str = "transposed", constants: dict[str, Any] | None = None) -> Graph:
    """A model of attention: ``scores`` are nodes from "s0", the product, to "s", of which softmax is taken."""
    operands = {"q": (1, HEADS, QUERIES, DEPTH), "v": (1, HEADS, KEYS, DEPTH), "m": (1, 1, QUERIES, KEYS)}
    operands["k"] = {"turned": (1, HEADS, DEPTH, KEYS), "rows": (1, KEYS, HEADS, DEPTH)}.get(keys, operands["v"])
    perm = {"rows": [0, 2, 3, 1], "turned": [0, 1, 2, 3]}.get(keys, [0, 1, 3, 2])
    end = ""
    if keys == "shared":
        operands["k"] = operands["v"] = (1, 1, KEYS, DEPTH)
        end, constants = "3", {**(constants or {}), **COPIES}
    nodes = [
        *(copied("k") + copied("v") if end else []),
        helper.make_node("Transpose", [f"k{end}"], ["kt"], perm=perm),
        helper.make_node("MatMul", ["q", "kt"], ["s0"]),
        *scores,
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", f"v{end}"], ["y"]),
    ]
    used = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in operands.items() if n in used]
    arrays = {"half": np.array(0.5, np.float32), **(constants or {})}
    graph = helper.make_graph(
        nodes,
        "attention",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    return tenon.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


LOWEST = np.array(-3e38, np.float32)
FORMS: dict[str, tuple[Graph, str]] = {
    "plain": (attention_of(node("Identity", "s0")), "HeadAttention()"),
    "shared": (attention_of(node("Identity", "s0"), keys="shared"), "HeadAttention()"),
    "scaled": (attention_of(node("Mul", "s0 half")), "HeadAttention(scale=0.5)"),
    "divided": (attention_of(node("Div", "s0 half"), keys="rows"), "HeadAttention(scale=2.0)"),
    "masked": (attention_of(node("Mul", "s0 half", "s1"), node("Add", "s1 m")), "HeadAttention(scale=0.5)"),
    "mask_first": (attention_of(node("Add", "m s0"), keys="turned"), "HeadAttention()"),
    "causal": (
        attention_of(node("Where", "seen s0 low"), constants={"seen": CAUSAL, "low": LOWEST}),
        "HeadAttention(causal=True)",
    ),
    "window": (
        attention_of(node("Add", "s0 c"), constants={"c": np.where(CAUSAL & ~np.tri(5, 7, -1, bool), 0, LOWEST)}),
        "HeadAttention(causal=True, window=3)",
    ),
    "chosen": (
        attention_of(node("Where", "seen s0 low"), constants={"seen": CAUSAL[::-1].copy(), "low": LOWEST}),
        f"HeadAttention(fill={float(LOWEST)!r})",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_attention(form: str) -> None:
    """Each form is one operator with the same results."""
    graph, expected = FORMS[form]
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal(v.type.dims).astype(np.float32) for v in graph.inputs}
    (before,) = evaluate(graph, feeds).values()
    passes.optimize(graph, verify=True, narrow=[attention_pass(lambda _: True)])
    assert [str(n.op) for n in graph if n.op.name == "HeadAttention"] == [expected]
    assert not {"Softmax", "MatMul", "Where", "Add", "Expand"} & {n.op.name for n in graph}
    (after,) = evaluate(graph, feeds).values()
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_forms_that_are_no_attention_stay() -> None:
    """Two masks of which one chooses, and a scale behind a mask."""
    both = [node("Add", "s0 m", "s1"), node("Where", "seen s1 low")]
    constants = {"seen": CAUSAL, "low": LOWEST}
    for graph in (
        attention_of(*both, constants=constants),
        attention_of(node("Add", "s0 m", "s1"), node("Mul", "s1 half")),
    ):
        passes.optimize(graph, verify=True, narrow=[attention_pass(lambda _: True)])
        assert "HeadAttention" not in [n.op.name for n in graph]


@pytest.mark.parametrize(("words", "queries"), [("1..8", 8), (1, 1)])
def test_attention_to_a_cache_is_one_operator(words: str | int, queries: int) -> None:
    """The number of keys is the extent that a run knows, and values are not masked."""
    graph = tenon.load(decoder(), shapes={"sequence": words, "past": "0..64"})
    first = first_passes(microcontroller=False, device=False)
    passes.optimize(graph, verify=True, first=first, narrow=[attention_pass(lambda _: True)])
    (layer, other) = (n for n in graph if n.op.name == "HeadAttention")
    assert layer.input(0).type.dims[-2] == queries
    makers = [value.producer for value in (layer.input(1), layer.input(2))]
    assert [maker and maker.op.name for maker in makers] == ["Append", "Append"]
    assert layer.input(3) is other.input(3)
    assert layer.input(4).type.rank == 0
    assert "Softmax" not in [n.op.name for n in graph]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_rows_in_16_bits(dtype: DType) -> None:
    """They are computed in f32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 70)).astype(dtype.numpy)
    wide, tolerance = x.astype(np.float32), 2e-3 if dtype is DType.F16 else 2e-2
    y = np.zeros_like(x)
    interpret(softmax_groups(3, 70, False, CUDA, dtype), [bits(x), bits(y)])
    terms = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(y.astype(np.float32), terms / terms.sum(1, keepdims=True), atol=tolerance)
    scale, bias = (rng.standard_normal(70).astype(np.float32) for _ in range(2))
    interpret(normalize_rows(Rows(3, 1, 70, 1e-5, True, dtype=dtype), CUDA), [bits(x), scale, bias, bits(y)])
    centred = wide - wide.mean(1, keepdims=True)
    expected = centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(y.astype(np.float32), expected, atol=4 * tolerance)
