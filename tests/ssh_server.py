"""An OpenSSH server on loopback that is a small AArch64 machine: its shell says so, and qemu-user runs its programs; or
an AArch64 userland (``aarch64_userland``), whose own shell runs the commands.

Keys and configuration are made for the test; the port is a free one.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aarch64_userland import CPUINFO, login_shell

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
_SFTP = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")

_SHELL = r"""#!/bin/sh
# The login shell of the machine: what a few commands say is another machine's.
cd "{home}" || exit 1
uname() {{ case "$1" in -m) echo aarch64 ;; *) echo Linux ;; esac; }}
getconf() {{ echo 64; }}
nproc() {{ echo 4; }}
cat() {{
  case "$*" in
    /proc/cpuinfo) command cat "{root}/cpuinfo" ;;
    /proc/device-tree/model) printf 'Raspberry Pi 5 Model B Rev 1.0\000' ;;
    *thermal_zone*) echo 47300 ;;
    *scaling_cur_freq) printf '1500000\n2400000\n' ;;
    *cpuinfo_max_freq) printf '2400000\n2400000\n' ;;
    *) command cat "$@" ;;
  esac
}}
[ -f "{root}/before" ] && . "{root}/before"
case "$SSH_ORIGINAL_COMMAND" in
  *sftp-server*) exec {sftp} ;;
  *) eval "$SSH_ORIGINAL_COMMAND" ;;
esac
"""

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {root}/host_key
AuthorizedKeysFile {root}/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
Subsystem sftp {sftp}
ForceCommand {root}/shell
"""


@dataclass
class SshServer:
    """``home`` is the machine's home folder; ``before`` is a file of shell commands that come before every command."""

    root: Path
    port: int
    process: subprocess.Popen[bytes]
    userland: bool = False

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def before(self) -> Path:
        return self.root / "before"

    def keys(self, **changes: object) -> dict[str, object]:
        """Keys of devices.yml for this machine."""
        command = {} if self.userland else {"command": "qemu-aarch64"}
        return {
            "address": "127.0.0.1",
            "port": self.port,
            "username": getpass.getuser(),
            "key": str(self.root / "key"),
            **command,
            "timeout": 60 if self.userland else 10,
            "retries": 0,
            "ssh_options": {"UserKnownHostsFile": str(self.root / "known_hosts"), "IdentityAgent": "none"},
            **changes,
        }


@contextmanager
def ssh_server(root: Path, userland: Path | None = None) -> Iterator[SshServer]:
    """A running server, of a ``userland`` if one is given; skips the test where there is no sshd (apt-get install
    openssh-server)."""
    sftp = next((path for path in _SFTP if Path(path).exists()), None)
    if not Path(SSHD).exists() or sftp is None or not shutil.which("ssh-keygen"):
        pytest.skip("there is no sshd: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it separates privileges
    for name in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.copy(root / "key.pub", root / "authorized_keys")
    public = (root / "host_key.pub").read_text().split()[:2]
    (root / "known_hosts").write_text(f"[127.0.0.1]:{port} {' '.join(public)}\n")
    (root / "cpuinfo").write_text(CPUINFO)
    (root / "home").mkdir()
    shell = _SHELL.format(root=root, home=root / "home", sftp=sftp)
    (root / "shell").write_text(shell if userland is None else login_shell(userland, root))
    (root / "shell").chmod(0o755)
    (root / "config").write_text(_CONFIG.format(root=root, port=port, sftp=sftp))
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(root / "config")], stderr=log)
    try:
        _wait(port, process, root / "log")
        yield SshServer(root, port, process, userland is not None)
    finally:
        process.terminate()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(100):
        if process.poll() is not None:
            pytest.skip(f"sshd cannot be run here: {log.read_text()[-300:]}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            time.sleep(0.05)
    raise TimeoutError("sshd does not listen")
