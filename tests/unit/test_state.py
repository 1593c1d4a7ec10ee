"""States, which networks keep from run to run, and the tensors that they append to."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tenon
from command_line import run_main
from libtenon import CLIENTS, needed, run, sdk_for_clients, succeeded
from onnx_models import model, node, random
from tenon.cli import main
from tenon.errors import InputError, ResourceError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Origin
from tenon.network.graph.types import DType, tensor
from tenon.network.ops import registry


def copies(bundle: tenon.Bundle) -> int:
    """How many kernels of a bundle copy a whole tensor."""
    return sum(node.kernel in ("copy", "reorder") for node in bundle.interface.nodes)


# ------------------------------------------------------------------------------------------- writing in place
@pytest.mark.parametrize(("name", "own"), [("Append", True), ("ScatterND", True), ("Append", False)])
def test_rows_written_into_a_tensor(name: str, own: bool) -> None:
    """Rows are written over a tensor that nothing reads later, and into a copy of a graph input."""
    graph = Graph("rows")
    x, new = graph.add_input("x", tensor(DType.F32, 5, 3)), graph.add_input("new", tensor(DType.F32, 1, 3))
    data = graph.add(registry()["Tanh"](), [x], ["made"]).output if own else x
    if name == "Append":
        inputs = [data, new, graph.add_input("at", tensor(DType.I64))]
    else:
        inputs = [data, graph.add_input("at", tensor(DType.I64, 1, 1)), new]
    graph.outputs = [graph.add(registry()[name](), inputs, ["y"], Origin("", "rows", name)).output]
    feeds = {
        "x": np.arange(15, dtype=np.float32).reshape(5, 3),
        "new": np.full((1, 3), 9, np.float32),
        "at": np.full(graph.inputs[2].type.dims, 2),
    }
    right = evaluate(graph, feeds)["y"]
    bundle = tenon.compile(graph)
    assert copies(bundle) == (0 if own else 1)
    with tenon.open(bundle) as engine:
        np.testing.assert_allclose(engine.run(feeds)["y"], right, rtol=1e-6)


# --------------------------------------------------------------------------------------------- recurrent networks
def recurrent(steps: int, *, initial: bool = False) -> Graph:
    """A GRU of an exporter that passes its state through; with ``initial``, the model says what it begins with."""
    inputs = {"x": (steps, 1, 5), "h": (1, 1, 4)}
    weights = {"W": random(1, 12, 5, seed=1), "R": random(1, 12, 4, seed=2)}
    layer = node("GRU", ["x", "W", "R", "", "", "h"], ["y", "hn"], hidden_size=4)
    graph = tenon.load(model([layer], inputs, ["y", "hn"], weights).SerializeToString())
    if initial:
        graph.initial["h"] = (0.5, -1.0, 2.0, 0.25)
    return graph


def by_hand(graph: Graph, sequence: Sequence[Array], state: Array) -> list[Array]:
    """The outputs y for a sequence, with the state fed by the caller, as NumPy computes them."""
    results = []
    for x in sequence:
        known = evaluate(graph, {"x": x, "h": state})
        state = known[graph.outputs[1].name]
        results.append(known[graph.outputs[0].name])
    return results


@pytest.mark.parametrize(("steps", "threads"), [(2, 1), (40, 2)])
def test_a_state_is_kept_from_run_to_run(steps: int, threads: int) -> None:
    graph = recurrent(steps, initial=True)
    sequence = [random(steps, 1, 5, seed=i) for i in range(3)]
    initial = np.array(graph.initial["h"], np.float32).reshape(1, 1, 4)
    bundle = tenon.compile(graph, threads=threads, no_tuning=True)
    (x, h), (y, hn) = bundle.interface.inputs, bundle.interface.outputs
    assert (x.state, h.state, y.state, hn.state) == ("", "hn", "", "h")
    assert h.offset == hn.offset
    with tenon.open(bundle, threads=threads) as engine:
        for right in (by_hand(graph, sequence, initial), by_hand(graph, sequence, initial)):
            for array, expected in zip(sequence, right, strict=True):
                np.testing.assert_allclose(engine.run(array)["y"], expected, rtol=1e-5, atol=1e-6)
            engine.reset()
        fed = random(1, 1, 4, seed=9)
        after = by_hand(graph, sequence[:2], fed)
        np.testing.assert_allclose(engine.run({"x": sequence[0], "h": fed})["y"], after[0], rtol=1e-5, atol=1e-6)
        with engine.fork() as other:
            np.testing.assert_allclose(
                other.run({"x": sequence[0]})["y"], by_hand(graph, sequence[:1], initial)[0], rtol=1e-5, atol=1e-6
            )
        np.testing.assert_allclose(engine.run({"x": sequence[1]})["y"], after[1], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="closed"):
        engine.reset()


def test_states_that_are_none() -> None:
    """They are inputs like all others."""
    bundle = tenon.compile(recurrent(2), states={"": "none"})
    assert not any(tensor.state for tensor in bundle.interface.inputs)
    assert "_reset" not in bundle.header
    with tenon.open(bundle) as engine, pytest.raises(InputError, match="input 'h' is missing"):
        engine.run({"x": random(2, 1, 5)})
    assert not any(t.state for t in tenon.compile(recurrent(2), states={"h": "none"}).interface.inputs)


def test_programs_in_c_and_cpp(tmp_path: Path) -> None:
    """A program with the bundle inside, and one that opens it, by one thread and two: two sequences, the second one
    from the beginning."""
    if platform.machine() != "x86_64":
        pytest.skip("the SDK is compiled for x86-64 here")
    graph = recurrent(40, initial=True)
    sequences = [[random(40, 1, 5, seed=i) for i in range(n)] for n in (3, 2)]
    initial = np.array(graph.initial["h"], np.float32).reshape(1, 1, 4)
    right = np.concatenate([np.stack(by_hand(graph, sequence, initial)) for sequence in sequences])
    given = b"".join(bytes([len(s)]) + b"".join(x.tobytes() for x in s) for s in sequences)
    bundle = tenon.compile(graph, name="net", target="x86-64", threads=2, no_tuning=True)
    folder = bundle.save(tmp_path / "net", ("header", "object", "weights", "weights-text", "manifest", "library"))
    built = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{folder}", CLIENTS / "state_program.c")
    succeeded(run(needed("gcc"), *built, folder / "net.o", "-o", tmp_path / "program"))
    sdk = sdk_for_clients(tmp_path, "")
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon")
    client = CLIENTS / "state_client.cpp"
    succeeded(run(needed("g++"), client, *flags, f"-Wl,-rpath,{sdk}/lib", "-o", tmp_path / "client"))
    commands: list[list[str | Path]] = [
        [tmp_path / "program"],
        [tmp_path / "client", folder],
        [tmp_path / "client", folder, "2"],
    ]
    for words in commands:
        results = np.frombuffer(succeeded(run(*words, stdin=given)), np.float32).reshape(right.shape)
        np.testing.assert_allclose(results, right, rtol=1e-5, atol=1e-6)


def test_two_rates_in_one_bundle(tmp_path: Path) -> None:
    """As for a voice detector: a condition chooses a network for each length of the input; both keep one state."""
    weights = {"a": random(6, 4, seed=1), "b": random(4, 4, seed=2), "r": random(4, 4, seed=3)}
    branches = [
        helper.make_graph(
            [node("MatMul", ["x", w], [f"{w}x"])],
            w,
            [],
            [helper.make_tensor_value_info(f"{w}x", TensorProto.FLOAT, None)],
        )
        for w in "ab"
    ]
    nodes = [
        node("Equal", ["sr", "rate"], ["fast"]),
        node("If", ["fast"], ["own"], then_branch=branches[0], else_branch=branches[1]),
        node("MatMul", ["state", "r"], ["kept"]),
        node("Add", ["own", "kept"], ["sum"]),
        node("Tanh", ["sum"], ["stateN"]),
        node("ReduceSum", ["stateN"], ["y"]),
    ]
    made = model(
        nodes,
        {"x": (1, None), "state": (1, 4), "sr": ()},
        ["y", "stateN"],
        {**weights, "rate": np.array(16, np.float32)},
    )
    rates, lengths = (16, 8), (6, 4)
    shapes = [{"x": (1, n), "state": (1, 4)} for n in lengths]
    bundle = tenon.compile(made.SerializeToString(), shapes=shapes, values=[{"sr": rate} for rate in rates])
    with tenon.open(bundle) as engine:
        state = np.zeros((1, 4), np.float32)
        for i, (own, n) in enumerate([("a", 6), ("b", 4), ("b", 4), ("a", 6)]):
            x = random(1, n, seed=i)
            state = np.tanh(x @ weights[own] + state @ weights["r"])
            np.testing.assert_allclose(engine.run(x)["y"], state.sum(keepdims=True), rtol=1e-5, atol=1e-6)
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    words = ["--shape", "x=1,6", "--shape", "x=1,4", "--value", "sr=16", "--value", "sr=8"]
    command = ["compile", str(tmp_path / "net.onnx"), *words, "-o", str(tmp_path / "out"), "--emit", "header"]
    assert run_main(main, command) == 0
    assert "NET_2_state 0 " in (tmp_path / "out" / "net.h").read_text()
    assert run_main(main, [*command[:-4], "--value", "sr=4"]) == 2
    with pytest.raises(InputError, match="values for 1 bindings and shapes for 2"):
        tenon.compile(made.SerializeToString(), shapes=shapes, values=[{"sr": 16}])


# --------------------------------------------------------------------------------------------------- command line
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sequence through 'tenon run' and an executable, a state by option, and what 'tenon inspect' says of states."""
    layer = node("GRU", ["x", "W", "R", "", "", "past"], ["y", "last"], hidden_size=4)
    weights = {"W": random(1, 12, 5, seed=1), "R": random(1, 12, 4, seed=2)}
    made = model([layer], {"x": (2, 1, 5), "past": (1, 1, 4)}, ["y", "last"], weights)
    path, sequence = tmp_path / "net.onnx", random(3, 2, 1, 5, seed=3)
    path.write_bytes(made.SerializeToString())
    np.save(tmp_path / "x.npy", sequence)
    np.save(tmp_path / "first.npy", sequence[0])
    graph = tenon.load(path)
    graph.inputs[1].name = "h"
    right = by_hand(graph, list(sequence), np.zeros((1, 1, 4), np.float32))
    keep = ("--state", "past=last")

    def tenon_command(*words: str | Path) -> str:
        assert run_main(main, list(map(str, words))) == 0
        return "".join(capsys.readouterr())

    shown = tenon_command("run", path, "--input", f"x={tmp_path / 'x.npy'}", *keep, "--output", tmp_path / "y.npz")
    assert "last float32[1, 1, 4]" in shown
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], np.stack(right), rtol=1e-5, atol=1e-6)
    assert "past  f32[1,1,4]  a state: last" in tenon_command("inspect", path, *keep)

    folder = tmp_path / "out"
    tenon_command("compile", path, *keep, "-o", folder, "--emit", "exe")
    words = (folder / "net", tmp_path / "first.npy", "--repeat", "3", "--raw-output", tmp_path / "raw")
    succeeded(run(*words))
    first = np.fromfile(tmp_path / "raw", np.float32)[:8].reshape(2, 1, 1, 4)
    np.testing.assert_allclose(first, right[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_gpus_keep_states(target: str, tmp_path: Path) -> None:
    """They keep them where the first run of OpenCL measures groups in many runs, too."""
    graph = recurrent(2, initial=True)
    sequence, initial = [random(2, 1, 5, seed=i) for i in range(2)], np.array(graph.initial["h"], np.float32)
    bundle = tenon.compile(graph, target=target, name="net")
    with tenon.open(bundle, gpu={"tune": str(tmp_path / "groups")}) as engine:
        try:
            engine.prepare()
        except ResourceError as error:
            pytest.skip(str(error))
        for _ in range(2):
            for x, y in zip(sequence, by_hand(graph, sequence, initial.reshape(1, 1, 4)), strict=True):
                np.testing.assert_allclose(engine.run(x)["y"], y, rtol=1e-5, atol=1e-6)
            engine.reset()


def test_states_are_not_on_streams() -> None:
    pytest.importorskip("nvidia", reason="pip install nvidia-cuda-nvrtc")
    with (
        tenon.open(tenon.compile(recurrent(2, initial=True), target="cuda", name="net")) as engine,
        pytest.raises(InputError, match=r"'net' keeps states, .*: use run\(\)"),
    ):
        engine.run_on_device()
