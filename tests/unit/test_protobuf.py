"""The protobuf reader, binary and text, compared with the package onnx, and on malformed data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tenon.errors import FormatError
from tenon.formats.wire import protobuf
from tenon.formats.wire.protobuf import Schema
from tenon.formats.wire.protobuf_write import serialise
from tenon.formats.wire.prototext import parse, show

ONNX = Schema(
    {
        "Model": {"ir_version": (1, "int64"), "graph": (7, "Graph"), "producer": (2, "string", "nobody")},
        "Graph": {"node": (1, "*Node"), "initializer": (5, "*Tensor"), "name": (2, "string")},
        "Node": {"input": (1, "*string"), "op_type": (4, "string"), "attribute": (5, "*Attribute")},
        "Attribute": {
            "name": (1, "string"),
            "f": (2, "float"),
            "i": (3, "int64"),
            "ints": (8, "*int64"),
            "floats": (7, "*float"),
        },
        "Tensor": {
            "dims": (1, "*int64"),
            "float_data": (4, "*float"),
            "double_data": (10, "*double"),
            "raw": (9, "bytes"),
        },
    }
)
KINDS = Schema(
    {
        "All": {
            "a": (1, "int32"),
            "b": (2, "sint64"),
            "c": (3, "fixed32"),
            "d": (4, "sfixed64"),
            "e": (5, "double"),
            "f": (6, "bool", True),
            "g": (7, "Colour"),
            "h": (8, "*Colour"),
            "i": (9, "map:All"),
            "j": (10, "*sint32"),
            "k": (11, "*fixed64"),
            "l": (12, "uint64"),
            "m": (13, "All"),
            "n": (14, "*All"),
            "o": (15, "*bool"),
            "p": (16, "bytes"),
            "q": (17, "*float"),
            "r": (18, "string"),
            "s": (19, "*string"),
            "t": (20, "float"),
        }
    },
    enums={"Colour": {"RED": 0, "BLUE": 5}},
)


def model() -> onnx.ModelProto:
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, -1], alpha=0.5, scales=[1.5, 2.5])
    packed = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2], [1, 2, 3, 4])
    raw = numpy_helper.from_array(np.arange(3, dtype=np.float32), "b")
    graph = onnx.helper.make_graph([node], "né", [], [], [packed, raw])
    return onnx.helper.make_model(graph)


def test_reads_messages_of_the_onnx_package() -> None:
    read = ONNX.parse("Model", model().SerializeToString(), "here")
    (node,) = read.graph.node
    assert read.graph.name == "né"
    assert (node.op_type, node.input) == ("Conv", ["x", "w"])
    values = {a.name: a for a in node.attribute}
    assert values["kernel_shape"].ints == [3, -1]
    assert values["alpha"].f == 0.5
    assert values["scales"].floats.tolist() == [1.5, 2.5]
    first, second = read.graph.initializer
    assert first.float_data.tolist() == [1, 2, 3, 4]
    assert np.frombuffer(second.raw, "<f4").tolist() == [0, 1, 2]
    assert first.double_data.size == 0


def test_defaults_and_presence() -> None:
    read = ONNX.parse("Model", b"", "here")
    assert read.producer == "nobody"
    assert not read.has("graph")
    assert read.graph.name == ""
    assert read.graph.node == []
    with pytest.raises(AttributeError, match="Model has no field 'nothing'"):
        _ = read.nothing


def test_every_field_type_round_trips() -> None:
    inner = KINDS.new("All", a=-7)
    values = {
        "a": -(2**31),
        "b": -(2**63),
        "c": 2**32 - 1,
        "d": -5,
        "e": 1e300,
        "f": False,
        "g": "BLUE",
        "h": ["RED", "9"],
        "j": [-1, 2**31 - 1],
        "k": [2**63],
        "l": 2**64 - 1,
        "m": inner,
        "n": [inner, inner],
        "o": [True, False],
        "q": np.array([1.5, -2], "<f4"),
        "r": 'line "one"\n\\',
        "s": ["", "ü"],
        "t": 0.1,
    }
    message = KINDS.new("All", **values, p=memoryview(b"\0\xff"))
    for packed in ((), ("j", "k", "o", "h")):
        read = KINDS.parse("All", serialise(message, packed), "here")
        for name, value in values.items():
            output = getattr(read, name)
            if name in ("m", "n"):
                assert [m.a for m in ([output] if name == "m" else output)] == [-7] * (1 if name == "m" else 2)
            elif name == "t":
                assert output == np.float32(0.1)
            else:
                assert list(output) == list(value) if isinstance(value, np.ndarray) else output == value, name
        assert bytes(read.p) == b"\0\xff"
    again = parse(KINDS, "All", show(message), "here")
    assert show(again) == show(message)
    assert again.r == values["r"]


def test_maps_and_merging() -> None:
    entry = b"\x0a\x01k\x12\x02\x08\x07"
    first = b"\x4a" + bytes([len(entry)]) + entry
    read = KINDS.parse("All", first + b"\x6a\x02\x08\x01" + b"\x6a\x02\x10\x02", "here")
    assert read.i["k"].a == 7
    assert (read.m.a, read.m.b) == (1, 1)  # two occurrences of a message field are merged


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100, 1000])
def test_long_unpacked_repeated_fields(count: int) -> None:
    numbers = np.arange(count, dtype="<f4")
    row = b"".join(b"\x8d\x01" + n.tobytes() for n in numbers)
    read = KINDS.parse("All", b"\x08\x01" + row + b"\x8a\x01\x04\0\0\0\0" + row + b"\x10\x02", "here")
    np.testing.assert_array_equal(read.q, [*numbers, 0, *numbers])
    assert (read.a, read.b) == (1, 1)


def test_unknown_fields_and_groups_are_skipped() -> None:
    group = b"\xa3\x06\x08\x01\xa3\x06\x0a\x01x\xa4\x06\xa4\x06"  # field 100, twice nested
    assert KINDS.parse("All", group + b"\x08\x05" + b"\xf2\x07\x01x", "here").a == 5
    assert KINDS.parse("All", b"\x0a\x01x" + b"\x08\x05", "here").a == 5  # a string in place of a number


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x08\xff",
        b"\x08" + b"\xff" * 11,
        b"\x6a\x05\x08",
        b"\x6a\xff\xff\xff\xff\x7f",
        b"\x19\0\0",
        b"\x1d\0",
        b"\x0f",
        b"\x0e",
        b"\x00\x00",
        b"\xa4\x06",
        b"\xa3\x06",
        b"\x92\x01\x01\xff",
        b"\x8a\x01\x03abc",
        b"\x52\x01\xff",
        b"\x5a\x07abcdefg",
    ],
)
def test_damage_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError, match="here: truncated or damaged"):
        KINDS.parse("All", data, "here")


def test_nesting_and_size_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b""
    for _ in range(200):
        size = len(data)
        length = bytes([size & 127 | 128, size >> 7]) if size > 127 else bytes([size])
        data = b"\x6a" + length + data
    with pytest.raises(FormatError, match="nested more than 64 deep"):
        KINDS.parse("All", data, "here")
    with pytest.raises(FormatError, match="nested more than 64 deep"):
        parse(KINDS, "All", "m {" * 200, "here")
    monkeypatch.setattr(protobuf, "MAX_PIECES", 1000)
    with pytest.raises(FormatError, match="more than 1000 fields"):
        KINDS.parse("All", b"\x72\0" * 1001, "here")


# ------------------------------------------------------------------------------------------------- text
def test_text_format_variants() -> None:
    text = """
    # a comment
    a: -0x10, g: BLUE; h: [RED, 5]  // another
    f: False m < a: 1 > n { a: 2 } n: { a: 3 }
    q: 1.5f q: -inf q: [2, 1e-3] e: .5 t: nan
    r: "one " 'two\\x41\\101\\n' p: "\\377"
    unknown { x: [1, { y: "}" }] } [an.extension]: 4
    """
    read = parse(KINDS, "All", text, "net")
    assert (read.a, read.g, read.h, read.f) == (-16, "BLUE", ["RED", "BLUE"], False)
    assert (read.m.a, [n.a for n in read.n]) == (1, [2, 3])
    np.testing.assert_array_equal(read.q, np.array([1.5, -np.inf, 2, 1e-3], np.float32))
    assert np.isnan(read.t)
    assert read.r == "one twoAA\n"
    assert bytes(read.p) == b"\xff"
    assert read.unknown["unknown"] == ['unknown { x: [1, { y: "}" }] }']
    assert "an.extension" in show(read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: x", "net, line 2: b: 'x' is not a sint64"),
        ("m {\n a: 1", "net, line 2: the text ends where '}' is missing"),
        ("a 1", "':' is missing"),
        ("a: }", "a value is missing"),
        ("g: GREEN", "'GREEN' is none of RED, BLUE"),
        ("a { }", "a is a int32, not a message"),
        ("r: 5", "is not a string"),
        ("a: 1e999999", "is not a int32"),
        ("{", "the name of a field"),
        ("a: \x01", "not readable"),
        ("[x", "never closed"),
        ("a: [1", "a value is missing"),
    ],
)
def test_errors_in_text_name_the_line(text: str, message: str) -> None:
    with pytest.raises(FormatError) as error:
        parse(KINDS, "All", text, "net")
    assert message in str(error.value)
