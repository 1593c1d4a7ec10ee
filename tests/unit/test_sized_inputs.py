"""Arrays of changing size in Python: sizes follow from their shapes, outputs have their true shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tenon
from sized import COLUMNS, LARGEST, ROWS, planes, positive_plus_one, rows, sized_rows
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.engine import Engine


@pytest.fixture(scope="module")
def one() -> Iterator[Engine]:
    with tenon.open(tenon.compile(rows(), no_tuning=True)) as engine:
        yield engine


@pytest.fixture(scope="module")
def two() -> Iterator[Engine]:
    with tenon.open(tenon.compile(planes(), no_tuning=True)) as engine:
        yield engine


def pair(length: int, width: int) -> dict[str, Array]:
    rng = np.random.default_rng(length)
    return {
        "a": rng.normal(size=(2, length, width)).astype(np.float32),
        "b": rng.normal(size=(length, width)).astype(np.float32),
    }


@pytest.mark.parametrize("length", [4, 12, LARGEST, 8])
def test_sizes_follow_from_shapes(one: Engine, length: int) -> None:
    x = sized_rows(length)
    for feeds in (x, {"x": x}, {"x": x, "L": np.array(length)}, {"x": x.tolist()}, {"x": np.asfortranarray(x)}):
        results = one.run(feeds)
        assert results["n"] == length
        np.testing.assert_array_equal(results["y"], positive_plus_one(x))
        assert results["y"].flags.c_contiguous
    again = one.run()  # on what the inputs hold
    np.testing.assert_array_equal(again["y"], positive_plus_one(x))


def test_padded_arrays_with_a_stated_size(one: Engine) -> None:
    x = sized_rows(LARGEST)
    np.testing.assert_array_equal(one.run({"x": x, "L": 8})["y"], positive_plus_one(x[:, :8]))


def test_views_of_inputs_and_outputs(one: Engine) -> None:
    """A feed that lies in the engine's memory is read before anything is written."""
    x = sized_rows(12)
    one.run(x)
    y = one.run(one.inputs["x"][:, 4:12], copy=False)["y"]
    np.testing.assert_array_equal(y, positive_plus_one(x[:, 4:12]))
    np.testing.assert_array_equal(one.run(y)["y"], positive_plus_one(positive_plus_one(x[:, 4:12])))


def test_the_largest_at_first() -> None:
    with tenon.open(tenon.compile(rows(), no_tuning=True)) as engine:
        assert engine.run()["y"].shape == (ROWS, LARGEST)
        assert engine.inputs["x"].shape == (ROWS, LARGEST)
        assert engine.fork().run()["n"] == LARGEST


@pytest.mark.parametrize(("length", "width"), [(4, 1), (20, 3), (LARGEST, COLUMNS)])
def test_several_inputs(two: Engine, length: int, width: int) -> None:
    feeds = pair(length, width)
    np.testing.assert_array_equal(two.run(feeds)["s"], feeds["a"] + feeds["b"])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "above": ({"x": np.zeros((ROWS, 28), np.float32)}, r"size 'L' is 28 in 'x', and the network was .* for 4\.\.24:4"),
    "between": ({"x": np.zeros((ROWS, 10), np.float32)}, r"size 'L' is 10 in 'x', and the network was"),
    "empty": ({"x": np.zeros((ROWS, 0), np.float32)}, "size 'L' is 0 in 'x'"),
    "fixed axis": (
        {"x": np.zeros((2, 8), np.float32)},
        r"\[2,8\] and the network takes f32\[3,L:4\.\.24:4\]",
    ),
    "rank": ({"x": np.zeros(8, np.float32)}, r"has shape \[8\] and the network takes f32\[3,L:4\.\.24:4\]"),
    "type": ({"x": np.zeros((ROWS, 8))}, "has dtype float64 and the network takes float32"),
    "stated": ({"x": np.zeros((ROWS, 8), np.float32), "L": 12}, "size 'L' is 12 and 8 in 'x'"),
    "stated range": ({"x": np.zeros((ROWS, LARGEST), np.float32), "L": 5}, "size 'L' is 5, and the network"),
    "no number": ({"x": np.zeros((ROWS, 8), np.float32), "L": np.zeros(2, np.int64)}, r"size 'L' is int64\[2\]"),
    "unknown": ({"z": np.zeros(3)}, r"no input named 'z': this network's inputs are 'x' \(float32\[3,24\]\)$"),
    "missing": ({"L": 8}, "input 'x' is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_sizes_that_do_not_fit(one: Engine, name: str) -> None:
    """One message, and neither inputs nor sizes are changed."""
    feeds, message = WRONG[name]
    x = sized_rows(8)
    one.run(x)
    with pytest.raises(InputError, match=message):
        one.run(feeds)
    np.testing.assert_array_equal(one.run()["y"], positive_plus_one(x))


def test_different_sizes_of_one_dimension(two: Engine) -> None:
    feeds = {**pair(8, 2), "b": np.zeros((12, 2), np.float32)}
    with pytest.raises(InputError, match="size 'L' is 8 in 'a' and 12 in 'b': it is the same in all inputs"):
        two.run(feeds)


def test_descriptions_show_ranges(one: Engine, two: Engine) -> None:
    assert "x f32[3,L:4..24:4] -> y f32[3,L], n i64[]" in repr(one)
    assert "a f32[2,L:4..24:4,W:1..5], b f32[L:4..24:4,W:1..5] -> s f32[2,L,W]" in repr(two)
    assert "f32[3,L:4..24:4]" in one._repr_html_()
