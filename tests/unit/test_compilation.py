"""Options resolved for a target, once: what a compilation reads, and that a model's file is read once."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import tenon
from tenon.compilation import resolved
from tenon.errors import InputError
from tenon.formats import importers
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.options import INTEGER_WINOGRAD_BYTES, THREADS, Options

pytestmark = pytest.mark.quick

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"

_IMPORT = re.compile(r"from tenon\.options import (\([^)]*|[^\n]*)\bOptions\b")
ROOMS = ("machine/plan", "machine/codegen", "machine/proofs", "runtime/bundle", "tools/tune/search.py")


def compilation(target: str, **options: Any) -> Any:
    return resolved(Options(target=target, **options), find(target))


def test_defaults_of_systems_and_boards() -> None:
    system, board = compilation("x86-64"), compilation("cortex-m4")
    assert (system.setting.threads, board.setting.threads) == (THREADS, 1)
    assert (system.setting.limits.winograd, system.setting.limits.strassen) == (4, 2)
    assert (board.setting.limits.winograd, board.setting.limits.strassen) == (0, 0)
    assert system.setting.limits.integer_winograd == math.inf
    assert board.setting.limits.integer_winograd == INTEGER_WINOGRAD_BYTES
    assert system.stated == board.stated == ()


def test_given_options_count() -> None:
    made = compilation("cortex-m4", winograd=2, strassen=1, max_winograd_error=0.5, precision="bf16")
    assert (made.setting.limits.winograd, made.setting.limits.strassen, made.setting.limits.max_winograd_error) == (
        2,
        1,
        0.5,
    )
    assert made.recorded["winograd"] == 2
    assert set(made.stated) == {"winograd=2", "strassen=1", "max_winograd_error=0.5", "precision=bf16"}
    assert compilation("x86-64", threads=3).setting.machine.threads == 3


def test_threads_on_a_target_without() -> None:
    with pytest.raises(InputError, match="target cortex-m4 has no threads: leave out threads=2"):
        compilation("cortex-m4", threads=2)
    assert compilation("cortex-m4", threads=1).setting.threads == 1


def test_measured_times_only_where_they_are_of_such_code(tmp_path: Path) -> None:
    table = tmp_path / "tuning.sqlite"
    assert compilation("x86-64", tuning=table).tuning == table
    for target, options in (("x86-64", {"no_tuning": True}), ("x86-64", {"c99": "strict"}), ("null", {})):
        assert compilation(target, tuning=table, **options).tuning is None


def test_strict_code_has_a_machine_of_one_lane() -> None:
    strict = compilation("x86-64", c99="strict")
    assert strict.target.machine.lanes == strict.setting.machine.lanes == 1
    assert strict.target.backend == "c.strict"


@pytest.mark.parametrize(
    ("target", "source", "given", "arithmetic"),
    [
        ("cortex-m4", "a.tflite", None, "tflm"),
        ("cortex-m4", "a.onnx", None, "onnx"),
        ("wasm32", "a.tflite", None, "onnx"),
        ("x86-64", "a.tflite", None, "onnx"),
        ("cortex-m4", "a.tflite", "float", "float"),
    ],
)
def test_arithmetic_follows_target_and_model(target: str, source: str, given: str | None, arithmetic: str) -> None:
    graph = Graph("net")
    graph.source = source
    assert compilation(target, arithmetic=given).arithmetic_of(graph) == arithmetic


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        compilation("x86-64").ram = 1


def test_later_stages_read_no_options() -> None:
    source = Path(tenon.__file__).parent
    for room in ROOMS:
        files = [source / room] if room.endswith(".py") else sorted((source / room).rglob("*.py"))
        assert files
        reading = [path.name for path in files if _IMPORT.search(path.read_text())]
        assert not reading, room


def test_a_model_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = list[object]()
    find_model = importers.find

    def counted(*given: Any, **rest: Any) -> Any:
        paths.append(given[0])
        return find_model(*given, **rest)

    monkeypatch.setattr(importers, "find", counted)
    bundle = tenon.compile(DIGITS, target="x86-64", no_tuning=True)
    assert paths == [DIGITS]
    assert bundle.origin is not None
    assert (bundle.origin.file, bundle.origin.format) == (DIGITS.name, "onnx")
    assert bundle.origin.sha256 == hashlib.sha256(DIGITS.read_bytes()).hexdigest()
