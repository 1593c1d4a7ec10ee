"""A device as a runner: a new folder there for every session, removed at its end."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tenon.atomic_write import scratch
from tenon.errors import DeviceError, ToolchainError
from tenon.machine.targets.runner import SECONDS, Finished
from tenon.tools.devices import adb, local_shell, ssh
from tenon.tools.devices.link import CommandResult, Link, LostError
from tenon.tools.devices.spec import DeviceSpec, Transport

T = TypeVar("T")

_LINKS: dict[Transport, Callable[[DeviceSpec, Path], Link]] = {
    "ssh": ssh.SshLink,
    "adb": adb.AdbLink,
    "shell": local_shell.ShellLink,
}
_PAUSE = 0.2
"""Seconds before the first repetition of a failed operation; the next ones take twice as long each."""

_TIMED_OUT = 124
"""The exit status of timeout(1)."""


@dataclass(frozen=True)
class RemoteRunner:
    """The device of ``spec``, as ``targets.runner`` has runners."""

    spec: DeviceSpec

    @property
    def name(self) -> str:
        """How messages name the device."""
        return f"device {self.spec.name}"

    @property
    def emulates(self) -> bool:
        """Whether programs run in an emulator there, so that times do not count."""
        return self.spec.emulates

    def missing(self) -> str:
        """The error message if this machine lacks a program to reach the device; empty if there is none."""
        if self.spec.transport == "shell":
            return local_shell.missing(self.spec)
        return ssh.missing() if self.spec.transport == "ssh" else adb.missing()

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """An open link.  Raises DeviceError if the device does not answer, ToolchainError if a program is missing."""
        if why := self.missing():
            raise ToolchainError(why)
        with scratch("tenon-link-") as folder:
            connection = Connection(self.spec, _LINKS[self.spec.transport](self.spec, folder))
            connection.start()
            try:
                yield connection
            finally:
                connection.close()

    @contextmanager
    def session(self) -> Iterator[RemoteSession]:
        """Open a session on the device; its folder is removed at the end."""
        with self.connected() as connection, connection.session() as session:
            yield session


class Connection:
    """An open link, a runner itself, whose operations that may be repeated are, when the link breaks."""

    def __init__(self, spec: DeviceSpec, link: Link) -> None:
        self.spec, self._link = spec, link
        self.name, self.emulates = f"device {spec.name}", spec.emulates

    def missing(self) -> str:
        """Nothing: it is open."""
        return ""

    @contextmanager
    def session(self) -> Iterator[RemoteSession]:
        folder = f"{self.spec.place}/run-{os.urandom(6).hex()}"
        self.make_folder(folder)
        try:
            yield RemoteSession(self, folder)
        finally:
            with suppress(DeviceError):  # a device that is gone has said so already
                self._link.call(f"rm -rf {shlex.quote(folder)}", self.spec.timeout)

    def start(self) -> None:
        self._repeated(self._link.start, again=False)

    def close(self) -> None:
        self._link.close()

    def call(self, command: str, seconds: float | None = None) -> CommandResult:
        """A command that may be run twice."""
        return self._repeated(lambda: self._link.call(command, seconds or self.spec.timeout))

    def call_once(self, command: str, seconds: float) -> CommandResult:
        return self._link.call(command, seconds)

    def check(self, command: str) -> str:
        """The output of a command that may be run twice.  Raises DeviceError if it fails."""
        done = self.call(command)
        if done.status:
            raise DeviceError(f"device '{self.spec.name}': {done.text or f'`{command}` ended with {done.status}'}")
        return done.text

    def make_folder(self, folder: str) -> None:
        """A new folder, which only this user can read, and its parents.  Raises DeviceError."""
        try:
            self.check(f"umask 077 && mkdir -p {shlex.quote(folder)}")
        except LostError:
            raise
        except DeviceError as error:
            raise self._explained(error, folder.rpartition("/")[0]) from None

    def send(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write files into a folder.  Raises DeviceError, with the free space there if it is too little."""
        paths = {f"{folder}/{name}": content for name, content in files.items()}
        try:
            self._repeated(lambda: self._link.send(paths))
        except LostError:
            raise
        except DeviceError as error:
            raise self._explained(error, folder, sum(map(len, files.values()))) from None

    def fetch(self, path: str) -> bytes:
        try:
            return self._repeated(lambda: self._link.fetch(path))
        except LostError:
            raise
        except DeviceError as error:
            raise DeviceError(f"device '{self.spec.name}': {path} cannot be read: {error}") from None

    def free(self, folder: str) -> int | None:
        """Free bytes of the file system of a folder; None if the device does not say."""
        done = self.call(f"df -Pk {shlex.quote(folder)}")
        words = done.text.splitlines()[-1].split() if not done.status and done.text else []
        return int(words[3]) * 1024 if len(words) > 3 and words[3].isdigit() else None

    def _explained(self, error: DeviceError, folder: str, needed: int = 4096) -> DeviceError:
        start = f"device '{self.spec.name}': cannot write to {folder}"
        with suppress(LostError):
            free = self.free(folder)
            if free is not None and free < needed + 4096:
                return DeviceError(
                    f"{start}: {free} bytes are free, {needed} are needed: make room there, or name another 'folder'"
                )
        return DeviceError(f"{start}: {error}: see its permissions, or name another 'folder' in devices.yml")

    def _repeated(self, operation: Callable[[], T], *, again: bool = True) -> T:
        """The operation, repeated while the link breaks; it is opened again first."""
        for attempt in range(self.spec.retries + 1):
            try:
                if attempt and again:
                    self._link.start()
                return operation()
            except LostError as error:
                if attempt == self.spec.retries or error.lasting:
                    raise
                time.sleep(_PAUSE * 2**attempt)
        raise AssertionError("unreachable")


class RemoteSession:
    """A folder of a device, in which programs run behind the device's command."""

    def __init__(self, connection: Connection, folder: str) -> None:
        self._connection, self._folder = connection, folder

    def push(self, files: Mapping[str, bytes]) -> None:
        self._connection.send(self._folder, files)

    def run(self, program: str, arguments: Sequence[str] = ()) -> Finished:
        """The program is ended there, too, if it takes too long and the device has timeout(1)."""
        words = shlex.join([*self._connection.spec.command, f"./{program}", *arguments])
        limit = f"l=; command -v timeout >/dev/null 2>&1 && l='timeout {SECONDS}'; $l"
        command = f"cd {shlex.quote(self._folder)} && chmod 700 {shlex.quote(program)} && {{ {limit} {words}; }}"
        done = self._connection.call_once(command, SECONDS + self._connection.spec.timeout)
        if done.status == _TIMED_OUT:
            raise DeviceError(f"{program} did not end within {SECONDS} s on device '{self._connection.spec.name}'")
        return Finished(done.status, done.text)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files, which need not exist; a device that is gone keeps them."""
        with suppress(DeviceError):
            listed = " ".join(shlex.quote(f"{self._folder}/{name}") for name in names)
            self._connection.call(f"rm -f {listed}")

    def pull(self, name: str) -> bytes:
        return self._connection.fetch(f"{self._folder}/{name}")
