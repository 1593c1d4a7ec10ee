"""Devices behind the real adb and its server; the device's daemon is a stand-in (``adb_daemon``)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from adb_daemon import AdbDaemon, adb_server
from tenon.errors import DeviceError
from tenon.tools.devices import DeviceSpec, RemoteRunner, known_devices
from tenon.tools.devices.deploy import deploy, state
from tenon.tools.devices.link import LostError


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdbDaemon]:
    if not shutil.which("adb"):
        pytest.skip("there is no adb: apt-get install adb")
    with adb_server(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        daemon = AdbDaemon(fatal="./fatal")
        yield daemon
        daemon.listener.close()


def test_push_run_pull_and_deploy(daemon: AdbDaemon, tmp_path: Path) -> None:
    spec = DeviceSpec("phone", "adb", daemon.address, folder=str(tmp_path / "place"), retries=0)
    with RemoteRunner(spec).connected() as device:
        with device.session() as session:
            big = bytes(range(256)) * 1000
            session.push({"a b'c": big, "go": b'#!/bin/sh\necho "$1"; echo why >&2; exit 3\n', "fatal": b""})
            assert session.pull("a b'c") == big
            done = session.run("go", ["a 'b'"])
            assert (done.status, done.message) == (3, "a 'b'\nwhy")
            with pytest.raises(DeviceError, match="none cannot be read"):
                session.pull("none")
        assert list((tmp_path / "place").iterdir()) == []
        first = deploy(device, "net", {"a": b"1"})
        assert state(device, "net") == (first.version, [first.version])
        assert daemon.address in [known.address for known in known_devices()]
        with device.session() as session:
            session.push({"fatal": b""})
            with pytest.raises(LostError, match=r"device 'phone' .* does not answer"):
                session.run("fatal")


def test_a_phone_that_is_not_there(daemon: AdbDaemon) -> None:
    spec = DeviceSpec("phone", "adb", "0123456789", retries=0)
    with (
        pytest.raises(
            LostError, match=r"device 'phone' \(0123456789\) does not answer: .*not found: see 'adb devices'"
        ),
        RemoteRunner(spec).connected(),
    ):
        pass
