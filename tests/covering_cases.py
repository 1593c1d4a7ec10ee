"""Few operator cases that together use every helper function of the generated C."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from compiled import lowered_steps
from lowered import Ask, NotLoweredError
from operator_cases import LOWERED
from tenon.machine.codegen.c.dialect import C
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.count import count
from tenon.network.ops.base import Case, Step


@lru_cache(maxsize=2)
def covering(machine: Machine, ask: Ask, each_operator: bool = False) -> tuple[Case, ...]:
    """Cases that together use every helper function, which contain what is specific to processors and compilers; with
    ``each_operator`` also a case of every operator.  Cases that take fewer operations come first: the interpreter
    needs a microsecond for each.  Cases that the machine's operators decline are listed in test_lowering.
    """
    lowered = list[tuple[Case, list[Step]]]()
    for case in LOWERED.values():
        with suppress(NotLoweredError):
            lowered.append((case, lowered_steps(case, machine, ask)))
    unit, operators, chosen = C(), set[type](), list[Case]()
    for case, steps in sorted(lowered, key=lambda each: _operations(each[1])):
        before = len(unit.helpers)
        for step in steps:
            unit.kernel(step.kernel)
        new_operator = each_operator and bool(steps) and type(case.op) not in operators
        if len(unit.helpers) > before or new_operator:
            operators.add(type(case.op))
            chosen.append(case)
    return tuple(chosen)


def _operations(steps: list[Step]) -> int:
    counts = [count(step.kernel) for step in steps]
    return sum(each.instructions + each.loaded for each in counts)
