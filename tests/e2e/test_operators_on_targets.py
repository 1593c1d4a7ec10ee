"""The kernels of operator cases on emulated machines, compared with the interpreter.

The kernel calls of some cases become calls of one program, each with the memory contents that the interpreter started
from; the program runs on the target, and the resulting memory is compared with the interpreter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest

from byte_products import NAMES, interleaved, operands, products
from compiled import lowered_steps
from interpret import interpret
from lowered import Ask, run_lowered
from on_targets import EMULATED, skip_without_device
from tenon.bundle import Bundle
from tenon.codegen.c.dialect import C
from tenon.engine.device import Device
from tenon.ir.graph import Array
from tenon.ir.loops import Kernel
from tenon.ir.types import DType, tensor
from tenon.kernels.machine import Machine
from tenon.ops import registry
from tenon.ops.base import Case
from tenon.options import Options
from tenon.plan.program import ALIGNMENT, Call, Memory, Place, Port, Program, Region
from tenon.targets import find

ASK = Ask(blocked=True, surplus=1)
CASES: list[Case] = [case for _, cls in sorted(registry().items()) for case in cls.cases()]


@dataclass
class Recorded:
    """A kernel call of the interpreter: its operands before and after."""

    label: str
    kernel: Kernel
    before: list[Array]
    after: list[Array]


def recorded(case: Case, machine: Machine) -> list[Recorded]:
    """The kernel calls of a case."""
    calls: list[Recorded] = []

    def execute(kernel: Kernel, views: list[Array]) -> None:
        before = [v.copy() for v in views]
        interpret(kernel, views)
        calls.append(Recorded(f"{case.op} {case.label}", kernel, before, [v.copy() for v in views]))

    run_lowered(case.op, case.arrays(), machine, case.constant, ASK, execute)
    return calls


@lru_cache(maxsize=1)
def covering(machine: Machine) -> tuple[Recorded, ...]:
    """Kernels that together use every helper function of the generated code, and those of one case for each operator:
    helpers contain what is specific to processors and compilers.
    """
    unit, seen, calls = C(), set[type](), list[Recorded]()
    for case in CASES:
        kernels, before = [step.kernel for step in lowered_steps(case, machine, ASK)], len(unit.helpers)
        for kernel in kernels:
            unit.kernel(kernel)
        if kernels and (len(unit.helpers) > before or type(case.op) not in seen):
            seen.add(type(case.op))
            calls += recorded(case, machine)
    return tuple(calls)


def program(kernels: Sequence[Recorded]) -> tuple[Program, Array]:
    """A program that calls every kernel once, and its initial memory, which is the program's input."""
    calls, parts, end = [], list[bytes](), 0
    for i, each in enumerate(kernels):
        places = []
        for view in each.before:
            places.append(Place(Region.MUTABLE, end))
            content = view.tobytes()
            parts.append(content + bytes(-len(content) % ALIGNMENT))
            end += len(parts[-1])
        calls.append(Call(each.kernel, tuple(places), f"call{i}", each.label))
    port = Port("memory", tensor(DType.U8, end), 0)
    whole = np.frombuffer(b"".join(parts), np.uint8)
    return Program("cases", (port,), (port,), tuple(calls), (), Memory(0, end, 0, 0)), whole


@pytest.mark.parametrize("target", EMULATED)
def test_operator_kernels_match_the_interpreter_on_every_target(target: str) -> None:
    skip_without_device(target)
    # a fused multiply-add rounds once
    row = replace(find(target), flags=(*find(target).flags, "-ffp-contract=off", "-O1"))
    kernels = [each for each in covering(row.machine) if not each.label.startswith(row.not_emulated)]
    assert len({each.label.partition("(")[0] for each in kernels}) > 100
    made, memory = program(kernels)
    bundle = Bundle.of(made, row, Options(target=target))
    (answer,) = Device(bundle).run([memory])
    wrong = []
    for each, call in zip(kernels, made.calls, strict=True):
        for buffer, place, expected in zip(each.kernel.params, call.args, each.after, strict=True):
            if buffer.space == "scratch":
                continue  # scratch memory has unspecified contents
            raw = answer["memory"][place.offset : place.offset + expected.nbytes]
            if not same(raw.view(expected.dtype).reshape(expected.shape), expected):
                wrong.append((each.label, raw.view(expected.dtype), expected))
    for label, a, b in wrong:
        at = np.flatnonzero(a != b.reshape(-1))[:4]
        print(label, a.dtype, len(a), a[at], b.reshape(-1)[at])
    assert not [label for label, _, _ in wrong]


@pytest.mark.parametrize("target", [name for name in EMULATED if find(name).machine.dot4])
def test_products_of_bytes_on_every_target(target: str) -> None:
    """At the ends of their ranges, where sums of 16 bits saturate or wrap around."""
    skip_without_device(target)
    row, records = find(target), list[Recorded]()
    lanes = row.machine.lanes
    for kernel in (*(products(name, n) for name in NAMES for n in (1, lanes)), interleaved(lanes)):
        before = list(operands(kernel.name.rpartition("_")[0]))
        if len(kernel.params) == 2:
            before = [before[0].view(np.int8), before[2]]
        after = [a.copy() for a in before]
        interpret(kernel, after)
        records.append(Recorded(kernel.name, kernel, before, after))
    made, memory = program(records)
    (answer,) = Device(Bundle.of(made, row, Options(target=target))).run([memory])
    for each, call in zip(records, made.calls, strict=True):
        place, expected = call.args[-1], each.after[-1]
        raw = answer["memory"][place.offset : place.offset + expected.nbytes]
        np.testing.assert_array_equal(raw.view(expected.dtype), expected, err_msg=each.label)


def same(a: Array, b: Array) -> bool:
    """Bitwise equality, except that all NaNs are equal: processors give different ones."""
    if a.tobytes() == b.tobytes():
        return True
    return a.dtype.kind == "f" and bool(np.array_equal(a, b, equal_nan=True))
