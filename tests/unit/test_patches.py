"""Patch-wise execution: parts of results computed by themselves, and whole networks by them."""

from __future__ import annotations

import numpy as np
import pytest

from evaluate import evaluate, random_inputs
from patched_networks import FLOATS, INTEGERS, network
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.verify import verify as check_structure
from tenon.network.ops import registry
from tenon.network.ops.base import Case, Operator
from tenon.network.ops.patch import Span
from tenon.network.passes.patches import Prefix, patched, prefixes

IN_PATCHES = {
    name: [case for case in cls.cases() if case.op.patch.__func__ is not Operator.patch]  # type: ignore[attr-defined]
    for name, cls in registry().items()
}


def read(array: Array | None, span: Span | None) -> Array | None:
    if array is None or span is None:
        return array
    return np.ascontiguousarray(np.take(array, range(span.start, span.stop), span.axis))


def check(case: Case) -> int:
    """Every part of one or two positions along every spatial axis, where it can be computed; how many there were."""
    arrays = case.arrays()
    values = [None if a is None else Value("v", TensorType(DType.of(a.dtype), a.shape), a) for a in arrays]
    types = [None if v is None else v.type for v in values]
    output, *others = case.op.infer(values)
    if 0 in output.dims or others:  # nothing to compute, or results that patches do not have
        return 0
    (whole,) = case.op.evaluate(arrays)
    count = 0
    for axis in range(2, output.rank):
        for start in range(output.dims[axis]):
            span = Span(axis, start, min(start + 2, output.dims[axis]))
            patch = case.op.patch(types, output, span)
            if patch is None:
                continue
            (part,) = patch.op.evaluate([read(a, s) for a, s in zip(arrays, patch.reads, strict=True)])
            expected = np.take(whole, range(span.start, span.stop), axis)
            least = 1e-6 * max(1.0, float(np.abs(whole).max()))  # sums of other lengths cancel in another order
            np.testing.assert_allclose(part, expected, rtol=1e-5, atol=least, err_msg=f"{case.label} {span}")
            if case.op.exact():
                np.testing.assert_array_equal(part, expected)
            count += 1
    return count


@pytest.mark.parametrize("name", [name for name, cases in IN_PATCHES.items() if cases])
def test_a_patch_is_that_part_of_the_result(name: str) -> None:
    counts = [check(case) for case in IN_PATCHES[name]]
    images = any(len(a.shape) > 2 for case in IN_PATCHES[name] for a in case.arrays() if a is not None)
    several = name == "MaxPoolWithIndices"
    assert any(counts) or several or not images, "nothing was compared"


def test_what_can_be_computed_in_patches() -> None:
    wanted = {"Conv", "IntegerConv", "MaxPool", "AveragePool", "IntegerAveragePool", "IntegerAdd", "Add", "Relu"}
    wanted |= {"Lookup", "Fused", "SeparableConv", "Transpose", "Concat", "QuantizeLinear"}
    assert wanted <= {name for name, cases in IN_PATCHES.items() if cases}


@pytest.mark.parametrize("text", [FLOATS, INTEGERS])
def test_networks_in_patches_give_the_same(text: str) -> None:
    graph = network(text)
    given = random_inputs(graph)
    if text is INTEGERS:
        given = {"x": np.random.default_rng(1).integers(-128, 128, (1, 4, 13, 6)).astype(np.int8)}
    (expected,) = evaluate(graph, given).values()
    assert expected.std() > 0
    candidates = prefixes(graph)
    assert [p.last.output.name for p in candidates] == (
        ["t", "a", "d", "e", "f", "g"] if text is FLOATS else ["a", "d", "e"]
    )
    for prefix in candidates:
        for rows in range(1, prefix.extent):
            new = patched(graph, len(prefix.nodes), rows)
            check_structure(new, "patches")
            (got,) = evaluate(new, given).values()
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=0 if text is INTEGERS else 1e-5)


def test_what_is_read_whole_cannot_be_in_patches() -> None:
    """A result read beside the last layer, and a reduction over all rows."""
    graph = network(FLOATS)
    graph.outputs.append(next(n for n in graph if n.output.name == "d").output)
    assert {p.last.output.name for p in prefixes(graph)} == {"t", "a", "d"}
    mean = Prefix(tuple(network(FLOATS)))
    assert mean.patches(Span(2, 0, 1)) is None
