"""A serial port of this machine as a stream of bytes: POSIX terminals in raw mode."""

from __future__ import annotations

import os
import select
import time
from types import TracebackType
from typing import Self

from tenon.errors import DeviceError, InputError

SPEED = 115200
"""Baud where none is named."""


def parse_serial(text: str) -> tuple[str, int]:
    """The path and the speed in baud of "PATH" or "PATH,BAUD".  Raises InputError for anything else."""
    path, comma, speed = text.partition(",")
    if not path or (comma and not speed.isdigit()):
        raise InputError(
            f"--device serial:{text}: write serial:PORT or serial:PORT,BAUD, as in serial:/dev/ttyACM0,115200"
        )
    return path, int(speed) if comma else SPEED


class SerialPort:
    """An open port: 8 data bits, no parity, one stop bit, no flow control.  As a context manager it is closed at the
    end.  Raises DeviceError if it cannot be opened, InputError for a speed that the system does not have."""

    def __init__(self, path: str, speed: int = SPEED) -> None:
        try:
            import termios
        except ImportError:
            raise InputError("serial ports are supported on Linux and macOS only") from None
        rate = getattr(termios, f"B{speed}", None)
        if rate is None:
            raise InputError(f"serial:{path},{speed}: {speed} baud is not a speed of this system: 115200 is usual")
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise DeviceError(f"cannot open the serial port {path}: {error.strerror}") from None
        try:
            settings = termios.tcgetattr(self._file)
            characters = settings[6]
            characters[termios.VMIN], characters[termios.VTIME] = 0, 0
            flags = termios.CS8 | termios.CREAD | termios.CLOCAL
            termios.tcsetattr(self._file, termios.TCSANOW, [0, 0, flags, 0, rate, rate, characters])
            termios.tcflush(self._file, termios.TCIOFLUSH)
        except termios.error as error:
            os.close(self._file)
            raise DeviceError(f"{path} is not a serial port: {error.args[-1]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    def write(self, data: bytes) -> None:
        """Send all bytes.  Raises DeviceError if the port is gone, or takes none for 10 s."""
        while data:
            if not select.select([], [self._file], [], 10)[1]:
                raise DeviceError(f"the serial port {self.path} takes no more bytes")
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise DeviceError(f"the serial port {self.path} is gone: {error.strerror}") from None

    def read(self, count: int, seconds: float) -> bytes:
        """As many bytes as arrive in that time, at most ``count``.  Raises DeviceError if the port is gone."""
        end, data = time.monotonic() + seconds, b""
        while len(data) < count:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                break
            try:
                part = os.read(self._file, count - len(data))
            except BlockingIOError:
                continue
            except OSError as error:
                raise DeviceError(f"the serial port {self.path} is gone: {error.strerror}") from None
            if not part:
                raise DeviceError(f"the serial port {self.path} is gone")
            data += part
        return data
