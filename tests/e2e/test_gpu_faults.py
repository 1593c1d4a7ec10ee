"""Devices that are not there, fail, or are others than a bundle was made for: one message, and what else can run it.

A stand-in for the OpenCL library gives the statuses of such devices (``c/faulty_opencl.c``): no driver is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tenon
from gpu_faults import faulty_opencl, with_fault
from installed import tenon as command
from onnx_models import model, node
from tenon.runtime.bundle.writer import save_container

FAULTS = {
    "no memory": "OpenCL: there is not enough memory on the device (status -4 while allocating memory of the device)",
    "too large": "OpenCL: a buffer is larger than the device takes (status -61 while allocating memory of the device)",
    "refused": "the OpenCL compiler refuses the kernels (status -11): line 7: the register file is full",
    "no device": "there is no OpenCL device: install the driver of one",
}


@pytest.fixture(scope="module")
def small() -> bytes:
    """A model of one kernel, of more threads than a work group has."""
    content: bytes = model([node("Tanh", ["x"], ["y"])], {"x": [1, 300]}, ["y"]).SerializeToString()
    return content


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in, for the search path of libraries."""
    return faulty_opencl(tmp_path_factory.mktemp("opencl"))


@pytest.fixture(scope="module")
def file(small: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``.tenon`` file for OpenCL, and for processors."""
    path = tmp_path_factory.mktemp("bundle") / "small.tenon"
    bundles = [tenon.compile(small, target=target, name="small", no_tuning=True) for target in ("opencl", "x86-64")]
    return save_container(path, bundles)


def python(code: str, library: Path, fault: str) -> subprocess.CompletedProcess[str]:
    """A Python program that finds the stand-in."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=with_fault(library, fault), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_device_refuses_is_one_message(fault: str, library: Path, file: Path) -> None:
    done = python(f"import tenon; tenon.open({str(file)!r}, target='opencl').run()", library, fault)
    assert f"tenon.errors.ResourceError: 'small' cannot run: {FAULTS[fault]}" in done.stderr


def test_a_lost_device_is_one_message_and_the_next_run_tries_again(library: Path, file: Path) -> None:
    code = f"""
import tenon
with tenon.open({str(file)!r}, target="opencl") as engine:
    for _ in range(2):
        try:
            print("ran", *engine.run())
        except tenon.errors.ResourceError as error:
            print(error)
    print(engine.device)
"""
    lost = "'small' failed on the device: OpenCL: the device was lost (status -36 while running the network)"
    ran = "ran y"
    device = "Stand-in, 1.2.3, driver 1.2.3"
    assert python(code, library, "lost").stdout.splitlines() == [lost, ran, device]
    assert python(code, library, "lost for good").stdout.splitlines() == [lost, lost, device]
    assert python(code, library, "").stdout.splitlines() == [ran, ran, device]


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_processor_is_used_where_a_device_cannot_be(how: str, library: Path, file: Path) -> None:
    """The targets in the order of preference; why one is not used is a warning."""
    given = {"option": ", target='opencl,host'", "environment": ""}[how]
    code = f"""
import os
os.environ["TENON_OPEN_TARGET"] = "opencl,host"
import tenon
with tenon.open({str(file)!r}{given}) as engine:
    print(engine.manifest.target.name, *engine.run([[0.0] * 300])["y"][0, :2])
"""
    done = python(code, library, "no memory")
    assert done.stdout.split() == ["x86-64", "0.0", "0.0"], done.stderr
    assert f"TenonWarning: 'small' cannot run: {FAULTS['no memory']}" in done.stderr
    assert "host is used instead of opencl" in done.stderr


def test_a_device_is_used_where_it_can_be(library: Path, file: Path) -> None:
    code = f"import tenon; e = tenon.open({str(file)!r}, target='opencl, host'); print(e.manifest.target.name)"
    done = python(code, library, "")
    assert (done.stdout.split(), done.stderr) == (["opencl"], "")


def test_commands_take_targets_in_the_order_of_preference(
    library: Path, file: Path, small: bytes, tmp_path: Path
) -> None:
    """With a file for several targets, and with a model, which is compiled for one after the other."""
    (tmp_path / "model.onnx").write_bytes(small)
    given = (file, tmp_path / "model.onnx", "--rounds", "1", "--target", "opencl,x86-64", "--json")
    done = command("benchmark", *given, LD_LIBRARY_PATH=str(library), TEST_OPENCL_FAULT="no memory")
    assert done.returncode == 0, done.stderr
    assert [network["target"] for network in json.loads(done.stdout)["networks"]] == ["x86-64", "x86-64"]
    assert "x86-64 is used instead of opencl" in done.stderr.replace("\n", " ")


def test_a_file_runs_on_the_processor_unless_a_device_is_asked_for(file: Path) -> None:
    """A GPU target stands first in the file."""
    with tenon.open(file) as engine:
        assert engine.manifest.target.name == "x86-64"
        assert not engine.on_device
