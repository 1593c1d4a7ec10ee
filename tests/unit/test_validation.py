"""Validation of values against type annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from tenon.validation import MisfitError, least, matching, most, plain, reader


class Point(NamedTuple):
    x: int
    y: Annotated[int, least(0), most(9)] = 1
    tag: tuple[int, str] | None = None


@dataclass(frozen=True)
class Shape:
    points: tuple[Point, ...]
    colour: Literal["red", "green"] = "red"
    scale: float = 1.0


def test_records_are_read_and_written() -> None:
    content = {"points": [{"x": 1}, {"x": 2, "y": 3, "tag": [4, "five"]}], "scale": 2}
    shape = reader(Shape)(content)
    assert shape == Shape((Point(1), Point(2, 3, (4, "five"))), scale=2.0)
    assert plain(shape) == {
        "points": [{"x": 1, "y": 1, "tag": None}, {"x": 2, "y": 3, "tag": [4, "five"]}],
        "colour": "red",
        "scale": 2,
    }
    assert reader(Shape)(plain(shape)) == shape


@pytest.mark.parametrize(
    ("content", "where", "why"),
    [
        ([], (), "must be an object"),
        ({}, ("points",), "is missing"),
        ({"points": [], "size": 1}, ("size",), "is not known"),
        ({"points": {}}, ("points",), "must be a list"),
        ({"points": [{"x": 1}, {"x": "1"}]}, ("points", 1, "x"), "must be a whole number"),
        ({"points": [{"x": True}]}, ("points", 0, "x"), "must be a whole number"),
        ({"points": [{"x": 1, "y": -1}]}, ("points", 0, "y"), "must be 0 or more"),
        ({"points": [{"x": 1, "y": 10}]}, ("points", 0, "y"), "must be 9 or less"),
        ({"points": [{"x": 1, "tag": [1]}]}, ("points", 0, "tag"), "must be a list of 2"),
        ({"points": [], "colour": "blue"}, ("colour",), "must be one of red, green"),
        ({"points": [], "scale": "1"}, ("scale",), "must be a number"),
    ],
)
def test_errors_have_path_and_reason(content: Any, where: tuple[str | int, ...], why: str) -> None:
    with pytest.raises(MisfitError) as caught:
        reader(Shape)(content)
    assert (caught.value.where, caught.value.why) == (where, why)


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (int, "12", 12),
        (float | None, "0.5", 0.5),
        (bool, "yes", True),
        (bool, "0", False),
        (Literal[0, 2, 4], "2", 2),
        (Path, "a/b", Path("a/b")),
        (tuple[int, int], ["1", "2"], (1, 2)),
        (Mapping[str, int], {"a": "1"}, {"a": 1}),
    ],
)
def test_keywords_for_numbers(kind: Any, word: Any, value: Any) -> None:
    assert reader(kind, from_text=True)(word) == value
    assert reader(Any)(word) is word


@pytest.mark.parametrize(("kind", "word"), [(int, "1.5"), (bool, "perhaps"), (float, "x"), (Literal[0, 2], "1")])
def test_unknown_keywords(kind: Any, word: str) -> None:
    with pytest.raises(MisfitError, match="must be"):
        reader(kind, from_text=True)(word)


def test_patterns_match_whole_strings() -> None:
    name = reader(Annotated[str, matching("[a-z]+", 4)])
    assert name("abcd") == "abcd"
    for word in ("abcde", "a b", ""):
        with pytest.raises(MisfitError, match="must match"):
            name(word)
