"""A stand-in for the daemon of an Android device, on a TCP port of loopback; adb and its server are the real ones.

It speaks adb's transport protocol without authentication (CNXN, OPEN, OKAY, WRTE, CLSE), the services ``shell,v2`` and
``sync``, and runs commands by this machine's shell: adbd itself is not packaged for machines that are not Android.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HEAD = struct.Struct("<4sIIIII")
_VERSION, _LARGEST, _PART = 0x01000001, 1 << 18, 1 << 16
_STDOUT, _STDERR, _EXIT = 1, 2, 3


class _Stream:
    """A service that is open: bytes from the host, in order, and to it, one packet at a time."""

    def __init__(self, daemon: AdbDaemon, local: int, remote: int) -> None:
        self.daemon, self.local, self.remote = daemon, local, remote
        self.arrived, self.came = bytearray(), threading.Condition()
        self.taken = threading.Semaphore(0)
        self.closed = False

    def read(self, count: int) -> bytes:
        with self.came:
            self.came.wait_for(lambda: len(self.arrived) >= count or self.closed, 30)
            if len(self.arrived) < count:
                raise EOFError
            part = bytes(self.arrived[:count])
            del self.arrived[:count]
            return part

    def write(self, content: bytes) -> None:
        for at in range(0, len(content), _PART):
            self.daemon.send(b"WRTE", self.local, self.remote, content[at : at + _PART])
            self.taken.acquire(timeout=30)


class AdbDaemon:
    """``address`` is what ``adb connect`` takes; commands that contain ``fatal`` end the connection."""

    def __init__(self, fatal: str = "") -> None:
        self.fatal = fatal
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.streams: dict[int, _Stream] = {}
        self.link: socket.socket | None = None
        self.sending = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
        with self.sending, suppress(OSError):
            assert self.link
            self.link.sendall(_HEAD.pack(command, first, second, len(data), sum(data) & 0xFFFFFFFF, magic) + data)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.link, _ = self.listener.accept()
                with suppress(OSError, EOFError):
                    self._serve(self.link)
                self.link.close()

    def _serve(self, link: socket.socket) -> None:
        file = link.makefile("rb")
        with file:
            while head := file.read(_HEAD.size):
                command, first, second, size, _, _ = _HEAD.unpack(head)
                data = file.read(size)
                if command == b"CNXN":
                    self.send(b"CNXN", _VERSION, _LARGEST, b"device::ro.product.model=stand-in;features=shell_v2")
                elif command == b"OPEN":
                    self._open(first, data.rstrip(b"\0").decode())
                elif (stream := self.streams.get(second)) is None:
                    continue
                elif command == b"WRTE":
                    with stream.came:
                        stream.arrived += data
                        stream.came.notify_all()
                    self.send(b"OKAY", stream.local, stream.remote)
                elif command == b"OKAY":
                    stream.taken.release()
                elif command == b"CLSE":
                    with stream.came:
                        stream.closed = True
                        stream.came.notify_all()

    def _open(self, remote: int, service: str) -> None:
        local = len(self.streams) + 1
        stream = self.streams[local] = _Stream(self, local, remote)
        name, _, command = service.partition(":")
        if self.fatal and self.fatal in command:
            assert self.link
            self.link.shutdown(socket.SHUT_RDWR)
            return
        self.send(b"OKAY", local, remote)
        work = _sync if name == "sync" else _shell
        threading.Thread(target=self._run, args=(work, stream, command), daemon=True).start()

    def _run(self, work: object, stream: _Stream, command: str) -> None:
        with suppress(EOFError, OSError):
            work(stream, command)  # type: ignore[operator]  # _shell or _sync
        self.send(b"CLSE", stream.local, stream.remote)


def _shell(stream: _Stream, command: str) -> None:
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for kind, content in ((_STDOUT, done.stdout), (_STDERR, done.stderr), (_EXIT, bytes([done.returncode & 255]))):
        if content:
            stream.write(struct.pack("<BI", kind, len(content)) + content)


def _sync(stream: _Stream, command: str) -> None:
    while True:
        request, size = struct.unpack("<4sI", stream.read(8))
        if request == b"QUIT":
            return
        text = stream.read(size).decode()
        if request == b"STAT":
            known = Path(text).stat() if Path(text).exists() else None
            mode, length, time = (known.st_mode, known.st_size, int(known.st_mtime)) if known else (0, 0, 0)
            stream.write(struct.pack("<4sIII", b"STAT", mode, length, time))
        elif request == b"SEND":
            _receive(stream, text.rpartition(",")[0])
        elif request == b"RECV":
            content = Path(text).read_bytes()
            for at in range(0, len(content), _PART):
                part = content[at : at + _PART]
                stream.write(struct.pack("<4sI", b"DATA", len(part)) + part)
            stream.write(struct.pack("<4sI", b"DONE", 0))


def _receive(stream: _Stream, path: str) -> None:
    content = b""
    while True:
        kind, size = struct.unpack("<4sI", stream.read(8))
        if kind == b"DONE":
            break
        content += stream.read(size)
    try:
        Path(path).write_bytes(content)
        stream.write(struct.pack("<4sI", b"OKAY", 0))
    except OSError as error:
        why = (error.strerror or "").encode()
        stream.write(struct.pack("<4sI", b"FAIL", len(why)) + why)


@contextmanager
def adb_server(home: Path) -> Iterator[dict[str, str]]:
    """Environment variables of an adb server of its own, which is ended afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    variables = {"ANDROID_ADB_SERVER_PORT": port, "HOME": str(home), "ADB_MDNS": "0"}
    try:
        yield variables
    finally:
        ended = {**os.environ, **variables}
        subprocess.run(["adb", "kill-server"], env=ended, capture_output=True, check=False, timeout=30)
