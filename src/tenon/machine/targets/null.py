"""Compiles everything and runs nothing: to plan, print and inspect without any toolchain."""

from tenon.machine.kernels.machine import Machine
from tenon.machine.targets.base import Target

TARGETS = (
    Target(
        "null", Machine(lanes=4, registers=16), "", "", about="Plans and prints, without machine code", object="none"
    ),
)
