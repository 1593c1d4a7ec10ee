"""Large programs compiled in pieces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tenon
from real import DIGITS, held_out_digits
from tenon.codegen import split_units as module
from tenon.codegen.split_units import pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SIZE", 1 << 10)


def functions(text: str) -> list[str]:
    return re.findall(r"^(?:TENON_OUTLINE void|TENON_PIECE) (\w+)\(.*\{$", text, re.MULTILINE)


def test_small_programs_stay_whole() -> None:
    source = tenon.compile(DIGITS / "digits.onnx").source
    assert pieces(source, "digits") == [source]


@pytest.mark.usefixtures("small_pieces")
def test_every_function_is_in_one_piece() -> None:
    source = tenon.compile(DIGITS / "digits.onnx", name="net").source
    units = pieces(source, "net")
    assert len(units) > 2
    assert sorted(name for unit in units for name in functions(unit)) == sorted(functions(source))
    assert functions(units[0]) == []
    assert "int net(" in units[0]
    assert pieces(source, "net") == units


@pytest.mark.usefixtures("small_pieces")
def test_pieces_compute_the_same_and_show_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = held_out_digits()
    parts = tenon.compile(DIGITS / "digits.onnx", name="net", cache=tmp_path / "one")
    again = tenon.compile(DIGITS / "digits.onnx", name="net", cache=tmp_path / "two")
    assert parts.object == again.object
    with tenon.open(parts) as engine:
        found = [engine.run(image)["probabilities"].tobytes() for image in images[:20]]
        names = [f"net_{name}" for unit in pieces(parts.source, "net") for name in functions(unit)]
        assert any(name.encode() in parts.object for name in names)
        assert not any(hasattr(engine._library, name) for name in names)
    monkeypatch.undo()
    whole = tenon.compile(DIGITS / "digits.onnx", name="net")
    assert whole.object != parts.object
    with tenon.open(whole) as engine:
        assert [engine.run(image)["probabilities"].tobytes() for image in images[:20]] == found


@pytest.mark.usefixtures("small_pieces")
def test_each_function_keeps_its_comment() -> None:
    source = tenon.compile(DIGITS / "digits.onnx", name="net").source
    parts = pieces(source, "net")
    assert sum(part.count("*/\nTENON_") for part in parts) == source.count("*/\nTENON_OUTLINE void ") > 5
