"""The text form of graphs and kernels: printing and parsing."""

from __future__ import annotations

import numpy as np
import pytest

from tenon.errors import FormatError
from tenon.machine.algorithms.direct import best_tiles
from tenon.machine.kernel_ir import parse as loop_parse
from tenon.machine.kernel_ir import text as loop_text
from tenon.machine.kernel_ir.build import Builder, guarded
from tenon.machine.kernel_ir.loops import Kernel, cast, less, reduce_lanes, select
from tenon.machine.kernels.conv import Conv, conv
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.network import ops
from tenon.network.graph.graph import Graph, Origin, Value
from tenon.network.graph.operation_text import parse_operation, show_operation
from tenon.network.graph.text import parse, parse_type, show, show_type
from tenon.network.graph.types import BOOL, F32, I32, I64, DType, Layout, Quant, TensorType, tensor
from tenon.network.ops.activation import Relu
from tenon.network.ops.conv import Conv as ConvOperator
from tenon.network.ops.pointwise import Add

TYPES = [
    tensor(F32),
    tensor(F32, 1, "batch", 3),
    TensorType(F32, (1, 3, 224, 224), Layout(16, ((1, 1), (1, 2)))),
    TensorType(F32, (1, 3, 8), Layout(16)),
    TensorType(F32, (1, 3, 8), Layout(1, ((0, 0),))),
    TensorType(F32, (1, 3, 8), Layout.channels_last(((2, 0),))),
    TensorType(DType.U8, (4,), quant=Quant((0.5, 0.25), (3, -4), 0)),
    TensorType(DType.U8, (4,), quant=Quant((0.1,), (0,))),
]


def small() -> Graph:
    graph = Graph('a "net"', "model file.onnx")
    x = graph.add_input("x:0", tensor(F32, 1, 2, 4, 4))
    w = graph.constant("weights with spaces", np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32))
    b = graph.constant("b", np.array([0.1, -np.inf, 1e-42], np.float32))
    origin = Origin("model file.onnx", 'conv @ "1"', "Conv")
    y = graph.add(ConvOperator(pads=(1, 1, 1, 1)), [x, w, b], ["y"], origin).output
    z = graph.add(Relu(), [y], ["z"]).output
    graph.outputs = [z, graph.constant("flag", np.array([True, False])), graph.constant("n", np.array(-7))]
    return graph


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_types_round_trip(type: TensorType) -> None:
    assert parse_type(show_type(type)) == type


@pytest.mark.parametrize("type", TYPES[:6], ids=str)
def test_types_print_as_str_does(type: TensorType) -> None:
    assert show_type(type) == str(type)


def test_graph_round_trip_is_exact() -> None:
    text = show(small(), "base64")
    again = parse(text, ops.registry())
    assert show(again, "base64") == text
    assert again.name == 'a "net"'
    assert again.nodes[0].origin == small().nodes[0].origin
    for a, b in zip(small().constants(), again.constants(), strict=True):
        assert a.type == b.type
        assert np.array_equal(a.array, b.array)


def test_untyped_and_absent_inputs() -> None:
    graph = Graph("g")
    x = graph.add_input("x", tensor(F32, "N", 2))
    node = graph.add(Add(), [x, None], ["y", "z"], infer=False)
    graph.outputs = list(node.outputs)
    text = show(graph)
    assert "%y, %z = Add() %x, _" in text
    again = parse(text, ops.registry())
    assert show(again) == text
    assert again.nodes[0].inputs[1] is None
    assert not again.outputs[0].typed


def test_missing_data_is_refused_unless_filled() -> None:
    text = show(small())
    assert "sha256:" in text
    with pytest.raises(FormatError, match="without its data"):
        parse(text, ops.registry())
    one, two = (parse(text, ops.registry(), fill=True).constants()[0].array for _ in range(2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y: f32[1] = Nonsense() %x", "no operator 'Nonsense'"),
        ("%y: f32[1] = Relu() %unknown", "used before it is defined"),
        ("%y: f32[1] = Relu(__import__('os')) %x", "no operator '__import__'"),
        ("%y: f32[1] = Relu(alpha=1) %x", "unexpected keyword"),
        ("%x: f32[1] = Relu() %x", "defined twice"),
        ("%y: g7[1] = Relu() %x", "not a valid DType"),
        ("const %c = [1.0]", "has no type"),
        ("const %c: f32[2] = [1.0]", "reshape"),
        ("what is this", "not a node"),
    ],
)
def test_bad_text_names_the_line(line: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        parse(f'graph "g" {{\n  input %x: f32[1]\n  {line}\n}}', ops.registry())
    assert str(caught.value).startswith("line 3")


def test_operators_of_all_cases_round_trip() -> None:
    count = 0
    for cls in ops.registry().values():
        for case in cls.cases():
            text = show_operation(case.op)
            again, rest = parse_operation(text + " %x", ops.constructors())
            assert (show_operation(again), rest) == (text, " %x")
            count += 1
    assert count > 50


def kernels() -> list[Kernel]:
    machine = Machine(lanes=8, registers=16, block=8, prefetch=True)
    lowered = []
    for s in (
        Conv(Image(1, 3, 12, 12, 1, 1, 1, 1, 1), Image(1, 20, 6, 6, 8), (3, 3), (2, 2), top=1, left=1),
        Conv(Image(1, 16, 12, 12, 8), Image(1, 20, 12, 12, 8), clear=True),
        Conv(Image(1, 8, 7, 9, 8, 1, 1, 1, 1), Image(1, 8, 7, 9, 8), (3, 3), top=1, left=1, groups=4, bias=False),
    ):
        lowered.append(conv(s, machine, best_tiles(s, machine, 1)[0]))
    k = Builder("everything")
    n = k.size("n", 9)
    x, y = k.param("x", n, 16), k.param("y", n, 16, out=True)
    flags = k.param("flags", 16, dtype=I32)
    with k.loop("i", n, 7, kind="parallel") as i, k.when(i - 1, 5 - i):
        t = k.local("t", 4, space="stack")
        k.prefetch(x.vec(4), i, 1)
        with k.unroll("j", 4) as j, k.outline("in ner"):
            v = k.let("v", x.vec(4)[i, j] * 2.5 - 1e-7)
            y.vec(4)[i, (j * 3 + i) % 4] = select(less(v, 0.0), -v, v)
            t[j // 2] = reduce_lanes("add", v) + cast(flags[j], F32)
            t[j] = guarded((j - 1,), x[i, j - 1], float("-inf"))
        k.barrier()
    lowered.append(k.done())
    return lowered


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: str(k.name))
def test_kernels_round_trip(kernel: Kernel) -> None:
    text = loop_text.show(kernel)
    again = loop_parse.parse(text)
    assert loop_text.show(again) == text
    assert [b.name for b in again.params] == [b.name for b in kernel.params]


@pytest.mark.parametrize(
    "text", ["", "kernel k(", "kernel k() { let a: f32 = b }", "kernel k() { x }", "kernel k() {} }", "kernel ?"]
)
def test_bad_kernels_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        loop_parse.parse(text)


def test_constants_print_short() -> None:
    graph = Graph("g")
    graph.outputs = [Value("c", tensor(I64, 2), np.array([1, -2])), Value("t", tensor(BOOL), np.array(True))]
    assert "const %c: i64[2] = [1, -2]" in show(graph)
    assert "const %t: bool[] = [True]" in show(graph)
