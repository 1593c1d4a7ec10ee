"""Runners: machines that run programs.  Files are pushed to one, a program is run there, files are pulled back.

A runner is a place for files and a command in front of the program.  ``Local`` has a folder of this machine and no
command, or an emulator's.  A device behind ssh or adb is another runner with the same three operations; whoever uses
runners (``engine.device``, and through it tests, ``tune`` and ``profile``) assumes nothing else.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tenon.errors import ToolchainError

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 600
"""Far beyond any network that fits an emulator; a hang must end."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_WASM_PROBE = os.path.join(_PACKAGE, "runtime", "c", "wasm_probe.py")


@dataclass(frozen=True)
class Finished:
    """A program that ended: its exit status, and what it wrote to standard error."""

    status: int
    message: str


class Session(Protocol):
    """A new place for files on a machine, gone at the end."""

    def push(self, files: Mapping[str, bytes]) -> None:
        """Put files there, under plain names."""

    def run(self, program: str, arguments: Sequence[str] = ()) -> Finished:
        """Run one of them there, in that place.  Raises ToolchainError if it does not end within ``SECONDS``."""

    def pull(self, name: str) -> bytes:
        """The content of a file there.  Raises ToolchainError if there is none."""


class Runner(Protocol):
    """A machine that runs programs."""

    @property
    def name(self) -> str:
        """The name in the documentation."""

    @property
    def emulates(self) -> bool:
        """Whether times that are measured there say nothing of a real machine."""

    def missing(self) -> str:
        """Why nothing can be run, and what to install; "" if all is there."""

    def session(self) -> AbstractContextManager[Session]:
        """A new place for files."""


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class Connectable(Runner, Protocol):
    """A runner behind a link, which the sessions of a connection share; ``spec`` names the device."""

    @property
    def spec(self) -> Named: ...

    def connected(self) -> AbstractContextManager[Runner]:
        """A connection, which is a runner."""


@dataclass(frozen=True)
class Local:
    """This machine, or an emulator on it: ``command`` stands before the program's name, and ``install`` is the command
    that brings its program.  From the version ``since`` of the emulator on it is ``newer`` instead."""

    command: tuple[str, ...] = ()
    install: str = ""
    label: str = ""
    newer: tuple[str, ...] = ()
    since: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        return self.label or os.path.basename("".join(self.command[:1])) or "this machine"

    @property
    def emulates(self) -> bool:
        return bool(self.command)

    @property
    def words(self) -> tuple[str, ...]:
        """The command for the version of the emulator that is installed."""
        return self.newer if self.newer and _version(self.command[0]) >= self.since else self.command

    def missing(self) -> str:
        import shutil

        if not self.command or shutil.which(self.command[0]):
            return ""
        return f"there is no {self.command[0]}: install it with `{self.install}`"

    @contextmanager
    def session(self) -> Iterator[Session]:
        from tenon.atomic_write import scratch

        with scratch() as folder:
            yield Folder(self.words, folder)


class Folder:
    """A folder of this machine in which programs run behind a command."""

    def __init__(self, command: tuple[str, ...], folder: Path) -> None:
        self._command, self._folder = command, folder

    def push(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            (self._folder / name).write_bytes(content)

    def run(self, program: str, arguments: Sequence[str] = ()) -> Finished:
        import subprocess

        path = self._folder / program
        path.chmod(0o700)
        command = (*self._command, str(path), *arguments)
        try:
            done = subprocess.run(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"{command[0]} did not end within {SECONDS} s") from None
        except OSError as error:
            raise ToolchainError(f"cannot run {command[0]}: {error}") from error
        return Finished(done.returncode, done.stderr.decode(errors="replace").strip())

    def pull(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise ToolchainError(f"the program left no {name}: {error.strerror}") from error


def qemu_user(program: str, *arguments: str, newer: Sequence[str] = (), since: tuple[int, int] = (0, 0)) -> Local:
    """Programs of another processor on this system, by QEMU's user-mode emulation; ``newer`` are the arguments for the
    version ``since`` and later ones."""
    later = (program, *newer) if newer else ()
    return Local((program, *arguments), "apt-get install qemu-user", newer=later, since=since)


@cache
def _version(program: str) -> tuple[int, int]:
    """The version that a program states in its first line; (0, 0) where there is none."""
    import subprocess

    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=SECONDS, check=False, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    numbers = re.search(r"(\d+)\.(\d+)", done.stdout.partition("\n")[0])
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


@dataclass(frozen=True)
class Wasmtime(Local):
    """WebAssembly modules, by the Python package wasmtime in a process of its own (``runtime/wasm_probe.py``)."""

    command: tuple[str, ...] = (sys.executable, "-P", _WASM_PROBE)
    label: str = "wasmtime"

    def missing(self) -> str:
        from importlib.util import find_spec

        return "" if find_spec("wasmtime") else "there is no wasmtime: install it with `pip install wasmtime`"
