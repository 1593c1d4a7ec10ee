"""The devices that run the layers of a network: what ``tenon inspect`` prints, and tables and colours of pages."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tenon.cli.console import console, size, table
from tenon.network.graph.device_placement import PROCESSOR, DevicePlacement

_HUES = (220, 12, 130, 280, 48, 180)


class DeviceShare(NamedTuple):
    """The layers that a device runs, and the bytes that are copied to and from it in a run."""

    device: str
    layers: int
    there: int
    back: int

    @property
    def copied(self) -> tuple[str, str]:
        """The bytes in words; nothing for the processor, where they come from."""
        return ("", "") if self.device == PROCESSOR else (size(self.there), size(self.back))


def device_shares(placement: DevicePlacement) -> list[DeviceShare]:
    """All devices, in the order of their first layers."""
    there, back = Counter[str](), Counter[str]()
    for copy in placement.copies:
        (back if copy.destination == PROCESSOR else there).update(
            {copy.source if copy.destination == PROCESSOR else copy.destination: copy.bytes}
        )
    counts = Counter(layer.device for layer in placement.layers)
    return [DeviceShare(device, number, there[device], back[device]) for device, number in counts.items()]


def device_colours(placement: DevicePlacement | None) -> dict[str, str]:
    """A CSS colour for each device."""
    devices = dict.fromkeys(layer.device for layer in placement.layers) if placement else {}
    return {device: f"hsl({_HUES[i % len(_HUES)]} 70% 45%)" for i, device in enumerate(sorted(devices))}


def print_placement(placement: DevicePlacement, *, layers: bool) -> None:
    """The layers of each device and the bytes that are copied to and from it in a run; why layers are where they are;
    with ``layers``, the device of every layer."""
    devices = table("device", "layers", "copied there", "copied back", right=(1, 2, 3))
    for share in device_shares(placement):
        devices.add_row(share.device, str(share.layers), *share.copied)
    console.print(devices, markup=False)
    reasons = Counter((layer.device, layer.reason) for layer in placement.layers if layer.reason)
    for (device, reason), number in reasons.items():
        what = "1 layer" if number == 1 else f"{number} layers"
        console.print(f"{what} on {device}: {reason}", markup=False, soft_wrap=True)
    if layers:
        listed = table("layer", "operator", "device", "reason")
        for layer in placement.layers:
            listed.add_row(layer.layer, layer.op, layer.device, layer.reason)
        console.print(listed, markup=False)
