"""For authors of plug-ins: devices that run parts of networks, and operators of one's own (docs/howto/plugins.md)."""

from __future__ import annotations

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.loops import minimum
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Case, Input, Operator, Output, Site, Step
from tenon.runtime.plugins import (
    Device,
    LibraryDevice,
    Part,
    PartitionedEngine,
    Section,
    Source,
    SourceOperator,
    find_device,
    load_plugin,
    offloaded,
    partition,
    register_device,
    register_operator,
    unregister_device,
)

__all__ = [
    "Array",
    "Builder",
    "Case",
    "Device",
    "Input",
    "LibraryDevice",
    "Operator",
    "Output",
    "Part",
    "PartitionedEngine",
    "Section",
    "Site",
    "Source",
    "SourceOperator",
    "Step",
    "TensorType",
    "Value",
    "find_device",
    "lane_segments",
    "load_plugin",
    "minimum",
    "offloaded",
    "partition",
    "register_device",
    "register_operator",
    "unregister_device",
]
