"""The protocol of boards that serve a network over a serial port (``runtime/c/serial/serve.c``, version 1).

A frame is "TN", version (1 byte), type (1), length of the payload (2), payload, and the CRC-32 of all of that but "TN";
numbers are little-endian.  Each request has one answer, of its type plus 128, or ``ERROR``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol
from zlib import crc32

from tenon.errors import DeviceError

VERSION = 1
PAYLOAD = 512
"""Most bytes of a payload."""
HELLO, WRITE, RUN, READ, ANSWER, ERROR = 1, 2, 3, 4, 128, 255
_MAGIC = b"TN"
_ATTEMPTS = 3
_PAUSE = 0.3
"""Seconds without a byte after which a board is silent."""
_SLOWEST = 100
"""Bytes per second of the slowest port, of 1200 baud."""
_DAMAGED = 1
_ERRORS = {
    2: f"its firmware has another version of the protocol than {VERSION}: write --emit serial again",
    3: "it does not know the request",
    4: "the request is outside of its tensors",
}


class Stream(Protocol):
    """A stream of bytes in both directions."""

    def write(self, data: bytes) -> None: ...

    def read(self, count: int, seconds: float) -> bytes: ...


class DamagedFrameError(Exception):
    """An answer that is cut short, or whose checksum is wrong."""


class Hello(NamedTuple):
    """A board's answer: the digest of its network (``network_digest``), bytes of its tensors, the network's name."""

    digest: bytes
    tensors: int
    name: str


def frame(kind: int, payload: bytes = b"", version: int = VERSION) -> bytes:
    """The bytes of a frame."""
    body = struct.pack("<BBH", version, kind, len(payload)) + payload
    return _MAGIC + body + struct.pack("<I", crc32(body))


def parsed(data: bytes) -> tuple[int, int, bytes]:
    """Version, type and payload of the only frame in ``data``.  Raises DamagedFrameError."""
    if len(data) < 10 or data[:2] != _MAGIC:
        raise DamagedFrameError("no frame")
    version, kind, length = struct.unpack_from("<BBH", data, 2)
    body = data[2 : 6 + length]
    if len(data) != 10 + length or struct.unpack("<I", data[6 + length :])[0] != crc32(body):
        raise DamagedFrameError("the checksum is wrong")
    return version, kind, body[4:]


class Requests:
    """Requests to a board over a stream; a damaged frame is sent again, twice.  ``where`` names the board in errors."""

    def __init__(self, stream: Stream, where: str) -> None:
        self._stream, self._where = stream, where

    def hello(self) -> Hello:
        """Raises DeviceError if no board answers."""
        payload = self._answer(HELLO, b"", 1.0)
        if len(payload) < 36:
            raise DeviceError(f"{self._where}: its answer is cut short")
        return Hello(payload[:32], struct.unpack_from("<I", payload, 32)[0], payload[36:].decode(errors="replace"))

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes into the tensors."""
        for at in range(0, len(data), PAYLOAD - 4):
            self._answer(WRITE, struct.pack("<I", offset + at) + data[at : at + PAYLOAD - 4], 2.0)

    def run(self, seconds: float) -> tuple[int, int]:
        """Run the network; its status, and microseconds (0: the board has no clock)."""
        status, time = struct.unpack("<iI", self._answer(RUN, b"", seconds))
        return status, time

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the tensors."""
        parts = [
            self._answer(READ, struct.pack("<IH", offset + at, min(PAYLOAD, count - at)), 2.0)
            for at in range(0, count, PAYLOAD)
        ]
        return b"".join(parts)

    def _answer(self, kind: int, payload: bytes, seconds: float) -> bytes:
        """The payload of the answer.  Raises DeviceError."""
        reason = ""
        for _ in range(_ATTEMPTS):
            self._stream.write(frame(kind, payload))
            try:
                version, answered, content = self._received(seconds)
            except DamagedFrameError as error:
                reason = str(error)
                self._flush()
                continue
            if version != VERSION:
                raise DeviceError(f"{self._where}: {_ERRORS[2]}")
            if answered == ERROR and content[0] == _DAMAGED:
                reason = "frames arrive damaged: is the speed right?"
                continue
            if answered == ERROR:
                raise DeviceError(f"{self._where}: {_ERRORS.get(content[0], 'error ' + str(content[0]))}")
            if answered == kind + ANSWER:
                return content
            reason = "its answers are those of other requests"
            self._flush()
        raise DeviceError(f"{self._where} does not answer: {reason}")

    def _received(self, seconds: float) -> tuple[int, int, bytes]:
        """The next frame, which begins within that time.  Raises DamagedFrameError."""
        head = self._stream.read(1, seconds)
        while head and not head.startswith(_MAGIC) and len(head) < 4 * PAYLOAD:  # what firmware prints at its start
            more = self._stream.read(1, _PAUSE)
            head = (head + more)[-2:] if more else b""
        if not head:
            raise DamagedFrameError("it is silent: does its firmware call the function that --emit serial writes?")
        head += self._stream.read(4, _PAUSE)
        if len(head) < 6:
            raise DamagedFrameError("its answer is cut short")
        rest = struct.unpack_from("<H", head, 4)[0] + 4
        if rest > PAYLOAD + 4:
            raise DamagedFrameError("its answer is no frame")
        return parsed(head + self._stream.read(rest, _PAUSE + rest / _SLOWEST))

    def _flush(self) -> None:
        """End a frame that the board may still wait for, and drop what it says of it."""
        self._stream.write(bytes(PAYLOAD + 16))
        while self._stream.read(4096, _PAUSE):
            pass
