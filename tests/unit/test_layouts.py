"""Layouts of tensors in memory: their kinds, texts, and arrays packed and unpacked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tenon
from interpret import interpret
from lowered import MACHINES, make_site, run_site
from onnx_models import model, node
from tenon.errors import FormatError
from tenon.machine.kernels.conv import Conv, OutputTile, conv, pack
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.plan.layouts import assign_layouts
from tenon.machine.plan.lowering_context import Setting
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph
from tenon.network.graph.text import parse_type
from tenon.network.graph.types import ALL_CHANNELS, F32, ROW_MAJOR, Layout, LayoutKind, TensorType, tensor
from tenon.network.ops.activation import Relu
from tenon.network.ops.conv import Conv as ConvOperator
from tenon.network.ops.move import Reorder

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine that is busy with other things draws slowly."""

PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 3))
HALOS = st.lists(PAIRS, max_size=3).map(tuple)
LAYOUTS = st.builds(Layout, st.sampled_from([ALL_CHANNELS, 1, 4, 16]), HALOS)


@UNHURRIED
@given(LAYOUTS, LAYOUTS)
def test_different_layouts_have_different_texts(a: Layout, b: Layout) -> None:
    assert (str(a) == str(b)) == (a == b)
    shape = (2, 5, *(3,) * max(len(a.halo), len(b.halo)))
    types = TensorType(F32, shape, a), TensorType(F32, shape, b)
    assert (str(types[0]) == str(types[1])) == (types[0] == types[1])


@UNHURRIED
@given(LAYOUTS)
def test_texts_round_trip(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout
    type = TensorType(F32, (2, 5, *(3,) * len(layout.halo)), layout)
    assert parse_type(str(type)) == type


@pytest.mark.parametrize("text", ["@", "@nhwc", "@4(", "@4(1)", "@4(1+1", "16"])
def test_invalid_texts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layout"):
        Layout.parse(text)
    with pytest.raises(FormatError):
        parse_type(f"f32[1,2]{text}")


@pytest.mark.parametrize(
    ("layout", "kind", "text"),
    [
        (ROW_MAJOR, LayoutKind.ROW_MAJOR, ""),
        (Layout(1, ((0, 0),)), LayoutKind.BLOCKED, "@1(0+0)"),
        (Layout(16), LayoutKind.BLOCKED, "@16"),
        (Layout(16, ((1, 0),)), LayoutKind.BLOCKED, "@16(1+0)"),
        (Layout.channels_last(), LayoutKind.CHANNELS_LAST, "@channels-last"),
        (Layout.channels_last(((0, 2),)), LayoutKind.CHANNELS_LAST, "@channels-last(0+2)"),
    ],
)
def test_kinds_have_names(layout: Layout, kind: LayoutKind, text: str) -> None:
    assert layout.kind is kind
    assert str(layout) == text
    assert layout.image == (kind is not LayoutKind.ROW_MAJOR)


@UNHURRIED
@given(LAYOUTS, st.integers(1, 3), st.integers(1, 19), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_pack_and_unpack_round_trip(layout: Layout, n: int, channels: int, spatial: list[int]) -> None:
    shape = (n, channels, *spatial[: len(layout.halo)])
    data = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    packed = layout.pack(data)
    assert packed.shape == layout.physical(shape)
    assert np.count_nonzero(packed) == data.size
    np.testing.assert_array_equal(layout.unpack(packed, shape), data)


def test_channels_last_memory_order() -> None:
    data = np.random.default_rng(0).standard_normal((2, 5, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(Layout.channels_last().pack(data)[:, 0], np.moveaxis(data, 1, -1))


@pytest.mark.parametrize("machine", MACHINES)
def test_convolution_reads_channels_last(machine: str) -> None:
    """Generators treat a block of all channels like any other."""
    rng, m = np.random.default_rng(0), MACHINES[machine]
    x = rng.standard_normal((1, 6, 5, 4)).astype(np.float32)
    weights = rng.standard_normal((m.block, 6, 3, 3)).astype(np.float32)
    source = Layout.channels_last(((1, 1), (1, 1)))
    type, result = TensorType(F32, x.shape, source), TensorType(F32, (1, m.block, 5, 4), Layout(m.block))
    s = Conv(Image.of(type), Image.of(result), kernel=(3, 3), top=1, left=1, bias=False)
    assert (s.x.block, s.x.blocks) == (6, 1)
    y = np.zeros(result.physical, np.float32)
    interpret(
        conv(s, m, OutputTile(1, 4, 1)),
        [source.pack(x).ravel(), *(p.ravel() for p in pack(weights, s, m, 1)), y.ravel()],
    )
    expected = ConvOperator(pads=(1, 1, 1, 1)).reference(x, weights)
    np.testing.assert_allclose(result.layout.unpack(y, result.dims), expected, atol=1e-4)


@pytest.mark.parametrize("machine", MACHINES)
def test_reorder_reads_channels_last(machine: str) -> None:
    data = np.random.default_rng(0).standard_normal((1, 6, 3, 4)).astype(np.float32)
    op = Reorder(4, ((0, 1), (0, 0)))
    site = make_site(op, [data], MACHINES[machine])
    layout = Layout.channels_last(((1, 0), (0, 2)))
    site = type(site)(**{**vars(site), "inputs": (site.input(0).with_layout(layout),)})
    np.testing.assert_array_equal(run_site(op, site, [data])[0], data)


def test_one_reorder_per_layout_kind() -> None:
    """A row-major input with two convolutions and a Relu as readers needs one Reorder to the blocked layout."""
    graph = Graph("g")
    x = graph.add_input("x", tensor(F32, 1, 16, 6, 6))
    for i in range(2):
        w = graph.constant(f"w{i}", np.ones((16, 16, 3, 3), np.float32))
        graph.outputs.append(graph.add(ConvOperator(pads=(i + 1,) * 4), [x, w], [f"y{i}"]).output)
    graph.outputs.append(graph.add(Relu(), [x], ["z"]).output)
    assign_layouts(graph, Setting(Machine(lanes=8, block=8)))
    (first,) = [node.output for node in graph if node.op.name == "Reorder" and node.inputs[0] is x]
    assert first.type.layout.kind is LayoutKind.BLOCKED
    assert all(min(pair) >= 2 for pair in first.type.layout.halo)
    assert all(v.type.layout.kind is LayoutKind.ROW_MAJOR for v in graph.outputs)


@pytest.mark.parametrize("zeros", [(3, 200), (0, 7), (5, 5)])
def test_convolutions_of_one_image_with_other_zero_points(zeros: tuple[int, int]) -> None:
    """Each reads a halo of its own zero point: one of them a copy."""
    rng = np.random.default_rng(0)
    initializers = {f"z{i}": np.array(zero, np.uint8) for i, zero in enumerate(zeros)}
    initializers |= {f"w{i}": rng.integers(-128, 127, (16, 16, 3, 3)).astype(np.int8) for i in range(2)}
    nodes = [node("Relu", ["x"], ["r"]), node("DynamicQuantizeLinear", ["r"], ["q", "scale", "zero"])]
    nodes += [node("ConvInteger", ["q", f"w{i}", f"z{i}"], [f"i{i}"], pads=[1, 1, 1, 1]) for i in range(2)]
    nodes += [node("Cast", [f"i{i}"], [f"y{i}"], to=1) for i in range(2)]
    made = model(nodes, {"x": [1, 16, 7, 13]}, ["y0", "y1"], initializers).SerializeToString()
    graph = tenon.load(made)
    x = rng.normal(size=(1, 16, 7, 13)).astype(np.float32)
    expected = evaluate(graph, {"x": x})
    results = tenon.open(tenon.compile(graph)).run({"x": x})
    for name in ("y0", "y1"):
        np.testing.assert_array_equal(results[name], expected[name])
