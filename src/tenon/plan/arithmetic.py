"""Selects the fastest arithmetic of a product, on a machine that multiplies numbers of 16 bits."""

from __future__ import annotations

from dataclasses import replace

from tenon.ir.graph import Node
from tenon.ir.types import F32, DType
from tenon.kernels.machine import Machine
from tenon.plan.lowering_context import Setting, operator, site

_TYPES = {
    DType.BF16: {"stored": (F32, DType.BF16), "wide": (F32, F32), "narrow": (DType.BF16, DType.BF16)},
    DType.F16: {"stored": (F32, DType.F16), "narrow": (DType.F16, DType.F16)},
}
"""The types of images and weights, by ``passes.precision.ArithmeticOf``; of equally fast ones the first is taken.
Weights in f16 are asked for to save memory, those in bf16 to save time."""

_CONVERTED = 1.1
"""The factor by which an f32 product must be faster where most are of 16 bits, because its image is converted."""


def computes(machine: Machine, dtype: DType) -> bool:
    """Whether a machine has instructions for products of ``dtype``, of 16 bits."""
    return machine.dot2 > 0 if dtype is DType.BF16 else machine.half


def quickest(node: Node, setting: Setting, dtype: DType = DType.BF16) -> str:
    """The fastest arithmetic by estimate for a product by constant weights in f32 that may be stored as ``dtype``."""
    op, here = operator(node), site(node, setting)
    times = {}
    for name, (image, weights) in _TYPES[dtype].items():
        x, w, *rest = here.inputs
        assert x is not None
        assert w is not None
        inputs = (replace(x, dtype=image), replace(w, dtype=weights), *rest)
        outputs = tuple(replace(y, dtype=image) for y in here.outputs)
        times[name] = op.cost(replace(here, inputs=inputs, outputs=outputs)).time
    if dtype is DType.F16 or setting.machine.dot2 < 2:
        times["narrow"] /= _CONVERTED
    return min(times, key=lambda name: times[name])
