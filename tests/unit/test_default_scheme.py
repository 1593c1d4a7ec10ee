"""The scheme that ``--target`` decides, and that the command says which and why."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from installed import tenon as command
from tenon.errors import InputError
from tenon.machine.targets import find
from tenon.runtime.engine.instruction_count import count, missing
from tenon.tools.quantization.default_scheme import default_scheme, estimated_times


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A 3x3 and a 1x1 convolution of 32 channels, and samples beside it."""
    rng = np.random.default_rng(0)
    shapes = {"v": (32, 8, 3, 3), "w": (32, 32, 1, 1)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 16, 16])
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    opset = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", rng.uniform(-1, 1, (8, 8, 16, 16)).astype(np.float32))
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    ("target", "scheme", "why"),
    [
        ("host", "int8", "every target computes it"),
        ("x86-64", "fp16", "weights of 16 bits, sums of floats"),  # measured: integers take 1.1 to 1.3 of the time
        ("aarch64-dotprod", "int8", "of the time of floats on aarch64-dotprod"),
        ("raspberry-pi-5", "int8", "of the time of floats on raspberry-pi-5"),
        ("wasm32", "int8", "of the time of floats on wasm32"),
        ("aarch64", "fp16", "weights of 16 bits, sums of floats"),
        ("raspberry-pi-4", "fp16", "weights of 16 bits, sums of floats"),
        ("armv7", "fp16", "weights of 16 bits, sums of floats"),
        ("cortex-m4", "int8", "is a microcontroller"),
        ("riscv64", "fp16", "weights of 16 bits, sums of floats"),
        ("powerpc64le", "fp16", "weights of 16 bits, sums of floats"),
    ],
)
def test_target_decides(target: str, scheme: str, why: str, model: Path) -> None:
    graph = tenon.load(model)
    before = str(graph)
    chosen, reason = default_scheme(graph, target)
    assert (chosen, why in reason) == (scheme, True), reason
    assert str(graph) == before


def test_estimate_is_that_of_the_decision(model: Path) -> None:
    """The share that the reason states is that of the network which is quantised by real ranges, too."""
    graph = tenon.load(model)
    made = tenon.quantize(graph, np.load(model.with_name("x.npy")), scheme="int8", method="min-max").graph
    integers, floats = (sum(estimated_times(each, "riscv64").values()) for each in (made, graph))
    assert f"take {integers / floats:.2f} of" in default_scheme(graph, "riscv64")[1]


def test_estimate_has_all_channels(model: Path) -> None:
    """Some have a bias beyond the ranges that the estimate is made with: constant channels cost nothing."""
    file, moved = onnx.load(model), onnx.load(model)
    moved.graph.initializer.append(numpy_helper.from_array(np.tile(np.array([0, 50], np.float32), 16), "b"))
    moved.graph.node[0].input.append("b")
    reasons = [default_scheme(tenon.load(each.SerializeToString()), "riscv64")[1] for each in (file, moved)]
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize(("target", "slower"), [("cortex-m7", True), ("cortex-m0", False), ("cortex-m55", False)])
def test_microcontrollers_that_are_faster_in_floats_are_told(target: str, slower: bool) -> None:
    """Depthwise and narrow 1x1 convolutions, of which a Cortex-M7 needs 1.4 times the instructions in integers."""
    rng = np.random.default_rng(0)
    shapes = {"d": (16, 1, 3, 3), "p": (16, 16, 1, 1)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["a"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "p"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16, 16, 16]) for n in "xy")
    graph = tenon.load(helper.make_model(helper.make_graph(nodes, "net", [x], [y], weights)).SerializeToString())
    scheme, reason = default_scheme(graph, target)
    assert scheme == "int8"
    assert ("though integers take 1." in reason) == slower


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32imc"])
def test_estimate_of_microcontrollers(target: str) -> None:
    """With and without floating point: integers over floats within 1.6 of what an emulator counts."""
    if why := missing(find(target)):
        pytest.skip(why)
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in {"v": (16, 16, 3, 3), "w": (32, 16, 1, 1)}.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 8, 8])
    graph = tenon.load(helper.make_model(helper.make_graph(nodes, "net", [x], [y], weights)).SerializeToString())
    data = rng.uniform(-1, 1, (4, 1, 16, 8, 8)).astype(np.float32)
    made = tenon.quantize(graph, list(data), scheme="int8", method="min-max", range_search=False).graph
    counted = [count(tenon.compile(each, target=target), [{"x": data[0]}]).instructions[0] for each in (made, graph)]
    estimated = [sum(estimated_times(each, target).values()) for each in (made, graph)]
    share = (estimated[0] / estimated[1]) / (counted[0] / counted[1])
    assert 1 / 1.6 < share < 1.6


@pytest.mark.parametrize("target", ["aarch64", "armv7"])
def test_estimate_follows_counted_instructions(target: str, tmp_path: Path) -> None:
    """A depthwise and a 1x1 convolution, as keyword networks have them: integers over floats, by the cost model within
    a quarter of what an emulator counts."""
    if why := missing(find(target)):
        pytest.skip(why)
    rng = np.random.default_rng(0)
    shapes = {"v": (32, 1, 3, 3), "w": (32, 32, 1, 1)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1, 1, 1, 1], group=32),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32, 20, 10]) for name in "xy")
    graph = tenon.load(helper.make_model(helper.make_graph(nodes, "net", [x], [y], weights)).SerializeToString())
    data = rng.uniform(-1, 1, (4, 1, 32, 20, 10)).astype(np.float32)
    made = tenon.quantize(graph, list(data), scheme="int8", method="min-max", range_search=False).graph
    counted, estimated = [], []
    for each in (made, graph):
        functions = count(tenon.compile(each, target=target, no_tuning=True), [{"x": data[0]}]).functions
        counted.append(sum(n for name, n in functions.items() if "conv" in name or "depthwise" in name))
        estimated.append(sum(estimated_times(each, target).values()))
    share = (estimated[0] / estimated[1]) / (counted[0] / counted[1])
    assert 0.8 < share < 1.25


def test_command_says_which_scheme_and_why(model: Path) -> None:
    words = ("quantize", model, "--data", model.with_name("x.npy"), "-o", model.with_name("q.onnx"))
    done = command(*words, "--target", "riscv64")
    assert done.returncode == 0, done.stderr
    assert "scheme fp16 (integers take " in done.stdout
    assert not done.stderr  # no ranges are measured
    stored = {each.data_type for each in onnx.load(model.with_name("q.onnx")).graph.initializer}
    assert TensorProto.FLOAT16 in stored
    measured = command(*words, "--target", "riscv64", "--scheme", "int8", "--json")
    assert "few samples (" in measured.stderr
    asked = json.loads(measured.stdout)
    assert (asked["scheme"], asked["scheme_reason"]) == ("int8", "")
    chosen = json.loads(command(*words, "--target", "cortex-m4", "--json").stdout)
    assert (chosen["scheme"], "microcontroller" in chosen["scheme_reason"]) == ("int8", True)
    bounded = json.loads(command(*words, "--target", "riscv64", "--min-sqnr", "20", "--json").stdout)
    assert bounded["scheme"] == "int8"


def test_tmfiles_are_symmetric(model: Path) -> None:
    """Tengine's int8 has no zero points."""
    out = model.with_name("q.tmfile")
    done = command("quantize", model, "--data", model.with_name("x.npy"), "-o", out, "--target", "riscv64", "--json")
    assert json.loads(done.stdout)["scheme"] == "int8-symmetric"
    grids = [node for node in tenon.load(out) if node.op.name == "QuantizeLinear"]
    zeros = [node.input(2).array for node in grids if len(node.inputs) > 2 and node.inputs[2] is not None]
    assert grids
    assert not any(zero.any() for zero in zeros)


def test_unknown_target(model: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        tenon.quantize(model, np.load(model.with_name("x.npy")), target="nowhere")


def test_report_of_known_ranges(model: Path) -> None:
    """With samples beside the ranges the report says what these cost; without, nothing is printed of it."""
    ranges, data = {"x": [-1, 1], "r": [0, 20], "y": [-40, 40]}, model.with_name("x.npy")
    lines = "".join(f"{name}: {pair}\n" for name, pair in ranges.items())
    model.with_name("wide.yml").write_text(lines)
    model.with_name("coarse.yml").write_text(lines.replace("20]", "2000]"))
    words = ("quantize", model, "-o", model.with_name("q.onnx"))
    sqnr = {}
    for name in ("wide", "coarse"):
        report = json.loads(
            command(*words, "--ranges", model.with_name(f"{name}.yml"), "--data", data, "--json").stdout
        )
        assert (report["method"], report["samples"]) == ("known ranges", 8)
        assert {each["name"] for each in report["tensors"]} >= {"x", "r"}
        sqnr[name] = report["outputs"][0]["sqnr"]
    assert sqnr["coarse"] < sqnr["wide"] - 10
    silent = command(*words, "--ranges", model.with_name("wide.yml"))
    assert silent.returncode == 0, silent.stderr
    assert "SQNR" not in silent.stdout
