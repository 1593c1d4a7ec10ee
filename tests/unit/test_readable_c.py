"""The printed C is made to be read: no loops without iterations to repeat, no needless parentheses, comments that say
what a function computes and which layer a call belongs to."""

from __future__ import annotations

import re

import pytest

from compiled import steps
from lowered import MACHINES, Ask
from tenon.codegen.c import C
from tenon.codegen.printer import bare
from tenon.ir.build import Builder
from tenon.ir.work_items import line
from tenon.ops import registry

ONE_ITERATION = re.compile(r"for \(.*(?:< 1;|slice_end\([^;]*, 1\);)")
NEEDLESS = re.compile(r" = \((?:[^()]|\([^()]*\))*\);| \+ 0\b(?![.x])|[^.\w]0 \+ |\* 1\b(?!\.)|\(\(\w+\)\)")
"""Parentheses around a whole value, and arithmetic that changes nothing."""


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_needless_in_any_operator_case(machine: str, sliced: bool) -> None:
    unit = C()
    for _, cls in sorted(registry().items()):
        for case in cls.cases():
            for step in steps(case, MACHINES[machine], Ask(blocked=True, surplus=1)):
                unit.kernel(step.kernel, line(step.kernel) if sliced else None)
    text = "\n".join(unit.functions)
    assert text.count("for (") > 1000
    assert [m.group() for m in ONE_ITERATION.finditer(text)] == []
    assert [m.group() for m in NEEDLESS.finditer(text)] == []
    assert "- (f32x" not in text  # a spread scalar has a name


def test_the_only_iteration_of_a_shared_loop_is_one_slices() -> None:
    """Two parallel loops of one iteration behind each other: each runs in the slice that holds its item."""
    k = Builder("pair")
    y = k.param("y", 3, out=True)
    for at in (0, 1):
        with k.loop("i", 1, kind="parallel") as i:
            y[i + at] = 1.0
    kernel = k.done()
    unit = C()
    unit.kernel(kernel, line(kernel))
    (text,) = unit.functions
    assert "if (slice_from < 1 && slice_to > 0) {" in text
    assert "if (slice_from < 2 && slice_to > 1) {" in text


def test_parentheses_around_the_whole_go() -> None:
    assert bare("((a + b))") == "a + b"
    assert bare("(a + b) * (c + d)") == "(a + b) * (c + d)"
    assert bare("(float)(a)") == "(float)(a)"
    assert bare("f(a)") == "f(a)"
    assert bare("a") == "a"
