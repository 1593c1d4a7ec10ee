"""Runs the console script of the installed package, in a process of its own or a fork of one that has imported it."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from real import ROOT

SCRIPT = Path(sys.executable).with_name("tenon")
TIMEOUT = 300
"""Seconds that a command may take."""


def tenon_script() -> Path:
    """The installed console script; skips the test if there is none."""
    if not SCRIPT.exists():
        pytest.skip("the package is not installed: no console script beside this Python")
    return SCRIPT


def environment(**changes: str) -> dict[str, str]:
    """The environment without TENON_* variables except for the cache, and with ``changes``."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("TENON_") or name == "TENON_CACHE"}
    return {**kept, "COLUMNS": "80", **changes}


def tenon(*arguments: str | Path, cwd: Path = ROOT, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``tenon``; ``changes`` are environment variables."""
    return run([str(tenon_script()), *map(str, arguments)], cwd, changes)


def run(words: Sequence[str], folder: Path, changes: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the console script in a fork of a process that has imported the package, which takes a third of the time; in
    a process of its own where ``changes`` are what Python or the system's loader reads when a process starts."""
    if any(name.startswith(("PYTHON", "LD_", "LANG", "LC_")) for name in changes) or sys.platform != "linux":
        return subprocess.run(
            words, cwd=folder, env=environment(**changes), capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    request = {"words": words, "folder": str(folder), "environment": environment(**changes)}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error, Path(os.devnull).open() as nothing:
        status = _served(json.dumps(request), [nothing.fileno(), out.fileno(), error.fileno()])
        for file in (out, error):
            file.seek(0)
        return subprocess.CompletedProcess(words, status, out.read(), error.read())


@cache
def _server() -> socket.socket:
    """The connection to this process's command server."""
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT)
    server = Path(__file__).with_name("command_server.py")
    command = [sys.executable, str(server), str(theirs.fileno())]
    process = subprocess.Popen(command, env=environment(), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # ends the server; functions run in reverse order
    return ours


def _served(request: str, streams: list[int]) -> int:
    """The exit status of a command of the server."""
    server = _server()
    socket.send_fds(server, [request.encode()], streams)
    process = int(_line(server))
    try:
        return int(_line(server))
    except TimeoutError:
        os.kill(process, 9)
        return int(_line(server))


def _line(server: socket.socket) -> str:
    text = b""
    while not text.endswith(b"\n"):
        part = server.recv(1)
        assert part, "the command server ended"
        text += part
    return text.decode()


def succeeds(*arguments: str | Path, cwd: Path = ROOT, **changes: str) -> str:
    """The command's output; it must exit with status 0 and print no traceback."""
    done = tenon(*arguments, cwd=cwd, **changes)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout
