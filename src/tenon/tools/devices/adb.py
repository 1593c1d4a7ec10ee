"""A device behind adb of Android's platform tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tenon.errors import DeviceError
from tenon.tools.devices.link import (
    CommandResult,
    last_line,
    lost_error,
    parse_answer,
    remove_files,
    run,
    store_files,
    with_exit_status,
)
from tenon.tools.devices.spec import DeviceSpec

_TRANSFER = 600.0
"""Seconds within which a file is copied."""


def missing() -> str:
    """The error message if a program is not installed; "" if all is there."""
    return "" if shutil.which("adb") else "there is no adb: install it with `apt-get install adb`"


class AdbLink:
    """``folder`` is a new local folder for files on their way."""

    def __init__(self, spec: DeviceSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder

    def start(self) -> None:
        """A device on the network is connected first; adb reports failures of that on standard output."""
        spec = self._spec
        if ":" in spec.address:
            done = run(spec, ["adb", "connect", spec.address], spec.timeout + 5)
            if b"connected to" not in done.stdout:
                raise lost_error(spec, last_line(done.stdout or done.stderr))
        self.call("true", spec.timeout)

    def call(self, command: str, seconds: float) -> CommandResult:
        done = self._adb(["shell", with_exit_status(command)], seconds)
        return parse_answer(self._spec, done, last_line(done.stderr) or last_line(done.stdout))

    def send(self, files: Mapping[str, bytes]) -> None:
        local = store_files(self._folder, files)
        try:
            for name, path in local.items():
                self._copied(["push", str(path), name])
        finally:
            remove_files(local)

    def fetch(self, path: str) -> bytes:
        local = store_files(self._folder, {path: b""})
        try:
            self._copied(["pull", path, str(local[path])])
            return local[path].read_bytes()
        finally:
            remove_files(local)

    def close(self) -> None:
        """The adb server keeps its connections."""

    def _copied(self, words: Sequence[str]) -> None:
        done = self._adb(words, _TRANSFER)
        if done.returncode:
            why = last_line(done.stderr) or last_line(done.stdout)
            gone = any(
                words in why for words in ("device '", "device offline", "no devices", "connect failed", "closed")
            )
            raise lost_error(self._spec, why) if gone else DeviceError(why)

    def _adb(self, words: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
        chosen = ["-s", self._spec.address] if self._spec.address else []
        return run(self._spec, ["adb", *chosen, *words], seconds)


def serials(seconds: float = 10.0) -> list[str]:
    """The devices that an adb server on this machine knows, ready or not; none without adb."""
    if missing():
        return []
    try:
        done = run(DeviceSpec("adb", "adb"), ["adb", "devices"], seconds)
    except DeviceError:
        return []
    lines = [line.split("\t") for line in done.stdout.decode(errors="replace").splitlines()[1:]]
    return [words[0] for words in lines if len(words) == 2]
