"""The devices that MACE's options select: --device_yml, --target_socs, --devices_to_run, --target_abis."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tenon.errors import InputError
from tenon.runtime.engine.device import RemoteBundle
from tenon.tools.deployment.mace_config import TARGETS
from tenon.tools.deployment.running import Opener
from tenon.tools.devices import DeviceSpec, RemoteRunner, ask, find_devices, known_devices, target_of

RANDOM = "random"
"""The word for any one device."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device_yml", "--device_conf", default="", help="the file that names devices")
    parser.add_argument("--target_socs", default="", help="SoCs or addresses, separated by commas; all; random")
    parser.add_argument("--devices_to_run", default="", help="names of devices, separated by commas")


def selected_devices(arguments: argparse.Namespace) -> list[DeviceSpec]:
    """The devices; none if no option names any, for this machine.  ``all`` is the default with a file.

    Raises InputError for devices that are not known, and if none has one of the ABIs.
    """
    file = Path(arguments.device_yml) if arguments.device_yml else None
    words = [word.strip() for text in (arguments.devices_to_run, arguments.target_socs) for word in text.split(",")]
    words = [word for word in words if word] or (["all"] if file else [])
    if not words:
        return []
    devices = known_devices(file) if RANDOM in words else find_devices(words, file)
    abis = {abi.strip() for abi in arguments.target_abis.split(",") if abi.strip()}
    fitting = [spec for spec in devices if not abis or not spec.abis or abis & set(spec.abis)]
    if not fitting:
        raise InputError(f"no device of {file or 'devices.yml'} has the ABI {' or '.join(sorted(abis))}")
    return [random.choice(fitting)] if RANDOM in words else fitting


@contextmanager
def opened_device(spec: DeviceSpec, arguments: argparse.Namespace) -> Iterator[tuple[Opener, str]]:
    """The opener of bundles on a device, and the target to compile for: of the ABIs asked for, else the device's."""
    with RemoteRunner(spec).connected() as connection:
        asked = [abi.strip() for abi in arguments.target_abis.split(",") if abi.strip()]
        common = [abi for abi in asked if not spec.abis or abi in spec.abis]
        target = TARGETS[common[0]] if common else target_of(spec, ask(connection)).name
        yield partial(RemoteBundle, runner=connection), target
