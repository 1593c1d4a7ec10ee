"""Machines that programs are pushed to and run on: a device is a link to a shell, a place for files there, and a
command in front of programs.

``devices.yml`` names them (``config``); ``ssh``, ``adb`` and ``local_shell`` are the links, over which ``remote`` has
the three operations of ``targets.runner``: push, run, pull.
"""

from __future__ import annotations

from tenon.tools.devices.config import find_devices as find_devices
from tenon.tools.devices.config import known_devices as known_devices
from tenon.tools.devices.config import read_devices as read_devices
from tenon.tools.devices.facts import DeviceFacts as DeviceFacts
from tenon.tools.devices.facts import ask as ask
from tenon.tools.devices.facts import target_of as target_of
from tenon.tools.devices.remote import RemoteRunner as RemoteRunner
from tenon.tools.devices.spec import DeviceSpec as DeviceSpec
