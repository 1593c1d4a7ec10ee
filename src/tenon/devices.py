"""Bundles on other machines: devices of devices.yml, and running there (docs/howto/devices.md)."""

from __future__ import annotations

from tenon.runtime.engine.device import RemoteBundle as Device
from tenon.tools import devices as _room
from tenon.tools.devices import *  # noqa: F403

__all__ = ["Device"]
__all__ += _room.__all__
