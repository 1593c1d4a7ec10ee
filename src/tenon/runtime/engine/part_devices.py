"""Devices that run parts of networks: their interface, and those that are registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tenon.errors import InputError
from tenon.network.graph.graph import Array, Node


class Part(Protocol):
    """A part of a network that is prepared on a device."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs, in the order of the part's model; shapes and types are those that the model states."""

    def postrun(self) -> None:
        """Gives back what ``prerun`` took; called once."""


class Device(Protocol):
    """A device that runs parts of networks in place of compiled code."""

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


def is_registered(name: str) -> bool:
    """Whether there is a device of that name."""
    return name in _devices


def find_device(name: str) -> Device:
    """The device of that name.  Raises InputError listing those that are registered."""
    if not is_registered(name):
        known = ", ".join(sorted(_devices)) or "none is registered: load a plug-in"
        raise InputError(f"there is no device '{name}' ({known})")
    return _devices[name]
