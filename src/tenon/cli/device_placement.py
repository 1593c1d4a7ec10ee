"""Which devices run which layers of a network, as ``tenon inspect`` prints it."""

from __future__ import annotations

from collections import Counter

from tenon.cli.console import console, size, table
from tenon.network.graph.device_placement import PROCESSOR, DevicePlacement


def print_placement(placement: DevicePlacement, *, layers: bool) -> None:
    """The layers of each device and the bytes that are copied to and from it in a run; why layers are where they are;
    with ``layers``, the device of every layer."""
    counts = Counter(layer.device for layer in placement.layers)
    there, back = Counter[str](), Counter[str]()
    for copy in placement.copies:
        (back if copy.destination == PROCESSOR else there).update(
            {copy.source if copy.destination == PROCESSOR else copy.destination: copy.bytes}
        )
    devices = table("device", "layers", "copied there", "copied back", right=(1, 2, 3))
    for device, number in counts.items():
        copied = (size(there[device]), size(back[device])) if device != PROCESSOR else ("", "")
        devices.add_row(device, str(number), *copied)
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
