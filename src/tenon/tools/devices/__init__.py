"""Machines that programs are pushed to and run on: a device is a link to a shell, a place for files there, and a
command in front of programs.

``devices.yml`` names them (``config``); ``ssh``, ``adb`` and ``local_shell`` are the links, over which ``remote`` has
the three operations of ``targets.runner``: push, run, pull.
"""

from __future__ import annotations

from tenon.tools.devices.config import find_devices, known_devices, read_devices
from tenon.tools.devices.facts import DeviceFacts, ask, target_of
from tenon.tools.devices.remote import RemoteRunner
from tenon.tools.devices.spec import DeviceSpec

__all__ = [
    "DeviceFacts",
    "DeviceSpec",
    "RemoteRunner",
    "ask",
    "find_devices",
    "known_devices",
    "read_devices",
    "target_of",
]
