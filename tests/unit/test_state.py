"""States, which networks keep from run to run, and the tensors that they append to."""

from __future__ import annotations

import numpy as np
import pytest

import tenon
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph, Origin
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
