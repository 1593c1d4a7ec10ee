"""TFLite's quantised operators that are computed in integers (reference/quantised.md), and LiteRT's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from quantised_operators import SINGLES, single, whole_range
from tenon.formats import importers
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import DType
from tenon.network.passes.integers import to_integers
from tflite_models import Model

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "quantised.md"
FAULTS = {"NEG i8", "SUM i8", "SUM i16", "LOG i8", "RELU_N1_TO_1 i8", "DIV i8"}
"""LiteRT's NEG forgets the zero point, its SUM does not clamp, its LOG of 0 and less is another number, its
RELU_N1_TO_1 rounds once, and its DIV of -1 by 62 is -128 (``test_integer_quotients`` compares others)."""


def converted(type: str, dtype: str) -> Graph:
    graph = importers.load(single(type, dtype))
    to_integers(graph, "litert")
    return graph


def status(type: str, dtype: str) -> str:
    """How an operator is computed: in integers, by moving integers, or in float."""
    graph = converted(type, dtype)
    if any(v.type.dtype is DType.F32 for node in graph for v in node.outputs):
        return "float"
    return "integers" if any(n.op.name.startswith(("Integer", "Lookup")) for n in graph) else "moved"


def table() -> str:
    rows = [f"| {type} | {status(type, 'i8')} | {status(type, 'i16')} |" for type in sorted(SINGLES)]
    return "\n".join(["| operator | int8 | int16 |", "|---|---|---|", *rows])


def test_table_of_the_documentation() -> None:
    wanted = table()
    assert wanted in DOCUMENT.read_text(), f"docs/reference/quantised.md must have this table:\n{wanted}"


def parts_u8() -> bytes:
    """A concatenation of tensors of u8 with three quantisations."""
    model = Model()
    grids = ((0.05, 3), (0.031, 120), (0.09, 200))
    inputs = [model.tensor(f"x{i}", (1, 300), "u8", scale=[s], zero=[z]) for i, (s, z) in enumerate(grids)]
    y = model.tensor("y", (1, 900), "u8", scale=[0.06], zero=[10])
    model.add("CONCATENATION", inputs, [y], axis=1)
    return model.bytes(inputs, [y])


def test_concatenations_of_u8_stay_integers() -> None:
    graph = importers.load(parts_u8())
    to_integers(graph, "litert")
    assert [node.op.name for node in graph] == ["Lookup", "Lookup", "Lookup", "Concat"]
    feeds = {v.name: np.arange(300, dtype=np.uint8).reshape(1, 300) for v in graph.inputs}
    (ours,) = evaluate(graph, feeds).values()
    parts = [np.rint((np.arange(300) % 256 - z) * s / 0.06) + 10 for s, z in ((0.05, 3), (0.031, 120), (0.09, 200))]
    assert np.abs(ours.astype(int) - np.clip(np.concatenate(parts), 0, 255)).max() <= 1  # ties and rounding of f32


def test_concatenations_of_u8_match_litert() -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    resolver = interpreter.OpResolverType.BUILTIN_REF
    net = interpreter.Interpreter(model_content=parts_u8(), experimental_op_resolver_type=resolver)
    net.allocate_tensors()
    graph = importers.load(parts_u8())
    to_integers(graph, "litert")
    feeds = {v.name: np.arange(300, dtype=np.uint8).reshape(1, 300) for v in graph.inputs}
    for detail, given in zip(net.get_input_details(), feeds.values(), strict=True):
        net.set_tensor(detail["index"], given)
    net.invoke()
    (ours,) = evaluate(graph, feeds).values()
    np.testing.assert_array_equal(ours, net.get_tensor(net.get_output_details()[0]["index"]))


@pytest.mark.parametrize("dtype", ["i8", "i16"])
@pytest.mark.parametrize("type", sorted(SINGLES))
def test_integers_match_litert(type: str, dtype: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    if f"{type} {dtype}" in FAULTS:
        pytest.skip("LiteRT's reference kernel is wrong")
    if status(type, dtype) == "float":
        pytest.skip("computed in float")
    try:
        resolver = interpreter.OpResolverType.BUILTIN_REF
        net = interpreter.Interpreter(model_content=single(type, dtype), experimental_op_resolver_type=resolver)
        net.allocate_tensors()
        net.invoke()
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"LiteRT refuses it: {error}")
    graph = converted(type, dtype)
    for seed in range(3):
        feeds = {v.name: whole_range(v.type.dtype, v.type.dims, seed + i) for i, v in enumerate(graph.inputs)}
        for detail, given in zip(net.get_input_details(), feeds.values(), strict=True):
            net.set_tensor(detail["index"], given)
        net.invoke()
        (ours,) = evaluate(graph, feeds).values()
        np.testing.assert_array_equal(ours, net.get_tensor(net.get_output_details()[0]["index"]))
