"""The protocol of boards at serial ports: the server in C, run on this machine, and requests to it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import tenon
from programs import needed
from real import DIGITS, held_out_digits
from tenon.errors import DeviceError, InputError
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.network_digest import network_digest
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.saved_bundle import SavedBundle
from tenon.tools.devices import serial_frames
from tenon.tools.devices.serial_board import SerialBoard
from tenon.tools.devices.serial_frames import DamagedFrameError, Requests, frame, parsed
from tenon.tools.devices.serial_port import SerialPort, parse_serial

MAIN = """\
#include <stdint.h>
#include <unistd.h>
#include <stdlib.h>
void digits_serve(uint8_t (*receive)(void), void (*send)(uint8_t byte), uint32_t (*microseconds)(void));
static uint8_t receive(void) { uint8_t byte; if (read(0, &byte, 1) != 1) exit(0); return byte; }
static void send(uint8_t byte) { if (write(1, &byte, 1) != 1) exit(1); }
static uint32_t clock(void) { static uint32_t now; return now += 7; }
int main(int count, char **words) {
  (void)words;
  for (const char *text = count > 1 ? "TN? booting\\n" : ""; *text; text++) send((uint8_t)*text);
  digits_serve(receive, send, count > 2 ? 0 : clock);
}
"""
CRC_OF_CHECK = 0xCBF43926
"""The CRC of "123456789", by the catalogues of CRCs."""


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return tenon.compile(DIGITS / "digits.onnx", threads=1, no_tuning=True)


@pytest.fixture(scope="module")
def folder(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.save(tmp_path_factory.mktemp("board") / "out", (*bundle.parts, "serial", "archive"))


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """The server as a program that reads and writes its standard streams."""
    (folder.parent / "main.c").write_text(MAIN)
    with_header = tenon.open(folder)  # the bundle is whole
    with_header.close()
    weights = folder.parent / "digits_weights.h"
    weights.write_text(
        '#include "digits.h"\nextern const uint8_t digits_weights[];\n'
        "static inline int digits_run(uint8_t *t, uint8_t *a) { return digits(digits_weights, t, a); }\n"
    )
    strict = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-O1", "-I", "out", "-I", ".")
    words = (needed("gcc"), *strict, "main.c", "out/digits_serial.c", "out/libdigits.a", "-lm", "-o", "board")
    done = subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder.parent / "board"


@contextmanager
def board(program: Path, *words: str, noise: int = 0) -> Iterator[str]:
    """The program behind a pseudo-terminal; its name.  ``noise``: one of so many bytes to it is changed."""
    master, slave = pty.openpty()
    subprocess.run(["stty", "raw", "-echo"], stdin=slave, check=True)
    process = subprocess.Popen([program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    stop = threading.Event()
    files = (process.stdin.fileno(), process.stdout.fileno())

    def forward() -> None:
        sent = 0
        while not stop.is_set():
            ready = select.select([master, files[1]], [], [], 0.05)[0]
            if master in ready:
                data = bytearray(os.read(master, 4096))
                for i in range(len(data)):
                    sent += 1
                    if noise and sent % noise == 0:
                        data[i] ^= 0x10
                os.write(files[0], data)
            if files[1] in ready:
                os.write(master, os.read(files[1], 4096))

    thread = threading.Thread(target=forward)
    thread.start()
    try:
        yield os.ttyname(slave)
    finally:
        stop.set()
        thread.join()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        os.close(master)
        os.close(slave)


def test_outputs_and_times_of_a_board(bundle: Bundle, folder: Path, program: Path) -> None:
    """They are those of the engine, from the bundle in memory and on disk."""
    images, _ = held_out_digits()
    with tenon.open(folder) as engine, board(program) as port:
        for linkable in (bundle, SavedBundle(folder, tenon.Options())):
            device = RemoteBundle(linkable, SerialBoard(port))
            for image, answer in zip(images[:3], device.run(list(images[:3])), strict=True):
                np.testing.assert_array_equal(answer["probabilities"], engine.run(image)["probabilities"])
        assert device.time(3, 1).summary()["median"] == pytest.approx(0.007)
        with pytest.raises(InputError, match="runs the network of its firmware only"):
            device.fuel([images[0]])


def test_damaged_frames_are_sent_again(bundle: Bundle, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_frames, "_PAUSE", 0.1)
    (image, *_), _ = held_out_digits()
    with board(program, noise=390) as port:
        (answer,) = RemoteBundle(bundle, SerialBoard(port)).run([image])
    with tenon.open(bundle) as engine:
        np.testing.assert_array_equal(answer["probabilities"], engine.run(image)["probabilities"])


def test_what_firmware_prints_first_is_skipped(bundle: Bundle, program: Path) -> None:
    (image, *_), _ = held_out_digits()
    with board(program, "booting") as port:
        (answer,) = RemoteBundle(bundle, SerialBoard(port)).run([image])
    assert int(answer["probabilities"].argmax()) == held_out_digits()[1][0]


def test_another_network_and_a_board_without_clock(bundle: Bundle, program: Path) -> None:
    other = tenon.compile(DIGITS / "digits.onnx", threads=1, no_tuning=True, optimize=0)
    (image, *_), _ = held_out_digits()
    with board(program, "quiet", "no clock") as port:
        with pytest.raises(DeviceError, match=r"has another network \('digits', \d+ bytes of tensors\) than 'digits'"):
            RemoteBundle(other, SerialBoard(port)).run([image])
        with pytest.raises(DeviceError, match="has no clock"):
            RemoteBundle(bundle, SerialBoard(port)).time(2)


def test_the_server_refuses_what_is_outside(program: Path, bundle: Bundle) -> None:
    with board(program) as path, SerialPort(path) as port:
        requests, size = Requests(port, "the board"), bundle.program.memory.mutable
        hello = requests.hello()
        assert hello == (network_digest(bundle.interface, bundle.weights), size, "digits")
        requests.write(size - 4, b"abcd")
        assert requests.read(size - 4, 4) == b"abcd"
        for offset, count in ((size - 3, 4), (size + 1, 1), (0xFFFFFFFF, 2), (1 << 31, 4)):
            with pytest.raises(DeviceError, match="the request is outside of its tensors"):
                requests.write(offset, bytes(count))
            with pytest.raises(DeviceError, match="the request is outside of its tensors"):
                requests.read(offset, count)
        assert requests.read(size - 4, 4) == b"abcd"
        for raw, code in ((frame(9), 3), (frame(1, version=2), 2), (frame(2, b"abc"), 4), (frame(4, b"abcde"), 4)):
            port.write(raw)
            assert parsed(port.read(11, 2)) == (1, 255, bytes([code]))
        port.write(frame(1)[:-1] + b"x")
        assert parsed(port.read(11, 2)) == (1, 255, b"\x01")


def test_frames() -> None:
    data = frame(3, b"123456789")
    assert parsed(data) == (1, 3, b"123456789")
    assert zlib.crc32(b"123456789") == CRC_OF_CHECK
    for damaged in (data[:-1], data + b"x", data[:8] + b"?" + data[9:], b"", b"TN"):
        with pytest.raises(DamagedFrameError):
            parsed(damaged)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "write serial:PORT"), ("/dev/ttyACM0,fast", "write serial:PORT"), ("/dev/ttyACM0,", "write serial:PORT")],
)
def test_names_of_ports(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_serial(text)


def test_ports_that_cannot_be_opened(tmp_path: Path) -> None:
    assert parse_serial("/dev/ttyACM0") == ("/dev/ttyACM0", 115200)
    assert parse_serial("/dev/ttyUSB1,9600") == ("/dev/ttyUSB1", 9600)
    with pytest.raises(DeviceError, match=r"cannot open the serial port .*none: No such file"):
        SerialPort(str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="is not a serial port"):
        SerialPort(str(tmp_path / "file"))
    with pytest.raises(InputError, match="12345 baud is not a speed"):
        SerialPort(str(tmp_path / "file"), 12345)


def test_a_silent_port(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_frames, "_PAUSE", 0.05)
    master, slave = pty.openpty()
    (image, *_), _ = held_out_digits()
    with pytest.raises(DeviceError, match="does not answer: it is silent"):
        RemoteBundle(bundle, SerialBoard(os.ttyname(slave))).run([image])
    os.close(master)
    os.close(slave)
