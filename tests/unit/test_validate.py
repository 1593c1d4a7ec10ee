"""Translation validation: wrong passes are named, with a minimised model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tenon
from fuzzing.generate import sample
from onnx_models import model as onnx_model
from onnx_models import node as onnx_node
from tenon.cli import main
from tenon.errors import InternalError
from tenon.network import passes
from tenon.network.graph.graph import Graph, Origin, Value
from tenon.network.graph.types import F32, tensor
from tenon.network.passes.base import Match, Result, make, rule, rules
from tenon.network.passes.patterns import ANY, IsOp
from tenon.network.passes.tolerance import Reference
from tenon.network.passes.validate import minimised, random_inputs


@rule(IsOp("LeakyRelu"))
def forgets_the_slope(match: Match) -> Result:
    return match.add("Relu", match.root.input(0))


FAULTY = rules("planted", forgets_the_slope, level=1, ensures="nothing")


def long_graph() -> Graph:
    """Twenty nodes; the faulty pass is wrong on one of them."""
    graph = Graph("long")
    value: Value = graph.add_input("x", tensor(F32, 1, 3, 4, 4))
    for i in range(20):
        op = make("LeakyRelu", alpha=0.5) if i == 13 else make(("Tanh", "Neg", "Sigmoid")[i % 3])
        value = graph.add(op, [value], [f"v{i}"], Origin("m", f"layer{i}", op.name)).output
        value = graph.add(make("Sub"), [value, graph.inputs[0]], [f"s{i}"], Origin("m", f"sub{i}", "Sub")).output
    graph.outputs = [value]
    return graph


def test_faulty_pass_is_named_and_its_model_minimised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    monkeypatch.setattr(passes, "PIPELINE", [FAULTY, *passes.PIPELINE])
    with pytest.raises(InternalError, match=r"pass 'planted' changes what the model computes.*(\n.*)*1 of 40 nodes"):
        passes.optimize(long_graph(), verify=True, failures=tmp_path)
    written = onnx.load(tmp_path / "verify-planted.onnx")
    assert [node.op_type for node in written.graph.node] == ["LeakyRelu"]


def test_minimisation_keeps_dependent_nodes() -> None:
    """Two nodes that fail only together."""

    @rule(IsOp("Neg", IsOp("Tanh", ANY)))
    def loses_a_sign(match: Match) -> Result:
        return match.root.input(0)

    graph = Graph("chain")
    value: Value = graph.add_input("x", tensor(F32, 3))
    for i, name in enumerate(("Sigmoid", "Neg", "Abs", "Tanh", "Neg", "Exp", "Sigmoid")):
        value = graph.add(make(name), [value], [f"v{i}"], Origin()).output
    graph.outputs = [value]
    small, feeds = minimised(graph, rules("p", loses_a_sign, level=1, ensures=""), random_inputs(graph))
    assert [node.op.name for node in small] == ["Tanh", "Neg"]
    assert list(feeds) == ["v2"]


def test_the_command_line_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passes, "PIPELINE", [FAULTY, *passes.PIPELINE])
    path = tmp_path / "m.onnx"
    made = onnx_model([onnx_node("LeakyRelu", ["x"], ["y"])], {"x": (1, 3)}, ["y"])
    path.write_bytes(made.SerializeToString())
    commands = (["compile", str(path), "-o", "b", "--target", "null"], ["optimize", str(path), "-o", "o.onnx"])
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["tenon", *command, "--verify"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "pass 'planted' changes what the model computes" in capsys.readouterr().err
        assert (tmp_path / "verify-planted.onnx").is_file()
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize("seed", range(100))
def test_passes_preserve_random_graphs(seed: int, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        passes.optimize(sample(seed).graph, verify=True, failures=tmp_path)


def test_precision_may_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = Graph("product")
    x, w = graph.add_input("x", tensor(F32, 4, 64)), np.random.default_rng(0).normal(size=(64, 64))
    graph.outputs = [graph.add(make("MatMul"), [x, graph.constant("w", w.astype(np.float32))], ["y"]).output]
    for precision in ("bf16", "fp16"):
        tenon.compile(graph, verify=True, precision=precision, target="null")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------ tolerance
def reference(*ops: str, **attributes: float) -> Reference:
    graph = Graph("r")
    value: Value = graph.add_input("x", tensor(F32, 5))
    for i, name in enumerate(ops):
        value = graph.add(make(name), [value], [f"v{i}"], Origin()).output
    graph.outputs = [value]
    return Reference(graph, {"x": np.array([-1, 0.25, 0.5, 3, np.nan], np.float32)})


def test_no_tolerance_without_rounding() -> None:
    relu = reference("Relu")
    actual = relu.values["v0"].copy()
    assert relu.differs({"v0": actual}) == ""
    actual[2] = np.nextafter(np.nextafter(np.nextafter(actual[2], 1), 1), 1) + np.float32(1e-5)
    assert "1 of 5 elements differ, first [2]" in relu.differs({"v0": actual})


def test_tolerance_of_rounding_and_nan() -> None:
    exp = reference("Exp", "Tanh")
    actual = exp.values["v1"].copy()
    actual[:4] *= 1 + 2e-7
    assert exp.differs({"v1": actual}) == ""
    actual[:4] *= 1 + 1e-4
    assert "differ" in exp.differs({"v1": actual})
    actual[4] = 1
    assert "instead of" in exp.differs({"v1": actual})


def test_elements_at_a_discontinuity_are_not_compared() -> None:
    floor = reference("Sigmoid", "Reciprocal", "Floor")  # 1 + exp(-x): 3.7, 1.8, 1.6, 1.05, NaN
    actual = floor.values["v2"].copy()
    actual[1] += 1
    assert "first [1]" in floor.differs({"v2": actual})
