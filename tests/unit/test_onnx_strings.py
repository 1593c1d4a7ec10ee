"""ONNX's string operators, decomposed into operators on bytes, compared with Python's strings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from evaluate import evaluate
from tenon.cli import main
from tenon.errors import InputError, UnsupportedError
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.strings import StringError, decoded, encoded

WIDTH = 12
ML = "ai.onnx.ml"


def strings(*values: object) -> Array:
    return np.array(values, object)


def model(
    type: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Array] | None = None,
    domain: str = "",
    **attributes: Any,
) -> bytes:
    """A model of one node; inputs and constants that hold objects are strings."""
    given = constants or {}
    nodes = [helper.make_node(type, [*inputs, *given], outputs, name="it", domain=domain, **attributes)]
    kinds = {
        name: TensorProto.STRING if a.dtype == object else helper.np_dtype_to_tensor_dtype(a.dtype)
        for name, a in inputs.items()
    }
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in given.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 4)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data


def graph_of(data: bytes, inputs: Mapping[str, Array], width: int = WIDTH) -> Graph:
    shapes: dict[str, Any] = {name: a.shape for name, a in inputs.items()}
    shapes |= {f"{name}.width": width for name, a in inputs.items() if a.dtype == object}
    return tenon.load(data, shapes=shapes)


def run(
    type: str, inputs: Mapping[str, Array], outputs: Sequence[str] = ("y",), width: int = WIDTH, **given: Any
) -> list[Array]:
    """The outputs of one node, computed by the references of the operators that it is decomposed into."""
    graph = graph_of(model(type, inputs, outputs, **given), inputs, width)
    fed = {name: encoded(a, width) if a.dtype == object else a for name, a in inputs.items()}
    actual = evaluate(graph, fed)
    results = []
    for name in outputs:
        array = actual[name]
        if name in graph.extents:
            ((axis, count),) = graph.extents[name]
            array = np.take(array, range(int(actual[count])), axis)
        results.append(decoded(array) if name in graph.strings else array)
    return results


def texts(rng: random.Random, letters: str, count: int, most: int = WIDTH) -> Array:
    return strings(*("".join(rng.choice(letters) for _ in range(rng.randrange(most + 1))) for _ in range(count)))


# --------------------------------------------------------------------------------------------- comparing, joining
def test_equal_broadcasts_and_accepts_different_widths() -> None:
    a, b = strings("a", "", "été", "abc"), strings("a", "ab", "été", "abcd")
    assert run("Equal", {"a": a, "b": b})[0].tolist() == [True, False, True, False]
    table = run("Equal", {"a": a}, constants={"b": strings("a", "été").reshape(2, 1)})[0]
    assert table.tolist() == [[True, False, False, False], [False, False, True, False]]


def test_concat() -> None:
    rng = random.Random(0)
    a, b = texts(rng, "ab", 40), texts(rng, "cd", 40)
    assert run("StringConcat", {"a": a, "b": b})[0].tolist() == [x + y for x, y in zip(a, b, strict=True)]
    assert run("StringConcat", {"a": a.reshape(8, 5), "b": b[:5]})[0].shape == (8, 5)
    assert run("StringConcat", {"a": strings(), "b": strings("x")})[0].shape == (0,)


# ------------------------------------------------------------------------------------------------------ splitting
@pytest.mark.parametrize("limit", [None, 0, 1, 2, 5])
@pytest.mark.parametrize("delimiter", [None, "", ",", "ab", "aa"])
def test_split_matches_python(delimiter: str | None, limit: int | None) -> None:
    rng = random.Random(2)
    x = texts(rng, "ab, \n" if not delimiter else "ab,", 60)
    expected = [s.split(delimiter or None, -1 if limit is None else limit) for s in x]
    parts, counts = run("StringSplit", {"x": x}, ("y", "n"), delimiter=delimiter, maxsplit=limit)
    assert counts.tolist() == [len(e) for e in expected]
    most = max(len(e) for e in expected)
    assert parts.tolist() == [e + [""] * (most - len(e)) for e in expected]


def test_split_of_empty_strings() -> None:
    parts, counts = run("StringSplit", {"x": np.zeros((0, 2), object)}, ("y", "n"))
    assert parts.shape == (0, 2, 0)
    assert counts.shape == (0, 2)


# ---------------------------------------------------------------------------------------------------- upper and lower
def test_upper_and_lower_case_of_one_and_two_byte_characters() -> None:
    x = strings("Ab1z", "ÀÉß", "Ωω", "Жж", "ÿ", "日本aé", "ŐŰ", "Ա", "")
    lower = run("StringNormalizer", {"x": x}, case_change_action="LOWER")[0]
    assert lower.tolist() == [s.lower() for s in x]
    upper = run("StringNormalizer", {"x": x}, case_change_action="UPPER")[0]
    assert upper.tolist() == ["AB1Z", "ÀÉß", "ΩΩ", "ЖЖ", "Ÿ", "日本AÉ", "ŐŰ", "Ա", ""]  # ß would be longer


@pytest.mark.parametrize(
    ("sensitive", "words", "expected"),
    [
        (1, ["mon", "TUE"], ["Mon", "Été"]),
        (0, ["MON"], ["TUE", "Été"]),
        (0, ["mon", "tue", "éTÉ"], [""]),
        (1, ["absent"], ["Mon", "mon", "TUE", "Été"]),
    ],
)
def test_stop_words(sensitive: int, words: list[str], expected: list[str]) -> None:
    x = strings("Mon", "mon", "TUE", "Été")
    attributes: dict[str, Any] = {"stopwords": words, "is_case_sensitive": sensitive}
    assert run("StringNormalizer", {"x": x}, **attributes)[0].tolist() == expected
    assert run("StringNormalizer", {"x": x.reshape(1, 4)}, **attributes)[0].tolist() == [expected]


# --------------------------------------------------------------------------------------------------------- labels
def test_label_encoder_of_every_kind() -> None:
    words, numbers, reals = strings("b", "a", "bb", "c"), np.array([3, 1, 7]), np.array([0.5, np.nan, 2], np.float32)
    keys: dict[str, Any] = {"keys_strings": ["a", "bb", "b"]}
    encode: dict[str, Any] = {"inputs": {"x": words}, "domain": ML}
    assert run("LabelEncoder", **encode, **keys, values_int64s=[1, 2, 3])[0].tolist() == [3, 1, 2, -1]
    named = run("LabelEncoder", **encode, **keys, values_strings=["x", "yy", "z"])[0]
    assert named.tolist() == ["z", "x", "yy", "_Unused"]
    floats = run("LabelEncoder", **encode, **keys, values_floats=[1.0, 2.0, 3.0], default_float=0.25)[0]
    assert floats.tolist() == [3, 1, 2, 0.25]
    back: dict[str, Any] = {
        "domain": ML,
        "keys_int64s": [1, 3],
        "values_strings": ["one", "three"],
        "default_string": "?",
    }
    assert run("LabelEncoder", {"x": numbers}, **back)[0].tolist() == ["three", "one", "?"]
    nan = run("LabelEncoder", {"x": reals}, domain=ML, keys_floats=[float("nan"), 0.5], values_int64s=[5, 6])[0]
    assert nan.tolist() == [6, 5, -1]


def test_n_grams() -> None:
    x = strings("a", "b", "a", "c", "b", "a")
    given: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 2],
        "ngram_indexes": [0, 1, 2, 3],
        "pool_strings": ["a", "bb", "b", "a", "a", "c"],
    }
    assert run("TfIdfVectorizer", {"x": x}, **given)[0].tolist() == [3, 0, 2, 1]


# -------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
def test_casts_of_integers(dtype: type[np.signedinteger[Any]]) -> None:
    limits = np.iinfo(dtype)
    x = np.array([[0, 7, 10, 99], [100, limits.max, limits.min, limits.min + 1]], dtype)
    spelled = run("Cast", {"x": x}, to=TensorProto.STRING)[0]
    assert spelled.tolist() == x.astype(str).tolist()
    back = run("Cast", {"x": spelled}, width=20, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))[0]
    assert back.dtype == dtype
    assert back.tolist() == x.tolist()


def test_other_casts() -> None:
    signs = run("Cast", {"x": strings("+12", "-0", "0007")}, to=TensorProto.INT32)[0]
    assert signs.tolist() == [12, 0, 7]
    assert run("Cast", {"x": strings("a")}, to=TensorProto.STRING)[0].tolist() == ["a"]
    with pytest.raises(UnsupportedError, match=r"strings and f32 are not supported \(supported are those of i8"):
        run("Cast", {"x": strings("1.5")}, to=TensorProto.FLOAT)


# ------------------------------------------------------------------------------------------------- moving strings
@pytest.mark.parametrize(
    ("type", "more", "attributes"),
    [
        ("Identity", [], {}),
        ("Reshape", [[3, -1]], {}),
        ("Flatten", [], {"axis": 1}),
        ("Transpose", [], {}),
        ("Unsqueeze", [[0, -1]], {}),
        ("Slice", [[1], [9], [-1]], {}),
        ("Gather", [[[2, 0]]], {"axis": -1}),
        ("Expand", [[2, 2, 3]], {}),
        ("Shape", [], {"start": 1}),
        ("Size", [], {}),
        ("Transpose", [], {"perm": [1, 0]}),
    ],
)
def test_data_movement(type: str, more: list[Any], attributes: dict[str, Any]) -> None:
    x = strings("a", "bb", "", "été", "d", "ee").reshape(2, 3)
    constants = {f"c{i}": np.array(values, np.int64) for i, values in enumerate(more)}
    (output,) = run(type, {"x": x}, constants=constants, **attributes)
    expected = {
        "Identity": x,
        "Reshape": x.reshape(3, -1),
        "Flatten": x,
        "Transpose": x.T,
        "Unsqueeze": x[None, :, :, None],
        "Slice": x[:, 1:],
        "Gather": x[:, [[2, 0]]],
        "Expand": np.broadcast_to(x, (2, 2, 3)),
        "Shape": np.array([3]),
        "Size": np.array(6),
    }[type]
    assert output.shape == expected.shape
    assert output.tolist() == expected.tolist()


def test_concat_and_where() -> None:
    a, b = strings("a", "bb"), strings("ccc", "")
    assert run("Concat", {"a": a, "b": b}, axis=-1)[0].tolist() == ["a", "bb", "ccc", ""]
    wide = {"b": strings("a string that is longer than others")}
    assert run("Concat", {"a": a}, constants=wide, axis=0)[0].tolist() == ["a", "bb", *wide["b"]]
    chosen = run("Where", {"c": np.array([True, False]), "a": a, "b": b})[0]
    assert chosen.tolist() == ["a", ""]
    assert run("Squeeze", {"a": a.reshape(1, 2, 1)})[0].tolist() == ["a", "bb"]


# ------------------------------------------------------------------------------------------------- at the boundary
def test_unsupported_string_operators_are_reported() -> None:
    x = {"x": strings("a")}
    with pytest.raises(UnsupportedError, match=r"no Relu of strings.*StringConcat"):
        run("Relu", x)
    with pytest.raises(UnsupportedError, match=r"cannot be compiled.*\(\?= is not supported"):
        run("RegexFullMatch", x, pattern="(?=a)")
    with pytest.raises(InputError, match=r"x\.width.*not a number of bytes"):
        tenon.load(model("Identity", x), shapes={"x.width": 0})


def test_strings_as_bytes() -> None:
    x = strings("a", "", "日本").reshape(3, 1)
    assert encoded(x).shape == (3, 1, 6)
    assert decoded(encoded(x, 8)).tolist() == x.tolist()
    assert decoded(encoded(np.array(["x", "yy"]))).tolist() == ["x", "yy"]
    with pytest.raises(StringError, match="6 bytes, and there is room for 5"):
        encoded(x, 5)
    with pytest.raises(StringError, match="zero byte"):
        encoded(strings("a\0b"))
    with pytest.raises(StringError, match="not a string"):
        encoded(strings(3))


def test_shapes_of_strings_are_bound_like_others() -> None:
    data = model("Identity", {"x": strings("a", "b")})
    assert str(tenon.load(data).inputs[0].type) == "u8[2,64]"
    bundle = tenon.compile(data, shapes={"x": (2,), "x.width": 5})
    assert bundle.program.inputs[0].type.dims == (2, 5)
    with pytest.raises(InputError, match="read with 64 bytes"):
        tenon.compile(tenon.load(data), shapes={"x.width": 5})


@pytest.mark.parametrize("declared", [True, False])
def test_models_can_be_cut_at_declared_strings(declared: bool) -> None:
    nodes = [
        helper.make_node("StringConcat", ["x", "x"], ["twice"]),
        helper.make_node("StringConcat", ["twice", "x"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in ("x", "twice", "y")]
    graph = helper.make_graph(nodes, "made", ports[:1], ports[2:], value_info=ports[1:2] if declared else [])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    shapes = {"x.width": 4, "twice.width": 8}
    if not declared:
        with pytest.raises(InputError, match="cannot be cut at 'twice': it holds strings"):
            tenon.load(data, inputs=["twice", "x"])
        return
    part = tenon.load(data, shapes=shapes, inputs=["twice", "x"])
    assert part.strings == {"twice", "x", "y"}
    outputs = evaluate(part, {"twice": encoded(strings("abab", ""), 8), "x": encoded(strings("ab", "c"), 4)})
    assert decoded(outputs["y"]).tolist() == ["ababab", "c"]


def test_engine_inputs_and_outputs_of_strings(tmp_path: Path) -> None:
    x = {"x": strings("one two", "three", " ")}
    bundle = tenon.compile(graph_of(model("StringSplit", x, ("y", "n")), x), name="words")
    assert "strings in UTF-8 along the last axis" in bundle.header
    engine = tenon.open(bundle.save(tmp_path / "words"))
    outputs = engine.run(x)
    assert outputs["y"].tolist() == [["one", "two"], ["three", ""], ["", ""]]
    assert outputs["n"].tolist() == [2, 1, 0]
    assert engine.run(np.array(["a b", "c d", "e"]))["y"].tolist() == [["a", "b"], ["c", "d"], ["e", ""]]
    assert engine.run(encoded(strings("1", "2", "3"), WIDTH))["y"].tolist() == [["1"], ["2"], ["3"]]
    assert engine.inputs["x"].shape == (3, WIDTH)
    with pytest.raises(InputError, match=r"input 'x'.*13 bytes.*room for 12.*--shape x\.width=N"):
        engine.run(strings("a", "b", "a" * 13))
    with pytest.raises(InputError, match=r"has shape \[2\] and the network takes strings of \[3\]"):
        engine.run(strings("a", "b"))


def test_run_command_prints_strings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = {"x": strings("one two", "three")}
    (tmp_path / "words.onnx").write_bytes(model("StringSplit", x, ("y", "n")))
    np.save(tmp_path / "x.npy", x["x"].astype(np.str_))
    words = ["run", tmp_path / "words.onnx", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npz"]
    monkeypatch.setattr("sys.argv", ["tenon", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "y string[2, 2]" in printed
    assert '[1, 0]  "three"' in printed
    assert np.load(tmp_path / "y.npz")["y"].tolist() == [["one", "two"], ["three", ""]]
