"""TFLite's loops, branches and resource variables, compared with LiteRT where it is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from tenon.errors import InputError, UnsupportedError
from tenon.formats import importers
from tenon.machine.plan.program import Branch, Repeat
from tenon.network.graph.graph import Array, Graph
from tenon.network.ops.scan import Scan
from tflite_models import Model

X = np.array([1.0, -2.0, 3.0], np.float32)


def scalar(model: Model, name: str, value: int) -> int:
    return model.constant(name, np.array(value, np.int32))


# ----------------------------------------------------------------------------------------------------- loops
def loop(steps: int, operator: str = "ADD", *, known: bool = True) -> bytes:
    """``x`` is added to a sum ``steps`` times; the number of steps is a constant or an input."""
    model = Model()
    x = model.tensor("x", (3,))
    limit = scalar(model, "limit", steps) if known else model.tensor("limit", (), "i32")
    first, zeros = scalar(model, "first", 0), model.constant("zeros", np.zeros(3, np.float32))
    outs = [model.tensor(f"out{i}", shape, dtype) for i, (shape, dtype) in enumerate(LOOP)]
    condition, body = model.subgraph(), model.subgraph()
    a = [condition.tensor(f"c{i}", shape, dtype) for i, (shape, dtype) in enumerate(LOOP)]
    less = condition.tensor("less", (), "bool")
    condition.add("LESS", [a[0], a[3]], [less])
    b = [body.tensor(f"b{i}", shape, dtype) for i, (shape, dtype) in enumerate(LOOP)]
    after, total = body.tensor("after", (), "i32"), body.tensor("total", (3,))
    body.add("ADD", [b[0], scalar(body, "one", 1)], [after])
    body.add(operator, [b[1], b[2]], [total])
    numbers = model.define(condition, a, [less]), model.define(body, b, [after, total, b[2], b[3]])
    model.add("WHILE", [first, zeros, x, limit], outs, condition=numbers[0], body=numbers[1])
    return model.bytes([x] if known else [x, limit], [outs[1]])


ONE = np.array([1], np.int32)
LOOP: Sequence[tuple[tuple[int, ...], str]] = (((), "i32"), ((3,), "f32"), ((3,), "f32"), ((), "i32"))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_loops_of_known_length_are_unrolled(steps: int) -> None:
    (y,) = evaluate(importers.load(loop(steps)), {"x": X}).values()
    np.testing.assert_array_equal(y, steps * X)


def scans(graph: Graph) -> list[Scan]:
    return [node.op for node in graph if isinstance(node.op, Scan)]


def test_many_steps_are_a_loop() -> None:
    graph = importers.load(loop(1 << 20))
    assert scans(graph) == [Scan(1 << 20, 1)]
    (y,) = evaluate(importers.load(loop(50)), {"x": X}).values()
    np.testing.assert_array_equal(y, 50 * X)


def test_a_run_time_condition_ends_a_loop() -> None:
    bundle = tenon.compile(loop(5, known=False), name="net", no_tuning=True)
    assert any(isinstance(item, Repeat) for item in bundle.program.items)
    with tenon.open(bundle) as net:
        for steps in (0, 1, 7, -3, 1000):
            (y,) = net.run({"x": X, "limit": np.array(steps, np.int32)}).values()
            np.testing.assert_array_equal(y, max(steps, 0) * X)


def recurrence(steps: int, *, known: bool = True) -> bytes:
    """h = h / 2 + x[i], whose values are the rows of the result, as TensorFlow's converter writes it."""
    model = Model()
    x = model.tensor("x", (steps, 3))
    limit = scalar(model, "limit", steps) if known else model.tensor("limit", (), "i32")
    ports: list[tuple[tuple[int, ...], str]] = [((), "i32"), ((steps, 3), "f32"), ((3,), "f32"), ((steps, 3), "f32")]
    ports.append(((), "i32"))
    outs = [model.tensor(f"out{i}", shape, dtype) for i, (shape, dtype) in enumerate(ports)]
    condition, body = model.subgraph(), model.subgraph()
    a = [condition.tensor(f"c{i}", shape, dtype) for i, (shape, dtype) in enumerate(ports)]
    less = condition.tensor("less", (), "bool")
    condition.add("LESS", [a[0], a[4] if not known else scalar(condition, "steps", steps)], [less])
    b = [body.tensor(f"b{i}", shape, dtype) for i, (shape, dtype) in enumerate(ports)]

    def vector(name: str, *numbers: int) -> int:
        return body.constant(name, np.array(numbers, np.int32))

    def made(
        name: str, shape: tuple[int, ...], type: str, inputs: Sequence[int], dtype: str = "f32", **options: Any
    ) -> int:
        out = body.tensor(name, shape, dtype)
        body.add(type, inputs, [out], **options)
        return out

    after = made("after", (), "ADD", [b[0], scalar(body, "one", 1)], "i32")
    half = made("half", (3,), "MUL", [b[2], body.constant("factor", np.array(0.5, np.float32))])
    h = made("h", (3,), "ADD", [half, made("part", (3,), "GATHER", [b[3], b[0]], axis=0, batch_dims=0)])
    row = made("row", (1, 3), "RESHAPE", [h, vector("row_dims", 1, 3)])
    one = vector("one_dim", 1)
    size = made(
        "size", (2,), "CONCATENATION", [made("i1", (1,), "RESHAPE", [b[0], one], "i32"), vector("all", -1)], "i32"
    )
    begin = made(
        "begin", (2,), "CONCATENATION", [made("j1", (1,), "RESHAPE", [after, one], "i32"), vector("zero", 0)], "i32"
    )
    before = made("before", (1, 1), "SLICE", [b[1], vector("zeros2", 0, 0), size])
    behind = made("behind", (1, 3), "SLICE", [b[1], begin, vector("rest", -1, -1)])
    rows = made("rows", (steps, 3), "CONCATENATION", [before, row, behind], axis=0)
    numbers = model.define(condition, a, [less]), model.define(body, b, [after, rows, h, b[3], b[4]])
    zeros, first = model.constant("zeros", np.zeros((steps, 3), np.float32)), scalar(model, "first", 0)
    start = model.constant("start", np.zeros(3, np.float32))
    model.add("WHILE", [first, zeros, start, x, limit], outs, condition=numbers[0], body=numbers[1])
    return model.bytes([x] if known else [x, limit], [outs[1], outs[2]])


@pytest.mark.parametrize(("steps", "known"), [(40, True), (40, False), (5, True), (2, True)])
def test_rows_that_a_loop_writes(steps: int, known: bool) -> None:
    """They are stacked results, not copies of the whole tensor; two steps become nodes."""
    data = recurrence(steps, known=known)
    graph = importers.load(data)
    loop = Scan(steps, 1, 1) if known else Scan(steps, 3, counted=True)
    assert scans(graph) == ([loop] if steps > 2 else [])
    x = np.random.default_rng(3).normal(0, 1, (steps, 3)).astype(np.float32)
    with tenon.open(tenon.compile(data, name="net", no_tuning=True)) as net:
        for count in (steps,) if known else (0, 1, 17, steps):
            h, right = np.zeros(3, np.float32), np.zeros((steps, 3), np.float32)
            for i in range(count):
                right[i] = h = h * np.float32(0.5) + x[i]
            given = {"x": x} if known else {"x": x, "limit": np.array(count, np.int32)}
            for results in (evaluate(graph, given), net.run(given)):
                for got, array in zip(results.values(), (right, h), strict=True):
                    np.testing.assert_allclose(got, array, rtol=1e-6, atol=1e-6)
        if not known:
            with pytest.raises(InputError, match="a loop would run more often"):
                net.run({"x": x, "limit": np.array(steps + 1, np.int32)})


def test_an_unsupported_operator_of_a_loop_is_reported_once() -> None:
    with pytest.raises(UnsupportedError) as error:
        importers.load(loop(5, "UNIQUE"))
    assert str(error.value).count("UNIQUE") == 1


def test_a_loop_that_calls_itself_is_refused() -> None:
    model = Model()
    x, y = model.tensor("x", ()), model.tensor("y", ())
    graph = model.subgraph()
    a, b = graph.tensor("a", ()), graph.tensor("b", ())
    graph.add("WHILE", [a], [b], condition=1, body=1)
    model.define(graph, [a], [b])
    model.add("WHILE", [x], [y], condition=1, body=1)
    with pytest.raises(UnsupportedError, match="sub-graph 1 calls itself"):
        importers.load(model.bytes([x], [y]))


# --------------------------------------------------------------------------------------------------- branches
def branches(condition: bool | None, *, state: bool = False) -> bytes:
    """Twice ``x`` or ``x`` squared; with ``state`` one branch also stores its result in a variable."""
    model = Model()
    x = model.tensor("x", (3,))
    given = model.tensor("given", (), "bool") if condition is None else model.constant("given", np.array(condition))
    numbers = []
    for operator in ("ADD", "MUL"):
        graph = model.subgraph()
        a, y = graph.tensor("a", (3,)), graph.tensor("y", (3,))
        graph.add(operator, [a, a], [y])
        if state and operator == "MUL":
            handle = graph.tensor("handle", (), "resource")
            graph.add("VAR_HANDLE", [], [handle], shared_name="kept")
            graph.add("ASSIGN_VARIABLE", [handle, y], [])
        numbers.append(model.define(graph, [a], [y]))
    y = model.tensor("y", (3,))
    model.add("IF", [given, x], [y], then=numbers[0], otherwise=numbers[1])
    outputs = [y]
    if state:
        handle, kept = model.tensor("handle", (), "resource"), model.tensor("read", (3,))
        model.add("VAR_HANDLE", [], [handle], shared_name="kept")
        model.add("READ_VARIABLE", [handle], [kept])
        outputs.append(kept)
    return model.bytes([x] if condition is not None else [x, given], outputs)


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_picks_a_branch(condition: bool) -> None:
    graph = importers.load(branches(condition))
    (y,) = evaluate(graph, {"x": X}).values()
    np.testing.assert_array_equal(y, X + X if condition else X * X)
    assert len(graph.nodes) == 1


@pytest.mark.parametrize("condition", [True, False])
def test_a_run_time_condition_chooses_results(condition: bool) -> None:
    bundle = tenon.compile(branches(None), name="net", no_tuning=True)
    assert any(isinstance(item, Branch) for item in bundle.program.items), "one branch runs"
    y = tenon.open(bundle).run({"x": X, "given": np.array(condition)})["y"]
    np.testing.assert_array_equal(y, X + X if condition else X * X)


@pytest.mark.parametrize("condition", [True, False])
def test_a_run_time_condition_chooses_what_is_kept(condition: bool) -> None:
    graph = importers.load(branches(None, state=True))
    before = np.array([7, 8, 9], np.float32)
    results = evaluate(graph, {"x": X, "given": np.array(condition), "kept": before})
    np.testing.assert_array_equal(results["kept_out"], before if condition else X * X)
    np.testing.assert_array_equal(results["read"], before if condition else X * X)


# -------------------------------------------------------------------------------------------------- variables
def delay(*, dtype: str = "f32", initial: float | None = 0.0, assigned: bool = True) -> bytes:
    """The sum of this input and the one before, which a variable keeps."""
    model, kind = Model(), {"f32": np.float32, "i8": np.int8}[dtype]
    quantisation: dict[str, Any] = {"scale": [0.5], "zero": [-3]} if dtype == "i8" else {}
    x = model.tensor("x", (3,), dtype, **quantisation)
    if initial is not None:
        once = model.subgraph()
        handle = once.tensor("handle", (), "resource")
        zeros = once.constant("zeros", np.full(3, initial, kind), **quantisation)
        once.add("VAR_HANDLE", [], [handle], shared_name="memory")
        once.add("ASSIGN_VARIABLE", [handle, zeros], [])
        model.add("CALL_ONCE", [], [], initial=model.define(once, [], []))
    handle, before = model.tensor("handle", (), "resource"), model.tensor("before", (3,), dtype, **quantisation)
    y = model.tensor("y", (3,), dtype, **quantisation)
    model.add("VAR_HANDLE", [], [handle], shared_name="memory")
    model.add("READ_VARIABLE", [handle], [before])
    model.add("ADD", [x, before], [y])
    if assigned:
        model.add("ASSIGN_VARIABLE", [handle, x], [])
    return model.bytes([x], [y])


def stream(data: bytes, inputs: Sequence[Array], start: Array) -> list[Array]:
    """The results of runs one after the other, by compiled code: the same with ``start``, the variable's initial value,
    fed and then each run's result, and without."""
    net, kept, results = tenon.open(tenon.compile(data, name="net", arithmetic="litert", no_tuning=True)), start, []
    for x in inputs:
        answers = net.run({"x": x, "memory": kept})
        kept = answers["memory_out"].copy()
        results.append(answers["y"].copy())
    net.reset()
    for x, y in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(net.run(x)["y"], y)
    return results


STREAM = [np.array(v, np.float32) for v in ([1, 2, 3], [-4, 5, -6], [7, 8, 9])]


def accumulating(steps: int) -> bytes:
    """A variable to which each iteration adds x; the result is its content."""
    model = Model()
    x, out = model.tensor("x", (3,)), model.tensor("y", (3,))
    condition, body = model.subgraph(), model.subgraph()
    a = [condition.tensor(f"c{i}", shape, kind) for i, (shape, kind) in enumerate([((), "i32"), ((3,), "f32")])]
    less = condition.tensor("less", (), "bool")
    condition.add("LESS", [a[0], scalar(condition, "steps", steps)], [less])
    b = [body.tensor(f"b{i}", shape, kind) for i, (shape, kind) in enumerate([((), "i32"), ((3,), "f32")])]
    after, handle = body.tensor("after", (), "i32"), body.tensor("handle", (), "resource")
    before, total = body.tensor("before", (3,)), body.tensor("total", (3,))
    body.add("ADD", [b[0], scalar(body, "one", 1)], [after])
    body.add("VAR_HANDLE", [], [handle], shared_name="memory")
    body.add("READ_VARIABLE", [handle], [before])
    body.add("ADD", [before, b[1]], [total])
    body.add("ASSIGN_VARIABLE", [handle, total], [])
    numbers = model.define(condition, a, [less]), model.define(body, b, [after, b[1]])
    ends = model.tensor("end", (), "i32"), model.tensor("same", (3,))
    model.add("WHILE", [scalar(model, "first", 0), x], list(ends), condition=numbers[0], body=numbers[1])
    outer = model.tensor("handle", (), "resource")
    model.add("VAR_HANDLE", [], [outer], shared_name="memory")
    model.add("READ_VARIABLE", [outer], [out])
    return model.bytes([x], [out])


@pytest.mark.parametrize("steps", [2, 50])
def test_a_loop_assigns_a_variable(steps: int) -> None:
    """It is a state of the loop, and of the network."""
    graph = importers.load(accumulating(steps))
    assert len(scans(graph)) == (steps > 2)
    assert len(graph.states) == 1
    with tenon.open(tenon.compile(graph, no_tuning=True)) as net:
        for run in (1, 2):
            np.testing.assert_allclose(net.run({"x": X})["y"], run * steps * X)


def test_a_variable_is_an_input_and_an_output() -> None:
    results = stream(delay(), STREAM, np.zeros(3, np.float32))
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, STREAM[i] + (STREAM[i - 1] if i else 0))


def test_a_quantised_variable_keeps_its_integers() -> None:
    data, integers = delay(dtype="i8", initial=-3), [x.astype(np.int8) for x in STREAM]
    graph = importers.load(data)
    (state,) = (v for v in graph.inputs if v.name == "memory")
    assert str(state.type.dtype) == "i8"
    assert state.type.quant is not None
    assert state.type.quant.zero_point == (-3,)
    for i, y in enumerate(stream(data, integers, np.full(3, -3, np.int8))):
        before = integers[i - 1].astype(int) if i else np.full(3, -3)
        np.testing.assert_array_equal(y, np.clip(integers[i] + 3 + before + 3 - 3, -128, 127))


def test_the_initial_value_is_stated() -> None:
    """In the manifest, the header, and what 'tenon inspect' prints; also for inputs that are given otherwise."""
    bundle = tenon.compile(delay(dtype="i8", initial=-3), name="net", no_tuning=True)
    ports = tenon.open(bundle).manifest.inputs
    assert {t.name: t.initial for t in ports} == {"x": None, "memory": (-3,)}
    assert re.search(r"#define NET_\w*MEMORY_INITIAL \(-3\)", bundle.header, re.IGNORECASE)
    assert importers.load(delay(initial=None)).initial == {}


def test_a_variable_that_is_only_initialised_is_a_constant() -> None:
    graph = importers.load(delay(initial=4.0, assigned=False))
    assert [v.name for v in graph.inputs] == ["x"]
    np.testing.assert_array_equal(evaluate(graph, {"x": X})["y"], X + 4)


def test_a_variable_that_changes_its_shape_is_refused() -> None:
    model = Model()
    x, handle, before = model.tensor("x", (3,)), model.tensor("handle", (), "resource"), model.tensor("before", (2,))
    model.add("VAR_HANDLE", [], [handle], shared_name="memory")
    model.add("READ_VARIABLE", [handle], [before])
    model.add("ASSIGN_VARIABLE", [handle, x], [])
    with pytest.raises(UnsupportedError, match=r"its variable changes its shape from \[2\] to \[3\]"):
        importers.load(model.bytes([x], [before]))


def test_operators_of_variables_that_are_none_are_refused() -> None:
    model = Model()
    x, y = model.tensor("x", (3,)), model.tensor("y", (3,))
    model.add("READ_VARIABLE", [x], [y])
    with pytest.raises(UnsupportedError, match="input 0 does not refer to a variable"):
        importers.load(model.bytes([x], [y]))


# ------------------------------------------------------------------------------------------------------ LiteRT
MODELS: dict[str, tuple[Callable[[], bytes], Sequence[Array]]] = {
    "loop": (lambda: loop(5), [X]),
    "branch": (lambda: branches(False), [X]),
    "variable": (delay, STREAM),
    "variable of i8": (lambda: delay(dtype="i8", initial=-3), [x.astype(np.int8) for x in STREAM]),
    "constant variable": (lambda: delay(initial=4.0, assigned=False), STREAM),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_match_litert(name: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    make, inputs = MODELS[name]
    net = interpreter.Interpreter(model_content=make())
    net.allocate_tensors()
    graph = importers.load(make())
    kept = {v.name: np.full(v.type.dims, -3 if "i8" in name else 0, v.type.dtype.numpy) for v in graph.inputs}
    for x in inputs:
        net.set_tensor(net.get_input_details()[0]["index"], x)
        net.invoke()
        answers = evaluate(graph, {**kept, "x": x})
        kept = {n: answers[f"{n}_out"] for n in kept if f"{n}_out" in answers}
        first = next(v for n, v in answers.items() if not n.endswith("_out"))
        np.testing.assert_array_equal(first, net.get_tensor(net.get_output_details()[0]["index"]))
