"""Selects the fastest arithmetic of a product, on a machine with bf16 dot products."""

from __future__ import annotations

from dataclasses import replace

from tenon.ir.graph import Node
from tenon.ir.types import F32, DType
from tenon.plan.lowering_context import Setting, operator, site

_TYPES = {"stored": (F32, DType.BF16), "wide": (F32, F32), "pairs": (DType.BF16, DType.BF16)}
"""The types of images and weights, by ``passes.precision.ArithmeticOf``; of equally fast ones the first is taken."""

_CONVERTED = 1.1
"""The factor by which an f32 product must be faster where most are bf16, because its image has to be converted."""


def quickest(node: Node, setting: Setting) -> str:
    """The fastest arithmetic by estimate for a product by constant weights in f32."""
    op, here = operator(node), site(node, setting)
    times = {}
    for name, (image, weights) in _TYPES.items():
        x, w, *rest = here.inputs
        assert x is not None
        assert w is not None
        inputs = (replace(x, dtype=image), replace(w, dtype=weights), *rest)
        outputs = tuple(replace(y, dtype=image) for y in here.outputs)
        times[name] = op.cost(replace(here, inputs=inputs, outputs=outputs)).time
    if setting.machine.dot2 < 2:
        times["pairs"] /= _CONVERTED
    return min(times, key=lambda name: times[name])
