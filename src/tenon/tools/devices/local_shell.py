"""A device whose shell a command of this machine opens: ``sh -c`` itself, or one in a container or an emulator."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from tenon.errors import DeviceError
from tenon.tools.devices.link import CommandResult, last_line, lost_error, parse_answer, run, with_exit_status
from tenon.tools.devices.spec import DeviceSpec

_TRANSFER = 600.0
"""Seconds within which a file is copied."""


def missing(spec: DeviceSpec) -> str:
    """The error message if a program is not installed; "" if all is there."""
    return "" if shutil.which(spec.shell[0]) else f"there is no {spec.shell[0]}: install it, or change 'shell'"


class ShellLink:
    """Files go through standard input and output of ``cat``."""

    def __init__(self, spec: DeviceSpec, folder: Path) -> None:
        self._spec = spec

    def start(self) -> None:
        """There is no connection to open."""
        self.call("true", self._spec.timeout)

    def call(self, command: str, seconds: float) -> CommandResult:
        done = run(self._spec, [*self._spec.shell, with_exit_status(command)], seconds)
        return parse_answer(self._spec, done, last_line(done.stderr))

    def send(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            command = with_exit_status(f"cat > {shlex.quote(path)}")
            done = run(self._spec, [*self._spec.shell, command], _TRANSFER, content)
            told = parse_answer(self._spec, done, last_line(done.stderr))
            if told.status:
                raise DeviceError(told.text)

    def fetch(self, path: str) -> bytes:
        done = run(self._spec, [*self._spec.shell, f"cat {shlex.quote(path)}"], _TRANSFER)
        if done.returncode:
            why = last_line(done.stderr)
            raise DeviceError(why) if path in why else lost_error(self._spec, why)
        return done.stdout

    def close(self) -> None:
        """There is no connection to close."""
