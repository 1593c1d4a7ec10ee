"""Links: what ssh, adb and a local shell have in common, and commands whose end is told apart from a broken link."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tenon.atomic_write import write
from tenon.errors import DeviceError
from tenon.options import child_environment
from tenon.tools.devices.spec import DeviceSpec

_END = "tenon-exit-status:"
_LAST = re.compile(rb"(.*?)\r?\n?" + _END.encode() + rb"(\d+)\r?\n?$", re.DOTALL)


@dataclass(frozen=True)
class CommandResult:
    """A command that ended on a device: its exit status, and what it wrote to standard output and error together."""

    status: int
    output: bytes

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace").strip()


class Link(Protocol):
    """An open connection to a device."""

    def start(self) -> None:
        """Connect.  Raises DeviceError."""

    def call(self, command: str, seconds: float) -> CommandResult:
        """Run a shell command there.  Raises LostError if it was not seen to end."""

    def send(self, files: Mapping[str, bytes]) -> None:
        """Write files, by their paths there.  Raises LostError, or DeviceError where they cannot be written."""

    def fetch(self, path: str) -> bytes:
        """The content of a file there.  Raises LostError, or DeviceError if there is none."""

    def close(self) -> None:
        """End the connection.  Never raises."""


class LostError(DeviceError):
    """The link broke: whether the command was run is not known.  ``lasting``: to try again would not help."""

    lasting = False


def with_exit_status(command: str) -> str:
    """The command, and after it a line with its exit status, by which its end is known."""
    return f"{{ {command}\n}} 2>&1; status=$?; echo; echo {_END}$status"


def parse_answer(spec: DeviceSpec, done: subprocess.CompletedProcess[bytes], why: str) -> CommandResult:
    """The output of a command made by ``with_exit_status``.  Raises LostError with ``why`` if its end is not there."""
    ending = _LAST.match(done.stdout)
    if ending is None:
        raise lost_error(spec, why or f"exit status {done.returncode}")
    return CommandResult(int(ending[2]), ending[1])


def lost_error(spec: DeviceSpec, why: str) -> LostError:
    """The error for a message of ssh or adb."""
    remedy = next((remedy for words, remedy in _REMEDIES.items() if words in why), "")
    asked = remedy or "see that it is on and its address in devices.yml right"
    error = LostError(f"device '{spec.name}' ({spec.where}) does not answer: {why}: {asked}")
    error.lasting = bool(remedy)
    return error


_REMEDIES = {
    "Permission denied": "name a key that it accepts with 'key', or copy yours there with ssh-copy-id",
    "Host key verification failed": "connect once with ssh to accept its host key",
    "host key is known": "connect once with ssh to accept its host key",
    "unauthorized": "accept the key of this machine on its screen",
    "no devices": "plug it in and switch on USB debugging",
    "not found": "see 'adb devices'",
    "Could not resolve": "see its address in devices.yml",
}
"""Remedies for messages that time alone does not change."""


def run(
    spec: DeviceSpec,
    words: Sequence[str],
    seconds: float,
    given: bytes = b"",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[bytes]:
    """A local program that talks to the device, with ``given`` as its standard input and more environment variables.

    Raises LostError if it does not end in time.
    """
    environment = child_environment(**variables)
    try:
        return subprocess.run(words, input=given, capture_output=True, timeout=seconds, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise lost_error(spec, f"no end of '{words[0]}' within {seconds:g} s") from None
    except OSError as error:
        raise DeviceError(f"cannot run {words[0]}: {error.strerror or error}") from error


def last_line(text: bytes) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def store_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, Path]:
    """The contents as numbered files of a local folder, by their paths on the device."""
    made = {}
    for number, (path, content) in enumerate(files.items()):
        made[path] = folder / f"{number}.part"
        write(made[path], content)
    return made


def remove_files(files: Mapping[str, Path]) -> None:
    for path in files.values():
        with contextlib.suppress(OSError):
            path.unlink()
