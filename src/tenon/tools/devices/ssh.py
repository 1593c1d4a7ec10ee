"""A device behind OpenSSH's own client: one authenticated connection (ControlMaster) that ssh and sftp share.

ssh_config(5) is the reference of the options; the user's configuration applies, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tenon.atomic_write import write
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

_PERSIST = 300
"""Seconds after which an unused connection ends by itself, should this program be killed."""

_ASKPASS = """\
#!/bin/sh
case "$SSH_ASKPASS_PROMPT$1" in
  *yes/no*|confirm*|none*) echo no ;;
  *) printf '%s\\n' "$TENON_DEVICE_PASSWORD" ;;
esac
"""
"""Answers questions for a password; whether an unknown host is the right one is the user's to say."""

MISSING = "there is no {}: install it with `apt-get install openssh-client`"


def missing() -> str:
    """The error message if a program is not installed; "" if all is there."""
    return next((MISSING.format(name) for name in ("ssh", "sftp") if not shutil.which(name)), "")


class SshLink:
    """``folder`` is a new local folder for the socket of the connection and files on their way."""

    def __init__(self, spec: DeviceSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._askpass: dict[str, str] = {}
        if spec.password:
            script = folder / "askpass"
            write(script, _ASKPASS)
            script.chmod(0o700)
            self._askpass = {
                "SSH_ASKPASS": str(script),
                "SSH_ASKPASS_REQUIRE": "force",
                "TENON_DEVICE_PASSWORD": spec.password,
            }

    def start(self) -> None:
        """Messages go to a file: the connection stays in the background, and would keep a pipe open."""
        log = self._folder / "ssh.log"
        words = ["ssh", "-M", "-N", "-f", "-E", str(log), "-o", f"ControlPersist={_PERSIST}", *self._options()]
        write(log, "")
        quietly = ["sh", "-c", 'exec "$@" >/dev/null 2>&1', "sh", *words, self._spec.address]
        done = run(self._spec, quietly, self._spec.timeout + 5, variables=self._askpass)
        if done.returncode:
            raise lost_error(self._spec, last_line(log.read_bytes()) or f"ssh ended with {done.returncode}")

    def call(self, command: str, seconds: float) -> CommandResult:
        words = ["ssh", "-T", *self._options(), self._spec.address, with_exit_status(command)]
        done = run(self._spec, words, seconds)
        return parse_answer(self._spec, done, last_line(done.stderr))

    def send(self, files: Mapping[str, bytes]) -> None:
        with self._local_copies(files) as local:
            self._batch("".join(f"put {_quoted(str(path))} {_quoted(name)}\n" for name, path in local.items()))

    def fetch(self, path: str) -> bytes:
        with self._local_copies({path: b""}) as local:
            self._batch(f"get {_quoted(path)} {_quoted(str(local[path]))}\n")
            return local[path].read_bytes()

    def close(self) -> None:
        with suppress(DeviceError):  # it ends by itself after _PERSIST seconds
            run(self._spec, ["ssh", "-O", "exit", *self._options(), self._spec.address], self._spec.timeout)

    def _batch(self, commands: str) -> None:
        spec = self._spec
        seconds = spec.timeout + max(600.0, 20 * spec.timeout)
        done = run(spec, ["sftp", "-q", "-b", "-", *self._options(), spec.address], seconds, commands.encode())
        if done.returncode:
            why = last_line(done.stderr)
            raise lost_error(spec, why) if done.returncode == 255 or _broken(why) else DeviceError(why)

    @contextmanager
    def _local_copies(self, files: Mapping[str, bytes]) -> Iterator[dict[str, Path]]:
        local = store_files(self._folder, files)
        try:
            yield local
        finally:
            remove_files(local)

    def _options(self) -> list[str]:
        spec = self._spec
        own = {
            "ControlPath": str(self._folder / "ssh"),
            "ConnectTimeout": f"{max(1, round(spec.timeout))}",
            "ServerAliveInterval": f"{max(1, round(spec.timeout / 3))}",
            "ServerAliveCountMax": "3",
            "BatchMode": "no" if spec.password else "yes",
            "NumberOfPasswordPrompts": "1",
        }
        if spec.username:
            own["User"] = spec.username
        if spec.port:
            own["Port"] = str(spec.port)
        if spec.key:
            own |= {"IdentityFile": spec.key, "IdentitiesOnly": "yes"}
        return [word for name, value in (own | dict(spec.ssh_options)).items() for word in ("-o", f"{name}={value}")]


def _quoted(path: str) -> str:
    """A path in a batch of sftp."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _broken(why: str) -> bool:
    return any(words in why for words in ("Connection closed", "Connection reset", "Broken pipe", "Connection to"))
