"""The interface of devices, and those that are registered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from tenon.errors import InputError
from tenon.network.graph.graph import Array, Graph, Node


class Part(Protocol):
    """A part of a network that is prepared on a device."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, in the order of the part's model; shapes and types are those that the model states."""

    def postrun(self) -> None:
        """Gives back what ``prerun`` took; called once."""


class Device(Protocol):
    """What runs parts of networks in place of compiled code."""

    @property
    def name(self) -> str:
        """A word, by which programs ask for it."""

    def describe(self) -> str:
        """A line for people: product and version."""

    def supports(self, node: Node) -> bool:
        """Whether the device takes a node, whose operator is ONNX's newest and whose types and shapes are known."""

    def prerun(self, model: bytes) -> Part:
        """Prepare a part, given as an ONNX model with fixed shapes.  Raises TenonError."""

    def release(self) -> None:
        """Called when the device is unregistered."""


@runtime_checkable
class ChoosingDevice(Device, Protocol):
    """A device that looks at a whole network before it takes nodes, and keeps its parts in a form of its own."""

    def chosen(self, graph: Graph) -> Collection[Node]:
        """The nodes of a bound graph that it runs, all of which it supports."""

    def stored(self, model: bytes) -> bytes:
        """The bytes that a bundle keeps of a part instead of its ONNX model."""


_devices: dict[str, Device] = {}


def register_device(device: Device) -> None:
    """Let programs find a device by its name.  Raises InputError if the name is taken."""
    if device.name in _devices:
        raise InputError(f"there is a device '{device.name}' already: unregister it first")
    _devices[device.name] = device


def unregister_device(name: str) -> None:
    """Forget a device and release it.  Raises InputError if there is none of that name."""
    find_device(name).release()
    del _devices[name]


def find_device(name: str) -> Device:
    """The device of that name.  Raises InputError listing those that are registered."""
    if name not in _devices:
        known = ", ".join(sorted(_devices)) or "none is registered: load a plug-in"
        raise InputError(f"there is no device '{name}' ({known})")
    return _devices[name]
