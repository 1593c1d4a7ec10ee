"""``change_concat_ranges``: one range for a concatenation and all that it joins; MACE's ``quantize_range_file``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from installed import environment
from installed import tenon as command

RANGES = {"x": (-1.0, 1.0), "a": (-1.0, 2.0), "b": (-3.0, 1.0), "c": (-1.0, 1.0), "y": (-8.0, 8.0), "z": (-8.0, 8.0)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions whose results are concatenated; one of them is read by another convolution, too."""
    rng = np.random.default_rng(0)
    shapes = {"v": (4, 3, 1, 1), "w": (4, 3, 1, 1), "p": (2, 8, 1, 1), "q": (2, 4, 1, 1)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"]),
        helper.make_node("Conv", ["x", "w"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "p"], ["y"]),
        helper.make_node("Conv", ["b", "q"], ["z"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 4, 4]) for name in "yz"]
    graph = helper.make_graph(nodes, "main_graph", [x], results, weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "net.onnx"
    )
    (tmp_path / "net.range").write_text("".join(f"{name}@@{low},{high}\n" for name, (low, high) in RANGES.items()))
    return tmp_path / "net.onnx"


def scales(file: Path) -> dict[str, float]:
    """The scales of QuantizeLinear, by the tensors that it reads."""
    graph = onnx.load(file).graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0]: float(constants[node.input[1]].reshape(())) for node in nodes}


def requantised(file: Path) -> bool:
    """Whether parts of the concatenation have another scale than its result."""
    report = tenon.inspect(file)[0]
    return len({v for k, v in scales(file).items() if k.startswith(("a", "b", "c"))}) > 1 or not report


def test_parts_and_result_have_one_range(model: Path) -> None:
    out = model.with_name("q.onnx")
    done = command("quantize", model, "--ranges", model.with_name("net.range"), "-o", out)
    assert done.returncode == 0, done.stderr
    assert requantised(out)
    done = command("quantize", model, "--ranges", model.with_name("net.range"), "--change-concat-ranges", "-o", out)
    assert done.returncode == 0, done.stderr
    assert not requantised(out)
    made = tenon.quantize(model, ranges=RANGES, change_concat_ranges=True)
    made.save_ranges(model.with_name("new.range"))
    lines = dict(line.split("@@") for line in model.with_name("new.range").read_text().splitlines())
    for name in ("b", "c"):
        low, high = map(float, lines[name].split(","))
        assert (low, high) == pytest.approx((-3, 2), abs=0.02)  # a step of the integers


@pytest.mark.parametrize("schema", ["uint8", "int8"])
def test_maces_range_file(schema: str, model: Path) -> None:
    """The command writes what ``tenon.quantize`` makes of the same file."""
    folder = model.parent
    words = ["--model_file", "net.onnx", "--quantize_range_file", "net.range", "--output", "made.onnx"]
    line = [
        sys.executable,
        "-m",
        "tenon.compat.mace",
        "quantize_range_file",
        *words,
        "--quantize_schema",
        schema,
    ]
    for more in ([], ["--change_concat_ranges"]):
        done = subprocess.run(
            [*line, *more], cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.strip()) == (0, "made.onnx"), done.stderr
        made = tenon.quantize(model, ranges=folder / "net.range", scheme=schema, change_concat_ranges=bool(more))
        made.save(folder / "same.onnx")
        assert (folder / "made.onnx").read_bytes() == (folder / "same.onnx").read_bytes()
        assert requantised(folder / "made.onnx") == (not more)
    (folder / "net.range").write_text("x@@1\n")
    done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "net.range" in done.stderr


@pytest.mark.parametrize("range_search", [False, True])
def test_calibrated_ranges_are_joined_too(range_search: bool, model: Path) -> None:
    samples = [np.random.default_rng(i).uniform(-1, 1, (1, 3, 4, 4)).astype(np.float32) for i in range(4)]
    net, out = onnx.load(model), model.with_name("q.onnx")
    weights = net.graph.initializer[0]  # of the part that nothing else reads: it has the wider range
    weights.CopyFrom(numpy_helper.from_array(3 * numpy_helper.to_array(weights), weights.name))
    onnx.save(net, model)
    for join in (False, True):
        made = tenon.quantize(
            model, samples, method="min-max", change_concat_ranges=join, range_search=range_search, equalisation=False
        )
        made.save(out)
        assert requantised(out) == (not join)
