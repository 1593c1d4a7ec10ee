"""Plug-ins: devices that run parts of networks, and operators of one's own."""

from __future__ import annotations

from tenon.network.ops.base import register as register_operator
from tenon.network.ops.c_source import Source, SourceOperator
from tenon.runtime.engine.part_devices import Device, Part, find_device, register_device, unregister_device
from tenon.runtime.plugins.cost_split import SplitCosts
from tenon.runtime.plugins.engine import PartitionedEngine
from tenon.runtime.plugins.library import LibraryDevice, load_plugin
from tenon.runtime.plugins.measured_costs import measured_costs
from tenon.runtime.plugins.offload import offloaded
from tenon.runtime.plugins.partition import Section, partition
from tenon.runtime.plugins.placement import DeviceRule, PlacedGraph, placed
from tenon.runtime.plugins.target_device import TargetDevice

__all__ = [
    "Device",
    "DeviceRule",
    "LibraryDevice",
    "Part",
    "PartitionedEngine",
    "PlacedGraph",
    "Section",
    "Source",
    "SourceOperator",
    "SplitCosts",
    "TargetDevice",
    "find_device",
    "load_plugin",
    "measured_costs",
    "offloaded",
    "partition",
    "placed",
    "register_device",
    "register_operator",
    "unregister_device",
]
