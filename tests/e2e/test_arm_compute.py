"""The Arm Compute Library as a device: the compiler asks a plug-in without the library, an emulated machine runs it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tenon
from libtenon import CLIENTS, needed, run, succeeded
from onnx_models import model, node, random
from real import ROOT
from tenon.errors import DeviceError
from tenon.plugins import LibraryDevice, offloaded
from tenon.runtime.sdk import save_sdk
from tenon.runtime.sdk.libtenon import RUNTIME

PLUGIN = ROOT / "examples" / "arm_compute_device.cpp"
FLAGS = ("-std=c++14", "-shared", "-fPIC", "-Wall", "-Wextra", f"-I{RUNTIME / 'include'}")
SYSROOT = os.environ.get("ARM_COMPUTE_SYSROOT", "")
"""A folder with Debian's libarm-compute-dev:arm64 and what it depends on, unpacked (``dpkg -x``)."""


@pytest.fixture(scope="module")
def content() -> bytes:
    """Every operator of the device, and one that it does not have, between two parts."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 3], strides=[2, 2], pads=[0, 1, 0, 1]),
        node("Sigmoid", ["m"], ["s"]),
        node("Conv", ["s", "d"], ["dd"], pads=[1, 1, 1, 1], group=8),
        node("Conv", ["dd", "p"], ["pp"]),
        node("Add", ["pp", "pp"], ["a"]),
        node("AveragePool", ["a"], ["av"], kernel_shape=[2, 2], pads=[1, 0, 0, 1], strides=[1, 1]),
        node("GlobalAveragePool", ["av"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "k", "kb"], ["h"]),
        node("MatMul", ["h", "l"], ["y"]),
    ]
    convolutions = {"w": random(8, 3, 3, 3), "b": random(8), "d": random(8, 1, 3, 3), "p": random(6, 8, 1, 1)}
    weights = {**convolutions, "k": random(6, 5), "kb": random(5), "l": random(5, 4)}
    made: bytes = model(nodes, {"x": [2, 3, 17, 13]}, ["y"], weights).SerializeToString()
    return made


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> LibraryDevice:
    """The device as the compiler knows it."""
    library = tmp_path_factory.mktemp("acl") / "here.so"
    succeeded(run(needed("g++"), *FLAGS, "-Werror", "-DWITHOUT_ARM_COMPUTE", PLUGIN, "-o", library))
    return LibraryDevice(library)


def test_the_compiler_asks_a_plugin_without_the_library(content: bytes, described: LibraryDevice) -> None:
    graph = offloaded(tenon.load(content), described)
    assert graph.placement is not None
    others = [(layer.op, layer.device, layer.reason) for layer in graph.placement.layers if layer.device != "acl"]
    assert others == [("Sigmoid", "cpu", "acl does not support Sigmoid")]
    assert [name.op.name for name in graph] == ["DevicePart", "Sigmoid", "DevicePart"]
    with pytest.raises(DeviceError, match="device acl refuses a part of the network: cannot read the part"):
        described.prerun(b"\x3a\xff\xff")


@pytest.mark.slow
@pytest.mark.skipif(not SYSROOT, reason="ARM_COMPUTE_SYSROOT names no folder with Debian's libarm-compute-dev:arm64")
def test_an_emulated_machine_runs_the_library(content: bytes, described: LibraryDevice, tmp_path: Path) -> None:
    """The answers are those of compiled code."""
    cross = ("--target=aarch64-linux-gnu", f"--sysroot={SYSROOT}", f"--gcc-toolchain={SYSROOT}/usr")
    libraries = ("-B/usr/bin/aarch64-linux-gnu-", "-larm_compute", "-larm_compute_core", "-lpthread")
    succeeded(run(needed("clang++"), *cross, *FLAGS, "-O1", PLUGIN, *libraries, "-o", tmp_path / "acl.so"))
    tenon.compile(content, target="aarch64", rewrite=lambda graph: offloaded(graph, described)).save(
        tmp_path / "net.tenon"
    )
    sdk = save_sdk(tmp_path / "sdk", "aarch64")
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    program = tmp_path / "run_once"
    succeeded(run(needed("aarch64-linux-gnu-gcc"), CLIENTS / "run_once.c", *paths, "-o", program))
    x = random(2, 3, 17, 13, seed=1)
    folders = f"{SYSROOT}/usr/lib/aarch64-linux-gnu:{SYSROOT}/lib/aarch64-linux-gnu"
    words = ("-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={folders}", program, tmp_path / "net.tenon")
    environment = {**os.environ, "TENON_DEVICE_PLUGINS": f"{tmp_path / 'acl.so'}="}
    done = run(needed("qemu-aarch64"), *words, stdin=x.tobytes(), env=environment)
    with tenon.open(tenon.compile(content)) as engine:
        expected = engine.run(x)["y"]
    np.testing.assert_allclose(np.frombuffer(succeeded(done), np.float32), expected.ravel(), rtol=1e-4, atol=1e-5)
