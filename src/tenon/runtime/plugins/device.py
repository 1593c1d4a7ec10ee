"""Optional functions of devices, by which a network is cut between them: times, reasons, forms of parts."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tenon.network.graph.graph import Node, Value
from tenon.runtime.engine.part_devices import Device


@runtime_checkable
class TimedDevice(Device, Protocol):
    """A device that estimates times, so that it takes only the nodes that are faster there, copies included.

    Other devices take every node that they support.
    """

    def seconds(self, node: Node) -> float:
        """The estimated seconds of a node that it supports."""

    def copy_seconds(self, value: Value) -> float:
        """The estimated seconds of a copy of a tensor from the processor's memory to the device, or back."""


@runtime_checkable
class ExplainingDevice(Device, Protocol):
    """A device that says why it does not support a node."""

    def refusal(self, node: Node) -> str:
        """The reason in a few words; "" for a node that it supports."""


@runtime_checkable
class StoringDevice(Device, Protocol):
    """A device that keeps its parts in a form of its own."""

    def stored(self, model: bytes) -> bytes:
        """The bytes that a bundle keeps of a part instead of its ONNX model."""


def refusal(device: Device, node: Node) -> str:
    """Why a device does not support a node; "" if it does."""
    if isinstance(device, ExplainingDevice):
        return device.refusal(node)
    if node.bodies:
        return "runs no loops and branches"
    return "" if device.supports(node) else f"does not support {node.op.name}"
