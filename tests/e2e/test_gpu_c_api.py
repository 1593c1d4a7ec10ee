"""Bundles for GPUs in C programs: libtenon, and the C and C++ interfaces of other runtimes over it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tenon
from gpu_devices import why_not
from gpu_faults import faulty_opencl, with_fault
from libtenon import client, sdk_for_clients, succeeded
from onnx_models import model, node
from tenon.runtime.bundle.writer import save_container


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an SDK, a bundle for OpenCL and the processor, and a client."""
    folder = tmp_path_factory.mktemp("device")
    sdk = sdk_for_clients(folder, "")
    content = model([node("Tanh", ["x"], ["y"])], {"x": [1, 300]}, ["y"]).SerializeToString()
    bundles = [tenon.compile(content, target=target, name="small", no_tuning=True) for target in ("opencl", "x86-64")]
    save_container(folder / "small.tenon", bundles)
    client("run_on_device", sdk, folder)
    faulty_opencl(folder)
    return folder


def lines(place: Path, fault: str | None = None, target: str = "opencl") -> list[str]:
    """What the client prints, with the machine's OpenCL or with the stand-in."""
    command = [place / "run_on_device", place / "small.tenon", *([target] if target else [])]
    environment = None if fault is None else with_fault(place, fault)
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False, env=environment)
    return succeeded(done).decode().splitlines()


def test_libtenon_runs_bundles_for_devices(place: Path) -> None:
    if reason := why_not("opencl"):
        pytest.skip(reason)
    opened, device, *rest = lines(place)
    assert opened == "open: TENON_OK"
    with tenon.open(place / "small.tenon", target="opencl") as engine:
        assert device == f"device: {engine.device}"
    y = f"{np.tanh(0.5):.5f}"
    assert rest[:6] == ["prepare: TENON_OK", "run: TENON_OK", y, "run: TENON_OK", y, "times: TENON_OK"]
    assert re.match("child: TENON_UNSUPPORTED: small cannot run: this process was forked from one that uses", rest[6])
    assert rest[7:] == ["again: TENON_OK", y]


def test_libtenon_takes_the_processor_unless_a_device_is_asked_for(place: Path) -> None:
    listed = lines(place, target="")
    assert listed[1] == "device: none, but the processor"
    assert listed[2] == "prepare: TENON_OK"


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("no memory", "TENON_OUT_OF_MEMORY"),
        ("no device", "TENON_UNSUPPORTED"),
        ("small groups", "TENON_UNSUPPORTED"),
        ("refused", "TENON_RUN_FAILED"),
    ],
)
def test_what_a_device_refuses_is_a_status(fault: str, status: str, place: Path) -> None:
    listed = lines(place, fault)
    refused = [line for line in listed if line.startswith(("prepare", "run", "child", "again"))]
    assert len(refused) == 5
    assert all(f": {status}: small cannot run: " in line for line in refused if not line.startswith("child"))


def test_a_lost_device_is_a_status_and_the_next_run_tries_again(place: Path) -> None:
    listed = lines(place, "lost")
    assert listed[3].startswith("run: TENON_RUN_FAILED: small failed on the device: OpenCL: the device was lost")
    assert listed[4] == "run: TENON_OK"


@pytest.mark.parametrize(
    ("fault", "device"), [("no device", "none, but the processor"), ("", "Stand-in, 1.2.3, driver 1.2.3")]
)
def test_libtenon_takes_the_first_target_whose_device_there_is(fault: str, device: str, place: Path) -> None:
    listed = lines(place, fault, target="opencl, host")
    assert listed[:3] == ["open: TENON_OK", f"device: {device}", "prepare: TENON_OK"]
    assert listed[3] == "run: TENON_OK"
