"""The most instructions of functions that compilers call for what a small processor lacks (zig's compiler_rt).

They were read from the assembly of the library of zig 0.17.1 by ``toolchain.instruction_bound``; those of divisions
without an instruction for them are of 32 steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenon.machine.targets import Target

_MOST: Mapping[str, tuple[int, int]] = {
    "ceilf": (241, 131),
    "d2f": (104, 64),
    "d2iz": (50, 28),
    "d2lz": (66, 42),
    "d2uiz": (50, 28),
    "d2ulz": (62, 35),
    "dadd": (481, 197),
    "dcmpeq": (44, 39),
    "dcmpge": (45, 40),
    "dcmpgt": (45, 40),
    "dcmple": (45, 40),
    "dcmplt": (45, 40),
    "dcmpun": (22, 18),
    "ddiv": (927, 197),
    "dmul": (613, 196),
    "dneg": (6, 10),
    "drsub": (493, 215),
    "dsub": (484, 204),
    "f2d": (78, 31),
    "f2iz": (29, 25),
    "f2lz": (57, 33),
    "f2uiz": (27, 23),
    "f2ulz": (52, 29),
    "fadd": (211, 103),
    "fcmpeq": (29, 27),
    "fcmpge": (30, 28),
    "fcmpgt": (30, 28),
    "fcmple": (30, 28),
    "fcmplt": (30, 28),
    "fcmpun": (18, 14),
    "fdiv": (417, 117),
    "floorf": (241, 131),
    "fmaxf": (92, 78),
    "fminf": (92, 78),
    "fmul": (206, 90),
    "fneg": (6, 4),
    "frsub": (220, 110),
    "fsub": (214, 104),
    "i2d": (68, 30),
    "i2f": (71, 30),
    "idiv": (600, 13),
    "idivmod": (760, 25),
    "l2d": (144, 53),
    "l2f": (140, 47),
    "lasr": (18, 15),
    "llsl": (18, 14),
    "llsr": (18, 14),
    "lmul": (27, 21),
    "roundf": (1167, 605),
    "sqrtf": (666, 245),
    "truncf": (235, 122),
    "ui2d": (58, 22),
    "ui2f": (57, 24),
    "uidiv": (560, 13),
    "uidivmod": (700, 25),
    "ul2d": (127, 47),
    "ul2f": (122, 41),
}
"""By the name of the function without ``__aeabi_``: for cores with Thumb (ARMv6-M, ARMv8-M Baseline) and Thumb-2."""


def library_instructions(target: Target) -> Mapping[str, int]:
    """By the function's name, for a call with any operands."""
    thumb2 = target.machine.registers > 8 or target.machine.has("dot16")
    return {prefix + name: most[thumb2] for name, most in _MOST.items() for prefix in ("__aeabi_", "")}
