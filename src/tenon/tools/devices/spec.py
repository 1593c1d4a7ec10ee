"""The specification of a device: what is known before it is asked."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

Transport = Literal["ssh", "adb", "shell"]

_FOLDERS: dict[Transport, str] = {"ssh": ".tenon", "adb": "/data/local/tmp/tenon", "shell": "/tmp/tenon"}


@dataclass(frozen=True)
class DeviceSpec:
    """A device and how it is reached.

    ``address`` is a host for ssh, a serial number or HOST:PORT for adb.  ``shell`` is a command to which the text of a
    shell command is appended: ``("docker", "exec", "-i", "box", "sh", "-c")``.  ``command`` stands in front of programs
    there: ``("qemu-aarch64",)``.  ``folder`` is where files go, by default in the home folder (ssh),
    /data/local/tmp (adb) or /tmp.  ``timeout`` is in seconds, for an answer, not for a run.  ``target`` is empty where
    the device is asked what it is.
    """

    name: str
    transport: Transport = "ssh"
    address: str = ""
    username: str = ""
    port: int | None = None
    key: str = ""
    password: str = field(default="", repr=False)
    ssh_options: tuple[tuple[str, str], ...] = ()
    shell: tuple[str, ...] = ("sh", "-c")
    command: tuple[str, ...] = ()
    folder: str = ""
    target: str = ""
    abis: tuple[str, ...] = ()
    socs: tuple[str, ...] = ()
    model: str = ""
    timeout: float = 15.0
    retries: int = 2

    @property
    def place(self) -> str:
        """The folder for files, on the device."""
        return self.folder or _FOLDERS[self.transport]

    @property
    def where(self) -> str:
        """The address, for people."""
        if self.transport == "ssh":
            port = f":{self.port}" if self.port else ""
            return f"{self.username}@{self.address}{port}" if self.username else f"{self.address}{port}"
        return self.address or " ".join(self.shell[:-1]) or "this machine"

    @property
    def emulates(self) -> bool:
        """Whether its programs run in an emulator, so that their times say nothing of a real machine."""
        return bool(self.command) and os.path.basename(self.command[0]).startswith("qemu-")  # noqa: PTH119  # a command
