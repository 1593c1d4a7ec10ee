"""TensorFlow graphs: inputs, loops, functions, variables, and errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from real import ROOT
from tenon.errors import FormatError, InputError, ModelError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.tensorflow.loops import CONTROL
from tenon.formats.importers.tensorflow.ops import OPERATORS
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, I32
from tenon.network.ops.branch import If
from tenon.network.ops.scan import Scan
from tensorflow_models import Function, const, graph, node, placeholder, saved_model, strings, table

pytestmark = pytest.mark.quick(importer="tensorflow")


def run(loaded: Graph, *inputs: Any) -> list[Array]:
    feeds = {v.name: np.asarray(a, v.type.dtype.numpy) for v, a in zip(loaded.inputs, inputs, strict=True)}
    return list(evaluate(loaded, feeds).values())


def named(loaded: Graph, **inputs: Any) -> list[Array]:
    """The outputs for inputs by name, of which the graph may have fewer."""
    return run(loaded, *(inputs[v.name] for v in loaded.inputs))


def ops(loaded: Graph) -> list[str]:
    return [n.op.name for n in loaded]


def test_nodes_in_any_order_and_control_inputs() -> None:
    data = graph(node("y", "Add", "x", "c", "^wait"), const("c", [1, 2]), placeholder("x", -1, 2), node("wait", "NoOp"))
    loaded = importers.load(data)
    assert [str(v) for v in loaded.inputs] == ["%x: f32[1,2]"]
    np.testing.assert_array_equal(run(loaded, [[10, 20]])[0], [[11, 22]])


def test_unknown_batch_defaults_to_one() -> None:
    data = graph(placeholder("x", -1, 2), node("y", "Neg", "x"))
    assert importers.load(data).inputs[0].type.dims == (1, 2)
    assert importers.load(data, {"x": (3, 2)}).inputs[0].type.dims == (3, 2)


def test_other_dimensions_must_be_bound() -> None:
    data = graph(placeholder("x", -1, -1, 3), node("y", "Neg", "x"))
    with pytest.raises(ShapeError, match="--shape"):
        importers.load(data)
    assert importers.load(data, {"x_dim_1": 7}).outputs[0].type.dims == (1, 7, 3)


def test_queues_are_inputs() -> None:
    queue = node("queue", "FIFOQueueV2", component_types=[F32, I32], shapes=[(4, 3), ()])
    data = graph(
        queue, node("batch", "QueueDequeueManyV2", "queue", "n"), const("n", 8, "i32"), node("y", "Neg", "batch")
    )
    loaded = importers.load(data)
    assert str(loaded.inputs[0]) == "%batch: f32[1,4,3]"


def test_batch_normalisations() -> None:
    rng = np.random.default_rng(0)
    scale, offset, mean = (rng.uniform(-1, 1, 3).astype(np.float32) for _ in range(3))
    variance = rng.uniform(0.5, 1, 3).astype(np.float32)
    constants = [const(k, v) for k, v in {"s": scale, "o": offset, "m": mean, "v": variance}.items()]
    x = rng.uniform(-1, 1, (1, 2, 2, 3)).astype(np.float32)
    expected = (x - mean) / np.sqrt(variance + 0.01) * scale + offset
    for last in (
        node("y", "FusedBatchNormV3", "x", "s", "o", "m", "v", epsilon=0.01, data_format="NHWC", is_training=False),
        node(
            "y",
            "BatchNormWithGlobalNormalization",
            "x",
            "m",
            "v",
            "o",
            "s",
            variance_epsilon=0.01,
            scale_after_normalization=True,
        ),
    ):
        loaded = importers.load(graph(placeholder("x", 1, 2, 2, 3), *constants, last))
        np.testing.assert_allclose(run(loaded, x)[0], expected, atol=1e-5)


def test_fake_quantisation() -> None:
    last = node("y", "FakeQuantWithMinMaxVars", "x", "a", "b", num_bits=8, narrow_range=False)
    loaded = importers.load(graph(placeholder("x", 5), const("a", -1.0), const("b", 1.55), last))
    assert ops(loaded) == ["QuantizeLinear", "DequantizeLinear"]
    step = np.float32(2.55 / 255)
    np.testing.assert_allclose(loaded.nodes[0].input(1).array, step, rtol=1e-6)
    output = run(loaded, [-2, -1, 0.003, 0.007, 3])[0]
    np.testing.assert_allclose(output, [-1, -1, 0, 0.01, 1.55], atol=1e-6)


# -------------------------------------------------------------------------------------------------- control flow
def loop() -> list[bytes]:
    """i = 0, s = x; while i < n: s = s * 2 + xs[i], i += 1; written to an array as well."""
    enter = {"frame_name": "f", "is_constant": False}
    fixed = {"frame_name": "f", "is_constant": True}
    return [
        placeholder("x", 2),
        placeholder("xs", 3, 2),
        const("zero", 0, "i32"),
        const("one", 1, "i32"),
        const("two", [2.0, 2.0]),
        const("n", 3, "i32"),
        const("all", [0, 1, 2], "i32"),
        node("array", "TensorArrayV3", "n", dtype=F32),
        node("out", "TensorArrayV3", "n", dtype=F32),
        node("filled", "TensorArrayScatterV3", "array", "all", "xs", "array:1"),
        node("ei", "Enter", "zero", **enter),
        node("es", "Enter", "x", **enter),
        node("eo", "Enter", "out:1", **enter),
        node("en", "Enter", "n", **fixed),
        node("ea", "Enter", "array", **fixed),
        node("ef", "Enter", "filled", **fixed),
        node("eh", "Enter", "out", **fixed),
        node("et", "Enter", "two", **fixed),
        node("mi", "Merge", "ei", "ni"),
        node("ms", "Merge", "es", "ns"),
        node("mo", "Merge", "eo", "no"),
        node("less", "Less", "mi", "en"),
        node("go", "LoopCond", "less"),
        node("si", "Switch", "mi", "go"),
        node("ss", "Switch", "ms", "go"),
        node("so", "Switch", "mo", "go"),
        node("bi", "Identity", "si:1"),
        node("bs", "Identity", "ss:1"),
        node("read", "TensorArrayReadV3", "ea", "bi", "ef", dtype=F32),
        node("double", "Mul", "bs", "et"),
        node("sum", "Add", "double", "read"),
        node("write", "TensorArrayWriteV3", "eh", "bi", "sum", "so:1"),
        node("next", "Add", "bi", "step"),
        const("step", 1, "i32"),
        node("ni", "NextIteration", "next"),
        node("ns", "NextIteration", "sum"),
        node("no", "NextIteration", "write"),
        node("last", "Exit", "ss"),
        node("flow", "Exit", "so"),
        node("y", "TensorArrayGatherV3", "out", "all", "flow", dtype=F32),
    ]


@pytest.mark.parametrize("first", [0, 1, None])
def test_loops_carry_tensor_arrays(first: int | None) -> None:
    """As tensors, whose rows a loop writes: two steps become nodes, three a loop; the first number may be an input."""
    start = placeholder("zero", dtype="i32") if first is None else const("zero", first, "i32")
    outputs = ["last"] if first == 1 else ["last", "y"]  # of which nothing would write the first row
    loaded = importers.load(graph(*(start if n == const("zero", 0, "i32") else n for n in loop())), outputs=outputs)
    assert [n.op.counted for n in loaded if isinstance(n.op, Scan)] == {0: [False], 1: [], None: [True]}[first]
    xs = np.arange(6, dtype=np.float32).reshape(3, 2)
    for begin in range(4) if first is None else (first,):
        x, rows = np.array([1, 2], np.float32), np.zeros((3, 2), np.float32)
        for i in range(begin, 3):
            x = x * 2 + xs[i]
            rows[i] = x
        last, *everything = named(loaded, x=[1, 2], xs=xs, zero=begin)
        np.testing.assert_array_equal(last, x)
        np.testing.assert_array_equal(everything, [rows] * len(everything))


def test_lists_in_loops_of_functions() -> None:
    """A list that a loop fills becomes a stacked result, one that it reads slices."""
    condition = Function(
        "cond", ["i", "read", "made"], {"go": "c:z:0"}, const("n", 5, "i32"), node("c", "Less", "i", "n:output:0")
    )
    body = Function(
        "body",
        ["i", "read", "made"],
        {"j": "next:z:0", "same": "read", "more": "set:output_handle:0"},
        const("one", 1, "i32"),
        const("dims", [2], "i32"),
        node("next", "AddV2", "i", "one:output:0"),
        node("row", "TensorListGetItem", "read", "i", "dims:output:0", element_dtype=F32),
        node("square", "Mul", "row:item:0", "row:item:0"),
        node("set", "TensorListSetItem", "made", "i", "square:z:0", element_dtype=F32),
    )
    data = graph(
        placeholder("x", 5, 2),
        const("zero", 0, "i32"),
        const("five", 5, "i32"),
        const("dims", [2], "i32"),
        node("read", "TensorListFromTensor", "x", "dims", element_dtype=F32),
        node("made", "TensorListReserve", "dims", "five", element_dtype=F32),
        node("w", "StatelessWhile", "zero", "read", "made", cond=condition, body=body),
        node("y", "TensorListStack", "w:2", "dims", element_dtype=F32),
        functions=[condition, body],
    )
    loaded = importers.load(data, outputs=["y"])
    assert [n.op for n in loaded if isinstance(n.op, Scan)] == [Scan(5, 0, 1)]
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(run(loaded, x)[0], x * x)


def test_an_endless_loop_is_refused() -> None:
    nodes = [const("step", 0, "i32") if n == const("step", 1, "i32") else n for n in loop()]
    with pytest.raises(UnsupportedError, match="more than 1024 steps"):
        importers.load(graph(*nodes), outputs=["last"])


def test_functions_and_their_loops() -> None:
    """while i < 3: s = s + i, of TensorFlow 2."""
    condition = Function(
        "cond", ["i", "s"], {"go": "c:z:0"}, const("n", 3, "i32"), node("c", "Less", "i", "n:output:0")
    )
    body = Function(
        "body",
        ["i", "s"],
        {"j": "j_:z:0", "t": "t_:z:0"},
        const("one", 1, "i32"),
        node("j_", "AddV2", "i", "one:output:0"),
        node("f", "Cast", "i", DstT=F32),
        node("t_", "AddV2", "s", "f:y:0"),
    )
    outer = Function(
        "outer",
        ["x"],
        {"y": "w:output:1"},
        const("zero", 0, "i32"),
        node("w", "StatelessWhile", "zero:output:0", "x", cond=condition, body=body),
    )
    data = graph(placeholder("x", 2), node("y", "PartitionedCall", "x", f=outer), functions=[condition, body, outer])
    np.testing.assert_array_equal(run(importers.load(data), [1, 2])[0], [4, 5])


def test_a_function_that_calls_itself_is_refused() -> None:
    again = Function("again", ["x"], {"y": "c:output:0"})
    again.nodes = (node("c", "PartitionedCall", "x", f=again),)
    with pytest.raises(ModelError, match="nested"):
        importers.load(graph(placeholder("x", 2), node("y", "PartitionedCall", "x", f=again), functions=[again]))


def test_constant_condition_selects_its_branch() -> None:
    data = graph(
        placeholder("x", 2),
        const("training", False, "bool"),
        node("s", "Switch", "x", "training"),
        node("drop", "Mine", "s:1"),
        node("keep", "Neg", "s"),
        node("y", "Merge", "drop", "keep"),
    )
    np.testing.assert_array_equal(run(importers.load(data, outputs=["y"]), [1, 2])[0], [-1, -2])


def conditional(predicate: bytes, *more: bytes, shape: Sequence[int] = (0,)) -> bytes:
    """tf.cond of TensorFlow 1: x + 1 if p, else zeros, by default none, with a control input from its pivot."""
    return graph(
        placeholder("x", 2),
        predicate,
        node("s", "Switch", "p", "p"),
        node("t", "Identity", "s:1"),
        node("f", "Identity", "s"),
        const("one", 1.0, control="^t"),
        node("xs", "Switch", "x", "p"),
        node("more", "Add", "xs:1", "one"),
        const("none", np.zeros(shape, np.float32), control="^f"),
        node("y", "Merge", "none", "more"),
        *more,
    )


def test_constant_in_a_branch_not_taken_is_not_the_result() -> None:
    graph = importers.load(conditional(const("p", True, "bool")), outputs=["y", "y:1"])
    answer, which = run(graph, [1, 2])
    np.testing.assert_array_equal(answer, [2, 3])
    assert which == 1
    with pytest.raises(ModelError, match="'y' is empty, whatever the inputs"):
        importers.load(conditional(const("p", False, "bool")), outputs=["y"])


def test_control_inputs_are_transitive() -> None:
    """A constant that replaced a folded node of a branch has control inputs from that node's inputs."""
    last = (const("late", [5.0, 6.0], control="^more"), node("z", "Merge", "late", "none"))
    graph = importers.load(conditional(const("p", True, "bool"), *last), outputs=["z", "more"])
    np.testing.assert_array_equal(run(graph, [1, 2])[0], [5, 6])


def test_unsupported_operator_with_several_outputs_in_a_branch_not_taken() -> None:
    last = (
        const("axis", 0, "i32"),
        node("many", "Split", "axis", "xs", num_split=12),
        node("z", "Merge", "many:11", "more"),
    )
    graph = importers.load(conditional(const("p", True, "bool"), *last), outputs=["z"])
    np.testing.assert_array_equal(run(graph, [1, 2])[0], [2, 3])


def test_run_time_condition_is_one_problem() -> None:
    last = (node("ys", "Switch", "x", "p"), node("neg", "Neg", "ys"), node("z", "Merge", "neg", "more"))
    data = conditional(placeholder("p", dtype="bool"), *last, shape=())
    for outputs in (["y"], ["y", "z"]):
        with pytest.raises(
            UnsupportedError, match=r"y \(Merge\): .*run time, and .*f32\[2\] and f32\[\] \(fix --value p="
        ) as error:
            importers.load(data, outputs=outputs)
        assert len(error.value.problems) == 1
    for holds in (True, False):
        (z,) = named(importers.load(data, outputs=["z"]), x=[1, 2], p=holds)
        np.testing.assert_array_equal(z, [2, 3] if holds else [-1, -2])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_branches_of_different_extents(count: int) -> None:
    loaded = importers.load(conditional(placeholder("p", dtype="bool"), shape=(count,)), outputs=["y"])
    for holds in (True, False):
        buffer, extent = named(loaded, x=[1, 2], p=holds)
        np.testing.assert_array_equal(buffer[: int(extent)], [2, 3] if holds else [0] * count)


def nested(outer: bytes, inner: bytes) -> bytes:
    """p ? (q ? tanh(x) + 2 : -x) : loop that doubles x three times, with which of the outer branches was taken."""
    enter = {"frame_name": "f", "is_constant": False}
    return graph(
        placeholder("x", 2),
        outer,
        inner,
        node("pred", "Identity", "p"),
        node("pivot", "Switch", "pred", "p"),
        node("on", "Identity", "pivot:1"),
        node("off", "Identity", "pivot"),
        node("xs", "Switch", "x", "pred"),
        node("qs", "Switch", "q", "pred"),
        node("pred2", "Identity", "qs:1"),
        node("pivot2", "Switch", "pred2", "pred2"),
        node("on2", "Identity", "pivot2:1"),
        node("xs2", "Switch", "xs:1", "pred2"),
        node("th", "Tanh", "xs2:1"),
        const("two", 2.0, control="^on2"),
        node("sum", "Add", "th", "two"),
        node("neg", "Neg", "xs2"),
        node("in", "Merge", "neg", "sum"),
        const("zero", 0, "i32", control="^off"),
        const("one", 1, "i32", control="^off"),
        const("three", 3, "i32", control="^off"),
        node("ei", "Enter", "zero", **enter),
        node("ex", "Enter", "xs", **enter),
        node("en", "Enter", "three", frame_name="f", is_constant=True),
        node("eo", "Enter", "one", frame_name="f", is_constant=True),
        node("mi", "Merge", "ei", "ni"),
        node("mx", "Merge", "ex", "nx"),
        node("less", "Less", "mi", "en"),
        node("go", "LoopCond", "less"),
        node("si", "Switch", "mi", "go"),
        node("sx", "Switch", "mx", "go"),
        node("next", "Add", "si:1", "eo"),
        node("double", "Add", "sx:1", "sx:1"),
        node("ni", "NextIteration", "next"),
        node("nx", "NextIteration", "double"),
        node("out", "Exit", "sx"),
        node("late", "Identity", "out", "^out"),
        node("y", "Merge", "late", "in"),
    )


@pytest.mark.parametrize(("outer", "inner"), [(None, None), (True, None), (None, False), (False, True)])
def test_conditionals_run_one_branch(outer: bool | None, inner: bool | None) -> None:
    def flag(name: str, known: bool | None) -> bytes:
        return placeholder(name, dtype="bool") if known is None else const(name, known, "bool")

    loaded = importers.load(nested(flag("p", outer), flag("q", inner)), outputs=["y", "y:1"])
    assert any(isinstance(n.op, If) for n in loaded) is (outer is not False)
    x = np.array([0.5, -1], np.float32)
    for p, q in itertools.product([True, False], repeat=2):
        if (outer, inner) in {(not p, inner), (outer, not q)}:
            continue
        right = (np.tanh(x) + 2 if q else -x) if p else 8 * x
        answer, which = named(loaded, x=x, p=p, q=q)
        np.testing.assert_allclose(answer, right, rtol=1e-6)
        assert which == p


def test_merge_without_switch_is_rejected() -> None:
    data = graph(placeholder("x", 2), const("c", [1, 2]), node("y", "Merge", "x", "c"))
    with pytest.raises(UnsupportedError, match="joins 'x' and 'c'"):
        importers.load(data, outputs=["y"])


def cascade(steps: bytes, second: str = "Neg") -> bytes:
    """Two loops and a condition of TensorFlow 1 in sequence, as in cascaded detectors (MTCNN)."""
    enter = {"frame_name": "first/while", "is_constant": False}
    again = {"frame_name": "second/while", "is_constant": False}
    return graph(
        placeholder("x", 2),
        steps,
        const("zero", 0, "i32"),
        const("one", 1, "i32"),
        const("three", 3, "i32"),
        node("ei", "Enter", "zero", **enter),
        node("ex", "Enter", "x", **enter),
        node("en", "Enter", "n", **{**enter, "is_constant": True}),
        node("mi", "Merge", "ei", "ni"),
        node("mx", "Merge", "ex", "nx"),
        node("go", "LoopCond", "less"),
        node("less", "Less", "mi", "en"),
        node("si", "Switch", "mi", "go"),
        node("sx", "Switch", "mx", "go"),
        node("bi", "Identity", "si:1"),
        const("step", 1, "i32", control="^bi"),
        node("next", "Add", "bi", "step"),
        node("twice", "Add", "sx:1", "sx:1"),
        node("ni", "NextIteration", "next"),
        node("nx", "NextIteration", "twice"),
        node("xi", "Exit", "si"),
        node("xx", "Exit", "sx"),
        node("fi", "Enter", "zero", **again),
        node("fx", "Enter", "xx", **again),
        node("fn", "Enter", "three", **{**again, "is_constant": True}),
        node("oi", "Merge", "fi", "qi"),
        node("ox", "Merge", "fx", "qx"),
        node("on", "LoopCond", "fewer"),
        node("fewer", "Less", "oi", "fn"),
        node("ri", "Switch", "oi", "on"),
        node("rx", "Switch", "ox", "on"),
        const("inc", 1, "i32"),
        node("after", "Add", "ri:1", "inc"),
        node("other", second, "rx:1"),
        node("qi", "NextIteration", "after"),
        node("qx", "NextIteration", "other"),
        node("found", "Exit", "rx"),
        node("any", "Greater", "xi", "zero"),
        node("s", "Switch", "any", "any"),
        node("f", "Identity", "s"),
        node("fs", "Switch", "found", "any"),
        node("neg", "Neg", "fs:1"),
        const("none", np.zeros((), np.float32), control="^f"),
        node("y", "Merge", "none", "neg"),
    )


def test_data_dependent_switch_is_rejected_by_name() -> None:
    """Whatever it switches; the loops before it end where they do at run time."""
    data = cascade(placeholder("n", dtype="i32"))
    with pytest.raises(UnsupportedError, match=r"branches give f32\[2\] and f32\[\]") as error:
        importers.load(data, outputs=["y"])
    assert len(error.value.problems) == 1
    for outputs in (["xx"], ["found"]):
        loaded = importers.load(data, outputs=outputs)
        assert any(isinstance(n.op, Scan) and n.op.counted for n in loaded)
        for n in (0, 1, 5):
            sign = -1 if outputs == ["found"] else 1
            np.testing.assert_array_equal(run(loaded, [1, 2], n)[0], np.array([1, 2], np.float32) * 2**n * sign)


def counting(limit: bytes, reference: str) -> bytes:
    """while i < limit: s = s + i, of TensorFlow 2; then s + s if the flag is set, else s * s."""
    condition = Function("cond", ["i", "s", "n"], {"go": "c:z:0"}, node("c", "Less", "i", "n"))
    body = Function(
        "body",
        ["i", "s", "n"],
        {"j": "j_:z:0", "t": "t_:z:0", "m": "n"},
        const("one", 1, "i32"),
        node("j_", "AddV2", "i", "one:output:0"),
        node("f", "Cast", "i", DstT=F32),
        node("t_", "AddV2", "s", "f:y:0"),
    )
    twice = Function("twice", ["a"], {"b": "b_:z:0"}, node("b_", "AddV2", "a", "a"))
    square = Function("square", ["a"], {"b": "b_:z:0"}, node("b_", "Mul", "a", "a"))
    return graph(
        placeholder("x", 2),
        limit,
        placeholder("flag", dtype="bool"),
        const("zero", 0, "i32"),
        node("w", "StatelessWhile", "zero", "x", reference, cond=condition, body=body),
        node("y", "StatelessIf", "flag", "w:1", then_branch=twice, else_branch=square),
        functions=[condition, body, twice, square],
    )


@pytest.mark.parametrize("known", [False, True])
def test_functions_under_conditions_of_the_run(known: bool) -> None:
    """A loop of many steps, or whose end is computed, and a branch, by their definition and as C."""
    limit = const("n", 40, "i32") if known else placeholder("n", dtype="i32")
    loaded = importers.load(counting(limit, "n"))
    assert ops(loaded)[-2:] == ["Scan", "If"] or ops(loaded)[-1] == "If"
    assert [n.op.counted for n in loaded if isinstance(n.op, Scan)] == [not known]
    with tenon.open(tenon.compile(loaded, no_tuning=True)) as net:
        for steps, flag in ((40, True), (40, False)) if known else ((0, True), (3, False), (50, True)):
            given = {"x": np.array([1, 2], np.float32), "flag": np.array(flag)}
            given |= {} if known else {"n": np.array(steps, np.int32)}
            sums = np.array([1, 2], np.float32) + sum(range(steps))
            for results in (evaluate(loaded, given), net.run(given)):
                np.testing.assert_array_equal(results["y"], sums + sums if flag else sums * sums)


def test_cascade_of_constant_length() -> None:
    graph = importers.load(cascade(const("n", 2, "i32")), outputs=["y"])
    np.testing.assert_array_equal(run(graph, [1, 2])[0], [4, 8])  # doubled twice, negated three times and once


def test_a_problem_in_a_loop_is_reported_once() -> None:
    with pytest.raises(UnsupportedError, match="other \\(Mine\\): this operator is not supported") as error:
        importers.load(cascade(const("n", 2, "i32"), "Mine"), outputs=["y"])
    assert len(error.value.problems) == 1


def test_loop_in_a_branch_not_taken_is_not_unrolled() -> None:
    enter = {"frame_name": "f", "is_constant": False}
    last = (
        node("ex", "Enter", "xs", **enter),
        node("mx", "Merge", "ex", "nx"),
        node("any", "Any", "mx", "axis"),
        const("axis", 0, "i32"),
        node("go", "LoopCond", "any"),
        node("sx", "Switch", "mx", "go"),
        node("nx", "NextIteration", "sx:1"),
        node("out", "Exit", "sx"),
        node("z", "Merge", "out", "more"),
    )
    graph = importers.load(conditional(const("p", True, "bool"), *last), outputs=["z"])
    np.testing.assert_array_equal(run(graph, [1, 2])[0], [2, 3])


# -------------------------------------------------------------------------------------------------- SavedModel
def variable_graph() -> bytes:
    return graph(
        placeholder("x", -1, 2),
        node("w", "VarHandleOp", shared_name="w"),
        node("r", "ReadVariableOp", "w"),
        node("m", "MatMul", "x", "r"),
        node("b", "VariableV2"),
        node("y", "BiasAdd", "m", "b"),
    )


def test_saved_model_with_variables(tmp_path: Path) -> None:
    w, b = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([10, 20, 30], np.float32)
    folder = saved_model(tmp_path / "net", variable_graph(), {"result": "y"}, {"w": w, "b": b, "b/unused": b})
    for source in (folder, folder / "saved_model.pb"):
        loaded = importers.load(source)
        np.testing.assert_array_equal(run(loaded, [[1, 1]])[0], [[15, 27, 39]])


def test_variables_with_equal_names_in_the_program(tmp_path: Path) -> None:
    """Variables are identified by the function that restores them."""
    restore = Function(
        "restore",
        ["file", "first", "second"],
        {},
        strings("names", b"one", b"two"),
        node("data", "RestoreV2", "file", "names:output:0"),
        node("i0", "Identity", "data:tensors:0"),
        node("i1", "Identity", "data:tensors:1"),
        node("a0", "AssignVariableOp", "first", "i0:output:0"),
        node("a1", "AssignVariableOp", "second", "i1:output:0"),
    )
    data = graph(
        placeholder("x", 2),
        node("v", "VarHandleOp", shared_name="v"),
        node("v_1", "VarHandleOp", shared_name="v_1"),
        node("r", "ReadVariableOp", "v"),
        node("s", "ReadVariableOp", "v_1"),
        node("m", "Mul", "x", "r"),
        node("y", "AddV2", "m", "s"),
        placeholder("file", 1),
        node("restoring", "StatefulPartitionedCall", "file", "v_1", "v", f=restore),
        functions=[restore],
    )
    values = {"one": np.array([1, 2], np.float32), "two": np.array([10, 20], np.float32)}
    folder = saved_model(tmp_path / "net", data, {"result": "y"}, values)
    np.testing.assert_array_equal(run(importers.load(folder), [3, 4])[0], [31, 82])


def test_saved_model_without_its_variables(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "net", variable_graph(), {"result": "y"}, {})
    with pytest.raises(UnsupportedError, match="has no value") as error:
        importers.load(folder)
    assert len(error.value.problems) == 2
    (folder / "variables/variables.index").write_bytes(table({"w": b"\x08\x01"})[:-1])
    with pytest.raises(FormatError, match=r"variables\.index"):
        importers.load(folder)


# ---------------------------------------------------------------------------------------------------- refusals
def test_all_unsupported_operators_are_reported_together() -> None:
    data = graph(placeholder("x", 2), node("a", "Mine", "x"), node("b", "Neg", "a"), node("c", "Yours", "b"))
    with pytest.raises(UnsupportedError) as error:
        importers.load(data)
    assert [p.where for p in error.value.problems] == ["a (Mine)", "c (Yours)"]


def test_cutting() -> None:
    data = graph(placeholder("x", 2), node("a", "Mine", "x"), node("b", "Neg", "a"), node("c", "Abs", "b"))
    loaded = importers.load(data, {"a": (3,)}, inputs=["a:0"], outputs=["b:0"])
    assert ([str(v) for v in loaded.inputs], ops(loaded)) == (["%a: f32[3]"], ["Neg"])
    with pytest.raises(InputError, match="'nothing'"):
        importers.load(data, outputs=["nothing"])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (graph(node("y", "Neg", "x")), "'x' is read and does not exist"),
        (graph(node("a", "Neg", "b"), node("b", "Neg", "a"), node("y", "Abs", "a")), "needs itself"),
    ],
    ids=["missing node", "circle"],
)
def test_damaged_graphs(data: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match):
        importers.load(data)


def test_every_operator_is_documented() -> None:
    words = set((ROOT / "docs/reference/formats/tensorflow.md").read_text().replace(",", " ").split())
    assert {*OPERATORS, *CONTROL} <= words
