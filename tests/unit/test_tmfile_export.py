"""Quantised graphs as tmfiles: read again they give the same integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from onnx_models import model as onnx_model
from quantised_networks import CASES, LAST, images, in_integers, make, network, quantised
from tenon.errors import UnsupportedError
from tenon.formats.exporters.save import save
from tenon.formats.exporters.tengine.ops import to_tmfile
from tenon.formats.importers.tengine.file import read
from tenon.network import passes
from tenon.network.graph.bind import bind
from tenon.tools.quantization.by_ranges import profiled

LEFT_OUT = {
    "max pool, unequal": "padding",
    "slice by steps": "steps",
    "transposed": "8 bits with a scale for all",
    "transposed whole": "8 bits with a scale for all",
}
"""Layers that tmfiles cannot hold, and a word of the message."""


@pytest.mark.parametrize("scheme", ["int8-symmetric", pytest.param("uint8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(CASES.keys() - LEFT_OUT.keys()))
def test_a_file_read_again_gives_the_same_integers(name: str, scheme: str) -> None:
    made = quantised(network(CASES[name]), scheme)
    before, again = in_integers(made, "onnx"), in_integers(tenon.load(to_tmfile(made)), "onnx")
    for image in images():
        (ours,), (theirs,) = evaluate(before, {"x": image}).values(), evaluate(again, {"x": image}).values()
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("scheme", "data_type"), [("int8-symmetric", 2), ("uint8", 3)])
def test_tensors_are_of_8_bits_with_scales(scheme: str, data_type: int) -> None:
    """Weights of i8 have a scale for each channel; a bias is i32."""
    file = read(to_tmfile(quantised(network(CASES["relu"]), scheme)))
    types = [tensor.data_type for tensor in file.tensors]
    assert set(types) == {data_type, 4}
    assert all(tensor.quant is not None for tensor in file.tensors if not tensor.constant)
    scales = [
        tensor.stored.scale.size for tensor in file.tensors if tensor.stored is not None and tensor.data_type != 4
    ]
    assert scales == ([6, 4] if data_type == 2 else [1, 1])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_tmfiles_cannot_hold_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=LEFT_OUT[name]):
        save(quantised(network(CASES[name]), "int8-symmetric"), tmp_path / "net.tmfile")
    assert not list(tmp_path.iterdir())


def test_a_float_graph_is_written_in_floats() -> None:
    graph = profiled(network([make("HardSwish", ["a"], ["c"]), LAST]))
    again = tenon.load(to_tmfile(graph))
    (ours,), (theirs,) = (evaluate(g, {"x": images(1)[0]}).values() for g in (graph, again))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert [v.name for v in again.outputs] == ["b"]


ONE_OPERAND = (
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "Ceil",
    "Cos",
    "Elu",
    "Exp",
    "Floor",
    "Log",
    "Neg",
    "Reciprocal",
    "Selu",
    "Sigmoid",
    "Sin",
    "Sqrt",
    "Tan",
    "Tanh",
)


@pytest.mark.parametrize("name", [*ONE_OPERAND, "MaxPool", "Swish", "Split"])
def test_operators_in_floats(name: str) -> None:
    """Operators that Tengine computes by another one, by several or by a function's number, from a file read again."""
    nodes = {
        "MaxPool": [make("MaxPool", ["x"], ["y"], kernel_shape=[3, 5], pads=[1, 2, 1, 2])],  # as large as x
        "Swish": [make("Sigmoid", ["x"], ["s"]), make("Mul", ["s", "x"], ["y"])],
        "Split": [make("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), make("Sub", ["b", "a"], ["y"])],
    }.get(name) or [make(name, ["x"], ["y"])]
    graph = bind(tenon.load(onnx_model(nodes, {"x": (1, 4, 3, 5)}, "y").SerializeToString()))
    passes.optimize(graph, fuse=False)
    assert name in [node.op.name for node in graph]
    again = tenon.load(to_tmfile(graph))
    x = np.random.default_rng(0).uniform(0.1, 0.9, (1, 4, 3, 5)).astype(np.float32)
    (ours,), (theirs,) = (evaluate(g, {"x": x}).values() for g in (graph, again))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
