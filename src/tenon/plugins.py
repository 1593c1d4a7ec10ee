"""For authors of plug-ins: devices that run parts of networks, and operators of one's own (docs/howto/plugins.md)."""

from __future__ import annotations

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.loops import minimum
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Case, Input, Operator, Output, Site, Step
from tenon.runtime import plugins as _room
from tenon.runtime.plugins import *  # noqa: F403

__all__ = [
    "Array",
    "Builder",
    "Case",
    "Input",
    "Operator",
    "Output",
    "Site",
    "Step",
    "TensorType",
    "Value",
    "lane_segments",
    "minimum",
]
__all__ += _room.__all__
