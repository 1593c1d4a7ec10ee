"""Loops and branches that a run decides, and sizes that it checks, on the devices that there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

import tenon
from exact_onnxruntime import session
from gpu_devices import needs_compiler, why_not
from onnx_models import model, node, random
from sized import LARGEST, ROWS, positive_plus_one, rows
from tenon.errors import InputError, UnsupportedError
from tenon.machine.plan.program import Repeat, repeats
from tenon.network.graph.graph import Array, Graph
from tenon.options import Options
from tenon.runtime.engine import Engine

LANGUAGES = ("opencl", "cuda", "vulkan")
MOST = 7
"""The most iterations of the outer loop, whose results are stacked."""

NETWORK = """<ir_version: 8, opset_import: ["": 21]>
g (int64 n, float[6] s, float[6] x) => (float[6] y, float[k,6] z) {
    yes = Constant <value = bool {1}> () three = Constant <value = int64 {3}> () one = Constant <value = float {1.0}> ()
    most = Constant <value = float {4.0}> ()
    y, z = Loop (n, yes, s) <body = b (int64 i, bool c, float[6] t) => (bool d, float[6] u, float[6] v) {
        p = Add(i, three)
        q = Loop (p, yes, t) <body = b2 (int64 j, bool c2, float[6] t2) => (bool d2, float[6] u2) {
            d2 = Identity(c2) w2 = Mul(t2, x) u2 = Tanh(w2) }>
        m = ReduceSum <keepdims: int = 0> (q)
        zero = Sub(one, one)
        h = Greater(m, zero)
        r = If (h) <
            then_branch = th () => (float[6] a) { a = MatMul(q, w) },
            else_branch = el () => (float[6] e) { f = Cast <to: int = 1> (i) g = Add(q, f) e = Sub(g, x) }>
        u = Add(r, t)
        o = ReduceMax <keepdims: int = 0> (u)
        d = Less(o, most)
        v = Mul(u, u)
    }>
}"""
"""A loop of n iterations or fewer, which stacks results, with a loop of i + 3 iterations and a branch in it."""


def content() -> bytes:
    made = onnx.parser.parse_model(NETWORK)
    made.graph.initializer.append(onnx.numpy_helper.from_array(random(6, 6, seed=5), "w"))
    serialized: bytes = made.SerializeToString()
    return serialized


@pytest.fixture(scope="module")
def graph() -> Graph:
    return tenon.load(content(), max={"n": MOST})


def feeds(number: int) -> dict[str, Array]:
    """Inputs with ``number`` trips, of which the loop makes all if ``number`` is odd."""
    rng = np.random.default_rng(number)
    state = np.abs(rng.normal(0, 0.5, 6)) * (1 if number % 2 else 4)
    x = rng.normal(0.5, 0.5, 6) * (1 if number % 3 else -1)
    return {"n": np.array(number), "s": state.astype(np.float32), "x": x.astype(np.float32)}


def close(results: dict[str, Array], right: list[Array], tolerance: float) -> None:
    y, z = right
    np.testing.assert_allclose(results["y"], y, atol=tolerance)
    np.testing.assert_allclose(results["z"][: len(z)], z, atol=tolerance)
    assert not results["z"][len(z) :].any()


@pytest.fixture(params=LANGUAGES, scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """Each language for which there is a device."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    needs_compiler(request.param)
    return str(request.param)


@pytest.fixture(params=["fp32", "fp16"], scope="module")
def engine(request: pytest.FixtureRequest, device: str, graph: Graph) -> Iterator[tuple[Engine, float]]:
    """The network on a device, and how far its results may be from the right ones."""
    options = Options.from_environment(target=device, precision=request.param, no_tuning=True)
    bundle = tenon.compile(graph, options)
    assert len(list(repeats(bundle.program.items))) == 2
    with tenon.open(bundle) as opened:
        yield opened, 1e-5 if request.param == "fp32" else 2e-2


def test_loops_and_branches_are_those_of_the_processor(engine: tuple[Engine, float]) -> None:
    """Trip counts of a run, early ends, both branches; untimed and timed runs, whose other kernels take no time."""
    opened, tolerance = engine
    peer = session(content())
    ends, branches = set[int](), set[tuple[bool, ...]]()
    for number in range(MOST + 1):
        given = feeds(number)
        right = peer.run(None, given)
        close(opened.run(given), right, tolerance)
        for array in opened.outputs.values():
            array[...] = 0
        times = dict(zip((each.layer for each in opened.manifest.nodes), opened.device_times()[2:], strict=True))
        close(dict(opened.outputs), right, tolerance)
        ends.add(number - len(right[1]))
        branches.add(tuple(bool(times[name]) for name in ("a", "g")))
    assert len(ends) > 2, "some runs end early, at different iterations"
    assert {(False, False), (True, False), (False, True)} <= branches


def test_too_many_iterations_end_a_run(engine: tuple[Engine, float]) -> None:
    """The device still works after."""
    opened, tolerance = engine
    given = feeds(MOST) | {"s": np.full(6, -99, np.float32), "x": np.zeros(6, np.float32)}
    peer = session(content())
    for _ in range(2):
        close(opened.run(given), peer.run(None, given), tolerance)
        opened.inputs["n"][...] = MOST + 2
        for run in (opened.run, opened.device_times):
            with pytest.raises(InputError, match="'g': for these inputs a loop would run more often"):
                run()


def test_recurrent_layers_of_any_length(device: str) -> None:
    """An LSTM runs as often as the run's length says, and a length out of range ends the run."""
    weights = {"w": random(1, 20, 3), "r": random(1, 20, 5), "b": random(1, 40)}
    layer = node("LSTM", ["x", *weights], ["y", "last"], hidden_size=5)
    content = model([layer], {"x": ["L", 1, 3]}, ["y", "last"], weights).SerializeToString()
    bundle = tenon.compile(content, target=device, shapes={"L": tenon.Size("L", 2, 40)}, no_tuning=True)
    peer = session(content)
    with tenon.open(bundle) as opened:
        for length in (2, 40, 9):
            x = random(length, 1, 3, seed=length)
            results = opened.run(x)
            for name, array in zip(("y", "last"), peer.run(None, {"x": x}), strict=True):
                np.testing.assert_allclose(results[name], array, atol=1e-5)


def test_sizes_that_a_run_computes_are_checked(device: str) -> None:
    x = np.ones((ROWS, LARGEST), np.float32)
    with tenon.open(tenon.compile(rows(computed=True), target=device, no_tuning=True)) as opened:
        for length in (4, 24, 20):
            opened.inputs["x"][...] = x
            opened.inputs["L"][...] = length
            if length == 24:
                for run in (opened.run, opened.device_times):
                    with pytest.raises(InputError, match=r"'rows': size 'count' is 48, not in 0\.\.40 \(--max\)"):
                        run()
                continue
            results = opened.run()
            np.testing.assert_array_equal(results["y"], positive_plus_one(x[:, :length]))
            assert results["n"] == 2 * length
        opened.inputs["L"][...] = 5
        with pytest.raises(InputError, match=r"'rows': size 'L' is 5, not in 4\.\.24:4"):
            opened.device_times()


@pytest.mark.parametrize("language", LANGUAGES)
def test_networks_without_decisions_are_recorded_once(language: str, graph: Graph) -> None:
    """The host program of others has what reads numbers, and a table says so."""
    needs_compiler(language)
    relu = model([node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"]).SerializeToString()
    for network, reads in ((graph, 1), (relu, 0)):
        source = tenon.compile(network, target=language, name="net", no_tuning=True).source
        assert f"net_launch, {reads}, NULL, " in source
        assert source.count("static int queue_read(") == source.count("static int device_repeats(") == reads


def test_counts_that_a_body_leaves_alone_are_read_once(graph: Graph) -> None:
    """The inner loop ends by its count alone; the outer one may end early."""
    source = tenon.compile(graph, target="opencl", no_tuning=True).source
    launch = source[source.index("static int g_launch(") :]
    assert launch.count("for (iterations[1] = 0; device_repeats(counts[1], iterations[1], ") == 1
    assert launch.count("for (iterations[0] = 0; device_repeats(device_number(") == 1


def test_first_steps_of_loops_wait() -> None:
    """In a loop at the beginning of a network, for those of the iteration before."""
    body = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 21]> g (float[40,8] x) => (float[40,8] y) {'
        " y = Scan <num_scan_inputs: int = 1, body = b (float[8] r) => (float[8] v)"
        " { m = MatMul(r, w) s = Softmax(m) v = MatMul(s, w) }> (x) }"
    )
    body.graph.initializer.append(onnx.numpy_helper.from_array(random(8, 8), "w"))
    bundle = tenon.compile(body.SerializeToString(), target="vulkan", no_tuning=True)
    (loop,) = bundle.program.items
    assert isinstance(loop, Repeat)
    table = bundle.source[bundle.source.index("g_bindings[] = {") :].splitlines()
    assert table[1].endswith("1},")


def test_browsers_take_no_decisions(graph: Graph) -> None:
    with pytest.raises(UnsupportedError, match="no loops whose number of iterations is known only at run time"):
        tenon.compile(graph, target="webgpu")
