"""Large programs compiled as several translation units."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import tenon
from onnx_models import model, node, random
from real import DIGITS, ROOT, held_out_digits
from tenon.machine.codegen.c import split_units as module
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.unit import CUnit
from tenon.machine.isa.frame import OPERANDS


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SIZE", 1 << 10)


@pytest.fixture
def unit() -> CUnit:
    generated = tenon.compile(DIGITS / "digits.onnx", name="net").unit
    assert isinstance(generated, CUnit)
    return generated


def functions(text: str) -> list[str]:
    return re.findall(r"^(?:TENON_OUTLINE void|TENON_PIECE) (\w+)\(.*\{$", text, re.MULTILINE)


def test_small_programs_are_not_split(unit: CUnit) -> None:
    assert unit.split() == [unit.text()]


@pytest.mark.usefixtures("small_units")
def test_every_function_is_in_one_unit(unit: CUnit) -> None:
    texts = unit.split()
    assert len(texts) > 2
    assert sorted(name for text in texts for name in functions(text)) == sorted(functions(unit.text()))
    assert functions(texts[0]) == []
    assert "int net(" in texts[0]
    assert unit.split() == texts


def test_recorded_callees_match_the_text(unit: CUnit) -> None:
    names = {f.name for f in unit.functions}
    assert sum(len(f.calls) for f in unit.functions) > 3
    for f in unit.functions:
        called = dict.fromkeys(name for name in re.findall(r"(\w+)\(", f.text) if name in names)
        assert f.calls == tuple(called)
    entered = {name for name in re.findall(r"(\w+)\(", unit.entries) if name in names}
    assert {step.function for program in unit.steps for step in program} == entered


@pytest.mark.usefixtures("small_units")
def test_comments_do_not_affect_splitting(unit: CUnit) -> None:
    """Comments may contain anything, also text that looks like a function definition or a call."""
    first, *rest = unit.functions
    confusing = f"/* }}\nTENON_OUTLINE void {rest[-1].name}(void) {{ {rest[-1].name}(); }}\n */\n"
    changed = replace(unit, functions=(replace(first, comment=confusing), *rest))
    assert len(changed.split()) == len(unit.split())
    for a, b in zip(changed.split(), unit.split(), strict=True):
        assert a.replace(confusing, first.comment) == b


@pytest.mark.usefixtures("small_units")
def test_split_units_give_the_same_results_and_export_no_new_symbols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, _ = held_out_digits()
    parts = tenon.compile(DIGITS / "digits.onnx", name="net", cache=tmp_path / "one")
    again = tenon.compile(DIGITS / "digits.onnx", name="net", cache=tmp_path / "two")
    assert parts.object == again.object
    with tenon.open(parts) as engine:
        actual = [engine.run(image)["probabilities"].tobytes() for image in images[:20]]
        names = [f"net_{name}" for text in parts.unit.split() for name in functions(text)]
        assert any(name.encode() in parts.object for name in names)
        assert not any(hasattr(engine._library, name) for name in names)
    monkeypatch.undo()
    whole = tenon.compile(DIGITS / "digits.onnx", name="net")
    assert whole.object != parts.object
    with tenon.open(whole) as engine:
        assert [engine.run(image)["probabilities"].tobytes() for image in images[:20]] == actual


@pytest.mark.usefixtures("small_units")
def test_each_function_keeps_its_comment(unit: CUnit) -> None:
    texts = unit.split()
    assert sum(text.count("*/\nTENON_") for text in texts) == unit.text().count("*/\nTENON_OUTLINE void ") > 5


def test_functions_are_not_called_like_operands_of_assembly() -> None:
    """A macro that renames a function would rename the operand too, but not where the text of the assembly names it."""
    named = {
        name.rstrip("0123456789")
        for file in (ROOT / "src" / "tenon" / "machine" / "isa").glob("*.py")
        for name in re.findall(r"%\w?\[([A-Za-z]\w*)\]", file.read_text())
    }
    assert {"w", "turn"} < named
    assert named <= OPERANDS
    weights = random(3, 8, 8)
    nodes = [node("Transpose", ["w"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["y"])]
    made = tenon.compile(model(nodes, {"x": (3, 5, 8), "w": weights.shape}, ["y"]).SerializeToString())
    assert not {step.function for program in made.unit.steps for step in program} & OPERANDS
    printer = C()
    printer.taken |= OPERANDS
    assert [printer.unique(name) for name in ("turn", "turned")] == ["turn_2", "turned"]
