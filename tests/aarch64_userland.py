"""A small Debian for AArch64 as the machine behind the SSH server of the tests: its own shell, commands, C library and
SFTP server, all run by qemu-user through PRoot.

``scripts/aarch64-userland`` makes it.  TENON_AARCH64_USERLAND names a folder in which that was done before.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from programs import needed
from real import ROOT

CPUINFO = """\
processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd0b
"""
"""The file /proc/cpuinfo of a Raspberry Pi 5."""

_SENSORS = {
    "class/thermal/thermal_zone0/temp": "47300",
    "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000",
    "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "2400000",
}
"""Files of sysfs, which the machine of the tests need not have."""

_SHELL = r"""#!/bin/sh
# The login shell: every command runs in the userland.
case "$SSH_ORIGINAL_COMMAND" in
  *sftp-server*) command='exec /usr/lib/openssh/sftp-server' ;;
  *) command=$SSH_ORIGINAL_COMMAND ;;
esac
{environment}
exec {proot} -q qemu-aarch64 -r {root} -b /dev -b /proc -b {cpuinfo}:/proc/cpuinfo -b {sys}:/sys \
  -b {home}:/root -w /root /bin/sh -c "$command"
"""


def aarch64_userland(folder: Path) -> Path:
    """The folder with the userland; skips the test where it cannot be had."""
    needed("qemu-aarch64")
    if given := os.environ.get("TENON_AARCH64_USERLAND"):
        return Path(given)
    made = subprocess.run(
        [str(ROOT / "scripts" / "aarch64-userland"), str(folder / "userland")], capture_output=True, text=True
    )
    if made.returncode:
        said = (made.stderr.strip() or "no message").splitlines()[-1]
        pytest.skip(f"scripts/aarch64-userland cannot get an AArch64 userland from Debian: {said}")
    return folder / "userland"


def login_shell(userland: Path, root: Path) -> str:
    """The text of the SSH server's command: a shell in the userland, whose home folder is ``root``/home."""
    (root / "cpuinfo").write_text(CPUINFO)
    for name, text in _SENSORS.items():
        (root / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys" / name).write_text(f"{text}\n")
    own = userland / "host" / "usr"
    library = next(own.glob("lib/*-linux-gnu"), own / "lib")
    proot = shutil.which("proot") or str(own / "bin" / "proot")
    paths = {"root": userland / "root", "cpuinfo": root / "cpuinfo", "sys": root / "sys", "home": root / "home"}
    quoted = {name: shlex.quote(str(path)) for name, path in paths.items()}
    environment = f"export LD_LIBRARY_PATH={shlex.quote(str(library))} HOME=/root PATH=/bin:/usr/bin"
    return _SHELL.format(proot=shlex.quote(proot), environment=environment, **quoted)
