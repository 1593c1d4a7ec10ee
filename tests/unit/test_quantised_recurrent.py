"""LSTM and GRU networks in integers: keywords of random features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import exact_onnxruntime
import tenon
from networks_to_quantise import built
from on_targets import assert_stated_digest
from tenon.machine.targets import find
from tenon.machine.targets.host import missing
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType
from tenon.network.passes.integers import to_integers

GATES = {"LSTM": 4, "GRU": 3}
PLAIN: dict[str, Any] = {
    "method": "min-max",
    "range_search": False,
    "rounding": "nearest",
    "equalisation": False,
    "bias_correction": False,
}


def keywords(kind: str, steps: int = 6, hidden: int = 8) -> Graph:
    """A recurrent layer over features [steps, 1, 10] and a matrix product of its last state."""
    rng, gates = np.random.default_rng(0), GATES[kind]
    weights = {
        "w": rng.normal(0, 0.5, (1, gates * hidden, 10)),
        "r": rng.normal(0, 0.3, (1, gates * hidden, hidden)),
        "b": rng.normal(0, 0.1, (1, 2 * gates * hidden)),
        "g": rng.normal(0, 0.7, (hidden, 4)),
    }
    nodes = [
        helper.make_node(kind, ["x", "w", "r", "b"], ["", "h"], hidden_size=hidden, name="layer"),
        helper.make_node("Flatten", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "g"], ["y"]),
    ]
    return built(nodes, weights, [steps, 1, 10], [1, 4])


def features(count: int) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.normal(0, 1, (6, 1, 10)).astype(np.float32) * rng.uniform(0.5, 1.5) for _ in range(count)]


@pytest.mark.parametrize("kind", GATES)
def test_recurrent_network_keeps_its_answers(kind: str) -> None:
    graph, given = keywords(kind), features(24)
    made = tenon.quantize(graph, given, method="min-max", range_search=False, rounding="nearest")
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    assert "MatMul" not in description.compiled
    assert "Gemm" not in description.compiled
    assert description.compiled["IntegerGemm"] >= 6
    assert made.report.outputs[0].sqnr > 30
    assert made.report.agreement is not None
    assert made.report.agreement >= 0.9


@pytest.mark.parametrize("kind", GATES)
def test_all_targets_give_the_same_answers(kind: str, tmp_path: Path) -> None:
    """The digest of an answer that this machine, AArch64 and Cortex-M4 give, which the references state; ONNX Runtime's
    differs by a step at most: its sigmoids are approximations."""
    given = features(6)
    made = tenon.quantize(keywords(kind), given, **PLAIN)
    kept = {problem.what for problem in to_integers(made.graph.copy(), "onnx")}
    assert kept == set()
    made.save(tmp_path / "net.onnx")
    bundles = {target: tenon.compile(made.graph, target=target) for target in ("host", "aarch64", "cortex-m4")}
    assert len({bundle.answer for bundle in bundles.values()} - {""}) == 1
    for target, bundle in bundles.items():
        if not missing(find(target)):
            assert_stated_digest(bundle)
    if exact_onnxruntime.saturates():  # and refuses to be exact where steps share their weights
        pytest.skip(exact_onnxruntime.SATURATING)
    session, step = exact_onnxruntime.session(tmp_path / "net.onnx"), float(last_scale(made.graph))
    with tenon.open(bundles["host"]) as engine:
        off = [np.abs(engine.run({"x": x})["y"] - session.run(["y"], {"x": x})[0]) / step for x in given]
    assert np.max(off) <= 1.01


@pytest.mark.parametrize("kind", GATES)
def test_states_and_gates_take_16_bits(kind: str) -> None:
    """Products with weights read 8 bits and give 16, of which sums and gates are computed; states of LSTMs have 16."""
    made = tenon.quantize(keywords(kind), features(6), **PLAIN)
    to_integers(made.graph, "onnx")
    of = {name: [n for n in made.graph if n.op.name == name] for name in ("IntegerGemm", "IntegerAdd")}
    gates = [n for n in made.graph if n.op.name == "LookupThresholds"]
    assert {n.input(0).type.dtype for n in of["IntegerGemm"]} == {DType.I8}
    assert {n.output.type.dtype for n in of["IntegerGemm"] if n.output.uses[0].op.name != "DequantizeLinear"} == {
        DType.I16
    }
    assert {v.type.dtype for n in of["IntegerAdd"] for v in n.inputs if v is not None} == {DType.I16}
    assert len(gates) == {"LSTM": 5, "GRU": 2}[kind] * 6  # in a GRU one for both sigmoids
    grids = [n.input(0).type.quant for n in gates]
    assert [g.scale[0] for g in grids if g is not None].count(2.0**-12) >= {"LSTM": 4, "GRU": 2}[kind] * 6


def last_scale(graph: Graph) -> Array:
    """The scale of the integers of the output."""
    node = graph.outputs[0].producer
    assert node is not None
    return node.input(1).array


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_steps_share_their_weights(rounding: str) -> None:
    made = tenon.quantize(keywords("LSTM"), features(12), method="min-max", range_search=False, rounding=rounding)
    shapes = [v.array.shape for v in made.graph.constants() if v.array.dtype == np.int8]
    assert shapes.count((8, 32)) == 1  # six steps
    assert shapes.count((10, 32)) == 1


def test_means_are_put_back_after_products_without_a_bias() -> None:
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(0, 1, (10, 16)), "b": rng.normal(0, 1, (16, 6))}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["1"]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("MatMul", ["2", "b"], ["y"]),
    ]
    given = [rng.uniform(0, 1, (1, 10)).astype(np.float32) for _ in range(32)]
    made = tenon.quantize(
        built(nodes, weights, [1, 10], [1, 6]),
        given,
        scheme="int4-weights",
        method="min-max",
        rounding="nearest",
        range_search=False,
        equalisation=False,
    )
    assert abs(made.report.outputs[0].shift) < 0.05
    assert made.report.outputs[0].sqnr > made.report.repairs[""] + 1


def test_saturated_gates_are_no_noise() -> None:
    """Large features bring gates beyond -8 and 8."""
    made = tenon.quantize(keywords("LSTM"), [8 * x for x in features(12)], **PLAIN)
    worst = max(made.report.tensors, key=lambda tensor: tensor.saturated)
    assert worst.saturated > 0.1
    assert worst.sqnr > 30


def test_saved_ranges_give_the_same_network(tmp_path: Path) -> None:
    """Scales of 16 bits that are powers of two, too."""
    made = tenon.quantize(keywords("GRU"), features(6), **PLAIN)
    made.save_ranges(tmp_path / "ranges.yaml")
    again = tenon.quantize(keywords("GRU"), ranges=tmp_path / "ranges.yaml")
    constants = [[v.array.tobytes() for v in graph.constants()] for graph in (made.graph, again.graph)]
    assert constants[0] == constants[1]


def cell_of_concatenations(steps: int = 6, hidden: int = 8) -> Graph:
    """An LSTM as TensorFlow has it: one product of features, which are large, and the state; forget gates plus one."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(0, 0.3, (10 + hidden, 4 * hidden)) / np.repeat([30, 1], [10, hidden])[:, None],
        "b": rng.normal(0, 0.1, 4 * hidden),
        "g": rng.normal(0, 0.7, (hidden, 4)),
        "h_0": np.zeros((1, hidden)),
        "c_0": np.zeros((1, hidden)),
        "one": np.array(1.0),
    }
    nodes = [helper.make_node("Split", ["x"], [f"x_{t}" for t in range(steps)], axis=0, num_outputs=steps)]
    for t in range(steps):
        gates = [f"{gate}_{t}" for gate in "ijfo"]
        nodes += [
            helper.make_node("Concat", [f"x_{t}", f"h_{t}"], [f"xh_{t}"], axis=1),
            helper.make_node("Gemm", [f"xh_{t}", "w", "b"], [f"z_{t}"], name="product"),
            helper.make_node("Split", [f"z_{t}"], gates, axis=1, num_outputs=4),
            helper.make_node("Add", [f"f_{t}", "one"], [f"f1_{t}"]),
            *(helper.make_node("Sigmoid", [f"{g}_{t}"], [f"s{g}_{t}"]) for g in ("i", "f1", "o")),
            helper.make_node("Tanh", [f"j_{t}"], [f"tj_{t}"]),
            helper.make_node("Mul", [f"sf1_{t}", f"c_{t}"], [f"fc_{t}"]),
            helper.make_node("Mul", [f"si_{t}", f"tj_{t}"], [f"ij_{t}"]),
            helper.make_node("Add", [f"fc_{t}", f"ij_{t}"], [f"c_{t + 1}"]),
            helper.make_node("Tanh", [f"c_{t + 1}"], [f"tc_{t}"]),
            helper.make_node("Mul", [f"so_{t}", f"tc_{t}"], [f"h_{t + 1}"]),
        ]
    nodes.append(helper.make_node("MatMul", [f"h_{steps}", "g"], ["y"]))
    return built(nodes, weights, [steps, 10], [1, 4])


def test_inputs_of_gates_have_grids_of_their_own(tmp_path: Path) -> None:
    given = [30 * x.reshape(6, 10) for x in features(24)]
    made = tenon.quantize(cell_of_concatenations(), given, **PLAIN)
    assert made.report.outputs[0].sqnr > 30
    shapes = [v.array.shape for v in made.graph.constants() if v.array.dtype == np.int8]
    assert shapes.count((10, 32)) == shapes.count((8, 32)) == 1  # six steps
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    assert not {"Add", "Concat", "Gemm", "MatMul", "Mul", "Sigmoid", "Tanh"} & description.compiled.keys()
    ranges = tmp_path / "ranges.yaml"
    ranges.write_text("".join(f"xh_{t}: [-120.0, 120.0]\n" for t in range(6)))
    kept = tenon.quantize(cell_of_concatenations(), given, ranges=ranges, **PLAIN)
    assert kept.report.outputs[0].sqnr < made.report.outputs[0].sqnr - 3
    description, _ = tenon.inspect(kept.graph)
    assert description.compiled is not None
    assert description.compiled["Concat"] == 6


def two_layers(kind: str, direction: str, peepholes: bool, steps: int = 4, hidden: int = 8) -> Graph:
    """The second reads all states of the first, and a matrix product all of the second."""
    rng, gates, ways = np.random.default_rng(0), GATES[kind], 2 if direction == "bidirectional" else 1
    weights, nodes, size, given = dict[str, Array](), [], 10, "x"
    for i in (0, 1):
        weights |= {
            f"w{i}": rng.normal(0, 0.4, (ways, gates * hidden, size)),
            f"b{i}": rng.normal(0, 0.1, (ways, 2 * gates * hidden)),
            f"r{i}": rng.normal(0, 0.3, (ways, gates * hidden, hidden)),
            f"p{i}": rng.normal(0, 0.2, (ways, 3 * hidden)),
        }
        inputs = [given, f"w{i}", f"r{i}", f"b{i}", *(["", "", "", f"p{i}"] if peepholes else [])]
        size, given = ways * hidden, f"s{i}"
        nodes += [
            helper.make_node(kind, inputs, [f"y{i}"], hidden_size=hidden, direction=direction, name=f"layer{i}"),
            helper.make_node("Transpose", [f"y{i}"], [f"t{i}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{i}", "dims"], [given]),
        ]
    weights["g"] = rng.normal(0, 0.5, (size, 5))
    nodes.append(helper.make_node("MatMul", [given, "g"], ["y"]))
    return built(nodes, weights, [steps, 1, 10], [steps, 1, 5], {"dims": np.array([steps, 1, size])})


@pytest.mark.parametrize(
    ("kind", "direction", "peepholes"),
    [
        ("LSTM", "forward", False),
        ("LSTM", "reverse", True),
        ("LSTM", "bidirectional", False),
        ("GRU", "bidirectional", False),
    ],
)
def test_all_kinds_of_layers_are_integers(kind: str, direction: str, peepholes: bool) -> None:
    rng = np.random.default_rng(1)
    given = [rng.normal(0, 1, (4, 1, 10)).astype(np.float32) for _ in range(24)]
    made = tenon.quantize(two_layers(kind, direction, peepholes), given, **PLAIN)
    assert made.report.outputs[0].sqnr > 28
    assert {problem.what for problem in to_integers(made.graph, "onnx")} == set()
