"""``devices.yml``: devices by name, with Tenon's keys and MACE's.

devices:
  pi5:
    address: 192.168.0.12        # a host of ~/.ssh/config will do
    username: pi
    key: ~/.ssh/id_pi
  phone: {transport: adb, address: 0123456789ABCDEF}
  box: {shell: docker exec -i box sh -c}
  emulated: {shell: sh -c, command: qemu-aarch64, target: aarch64}
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tenon.errors import InputError
from tenon.machine.targets import find
from tenon.tools.deployment.mace_config import TARGETS as TARGETS_OF_ABIS
from tenon.tools.deployment.schema import ConfigSection, Names, Texts, checked
from tenon.tools.deployment.yaml_document import Document, read_yaml
from tenon.tools.devices.adb import serials
from tenon.tools.devices.spec import DeviceSpec, Transport

DEFAULT = Path("devices.yml")
"""File of devices in the current folder, as for MACE."""

_SYSTEMS: dict[str, Transport] = {"android": "adb", "arm_linux": "ssh", "linux": "ssh", "host": "shell"}
"""MACE's key ``system``."""

LINUX_ABIS = {"armv7l": "armv7", "armv6l": "armv6", "aarch64": "aarch64"}
"""ABIs of devices that are not names of ABIs of models."""


def _command(value: Any) -> Any:
    """A command line as a list of words, or as one text."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value


def _text(value: Any) -> Any:
    if isinstance(value, int | float):  # 0123 would be 123
        raise ValueError("digits alone are a number: write it in quotes")
    return value


_Text = Annotated[str, BeforeValidator(_text)]
_Command = Annotated[tuple[str, ...], BeforeValidator(_command)]


class DeviceSection(ConfigSection):
    """Keys of a device; from ``target_abis`` on they are MACE's."""

    transport: Transport | None = None
    address: _Text = ""
    username: _Text = ""
    port: int | None = Field(None, ge=1, le=65535)
    key: str = ""
    password: _Text = ""
    ssh_options: dict[str, str | int | bool] = Field(default_factory=dict)
    shell: _Command = ()
    command: _Command = ()
    folder: str = ""
    target: str = ""
    timeout: float = Field(15.0, gt=0, le=3600)
    retries: int = Field(2, ge=0, le=20)
    target_abis: Names = ()
    target_socs: Names = ()
    models: Texts = ()
    system: Literal["android", "arm_linux", "linux", "host"] | None = None
    device_name: str = ""


class DevicesFile(ConfigSection):
    """The whole file; devices are checked one by one."""

    devices: dict[str, Any]


def read_devices(path: Path | str, environment: Mapping[str, str] | None = None) -> list[DeviceSpec]:
    """The devices of a file, in its order.  Raises InputError that lists every problem with its line."""
    document = read_yaml(Path(path), environment)
    checked(document, DevicesFile, document.content)
    content = document.content.get("devices") if isinstance(document.content, Mapping) else None
    devices = []
    for name, given in (content or {}).items() if isinstance(content, Mapping | None) else ():
        section = checked(document, DeviceSection, given, ("devices", name))
        if section is not None:
            devices.append(_spec(document, name, section))
    document.check()
    return devices


def _spec(document: Document, name: str, section: DeviceSection) -> DeviceSpec:
    where = ("devices", name)
    transport = section.transport or _SYSTEMS.get(section.system or "") or ("shell" if section.shell else "ssh")
    if transport == "ssh" and not section.address:
        document.report((*where, "address"), "this key is required for a device behind ssh")
    if section.address.startswith("-"):
        document.report((*where, "address"), "must not begin with '-'")
    if section.target:
        try:
            find(section.target)
        except InputError as error:
            document.report((*where, "target"), str(error))
    for abi in section.target_abis:
        if abi not in TARGETS_OF_ABIS and abi not in LINUX_ABIS:
            known = ", ".join((*TARGETS_OF_ABIS, *LINUX_ABIS))
            document.report((*where, "target_abis"), f"'{abi}' is none of {known}")
    options = {key: "yes" if v is True else "no" if v is False else str(v) for key, v in section.ssh_options.items()}
    return DeviceSpec(
        name=section.device_name or name,
        transport=transport,
        address=section.address,
        username=section.username,
        port=section.port,
        key=str(Path(section.key).expanduser()) if section.key else "",
        password=section.password,
        ssh_options=tuple(options.items()),
        shell=section.shell or ("sh", "-c"),
        command=section.command,
        folder=section.folder.rstrip("/"),
        target=section.target,
        abis=section.target_abis,
        socs=section.target_socs,
        model=" ".join(section.models),
        timeout=section.timeout,
        retries=section.retries,
    )


def known_devices(path: Path | None = None) -> list[DeviceSpec]:
    """The devices of a file (None: devices.yml, if it exists) and those that adb shows besides."""
    file = path or DEFAULT
    named = read_devices(file) if path is not None or file.exists() else []
    listed = {spec.address for spec in named if spec.transport == "adb"}
    return [*named, *(DeviceSpec(serial, "adb", serial) for serial in serials() if serial not in listed)]


def find_devices(words: Sequence[str], path: Path | None = None) -> list[DeviceSpec]:
    """The devices with these names, addresses or SoCs ("all": every one), each once.

    Raises InputError for a word that fits none.
    """
    known = known_devices(path)
    selected: dict[str, DeviceSpec] = {}
    for word in words:
        fitting = [spec for spec in known if word == "all" or _fits(spec, word)]
        if not fitting:
            file = path or DEFAULT
            names = ", ".join(spec.name for spec in known)
            raise InputError(
                f"there is no device '{word}'" + (f": there are {names}" if names else f": name it in {file}")
            )
        selected.update((spec.name, spec) for spec in fitting)
    return list(selected.values())


def _fits(spec: DeviceSpec, word: str) -> bool:
    socs = {soc.lower() for soc in spec.socs}
    return word in (spec.name, spec.address, spec.where) or word.lower() in socs
