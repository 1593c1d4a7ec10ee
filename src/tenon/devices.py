"""Bundles on other machines: devices of devices.yml, and running there (docs/howto/devices.md)."""

from __future__ import annotations

from tenon.runtime.engine.device import RemoteBundle as Device
from tenon.tools.devices import (
    DeviceFacts,
    DeviceSpec,
    RemoteRunner,
    ask,
    find_devices,
    known_devices,
    read_devices,
    target_of,
)

__all__ = [
    "Device",
    "DeviceFacts",
    "DeviceSpec",
    "RemoteRunner",
    "ask",
    "find_devices",
    "known_devices",
    "read_devices",
    "target_of",
]
