"""Loops whose end is known or decided at run time, from ONNX's Loop and Scan to C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import tenon
from command_line import run_main
from exact_onnxruntime import session
from sized_models import check
from tenon.cli import main
from tenon.errors import InputError, ModelError
from tenon.machine.plan.program import Repeat
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.verify import verify
from tenon.network.ops.scan import Scan

HEAD = '<ir_version: 8, opset_import: ["": 21]>'


def loop(body: str, *, trips: str, holds: str, states: str = "s", outputs: str = "y") -> str:
    return f"{outputs} = Loop ({trips}, {holds}, {states}) <body = b {body}>"


CONSTANTS = "yes = Constant <value = bool {1}> () zero = Constant <value = float {0.0}> ()"
NUMBERS = "f = Cast <to: int = 1> (i) "
MODELS = {
    # a trip count known when compiling, too large to be unrolled, with the number of the iteration
    "known": (
        "(float[3,5] s) => (float[3,5] y, float[40,3,5] z)",
        "n = Constant <value = int64 {40}> ()"
        + loop(
            "(int64 i, bool c, float[3,5] t) => (bool d, float[3,5] u, float[3,5] v)"
            "{ d = Identity(c)" + NUMBERS + "k = Constant <value = float {0.01}> () g = Mul(f, k)"
            "w = Add(t, g) u = Tanh(w) v = Mul(u, u) }",
            trips="n",
            holds="yes",
            outputs="y, z",
        ),
    ),
    # a trip count that is an input
    "trips": (
        "(int64 n, float[5] s) => (float[5] y)",
        loop(
            "(int64 i, bool c, float[5] t) => (bool d, float[5] u) { d = Identity(c) u = Add(t, t) }",
            trips="n",
            holds="yes",
        ),
    ),
    # a trip count of rank 1, and a condition that is computed before and in the loop
    "both": (
        "(int64[1] n, float[5] s) => (float[5] y, float m)",
        "top = ReduceMax <keepdims: int = 0> (s) ten = Constant <value = float {10.0}> () start = Less(top, ten)"
        + loop(
            "(int64 i, bool c, float[5] t, float h) => (bool d, float[5] u, float g)"
            "{ one = Constant <value = float {1.5}> () u = Add(t, one) g = ReduceMax <keepdims: int = 0> (u)"
            " d = Less(g, ten) }",
            trips="n",
            holds="start",
            states="s, top",
            outputs="y, m",
        ),
    ),
    # only a condition ends it
    "while": (
        "(float[4] s) => (float[4] y)",
        loop(
            "(int64 i, bool c, float[4] t) => (bool d, float[4] u)"
            "{ k = Constant <value = float {0.9}> () u = Mul(t, k) a = Abs(u) m = ReduceMax <keepdims: int = 0> (a)"
            " e = Constant <value = float {0.05}> () d = Greater(m, e) }",
            trips='""',
            holds="yes",
        ),
    ),
    # results of each iteration, of which there are at most as many as a constant says
    "stacked": (
        "(float[4] s) => (float[4] y, float[k,4] z)",
        "n = Constant <value = int64 {50}> ()"
        + loop(
            "(int64 i, bool c, float[4] t) => (bool d, float[4] u, float[4] v)"
            "{ k = Constant <value = float {0.9}> () u = Mul(t, k) a = Abs(u) m = ReduceMax <keepdims: int = 0> (a)"
            " e = Constant <value = float {0.05}> () d = Greater(m, e) v = Exp(u) }",
            trips="n",
            holds="yes",
            outputs="y, z",
        ),
    ),
    # a loop and a branch in a loop
    "nested": (
        "(int64 n, float[6] s, float[6] x) => (float[6] y)",
        "three = Constant <value = int64 {3}> ()"
        + loop(
            "(int64 i, bool c, float[6] t) => (bool d, float[6] u) {"
            " d = Identity(c) p = Add(i, three)"
            " q = Loop (p, c, t) <body = b2 (int64 j, bool c2, float[6] t2) => (bool d2, float[6] u2)"
            " { d2 = Identity(c2) w2 = Mul(t2, x) u2 = Tanh(w2) }>"
            " m = ReduceSum <keepdims: int = 0> (q) b = Greater(m, zero)"
            " u = If (b) <then_branch = th () => (float[6] a) { a = Sub(q, x) },"
            " else_branch = el () => (float[6] e) { h = Cast <to: int = 1> (i) e = Add(q, h) }> }",
            trips="n",
            holds="yes",
        ),
    ),
    "scan": (
        "(float[3] s, float[3,40] x) => (float[3] y, float[3,40] z)",
        "y, z = Scan <num_scan_inputs: int = 1, scan_input_axes: ints = [1], scan_output_axes: ints = [-1],"
        " scan_input_directions: ints = [1], body = b (float[3] t, float[3] r) => (float[3] u, float[3] v)"
        " { p = Add(t, r) u = Tanh(p) v = Mul(u, r) }> (s, x)",
    ),
    "scan of two": (
        "(float[3] s, float[40,3] x, float[40,3] w) => (float[3] y, float[40,3] z)",
        "y, z = Scan <num_scan_inputs: int = 2, scan_input_directions: ints = [0, 1],"
        " body = b (float[3] t, float[3] r, float[3] o) => (float[3] u, float[3] v)"
        " { p = Sub(t, r) q = Mul(p, o) u = Tanh(q) v = Identity(u) }> (s, x, w)",
    ),
}
GROWING = (
    "(int64 i, bool c, float[k,3] t) => (bool d, float[l,3] u)"
    "{ d = Identity(c) h = Mul(s, s) u = Concat <axis: int = 0> (t, h) }"
)
UNROLLED = {
    # the state grows, few times
    "growing": (
        "(float[1,3] s) => (float[21,3] y)",
        "n = Constant <value = int64 {20}> ()" + loop(GROWING, trips="n", holds="yes"),
    ),
    "two": (
        "(float[3] s) => (float[3] y)",
        "n = Constant <value = int64 {2}> ()"
        + loop(
            "(int64 i, bool c, float[3] t) => (bool d, float[3] u) { d = Identity(c) u = Exp(t) }",
            trips="n",
            holds="yes",
        ),
    ),
}


def content(ports: str, nodes: str) -> bytes:
    made: bytes = onnx.parser.parse_model(f"{HEAD} g {ports} {{ {CONSTANTS} {nodes} }}").SerializeToString()
    return made


def feeds(graph: Graph, number: int) -> dict[str, Array]:
    rng = np.random.default_rng(number)
    return {
        v.name: np.full(v.type.dims, number - 1)
        if v.type.dtype == "i64"
        else rng.normal(0, 0.7, v.type.dims).astype(np.float32)
        for v in graph.inputs
    }


def loops(graph: Graph) -> list[Scan]:
    return [each.op for each in graph if isinstance(each.op, Scan)]


def close(results: dict[str, Array], right: list[Array], graph: Graph) -> None:
    for name, array in zip((v.name for v in graph.outputs), right, strict=False):
        got = results[name]
        if name in graph.extents:
            ((axis, count),) = graph.extents[name]
            assert results[count] == array.shape[axis]
            assert not got[len(array) :].any()
            got = got[: len(array)]
        np.testing.assert_allclose(got, array, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    """By onnxruntime, the references, and C: run at once, with threads, and call by call."""
    made = content(*MODELS[name])
    graph = tenon.load(made)
    assert loops(graph)
    verify(graph)
    peer = session(made)
    for threads in (1, 3):
        bundle = tenon.compile(graph, threads=threads, profile=True, no_tuning=True, verify=threads == 1)
        assert any(isinstance(item, Repeat) for item in bundle.program.items)
        with tenon.open(bundle, threads=threads) as engine:
            for number in range(5):
                given = feeds(graph, number)
                right = peer.run(None, given)
                close(evaluate(graph, given), right, graph)
                close(engine.run(given), right, graph)
                for array in engine.outputs.values():
                    array[...] = 0
                assert len(engine.timestamps()) == len(bundle.program.calls) + 1
                close({k: v.copy() for k, v in engine.outputs.items()}, right, graph)


@pytest.mark.parametrize("name", UNROLLED)
def test_bodies_that_become_nodes(name: str) -> None:
    made = content(*UNROLLED[name])
    graph = tenon.load(made)
    assert not loops(graph)
    given = feeds(graph, 1)
    close(evaluate(graph, given), session(made).run(None, given), graph)


def test_short_loops_on_microcontrollers() -> None:
    """The code does not grow with the number of iterations."""
    calls = []
    for trips in (3, 32):
        ports, nodes = MODELS["known"]
        made = content(ports.replace("40", str(trips)), nodes.replace("40", str(trips)))
        calls.append(len(tenon.compile(made, target="cortex-m4", threads=1).program.calls))
    assert calls[0] == calls[1]


def run_of(sizes: dict[str, int], **feeds: Array | int) -> tuple[dict[str, Array], dict[str, int]]:
    return {name: np.asarray(value) for name, value in feeds.items()}, sizes


def rows(count: int) -> Array:
    return np.random.default_rng(count).normal(0, 1, (count, 3)).astype(np.float32)


AXIS = "a = Constant <value_ints: ints = [0]> ()"
CHANGING: dict[str, tuple[str, str, dict[str, tenon.Size], dict[str, int], list[Any]]] = {
    # rows that are appended, as often as a run says, to a state of an extent that a run says
    "appended": (
        "(float[L,3] s, int64 n) => (float[k,3] y, float[m,3] z)",
        AXIS
        + loop(
            "(int64 i, bool c, float[k,3] t) => (bool d, float[l,3] u, float[3] v)"
            "{ d = Identity(c) h = ReduceMean <keepdims: int = 1> (t, a) u = Concat <axis: int = 0> (t, h)"
            " v = ReduceMax <keepdims: int = 0> (u, a) }",
            trips="n",
            holds="yes",
            outputs="y, z",
        ),
        {"L": tenon.Size("L", 1, 4)},
        {"n": 6},
        [run_of({"L": rank}, s=rows(rank), n=n) for rank, n in ((1, 0), (4, 6), (2, 3))],
    ),
    # as often as a constant says: the extent of the result is known
    "known": (
        "(float[1,3] s) => (float[41,3] y)",
        "n = Constant <value = int64 {40}> ()" + loop(GROWING, trips="n", holds="yes"),
        {},
        {},
        [run_of({}, s=rows(1))],
    ),
    # the last four rows, without end but for a condition
    "window": (
        "(float[2,3] s, float e) => (float[k,3] y)",
        AXIS
        + "ends = Constant <value_ints: ints = [-4, 1000]> () one = Constant <value_ints: ints = [1]> ()"
        + " start, end = Split <num_outputs: int = 2> (ends)"
        + loop(
            "(int64 i, bool c, float[k,3] t) => (bool d, float[l,3] u) {"
            " h = ReduceMean <keepdims: int = 1> (t, a) q = Concat <axis: int = 0> (t, h)"
            " u = Slice(q, start, end, a) f = Cast <to: int = 1> (i) d = Less(f, e) }",
            trips='""',
            holds="yes",
        ),
        {},
        {},
        [run_of({}, s=rows(2), e=np.array(e, np.float32)) for e in (0, 1, 5)],
    ),
    # a branch of the body decides whether it grows; how far, the user says
    "branch": (
        "(float[L,3] s, int64 n, float e) => (float[k,3] y, float[m,3] z)",
        AXIS
        + loop(
            "(int64 i, bool c, float[k,3] t, float[m,3] o) => (bool d, float[l,3] u, float[p,3] r) {"
            " d = Identity(c) m = ReduceMean <keepdims: int = 1> (t, a) f = Cast <to: int = 1> (i) g = Less(f, e)"
            " u = If (g) <then_branch = th () => (float[q,3] v) { v = Concat <axis: int = 0> (t, m) },"
            " else_branch = el () => (float[w,3] x) { x = Neg(t) }> r = Softmax <axis: int = 0> (o) }",
            trips="n",
            holds="yes",
            states="s, s",
            outputs="y, z",
        ),
        {"L": tenon.Size("L", 1, 4)},
        {"s": 9},
        [run_of({"L": 2}, s=rows(2), n=n, e=np.array(e, np.float32)) for n, e in ((0, 1), (3, 1), (9, 7))],
    ),
    # of the input, the rows up to the number of the iteration, which is less than the extent
    "prefix": (
        "(float[L,3] x, float[3] s) => (float[3] y)",
        AXIS
        + "shape = Shape(x) first = Constant <value_int: int = 0> () n = Gather(shape, first)"
        + loop(
            "(int64 i, bool c, float[3] t) => (bool d, float[3] u) {"
            " d = Identity(c) o = Constant <value_ints: ints = [1]> () e = Add(i, o) w = Slice(x, a, e, a)"
            " m = ReduceMean <keepdims: int = 0> (w, a) u = Add(t, m) }",
            trips="n",
            holds="yes",
        ),
        {"L": tenon.Size("L", 1, 8)},
        {},
        [run_of({"L": n}, x=rows(n), s=rows(1)[0]) for n in (1, 3, 8)],
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_extents_that_change(name: str) -> None:
    """States and what bodies read have extents that a run decides, or that iterations change."""
    ports, nodes, sizes, most, runs = CHANGING[name]
    model = onnx.ModelProto.FromString(content(ports, nodes))
    assert loops(check(model, sizes, runs, max=most))


def test_a_state_that_becomes_too_large_ends_the_run() -> None:
    ports, nodes, sizes, *_ = CHANGING["branch"]
    graph = tenon.load(content(ports, nodes), shapes=sizes, max={"s": 4})
    with tenon.open(tenon.compile(graph, no_tuning=True)) as engine:
        engine.run({"s": rows(2), "n": np.array(9), "e": np.float32(2)})
        with pytest.raises(InputError, match="size"):
            engine.run({"s": rows(2), "n": np.array(9), "e": np.float32(3)})


@pytest.mark.parametrize("trips", [2, 7])
def test_values_inside_of_bodies_are_bounded_by_their_names(trips: int) -> None:
    """Whether the body is in the graph once or several times."""
    nodes = f"n = Constant <value = int64 {{{trips}}}> () {AXIS}" + loop(
        "(int64 i, bool c, float[3] t) => (bool d, float[3] u) {"
        " d = Identity(c) r = ReduceSum <keepdims: int = 0> (t, a) p = Abs(r)"
        " count = Cast <to: int = 7> (p) one = Constant <value_int: int = 1> ()"
        " first = Constant <value_int: int = 0> ()"
        " g = Range(first, count, one) h = Cast <to: int = 1> (g) w = Sin(h)"
        " m = ReduceSum <keepdims: int = 0> (w, a) u = Add(t, m) }",
        trips="n",
        holds="yes",
    )
    made = content("(float[3] s) => (float[3] y)", nodes)
    with pytest.raises(ModelError, match=r"limit \('count'\) is computed at run time.*--max count=N"):
        tenon.load(made)
    runs = [run_of({}, s=rows(n)[0] * 9) for n in (1, 2, 3)]
    check(onnx.ModelProto.FromString(made), {}, runs, compiled=trips > 2, max={"count": 40})


EMPTY = "SequenceEmpty <dtype: int = 1> ()"


def appending(insert: str, start: str = EMPTY, join: str = "<axis: int = 0, new_axis: int = 1>") -> bytes:
    """40 iterations, which append to a sequence, whose elements are joined behind the loop."""
    body = (
        "(int64 i, bool c, seq(float[2,3]) q, float[2,3] t) => (bool d, seq(float[2,3]) s, float[2,3] u)"
        f"{{ d = Identity(c) w = Sin(t) u = Add(w, x) {insert} }}"
    )
    looped = loop(body, trips="n", holds="yes", states="e, x", outputs="p, r")
    count = "n = Constant <value = int64 {40}> ()"
    nodes = f"{count} e = {start} {looped} y = ConcatFromSequence {join} (p)"
    return content("(float[2,3] x) => (float y, float[2,3] r)", nodes)


@pytest.mark.parametrize("start", [EMPTY, "SequenceConstruct(x)"])
@pytest.mark.parametrize(("new", "axis"), [(1, 0), (1, -1), (0, 0), (0, -1)])
def test_sequences_that_loops_append_to(new: int, axis: int, start: str) -> None:
    """They are stacked results, and no nodes for each of their elements are left."""
    made = appending("s = SequenceInsert(q, u)", start, f"<axis: int = {axis}, new_axis: int = {new}>")
    graph = tenon.load(made)
    assert [op.count for op in loops(graph)] == [40]
    assert len(graph) <= 5
    given = feeds(graph, 1)
    close(evaluate(graph, given), session(made).run(None, given), graph)


@pytest.mark.parametrize(
    "insert",
    [
        "s = SequenceInsert(q, u, zero_i)",
        "l = SequenceLength(q) f = Cast <to: int = 1> (l) v = Mul(u, f) s = SequenceInsert(q, v)",
        "o = SequenceInsert(q, u) s = SequenceInsert(o, w)",
    ],
)
def test_sequences_that_loops_change_otherwise(insert: str) -> None:
    made = appending(f"zero_i = Constant <value = int64 {{0}}> () {insert}")
    graph = tenon.load(made)
    assert not loops(graph)
    given = feeds(graph, 1)
    close(evaluate(graph, given), session(made).run(None, given), graph)


def test_size_does_not_depend_on_the_iterations() -> None:
    ports, nodes = MODELS["known"]
    sources = []
    for count in (40, 4000):
        text = nodes.replace("{40}", f"{{{count}}}")
        bundle = tenon.compile(content(ports.replace("40", str(count)), text), target="x86-64", threads=1)
        sources.append(bundle)
    assert len(sources[0].program.calls) == len(sources[1].program.calls)
    assert abs(len(sources[0].source) - len(sources[1].source)) < 200


@pytest.mark.parametrize(
    ("ports", "nodes", "words"),
    [
        (
            "(int64 n, float[5] s) => (float[5] y, float[k,5] z)",
            loop(
                "(int64 i, bool c, float[5] t) => (bool d, float[5] u, float[5] v)"
                " { d = Identity(c) u = Add(t, t) v = Identity(u) }",
                trips="n",
                holds="yes",
                outputs="y, z",
            ),
            "stacks a result of each iteration.* \\(fix --value n",
        ),
        (
            "(float[5] s) => (float[5] y)",
            loop(
                "(int64 i, bool c, float[5] t) => (bool d, float[5] u) { d = Identity(c) u = Add(t, t) }",
                trips='""',
                holds="yes",
            ),
            "more than 4096 iterations",
        ),
        (
            "(int64 n, float[5] s) => (float[k] y)",
            loop(
                "(int64 i, bool c, float[k] t) => (bool d, float[l] u)"
                " { d = Identity(c) u = Concat <axis: int = 0> (t, s) }",
                trips="n",
                holds="yes",
            ),
            "its state 's' changes its extent along axis 0, and how large .* --max s=N; or fix --value n=",
        ),
        (
            "(int64 n, float[5] s) => (float[5] y)",
            loop(
                "(int64 i, bool c, float[5] t) => (bool d, float[5] u)"
                " { d = Identity(c) u = MatMul(t, x) x = Mine(t) }",
                trips="n",
                holds="yes",
            ),
            "Mine",
        ),
    ],
)
def test_loops_that_cannot_be_imported(ports: str, nodes: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        tenon.load(content(ports, nodes))


def test_commands_take_the_largest_trip_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the stacked results have no largest extent; in a Caffe net that stays one it has no effect."""
    body = (
        "(int64 i, bool c, float[4] t) => (bool d, float[4] u, float[4] v)"
        "{ u = Exp(t) v = Neg(u) m = ReduceMax <keepdims: int = 0> (u) d = Greater(m, zero) }"
    )
    ports = "(int64 n, float[4] s) => (float[4] y, float[k,4] z)"
    path, written = tmp_path / "loop.onnx", tmp_path / "written.onnx"
    path.write_bytes(content(ports, loop(body, trips="n", holds="yes", outputs="y, z")))
    for command in (["benchmark", "--rounds", "1"], ["tune"], ["optimize", "-o", str(written)]):
        assert run_main(main, [command[0], str(path), *command[1:]]) == 2
        assert "how many there are at most is not known" in capsys.readouterr().err
        assert run_main(main, [command[0], str(path), "--max", "n=5", *command[1:]]) == 0
    capsys.readouterr()
    assert [v.type.dims for v in tenon.load(path, max={"n": 5}).outputs][:2] == [(4,), (5, 4)]
    assert any(each.op_type == "Loop" for each in onnx.load(written).graph.node)


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize("threads", [1, 3])
def test_too_many_iterations(threads: int) -> None:
    """A bound that is exceeded is an error of the run, which writes nothing behind its buffers."""
    graph = tenon.load(content(*MODELS["stacked"]))
    node = next(each for each in graph if isinstance(each.op, Scan))
    (body,) = node.bodies
    body.outputs[0] = body.constant("more", np.array(1000))
    given = {"s": np.ones(4, np.float32)}
    with pytest.raises(InputError, match="more often than the 50 times"):
        evaluate(graph, given)
    bundle = tenon.compile(graph, threads=threads, profile=True, no_tuning=True)
    with tenon.open(bundle, threads=threads) as engine:
        with pytest.raises(InputError, match="a loop would run more often"):
            engine.run(given)
        with pytest.raises(InputError, match="a loop would run more often"):
            engine.timestamps()
