"""Loops of a graph: nodes with a body, how they are planned, and that they compute what the unrolled graph does."""

from __future__ import annotations

import ctypes
import itertools
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from exact_onnxruntime import session
from libtenon import sdk_for_clients
from onnx_models import model, node, random
from tenon.errors import InternalError, ShapeError
from tenon.formats.exporters.onnx import to_onnx
from tenon.machine.plan.program import Repeat
from tenon.machine.toolchain.size import sizes
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.text import parse, same, show
from tenon.network.graph.types import DType, tensor
from tenon.network.graph.verify import verify
from tenon.network.ops import constructors, registry
from tenon.network.ops.convert import Cast
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.scan import Scan
from tenon.network.ops.unroll import UNROLLED, unrolled
from tenon.network.passes import bodies, optimize
from tenon.network.passes.base import silent
from tenon.network.passes.integers.digest import is_exact
from tenon.network.passes.loop_products import LOOP_PRODUCTS
from tenon.options import Precision
from tenon.pipeline import rewrite
from tenon.runtime.engine.device import RemoteBundle

STEPS, WIDTH = 187, 12


@pytest.fixture(autouse=True)
def keep_short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of a few iterations stay loops, as on microcontrollers."""
    monkeypatch.setattr(bodies, "UNROLLED", 0)


def recurrent(kind: str, lengths: bool = False, steps: int = STEPS, batch: int = 1, **attributes: Any) -> bytes:
    """A recurrent layer of WIDTH units on rows of 8 numbers."""
    gates, sides = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if attributes.get("direction") == "bidirectional" else 1
    outputs = ["y", "last", *(["cell"] if kind == "LSTM" else [])]
    scale = np.float32(0.4)
    weights = {
        "w": random(sides, gates * WIDTH, 8) * scale,
        "r": random(sides, gates * WIDTH, WIDTH) * scale,
        "b": random(sides, 2 * gates * WIDTH) * scale,
    }
    inputs = ["x", "w", "r", "b"]
    if lengths:
        weights["lengths"] = np.linspace(steps // 2, steps - 1, batch).astype(np.int32)
        inputs.append("lengths")
    made = node(kind, inputs, outputs, hidden_size=WIDTH, **attributes)
    shape = [batch, steps, 8] if attributes.get("layout") else [steps, batch, 8]
    content: bytes = model([made], {"x": shape}, outputs, weights).SerializeToString()
    return content


LAYERS: dict[str, Callable[[], bytes]] = {
    "lstm": lambda: recurrent("LSTM", direction="bidirectional"),
    "lstm_lengths": lambda: recurrent("LSTM", lengths=True, batch=3, direction="bidirectional"),
    "lstm_reverse": lambda: recurrent("LSTM", direction="reverse", batch=2),
    "gru": lambda: recurrent("GRU", linear_before_reset=1),
    "gru_lengths": lambda: recurrent("GRU", lengths=True, batch=2),
    "rnn": lambda: recurrent("RNN", direction="bidirectional"),
}


def feed(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {v.name: rng.normal(0, 1, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs}


def loops(graph: Graph) -> list[Scan]:
    return [each.op for each in graph if isinstance(each.op, Scan)]


def run(graph: Graph, feeds: dict[str, Array], threads: int = 1, **options: Any) -> dict[str, Array]:
    with tenon.open(tenon.compile(graph, threads=threads, no_tuning=True, **options), threads=threads) as engine:
        return {name: array.copy() for name, array in engine.run(feeds).items()}


# ------------------------------------------------------------------------------------------------ recurrent layers
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i else pytest.mark.quick) for i, name in enumerate(LAYERS)]
)
def test_loops_give_the_bits_of_the_unrolled_layer(name: str) -> None:
    content = LAYERS[name]()
    graph = tenon.load(content)
    assert loops(graph)
    flat = unrolled(graph)
    verify(graph)
    verify(flat)
    assert not loops(flat)
    feeds = feed(graph)
    looped = run(graph, feeds, verify=True)
    for key, array in run(flat, feeds).items():
        np.testing.assert_array_equal(looped[key], array)
    for key, array in zip(looped, session(content).run(None, feeds), strict=True):
        np.testing.assert_allclose(looped[key], array, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("steps", "target", "looped"),
    [(32, "x86-64", False), (33, "x86-64", True), (2, "cortex-m4", False), (3, "cortex-m4", True)],
)
def test_few_steps_are_unrolled(steps: int, target: str, looped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On targets with memory to spare; a microcontroller gets the code of one step."""
    monkeypatch.setattr(bodies, "UNROLLED", UNROLLED)
    program = tenon.compile(recurrent("LSTM", steps=steps), target=target, threads=1).program
    assert any(isinstance(item, Repeat) for item in program.items) is looped


# ------------------------------------------------------------------------------------------- products inside of loops
@pytest.mark.parametrize("name", LAYERS)
def test_products_inside_of_loops(name: str) -> None:
    """A loop multiplies its own slices, with the same results, unless the product is an output of the graph, too."""
    graph = tenon.load(LAYERS[name]())
    inside = graph.copy()
    assert LOOP_PRODUCTS.run(inside, silent) == len(loops(graph))
    verify(inside)
    assert not any(isinstance(each.op, MatMul) for each in inside)
    right = evaluate(graph, feeds := feed(graph))
    for key, array in evaluate(inside, feeds).items():
        np.testing.assert_allclose(array, right[key], rtol=1e-5, atol=1e-6)
    kept = graph.copy()
    kept.outputs += [each.output for each in kept if isinstance(each.op, MatMul)]
    read = {v.producer for v in kept.outputs}
    LOOP_PRODUCTS.run(kept, silent)
    assert read == {v.producer for v in kept.outputs}
    assert sum(isinstance(each.op, MatMul) for each in kept) == len(loops(graph))


def sliced(kind: str) -> tuple[Graph, bool]:
    """A loop over slices that a chain of operators computes, and whether these belong into the loop."""
    body = Graph("body")
    a, x = body.add_input("a", tensor(DType.F32, 2, 3)), body.add_input("x", tensor(DType.F32, 2, 3))
    sum = add(body, "Add", a, x)
    body.outputs = [sum, sum]
    graph = Graph("outer")
    start, given = (
        graph.add_input("start", tensor(DType.F32, 2, 3)),
        graph.add_input("given", tensor(DType.F32, 4, 2, 3)),
    )
    weights = graph.constant("w", np.random.default_rng(1).normal(0, 1, (3, 3)).astype(np.float32))

    def reshape(value: Value, *dims: int) -> Value:
        return add(graph, "Reshape", value, graph.constant(f"shape_{len(graph)}", np.array(dims)))

    def constant(*dims: int) -> Value:
        return graph.constant("c", np.arange(np.prod(dims), dtype=np.float32).reshape(dims))

    def product() -> Value:
        return add(graph, "MatMul", given, weights)

    def rows(*bias: Value) -> Value:
        return add(graph, "Gemm", reshape(given, 8, 3), weights, *bias)

    chains: dict[str, tuple[Callable[[], Value], bool]] = {
        "product": (product, True),
        "rows": (lambda: reshape(add(graph, "Relu", rows()), 4, 2, 3), True),
        "constant first": (lambda: add(graph, "Sub", constant(3), product()), True),
        "of one row": (lambda: add(graph, "Mul", product(), constant(1, 2, 3)), True),
        "another one in each row": (lambda: add(graph, "Mul", product(), constant(4, 2, 3)), False),
        "bias of each row": (lambda: reshape(rows(constant(8, 1)), 4, 2, 3), False),
        "transposed": (lambda: reshape(add(graph, "Gemm", reshape(given, 3, 8), weights, transA=1), 4, 2, 3), False),
        "read twice": (lambda: add(graph, "Add", value := product(), value), False),
        "no product": (lambda: add(graph, "Relu", given), False),
        "no weights": (lambda: add(graph, "MatMul", add(graph, "MatMul", given, reshape(start, 3, 2)), start), False),
    }
    make, moved = chains[kind]
    made = graph.add(Scan(4, 1, 1), [start, make()], ["last", "all"], Origin("", "loop", "Scan"), bodies=[body])
    graph.outputs = list(made.outputs)
    return graph, moved


CHAINS = (
    "product",
    "rows",
    "constant first",
    "of one row",
    "another one in each row",
    "bias of each row",
    "transposed",
    "read twice",
    "no product",
    "no weights",
)


@pytest.mark.parametrize("kind", CHAINS)
def test_which_products_move_into_loops(kind: str) -> None:
    graph, moved = sliced(kind)
    right = evaluate(graph, feeds := feed(graph))
    assert LOOP_PRODUCTS.run(graph, silent) == moved
    verify(graph)
    for key, array in evaluate(graph, feeds).items():
        np.testing.assert_allclose(array, right[key], rtol=1e-5, atol=1e-5)


def test_size_on_a_microcontroller() -> None:
    """512 steps take the code of a step from given states and 10 %, and no memory for the products of all inputs."""
    two, all = (tenon.compile(recurrent("LSTM", steps=n), target="cortex-m4") for n in (2, 512))
    assert sizes(all.object).code < 1.1 * sizes(two.object).code
    assert all.program.memory.activations <= two.program.memory.activations


@pytest.mark.parametrize("shape", [(40, 2, 8), (64, 1, 8)])
def test_other_shapes(shape: tuple[int, ...]) -> None:
    """A model takes them; a graph that was loaded with others says what to do."""
    content = recurrent("LSTM", steps=40)
    assert tenon.compile(content, shapes={"x": shape}, target="x86-64").program.inputs[0].type.dims == shape
    with pytest.raises(ShapeError, match="load it again with other shapes"):
        tenon.compile(tenon.load(content), shapes={"x": shape}, target="x86-64")


def test_batch_first() -> None:
    content = recurrent("LSTM", layout=1, batch=2)
    graph = tenon.load(content)
    assert loops(graph)
    feeds = feed(graph)
    looped = run(graph, feeds)
    for key, array in run(unrolled(graph), feeds).items():
        np.testing.assert_array_equal(looped[key], array)


def test_size_of_a_loop() -> None:
    """Calls and memory do not grow with the steps, except tensors of all steps."""
    long, short = (tenon.compile(recurrent("LSTM", steps=n), target="x86-64", threads=1) for n in (160, 40))
    assert len(long.program.calls) == len(short.program.calls) < 20
    assert abs(len(long.source) - len(short.source)) < 100
    (loop,) = (item for item in long.program.items if isinstance(item, Repeat))
    assert loop.count == 160
    assert len(loop.carried) == 2
    assert long.program.macs == sum(step.macs for step in long.manifest({}, compiled=False).nodes)
    assert long.program.macs >= 160 * 4 * WIDTH * (8 + WIDTH)


@pytest.mark.usefixtures("every_kernel_divided")
def test_threads_and_timed_runs() -> None:
    content = LAYERS["lstm_lengths"]()
    graph = tenon.load(content)
    feeds = feed(graph)
    right = run(unrolled(graph), feeds)
    for threads in (1, 3):
        bundle = tenon.compile(graph, threads=threads, profile=True, no_tuning=True)
        with tenon.open(bundle, threads=threads) as engine:
            plain = engine.run(feeds)
            for key, array in right.items():
                np.testing.assert_array_equal(plain[key], array)
            for array in engine.outputs.values():
                array[...] = 0
            ticks = engine.timestamps().astype(np.int64)
            assert len(ticks) == len(bundle.program.calls) + 1
            assert (np.diff(ticks) >= 0).all()
            for key, array in right.items():
                np.testing.assert_array_equal(engine.outputs[key], array)


@pytest.mark.parametrize("target", ["aarch64", "cortex-m4"])
def test_other_machines(target: str) -> None:
    graph = tenon.load(recurrent("LSTM", steps=40))
    feeds = feed(graph)
    results = []
    for each in (graph, unrolled(graph)):
        with RemoteBundle(tenon.compile(each, target=target)) as device:
            results += device.run([feeds])
    for key, array in results[1].items():
        np.testing.assert_array_equal(results[0][key], array)


@pytest.mark.usefixtures("every_kernel_divided")
def test_libtenon(tmp_path: Path) -> None:
    """Plain and timed runs with one thread and with three."""
    if platform.machine() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("the SDK is compiled for x86-64 here")
    content = LAYERS["lstm"]()
    graph = tenon.load(content)
    feeds = feed(graph)
    right = run(unrolled(graph), feeds, target="x86-64")
    bundle = tenon.compile(graph, target="x86-64", threads=3, profile=True, no_tuning=True)
    library = ctypes.CDLL(str(sdk_for_clients(tmp_path, "") / "lib" / "libtenon.so"))
    library.tenon_last_error.restype = ctypes.c_char_p
    handle, engine, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t
    path = str(bundle.save(tmp_path / "net.tenon")).encode()
    assert library.tenon_bundle_open(path, None, ctypes.byref(handle)) == 0, library.tenon_last_error()
    times = (ctypes.c_uint64 * len(bundle.program.calls))()
    for threads in (1, 3):
        options = (ctypes.c_int32 * 10)(40, 0, threads)  # TenonEngineOptions as words of 32 bits
        assert library.tenon_engine_create(handle, options, ctypes.byref(engine)) == 0, library.tenon_last_error()
        x = feeds["x"]
        assert library.tenon_engine_set_input(engine, 0, ctypes.c_void_p(x.ctypes.data), size(x.nbytes)) == 0
        for timed in (False, True):
            profiled = timed and library.tenon_engine_profile(engine, times, size(len(times)))
            assert (profiled if timed else library.tenon_engine_run(engine)) == 0, library.tenon_last_error()
            for number, array in enumerate(right.values()):
                result = np.zeros_like(array)
                out = ctypes.c_void_p(result.ctypes.data)
                assert library.tenon_engine_get_output(engine, number, out, size(result.nbytes)) == 0
                np.testing.assert_array_equal(result, array)
        assert sum(times) > 0
        assert library.tenon_engine_destroy(engine) == 0
    assert library.tenon_bundle_close(handle) == 0


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "lstm.onnx").write_bytes(LAYERS["lstm"]())
    graph = tenon.load(tmp_path / "lstm.onnx")
    feeds = feed(graph)
    np.save(tmp_path / "x.npy", feeds["x"])
    command = [sys.executable, "-m", "tenon", "run", "lstm.onnx", "--input", "x=x.npy", "--output", "out.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for key, array in run(unrolled(graph), feeds).items():
        np.testing.assert_array_equal(np.load(tmp_path / "out.npz")[key], array)


@pytest.mark.parametrize("ending", [".onnx", ".tflite"])
def test_written_files(ending: str, tmp_path: Path) -> None:
    (tmp_path / "rnn.onnx").write_bytes(recurrent("RNN", steps=40))
    rewrite(tmp_path / "rnn.onnx", tmp_path / f"out{ending}")
    graph, again = tenon.load(tmp_path / "rnn.onnx"), tenon.load(tmp_path / f"out{ending}")
    assert bool(loops(again)) is (ending == ".onnx"), "TFLite gets the unrolled layer"
    feeds = feed(graph)
    results = [
        evaluate(each, dict(zip((v.name for v in each.inputs), feeds.values(), strict=True))) for each in (graph, again)
    ]
    for first, second in zip(results[0].values(), results[1].values(), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_onnx_scans_something(reverse: bool) -> None:
    """A loop without slices gets numbers to scan."""
    body = Graph("body")
    state, width = body.add_input("state", tensor(DType.F32, 5)), body.add_input("width", tensor(DType.F32, 5))
    body.outputs = [following := add(body, "Mul", add(body, "Tanh", state), width), add(body, "Neg", following)]
    graph = looped(body, 6, 1, 0, reverse=reverse)
    right = evaluate(graph, feeds := feed(graph))
    results = session(to_onnx(graph).SerializeToString()).run(None, feeds)
    for result, (name, array) in zip(results, right.items(), strict=True):
        np.testing.assert_allclose(result, array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("precision", "error"), [("fp16", 1e-3), ("bf16", 5e-3)])
def test_narrow_precisions_look_into_bodies(precision: Precision, error: float) -> None:
    """The weights of a step are stored in 16 bits; its states stay in f32."""
    graph = tenon.load(recurrent("GRU", steps=40, batch=2))
    right = evaluate(graph, feeds := feed(graph))
    bundle = tenon.compile(graph, threads=1, precision=precision)
    assert any(isinstance(item, Repeat) for item in bundle.program.items)
    assert len(bundle.weights) < 0.7 * len(tenon.compile(graph, threads=1).weights)
    with tenon.open(bundle) as engine:
        for key, array in engine.run(feeds).items():
            np.testing.assert_allclose(array, right[key], atol=error)


def test_products_of_bodies_in_f16() -> None:
    graph = tenon.load(recurrent("GRU", steps=40, batch=8))
    bundle = tenon.compile(graph, target="aarch64-fp16", precision="fp16")
    assert any(isinstance(item, Repeat) for item in bundle.program.items)
    with RemoteBundle(bundle) as device:
        (answers,) = device.run([feeds := feed(graph)])
    for key, array in evaluate(graph, feeds).items():
        np.testing.assert_allclose(answers[key], array, atol=0.02)


def test_a_budget_of_memory_keeps_loops() -> None:
    """A convolution before the loop is computed in patches."""
    nodes = [
        node("Conv", ["image", "k"], ["c"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["p", "rows"], ["x"]),
        node("RNN", ["x", "w", "r"], ["y", "last"], hidden_size=4),
    ]
    weights = {
        "k": random(8, 1, 3, 3),
        "rows": np.array([64, 1, 128]),
        "w": random(1, 4, 128) * np.float32(0.1),
        "r": random(1, 4, 4) * np.float32(0.2),
    }
    graph = tenon.load(model(nodes, {"image": [1, 1, 64, 64]}, ["last"], weights).SerializeToString())
    right = evaluate(graph, feeds := feed(graph))
    usual = tenon.compile(graph, threads=1).program
    tight = tenon.compile(graph, threads=1, ram=usual.memory.peak * 2 // 3)
    assert tight.program.patches is not None
    assert any(isinstance(item, Repeat) for item in tight.program.items)
    with tenon.open(tight) as engine:
        np.testing.assert_allclose(engine.run(feeds)["last"], right["last"], atol=1e-5)


# -------------------------------------------------------------------------------------------------- loops by hand
def add(graph: Graph, name: str, *inputs: Value, **attributes: Any) -> Value:
    number = sum(1 for _ in graph)
    op = registry()[name](**attributes)
    return graph.add(op, inputs, [f"{name.lower()}_{number}"], Origin("", f"{name}{number}", name)).output


def looped(body: Graph, count: int, states: int, slices: int, *, reverse: bool = False) -> Graph:
    """A graph whose inputs and outputs are those of one loop."""
    graph = Graph("outer")
    inputs = []
    for i, v in enumerate(body.inputs):
        dims = (count, *v.type.dims) if states <= i < states + slices else v.type.dims
        inputs.append(graph.add_input(f"in{i}", tensor(v.type.dtype, *dims)))
    names = [f"out{i}" for i in range(len(body.outputs))]
    made = graph.add(Scan(count, states, slices, reverse), inputs, names, Origin("", "loop", "Scan"), bodies=[body])
    graph.outputs = list(made.outputs)
    return graph


def body_of(kind: str) -> tuple[Graph, int, int]:
    """A body with its numbers of states and of slices; the input behind these is the same in all iterations."""
    body = Graph("body")
    a, b, x, w = (body.add_input(name, tensor(DType.F32, 5)) for name in "abxw")
    mixed = add(body, "Add", add(body, "Mul", a, w), x)
    body.outputs = {
        "swapped": lambda: [b, a, mixed],
        "kept": lambda: [a, mixed, add(body, "Sub", b, x)],
        "the state before": lambda: [mixed, add(body, "Sub", b, x), a],
        "read late": lambda: [mixed, add(body, "Sub", add(body, "Tanh", mixed), a), x],
        "one value twice": lambda: [mixed, mixed, mixed],
        "crossed": lambda: [add(body, "Add", b, x), add(body, "Sub", a, x), mixed],
        "no slice": lambda: [mixed, add(body, "Relu", b)],
        "a constant": lambda: [body.constant("c", np.arange(5, dtype=np.float32)), mixed, mixed],
        "a view": lambda: [add(body, "Reshape", b, body.constant("shape", np.array([5]))), add(body, "Neg", a), mixed],
    }[kind]()
    return body, 2, 1


KINDS = [
    "swapped",
    "kept",
    "the state before",
    "read late",
    "one value twice",
    "crossed",
    "no slice",
    "a constant",
    "a view",
]


@pytest.mark.parametrize(("kind", "reverse"), [*itertools.product(KINDS, [False, True])])
def test_states(kind: str, reverse: bool) -> None:
    """Whatever a body does with its states, the loop computes what its definition says, and the unrolled one, too."""
    body, states, slices = body_of(kind)
    graph = looped(body, 6, states, slices, reverse=reverse)
    verify(graph)
    feeds = feed(graph)
    right = evaluate(graph, feeds)
    by_hand(kind, feeds, right, reverse)
    for each in (graph, unrolled(graph)):
        for level in (0, 2):
            results = run(each, feeds, optimize=level)
            for key, array in right.items():
                np.testing.assert_allclose(results[key], array, rtol=1e-6, atol=1e-6)


COPIES = {"one": 1, "two": 1, "behind a view": 1, "read later": 2, "no slice": 0}
"""By what a body does with a state that it appends to, the copies in it: one is of the slice."""


@pytest.mark.parametrize("kind", COPIES)
def test_rows_appended_to_a_state(kind: str) -> None:
    """The state is written in place: only the new rows are copied, unless something reads the state later."""
    body = Graph("body")
    rows, count = body.add_input("rows", tensor(DType.F32, 9, 4)), body.add_input("count", tensor(DType.I64))
    new = body.add_input("new", tensor(DType.F32, 1, 4))

    def reshaped(value: Value, *dims: int) -> Value:
        return add(body, "Reshape", value, body.constant("shape", np.array(dims)))

    if kind == "behind a view":
        whole = add(body, "Append", reshaped(rows, 1, 9, 4), reshaped(new, 1, 1, 4), count, axis=1)
        grown = reshaped(whole, 9, 4)
    else:
        grown = add(body, "Append", rows, new, count)
    further = add(body, "Add", count, body.constant("one", np.array(1)))
    if kind == "two":
        grown = add(body, "Append", grown, add(body, "Neg", new), further)
    slices = [add(body, "Add", grown, rows) if kind == "read later" else grown]
    body.outputs = [grown, further, *(slices if kind != "no slice" else [])]
    graph = looped(body, 5, 2, 1)
    feeds = {**feed(graph), "in1": np.array(2)}
    right = evaluate(graph, feeds)
    bundle = tenon.compile(graph, optimize=0)
    with tenon.open(bundle) as engine:
        for key, array in engine.run(feeds).items():
            np.testing.assert_array_equal(array, right[key])
    copies = [node.kernel for node in bundle.interface.nodes if node.kernel in ("copy", "reorder")]
    assert len(copies) == 2 + COPIES[kind], "two are of the states before the loop"


def by_hand(kind: str, feeds: dict[str, Array], right: dict[str, Array], reverse: bool) -> None:
    """The same in NumPy, for bodies whose next states are easy to write."""
    a, b, x, w = feeds.values()
    rows = []
    for t in reversed(range(6)) if reverse else range(6):
        mixed = a * w + x[t]
        rows.append(mixed)
        if kind == "swapped":
            a, b = b, a
        elif kind == "kept":
            b = mixed
        elif kind == "crossed":
            a, b = b + x[t], a - x[t]
        else:
            return
    np.testing.assert_allclose(right["out0"], a, rtol=1e-6)
    np.testing.assert_allclose(right["out1"], b, rtol=1e-6)
    if kind != "kept":
        np.testing.assert_allclose(right["out2"], np.stack(rows[::-1] if reverse else rows), rtol=1e-6)


def body_in_bytes(*, floats: bool) -> Graph:
    """A body whose state is of i8."""
    body = Graph("body")
    state = body.add_input("state", tensor(DType.I8, 5))
    if floats:
        real = add(body, "Tanh", body.add(Cast("f32"), [state], ["real"]).output)
        body.outputs = [body.add(Cast("i8"), [real], ["whole"]).output]
    else:
        body.outputs = [add(body, "Add", state, state)]
    return body


@pytest.mark.parametrize("floats", [False, True])
def test_loops_in_quantised_networks(floats: bool) -> None:
    """Results of those that compute with integers only are the same on all machines."""
    assert is_exact(looped(body_in_bytes(floats=floats), 3, 1, 0)) is not floats


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.usefixtures("every_kernel_divided")
def test_loops_nest(threads: int) -> None:
    inner, states, slices = body_of("crossed")
    outer = Graph("outer body")
    a, b, x, w = (outer.add_input(n, tensor(DType.F32, *((4, 5) if n == "x" else (5,)))) for n in "abxw")
    names = ["a2", "b2", "y"]
    made = outer.add(Scan(4, states, slices, True), [a, b, x, w], names, Origin("", "inner", "Scan"), bodies=[inner])
    outer.outputs = [made.outputs[0], add(outer, "Tanh", made.outputs[1]), made.outputs[2]]
    graph = looped(outer, 3, 2, 1)
    verify(graph)
    feeds = feed(graph)
    right = evaluate(graph, feeds)
    assert right["out2"].shape == (3, 4, 5)
    for each in (graph, unrolled(graph)):
        for key, array in run(each, feeds, threads).items():
            np.testing.assert_allclose(array, right[key], rtol=1e-5, atol=1e-6)
    assert not loops(unrolled(graph))


def test_text_and_copies() -> None:
    graph = looped(body_of("crossed")[0], 6, 2, 1)
    text = show(graph, "base64")
    again = parse(text, constructors())
    verify(again)
    assert same(graph, again)
    assert show(again, "base64") == text
    copy = graph.copy()
    optimize(copy)
    assert show(graph, "base64") == text, "the copy has a body of its own"
    feeds = feed(graph)
    for key, array in evaluate(again, feeds).items():
        np.testing.assert_array_equal(array, evaluate(graph, feeds)[key])


def test_equal_loops_with_other_bodies_stay_apart() -> None:
    graph = looped(body_of("crossed")[0], 6, 2, 1)
    other = graph.add(
        Scan(6, 2, 1), graph.nodes[0].inputs, ["p", "q", "r"], Origin("", "other", "Scan"), bodies=[body_of("kept")[0]]
    )
    graph.outputs = [add(graph, "Add", graph.outputs[0], other.outputs[0])]
    feeds = feed(graph)
    right = evaluate(graph, feeds)
    np.testing.assert_allclose(run(graph, feeds)["add_2"], right["add_2"], rtol=1e-6, atol=1e-6)


def test_values_of_the_outer_graph_are_no_part_of_a_body() -> None:
    graph = looped(body_of("crossed")[0], 6, 2, 1)
    (body,) = graph.nodes[0].bodies
    body.outputs[2] = graph.inputs[3]
    with pytest.raises(InternalError, match=r"bodies_are_whole.*'in3'"):
        verify(graph)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda graph, body: body.outputs.__setitem__(0, body.constant("c", np.zeros(6, np.float32))), "and then f32"),
        (lambda graph, body: body.add_input("more", tensor(DType.F32, 5)), "its body has 5 inputs"),
        (lambda graph, body: setattr(body.inputs[0], "type", tensor(DType.F32, 4)), "its body takes f32"),
        (lambda graph, body: setattr(graph.inputs[2], "type", tensor(DType.F32, 7, 5)), "has not 6 slices"),
    ],
)
def test_bodies_that_do_not_fit(change: Callable[[Graph, Graph], object], words: str) -> None:
    graph = looped(body_of("swapped")[0], 6, 2, 1)
    change(graph, graph.nodes[0].bodies[0])
    with pytest.raises(InternalError, match=words):
        verify(graph)


def test_devices_with_a_queue_get_the_loop() -> None:
    """The host queues the steps of its body as often as it runs."""
    bundle = tenon.compile(recurrent("RNN", steps=40), target="opencl")
    assert any(isinstance(item, Repeat) for item in bundle.program.items)
    assert "iterations[0] < 40;" in bundle.source
