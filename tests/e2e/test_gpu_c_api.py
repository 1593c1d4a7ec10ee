"""Bundles for GPUs in C programs: libtenon, and the C and C++ interfaces of other runtimes over it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tenon
from gpu_devices import why_not
from gpu_faults import faulty_opencl, with_fault
from libtenon import CLIENTS, client, sdk_for_clients, succeeded
from onnx_models import model, node
from tengine_sdk import built, built_cpp
from tenon.runtime.bundle.writer import save_container


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an SDK, a bundle for OpenCL and the processor, and a client."""
    folder = tmp_path_factory.mktemp("device")
    sdk = sdk_for_clients(folder, "")
    content = model([node("Tanh", ["x"], ["y"])], {"x": [1, 3, 10, 10]}, ["y"]).SerializeToString()
    bundles = [tenon.compile(content, target=target, name="small", no_tuning=True) for target in ("opencl", "x86-64")]
    save_container(folder / "small.tenon", bundles)
    client("run_on_device", sdk, folder)
    faulty_opencl(folder)
    return folder


def lines(place: Path, fault: str | None = None, target: str = "opencl") -> list[str]:
    """The output of the client, with the machine's OpenCL or with the stand-in."""
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
        ("refused", "TENON_RUN_FAILED"),
    ],
)
def test_what_a_device_refuses_is_a_status(fault: str, status: str, place: Path) -> None:
    listed = lines(place, fault)
    refused = [line for line in listed if line.startswith(("prepare", "run", "child", "again"))]
    assert len(refused) == 5
    assert all(f": {status}: small cannot run: " in line for line in refused if not line.startswith("child"))


def test_libtenon_passes_options_of_gpus_on(place: Path, tmp_path: Path) -> None:
    """An engine creates the network twice, before and after it gives its memory back."""
    words = [str(place / "run_on_device"), str(place / "small.tenon"), "opencl", f"cache: {tmp_path / 'kernels'}\n"]
    log = tmp_path / "log"
    succeeded(subprocess.run(words, capture_output=True, check=False, env=with_fault(place, "", log=str(log))))
    assert [line for line in log.read_text().splitlines() if line in ("source", "binary")] == ["source", "binary"]


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


# ------------------------------------------------------------------------------------------ other runtimes' interfaces
def program(place: Path, *words: str, fault: str | None = None) -> subprocess.CompletedProcess[str]:
    """A program of the SDK on the bundle, with the machine's OpenCL or with the stand-in."""
    environment = None if fault is None else with_fault(place, fault)
    command = [str(place / "sdk" / "bin" / words[0]), *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=place)


def test_graphs_of_tengine_run_on_devices(place: Path) -> None:
    """``set_context_device(context, "OCL", ...)``, which tm_benchmark calls."""
    words = ("tm_benchmark", "-d", "ocl", "-m", str(place / "small.tenon"), "-i", "1,3,10,10", "-r", "2")
    for fault in ("", "no device"):
        done = program(place, *words, fault=fault)
        assert "device:   OCL" in done.stdout
        assert ("min = " in done.stdout + done.stderr) == (fault == ""), done.stderr
        assert ("there is no OpenCL device" in done.stderr) == (fault == "no device")


def test_options_of_tengines_opencl_device(place: Path, tmp_path: Path) -> None:
    """``cache_path``: the second process finds the kernels that the first one compiled."""
    client_program, log = built(CLIENTS / "tengine_gpu.c", place), tmp_path / "log"
    for compiled in ("source", "binary"):
        log.write_text("")
        words = [str(client_program), str(place / "small.tenon"), str(tmp_path / "kernels")]
        succeeded(subprocess.run(words, capture_output=True, check=False, env=with_fault(place, "", log=str(log))))
        assert log.read_text().startswith(compiled)


def test_engines_of_mace_run_on_devices(place: Path) -> None:
    """``MaceEngineConfig config(GPU)``, which mace_run makes, and what a device that cannot be used says."""
    np.full((1, 3, 10, 10), 0.5, np.float32).tofile(place / "in_x")
    words = ["mace_run", "--model_name=small", f"--model_file={place / 'small.tenon'}", "--device=GPU", "--round=1"]
    words += ["--input_node=x", "--input_shape=1,3,10,10", "--output_node=y", "--output_shape=1,3,10,10"]
    words += [f"--input_file={place / 'in'}", f"--output_file={place / 'out'}"]
    words += ["--input_data_format=NONE", "--output_data_format=NONE"]
    if not why_not("opencl"):
        done = program(place, *words)
        assert done.returncode == 0, done.stdout
        assert "runtimes: [GPU]" in done.stdout
        np.testing.assert_allclose(np.fromfile(place / "out_y", np.float32), np.tanh(0.5), atol=1e-5)
    for fault, text in (
        ("no device", "small cannot run: there is no OpenCL device"),
        ("no memory", "small cannot run: OpenCL: there is not enough memory"),
    ):
        assert text in program(place, *words, fault=fault).stdout


MACE_RUN = ["mace_run", "--device=GPU", "--round=1", "--input_node=x", "--input_shape=1,3,10,10", "--output_node=y"]
MACE_RUN += ["--output_shape=1,3,10,10"]


@pytest.fixture
def mace_calls(place: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The calls of the driver by mace_run with some flags, variables, and texts of the stand-in."""
    np.full((1, 3, 10, 10), 0.5, np.float32).tofile(tmp_path / "in_x")

    def called(*flags: str, variables: dict[str, str], **texts: str) -> list[str]:
        log = tmp_path / "log"
        log.write_text("")
        files = [f"--model_file={place / 'small.tenon'}", f"--input_file={tmp_path / 'in'}"]
        command = [str(place / "sdk" / "bin" / MACE_RUN[0]), *MACE_RUN[1:], *files, *flags]
        environment = with_fault(place, "", log=str(log), **texts) | variables
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=place)
        assert done.returncode == 0, done.stdout
        return log.read_text().splitlines()

    return called


def test_mace_run_passes_options_of_gpus_on(mace_calls: Callable[..., list[str]], tmp_path: Path) -> None:
    """Hints, kept kernels and the variables for the pace of launches reach the driver."""
    flags = ("--gpu_priority_hint=1", f"--opencl_cache_full_path={tmp_path / 'kernels'}")
    texts = {"name": "QUALCOMM Adreno(TM)", "version": "OpenCL 2.0", "time": "100000"}
    texts["extensions"] = "cl_qcom_perf_hint cl_qcom_priority_hint"
    variables = {"MACE_LIMIT_OPENCL_KERNEL_TIME": "1", "MACE_OPENCL_QUEUE_WINDOW_SIZE": "1"}
    for compiled in ("source", "binary"):
        called = mace_calls(*flags, variables=variables, **texts)
        assert called[:3] == ["context 0x40c2 0x40c3", "context 0x40c9 0x40cc", compiled]
        launched = [line for line in called if line.startswith("launch")]
        assert launched[0] == "launch 0 128 64"
        assert launched[-2:] == ["launch 0 64 64", "launch 64 64 64"]
        assert called.count("finish") > len(launched)


def test_mace_run_measures_work_groups(mace_calls: Callable[..., list[str]], tmp_path: Path) -> None:
    file = tmp_path / "groups"
    called = mace_calls(variables={"MACE_TUNING": "1", "MACE_RUN_PARAMETER_PATH": str(file)})
    assert {"launch 0 80 16", "launch 0 96 32", "launch 0 128 64"} < set(called)
    stated = file.read_text()
    assert stated.endswith(" 128\n")  # no threads too many, which takes the least time there
    file.write_text(stated.replace(" 128\n", " 32\n"))
    assert "launch 0 96 32" in mace_calls(f"--opencl_parameter_file={file}", variables={})
    assert "launch 0 128 64" in mace_calls(variables={})


def test_mace_takes_kernels_and_parameters_from_memory(place: Path, tmp_path: Path) -> None:
    """``SetOpenCLBinary`` and ``SetOpenCLParameter`` take what files of the same options hold."""
    program = built_cpp(CLIENTS / "mace_gpu.cpp", place)
    kernels, groups, log = tmp_path / "kernels", tmp_path / "groups", tmp_path / "log"
    with_files = [str(place / "run_on_device"), str(place / "small.tenon"), "opencl"]
    succeeded(
        subprocess.run(
            [*with_files, f"cache: {kernels}\ntune: {groups}\n"],
            capture_output=True,
            check=False,
            env=with_fault(place, ""),
        )
    )
    (compiled,) = kernels.iterdir()
    groups.write_text(groups.read_text().replace(" 128\n", " 32\n"))
    for files, expected in (("--", ["source", "launch 0 128 64"]), ((compiled, groups), ["binary", "launch 0 96 32"])):
        log.write_text("")
        words = [str(word) for word in (program, place / "small.tenon", *files)]
        succeeded(subprocess.run(words, capture_output=True, check=False, env=with_fault(place, "", log=str(log))))
        lines = log.read_text().splitlines()
        assert [line for line in lines if line in ("source", "binary") or line.startswith("launch")] == expected
