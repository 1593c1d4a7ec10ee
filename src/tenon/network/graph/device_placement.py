"""The devices that run the nodes of a network, as annotations of its graph and of bundles."""

from __future__ import annotations

from typing import NamedTuple

PROCESSOR = "cpu"
"""The name of compiled code of the processor, beside the names of devices."""


class PlacedLayer(NamedTuple):
    """A node, by its layer and operator, and the device that runs it; ``reason`` says why it is that one ("" where
    the cut of least time says so)."""

    layer: str
    op: str
    device: str
    reason: str = ""


class CopiedTensor(NamedTuple):
    """A tensor that is copied between two devices in each run, with its bytes."""

    tensor: str
    source: str
    destination: str
    bytes: int


class DevicePlacement(NamedTuple):
    """The nodes of a network in their order, each with its device, and the copies between devices."""

    layers: tuple[PlacedLayer, ...] = ()
    copies: tuple[CopiedTensor, ...] = ()
