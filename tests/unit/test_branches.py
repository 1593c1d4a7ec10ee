"""Choices at run time: nodes of which one of two bodies runs, from ONNX's If to C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx.parser
import pytest

import tenon
from exact_onnxruntime import session
from sized_models import check
from tenon.errors import InternalError, ModelError
from tenon.machine.plan.lifetimes import lifetimes
from tenon.machine.plan.program import Branch
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.text import parse, same, show
from tenon.network.graph.verify import verify
from tenon.network.ops import constructors
from tenon.network.ops.branch import If
from tenon.network.ops.unroll import unrolled
from tenon.network.passes import optimize
from tenon.quantization import quantize

HEAD = '<ir_version: 8, opset_import: ["": 21]>'

MODELS = {
    "products": """g (float[4,8] x, bool c, float[8,8] w) => (float[4,8] y, float[4,8] z) {
        p, q = If (c) <
            then_branch = t () => (float[4,8] a, float[4,8] b) { m = MatMul(x, w) a = Relu(m) b = Identity(x) },
            else_branch = e () => (float[4,8] d, float[4,8] f) { d = Neg(x) f = Add(d, x) }>
        y = Sigmoid(p)
        z = Identity(q)
    }""",
    "nested": """g (float[4,8] x, bool c, bool d) => (float[4,8] y) {
        y = If (c) <
            then_branch = t () => (float[4,8] a) {
                u = Exp(x)
                a = If (d) <
                    then_branch = t2 () => (float[4,8] b) { b = Add(u, x) },
                    else_branch = e2 () => (float[4,8] b2) { b2 = Mul(u, u) }>
            },
            else_branch = e () => (float[4,8] f) {
                n = Not(d)
                v = If (n) <
                    then_branch = t3 () => (float[4,8] h) { h = Neg(x) },
                    else_branch = e3 () => (float[4,8] h2) { h2 = Constant <value_float: float = 2.5> () }>
                f = Tanh(v)
            }>
    }""".replace(
        "h2 = Constant <value_float: float = 2.5> ()",
        "k = Constant <value_float: float = 2.5> () s = Shape(x) h2 = Expand(k, s)",
    ),
    "constants": """g (float[2,3] x, bool c) => (float[3] y, int64[2] i) {
        y, i = If (c) <
            then_branch = t () => (float[3] a, int64[2] j) {
                a = Constant <value_floats: floats = [1.0, 2.0, 3.0]> () j = Constant <value_ints: ints = [4, 5]> ()
            },
            else_branch = e () => (float[3] b, int64[2] k) {
                z = Constant <value_ints: ints = [0]> () b = ReduceSum <keepdims: int = 0> (x, z) k = Shape(x)
            }>
    }""",
    "one result twice": """g (float[5] x, bool c) => (float[5] y, float[5] z) {
        y, z = If (c) <
            then_branch = t () => (float[5] a, float[5] b) { a = Relu(x) b = Identity(a) },
            else_branch = e () => (float[5] d, float[5] f) { d = Neg(x) f = Identity(d) }>
    }""",
    "images": """g (float[1,6,9,9] x, float[6,6,3,3] w) => (float[1,6,9,9] y) {
        zero = Constant <value_float: float = 0.0> ()
        m = ReduceMax <keepdims: int = 0> (x)
        n = ReduceMin <keepdims: int = 0> (x)
        s = Add(m, n)
        c = Greater(s, zero)
        before = Conv <pads: ints = [1, 1, 1, 1]> (x, w)
        r = If (c) <
            then_branch = t () => (float[1,6,9,9] a) {
                k = Conv <pads: ints = [1, 1, 1, 1]> (before, w) a = Relu(k)
            },
            else_branch = e () => (float[1,6,9,9] b) {
                l = MaxPool <kernel_shape: ints = [3, 3], pads: ints = [1, 1, 1, 1]> (before) b = Sub(l, before)
            }>
        y = Conv <pads: ints = [1, 1, 1, 1]> (r, w)
    }""",
    "sequences": """g (float[4,3] x, bool c) => (float[4,3] y) {
        two = Constant <value_int: int = 2> ()
        s = If (c) <
            then_branch = t () => (seq(float[2,3]) a) { a = SplitToSequence <axis: int = 0> (x, two) },
            else_branch = e () => (seq(float[2,3]) b) {
                n = Neg(x) m = Exp(n) b = SplitToSequence <axis: int = 0> (m, two)
            }>
        one = Constant <value_int: int = 1> ()
        zero = Constant <value_int: int = 0> ()
        p = SequenceAt(s, one)
        q = SequenceAt(s, zero)
        y = Concat <axis: int = 0> (p, q)
    }""",
}


def content(text: str) -> bytes:
    made: bytes = onnx.parser.parse_model(HEAD + text).SerializeToString()
    return made


def feeds(graph: Graph, number: int) -> dict[str, Array]:
    """Random numbers; the bits of ``number`` are the conditions."""
    rng, bits = np.random.default_rng(number), iter(range(8))
    return {
        v.name: np.array(bool(number >> next(bits) & 1))
        if v.type.dtype == "bool"
        else rng.normal((number & 1) - 0.5, 1, v.type.dims).astype(np.float32)
        for v in graph.inputs
    }


def branches(graph: Graph) -> list[If]:
    return [each.op for each in graph if isinstance(each.op, If)]


def close(results: Mapping[str, Array], right: Mapping[str, Array]) -> None:
    for name, array in right.items():
        atol = 2e-6 * np.abs(array).max()
        np.testing.assert_allclose(results[name], array, rtol=2e-5, atol=atol, err_msg=name)


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i else pytest.mark.quick) for i, name in enumerate(MODELS)]
)
def test_models(name: str) -> None:
    """By onnxruntime, the references, and C: run at once, with threads, and call by call."""
    made = content(MODELS[name])
    graph = tenon.load(made)
    assert branches(graph)
    verify(graph)
    flat = unrolled(graph)
    verify(flat)
    assert not branches(flat)
    peer = session(made)
    for threads in (1, 3):
        bundle = tenon.compile(graph, threads=threads, profile=True, no_tuning=True, verify=threads == 1)
        assert any(isinstance(item, Branch) for item in bundle.program.items)
        with tenon.open(bundle, threads=threads) as engine:
            for number in range(4):
                given = feeds(graph, number)
                right = dict(zip((v.name for v in graph.outputs), peer.run(None, given), strict=True))
                close(evaluate(graph, given), right)
                close(evaluate(flat, given), right)
                close(engine.run(given), right)
                for array in engine.outputs.values():
                    array[...] = 0
                assert len(engine.timestamps()) == len(bundle.program.calls) + 1
                close(engine.outputs, right)


def test_one_branch_runs() -> None:
    """The other one takes no time: its calls are not made."""
    bundle = tenon.compile(content(MODELS["products"]), target="x86-64", threads=1)
    entry = bundle.source[bundle.source.rindex("int g(") :]
    chosen, other = entry.split("} else {")
    assert "neg" in chosen
    assert "matmul" in other


def test_branches_share_memory() -> None:
    """The tensors within one branch lie where those of the other one do."""
    chain = "a = Exp(x) b = MatMul(a, x) d = Exp(b) r = MatMul(d, x)"
    text = f"""g (float[64,64] x, bool c) => (float[64,64] y) {{
        y = If (c) <then_branch = t () => (float[64,64] r) {{ {chain} }},
                    else_branch = e () => (float[64,64] r) {{ {chain.replace("Exp", "Tanh")} }}>
    }}"""
    one = f"g (float[64,64] x) => (float[64,64] r) {{ {chain} }}"
    both, alone = (tenon.compile(content(each), target="x86-64", threads=1).program.memory for each in (text, one))
    assert both.activations == alone.activations > 0


def test_known_condition() -> None:
    """A condition that is known after loading picks a branch when compiling."""
    graph = tenon.load(content(MODELS["nested"]))
    for number in range(4):
        given = feeds(graph, number)
        right = evaluate(graph, given)
        fixed = tenon.compile(graph, values={"c": given["c"], "d": given["d"]}, target="x86-64")
        assert not any(isinstance(item, Branch) for item in fixed.program.items)
        with tenon.open(tenon.compile(graph, values={"c": given["c"]}, no_tuning=True)) as engine:
            close(engine.run({"x": given["x"], "d": given["d"]}), right)


def test_text_and_copies() -> None:
    graph = tenon.load(content(MODELS["nested"]))
    text = show(graph, "base64")
    again = parse(text, constructors())
    verify(again)
    assert same(graph, again)
    optimize(graph.copy())
    assert show(graph, "base64") == text, "the copy has bodies of its own"


@pytest.mark.parametrize("target", ["webgpu", "opencl"])
def test_hosts_of_gpus_choose_branches(target: str) -> None:
    """They read conditions between launches."""
    bundle = tenon.compile(content(MODELS["products"]), target=target)
    assert any(isinstance(item, Branch) for item in bundle.program.items)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_narrow_precisions_run_one_branch(precision: Literal["fp16", "bf16"]) -> None:
    weights = np.random.default_rng(1).normal(0, 1, (8, 8)).astype(np.float32)
    graph = tenon.load(content(MODELS["products"]), values={"w": weights})
    bundle = tenon.compile(graph, threads=1, precision=precision)
    assert any(isinstance(item, Branch) for item in bundle.program.items)
    assert len(bundle.weights) < len(tenon.compile(graph, threads=1).weights)
    with tenon.open(bundle) as engine:
        for number in range(4):
            given = feeds(graph, number)
            for key, array in evaluate(graph, given).items():
                np.testing.assert_allclose(engine.run(given)[key], array, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("(float[4,3] b) { b = MatMul(x, x) }", r"b \(MatMul\)"),
        (
            "(int64[4,3] b) { b = Cast <to: int = 7> (x) }",
            r"its branches give f32\[4,3\] and i64\[4,3\] \(fix --value c=...\)",
        ),
        ("(float[4] b) { z = Constant <value_ints: ints = [1]> () b = ReduceSum <keepdims: int = 0> (x, z) }", "give"),
    ],
)
def test_branches_that_cannot_be_imported(other: str, words: str) -> None:
    """None is taken in the place of the other."""
    text = f"""g (float[4,3] x, bool c) => (float[4,3] y) {{
        y = If (c) <then_branch = t () => (float[4,3] a) {{ a = Relu(x) }}, else_branch = e () => {other}>
    }}"""
    with pytest.raises(ModelError, match=words):
        tenon.load(content(text))


def test_bodies_that_do_not_fit() -> None:
    graph = tenon.load(content(MODELS["one result twice"]))
    graph.nodes[0].bodies[1].outputs.pop()
    with pytest.raises(InternalError, match="its branches give"):
        verify(graph)


SHAPES = """g (float[L,3] x, bool c) => (float[N,K] y, float[M] z) {
    axis = Constant <value_ints: ints = [1]> ()
    y = If (c) <
        then_branch = t () => (float[P,Q] a) { a = Relu(x) },
        else_branch = e () => (float[R,S] b) {
            i = NonZero(x) j = Transpose(i) k = Cast <to: int = 1> (j) b = Concat <axis: int = 1> (k, k) }>
    s = Softmax <axis: int = 1> (y)
    e = Softmax <axis: int = 0> (y)
    t = Add(s, e)
    z = ReduceSum <keepdims: int = 0> (t, axis)
}"""


def test_branches_of_different_shapes() -> None:
    """The result has the larger extents of both, and those of the branch that ran."""
    rng, runs = np.random.default_rng(3), list[tuple[dict[str, Array], dict[str, int]]]()
    for number in range(4):
        rows = (2, 5)[number // 2]
        x = rng.normal(0, 1, (rows, 3)) * (rng.random((rows, 3)) < 0.7)
        runs.append(({"x": x.astype(np.float32), "c": np.array(number % 2 == 0)}, {"L": rows}))
    graph = check(onnx.parser.parse_model(HEAD + SHAPES), {"L": tenon.Size("L", 1, 6)}, runs)
    assert branches(graph)
    assert [v.type.dims for v in graph.outputs[:2]] == [(18, 4), (18,)]


QUANTISED = """
net (float[1,3,8,8] x, int64 n, bool c, float[4,3,3,3] k, float[4,4,3,3] l) => (float[1,4,8,8] y) {
  a = Conv <pads = [1,1,1,1]> (x, k)
  s = Loop (n, , a) <body = b (int64 i, bool on, float[1,4,8,8] t) => (bool go, float[1,4,8,8] u) {
    go = Identity(on) q = Conv <pads = [1,1,1,1]> (t, l) u = Tanh(q)
  }>
  r = If (c) <then_branch = p () => (float[1,4,8,8] v) { v = Relu(s) },
              else_branch = e () => (float[1,4,8,8] w) { z = Conv <pads = [1,1,1,1]> (s, l) w = Sigmoid(z) }>
  y = Conv <pads = [1,1,1,1]> (r, l)
}"""


def test_what_runs_decide_stays_in_floats() -> None:
    """When the network around it is quantised."""
    rng = np.random.default_rng(2)
    weights = {"k": rng.normal(0, 0.3, (4, 3, 3, 3)), "l": rng.normal(0, 0.3, (4, 4, 3, 3))}
    graph = tenon.load(content(QUANTISED), values={name: a.astype(np.float32) for name, a in weights.items()})
    samples = [
        {"x": rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32), "n": np.array(i % 3), "c": np.array(i % 2 == 0)}
        for i in range(8)
    ]
    made = quantize(graph, samples).graph
    assert {"Scan", "If", "QuantizeLinear"} <= {node.op.name for node in made}
    with tenon.open(tenon.compile(made, threads=1, no_tuning=True)) as engine:
        for sample in samples[:4]:
            right = evaluate(graph, sample)["y"]
            np.testing.assert_allclose(engine.run(sample)["y"], right, atol=0.1 * np.abs(right).max())


def test_lifetimes_cover_branches() -> None:
    """The result of each branch lives until it is read behind both, and what only the last one reads until then."""
    text = """g (float[4,8] x, bool c) => (float[1,1] y) {
        u = Sigmoid(x)
        p = If (c) <
            then_branch = t () => (float[4,8] a) { v = Exp(x) w = ReduceSum(v) a = Add(x, w) },
            else_branch = e () => (float[4,8] d) { f = ReduceMax(u) d = Sub(x, f) }>
        y = ReduceSum(p)
    }"""
    program = tenon.compile(content(text), target="x86-64", threads=1).program
    calls = {call.layer: number for number, call in enumerate(program.calls)}
    lives = {each.layer: each for each in lifetimes(program)}
    assert lives["a"].last == lives["d"].last == len(calls) - 1
    assert lives["a"].offset == lives["d"].offset
    assert lives["u"].last == calls["f"]
