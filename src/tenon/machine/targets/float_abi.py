"""Floating-point ABIs of 32-bit Arm microcontrollers, by the names that GCC and Clang have for them.

``soft`` computes floats by functions, ``softfp`` by the FPU's instructions with arguments of functions in the core's
registers, ``hard`` with arguments in the FPU's.  Objects of ``soft`` and ``softfp`` can be linked with each other,
those of ``hard`` with neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tenon.errors import InputError
from tenon.machine.targets.base import SOFTFP, Target

FloatAbi = Literal["soft", "softfp", "hard"]


def float_abi(target: Target) -> FloatAbi | None:
    """The ABI of a target; None for processors that have no such choice."""
    if not target.triple.startswith("thumb"):
        return None
    if target.triple.endswith("hf"):
        return "hard"
    return "softfp" if SOFTFP in target.flags else "soft"


def with_float_abi(target: Target, abi: FloatAbi) -> Target:
    """The target with another ABI; for ``soft`` the row of the same core without FPU.

    Raises InputError where the processor has no such ABI.
    """
    own = float_abi(target)
    if own is None:
        raise InputError(f"target {target.name} has no choice of float_abi: leave it out (--float-abi)")
    if own == abi:
        return target
    if own == "soft":
        raise InputError(f"float_abi={abi}: {target.name} has no registers for floats: leave it out (--float-abi)")
    if abi == "soft":
        return _without_fpu(target)
    triple = target.triple.removesuffix("hf") + ("hf" if abi == "hard" else "")
    flags = tuple(flag for flag in target.flags if flag != SOFTFP)
    return replace(target, triple=triple, flags=flags if abi == "hard" else (*flags, SOFTFP))


def _without_fpu(target: Target) -> Target:
    from tenon.machine.targets.registry import named

    row = named(f"{target.name.removesuffix('-sp')}-nofp")
    if row is None:
        raise InputError(
            f"float_abi=soft: there is no target {target.name} without FPU: softfp can be linked with soft, too"
        )
    return row
