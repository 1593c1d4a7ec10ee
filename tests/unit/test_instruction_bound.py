"""Bounds of instructions read from assembly: iterations of loops, the longer of two branches, calls."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tenon.machine.toolchain.control_flow import UnboundedError, functions
from tenon.machine.toolchain.instruction_bound import InstructionBounds


def assembled(most: Mapping[str, tuple[int, ...]] | None = None, /, **bodies: tuple[str, ...]) -> InstructionBounds:
    """Functions from their lines: labels, and instructions with a blank before the operands."""
    text = ""
    for name, body in bodies.items():
        text += f"\t.type\t{name},%function\n{name}:\n"
        for line in body:
            mnemonic, _, operands = line.partition(" ")
            text += f"{line}\n" if line.endswith(":") else f"\t{mnemonic}\t{operands}\n"
        text += f"\t.size\t{name}, 4\n"
    return InstructionBounds(functions(text), LIBRARY, most or {})


LIBRARY = {"__aeabi_idiv": 300}
"""Instructions of functions defined elsewhere."""

CASES: dict[str, tuple[tuple[str, ...], int]] = {
    "straight": (("movs r0, #1", "adds r0, #2", "bx lr"), 3),
    "counted down": (
        ("movs r6, #16", ".LBB0_1:", "subs r6, #1", "strb r2, [r7, #1]!", "bne .LBB0_1", "bx lr"),
        1 + 3 * 16 + 1,
    ),
    "counted up": (("movs r5, #0", ".LBB0_1:", "adds r5, #1", "cmp r5, #40", "blt .LBB0_1", "bx lr"), 1 + 3 * 40 + 1),
    "by an address": (
        ("add.w r1, r0, #48", ".LBB0_1:", "ldr r3, [r0], #8", "cmp r0, r1", "bne .LBB0_1", "bx lr"),
        1 + 3 * 6 + 1,
    ),
    "by unsigned addresses": (
        ("add.w r1, r0, #46", ".LBB0_1:", "ldr r3, [r0], #8", "cmp r0, r1", "blo .LBB0_1", "bx lr"),
        1 + 3 * 6 + 1,
    ),
    "tested on top": (
        ("movs r4, #0", ".LBB0_1:", "cmp r4, #10", "beq .LBB0_3", "adds r4, #1", "b .LBB0_1", ".LBB0_3:", "bx lr"),
        1 + 4 * 10 + 2 + 1,
    ),
    "spilled": (
        (
            "push {r4, lr}",
            "sub sp, #8",
            "movs r0, #7",
            "str r0, [sp, #4]",
            ".LBB0_1:",
            "ldr r1, [sp, #4]",
            "subs r1, #1",
            "str r1, [sp, #4]",
            "cmp r1, #0",
            "bne .LBB0_1",
            "add sp, #8",
            "pop {r4, pc}",
        ),
        4 + 5 * 7 + 2,
    ),
    "nested": (
        (
            "movs r5, #3",
            ".LBB0_1:",
            "movs r6, #4",
            ".LBB0_2:",
            "subs r6, #1",
            "bne .LBB0_2",
            "subs r5, #1",
            "bne .LBB0_1",
            "bx lr",
        ),
        1 + 3 * (1 + 4 * 2 + 2) + 1,
    ),
    "triangular": (
        (
            "movs r5, #3",
            ".LBB0_1:",
            "mov r6, r5",
            ".LBB0_2:",
            "subs r6, #1",
            "bne .LBB0_2",
            "subs r5, #1",
            "bne .LBB0_1",
            "bx lr",
        ),
        1 + (3 + 6) + (3 + 4) + (3 + 2) + 1,
    ),
    "by a bit that was shifted out": (
        ("mov.w r8, #1", ".LBB0_1:", "lsls.w r3, r8, #31", "mov.w r8, #0", "bne .LBB0_1", "bx lr"),
        1 + 2 * 3 + 1,
    ),
    "tile in assembly": (
        (
            "add.w r1, r0, #24",
            "str r1, [sp, #-4]!",
            ".Ltmp0:",
            "ldrd r2, r3, [r0], #8",
            "ldr r2, [sp]",
            "cmp r0, r2",
            "bne .Ltmp0",
            "add sp, #4",
            "bx lr",
        ),
        2 + 4 * 3 + 2,
    ),
    "low overhead": (
        ("mov r1, #9", "dls lr, r1", ".LBB0_1:", "adds r0, #1", "le lr, .LBB0_1", "pop {r7, pc}"),
        2 + 2 * 9 + 1,
    ),
    "a branch back without a counter": (
        (
            "movs r4, #3",
            ".LBB0_1:",
            "mov r0, #1",
            "dls lr, r0",
            "subs r4, #1",
            "cbnz r4, .LBB0_2",
            "bx lr",
            ".LBB0_2:",
            "le .LBB0_1",
        ),
        1 + 5 * 2 + 5,
    ),
    "tail predicated": (
        ("mov r1, #50", "dlstp.8 lr, r1", ".LBB0_1:", "vldrb.u8 q0, [r0], #16", "letp lr, .LBB0_1", "pop {r7, pc}"),
        2 + 2 * 4 + 1,
    ),
    "the longer branch": (
        ("cmp r0, #3", "bgt .LBB0_1", "movs r0, #3", "movs r1, #2", ".LBB0_1:", "bx lr"),
        5,
    ),
    "a branch that is decided": (("movs r0, #4", "cmp r0, #3", "bgt .LBB0_1", "movs r1, #2", ".LBB0_1:", "bx lr"), 4),
    "conditional instructions": (
        ("cmp r0, #3", "it gt", "movgt r0, #3", "ite lt", "lsllt r1, r0, #2", "lslge r1, r0, #1", "bx lr"),
        7,
    ),
    "conditional return": (
        ("movs r4, #3", ".LBB0_1:", "subs r4, #1", "it eq", "popeq {r4, pc}", "b .LBB0_1"),
        1 + 4 * 2 + 3,
    ),
    "constant pool": (
        ("ldr r0, .LCPI0_0", ".LBB0_1:", "subs r0, #1", "bne .LBB0_1", "bx lr", ".LCPI0_0:", ".long 1000"),
        1 + 2000 + 1,
    ),
    "call of a library": (("bl __aeabi_idiv", "bx lr"), 302),
    "an exit that depends on data": (
        (
            "movs r4, #0",
            ".LBB0_1:",
            "ldrb r1, [r0], #1",
            "cbz r1, .LBB0_3",
            "adds r4, #1",
            "cmp r4, #10",
            "bne .LBB0_1",
            ".LBB0_3:",
            "bx lr",
        ),
        1 + 5 * 10 + 1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_instructions_of_a_function(name: str) -> None:
    code, expected = CASES[name]
    assert assembled(f=code).bound("f").instructions == expected


COPY = (
    ".LBB1_0:",
    "cbz r2, .LBB1_2",
    ".LBB1_1:",
    "subs r2, #1",
    "strb r3, [r0], #1",
    "bne .LBB1_1",
    ".LBB1_2:",
    "bx lr",
)


def test_a_call_is_bounded_for_its_constants() -> None:
    caller = ("push {r4, lr}", "movs r2, #6", "bl copy", "movs r2, #2", "bl copy", "pop {r4, pc}")
    bound = assembled(f=caller, copy=COPY).bound("f")
    assert bound.calls == (("copy", 1 + 3 * 6 + 1), ("copy", 1 + 3 * 2 + 1))
    assert bound.instructions == len(caller) + 20 + 8


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            (".LBB0_1:", "ldr r1, [r0], #4", "cmp r1, #0", "bne .LBB0_1", "bx lr"),
            "how often the loop at .LBB0_1 of f runs",
        ),
        (("bl outside", "bx lr"), "how many instructions outside takes"),
        (("push {r4, lr}", "bl f", "pop {r4, pc}"), "f calls itself"),
        (("mov pc, r0",), "branches to a computed address"),
    ],
)
def test_what_has_no_bound_says_why(code: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UnboundedError, match=re.escape(reason)):
        assembled(f=code).bound("f")


def test_a_callee_that_changes_registers_of_a_loop_leaves_it_without_bound() -> None:
    loop = ("push {r4, lr}", "movs r3, #4", ".LBB0_1:", "bl copy", "subs r3, #1", "bne .LBB0_1", "pop {r4, pc}")
    with pytest.raises(UnboundedError, match="how often the loop"):
        assembled(f=loop, copy=COPY).bound("f")


def test_a_loop_whose_iterations_data_decides_runs_as_often_as_it_can() -> None:
    inner = (".LBB0_2:", "subs r5, #1", "nop", "bne .LBB0_2")
    code = ("ldr r4, [r0]", ".LBB0_1:", "movs r5, #6", *inner, "subs r4, #1", "bne .LBB0_1", "str r4, [r1]", "bx lr")
    with pytest.raises(UnboundedError, match="how often the loop"):
        assembled(f=code).bound("f")
    with pytest.raises(UnboundedError, match="how often the loop"):
        assembled({"g": (5,)}, f=code).bound("f")
    assert assembled({"f": (5,)}, f=code).bound("f").instructions == 1 + 5 * (1 + 3 * 6 + 2) + (1 + 3 * 6 + 2) + 2


def test_nested_loops_whose_iterations_data_decides() -> None:
    inner = (".LBB0_2:", "subs r5, #1", "nop", "bne .LBB0_2")
    code = ("ldr r4, [r0]", ".LBB0_1:", "ldr r5, [r1]", *inner, "subs r4, #1", "bne .LBB0_1", "bx lr")
    once = 1 + 3 * (40 + 1) + 2
    assert assembled({"f": (40, 3)}, f=code).bound("f").instructions == 1 + (3 + 1) * once + 1
