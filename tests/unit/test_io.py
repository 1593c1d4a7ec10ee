"""Feeds of an engine: arrays that overlap its memory, and arrays of other libraries."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tenon
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.engine import Engine
from tenon.runtime.engine.io import fill_plain

ROWS, COLUMNS = 3, 4
A, B, C = (np.arange(12, dtype=np.float32).reshape(ROWS, COLUMNS) * s + s for s in (1, 10, 100))


def model(kind: int = TensorProto.FLOAT, rows: int | str = ROWS) -> bytes:
    """d = (a - b) - 2 c, which is not symmetric in any two inputs."""
    values = {name: helper.make_tensor_value_info(name, kind, [rows, COLUMNS]) for name in "abcd"}
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["t"]),
        helper.make_node("Sub", ["t", "c"], ["u"]),
        helper.make_node("Sub", ["u", "c"], ["d"]),
    ]
    graph = helper.make_graph(nodes, "three", [values[n] for n in "abc"], [values["d"]])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = [{"n": ROWS}, {"n": 2}]
    return tenon.compile(model(rows="n"), shapes=shapes, name="three").save(tmp_path_factory.mktemp("three") / "out")


@pytest.fixture
def engine(saved: Path) -> Iterator[Engine]:
    with tenon.open(saved) as opened:
        opened.run({"a": A, "b": B, "c": C})
        yield opened


@pytest.fixture(params=["one binding", "two bindings"])
def each(request: pytest.FixtureRequest, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine of a bundle for one shape, which copies plain arrays without looking for a binding, and of two."""
    if request.param == "one binding":
        saved = tenon.compile(model(), name="one").save(tmp_path_factory.mktemp("one") / "out")
    with tenon.open(saved) as opened:
        opened.run({"a": A, "b": B, "c": C})
        yield opened


def answer(a: Array, b: Array, c: Array) -> Array:
    return np.asarray(a - b - 2 * c)


# ------------------------------------------------------------------------------------------- overlapping memory
OVERLAPS: dict[str, Callable[[Engine], dict[str, Array]]] = {
    "swapped": lambda e: {"a": e.inputs["b"], "b": e.inputs["a"], "c": e.inputs["c"]},
    "turned": lambda e: {"a": e.inputs["b"], "b": e.inputs["c"], "c": e.inputs["a"]},
    "one for all": lambda e: dict.fromkeys("abc", e.inputs["c"]),
    "itself backwards": lambda e: {"a": e.inputs["a"][::-1, ::-1], "b": e.inputs["b"], "c": e.inputs["c"]},
    "strided": lambda e: {"a": e.inputs["b"][::-1], "b": e.inputs["a"][:, ::-1], "c": e.inputs["b"]},
    "transposed": lambda e: {
        "a": e.inputs["b"].reshape(COLUMNS, ROWS).T,
        "b": e.inputs["a"].reshape(COLUMNS, ROWS).T,
        "c": C,
    },
    "partial": lambda e: {
        "a": np.lib.stride_tricks.as_strided(e.inputs["b"], (ROWS, COLUMNS), (0, 4)),
        "b": B + 1,
        "c": e.inputs["a"],
    },
    "outputs": lambda e: {"a": e.outputs["d"], "b": e.outputs["d"][::-1], "c": e.inputs["a"]},
    "through DLPack": lambda e: {"a": Exchanged(e.inputs["b"]), "b": Exchanged(e.inputs["a"]), "c": C},  # type: ignore[dict-item]
    "bytes of another": lambda e: {
        "a": e.inputs["b"].view(np.uint8).view(np.float32),
        "b": e.inputs["a"],
        "c": e.inputs["b"],
    },
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlapping_feeds_are_read_before_inputs_are_written(each: Engine, name: str) -> None:
    feeds = OVERLAPS[name](each)
    expected = answer(*(np.array(getattr(feeds[n], "array", feeds[n])) for n in "abc"))
    np.testing.assert_array_equal(each.run(feeds)["d"], expected)


PLAIN: dict[str, tuple[dict[str, Any], bool]] = {
    "arrays": ({"a": A.copy(), "b": B.copy(), "c": C.copy()}, True),
    "the same array": (dict.fromkeys("abc", A.copy()), True),
    "a view": ({"a": A[:], "b": B.copy(), "c": C.copy()}, False),
    "a list": ({"a": A.tolist(), "b": B.copy(), "c": C.copy()}, False),
    "another type": ({"a": A.astype(np.float64), "b": B.copy(), "c": C.copy()}, False),
    "another order of bytes": ({"a": A.astype(">f4"), "b": B.copy(), "c": C.copy()}, False),
    "another shape": ({"a": A.T.copy(), "b": B.copy(), "c": C.copy()}, False),
    "a part": ({"a": A.copy(), "b": B.copy()}, False),
    "another name": ({"a": A.copy(), "b": B.copy(), "x": C.copy()}, False),
    "one more": ({"a": A.copy(), "b": B.copy(), "c": C.copy(), "x": C.copy()}, False),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_arrays_are_copied_at_once(name: str) -> None:
    """All inputs are written, or none is."""
    feeds, taken = PLAIN[name]
    inputs = {n: np.full((ROWS, COLUMNS), -1, np.float32) for n in "abc"}
    assert fill_plain(inputs, feeds) == taken
    for n, held in inputs.items():
        np.testing.assert_array_equal(held, feeds[n] if taken else -1)


def test_a_view_is_taken_by_a_single_input() -> None:
    """NumPy copies what overlaps the only input."""
    own = np.arange(12, dtype=np.float32).reshape(ROWS, COLUMNS)
    expected = own[::-1].copy()
    assert fill_plain({"a": own}, {"a": own[::-1]})
    np.testing.assert_array_equal(own, expected)


def test_overlaps_between_bindings(engine: Engine) -> None:
    """Bindings share memory: the inputs of one overlap several of another."""
    first = dict(engine.inputs)
    feeds = {"a": first["c"][:2], "b": first["a"][1:], "c": first["b"][:2]}
    expected = answer(*(feeds[n].copy() for n in "abc"))
    np.testing.assert_array_equal(engine.run(feeds)["d"], expected)
    assert engine.inputs["a"].shape == (2, COLUMNS)


def test_other_feeds_are_not_copied(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class CopyCounting(np.ndarray[Any, Any]):
        def copy(self, order: Any = "C") -> Any:
            raise AssertionError("copied")

    engine.run({"a": A.view(CopyCounting), "b": B.view(CopyCounting), "c": engine.inputs["c"]})


# --------------------------------------------------------------------------------------------- other libraries
class Exchanged:
    """Implements only the DLPack protocol."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Elsewhere(Exchanged):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("it lies on a GPU")


class Converted:
    """Implements only ``__array__``."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array


LIKE: dict[str, Callable[[Array], Any]] = {
    "DLPack": Exchanged,
    "__array__": Converted,
    "list": lambda a: a.tolist(),
    "tuple": lambda a: tuple(map(tuple, a.tolist())),
    "list of ints": lambda a: a.astype(int).tolist(),
    "list of arrays": list,
    "buffer": lambda a: a.data,
}


@pytest.mark.parametrize("name", LIKE)
def test_array_likes(each: Engine, name: str) -> None:
    like = LIKE[name]
    np.testing.assert_array_equal(each.run({"a": like(A), "b": like(B), "c": C})["d"], answer(A, B, C))


def test_array_likes_select_bindings(engine: Engine) -> None:
    actual = engine.run({"a": A[:2].tolist(), "b": Exchanged(B[:2]), "c": Converted(C[:2])})["d"]
    np.testing.assert_array_equal(actual, answer(A[:2], B[:2], C[:2]))


def test_tensors_of_torch(engine: Engine) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    feeds = {"a": torch.from_numpy(A), "b": torch.from_numpy(B).clone(), "c": C}
    np.testing.assert_array_equal(engine.run(feeds)["d"], answer(A, B, C))
    with pytest.raises(InputError, match="input 'a'"):
        engine.run({**feeds, "a": torch.zeros(ROWS, COLUMNS, requires_grad=True)})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Elsewhere(A), "input 'a' is a Elsewhere that cannot be read.*GPU"),
        (Converted(A.astype(np.float64)), r"float64 .* convert it with .astype\(np.float32\)"),
        (None, "input 'a' is a NoneType"),
        ({}, "input 'a' is a dict"),
        ([[1, 2], [3]], "input 'a' is a list that cannot be read"),
        (["1", "2"], "dtype <U1"),
        ([[1.0, 2.0]], r"shape \[1,2\] and the network takes"),
        (array.array("d", [1.0]), "float64"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else "",
)
def test_invalid_feeds(value: Any, words: str) -> None:
    with tenon.open(tenon.compile(model(), name="three")) as engine, pytest.raises(InputError, match=words):
        engine.run({"a": value, "b": B, "c": C})


def test_lists_of_numbers_are_converted_without_loss() -> None:
    """Integer inputs take lists of integers in range, and nothing else."""
    with tenon.open(tenon.compile(model(TensorProto.INT32, 1), name="three")) as engine:
        rest = {"b": [[0, 0, 0, 0]], "c": [[0, 0, 0, 0]]}
        assert engine.run({"a": [[1, 2, True, -(2**31)]], **rest})["d"].tolist() == [[1, 2, 1, -(2**31)]]
        with pytest.raises(InputError, match="dtype int64"):
            engine.run({"a": [[1, 2, 3, 2**31]], **rest})
        with pytest.raises(InputError, match="dtype float64"):
            engine.run({"a": [[1.0, 2.0, 3.0, 4.0]], **rest})
