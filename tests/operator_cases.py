"""The cases of all operators, those that an operator declines, and the selections of them that sweeps run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lowered import MACHINES
from tenon.network.ops import registry
from tenon.network.ops.base import Case

DECLINED = {
    "BatchNormalization-images": "statistics computed at run time",
    "Conv-three_axes": "3 spatial axes",
    "ConvTranspose-three_axes": "3 spatial axes",
    "MaxPool-three_axes": "3 spatial axes",
    "Resize-antialias": "antialias",
    "Resize-antialias_one_extent": "antialias",
}
"""Cases that an operator does not lower, with a part of its reason.  The passes rewrite such nodes before planning; the
cases are there for type inference and the reference."""

OF_OTHER_MACHINES = {
    **{
        f"ByteAttention-{label}{recoded}": "in one kernel"
        for label in ("u8_37x70", "i8_5x33", "u8_130x205")
        for recoded in ("", "_recoded")
    },
    "HeadAttention-bf16": "in one kernel",
    "HeadAttention-causal": "in one kernel",
    "HeadAttention-f16": "in one kernel",
    "HeadAttention-merged": "in one kernel",
    **{f"IntegerImageConv-{label}": "no kernel" for label in ("7x7", "3x3", "two")},
    "RoundRows-rows": "tiles of bf16",
    "RoundedMatMul-q4_0": "tiles of bf16",
    "RoundedGate-q4_0": "tiles of bf16",
    "RoundedNormalization-rows": "tiles of bf16",
}
"""Cases of operators that passes make only for machines that lower them, with a part of the reason of all others."""

OF_PROCESSORS = frozenset(f"HeadAttention-{label}" for label in ("blocks_of_keys", "cache", "window", "row"))
"""Cases of sizes, or with numbers of keys that a run knows, that an operator does not lower on devices."""


def _cases() -> Iterator[tuple[str, list[tuple[str, Case]]]]:
    for operator, cls in sorted(registry().items()):
        yield operator, [(f"{operator}-{case.label or i}", case) for i, case in enumerate(cls.cases())]


BY_OPERATOR: dict[str, list[tuple[str, Case]]] = dict(_cases())
"""The cases of every operator with their names: the operator's, a hyphen, and the case's label or number."""

CASES: list[Case] = [case for own in BY_OPERATOR.values() for _, case in own]

NAMED: dict[str, Case] = {name: case for own in BY_OPERATOR.values() for name, case in own}

LOWERED: dict[str, Case] = {name: case for name, case in NAMED.items() if name not in {**DECLINED, **OF_OTHER_MACHINES}}

ON_DEVICES: dict[str, Case] = {
    name: case for name, case in LOWERED.items() if case.op.on_devices and name not in OF_PROCESSORS
}


def selected(selection: str) -> list[Case]:
    """The cases that an operator lowers, by its name, or those of a slice of all operators' cases ("3::12")."""
    if selection in BY_OPERATOR:
        return [case for name, case in BY_OPERATOR[selection] if name in LOWERED]
    start, _, stride = selection.partition("::")
    return list(LOWERED.values())[int(start) :: int(stride)]


def sweep(machines: Sequence[str] = tuple(MACHINES), share: int = 3) -> list[Any]:
    """Parameters (selection, machine) of a test: one of ``share`` cases, each on one of the machines; with -m slow, the
    cases of every operator on each of the machines, so that "-m slow -k '[Conv-'" runs all cases of Conv.
    """
    stride = share * len(machines)
    sampled = [
        pytest.param(f"{share * i}::{stride}", machine, id=f"sample-{machine}") for i, machine in enumerate(machines)
    ]
    return sampled + [
        pytest.param(operator, machine, id=f"{operator}-{machine}", marks=pytest.mark.slow)
        for operator in BY_OPERATOR
        for machine in machines
        if selected(operator)
    ]
